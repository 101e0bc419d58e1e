"""What the service answers, in the words of a page: experiments, previews, catalogues."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from eigensweep.service.client.trial_table import aligned, cell, short
from eigensweep.service.command.terminal import clock, trial_counts

Json = Mapping[str, Any]


def outline(content: Any) -> str:
    """Return any JSON as YAML, which reads well and which `submit` takes."""
    return str(yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=100)).rstrip()


def summary(experiment: Json) -> str:
    """Return an experiment in a few lines."""
    metric = experiment.get("metric") or {}
    best, baseline = experiment.get("best"), experiment.get("baseline")
    rows = [
        ("experiment", f"{experiment['id']} {experiment['name']}"),
        ("project", experiment["project"]),
        ("state", experiment["state"]),
        ("progress", trial_counts(experiment["progress"])),
    ]
    if experiment.get("eta_seconds"):
        rows.append(("time left", clock(experiment["eta_seconds"])))
    if baseline is not None:
        unit = f" ({metric['unit']})" if metric.get("unit") else ""
        rows.append(("baseline", f"{short(baseline)} {metric.get('name', '')}{unit}"))
    if best is not None:
        ratio = f", {best['value'] / baseline:.3f} of the baseline" if baseline else ""
        settings = cell("settings", best.get("params"))
        words = f"{short(best['value'])}{ratio}: trial {best['number']}, {best['arm']} {settings}"
        rows.append(("best", words))
    if experiment.get("error"):
        rows.append(("error", str(experiment["error"]).strip().splitlines()[-1]))
    if link := (experiment.get("links") or {}).get("mlflow"):
        rows.append(("MLflow", link))
    return "\n".join(f"{head:<12}{words}" for head, words in rows)


def listed(experiment: Json) -> Sequence[Any]:
    """Return an experiment's row in the list."""
    progress, best = experiment["progress"], experiment.get("best")
    ended = sum(
        progress.get(state) or 0
        for state in ("completed", "pruned", "diverged", "failed", "cancelled", "reused", "invalid")
    )
    return (
        experiment["id"],
        experiment["name"],
        experiment["project"],
        experiment["state"],
        f"{ended}/{'?' if progress.get('total') is None else progress['total']}",
        None if best is None else short(best["value"]),
        str(experiment["created_at"])[:16].replace("T", " "),
    )


def previewed(content: Json) -> str:
    """Return a preview: how many trials of which sizes, the first ones, a guess of the cost."""
    replicates = f", {content['replicates']} replicates each" if content["replicates"] > 1 else ""
    trials = "no end of" if content["trials"] is None else f"{content['trials']:,}"
    points = "" if content["points"] is None else f" over {content['points']:,} points"
    baseline = cell("baseline", content["baseline"])
    lines = [
        f"{content['name']}: {trials} trials{points}{replicates}",
        f"{content['task']}, ranked by {content['metric']}; the baseline is {baseline}",
        "",
    ]
    arms = [
        (a["name"], cell("parameters", a["points"]), _span(a), _axes(a)) for a in content["arms"]
    ]
    lines.append(aligned(("arm", "points", "parameters", "varies"), arms))
    first = [
        (str(t["number"]), t["arm"], cell("parameters", t["parameters"]), _settings_or_error(t))
        for t in content["first"]
    ]
    lines += ["", aligned(("trial", "arm", "parameters", "settings"), first)]
    if guess := content["estimate"]:
        low, high = guess["seconds_a_trial_low"], guess["seconds_a_trial_high"]
        lines += [
            "",
            f"{low:g} to {high:g} seconds a trial, {guess['core_hours_low']:g} to "
            f"{guess['core_hours_high']:g} core hours in all, {guess['memory_mb']:g} MB a trial",
            guess["words"],
        ]
    return "\n".join(lines)


def _span(arm: Json) -> str:
    ends = dict.fromkeys((arm["smallest_parameters"], arm["largest_parameters"]))
    return " to ".join(cell("parameters", end) for end in ends)


def _axes(arm: Json) -> str:
    return "; ".join(f"{axis['path']}: {axis['values']}" for axis in arm["axes"]) or "nothing"


def _settings_or_error(trial: Json) -> str:
    return f"invalid: {trial['error']}" if trial["error"] else cell("settings", trial["params"])


def entry(kind: str, content: Json) -> str:
    """Return one model, task or preset in full; a preset as the YAML that `submit` takes."""
    if kind == "presets":
        return outline(content["spec"])
    heads = ("field", "type", "default", "what it sets")
    properties = content["schema"].get("properties", {})
    rows = [field(name, schema) for name, schema in properties.items() if name != "name"]
    about = [str(content[key]) for key in ("name", "summary", "source") if content.get(key)]
    return "\n".join([*about, "", aligned(heads, rows)])


def field(name: str, schema: Json) -> tuple[str, str, str, str]:
    """Return a field's row: name, type with its range, default, description.

    >>> schema = {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}], "default": None}
    >>> field("hidden_size", schema)
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


def analysed(analysis: Json, paths: Sequence[Path]) -> str:
    """Return how an analysis ended, and where its files and its run are."""
    of = "".join(
        f"{analysis[part]}/" for part in ("experiment", "trial") if analysis[part] is not None
    )
    lines = [
        f"{analysis['name']} {of.rstrip('/')} {analysis['state']} {analysis['id']}".replace(
            "  ", " "
        )
    ]
    if analysis["error"]:
        lines.append(f"  {str(analysis['error']).strip()}")
    lines += [f"  {path}" for path in paths or analysis["links"]["files"].values()]
    if analysis["links"]["mlflow"]:
        lines.append(f"  MLflow {analysis['links']['mlflow']}")
    if analysis["mlflow_problem"]:
        lines.append(f"  not in MLflow: {analysis['mlflow_problem']}")
    return "\n".join(lines)
