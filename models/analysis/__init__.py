"""What the papers look at beside losses: how far gradients reach, what a matrix remembers.

Pure functions: a model and tensors in, tensors and numbers out. Each module names its figure.
"""
