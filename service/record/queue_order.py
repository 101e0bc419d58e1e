"""The order of the queue: by priority, then in turns between users, then first come.

A user's next experiment has its turn after as many of every other user's, and those that run count.
So who posts a hundred experiments does not make others wait for all of them. Runs in the service's
process.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Subquery, bindparam, func, select
from sqlalchemy.orm import Session

from eigensweep.service.record.tables import Experiment
from eigensweep.workers.shared.states import DRIVEN


def list_queue(session: Session, limit: int) -> list[str]:
    """Return the ids at the head of the queue, the next one first."""
    return list(session.scalars(_HEAD, {"most": limit}))


def find_places(session: Session, ids: Sequence[str]) -> dict[str, int]:
    """Return the place in the queue, from 1, of those of some experiments that are queued."""
    return {id: place for id, place in session.execute(_PLACES, {"ids": ids})}


def _order() -> Subquery:
    """Return a row for each queued experiment: `id`, and its `place` from 1."""
    by_priority = Experiment.priority.desc()
    by_age = Experiment.created_at, Experiment.id
    running = (
        select(Experiment.owner, func.count().label("experiments"))
        .where(Experiment.state.in_(DRIVEN))
        .group_by(Experiment.owner)
        .subquery()
    )
    own_place = func.row_number().over(
        partition_by=Experiment.owner, order_by=[by_priority, *by_age]
    )
    turns = (
        select(
            Experiment.id,
            Experiment.priority,
            Experiment.created_at,
            (own_place + func.coalesce(running.c.experiments, 0)).label("turn"),
        )
        .outerjoin(running, running.c.owner == Experiment.owner)
        .where(Experiment.state == "queued")
        .subquery()
    )
    order = turns.c.priority.desc(), turns.c.turn, turns.c.created_at, turns.c.id
    place = func.row_number().over(order_by=list(order)).label("place")
    return select(turns.c.id, place).subquery()


# Made once: to put such a query together costs more than to ask it.
_QUEUE = _order()
_HEAD = select(_QUEUE.c.id).order_by(_QUEUE.c.place).limit(bindparam("most"))
_PLACES = select(_QUEUE.c.id, _QUEUE.c.place).where(
    _QUEUE.c.id.in_(bindparam("ids", expanding=True))
)
