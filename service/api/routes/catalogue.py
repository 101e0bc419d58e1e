"""The models, tasks and presets that a spec can name, described from the code.

Runs in the service's process.
"""

from __future__ import annotations

import inspect
import re
import sys
from functools import cache
from typing import Annotated, Any, Generic

from fastapi import APIRouter, Path
from pydantic import BaseModel, Field

from eigensweep.common.registry import Registry
from eigensweep.models import MODELS
from eigensweep.protocol.messages import SpecJson
from eigensweep.search_spaces.checks.task_properties import find_wrong_property
from eigensweep.search_spaces.shipped.presets import load_preset, preset_names
from eigensweep.search_spaces.spec import ExperimentSpec
from eigensweep.service.api.answers.errors import NotInCatalogueError
from eigensweep.service.api.answers.schemas import AnswerModel, Item, Items, Metric
from eigensweep.service.api.answers.written import DescribedRoute
from eigensweep.tasks import TASKS
from eigensweep.tasks.base import Task, TaskConfig

router = APIRouter(tags=["catalogue"], route_class=DescribedRoute)

Name = Annotated[str, Path(max_length=200)]

JsonSchema = dict[str, object]
"""A JSON Schema, as pydantic writes it."""


class Listing(AnswerModel):
    """A model, task or preset in a list."""

    name: str
    summary: str
    source: str | None = Field(description="The paper it comes from")


class TaskListing(Listing):
    """A task in a list."""

    baseline: float | None = Field(
        description="Loss of the memoryless baseline at the default settings; null if unknown"
    )


class LeftOut(AnswerModel):
    """An entry point of an installed package that could not be used."""

    entry_point: str = Field(examples=["lab_rnn = lab.models:LabRNN (lab 1.0)"])
    reason: str = Field(examples=["ModuleNotFoundError: No module named 'lab.cells'"])


class Registered(Items[Item], Generic[Item]):
    """All that are registered, those of installed packages among them."""

    left_out: list[LeftOut] = Field(description="Entry points that could not be used")


class ModelEntry(Listing):
    """A model in full."""

    description: str
    result_version: int = Field(description="Raised when its results change")
    schema_: JsonSchema = Field(alias="schema", description="JSON Schema of `model` in a spec")


class TaskMetric(Metric):
    """A number that a task reports."""

    test_only: bool = Field(
        description="Whether only test data is scored, so that no search can rank by it"
    )


class TaskEntry(TaskListing):
    """A task in full."""

    description: str
    result_version: int = Field(description="Raised when its batches change")
    metrics: list[TaskMetric] = Field(
        description="The loss first; empty if they do not follow from the defaults of the fields"
    )
    schema_: JsonSchema = Field(alias="schema", description="JSON Schema of `task` in a spec")


class PresetEntry(Listing):
    """A preset in full."""

    spec: SpecJson = Field(description="An ExperimentSpec, ready to be posted")
    published: list[dict[str, object]] = Field(description="The paper's own numbers")


@router.get("/models", summary="List models")
def list_models() -> Registered[Listing]:
    """Return the models that a spec can name, and the packages whose models could not be loaded."""
    items = [describe(name, cls) for name, cls in MODELS.items()]
    return Registered(items=items, left_out=_list_left_out(MODELS))


@router.get("/models/{name}", summary="Look at a model")
def get_model(name: Name) -> ModelEntry:
    """Return what a search may vary on a model."""
    cls = _look_up(MODELS, name)
    return ModelEntry(
        **dict(describe(name, cls)),
        description=inspect.getdoc(sys.modules[cls.__module__]) or "",
        result_version=cls.result_version,
        schema=_schema(cls.Config),
    )


@router.get("/tasks", summary="List tasks")
def list_tasks() -> Registered[TaskListing]:
    """Return the tasks that a spec can name, and the packages whose tasks could not be loaded."""
    items = [
        TaskListing(**dict(describe(name, cls)), baseline=_baseline(_default_config(name, cls)))
        for name, cls in TASKS.items()
    ]
    return Registered(items=items, left_out=_list_left_out(TASKS))


@router.get("/tasks/{name}", summary="Look at a task")
def get_task(name: Name) -> TaskEntry:
    """Return what an experiment may set on a task, and what it measures."""
    cls = _look_up(TASKS, name)
    config = _default_config(name, cls)
    return TaskEntry(
        **dict(describe(name, cls)),
        baseline=_baseline(config),
        description=inspect.getdoc(cls) or "",
        result_version=cls.result_version,
        metrics=[] if config is None else [TaskMetric(**vars(m)) for m in config.metrics],
        schema=_schema(cls.Config),
    )


@router.get("/presets", summary="List presets")
def list_presets() -> Items[Listing]:
    """Return the experiments that ship with the project."""
    return Items(items=[_list_preset(name) for name in preset_names()])


@router.get("/presets/{name:path}", summary="Look at a preset")
def get_preset(name: Name) -> PresetEntry:
    """Return a preset's spec, ready to be posted, beside the paper's own numbers."""
    spec = load_preset(name)
    return PresetEntry(
        **_list_preset(name).model_dump(),
        spec=spec.model_dump(mode="json", exclude_unset=True),
        published=[number.model_dump(exclude_none=True) for number in spec.published],
    )


def describe(name: str, cls: type) -> Listing:
    """Return a name with the first line of a class's docstring and the paper it cites."""
    words = inspect.getdoc(cls) or ""
    module = inspect.getdoc(sys.modules[cls.__module__]) or ""
    source = re.search(r"^Source: (.+?)(?:\n\s*\n|\Z)", f"{words}\n\n{module}", re.M | re.S)
    return Listing(
        name=name,
        summary=words.split("\n", 1)[0],
        source=None if source is None else " ".join(source[1].split()).rstrip("."),
    )


def _look_up(registry: Registry[Any], name: str) -> Any:
    cls = registry.get(name)
    if cls is None:
        reason = registry.explain_absence(name)
        raise NotInCatalogueError(registry.kind, name, list(registry), reason)
    return cls


def _list_left_out(registry: Registry[Any]) -> list[LeftOut]:
    return [LeftOut(entry_point=entry, reason=why) for entry, why in registry.problems.items()]


def _default_config(name: str, cls: type[Task]) -> TaskConfig | None:
    """Return a task's config with all defaults; None if that is no config that can be used."""
    try:
        config = cls.Config.model_validate({"name": name})
        return config if find_wrong_property(config) is None else None
    except (Exception, SystemExit):  # a field has no default, or code of a package raised
        return None


def _baseline(config: TaskConfig | None) -> float | None:
    try:
        return None if config is None else config.baseline()
    except ValueError:  # none is known
        return None


@cache
def _schema(config: type[BaseModel]) -> JsonSchema:
    return config.model_json_schema()


def _list_preset(name: str) -> Listing:
    spec: ExperimentSpec = load_preset(name)
    return Listing(name=name, summary=spec.description or spec.name, source=spec.source or None)
