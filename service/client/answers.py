"""The service's answers as text, on a terminal and at a Python prompt."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from html import escape

from eigensweep.search_spaces.labels import format_share, format_value, say_count
from eigensweep.service.client.connection import JsonObject
from eigensweep.service.client.tables import align_columns, format_cell


class Answer(JsonObject):
    """The service's JSON on something, a dict, which shows itself as text."""

    def __init__(self, content: JsonObject, to_text: Callable[[JsonObject], str]) -> None:
        super().__init__(content)
        self._to_text = to_text

    def __repr__(self) -> str:
        return self._to_text(self)

    def _repr_html_(self) -> str:
        """Return what a notebook shows."""
        return f"<pre>{escape(repr(self))}</pre>"


def format_duration(seconds: float) -> str:
    """Return a duration in hours, minutes and seconds.

    >>> format_duration(7325.4)
    '2:02:05'
    """
    return str(timedelta(seconds=round(seconds)))


def count_trials(progress: JsonObject) -> str:
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
    head = "trials" if total is None else say_count(total, "trial")
    return f"{head}: {', '.join(states)}" if states else head


SIDE_HEADS = ("name", "trial", "settings", "n", "value", "interval", "test", "test_interval")
PAIR_HEADS = ("first", "second", "data", "difference", "interval", "p", "effect", "verdict")
EFFORT_HEADS = ("name", "trials", "core hours", "test", "band")
SHARE_HEADS = ("arm", "parameter", "share", "trials")


def make_side_rows(comparison: JsonObject) -> list[list[str]]:
    """Return a row for each side of a comparison."""
    rows = []
    for side in comparison["sides"]:
        valid, test = side["valid"] or {}, side["test"] or {}
        rows.append(
            [
                side["name"],
                f"{side['experiment']}/{side['trial']}",
                format_cell("settings", side["params"]),
                str(len(side["seeds"])),
                format_cell("value", valid.get("mean")),
                format_interval(valid),
                format_cell("test", test.get("mean")),
                format_interval(test),
            ]
        )
    return rows


def make_pair_rows(comparison: JsonObject) -> list[list[str]]:
    """Return a row for each pair of a comparison, on validation and on test data."""
    return [
        _make_pair_row(pair, split, name)
        for pair in comparison["pairs"]
        for split, name in (("valid", "validation"), ("test", "test"))
    ]


def _make_pair_row(pair: JsonObject, split: str, name: str) -> list[str]:
    found = pair[split]
    because = f" because {found['reason']}" if found["reason"] else ""
    p = found["corrected_p"]
    return [
        pair["first"],
        pair["second"],
        name,
        format_cell("difference", found["mean"]),
        format_interval(found),
        "-" if p is None else f"{p:.2g}",
        "-" if found["effect"] is None else format_share(found["effect"]),
        f"{found['verdict']}{because}",
    ]


def format_comparison(comparison: JsonObject) -> str:
    """Return the sides of a comparison, its pairs, and how they were tested."""
    return "\n".join(
        [
            align_columns(SIDE_HEADS, make_side_rows(comparison)),
            "",
            align_columns(PAIR_HEADS, make_pair_rows(comparison)),
            f"\n{comparison['method']}; eigensweep {comparison['version']}",
            *describe_more_seeds(comparison),
        ]
    )


def describe_more_seeds(comparison: JsonObject) -> Iterator[str]:
    """Say of each pair on test data what the seeds say so far, where one looks as they come."""
    for pair in comparison["pairs"]:
        seen = pair["test"]["so_far"]
        if seen is None:
            continue
        words = f"decided, {seen['verdict']}"
        if not seen["decided"]:
            words = (
                f"{seen['wanted']:.4g} would decide, which takes {_say_seeds(seen['seeds'])} like "
                "these"
            )
        plan = seen["plan"]
        if plan is not None:
            hours = plan["core_hours"]
            words += f"; a difference of {plan['difference']:.4g} takes {_say_seeds(plan['seeds'])}"
            words += "" if hours is None else f", about {hours:.2g} core-hours more"
        yield (
            f"{pair['first']} and {pair['second']}, at any look: e = {seen['e_value']:.3g}; {words}"
        )


def make_effort_rows(effort: JsonObject) -> list[list[str]]:
    """Return a row for each number of trials of each search."""
    return [
        [
            side["name"],
            str(point["trials"]),
            format_value(point["core_hours"]),
            format_value(point["mean"]),
            format_interval(point),
        ]
        for side in effort["sides"]
        for point in side["points"]
    ]


def describe_effort(effort: JsonObject) -> Iterator[str]:
    """Say what was counted, and how two searches compare at equal effort."""
    yield from (side["words"] for side in effort["sides"])
    if effort["reason"]:
        yield f"not comparable: {effort['reason']}"
    yield from (pair["words"] for pair in effort["pairs"])
    yield f"{effort['method']}; eigensweep {effort['version']}"


def format_effort(effort: JsonObject) -> str:
    """Return the best of so many trials of each search, and how they compare."""
    table = align_columns(EFFORT_HEADS, make_effort_rows(effort))
    return "\n".join([table, "", *describe_effort(effort)])


def _say_seeds(seeds: int | None) -> str:
    return f"about {seeds} seeds" if seeds else "more than 1,000 seeds"


def make_share_rows(importance: JsonObject) -> list[list[str]]:
    """Return a row for each parameter of each arm."""
    return [
        [
            arm["arm"],
            each["path"],
            f"{each['share']:.3f}" if each["share"] is not None else each["problem"],
            str(each["trials"]),
        ]
        for arm in importance["arms"]
        for each in arm["parameters"]
    ]


def format_importance(importance: JsonObject) -> str:
    """Return the share of each parameter, arm by arm."""
    return align_columns(SHARE_HEADS, make_share_rows(importance))


def format_interval(ends: Mapping[str, float | None]) -> str:
    """Return an interval as text.

    >>> format_interval({"low": -0.5, "high": 0.25})
    '-0.5 to 0.25'
    """
    low, high = ends.get("low"), ends.get("high")
    return format_cell("interval", None if low is None or high is None else (low, high))


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
                spread = f" [{format_interval(found)}], {found['n']} seeds"
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
    return "\n".join(lines)


def format_preview(content: JsonObject) -> str:
    """Return a preview: how many trials of which sizes, the first ones, an estimate of the cost."""
    replicates = f", {content['replicates']} replicates each" if content["replicates"] > 1 else ""
    unlimited = content["trials"] is None
    trials = "any number of trials" if unlimited else say_count(content["trials"], "trial")
    points = "" if content["points"] is None else f" over {say_count(content['points'], 'point')}"
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
        f"{say_count(count, 'trial')} of experiment {id} {'tells' if count == 1 else 'tell'} the "
        "search something"
        for id, count in (search.get("warm_start") or {}).items()
    ]
    if words := search["words"] + come:
        lines += ["", *words]
    plan = [each for each in content.get("race_plan") or () if each["core_hours"] is not None]
    if plan:
        costs = (f"{each['seeds']} seeds about {each['core_hours']:g} core hours" for each in plan)
        lines.append(f"Of all that race {', '.join(costs)}")
    lines += _format_side_by_side(content.get("side_by_side") or {})
    lines += [f"warning: {words}" for words in content.get("warnings") or ()]
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
        others = say_count(content["beaten"], "other trial")
        lines.append(f"{others} beaten by one of these: worse in something, and better in nothing")
    elif not content["unknown"]:
        lines.append("no trial has finished")
    if content["unknown"]:
        lines.append(f"{say_count(content['unknown'], 'trial')} without a value of some objective")
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
            "" if behind is None else format_interval(behind),
        )
        for racer in content["racers"]
        for behind in [racer["behind"]]
    ]
    heads = ("trial", "arm", "settings", "n", "mean", "behind by", "95% interval")
    lines = [align_columns(heads, rows), ""] if rows else []
    for played in content["rounds"]:
        left = sum(len(played[kind]) for kind in ("worse", "equivalent", "left_out"))
        stay = 1 + len(played["rivals"])
        lines.append(f"{say_count(played['seeds'], 'seed')}: {stay} stay in the race, {left} leave")
    lines += _describe_racers(content)
    return "\n".join([*lines, f"{content['state']}: {content['words']}"])


def _describe_racers(content: JsonObject) -> Iterator[str]:
    """Say what is open of each racer, and what the race has cost."""
    for racer in content["racers"]:
        if racer["looks"]:
            seen = racer["looks"][-1]
            words = racer["verdict"]
            if words == "not distinguishable":
                words += f", which takes {_say_seeds(racer['wanted'])} like these to decide"
            yield (
                f"trial {racer['number']} against the leader: e = {seen['e_value']:.3g} of "
                f"{content['wanted_e_value']:.4g}; {words}"
            )
    if hours := content["core_hours"]:
        limit = "" if hours["limit"] is None else f" of {hours['limit']:g}"
        more = "" if hours["needed"] is None else f"; about {hours['needed']:.2g} more would decide"
        yield f"{hours['spent']:.2g}{limit} core-hours{more}"


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
        trials = say_count(side["at_once"], "trial")
        lines.append(f"{trials} at once, sharing engines of {say_count(lanes, 'lane')}")
    lines += [f"{arm} shares no lanes: {why}" for arm, why in side.get("alone", {}).items()]
    lines += [f"warning: {words}" for words in side.get("warnings", [])]
    return ["", *lines] if lines else []


def _format_sizes(arm: JsonObject) -> str:
    ends = dict.fromkeys((arm["smallest_parameters"], arm["largest_parameters"]))
    return " to ".join(format_cell("parameters", end) for end in ends)


def _format_axes(arm: JsonObject) -> str:
    return "; ".join(f"{axis['path']}: {axis['values']}" for axis in arm["axes"]) or "nothing"
