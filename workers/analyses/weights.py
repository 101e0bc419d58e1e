"""A finished trial's network and task, as its store kept them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import torch
from torch import Tensor

from eigensweep.models.base import Model
from eigensweep.search_spaces.trial import TrialConfig
from eigensweep.tasks.base import Task
from eigensweep.workers.analyses.base import Place, TrialOptions, TrialSubject
from eigensweep.workers.shared.checkpoints import Snapshot, Store
from eigensweep.workers.trial.selection import selected_weights
from eigensweep.workers.trial.training import Training


class NotFiniteError(ValueError):
    """The weights that are asked for are not finite; says which would be."""


@dataclass(frozen=True)
class Trained:
    """One replicate's network at some step of its training, in double precision on the CPU."""

    model: Model
    task: Task
    step: int
    seed: int

    def next_input(self, sequences: int, length: int | None) -> Tensor:
        """Return the input of the batch that training would meet next, cut to a size."""
        return self.task.train_batch(self.step, self.seed).x[:length, :sequences]


def seed_of(options: TrialOptions, subject: TrialSubject) -> int:
    """Return the seed of the replicate that is asked for.

    Raises:
        ValueError: if the trial has fewer replicates.
    """
    first, count = subject.config["seed"], subject.config["replicates"]
    if options.replicate >= count:
        raise ValueError(
            f"'replicate' is {options.replicate}; trial {subject.number} has "
            f"{count} replicate{'s' if count > 1 else ''}, counted from 0"
        )
    return int(first + options.replicate)


def trained(options: TrialOptions, subject: TrialSubject, place: Place) -> Trained:
    """Return the network with the weights that are asked for.

    Raises:
        ValueError: if the store has no such weights any more, or the task's corpus is missing.
        NotFiniteError: if they are not finite, as the last ones of a diverged trial.
    """
    seed = seed_of(options, subject)
    config = TrialConfig.from_dict(subject.config).resolved()
    training = Training(config, seed, data_root=place.data_root)
    step = 0
    if options.weights != "initial":
        state = snapshot(subject, seed, place.storage).state
        weights, step = state["model"], state["step"]
        if options.weights == "best":
            weights = selected_weights(state)
            if weights is None:
                raise ValueError(
                    f"trial {subject.number} never had a finite evaluation, so no best weights; "
                    "ask for the last ones"
                )
            selection = state["selection"]
            step = (selection["final"] or selection["scheduled"])["step"]
        _check_finite(weights, options.weights, subject)
        training.model.load_state_dict(weights)
    return Trained(_in_double(training.model).eval(), training.task, step, seed)


def snapshot(subject: TrialSubject, seed: int, storage: Path) -> Snapshot:
    """Return the newest checkpoint of a replicate.

    Raises:
        ValueError: if there is none.
    """
    found = Store(storage).newest(f"{subject.place}/{seed}")
    if found is None:
        raise ValueError(
            f"the store has no checkpoint of trial {subject.number} of {subject.experiment} with "
            f"seed {seed}: it was removed, or the trial ended before its first one"
        )
    return found


def _check_finite(weights: dict[str, Tensor], which: str, subject: TrialSubject) -> None:
    for name, values in weights.items():
        if not bool(torch.isfinite(values).all()):
            raise NotFiniteError(
                f"the {which} weights of trial {subject.number}, which is {subject.state}, are not "
                f"finite ('{name}'); ask for those that are 'best' or 'initial'"
            )


def _in_double(model: Model) -> Model:
    """Return the model with every number in double precision, complex ones too."""
    model.double()  # leaves complex numbers out
    for tensor in chain(model.parameters(), model.buffers()):
        if tensor.is_complex():
            tensor.data = tensor.data.to(torch.complex128)
    return model
