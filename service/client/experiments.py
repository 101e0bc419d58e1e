"""An experiment as a client sees it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from eigensweep.search_spaces.labels import format_value
from eigensweep.service.client.connection import JsonObject
from eigensweep.service.client.events import Event, read_events
from eigensweep.service.client.remote import Remote
from eigensweep.service.client.spec_file import InputError, with_settings
from eigensweep.service.client.tables import format_cell, format_html
from eigensweep.service.client.trial import Trial
from eigensweep.service.client.trial_table import TrialTable
from eigensweep.workers.shared.states import ENDED


class Experiment(Remote):
    """An experiment.

    Its states: `queued`, `starting`, `waiting_for_room`, `running`, `pausing`, `paused`,
    `cancelling`, and in the end `completed`, `cancelled` or `failed`.
    """

    kind = "experiment"
    listing_path = "/v1/experiments"

    def __repr__(self) -> str:
        return f"<Experiment {self.id} {self.name} {self.state}>"

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the state and the best trial of the last answer."""
        best, metric = self.content.get("best"), self.content.get("metric") or {}
        rows = [("experiment", f"{self.id} {self.name}"), ("state", self.state)]
        if self.fraction is not None:
            rows.append(("done", f"{self.fraction:.0%}"))
        if best is not None:
            name = f"best {metric.get('name', 'value')}"
            settings = format_cell("settings", best.get("params"))
            rows.append((name, f"{format_value(best['value'])}: {best['arm']} {settings}"))
        if self.content.get("baseline") is not None:
            rows.append(("baseline", format_value(self.content["baseline"])))
        return format_html((), rows)

    @property
    def name(self) -> str:
        return str(self.content["name"])

    @property
    def fraction(self) -> float | None:
        """Share of its work that was done by the last answer, 0 to 1; None while unknown."""
        progress = self.content.get("progress") or {}
        return progress.get("fraction")

    @property
    def is_over(self) -> bool:
        return self.state in ENDED

    @property
    def best(self) -> Trial | None:
        """The best trial so far, after a refresh; None before there is one."""
        best: JsonObject | None = self.refresh().content["best"]
        return None if best is None else Trial(self.connection, best)

    @property
    def trials(self) -> TrialTable:
        """Its trials after a refresh, best first: a list of dicts that prints as a table."""
        self.refresh()
        return TrialTable.rank(self.content, self.listing(sort="value"))

    def listing(self, limit: int | None = None, **filters: Any) -> list[JsonObject]:
        """Return trials as the API lists them: all, or those in a `state` or of an `arm`."""
        return self.connection.items(f"{self.path}/trials", limit, **filters)

    def trial(self, number: int) -> Trial:
        """Return all that is known of one trial: config, reports, attempts, test scores."""
        return Trial(self.connection, self.connection.get(f"{self.path}/trials/{number}"))

    def pareto(self, *against: str) -> JsonObject:
        """Return the trials that no other one beats: better in something, and worse in nothing.

        The metric is weighed against `parameters`, `seconds` or other metrics; by default against
        what the spec says, else against `parameters`.
        """
        return self.connection.get(f"{self.path}/pareto", against=list(against) or None)

    def race(self) -> JsonObject:
        """Return which trials got more seeds than others, what each round decided, and who leads.

        `race()["words"]` says it as a sentence.
        """
        return self.connection.get(f"{self.path}/race")

    def importance(self) -> JsonObject:
        """Return how much each searched parameter matters, arm by arm.

        `importance()["arms"][0]["parameters"][0]` is the first arm's most important one.
        """
        return self.connection.get(f"{self.path}/importance")

    def export(self, path: Path | str) -> Path:
        """Write all trials to a file, CSV or Parquet by its name, and return its path.

        Raises:
            InputError: if the name ends in neither `.csv` nor `.parquet`.
        """
        path = Path(path)
        if path.suffix not in (".csv", ".parquet"):
            raise InputError(f"{path}: trials are exported to a file named *.csv or *.parquet")
        path.write_bytes(self.connection.download(f"{self.path}/trials{path.suffix}"))
        return path

    def wait(
        self, timeout: float | None = None, pause: float = 1.0, *, progress: bool | None = None
    ) -> Self:
        """Return once it is over; `state` says how it ended. See `poll`.

        `progress` shows a bar, by default on a terminal and in a notebook.

        Raises:
            TimeoutError: if that takes longer than `timeout` seconds.
        """
        with make_bar(progress) as bar:
            task = bar.add_task(self.id, total=1.0, state=self.state)

            def see() -> None:
                bar.update(task, completed=self.fraction, state=self.state)

            return self._wait(timeout, pause, see)

    def cancel(self) -> Self:
        """Ask the service to cancel it: running trials stop at their next step."""
        self.connection.post(f"{self.path}/cancel")
        return self.refresh()

    def pause(self) -> Self:
        """Ask the service to pause it: running trials commit and give their places back."""
        self.connection.post(f"{self.path}/pause")
        return self.refresh()

    def resume(self) -> Self:
        """Queue it again after a pause: its trials go on from their commits."""
        self.connection.post(f"{self.path}/resume")
        return self.refresh()

    def prioritize(self, priority: int) -> Self:
        """Give it another priority: higher ones start first, and have places first."""
        self.connection.post(f"{self.path}/prioritize", {"priority": priority})
        return self.refresh()

    def retry(self) -> Self:
        """Try its failed trials again, once it is over: they go on from their last commits."""
        self.connection.post(f"{self.path}/retry")
        return self.refresh()

    def extend(self, **settings: Any) -> Self:
        """Give it more to do, once it is over: `settings` replace fields of its spec.

        `extend(**{"training.steps": 4000, "search.trials": 60})`: trials that completed train on
        from their checkpoints, and more are drawn.

        Raises:
            InputError: if there is no such path.
            RefusedError: if it would be another experiment; the message says why.
        """
        spec = with_settings(self.refresh().content["spec"], settings)
        self.connection.post(f"{self.path}/extend", spec)
        return self.refresh()

    def archive(self) -> Self:
        """Leave it out of lists, once it is over."""
        self.connection.post(f"{self.path}/archive")
        return self.refresh()

    def unarchive(self) -> Self:
        """Show it in lists again."""
        self.connection.post(f"{self.path}/unarchive")
        return self.refresh()

    def delete(self, *, confirm: bool) -> None:
        """Remove it for good, once it is over: runs, checkpoints, study and record.

        The service does that in the background; `refresh` raises a RefusedError when it is gone.
        """
        self.connection.post(f"{self.path}/delete", {"confirm": confirm})

    def events(self, after: str | None = None) -> Iterator[Event]:
        """Yield its events from the first, or from the one after the id `after`, to its end.

        A connection that breaks is made again, and the events go on where they stopped.

        Raises:
            ServiceAwayError: if the service is away for more than a minute.
        """
        return read_events(self.connection, self.path, after)


def make_bar(show: bool | None) -> Progress:
    """Return a progress bar on standard error; None shows it to a person only."""
    console = Console(stderr=True)
    if show is None:
        show = console.is_terminal or console.is_jupyter
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:.0f} %"))
    more = (TextColumn("{task.fields[state]}"), TimeElapsedColumn())
    return Progress(*columns, *more, console=console, disable=not show)
