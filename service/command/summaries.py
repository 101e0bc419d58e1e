"""The service's answers as text: experiments, previews, catalogue entries, analyses."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from textwrap import shorten
from typing import Any

import yaml

from eigensweep.search_spaces.labels import format_value
from eigensweep.service.client.connection import JsonObject
from eigensweep.service.client.tables import align_columns, format_cell
from eigensweep.service.command.terminal import count_trials, format_duration
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
        ratio = f", {best['value'] / baseline:.3f} of the baseline" if baseline else ""
        settings = format_cell("settings", best.get("params"))
        rows.append(("best", f"{value}{ratio}: trial {best['number']}, {best['arm']} {settings}"))
    if usage := experiment.get("usage"):
        gpus = usage["gpu_hours"]
        of_gpus = f", {format_duration(3600 * gpus)} of GPUs" if gpus else ""
        words = f"{format_duration(3600 * usage['cpu_hours'])} of CPU cores{of_gpus}"
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


def format_trial(trial: JsonObject) -> str:
    """Return a trial in a few lines: state, settings, scores, attempts, and why it failed."""
    steps = f"step {trial['step']} of {trial['steps']}"
    rows = [
        ("trial", f"{trial['number']} of arm {trial['arm']}"),
        ("state", f"{trial['state']}, {steps}, attempt {trial['attempt']}"),
        ("settings", format_cell("settings", trial["params"])),
    ]
    if trial["parameters"] is not None:
        rows.append(("parameters", format_cell("parameters", trial["parameters"]["free"])))
    if trial["seconds"] is not None:
        rows.append(("trained for", format_duration(trial["seconds"])))
    statistics = trial["statistics"]
    for split, metrics in (("valid", trial["metrics"]), ("test", trial["test"])):
        for name, value in metrics.items():
            found = statistics.get(f"{split}/{name}") or {}
            spread = ""
            if (found.get("n") or 1) > 1:
                spread = f" [{_format_interval(found)}], {found['n']} seeds"
            rows.append((f"{split}/{name}", f"{format_cell('value', value)}{spread}"))
    for each in trial["attempts"]:
        where = " ".join(str(each[key]) for key in ("node", "pid", "device") if each.get(key))
        ended = f"; it ended: {each['reason']}" if each.get("reason") else ""
        rows.append((f"attempt {each['attempt']}", f"{each['started_at'][:19]} {where}{ended}"))
    if link := trial["links"]["mlflow"]:
        rows.append(("MLflow", link))
    width = max(len(head) for head, _ in rows) + 2
    lines = [f"{head:<{width}}{words}" for head, words in rows]
    if trial["error"]:
        lines += ["", str(trial["error"]).strip()]
    return "\n".join([*lines, "", "--json has its whole configuration, its reports and its result"])


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


def format_preview(content: JsonObject) -> str:
    """Return a preview: how many trials of which sizes, the first ones, an estimate of the cost."""
    replicates = f", {content['replicates']} replicates each" if content["replicates"] > 1 else ""
    unlimited = content["trials"] is None
    trials = "any number of trials" if unlimited else _count(content["trials"], "trial")
    points = "" if content["points"] is None else f" over {_count(content['points'], 'point')}"
    baseline = format_cell("baseline", content["baseline"])
    lines = [
        f"{content['name']}: {trials}{points}{replicates}",
        f"{content['task']}, ranked by {content['metric']}; the baseline is {baseline}",
        "",
    ]
    arms = [
        (a["name"], format_cell("parameters", a["points"]), _format_sizes(a), _format_axes(a))
        for a in content["arms"]
    ]
    lines.append(align_columns(("arm", "points", "parameters", "varies"), arms))
    first = [
        (
            str(trial["number"]),
            trial["arm"],
            format_cell("parameters", trial["parameters"]),
            f"invalid: {trial['error']}"
            if trial["error"]
            else format_cell("settings", trial["params"]),
        )
        for trial in content["first"]
    ]
    lines += ["", align_columns(("trial", "arm", "parameters", "settings"), first)]
    if cost := content["estimate"]:
        low, high = cost["seconds_a_trial_low"], cost["seconds_a_trial_high"]
        lines += [
            "",
            f"{low:g} to {high:g} seconds a trial, {cost['core_hours_low']:g} to "
            f"{cost['core_hours_high']:g} core hours in all",
            cost["words"],
        ]
    if memory := content.get("memory"):
        lines += ["", *(_format_memory(arm, each) for arm, each in memory.items())]
    search = content["search"]
    come = [
        f"{_count(count, 'trial')} of experiment {id} {'tells' if count == 1 else 'tell'} the "
        "search something"
        for id, count in (search.get("warm_start") or {}).items()
    ]
    if words := search["words"] + come:
        lines += ["", *words]
    lines += _format_side_by_side(content.get("side_by_side") or {})
    return "\n".join(lines)


def format_pareto(content: JsonObject) -> str:
    """Return the trials that no other one beats, the best by the first objective first."""
    names = [objective["name"] for objective in content["objectives"]]
    rows = [
        (
            str(trial["number"]),
            trial["arm"],
            format_cell("settings", trial["params"]),
            *(_format_goal(name, trial["values"][name]) for name in names),
        )
        for trial in content["front"]
    ]
    lines = [align_columns(("trial", "arm", "settings", *names), rows)] if rows else []
    if rows:
        others = _count(content["beaten"], "other trial")
        lines.append(f"{others} beaten by one of these: worse in something, and better in nothing")
    elif not content["unknown"]:
        lines.append("no trial has finished")
    if content["unknown"]:
        lines.append(f"{_count(content['unknown'], 'trial')} without a value of some objective")
    return "\n".join(lines)


def format_race(content: JsonObject) -> str:
    """Return the trials of a race's newest round, the leader first, and where the race is."""
    rows = [
        (
            str(racer["number"]),
            racer["arm"],
            format_cell("settings", racer["params"]),
            str(racer["value"]["n"]),
            format_value(racer["value"]["mean"]),
            "leads" if behind is None else format_value(behind["mean"]),
            "" if behind is None else _format_interval(behind),
        )
        for racer in content["racers"]
        for behind in [racer["behind"]]
    ]
    heads = ("trial", "arm", "settings", "n", "mean", "behind by", "95% interval")
    lines = [align_columns(heads, rows), ""] if rows else []
    for played in content["rounds"]:
        left = len(played["worse"]) + len(played["left_out"])
        stay = 1 + len(played["rivals"])
        lines.append(f"{_count(played['seeds'], 'seed')}: {stay} stay in the race, {left} leave")
    return "\n".join([*lines, f"{content['state']}: {content['words']}"])


def _format_interval(summary: JsonObject) -> str:
    return f"{format_value(summary['low'])} to {format_value(summary['high'])}"


def _format_goal(name: str, value: float) -> str:
    return f"{value:.0f}" if name == "parameters" else format_cell(name, value)


def _format_memory(arm: str, memory: JsonObject) -> str:
    """Return what the largest trial of an arm takes."""
    gpu = f", {memory['device_bytes'] / 1e6:.0f} MB of a GPU" if memory["device_bytes"] else ""
    limit = memory["limit_bytes"]
    end = "" if limit is None else f"; a trial that takes more than {limit / 1e6:.0f} MB is ended"
    return f"{arm}: about {memory['host_bytes'] / 1e6:.0f} MB of memory a trial{gpu}{end}"


def _format_side_by_side(side: JsonObject) -> list[str]:
    """Return lines on how trials share the nodes; none where there is nothing to say."""
    lines, lanes = [], side.get("lanes")
    if lanes == "auto":
        lines.append("how many trials share an engine is measured before the first one starts")
    elif lanes and side.get("at_once") is not None:
        trials = _count(side["at_once"], "trial")
        lines.append(f"{trials} at once, sharing engines of {_count(lanes, 'lane')}")
    lines += [f"{arm} shares no lanes: {why}" for arm, why in side.get("alone", {}).items()]
    lines += [f"warning: {words}" for words in side.get("warnings", [])]
    return ["", *lines] if lines else []


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _format_sizes(arm: JsonObject) -> str:
    ends = dict.fromkeys((arm["smallest_parameters"], arm["largest_parameters"]))
    return " to ".join(format_cell("parameters", end) for end in ends)


def _format_axes(arm: JsonObject) -> str:
    return "; ".join(f"{axis['path']}: {axis['values']}" for axis in arm["axes"]) or "nothing"


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
