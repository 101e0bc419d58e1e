"""Checks the properties of a task's config, which code of one's own may compute."""

from __future__ import annotations

from collections.abc import Iterator
from numbers import Integral
from typing import Any, Final, get_args

from eigensweep.common.direction import Better
from eigensweep.tasks.base import Metric, Shapes, TaskConfig

MOST: Final = 2**53
LEAST: Final = {"sequence_length": 1, "default_evaluate_every": 1, "corpus_bytes": 0}
"""The properties that are whole numbers, and their least value."""


def find_wrong_property(task: TaskConfig) -> str | None:
    """Return which property of a task's config nobody can use, and why; None: all can be used.

    It raises what the config's code raises.
    """
    wrong = next(_find_wrong_propertys(task), None)
    return wrong and f"{task.name}: {wrong}"


def _find_wrong_propertys(task: TaskConfig) -> Iterator[str]:
    shapes, metrics = task.shapes, task.metrics
    if not isinstance(shapes, Shapes):
        yield f"'shapes' must be a Shapes; it is {shapes!r:.80}"
    for name in ("input_size", "output_size"):
        if not _is_whole(size := getattr(shapes, name), 1):
            yield f"'shapes' must have an int from 1 as {name}; it is {size!r:.80}"
    if not (isinstance(metrics, tuple | list) and metrics and all(map(_is_metric, metrics))):
        yield (
            "'metrics' must be a tuple of one or more Metric, whose name and unit are str; it is "
            f"{metrics!r:.200}"
        )
    names = [metric.name for metric in metrics]
    if len(set(names)) < len(names):
        yield f"each of 'metrics' needs a name of its own; they are {', '.join(names)}"
    for name, least in LEAST.items():
        if not _is_whole(value := getattr(task, name), least):
            yield f"'{name}' must be an int from {least}; it is {value!r:.80}"
    try:
        steps = task.steps_per_epoch
    except ValueError:  # it has no epochs
        steps = 1
    if not _is_whole(steps, 1):
        yield f"'steps_per_epoch' must be an int from 1; it is {steps!r:.80}"
    try:
        baselines: Any = task.baselines
    except (ValueError, OSError):  # they need the corpus
        baselines = {}
    if not isinstance(baselines, dict):
        yield f"'baselines' must be a dict of metric to number; it is {baselines!r:.80}"
    for name, value in baselines.items():
        if not isinstance(value, int | float) or not abs(value) < MOST:
            yield f"the baseline of '{name}' must be a finite float; it is {value!r:.80}"


def _is_whole(value: object, least: int) -> bool:
    return isinstance(value, Integral) and least <= int(value) <= MOST


def _is_metric(value: object) -> bool:
    return (
        isinstance(value, Metric)
        and isinstance(value.name, str)
        and isinstance(value.unit, str)
        and value.better in get_args(Better)
    )
