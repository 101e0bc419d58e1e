"""A record, an application over it, and a launcher of ten lines in the place of Ray."""

from __future__ import annotations

import copy
import shutil
import socket
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import fastapi.applications
import pytest
from postgresql import PostgresqlServer, run_postgresql
from starlette.testclient import TestClient
from typer.main import get_command
from waiting import wait_until

from eigensweep.protocol.messages import DriverOptions
from eigensweep.protocol.shares import Capacity
from eigensweep.service.api.app import create_app
from eigensweep.service.process.mlflow_server import MlflowServer
from eigensweep.service.queue.dispatcher import Dispatcher
from eigensweep.service.record.ledger import RecordLedger
from eigensweep.service.record.migrations import migrate
from eigensweep.service.record.record import Record
from eigensweep.service.record.sql import database
from eigensweep.service.settings import Settings
from eigensweep.workers.cluster.nodes import Amounts, Node
from eigensweep.workers.deaths import Death

OPTIONS = DriverOptions(storage="/storage")

SPEC: dict[str, Any] = {
    "name": "two rates",
    "task": {"name": "copying", "delay": 5, "symbols": 2, "batch_size": 4},
    "model": {"name": "scornn", "hidden_size": 6, "negative_ones": 2},
    "training": {"steps": 100, "evaluate_every": 10},
    "search": {"method": "grid", "space": {"optimizer.lr": [1e-3, 1e-2]}},
}


NODE = Node("ab12", "here", True, Amounts(4.0, 1.0, 8 * 10**9), Amounts(3.0, 0.5, 7 * 10**9))
"""The only node that there is."""


class InMemoryLauncher:
    """Starts nothing: a driver is its ledger and what a test says of its state."""

    def __init__(self) -> None:
        self.launched: list[InMemoryDriver] = []
        self.survivors: dict[str, InMemoryDriver] = {}
        self.room = Capacity(trials=4, problem=None, may_change=False)

    def launch(self, experiment_id: str, spec: Any, ledger: Any, options: Any) -> InMemoryDriver:
        self.launched.append(InMemoryDriver(ledger))
        return self.launched[-1]

    def find(self, experiment_id: str) -> InMemoryDriver | None:
        return self.survivors.get(experiment_id)

    problem = None

    def list_nodes(self) -> list[Node]:
        return [NODE]

    def look_for_room(self, resources: Any, replicates: int) -> Capacity:
        return self.room


class InMemoryDriver:
    def __init__(self, ledger: RecordLedger) -> None:
        self.ledger = ledger
        self.now = "running"
        self.death: Death | None = Death("out of luck")
        self.ended_at = time.monotonic()

    def state(self) -> Any:
        return self.now

    def kill(self, why: Death) -> None:
        self.now, self.death = "died", why


@pytest.fixture(scope="session", autouse=True)
def _one_openapi_page() -> Iterator[None]:
    """Make the OpenAPI page once for all applications: it takes a second, and is the same."""
    make, made = fastapi.applications.get_openapi, dict[tuple[str, int], Any]()

    def get_openapi(**about: Any) -> Any:
        key = about["title"], len(about["routes"])
        if key not in made:
            made[key] = make(**about)
        return made[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fastapi.applications, "get_openapi", get_openapi)
        yield


@pytest.fixture(scope="session", autouse=True)
def _one_command_line() -> Iterator[None]:
    """Make all commands once for all calls: it takes a tenth of a second, and they are the same."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("typer.testing._get_command", cache(get_command))
        yield


@pytest.fixture(scope="session")
def empty_record(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a SQLite record that nothing was written to."""
    path = tmp_path_factory.mktemp("empty") / "record.db"
    made = f"sqlite:///{path}"
    migrate(made)
    database.engine(made).dispose()
    return path


@pytest.fixture
def url(tmp_path: Path, empty_record: Path) -> Iterator[str]:
    """A fresh SQLite record."""
    shutil.copyfile(empty_record, tmp_path / "record.db")
    made = f"sqlite:///{tmp_path / 'record.db'}"
    yield made
    database.engine(made).dispose()


@pytest.fixture
def record(url: str) -> Record:
    return Record(url)


@pytest.fixture
def launcher() -> InMemoryLauncher:
    return InMemoryLauncher()


@pytest.fixture
def dispatcher(record: Record, launcher: InMemoryLauncher) -> Dispatcher:
    """A dispatcher whose tests call `tick` themselves."""
    return Dispatcher(record, launcher=launcher, options=OPTIONS, problem=None)


@pytest.fixture(scope="session")
def mlflow_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MlflowServer]:
    """A real MLflow server, started as the service starts it."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    server = MlflowServer(tmp_path_factory.mktemp("mlflow"), port)
    server.start()

    def answers() -> bool:
        with suppress(OSError):
            return urllib.request.urlopen(f"{server.url}/health").status == 200
        return False

    wait_until(answers, server.log.read_text)
    yield server
    server.stop()


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path, data_root=tmp_path)


@pytest.fixture
def client(settings: Settings, record: Record, dispatcher: Dispatcher) -> Iterator[TestClient]:
    """The application without a server."""
    app = create_app(settings, record, dispatcher)
    with TestClient(app, raise_server_exceptions=False) as made:
        yield made


@pytest.fixture
def spec() -> Callable[..., dict[str, Any]]:
    """Return a spec with fields replaced by dotted path: `spec(**{"task.delay": 9})`."""

    def change_spec(**changes: Any) -> dict[str, Any]:
        content = copy.deepcopy(SPEC)
        for path, value in changes.items():
            *sections, field = path.split("/")
            inner = content
            for section in sections:
                inner = inner[section]
            inner[field] = value
        return content

    return change_spec


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[PostgresqlServer]:
    """Return a running PostgreSQL; where none is installed, the test is skipped."""
    with run_postgresql() as server:
        if server is None:
            pytest.skip("install PostgreSQL (initdb on PATH or in /usr/lib/postgresql) to run this")
        yield server


@pytest.fixture(params=["url", "postgresql_url"], ids=["sqlite", "postgresql"])
def each_url(request: pytest.FixtureRequest) -> str:
    """A fresh record on each kind of database."""
    made: str = request.getfixturevalue(request.param)
    return made


@pytest.fixture(scope="session")
def empty_postgresql(postgresql_server: PostgresqlServer) -> str:
    """The name of a record in PostgreSQL that nothing was written to."""
    made = postgresql_server.create_database("empty")
    migrate(made)
    database.engine(made).dispose()
    return "empty"


@pytest.fixture
def postgresql_url(postgresql_server: PostgresqlServer, empty_postgresql: str) -> Iterator[str]:
    """A fresh record in PostgreSQL."""
    name = f"record_{uuid.uuid4().hex}"
    made = postgresql_server.create_database(name, empty_postgresql)
    yield made
    database.engine(made).dispose()


@pytest.fixture
def bare_postgresql_url(postgresql_server: PostgresqlServer) -> Iterator[str]:
    """A database in PostgreSQL without any table."""
    made = postgresql_server.create_database(f"record_{uuid.uuid4().hex}")
    yield made
    database.engine(made).dispose()


@pytest.fixture
def bare_url(tmp_path: Path) -> Iterator[str]:
    """A SQLite database without any table."""
    made = f"sqlite:///{tmp_path / 'bare.db'}"
    yield made
    database.engine(made).dispose()
