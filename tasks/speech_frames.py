"""Speech, one frame of log magnitudes after another: predict the next one.

Source: Helfrich & Ye, AAAI 2020, section 5.3, on TIMIT, with frames, parts and padding as in the
program of Wisdom et al., NeurIPS 2016, that it follows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from eigensweep.tasks.base import Batch, Metric, Shapes, Split, Task, TaskConfig
from eigensweep.tasks.spectra import (
    BINS,
    SILENCE_DB,
    as_written,
    frame_count,
    predicted,
    spectrum,
    waveform,
)
from eigensweep.tasks.speech_corpora import (
    COUNTS,
    LONGEST_SECONDS,
    Part,
    find_recordings,
    read_recordings,
)
from eigensweep.tasks.speech_files import RATE
from eigensweep.tasks.speech_scores import speech_scores
from eigensweep.tasks.streams import chunks, shuffled
from eigensweep.tasks.utterances import Mask, Utterances, divisor, squared_error

Normalisation = Literal["padded_mean", "valid_mean", "batch_padded_mean"]
LOSSES: dict[Normalisation, Metric] = {
    "padded_mean": Metric("padded_mse", "dB²"),
    "valid_mean": Metric("mse", "dB²"),
    "batch_padded_mean": Metric("batch_padded_mse", "dB²"),
}
LONGEST = {"timit": frame_count(8 * RATE), "fsdd": 146}
"""Frames of the longest training recording; of TIMIT a bound."""
FSDD_FRAMES = {"valid": 9_297, "longest": 86}
FSDD_BASELINE: dict[Mask, float] = {"lengths": 195.151492, "lengths-1": 191.444943}
"""What the mean training frame scores on the validation recordings of the spoken digits."""
SCORES = (
    Metric("seg_snr", "dB", "higher", test_only=True),
    Metric("seg_snr_parabola", "dB", "higher", test_only=True),
    Metric("stoi", "score", "higher", test_only=True),
    Metric("pesq_raw", "score", "higher", test_only=True),
    Metric("pesq_lqo", "score", "higher", test_only=True),
)
MISSING = {"seg_snr": "seg_snr_missing", "stoi": "stoi_missing", "pesq_lqo": "pesq_missing"}
"""A score and the share of the recordings that have none."""


class SpeechFramesConfig(TaskConfig):
    """What an experiment may set on frames of speech."""

    name: Literal["speech_frames"] = "speech_frames"
    batch_size: int = Field(
        28, ge=1, le=65_536, description="Recordings in a training batch, B; the rest is dropped"
    )
    corpus: str = Field(
        "timit",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,59}$",
        description="`timit`; `fsdd`, spoken digits that are free; or the name of a folder under "
        "the data root with WAV files and a `manifest.txt`",
    )
    digest: str | None = Field(
        None,
        pattern="^[0-9a-f]{64}$",
        description="SHA-256 of a folder's manifest, which the results belong to; of no other "
        "corpus",
    )
    normalisation: Normalisation = Field(
        "padded_mean",
        description="What the loss divides by: all frames, padded to the longest recording of the "
        "part (uRNN, ENRNN); the scored ones alone (expRNN); or all, padded to the batch's longest",
    )
    mask: Mask = Field(
        "lengths",
        description="What is scored: every frame of a recording, its last one against the silence "
        "behind it (uRNN); or all but that",
    )
    pad_frames: int | None = Field(
        None,
        ge=4,
        le=1_000_000,
        description="Frames that validation and test recordings are padded to; default: the "
        "longest one's. uRNN takes those of the longest in TIMIT's TEST",
    )

    def check(self) -> None:
        super().check()
        if self.corpus in COUNTS and self.digest is not None:
            raise ValueError(
                f"speech_frames takes 'digest' for a folder with a manifest, not for {self.corpus}"
            )
        if self.corpus in COUNTS:
            self.fill_a_batch(COUNTS[self.corpus]["train"])

    def fill_a_batch(self, recordings: int) -> None:
        """Raise ValueError if so many training recordings are less than one batch."""
        if recordings < self.batch_size:
            raise ValueError(
                f"speech_frames on {self.corpus} has {recordings} training recordings; "
                f"'batch_size' is {self.batch_size}"
            )

    @property
    def shapes(self) -> Shapes:
        return Shapes(input_size=BINS, input_kind="values", output_size=BINS, readout="all")

    @property
    def metrics(self) -> tuple[Metric, ...]:
        loss = LOSSES[self.normalisation]
        others = [m for m in (LOSSES["valid_mean"], LOSSES["padded_mean"]) if m != loss]
        missing = [Metric(name, "fraction", test_only=True) for name in MISSING.values()]
        return (loss, *others, *SCORES, *missing)

    @property
    def sequence_length(self) -> int:
        """Frames of the longest training recording, or a bound where the corpus must be read."""
        return LONGEST.get(self.corpus, frame_count(LONGEST_SECONDS * RATE))

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps in one pass over the training recordings; a smaller batch is dropped.

        Raises:
            ValueError: if the corpus is a folder, which must be read to be counted.
        """
        if self.corpus not in COUNTS:
            raise ValueError(
                f"the recordings of the folder '{self.corpus}' are not counted before they are "
                "read; give the budget as 'training.steps'"
            )
        return COUNTS[self.corpus]["train"] // self.batch_size

    @property
    def default_evaluate_every(self) -> int:
        return self.steps_per_epoch if self.corpus in COUNTS else 100

    @property
    def baselines(self) -> dict[str, float]:
        """What the mean training frame scores, if the corpus is one that everybody can have."""
        if self.corpus != "fsdd":
            return {}
        error, frames = FSDD_BASELINE[self.mask], FSDD_FRAMES["valid"]
        recordings = COUNTS["fsdd"]["valid"]
        scored = frames if self.mask == "lengths" else frames - recordings
        padded = recordings * (self.pad_frames or FSDD_FRAMES["longest"])
        return {"mse": error, "padded_mse": error * scored / padded}


class Speech(NamedTuple):
    """A corpus in memory: TIMIT takes 0.4 GB."""

    frames: dict[Part, Utterances]
    test: list[NDArray[np.int16]]
    """The samples of the test recordings, at 8 kHz."""


class SpeechFrames(Task):
    """Predict the next frame of speech: 129 log magnitudes of 32 ms, in dB.

    A batch has whole recordings, padded at the end to its longest one; what padding there would be
    to the longest of all is only counted. The seed draws the order of the recordings in each epoch.
    Test batches also score what is heard when each predicted frame has taken the place of the true
    one, with the true phases; recordings that cannot be scored are left out, and their share told.
    In the picture `_` is silence, and what is scored is marked.

    >>> print(SpeechFrames(SpeechFramesConfig()).picture([4, 6]))
    recording 0  input   0 1 2 3 _ _
                 target  1 2 3 _ _ _
                 scored  + + + +
    recording 1  input   0 1 2 3 4 5
                 target  1 2 3 4 5 _
                 scored  + + + + + +
    """

    Config = SpeechFramesConfig
    config: SpeechFramesConfig

    @classmethod
    def check_corpus(cls, config: TaskConfig, data_root: Path | None) -> None:
        assert isinstance(config, SpeechFramesConfig)
        listed = find_recordings(config.corpus, config.digest, data_root)
        config.fill_a_batch(len(listed.paths["train"]))

    @property
    def baselines(self) -> dict[str, float]:
        """What the mean training frame scores on the validation recordings."""
        known = self.config.baselines
        if known:
            return known
        parts, mask = self._speech.frames, self.config.mask
        valid = parts["valid"]
        error = valid.mean_error(mask, parts["train"].mean_target(mask))
        padded = len(valid) * self._padded_to("valid")
        return {"mse": error, "padded_mse": error * valid.scored(mask) / padded}

    def train_batch(self, step: int, seed: int) -> Batch:
        """Return the batch of one step: x and y (τ, B, 129) dB, mask (τ, B, 1)."""
        train, B = self._speech.frames["train"], self.config.batch_size
        self.config.fill_a_batch(len(train))
        epoch, place = divmod(step, len(train) // B)
        order = shuffled(f"speech_frames/order/{seed}", epoch, len(train))
        rows = order[place * B : (place + 1) * B]
        return train.batch(rows, self.config.mask, self._padded_to("train"))

    def evaluation(self, split: Split) -> Iterator[Batch]:
        recordings, padded_to = self._speech.frames[split], self._padded_to(split)
        rows = recordings.by_length()
        for chunk in chunks(len(rows), recordings.longest, positions=50_000):
            yield recordings.batch(rows[chunk], self.config.mask, padded_to, split == "test")

    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        metric = LOSSES[self.config.normalisation].name
        return squared_error(logits, batch) / divisor(metric, batch)

    def scores(self, logits: Tensor, batch: Batch) -> dict[str, tuple[Tensor, int]]:
        total = squared_error(logits, batch)
        errors = [m.name for m in self.config.metrics if not m.test_only]
        found = {name: (total, int(divisor(name, batch))) for name in errors}
        return found if batch.rows is None else found | self._heard(logits, batch.rows)

    def picture(self, lengths: Sequence[int]) -> str:
        """Return recordings of so many frames as they are in a batch; a frame is its number."""
        numbered = Utterances.silent(lengths, bins=1)
        for begin, length in zip(numbered.begins, lengths, strict=True):
            numbered.frames[begin : begin + length, 0] = range(length)
        batch = numbered.batch(np.arange(len(lengths)), self.config.mask)
        assert batch.mask is not None
        lines = []
        for row in range(len(lengths)):
            x, y, mask = (part[:, row, 0].tolist() for part in (batch.x, batch.y, batch.mask))
            shown = [["_" if v == SILENCE_DB else f"{v:.0f}" for v in values] for values in (x, y)]
            scored = ["+" if is_scored else " " for is_scored in mask]
            lines += [
                f"recording {row}  input   {' '.join(shown[0])}",
                f"{'':13}target  {' '.join(shown[1])}",
                f"{'':13}scored  {' '.join(scored)}".rstrip(),
            ]
        return "\n".join(lines)

    @property
    def _speech(self) -> Speech:
        return read_speech(self.config.corpus, self.config.digest, self.data_root)

    def _padded_to(self, part: Part) -> int:
        longest = self._speech.frames[part].longest
        if part == "train" or self.config.pad_frames is None:
            return longest
        if self.config.pad_frames < longest:
            raise ValueError(
                f"speech_frames on {self.config.corpus} needs 'pad_frames' of at least {longest}, "
                f"the longest recording to {part}; it is {self.config.pad_frames}"
            )
        return self.config.pad_frames

    def _heard(self, logits: Tensor, rows: Tensor) -> dict[str, tuple[Tensor, int]]:
        """Return the scores of the waveforms, and the shares of the recordings without."""
        predictions = logits.detach().transpose(0, 1).cpu().numpy()
        found: dict[str, list[float | None]] = {}
        for row, told in zip(rows.tolist(), predictions, strict=True):
            true = spectrum(self._speech.test[row])
            said = predicted(true, told)
            estimate = as_written(waveform(said)) if np.isfinite(said).all() else None
            for name, score in speech_scores(as_written(waveform(true)), estimate).items():
                found.setdefault(name, []).append(score)
        scores: dict[str, tuple[Tensor, int]] = {}
        for name, values in found.items():
            known = [value for value in values if value is not None]
            scores[name] = torch.tensor(sum(known), dtype=torch.float64), len(known)
            if name in MISSING:
                missing = torch.tensor(len(values) - len(known), dtype=torch.float64)
                scores[MISSING[name]] = missing, len(values)
        return scores


@lru_cache(maxsize=2)
def read_speech(corpus: str, digest: str | None, data_root: Path | None) -> Speech:
    """Return a corpus, read once in a process.

    Raises:
        CorpusMissingError: if the corpus is not there, or is another one than expected.
    """
    recordings = read_recordings(find_recordings(corpus, digest, data_root))
    frames = {part: Utterances.of(samples) for part, samples in recordings.items()}
    return Speech(frames, recordings["test"])
