"""A task of one's own whose config computes what nobody can use is refused in words."""

from __future__ import annotations

import sys
from math import inf, nan
from typing import Any

import numpy as np
import pytest
import torch

from eigensweep.search_spaces.checks.checks import check_spec, find_errors
from eigensweep.search_spaces.checks.task_properties import find_wrong_property
from eigensweep.search_spaces.errors import SpecError
from eigensweep.search_spaces.spec import ExperimentSpec
from eigensweep.tasks import TASKS
from eigensweep.tasks.base import Metric, Shapes
from eigensweep.tasks.copying import CopyingConfig

LOSS = Metric("cross_entropy", "")
SPEC = {
    "task": {"name": "copying", "delay": 3, "batch_size": 4},
    "model": {"name": "tanh_rnn", "hidden_size": 2},
    "training": {"steps": 5},
}


def test_every_task_of_ours_gives_usable_answers() -> None:
    for name, cls in TASKS.items():
        fields = {"corpus": "voices", "digest": "0" * 64} if name == "speech_frames" else {}
        assert find_wrong_property(cls.Config.model_validate({"name": name, **fields})) is None, (
            name
        )


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("metrics", None, "'metrics' must be a tuple of one or more Metric"),
        ("metrics", (), "'metrics' must be a tuple"),
        ("metrics", (Metric(7, ""),), "'metrics' must be a tuple"),  # type: ignore[arg-type]
        ("metrics", (Metric("cross_entropy", None),), "'metrics'"),  # type: ignore[arg-type]
        (
            "metrics",
            (LOSS, LOSS),
            "each of 'metrics' needs a name of its own; they are cross",
        ),
        ("shapes", (1, 2), "'shapes' must be a Shapes; it is (1, 2)"),
        ("shapes", Shapes(0, "values", 2, "all"), "an int from 1 as input_size; it is 0"),
        ("sequence_length", None, "'sequence_length' must be an int from 1; it is None"),
        ("sequence_length", nan, "'sequence_length' must be an int from 1; it is nan"),
        ("default_evaluate_every", -5, "'default_evaluate_every' must be an int from 1; it is -5"),
        ("default_evaluate_every", 4.5, "an int from 1; it is 4.5"),
        ("steps_per_epoch", 0, "'steps_per_epoch' must be an int from 1; it is 0"),
        ("corpus_bytes", "much", "'corpus_bytes' must be an int from 0; it is 'much'"),
        ("baselines", None, "'baselines' must be a dict"),
        (
            "baselines",
            {"cross_entropy": "1.1"},
            "the baseline of 'cross_entropy' must be",
        ),
        (
            "baselines",
            {"cross_entropy": np.float32(1)},
            "the baseline of 'cross_entropy' must be",
        ),
        ("baselines", {"cross_entropy": torch.tensor(1.0)}, "the baseline of 'cross_entropy'"),
        (
            "baselines",
            {"cross_entropy": inf},
            "must be a finite float; it is inf",
        ),
        (
            "baselines",
            {"cross_entropy": 10**400},
            "the baseline of 'cross_entropy' must be",
        ),
    ],
)
def test_it_is_refused_with_what_it_should_be(
    monkeypatch: pytest.MonkeyPatch, name: str, value: Any, words: str
) -> None:
    monkeypatch.setattr(CopyingConfig, name, value)
    with pytest.raises(SpecError) as caught:
        check_spec(ExperimentSpec.model_validate(SPEC))
    assert caught.value.path == "task"
    assert words in caught.value.message


def test_an_error_of_its_code_is_told_with_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def divide(config: CopyingConfig) -> dict[str, float]:
        return {"cross_entropy": 1 / (config.batch_size - 4)}

    monkeypatch.setattr(CopyingConfig, "baselines", property(divide))
    with pytest.raises(SpecError, match=r"ZeroDivisionError: division by zero .in divide, line"):
        check_spec(ExperimentSpec.model_validate(SPEC))


def test_numbers_of_numpy_are_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CopyingConfig, "baselines", {"cross_entropy": np.log(10)})
    monkeypatch.setattr(CopyingConfig, "sequence_length", np.int64(23))
    monkeypatch.setattr(CopyingConfig, "metrics", [LOSS])
    check_spec(ExperimentSpec.model_validate(SPEC))


def test_a_baseline_that_needs_the_corpus_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(config: CopyingConfig) -> dict[str, float]:
        raise FileNotFoundError("it is on the workers")

    monkeypatch.setattr(CopyingConfig, "baselines", property(read))
    assert find_wrong_property(CopyingConfig(delay=3)) is None


def test_code_that_would_end_the_process_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CopyingConfig, "baselines", property(lambda config: sys.exit(3)))
    with pytest.raises(SpecError, match="SystemExit: 3"):
        check_spec(ExperimentSpec.model_validate(SPEC))
    lacking = find_errors(ExperimentSpec.model_validate(SPEC), left_out=["task.delay"])
    assert lacking == []
