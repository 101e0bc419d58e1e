"""The table of what learns: what it says of a model, and when it says yes."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from pandas import DataFrame

from bench.learning import paper, verdict
from eigensweep.models import MODELS


def judge(*values, state="completed"):
    """Return the verdict on a trial whose validation loss took these values, 100 steps apart."""
    curve = DataFrame({"step": [100 * i for i in range(1, len(values) + 1)], "value": values})

    def curves(number, metric):
        assert (number, metric) == (3, "valid/mse")
        return curve

    content = {"baseline": 1.0, "metric": {"name": "mse"}}
    trial = {"number": 3, "state": state, "value": min(values, default=None)}
    return verdict(SimpleNamespace(content=content, curves=curves), trial)


def test_a_model_learned_once_its_loss_is_below_half_baseline():
    assert judge(0.9, 0.49, 0.01) == "yes, by step 200; best 0.01 of the baseline"


def test_a_model_did_not_learn_at_half_the_baseline():
    assert judge(0.9, 0.5) == "no: 0.5 of the baseline"


def test_without_a_value_the_state_is_told():
    assert judge(state="diverged") == "diverged"


@pytest.mark.parametrize(
    "name", [n for n, c in MODELS.items() if c.__module__.startswith("eigensweep.")]
)
def test_every_model_names_its_paper_and_year(name):
    assert paper(MODELS[name])[-4:].isdigit()
