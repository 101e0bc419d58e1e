"""What a post accepts, a worker can train: no mistake of a spec is left for a worker to find."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from helpers.small_models import REQUIRED
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from eigensweep.models import MODELS
from eigensweep.search_spaces.checks.checks import check_spec
from eigensweep.search_spaces.errors import InvalidPointError, SpecError
from eigensweep.search_spaces.spec import ExperimentSpec
from eigensweep.search_spaces.trial import OptimizerConfig, TrainingConfig
from eigensweep.tasks import TASKS
from eigensweep.training.training import Training

NEEDED: dict[str, dict[str, Any]] = {
    **REQUIRED,
    "constructed_adding": {"hidden_size": 1},
    "constructed_copying": {"hidden_size": 7, "delay": 5, "symbols": 3},
}
TASK: dict[str, dict[str, Any]] = {
    "adding": {"length": 12, "batch_size": 4, "train_size": 8, "valid_size": 20, "test_size": 30},
    "copying": {"delay": 5, "symbols": 3, "batch_size": 4, "valid_size": 20, "test_size": 30},
    "variable_copying": {"delay": 5, "symbols": 3, "batch_size": 4, "test_size": 30},
    "denoise": {"delay": 5, "symbols": 3, "batch_size": 4, "test_size": 30},
}
"""Tasks without a corpus."""
SOLVED = {"constructed_adding": "adding", "constructed_copying": "copying"}
"""The only task of a model that is made for one."""
WIDEST = 12
"""How far whole numbers go above the smallest one that is allowed: what is drawn is small."""
LEAST = 1e-6
"""How close numbers come to a limit that is not allowed itself."""
SECTIONS: dict[str, type[BaseModel]] = {"optimizer": OptimizerConfig, "training": TrainingConfig}


def values_of(field: dict[str, Any]) -> st.SearchStrategy[Any] | None:
    """Return what a field of a JSON Schema may be, None where this does not know."""
    if "anyOf" in field:
        found = [values for one in field["anyOf"] if (values := values_of(one)) is not None]
        return st.one_of(*found) if found else None
    if "enum" in field:
        return st.sampled_from(field["enum"])
    kind = field.get("type")
    if kind == "integer":
        low = field.get("minimum", field.get("exclusiveMinimum", -1) + 1)
        return st.integers(low, min(low + WIDEST, field.get("maximum", low + WIDEST)))
    if kind == "number":
        low = field.get("minimum", field.get("exclusiveMinimum", -10.0) + LEAST)
        high = field.get("maximum", field.get("exclusiveMaximum", 100.0 + LEAST) - LEAST)
        return st.floats(low, high, allow_subnormal=False)
    return {"boolean": st.booleans(), "null": st.none()}.get(str(kind))


@cache
def fields_of(config: type[BaseModel]) -> dict[str, st.SearchStrategy[Any]]:
    """Return what each field of a config may be."""
    schema = config.model_json_schema()
    found = {
        name: values_of(
            schema["$defs"][field["$ref"].rsplit("/")[-1]] if "$ref" in field else field
        )
        for name, field in schema["properties"].items()
        if name not in ("name", "hidden_size", "parameters")
    }
    return {name: values for name, values in found.items() if values is not None}


@st.composite
def specs(draw: st.DrawFn) -> dict[str, Any]:
    """Draw a small spec: a model on a task, with up to three fields changed or searched."""
    model = draw(st.sampled_from(sorted(MODELS)))
    task = SOLVED.get(model) or draw(st.sampled_from(sorted(TASK)))
    size = draw(st.sampled_from([1, 2, 3, 6, 8]))
    spec: dict[str, Any] = {
        "name": "drawn",
        "task": {"name": task, **TASK[task]},
        "model": {"name": model, "hidden_size": size, **NEEDED.get(model, {})},
        "optimizer": {"name": "adam"},
        "training": {"steps": 2, "evaluate_every": 1},
        "search": {"space": {}},
    }
    known = {
        f"{section}.{name}": values
        for section, config in {
            "model": MODELS[model].Config,
            "task": TASKS[task].Config,
            **SECTIONS,
        }.items()
        for name, values in fields_of(config).items()
    }
    for path in draw(st.lists(st.sampled_from(sorted(known)), max_size=3, unique=True)):
        section, _, name = path.partition(".")
        if path in ("training.steps", "training.log_every"):
            continue  # how long it trains
        if draw(st.booleans()):
            spec[section][name] = draw(known[path])
        else:
            spec["search"]["space"][path] = draw(st.lists(known[path], min_size=1, max_size=2))
    return spec


def train_if_accepted(body: dict[str, Any]) -> int:
    """Return how many trials of a spec trained; none, where it is refused in words."""
    try:
        spec = ExperimentSpec.model_validate(body)
        check_spec(spec)
    except (ValidationError, SpecError):
        return 0
    trained = 0
    for point in spec.space():
        try:
            config = spec.trial(point)
        except InvalidPointError:  # a trial `invalid`, which no worker sees
            continue
        training = Training(config, seed=spec.seed)
        training.run()
        assert training.is_finished
        training.result()
        trained += 1
    assert trained, "it was accepted, and each of its points is invalid"
    return trained


SMALL = settings(
    deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)


@settings(SMALL, max_examples=20)
@given(specs())
def test_what_is_accepted_can_be_trained(body: dict[str, Any]) -> None:
    train_if_accepted(body)


@pytest.mark.slow
@settings(SMALL, max_examples=1500)
@given(specs())
def test_so_can_many_more(body: dict[str, Any]) -> None:
    train_if_accepted(body)


@pytest.mark.parametrize("model", sorted(MODELS))
def test_every_model_is_among_what_is_drawn(model: str) -> None:
    task = SOLVED.get(model, "copying")
    body = {
        "name": "plain",
        "task": {"name": task, **TASK[task]},
        "model": {"name": model, "hidden_size": 8, **NEEDED.get(model, {})},
        "training": {"steps": 1, "evaluate_every": 1},
    }
    assert train_if_accepted(body) == 1
