"""All replicates of one configuration, trained here and now: for a notebook or a script."""

from __future__ import annotations

import io
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from eigensweep.common.foreign_code import TorchSettings
from eigensweep.common.variables import expand_home
from eigensweep.models.base import Model
from eigensweep.protocol.messages import ConfigJson
from eigensweep.results import figures
from eigensweep.results.seeds import summarise
from eigensweep.results.trial_result import Metrics, Outcome, ReplicateResult, Result
from eigensweep.search_spaces.checks.single_trial import read_trial
from eigensweep.search_spaces.trial import TrialConfig
from eigensweep.store import spectrum_files
from eigensweep.store.checkpoints import Store
from eigensweep.store.commits.curves import CurvePoint
from eigensweep.training.attempt import Paused, Threads
from eigensweep.training.lanes.replicates import gains_by_lanes
from eigensweep.training.training import Training
from eigensweep.training.weights import KeptWeights, NoWeightsError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GLANCE_SECONDS = 0.5
"""Seconds of training between two movements of a progress bar."""

COMMIT_SECONDS = 10.0
"""Seconds of training between two checkpoints in a folder."""


@dataclass(frozen=True, repr=False)
class TrialResult:
    """What came of training one configuration, for a person to look at."""

    config: TrialConfig
    """The configuration, with every default filled in."""
    summary: Result
    """The result of all replicates, with spread and intervals."""
    curves: dict[int, list[CurvePoint]]
    """Each replicate's curve, by its seed."""
    kept: dict[int, KeptWeights]
    """The selected weights of each replicate that has some, by its seed."""

    def load(self, seed: int | None = None) -> Model:
        """Return the trained network of a seed, by default the first, on the CPU.

        It has the weights that validation chose. `network(x)` gives (logits, state), for x of
        shape (τ, B) or (τ, B, m).

        Raises:
            NoWeightsError: if there are none: no evaluation after the first step was finite.
        """
        seed = self.config.seed if seed is None else seed
        if seed not in self.kept:
            known = ", ".join(map(str, self.kept)) or "none"
            raise NoWeightsError(f"seed {seed} has no best weights; seeds that have some: {known}")
        return self.kept[seed].load()

    @property
    def model(self) -> Model:
        """The trained network of the first seed: `load()`."""
        return self.load()

    @property
    def outcome(self) -> Outcome | None:
        """`completed`, or `diverged`."""
        return self.summary.outcome

    @property
    def value(self) -> float | None:
        """Mean of the best validation values of the objective."""
        return self.summary.value

    @property
    def baseline(self) -> float | None:
        """What a memoryless model scores, to compare `value` with."""
        return self.summary.baseline

    @property
    def test(self) -> Metrics:
        """Mean of each test metric at the selected points."""
        return self.summary.test

    @property
    def replicates(self) -> tuple[ReplicateResult, ...]:
        """The result of each seed."""
        return self.summary.by_replicate

    def plot(self, *, log: bool | None = None) -> Figure:
        """Return a figure of the objective's validation curve, a line for each seed.

        `log` says whether the axis of values is logarithmic, by default where they span much.
        `plot().savefig("curve.pdf")` writes it to a file.
        """
        metric = self.config.objective_metric
        lines = []
        for seed, points in self.curves.items():
            seen = [(p.step, p.metrics.get(f"valid/{metric.name}")) for p in points]
            known = [(step, value) for step, value in seen if value is not None]
            steps, values = [step for step, _ in known], [value for _, value in known]
            lines.append(figures.Line(f"seed {seed}", steps, values))
        named = f"validation {metric.name.replace('_', ' ')} ({metric.unit})"
        return figures.draw_curves(lines, named, self.baseline, log=log)

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the numbers and the curves."""
        picture = io.StringIO()
        self.plot().savefig(picture, format="svg")
        svg = picture.getvalue()
        cells = "".join(
            f"<tr><td>{escape(name)}</td><td>{escape(words)}</td></tr>"
            for name, words in self._list_numbers()
        )
        return f"<table>{cells}</table>{svg[svg.index('<svg') :]}"

    def __repr__(self) -> str:
        numbers = list(self._list_numbers())
        width = max(len(name) for name, _ in numbers) + 2
        return "\n".join(f"{name:<{width}}{words}" for name, words in numbers)

    def _list_numbers(self) -> Iterator[tuple[str, str]]:
        """Yield what a person sees first, each with its name."""
        config, intervals = self.config, self.summary.interval
        yield "trained", f"{config.model.name} on {config.task.name}"
        yield "outcome", str(self.outcome)
        for name, value in (("value", self.value), ("baseline", self.baseline)):
            yield name, _show(value, intervals.get(name))
        for metric, score in self.test.items():
            yield f"test {metric}", _show(score, intervals.get(f"test/{metric}"))


def train(
    config: TrialConfig | ConfigJson,
    *,
    data_root: Path | str | None = None,
    device: str | None = None,
    cpus: float = 1.0,
    on_point: Callable[[int, CurvePoint], None] | None = None,
    folder: Path | str | None = None,
    progress: bool | None = None,
) -> TrialResult:
    """Train every replicate of a configuration, here and now, and return the result.

    With a `folder`, checkpoints are kept in it: called again after an interruption, or with a
    longer budget, training goes on from there. `on_point(seed, point)` is called with each point of
    the curve, by one thread at a time. `device` is a GPU by default, if there is one. `progress`
    shows a bar for each seed, by default on a terminal and in a notebook. Corpora are read from
    `data_root`, by default the folder that EIGENSWEEP_DATA_ROOT names.

    On one machine the numbers are those of a trial of the service with the same `resources.cpus`,
    to the last digit. With more `cpus` so many replicates train at once, each with one core; three
    or more of most networks with up to 64 units share one core, which is mostly faster. A single
    replicate has them all: large networks train faster, and the last digits differ.

    Raises:
        SpecError: if a field is wrong, with its place, what came, and what exists.
        ValueError: if fields contradict one another, with what is allowed.
    """
    config = config.resolve() if isinstance(config, TrialConfig) else read_trial(config)
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    named = os.environ.get("EIGENSWEEP_DATA_ROOT", "").strip()
    data_root = data_root or (expand_home(named) if named else None)
    store, before = Store(folder) if folder else None, torch.get_num_threads()
    flushes = (torch.tensor(torch.finfo(torch.float32).tiny) / 2).item() == 0
    threads = Threads.of(config, cpus, device)
    settings = TorchSettings.read()
    threads.set_up()
    try:
        with _make_bars(progress) as bars:
            replicates = [
                _Replicate(
                    Training(config, seed, data_root=data_root, device=device),
                    store,
                    on_point,
                    bars,
                    threads,
                )
                for seed in config.seeds
            ]
            if gains_by_lanes(config, device):
                _train_side_by_side(replicates)
            else:
                threads.run([replicate.train for replicate in replicates])
    finally:
        torch.set_num_threads(before)
        settings.put()
        torch.set_flush_denormal(flushes)
    results = [replicate.training.result() for replicate in replicates]
    curves = {replicate.training.seed: replicate.curve for replicate in replicates}
    kept = {
        each.training.seed: KeptWeights(config, each.training.seed, best.step, best.weights)
        for each in replicates
        if (best := each.training.selection.best) is not None
    }
    return TrialResult(config, summarise(results), curves, kept)


class _Replicate:
    """One training, with its checkpoints, its curve and its bar."""

    def __init__(
        self,
        training: Training,
        store: Store | None,
        on_point: Callable[[int, CurvePoint], None] | None,
        bars: Progress,
        threads: Threads,
    ) -> None:
        """Go on from the newest checkpoint in the store, if there is one."""
        self.training, self.curve = training, list[CurvePoint]()
        self._store, self._on_point, self._bars, self._threads = store, on_point, bars, threads
        self._bar = bars.add_task(f"seed {training.seed}", total=training.steps, value="")
        self._key, self._attempt = f"{training.config.content_hash()}/{training.seed}", 0
        self._committed = time.monotonic()
        if store is not None:
            self._attempt = store.attempt(self._key) + 1
            store.begin(self._key, self._attempt)
            if snapshot := store.newest(self._key):
                if not training.can_use(snapshot.state):
                    raise ValueError(
                        f"{store.place} has this training at step {snapshot.step:,}, and "
                        f"'training.steps' is {training.steps:,}: give more, or another folder"
                    )
                training.load_state_dict(snapshot.state)
                self.curve += snapshot.points

    def train(self) -> None:
        """Train to the end."""
        self.training.run(None, self.glance, GLANCE_SECONDS, self._threads.at_once)
        self.commit()

    def commit(self, update: Callable[[], None] | None = None) -> None:
        """Keep what is new; `update` makes the training's tensors current."""
        training, store = self.training, self._store
        self._committed = time.monotonic()
        points, spectra = training.drain(), training.drain_spectra()
        if store is not None:
            if update is not None:
                update()
            for step, content in spectra:
                spectrum_files.write(store, self._key, self._attempt, step, content)
            store.commit(self._key, self._attempt, training.step, training.state_dict(), points)
        last = self.curve[-1].step if self.curve else -1
        for point in points:
            if point.step <= last:
                continue  # after a damaged checkpoint it comes a second time
            self.curve.append(point)
            if self._on_point is not None:
                with self._threads.turn:
                    self._on_point(training.seed, point)

    def glance(self, update: Callable[[], None] | None = None) -> None:
        """Move the bar, and commit if it is time for that."""
        best = self.training.selection.best
        words = "" if best is None else f"best {best.value:.4g}"
        self._bars.update(self._bar, completed=self.training.step, value=words)
        is_evaluated = self.training.step % self.training.evaluate_every == 0
        if is_evaluated or time.monotonic() - self._committed >= COMMIT_SECONDS:
            self.commit(update)
        if self._threads.stop.is_set():
            raise Paused


def _train_side_by_side(replicates: Sequence[_Replicate]) -> None:
    """Train all replicates to the end, as lanes of one group."""
    # loads what most configs never need
    from eigensweep.training.lanes.stacked.group import Group, LaneError

    behind = [each for each in replicates if not each.training.is_finished]
    if behind:
        group = Group(behind[0].training, len(replicates))
        try:
            for each in behind:
                group.join(each.training)
            while behind:
                group.advance(GLANCE_SECONDS)
                for each in list(behind):
                    if each.training.is_finished:
                        group.leave(each.training)
                        behind.remove(each)
                    each.glance(partial(group.update, each.training) if each in behind else None)
        except LaneError as error:  # what was wrong is its cause, as without lanes
            cause = error.__cause__ or error
            raise cause from cause.__cause__
        finally:
            group.close()
    for each in replicates:
        each.commit()


def _make_bars(show: bool | None) -> Progress:
    """Return progress bars on standard error; None shows them to a person only."""
    console = Console(stderr=True)
    if show is None:
        show = console.is_terminal or console.is_jupyter
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    more = (TextColumn("{task.fields[value]}"), TimeRemainingColumn())
    return Progress(*columns, *more, console=console, disable=not show)


def _show(value: object, interval: tuple[float, float] | None = None) -> str:
    words = f"{value:.4g}" if isinstance(value, float) else str(value)
    return words if interval is None else f"{words} [{interval[0]:.4g} to {interval[1]:.4g}]"
