"""Training one configuration in a notebook."""

import sys
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

import pytest
import torch

from eigensweep import train
from eigensweep.models import MODELS
from eigensweep.search_spaces.errors import SpecError
from eigensweep.tasks import TASKS
from eigensweep.tasks.base import TaskConfig

CONFIG = {
    "task": {"name": "copying", "delay": 3, "symbols": 2, "valid_size": 20, "test_size": 20},
    "model": {"name": "scornn", "hidden_size": 6, "negative_ones": 2},
    "training": {"steps": 4, "evaluate_every": 2},
    "replicates": 2,
}


def test_a_notebook_shows_numbers_and_curves(capsys):
    result = train(CONFIG, progress=True)

    page = result._repr_html_()
    assert f"<td>value</td><td>{result.value:.4g} [" in page
    (axes,) = result.plot().axes
    labels = [line.get_label() for line in axes.lines]
    assert labels == ["seed 0", "seed 1", "memoryless baseline"]
    points = [
        [p.step for p in curve if "valid/cross_entropy" in p.metrics]
        for curve in result.curves.values()
    ]
    assert [list(line.get_xdata()) for line in axes.lines[:2]] == points
    assert "seed 1" in capsys.readouterr().err


def test_threads_train_at_once_to_the_same_digits():
    configs = [CONFIG | {"seed": 10 * number} for number in range(4)]
    expected = [train(config).value for config in configs]
    start = threading.Barrier(len(configs))

    def run(config):
        start.wait()
        return train(config).value

    for _ in range(3):
        with ThreadPoolExecutor(len(configs)) as pool:
            assert list(pool.map(run, configs)) == expected


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"task": {"name": "coppying"}}, "task.name: there is no task 'coppying'; there are"),
        ({"model": {"name": "scornn", "hiden_size": 6}}, "did you mean 'hidden_size'?"),
        ({"model": "lstm"}, "model: 'model' should be an object; got 'lstm'"),
        ({"optimizer": {"name": "adam", "betas": False}}, "'betas' should be a list; got False"),
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


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda y, h: y, r"Own.forward must return \(logits, state\); it returned a Tensor$"),
        (lambda y, h: (y, h, h), "it returned a tuple of 3$"),
        (lambda y, h: (y.mT, h), r"expected \(\d+, \d+, \d+\): \(τ, B, p\), time first"),
        (lambda y, h: (y[-1], h), r"logits of shape \(\d+, \d+\); expected"),
        (lambda y, h: (y.detach(), h), "does not depend on any parameter of Own; see whether"),
    ],
)
def test_what_a_model_of_ones_own_returns_is_checked(monkeypatch, answer, words):
    class OwnConfig(MODELS["tanh_rnn"].Config):
        name: Literal["own"] = "own"

    class Own(MODELS["tanh_rnn"]):
        Config = OwnConfig

        def prepare(self):
            run = super().prepare()
            return lambda x, state: answer(*run(x, state))

    monkeypatch.setitem(MODELS, "own", Own)
    with pytest.raises((TypeError, ValueError), match=words):
        train({**CONFIG, "model": {"name": "own", "hidden_size": 4}})


def test_a_loss_without_gradient_is_no_penalty_alone(monkeypatch):
    copying = TASKS["copying"]
    monkeypatch.setattr(copying, "loss", lambda *told, loss=copying.loss: loss(*told).detach())
    for model in ("tanh_rnn", "nnrnn"):  # the second one has a penalty
        with pytest.raises(ValueError, match="the loss of copying does not depend on any param"):
            train({**CONFIG, "model": {"name": model, "hidden_size": 4}})


def test_a_model_that_calls_exit_ends_no_program(monkeypatch):
    monkeypatch.setattr(TASKS["copying"], "train_batch", lambda *_: sys.exit("enough"))
    with pytest.raises(RuntimeError, match=r"has called sys.exit\('enough'\)"):
        train(CONFIG)


def test_what_others_set_for_all_of_pytorch_changes_no_result():
    expected = train(CONFIG).value
    torch.set_default_dtype(torch.float64)
    try:
        with torch.no_grad():
            assert train(CONFIG).value == expected
            assert not torch.is_grad_enabled()
        assert torch.get_default_dtype() == torch.float64, "it is that of the caller"
    finally:
        torch.set_default_dtype(torch.float32)


def test_a_task_of_ones_own_may_have_no_epochs(monkeypatch):
    class OwnConfig(TASKS["copying"].Config):
        name: Literal["own"] = "own"
        steps_per_epoch = TaskConfig.steps_per_epoch
        baselines = TaskConfig.baselines
        default_evaluate_every = TaskConfig.default_evaluate_every

    class Own(TASKS["copying"]):
        Config = OwnConfig

    monkeypatch.setitem(TASKS, "own", Own)
    content = {**CONFIG, "task": {**CONFIG["task"], "name": "own"}}
    assert train({**content, "training": {"steps": 2}}).outcome == "completed"
    with pytest.raises(ValueError, match=r"own has no epochs; give 'training\.steps'"):
        train({**content, "training": {"epochs": 2}})


def test_a_result_shows_itself_in_a_few_lines():
    result = train(CONFIG)
    lines = repr(result).splitlines()
    assert len(lines) <= 7
    assert lines[0].split() == ["trained", "scornn", "on", "copying"]
    assert ["value", f"{result.value:.4g}"] in [line.split()[:2] for line in lines]
    assert [line.split()[:2] for line in lines[4:]] == [["test", name] for name in result.test]


def test_a_zero_of_a_curve_is_drawn_at_the_lower_edge():
    result = train(CONFIG)
    (axes,) = result.plot(log=True).axes
    assert axes.get_yscale() == "log"
    assert result.plot(log=False).axes[0].get_yscale() == "linear"


@pytest.mark.parametrize(
    "change",
    [
        {"task": {"name": "coppying"}},
        {"model": {"name": "scornn", "hidden_size": 6}},
        {"training": {"steps": 4, "epochs": 1.0}},
        {"objective": {"metric": "los"}},
        {"optimizer": {"clip_norm": 1.0, "clip_value": 1.0}},
    ],
)
def test_an_error_comes_alone(change):
    with pytest.raises(ValueError) as refused:  # noqa: PT011
        train({**CONFIG, **change})
    shown = "".join(traceback.format_exception(refused.value))
    assert "pydantic" not in shown
    assert shown.count("Traceback") == 1
    assert "\n" not in str(refused.value)
