"""What experiments and analyses have in common as things that the service works on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from math import inf
from typing import Any, ClassVar, Self
from urllib.parse import quote

from eigensweep.client.connection import (
    UNAVAILABLE,
    Connection,
    RefusedError,
    ServiceAwayError,
    outlast_restart,
)
from eigensweep.client.spec_file import InputError


class Remote:
    """Something that the service works on. `content` is its last answer; `refresh` asks again."""

    kind: ClassVar[str]
    """What a message calls it."""
    listing_path: ClassVar[str]
    """Where the API lists all of this kind."""

    def __init__(self, connection: Connection, content: Mapping[str, Any]) -> None:
        self.connection = connection
        self.content: Any = content
        """The service's JSON."""

    @classmethod
    def path_of(cls, id: str) -> str:
        """Return where the API has the one with this id.

        Raises:
            InputError: if the id is empty, which would ask for the list of all, or has a slash,
                which would lead to another part of the API.
        """
        if not id:
            raise InputError(
                f"expected the id of an existing {cls.kind}, and got {id!r}; give an 'id' that "
                f"GET {cls.listing_path} lists"
            )
        if "/" in id:
            raise InputError(f"there is no {cls.kind} '{id}': an id has no slash")
        return f"{cls.listing_path}/{quote(id, safe='')}"

    @classmethod
    def load(cls, connection: Connection, id: str) -> Self:
        """Return the one with this id."""
        return cls(connection, connection.get(cls.path_of(id)))

    @property
    def id(self) -> str:
        return str(self.content["id"])

    @property
    def path(self) -> str:
        """Where the API has it."""
        return self.path_of(self.id)

    @property
    def state(self) -> str:
        """Its state in the last answer."""
        return str(self.content["state"])

    @property
    def is_over(self) -> bool:
        """Whether it had come to its end by the last answer."""
        raise NotImplementedError

    def refresh(self) -> Self:
        """Ask the service again."""
        self.content = self.connection.get(self.path)
        return self

    def poll(self, pause: float = 1.0) -> Iterator[Self]:
        """Yield it again and again, refreshed each time, until it is over.

        `pause` is the time between two requests, in seconds. If the service goes away, it is
        waited for, up to a minute.

        Raises:
            ServiceAwayError: if the service is away for longer.
        """
        yield from self._poll(pause, inf)

    def _poll(self, pause: float, deadline: float) -> Iterator[Self]:
        """Do what `poll` does; a service that goes away is not waited for after `deadline`."""
        while True:
            yield outlast_restart(self.refresh, max(0.0, deadline - time.monotonic()))
            if self.is_over:
                return
            time.sleep(max(0.0, min(pause, deadline - time.monotonic())))

    def wait(self, timeout: float | None = None, pause: float = 1.0) -> Self:
        """Return once it is over; `state` says how it ended. See `poll`.

        Raises:
            TimeoutError: if that takes longer than `timeout` seconds; half a minute later where
                the service takes a request and does not answer.
        """
        return self._wait(timeout, pause, lambda: None)

    def _wait(self, timeout: float | None, pause: float, see: Callable[[], None]) -> Self:
        """Do what `wait` does, and call `see` after each answer."""
        deadline = inf if timeout is None else time.monotonic() + timeout
        about = f"{self.kind} {self.id}"
        try:
            for _ in self._poll(pause, deadline):
                see()
                if time.monotonic() > deadline and not self.is_over:
                    raise TimeoutError(f"{about} is {self.state} after {timeout:g} s")
        except (ServiceAwayError, RefusedError) as error:
            is_refused = isinstance(error, RefusedError) and error.status not in UNAVAILABLE
            if is_refused or time.monotonic() < deadline:
                raise
            words = f"{about} was {self.state} when last heard of; after {timeout:g} s: {error}"
            raise TimeoutError(words) from error
        return self
