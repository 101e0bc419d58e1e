"""RecordLedger: a driver's way into the record, from whatever process it runs in."""

from __future__ import annotations

from eigensweep.service.record.ledger.course import CLOSED as CLOSED
from eigensweep.service.record.ledger.course import CourseWrites
from eigensweep.service.record.ledger.delivery import DeliveryWrites
from eigensweep.service.record.ledger.reading import TrialReads
from eigensweep.service.record.ledger.trials import TrialWrites


class RecordLedger(TrialReads, TrialWrites, CourseWrites, DeliveryWrites):
    """All that a driver reads and writes; what uses a part of it asks for a part of `Ledger`."""
