"""Write what the code knows into the reference pages.

`python docs/generate.py` replaces what stands between the markers on each page of `PARTS`. A test
compares the pages with the code.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import itertools
import json
import re
import runpy
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import is_dataclass
from itertools import pairwise
from pathlib import Path
from types import FunctionType
from typing import Any

import typer

from eigensweep.analyses import ANALYSES
from eigensweep.client import Analysis, Client, Experiment, Reproduction
from eigensweep.client.answers.trial_table import TrialTable
from eigensweep.client.trial import Trial
from eigensweep.command.cli import app
from eigensweep.models import MODELS
from eigensweep.models.base import ModelConfig
from eigensweep.reports.markdown import table
from eigensweep.search_spaces.editor_schema import make_editor_schema
from eigensweep.search_spaces.trial import TrialConfig
from eigensweep.service.api.app import EXAMPLES, create_app
from eigensweep.service.api.routes.metrics import ServiceCollector, make_registry
from eigensweep.service.queue.dispatcher import Dispatcher
from eigensweep.service.record.migrations import migrate
from eigensweep.service.record.record import Record
from eigensweep.service.settings import Settings
from eigensweep.tasks import TASKS
from eigensweep.training.lanes.stacked.group import explain_alone
from eigensweep.training.notebook import TrialResult, train
from eigensweep.training.weights import load

REFERENCE = Path(__file__).parent / "reference"
START, END = "<!-- generated -->\n", "<!-- end of generated -->"


def document_commands() -> str:
    """Return a section for each command: usage, meaning, arguments and options."""
    lines: list[str] = []
    for words, command in walk_commands(typer.main.get_command(app), ["eigensweep"]):
        arguments = [p for p in command.params if p.param_type_name == "argument"]
        options = [p for p in command.params if p.param_type_name == "option"]
        usage = " ".join([*words, *map(name_argument, arguments), "[OPTIONS]" if options else ""])
        lines += [f"## `{usage.strip()}`", ""]
        lines += [inspect.cleandoc(command.help or "").replace("\n", " ").replace("  ", "\n\n"), ""]
        rows = [(f"`{name_argument(p)}`", p.help or "") for p in arguments]
        rows += [(f"`{name_option(p)}`", describe_option(p)) for p in options]
        lines += [*table(("argument or option", "meaning"), rows), ""] if rows else []
    return "\n".join(lines)


def walk_commands(command: Any, words: list[str]) -> Iterator[tuple[list[str], Any]]:
    """Yield every command without subcommands, with the words that call it."""
    for name, inner in getattr(command, "commands", {}).items():
        yield from walk_commands(inner, [*words, name])
    if not hasattr(command, "commands"):
        yield words, command


def name_argument(parameter: Any) -> str:
    """Return an argument as a usage line shows it."""
    name = parameter.metavar or parameter.name.upper()
    return name if parameter.required or name.startswith("[") else f"[{name}]"


def name_option(parameter: Any) -> str:
    """Return an option with what it takes."""
    value = "" if parameter.is_flag else f" {parameter.metavar or parameter.name.upper()}"
    return "/".join(parameter.opts[:1] + parameter.secondary_opts) + value


def describe_option(parameter: Any) -> str:
    """Return what an option means, its default and its environment variable."""
    words = parameter.help or ""
    if parameter.default not in (None, False, [], ()) and not callable(parameter.default):
        words += f" Default: {parameter.default}."
    if parameter.envvar:
        words += f" Or the variable `{parameter.envvar}`."
    return words


def document_routes() -> str:
    """Return the table of the REST API's routes."""
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(home=Path(folder))
        migrate(settings.database)
        record = Record(settings.database)
        paths = create_app(settings, record, Dispatcher(record)).openapi()["paths"]
    rows = [
        (method.upper(), f"`{path}`", operation["summary"])
        for path, operations in paths.items()
        for method, operation in operations.items()
    ]
    return "\n".join(table(("method", "path", "what it does"), rows)) + "\n"


def document_settings() -> str:
    """Return the table of the service's settings, from the docstrings below the fields."""
    (body,) = (n.body for n in ast.parse(inspect.getsource(Settings)).body if hasattr(n, "body"))
    rows = []
    for field, following in pairwise(body):
        if not isinstance(field, ast.AnnAssign) or not isinstance(following, ast.Expr):
            continue
        name, words = field.target.id, " ".join(ast.literal_eval(following.value).split())
        meaning, _, default = words.rstrip(".").partition("; None: ")
        value = Settings.model_fields[name].default
        if Settings.model_fields[name].default_factory is not None:
            default = "`eigensweep` in your data folder"
        if isinstance(value, str | int | float):
            default = f"`{value}`"
        rows.append((f"`EIGENSWEEP_{name.upper()}`", default or "", f"{meaning}."))
    return "\n".join(table(("variable", "default", "what it sets"), rows)) + "\n"


def document_analyses() -> str:
    """Return a section for each analysis: what it is of, what it shows, its options."""
    lines: list[str] = []
    for name, analysis in ANALYSES.items():
        summary, _, rest = inspect.cleandoc(type(analysis).__doc__ or "").partition("\n\n")
        lines += [f"## `{name}`", "", summary.replace("\n", " "), ""]
        lines += [part.replace("\n", " ") + "\n" for part in rest.split("\n\n") if part]
        subject = {
            "trial": "`--trial EXPERIMENT/NUMBER`",
            "experiment": "`--experiment EXPERIMENT`",
        }
        lines += [f"It takes {subject.get(analysis.of, 'no trial and no experiment')}.", ""]
        rows = [
            (f"`{option}`", show_default(field.default), field.description or "")
            for option, field in analysis.Options.model_fields.items()
        ]
        lines += [*table(("option", "default", "meaning"), rows), ""]
    return "\n".join(lines)


def show_default(value: Any) -> str:
    """Return a default as YAML has it; nothing for None, whose meaning the description tells."""
    if value is None:
        return ""
    return f"`{list(value) if isinstance(value, tuple) else value}`"


def document_models_without_lanes() -> str:
    """Return the table of the models, or settings of them, that share no lanes, and why."""
    alone: dict[tuple[str, str, str], list[str]] = {}
    for model, task in itertools.product(MODELS, TASKS):
        for flag in ["", *find_flags(MODELS[model].Config)]:
            with contextlib.suppress(ValueError):  # not every model takes every task
                why = explain_alone(make_trial(model, task, flag))
                if why is not None:
                    reason = why.partition(": ")[2]
                    alone.setdefault((model, flag, reason), []).append(task)
    rows = [
        (
            f"`{model}`",
            f"`{flag}` on {', '.join(tasks)}" if flag else "always",
            reason,
        )
        for (model, flag, reason), tasks in alone.items()
    ]
    return "\n".join(table(("model", "with", "why"), rows)) + "\n"


def find_flags(config: type[ModelConfig]) -> list[str]:
    """Return the fields of a model that are true or false, and false by default."""
    return [name for name, field in config.model_fields.items() if field.default is False]


def make_trial(model: str, task: str, flag: str) -> TrialConfig:
    """Return a small configuration, with one flag set."""
    size = 29 if model == "constructed_copying" else 1 if model == "constructed_adding" else 8
    given = {"name": model, "hidden_size": size, **({flag: True} if flag else {})}
    content = {"model": given, "task": {"name": task}, "training": {"steps": 1}}
    return TrialConfig.from_dict(content).resolve()


PYTHON = (train, TrialResult, load, Client, Experiment, Trial, TrialTable, Analysis, Reproduction)
"""What a notebook or a script uses."""


def document_python() -> str:
    """Return a section for each function and class of Python's side, from its docstrings."""
    lines: list[str] = []
    for each in PYTHON:
        if not isinstance(each, type):
            lines += [f"## `{each.__name__}{write_signature(each)}`", "", write_docstring(each), ""]
            continue
        start = write_signature(each) if each is Client else ""
        lines += [f"## `{each.__name__}{start}`", ""]
        for base in filter(is_ours, each.__mro__):
            lines += [write_docstring(base), ""]
        fields = describe_fields(each) if is_dataclass(each) else []
        lines += [f"### `{name}`\n\n{words}\n" for name, words in fields]
        for name, member in list_members(each).items():
            if isinstance(member, property):
                lines += [f"### `{name}`", "", write_docstring(member), ""]
            else:
                method = getattr(each, name)
                lines += [f"### `{name}{write_signature(method)}`", "", write_docstring(method), ""]
    return "\n".join(lines)


def is_ours(kind: type) -> bool:
    """Return whether a class is one of the project."""
    return kind.__module__.startswith("eigensweep.")


def list_members(kind: type) -> dict[str, Any]:
    """Return the public methods and properties of a class with a docstring, also inherited ones."""
    ours = [*filter(is_ours, kind.__mro__)]
    found = {name: member for each in reversed(ours) for name, member in vars(each).items()}
    own = [name for each in ours for name in vars(each)]  # those of the class itself come first
    return {
        name: found[name]
        for name in dict.fromkeys(own)
        if not name.startswith("_")
        and isinstance(found[name], property | classmethod | FunctionType)
        and inspect.getdoc(found[name])
    }


def describe_fields(kind: type) -> list[tuple[str, str]]:
    """Return the fields of a class with the docstrings below them."""
    (body,) = (n.body for n in ast.parse(inspect.getsource(kind)).body if hasattr(n, "body"))
    return [
        (field.target.id, ast.literal_eval(following.value))
        for field, following in pairwise(body)
        if isinstance(field, ast.AnnAssign) and isinstance(following, ast.Expr)
    ]


def write_signature(function: Any) -> str:
    """Return how a function is called, with types as they are written, without `self`."""
    signature = inspect.signature(function)
    kept = [p for name, p in signature.parameters.items() if name != "self"]
    text = str(signature.replace(parameters=kept))
    return re.sub(r"""(: |-> )(['"])(.*?)\2""", r"\1\3", text)


def write_docstring(thing: Any) -> str:
    """Return a docstring as Markdown: what is raised becomes a list."""
    text = inspect.getdoc(thing) or ""
    said, _, raised = text.partition("\nRaises:\n")
    errors = [" ".join(part.split()) for part in re.split(r"\n(?=    \S)", raised) if part.strip()]
    lists = [f"- raises `{name}` {words}" for name, _, words in (e.partition(": ") for e in errors)]
    return "\n".join([said.strip(), *([""] if lists else []), *lists])


def document_metrics() -> str:
    """Return the table of what /metrics exports."""
    families = {family.name: family for family in make_registry(None).collect()}
    families |= {family.name: family for family in ServiceCollector(None).describe()}
    ends = {"counter": "_total", "info": "_info"}
    rows = [
        (
            f"`{name}{ends.get(family.type, '')}`",
            family.type,
            ", ".join(f"`{label}`" for label in name_labels(family)),
            family.documentation,
        )
        for name, family in families.items()
        if name.startswith("eigensweep_")
    ]
    return "\n".join(table(("metric", "kind", "labels", "what it says"), rows)) + "\n"


def name_labels(family: Any) -> list[str]:
    """Return the labels of a metric, as its collector or its first sample names them."""
    if family.name == "eigensweep_http_seconds":  # it has no sample before the first request
        return ["method", "route", "status"]
    names = getattr(family, "_labelnames", None) or next((s.labels for s in family.samples), ())
    return [name for name in names if name != "le"]


SCHEMA = "spec.schema.json"

PARTS: dict[str, Callable[[], str]] = {
    "command-line.md": document_commands,
    "rest-api.md": document_routes,
    "settings.md": document_settings,
    "analyses.md": document_analyses,
    "python.md": document_python,
    "metrics.md": document_metrics,
    "../../README.md": document_models_without_lanes,
}


def read_part(page: Path) -> str:
    """Return what stands between the markers of a page."""
    return page.read_text(encoding="utf-8").split(START, 1)[1].split(END, 1)[0].strip() + "\n"


def write_part(page: Path, text: str) -> None:
    """Replace what stands between the markers of a page."""
    before, _, rest = page.read_text(encoding="utf-8").partition(START)
    after = rest.partition(END)[2]
    page.write_text(f"{before}{START}\n{text.strip()}\n\n{END}{after}", encoding="utf-8")


def document_schema() -> str:
    """Return the JSON Schema of a spec for editors."""
    return json.dumps(make_editor_schema(), indent=1) + "\n"


def document_examples() -> str:
    """Return the examples of the API's page, each on a line of its own."""
    make = runpy.run_path(str(Path(__file__).parent / "examples.py"))["make_examples"]
    parts = [
        f'"{part}": {{\n'
        + ",\n".join(f'"{name}": {json.dumps(each)}' for name, each in examples.items())
        + "\n}"
        for part, examples in make().items()
    ]
    return "{\n" + ",\n".join(parts) + "\n}\n"


if __name__ == "__main__":
    EXAMPLES.write_text(document_examples(), encoding="utf-8")
    for name, document in PARTS.items():
        write_part(REFERENCE / name, document())
    (REFERENCE / SCHEMA).write_text(document_schema(), encoding="utf-8")
