"""How often the constructed solution of copying recalls everything.

Source: Henaff, Szlam & LeCun, ICML 2016, section 3 and figure 1, whose settings are lost.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import pi

import torch
from torch import Tensor
from torch.nn.functional import normalize


@dataclass(frozen=True)
class Draw:
    """One random solution with a string to recall."""

    hands: Tensor
    """(d,) of integers below the period: how far each plane turns in a step."""
    vectors: Tensor
    """(K, 2 d): the unit vector of each symbol."""
    string: Tensor
    """(S,) of symbols, from 0."""


def draw_problem(
    planes: int, symbols: int, recalls: int, delay: int, generator: torch.Generator
) -> Draw:
    """Return a random solution with `planes` rotating planes, and a string of `recalls` symbols."""
    hands = torch.randint(delay + recalls, (planes,), generator=generator)
    vectors = torch.randn(symbols, 2 * planes, generator=generator, dtype=torch.float64)
    string = torch.randint(symbols, (recalls,), generator=generator)
    return Draw(hands, normalize(vectors), string)


def scores(draw: Draw, delay: int) -> Tensor:
    """Return what each symbol scores at each answer, (S, K), without the blank and the counter.

    With the planes as complex numbers the state at answer r is Σ_j Q^(N + r - j) u_j with
    Q^N = 1: the network need not be run, and `delay` enters through its period N alone.
    """
    period = delay + len(draw.string)
    u = torch.view_as_complex(draw.vectors.reshape(len(draw.vectors), -1, 2))
    r = torch.arange(1, len(draw.string) + 1)
    angles = 2 * pi / period * (r[:, None] * draw.hands % period).double()
    turned = torch.polar(torch.ones_like(angles), angles)  # (S, d): Q^r
    start = (turned.conj() * u[draw.string]).sum(0)
    return ((turned * start) @ u.mH).real


def successes(
    planes: int, symbols: int, recalls: int, delay: int = 500, runs: int = 100, seed: int = 0
) -> int:
    """Return in how many of `runs` random solutions every one of the `recalls` symbols is right.

    Right is the largest score among the K symbols at each answer.
    """
    found = 0
    for run in range(runs):
        generator = torch.Generator().manual_seed(seed * 1_000_003 + run)
        draw = draw_problem(planes, symbols, recalls, delay, generator)
        found += bool((scores(draw, delay).argmax(1) == draw.string).all())
    return found
