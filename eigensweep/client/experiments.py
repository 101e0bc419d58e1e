"""An experiment as a client sees it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
)
from rich.text import Text

from eigensweep.client.answers.answers import (
    Answer,
    describe_importance,
    describe_pareto,
    describe_race,
)
from eigensweep.client.answers.tables import format_arm, format_html
from eigensweep.client.answers.trial_table import TrialTable
from eigensweep.client.connection import PAGE_SIZE
from eigensweep.client.events import Event, read_events
from eigensweep.client.remote import Remote
from eigensweep.client.shapes import TrialJson
from eigensweep.client.spec_file import InputError, with_settings
from eigensweep.client.trial import Trial
from eigensweep.protocol.states import ENDED, Action
from eigensweep.search_spaces.labels import format_done, format_value

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame  # type: ignore[import-untyped]

CURVE = ("trial", "arm", "seed", "step", "metric", "value")
"""Columns of a frame of curves."""
MOST_POINTS = 1000
"""Points of a curve in a figure; of a longer one, evenly spread ones are drawn."""
MOST_ROWS = 5000
"""Points of a curve in a frame: as many as the API gives."""
FEWEST_SEEDS = 3
"""Seeds of which a band is drawn: the interval of two would hide all else."""


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
            rows.append(("done", format_done(self.fraction)))
        if best is not None:
            name = f"best {metric.get('name', 'value')}"
            rows.append((name, f"{format_value(best['value'])}: {format_arm(best)}"))
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
        """The best of the trials that have completed, after a refresh; None before there is one."""
        best = self.refresh().content["best"]
        return None if best is None else Trial(self.connection, best)

    @property
    def trials(self) -> TrialTable:
        """Its trials after a refresh, best first: a list of dicts that prints as a table."""
        self.refresh()
        return TrialTable.rank(self.content, self.listing(sort="value"))

    def listing(self, limit: int | None = None, **filters: Any) -> list[TrialJson]:
        """Return trials as the API lists them: all, or those in a `state` or of an `arm`."""
        path = f"{self.path}/trials"
        found = self.connection.items(path, limit, **filters)
        is_walk = limit is None and filters == {"sort": "value"} and len(found) > PAGE_SIZE
        if self.is_over or not is_walk:
            return found
        # One that ends between two pages moves up, maybe to a page that was read before. It does so
        # once, so each trial is in one of two listings.
        again = self.connection.items(path, **filters)
        known = {trial["number"] for trial in again}
        return again + [trial for trial in found if trial["number"] not in known]

    def trial(self, number: int) -> Trial:
        """Return all that is known of one trial: config, reports, attempts, test scores."""
        return Trial(self.connection, self.connection.get(f"{self.path}/trials/{number}"))

    def curves(self, *trials: int, metric: str | None = None) -> DataFrame:
        """Return learning curves as a DataFrame, one row for each point.

        Its columns are trial, arm, seed, step, metric and value. `trials` are numbers of trials,
        by default the best of each arm; `metric` is one that training logged, such as
        `valid/cross_entropy`, by default all. Of a curve of more than 5,000 points it has evenly
        spread ones, the first and the last among them, and warns of that.

        Raises:
            InputError: if these trials have no curve of this metric; the message lists what is.
        """
        import pandas as pd

        arms = [] if trials else self.connection.get(f"{self.path}/arms")["items"]
        frames, known, longest = [pd.DataFrame(columns=CURVE)], dict[str, None](), 0
        for number in trials or [arm["best"] for arm in arms if arm["best"] is not None]:
            trial = self.trial(number)
            found = self.connection.get(f"{trial['links']['self']}/curves", points=MOST_ROWS)
            for curve in found["items"]:
                known[curve["metric"]] = None
                if metric not in (None, curve["metric"]):
                    continue
                steps, values = curve["steps"], pd.array(curve["values"], dtype="float64")
                frame = pd.DataFrame({"step": steps, "value": values})
                whole = curve.get("points", 0)  # services before 0.4 do not say it
                longest = max(longest, whole if whole > len(steps) else 0)
                about = {"trial": number, "arm": trial["arm"], "seed": curve["seed"]}
                frames.append(frame.assign(**about, metric=curve["metric"])[list(CURVE)])
        if metric is not None and metric not in known:
            words = f"there are {', '.join(known)}" if known else "there is no curve yet"
            raise InputError(f"no curve of these trials is called '{metric}'; {words}")
        if longest:
            words = f"a curve has {longest} points; of each, {MOST_ROWS} at most are here"
            warnings.warn(f"{words}, evenly spread", stacklevel=2)
        return pd.concat(frames[1:] or frames, ignore_index=True)

    def plot(self, metric: str | None = None, *, log: bool | None = None) -> Figure:
        """Return a figure of learning curves: a line for the best trial of each arm.

        It is the mean over the trial's seeds; from three seeds on, a band is the 95% interval.
        `metric` is one that training logged, by default the experiment's on validation data. `log`
        says whether its axis is logarithmic, by default where values span much.
        `plot().savefig("figure.pdf")` writes it to a file.

        Raises:
            InputError: if no trial has a curve yet.
            RefusedError: if there is no such metric; the message lists those that exist.
        """
        from eigensweep.results import figures

        found = self.connection.get(
            f"{self.path}/curves", metric=metric, trials=1, points=MOST_POINTS
        )
        lines = {}
        for each in found["items"]:  # those that are ranked come first
            if each["steps"] and each["arm"] not in lines:
                band = (each["low"], each["high"]) if each["n"] >= FEWEST_SEEDS else ((), ())
                lines[each["arm"]] = figures.Line(each["arm"], each["steps"], each["mean"], *band)
        if not lines:
            raise InputError(f"experiment {self.id} has no learning curve yet")
        split, _, name = found["metric"].partition("/")
        unit = f" ({found['unit']})" if found["unit"] else ""
        named = {"valid": "validation"}.get(split, split) + f" {name.replace('_', ' ')}{unit}"
        return figures.draw_curves(list(lines.values()), named, found["baseline"], log=log)

    def to_latex(self, limit: int | None = None) -> str:
        """Return its ranked trials as a LaTeX table; see `TrialTable.to_latex`."""
        return self.trials.to_latex(limit)

    def pareto(self, *against: str) -> Answer:
        """Return the trials that no other one beats: better in something, and worse in nothing.

        The metric is weighed against `parameters`, `seconds` or other metrics; by default against
        what the spec says, else against `parameters`.
        """
        found = self.connection.get(f"{self.path}/pareto", against=list(against) or None)
        return Answer(found, describe_pareto)

    def race(self) -> Answer:
        """Return which trials got more seeds than others, what each round decided, and who leads.

        `race()["words"]` says it as a sentence.
        """
        return Answer(self.connection.get(f"{self.path}/race"), describe_race)

    def importance(self) -> Answer:
        """Return how much each searched parameter matters, arm by arm.

        `importance()["arms"][0]["parameters"][0]` is the first arm's most important one.
        """
        return Answer(self.connection.get(f"{self.path}/importance"), describe_importance)

    def export(self, path: Path | str) -> Path:
        """Write its trials to a file and return its path: CSV, Parquet or LaTeX by its name.

        A `.journal` is a study of Optuna's, which `optuna-dashboard` opens.

        Raises:
            InputError: if the name has none of these endings.
        """
        path = Path(path)
        if path.suffix == ".tex":
            path.write_text(self.to_latex() + "\n", encoding="utf-8")
        elif path.suffix in (".csv", ".parquet", ".journal"):
            path.write_bytes(self.connection.download(f"{self.path}/trials{path.suffix}"))
        else:
            raise InputError(
                f"{path}: trials are exported to a file named *.csv, *.parquet, *.tex or *.journal"
            )
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
        return self._act("cancel")

    def pause(self) -> Self:
        """Ask the service to pause it: running trials commit and give their places back."""
        return self._act("pause")

    def resume(self) -> Self:
        """Queue it again after a pause: its trials go on from their commits."""
        return self._act("resume")

    def prioritize(self, priority: int) -> Self:
        """Give it another priority: higher ones start first, and have places first."""
        return self._act("prioritize", {"priority": priority})

    def retry(self) -> Self:
        """Try its failed trials again, once it is over: they go on from their last commits.

        If the experiment itself failed, the trials that its failure cut off go on, too.
        """
        return self._act("retry")

    def extend(self, /, **settings: Any) -> Self:
        """Give it more to do, once it is over: `settings` replace fields of its spec.

        `extend(**{"training.steps": 4000, "search.trials": 60})`: trials that completed train on
        from their checkpoints, and more are drawn.

        Raises:
            InputError: if there is no such path.
            RefusedError: if it would be another experiment; the message says why.
        """
        return self._act("extend", with_settings(self.refresh().content["spec"], settings))

    def archive(self) -> Self:
        """Leave it out of lists, once it is over."""
        return self._act("archive")

    def unarchive(self) -> Self:
        """Show it in lists again."""
        return self._act("unarchive")

    def deliver(self) -> Self:
        """Send it to MLflow once more, once it is over: for example after MLflow lost its runs."""
        return self._act("deliver")

    def delete(self, *, confirm: bool) -> None:
        """Remove it for good, once it is over: runs, checkpoints, study and record.

        The service does that in the background; `refresh` raises a RefusedError when it is gone.
        """
        self.connection.post(f"{self.path}/delete", {"confirm": confirm})

    def _act(self, action: Action, body: Mapping[str, object] | None = None) -> Self:
        self.connection.post(f"{self.path}/{action}", body)
        return self.refresh()

    def events(self, after: str | None = None) -> Iterator[Event]:
        """Yield its events from the first, or from the one after the id `after`, to its end.

        A connection that breaks is made again, and the events go on where they stopped.

        Raises:
            ServiceAwayError: if the service is away for more than a minute.
        """
        return read_events(self.connection, self.path, after)


class DoneColumn(ProgressColumn):
    """How much is done, in percent: 100 % once it is all."""

    def render(self, task: Task) -> Text:
        return Text(format_done(task.percentage / 100))


def make_bar(show: bool | None) -> Progress:
    """Return a progress bar on standard error; None shows it to a person only."""
    console = Console(stderr=True)
    if show is None:
        show = console.is_terminal or console.is_jupyter
    columns = (TextColumn("{task.description}"), BarColumn(), DoneColumn())
    more = (TextColumn("{task.fields[state]}"), TimeElapsedColumn())
    return Progress(*columns, *more, console=console, disable=not show)
