"""Penn Treebank, one character after another: predict the next one.

Source: the corpus as prepared by Mikolov, read character by character as in Helfrich & Ye, AAAI
2020 (`raw`), like the character files of Kerg et al., NeurIPS 2019 (`tokens`), or line by line as
in Mhammedi et al., ICML 2017 (`sentences`). Do not compare bits per character between them: for the
same text `tokens` has 1.7% fewer symbols than `raw`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from math import log
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, model_validator
from torch import Tensor

from eigensweep.tasks import treebank
from eigensweep.tasks.base import Batch, Metric, Shapes, Split, Task, TaskConfig
from eigensweep.tasks.cross_entropy import cross_entropy
from eigensweep.tasks.lines import Lines
from eigensweep.tasks.streams import epoch_order
from eigensweep.tasks.treebank import Reading


class PtbCharsConfig(TaskConfig):
    """The settings of the characters of the Penn Treebank."""

    name: Literal["ptb_chars"] = "ptb_chars"
    batch_size: int = Field(
        128,
        ge=1,
        le=65_536,
        description="Number of lanes B that the training text is cut into; with reading "
        "`sentences`, lines in a training batch",
    )
    eval_batch_size: int = Field(
        10, ge=1, le=10_000, description="The same for the validation and test texts"
    )
    bptt: int = Field(
        150,
        ge=1,
        le=1_000_000,
        description="Steps of a batch; states pass on to the next batch, gradients do not. With "
        f"reading `sentences` it is always {treebank.LONGEST_LINE}, the length of the longest line",
    )
    reading: Reading = Field(
        "tokens",
        description="How the text becomes symbols. `raw`: every character of the word files "
        "(ENRNN); `tokens`: lines stripped of outer spaces, `_` for a space, `<eos>` after each "
        "line (nnRNN, asRNN); `sentences`: each line by itself, without its end (oRNN)",
    )

    @model_validator(mode="before")
    @classmethod
    def _whole_lines(cls, fields: Any) -> Any:
        if isinstance(fields, dict) and fields.get("reading") == "sentences":
            return {"bptt": treebank.LONGEST_LINE, **fields}
        return fields

    @model_validator(mode="after")
    def _follows_the_reading(self) -> Self:
        """Count that length as not given, so that with another reading it is another one."""
        if self.reading == "sentences" and self.bptt == treebank.LONGEST_LINE:
            self.model_fields_set.discard("bptt")
        return self

    def check(self) -> None:
        super().check()
        if self.reading == "sentences":
            if self.bptt != treebank.LONGEST_LINE:
                raise ValueError(
                    "ptb_chars with reading 'sentences' takes whole lines and needs 'bptt' of "
                    f"{treebank.LONGEST_LINE}; leave it out. It is {self.bptt}"
                )
            return
        longest = self._rows("train") - 1
        if self.bptt > longest:
            raise ValueError(
                f"ptb_chars in {self.batch_size} lanes needs 'bptt' of at most {longest}; "
                f"it is {self.bptt}"
            )

    @property
    def shapes(self) -> Shapes:
        symbols = treebank.SYMBOLS[self.reading]
        return Shapes(symbols, "symbols", symbols, "all")

    @property
    def metrics(self) -> tuple[Metric, ...]:
        return (
            Metric("cross_entropy", "nats"),
            Metric("bits_per_char", "bits"),
            Metric("accuracy", "fraction", "higher"),
        )

    @property
    def sequence_length(self) -> int:
        return self.bptt

    @property
    def corpus_bytes(self) -> int:
        return 2 * sum(treebank.COUNTS[self.reading].values())

    @property
    def has_unequal_batches(self) -> bool:
        """Whether the last piece of an epoch is shorter, or lines differ in length.

        After the last piece states begin anew, so that padding at its end changes nothing.
        """
        return self.reading == "sentences" or (self._rows("train") - 1) % self.bptt != 0

    @property
    def steps_per_epoch(self) -> int:
        if self.reading == "sentences":
            return -(-treebank.LINES["train"] // self.batch_size)
        return -(-(self._rows("train") - 1) // self.bptt)

    @property
    def default_evaluate_every(self) -> int:
        return self.steps_per_epoch

    @property
    def baselines(self) -> dict[str, float]:
        """The scores of the training text's symbol frequencies on the validation text."""
        return self.baselines_on("valid")

    def baselines_on(self, split: Split) -> dict[str, float]:
        bits = treebank.UNIGRAM_BITS[split][self.reading]
        return {
            "cross_entropy": bits * log(2),
            "bits_per_char": bits,
            "accuracy": treebank.MAJORITY[split][self.reading],
        }

    def lanes(self, split: str) -> int:
        """Return the number of lanes that a split is cut into, or of lines in its batches."""
        return self.batch_size if split == "train" else self.eval_batch_size

    def _rows(self, split: str) -> int:
        return treebank.COUNTS[self.reading][split] // self.lanes(split)


class PtbChars(Task):
    r"""Predict the next character of Wall Street Journal text.

    `raw` and `tokens`: a split is one stream of symbols. It is cut into lanes of equal length that
    run side by side, and the rest of the stream is dropped. A batch is a piece of all lanes, `bptt`
    steps long (the last piece is shorter), and it goes on where the piece before ended. `starts` is
    true in the first piece of an epoch or of an evaluation. The seed changes nothing, since the
    order is that of the corpus. In the picture `_` is a space and `¶` the end of a line.

    >>> task = PtbChars(PtbCharsConfig(batch_size=2, bptt=3))
    >>> print(task.picture(" the cat \n sat \n"))
    lane 0  the > he_  _c > ca
    lane 1  t¶s > ¶sa  at > t¶

    `sentences`: each line is a sequence of its own. A batch has lines of similar length, padded and
    masked (`·`). In each epoch every line is used once. The seed draws which lines form a batch,
    and the order of the batches. Evaluation goes from the shortest line to the longest.

    >>> task = PtbChars(PtbCharsConfig(batch_size=2, reading="sentences"))
    >>> print(task.picture(" the cat \n sat \n"))
    lane 0  _the_ca > the_cat
    lane 1  _sa···· > sat····
    """

    Config = PtbCharsConfig
    config: PtbCharsConfig

    @classmethod
    def check_corpus(cls, config: TaskConfig, data_root: Path | None) -> None:
        treebank.CORPUS.check(data_root)

    @classmethod
    def list_corpus(cls, config: TaskConfig, data_root: Path) -> list[Path]:
        return treebank.CORPUS.paths(data_root)

    def train_batch(self, step: int, seed: int) -> Batch:
        """Return the batch of one step: x (τ, B) symbols, y (τ, B) the next symbols."""
        epoch, place = divmod(step, self.config.steps_per_epoch)
        if self.config.reading != "sentences":
            return self._piece(self._lanes("train"), place)
        lines, B = read_lines(self.data_root)["train"], self.config.batch_size
        rows = lines.by_length(epoch_order(f"ptb_chars/lines/{seed}", epoch, len(lines)))
        places = epoch_order(f"ptb_chars/batches/{seed}", epoch, self.config.steps_per_epoch)
        return lines.batch(rows[places[place] * B :][:B])

    def evaluation(self, split: Split) -> Iterator[Batch]:
        if self.config.reading != "sentences":
            lanes = self._lanes(split)
            for piece in range(-(-(len(lanes) - 1) // self.config.bptt)):
                yield self._piece(lanes, piece)
            return
        lines, B = read_lines(self.data_root)[split], self.config.eval_batch_size
        rows = lines.by_length(np.arange(len(lines)))
        for first in range(0, len(rows), B):
            yield lines.batch(rows[first : first + B])

    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        return cross_entropy(logits, batch.y, batch.mask)

    def scores(self, logits: Tensor, batch: Batch) -> dict[str, tuple[Tensor, int | Tensor]]:
        right = logits.argmax(-1) == batch.y
        count: int | Tensor = batch.y.numel()
        if batch.mask is not None:
            right, count = right & batch.mask, batch.mask.sum()
        total = cross_entropy(logits, batch.y, batch.mask, reduction="sum")
        return {
            "cross_entropy": (total, count),
            "bits_per_char": (total / log(2), count),
            "accuracy": (right.sum(), count),
        }

    def picture(self, text: str) -> str:
        """Return the input and the target of each lane for this text, piece by piece."""
        written = treebank.characters(text.encode(), self.config.reading).decode()
        signs = np.array([ord(sign) for sign in written.replace(" ", "_").replace("\n", "¶")])
        if self.config.reading == "sentences":
            lines = Lines.of(signs, ord("¶"))
            pieces = [lines.batch(np.arange(len(lines)))]
        else:
            lanes = in_lanes(signs, self.config.batch_size)
            count = -(-(len(lanes) - 1) // self.config.bptt)
            pieces = [self._piece(lanes, piece) for piece in range(count)]
        drawn = [f"lane {lane}" for lane in range(pieces[0].x.shape[1])]
        for piece in pieces:
            for lane in range(len(drawn)):
                x, y = (
                    "".join(chr(code) if code else "·" for code in codes[:, lane].tolist())
                    for codes in (piece.x, piece.y)
                )
                drawn[lane] += f"  {x} > {y}"
        return "\n".join(drawn)

    def _lanes(self, split: str) -> NDArray[np.integer]:
        streams = treebank.read_streams(self.data_root, self.config.reading)
        return in_lanes(streams[split], self.config.lanes(split))

    def _piece(self, lanes: NDArray[np.integer], piece: int) -> Batch:
        start = piece * self.config.bptt
        rows = lanes[start : start + self.config.bptt + 1].astype(np.int64)
        x, y = torch.from_numpy(rows[:-1]), torch.from_numpy(rows[1:])
        return Batch(x, y, starts=torch.full((rows.shape[1],), piece == 0))


def in_lanes(stream: NDArray[np.integer], count: int) -> NDArray[np.integer]:
    """Cut a stream into `count` lanes, (rows, lanes); the rest of the stream is dropped."""
    rows = len(stream) // count
    return stream[: rows * count].reshape(count, rows).T


@lru_cache(maxsize=2)
def read_lines(data_root: Path | None) -> dict[str, Lines]:
    """Return the lines of each split; a process reads them once.

    Raises:
        CorpusMissingError: if a file is missing, or has other contents than expected.
    """
    streams = treebank.read_streams(data_root, "sentences")
    return {split: Lines.of(stream, treebank.LINE_END) for split, stream in streams.items()}
