"""Checks of the fast recurrences' arguments: the compiled steps themselves check nothing."""

from __future__ import annotations

from torch import Tensor


def check_input(x: Tensor, name: str, like: Tensor) -> None:
    """Raise ValueError unless x is an input of a recurrence whose matrix `name` is `like`."""
    values = x.is_floating_point()
    if x.dim() != (3 if values else 2) or x.numel() == 0:
        raise ValueError(
            "x is symbols, int64 (τ, B), or values, float (τ, B, m), and not empty; "
            f"it is {x.dtype} {tuple(x.shape)}"
        )
    if values and x.dtype != like.dtype:
        raise ValueError(f"x is {x.dtype} and {name} is {like.dtype}; they must be the same")
    check_device(name, like, x=x)


def check_each(name: str, like: Tensor, **expected: tuple[Tensor | None, tuple[int, ...]]) -> None:
    """Raise ValueError unless every tensor has its shape, and dtype and device of `like`."""
    for given, (tensor, shape) in expected.items():
        if tensor is None:
            continue
        if tensor.shape != shape or tensor.dtype != like.dtype:
            raise ValueError(
                f"{given} is {tensor.dtype} {tuple(tensor.shape)}; "
                f"{name} of {like.shape[-1]} hidden units and x ask for {like.dtype} {shape}"
            )
        check_device(name, like, **{given: tensor})


def check_gated(
    x: Tensor,
    U: Tensor,
    R: Tensor,
    b: Tensor,
    V: Tensor,
    c: Tensor,
    *,
    rows: tuple[int, int, int],
    **states: Tensor,
) -> None:
    """Raise ValueError unless all fit; U, R and b have so many rows, as multiples of n."""
    check_input(x, "R", R)
    n, m, p = R.shape[-1], (x.shape[2] if x.is_floating_point() else U.shape[-1]), len(V)
    check_each(
        "R",
        R,
        U=(U, (rows[0] * n, m)),
        R=(R, (rows[1] * n, n)),
        b=(b, (rows[2] * n,)),
        V=(V, (p, n)),
        c=(c, (p,)),
        **{name: (state, (x.shape[1], n)) for name, state in states.items()},
    )


def check_device(name: str, like: Tensor, **tensors: Tensor) -> None:
    """Raise ValueError unless every tensor is on the device of `like`."""
    for given, tensor in tensors.items():
        if tensor.device != like.device:
            raise ValueError(
                f"{given} is on {tensor.device} and {name} on {like.device}; "
                "they must be on the same device"
            )
