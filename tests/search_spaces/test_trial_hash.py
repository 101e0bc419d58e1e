"""The hash that names a result: what enters it and what does not."""

from __future__ import annotations

import pytest

from eigensweep.models import MODELS
from eigensweep.search_spaces.spec import ExperimentSpec
from eigensweep.search_spaces.trial import TrialConfig


def trial(**changes) -> TrialConfig:
    content = {
        "task": {"name": "copying", "delay": 20},
        "model": {"name": "scornn", "hidden_size": 32, "negative_fraction": 0.5},
        "optimizer": {"name": "rmsprop", "lr": 0.001},
        "training": {"steps": 100},
    }
    spec = ExperimentSpec.model_validate({**content, **changes})
    return spec.trial(spec.space().point(0))


HASH = trial().content_hash()


@pytest.mark.parametrize(
    "changes",
    [
        {"training": {"steps": 5000}},
        {"training": {"steps": 100, "log_every": 3}},
        {"seed": 9, "replicates": 4},
        {"name": "another", "priority": 3, "resources": {"gpus": 1}},
        {"resources": {"gpus": 1, "lanes": 32}},
        {"resources": {"cpus": 2, "lanes": "auto"}},
        {"model": {"negative_fraction": 0.5, "hidden_size": 32, "name": "scornn"}},
        {"model": {"name": "scornn", "hidden_size": 32, "negative_ones": 16}},
        {"model": {"name": "scornn", "hidden_size": 32, "negative_fraction": 0.49}},
        {"optimizer": {"name": "rmsprop", "lr": 1e-3, "lr_orth": 1e-3, "name_orth": "rmsprop"}},
        {"training": {"steps": 100, "evaluate_every": 100}},
        {"objective": {"metric": "cross_entropy"}},
    ],
)
def test_the_hash_is_the_same_where_the_results_are(changes):
    assert trial(**changes).content_hash() == HASH


@pytest.mark.parametrize(
    "changes",
    [
        {"task": {"name": "copying", "delay": 21}},
        {"model": {"name": "scornn", "hidden_size": 32, "negative_fraction": 0.6}},
        {"optimizer": {"name": "rmsprop", "lr": 0.001, "lr_orth": 0.0001}},
        {"training": {"steps": 100, "evaluate_every": 50}},
        {"training": {"steps": 100, "patience": 5}},
        {"objective": {"metric": "recall_accuracy"}},
        {"divergence": {"factor": 50}},
        {"optimizer": {"name": "rmsprop_tf1", "lr": 0.001}},
        {"optimizer": {"name": "rmsprop", "lr": 0.001, "schedule": "exponential"}},
        {"optimizer": {"name": "rmsprop", "lr": 0.001, "schedule": "halve_on_plateau"}},
        {"training": {"steps": 100, "test_every_evaluation": True}},
    ],
)
def test_the_hash_differs_where_results_may_differ(changes):
    assert trial(**changes).content_hash() != HASH


def test_a_trial_without_a_schedule_is_hashed_without_fields():
    content = trial().content_to_hash()
    assert list(content["training"]) == ["evaluate_every", "patience"]
    assert list(content["optimizer"]) == [
        *("name", "lr", "name_orth", "lr_orth", "alpha", "betas", "momentum", "weight_decay"),
        *("clip_norm", "clip_value"),
    ]


def test_a_schedule_is_hashed_with_its_defaults_filled_in():
    short = trial(optimizer={"lr": 0.1, "schedule": "exponential"})
    every = short.task.steps_per_epoch
    whole = {"lr": 0.1, "schedule": "exponential", "schedule_factor": 0.99, "schedule_every": every}
    assert short.content_hash() == trial(optimizer=whole).content_hash()
    halved = {"lr": 0.1, "schedule": "halve_on_plateau"}
    whole = {**halved, "schedule_factor": 0.5, "schedule_patience": 1}
    assert trial(optimizer=halved).content_hash() == trial(optimizer=whole).content_hash()


def test_a_raised_result_version_gives_another_hash(monkeypatch):
    monkeypatch.setattr(MODELS["scornn"], "result_version", 99)
    assert trial().content_hash() != HASH


def test_epochs_are_steps():
    by_epochs = trial(training={"epochs": 2})
    assert by_epochs.training.steps == 2 * by_epochs.task.steps_per_epoch
    assert by_epochs.content_hash() == HASH


def test_seeds_follow_one_another():
    assert trial(seed=7, replicates=3).seeds == [7, 8, 9]
