"""A cluster on one machine: PostgreSQL, MLflow, Ray's head, nodes and the service, as processes.

Runs in a user's terminal, which they outlive. What runs is written into `cluster.json` of the
cluster's folder, and each process carries a mark in its environment, as what a service starts does.
So `take_down` finds all of them, also after whoever started them was killed half-way.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Final, Self

import psutil  # type: ignore[import-untyped]

from eigensweep.private_folders import keep_secret, make_private
from eigensweep.service.client import Client, RefusedError
from eigensweep.service.process import guard, mlflow_app
from eigensweep.service.process.local_postgresql import LocalPostgresql, place_of_root
from eigensweep.service.process.locking import hold_alone
from eigensweep.service.process.ports import find_free_port
from eigensweep.service.settings import StartError

HOST: Final = "127.0.0.1"
STATE: Final = "cluster.json"
READY_SECONDS: Final = 180.0
"""How long one process may take until it answers."""
STOP_SECONDS: Final = 20.0
"""How long processes may take to end before they are killed."""
PAUSE: Final = 0.1
START_JITTER: Final = 3.0
"""How far apart two readings of one start may be, in seconds; the kernel rounds them."""
SERVICE_PORT, MLFLOW_PORT, HEAD_PORT, NODE_PORT = 8642, 5000, 6379, 6380
"""The first ports that are tried; those of docs/how-to/cluster.md."""
OBJECT_STORE_BYTES: Final = 128 * 2**20
AT_ONCE: Final = {"RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0"}
"""Lets a node that is told to end do so. Ray would have it drain for half a minute: until drivers,
which outlive the service, have left it by themselves."""
SHARE_OF_MEMORY: Final = 0.7
"""The nodes' share of the memory that is free now; the rest is for the other processes."""
SHORT_FOLDER: Final = "es-"
"""How the folder of sockets begins: a socket's path has at most 107 characters."""

Tell = Callable[[str], None]
"""Takes a line about what happens."""


class ClusterFailedError(StartError):
    """The cluster did not start; what had been started is ended."""


class ClusterBusyError(StartError):
    """A cluster runs in this folder already, or another command works on it."""


@dataclass(frozen=True)
class Plan:
    """What a cluster consists of."""

    nodes: int
    cpus: int
    """Processors that each node offers."""
    postgresql: bool = True
    """False: SQLite."""
    port: int | None = None
    """The service's; None: the first free one."""


@dataclass(frozen=True)
class Part:
    """One process of a cluster, as it is written down."""

    name: str
    kind: str
    """`postgresql`, `mlflow`, `head`, `node` or `service`; those of one kind end together."""
    pid: int
    created: float
    """When it started, in the kernel's seconds: another process may get its number later."""
    address: str
    log: str

    def find(self) -> psutil.Process | None:
        """Return the process, None if it has ended."""
        with suppress(psutil.NoSuchProcess):
            found = psutil.Process(self.pid)
            is_same = abs(found.create_time() - self.created) < START_JITTER
            if is_same and found.status() != psutil.STATUS_ZOMBIE:
                return found
        return None


@dataclass
class Cluster:
    """What is known of the cluster in a folder."""

    folder: Path
    runtime: str = ""
    """The short folder of sockets, which ends with the cluster."""
    url: str = ""
    """The service's address, once it is ready."""
    parts: list[Part] = field(default_factory=list)

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Return what is written in a folder; without parts if there is nothing."""
        try:
            content = json.loads((folder / STATE).read_text())
        except FileNotFoundError:
            return cls(folder)
        parts = [Part(**part) for part in content["parts"]]
        return cls(folder, content["runtime"], content["url"], parts)

    def write(self) -> None:
        """Write it down, for the commands that come later."""
        parts = [asdict(part) for part in self.parts]
        content = {"runtime": self.runtime, "url": self.url, "parts": parts}
        fresh = self.folder / f"{STATE}.new"
        fresh.write_text(json.dumps(content, indent=1) + "\n")
        fresh.replace(self.folder / STATE)

    @property
    def is_running(self) -> bool:
        """Whether any of its processes lives."""
        return any(part.find() for part in self.parts)


def bring_up(folder: Path, plan: Plan, tell: Tell) -> Cluster:
    """Start a cluster in a folder and return it when the service is ready for experiments.

    What an earlier cluster of this folder has found out is kept, and this one goes on with it.

    Raises:
        ClusterBusyError: if one runs there.
        ClusterFailedError: if a process does not start; all of them have ended then.
        StartError: if PostgreSQL is missing, or a port is taken.
        UnsafeFolderError: if another user could change what is in the folder.
    """
    folder = folder.absolute()
    make_private(folder)
    with _hold(folder):
        if Cluster.read(folder).is_running:
            raise ClusterBusyError(
                f"a cluster runs in {folder}: `eigensweep cluster status` shows it, "
                "`eigensweep cluster down` ends it, and `--folder` takes another folder"
            )
        _clear(folder, print_nothing)
        runtime = tempfile.mkdtemp(prefix=SHORT_FOLDER, dir="/tmp")
        cluster = Cluster(folder, runtime)
        cluster.write()
        try:
            _Start(cluster, plan, tell).run()
        except BaseException:
            tell("ending what was started")
            with _undisturbed():
                _clear(folder, tell)
            raise
    return cluster


def take_down(folder: Path, tell: Tell, delete: bool = False) -> bool:
    """End the cluster of a folder and return whether one was there; wait until it is gone.

    Results stay in the folder. With `delete` the folder is removed, too.

    Raises:
        ClusterBusyError: if another command works on the folder.
    """
    folder = folder.absolute()
    if not folder.exists():
        return False
    with _hold(folder), _undisturbed():
        was_there = _clear(folder, tell)
        if delete:
            shutil.rmtree(place_of_root(folder), ignore_errors=True)
            shutil.rmtree(folder)
    return was_there


def print_nothing(line: str) -> None:
    """Take a line and say nothing."""


def _clear(folder: Path, tell: Tell) -> bool:
    """End every process of the folder's cluster, the youngest first; remove what is temporary."""
    cluster = Cluster.read(folder)
    for _, parts in groupby(reversed(cluster.parts), lambda part: part.kind):
        _end([*parts], tell)
    # Ray's own processes are nobody's children, and a start that was killed has not written all.
    ends = tuple(f":{place}" for place in (folder.resolve(), (folder / "home").resolve()))
    left = guard.kill(lambda mark: mark.endswith(ends))
    if cluster.runtime:
        shutil.rmtree(cluster.runtime, ignore_errors=True)
    (folder / STATE).unlink(missing_ok=True)
    return bool(cluster.parts or left)


def _end(parts: Sequence[Part], tell: Tell) -> None:
    """Tell processes to end, all at once; kill those that do not."""
    living: dict[psutil.Process, Part] = {}
    for part in parts:
        if process := part.find():
            tell(f"ending {part.name}")
            with suppress(psutil.NoSuchProcess):
                # PostgreSQL would wait until everybody has left it.
                is_server = part.kind == "postgresql"
                process.send_signal(signal.SIGINT if is_server else signal.SIGTERM)
                living[process] = part
    _, stubborn = psutil.wait_procs(list(living), timeout=STOP_SECONDS)
    for process in stubborn:
        tell(f"killing {living[process].name}, which did not end in {STOP_SECONDS:g} s")
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(stubborn, timeout=STOP_SECONDS)


def _hold(folder: Path) -> AbstractContextManager[None]:
    """Hold a folder, so that only one command starts or ends its cluster."""
    words = f"another `eigensweep cluster` command works in {folder}: wait for its end"
    return hold_alone(folder / "cluster.lock", ClusterBusyError(words))


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Let no Ctrl-C interrupt what ends processes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    kinds = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {kind: signal.signal(kind, signal.SIG_IGN) for kind in kinds}
    try:
        yield
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)


class _Start:
    """One start of a cluster: its processes, one after another."""

    def __init__(self, cluster: Cluster, plan: Plan, tell: Tell) -> None:
        self._cluster, self._plan, self._tell = cluster, plan, tell
        self._folder = cluster.folder
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        mark = guard.new_mark(cluster.folder)
        ours = ("RAY_ADDRESS", "EIGENSWEEP_DATABASE_URL", "EIGENSWEEP_OPTUNA_URL")
        here = {name: value for name, value in os.environ.items() if name not in ours}
        self._environment = {**here, **guard.environment(mark), "RAY_USAGE_STATS_ENABLED": "0"}
        self._ray = {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": keep_secret(cluster.folder / "ray-token"),
        }
        for name in ("home", "storage", "logs", "mlflow"):
            (cluster.folder / name).mkdir(mode=0o700, exist_ok=True)

    def run(self) -> None:
        """Start everything; the service is ready when this returns."""
        try:
            urls = self._start_postgresql() if self._plan.postgresql else None
            mlflow, token = self._start_mlflow(urls["mlflow"] if urls else None)
            head = self._start_ray()
            self._wait("mlflow", lambda: _answers(f"{mlflow}/health"))
            self._start_service(head, mlflow, token, urls)
        finally:
            for process in self._processes.values():
                process.returncode = 0  # they outlive us, and Python would warn of that

    def _start_postgresql(self) -> dict[str, str]:
        """Start PostgreSQL and return the URLs of its databases, by their names."""
        server = LocalPostgresql.choose(self._folder, Path(self._cluster.runtime))
        server.make()
        self._launch(
            "postgresql", "postgresql", server.command, {}, str(server.sockets), server.user
        )
        names = ["eigensweep", "mlflow", "optuna"]
        self._wait("postgresql", lambda: server.make_databases(names))
        return {name: server.url(name) for name in names}

    def _start_mlflow(self, store: str | None) -> tuple[str, str]:
        """Start MLflow, which needs seconds until it answers; return its address and secret."""
        folder = self._folder / "mlflow"
        token = keep_secret(folder / "token")
        port = find_free_port(HOST, MLFLOW_PORT, may_move=True)
        words = ["--host", HOST, "--port", str(port), "--artifacts", str(folder / "artifacts")]
        own = {
            mlflow_app.TOKEN: token,
            "MLFLOW_BACKEND_STORE_URI": store or f"sqlite:///{folder / 'mlflow.db'}",
        }
        url = f"http://{HOST}:{port}"
        self._launch("mlflow", "mlflow", _python(mlflow_app.__name__, *words), own, url)
        return url, token

    def _start_ray(self) -> str:
        """Start Ray's head and then the nodes, each when the one before has joined."""
        port = find_free_port(HOST, HEAD_PORT, may_move=True)
        head = f"{HOST}:{port}"
        folder = Path(self._cluster.runtime) / "ray"  # to which Ray gives everybody all rights
        words = ["--head", f"--port={port}", "--include-dashboard=false", f"--temp-dir={folder}"]
        self._start_node("head", head, words, cpus=0)
        memory = psutil.virtual_memory().available * SHARE_OF_MEMORY / self._plan.nodes
        for number in range(1, self._plan.nodes + 1):
            words = [f"--address={head}", f"--memory={int(memory)}"]
            self._start_node(f"node-{number}", head, words, self._plan.cpus)
        return head

    def _start_node(self, name: str, head: str, words: list[str], cpus: int) -> None:
        port = find_free_port(HOST, NODE_PORT, may_move=True)
        shared = [
            *(f"--node-ip-address={HOST}", f"--node-manager-port={port}", f"--num-cpus={cpus}"),
            *("--min-worker-port=0", "--max-worker-port=0", "--dashboard-agent-listen-port=0"),
            *("--num-gpus=0", f"--object-store-memory={OBJECT_STORE_BYTES}"),
        ]
        command = _python("ray.scripts.scripts", "start", "--block", *words, *shared)
        kind = "head" if name == "head" else "node"
        self._launch(name, kind, command, self._ray | AT_ONCE, f"{HOST}:{port}")
        asked = ["--address", head, "--port", str(port), "--wait", str(READY_SECONDS)]
        health = subprocess.Popen(
            _python("eigensweep.workers.cluster.node_health", *asked),
            env=self._environment | self._ray,
            cwd=self._folder,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            self._wait(name, lambda: health.poll() is not None)
        finally:
            health.kill()
            _, said = health.communicate()
        if health.returncode != 0:
            self._require_running(name)
            raise ClusterFailedError(f"{name} does not join: {said.strip()}")

    def _start_service(
        self, head: str, mlflow: str, token: str, urls: dict[str, str] | None
    ) -> None:
        wanted = self._plan.port
        port = find_free_port(HOST, wanted or SERVICE_PORT, may_move=wanted is None)
        url = f"http://{HOST}:{port}"
        own = {
            "EIGENSWEEP_HOME": str(self._folder / "home"),
            "EIGENSWEEP_HOST": HOST,
            "EIGENSWEEP_PORT": str(port),
            "EIGENSWEEP_RAY_ADDRESS": head,
            "EIGENSWEEP_MLFLOW_URI": mlflow,
            "EIGENSWEEP_MLFLOW_TOKEN": token,
            "EIGENSWEEP_STORAGE": str(self._folder / "storage"),
        }
        if urls is not None:
            own["EIGENSWEEP_DATABASE_URL"] = urls["eigensweep"]
            own["EIGENSWEEP_OPTUNA_URL"] = urls["optuna"]
        command = _python("eigensweep.service.process.serve")
        self._launch("service", "service", command, own | self._ray, url)
        self._wait("service", lambda: _is_ready(url))
        self._cluster.url = url
        self._cluster.write()

    def _launch(
        self,
        name: str,
        kind: str,
        command: list[str],
        own: dict[str, str],
        address: str,
        user: str | None = None,
    ) -> None:
        """Start a process that outlives this one, and write it down at once."""
        self._tell(f"starting {name}")
        log = self._folder / "logs" / f"{name}.log"
        with open(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as output:
            process = subprocess.Popen(
                command,
                env=self._environment | own,
                cwd="/" if user else self._folder,  # Ray's workers import from the current folder
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C reaches only this process
                user=user,
            )
        self._processes[name] = process
        created = psutil.Process(process.pid).create_time()
        part = Part(name, kind, process.pid, created, address, str(log))
        self._cluster.parts.append(part)
        self._cluster.write()

    def _wait(self, name: str, is_so: Callable[[], bool]) -> None:
        """Wait until something of a process is so; raise if it ends before, or is too slow."""
        deadline = time.monotonic() + READY_SECONDS
        while not is_so():
            self._require_running(name)
            if time.monotonic() > deadline:
                raise self._failure(name, f"is not ready after {READY_SECONDS:g} s")
            time.sleep(PAUSE)

    def _require_running(self, name: str) -> None:
        """Raise if a process has ended."""
        status = self._processes[name].poll()
        if status is not None:
            raise self._failure(name, f"ended with status {status}")

    def _failure(self, name: str, what: str) -> ClusterFailedError:
        log = self._folder / "logs" / f"{name}.log"
        lines = log.read_text(errors="replace").splitlines()[-20:]
        return ClusterFailedError("\n".join([f"{name} {what}; its log, {log}, ends with:", *lines]))


def _python(module: str, *words: str) -> list[str]:
    return [sys.executable, "-m", module, *words]


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except OSError:
        return False


def _is_ready(url: str) -> bool:
    """Return whether a service takes experiments."""
    try:
        with Client(url) as client:
            client.get("/readyz")
    except (OSError, RefusedError):
        return False
    return True
