"""Optimizers of one training: PyTorch's, TensorFlow 1's, plain ones, and schedules of rates."""
