"""Load a finished trial's network and task from the store."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor

from eigensweep.analyses.base import Folders, TrialOptions, TrialSubject
from eigensweep.models.base import Model
from eigensweep.search_spaces.labels import say_count
from eigensweep.store.checkpoints import Snapshot, Store
from eigensweep.tasks.base import Task
from eigensweep.training.selection import selected
from eigensweep.training.training import Training
from eigensweep.training.weights import check_budget


class NotFiniteError(ValueError):
    """The requested weights are not finite; the message names weights that may be."""


@dataclass(frozen=True)
class TrainedNetwork:
    """One replicate's network at some step of its training, in double precision on the CPU."""

    model: Model
    task: Task
    step: int
    """Optimizer steps before these weights."""
    seed: int
    """Seed of the replicate."""

    def next_input(self, sequences: int, length: int | None) -> Tensor:
        """Return x of the batch that training would use next, cut to at most so many sequences.

        Its shape is (τ, B) for symbols and (τ, B, m) for values; τ is at most `length`.
        """
        return self.task.train_batch(self.step, self.seed).x[:length, :sequences]

    def next_sequence(self, number: int, length: int | None) -> Tensor:
        """Return one sequence of that batch, by its number from 0, as a batch of its own.

        Raises:
            ValueError: if this batch is smaller than `batch_size`, as the last one of an epoch may
                be, and has no such sequence.
        """
        x = self.next_input(number + 1, length)
        if number >= x.shape[1]:
            raise ValueError(
                f"'sequence' is {number}; the batch after step {self.step} has "
                f"{say_count(x.shape[1], 'sequence')}, counted from 0: ask for one of them, or for "
                "other 'weights', whose next batch is another one"
            )
        return x[:, number:]


def seed_of(options: TrialOptions, subject: TrialSubject) -> int:
    """Return the seed of the replicate that `options` names.

    Raises:
        ValueError: if the trial has fewer replicates.
    """
    seeds = subject.trial_config.seeds
    if options.replicate >= len(seeds):
        raise ValueError(
            f"'replicate' is {options.replicate}; trial {subject.number} has "
            f"{len(seeds)} replicate{'s' if len(seeds) > 1 else ''}, counted from 0"
        )
    return seeds[options.replicate]


def load_network(options: TrialOptions, subject: TrialSubject, folders: Folders) -> TrainedNetwork:
    """Return the network with the weights that `options` names.

    Raises:
        ValueError: if the store no longer has these weights, or the task's corpus is missing.
        NotFiniteError: if they are not finite, like the last weights of a diverged trial.
    """
    seed = seed_of(options, subject)
    training = Training(subject.trial_config.resolve(), seed, data_root=folders.data_root)
    step = 0
    if options.weights != "initial":
        weights, step = _load_weights(options.weights, subject, seed, folders)
        check_budget(step, training.config, options.weights)
        _check_finite(weights, options.weights, subject)
        training.model.load_state_dict(weights)
    return TrainedNetwork(_to_double(training.model).eval(), training.task, step, seed)


def _load_weights(
    which: str, subject: TrialSubject, seed: int, folders: Folders
) -> tuple[dict[str, Tensor], int]:
    """Return the best or the last weights, and the optimizer steps before them."""
    try:
        state = load_snapshot(subject, seed, folders).state
    except ValueError:  # the best weights may be left, alone
        best = Store(folders.storage).kept.best(subject.store_key(seed))
        if which != "best" or best is None:
            raise
        return best["weights"], best["step"]
    if which == "last":
        return state["model"], state["step"]
    chosen = selected(state)
    if chosen is None:
        raise ValueError(
            f"trial {subject.number} has no best weights, since none of its evaluations "
            "was finite; ask for the last ones"
        )
    return chosen.weights, chosen.step


def load_snapshot(subject: TrialSubject, seed: int, folders: Folders) -> Snapshot:
    """Return the newest checkpoint of the replicate with this seed.

    Raises:
        ValueError: if there is none.
    """
    found = Store(folders.storage).newest(subject.store_key(seed))
    if found is None:
        raise ValueError(
            f"the store has no checkpoint of trial {subject.number} of {subject.experiment} with "
            f"seed {seed}: it was removed, alone or with its experiment, or the trial ended before "
            "its first one"
        )
    if "model" not in found.state:
        raise ValueError(
            f"the store has no weights of trial {subject.number} of {subject.experiment} with seed "
            f"{seed}: its result was taken up without them"
        )
    return found


def _check_finite(weights: dict[str, Tensor], which: str, subject: TrialSubject) -> None:
    for name, values in weights.items():
        if not bool(torch.isfinite(values).all()):
            raise NotFiniteError(
                f"the {which} weights of trial {subject.number}, which is {subject.state}, are not "
                f"finite ('{name}'); ask for the weights 'best' or 'initial'"
            )


def _to_double(model: Model) -> Model:
    """Convert every number of the model to double precision, complex ones too; return it."""
    model.double()  # leaves complex numbers as they are
    for tensor in chain(model.parameters(), model.buffers()):
        if tensor.is_complex():
            tensor.data = tensor.data.to(torch.complex128)
    return model
