"""Points that a person wants tried first: what they may be, and what the preview says of them."""

from __future__ import annotations

from typing import Any

import pytest

from eigensweep.search_spaces.checks.mistakes import find_mistakes
from eigensweep.search_spaces.checks.preview import preview
from eigensweep.search_spaces.spec import ExperimentSpec

SPACE = {
    "optimizer.name": ["adam", "rmsprop"],
    "optimizer.alpha": {
        "low": 0.5,
        "high": 0.9,
        "step": 0.1,
        "when": {"optimizer.name": "rmsprop"},
    },
    "optimizer.lr": {"low": 1e-4, "high": 1e-1, "log": True},
    "model.hidden_size": {"low": 8, "high": 64},
}
ADAM = {"optimizer.name": "adam", "optimizer.lr": 0.001, "model.hidden_size": 16}
RMSPROP = {**ADAM, "optimizer.name": "rmsprop", "optimizer.alpha": 0.7}
ARMS = [{"model": {"name": "lstm"}}, {"name": "small", "model": {"name": "gru"}}]


def make(*first: Any, **changes: Any) -> dict[str, Any]:
    search = {"method": "tpe", "trials": 6, "space": SPACE, "first": first}
    content = {
        "task": {"name": "copying", "delay": 20},
        "model": {"name": "lstm"},
        "training": {"steps": 100},
        "search": {**search, **changes.pop("search", {})},
    }
    return {**content, **changes}


def several(*first: Any, **changes: Any) -> dict[str, Any]:
    content = make(*first, arms=ARMS, **changes)
    del content["model"]
    return content


def say(content: dict[str, Any]) -> dict[str, str]:
    return {problem["path"]: problem["message"] for problem in find_mistakes(content)}


def test_a_point_is_read_as_its_parameters_write_it():
    written = {"optimizer.lr": "1e-3", "model.hidden_size": 16.0, "optimizer.name": "adam"}
    found = preview(ExperimentSpec.model_validate(make({"params": written}))).first
    assert found[0].params == ADAM
    assert isinstance(found[0].params["model.hidden_size"], int)


@pytest.mark.parametrize("method", ["random", "tpe", "qmc"])
def test_the_preview_begins_with_them(method):
    first = {"params": RMSPROP}, {"params": ADAM}
    found = preview(ExperimentSpec.model_validate(make(*first, search={"method": method})))
    assert [trial.params for trial in found.first[:2]] == [RMSPROP, ADAM]
    numbers = [trial.number for trial in found.first]
    assert numbers == ([0, 1, 2, 3, 4] if method == "qmc" else [0, 1, None])
    assert "2 points of 'search.first' come before all others" in found.search.words


def test_a_grid_has_them_once_and_first():
    space = {"optimizer.lr": [0.1, 0.01, 0.001], "optimizer.name": ["adam", "sgd"]}
    last = {"optimizer.lr": 0.001, "optimizer.name": "sgd"}
    content = make({"params": last}, search={"method": "grid", "trials": None, "space": space})
    found = preview(ExperimentSpec.model_validate(content))
    assert found.trials == 6
    shown = [tuple(trial.params.values()) for trial in found.first]
    assert shown == [(0.001, "sgd"), (0.1, "adam"), (0.1, "sgd"), (0.01, "adam"), (0.01, "sgd")]


@pytest.mark.parametrize(
    ("params", "path", "words"),
    [
        (
            {**ADAM, "optimizer.lr": 0.5},
            "optimizer.lr",
            "'optimizer.lr' takes 0.0001 to 0.1, logarithmic; got 0.5",
        ),
        ({**ADAM, "optimizer.lr": True}, "optimizer.lr", "got True"),
        ({**RMSPROP, "optimizer.alpha": 0.65}, "optimizer.alpha", "0.5 to 0.9 in steps of 0.1"),
        ({**ADAM, "model.hidden_size": 8.5}, "model.hidden_size", "takes 8 to 64; got 8.5"),
        ({**ADAM, "optimizer.name": "sgd"}, "optimizer.name", "takes adam, rmsprop; got 'sgd'"),
        (
            {**ADAM, "optimizer.alpha": 0.7},
            "optimizer.alpha",
            "'optimizer.alpha' exists only with optimizer.name = rmsprop; leave it out",
        ),
        (
            {"optimizer.name": "adam", "optimizer.lr": 0.01},
            "model.hidden_size",
            "'model.hidden_size' is missing; a point has a value for each of its parameters",
        ),
        (
            {**ADAM, "model.hiden_size": 9},
            "model.hiden_size",
            "arm 'lstm' varies no 'model.hiden_size'; did you mean 'model.hidden_size'?",
        ),
    ],
)
def test_what_is_no_point_is_refused_at_its_parameter(params, path, words):
    said = say(make({"params": ADAM}, {"params": params}))
    assert list(said) == [f"search.first.1.params.{path}"]
    assert words in said[f"search.first.1.params.{path}"]


def test_of_several_arms_one_is_named():
    said = say(several({"params": ADAM}, {"arm": "gru", "params": ADAM}))
    assert said == {
        "search.first.0.arm": "no arm is named; there are lstm, small",
        "search.first.1.arm": "there is no arm 'gru'; there are lstm, small",
    }
    named = several({"arm": "small", "params": ADAM}, {"arm": "lstm", "params": ADAM})
    found = preview(ExperimentSpec.model_validate(named))
    assert [trial.arm for trial in found.first] == ["small", "lstm", "lstm", "small"]


def test_none_stands_twice_and_there_are_trials_for_all():
    same = {**ADAM, "model.hidden_size": 16.0}
    said = say(make({"params": ADAM}, {"params": RMSPROP}, {"params": same}, search={"trials": 2}))
    assert said == {
        "search.first.2": "this is the same point as 'search.first.0'",
        "search.first": "3 points cannot be tried in 2 trials",
    }


def test_one_that_breaks_a_rule_of_several_fields_is_refused():
    space = {"model.hidden_size": [8, 64], "model.negative_ones": [0, 32]}
    points = ({"params": {"model.hidden_size": 8, "model.negative_ones": n}} for n in (0, 32))
    said = say(make(*points, model={"name": "scornn"}, search={"space": space, "trials": 2}))
    assert list(said) == ["search.first.1"]
    assert "negative_ones" in said["search.first.1"]


def test_other_mistakes_are_told_beside_but_none_that_follows():
    content = make({"params": {**ADAM, "optimizer.lr": 7}}, training={"steps": 0})
    assert set(say(content)) == {"training.steps", "search.first.0.params.optimizer.lr"}
    broken = {**SPACE, "optimizer.lr": {"low": 1, "high": 0}}
    assert list(say(make({"params": ADAM}, search={"space": broken}))) == [
        "search.space.optimizer.lr"
    ]
