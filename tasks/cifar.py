"""CIFAR-10: its six files in the two formats that are published, and their readers.

The python format is a pickle of Python 2 with the labels and the pixels of 10,000 images; the
binary format has a byte of label and 3,072 of pixels for each image. In both, an image is its red
rows, then its green ones, then its blue ones.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eigensweep.tasks.corpus import Corpus, CorpusMismatchError, CorpusMissingError, Form
from eigensweep.tasks.mnist import Images

SIDE, COLOURS, CLASSES = 32, 3, 10
PIXELS = SIDE * SIDE
VALUES = COLOURS * PIXELS
BATCH = 10_000
"""Images in a file."""
TRAIN, TEST = tuple(f"data_batch_{number}" for number in range(1, 6)), ("test_batch",)
NUMBERS = {"train": len(TRAIN) * BATCH, "test": BATCH}
"""Number of images in each of the two published parts; each class has a tenth of them."""
PAGE = "https://www.cs.toronto.edu/~kriz"


PYTHON = Corpus(
    folder="cifar10",
    files={
        "data_batch_1": (31_035_704, "md5:c99cafc152244af753f735de768cd75f"),
        "data_batch_2": (31_035_320, "md5:d4bba439e000b95fd0a9bffe97cbabec"),
        "data_batch_3": (31_035_999, "md5:54ebc095f3ab1f0389bbae665268c751"),
        "data_batch_4": (31_035_696, "md5:634d18415352ddfa80567beed471001a"),
        "data_batch_5": (31_035_623, "md5:482c414d41f54cd18b22e5b47cb7c3cb"),
        "test_batch": (31_035_526, "md5:40351d587109b95175f43aff81a1287e"),
    },
    origin=f"they are in {PAGE}/cifar-10-python.tar.gz; the folder cifar-10-batches-py, which it "
    "unpacks and where torchvision puts them, works as well",
    other_forms={name: (Form(f"cifar-10-batches-py/{name}"),) for name in (*TRAIN, *TEST)},
)
BINARY = Corpus(
    folder="cifar10_binary",
    files={f"{name}.bin": (BATCH * (1 + VALUES), None) for name in (*TRAIN, *TEST)},
    origin=f"they are in {PAGE}/cifar-10-binary.tar.gz; the folder cifar-10-batches-bin, which it "
    "unpacks, works as well. No digest of these files is published: their sizes and labels are "
    "checked",
    other_forms={
        f"{name}.bin": (Form(f"cifar-10-batches-bin/{name}.bin"),) for name in (*TRAIN, *TEST)
    },
    inspect=lambda content: read_binary(content),
)


def find(data_root: Path | None) -> Corpus:
    """Return the corpus that is there: the python format, or else the binary one. Reads no file.

    Raises:
        CorpusMissingError: if neither is complete.
    """
    try:
        PYTHON.check(data_root)
    except CorpusMissingError as missing:
        try:
            BINARY.check(data_root)
        except CorpusMismatchError:
            raise
        except CorpusMissingError:
            raise missing from None
        return BINARY
    return PYTHON


@lru_cache(maxsize=1)
def read_images(data_root: Path | None) -> dict[str, Images]:
    """Return the parts `train` and `test`, pixels (N, 3072); a process reads them once.

    Raises:
        CorpusMissingError: if a file is missing, or has other contents than expected.
    """
    corpus = find(data_root)
    form: Callable[[bytes], Images] = read_binary if corpus is BINARY else read_pickle
    ending = ".bin" if corpus is BINARY else ""

    def part(names: tuple[str, ...], number: int) -> Images:
        batches = [form(corpus.read(f"{name}{ending}", data_root)) for name in names]
        labels = np.concatenate([batch.labels for batch in batches])
        counts = np.bincount(labels, minlength=CLASSES)
        if not (counts == number // CLASSES).all():
            raise CorpusMismatchError(
                f"the files {', '.join(names)} of {corpus.folder} have {counts.tolist()} images of "
                f"each class; expected {number // CLASSES:,} of each"
            )
        return Images(np.concatenate([batch.pixels for batch in batches]), labels)

    return {"train": part(TRAIN, NUMBERS["train"]), "test": part(TEST, NUMBERS["test"])}


def read_binary(content: bytes) -> Images:
    """Return the images of a file in the binary format.

    Raises:
        CorpusMismatchError: if it does not consist of whole images, or a label is above 9.
    """
    if not content or len(content) % (1 + VALUES):
        raise CorpusMismatchError(
            f"a binary file of CIFAR-10 has {1 + VALUES:,} bytes for each image; this one has "
            f"{len(content):,}"
        )
    rows = np.frombuffer(content, np.uint8).reshape(-1, 1 + VALUES)
    return _images(rows[:, 1:], rows[:, 0])


def read_pickle(content: bytes) -> Images:
    """Return the images of a file in the python format; nothing but arrays is built from it.

    Raises:
        CorpusMismatchError: if it holds anything else.
    """
    try:
        held = _ArraysOnly(io.BytesIO(content), encoding="bytes").load()
        pixels, labels = held[b"data"], np.array(held[b"labels"])
    except (pickle.UnpicklingError, KeyError, TypeError, EOFError, ValueError) as error:
        raise CorpusMismatchError(f"no python file of CIFAR-10: {error}") from error
    if not isinstance(pixels, np.ndarray) or pixels.shape != (len(labels), VALUES):
        raise CorpusMismatchError(
            f"a python file of CIFAR-10 has {VALUES:,} numbers for each of its labels"
        )
    return _images(pixels, labels)


def _images(pixels: NDArray[Any], labels: NDArray[Any]) -> Images:
    if pixels.dtype != np.uint8 or labels.min() < 0 or labels.max() >= CLASSES:
        raise CorpusMismatchError(
            f"CIFAR-10 has bytes and labels from 0 to {CLASSES - 1}; these are {pixels.dtype} and "
            f"{labels.min()} to {labels.max()}"
        )
    return Images(pixels, labels.astype(np.uint8))


class _ArraysOnly(pickle.Unpickler):
    """A reader of pickles that makes arrays and Python's own containers, and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if name == "_reconstruct" and module in _MULTIARRAY:
            return np.ndarray.__reduce__(np.empty(0, np.uint8))[0]
        if module == "numpy" and name in ("ndarray", "dtype"):
            return getattr(np, name)
        raise pickle.UnpicklingError(f"it names {module}.{name}")


_MULTIARRAY = ("numpy.core.multiarray", "numpy._core.multiarray")
