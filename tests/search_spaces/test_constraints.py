"""Rules between parameters: how they are read, what they leave out, and what is refused."""

from __future__ import annotations

import pytest

from eigensweep.search_spaces.checks.checks import check_spec
from eigensweep.search_spaces.checks.extension import describe_extension
from eigensweep.search_spaces.checks.preview import preview
from eigensweep.search_spaces.constraints import Constraint
from eigensweep.search_spaces.errors import (
    ConstraintError,
    SeveralErrors,
    SpecError,
    UnknownParameterError,
)
from eigensweep.search_spaces.spec import ExperimentSpec

CONFIG = {
    "optimizer": {"lr": 0.1, "lr_orth": 0.01, "name": "adam", "betas": (0.9, 0.99), "clip": None},
    "model": {"hidden_size": 8, "readout_bias": True},
}
RATES = {"optimizer.lr": [0.1, 0.01, 0.001], "optimizer.lr_orth": [0.1, 0.01, 0.001]}
ORDERED = "optimizer.lr_orth <= optimizer.lr"


def make(*rules, space=RATES, **fields):
    content = {
        "task": {"name": "copying", "delay": 20},
        "model": {"name": "scornn", "hidden_size": 8, "negative_ones": 1},
        "training": {"steps": 100},
        "search": {"space": space, "constraints": list(rules), **fields},
    }
    return ExperimentSpec.model_validate(content)


@pytest.mark.parametrize(
    ("rule", "holds"),
    [
        ("optimizer.lr_orth <= 0.1 * optimizer.lr", True),
        ("optimizer.lr_orth < 1e-3", False),
        ("1e-3 < optimizer.lr_orth < optimizer.lr", True),
        ("optimizer.betas.1 - optimizer.betas.0 > 0.1", False),
        ("model.hidden_size * (1 + 1) / 4 == 4", True),
        ("-model.hidden_size > -9 and model.readout_bias == true", True),
        ("optimizer.name != 'adam' or optimizer.lr > 0.01", True),
        ('not optimizer.name == "adam"', False),
        ("optimizer.clip < 3 and optimizer.lr > 1", True),
        ("optimizer.lr > 1 and optimizer.clip < 3", True),
        ("model.short_fraction > 0.5", True),
    ],
)
def test_a_rule_asks_of_the_fields_that_are_there(rule, holds):
    assert Constraint(rule).holds(CONFIG) is holds


@pytest.mark.parametrize(
    "text",
    [
        "",
        "optimizer.lr",
        "optimizer.lr < = 3",
        "3 < 4",
        "optimizer.lr ** 9 < 1",
        "optimizer.lr < 1e999",
        f"optimizer.lr < 0x{'f' * 280}",
        "optimizer.lr in (1, 2)",
        "optimizer.lr < len('a')",
        "(optimizer.lr < 3) + 1",
        "[optimizer.lr][0] < 1",
    ],
)
def test_what_is_no_rule_is_refused(text):
    with pytest.raises(ValueError, match=r"search.constraints.0\s+.*a rule compares fields"):
        make(text)


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ("optimizer.name < 3", "'<' not supported between"),
        ("optimizer.name * 3 < 3", "'adam' is no number"),
        ("optimizer.lr / 0 < 3", "division by zero"),
    ],
)
def test_a_rule_that_makes_no_sense_is_told(rule, words):
    with pytest.raises(ConstraintError, match=rf"cannot be computed: .*{words}"):
        check_spec(make(rule))


@pytest.mark.parametrize(
    ("model", "space", "rule", "kept"),
    [
        (
            {"name": "enrnn", "hidden_size": 40},
            {"model.short_fraction": [0.2, 0.6], "model.negative_fraction": [0.2, 0.9]},
            "model.short_fraction + model.negative_fraction <= 1.2",
            [True, True, True, False],
        ),
        (
            {"name": "lstm"},
            {"model.parameters": [3000, 20_000], "optimizer.lr": [0.01, 0.001]},
            "model.parameters <= 6000 or optimizer.lr < 0.01",
            [True, True, False, True],
        ),
        (
            {"name": "lstm", "hidden_size": 8},
            {"training.epochs": [1, 5], "optimizer.lr": [0.01, 0.001]},
            "training.epochs < 5 or optimizer.lr < 0.01",
            [True, True, False, True],
        ),
    ],
)
def test_a_rule_reads_shares_budgets_and_epochs_as_written(model, space, rule, kept):
    """To resolve a configuration makes units and steps of them."""
    spec = ExperimentSpec.model_validate(
        {
            "task": {"name": "adding", "length": 20},
            "model": model,
            "training": {"epochs": 1},
            "search": {"space": space, "constraints": [rule]},
        }
    )
    check_spec(spec)
    assert [spec.keeps(point) for point in spec.space()] == kept


def test_points_that_break_a_rule_are_told_before():
    spec = make(ORDERED)
    check_spec(spec)
    found = preview(spec)
    assert (found.points, found.trials) == (9, 6)
    assert found.search.words == [
        "6 of 9 points that were tried keep 'search.constraints'; the others are left out"
    ]
    assert [each.number for each in found.first] == [0, 1, 2, 3, 4]
    assert not any(each.error for each in found.first)


def test_the_defaults_that_follow_from_others_are_filled_in():
    check_spec(make(ORDERED, space={"optimizer.lr": [0.1]}))
    with pytest.raises(ConstraintError, match="no point of arm 'scornn' keeps them, of 3"):
        check_spec(make("optimizer.lr_orth < optimizer.lr", space={"optimizer.lr": [0.1]}))


@pytest.mark.parametrize(
    ("rule", "meant"), [("optimiser.lr < 3", "optimizer.lr"), ("lr < 3", "optimizer.lr")]
)
def test_a_field_that_no_arm_has_is_told(rule, meant):
    with pytest.raises(UnknownParameterError, match=rf"constraints.1: .*mean '{meant}'"):
        check_spec(make(ORDERED, rule))
    with pytest.raises(SeveralErrors, match=rf"(?s)betas.7.*constraints.0: .*mean '{meant}'"):
        check_spec(make(rule, space={"optimizer.betas.7": [0.5]}))


def test_sizes_are_known_where_no_extreme_point_is_left():
    middle = "model.hidden_size > 20 and model.hidden_size < 40"
    space = {"model.hidden_size": {"low": 8, "high": 64}}
    spec = make(middle, space=space, method="random", trials=5)
    check_spec(spec)
    found = preview(spec)
    assert found.arms[0].largest_parameters is not None
    assert found.memory["scornn"] is not None
    assert 20 < found.first[-1].params["model.hidden_size"] < 40


def test_a_first_point_keeps_the_rules():
    first = [{"params": {"optimizer.lr": 0.01, "optimizer.lr_orth": 0.1}}]
    with pytest.raises(ConstraintError, match=r"search.first.0: '.*' does not hold"):
        check_spec(make(ORDERED, first=first))


def test_an_extension_has_the_same_rules():
    with pytest.raises(SpecError, match=r"search.constraints"):
        describe_extension(make(ORDERED), make("optimizer.lr_orth < optimizer.lr"))
