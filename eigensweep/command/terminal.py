"""How the command line follows an experiment: live bars on a terminal, else plain lines.

The board is drawn anew from each answer of the service. `rich.progress.Progress` keeps tasks of its
own, which would have to be matched with the service's trials.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from eigensweep.client import Event, Experiment, RefusedError, ServiceAwayError
from eigensweep.client.answers.answers import count_trials, format_duration
from eigensweep.client.answers.tables import format_arm
from eigensweep.client.connection import UNAVAILABLE
from eigensweep.client.shapes import ExperimentJson, TrialJson
from eigensweep.results.ranking import OBJECTIVE
from eigensweep.search_spaces.labels import describe_settings, format_value

FOLLOWED = 0.2
"""Share of the difference to a new estimate of the time left by which the shown one moves."""
QUIET_SECONDS = 30.0
"""Where there is no terminal, a trial's report is a line only after so long a silence."""


def console() -> Console:
    """Return the console of standard output; in a pipe or a file, lines are never folded."""
    return Console(highlight=False, emoji=False, soft_wrap=not (sys.stdout and sys.stdout.isatty()))


PHASES = {
    "queued": "other experiments run first",
    "waiting_for_room": "no node has room for a trial, or other experiments have it",
    "pausing": "its trials commit what they have",
    "paused": "`eigensweep resume` takes it up again",
}
"""What an experiment without a result is doing, by its state."""


def follow(experiment: Experiment, screen: Console) -> None:
    """Show an experiment until it is over: bars on a terminal, else a line for each event."""
    if screen.is_terminal:
        _follow_live(experiment, screen)
    else:
        _follow_lines(experiment, screen)


def _follow_live(experiment: Experiment, screen: Console) -> None:
    running: list[TrialJson] = []
    left = SteadyEstimate()
    with Live(board(experiment.content, running), console=screen, auto_refresh=False) as live:
        for _ in experiment.poll(pause=0.5):
            found = _list_running(experiment)
            running = running if found is None else found
            content: ExperimentJson = experiment.content.copy()
            content["eta_seconds"] = left.see(content.get("eta_seconds"))
            live.update(board(content, running), refresh=True)


def _list_running(experiment: Experiment) -> list[TrialJson] | None:
    """Return the trials that train; None while the service, or its database, does not answer."""
    try:
        return experiment.listing(limit=50, state="running")
    except ServiceAwayError:
        return None
    except RefusedError as error:
        if error.status in UNAVAILABLE:
            return None
        raise


def _follow_lines(experiment: Experiment, screen: Console) -> None:
    last_line = time.monotonic()
    for event in experiment.events():
        if event.kind == "trial.report" and time.monotonic() - last_line < QUIET_SECONDS:
            continue
        if event.kind == "experiment.notice" and not event.data.get("reason"):
            continue  # its notices have gone away, and nothing is to be told
        screen.print(format_event(event), markup=False)
        last_line = time.monotonic()
    experiment.refresh()


def format_event(event: Event) -> str:
    """Return an event as one line.

    >>> data = {"trial": 4, "arm": "lstm", "step": 50, "steps": 200}
    >>> format_event(Event("3", "trial.report", data))
    'trial 4 lstm report at step 50 of 200'
    """
    subject, _, what = event.kind.partition(".")
    data = event.data
    words = [subject, data.get(subject), data.get("arm"), what]
    if data.get("step") is not None:
        words.append(f"at step {data['step']}")
        words.append(f"of {data['steps']}" if data.get("steps") is not None else None)
    if data.get("source") is not None:
        words.append(f"by trial {data['source']}")
    if data.get("value") is not None:
        words.append(f"value {format_value(data['value'])}")
    if data.get("reason"):
        words.append(f"({str(data['reason']).strip().splitlines()[0]})")
    if data.get("error"):
        words.append(f"({str(data['error']).strip().splitlines()[-1]})")
    return " ".join(str(word) for word in words if word is not None)


def board(experiment: ExperimentJson, running: Sequence[TrialJson]) -> RenderableType:
    """Return an experiment's progress with a bar for each running trial."""
    bars = Table.grid(padding=(0, 2))
    progress = experiment["progress"]
    eta, fraction = experiment.get("eta_seconds"), progress.get("fraction")
    bars.add_row(
        Text(f"{experiment['name']} {experiment['id']}", style="bold"),
        ProgressBar(total=None if fraction is None else 1.0, completed=fraction or 0.0, width=30),
        count_trials(progress),
        f"{format_duration(eta)} left" if eta else "",
    )
    for trial in running:
        step, steps = trial.get("step") or 0, trial.get("steps") or 1
        bars.add_row(
            Text(f"  {trial['number']} {trial['arm']}"),
            ProgressBar(total=steps, completed=step, width=30),
            trial.get("reopened_for") or f"step {step:,} of {steps:,}",
            _format_current(trial),
            Text(describe_settings(trial.get("params") or {})),
        )
    return Group(bars, Text(standing(experiment)))


def standing(experiment: ExperimentJson) -> str:
    """Return the state of an experiment and its best trial so far as one line."""
    best, state = experiment.get("best"), experiment["state"]
    if best is None:
        return f"{state}: {_name_phase(experiment)}"
    words = f"{state}: best {format_value(best['value'])}"
    if experiment.get("baseline") is not None:
        words += f", baseline {format_value(experiment['baseline'])}"
    return f"{words} (trial {best['number']}, {format_arm(best)})"


def _name_phase(experiment: ExperimentJson) -> str:
    """Return what an experiment without a result is doing.

    >>> _name_phase({"state": "running", "progress": {"waiting": 3, "running": 0}})
    'its first trials wait for a process and for room'
    """
    progress, state = experiment["progress"], experiment["state"]
    if state in PHASES:
        return PHASES[state]
    if state not in ("starting", "running") or progress.get("running"):
        return "no result yet"
    waiting = progress.get("waiting")
    return "its first trials wait for a process and for room" if waiting else "its driver starts"


def _format_current(trial: TrialJson) -> str:
    """Return the best value that a running trial has reported so far."""
    value = (trial.get("metrics") or {}).get(OBJECTIVE)
    return "" if value is None else f"best {format_value(value)}"


class SteadyEstimate:
    """An estimate of the time left that follows new estimates slowly, so that it does not jump."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._ends_at: float | None = None

    def see(self, seconds: float | None) -> float | None:
        """Take in a new estimate in seconds, None if there is none; return the steady one.

        >>> steady = SteadyEstimate(clock=lambda: 100.0)
        >>> steady.see(60.0), steady.see(120.0)
        (60.0, 72.0)
        """
        if seconds is None:
            self._ends_at = None
            return None
        now = self._clock()
        shown = seconds if self._ends_at is None else self._ends_at - now
        shown += FOLLOWED * (seconds - shown)
        self._ends_at = now + shown
        return max(0.0, shown)
