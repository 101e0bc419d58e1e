"""Which jobs of a record are open."""

from __future__ import annotations

from eigensweep.service.record.jobs import Jobs
from eigensweep.service.record.sql.tables import JobKind


def has_open(jobs: Jobs, kind: JobKind) -> bool:
    """Return whether any job of a kind is open, due now or later."""
    return any(each.due_at is not None for each in jobs.list(kind))
