"""What the command line shows a person: live bars, plain lines, tables."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from eigensweep.service.client import Event, Experiment, ServiceAwayError
from eigensweep.service.client.trial_table import COLUMNS, TrialTable, aligned, cell, short

QUIET_SECONDS = 30.0
"""Where there is no terminal, a trial's report is a line only after so long a silence."""


def console() -> Console:
    """Return the console of standard output; into a pipe or file, lines are never folded."""
    return Console(highlight=False, soft_wrap=not sys.stdout.isatty())


def follow(experiment: Experiment, screen: Console) -> None:
    """Show an experiment until it is over: bars on a terminal, else a line for each event."""
    if screen.is_terminal:
        _follow_live(experiment, screen)
    else:
        _follow_lines(experiment, screen)


def _follow_live(experiment: Experiment, screen: Console) -> None:
    running: list[dict[str, Any]] = []
    with Live(board(experiment.content, running), console=screen, auto_refresh=False) as live:
        for _ in experiment.polls(pause=0.5):
            with contextlib.suppress(ServiceAwayError):
                running = experiment.listing(limit=50, state="running")
            live.update(board(experiment.content, running), refresh=True)


def _follow_lines(experiment: Experiment, screen: Console) -> None:
    spoken = time.monotonic()
    for event in experiment.events():
        if event.kind == "trial.report" and time.monotonic() - spoken < QUIET_SECONDS:
            continue
        screen.print(line(event), markup=False)
        spoken = time.monotonic()
    experiment.refresh()


def line(event: Event) -> str:
    """Return an event in a line.

    >>> line(Event("3", "trial.report", {"trial": 4, "arm": "lstm", "step": 50, "steps": 200}))
    'trial 4 lstm report at step 50 of 200'
    """
    subject, _, what = event.kind.partition(".")
    data = event.data
    words = [subject, data.get(subject), data.get("arm"), what]
    if data.get("step") is not None:
        words.append(f"at step {data['step']}")
        words.append(f"of {data['steps']}" if data.get("steps") is not None else None)
    if data.get("value") is not None:
        words.append(f"value {short(data['value'])}")
    if data.get("error"):
        words.append(f"({str(data['error']).strip().splitlines()[-1]})")
    return " ".join(str(word) for word in words if word is not None)


def board(experiment: Mapping[str, Any], running: Sequence[Mapping[str, Any]]) -> RenderableType:
    """Return an experiment's progress with a bar for each running trial."""
    bars = Table.grid(padding=(0, 2))
    progress = experiment["progress"]
    bars.add_row(
        Text(f"{experiment['name']} {experiment['id']}", style="bold"),
        ProgressBar(total=1.0, completed=progress.get("fraction") or 0.0, width=30),
        trial_counts(progress),
        f"{clock(experiment['eta_seconds'])} left" if experiment.get("eta_seconds") else "",
    )
    for trial in running:
        step, steps = trial.get("step") or 0, trial.get("steps") or 1
        bars.add_row(
            f"  {trial['number']} {trial['arm']}",
            ProgressBar(total=steps, completed=step, width=30),
            f"step {step:,} of {steps:,}",
            cell("settings", trial.get("params")),
        )
    return Group(bars, Text(standing(experiment)))


def standing(experiment: Mapping[str, Any]) -> str:
    """Return in a line how far it is and what is best."""
    best, state = experiment.get("best"), experiment["state"]
    if best is None:
        return f"{state}: it waits for its turn" if state == "queued" else f"{state}: no result yet"
    words = f"{state}: best {short(best['value'])}"
    if experiment.get("baseline") is not None:
        words += f", baseline {short(experiment['baseline'])}"
    settings = cell("settings", best.get("params"))
    return f"{words} (trial {best['number']}, {best['arm']} {settings})"


def trial_counts(progress: Mapping[str, Any]) -> str:
    """Return how many trials there are in each state.

    >>> trial_counts({"total": 9, "waiting": 0, "running": 2, "completed": 4, "fraction": 0.5})
    '9 trials: 2 running, 4 completed'
    """
    states = [
        f"{count} {state}"
        for state, count in progress.items()
        if count and state not in {"total", "fraction", "steps_done", "steps_total"}
    ]
    total = progress.get("total")
    head = "trials" if total is None else f"{total} trials"
    return f"{head}: {', '.join(states)}" if states else head


def clock(seconds: float) -> str:
    """Return a duration as hours, minutes and seconds.

    >>> clock(65), clock(7325)
    ('1:05', '2:02:05')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def show_trials(table: TrialTable, screen: Console) -> None:
    """Print ranked trials; on a terminal the MLflow column is a short link."""
    if not screen.is_terminal:
        screen.print(str(table), markup=False)
        return
    columns = COLUMNS[:-1]
    drawn = Table(*columns, "mlflow", box=None, header_style="bold", pad_edge=False)
    for row, texts in zip(table, table.texts(columns), strict=True):
        link = Text("run", style=f"link {row['mlflow']}") if row["mlflow"] else Text("-")
        drawn.add_row(*texts, link, style="green" if row["rank"] == 1 else "")
    screen.print(drawn)


def show_rows(heads: Iterable[str], rows: Iterable[Iterable[Any]], screen: Console) -> None:
    """Print a table of texts; an empty one says so."""
    texts = [["-" if value is None else str(value) for value in row] for row in rows]
    screen.print(aligned(heads, texts) if texts else "none", markup=False)
