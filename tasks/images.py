"""What tasks share in which an image is read as a sequence and named, as one of ten classes."""

from __future__ import annotations

from math import log

from pydantic import Field
from torch import Tensor

from eigensweep.tasks.base import Batch, Metric, Task, TaskConfig
from eigensweep.tasks.cross_entropy import cross_entropy

CLASSES = 10


class ImagesConfig(TaskConfig):
    """The settings of such a task. Each epoch takes all training images once."""

    batch_size: int = Field(
        ge=1,
        description="Images in a training batch, B; the last one of an epoch may have fewer",
    )

    split: str = Field(description="Which images are set apart for validation")

    def check(self) -> None:
        super().check()
        if self.batch_size > self.train_size:
            raise ValueError(
                f"{self.name} with split '{self.split}' needs 'batch_size' of at most "
                f"{self.train_size}, its number of training images; it is {self.batch_size}"
            )

    @property
    def train_size(self) -> int:
        """Number of images to train on."""
        raise NotImplementedError

    @property
    def metrics(self) -> tuple[Metric, ...]:
        return (Metric("cross_entropy", "nats"), Metric("accuracy", "fraction", "higher"))

    @property
    def has_unequal_batches(self) -> bool:
        """Whether the last batch of an epoch has fewer images."""
        return self.train_size % self.batch_size != 0

    @property
    def steps_per_epoch(self) -> int:
        return -(-self.train_size // self.batch_size)

    @property
    def default_evaluate_every(self) -> int:
        return self.steps_per_epoch

    @property
    def baselines(self) -> dict[str, float]:
        """The scores of guessing among ten equally likely classes."""
        return {"cross_entropy": log(CLASSES), "accuracy": 1 / CLASSES}


class ImageClasses(Task):
    """Scores the classes that are read out at the last step."""

    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        return cross_entropy(logits, batch.y, batch.mask)

    def scores(self, logits: Tensor, batch: Batch) -> dict[str, tuple[Tensor, int | Tensor]]:
        return {
            "cross_entropy": (cross_entropy(logits, batch.y, reduction="sum"), len(batch.y)),
            "accuracy": ((logits.argmax(-1) == batch.y).sum(), len(batch.y)),
        }
