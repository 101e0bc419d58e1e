"""Speech as frames of log magnitudes, and back.

Source: the program of Wisdom et al., NeurIPS 2016, which Helfrich & Ye, AAAI 2020, follow: windows
of 32 ms, half overlapping, at 8 kHz. Letters: n samples, F frames of a recording.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

WINDOW, HOP = 256, 128
BINS = WINDOW // 2 + 1
FLOOR = 1e-5
"""Added to squared magnitudes, so that silence is -50 dB."""
SILENCE_DB = -50.0
HANN = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(WINDOW) / WINDOW)
"""Periodic: two of them, half overlapping, add up to one."""


def frame_count(samples: int) -> int:
    """Return F, the number of frames of a recording: its first and last one are silent.

    >>> [frame_count(n) for n in (1, 128, 129)]
    [4, 4, 5]
    """
    return -(-samples // HOP) + 3


def spectrum(samples: NDArray[np.int16]) -> NDArray[np.complex128]:
    """Return the short-time Fourier transform, (F, 129), of a recording, (n,).

    The recording is between -1 and 1, filled up with zeros to a multiple of 128 samples and put
    between 256 zeros on either side.
    """
    wave = np.zeros((frame_count(len(samples)) + 1) * HOP)
    wave[WINDOW : WINDOW + len(samples)] = samples / 32768
    return np.fft.rfft(np.lib.stride_tricks.sliding_window_view(wave, WINDOW)[::HOP] * HANN)


def log_magnitudes(frames: NDArray[np.complex128]) -> NDArray[np.float32]:
    """Return 10 log10(|X|² + 1e-5), in dB, in the shape of X."""
    power = frames.real**2 + frames.imag**2
    return (10 * np.log10(FLOOR + power)).astype(np.float32)


def waveform(frames: NDArray[np.complex128]) -> NDArray[np.float64]:
    """Return the recording whose transform is nearest to `frames`, (F, 129): 128 (F - 3) samples.

    The inverse of each frame is windowed again, and their sum divided by that of the squared
    windows. It is the inverse of `spectrum`, with the zeros that filled the recording up.
    """
    pieces = np.fft.irfft(frames, WINDOW) * HANN
    wave, weight = np.zeros((2, len(frames) + 1, HOP))
    wave[:-1] += pieces[:, :HOP]
    wave[1:] += pieces[:, HOP:]
    weight[:-1] += HANN[:HOP] ** 2
    weight[1:] += HANN[HOP:] ** 2
    return (wave[2:-2] / weight[2:-2]).ravel()


def predicted(
    frames: NDArray[np.complex128], predictions: NDArray[np.floating]
) -> NDArray[np.complex128]:
    """Return the transform that a model predicts, given the true one, (F, 129).

    `predictions` is in dB, (F, 129) or longer: row t tells frame t + 1. Phases are the true ones,
    and so is all of frame 0. It is not finite where a prediction is not, or is absurdly loud.
    """
    told = predictions[: len(frames) - 1].astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        magnitudes = np.sqrt(10 ** (told / 10))
        said = magnitudes * np.exp(1j * np.angle(frames[1:]))
    return np.concatenate([frames[:1], said])


def as_written(wave: NDArray[np.float64]) -> NDArray[np.int16]:
    """Return what a file of 16 bits keeps: scaled down if it is louder than 1, then cut to steps.

    >>> as_written(np.array([0.5, -2.0])).tolist()
    [8191, -32767]
    """
    peak = max(1.0, float(np.abs(wave).max(initial=0.0)))
    return np.trunc(wave / peak * 32767).astype(np.int16)
