"""The service's answers as text for a terminal: experiments, catalogue entries, analyses."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from textwrap import shorten
from typing import Any

import yaml

from eigensweep.search_spaces.labels import format_share, format_value
from eigensweep.service.client.answers import count_trials, format_duration
from eigensweep.service.client.connection import JsonObject
from eigensweep.service.client.tables import align_columns, format_cell
from eigensweep.workers.shared.states import OUTCOMES


def format_yaml(content: Any) -> str:
    """Return JSON as YAML, which is easy to read and which `submit` takes."""
    return str(yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=100)).rstrip()


def format_experiment(experiment: JsonObject, address: str) -> str:
    """Return an experiment in a few lines; `address` is the service's."""
    metric = experiment.get("metric") or {}
    best, baseline = experiment.get("best"), experiment.get("baseline")
    rows = [
        ("experiment", f"{experiment['id']} {experiment['name']}"),
        ("project", experiment["project"]),
        *([("owner", experiment["owner"])] if experiment.get("owner") else []),
        ("state", f"{experiment['state']}{_place_in_queue(experiment)}"),
        ("progress", count_trials(experiment["progress"])),
    ]
    if sources := experiment.get("reused_from"):
        words = f"from {', '.join(sources)}, same code; `reuse: false` trains anew"
        rows.append(("reused", f"{experiment['progress']['reused']} {words}"))
    if experiment.get("eta_seconds"):
        rows.append(("time left", format_duration(experiment["eta_seconds"])))
    if baseline is not None:
        unit = f" ({metric['unit']})" if metric.get("unit") else ""
        rows.append(("baseline", f"{format_value(baseline)} {metric.get('name', '')}{unit}"))
    if best is not None:
        value = format_value(best["value"])
        ratio = f", {format_share(best['value'] / baseline)} of the baseline" if baseline else ""
        settings = format_cell("settings", best.get("params"))
        rows.append(("best", f"{value}{ratio}: trial {best['number']}, {best['arm']} {settings}"))
    if usage := experiment.get("usage"):
        gpus = usage["gpu_hours"]
        of_gpus = f", {format_duration(3600 * gpus)} of one GPU" if gpus else ""
        words = f"{format_duration(3600 * usage['cpu_hours'])} of one CPU core{of_gpus}"
        rows.append(("used", words))
    rows += [("notice", notice["words"]) for notice in experiment.get("notices", ())]
    if experiment.get("error"):
        rows.append(("error", str(experiment["error"]).strip().splitlines()[-1]))
    links = experiment.get("links") or {}
    if path := links.get("page"):
        rows.append(("page", f"{address.rstrip('/')}{path}"))
    if link := links.get("mlflow"):
        rows.append(("MLflow", link))
    return "\n".join(f"{head:<12}{words}" for head, words in rows)


def format_queue(experiment: JsonObject) -> str:
    """Return an experiment's priority and its place in the queue as a sentence."""
    place = _place_in_queue(experiment)
    state = experiment["state"].replace("_", " ")
    return f"{experiment['id']} has priority {experiment['priority']} and is {state}{place}"


def _place_in_queue(experiment: JsonObject) -> str:
    place = experiment.get("queue_place")
    return "" if place is None else f", number {place} in the queue"


def make_list_row(experiment: JsonObject) -> Sequence[Any]:
    """Return an experiment's row in the list."""
    progress, best = experiment["progress"], experiment.get("best")
    ended = sum(progress.get(state) or 0 for state in OUTCOMES)
    return (
        experiment["id"],
        experiment["name"],
        experiment["project"],
        experiment.get("owner"),
        f"{experiment['state']}{_place_in_queue(experiment)}",
        f"{ended}/{'?' if progress.get('total') is None else progress['total']}",
        None if best is None else format_value(best["value"]),
        str(experiment["created_at"])[:16].replace("T", " "),
    )


def make_catalogue_rows(
    kind: str, items: Sequence[JsonObject]
) -> tuple[Sequence[str], list[Sequence[Any]]]:
    """Return heads and rows of a list of models, tasks, presets or kinds of analyses."""
    if kind == "presets":
        return ("name", "what it is"), [(each["name"], _first_words(each)) for each in items]
    if kind == "models":
        papers = [(each["source"] or "").partition(";")[0] for each in items]
        return ("name", "what it computes", "source"), [
            (each["name"], each["summary"], paper)
            for each, paper in zip(items, papers, strict=True)
        ]
    return ("name", "what it is"), [(each["name"], each["summary"]) for each in items]


def _first_words(item: JsonObject, most: int = 100) -> str:
    """Return the first sentence of a summary, cut after so many letters."""
    return shorten(str(item["summary"]).partition(". ")[0].rstrip("."), most, placeholder=" ...")


def format_catalogue_entry(kind: str, content: JsonObject) -> str:
    """Return one model, task or preset in full; a preset as the YAML that `submit` takes."""
    if kind == "presets":
        return format_yaml(content["spec"])
    heads = ("field", "type", "default", "what it sets")
    properties = content["schema"].get("properties", {})
    rows = [describe_field(name, schema) for name, schema in properties.items() if name != "name"]
    about = [str(content[key]) for key in ("name", "summary", "source") if content.get(key)]
    return "\n".join([*about, "", align_columns(heads, rows)])


def describe_field(name: str, schema: JsonObject) -> tuple[str, str, str, str]:
    """Return a field's row: name, type with its range, default, description.

    >>> schema = {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}], "default": None}
    >>> describe_field("hidden_size", schema)
    ('hidden_size', 'integer >= 1', '-', '')
    """
    inner = next((s for s in schema.get("anyOf", []) if s.get("type") != "null"), schema)
    kind = " | ".join(map(str, inner["enum"])) if "enum" in inner else str(inner.get("type", ""))
    signs = {
        "minimum": ">=",
        "exclusiveMinimum": ">",
        "maximum": "<=",
        "exclusiveMaximum": "<",
    }
    bounds = [f"{sign} {inner[key]:g}" for key, sign in signs.items() if key in inner]
    default = schema.get("default")
    text = "-" if default is None else str(default)
    return name, " ".join([kind, ", ".join(bounds)]).strip(), text, schema.get("description", "")


def format_analysis(analysis: JsonObject, paths: Sequence[Path]) -> str:
    """Return how an analysis ended, the places of its files, and the link of its run."""
    subject = [
        str(analysis[part]) for part in ("experiment", "trial") if analysis[part] is not None
    ]
    words = [analysis["name"], "/".join(subject), analysis["state"], analysis["id"]]
    lines = [" ".join(word for word in words if word)]
    if analysis["error"]:
        lines.append(f"  {str(analysis['error']).strip()}")
    lines += [f"  {path}" for path in paths or analysis["links"]["files"].values()]
    if analysis["links"]["mlflow"]:
        lines.append(f"  MLflow {analysis['links']['mlflow']}")
    if analysis["mlflow_problem"]:
        lines.append(f"  not in MLflow: {analysis['mlflow_problem']}")
    return "\n".join(lines)
