"""The service's answers as text and tables: on a terminal, at a Python prompt, in a notebook."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from html import escape
from pathlib import Path
from textwrap import shorten
from typing import Any, Final

from rich.console import Console

from eigensweep.client.answers.tables import (
    Table,
    align_columns,
    describe_rows,
    format_arm,
    format_cell,
)
from eigensweep.client.shapes import ExperimentJson
from eigensweep.protocol.states import OUTCOMES
from eigensweep.results.ranking import OBJECTIVE
from eigensweep.search_spaces.labels import format_share, format_value, say_count
from eigensweep.search_spaces.spec_text import write_text

Part = str | Table
"""A line of an answer, or a table."""


class Answer(dict[str, Any]):
    """The service's JSON on something, a dict, which shows itself as text and tables."""

    def __init__(
        self, content: Mapping[str, Any], describe: Callable[[Answer], Iterable[Part]]
    ) -> None:
        super().__init__(content)
        self._describe = describe

    def __repr__(self) -> str:
        return "\n".join(map(str, self._describe(self)))

    def _repr_html_(self) -> str:
        """Return what a notebook shows."""
        return f"<pre>{escape(repr(self))}</pre>"

    def show(self, screen: Console) -> None:
        """Print it; tables are drawn on a terminal."""
        for part in self._describe(self):
            if isinstance(part, Table):
                part.show(screen)
            else:
                screen.print(part, markup=False, soft_wrap=True)


def format_duration(seconds: float) -> str:
    """Return a duration in hours, minutes and seconds.

    >>> format_duration(7325.4)
    '2:02:05'
    """
    return str(timedelta(seconds=round(seconds)))


def count_trials(progress: Mapping[str, float | None]) -> str:
    """Return how many trials there are in each state.

    >>> count_trials({"total": 9, "waiting": 0, "running": 2, "completed": 4, "fraction": 0.5})
    '9 trials: 2 running, 4 completed'
    """
    states = [
        f"{count} {state}"
        for state, count in progress.items()
        if count and state not in {"total", "fraction", "steps_done", "steps_total"}
    ]
    total = progress.get("total")
    head = "trials" if total is None else say_count(int(total), "trial")
    return f"{head}: {', '.join(states)}" if states else head


def describe_comparison(comparison: Answer) -> Iterator[Part]:
    """Say what the sides of a comparison are, how its pairs differ, and how they were tested."""
    rows = []
    for side in comparison["sides"]:
        valid, test = side["valid"] or {}, side["test"] or {}
        rows.append(
            [
                *(side["name"], f"{side['experiment']}/{side['trial']}"),
                *(side["steps"], format_cell("settings", side["params"]), len(side["seeds"])),
                *(format_cell("value", valid.get("mean")), format_interval(valid)),
                *(format_cell("test", test.get("mean")), format_interval(test)),
            ]
        )
    spread = ("value", "interval", "test", "test_interval")
    yield Table(("name", "trial", "steps", "settings", "n", *spread), rows)
    yield ""
    judged = ("difference", "interval", "p, corrected", "effect", "verdict")
    rows = [
        [pair["first"], pair["second"], name, *_make_difference_cells(pair[split])]
        for pair in comparison["pairs"]
        for split, name in (("valid", "validation"), ("test", "test"))
    ]
    yield Table(("first", "second", "data", *judged), rows)
    yield f"\n{comparison['method']}; eigensweep {comparison['version']}"
    yield from describe_more_seeds(comparison)


def _make_difference_cells(found: Mapping[str, Any]) -> list[str]:
    p, effect, reason = found["corrected_p"], found["effect"], found["reason"]
    return [
        *(format_cell("difference", found["mean"]), format_interval(found)),
        "-" if p is None else f"{p:.2g}",
        "-" if effect is None else format_share(effect),
        f"{found['verdict']} because {reason}" if reason else found["verdict"],
    ]


def describe_more_seeds(comparison: Answer) -> Iterator[str]:
    """Say of each pair on test data what the seeds say so far, where one looks as they come."""
    for pair in comparison["pairs"]:
        seen = pair["test"]["so_far"]
        if seen is None:
            continue
        words = f"decided, {seen['verdict']}"
        if not seen["decided"]:
            words = f"at this difference that takes {_say_seeds(seen['seeds'])}"
        plan = seen["plan"]
        if plan is not None:
            hours = plan["core_hours"]
            words += f"; a difference of {plan['difference']:.4g} takes {_say_seeds(plan['seeds'])}"
            words += "" if hours is None else f", about {hours:.2g} core-hours more"
        yield (
            f"{pair['first']} and {pair['second']}, on test data at any look: "
            f"e = {seen['e_value']:.3g} ({seen['wanted']:.4g} decide); {words}"
        )


def describe_effort(effort: Answer) -> Iterator[Part]:
    """Say what the best of so many trials is, and how two searches compare at equal effort."""
    rows = (
        [
            *(side["name"], point["trials"], format_value(point["core_hours"])),
            *(format_value(point["mean"]), format_interval(point)),
        ]
        for side in effort["sides"]
        for point in side["points"]
    )
    yield Table(("name", "trials", "core hours", "test", "band"), rows)
    yield ""
    yield from (side["words"] for side in effort["sides"])
    if effort["reason"]:
        yield f"not comparable: {effort['reason']}"
    yield from (pair["words"] for pair in effort["pairs"])
    yield f"{effort['method']}; eigensweep {effort['version']}"


def _say_seeds(seeds: int | None) -> str:
    return f"about {seeds} seeds" if seeds else "more than 1,000 seeds"


def describe_importance(importance: Answer) -> Iterator[Part]:
    """Say what the share of each parameter is, arm by arm."""
    rows = (
        [
            *(arm["arm"], each["path"]),
            f"{each['share']:.3f}" if each["share"] is not None else each["problem"],
            each["trials"],
        ]
        for arm in importance["arms"]
        for each in arm["parameters"]
    )
    yield Table(("arm", "parameter", "share", "trials"), rows)


def format_interval(ends: Mapping[str, float | None]) -> str:
    """Return an interval as text.

    >>> format_interval({"low": -0.5, "high": 0.25})
    '-0.5 to 0.25'
    """
    low, high = ends.get("low"), ends.get("high")
    return format_cell("interval", None if low is None or high is None else (low, high))


def describe_trial(trial: Answer) -> Iterator[Part]:
    """Say of a trial in a few lines: state, settings, scores, attempts, and why it failed."""
    steps = f"step {trial['step']} of {trial['steps']}"
    rows = [
        ("trial", f"{trial['number']} of arm {trial['arm']}"),
        ("state", f"{trial['state']}, {steps}, attempt {trial['attempt']}"),
    ]
    if trial["params"]:
        rows.append(("settings", format_cell("settings", trial["params"])))
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
                spread = f" [{format_interval(found)}], {found['n']} seeds"
            what = "best so far" if name == OBJECTIVE else f"{split}/{name}"
            rows.append((what, f"{format_cell('value', value)}{spread}"))
    for each in trial["attempts"]:
        where = " ".join(str(each[key]) for key in ("node", "pid", "device") if each.get(key))
        ended = f"; it ended: {each['reason']}" if each.get("reason") else ""
        rows.append((f"attempt {each['attempt']}", f"{each['started_at'][:19]}Z {where}{ended}"))
    rows += [
        (f"seed {each['seed']}", f"diverged at {each['divergence']}")
        for each in (trial["result"] or {}).get("by_replicate", ())
        if each.get("divergence")
    ]
    if link := trial["links"]["mlflow"]:
        rows.append(("MLflow", link))
    yield describe_rows(rows)
    if trial["error"]:
        yield f"\n{str(trial['error']).strip()}"


def describe_preview(content: Answer) -> Iterator[Part]:
    """Say how many trials of which sizes there will be, what comes first, and what it costs."""
    replicates = f", {content['replicates']} replicates each" if content["replicates"] > 1 else ""
    unlimited = content["trials"] is None
    trials = "any number of trials" if unlimited else say_count(content["trials"], "trial")
    points = "" if content["points"] is None else f" over {say_count(content['points'], 'point')}"
    baseline = format_cell("baseline", content["baseline"])
    yield f"{content['name']}: {trials}{points}{replicates}"
    yield f"{content['task']}, ranked by {content['metric']}; the baseline is {baseline}\n"
    arms = (
        (
            *(arm["name"], format_cell("parameters", arm["points"])),
            _format_sizes(arm["smallest_parameters"], arm["largest_parameters"]),
            "; ".join(f"{axis['path']}: {axis['values']}" for axis in arm["axes"]) or "nothing",
        )
        for arm in content["arms"]
    )
    yield Table(("arm", "points", "parameters", "varies"), arms)
    yield ""
    known = any(trial["number"] is not None for trial in content["first"])
    first = (
        (
            *((_name_place(trial["number"]), trial["arm"]) if known else (trial["arm"],)),
            format_cell("parameters", trial["parameters"]),
            f"invalid: {trial['error']}"
            if trial["error"]
            else format_cell("settings", trial["params"]),
        )
        for trial in content["first"]
    )
    place = ("trial", "arm") if known else ("one end of",)
    yield Table((*place, "parameters", "settings"), first)
    if cost := content["estimate"]:
        low, high = cost["seconds_a_trial_low"], cost["seconds_a_trial_high"]
        yield (
            f"\n{low:g} to {high:g} seconds a trial, {cost['core_hours_low']:g} to "
            f"{cost['core_hours_high']:g} core hours in all"
        )
        yield cost["words"]
    if memory := content.get("memory"):
        yield ""
        yield from (_format_memory(arm, each) for arm, each in memory.items())
    search = content["search"]
    come = [
        f"{say_count(count, 'trial')} of experiment {id} {'tells' if count == 1 else 'tell'} the "
        "search something"
        for id, count in (search.get("warm_start") or {}).items()
    ]
    if words := search["words"] + come:
        yield ""
        yield from words
    plan = [each for each in content.get("race_plan") or () if each["core_hours"] is not None]
    if plan:
        costs = (f"{each['seeds']} seeds about {each['core_hours']:g} core hours" for each in plan)
        yield f"Of all that race {', '.join(costs)}"
    yield from _format_side_by_side(content.get("side_by_side") or {})
    yield from (f"warning: {words}" for words in content.get("warnings") or ())


def _name_place(number: int | None) -> str:
    """Return a trial's number; without one, that the point is one end of its arm's space."""
    return "one end" if number is None else str(number)


def describe_pareto(content: Answer) -> Iterator[Part]:
    """Say which trials no other one beats, the best by the first objective first."""
    names = [objective["name"] for objective in content["objectives"]]
    rows = [
        (
            *(trial["number"], trial["arm"], format_cell("settings", trial["params"])),
            *(_format_goal(name, trial["values"][name]) for name in names),
        )
        for trial in content["front"]
    ]
    if rows:
        yield Table(("trial", "arm", "settings", *names), rows)
        others = say_count(content["beaten"], "other trial")
        yield f"{others} beaten by one of these: worse in something, and better in nothing"
    elif not content["unknown"]:
        yield "no trial has finished"
    if content["unknown"]:
        yield f"{say_count(content['unknown'], 'trial')} without a value of some objective"


def describe_race(content: Answer) -> Iterator[Part]:
    """Say which trials the newest round of a race has, the leader first, and where the race is."""
    rows = [
        (
            *(racer["number"], racer["arm"], format_cell("settings", racer["params"])),
            *(racer["value"]["n"], format_value(racer["value"]["mean"])),
            _say_behind(racer),
            "" if behind is None else format_interval(behind),
        )
        for racer in content["racers"]
        for behind in [racer["behind"]]
    ]
    heads = ("trial", "arm", "settings", "n", "mean", "minus leader", "95% interval")
    if rows:
        yield Table(heads, rows)
        yield ""
    for played in content["rounds"]:
        left = sum(len(played[kind]) for kind in ("worse", "equivalent", "left_out"))
        stay = 1 + len(played["rivals"])
        yield f"{say_count(played['seeds'], 'seed')}: {stay} stay in the race, {left} leave"
    yield from _describe_racers(content)
    yield f"{content['state']}: {content['words']}"


def _say_behind(racer: Mapping[str, Any]) -> str:
    if racer["verdict"] == "leads":
        return "leads"
    return "" if racer["behind"] is None else format_value(racer["behind"]["mean"])


def _describe_racers(content: Answer) -> Iterator[str]:
    """Say what is open of each racer, and what the race has cost."""
    for racer in content["racers"]:
        if racer["looks"]:
            seen = racer["looks"][-1]
            words = racer["verdict"]
            if words == "not distinguishable":
                words += f"; at this difference it takes {_say_seeds(racer['wanted'])} to decide"
            yield (
                f"trial {racer['number']} against the leader: e = {seen['e_value']:.3g} "
                f"({content['wanted_e_value']:.4g} decide): {words}"
            )
    if hours := content["core_hours"]:
        limit = "" if hours["limit"] is None else f" of {hours['limit']:g}"
        more = "" if hours["needed"] is None else f"; about {hours['needed']:.2g} more would decide"
        yield f"{hours['spent']:.2g}{limit} core-hours{more}"


def _format_goal(name: str, value: float) -> str:
    return f"{value:.0f}" if name == "parameters" else format_cell(name, value)


def _format_memory(arm: str, taken: Mapping[str, Any]) -> str:
    """Return what the largest trial of an arm takes."""
    host, device, limit = (taken[f"{name}_bytes"] for name in ("host", "device", "limit"))
    gpu = f", {device / 1e6:.0f} MB of a GPU" if device else ""
    end = "" if limit is None else f"; a trial that takes more than {limit / 1e6:.0f} MB is ended"
    return f"{arm}: about {host / 1e6:.0f} MB of memory a trial{gpu}{end}"


def _format_side_by_side(told: Mapping[str, Any]) -> list[str]:
    """Return lines on how trials share the nodes; none where there is nothing to say."""
    lines, lanes, at_once = [], told.get("lanes"), told.get("at_once")
    if lanes == "auto":
        lines.append("how many trials share an engine is measured before the first one starts")
    elif lanes and at_once is not None:
        trials = say_count(at_once, "trial")
        lines.append(f"{trials} at once, sharing engines of {say_count(lanes, 'lane')}")
    lines += [f"{arm} shares no lanes: {why}" for arm, why in told.get("alone", {}).items()]
    lines += [f"warning: {words}" for words in told.get("warnings", [])]
    return ["", *lines] if lines else []


def _format_sizes(smallest: int | None, largest: int | None) -> str:
    return " to ".join(format_cell("parameters", end) for end in dict.fromkeys((smallest, largest)))


def format_yaml(content: Any) -> str:
    """Return JSON as YAML, which is easy to read and which `submit` takes."""
    return write_text(content, 100).rstrip()


def format_experiment(experiment: ExperimentJson, address: str) -> str:
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
    if left := experiment.get("eta_seconds"):
        rows.append(("time left", format_duration(left)))
    if baseline is not None:
        unit = f" ({metric['unit']})" if metric.get("unit") else ""
        rows.append(("baseline", f"{format_value(baseline)} {metric.get('name', '')}{unit}"))
    if best is not None:
        value = format_value(best["value"])
        ratio = f", {format_share(best['value'] / baseline)} of the baseline" if baseline else ""
        rows.append(("best", f"{value}{ratio}: trial {best['number']}, {format_arm(best)}"))
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
    return describe_rows(rows, width=12)


def format_queue(experiment: ExperimentJson) -> str:
    """Return an experiment's priority and its place in the queue as a sentence."""
    place = _place_in_queue(experiment)
    state = experiment["state"].replace("_", " ")
    return f"{experiment['id']} has priority {experiment['priority']} and is {state}{place}"


def _place_in_queue(experiment: ExperimentJson) -> str:
    place = experiment.get("queue_place")
    return "" if place is None else f", number {place} in the queue"


LIST_HEADS: Final = ("id", "name", "project", "owner", "state", "trials", "best", "created (UTC)")


def make_list_row(experiment: ExperimentJson) -> Sequence[Any]:
    """Return an experiment's row below `LIST_HEADS`."""
    progress, best = experiment["progress"], experiment.get("best")
    ended = sum(progress.get(state) or 0 for state in OUTCOMES)
    return (
        *(experiment["id"], experiment["name"], experiment["project"], experiment.get("owner")),
        f"{experiment['state']}{_place_in_queue(experiment)}",
        f"{ended}/{'?' if progress.get('total') is None else progress['total']}",
        None if best is None else format_value(best["value"]),
        str(experiment["created_at"])[:16].replace("T", " "),
    )


def make_catalogue_table(kind: str, items: Sequence[Mapping[str, str | None]]) -> Table:
    """Return the list of models, tasks, presets or kinds of analyses."""
    if kind == "presets":
        presets = ((each["name"], _first_words(str(each["summary"]))) for each in items)
        return Table(("name", "what it is"), presets)
    if kind == "models":
        models = (
            (each["name"], each["summary"], (each["source"] or "").partition(";")[0])
            for each in items
        )
        return Table(("name", "what it computes", "source"), models)
    return Table(("name", "what it is"), [(each["name"], each["summary"]) for each in items])


def _first_words(summary: str, most: int = 100) -> str:
    """Return the first sentence of a summary, cut after so many letters."""
    return shorten(summary.partition(". ")[0].rstrip("."), most, placeholder=" ...")


def format_catalogue_entry(kind: str, content: Mapping[str, Any]) -> str:
    """Return one model, task or preset in full; a preset as the YAML that `submit` takes."""
    if kind == "presets":
        return format_yaml(content["spec"])
    heads = ("field", "type", "default", "what it sets")
    properties = content["schema"].get("properties", {})
    rows = [describe_field(name, schema) for name, schema in properties.items() if name != "name"]
    about = [str(content[key]) for key in ("name", "summary", "source") if content.get(key)]
    return "\n".join([*about, "", align_columns(heads, rows)])


def describe_field(name: str, schema: Mapping[str, Any]) -> tuple[str, str, str, str]:
    """Return a field's row: name, type with its range, default, description.

    >>> schema = {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}], "default": None}
    >>> describe_field("hidden_size", schema)
    ('hidden_size', 'integer >= 1', '-', '')
    """
    inner = next((s for s in schema.get("anyOf", []) if s.get("type") != "null"), schema)
    kind = " | ".join(map(str, inner["enum"])) if "enum" in inner else str(inner.get("type", ""))
    signs = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}
    bounds = [f"{sign} {inner[key]:g}" for key, sign in signs.items() if key in inner]
    default = schema.get("default")
    text = "-" if default is None else str(default)
    return name, " ".join([kind, ", ".join(bounds)]).strip(), text, schema.get("description", "")


def format_analysis(analysis: Mapping[str, Any], paths: Sequence[Path]) -> str:
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
