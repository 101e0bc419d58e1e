"""Training one configuration in a notebook."""

from typing import Literal

import pytest

from eigensweep import train
from eigensweep.models import MODELS
from eigensweep.search_spaces.errors import SpecError

CONFIG = {
    "task": {"name": "copying", "delay": 3, "symbols": 2, "valid_size": 20, "test_size": 20},
    "model": {"name": "scornn", "hidden_size": 6, "negative_ones": 2},
    "training": {"steps": 4, "evaluate_every": 2},
    "replicates": 2,
}


def test_a_notebook_shows_numbers_and_curves(capsys):
    result = train(CONFIG, progress=True)

    page = result._repr_html_()
    assert f"<td>value</td><td>{result.value:.4g}</td>" in page
    (axes,) = result.plot().axes
    labels = [line.get_label() for line in axes.lines]
    assert labels == ["seed 0", "seed 1", "memoryless baseline"]
    points = [
        [p.step for p in curve if "valid/cross_entropy" in p.metrics]
        for curve in result.curves.values()
    ]
    assert [list(line.get_xdata()) for line in axes.lines[:2]] == points
    assert "seed 1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"task": {"name": "coppying"}}, "task.name: there is no task 'coppying'; there are"),
        ({"model": {"name": "scornn", "hiden_size": 6}}, "did you mean 'hidden_size'?"),
        ({"model": "lstm"}, "model: 'model' should be an object; got 'lstm'"),
        ({"training": {"steps": 0}}, "training.steps: 'steps' should be greater than or equal to"),
        ({"optimiser": {}}, "has no 'optimiser'; it has"),
    ],
)
def test_a_wrong_field_is_refused_with_what_exists(change, words):
    with pytest.raises(SpecError) as refused:
        train({**CONFIG, **change})
    assert words in str(refused.value)


def test_rules_between_fields_are_refused_in_words():
    with pytest.raises(ValueError, match="exactly one of 'negative_ones' and 'negative_fraction'"):
        train({**CONFIG, "model": {"name": "scornn", "hidden_size": 6}})


def test_a_model_that_a_notebook_registers_is_known(monkeypatch):
    class OwnConfig(MODELS["tanh_rnn"].Config):
        name: Literal["own"] = "own"

    class Own(MODELS["tanh_rnn"]):
        Config = OwnConfig

    content = {**CONFIG, "model": {"name": "own", "hidden_size": 4}}
    with pytest.raises(SpecError, match="there is no model 'own'"):
        train(content)
    monkeypatch.setitem(MODELS, "own", Own)
    assert train(content).outcome == "completed"
