"""The papers' analyses of trained networks: how far gradients reach, what a matrix remembers.

All are pure functions of a model and tensors. Each module names the figure that it reproduces.
"""
