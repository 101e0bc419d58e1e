"""A real service as a process of its own, killed and started again at will."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

PLUGINS = Path(__file__).parents[1] / "plugins"


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class RunningService:
    """A service with a home of its own; every process it starts carries its mark."""

    def __init__(self, folder: Path, **settings: str) -> None:
        self.folder = folder
        self.mark = uuid.uuid4().hex
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = folder / "service.log"
        self.env = {
            **os.environ,
            "EIGENSWEEP_TEST_MARK": self.mark,
            "EIGENSWEEP_HOME": str(folder / "home"),
            "EIGENSWEEP_PORT": str(self.port),
            "EIGENSWEEP_MLFLOW_PORT": str(free_port()),
            "PYTHONPATH": str(PLUGINS),
            **{f"EIGENSWEEP_{k.upper()}": v for k, v in settings.items()},
        }
        self.command = [sys.executable, "-m", "eigensweep.service.process.serve"]
        self.cwd = folder
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, timeout: float = 90) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command,
                cwd=self.cwd,
                env=self.env,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise AssertionError(f"the service ended:\n{self.log.read_text()[-4000:]}")
            try:
                self.get("/readyz")
                return
            except (urllib.error.URLError, ConnectionError):
                time.sleep(0.2)
        raise AssertionError(f"not ready in {timeout} s:\n{self.log.read_text()[-4000:]}")

    def request(self, path: str, body: Any = None) -> Any:
        content = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self.url + path, data=content, headers={"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
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

    def wait(self, id: str, timeout: float = 120) -> dict[str, Any]:
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            found = self.experiment(id)
            if found["state"] not in ("queued", "running"):
                return found
            time.sleep(0.3)
        raise AssertionError(f"still {found['state']}: {found['progress']}")

    def mlflow_uri(self) -> str:
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

    def named(self, word: str) -> list[psutil.Process]:
        """Return those of the family whose command line holds a word."""
        found = []
        for p in self.family():
            try:
                if word in " ".join(p.cmdline()):
                    found.append(p)
            except psutil.NoSuchProcess:
                continue
        return found

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self, timeout: float = 15) -> float:
        """Send SIGTERM; return the seconds until the service was gone."""
        assert self.process is not None
        began = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(timeout)
        return time.monotonic() - began

    def clear(self) -> None:
        """Kill whatever is still alive."""
        for p in self.family():
            with contextlib.suppress(psutil.NoSuchProcess):
                p.kill()
        if self.process is not None:
            self.process.wait()

    def alone(self, timeout: float = 15) -> list[psutil.Process]:
        """Return what is still alive after `timeout` seconds at most."""
        deadline = time.monotonic() + timeout
        while (left := self.family()) and time.monotonic() < deadline:
            time.sleep(0.2)
        return left


@pytest.fixture(scope="session")
def start_service() -> type[RunningService]:
    """Return the class, for modules that share one service among their tests."""
    return RunningService


@pytest.fixture
def service(tmp_path: Path) -> Iterator[RunningService]:
    running = RunningService(tmp_path)
    yield running
    running.clear()
