"""What the service reads from the record: pages, counts and the best trial, each by an index.

Runs in the service's process.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypedDict, TypeVar, Unpack

import sqlalchemy as sa
from sqlalchemy.orm import InstrumentedAttribute, Session, defer, load_only

from eigensweep.protocol.messages import Params
from eigensweep.protocol.states import ENDED, ExperimentState
from eigensweep.results.ranking import UNRANKED
from eigensweep.service.record.errors import ExperimentNotFoundError, NotFoundError
from eigensweep.service.record.sql import database
from eigensweep.service.record.sql.rows import RowSession, read_first
from eigensweep.service.record.sql.tables import (
    AttemptRow,
    Base,
    EventRow,
    ExperimentRow,
    JobRow,
    ReportRow,
    ResultJson,
    TrialCount,
    TrialRow,
)
from eigensweep.service.record.views.queue_order import find_place, find_places

Row = TypeVar("Row", bound=Base)
T = TypeVar("T")

MOST_SOURCES: Final = 1000
"""Reused trials that are looked at for the experiments that they come from."""

READ_AT_ONCE: Final = 500
"""Trials that are in memory at a time where all of them are read."""

Key = Sequence[float | int | str]
"""Where a page ended: the last item's value in the sorted column, and its id or number."""

EXPERIMENT_SORTS: dict[str, tuple[InstrumentedAttribute[Any], ...]] = {
    "created_at": (ExperimentRow.created_at, ExperimentRow.id),
    "name": (ExperimentRow.name, ExperimentRow.id),
}
TRIAL_SORTS: dict[str, tuple[InstrumentedAttribute[Any], ...]] = {
    "number": (TrialRow.number,),
    "value": (TrialRow.tier, TrialRow.rank, TrialRow.number),
}
OF_BEST: tuple[InstrumentedAttribute[Any], ...] = (
    *(TrialRow.arm, TrialRow.state, TrialRow.params),
    *(TrialRow.value, TrialRow.run_id, TrialRow.run_project),
)
"""What a list of experiments has of the best trial, beside its number."""


@dataclass(frozen=True)
class StateCount:
    """The trials of one state: how many, steps done, and steps budgeted."""

    trials: int
    step: int
    steps: int


@dataclass(frozen=True)
class TrialRecord:
    """A trial with its reports and attempts."""

    trial: TrialRow
    reports: list[ReportRow] = field(default_factory=list)
    attempts: list[AttemptRow] = field(default_factory=list)


class TrialChoice(TypedDict, total=False):
    """Which trials of an experiment are read, and in which order."""

    states: Sequence[str]
    """Trials in one of these states; empty: in any."""
    arm: str | None
    numbers: Sequence[int] | None
    """Only these trials."""
    sort: str
    """One of `TRIAL_SORTS`; by number, if nothing is said."""
    limit: int
    """How many at most; 50, if nothing is said."""
    after: Key | None
    """Where the page before ended."""


@dataclass(frozen=True)
class StoredTrial:
    """A trial of a list as its row is stored: JSON is text, and the configuration is left out.

    Rows that are equal look the same in a list. So what was made of one can be kept under it.
    """

    row: tuple[Any, ...]
    newest: tuple[Any, ...] | None
    """The row of the newest report; None unless the trial trains."""

    def read(self) -> TrialRecord:
        """Return the trial."""
        reports = [] if self.newest is None else [_read_row(ReportRow, _REPORT, self.newest)]
        return TrialRecord(_read_row(TrialRow, _LISTED, self.row), reports)


@dataclass(frozen=True)
class ExperimentRecord:
    """An experiment with its counts by trial state, and its best trial so far.

    In a list the experiment comes without its spec, and the best trial with `OF_BEST` alone.
    """

    experiment: ExperimentRow
    counts: dict[str, StateCount]
    best: TrialRecord | None
    place: int | None = None
    """Its place in the queue, from 1; None if it is not queued."""
    sources: tuple[str, ...] = ()
    """The experiments that results were taken over from; none in a list."""
    unsent: Sequence[JobRow] = ()
    """The messages to webhooks about its end that a try has not delivered; none in a list."""


def count_states(
    session: Session | RowSession, ids: Sequence[str]
) -> dict[str, dict[str, StateCount]]:
    """Return for each experiment the counts of its trials by state; no trial is read."""
    counts: dict[str, dict[str, StateCount]] = {id: {} for id in ids}
    for id, state, *counted in session.execute(_COUNTS, {"ids": ids}):
        counts[id][state] = StateCount(*counted)
    return counts


class Queries(database.AtDatabase):
    """Reads the record at a database URL."""

    @database.reading
    def ping(self, session: Session) -> None:
        """Read one row, and ask whether the database would write.

        Raises:
            SQLAlchemyError: if the database is away or read-only, or has not the schema of this
                version.
        """
        session.execute(sa.select(ExperimentRow.id).limit(1))
        if database.takes_turns(self.url):  # SQLite says it when it writes
            return
        if session.scalar(sa.text("SHOW transaction_read_only")) == "on":
            raise database.ReadOnlyError(self.url)

    @database.reading
    def experiment(self, session: Session, id: str) -> ExperimentRecord:
        """Return an experiment with counts and best trial.

        Raises:
            ExperimentNotFoundError: if there is none of this id.
        """
        row = get_experiment(session, id)
        best = session.scalars(_BEST, {"ids": [id]}).first()
        history = None if best is None else _add_history(session, best)
        counts = count_states(session, [id])[id]
        is_queued = row.state == "queued"
        place = find_place(session.connection(), row) if is_queued else None
        sources = _find_sources(session, id) if "reused" in counts else ()
        of_this_end = {"id": id, "since": row.finished_at}
        unsent = session.scalars(_UNSENT, of_this_end).all() if row.state in ENDED else ()
        return ExperimentRecord(row, counts, history, place, sources, unsent)

    def posted(self, row: ExperimentRow) -> ExperimentRecord:
        """Return an experiment that was posted just now: mostly it has its place in the queue."""
        place = database.look(self.url, lambda connection: find_place(connection, row))
        if place is None:
            return self.experiment(row.id)
        return ExperimentRecord(row, {}, None, place)

    def row(self, id: str) -> ExperimentRow:
        """Return an experiment's own row.

        Raises:
            ExperimentNotFoundError: if there is none of this id.
        """
        return database.read(self.url, lambda session: get_experiment(session, id))

    def state(self, id: str) -> ExperimentState:
        """Return an experiment's state; nothing else of it is read.

        Raises:
            ExperimentNotFoundError: if there is none of this id.
        """
        found = database.look(self.url, lambda c: read_first(c, _STATE, {"id": id}))
        if found is None:
            raise ExperimentNotFoundError(id)
        return found["state"]

    @database.reading
    def experiments(
        self,
        session: Session,
        *,
        states: Sequence[str] = (),
        project: str | None = None,
        name: str | None = None,
        owner: str | None = None,
        tags: Sequence[tuple[str, str]] = (),
        archived: bool = False,
        sort: str = "-created_at",
        limit: int = 50,
        after: Key | None = None,
    ) -> list[ExperimentRecord]:
        """Return a page of experiments; `name` matches anywhere in the name, whatever the case.

        Those that are archived are left out, unless `archived`.
        They come without their specs, and with the heads of their best trials.
        """
        if "\0" in f"{project}{owner}{name}{''.join(value for _, value in tags)}":
            return []  # PostgreSQL refuses it, and a pattern of SQLite's ends there
        chosen: list[sa.ColumnElement[bool]] = []
        if states:
            chosen.append(ExperimentRow.state.in_(states))
        if project is not None:
            chosen.append(ExperimentRow.project == project)
        if not archived:
            chosen.append(ExperimentRow.archived_at.is_(None))
        if owner is not None:
            chosen.append(ExperimentRow.owner == owner)
        chosen += [ExperimentRow.spec["tags", tag].as_string() == value for tag, value in tags]
        if name is not None:
            chosen.append(ExperimentRow.name.icontains(name, autoescape=True))
        heads = sa.select(ExperimentRow).options(defer(ExperimentRow.spec, raiseload=True))
        query = _limit_page(heads.where(*chosen), EXPERIMENT_SORTS, sort, limit, after)
        rows = session.scalars(query).all()
        ids = [row.id for row in rows]
        counts = count_states(session, ids)
        best = {t.experiment_id: t for t in session.scalars(_HEADS_OF_BEST, {"ids": ids})}
        records = {id: TrialRecord(trial) for id, trial in best.items()}
        queued = [row.id for row in rows if row.state == "queued"]
        places = find_places(session, queued) if queued else {}
        return [
            ExperimentRecord(row, counts[row.id], records.get(row.id), places.get(row.id))
            for row in rows
        ]

    @database.reading
    def trials(self, session: Session, id: str, **chosen: Unpack[TrialChoice]) -> list[TrialRecord]:
        """Return a page of an experiment's trials; sorted by `value`, the best comes first.

        They come without reports and attempts.
        """
        query = _choose_trials(sa.select(TrialRow), id, **chosen)
        found = session.scalars(query).all()
        if not found:
            require_experiment(session, id)
        return [TrialRecord(trial) for trial in found]

    @database.reading
    def trial_times(
        self, session: Session, id: str
    ) -> dict[int, tuple[float | None, float | None]]:
        """Return when each trial began and ended, in seconds since 1970, by its number.

        One that was opened again ended when it did before.
        """
        times = sa.select(TrialRow.number, TrialRow.started_at, TrialRow.ended_at, TrialRow.earlier)
        query = times.where(TrialRow.experiment_id == id)
        return {
            number: (began, before["ended_at"] if before and ended is None else ended)
            for number, began, ended, before in session.execute(query)
        }

    def listed_trials(self, id: str, **chosen: Unpack[TrialChoice]) -> list[StoredTrial]:
        """Return a page of an experiment's trials as a list shows them.

        They come without their configurations, by far the largest part of a row. One that trains
        has its newest report.
        """
        query = _choose_trials(_LISTED_TRIALS, id, **chosen)
        return database.look(self.url, partial(_list_trials, id, query))

    @database.reading
    def order_trials(self, session: Session, id: str) -> Sequence[int]:
        """Return the numbers of all trials of an experiment, the best first, of one moment."""
        mine = sa.select(TrialRow.number).where(TrialRow.experiment_id == id)
        return session.scalars(mine.order_by(*TRIAL_SORTS["value"])).all()

    @database.reading
    def ranked(
        self, session: Session, id: str, see: Callable[[int, ResultJson | None], T]
    ) -> list[T]:
        """Return what `see` makes of number and result of each trial whose value counts.

        The best comes first; where there was a race, those with more seeds come before the others.
        Results are large, so only some of them are in memory at a time.
        """
        mine = sa.select(TrialRow.number, TrialRow.result)
        mine = mine.where(TrialRow.experiment_id == id, TrialRow.rank < UNRANKED)
        query = mine.order_by(*TRIAL_SORTS["value"]).execution_options(yield_per=READ_AT_ONCE)
        require_experiment(session, id)
        return [see(number, result) for number, result in session.execute(query)]

    @database.reading
    def settings(
        self, session: Session, id: str, numbers: Sequence[int]
    ) -> dict[int, tuple[str, Params]]:
        """Return arm and parameters of some trials of an experiment, by number."""
        columns = sa.select(TrialRow.number, TrialRow.arm, TrialRow.params).where(
            TrialRow.experiment_id == id
        )
        return {
            number: (arm, params)
            for begin in range(0, len(numbers), READ_AT_ONCE)
            for number, arm, params in session.execute(
                columns.where(TrialRow.number.in_(numbers[begin : begin + READ_AT_ONCE]))
            )
        }

    @database.reading
    def trial(self, session: Session, id: str, number: int) -> TrialRecord:
        """Return one trial with its reports and attempts.

        Raises:
            NotFoundError: if there is none.
        """
        trial = session.get(TrialRow, (id, number))
        if trial is None:
            require_experiment(session, id)
            mine = sa.select(sa.func.count()).where(TrialRow.experiment_id == id)
            opened = session.scalars(mine).one()
            raise NotFoundError(
                f"experiment '{id}' has no trial {number}; it has opened {opened} so far"
            )
        return _add_history(session, trial)

    def events(self, id: str, after: int = 0, limit: int = 500) -> list[EventRow]:
        """Return the experiment's events that follow the one of number `after`, in order."""
        following = sa.select(EventRow).where(EventRow.experiment_id == id, EventRow.id > after)
        query = following.order_by(EventRow.id).limit(limit)
        return database.read(self.url, lambda session: list(session.scalars(query)))

    def find_owner(self, id: str) -> str | None:
        """Return the user who posted an experiment, None if there is no such one."""
        query = sa.select(ExperimentRow.owner).where(ExperimentRow.id == id)
        return database.read(self.url, lambda session: session.scalars(query).first())

    def list_owners(self, project: str) -> list[str]:
        """Return the users whose experiments have their runs in a project, by MLflow's id of it."""
        query = (
            sa.select(ExperimentRow.owner).where(ExperimentRow.run_project == project).distinct()
        )
        return database.read(self.url, lambda session: list(session.scalars(query)))

    def newest_event(self) -> int:
        """Return the number of the newest event of all, 0 if there is none."""
        query = sa.select(sa.func.coalesce(sa.func.max(EventRow.id), 0))
        return database.read(self.url, lambda session: session.scalars(query).one())


def get_experiment(session: Session, id: str) -> ExperimentRow:
    """Return an experiment's own row.

    Raises:
        ExperimentNotFoundError: if there is none of this id.
    """
    experiment = session.get(ExperimentRow, id)
    if experiment is None:
        raise ExperimentNotFoundError(id)
    return experiment


def require_experiment(session: Session | sa.Connection, id: str) -> None:
    """Raise ExperimentNotFoundError if there is no experiment of this id; its spec is not read."""
    if session.execute(sa.select(ExperimentRow.id).where(ExperimentRow.id == id)).first() is None:
        raise ExperimentNotFoundError(id)


def _find_sources(session: Session, id: str) -> tuple[str, ...]:
    """Return the experiments from which the first reused trials have their results."""
    reused = sa.select(TrialRow.result).where(
        TrialRow.experiment_id == id, TrialRow.state == "reused"
    )
    first = reused.order_by(TrialRow.number).limit(MOST_SOURCES).subquery()
    source = sa.type_coerce(first.c.result, sa.JSON)["reused_from"]["experiment"].as_string()
    return tuple(sorted(filter(None, session.scalars(sa.select(source).distinct()))))


def _limit_page(
    query: sa.Select[Any],
    sorts: dict[str, tuple[InstrumentedAttribute[Any], ...]],
    sort: str,
    limit: int,
    after: Key | None,
) -> sa.Select[Any]:
    columns = sorts[sort.removeprefix("-")]
    falling = sort.startswith("-")
    if after is not None:
        here, there = sa.tuple_(*columns), sa.tuple_(*(sa.literal(value) for value in after))
        query = query.where(here < there if falling else here > there)
    return query.order_by(*(c.desc() if falling else c.asc() for c in columns)).limit(limit)


def _list_trials(id: str, query: sa.Select[Any], connection: sa.Connection) -> list[StoredTrial]:
    rows = connection.execute(query).all()
    if not rows:
        require_experiment(connection, id)
    training = [(row.number, row.step) for row in rows if row.state == "running"]
    newest = {}
    if training:
        reports = connection.execute(_NEWEST, {"id": id, "training": training})
        newest = {report.number: tuple(report) for report in reports}
    return [StoredTrial(tuple(row), newest.get(row.number)) for row in rows]


def _select_best() -> sa.Select[TrialRow]:
    """Return a query for the best trial of each experiment of `ids` that has one."""
    inner = TrialRow.__table__.alias()
    first = (
        sa.select(inner.c.number)
        .where(inner.c.experiment_id == ExperimentRow.id, inner.c.rank < UNRANKED)
        .order_by(inner.c.tier, inner.c.rank, inner.c.number)
        .limit(1)
        .correlate(ExperimentRow)
        .scalar_subquery()
    )
    return (
        sa.select(TrialRow)
        .join(ExperimentRow, ExperimentRow.id == TrialRow.experiment_id)
        .where(ExperimentRow.id.in_(_IDS), TrialRow.number == first)
    )


def _choose_trials(
    query: sa.Select[Any],
    id: str,
    *,
    states: Sequence[str] = (),
    arm: str | None = None,
    numbers: Sequence[int] | None = None,
    sort: str = "number",
    limit: int = 50,
    after: Key | None = None,
) -> sa.Select[Any]:
    query = query.where(TrialRow.experiment_id == id)
    if states:
        query = query.where(TrialRow.state.in_(states))
    if arm is not None:
        query = query.where(TrialRow.arm == arm)
    if numbers is not None:
        query = query.where(TrialRow.number.in_(numbers))
    return _limit_page(query, TRIAL_SORTS, sort, limit, after)


def _store_columns(entity: type[Base], *left_out: str) -> list[sa.ColumnElement[Any]]:
    """Return the columns of a table, JSON as text."""
    return [
        sa.cast(column, sa.Text).label(column.name) if isinstance(column.type, sa.JSON) else column
        for column in entity.__table__.columns
        if column.name not in left_out
    ]


def _read_row(
    entity: type[Row], columns: Sequence[sa.ColumnElement[Any]], row: tuple[Any, ...]
) -> Row:
    """Return a row of such columns as the object that it stands for."""
    values = zip(columns, row, strict=True)
    return entity(
        **{
            column.name: json.loads(value) if isinstance(column, sa.Label) and value else value
            for column, value in values
        }
    )


def _select_of_trial(entity: type[Row]) -> sa.Select[Row]:
    """Return a query for the rows of one trial in a table, in order."""
    table = entity.__table__
    mine = table.c.experiment_id == sa.bindparam("id"), table.c.number == sa.bindparam("number")
    return sa.select(entity).where(*mine).order_by(*table.primary_key)


def _add_history(session: Session, trial: TrialRow) -> TrialRecord:
    name = {"id": trial.experiment_id, "number": trial.number}
    reports = list(session.scalars(_REPORTS, name))
    return TrialRecord(trial, reports, list(session.scalars(_ATTEMPTS, name)))


# Made once: to put such a query together costs more than to ask it.
_IDS: Final[sa.BindParameter[Any]] = sa.bindparam("ids", expanding=True)
_BEST = _select_best()
_HEADS_OF_BEST = _BEST.options(load_only(*OF_BEST, raiseload=True))
_REPORTS, _ATTEMPTS = _select_of_trial(ReportRow), _select_of_trial(AttemptRow)
_LISTED = _store_columns(TrialRow, "config")
_LISTED_TRIALS = sa.select(*_LISTED)
_REPORT = _store_columns(ReportRow)
_NEWEST = sa.select(*_REPORT).where(
    ReportRow.experiment_id == sa.bindparam("id"),
    sa.tuple_(ReportRow.number, ReportRow.step).in_(sa.bindparam("training", expanding=True)),
)
_UNSENT = (
    sa.select(JobRow)
    .where(JobRow.experiment_id == sa.bindparam("id"), JobRow.kind == "webhook")
    .where(JobRow.error.is_not(None), JobRow.created_at >= sa.bindparam("since"))
    .order_by(JobRow.created_at, JobRow.key)
)
_STATE = sa.select(ExperimentRow.state).where(ExperimentRow.id == sa.bindparam("id"))
_COUNTS = sa.select(
    *(TrialCount.experiment_id, TrialCount.state),
    *(TrialCount.trials, TrialCount.step, TrialCount.steps),
).where(TrialCount.experiment_id.in_(_IDS), TrialCount.trials > 0)
