"""The Penn Treebank as characters: its files, and the three ways in which papers read them.

Mikolov's corpus exists as word files and as character files with the same text. Either is accepted.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from eigensweep.tasks.base import Split
from eigensweep.tasks.corpus import Corpus, Form

Reading = Literal["raw", "tokens", "sentences"]


def words_of(text: bytes) -> bytes:
    r"""Return the text of the word file that belongs to the text of a character file.

    >>> words_of(b"t h e _ c a t \ns a t \n ")
    b' the cat \n sat \n'
    """
    *lines, _ = text.split(b"\n")  # the last line is a single space
    return b"".join(b" " + line.replace(b" ", b"").replace(b"_", b" ") + b" \n" for line in lines)


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
    "http://www.fit.vutbr.cz/~imikolov/rnnlm/simple-examples.tgz; "
    "the character files there, ptb.char.*.txt, work as well",
    other_forms={
        "ptb.train.txt": (Form("ptb/ptb.char.train.txt", 10_034_964, words_of),),
        "ptb.valid.txt": (Form("ptb/ptb.char.valid.txt", 786_084, words_of),),
        "ptb.test.txt": (Form("ptb/ptb.char.test.txt", 884_846, words_of),),
    },
)

# Counts of the corpus, so that a config can be checked without it.
COUNTS: dict[Reading, dict[str, int]] = {
    "raw": {"train": 5_101_618, "valid": 399_782, "test": 449_945},
    "tokens": {"train": 5_017_483, "valid": 393_043, "test": 442_424},
    "sentences": {"train": 4_975_414, "valid": 389_672, "test": 438_662},
}
"""Characters of each split. For `sentences` only those that are predicted: all but the first one of
each line."""
LINES = {"train": 42_068, "valid": 3_370, "test": 3_761}
"""Lines of each split."""
LINE_END = 255
"""Ends each line of a stream of `sentences`; it is no symbol."""
LONGEST_LINE = 518
"""Number of characters to predict in the longest line of the training text."""
SYMBOLS: dict[Reading, int] = {"raw": 50, "tokens": 50, "sentences": 49}
"""Number of different symbols."""
UNIGRAM_BITS: dict[Split, dict[Reading, float]] = {
    "valid": {"raw": 4.305157, "tokens": 4.336216, "sentences": 4.301906},
    "test": {"raw": 4.315089, "tokens": 4.345880, "sentences": 4.311845},
}
"""Cross-entropy, in bits, of a split's text under the training text's symbol frequencies."""
MAJORITY: dict[Split, dict[Reading, float]] = {
    "valid": {"raw": 0.184501, "tokens": 0.170516, "sentences": 0.171991},
    "test": {"raw": 0.183200, "tokens": 0.169313, "sentences": 0.170765},
}
"""Share of the most frequent symbol, the space, in a split's text."""


def characters(text: bytes, reading: Reading) -> bytes:
    r"""Return a word file's text in this reading, one byte for each symbol.

    In `tokens` a newline stands for `<eos>`. There is one more of them at the end, since Mikolov's
    character files end with a line of one space. In `sentences` a newline ends a line and is no
    symbol.

    >>> characters(b" the cat \n sat \n", "tokens")
    b'the_cat\nsat\n\n'
    >>> characters(b" the cat \n sat \n", "sentences")
    b' the cat\n sat\n'
    """
    if reading == "raw":
        return text
    if reading == "sentences":
        return text.replace(b" \n", b"\n")
    lines = [line.strip() for line in text.split(b"\n")]
    return b"\n".join(lines).replace(b" ", b"_") + b"\n"


@lru_cache(maxsize=4)
def read_streams(data_root: Path | None, reading: Reading) -> dict[str, NDArray[np.uint8]]:
    """Return each split as symbol numbers, in the order of their first use in the training text.

    In `sentences` each line is followed by `LINE_END`. A process reads the files once.

    Raises:
        CorpusMissingError: if a file is missing, or has other contents than expected.
    """
    texts = {
        split: np.frombuffer(
            characters(CORPUS.read(f"ptb.{split}.txt", data_root), reading), dtype=np.uint8
        )
        for split in ("train", "valid", "test")
    }
    train = texts["train"]
    if reading == "sentences":
        train = train[train != ord("\n")]
    symbols, first = np.unique(train, return_index=True)
    ids = np.full(256, LINE_END, dtype=np.uint8)
    ids[symbols[np.argsort(first)]] = np.arange(len(symbols))
    return {split: ids[text] for split, text in texts.items()}
