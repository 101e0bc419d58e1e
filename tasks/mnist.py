"""MNIST: its four files, the forms they may be stored in, and a reader of their format."""

from __future__ import annotations

from functools import lru_cache
from math import prod
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from eigensweep.tasks.corpus import Corpus, Form, unpack

PIXELS, CLASSES = 28 * 28, 10
NUMBERS = {"train": 60_000, "test": 10_000}
"""Number of images in each of the two published parts."""
FOLDERS = ("mnist", "MNIST/raw", "mnist/MNIST/raw")
"""Where the files may be: in their own folder, or where torchvision puts them."""


def forms(name: str) -> tuple[Form, ...]:
    """Return the forms in which a file may be stored, gzip files last.

    >>> [form.path for form in forms("t10k-labels-idx1-ubyte")][:2]
    ['mnist/t10k-labels-idx1-ubyte', 'mnist/t10k-labels.idx1-ubyte']
    """
    spellings = (name, name.replace("-idx", ".idx"))
    paths = [f"{folder}/{spelling}" for folder in FOLDERS for spelling in spellings]
    packed = [Form(f"{path}.gz", None, unpack) for path in paths]
    return (*(Form(path) for path in paths), *packed)


FILES = {
    "train-images-idx3-ubyte": (
        47_040_016,
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    ),
    "train-labels-idx1-ubyte": (
        60_008,
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    ),
    "t10k-images-idx3-ubyte": (
        7_840_016,
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    ),
    "t10k-labels-idx1-ubyte": (
        10_008,
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ),
}
CORPUS = Corpus(
    folder="mnist",
    files=FILES,
    origin="they are at https://ossci-datasets.s3.amazonaws.com/mnist/, each with .gz at its end, "
    "and may stay packed; torchvision's folder MNIST/raw works as well",
    other_forms={name: forms(name) for name in FILES},
)


class Images(NamedTuple):
    """Images with their labels, as whole numbers."""

    pixels: NDArray[np.uint8]
    """(N, 784): the rows of each image one after another, 0 to 255."""
    labels: NDArray[np.uint8]
    """(N,), 0 to 9."""


@lru_cache(maxsize=2)
def read_images(data_root: Path | None) -> dict[str, Images]:
    """Return the parts `train` and `test`; a process reads them once.

    Raises:
        CorpusMissingError: if a file is missing, or has other contents than expected.
    """

    def part(prefix: str) -> Images:
        pixels = CORPUS.read(f"{prefix}-images-idx3-ubyte", data_root)
        labels = CORPUS.read(f"{prefix}-labels-idx1-ubyte", data_root)
        return Images(read_idx(pixels, axes=3).reshape(-1, PIXELS), read_idx(labels, axes=1))

    return {"train": part("train"), "test": part("t10k")}


def read_idx(content: bytes, axes: int) -> NDArray[np.uint8]:
    """Return the array of an IDX file of unsigned bytes; it is read-only.

    Raises:
        ValueError: if it is no such file, or is longer or shorter than its header says.
    """
    magic, expected = int.from_bytes(content[:4], "big"), 0x0800 + axes
    if magic != expected:
        raise ValueError(f"an IDX file of {axes} axes begins with {expected}, not with {magic}")
    header = 4 + 4 * axes
    shape = [int.from_bytes(content[i : i + 4], "big") for i in range(4, header, 4)]
    if len(content) != header + prod(shape):
        raise ValueError(
            f"an IDX file of shape {shape} has {header + prod(shape):,} bytes, not {len(content):,}"
        )
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)
