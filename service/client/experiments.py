"""An experiment as a client sees it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote

from eigensweep.service.client.answers import PATIENCE_SECONDS, Event, ServiceAwayError
from eigensweep.service.client.trial_table import TrialTable
from eigensweep.workers.shared.states import ENDED

if TYPE_CHECKING:
    from eigensweep.service.client.client import Client


class Experiment:
    """An experiment as the service last told it; `refresh` asks again."""

    def __init__(self, client: Client, content: dict[str, Any]) -> None:
        self.client = client
        self.content = content
        """The service's JSON."""

    def __repr__(self) -> str:
        return f"<Experiment {self.id} {self.name} {self.state}>"

    @property
    def id(self) -> str:
        return str(self.content["id"])

    @property
    def name(self) -> str:
        return str(self.content["name"])

    @property
    def state(self) -> str:
        """`queued`, `running`, `completed`, `cancelled` or `failed`, when last asked."""
        return str(self.content["state"])

    @property
    def ended(self) -> bool:
        """Whether it was over when last asked."""
        return self.state in ENDED

    @property
    def best(self) -> dict[str, Any] | None:
        """The best trial so far, asked anew; None before there is one."""
        return self.refresh().content["best"]

    @property
    def trials(self) -> TrialTable:
        """Its trials, asked anew, best first: a list of dicts that prints as a table."""
        self.refresh()
        return TrialTable.ranked(self.content, self.listing(sort="value"))

    def listing(self, limit: int | None = None, **filters: Any) -> list[dict[str, Any]]:
        """Return trials as the service tells them: all, or those in a `state` or of an `arm`."""
        return self.client.items(f"{path_of(self.id)}/trials", limit, **filters)

    def trial(self, number: int) -> dict[str, Any]:
        """Return all that is known of one trial: config, reports, attempts, test scores."""
        return self.client.get(f"{path_of(self.id)}/trials/{number}")

    def refresh(self) -> Self:
        """Ask the service anew."""
        self.content = self.client.get(path_of(self.id))
        return self

    def wait(self, timeout: float | None = None) -> Self:
        """Return once the experiment is over; `state` says how it ended.

        Raises:
            TimeoutError: if that takes longer than `timeout` seconds.
        """
        started = time.monotonic()
        for _ in self.polls():
            if timeout is not None and time.monotonic() - started > timeout and not self.ended:
                raise TimeoutError(f"experiment {self.id} is {self.state} after {timeout:g} s")
        return self

    def polls(self, pause: float = 1.0) -> Iterator[Self]:
        """Yield the experiment again and again, asked anew each time, until it is over.

        A service that is away for less than a minute is waited for.
        """
        away_since = None
        while True:
            try:
                self.refresh()
                away_since = None
            except ServiceAwayError:
                away_since = away_since or time.monotonic()
                if time.monotonic() - away_since > PATIENCE_SECONDS:
                    raise
            yield self
            if self.ended:
                return
            time.sleep(pause)

    def cancel(self) -> Self:
        """Ask for its end: running trials stop at their next step."""
        self.client.request("POST", f"{path_of(self.id)}/cancel")
        return self.refresh()

    def events(self, after: str | None = None) -> Iterator[Event]:
        """Yield its events up to its end; see `Client.events`."""
        return self.client.events(self.id, after)


def path_of(experiment_id: str) -> str:
    """Return where the API has an experiment."""
    return f"/v1/experiments/{quote(experiment_id, safe='')}"
