"""Messages to webhooks: written with the end of an experiment, kept until they have arrived.

Runs in the service's process.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from eigensweep.service.record import database
from eigensweep.service.record.queries import count_states
from eigensweep.service.record.tables import Delivery, Experiment
from eigensweep.workers.shared.states import RANKED

Content = dict[str, Any]


@dataclass(frozen=True)
class Message:
    """A message that has not arrived yet."""

    id: str
    """The same at each try, so that a receiver can drop what it has got already."""
    url: str
    experiment: str
    tries: int
    """How often it was sent in vain."""
    at: float
    """When the experiment ended."""
    content: Content


class Outbox:
    """The messages of the record at a database URL."""

    def __init__(self, url: str) -> None:
        self.url = url

    def list_due(self, now: float, limit: int = 20) -> list[Message]:
        """Return the messages that are to be sent now, the longest due first."""
        due = select(Delivery).where(Delivery.due_at <= now).order_by(Delivery.due_at).limit(limit)

        def work(session: Session) -> list[Message]:
            return [_describe(session, delivery) for delivery in session.scalars(due)]

        return database.read(self.url, work)

    def note_arrival(self, id: str) -> None:
        """Record that a message has arrived."""

        def work(session: Session) -> None:
            delivery = session.get(Delivery, id)
            if delivery is not None:  # its experiment may be gone
                delivery.due_at, delivery.error = None, None
                delivery.tries += 1
                delivery.delivered_at = time.time()

        database.write(self.url, work)

    def note_failure(self, id: str, error: str, due_at: float | None) -> None:
        """Record that a message did not arrive; `due_at`: when to try again, None to give it up."""

        def work(session: Session) -> None:
            delivery = session.get(Delivery, id)
            if delivery is not None:
                delivery.due_at, delivery.error = due_at, error
                delivery.tries += 1

        database.write(self.url, work)


def _describe(session: Session, delivery: Delivery) -> Message:
    experiment = session.get_one(Experiment, delivery.experiment_id)
    counts = count_states(session, [experiment.id])[experiment.id]
    trials = {state: count.trials for state, count in sorted(counts.items())}
    error = experiment.error.strip().rsplit("\n", 1)[-1][:300] if experiment.error else None
    content = {
        "type": delivery.kind,
        "timestamp": datetime.fromtimestamp(delivery.at, UTC).isoformat(),
        "data": {
            "id": experiment.id,
            "name": experiment.name,
            "project": experiment.project,
            "state": delivery.kind.removeprefix("experiment."),
            "error": error,
            "metric": experiment.metric,
            "trials": trials,
            "ranked": sum(trials.get(state, 0) for state in RANKED),
            "page": f"/experiments/{experiment.id}",
        },
    }
    return Message(delivery.id, delivery.url, experiment.id, delivery.tries, delivery.at, content)
