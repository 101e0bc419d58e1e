"""Trainings of equal shape, stacked as lanes of one program.

`group` holds trainings that join, train side by side and leave; `program` is the arithmetic of
their steps, with `optimizers`, `batches` and `scoring` beside it, and `graphs` captures it.
"""
