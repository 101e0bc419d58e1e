"""Find the samples of a recording that are speech, by ITU-T P.56, method B.

Source: ITU-T P.56 (1993), with the filters and the histogram of VOICEBOX's `activlev`, which the
program of Wisdom et al., NeurIPS 2016, uses. Written anew from its description.
"""

from __future__ import annotations

from collections.abc import Callable
from math import acosh, asinh, ceil, cosh, exp, log10, pi, sinh, sqrt, tan

import numpy as np
from numpy.typing import NDArray

MARGIN_DB = 15.9
"""Margin below the active level that still counts as speech, in dB."""
BINS = 20
"""Bins of the envelope's histogram."""
RINGING = 16_384
"""At 8 kHz, the response of every filter here is below the last bit after so many samples."""

Response = Callable[[NDArray[np.complex128]], NDArray[np.complex128]]
"""A filter's transfer function, as a function of 1/z."""


def active_samples(wave: NDArray[np.float64], rate: int) -> NDArray[np.bool_] | None:
    """Return for each sample of a recording, (n,), whether it is speech; None if all are zero.

    `rate` is the number of samples a second.
    """
    if not wave.any():
        return None
    sound = apply_filter(wave, high_pass(rate))
    smooth = apply_filter(np.abs(sound), smoother(rate))
    envelope = running_maximum(smooth, ceil(0.2 * rate) + 1)
    level = active_level(envelope, float(sound @ sound))
    return envelope > 10 ** ((level - MARGIN_DB) / 20)


def active_level(envelope: NDArray[np.float64], energy: float) -> float:
    """Return the active speech level, in dB, of a recording with this envelope, (n,), and energy.

    The thresholds are powers of two of the squared envelope, each 3.01 dB below the one before. The
    level at a threshold is the energy, divided by the number of samples above the threshold. Linear
    interpolation finds the level that is 15.9 dB above its threshold. The lowest of the twenty bins
    also holds every sample below it.
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

    Its gain is -0.25 dB at 200 Hz, -50 dB in its stop band and 0 dB at half the sampling rate. The
    bilinear transform makes it digital and keeps 200 Hz in place.
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
    """Return two first-order averages in series, each of 30 ms, with a gain of 1 at 0 Hz."""
    kept = exp(-1 / (0.03 * rate))
    return lambda delay: ((1 - kept) / (1 - kept * delay)) ** 2


def apply_filter(wave: NDArray[np.float64], response: Response) -> NDArray[np.float64]:
    """Return the recording, (n,), after a recursive filter that starts at rest.

    The filter is applied to the spectrum. Zeros behind the recording leave it time to die away.
    """
    size = 1 << (len(wave) + RINGING - 1).bit_length()
    delay = np.exp(-2j * pi * np.arange(size // 2 + 1) / size)
    return np.fft.irfft(np.fft.rfft(wave, size) * response(delay), size)[: len(wave)]


def running_maximum(envelope: NDArray[np.float64], length: int) -> NDArray[np.float64]:
    """Return for each sample, (n,), the largest of the last `length` samples, itself included.

    >>> running_maximum(np.array([1.0, 3.0, 2.0, 0.0, 0.0]), 3).tolist()
    [1.0, 3.0, 3.0, 3.0, 2.0]
    """
    window = 1
    while window < length:
        step = min(window, length - window)
        earlier = np.concatenate([envelope[:1].repeat(step), envelope])[: len(envelope)]
        envelope = np.maximum(envelope, earlier)
        window += step
    return envelope
