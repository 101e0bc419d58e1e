"""Penn Treebank, one character after another: predict the next one.

Source: the corpus as prepared by Mikolov, read character by character as in Helfrich & Ye, AAAI
2020 (`raw`), like the character files of Kerg et al., NeurIPS 2019 (`tokens`), or line by line as
in Mhammedi et al., ICML 2017 (`sentences`). Their bits per character do not compare: `tokens` has
1.7% fewer symbols than `raw` for the same text.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from math import log
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, model_validator
from torch import Tensor

from eigensweep.tasks import treebank
from eigensweep.tasks.base import Batch, Metric, Shapes, Split, Task, TaskConfig
from eigensweep.tasks.cross_entropy import cross_entropy
from eigensweep.tasks.lines import Lines
from eigensweep.tasks.streams import shuffled
from eigensweep.tasks.treebank import Reading


class PtbCharsConfig(TaskConfig):
    """What an experiment may set on characters of the Penn Treebank."""

    name: Literal["ptb_chars"] = "ptb_chars"
    batch_size: int = Field(
        128,
        ge=1,
        le=65_536,
        description="Lanes B that the training text is cut into; in `sentences`, lines of a batch",
    )
    eval_batch_size: int = Field(
        10, ge=1, le=10_000, description="The same of validation and test text"
    )
    bptt: int = Field(
        150,
        ge=1,
        le=1_000_000,
        description="Steps that gradients flow back; states flow on. `sentences` takes whole "
        f"lines: always {treebank.LONGEST_LINE}, the longest",
    )
    reading: Reading = Field(
        "tokens",
        description="`raw`: every character of the word files (ENRNN); `tokens`: lines stripped, "
        "`_` for a space, `<eos>` after each line (nnRNN, asRNN); `sentences`: each line by "
        "itself, without its end (oRNN)",
    )

    @model_validator(mode="before")
    @classmethod
    def _whole_lines(cls, fields: Any) -> Any:
        if isinstance(fields, dict) and fields.get("reading") == "sentences":
            return {"bptt": treebank.LONGEST_LINE, **fields}
        return fields

    def check(self) -> None:
        super().check()
        if self.reading == "sentences":
            if self.bptt != treebank.LONGEST_LINE:
                raise ValueError(
                    "ptb_chars takes whole lines with reading 'sentences': 'bptt' is "
                    f"{treebank.LONGEST_LINE} or left out; it is {self.bptt}"
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
    def steps_per_epoch(self) -> int:
        if self.reading == "sentences":
            return -(-treebank.LINES["train"] // self.batch_size)
        return -(-(self._rows("train") - 1) // self.bptt)

    @property
    def default_evaluate_every(self) -> int:
        return self.steps_per_epoch

    @property
    def baselines(self) -> dict[str, float]:
        """What the training text's symbol frequencies score on the validation text."""
        bits = treebank.UNIGRAM_BITS[self.reading]
        return {
            "cross_entropy": bits * log(2),
            "bits_per_char": bits,
            "accuracy": treebank.MAJORITY[self.reading],
        }

    def lanes(self, split: str) -> int:
        """Return how many lanes a split is cut into, or how many of its lines are in a batch."""
        return self.batch_size if split == "train" else self.eval_batch_size

    def _rows(self, split: str) -> int:
        return treebank.COUNTS[self.reading][split] // self.lanes(split)


class PtbChars(Task):
    r"""Predict the next character of Wall Street Journal text.

    `raw` and `tokens`: a split is one stream, cut into lanes of equal length that run side by side;
    what is left over is dropped. A piece is `bptt` steps of all lanes, the last one of a pass
    shorter, and each piece goes on where the one before ended. `starts` is true in the first piece
    of an epoch and of an evaluation. The order is the corpus's own, so the seed changes nothing. In
    the picture `_` is a space and `¶` the end of a line.

    >>> task = PtbChars(PtbCharsConfig(batch_size=2, bptt=3))
    >>> print(task.picture(" the cat \n sat \n"))
    lane 0  the > he_  _c > ca
    lane 1  t¶s > ¶sa  at > t¶

    `sentences`: each line is a sequence of its own. A batch has lines of like length, padded and
    masked (`·`); in each epoch every line comes up once, and the seed draws which lines meet and in
    which order batches come. Evaluation goes from the shortest line to the longest.

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

    def train_batch(self, step: int, seed: int) -> Batch:
        """Return the batch of one step: x (τ, B) symbols, y (τ, B) the symbols that follow."""
        epoch, place = divmod(step, self.config.steps_per_epoch)
        if self.config.reading != "sentences":
            return self._piece(self._lanes("train"), place)
        lines, B = read_lines(self.data_root)["train"], self.config.batch_size
        rows = lines.by_length(shuffled(f"ptb_chars/lines/{seed}", epoch, len(lines)))
        places = shuffled(f"ptb_chars/batches/{seed}", epoch, self.config.steps_per_epoch)
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

    def scores(self, logits: Tensor, batch: Batch) -> dict[str, tuple[Tensor, int]]:
        right = logits.argmax(-1) == batch.y
        count = batch.y.numel()
        if batch.mask is not None:
            right, count = right & batch.mask, int(batch.mask.sum())
        total = cross_entropy(logits, batch.y, batch.mask, reduction="sum")
        return {
            "cross_entropy": (total, count),
            "bits_per_char": (total / log(2), count),
            "accuracy": (right.sum(), count),
        }

    def picture(self, text: str) -> str:
        """Return `text` as it is read, each lane's input and target, piece by piece."""
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
    """Return the stream as (rows, lanes): each lane a stretch of it, the rest dropped."""
    rows = len(stream) // count
    return stream[: rows * count].reshape(count, rows).T


@lru_cache(maxsize=2)
def read_lines(data_root: Path | None) -> dict[str, Lines]:
    """Return the lines of each split.

    Raises:
        CorpusMissingError: if the corpus is not there, or is another one than expected.
    """
    streams = treebank.read_streams(data_root, "sentences")
    return {split: Lines.of(stream, treebank.LINE_END) for split, stream in streams.items()}
