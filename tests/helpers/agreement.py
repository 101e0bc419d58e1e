"""What the tests of fast recurrences share: sizes, backends, and how results are compared."""

from contextlib import contextmanager

import torch
from helpers.compilers import need_libraries
from torch.nn.functional import linear

from eigensweep.models.recurrence.reference import recurrent_states

SIZES = {  # τ, B, n, m, p
    "odd": (9, 5, 19, 4, 3),
    "all one": (1, 1, 1, 1, 1),
    "one sequence": (7, 1, 17, 3, 2),
    "whole vectors": (6, 14, 32, 16, 16),
    "many rows": (4, 31, 7, 2, 40),
}


def choose_backend(request, *sources):
    """Return the backend that a fixture asks for; skip its tests if there is no compiler."""
    if request.param == "native":
        need_libraries(*sources)
    return request.param


@contextmanager
def more_threads():
    """Let PyTorch and compiled steps use two threads more."""
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 2)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def run_lanes(lane, x, leaves, shared):
    """Return the results of two lanes stacked by `torch.vmap`, and of each lane alone.

    `shared` says that both lanes get one x.
    """
    dims = (None if shared else 0,) + (0,) * len(leaves)
    stacked = torch.vmap(lane, in_dims=dims)(x, *leaves)
    alone = [lane(x if shared else x[i], *(leaf[i] for leaf in leaves)) for i in range(2)]
    return list(stacked), [torch.stack(pair) for pair in zip(*alone, strict=True)]


def read_out(H, V, c, readout="all"):
    """Return (logits, last h) of states, whose real parts V reads before the imaginary ones."""
    seen = H if readout == "all" else H[-1]
    return linear(torch.cat((seen.real, seen.imag), -1) if H.is_complex() else seen, V, c), H[-1]


def recur_readably(x, U, W, b, V, c, *, readout="all", **how):
    """Return (logits, last h) by the readable recurrence."""
    return read_out(recurrent_states(x, U, W, b, **how), V, c, readout)


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
