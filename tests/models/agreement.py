"""How tests compare the tensors of a fast recurrence with those of a readable one."""

import torch


def assert_close(actual, expected, tolerance=1e-12):
    """Assert that tensors agree to a tolerance relative to the largest entry of each."""
    for a, e in zip(actual, expected, strict=True):
        scale = e.detach().abs().max().clamp(min=1.0).item()
        torch.testing.assert_close(a, e, rtol=0, atol=tolerance * scale)


def assert_close_where_finite(actual, expected):
    """Assert that the same entries are finite, and that these agree."""
    for a, e in zip(actual, expected, strict=True):
        finite = e.isfinite()
        assert torch.equal(a.isfinite(), finite)
        if finite.any():
            assert_close([a[finite]], [e[finite]])


def spoil(x, value, whole_row=False):
    """Return x, (τ, B, m), with `value` at one time step of one sequence; it takes a gradient."""
    x = x.detach().clone()
    if whole_row:
        x[4, 1] = value
    else:
        x[4, 1, 2] = value
    return x.requires_grad_()
