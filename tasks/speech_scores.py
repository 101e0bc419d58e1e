"""Scores of how similar two recordings sound: segmental signal-to-noise ratio, STOI and PESQ.

STOI and PESQ need the packages `pystoi` and `pesq` (the extra `speech`) and are left out without
them. A score that cannot be computed, for example since the recording is too short, is None.
"""

from __future__ import annotations

import importlib
import logging
import warnings
from functools import cache
from math import log
from types import ModuleType
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from eigensweep.tasks.active_speech import active_samples
from eigensweep.tasks.speech_files import RATE

logger = logging.getLogger(__name__)

SEGMENT = 80
"""Samples of a segment: 10 ms."""
LIMIT_DB = 100.0
"""Score of a segment without any error; a silent segment with an error has minus this score."""
STOI_SECONDS = 0.39
"""A shorter recording has fewer than the 30 frames that STOI needs."""
STOI_MISSING = 1e-5
"""`pystoi` returns this, with a warning, if fewer than 30 frames are not silent."""
Fit = Literal["linear", "parabola"]
Number = TypeVar("Number", bound=np.generic)


def speech_scores(
    reference: NDArray[np.int16], estimate: NDArray[np.int16] | None
) -> dict[str, float | None]:
    """Return each score of an estimate; None for a score that cannot be computed.

    Both recordings are (n,), at 8 kHz. Without an estimate every score is None. A score whose
    package is not installed is left out.
    """
    names = ["seg_snr", "seg_snr_parabola"]
    names += ["stoi"] if package("pystoi") else []
    names += ["pesq_raw", "pesq_lqo"] if package("pesq") else []
    found: dict[str, float | None] = dict.fromkeys(names)
    if estimate is None:
        return found
    found["seg_snr"] = seg_snr(reference, estimate, "linear")
    found["seg_snr_parabola"] = seg_snr(reference, estimate, "parabola")
    if "stoi" in found:
        found["stoi"] = stoi(reference, estimate)
    if "pesq_lqo" in found:
        lqo = found["pesq_lqo"] = pesq_lqo(reference, estimate)
        found["pesq_raw"] = None if lqo is None else pesq_raw(lqo)
    return found


def seg_snr(
    reference: NDArray[np.int16], estimate: NDArray[np.int16], fit: Fit = "linear"
) -> float | None:
    """Return the segmental signal-to-noise ratio, in dB; None if no segment is speech.

    It is the mean over all segments of 10 ms that are speech for more than half of their length.
    The estimate may be up to one sample early or late. So the error of a segment is the smallest
    over these shifts: the estimate is interpolated between samples (`linear`), or a `parabola` is
    laid through the errors at the three shifts.

    Source: VOICEBOX's `snrseg`, since 2018 (`linear`) and before (`parabola`); written anew.

    Raises:
        ValueError: if the recordings are not equally long.
    """
    if len(reference) != len(estimate):
        raise ValueError(
            f"the two recordings must be equally long; they have {len(reference)} and "
            f"{len(estimate)} samples"
        )
    r, s = reference / 32768, estimate / 32768
    segments = max(0, (len(r) - 2) // SEGMENT)
    heard = np.append(r, np.zeros(round(0.35 * RATE))) if fit == "linear" else r
    active = active_samples(heard, RATE) if segments else None
    if active is None:
        return None

    def cut(signal: NDArray[Number], shift: int = 0) -> NDArray[Number]:
        start = 1 + shift
        return signal[start : start + segments * SEGMENT].reshape(segments, SEGMENT)

    errors = least_errors(cut(r), cut(s), (cut(s, 1), cut(s, -1)), fit)
    with np.errstate(divide="ignore"):
        ratios = 10 * np.log10((cut(r) ** 2).sum(1) / np.where(errors > 0, errors, 1.0))
    ratios = np.where(np.isneginf(ratios), -LIMIT_DB, ratios)
    ratios = np.where(errors > 0, ratios, LIMIT_DB)
    counted = cut(active).sum(1) > SEGMENT // 2
    return float(ratios[counted].mean()) if counted.any() else None


def least_errors(
    r: NDArray[np.float64],
    s: NDArray[np.float64],
    neighbours: tuple[NDArray[np.float64], NDArray[np.float64]],
    fit: Fit,
) -> NDArray[np.float64]:
    """Return the smallest error energy of each segment, (segments,).

    `r` is the reference, `s` the estimate, and `neighbours` are the estimate one sample later and
    earlier; each is (segments, 80).
    """
    here = ((s - r) ** 2).sum(1)
    if fit == "linear":
        found = [here]
        for neighbour in neighbours:
            step = neighbour - s
            length = (step**2).sum(1)
            share = np.clip((step * (r - s)).sum(1) / np.where(length > 0, length, 1.0), 0.0, 1.0)
            found.append(((s + share[:, None] * step - r) ** 2).sum(1))
        return np.min(found, axis=0)
    later, earlier = (((neighbour - r) ** 2).sum(1) for neighbour in neighbours)
    a, b = (later + earlier) / 2 - here, (later - earlier) / 2
    has_bottom = (a > 0) & (np.abs(b) < 2 * a)
    bottom = here - np.where(has_bottom, b**2 / np.where(has_bottom, 4 * a, 1.0), 0.0)
    return np.min([bottom, later, earlier], axis=0)


def stoi(reference: NDArray[np.int16], estimate: NDArray[np.int16]) -> float | None:
    """Return the short-time objective intelligibility, about 0 to 1; None for too little speech.

    Source: Taal et al. 2011; not the extended measure.
    """
    if not reference.any() or len(reference) < STOI_SECONDS * RATE:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        found = float(
            importlib.import_module("pystoi").stoi(reference / 32768, estimate / 32768, RATE)
        )
    return None if found == STOI_MISSING or not np.isfinite(found) else found


def pesq_lqo(reference: NDArray[np.int16], estimate: NDArray[np.int16]) -> float | None:
    """Return the narrow-band PESQ score on the listeners' scale, 1 to 4.55 (ITU-T P.862.1).

    It is None for less than a quarter of a second, or if no utterance is found.
    """
    if not reference.any() or not estimate.any():
        return None
    pesq = importlib.import_module("pesq")
    try:
        return float(pesq.pesq(RATE, reference, estimate, "nb"))
    except (pesq.BufferTooShortError, pesq.NoUtterancesError):
        return None


def pesq_raw(lqo: float) -> float:
    """Return the score of P.862, -0.5 to 4.5, before P.862.1 maps it to the listeners' scale.

    >>> round(pesq_raw(4.548638), 3)
    4.5
    """
    return (4.6607 - log(4 / (lqo - 0.999) - 1)) / 1.4945


@cache
def package(name: str) -> ModuleType | None:
    """Return a package; None if it is not installed, with one warning in the log."""
    try:
        return importlib.import_module(name)
    except ImportError:
        logger.warning(
            "score left out package=%s words='not installed: pip install .[speech]'", name
        )
        return None
