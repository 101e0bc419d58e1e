"""What an experiment that is over may get more, and what would make it another one."""

from __future__ import annotations

from typing import Any

import pytest

from eigensweep.search_spaces.checks.extension import describe_extension, is_longer
from eigensweep.search_spaces.errors import SeveralErrors, SpecError
from eigensweep.search_spaces.spec import ExperimentSpec

SPEC: dict[str, Any] = {
    "name": "some",
    "task": {"name": "copying", "delay": 5},
    "arms": [
        {"model": {"name": "lstm", "hidden_size": 4}},
        {"name": "wide", "model": {"name": "lstm", "hidden_size": 8}},
    ],
    "training": {"steps": 100},
    "search": {
        "method": "random",
        "trials": 6,
        "space": {
            "optimizer.lr": {"low": 1e-3, "high": 1e-2},
            "optimizer.name": ["adam", "rmsprop"],
            "model.forget_bias": {"low": 0.0, "high": 1.0, "step": 0.5},
        },
    },
}


def make(**changes: Any) -> ExperimentSpec:
    """Return the spec with whole sections or, below `space`, single parameters replaced."""
    space = {**SPEC["search"]["space"], **changes.pop("space", {})}
    search = {**SPEC["search"], "space": space, **changes.pop("search", {})}
    return ExperimentSpec.model_validate({**SPEC, "search": search, **changes})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, ""),
        ({"description": "more"}, ""),
        ({"tags": {"paper": "rebuttal"}}, ""),
        ({"search": {"trials": 9}}, "search.trials from 6 to 9"),
        ({"training": {"steps": 300}}, "training.steps from 100 to 300"),
        ({"limits": {"wall_seconds": 60}}, "limits.wall_seconds from none to 60.0"),
        (
            {"space": {"optimizer.name": ["sgd", "adam", "rmsprop"]}},
            "optimizer.name wider",
        ),
        (
            {"space": {"optimizer.lr": {"low": 1e-4, "high": 1e-2}}},
            "optimizer.lr wider",
        ),
        (
            {"space": {"model.forget_bias": {"low": -1.0, "high": 2.0, "step": 0.5}}},
            "model.forget_bias wider",
        ),
        ({"arms": [*SPEC["arms"], {"model": {"name": "gru", "hidden_size": 4}}]}, "arm gru new"),
    ],
)
def test_more_to_do_is_told_in_words(changes, words):
    assert describe_extension(make(), make(**changes)) == words


def test_a_race_that_has_stopped_may_go_further():
    short, far = (
        make(replicates=3, racing={"most": most, "core_hours": hours})
        for most, hours in ((5, 1.0), (9, 2.0))
    )
    words = "racing.most from 5 to 9, racing.core_hours from 1.0 to 2.0"
    assert describe_extension(short, far) == words
    with pytest.raises(SpecError, match=r"racing\.alpha"):
        describe_extension(short, make(replicates=3, racing={"most": 9, "alpha": 0.1}))


@pytest.mark.parametrize(
    ("changes", "path", "words"),
    [
        ({"seed": 1}, "seed", "keeps this"),
        ({"replicates": 2}, "replicates", "keeps this"),
        ({"task": {"name": "copying", "delay": 6}}, "task.delay", "keeps this"),
        ({"search": {"seed": 1}}, "search.seed", "keeps this"),
        ({"search": {"trials": 5}}, "search.trials", "no fewer trials: 5 after"),
        ({"limits": {"trials": 4}}, "limits.trials", "no fewer trials: 4 after"),
        ({"training": {"steps": 50}}, "training", "no shorter budget: 50 steps after 100"),
        ({"training": {"steps": 100, "patience": 3}}, "training.patience", "keeps this"),
        ({"arms": SPEC["arms"][:1]}, "arms", "'wide' is missing"),
        ({"optimizer": {"momentum": 0.5}}, "arms.lstm.optimizer.momentum", "keeps this"),
        (
            {"space": {"optimizer.name": ["adam"]}},
            "arms.lstm.space.optimizer.name",
            "keeps every value",
        ),
        (
            {"space": {"optimizer.lr": {"low": 2e-3, "high": 1e-1}}},
            "arms.lstm.space.optimizer.lr",
            "keeps every value",
        ),
        (
            {"space": {"optimizer.lr": {"low": 1e-4, "high": 1e-2, "log": True}}},
            "arms.lstm.space.optimizer.lr",
            "keeps every value",
        ),
        (
            {"space": {"model.forget_bias": {"low": 0.25, "high": 2.25, "step": 0.5}}},
            "arms.lstm.space.model.forget_bias",
            "keeps every value",
        ),
        (
            {"space": {"optimizer.weight_decay": [0.0, 0.1]}},
            "arms.lstm.space.optimizer.weight_decay",
            "varies the same fields",
        ),
    ],
)
def test_another_or_a_smaller_experiment_is_refused_by_path(changes, path, words):
    with pytest.raises(SpecError, match=words) as refusal:
        describe_extension(make(), make(**changes))
    assert refusal.value.path == path


def test_all_that_differs_is_told_at_once_and_once_for_all_arms():
    new = make(seed=1, training={"steps": 50}, space={"optimizer.name": ["adam"]})
    with pytest.raises(SeveralErrors) as refusal:
        describe_extension(make(), new)
    assert [each.path for each in refusal.value.errors] == [
        "seed",
        "arms.lstm.space.optimizer.name",
        "training",
    ]


def test_a_budget_is_compared_in_steps_however_it_is_written():
    task = {"name": "copying", "delay": 5, "train_size": 200, "batch_size": 10}
    old, new = make(task=task), make(task=task, training={"epochs": 10})
    assert is_longer(old, new)
    assert not is_longer(old, make(task=task, training={"epochs": 5}))


def test_a_scheduler_along_the_old_budget_refuses_a_longer_one():
    old = make(scheduler={"name": "asha"})
    new = make(scheduler={"name": "asha"}, training={"steps": 300})
    with pytest.raises(SpecError, match="asha has compared the trials along the old budget"):
        describe_extension(old, new)
    more = make(scheduler={"name": "asha"}, search={"trials": 9})
    assert describe_extension(old, more) == "search.trials from 6 to 9"


@pytest.mark.parametrize(
    "how",
    [
        {"optimizer": {"schedule": "cosine"}},
        {"space": {"optimizer.schedule": ["none", "cosine"]}},
    ],
)
def test_a_schedule_to_the_end_of_a_budget_refuses_a_longer_one(how):
    with pytest.raises(SpecError, match="lowest at the end of the old budget"):
        describe_extension(make(**how), make(training={"steps": 300}, **how))


def test_a_schedule_with_its_own_end_goes_with_a_longer_budget():
    how = {"optimizer": {"schedule": "cosine", "schedule_every": 100}}
    found = describe_extension(make(**how), make(training={"steps": 300}, **how))
    assert found == "training.steps from 100 to 300"


def test_a_budget_that_the_search_gives_gets_no_longer():
    space = {"training.steps": [10, 20]}
    old, new = (make(training={"steps": steps}, space=space) for steps in (100, 300))
    assert not is_longer(old, new)
    assert describe_extension(old, new) == "", "there is nothing more to do"


def test_a_population_is_refused():
    space = {"optimizer.name": ["adam"], "optimizer.lr": {"low": 1e-3, "high": 1e-2}}
    old = make(scheduler={"name": "pbt"}, space=space)
    with pytest.raises(SpecError, match="train as one population"):
        describe_extension(old, old)


def test_points_to_be_tried_next_come_with_as_many_trials():
    point = {"optimizer.lr": 0.002, "optimizer.name": "adam", "model.forget_bias": 0.5}
    one, other = ({"arm": arm, "params": point} for arm in ("wide", "lstm"))
    old = make(search={"first": [one]})
    more = make(search={"first": [one, other], "trials": 7})
    assert describe_extension(old, more) == ("search.trials from 6 to 7, 1 point to be tried first")
    for first, words in (([one, other], "in as many trials"), ([other], "keeps the points")):
        with pytest.raises(SpecError, match=words) as refusal:
            describe_extension(old, make(search={"first": first}))
        assert refusal.value.path == "search.first"
