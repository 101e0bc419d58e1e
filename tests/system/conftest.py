"""A real service as a process of its own, killed and started again at will."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from waiting import PATIENCE, wait_until

from eigensweep.protocol.states import ENDED

ROOT = Path(__file__).parents[2]
PLUGINS = ROOT / "tests/plugins"

PARTS = {
    "guard": "common/guard.py",
    "driver": "eigensweep::Driver",
    "zygote": "process.zygote ",
    "trial": "ray::Trial",
    "fork server": "processes.fork_server ",  # and what it has forked
    "raylet": "raylet/raylet ",
    "gcs": "gcs_server ",
    "connection to ray": "workers.cluster.served ",
    "mlflow": "process.mlflow_app ",
}
"""What the command line of each part of a service holds."""


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class RunningService:
    """A service with a home of its own; every process it starts carries its mark."""

    def __init__(self, folder: Path, **settings: str) -> None:
        """`folder` is best a short path: then Ray's files lie in the home, too."""
        self.folder = folder
        self.mark = uuid.uuid4().hex
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = folder / "service.log"
        self.steps = folder / "steps"
        """Folder in which toys write down each step of training."""
        self.steps.mkdir()
        self.env = {
            **os.environ,
            "EIGENSWEEP_TEST_MARK": self.mark,
            "TOY_STEPS": str(self.steps),
            "EIGENSWEEP_HOME": str(folder / "home"),
            "EIGENSWEEP_PORT": str(self.port),
            "EIGENSWEEP_MLFLOW_PORT": str(free_port()),
            "PYTHONPATH": f"{ROOT}:{PLUGINS}",
            **{f"EIGENSWEEP_{k.upper()}": v for k, v in settings.items()},
        }
        self.command = [sys.executable, "-m", "eigensweep.service.process.serve"]
        self.cwd = folder
        self.token: str | None = None
        """What requests carry, if anything."""
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the service and wait until it is ready."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command,
                cwd=self.cwd,
                env=self.env,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        wait_until(self.is_ready, lambda: self.log.read_text()[-4000:])

    def is_ready(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, f"it ended:\n{self.log.read_text()[-4000:]}"
        try:
            self.get("/readyz")
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False
        return True

    def request(self, path: str, body: Any = None) -> Any:
        content = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        if self.token is not None:
            headers["Authorization"] = f"Bearer {self.token}"
        request = urllib.request.Request(self.url + path, data=content, headers=headers)
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return json.load(answer)

    def get(self, path: str) -> Any:
        return self.request(path)

    def post(self, spec: dict[str, Any]) -> dict[str, Any]:
        return self.request("/v1/experiments", spec)

    def experiment(self, id: str) -> dict[str, Any]:
        return self.get(f"/v1/experiments/{id}")

    def trials(self, id: str) -> list[dict[str, Any]]:
        items, cursor = [], ""
        while True:
            page = self.get(f"/v1/experiments/{id}/trials?sort=number&limit=100{cursor}")
            items += page["items"]
            if not page.get("next_cursor"):
                return [self.get(f"/v1/experiments/{id}/trials/{t['number']}") for t in items]
            cursor = f"&cursor={page['next_cursor']}"

    def wait(self, id: str) -> dict[str, Any]:
        """Return the experiment once it has ended."""
        return self.wait_for(id, lambda found: found["state"] in ENDED)

    def wait_for(self, id: str, is_so: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Return the experiment once it is so."""
        wait_until(lambda: is_so(self.experiment(id)), lambda: self.experiment(id)["progress"], 0.3)
        return self.experiment(id)

    @property
    def database_url(self) -> str:
        """URL of the record."""
        given = self.env.get("EIGENSWEEP_DATABASE_URL")
        return given or f"sqlite:///{self.folder / 'home/eigensweep.db'}"

    @property
    def storage(self) -> Path:
        """Folder of checkpoints and curves."""
        return Path(self.env.get("EIGENSWEEP_STORAGE") or self.folder / "home/storage")

    def mlflow_uri(self) -> str:
        """Return the address of MLflow through the service, once it is ready."""
        wait_until(self.is_ready)
        return self.get("/readyz")["checks"]["mlflow"]["url"]

    def family(self) -> list[psutil.Process]:
        """Return every living process that this service started, and itself."""
        found = []
        for p in psutil.process_iter():
            try:
                if p.status() != psutil.STATUS_ZOMBIE and (
                    p.environ().get("EIGENSWEEP_TEST_MARK") == self.mark
                ):
                    found.append(p)
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        return found

    def find_named(self, word: str) -> list[psutil.Process]:
        """Return those of the family whose command line holds a word."""
        found = []
        for p in self.family():
            try:
                if word in " ".join(p.cmdline()):
                    found.append(p)
            except psutil.NoSuchProcess:
                continue
        return found

    def find_part(self, name: str) -> list[psutil.Process]:
        """Return the processes of a part, which is `service` or one of `PARTS`."""
        if name == "service":
            assert self.process is not None
            return [psutil.Process(self.process.pid)]
        return self.find_named(PARTS[name])

    def find_parts(self) -> dict[str, set[int]]:
        """Return the numbers of the processes of each part, found in one look at all of them."""
        found: dict[str, set[int]] = {}
        for p in self.family():
            with contextlib.suppress(psutil.NoSuchProcess):
                words = " ".join(p.cmdline())
                for name in PARTS:
                    if PARTS[name] in words:
                        found.setdefault(name, set()).add(p.pid)
        if self.process is not None:
            found["service"] = {self.process.pid}
        return found

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """Send SIGTERM and wait until the service is gone."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(PATIENCE)

    def clear(self) -> None:
        """Kill whatever is still alive."""
        for p in self.family():
            with contextlib.suppress(psutil.NoSuchProcess):
                p.kill()
        if self.process is not None:
            self.process.wait()

    def wait_until_alone(self) -> None:
        """Wait until no process of the service is left."""
        wait_until(lambda: not self.family(), self.family)


@contextlib.contextmanager
def make_short_folder() -> Iterator[Path]:
    """Make a folder whose path is so short that Ray's sockets fit below it; remove it after use."""
    with tempfile.TemporaryDirectory(prefix="es-", dir="/tmp", ignore_cleanup_errors=True) as name:
        yield Path(name)


@pytest.fixture(scope="module")
def shared_service() -> Iterator[RunningService]:
    """A service that the tests of a module share."""
    with make_short_folder() as folder:
        running = RunningService(folder)
        yield running
        running.clear()


@pytest.fixture
def service() -> Iterator[RunningService]:
    with make_short_folder() as folder:
        running = RunningService(folder)
        yield running
        running.clear()


@pytest.fixture
def parts() -> list[str]:
    """Return the names of all parts of a service."""
    return ["service", *PARTS]


@pytest.fixture
def make_service() -> type[RunningService]:
    """Return what makes a service that is not started."""
    return RunningService
