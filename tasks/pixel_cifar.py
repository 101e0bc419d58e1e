"""Sequential CIFAR-10: read an image one pixel at a time, row by row, and name what it shows.

Source: Chang et al., AntisymmetricRNN, ICLR 2019, section 5; in grey, Tay et al., Long Range Arena,
2021; in colour, Orvieto et al., LRU, 2023, and Smith et al., S5, 2023. Means and deviations are
those of the programs of S4 and S5.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field

from eigensweep.tasks import cifar
from eigensweep.tasks.base import Batch, Shapes, Split, TaskConfig
from eigensweep.tasks.cifar import CLASSES, COLOURS, PIXELS
from eigensweep.tasks.images import ImageClasses, ImagesConfig
from eigensweep.tasks.mnist import Images
from eigensweep.tasks.streams import chunks, epoch_order

SplitRule = Literal["heldout_5000", "heldout_3000", "heldout_2000", "none"]
HELD_OUT: dict[SplitRule, int] = {
    "heldout_5000": 5_000,
    "heldout_3000": 3_000,
    "heldout_2000": 2_000,
    "none": 0,
}
"""Number of training images that are set apart for validation."""
GREY = np.array([19_595, 38_470, 7_471], np.uint32)
"""Weights of red, green and blue in 2^-16, as Pillow has them, which the programs use."""
MEAN = np.array([0.4914, 0.4822, 0.4465], np.float32)
DEVIATION = np.array([0.247, 0.243, 0.261], np.float32)
GREY_MEAN, GREY_DEVIATION = np.array([[122.6], [61]], np.float32) / np.float32(255)


class CifarConfig(ImagesConfig):
    """The settings that the tasks on CIFAR-10 have in common."""

    batch_size: int = Field(
        50,
        ge=1,
        le=50_000,
        description="Images in a training batch, B; the last one of an epoch may have fewer",
    )
    split: SplitRule = Field(
        "heldout_5000",
        description="Validation images: the first 5,000, 3,000 (coRNN) or 2,000 (LEM) of the "
        "training images, where these programs draw as many; `none`: the test images",
    )

    @property
    def train_size(self) -> int:
        return cifar.NUMBERS["train"] - HELD_OUT[self.split]

    @property
    def corpus_bytes(self) -> int:
        return 2 * sum(cifar.NUMBERS.values()) * cifar.VALUES  # the files are whole while read


class Cifar(ImageClasses):
    """Name what an image shows. A subclass says how it becomes a sequence.

    The seed draws the order of the images in each epoch. Images are kept as bytes until their batch
    is made.
    """

    config: CifarConfig

    @abstractmethod
    def sequences(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return images, (B, 3, 32, 32), as sequences, (τ, B, m)."""

    @classmethod
    def check_corpus(cls, config: TaskConfig, data_root: Path | None) -> None:
        cifar.find(data_root)

    @classmethod
    def list_corpus(cls, config: TaskConfig, data_root: Path) -> list[Path]:
        return cifar.find(data_root).paths(data_root)

    def train_batch(self, step: int, seed: int) -> Batch:
        """Return the batch of one step: x (τ, B, m) pixels, y (B,) classes."""
        B, held_out = self.config.batch_size, HELD_OUT[self.config.split]
        epoch, place = divmod(step, self.config.steps_per_epoch)
        order = epoch_order(f"{self.config.name}/order/{seed}", epoch, self.config.train_size)
        return self._batch(self._images("train"), held_out + order[place * B : (place + 1) * B])

    def evaluation(self, split: Split) -> Iterator[Batch]:
        held_out = HELD_OUT[self.config.split]
        part = "train" if split == "valid" and held_out else "test"
        rows = np.arange(held_out if part == "train" else cifar.NUMBERS["test"])
        for chunk in chunks(len(rows), self.config.sequence_length):
            yield self._batch(self._images(part), rows[chunk])

    def _images(self, part: str) -> Images:
        return cifar.read_images(self.data_root)[part]

    def _batch(self, images: Images, rows: NDArray[np.int64]) -> Batch:
        pixels = images.pixels[rows].reshape(-1, COLOURS, cifar.SIDE, cifar.SIDE)
        x = np.ascontiguousarray(self.sequences(pixels), np.float32)
        return Batch(torch.from_numpy(x), torch.from_numpy(images.labels[rows].astype(np.int64)))


class PixelCifarConfig(CifarConfig):
    """The settings of sequential CIFAR-10."""

    name: Literal["pixel_cifar"] = "pixel_cifar"
    colour: Literal["rgb", "grey"] = Field(
        "rgb",
        description="What a step shows of a pixel. `rgb`: red, green and blue (S4, LRU); `grey`: "
        "its brightness (Long Range Arena)",
    )
    normalisation: Literal["standard", "unit"] = Field(
        "standard",
        description="`standard`: less the mean of CIFAR-10, by its deviation; `unit`: from 0 to 1",
    )

    @property
    def shapes(self) -> Shapes:
        size = COLOURS if self.colour == "rgb" else 1
        return Shapes(input_size=size, input_kind="values", output_size=CLASSES, readout="last")

    @property
    def sequence_length(self) -> int:
        return PIXELS


class PixelCifar(Cifar):
    """Name what an image shows after seeing its 1,024 pixels, row by row, one at each step.

    >>> red = np.zeros((1, 3, 32, 32), np.uint8)
    >>> red[0, 0, 0, 1] = 255  # one red pixel, the second one of the first row
    >>> for colour in ("rgb", "grey"):
    ...     config = PixelCifarConfig(colour=colour, normalisation="unit")
    ...     print((255 * PixelCifar(config).sequences(red)[:3, 0]).tolist())
    [[0.0, 0.0, 0.0], [255.0, 0.0, 0.0], [0.0, 0.0, 0.0]]
    [[0.0], [76.0], [0.0]]
    """

    Config = PixelCifarConfig
    config: PixelCifarConfig

    def sequences(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        steps = pixels.reshape(len(pixels), COLOURS, PIXELS).transpose(2, 0, 1)
        mean, deviation = MEAN, DEVIATION
        if self.config.colour == "grey":
            weighted = steps.astype(np.uint32) @ GREY + np.uint32(1 << 15)
            steps = (weighted >> np.uint32(16)).astype(np.uint8)[..., None]
            mean, deviation = GREY_MEAN, GREY_DEVIATION
        x = np.divide(steps, np.float32(255), dtype=np.float32)
        return x if self.config.normalisation == "unit" else (x - mean) / deviation
