"""The fast recurrence on NVIDIA GPUs: kernels that run all time steps of a chunk in one launch."""
