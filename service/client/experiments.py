"""An experiment as a client sees it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Self

from eigensweep.service.client.connection import JsonObject
from eigensweep.service.client.events import Event, read_events
from eigensweep.service.client.remote import Remote
from eigensweep.service.client.trial_table import TrialTable
from eigensweep.workers.shared.states import ENDED


class Experiment(Remote):
    """An experiment. Its states: `queued`, `running`, `completed`, `cancelled` and `failed`."""

    kind = "experiment"
    listing_path = "/v1/experiments"

    def __repr__(self) -> str:
        return f"<Experiment {self.id} {self.name} {self.state}>"

    @property
    def name(self) -> str:
        return str(self.content["name"])

    @property
    def is_over(self) -> bool:
        return self.state in ENDED

    @property
    def best(self) -> JsonObject | None:
        """The best trial so far, after a refresh; None before there is one."""
        best: JsonObject | None = self.refresh().content["best"]
        return best

    @property
    def trials(self) -> TrialTable:
        """Its trials after a refresh, best first: a list of dicts that prints as a table."""
        self.refresh()
        return TrialTable.rank(self.content, self.listing(sort="value"))

    def listing(self, limit: int | None = None, **filters: Any) -> list[JsonObject]:
        """Return trials as the API lists them: all, or those in a `state` or of an `arm`."""
        return self.connection.items(f"{self.path}/trials", limit, **filters)

    def trial(self, number: int) -> JsonObject:
        """Return all that is known of one trial: config, reports, attempts, test scores."""
        return self.connection.get(f"{self.path}/trials/{number}")

    def cancel(self) -> Self:
        """Ask the service to cancel it: running trials stop at their next step."""
        self.connection.post(f"{self.path}/cancel")
        return self.refresh()

    def events(self, after: str | None = None) -> Iterator[Event]:
        """Yield its events from the first, or from the one after the id `after`, to its end.

        A connection that breaks is made again, and the events go on where they stopped.

        Raises:
            ServiceAwayError: if the service is away for more than a minute.
        """
        return read_events(self.connection, self.path, after)
