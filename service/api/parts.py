"""The parts of the service that routes use. Runs in the service's process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Protocol, TypeVar

from fastapi import Depends, Request

from eigensweep.protocol.shares import Capacity
from eigensweep.search_spaces.sections import ResourcesConfig
from eigensweep.service.api.answers.disk_use import UsedBytes
from eigensweep.service.api.answers.schemas import Views
from eigensweep.service.api.answers.shared_answers import TimedCache
from eigensweep.service.api.answers.tailer import Tailer
from eigensweep.service.api.callers.identity import Identity
from eigensweep.service.record.jobs import Jobs
from eigensweep.service.record.record import Record
from eigensweep.service.record.requests.analyses import Analyses
from eigensweep.service.record.requests.reproductions import Reproductions
from eigensweep.service.record.users.accounts import Accounts
from eigensweep.service.record.users.audit import Audit
from eigensweep.service.settings import Mlflow, Settings
from eigensweep.service.store_probe import StoreProbe
from eigensweep.workers.cluster.nodes import Node

T = TypeVar("T")


class Queue(Protocol):
    """What the API needs of the dispatcher, which says what each of it is."""

    max_experiments: int
    max_of_all: int

    @property
    def away(self) -> str | None: ...
    @property
    def max_drivers(self) -> int: ...
    @property
    def problems(self) -> dict[str, str]: ...
    def explain_problem(self) -> str | None: ...
    def look_for_room(self, resources: ResourcesConfig, replicates: int) -> Capacity | None: ...
    def list_nodes(self) -> list[Node] | None: ...
    def wake(self) -> None: ...


@dataclass(frozen=True)
class Service:
    """The parts of a service."""

    settings: Settings
    record: Record
    dispatcher: Queue
    tailer: Tailer
    views: Views
    jobs: Jobs
    analyses: Analyses
    reproductions: Reproductions
    accounts: Accounts
    identity: Identity
    audit: Audit
    mlflow: Mlflow | None
    """None: it has no MLflow."""
    disk_use: TimedCache[UsedBytes]
    store: StoreProbe

    def look_at(self, name: str, look: Callable[[], T]) -> T:
        """Return what `look` sees of the folder of this name of `Settings.disk_folders`.

        Raises:
            StoreAwayError: if it is the store's, which may hang.
        """
        return self.store.ask(lambda _: look()) if name == "storage" else look()


async def _service(request: Request) -> Service:
    return request.app.state.service


async def _settings(request: Request) -> Settings:
    return request.app.state.settings


TheService = Annotated[Service, Depends(_service)]
"""A route's parameter of this type is the service that answers the request."""

TheSettings = Annotated[Settings, Depends(_settings)]
"""A route's parameter of this type is the settings alone."""


async def _service_if_any(request: Request) -> Service | None:
    return getattr(request.app.state, "service", None)


AnyService = Annotated[Service | None, Depends(_service_if_any)]
"""A route's parameter of this type is the service, None where nothing can be posted."""
