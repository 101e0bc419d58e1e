"""RecordLedger: a driver's way into the record, from whatever process it runs in."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar, cast
from uuid import uuid4

from sqlalchemy import ColumnElement, Connection, bindparam, or_, select, update
from sqlalchemy.orm import Session

from eigensweep.service.record import database
from eigensweep.service.record.journal import (
    budget_of,
    close_attempt,
    emit_trial,
    end_experiment,
    finish_trial,
    interrupt_trial,
    move_experiment,
    move_trial,
    reopen_trial,
    replace_non_finite,
    spent_seconds,
    tell,
)
from eigensweep.service.record.rows import Rows, RowSession, read_first
from eigensweep.service.record.shares import ask_for, read_allotment
from eigensweep.service.record.tables import (
    AttemptRow,
    EarlierJson,
    ExperimentRow,
    PlaceJson,
    ReportRow,
    ResultJson,
    TrialRow,
)
from eigensweep.service.record.usage import count_use
from eigensweep.workers.shared.fair_shares import Allotment, Want
from eigensweep.workers.shared.ledger import (
    NOTHING,
    PAUSED,
    Earlier,
    Finished,
    RungReport,
    StaleWriteError,
    Standing,
    SupersededError,
    TrialEntry,
)
from eigensweep.workers.shared.messages import (
    ConfigJson,
    Metrics,
    Notice,
    Params,
    Place,
    Result,
    Source,
    Takeover,
)
from eigensweep.workers.shared.results import cut_seeds
from eigensweep.workers.shared.states import (
    DRIVEN,
    ENDED,
    EXPERIMENT_MOVES,
    INSTRUCTIVE,
    OUTCOMES,
    ExperimentEnd,
    Intent,
    Outcome,
    Phase,
    intent_of,
)

T = TypeVar("T")

COMPLETED: Final = (
    select(TrialRow.number)
    .where(
        TrialRow.config_hash == bindparam("name"),
        or_(TrialRow.state == "completed", TrialRow.state == "diverged"),
    )
    .limit(1)
)
"""Finds a trial of a configuration that has ended with a result, by its hash."""

AT_ONCE: Final = 500
"""Trials that are read in one transaction."""

CLOSED = "it was cancelled before; then its failed trials were tried again"
"""Why an experiment is cancelled whose failed trials were tried again."""


@dataclass(frozen=True)
class RecordLedger:
    """One experiment's part of the record, written by one generation of its driver.

    Picklable: a connection is opened where it is used. While the database is locked or away every
    call waits and tries again, for `patience` seconds.

    What `database.write_relaxed` writes may be lost if the machine loses its power, until the next
    other write: a trial that was opened, and what it reported. Then it is opened anew, or
    reports the same again from what it has committed. That an attempt begins is never lost.
    """

    database_url: str
    experiment_id: str
    generation: int
    patience: float = 24 * 3600.0

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        database.hold_few_connections(self.database_url)  # this is a driver's process

    def load(self) -> list[TrialEntry]:
        return list(self.walk())

    def walk(self) -> Iterator[TrialEntry]:
        first = 0
        while part := database.read(self.database_url, partial(self._load, first), self.patience):
            yield from part
            first = part[-1].number + 1

    def _load(self, first: int, session: Session) -> list[TrialEntry]:
        """Return the next trials from a number on, `AT_ONCE` at most."""
        mine = select(TrialRow).where(
            TrialRow.experiment_id == self.experiment_id, TrialRow.number >= first
        )
        trials = list(session.scalars(mine.order_by(TrialRow.number).limit(AT_ONCE)))
        if not trials:
            return []
        last = trials[-1].number
        reports: dict[int, dict[int, Metrics]] = {}
        of_these = select(ReportRow).where(
            ReportRow.experiment_id == self.experiment_id, ReportRow.number.between(first, last)
        )
        for report in session.scalars(of_these.order_by(ReportRow.number, ReportRow.step)):
            reports.setdefault(report.number, {})[report.step] = report.metrics
        tried = select(AttemptRow).where(
            AttemptRow.experiment_id == self.experiment_id, AttemptRow.number.between(first, last)
        )
        places = {
            attempt.number: Place.from_dict(attempt.place)
            for attempt in session.scalars(tried.order_by(AttemptRow.number, AttemptRow.attempt))
            if attempt.place
        }
        return [
            _entry(trial, reports.get(trial.number, {}), places.get(trial.number))
            for trial in trials
        ]

    def open(
        self,
        number: int,
        arm: str,
        params: Params,
        config: ConfigJson,
        config_hash: str,
        sampler_state: dict[str, object] = NOTHING,
    ) -> None:
        def work(session: RowSession, experiment: ExperimentRow) -> None:
            if session.get(TrialRow, (self.experiment_id, number)) is None:
                trial = TrialRow(
                    experiment_id=self.experiment_id,
                    number=number,
                    arm=arm,
                    params=replace_non_finite(params),
                    config=replace_non_finite(config),
                    config_hash=config_hash,
                    seed=config.get("seed", 0),
                    replicates=config.get("replicates", 1),
                    steps=budget_of(config),
                    sampler_state=sampler_state or None,
                )
                session.add(trial)

        self._write_rows(work, database.write_relaxed)

    def open_invalid(self, number: int, arm: str, params: Params, error: str) -> None:
        def work(session: Session, experiment: ExperimentRow) -> None:
            if session.get(TrialRow, (self.experiment_id, number)) is None:
                trial = TrialRow(
                    experiment_id=self.experiment_id,
                    number=number,
                    arm=arm,
                    params=replace_non_finite(params),
                    steps=0,
                    step=0,
                    attempt=0,
                )
                session.add(trial)
                finish_trial(session, experiment, trial, "invalid", None, error)

        self._write(work)

    def begin(self, number: int, place: Place | None = None) -> int:
        token = uuid4().hex

        def work(session: RowSession, experiment: ExperimentRow) -> int:
            trial = self._trial(session, number)
            key = self.experiment_id, number, trial.attempt
            newest = session.get(AttemptRow, key) if trial.attempt else None
            if newest is not None and newest.token == token:
                return trial.attempt  # committed before, and the answer was lost
            if trial.state in OUTCOMES:
                raise StaleWriteError(f"trial {number} has ended already: {trial.state}")
            close_attempt(session, trial, "its driver was lost")
            kind = move_trial(trial, "running")
            trial.attempt += 1
            trial.started_at = trial.started_at or time.time()
            started = AttemptRow(
                experiment_id=self.experiment_id,
                number=number,
                attempt=trial.attempt,
                started_at=time.time(),
                token=token,
                place={} if place is None else cast(PlaceJson, place.to_dict()),
            )
            session.add(started)
            if experiment.state in ("starting", "waiting_for_room"):
                move_experiment(session, experiment, "running")
            emit_trial(session, experiment, trial, kind, params=trial.params)
            return trial.attempt

        return self._write_rows(work)

    def interrupt(self, number: int, attempt: int, reason: str) -> None:
        def work(session: RowSession, experiment: ExperimentRow) -> None:
            trial = self._trial(session, number, attempt)
            if trial.state == "running":
                interrupt_trial(session, experiment, trial, reason)

        self._write_rows(work)

    def report(
        self, number: int, attempt: int, step: int, metrics: Metrics, place: Place | None
    ) -> None:
        def work(session: RowSession, experiment: ExperimentRow) -> None:
            trial = self._trial(session, number, attempt)
            self._report(session, experiment, trial, attempt, RungReport(step, metrics, place))

        self._write_rows(work, database.write_relaxed)

    def _report(
        self,
        session: RowSession,
        experiment: ExperimentRow,
        trial: TrialRow,
        attempt: int,
        told: RungReport,
    ) -> None:
        number, step = trial.number, told.step
        started = session.get(AttemptRow, (self.experiment_id, number, attempt))
        if started is not None and told.place is not None:
            started.place = cast(PlaceJson, told.place.to_dict())
        if started is not None and started.ended_at is None:
            count_use(session, trial, started)
        known = session.get(ReportRow, (self.experiment_id, number, step))
        if trial.state in OUTCOMES or known is not None:
            return
        kept = {
            name: value
            for name, value in replace_non_finite(told.metrics).items()
            if value is not None
        }
        trial.step = max(trial.step, step)
        if not kept:
            return
        report = ReportRow(
            experiment_id=self.experiment_id,
            number=number,
            step=step,
            attempt=attempt,
            metrics=kept,
            at=time.time(),
        )
        session.add(report)
        emit_trial(session, experiment, trial, "report", metrics=kept)

    def finish(
        self,
        number: int,
        attempt: int,
        outcome: Outcome,
        result: Result | None = None,
        error: str | None = None,
        last: RungReport | None = None,
    ) -> None:
        def work(session: RowSession, experiment: ExperimentRow) -> None:
            trial = self._trial(session, number, attempt)
            if last is not None:
                self._report(session, experiment, trial, attempt, last)
            if trial.state not in OUTCOMES:
                content = None if result is None else cast(ResultJson, result.to_dict())
                finish_trial(session, experiment, trial, outcome, content, error)

        self._write_rows(work, database.write_relaxed)

    def reopen(self, number: int, config: ConfigJson, reason: str) -> None:
        def work(session: Session, experiment: ExperimentRow) -> None:
            trial = self._trial(session, number)
            if trial.state in OUTCOMES:
                reopen_trial(session, experiment, trial, config, reason)

        self._write(work)

    def knows(self, config_hash: str) -> bool:
        def work(connection: Connection) -> bool:
            return read_first(connection, COMPLETED, {"name": config_hash}) is not None

        return database.look(self.database_url, work, self.patience)

    def find_finished(
        self, config_hash: str, seed: int, replicates: int, steps: int
    ) -> Finished | None:
        ended = [TrialRow.steps == steps, TrialRow.result.is_not(None)]
        return self._find_completed(config_hash, seed, replicates, *ended, first=TrialRow.ended_at)

    def find_shorter(
        self, config_hash: str, seed: int, replicates: int, steps: int
    ) -> Finished | None:
        budget = TrialRow.steps < steps
        return self._find_completed(
            config_hash, seed, replicates, budget, first=TrialRow.steps.desc()
        )

    def find_part(self, config_hash: str, seed: int, steps: int) -> Finished | None:
        ended = [TrialRow.steps == steps, TrialRow.result.is_not(None)]
        states = or_(TrialRow.state == "completed", TrialRow.state == "diverged")
        most = TrialRow.replicates.desc()
        return self._find_completed(config_hash, seed, None, *ended, first=most, states=states)

    def _find_completed(
        self,
        config_hash: str,
        seed: int,
        replicates: int | None,
        *conditions: ColumnElement[bool],
        first: Any,
        states: ColumnElement[bool] = TrialRow.state == "completed",
    ) -> Finished | None:
        def work(session: Session) -> Finished | None:
            same = select(TrialRow).where(
                TrialRow.config_hash == config_hash,
                TrialRow.lineage.is_(None),
                states,
                TrialRow.seed == seed,
                TrialRow.replicates >= (replicates or 1),
                *conditions,
            )
            rows = session.scalars(same.order_by(first, TrialRow.replicates))
            found = next((row for row in rows if _is_by_its_code(row) and _is_whole(row)), None)
            if found is None:
                return None
            source = Source(found.experiment_id, found.number, found.run_id)
            result = Result.from_dict(found.result or {})
            if replicates is not None and found.replicates != replicates:
                result = cut_seeds(result, replicates)
            return Finished(source, result)

        return database.read(self.database_url, work, self.patience)

    def load_earlier(self, experiments: Sequence[str]) -> list[tuple[Source, TrialEntry]]:
        return load_earlier(self.database_url, experiments, self.patience)

    def read_round(self) -> int:
        def work(session: Session) -> int:
            mine = ExperimentRow.id == self.experiment_id
            return session.scalars(select(ExperimentRow.round_step).where(mine)).one()

        return database.read(self.database_url, work, self.patience)

    def end_round(self, step: int, takeovers: Mapping[int, Takeover]) -> None:
        def work(session: Session, experiment: ExperimentRow) -> None:
            if experiment.round_step >= step:
                return  # committed before, and the answer was lost
            experiment.round_step = step
            for number, taken in sorted(takeovers.items()):
                trial = self._trial(session, number)
                trial.lineage = [*(trial.lineage or []), taken.to_dict()]
                trial.step = step
                emit_trial(
                    session,
                    experiment,
                    trial,
                    "replaced",
                    source=taken.source,
                    params=taken.params,
                )

        self._write(work)

    def set_run(self, number: int | None, run_id: str, project_id: str) -> None:
        def work(session: Session, experiment: ExperimentRow) -> None:
            holder = experiment if number is None else self._trial(session, number)
            holder.run_id, holder.run_project = run_id, project_id

        self._write(work)

    def experiment_run(self) -> str | None:
        def work(session: Session) -> str | None:
            mine = ExperimentRow.id == self.experiment_id
            return session.scalars(select(ExperimentRow.run_id).where(mine)).one()

        return database.read(self.database_url, work, self.patience)

    def set_tracked(self, number: int | None) -> None:
        def work(session: Session, experiment: ExperimentRow) -> None:
            holder = experiment if number is None else self._trial(session, number)
            holder.tracked = True
            if number is None:
                experiment.notices = None

        self._write(work)

    def set_delivered(
        self, runs: Mapping[int, str], project_id: str, whole: Collection[int]
    ) -> None:
        mine = TrialRow.experiment_id == self.experiment_id
        # Over the primary key, and without reading: a trial's row holds its whole result.
        tell = update(TrialRow).where(mine, TrialRow.number == bindparam("trial"))

        def work(session: Session, experiment: ExperimentRow) -> None:
            connection = session.connection()
            if runs:
                told = [{"trial": number, "run": run} for number, run in runs.items()]
                values = {"run_id": bindparam("run"), "run_project": project_id}
                connection.execute(tell.values(values), told)
            if whole:
                connection.execute(tell.values(tracked=True), [{"trial": n} for n in whole])

        self._write(work)

    def set_total(self, trials: int | None) -> None:
        def work(session: Session, experiment: ExperimentRow) -> None:
            experiment.total = trials

        self._write(work)

    def intent(self) -> Intent:
        """Return what the person wants of this experiment now.

        Raises:
            StaleWriteError: if this driver has a successor; so it learns of it while idle.
        """

        def work(session: Session) -> Intent:
            mine = ExperimentRow.id == self.experiment_id
            columns = select(ExperimentRow.state, ExperimentRow.generation).where(mine)
            state, generation = session.execute(columns).one()
            self._refuse_if_superseded(generation)
            return intent_of(state)

        return database.read(self.database_url, work, self.patience)

    def standing(self) -> Standing:
        def work(session: Session) -> Standing:
            experiment = session.get_one(ExperimentRow, self.experiment_id)
            spent = spent_seconds(experiment, time.time())
            return Standing(experiment.edition, experiment.closed, spent, experiment.owner)

        return database.read(self.database_url, work, self.patience)

    def enter(self, phase: Phase) -> None:
        def work(session: Session, experiment: ExperimentRow) -> None:
            if phase in EXPERIMENT_MOVES[experiment.state]:
                move_experiment(session, experiment, phase)

        self._write(work)

    def ask_for(self, want: Want) -> None:
        self._write(lambda session, experiment: ask_for(session, experiment, want))

    def find_allotment(self) -> Allotment:
        mine = select(ExperimentRow.wants).where(ExperimentRow.id == self.experiment_id)
        wants = database.look(self.database_url, lambda c: c.scalar(mine), self.patience)
        return read_allotment(wants) or Allotment()

    def tell(self, notices: Sequence[Notice]) -> None:
        def work(session: Session, experiment: ExperimentRow) -> None:
            is_of_delivery = all(notice.kind == "delivery" for notice in notices)
            if experiment.state in DRIVEN or (experiment.state in ENDED and is_of_delivery):
                tell(session, experiment, notices)

        self._write(work)

    def request_pause(self, reason: str) -> None:
        def work(session: Session, experiment: ExperimentRow) -> None:
            if "pausing" in EXPERIMENT_MOVES[experiment.state]:
                move_experiment(session, experiment, "pausing", reason=reason)

        self._write(work)

    def pause(self) -> bool:
        def work(session: Session, experiment: ExperimentRow) -> bool:
            if experiment.state == "pausing":
                mine = select(TrialRow).where(
                    TrialRow.experiment_id == self.experiment_id, TrialRow.state == "running"
                )
                for trial in session.scalars(mine.order_by(TrialRow.number)):
                    interrupt_trial(session, experiment, trial, PAUSED)
                move_experiment(session, experiment, "paused")
            return experiment.state == "paused"

        return self._write(work)

    def end(self, state: ExperimentEnd, error: str | None = None) -> ExperimentEnd:
        def work(session: Session, experiment: ExperimentRow) -> ExperimentEnd:
            # A person who was told that it is cancelled does not find it completed.
            was_cancelled = experiment.state == "cancelling" or experiment.closed
            recorded = "cancelled" if state == "completed" and was_cancelled else state
            words = CLOSED if experiment.closed and recorded == "cancelled" else None
            end_experiment(session, experiment, recorded, error or words)
            return recorded

        return self._write(work)

    def _write(self, work: Callable[[Session, ExperimentRow], T]) -> T:
        def check_and_work(session: Session) -> T:
            # The experiment's row is locked first: its writers stand in line, and its events come
            # out in the order of their ids.
            mine = select(ExperimentRow).where(ExperimentRow.id == self.experiment_id)
            experiment = session.scalars(mine.with_for_update()).one()
            self._refuse_if_superseded(experiment.generation)
            return work(session, experiment)

        return database.write(self.database_url, check_and_work, self.patience)

    def _write_rows(
        self,
        work: Callable[[RowSession, ExperimentRow], T],
        write: Callable[[str, Callable[[RowSession], T], float], T] = database.write_rows,
    ) -> T:
        """Do the same for what is written for each trial, in a fraction of the time."""

        def check_and_work(rows: RowSession) -> T:
            experiment = rows.get_one(ExperimentRow, self.experiment_id, lock=True)
            self._refuse_if_superseded(experiment.generation)
            return work(rows, experiment)

        return write(self.database_url, check_and_work, self.patience)

    def _refuse_if_superseded(self, generation: int) -> None:
        if generation != self.generation:
            raise SupersededError(
                f"driver {self.generation} of experiment {self.experiment_id} has a successor, "
                f"driver {generation}"
            )

    def _trial(self, session: Rows, number: int, attempt: int | None = None) -> TrialRow:
        trial = session.get_one(TrialRow, (self.experiment_id, number))
        if attempt is not None and attempt < trial.attempt:
            raise StaleWriteError(
                f"attempt {attempt} of trial {number} has a successor, attempt {trial.attempt}"
            )
        return trial


def load_earlier(
    url: str, experiments: Sequence[str], patience: float
) -> list[tuple[Source, TrialEntry]]:
    """Return the trials of some experiments that ended with a value, or diverged."""
    ended = TrialRow.experiment_id.in_(experiments), TrialRow.state.in_(INSTRUCTIVE)
    query = (
        select(TrialRow)
        .where(*ended, TrialRow.lineage.is_(None))
        .order_by(TrialRow.experiment_id, TrialRow.number)
    )

    def work(session: Session) -> list[tuple[Source, TrialEntry]]:
        return [
            (Source(trial.experiment_id, trial.number, trial.run_id), _entry(trial, {}, None))
            for trial in session.scalars(query)
        ]

    return database.read(url, work, patience)


def _is_by_its_code(trial: TrialRow) -> bool:
    """Tell whether a trial was trained by the code that its hash names, from beginning to end."""
    return trial.scores.get("code") == (trial.config or {}).get("code")


def _is_whole(trial: TrialRow) -> bool:
    """Tell whether all seeds of a trial came to an end: one that diverged may have ended others."""
    seeds = Result.from_dict(trial.result or {}).by_replicate
    return trial.state != "diverged" or all(each.outcome is not None for each in seeds)


def _entry(trial: TrialRow, reports: dict[int, Metrics], place: Place | None) -> TrialEntry:
    return TrialEntry(
        number=trial.number,
        arm=trial.arm,
        params=trial.params,
        config=trial.config or {},
        config_hash=trial.config_hash or "",
        state=trial.state,  # type: ignore[arg-type]  # a column cannot be a Literal
        attempt=trial.attempt,
        reports=reports,
        place=place,
        result=None if trial.result is None else Result.from_dict(trial.result),
        error=trial.error,
        run_id=trial.run_id,
        tracked=trial.tracked,
        earlier=trial.earlier and _read_earlier(trial.earlier),
        lineage=tuple(Takeover.from_dict(each) for each in trial.lineage or ()),
        sampler_state=trial.sampler_state or NOTHING,
    )


def _read_earlier(content: EarlierJson) -> Earlier:
    return Earlier(content["state"], content["config"], content["reason"], content["error"])
