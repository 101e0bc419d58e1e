"""Convert recordings into frames of log magnitudes, and back.

Source: the program of Wisdom et al., NeurIPS 2016, which Helfrich & Ye, AAAI 2020, follow: windows
of 32 ms that overlap by half, at 8 kHz. Letters: n samples, F frames of a recording.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

WINDOW, HOP = 256, 128
"""Samples of a window, and from one window to the next."""
BINS = WINDOW // 2 + 1
"""Frequencies of a frame: 129."""
FLOOR = 1e-5
"""Added to squared magnitudes, so that the logarithm of silence is finite."""
SILENCE_DB = -50.0
"""Log magnitude of silence: 10 log10 of `FLOOR`."""
HANN = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(WINDOW) / WINDOW)
"""The periodic Hann window, (256,): two windows that overlap by half add up to one."""


def frame_count(samples: int) -> int:
    """Return F, the number of frames of a recording; the first and the last one are silent.

    >>> [frame_count(n) for n in (1, 128, 129)]
    [4, 4, 5]
    """
    return -(-samples // HOP) + 3


def spectrum(samples: NDArray[np.int16]) -> NDArray[np.complex128]:
    """Return the short-time Fourier transform, (F, 129), of a recording, (n,).

    The samples are scaled to -1 to 1 and padded with zeros to a multiple of 128, with 256 more
    zeros on either side.
    """
    wave = np.zeros((frame_count(len(samples)) + 1) * HOP)
    wave[WINDOW : WINDOW + len(samples)] = samples / 32768
    return np.fft.rfft(np.lib.stride_tricks.sliding_window_view(wave, WINDOW)[::HOP] * HANN)


def log_magnitudes(frames: NDArray[np.complex128]) -> NDArray[np.float32]:
    """Return 10 log10(|X|² + 1e-5), in dB, with the shape of X, (F, 129)."""
    power = frames.real**2 + frames.imag**2
    return (10 * np.log10(FLOOR + power)).astype(np.float32)


def waveform(frames: NDArray[np.complex128]) -> NDArray[np.float64]:
    """Return the recording, (128 (F - 3),), whose transform is nearest to `frames`, (F, 129).

    The inverse of each frame is windowed again. The sum of these pieces is divided by the sum of
    the squared windows. This inverts `spectrum`, except that the padding at the end remains.
    """
    pieces = np.fft.irfft(frames, WINDOW) * HANN
    wave, weight = np.zeros((2, len(frames) + 1, HOP))
    wave[:-1] += pieces[:, :HOP]
    wave[1:] += pieces[:, HOP:]
    weight[:-1] += HANN[:HOP] ** 2
    weight[1:] += HANN[HOP:] ** 2
    return (wave[2:-2] / weight[2:-2]).ravel()


def replace_magnitudes(
    frames: NDArray[np.complex128], predictions: NDArray[np.floating]
) -> NDArray[np.complex128]:
    """Return the true transform, (F, 129), with the magnitudes that a model predicts.

    `predictions` are in dB, (F, 129) or longer; row t predicts frame t + 1. The phases and the
    whole of frame 0 are the true ones. The result is not finite where a prediction is not, or is so
    loud that it overflows.
    """
    decibels = predictions[: len(frames) - 1].astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        magnitudes = np.sqrt(10 ** (decibels / 10))
        later = magnitudes * np.exp(1j * np.angle(frames[1:]))
    return np.concatenate([frames[:1], later])


def to_int16(wave: NDArray[np.float64]) -> NDArray[np.int16]:
    """Return a recording as a 16-bit file holds it: scaled down if it exceeds 1, then truncated.

    >>> to_int16(np.array([0.5, -2.0])).tolist()
    [8191, -32767]
    """
    peak = max(1.0, float(np.abs(wave).max(initial=0.0)))
    return np.trunc(wave / peak * 32767).astype(np.int16)
