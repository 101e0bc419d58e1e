"""A development cluster on one machine: PostgreSQL, MLflow, Ray's head, nodes and the service.

`python deploy/development_cluster.py up` starts them as processes, which outlive it; `status` shows
and `down` ends them. What runs is written into `cluster.json` of the cluster's folder, and each
process carries a mark in its environment, as what a service starts does. So `down` finds all of
them, also after `up` was killed half-way.
"""

from __future__ import annotations

import glob
import json
import os
import pwd
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
from hashlib import sha256
from itertools import groupby
from pathlib import Path
from typing import Annotated, Final, Self
from urllib.parse import quote

import psutil  # type: ignore[import-untyped]
import typer
from platformdirs import user_data_path

from eigensweep.client import Client, RefusedError
from eigensweep.client.answers.tables import Table
from eigensweep.command.frame import FAILURE, INTERRUPTED, Call, command
from eigensweep.common import guard
from eigensweep.common.private_folders import UnsafeFolderError, keep_secret, make_private
from eigensweep.search_spaces.labels import say_count
from eigensweep.service.process import mlflow_app
from eigensweep.service.process.locking import hold_alone
from eigensweep.service.process.ports import find_free_port
from eigensweep.service.settings import StartError

CALL: Final = "python deploy/development_cluster.py"
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
LOCK: Final = "cluster.lock"
"""The file that a cluster's folder has from its first start."""
SHORT_FOLDER: Final = "es-"
"""How the folder of sockets begins: a socket's path has at most 107 characters."""

LOGIN: Final = "eigensweep"
SERVER_USER: Final = "postgres"
"""The user whose processes it has if we are root, which PostgreSQL refuses to be."""
PLACE_OF_ROOTS: Final = Path("/var/tmp")
"""Where root's databases lie: `SERVER_USER` may enter it, and seldom root's own folders."""
INSTALLED: Final = "/usr/lib/postgresql/*/bin/initdb"

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
                f"a cluster runs in {folder}: `{CALL} status` shows it, "
                f"`{CALL} down` ends it, and `--folder` takes another folder"
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
        StartError: if it is to be removed, and no cluster ever ran in it.
    """
    folder = folder.absolute()
    if not (folder / LOCK).exists():  # each start leaves it there
        if delete and folder.exists():
            raise StartError(f"no cluster ever ran in {folder}, so it is not removed")
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
    words = f"another command works in {folder}: wait for its end"
    return hold_alone(folder / LOCK, ClusterBusyError(words))


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
        ours = ("RAY_ADDRESS", "EIGENSWEEP_DATABASE_URL")
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
        names = ["eigensweep", "mlflow"]
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


class NoPostgresqlError(StartError):
    """No PostgreSQL is installed, or it cannot make its databases here."""


def find_programs() -> Path | None:
    """Return the folder of PostgreSQL's programs: by PATH, else Debian's newest; None: no such."""
    installed = sorted(glob.glob(INSTALLED), key=_read_version, reverse=True)
    found = shutil.which("initdb") or next(iter(installed), None)
    return None if found is None else Path(os.path.realpath(found)).parent


def _read_version(path: str) -> int:
    version = Path(path).parts[-3]
    return int(version) if version.isdecimal() else 0


@dataclass(frozen=True)
class LocalPostgresql:
    """Where a server has its programs, its databases and its socket."""

    programs: Path
    data: Path
    sockets: Path
    user: str | None
    """Whose processes they are; None: this user's."""

    @classmethod
    def choose(cls, folder: Path, sockets: Path) -> Self:
        """Return the server whose databases lie in `folder` and whose socket in `sockets`.

        If we are root, both lie in a folder of `SERVER_USER` below `PLACE_OF_ROOTS`, whose name
        follows from `folder`.

        Raises:
            NoPostgresqlError: if PostgreSQL or the user for it is missing.
        """
        programs = find_programs()
        if programs is None:
            raise NoPostgresqlError(
                "PostgreSQL is not installed (no `initdb` on PATH or in /usr/lib/postgresql): "
                "install it, or give `--sqlite` to do without it"
            )
        if os.geteuid() != 0:
            return cls(programs, folder / "postgresql", sockets, None)
        try:
            pwd.getpwnam(SERVER_USER)
        except KeyError:
            raise NoPostgresqlError(
                f"PostgreSQL does not run as root, and there is no user '{SERVER_USER}': run this "
                "as another user, or give `--sqlite` to do without PostgreSQL"
            ) from None
        ours = place_of_root(folder)
        return cls(programs, ours / "data", ours, SERVER_USER)

    def make(self) -> None:
        """Make the databases' folder, if it is not there yet.

        Raises:
            NoPostgresqlError: if that fails; the message ends with what PostgreSQL said.
            UnsafeFolderError: if the folder belongs to somebody else.
        """
        if self.user is None:
            make_private(self.data)
        else:
            _make_for(self.user, self.sockets)
        if (self.data / "PG_VERSION").exists():
            return
        words = ["-U", LOGIN, "--auth-local=trust", "--auth-host=reject", "-E", "UTF8"]
        command = [str(self.programs / "initdb"), "-D", str(self.data), "--locale=C", *words]
        done = subprocess.run(
            command, capture_output=True, text=True, user=self.user, cwd=self.sockets
        )
        if done.returncode != 0:
            raise NoPostgresqlError(
                f"PostgreSQL cannot make its databases in {self.data}: {done.stderr.strip()}"
            )

    @property
    def command(self) -> list[str]:
        """The command of the server."""
        words = ["-D", str(self.data), "-k", str(self.sockets), "-c", "listen_addresses="]
        return [str(self.programs / "postgres"), *words]

    def url(self, database: str) -> str:
        """Return the SQLAlchemy URL of a database."""
        return f"postgresql+psycopg://{LOGIN}@/{database}?host={quote(str(self.sockets))}"

    def make_databases(self, names: list[str]) -> bool:
        """Make those databases that are not there yet; return False while nobody answers."""
        import psycopg

        try:
            with psycopg.connect(
                host=str(self.sockets), user=LOGIN, dbname="postgres", autocommit=True
            ) as connection:
                rows = connection.execute("SELECT datname FROM pg_database").fetchall()
                for name in set(names) - {row[0] for row in rows}:
                    connection.execute(f'CREATE DATABASE "{name}"')
        except psycopg.OperationalError:
            return False
        return True


def place_of_root(folder: Path) -> Path:
    """Return where the databases of a cluster in `folder` lie if root started it."""
    name = sha256(str(folder.resolve()).encode()).hexdigest()[:12]
    return PLACE_OF_ROOTS / f"eigensweep-postgresql-{name}"


def _make_for(user: str, folder: Path) -> None:
    """Make a folder for another user alone, or accept one that is."""
    owner = pwd.getpwnam(user)
    try:
        folder.mkdir(mode=0o700)
        os.chown(folder, owner.pw_uid, owner.pw_gid)
    except FileExistsError:
        found = folder.lstat()
        if not folder.is_dir() or folder.is_symlink() or found.st_uid != owner.pw_uid:
            raise UnsafeFolderError(
                f"{folder} is not a folder of user '{user}': remove it if you do not know it"
            ) from None
        folder.chmod(0o700)


def _choose_folder(folder: Path | None) -> Path:
    return (folder or user_data_path("eigensweep-cluster")).absolute()


Folder = Annotated[
    Path | None,
    typer.Option(
        callback=_choose_folder,
        metavar="FOLDER",
        help="Folder of the cluster: databases, checkpoints, logs, and what runs now; default: "
        "`eigensweep-cluster` in your data folder.",
    ),
]

app = typer.Typer(
    help="Start, look at and end a development cluster: several Ray nodes on this machine.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@app.command()
def up(
    nodes: Annotated[
        int, typer.Option("--nodes", min=1, help="Ray nodes that train, beside the head.")
    ] = 2,
    cpus_per_node: Annotated[
        int | None,
        typer.Option(
            "--cpus-per-node",
            min=1,
            help="Processors that each node offers; default: an equal share.",
        ),
    ] = None,
    sqlite: Annotated[
        bool, typer.Option("--sqlite", help="Do without PostgreSQL: files in the folder.")
    ] = False,
    port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, help="The service's port; default: 8642 or the next free."),
    ] = None,
    folder: Folder = None,
) -> None:
    """Start PostgreSQL, MLflow, a Ray head, nodes and the service; return when all are ready.

    Nodes start one after another. If something does not start, everything is ended again.
    """
    assert folder is not None
    started = time.monotonic()
    shared = max(1, (os.cpu_count() or 1) // nodes)
    plan = Plan(nodes, cpus_per_node or shared, not sqlite, port)
    with _failures(), _signals():
        made = bring_up(folder, plan, typer.echo)
    typer.echo(describe(made, plan, time.monotonic() - started))


@command(app, asks=False)
def status(call: Call, folder: Folder = None) -> None:
    """Show each process of the cluster. Ends with 1 if one has ended, or if there is none."""
    assert folder is not None
    found = Cluster.read(folder)
    rows = [
        (part.name, "running" if part.find() else "ended", part.pid, part.address, part.log)
        for part in found.parts
    ]
    heads = ("process", "state", "pid", "address", "log")
    processes = [dict(zip(heads, row, strict=True)) for row in rows]
    none = f"no cluster runs in {folder}; `{CALL} up` starts one"
    content = {"url": found.url or None, "processes": processes}
    call.tell(content, lambda _: Table(heads, rows) if rows else none)
    if not rows or any(row[1] == "ended" for row in rows):
        raise typer.Exit(FAILURE)


@app.command()
def down(
    folder: Folder = None,
    delete: Annotated[
        bool, typer.Option("--delete", help="Remove the folder with all results, too.")
    ] = False,
) -> None:
    """End every process of the cluster and wait until they are gone; results stay."""
    assert folder is not None
    with _failures():
        was_there = take_down(folder, typer.echo, delete)
    words = "the cluster has ended" if was_there else f"no cluster ran in {folder}"
    if delete:
        words += f"; {folder} is removed"
    elif was_there:
        words += f"; its results stay in {folder}, and `{CALL} up` goes on with them"
    typer.echo(words)


def describe(made: Cluster, plan: Plan, seconds: float) -> str:
    """Return what a user needs to know of a cluster that is ready."""
    where = "" if made.folder == _choose_folder(None) else f" --folder {made.folder}"
    nodes = f"{say_count(plan.nodes, 'node')} with {say_count(plan.cpus, 'processor')} each"
    head = next(part.log for part in made.parts if part.name == "head")
    return "\n".join(
        [
            f"The cluster is ready after {seconds:.0f} s: {nodes}.",
            f"  service   {made.url} (MLflow: {made.url}/mlflow)",
            f"  results   {made.folder}",
            f"  logs      {Path(head).parent}",
            "",
            f"  export EIGENSWEEP_URL={made.url}",
            "  eigensweep submit quickstart --follow",
            "  eigensweep list",
            f"  {CALL} status{where}",
            f"  {CALL} down{where}",
        ]
    )


@contextmanager
def _failures() -> Iterator[None]:
    """Turn what prevents a cluster into a message and an exit code."""
    try:
        yield
    except (StartError, OSError) as error:
        Call().fail(str(error), "The cluster failed", FAILURE)
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None


@contextmanager
def _signals() -> Iterator[None]:
    """Let a signal that ends this process end what it has started, too."""
    kinds = (signal.SIGTERM, signal.SIGHUP)
    before = {kind: signal.signal(kind, lambda number, _: sys.exit(128 + number)) for kind in kinds}
    before[signal.SIGINT] = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)


if __name__ == "__main__":
    app()
