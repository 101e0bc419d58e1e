"""The fields of a spec as Markdown tables, made from the code.

`python -m eigensweep.search_spaces.tables [PAGE]` prints them, or writes them to a page.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from eigensweep.models import MODELS
from eigensweep.search_spaces.sections import (
    Arm,
    LimitsConfig,
    ResourcesConfig,
    SchedulerConfig,
    SearchConfig,
)
from eigensweep.search_spaces.spec import ExperimentSpec
from eigensweep.search_spaces.trial import (
    DivergenceConfig,
    ObjectiveConfig,
    OptimizerConfig,
    TrainingConfig,
)
from eigensweep.tasks import TASKS

SECTIONS: dict[str, type[BaseModel]] = {
    "optimizer": OptimizerConfig,
    "training": TrainingConfig,
    "search": SearchConfig,
    "scheduler": SchedulerConfig,
    "objective": ObjectiveConfig,
    "divergence": DivergenceConfig,
    "resources": ResourcesConfig,
    "limits": LimitsConfig,
}
HEAD = ["| field | what it takes | default | meaning |", "| --- | --- | --- | --- |"]


def markdown() -> str:
    """Return the tables: the spec itself, its models, its tasks, and its other sections."""
    models: dict[str, type[BaseModel]] = {
        name: cls.Config for name, cls in MODELS.items() if _is_ours(cls)
    }
    tasks: dict[str, type[BaseModel]] = {
        name: cls.Config for name, cls in TASKS.items() if _is_ours(cls)
    }
    lines = ["## The spec", "", *_table(ExperimentSpec)]
    lines += ["", "## Each of `arms`", "", *_table(Arm)]
    lines += ["", "## Every `model`", "", *_shared(models.values())]
    for name, config in models.items():
        lines += ["", f"## `model: {name}`", "", *_table(config, _shared(models.values()))]
    for name, config in tasks.items():
        lines += ["", f"## `task: {name}`", "", *_table(config)]
    for name, config in SECTIONS.items():
        lines += ["", f"## `{name}`", "", *_table(config)]
    return "\n".join(lines) + "\n"


def _is_ours(cls: type) -> bool:
    """Tell whether a model or task belongs to this project, not to another installed package."""
    return cls.__module__.startswith("eigensweep.")


def _shared(configs: Iterable[type[BaseModel]]) -> list[str]:
    """Return the table of the fields that are the same on all."""
    first, *others = [_table(config) for config in configs]
    return [row for row in first if all(row in other for other in others)]


def _table(config: type[BaseModel], without: Sequence[str] = ()) -> list[str]:
    rows = [
        f"| `{field.alias or name}` | {_kind(field)} | {_default(field)} | {_cell(field)} |"
        for name, field in config.model_fields.items()
        if name != "name" or field.description is not None
    ]
    return [*HEAD, *(row for row in rows if row not in without)]


def _kind(field: FieldInfo) -> str:
    words = list(dict.fromkeys(_words(field.annotation)))
    return ", ".join(words + _range(field))


def _words(annotation: Any) -> Iterator[str]:
    plain = {int: "integer", float: "number", str: "text", bool: "true, false", type(None): "null"}
    origin, parts = get_origin(annotation), get_args(annotation)
    if annotation in plain:
        yield plain[annotation]
    elif origin is Literal:
        yield from (f"`{part}`" for part in parts)
    elif origin in (list, tuple):
        inner = list(dict.fromkeys(w for p in parts if p is not ... for w in _words(p)))
        yield f"list ({', '.join(inner)})" if inner else "list"
    elif origin is dict or (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
        yield "object"
    else:
        for part in parts:
            yield from _words(part)


def _range(field: FieldInfo) -> list[str]:
    signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
    return [
        f"{sign} {_number(getattr(rule, name))}"
        for rule in field.metadata
        for name, sign in signs.items()
        if getattr(rule, name, None) is not None
    ]


def _number(value: float) -> str:
    return f"{value:g}" if abs(value) < 1e6 else f"{value:.3g}"


def _default(field: FieldInfo) -> str:
    if field.default is PydanticUndefined:
        return "required"
    if field.default is None or isinstance(field.default, BaseModel) or field.default in ("", {}):
        return ""
    return f"`{list(field.default) if isinstance(field.default, tuple) else field.default}`"


def _cell(field: FieldInfo) -> str:
    return (field.description or "").replace("|", "\\|").replace("\n", " ")


def write_into(page: Path) -> None:
    """Replace what stands between `<!-- fields -->` and `<!-- end of fields -->` on a page."""
    before, start, rest = page.read_text(encoding="utf-8").partition("<!-- fields -->\n")
    _, end, after = rest.partition("<!-- end of fields -->")
    text = f"{before}{start}\n{markdown()}\n{end}{after}"
    page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        write_into(Path(sys.argv[1]))
    else:
        sys.stdout.write(markdown())
