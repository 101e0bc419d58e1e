"""Reads and writes the trials of one experiment in batches: there may be 100,000 of them.

Runs in the service's process and in drivers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from sqlalchemy import ColumnElement, Select, bindparam, or_, select

from eigensweep.service.record.sql.rows import RowSession
from eigensweep.service.record.sql.tables import TrialRow

AT_ONCE: Final = 500
"""The size of a batch."""


def walk(rows: RowSession, chosen: Select[Any], id: str) -> Iterator[tuple[RowSession, TrialRow]]:
    """Yield trials of an experiment, each with the session that writes its changes.

    `chosen` is what `choose` returned.
    """
    after = -1
    while True:
        part = rows.make_part()
        trials = part.get_all(TrialRow, chosen, {"id": id, "after": after, "most": AT_ONCE})
        if not trials:
            return
        for trial in trials:
            yield part, trial
        part.flush()
        after = trials[-1].number


def choose(condition: ColumnElement[bool]) -> Select[Any]:
    """Return a query for the next trials of an experiment after a number.

    Make it once: to put it together costs more than to ask it.
    """
    mine = TrialRow.experiment_id == bindparam("id"), TrialRow.number > bindparam("after")
    return (
        select(TrialRow.__table__)
        .where(*mine, condition)
        .order_by(TrialRow.number)
        .limit(bindparam("most"))
    )


def is_in(states: Iterable[str]) -> ColumnElement[bool]:
    """Return the condition that a trial is in one of these states."""
    return or_(*(TrialRow.state == state for state in sorted(states)))
