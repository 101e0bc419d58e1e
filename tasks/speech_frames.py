"""Speech as frames of log magnitudes: predict the next frame.

Source: Helfrich & Ye, AAAI 2020, section 5.3, on TIMIT. Frames, parts and padding are those of the
program of Wisdom et al., NeurIPS 2016, which they follow.
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
    frame_count,
    replace_magnitudes,
    spectrum,
    to_int16,
    waveform,
)
from eigensweep.tasks.speech_corpora import (
    COUNTS,
    LONGEST_SECONDS,
    MANIFEST,
    Part,
    find_recordings,
    read_recordings,
)
from eigensweep.tasks.speech_files import RATE
from eigensweep.tasks.speech_scores import speech_scores
from eigensweep.tasks.streams import chunks, epoch_order
from eigensweep.tasks.utterances import Mask, Utterances, divisor, squared_error

Normalisation = Literal["padded_mean", "valid_mean", "batch_padded_mean"]
LOSSES: dict[Normalisation, Metric] = {
    "padded_mean": Metric("padded_mse", "dB²"),
    "valid_mean": Metric("mse", "dB²"),
    "batch_padded_mean": Metric("batch_padded_mse", "dB²"),
}
LONGEST = {"timit": frame_count(8 * RATE), "fsdd": 146}
"""Frames of the longest training recording; for TIMIT an upper bound."""
READ_BYTES = {"timit": 1_200 * 10**6, "fsdd": 80 * 10**6}
"""Memory of all recordings and of their frames, about 8 bytes for each sample."""
FSDD_FRAMES: dict[Split, tuple[int, int]] = {"valid": (9_297, 86), "test": (9_128, 75)}
"""Frames of a split of the spoken digits: of all recordings together, and of the longest."""
FSDD_BASELINE: dict[Split, dict[Mask, float]] = {
    "valid": {"lengths": 195.151492, "lengths-1": 191.444943},
    "test": {"lengths": 197.206319, "lengths-1": 193.143948},
}
"""Mean squared error of always answering the mean training frame, on a split of the spoken
digits."""
SCORES = (
    Metric("seg_snr", "dB", "higher", test_only=True),
    Metric("seg_snr_parabola", "dB", "higher", test_only=True),
    Metric("stoi", "score", "higher", test_only=True),
    Metric("pesq_raw", "score", "higher", test_only=True),
    Metric("pesq_lqo", "score", "higher", test_only=True),
)
MISSING = {"seg_snr": "seg_snr_missing", "stoi": "stoi_missing", "pesq_lqo": "pesq_missing"}
"""A score, and the metric that gives the fraction of the recordings without this score."""


class SpeechFramesConfig(TaskConfig):
    """The settings of frames of speech."""

    name: Literal["speech_frames"] = "speech_frames"
    batch_size: int = Field(
        28,
        ge=1,
        le=65_536,
        description="Recordings in a training batch, B; in each epoch an incomplete last batch is "
        "dropped",
    )
    corpus: str = Field(
        "timit",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,59}$",
        description="`timit`; `fsdd`, free spoken digits; or the name of a folder under the data "
        "root that has WAV files and a `manifest.txt`",
    )
    digest: str | None = Field(
        None,
        pattern="^[0-9a-f]{64}$",
        description="SHA-256 of the manifest, required for a folder, so that results belong to "
        "these recordings; not allowed for `timit` and `fsdd`",
    )
    normalisation: Normalisation = Field(
        "padded_mean",
        description="What the sum of squared errors is divided by. `padded_mean`: all frames, "
        "each recording padded to the longest of its part (uRNN, ENRNN); `valid_mean`: the scored "
        "frames only (expRNN); `batch_padded_mean`: all frames, each recording padded to the "
        "longest of its batch",
    )
    mask: Mask = Field(
        "lengths",
        description="Which frames are scored. `lengths`: every frame of a recording, the last one "
        "against the silence after it (uRNN); `lengths-1`: all but the last one",
    )
    pad_frames: int | None = Field(
        None,
        ge=4,
        le=1_000_000,
        description="Number of frames that validation and test recordings are padded to; default: "
        "the number of the longest one. uRNN takes that of the longest recording in TIMIT's TEST",
    )

    def check(self) -> None:
        super().check()
        if self.corpus in COUNTS and self.digest is not None:
            raise ValueError(
                f"speech_frames takes 'digest' for a folder with a manifest only; leave it out for "
                f"{self.corpus}"
            )
        if self.corpus in COUNTS:
            self.check_batch_size(COUNTS[self.corpus]["train"])

    def check_batch_size(self, recordings: int) -> None:
        """Raise ValueError if there are too few training recordings for one batch."""
        if recordings < self.batch_size:
            raise ValueError(
                f"speech_frames on {self.corpus} needs 'batch_size' of at most {recordings}, its "
                f"number of training recordings; it is {self.batch_size}"
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
        """Frames of the longest training recording, or an upper bound if that needs the corpus."""
        return LONGEST.get(self.corpus, frame_count(LONGEST_SECONDS * RATE))

    @property
    def corpus_bytes(self) -> int:
        return READ_BYTES.get(self.corpus, READ_BYTES["timit"])

    @property
    def has_unequal_batches(self) -> bool:
        return True

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps in one epoch; an incomplete last batch is dropped.

        Raises:
            ValueError: if the corpus is a folder, whose recordings are not counted here.
        """
        if self.corpus not in COUNTS:
            raise ValueError(
                f"the number of recordings in the folder '{self.corpus}' is not known before they "
                "are read; give the budget as 'training.steps'"
            )
        return COUNTS[self.corpus]["train"] // self.batch_size

    @property
    def default_evaluate_every(self) -> int:
        return self.steps_per_epoch if self.corpus in COUNTS else 100

    @property
    def baselines(self) -> dict[str, float]:
        """The scores of always answering the mean training frame; only known here for `fsdd`."""
        return self.baselines_on("valid")

    def baselines_on(self, split: Split) -> dict[str, float]:
        if self.corpus != "fsdd":
            return {}
        error, (frames, longest) = FSDD_BASELINE[split][self.mask], FSDD_FRAMES[split]
        recordings = COUNTS["fsdd"][split]
        scored = frames if self.mask == "lengths" else frames - recordings
        padded = recordings * (self.pad_frames or longest)
        return {"mse": error, "padded_mse": error * scored / padded}


class Speech(NamedTuple):
    """A corpus in memory; TIMIT takes 0.4 GB."""

    frames: dict[Part, Utterances]
    test: list[NDArray[np.int16]]
    """The samples of each test recording, (n,), at 8 kHz."""


class SpeechFrames(Task):
    """Predict the next frame of speech: 129 log magnitudes of 32 ms, in dB.

    A batch has whole recordings, padded at the end to its longest one. Padding up to the longest
    recording of the part is counted, but not made. The seed draws the order of the recordings in
    each epoch. For test batches, waveforms are made from the predicted magnitudes and the true
    phases, and are scored, too. Recordings that cannot be scored are left out, and the excluded
    fraction is reported. In the picture `_` is silence, and `+` marks the frames that are scored.

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
        config.check_batch_size(len(listed.paths["train"]))

    @classmethod
    def list_corpus(cls, config: TaskConfig, data_root: Path) -> list[Path]:
        assert isinstance(config, SpeechFramesConfig)
        listed = find_recordings(config.corpus, config.digest, data_root)
        manifest = data_root / config.corpus / MANIFEST
        recordings = [path for paths in listed.paths.values() for path in paths]
        return [*recordings, *([manifest] if manifest.is_file() else [])]

    @property
    def baselines(self) -> dict[str, float]:
        """The scores of always answering the mean training frame, on the validation recordings."""
        known = self.config.baselines
        if known:
            return known
        parts, mask = self._speech.frames, self.config.mask
        valid = parts["valid"]
        error = valid.mean_error(mask, parts["train"].mean_target(mask))
        padded = len(valid) * self._padded_length("valid")
        return {"mse": error, "padded_mse": error * valid.scored_frames(mask) / padded}

    def train_batch(self, step: int, seed: int) -> Batch:
        """Return the batch of one step: x and y (τ, B, 129) dB, mask (τ, B, 1)."""
        train, B = self._speech.frames["train"], self.config.batch_size
        self.config.check_batch_size(len(train))
        epoch, place = divmod(step, len(train) // B)
        order = epoch_order(f"speech_frames/order/{seed}", epoch, len(train))
        rows = order[place * B : (place + 1) * B]
        return train.batch(rows, self.config.mask, self._padded_length("train"))

    def evaluation(self, split: Split) -> Iterator[Batch]:
        recordings, padded_to = self._speech.frames[split], self._padded_length(split)
        rows = recordings.by_length()
        for chunk in chunks(len(rows), recordings.longest, positions=50_000):
            yield recordings.batch(rows[chunk], self.config.mask, padded_to, split == "test")

    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        metric = LOSSES[self.config.normalisation].name
        return squared_error(logits, batch) / divisor(metric, batch, self.config.mask)

    def scores(self, logits: Tensor, batch: Batch) -> dict[str, tuple[Tensor, int | Tensor]]:
        total = squared_error(logits, batch)
        errors = [m.name for m in self.config.metrics if not m.test_only]
        found = {name: (total, divisor(name, batch, self.config.mask)) for name in errors}
        return found if batch.rows is None else found | self._score_waveforms(logits, batch.rows)

    def picture(self, lengths: Sequence[int]) -> str:
        """Return a batch of recordings with these lengths as text; a frame is its number."""
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

    def _padded_length(self, part: Part) -> int:
        frames = self._speech.frames
        if part == "train" or self.config.pad_frames is None:
            return frames[part].longest
        longest = max(frames["valid"].longest, frames["test"].longest)
        if self.config.pad_frames < longest:
            raise ValueError(
                f"speech_frames on {self.config.corpus} needs 'pad_frames' of at least {longest}, "
                "the frames of the longest recording of validation and test; it is "
                f"{self.config.pad_frames}"
            )
        return self.config.pad_frames

    def _score_waveforms(
        self, logits: Tensor, rows: Tensor
    ) -> dict[str, tuple[Tensor, int | Tensor]]:
        """Return the scores of the predicted waveforms, and the fractions without a score."""
        predictions = logits.detach().transpose(0, 1).cpu().numpy()
        found: dict[str, list[float | None]] = {}
        for row, prediction in zip(rows.tolist(), predictions, strict=True):
            true = spectrum(self._speech.test[row])
            predicted = replace_magnitudes(true, prediction)
            is_finite = np.isfinite(predicted).all()
            estimate = to_int16(waveform(predicted)) if is_finite else None
            for name, score in speech_scores(to_int16(waveform(true)), estimate).items():
                found.setdefault(name, []).append(score)
        scores: dict[str, tuple[Tensor, int | Tensor]] = {}
        for name, values in found.items():
            known = [value for value in values if value is not None]
            scores[name] = torch.tensor(sum(known), dtype=torch.float64), len(known)
            if name in MISSING:
                missing = torch.tensor(len(values) - len(known), dtype=torch.float64)
                scores[MISSING[name]] = missing, len(values)
        return scores


@lru_cache(maxsize=2)
def read_speech(corpus: str, digest: str | None, data_root: Path | None) -> Speech:
    """Return a corpus; a process reads it once.

    Raises:
        CorpusMissingError: if a file is missing, or has other contents than expected.
    """
    recordings = read_recordings(find_recordings(corpus, digest, data_root))
    frames = {part: Utterances.of(samples) for part, samples in recordings.items()}
    return Speech(frames, recordings["test"])
