"""What one GPU can do: `python -m bench.gpu` runs tests and measurements, and prints tables.

Each section is a module of this package with a function `measure(plan, notes)`. It runs in a
process of its own, so that a section that fails, hangs or breaks the device leaves the others
their turn.
"""
