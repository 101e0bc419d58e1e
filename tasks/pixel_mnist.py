"""Pixel MNIST: read an image one pixel at a time, in order or permuted, and name its digit.

Source: Le, Jaitly & Hinton 2015, with the permutations and splits of later programs: those of
Helfrich, Willmott & Ye, ICML 2018, and most others (92916, `heldout_5000`, `none`), and those of
Kerg et al., NeurIPS 2019 (1234, `nnrnn`, fixed order).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.random import RandomState
from numpy.typing import NDArray
from pydantic import Field

from eigensweep.tasks import mnist
from eigensweep.tasks.base import Batch, Shapes, Split, TaskConfig
from eigensweep.tasks.images import ImageClasses, ImagesConfig
from eigensweep.tasks.mnist import CLASSES, PIXELS, Images
from eigensweep.tasks.streams import chunks, epoch_order

Permutation = Literal["none", 92916, 1234]
SplitRule = Literal["heldout_5000", "none", "nnrnn"]
HELD_OUT: dict[SplitRule, int] = {"heldout_5000": 5_000, "none": 0, "nnrnn": 10_000}
"""Number of training images that are set apart for validation."""


class PixelMnistConfig(ImagesConfig):
    """The settings of pixel MNIST."""

    name: Literal["pixel_mnist"] = "pixel_mnist"
    batch_size: int = Field(
        128,
        ge=1,
        le=60_000,
        description="Images in a training batch, B; the last one of an epoch may have fewer",
    )
    permutation: Permutation = Field(
        92916,
        description="Order of the pixels, the same for all images. `none`: row by row; a number: "
        "the seed of a permutation, 92916 (scoRNN, expRNN, asRNN) or 1234 (nnRNN)",
    )
    split: SplitRule = Field(
        "heldout_5000",
        description="Validation images. `heldout_5000`: the first 5,000 of the training images; "
        "`nnrnn`: 10,000 of them, drawn at random (nnRNN); `none`: the test images, as in papers "
        "that report their best test accuracy (expRNN, asRNN)",
    )
    order: Literal["reshuffled", "fixed"] = Field(
        "reshuffled",
        description="Order of the training images: drawn anew in every epoch, or always the same",
    )

    @property
    def train_size(self) -> int:
        return mnist.NUMBERS["train"] - HELD_OUT[self.split]

    @property
    def shapes(self) -> Shapes:
        return Shapes(input_size=1, input_kind="values", output_size=CLASSES, readout="last")

    @property
    def sequence_length(self) -> int:
        return PIXELS

    @property
    def corpus_bytes(self) -> int:
        return sum(mnist.NUMBERS.values()) * (PIXELS + 1)


class PixelMnist(ImageClasses):
    """Name the digit of an image after seeing its 784 pixels, one at each step.

    Step i shows pixel `order[i]` of the image, between 0 and 1. The permutation is that of a paper
    and does not depend on the seed. The seed draws the order of the images in each epoch. Images
    are kept as whole numbers, one byte for each pixel, until their batch is made. The picture shows
    an image, and beside it its sequence laid out in rows of 28.

    >>> seven = np.zeros((28, 28), np.uint8)
    >>> seven[4:7, 6:22] = seven[4:24, 19:22] = 255
    >>> print(PixelMnist(PixelMnistConfig()).picture(seven))
    ⠀⠀⠀⠀⠀⠀⠀⠀⠀⠀⠀⠀⠀⠀  ⠀⠀⠁⠄⢀⢀⠀⠐⠀⠁⠈⠂⡁⠄
    ⠀⠀⠀⠿⠿⠿⠿⠿⠿⢿⣿⠀⠀⠀  ⠄⠐⠀⢀⠁⠄⠑⠀⠀⠀⡀⡀⢀⠀
    ⠀⠀⠀⠀⠀⠀⠀⠀⠀⢸⣿⠀⠀⠀  ⠂⢈⠁⠁⠀⠀⠄⠠⢀⠁⡂⠀⠄⠀
    ⠀⠀⠀⠀⠀⠀⠀⠀⠀⢸⣿⠀⠀⠀  ⢀⢀⢀⡚⢀⢈⠠⠀⠄⠐⠰⢁⠠⠀
    ⠀⠀⠀⠀⠀⠀⠀⠀⠀⢸⣿⠀⠀⠀  ⠌⠀⡀⠐⠀⠘⠒⠘⠀⡀⠀⠠⠂⠠
    ⠀⠀⠀⠀⠀⠀⠀⠀⠀⢸⣿⠀⠀⠀  ⠐⠐⠂⠄⠀⠄⠐⠠⠁⠀⠀⠀⢁⠂
    ⠀⠀⠀⠀⠀⠀⠀⠀⠀⠀⠀⠀⠀⠀  ⠀⠀⢬⡔⠑⠐⢒⠐⢄⢎⢀⡈⠀⠀
    """

    Config = PixelMnistConfig
    config: PixelMnistConfig

    def __init__(self, config: PixelMnistConfig, data_root: Path | None = None) -> None:
        super().__init__(config, data_root)
        self.order = pixel_order(config.permutation)
        self.train_rows, self.valid_rows = split_rows(config.split)

    @classmethod
    def check_corpus(cls, config: TaskConfig, data_root: Path | None) -> None:
        mnist.CORPUS.check(data_root)

    @classmethod
    def list_corpus(cls, config: TaskConfig, data_root: Path) -> list[Path]:
        return mnist.CORPUS.paths(data_root)

    def train_batch(self, step: int, seed: int) -> Batch:
        """Return the batch of one step: x (784, B, 1) pixels, y (B,) digits."""
        B, rows = self.config.batch_size, self.train_rows
        epoch, place = divmod(step, self.config.steps_per_epoch)
        taken: NDArray[np.int64] | slice = slice(place * B, (place + 1) * B)
        if self.config.order == "reshuffled":
            taken = epoch_order(f"pixel_mnist/order/{seed}", epoch, len(rows))[taken]
        return self._batch(self._images("train"), rows[taken])

    def evaluation(self, split: Split) -> Iterator[Batch]:
        if split == "valid" and len(self.valid_rows):
            images, rows = self._images("train"), self.valid_rows
        else:
            images, rows = self._images("test"), np.arange(mnist.NUMBERS["test"])
        for chunk in chunks(len(rows), PIXELS):
            yield self._batch(images, rows[chunk])

    def picture(self, image: NDArray[np.uint8]) -> str:
        """Return an image, (28, 28), drawn beside its sequence in rows of 28."""
        seen = image.flatten()[self.order].reshape(image.shape)
        pairs = zip(in_dots(image), in_dots(seen), strict=True)
        return "\n".join(f"{left}  {right}" for left, right in pairs)

    def _images(self, part: str) -> Images:
        return mnist.read_images(self.data_root)[part]

    def _batch(self, images: Images, rows: NDArray[np.int64]) -> Batch:
        pixels = images.pixels[rows].T[self.order]
        # Multiplying by 1/255 would change the last bit of half of the levels.
        x = np.divide(pixels, np.float32(255), dtype=np.float32)[..., None]
        y = images.labels[rows].astype(np.int64)
        return Batch(torch.from_numpy(x), torch.from_numpy(y))


def pixel_order(permutation: Permutation) -> NDArray[np.int64]:
    """Return the pixel that each step shows, (784,). NumPy never changes RandomState's numbers.

    >>> pixel_order(92916)[:12].tolist()
    [319, 576, 323, 107, 355, 716, 197, 20, 625, 60, 443, 620]
    """
    if permutation == "none":
        return np.arange(PIXELS)
    return RandomState(permutation).permutation(PIXELS).astype(np.int64)


def split_rows(split: SplitRule) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the row numbers of the training images to train on, and of those to validate on."""
    number, held_out = mnist.NUMBERS["train"], HELD_OUT[split]
    if split != "nnrnn":
        rows = np.arange(number)
        return rows[held_out:], rows[:held_out]
    generator = RandomState(1234)
    generator.permutation(PIXELS)  # nnRNN draws the order of the pixels first, so we draw it, too
    rows = generator.permutation(number).astype(np.int64)
    return rows[:-held_out], rows[-held_out:]


def in_dots(image: NDArray[np.uint8]) -> list[str]:
    """Return an image as lines of Braille signs, one for 4 by 2 pixels; a dot is a bright pixel.

    >>> in_dots(255 * np.eye(4, dtype=np.uint8))
    ['⠑⢄']
    """
    height, width = image.shape
    bright = (image >= 128).reshape(height // 4, 4, width // 2, 2)
    values = [[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]]
    signs = 0x2800 + np.einsum("hiwj,ij->hw", bright, values)
    return ["".join(map(chr, line)) for line in signs]
