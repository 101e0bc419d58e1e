"""The page that lists every field of a spec, made from the configs.

`python -m eigensweep.search_spaces.tables` prints its tables; with `--write` they replace the old
ones on the page itself (`PAGE`).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from eigensweep.models import MODELS
from eigensweep.models.base import ModelConfig
from eigensweep.models.network import NetworkConfig
from eigensweep.search_spaces.parameters import Choice, Integer, Real
from eigensweep.search_spaces.sections import (
    Arm,
    LimitsConfig,
    Objectives,
    PublishedNumber,
    RacingConfig,
    ResourcesConfig,
    SchedulerConfig,
    SearchConfig,
)
from eigensweep.search_spaces.spec import ExperimentSpec
from eigensweep.search_spaces.trial import (
    DivergenceConfig,
    OptimizerConfig,
    TrainingConfig,
)
from eigensweep.tasks import TASKS
from eigensweep.tasks.base import TaskConfig

PAGE = "docs/reference/fields.md"
"""Where the page is in the repository."""
START, END = "<!-- fields -->\n\n", "\n<!-- end of fields -->"

SECTIONS: dict[str, type[BaseModel]] = {
    "arms": Arm,
    "optimizer": OptimizerConfig,
    "training": TrainingConfig,
    "search": SearchConfig,
    "scheduler": SchedulerConfig,
    "racing": RacingConfig,
    "objective": Objectives,
    "divergence": DivergenceConfig,
    "resources": ResourcesConfig,
    "limits": LimitsConfig,
    "published": PublishedNumber,
}
LISTS = ("arms", "published")
"""Sections that hold a list of such objects."""
PARAMETERS: dict[str, type[BaseModel]] = {
    "A list of values": Choice,
    "A range of numbers": Real,
    "A range of integers": Integer,
}
SHARED: dict[type[ModelConfig], str] = {NetworkConfig: "every network", ModelConfig: "every model"}
"""Classes whose fields are listed once, the more special one first, and what their models are."""
HEAD = ["| field | what it takes | default | meaning |", "| --- | --- | --- | --- |"]


def markdown() -> str:
    """Return the tables: the spec, its sections, the parameters of a search, models, tasks."""
    models = {name: cls.Config for name, cls in MODELS.items() if _is_ours(cls)}
    tasks = {name: cls.Config for name, cls in TASKS.items() if _is_ours(cls)}
    lines = ["## The spec", "", *_table(ExperimentSpec)]
    for name, config in SECTIONS.items():
        heading = f"Each of `{name}`" if name in LISTS else f"`{name}`"
        lines += ["", f"## {heading}", "", *_table(config)]
        if name == "search":
            lines += _parameters()
    lines += _models(models)
    lines += ["", "## Tasks", "", f"`task.name` is one of {_links('task', tasks)}."]
    for name, task in tasks.items():
        lines += ["", f"### `task: {name}`", "", *_summary(TASKS[name]), "", *_table(task)]
    return "\n".join(lines) + "\n"


def _parameters() -> list[str]:
    lines = [
        "",
        "### What `search.space` varies",
        "",
        "A space is an object. Each key is the path of a field below `model`, `optimizer`, `task` "
        "or `training`, such as `optimizer.lr`, or of an item of a list, such as "
        "`optimizer.betas.1`. Each value is a list, or an object of one of these three kinds.",
    ]
    for kind, parameter in PARAMETERS.items():
        lines += ["", f"**{kind}**", "", *_table(parameter)]
    return lines


def _models(models: Mapping[str, type[ModelConfig]]) -> list[str]:
    without = [name for name, config in models.items() if not issubclass(config, NetworkConfig)]
    lines = ["", "## Models", "", f"`model.name` is one of {_links('model', models)}."]
    lines += ["", "### Every model", "", *_table(ModelConfig)]
    lines += ["", "### Every network", ""]
    lines += [
        f"All models except {_and([f'`{name}`' for name in without])} have these fields too, "
        "unless their section says otherwise."
    ]
    own = [name for name in NetworkConfig.model_fields if name not in ModelConfig.model_fields]
    lines += ["", *HEAD, *(_row(NetworkConfig, name) for name in own)]
    for name, config in models.items():
        lines += ["", f"### `model: {name}`", "", *_summary(MODELS[name]), ""]
        lines += _differences(config)
    return lines


def _differences(config: type[ModelConfig]) -> list[str]:
    """Return what a model has beside, and otherwise than, the fields that are listed once."""
    base = next(cls for cls in SHARED if issubclass(config, cls))
    link = f"[the fields of {SHARED[base]}](#{SHARED[base].replace(' ', '-')})"
    rows, defaults = [], []
    for name, field in config.model_fields.items():
        shared = base.model_fields.get(name)
        if name == "name":
            continue
        if shared is None or (_kind(shared), _cell(shared)) != (_kind(field), _cell(field)):
            rows.append(_row(config, name))
        elif field.default != shared.default:
            defaults.append(f"`{name}` {_default(field)}")
    missing = [f"`{name}`" for name in base.model_fields if name not in config.model_fields]
    text = f"It has {link}"
    text += f", without {_and(missing)}." if missing else "."
    text += f" Other defaults: {', '.join(defaults)}." if defaults else ""
    return [text, *(["", *HEAD, *rows] if rows else [])]


def _links(kind: str, names: Mapping[str, Any]) -> str:
    return ", ".join(f"[`{name}`](#{kind}-{name})" for name in names)


def _and(words: Sequence[str]) -> str:
    """Return words as a list in a sentence.

    >>> _and(["a", "b", "c"])
    'a, b and c'
    """
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def _summary(cls: type) -> list[str]:
    """Return the first line of the file of a model or task, and its equation if it begins so."""
    docstrings = (sys.modules[cls.__module__].__doc__ or "", cls.__doc__ or "")
    line, equation = (docstring.strip().partition("\n")[0] for docstring in docstrings)
    return [line, "", equation] if equation.startswith("h_t = ") else [line]


def _is_ours(cls: type) -> bool:
    """Tell whether a model or task belongs to this project, not to another installed package."""
    return cls.__module__.startswith("eigensweep.")


def _table(config: type[BaseModel]) -> list[str]:
    return [*HEAD, *(_row(config, name) for name in config.model_fields if _is_shown(config, name))]


def _is_shown(config: type[BaseModel], name: str) -> bool:
    """Tell whether a field has a row; the name of a model or task is its heading instead."""
    return name != "name" or not issubclass(config, ModelConfig | TaskConfig)


def _row(config: type[BaseModel], name: str) -> str:
    field = config.model_fields[name]
    return f"| `{field.alias or name}` | {_kind(field)} | {_default(field)} | {_cell(field)} |"


def _kind(field: FieldInfo) -> str:
    """Return what a field takes, such as `integer, 1 to 65,536, or null`."""
    words = list(dict.fromkeys(_words(field.annotation)))
    plain = [word for word in words if word != "null"] + _range(field)
    return ", ".join(plain) + ((", or null" if plain else "null") if "null" in words else "")


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
    elif origin is dict:
        yield "object"
    elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield _object(annotation)
    else:
        for part in parts:
            yield from _words(part)


def _object(config: type[BaseModel]) -> str:
    """Return `object`, with a link to where its fields are."""
    anchors: dict[type[BaseModel], str] = {ModelConfig: "models", TaskConfig: "tasks"}
    anchors |= {cls: f"each-of-{name}" if name in LISTS else name for name, cls in SECTIONS.items()}
    anchor = next((anchor for cls, anchor in anchors.items() if issubclass(config, cls)), None)
    return f"[object](#{anchor})" if anchor else "object"


def _range(field: FieldInfo) -> list[str]:
    limits = {
        name: getattr(rule, name)
        for rule in field.metadata
        for name in ("ge", "gt", "le", "lt")
        if getattr(rule, name, None) is not None
    }
    if set(limits) == {"ge", "le"}:
        return [f"{_number(limits['ge'])} to {_number(limits['le'])}"]
    signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
    return [f"{signs[name]} {_number(limits[name])}" for name in signs if name in limits]


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def _default(field: FieldInfo) -> str:
    if field.default is PydanticUndefined:
        return "required"
    if field.default is None or isinstance(field.default, BaseModel) or field.default in ("", {}):
        return ""
    if isinstance(field.default, bool):
        return f"`{str(field.default).lower()}`"
    return f"`{list(field.default) if isinstance(field.default, tuple) else field.default}`"


def _cell(field: FieldInfo) -> str:
    return (field.description or "").replace("|", "\\|").replace("\n", " ")


def replace_tables(page: Path) -> None:
    """Replace what stands between `<!-- fields -->` and `<!-- end of fields -->` on a page."""
    before, start, rest = page.read_text(encoding="utf-8").partition(START)
    _, end, after = rest.partition(END)
    page.write_text(f"{before}{start}{markdown()}{end}{after}", encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        replace_tables(Path(PAGE))
    else:
        sys.stdout.write(markdown())
