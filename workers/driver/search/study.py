"""Optuna's side of an experiment: samplers draw points and learn how earlier ones ended.

Optuna's study is in memory and made from the ledger whenever a driver begins, so nothing has to be
reconciled after a kill. What a sampler notes with a draw (CMA-ES its distribution, NSGA-II the
number of the generation) is in the ledger, with the trial. A draw that gave no new trial ends as
FAIL, which samplers ignore. Methods that do not learn have no study.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Literal
from zlib import crc32

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.storages import InMemoryStorage
from optuna.trial import FrozenTrial, TrialState, create_trial

from eigensweep.common.direction import Better, worst_value
from eigensweep.protocol.ledger import NOTHING, TrialEntry
from eigensweep.results.pareto import read_goals
from eigensweep.results.ranking import OBJECTIVE
from eigensweep.results.trial_result import Outcome
from eigensweep.search_spaces.sections import IN_GENERATIONS, JOINT, LEARNING
from eigensweep.search_spaces.space import Choice, Integer, Parameter, Point, Scalar, Space
from eigensweep.search_spaces.spec import ExperimentSpec
from eigensweep.workers.driver.search.samplers import (
    choose_parents,
    make_sampler,
    mark_generation,
    quiet,
)

STATES: dict[Outcome, TrialState] = {
    "completed": TrialState.COMPLETE,
    "reused": TrialState.COMPLETE,
    "pruned": TrialState.PRUNED,
    "diverged": TrialState.PRUNED,
    "stalled": TrialState.FAIL,
    "failed": TrialState.FAIL,
    "cancelled": TrialState.FAIL,
}
"""Optuna's state for each outcome. Optuna is never told of invalid points."""


DIRECTIONS: dict[Better, Literal["minimize", "maximize"]] = {
    "lower": "minimize",
    "higher": "maximize",
}


@dataclass(frozen=True)
class Draw:
    """A point that the sampler gave."""

    point: Point
    optuna_number: int
    """The Optuna trial that waits for the outcome."""
    sampler_state: dict[str, object] = field(default_factory=lambda: NOTHING)
    """What the sampler noted with it, and needs to know later."""


class Study:
    """What Optuna knows of one experiment: it draws points and learns how trials end.

    Methods that look at all parameters together have a study for each arm, and the arms take
    turns. For the others one study holds all arms, and the arm is one of its parameters.
    """

    def __init__(self, spec: ExperimentSpec) -> None:
        space, method = spec.space(), spec.search.method
        groups = [[arm] for arm in space.arms] if method in JOINT else [space.arms]
        self._parts = [
            _Part(spec, Space({arm: space.axes(arm) for arm in group}))
            for group in (groups if method in LEARNING else [])
        ]
        self._part_of = {arm: part for part in self._parts for arm in part.arms}

    def observe(self, earlier: TrialEntry, point: Point) -> None:
        """Learn how another experiment's trial ended, at its point here; before `take_up`."""
        self._part_of[point.arm].observe(earlier, point)

    def take_up(self, entries: Iterable[TrialEntry]) -> None:
        """Learn what the ledger holds, by number; before the first draw."""
        for entry in entries:
            if entry.state != "invalid":
                self.add(entry)

    def draw(self) -> Draw:
        """Return a point from the sampler. It may be an old point."""
        return min(self._parts, key=lambda part: part.turns).draw()

    def add(self, entry: TrialEntry, draw: Draw | None = None) -> None:
        """Learn of a new trial, whether or not it was drawn here."""
        if (part := self._part_of.get(entry.arm)) is not None:
            part.add(entry, draw)

    def discard(self, draw: Draw) -> None:
        """Learn that a draw gave no new trial, so that samplers ignore it.

        Its arm waits until the others had their turns: a new driver counts trials alone, and the
        arm may be used up.
        """
        part = self._part_of[draw.point.arm]
        part.discard(draw)
        others = (each.turns for each in self._parts if each is not part)
        part.turns = max(part.turns, 1 + max(others, default=0))

    def tell(self, entry: TrialEntry) -> None:
        """Tell Optuna how a trial ended, once; do nothing while it is open."""
        if (part := self._part_of.get(entry.arm)) is not None:
            part.tell(entry)

    def trials(self) -> list[FrozenTrial]:
        """Return Optuna's own view of every trial, discarded draws among them."""
        return [trial for part in self._parts for trial in part.trials()]


@dataclass(frozen=True)
class _TrialEnd:
    """The end of a trial in Optuna's terms."""

    state: TrialState
    values: list[float] | None
    """One for each objective, if the state is COMPLETE."""
    reports: dict[int, float]


class _Part:
    """An Optuna study, for all arms or for one."""

    def __init__(self, spec: ExperimentSpec, space: Space) -> None:
        self._goals, self._search, self._space = spec.goals(), spec.search, space
        self._population = spec.population
        self._storage = InMemoryStorage()
        self._study = optuna.create_study(
            storage=self._storage,
            directions=[DIRECTIONS[goal.better] for goal in self._goals],
        )
        self._study_id = self._storage.get_study_id_from_name(self._study.study_name)
        self._worst = [worst_value(goal.better) for goal in self._goals]
        self._open: dict[int, int] = {}
        """Numbers of Optuna's trials that have not ended, by those of the ledger's."""
        self._count = 0
        """Trials that Optuna knows, but for discarded draws and what had failed before."""
        self._shared: dict[tuple[str, ...], dict[str, BaseDistribution]] = {}
        """Descriptions of parameters, shared by all trials with the same names."""
        self.turns = 0
        """How many points were drawn here, those of earlier drivers included."""
        self._earlier_digest = 0
        """A digest of the trials of earlier experiments that it knows."""
        self._has_begun = False

    def begin(self) -> None:
        """Make the sampler, which learns of all trials so far; the first draw does so.

        Trials that a longer budget opened again have often ended by then, and CMA-ES takes its
        first distribution from trials that have ended. Each driver has its own random stream, and
        so has a search that began with trials of others: the old stream would draw the old points
        again.
        """
        self._study.sampler = make_sampler(
            self._search.method,
            seed=(self._search.seed + self.turns + self._earlier_digest) % 2**32,
            population=self._population,
            told=self.trials(),
            axes=self._list_joint_axes(),
        )
        choose_parents(self._study)
        self._has_begun = True

    def _list_joint_axes(self) -> dict[str, BaseDistribution]:
        """Return the numbers that every trial has: for CMA-ES, which has a study for each arm."""
        axes = sorted(self._space.axes(self.arms[0]).items())
        every = {path: make_distribution(axis) for path, axis in axes if not axis.when}
        return {
            path: among
            for path, among in every.items()
            if not isinstance(among, CategoricalDistribution) and not among.single()
        }

    @property
    def arms(self) -> list[str]:
        return self._space.arms

    def observe(self, earlier: TrialEntry, point: Point) -> None:
        """Learn of a trial; what its sampler noted with it belongs to another space."""
        self._earlier_digest = crc32(earlier.config_hash.encode(), self._earlier_digest)
        self._put(point, replace(earlier, sampler_state=NOTHING))

    def draw(self) -> Draw:
        if not self._has_begun:
            self.begin()
        self.turns += 1
        with quiet():
            trial = self._study.ask()
            point = self._read_point(trial)
            found = self._storage.get_trial(self._id(trial.number))
        state = found.system_attrs if self._search.method in IN_GENERATIONS else NOTHING
        return Draw(point, trial.number, state)

    def _read_point(self, trial: optuna.Trial) -> Point:
        arms = self._space.arms
        arm = trial.suggest_categorical("arm", arms) if len(arms) > 1 else arms[0]
        params: dict[str, Scalar] = {}
        for path, parameter in self._space.axes(arm).items():
            if parameter.is_active(params):
                params[path] = _suggest(trial, self._name(arm, path), parameter)
        return Point(arm, params)

    def add(self, entry: TrialEntry, draw: Draw | None = None) -> None:
        if draw is None:
            self.turns += 1
            self._put(Point(entry.arm, entry.params), entry)
        else:
            self._open[entry.number] = draw.optuna_number
            self._count += 1

    def discard(self, draw: Draw) -> None:
        self._study.tell(draw.optuna_number, state=TrialState.FAIL)
        self._share(draw.optuna_number)

    def _put(self, point: Point, entry: TrialEntry) -> None:
        """Let Optuna know of a trial at a point that was not drawn in this process."""
        params: dict[str, Scalar] = {}
        distributions: dict[str, BaseDistribution] = {}
        if len(self._space.arms) > 1:
            params["arm"] = point.arm
            distributions["arm"] = CategoricalDistribution(self._space.arms)
        axes = self._space.axes(point.arm)
        for path, value in point.params.items():
            name = self._name(point.arm, path)
            params[name], distributions[name] = value, make_distribution(axes[path])
        end = self._read_end(entry) or _TrialEnd(TrialState.RUNNING, None, {})
        values = end.values
        if end.state == TrialState.PRUNED and end.reports:  # as `Study.tell` has it
            values = [end.reports[max(end.reports)]]
        made = create_trial(
            state=end.state,
            values=values,
            params=params,
            distributions=distributions,
            intermediate_values=end.reports,
            system_attrs=entry.sampler_state
            or mark_generation(self._search.method, self._population, self._count),
        )
        number = self._storage.get_trial(
            self._storage.create_new_trial(self._study_id, made)
        ).number
        self._count += end.state != TrialState.FAIL
        if end.state == TrialState.RUNNING:
            self._open[entry.number] = number
        self._share(number)

    def tell(self, entry: TrialEntry) -> None:
        end = self._read_end(entry)
        number = None if end is None else self._open.pop(entry.number, None)
        if end is None or number is None:
            return
        for step, value in end.reports.items():
            self._storage.set_trial_intermediate_value(self._id(number), step, value)
        self._study.tell(number, end.values, end.state)
        self._share(number)

    def _read_end(self, entry: TrialEntry) -> _TrialEnd | None:
        """Return how Optuna is told of a trial's end; None while it is open.

        Samplers should avoid the region of a trial that diverged; after a FAIL they would ignore it
        and try the region again. TPE learns from PRUNED at step 0 with the worst value. The others
        learn from COMPLETE alone.
        """
        if entry.state not in STATES:
            return None
        state, values = STATES[entry.state], self._read_values(entry)
        reports: dict[int, float] = {}
        if state == TrialState.COMPLETE and any(map(math.isinf, values)):
            state = TrialState.FAIL
        learns_from_complete = self._search.method in JOINT or len(values) > 1
        if entry.state == "diverged" and learns_from_complete:
            state, values[0] = TrialState.COMPLETE, self._worst[0]
        elif entry.state == "pruned" and learns_from_complete:  # a person stopped it
            state = TrialState.FAIL
        elif entry.state == "diverged":
            reports = {0: self._worst[0]}
        elif entry.state == "pruned":
            reports = {s: told[OBJECTIVE] for s, told in entry.reports.items() if OBJECTIVE in told}
        return _TrialEnd(state, values if state == TrialState.COMPLETE else None, reports)

    def _share(self, number: int) -> None:
        """Let a trial share its descriptions in memory with the others.

        Optuna gives each trial its own names, marks and descriptions, which take most of the
        memory, and never changes them in place.
        """
        trial = self._storage.get_trial(self._id(number))
        own = trial.distributions
        same = self._shared.setdefault(tuple(own), own)
        if same == own:
            trial.distributions = same
        if not trial.state.is_finished():
            return
        trial.datetime_start, trial.user_attrs = None, NOTHING
        if self._search.method not in IN_GENERATIONS:  # of a draw that other processes wait for
            trial.system_attrs = NOTHING
        trial.intermediate_values = trial.intermediate_values or NOTHING

    def _read_values(self, entry: TrialEntry) -> list[float]:
        """Return the value of each goal, the worst one where it is not known or not finite."""
        names = [goal.name for goal in self._goals]
        read = read_goals(names, entry.result) if entry.result else [None] * len(names)
        return [
            value if value is not None and math.isfinite(value) else worst
            for value, worst in zip(read, self._worst, strict=True)
        ]

    def trials(self) -> list[FrozenTrial]:
        return self._study.get_trials(deepcopy=False)

    def _name(self, arm: str, path: str) -> str:
        return f"{arm}:{path}" if len(self._space.arms) > 1 else path

    def _id(self, optuna_number: int) -> int:
        return self._storage.get_trial_id_from_study_id_trial_number(self._study_id, optuna_number)


def make_distribution(parameter: Parameter) -> BaseDistribution:
    """Return a parameter in Optuna's words, with both ends being values that it takes."""
    if isinstance(parameter, Choice):
        return CategoricalDistribution(parameter.values)
    low, high = parameter.ends()
    if isinstance(parameter, Integer):
        return IntDistribution(int(low), int(high), log=parameter.log, step=parameter.step)
    return FloatDistribution(float(low), float(high), log=parameter.log, step=parameter.step)


def _suggest(trial: optuna.Trial, name: str, parameter: Parameter) -> Scalar:
    """Return what Optuna draws for a parameter, as this parameter writes it.

    Optuna adds steps up in floating point, and its 0.1 + 2 * 0.1 is not 0.3: it would be another
    configuration than 0.3, and no condition on 0.3 would ever hold.
    """
    among = make_distribution(parameter)
    if isinstance(among, CategoricalDistribution):
        return trial.suggest_categorical(name, among.choices)
    if isinstance(among, IntDistribution):
        return trial.suggest_int(name, among.low, among.high, step=among.step, log=among.log)
    assert isinstance(among, FloatDistribution)
    drawn = trial.suggest_float(name, among.low, among.high, step=among.step, log=among.log)
    return drawn if among.step is None else parameter.value(round((drawn - among.low) / among.step))
