"""What each running experiment may have of the cluster. The leader computes it, drivers read it.

The share is in the experiment's row, beside its driver's demand. While nobody computes shares, each
driver keeps to the last one. The share of a new driver is computed with its first demand, so that
its trials need not wait for the leader.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable
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
TURN_SECONDS: Final = 600.0
"""How long a user's trials train before the trials of users who wait are begun first."""


class Shares:
    """Keeps the shares of all experiments, and computes them anew when a demand has changed.

    Where places are too few, users take turns. A service that starts anew has forgotten whose turn
    it was.
    """

    def __init__(self, url: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._url, self._clock = url, clock
        self._wishes: dict[str, Claimant] = {}
        """What the shares were computed from, so without what runs."""
        self._shares: dict[str, int] = {}
        self._looked_at = clock()
        self._served: defaultdict[str, float] = defaultdict(float)
        """Owner to the seconds that trials have trained in the owner's turn."""
        self._turns: dict[str, float] = {}
        """Owner to when the last turn ended."""

    def keep(self) -> None:
        """Compute each experiment's share, and write the changed ones.

        Raises:
            SQLAlchemyError: if the database does not answer.
        """
        found = database.read(self._url, _read)
        self._count_turns(claimant for claimant, _ in found)
        claimants = [replace(each, turn=self._turns.get(each.owner, 0.0)) for each, _ in found]
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

    def _count_turns(self, claimants: Iterable[Claimant]) -> None:
        """End the turns of users whose trials have trained for `TURN_SECONDS` within their share.

        A trial that runs beyond its user's share does not count: that user has given up the turn
        already.
        """
        passed, self._looked_at = self._clock() - self._looked_at, self._clock()
        for owner in {c.owner for c in claimants if c.running and self._shares.get(c.experiment)}:
            self._served[owner] += passed
            if self._served[owner] >= TURN_SECONDS:
                del self._served[owner]
                self._turns[owner] = self._looked_at


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
