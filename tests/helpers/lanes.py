"""Trainings in float64, alone and as lanes of a group."""

from __future__ import annotations

import copy
from dataclasses import replace

import torch
from helpers.small_models import REQUIRED
from toys import TIMES

from eigensweep.search_spaces.trial import TrialConfig
from eigensweep.training.lanes.stacked.group import Group
from eigensweep.training.optimizers.optimizers import Optimizers
from eigensweep.training.training import Training

VOICES = "56b31ff3da3c29349f01bc49d2a56a6c71691f8b6c4f708aef28622a57060b76"
SIZES = {"valid_size": 20, "test_size": 15}
TASKS = {
    "copying": {"delay": 3, "symbols": 2, "batch_size": 4, **SIZES},
    "denoise": {"delay": 4, "symbols": 2, "batch_size": 4, **SIZES},
    "variable_copying": {"delay": 4, "symbols": 2, "batch_size": 4, **SIZES},
    "selective_copying": {"delay": 4, "symbols": 2, "batch_size": 4, **SIZES},
    "adding": {"length": 6, "batch_size": 4, "train_size": 20, **SIZES},
    "pixel_mnist": {"batch_size": 9},
    "pixel_cifar": {"batch_size": 9, "split": "heldout_5000"},
    "noisy_cifar": {"batch_size": 9, "length": 40, "split": "heldout_5000"},
    "ptb_chars": {"batch_size": 4, "eval_batch_size": 2, "bptt": 7},
    "speech_frames": {"corpus": "voices", "digest": VOICES, "batch_size": 4},
}
"""Fields that make each task small; the corpora are those of `small_files`."""
NEEDED = {**REQUIRED, "enrnn": {"short_size": 4, "negative_ones": 2}}  # what tests change of it


def config_of(model, task="copying", optimizer=None, training=None, **rest):
    """Return a small config; a model or a task is a name or its fields."""
    model = {"name": model} if isinstance(model, str) else model
    task = {"name": task} if isinstance(task, str) else task
    task = {**TASKS.get(task["name"], {}), **task}
    if task.get("reading") == "sentences":
        del task["bptt"]
    content = {
        "task": task,
        "model": {"hidden_size": 8, **NEEDED.get(model["name"], {}), **model},
        "optimizer": {"lr": 0.01, **(optimizer or {})},
        "training": {"steps": 50, "evaluate_every": 20, "log_every": 3, **(training or {})},
    }
    return TrialConfig.from_dict({**content, **rest})


class Precise:
    """A task whose values are float64.

    It counts as one of the project's, whose lanes are not compared with a training in float32.
    """

    __module__ = "eigensweep.tests"

    def __init__(self, task):
        self._task = task

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._task, name)

    def train_batch(self, step, seed):
        return _precise(self._task.train_batch(step, seed))

    def evaluation(self, split):
        return map(_precise, self._task.evaluation(split))


def _precise(batch):
    x, y = (t.double() if t.is_floating_point() else t for t in (batch.x, batch.y))
    return replace(batch, x=x, y=y)


def build(config, seed=0, precise=True, **options):
    """Return a training, by default in float64."""
    training = Training(config, seed, **options)
    if precise:
        training.model.double()
        training.optimizers = Optimizers(training.model, training.config.optimizer)
        training.task = Precise(training.task)
    return training


def train_lanes(trainings, lanes=None, group=None):
    """Train all side by side to their ends; those without a place wait for one.

    A group that is given is left open.
    """
    own = Group(copy.copy(trainings[0]), lanes or len(trainings)) if group is None else None
    group = group or own
    waiting = list(trainings)
    while waiting or group.trainings:
        while waiting and group.free:
            group.join(waiting.pop(0))
        group.advance(10.0)
        for training in group.trainings:
            if training.is_finished:
                group.leave(training)
    if own is not None:
        own.close()


def assert_equal(lane, alone, atol=1e-10):
    """Hold a lane's whole state to that of the same training alone.

    At the end of an epoch no state is looked at that the next batch does not go on from.
    """
    found, expected = lane.state_dict(), alone.state_dict()
    if alone.carried is not None and alone.task.train_batch(alone.step, alone.seed).starts.all():
        del found["carried"], expected["carried"]
    close(found, expected, atol)


def close(found, expected, atol, path=""):
    if isinstance(expected, torch.Tensor):
        torch.testing.assert_close(
            found, expected, atol=atol, rtol=atol, msg=lambda m: f"{path}: {m}"
        )
    elif isinstance(expected, dict):
        assert list(found) == list(expected), path
        for key in expected:
            if key not in TIMES:
                close(found[key], expected[key], atol, f"{path}/{key}")
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected), path
        for i, (a, b) in enumerate(zip(found, expected, strict=True)):
            close(a, b, atol, f"{path}/{i}")
    elif isinstance(expected, float):
        assert abs(found - expected) <= atol * max(1.0, abs(expected)), (path, found, expected)
    else:
        assert found == expected, path
