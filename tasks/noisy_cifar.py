"""Noise-padded CIFAR-10: read an image row by row, then noise, and name what the image shows.

Source: Chang et al., AntisymmetricRNN, ICLR 2019, section 5.3; as in the programs of Rusch &
Mishra, coRNN, ICLR 2021, and Rusch et al., LEM, ICLR 2022 (tk-rusch/coRNN, noisy_CIFAR10;
tk-rusch/LEM, nCIFAR), where the noise is drawn once and is the same after every image.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.random import RandomState
from numpy.typing import NDArray
from pydantic import Field

from eigensweep.tasks.base import Shapes
from eigensweep.tasks.cifar import CLASSES, COLOURS, SIDE
from eigensweep.tasks.pixel_cifar import Cifar, CifarConfig, SplitRule

ROW = COLOURS * SIDE
"""Values of a row of pixels: its red ones, its green ones, its blue ones."""
NOISE_SEED = 5544


class NoisyCifarConfig(CifarConfig):
    """The settings of noise-padded CIFAR-10."""

    name: Literal["noisy_cifar"] = "noisy_cifar"
    batch_size: int = Field(
        100,
        ge=1,
        le=50_000,
        description="Images in a training batch, B; the last one of an epoch may have fewer",
    )
    split: SplitRule = Field(
        "heldout_3000",
        description="Validation images: the first 5,000, 3,000 (coRNN) or 2,000 (LEM) of the "
        "training images, where these programs draw as many; `none`: the test images",
    )
    length: int = Field(
        1_000, ge=33, le=100_000, description="Steps T: 32 rows of the image, the others noise"
    )

    @property
    def shapes(self) -> Shapes:
        return Shapes(input_size=ROW, input_kind="values", output_size=CLASSES, readout="last")

    @property
    def sequence_length(self) -> int:
        return self.length


class NoisyCifar(Cifar):
    """Name what an image shows after seeing its 32 rows of 96 values, and noise after them.

    Values of the image are from 0 to 1; the noise is standard normal, the same after every image.

    >>> task = NoisyCifar(NoisyCifarConfig(length=40))
    >>> x = task.sequences(np.full((2, 3, 32, 32), 255, np.uint8))
    >>> x.shape, float(x[:32].min()), bool((x[32:, 0] == x[32:, 1]).all())
    ((40, 2, 96), 1.0, True)
    """

    Config = NoisyCifarConfig
    config: NoisyCifarConfig

    def sequences(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        rows = pixels.transpose(2, 0, 1, 3).reshape(SIDE, len(pixels), ROW)
        x = np.empty((self.config.length, len(pixels), ROW), np.float32)
        np.divide(rows, np.float32(255), out=x[:SIDE])
        x[SIDE:] = noise(self.config.length - SIDE)[:, None]
        return x


@lru_cache(maxsize=2)
def noise(steps: int) -> NDArray[np.float32]:
    """Return the noise, (steps, 96); NumPy never changes RandomState's numbers."""
    return RandomState(NOISE_SEED).standard_normal((steps, ROW)).astype(np.float32)
