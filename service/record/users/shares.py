"""What each running experiment may have of the cluster. The leader computes it, drivers read it.

The share is in the experiment's row, beside its driver's demand. While nobody computes shares, each
driver keeps to the last one. The share of a new driver is computed with its first demand, so that
its trials need not wait for the leader.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Final

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from eigensweep.protocol.fair_shares import Allotment, Claimant, Demand, allot, share_out
from eigensweep.protocol.states import PHASES
from eigensweep.service.record.sql import database
from eigensweep.service.record.sql.rows import RowSession
from eigensweep.service.record.sql.tables import ExperimentRow, TrialRow

ALLOTMENT: Final = "allotment"
"""The key of `Experiment.wants` under which it stands."""


class Shares:
    """Keeps the shares of all experiments, and computes them anew when a demand has changed."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._wishes: dict[str, Claimant] = {}
        """What the shares were computed from, so without what runs."""
        self._shares: dict[str, int] = {}

    def keep(self) -> None:
        """Compute each experiment's share, and write the changed ones.

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


def record_demand(rows: RowSession, experiment: ExperimentRow, demand: Demand) -> None:
    """Record what an experiment wants; what it may have stays, and is computed if it is missing."""
    known = (experiment.wants or {}).get(ALLOTMENT)
    experiment.wants = {**demand.to_dict(), ALLOTMENT: known}
    if known is None:
        rows.flush()
        found = allot([claimant for claimant, _ in _read(rows)]).get(experiment.id)
        if found is not None:
            experiment.wants = {**demand.to_dict(), ALLOTMENT: found.to_dict()}


def read_allotment(wants: dict[str, object] | None) -> Allotment | None:
    """Return what stands in a row's `wants` of what the experiment may have; None: nothing."""
    known = (wants or {}).get(ALLOTMENT)
    return Allotment.from_dict(known) if isinstance(known, dict) else None


def _read(session: Session | RowSession) -> list[tuple[Claimant, Allotment | None]]:
    """Return the experiments whose trials run or may run, with what is known of each share."""
    running = (
        select(func.count())
        .where(TrialRow.experiment_id == ExperimentRow.id, TrialRow.state == "running")
        .scalar_subquery()
    )
    columns = (
        ExperimentRow.id,
        ExperimentRow.owner,
        ExperimentRow.priority,
        ExperimentRow.created_at,
    )
    query = select(*columns, ExperimentRow.wants, running).where(
        ExperimentRow.state.in_(PHASES), ExperimentRow.wants.is_not(None)
    )
    return [
        (
            Claimant(id, owner, priority, since, Demand.from_dict(wants), count),
            read_allotment(wants),
        )
        for id, owner, priority, since, wants, count in session.execute(query)
    ]


def _put(changed: dict[str, dict[str, object]], rows: RowSession) -> None:
    # One that was paused meanwhile, or whose driver has died, wants nothing.
    wanted = ExperimentRow.id.in_(changed), ExperimentRow.wants.is_not(None)
    found = select(ExperimentRow.id, ExperimentRow.wants).where(*wanted)
    for id, wants in rows.execute(found.order_by(ExperimentRow.id).with_for_update()).all():
        told = {**wants, ALLOTMENT: changed[id]}
        rows.execute(update(ExperimentRow).where(ExperimentRow.id == id).values(wants=told))
