"""Penn Treebank, one character after another: predict the next one.

Source: the corpus as prepared by Mikolov, read character by character as in Helfrich & Ye, AAAI
2020 (`raw`), or like the character files of Kerg et al., NeurIPS 2019 (`tokens`); both are made
from the three word files. Their bits per character do not compare: `tokens` has 1.7% fewer symbols
for the same text.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from math import log
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor
from torch.nn.functional import cross_entropy

from tasks.base import Batch, Metric, Shapes, Split, Task, TaskConfig
from tasks.corpus import Corpus

Reading = Literal["raw", "tokens"]

CORPUS = Corpus(
    folder="ptb",
    files={
        "ptb.train.txt": (
            5_101_618,
            "fcea919f6cf83f35d4d00c6cbf08040d13d4155226340912e2fef9c9c4102cbf",
        ),
        "ptb.valid.txt": (
            399_782,
            "c9fe6985fe0d4ccb578183407d7668fc6066c20700cb4cf87d8ff1cc34df1bf2",
        ),
        "ptb.test.txt": (
            449_945,
            "dd65dff31e70846b2a6030a87482edcd5d199130cdcfa1f3dccbb033728deee0",
        ),
    },
    origin="they are in simple-examples/data of "
    "http://www.fit.vutbr.cz/~imikolov/rnnlm/simple-examples.tgz",
)
COUNTS: dict[Reading, dict[str, int]] = {
    "raw": {"train": 5_101_618, "valid": 399_782, "test": 449_945},
    "tokens": {"train": 5_017_483, "valid": 393_043, "test": 442_424},
}
"""Characters of each split; a count of the corpus, so that no config needs the corpus."""
SYMBOLS = 50
UNIGRAM_BITS: dict[Reading, float] = {"raw": 4.305157, "tokens": 4.336216}
"""Cross-entropy of the validation split under the frequencies of the training split."""
MAJORITY: dict[Reading, float] = {"raw": 0.184501, "tokens": 0.170516}
"""Share of the most frequent symbol, the space, in the validation split."""


class PtbCharsConfig(TaskConfig):
    """What an experiment may set on characters of the Penn Treebank."""

    name: Literal["ptb_chars"] = "ptb_chars"
    batch_size: int = Field(
        128, ge=1, le=65_536, description="Lanes B that the training text is cut into"
    )
    eval_batch_size: int = Field(
        10, ge=1, le=10_000, description="Lanes that validation and test text are cut into"
    )
    bptt: int = Field(
        150, ge=1, le=1_000_000, description="Steps that gradients flow back; states flow on"
    )
    reading: Reading = Field(
        "tokens",
        description="`raw`: every character of the word files (ENRNN); `tokens`: lines stripped, "
        "`_` for a space, `<eos>` after each line (nnRNN, asRNN)",
    )

    def checked(self) -> None:
        super().checked()
        longest = self._rows("train") - 1
        if self.bptt > longest:
            raise ValueError(
                f"ptb_chars in {self.batch_size} lanes needs 'bptt' of at most {longest}; "
                f"it is {self.bptt}"
            )

    @property
    def shapes(self) -> Shapes:
        return Shapes(SYMBOLS, "symbols", SYMBOLS, "all")

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
        return -(-(self._rows("train") - 1) // self.bptt)

    @property
    def default_evaluate_every(self) -> int:
        return self.steps_per_epoch

    def baseline(self, metric: str | None = None) -> float:
        """Return what the training text's symbol frequencies score on the validation text."""
        bits = UNIGRAM_BITS[self.reading]
        known = {
            "cross_entropy": bits * log(2),
            "bits_per_char": bits,
            "accuracy": MAJORITY[self.reading],
        }
        metric = metric or "cross_entropy"
        if metric not in known:
            raise ValueError(f"ptb_chars has no metric '{metric}'; it has {', '.join(known)}")
        return known[metric]

    def lanes(self, split: str) -> int:
        """Return how many lanes a split is cut into."""
        return self.batch_size if split == "train" else self.eval_batch_size

    def _rows(self, split: str) -> int:
        return COUNTS[self.reading][split] // self.lanes(split)


class PtbChars(Task):
    r"""Predict the next character of Wall Street Journal text, the state carried along.

    A split is one stream, cut into lanes of equal length that run side by side; what is left over
    is dropped. A piece is `bptt` steps of all lanes, the last one of a pass shorter, and each piece
    goes on where the one before ended. `starts` is true in the first piece of an epoch and of an
    evaluation. The order is the corpus's own, so the seed changes nothing. In the picture `_` is a
    space and `¶` the end of a line.

    >>> task = PtbChars(PtbCharsConfig(batch_size=2, bptt=3))
    >>> print(task.picture(" the cat \n sat \n"))
    lane 0  the > he_  _c > ca
    lane 1  t¶s > ¶sa  at > t¶
    """

    Config = PtbCharsConfig
    config: PtbCharsConfig

    @classmethod
    def check_corpus(cls, config: TaskConfig, data_root: Path | None) -> None:
        CORPUS.check(data_root)

    def train_batch(self, step: int, seed: int) -> Batch:
        """Return the piece of one step: x (τ, B) symbols, y (τ, B) the symbols that follow."""
        return self._piece(self._lanes("train"), step % self.config.steps_per_epoch)

    def evaluation(self, split: Split) -> Iterator[Batch]:
        lanes = self._lanes(split)
        for piece in range(-(-(len(lanes) - 1) // self.config.bptt)):
            yield self._piece(lanes, piece)

    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        return cross_entropy(logits.flatten(0, 1), batch.y.flatten())

    def scores(self, logits: Tensor, batch: Batch) -> dict[str, tuple[Tensor, int]]:
        y, count = batch.y, batch.y.numel()
        total = cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="sum")
        return {
            "cross_entropy": (total, count),
            "bits_per_char": (total / log(2), count),
            "accuracy": ((logits.argmax(-1) == y).sum(), count),
        }

    def picture(self, text: str) -> str:
        """Return the lanes of `text`, cut into pieces, each as its input and its target."""
        written = characters(text.encode(), self.config.reading).decode()
        signs = written.replace(" ", "_").replace("\n", "¶")
        lanes = in_lanes(np.array([ord(sign) for sign in signs]), self.config.batch_size)
        lines = [f"lane {lane}" for lane in range(lanes.shape[1])]
        for piece in range(-(-(len(lanes) - 1) // self.config.bptt)):
            batch = self._piece(lanes, piece)
            for lane in range(len(lines)):
                x, y = ("".join(map(chr, t[:, lane].tolist())) for t in (batch.x, batch.y))
                lines[lane] += f"  {x} > {y}"
        return "\n".join(lines)

    def _lanes(self, split: str) -> NDArray[np.integer]:
        streams = read_streams(self.data_root, self.config.reading)
        return in_lanes(streams[split], self.config.lanes(split))

    def _piece(self, lanes: NDArray[np.integer], piece: int) -> Batch:
        start = piece * self.config.bptt
        rows = lanes[start : start + self.config.bptt + 1].astype(np.int64)
        x, y = torch.from_numpy(rows[:-1]), torch.from_numpy(rows[1:])
        return Batch(x, y, starts=torch.full((rows.shape[1],), piece == 0))


def characters(text: bytes, reading: Reading) -> bytes:
    r"""Return a word file's text as a reading has it, one byte a symbol, a newline for `<eos>`.

    Mikolov's character files end in a line of one space, which gives `tokens` one `<eos>` more.

    >>> characters(b" the cat \n sat \n", "tokens")
    b'the_cat\nsat\n\n'
    """
    if reading == "raw":
        return text
    lines = [line.strip() for line in text.split(b"\n")]
    return b"\n".join(lines).replace(b" ", b"_") + b"\n"


def in_lanes(stream: NDArray[np.integer], count: int) -> NDArray[np.integer]:
    """Return the stream as (rows, lanes): each lane a stretch of it, the rest dropped."""
    rows = len(stream) // count
    return stream[: rows * count].reshape(count, rows).T


@lru_cache(maxsize=4)
def read_streams(data_root: Path | None, reading: Reading) -> dict[str, NDArray[np.uint8]]:
    """Return each split as symbol ids, numbered in the order of their first appearance in train.

    Raises:
        CorpusMissingError: if the corpus is not there, or is another one than expected.
    """
    texts = {
        split: np.frombuffer(
            characters(CORPUS.read(f"ptb.{split}.txt", data_root), reading), dtype=np.uint8
        )
        for split in ("train", "valid", "test")
    }
    symbols, first = np.unique(texts["train"], return_index=True)
    ids = np.zeros(256, dtype=np.uint8)
    ids[symbols[np.argsort(first)]] = np.arange(len(symbols))
    return {split: ids[text] for split, text in texts.items()}
