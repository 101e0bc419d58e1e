"""What each running experiment may have of the cluster. The leader computes it, drivers read it.

It stands in the experiment's row, beside what its driver wants. While nobody computes it, each
driver keeps to what stands there. A driver that has just begun finds nothing: its share is computed
with its first wish, so that its trials wait for nobody.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Final

from sqlalchemy import func, select
from sqlalchemy.orm import Session, defer

from eigensweep.service.record import database
from eigensweep.service.record.tables import Experiment, Trial
from eigensweep.workers.shared.fair_shares import Allotment, Claimant, Demand, allot, share_out
from eigensweep.workers.shared.messages import Json
from eigensweep.workers.shared.states import PHASES

ALLOTMENT: Final = "allotment"
"""The key of `Experiment.wants` under which it stands."""


class Shares:
    """Keeps what all experiments may have; shares are computed where what is wanted has changed."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._wishes: dict[str, Claimant] = {}
        """What the shares were computed from, so without what runs."""
        self._shares: dict[str, int] = {}

    def keep(self) -> None:
        """Compute what each experiment may have now, and write down what has changed.

        Raises:
            SQLAlchemyError: if the database does not answer.
        """
        found = database.read(self._url, _read)
        claimants = [claimant for claimant, _ in found]
        wishes = {each.experiment: replace(each, running=0) for each in claimants}
        if wishes != self._wishes:  # what runs changes often, and no share with it
            self._wishes, self._shares = wishes, share_out(claimants)
        may_have = allot(claimants, self._shares)
        changed = {
            each.experiment: may_have[each.experiment].to_dict()
            for each, known in found
            if may_have[each.experiment] != known
        }
        if changed:
            database.write(self._url, partial(_put, changed))


def record_demand(session: Session, experiment: Experiment, demand: Demand) -> None:
    """Record what an experiment wants; what it may have stays, and is computed if it is missing."""
    known = (experiment.wants or {}).get(ALLOTMENT)
    experiment.wants = {**demand.to_dict(), ALLOTMENT: known}
    if known is None:
        session.flush()
        found = allot([claimant for claimant, _ in _read(session)]).get(experiment.id)
        if found is not None:
            experiment.wants = {**demand.to_dict(), ALLOTMENT: found.to_dict()}


def read_allotment(wants: Json | None) -> Allotment | None:
    """Return what stands in a row's `wants` of what the experiment may have; None: nothing."""
    known = (wants or {}).get(ALLOTMENT)
    return None if known is None else Allotment.from_dict(known)


def _read(session: Session) -> list[tuple[Claimant, Allotment | None]]:
    """Return the experiments whose trials run or may run, with what is known of each share."""
    running = (
        select(func.count())
        .where(Trial.experiment_id == Experiment.id, Trial.state == "running")
        .scalar_subquery()
    )
    columns = Experiment.id, Experiment.owner, Experiment.priority, Experiment.created_at
    query = select(*columns, Experiment.wants, running).where(
        Experiment.state.in_(PHASES), Experiment.wants.is_not(None)
    )
    return [
        (
            Claimant(id, owner, priority, since, Demand.from_dict(wants), count),
            read_allotment(wants),
        )
        for id, owner, priority, since, wants, count in session.execute(query)
    ]


def _put(changed: dict[str, Json], session: Session) -> None:
    rows = (
        select(Experiment)
        .where(Experiment.id.in_(changed))
        .options(defer(Experiment.spec))
        .order_by(Experiment.id)
        .with_for_update()
    )
    for row in session.scalars(rows):
        if row.wants is not None:  # it was paused meanwhile, or its driver has died
            row.wants = {**row.wants, ALLOTMENT: changed[row.id]}
