"""The parts of the service that routes use. Runs in the service's process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Protocol, TypeVar

from fastapi import Depends, Request

from eigensweep.search_spaces.sections import ResourcesConfig
from eigensweep.service.api.disk_use import DiskUse
from eigensweep.service.api.identity import Identity
from eigensweep.service.api.schemas import Views
from eigensweep.service.api.tailer import Tailer
from eigensweep.service.record.accounts import Accounts
from eigensweep.service.record.analyses import Analyses
from eigensweep.service.record.audit import Audit
from eigensweep.service.record.jobs import Jobs
from eigensweep.service.record.record import Record
from eigensweep.service.record.reproductions import Reproductions
from eigensweep.service.settings import Mlflow, Settings
from eigensweep.service.store_probe import StoreProbe
from eigensweep.workers.cluster.nodes import Node
from eigensweep.workers.lanes.shares import Capacity

T = TypeVar("T")


class Queue(Protocol):
    """What the API needs of the dispatcher."""

    max_experiments: int
    """How many experiments run at once."""
    max_of_all: int
    """How many may run at once where each user has one; fewer than these count as so many."""

    @property
    def away(self) -> str | None:
        """Why Ray cannot be asked at this moment; None: it can."""

    def explain_problem(self) -> str | None:
        """Return why no experiment can be started now; None: experiments can be started."""

    @property
    def max_drivers(self) -> int:
        """How many drivers' processes there are at most for experiments that run."""

    @property
    def max_processes(self) -> int:
        """How many drivers' processes there may be at once, those included that only deliver."""

    @property
    def driver_experiments(self) -> int:
        """How many small experiments one driver may have at once."""

    @property
    def problems(self) -> dict[str, str]:
        """Experiment id to why that experiment cannot be started or looked after."""

    def look_for_room(self, resources: ResourcesConfig, replicates: int) -> Capacity | None:
        """Return the room that was last seen for such trials, None while that is unknown."""

    def list_nodes(self) -> list[Node] | None:
        """Return the nodes that trials run on, as last seen, None while they are unknown."""

    def wake(self) -> None:
        """Look at the queue at once."""


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
    disk_use: DiskUse
    store: StoreProbe

    def look_at(self, name: str, look: Callable[[], T]) -> T:
        """Return what `look` sees of the folder of this name of `Settings.disk_folders`.

        Raises:
            StoreAwayError: if it is the store's, which may hang.
        """
        return self.store.ask(lambda _: look()) if name == "storage" else look()


async def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


async def _settings(request: Request) -> Settings:
    settings: Settings = request.app.state.settings
    return settings


TheService = Annotated[Service, Depends(_service)]
"""A route's parameter of this type is the service that answers the request."""

TheSettings = Annotated[Settings, Depends(_settings)]
"""A route's parameter of this type is the settings alone."""


async def _service_if_any(request: Request) -> Service | None:
    return getattr(request.app.state, "service", None)


AnyService = Annotated[Service | None, Depends(_service_if_any)]
"""A route's parameter of this type is the service, None where nothing can be posted."""
