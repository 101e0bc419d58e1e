"""The table of what learns: what it says of a model, and when it says yes."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from bench.learning import paper, verdict
from eigensweep.models import MODELS


def trial(value, *objectives):
    reports = [
        {"step": 100 * i, "metrics": {"objective": v}} for i, v in enumerate(objectives, start=1)
    ]
    return {"state": "completed", "value": value, "reports": reports}


EXPERIMENT = SimpleNamespace(content={"baseline": 1.0})


def test_a_model_learned_once_a_report_is_below_half_baseline():
    assert verdict(EXPERIMENT, trial(0.01, 0.9, 0.49, 0.01)) == (
        "yes, by step 200; best 0.01 of the baseline"
    )


def test_a_model_did_not_learn_at_half_the_baseline():
    assert verdict(EXPERIMENT, trial(0.5, 0.9, 0.5)) == "no: 0.5 of the baseline"


def test_without_a_value_the_state_is_told():
    assert verdict(EXPERIMENT, {**trial(None), "state": "diverged"}) == "diverged"


@pytest.mark.parametrize(
    "name", [n for n, c in MODELS.items() if c.__module__.startswith("eigensweep.")]
)
def test_every_model_names_its_paper_and_year(name):
    assert paper(MODELS[name])[-4:].isdigit()
