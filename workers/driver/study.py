"""Optuna's side of an experiment: samplers draw points by what was tried and how it ended.

Optuna holds a copy of what the ledger holds. `reconcile` brings the copy up to date after a kill,
and makes it again if it was lost. The user attribute `number` of Optuna's trials is the trial's
number in the ledger. A draw that gave no new trial ends as FAIL, which samplers ignore.
"""

from __future__ import annotations

import json
import logging
import math
import os
import weakref
from array import array
from collections import deque
from collections.abc import Generator, Iterable, Iterator, MutableMapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.exceptions import StorageInternalError
from optuna.samplers import BaseSampler
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from optuna.study._tell import _tell_with_warning
from optuna.trial import FrozenTrial, TrialState, create_trial
from sqlalchemy.exc import InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from tenacity import (
    RetryCallState,
    retry,
    retry_if_exception,
    stop_after_delay,
    wait_exponential,
)

from eigensweep.direction import Better, worst_value
from eigensweep.search_spaces.sections import JOINT, LEARNING
from eigensweep.search_spaces.space import Choice, Integer, Parameter, Point, Scalar, Space
from eigensweep.search_spaces.spec import ExperimentSpec
from eigensweep.workers.driver.samplers import make_sampler, mark_generation, quiet
from eigensweep.workers.shared.ledger import NOTHING, TrialEntry
from eigensweep.workers.shared.messages import OBJECTIVE, Json, Source
from eigensweep.workers.shared.objectives import read_goals
from eigensweep.workers.shared.states import Outcome

logger = logging.getLogger(__name__)

NUMBER = "number"
"""User attribute of an Optuna trial: its number in the ledger."""

SOURCE = "source"
"""User attribute of one that another experiment ran: that one's id and the trial's number."""

STATES: dict[Outcome, TrialState] = {
    "completed": TrialState.COMPLETE,
    "reused": TrialState.COMPLETE,
    "pruned": TrialState.PRUNED,
    "diverged": TrialState.PRUNED,
    "stalled": TrialState.FAIL,
    "failed": TrialState.FAIL,
    "cancelled": TrialState.FAIL,
}
"""What Optuna is told of each outcome; it never hears of invalid points."""


DIRECTIONS: dict[Better, Literal["minimize", "maximize"]] = {
    "lower": "minimize",
    "higher": "maximize",
}


PATIENCE = 24 * 3600.0
"""Seconds that a driver waits for Optuna's database while it is away."""


def _is_away(error: BaseException) -> bool:
    """Return whether Optuna's database was locked or out of reach, so that trying again helps."""
    cause = error.__cause__ if isinstance(error, StorageInternalError) else error
    return isinstance(cause, OperationalError | InterfaceError | PoolTimeoutError)


def _log_away(state: RetryCallState) -> None:
    error = None if state.outcome is None else state.outcome.exception()
    cause = str(error.__cause__ or error).split("\n", 1)[0] if error else None
    logger.warning(
        "Optuna's database is away, trying again waited=%.1f error=%s",
        state.seconds_since_start or 0.0,
        cause,
    )


waiting = retry(
    retry=retry_if_exception(_is_away),
    stop=stop_after_delay(PATIENCE),
    wait=wait_exponential(multiplier=0.1, max=10.0),
    before_sleep=_log_away,
    reraise=True,
)
"""Makes a function wait while Optuna's database is away. It may be done twice, which harms nothing:
a trial of Optuna's that nobody knows is told as failed by the next `reconcile`."""


class WaitingStorage(RDBStorage):
    """Optuna's database, which may be away for a while."""


# Optuna's cache, which stands between, calls some of the database's own methods, too.
_OWN = ("_create_new_trial", "_get_trials", "_set_trial_param", "_get_best_trial_id")
for _name in (*BaseStorage.__abstractmethods__, *_OWN):
    setattr(WaitingStorage, _name, waiting(getattr(RDBStorage, _name)))


def open_storage(where: str, experiment: str) -> BaseStorage:
    """Return Optuna's storage: a database where `where` is a URL, else a journal in that folder."""
    if "://" in where:
        few = {"pool_size": 1, "max_overflow": 2, "pool_pre_ping": True}
        return waiting(WaitingStorage)(where, engine_kwargs=few)
    path = Path(where) / f"{experiment}.journal"
    path.parent.mkdir(parents=True, exist_ok=True)
    _mend(path)
    try:
        return JournalStorage(Journal(path))
    except (ValueError, KeyError, TypeError) as error:
        logger.warning("journal unreadable, made again path=%s error=%s", path, error)
        path.rename(path.with_suffix(".broken"))
        return JournalStorage(Journal(path))


def close_storage(storage: BaseStorage) -> None:
    """Close the connections to Optuna's database: this process may have other experiments."""
    if isinstance(storage, RDBStorage):
        storage.remove_session()
        storage.engine.dispose()


class Journal(JournalFileBackend):
    """A journal of one writer that may be lost: it takes no lock and does not wait for the disk.

    The file is read once. After that it holds nothing that was not written here.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(str(path))
        self._path = path
        self._file: int | None = None
        """Where lines are appended, once there are any."""
        self._lines = 0
        """How many lines were read."""
        self._fresh: deque[str] = deque()
        """Lines that were written since, and are still to be read."""

    def read_logs(self, log_number_from: int) -> Generator[Json, None, None]:
        if self._lines == 0 or log_number_from < self._lines:
            self._fresh.clear()
            self._lines = log_number_from
            with self._path.open(encoding="utf-8") as file:
                for line in islice(file, log_number_from, None):
                    self._lines += 1
                    yield json.loads(line)
        while self._fresh:
            self._lines += 1
            yield json.loads(self._fresh.popleft())

    def append_logs(self, logs: list[Json]) -> None:
        lines = [json.dumps(log, separators=(",", ":")) + "\n" for log in logs]
        if self._file is None:
            self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
            weakref.finalize(self, os.close, self._file)
        os.write(self._file, "".join(lines).encode())
        self._fresh.extend(lines)


def _mend(path: Path) -> None:
    """Remove a last line that was not written to its end."""
    if path.exists():
        with path.open("r+b") as file:
            content = file.read()
            file.truncate(content.rfind(b"\n") + 1)


@dataclass(frozen=True)
class Draw:
    """A point that the sampler gave, and the Optuna trial that waits to hear of it."""

    point: Point
    optuna_number: int


class Study:
    """What Optuna knows of one experiment: draws points, keeps how trials end. For one driver.

    Methods that look at all parameters together have a study for each arm, and the arms take
    turns. For the others one study holds all arms, and the arm is one of its parameters.
    """

    def __init__(
        self, storage: BaseStorage, experiment: str, spec: ExperimentSpec, edition: int = 0
    ) -> None:
        """Open the study of an experiment, or make it.

        Each time that the experiment is taken up again, `edition` is higher, and the study is made
        anew from the ledger: what Optuna was told of a trial, and which values a parameter takes,
        cannot be changed.
        """
        space = spec.space()
        experiment = f"{experiment}@{edition}" if edition else experiment
        groups = [[arm] for arm in space.arms] if spec.search.method in JOINT else [space.arms]
        self._parts = [
            _Part(
                storage,
                experiment if len(groups) == 1 else f"{experiment}/{group[0]}",
                spec,
                Space({arm: space.axes(arm) for arm in group}),
            )
            for group in groups
        ]
        self._part_of = {
            arm: part for group, part in zip(groups, self._parts, strict=True) for arm in group
        }

    def reconcile(self, entries: Iterable[TrialEntry]) -> None:
        """Make Optuna agree with the ledger; doing it again changes nothing.

        The ledger's trials come by number, and none is kept.
        """
        for part in self._parts:
            part.look()
        for entry in entries:
            if entry.state != "invalid":
                self._part_of[entry.arm].take_up(entry)
        for part in self._parts:
            part.settle()

    def observe(self, source: Source, earlier: TrialEntry, point: Point) -> None:
        """Tell once how another experiment's trial ended, at its point here; before `reconcile`."""
        self._part_of[point.arm].observe(source, earlier, point)

    def draw(self, *, at_random: bool = False) -> Draw:
        """Return a point from the sampler, or from the random one. It may be an old point."""
        return min(self._parts, key=lambda part: part.turns).draw(at_random)

    def keep(self, draw: Draw, number: int) -> None:
        """Record that a draw became the ledger's trial `number`."""
        self._part_of[draw.point.arm].keep(draw, number)

    def discard(self, draw: Draw) -> None:
        """Record that a draw gave no new trial, so that samplers ignore it."""
        self._part_of[draw.point.arm].discard(draw)

    def add(self, entry: TrialEntry) -> None:
        """Record a trial whose point was not drawn here, and its end if it has one."""
        self._part_of[entry.arm].add(entry)

    def tell(self, entry: TrialEntry) -> None:
        """Tell Optuna how a trial ended, once; do nothing while it is open."""
        self._part_of[entry.arm].tell(entry)

    def trials(self) -> list[FrozenTrial]:
        """Return Optuna's own view of every trial, discarded draws among them.

        Without a sampler that learns, many of those that have ended are the same object.
        """
        return [trial for part in self._parts for trial in part.trials()]


class Numbers(MutableMapping[int, int]):
    """Numbers of Optuna's trials by those of the ledger's, in eight bytes each.

    >>> numbers = Numbers()
    >>> numbers[2] = 7
    >>> dict(numbers), 1 in numbers
    ({2: 7}, False)
    """

    def __init__(self) -> None:
        self._found = array("q")
        """-1 where there is none."""
        self._count = 0

    def __getitem__(self, number: int) -> int:
        if not 0 <= number < len(self._found) or self._found[number] < 0:
            raise KeyError(number)
        return self._found[number]

    def __setitem__(self, number: int, optuna_number: int) -> None:
        self._found.extend([-1] * (number + 1 - len(self._found)))
        self._count += self._found[number] < 0
        self._found[number] = optuna_number

    def __delitem__(self, number: int) -> None:
        raise TypeError("Optuna forgets no trial")

    def __iter__(self) -> Iterator[int]:
        return (number for number, found in enumerate(self._found) if found >= 0)

    def __len__(self) -> int:
        return self._count


class _Part:
    """An Optuna study, of all arms or of one."""

    def __init__(self, storage: BaseStorage, name: str, spec: ExperimentSpec, space: Space) -> None:
        self._goals = spec.goals()
        self._space, self._storage, self._search = space, storage, spec.search
        self._population = spec.population
        self._study = optuna.create_study(
            study_name=name,
            storage=storage,
            directions=[DIRECTIONS[goal.better] for goal in self._goals],
            load_if_exists=True,
        )
        study: Any = self._study
        study._pop_waiting_trial_id = lambda: None  # nobody queues trials; it would look at all
        self._study_id = storage.get_study_id_from_name(name)
        self._worst = [worst_value(goal.better) for goal in self._goals]
        self._seed_anew()
        self._sampler = self._make_sampler()
        self._numbers = Numbers()
        """Numbers of Optuna's trials by those of the ledger's."""
        self._found: dict[int, int] = {}
        """The same, as Optuna had them when this driver began."""
        self._lacked = False
        """Whether Optuna lacked a trial then."""
        self._observed = {
            trial.user_attrs[SOURCE]
            for trial in self.trials()
            if SOURCE in trial.user_attrs
            and trial.state in (TrialState.COMPLETE, TrialState.PRUNED)
        }
        self._axes: dict[tuple[str, ...], dict[str, BaseDistribution]] = {}
        """Descriptions of parameters by their names, as the first trial with these has them."""
        self._ended: dict[tuple[TrialState, tuple[str, ...]], FrozenTrial] = {}
        """The first trial of each state and names of parameters."""
        self.turns = 0
        """How many points were drawn here, those of earlier drivers included."""

    def _seed_anew(self) -> None:
        """Begin another random stream, as the old one would draw the points of old trials again."""
        self._seed = self._search.seed + len(self.trials())
        self._random = optuna.samplers.RandomSampler(seed=self._seed)

    def _make_sampler(self) -> BaseSampler:
        return make_sampler(
            self._search.method, seed=self._seed, population=self._population, told=self.trials()
        )

    def look(self) -> None:
        """Find which trials of the ledger Optuna knows."""
        self._found = dict(self._numbers)
        for trial in self.trials():
            if NUMBER in trial.user_attrs:
                self._found.setdefault(trial.user_attrs[NUMBER], trial.number)
        self.turns, self._lacked = 0, False

    def take_up(self, entry: TrialEntry) -> None:
        """Make Optuna know of a trial what the ledger holds."""
        self.turns += 1
        if entry.number in self._found:
            self._numbers[entry.number] = number = self._found[entry.number]
            self.tell(entry)
            self._keep_little(self._id(number))
        else:
            self.add(entry)
            self._lacked = True

    def settle(self) -> None:
        """Give up what the ledger never took; make the sampler, which learns of all trials."""
        known = set(self._numbers.values())
        for trial in self.trials():
            if trial.number not in known and not trial.state.is_finished():
                self._study.tell(trial.number, state=TrialState.FAIL)
        self._found = {}
        if self._lacked:
            self._seed_anew()
        self._sampler = self._make_sampler()

    def draw(self, at_random: bool) -> Draw:
        self.turns += 1
        self._study.sampler = self._random if at_random else self._sampler
        with quiet():
            trial = self._study.ask()
            return Draw(self._read_point(trial), trial.number)

    def _read_point(self, trial: optuna.Trial) -> Point:
        arms = self._space.arms
        arm = trial.suggest_categorical("arm", arms) if len(arms) > 1 else arms[0]
        params: dict[str, Scalar] = {}
        for path, parameter in self._space.axes(arm).items():
            if parameter.is_active(params):
                params[path] = _suggest(trial, self._name(arm, path), make_distribution(parameter))
        return Point(arm, params)

    def keep(self, draw: Draw, number: int) -> None:
        self._storage.set_trial_user_attr(self._id(draw.optuna_number), NUMBER, number)
        self._numbers[number] = draw.optuna_number

    def discard(self, draw: Draw) -> None:
        self._study.tell(draw.optuna_number, state=TrialState.FAIL)
        self._keep_little(self._id(draw.optuna_number))

    def observe(self, source: Source, earlier: TrialEntry, point: Point) -> None:
        name = f"{source.experiment}/{source.number}"
        if name not in self._observed:
            self._observed.add(name)
            self._tell(self._make(point, {SOURCE: name}), earlier)

    def add(self, entry: TrialEntry) -> None:
        point = Point(entry.arm, entry.params)
        self._numbers[entry.number] = self._make(point, {NUMBER: entry.number})
        self.tell(entry)

    def _make(self, point: Point, marks: Json) -> int:
        """Return the number of a new Optuna trial at a point that was not drawn here."""
        params: dict[str, Scalar] = {}
        distributions: dict[str, BaseDistribution] = {}
        if len(self._space.arms) > 1:
            params["arm"] = point.arm
            distributions["arm"] = CategoricalDistribution(self._space.arms)
        axes = self._space.axes(point.arm)
        for path, value in point.params.items():
            name = self._name(point.arm, path)
            params[name], distributions[name] = value, make_distribution(axes[path])
        place = len(self._numbers) + len(self._observed)
        running = create_trial(
            state=TrialState.RUNNING,
            params=params,
            distributions=distributions,
            user_attrs=marks,
            system_attrs=mark_generation(self._sampler, place),
        )
        trial_id = self._storage.create_new_trial(self._study_id, running)
        return self._storage.get_trial(trial_id).number

    def tell(self, entry: TrialEntry) -> None:
        self._tell(self._numbers[entry.number], entry)

    def _tell(self, number: int, entry: TrialEntry) -> None:
        """Tell Optuna how a trial ended, once; do nothing while it is open.

        Samplers should avoid the region of a trial that diverged; after a FAIL they would ignore it
        and try the region again. TPE learns from PRUNED at step 0 with the worst value. The others
        learn from COMPLETE alone.
        """
        if entry.state not in STATES:
            return
        trial_id = self._id(number)
        trial = self._storage.get_trial(trial_id)
        if trial.state.is_finished():
            return
        state, values = STATES[entry.state], self._read_values(entry)
        if state == TrialState.COMPLETE and any(map(math.isinf, values)):
            state = TrialState.FAIL
        if entry.state == "diverged" and (self._search.method in JOINT or len(values) > 1):
            state, values[0] = TrialState.COMPLETE, self._worst[0]
        elif entry.state == "diverged":
            self._storage.set_trial_intermediate_value(trial_id, 0, self._worst[0])
        elif entry.state == "pruned":
            for step, metrics in entry.reports.items():
                if OBJECTIVE in metrics:
                    self._storage.set_trial_intermediate_value(trial_id, step, metrics[OBJECTIVE])
        told = values if state == TrialState.COMPLETE else None
        # As `Study.tell` does, which then returns a deep copy of the trial.
        _tell_with_warning(self._study, trial.number, told, state, skip_if_finished=True)
        self._keep_little(trial_id)

    def _keep_little(self, trial_id: int) -> None:
        """Let a trial in memory share what it can with the others.

        Optuna's journal gives each trial names, marks and descriptions of its own, which take most
        of its memory. Once it has ended, Optuna does not change them. A sampler that learns looks
        at each trial. The others look at none, so one trial, the first of its state and
        parameters, stands in memory for all that are like it.
        """
        if not isinstance(self._storage, JournalStorage):
            return
        trial = self._storage.get_trial(trial_id)
        own = trial.distributions
        same = self._axes.setdefault(tuple(own), own)
        if same == own:
            trial.distributions = same
        if not trial.state.is_finished():
            return
        little = FrozenTrial(
            number=trial.number,
            trial_id=trial_id,
            state=trial.state,
            value=None,
            values=trial.values,
            datetime_start=None,
            datetime_complete=trial.datetime_complete,
            params={name: trial.params[name] for name in same},
            distributions=trial.distributions,
            user_attrs={k: v for k, v in trial.user_attrs.items() if k != NUMBER} or NOTHING,
            system_attrs=trial.system_attrs or NOTHING,
            intermediate_values=trial.intermediate_values or NOTHING,
        )
        if self._search.method not in LEARNING:
            little = self._ended.setdefault((trial.state, tuple(same)), little)
        self._storage._replay_result._trials[trial_id] = little

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


def _suggest(trial: optuna.Trial, name: str, among: BaseDistribution) -> Scalar:
    if isinstance(among, CategoricalDistribution):
        return trial.suggest_categorical(name, among.choices)
    if isinstance(among, IntDistribution):
        return trial.suggest_int(name, among.low, among.high, step=among.step, log=among.log)
    assert isinstance(among, FloatDistribution)
    return trial.suggest_float(name, among.low, among.high, step=among.step, log=among.log)
