"""Which samples of a recording are speech, by ITU-T P.56, method B.

Source: ITU-T P.56 (1993), with the filters and the histogram of VOICEBOX's `activlev`, which the
program of Wisdom et al., NeurIPS 2016 uses; written anew from its description.
"""

from __future__ import annotations

from collections.abc import Callable
from math import acosh, asinh, ceil, cosh, exp, log10, pi, sinh, sqrt, tan

import numpy as np
from numpy.typing import NDArray

MARGIN_DB = 15.9
"""What speech is louder than: its own active level less so much."""
BINS = 20
RINGING = 16_384
"""Samples after which every filter here has died away to less than the last bit at 8 kHz."""

Response = Callable[[NDArray[np.complex128]], NDArray[np.complex128]]
"""A filter's transfer function, of 1/z."""


def active_samples(wave: NDArray[np.float64], rate: int) -> NDArray[np.bool_] | None:
    """Return which samples of a recording, (n,), are speech; None if there is no sound at all."""
    if not wave.any():
        return None
    sound = filtered(wave, high_pass(rate))
    envelope = held(filtered(np.abs(sound), smoother(rate)), ceil(0.2 * rate) + 1)
    level = active_level(envelope, float(sound @ sound))
    return envelope > 10 ** ((level - MARGIN_DB) / 20)


def active_level(envelope: NDArray[np.float64], energy: float) -> float:
    """Return the level of speech while it is active, in dB, given its envelope and its energy.

    For thresholds at powers of two of the squared envelope, each 3.01 dB below the one before, the
    level is the energy over the samples above the threshold. The one that is 15.9 dB above its
    threshold is found by linear interpolation. The lowest of twenty bins takes all that is below.
    """
    _, exponents = np.frexp(envelope**2)
    top = int(exponents.max())
    bins = np.where(envelope > 0, np.minimum(top - exponents, BINS - 1), BINS - 1)
    counts = np.cumsum(np.bincount(bins, minlength=BINS))
    levels = 10 * np.log10(energy / counts)
    edges = 10 * log10(2) * (top - 1 - np.arange(BINS))
    above = levels - edges - MARGIN_DB
    crossings = np.flatnonzero((above[:-1] < 0) & (above[1:] >= 0))
    if not len(crossings):
        return float(levels[-1] if above[-1] <= 0 else levels[0])
    j = int(crossings[0])
    share = above[j] / (above[j] - above[j + 1])
    return float(levels[j] + share * (levels[j + 1] - levels[j]))


def high_pass(rate: int) -> Response:
    """Return P.56's filter for the sampling rate: an inverse Chebyshev high pass of order 5.

    It is at -0.25 dB at 200 Hz, at -50 dB in its stop band and at 0 dB at half the sampling rate;
    the bilinear transform makes it digital, with 200 Hz where they are.
    """
    order, ripple = 5, sqrt(10**5 - 1)
    stop = 1 / cosh(acosh(ripple / sqrt(10**0.025 - 1)) / order)
    angles = pi * np.arange(1 - order, order, 2) / (2 * order)
    spread = asinh(ripple) / order
    poles = stop * (-sinh(spread) * np.cos(angles) + 1j * cosh(spread) * np.sin(angles))
    zeros = stop * 1j * np.sin(angles)
    warp = tan(pi * 200 / rate)
    zeros, poles = ((1 + roots * warp) / (1 - roots * warp) for roots in (zeros, poles))

    def ratio(delay: NDArray[np.complex128]) -> NDArray[np.complex128]:
        factors = (1 - zeros[:, None] * delay) / (1 - poles[:, None] * delay)
        return factors.prod(axis=0)

    return lambda delay: ratio(delay) / ratio(-np.ones(1, np.complex128)).real


def smoother(rate: int) -> Response:
    """Return two first-order averages in a row, of 30 ms each, with a gain of 1 at 0 Hz."""
    kept = exp(-1 / (0.03 * rate))
    return lambda delay: ((1 - kept) / (1 - kept * delay)) ** 2


def filtered(wave: NDArray[np.float64], response: Response) -> NDArray[np.float64]:
    """Return the recording after a recursive filter that starts at rest.

    It is applied to the spectrum, with enough zeros behind for the filter to die away.
    """
    size = 1 << (len(wave) + RINGING - 1).bit_length()
    delay = np.exp(-2j * pi * np.arange(size // 2 + 1) / size)
    return np.fft.irfft(np.fft.rfft(wave, size) * response(delay), size)[: len(wave)]


def held(envelope: NDArray[np.float64], length: int) -> NDArray[np.float64]:
    """Return at each sample the largest of the last `length` ones, itself among them.

    >>> held(np.array([1.0, 3.0, 2.0, 0.0, 0.0]), 3).tolist()
    [1.0, 3.0, 3.0, 3.0, 2.0]
    """
    window = 1
    while window < length:
        step = min(window, length - window)
        earlier = np.concatenate([envelope[:1].repeat(step), envelope])[: len(envelope)]
        envelope = np.maximum(envelope, earlier)
        window += step
    return envelope
