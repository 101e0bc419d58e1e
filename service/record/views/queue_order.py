"""The order of the queue: newcomers first, then by priority, in turns between users, and by age.

A newcomer is the first experiment in the queue of a user none of whose experiments runs. Of all
others, a user's next one has its turn after as many of every other user's; those that run count.
So who posts a hundred experiments does not make others wait for all of them. Runs in the service's
process.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.orm import Session

from eigensweep.protocol.states import DRIVEN
from eigensweep.service.record.sql.rows import read_all
from eigensweep.service.record.sql.tables import ExperimentRow


def list_queue(session: Session, limit: int) -> list[str]:
    """Return the ids at the head of the queue, the next one first."""
    return list(session.scalars(_HEAD, {"most": limit}))


def list_newcomers(session: Session, limit: int) -> list[str]:
    """Return the next experiment of each user none of whose experiments runs, in the queue's order.

    The queue is put in order only if there is one.
    """
    if session.scalars(_ANY_NEWCOMER).first() is None:
        return []
    return list(session.scalars(_NEWCOMERS, {"most": limit}))


def find_places(session: Session, ids: Sequence[str]) -> dict[str, int]:
    """Return the place in the queue, from 1, of those of some experiments that are queued."""
    return {id: place for id, place in session.execute(_PLACES, {"ids": ids})}


def find_place(connection: sa.Connection, row: ExperimentRow) -> int | None:
    """Return the place of one experiment in the queue, from 1; None if it is not queued any more.

    It is counted, owner by owner: to put a long queue in order, as `find_places` does, takes
    several times as long, and each post asks for a place.
    """
    owners: defaultdict[str, Counter[str]] = defaultdict(Counter)
    values = {"priority": row.priority, "created_at": row.created_at, "id": row.id}
    for found in read_all(connection, _COUNTS, values):  # in one state
        owners[found.pop("owner")].update(found)
    own = owners.pop(row.owner, Counter())
    if not own["itself"]:
        return None
    turn = own["running"] + own["higher"] + own["older"] + 1
    before = (_count_before(counts, turn) for counts in owners.values())
    return 1 + own["higher"] + own["older"] + sum(before)


def _count_before(counts: Counter[str], turn: int) -> int:
    """Return how many of a user's come before another user's experiment that has this turn."""
    # So many of `same` have this turn or an earlier one:
    turns = turn - counts["running"] - counts["higher"]
    earlier = min(max(turns - 1, 0), counts["same"])
    before = counts["higher"] + earlier + (0 < turns <= counts["older"])
    newcomers = int(counts["queued"] > 0 and not counts["running"])
    # The user's own newcomer is before all of the user's other ones.
    return min(before, newcomers) if turn == 1 else max(before, newcomers)


def _count() -> sa.Select[str, int, int, int, int, int, int]:
    """Return a query that counts experiments by state and owner, from one index.

    It counts as one experiment in the queue sees them: `higher` have a higher priority, `same` the
    same one, and `older` of these were posted before it.
    """
    priority: sa.BindParameter[int] = sa.bindparam("priority")
    created_at: sa.BindParameter[float] = sa.bindparam("created_at")
    id: sa.BindParameter[str] = sa.bindparam("id")
    is_queued = ExperimentRow.state == "queued"
    is_driven = sa.or_(*(ExperimentRow.state == state for state in sorted(DRIVEN)))
    is_same = sa.and_(is_queued, ExperimentRow.priority == priority)
    is_older = sa.or_(
        ExperimentRow.created_at < created_at,
        sa.and_(ExperimentRow.created_at == created_at, ExperimentRow.id < id),
    )
    return (
        sa.select(
            ExperimentRow.owner,
            sa.func.count().filter(is_driven).label("running"),
            sa.func.count().filter(is_queued).label("queued"),
            sa.func.count().filter(is_queued, ExperimentRow.priority > priority).label("higher"),
            sa.func.count().filter(is_same).label("same"),
            sa.func.count().filter(is_same, is_older).label("older"),
            sa.func.count().filter(is_queued, ExperimentRow.id == id).label("itself"),
        )
        .where(sa.or_(is_queued, is_driven))
        .group_by(ExperimentRow.state, ExperimentRow.owner)
    )


def _order() -> sa.Subquery:
    """Return a row for each queued experiment: `id`, its `place` from 1, and `is_newcomer`."""
    by_priority = ExperimentRow.priority.desc()
    by_age = ExperimentRow.created_at, ExperimentRow.id
    running = (
        sa.select(ExperimentRow.owner, sa.func.count().label("experiments"))
        .where(ExperimentRow.state.in_(DRIVEN))
        .group_by(ExperimentRow.owner)
        .subquery()
    )
    own_place = sa.func.row_number().over(
        partition_by=ExperimentRow.owner, order_by=[by_priority, *by_age]
    )
    turns = (
        sa.select(
            ExperimentRow.id,
            ExperimentRow.priority,
            ExperimentRow.created_at,
            (own_place + sa.func.coalesce(running.c.experiments, 0)).label("turn"),
        )
        .outerjoin(running, running.c.owner == ExperimentRow.owner)
        .where(ExperimentRow.state == "queued")
        .subquery()
    )
    is_newcomer = sa.case((turns.c.turn == 1, 1), else_=0)
    order = (
        is_newcomer.desc(),
        turns.c.priority.desc(),
        turns.c.turn,
        turns.c.created_at,
        turns.c.id,
    )
    place = sa.func.row_number().over(order_by=list(order)).label("place")
    return sa.select(turns.c.id, place, is_newcomer.label("is_newcomer")).subquery()


# Made once: to put such a query together costs more than to ask it.
_COUNTS = _count()
_QUEUE = _order()
_HEAD = sa.select(_QUEUE.c.id).order_by(_QUEUE.c.place).limit(sa.bindparam("most"))
_NEWCOMERS = (
    sa.select(_QUEUE.c.id)
    .where(_QUEUE.c.is_newcomer == 1)
    .order_by(_QUEUE.c.place)
    .limit(sa.bindparam("most"))
)
_BUSY = sa.select(ExperimentRow.owner).where(ExperimentRow.state.in_(sorted(DRIVEN)))
_ANY_NEWCOMER = (
    sa.select(ExperimentRow.owner)
    .where(ExperimentRow.state == "queued", ExperimentRow.owner.not_in(_BUSY))
    .limit(1)
)
_PLACES = sa.select(_QUEUE.c.id, _QUEUE.c.place).where(
    _QUEUE.c.id.in_(sa.bindparam("ids", expanding=True))
)
