"""Looks at everything that the service needs, and says what to do where something is wrong.

Runs in a user's terminal, with and without a running service. It changes nothing but two kinds of
files: a test file that is removed at once, and the compiled steps that the first trial would make.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Literal
from urllib.parse import urlsplit

import httpx2
import psutil  # type: ignore[import-untyped]
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from pydantic import ValidationError
from sqlalchemy import make_url, text
from sqlalchemy.exc import SQLAlchemyError

from eigensweep.common.machine import count_processors, find_memory
from eigensweep.common.private_folders import UnsafeFolderError, require_private
from eigensweep.common.variables import describe_unknown, find_unknown
from eigensweep.search_spaces.labels import say_count
from eigensweep.service.process.home import require_whole
from eigensweep.service.process.ports import listen
from eigensweep.service.settings import (
    Mlflow,
    Settings,
    StartError,
    explain_settings,
    is_loopback,
)
from eigensweep.store.places.disk_space import LEAST_FILES, find_low
from eigensweep.store.places.durable_files import StorageError, StoreKeysError
from eigensweep.store.places.files import is_url
from eigensweep.workers.cluster.threads import find_thread_problem

State = Literal["ok", "warning", "problem"]

PATIENCE_SECONDS: Final = 5.0
"""How long a service or a database may take to answer."""
LOW_SHARE, LOW_BYTES = 0.1, 5 * 2**30
"""A disk is low below a tenth that is free, or 5 GiB."""
CLOCK_WARNING, CLOCK_PROBLEM = 5.0, 60.0
"""Seconds by which clocks may differ."""
NETWORK_FILE_SYSTEMS: Final = frozenset(
    ("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "fuse.sshfs", "glusterfs", "lustre", "ceph")
)
PASSING_FILE_SYSTEMS: Final = frozenset(("tmpfs", "ramfs"))
"""What is there is gone after the next start of the machine."""
NODES_SECONDS: Final = 150.0
"""How long the nodes of a cluster may take to try the store."""
PIN: Final = re.compile(r"^([\w.-]+)==([^\s;]+)", re.MULTILINE)


@dataclass(frozen=True)
class Finding:
    """What was found at one place."""

    state: State
    what: str
    detail: str
    advice: str = ""
    """What to do; empty if nothing has to be done."""


@dataclass
class Context:
    """What the checks look at: one installation, and its service if that runs."""

    settings: Settings
    url: str | None
    """Address of a service that may run; None: none is known."""
    token: str | None = None
    """What the service is asked with; None: the token of the settings, if there is one."""

    def ask(self, path: str) -> httpx2.Response | None:
        """Return the service's answer to a GET, None if there is none."""
        token = self.token
        if token is None and self.settings.token:
            token = self.settings.token.get_secret_value()
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        address = (self.url or "").rstrip("/")
        url = f"{address}{path}" if "://" in address else f"http://{address}{path}"
        # The last two are of addresses that are none, and of proxies that cannot be used.
        with suppress(httpx2.HTTPError, httpx2.InvalidURL, ValueError, ImportError):
            leads_away = not is_loopback(urlsplit(url).hostname or "")  # by a proxy, as the client
            return httpx2.get(url, headers=headers, timeout=PATIENCE_SECONDS, trust_env=leads_away)
        return None


def ok(what: str, detail: str) -> Finding:
    """Return that all is well at one place."""
    return Finding("ok", what, detail)


def examine(url: str | None = None, *, token: str | None = None) -> list[Finding]:
    """Return what was found, place by place.

    `url` is the address of the service; None: it has none, since it does not run. `token` is what
    it is asked with, by default that of the settings.
    """
    found = [
        Finding("warning", "variables", describe_unknown(name, nearest), "correct or remove it")
        for name, nearest in find_unknown(os.environ).items()
    ] or [ok("variables", "every EIGENSWEEP_* variable that is set is read by something")]
    found += list(check_installation())
    try:
        settings = Settings()
    except ValidationError as error:
        advice = "correct it; docs/reference/settings.md says what it may be"
        wrong = explain_settings(error)
        return [*found, *(Finding("problem", "settings", words, advice) for words in wrong)]
    context = Context(settings, url, token)
    for name, check in CHECKS.items():
        try:
            found += check(context)
        except Exception as error:  # the next place is looked at in any case
            words = f"this could not be looked at: {type(error).__name__}: {error}"
            found.append(Finding("problem", name, words, "please report it as a bug"))
    return found


def check_installation() -> Iterator[Finding]:
    """Yield what is wrong with Python and the packages."""
    yield ok("python", f"{platform.python_version()} at {sys.executable}")
    try:
        declared = [Requirement(each) for each in requires("eigensweep") or []]
    except PackageNotFoundError:
        words = "Eigensweep is imported from its sources and is not installed"
        yield Finding("warning", "packages", words, "install it: make setup, or pip install")
        return
    wrong = [fault for each in declared if (fault := _compare(each)) is not None]
    if wrong:
        advice = "install them: make setup, or pip install --upgrade 'eigensweep[service]'"
        yield Finding("problem", "packages", "; ".join(wrong), advice)
        return
    pins = _read_pins()
    moved = [
        f"{name} {have}, tested with {pinned}"
        for name, pinned in pins.items()
        if (have := _find_version(name)) not in (None, pinned)
    ]
    if moved:
        words = f"{say_count(len(moved), 'package')} in other versions than those of the tests: "
        advice = "pip install -c constraints.txt -e '.[service]' brings the tested ones"
        yield Finding("warning", "packages", words + "; ".join(moved[:5]), advice)
        return
    told = f"all {len(pins)} as pinned" if pins else f"all {len(declared)} requirements are met"
    yield ok("packages", f"eigensweep {version('eigensweep')}; {told}")


def _compare(requirement: Requirement) -> str | None:
    """Return what is wrong with a package that a service requires, None if nothing is."""
    marker, extras = requirement.marker, ("", "worker", "service")
    if marker is not None and not any(marker.evaluate({"extra": extra}) for extra in extras):
        return None
    if requirement.name == "eigensweep":  # its own extras
        return None
    have = _find_version(requirement.name)
    if have is None:
        return f"{requirement.name} is missing"
    if not requirement.specifier.contains(have, prereleases=True):
        return f"{requirement.name} is {have}, needed is {requirement.specifier}"
    return None


def _find_version(name: str) -> str | None:
    try:
        return version(name).partition("+")[0]  # +cpu, +cu130: the same version of torch
    except PackageNotFoundError:
        return None


def _read_pins() -> dict[str, str]:
    """Return the versions that the tests ran with, where the sources are at hand."""
    file = Path(__file__).resolve().parents[2] / "constraints.txt"
    if not file.exists():
        return {}
    return {canonicalize_name(name): pinned for name, pinned in PIN.findall(file.read_text())}


def check_compiler(context: Context) -> Iterator[Finding]:
    """Yield whether the steps of the recurrences are compiled; compile them if they are not."""
    from eigensweep.common.private_folders import cache_folder
    from eigensweep.models.matrices import mirror
    from eigensweep.models.recurrence.native import gated, library, paired, ungated

    compiler = library.find_compiler()
    if compiler is None:
        words = "no C++ compiler: networks train in PyTorch on a CPU, several times slower"
        advice = "install one (Debian and Ubuntu: apt-get install g++), or set CXX"
        yield Finding("warning", "compiler", words, advice)
        return
    yield ok("compiler", compiler)
    failed = []
    sources = [ungated.SOURCE, gated.SOURCE, paired.SOURCE, mirror.SOURCE]
    for source in sources:
        try:
            library.compile_library(source, cache_folder())
        except OSError as error:
            failed.append(f"{source.name}: {error}")
    if failed:
        advice = "networks train in PyTorch meanwhile; try another compiler with CXX"
        yield Finding("warning", "native kernels", "; ".join(failed), advice)
    else:
        yield ok(
            "native kernels",
            f"{say_count(len(sources), 'library', 'libraries')} in {cache_folder()}",
        )


def check_devices(context: Context) -> Iterator[Finding]:
    """Yield the processors and GPUs."""
    import torch

    cores, memory = count_processors(), find_memory() / 2**30
    yield ok("processors", f"{say_count(cores, 'core')}, {memory:.0f} GiB of memory")
    cpus = cores if context.settings.cpus is None else context.settings.cpus
    problem = find_thread_problem(cpus)
    if problem is not None and context.settings.ray_address is None:
        advice = "raise that limit, or take fewer processors by EIGENSWEEP_CPUS"
        yield Finding("warning", "threads", problem, advice)
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count())]
        yield ok("gpus", f"{len(names)}: {', '.join(names)}; CUDA {torch.version.cuda}")
    elif shutil.which("nvidia-smi"):
        words = f"this machine has NVIDIA's tools, and torch {torch.__version__} sees no GPU"
        advice = "install torch with CUDA (https://pytorch.org), or look at the driver: nvidia-smi"
        yield Finding("warning", "gpus", words, advice)
    else:
        yield ok("gpus", "none; trials train on processors")


def check_service(context: Context) -> Iterator[Finding]:
    """Yield whether a service runs, and what it says of itself."""
    alive = context.ask("/healthz")
    if alive is None:
        if context.url:
            advice = "start it there, or give another address: --url, EIGENSWEEP_URL"
            yield Finding("problem", "service", f"none answers at {context.url}", advice)
        else:
            yield ok("service", "none runs; `eigensweep serve` starts one")
        return
    yield ok("service", f"it answers at {context.url}")
    ready = context.ask("/readyz")
    checks: dict[str, dict[str, str | None]] = {}
    with suppress(ValueError, AttributeError):
        checks = ready.json().get("checks", {}) if ready is not None else {}
    for name, check in checks.items():
        if check.get("ready"):
            yield ok(f"service: {name}", check.get("detail") or "ready")
        else:
            words = check.get("detail") or "not ready"
            advice = ADVICE.get(name, "the service's console says more")
            yield Finding("problem", f"service: {name}", words, advice)


ADVICE: Final = {
    "database": "start the database of the record, or set EIGENSWEEP_DATABASE_URL to another",
    "mlflow": "look at mlflow/server.log in the home folder, or start the server at "
    "EIGENSWEEP_MLFLOW_URI; training goes on meanwhile",
    "launcher": "Ray is started or joined again by itself; if it stays so, look at the console",
}


def check_database(context: Context) -> Iterator[Finding]:
    """Yield whether the record can be read and has the schema of this version."""
    from eigensweep.service.record.migrations import THROUGH, compare_versions, is_too_old
    from eigensweep.service.record.sql import database

    url = context.settings.database
    place = database.show_place(url)
    file = database.file_of(url)
    if file is not None and not file.exists():
        yield ok("database", f"{place} is made at the first start")
        yield from _look_at_access(context.settings, is_new=True)
        return
    if _lacks_driver(url):
        words = f"{place} needs psycopg, which is not installed"
        yield Finding("problem", "database", words, "pip install 'eigensweep[postgres]'")
        return
    try:
        have, newest = compare_versions(url)
    except SQLAlchemyError as error:
        words = f"{place} does not answer: {str(error).splitlines()[0]}"
        yield Finding("problem", "database", words, ADVICE["database"])
        return
    finally:
        database.engine(url).dispose()
    if have == newest:
        yield ok("database", f"{place} has schema {have}")
        yield from _look_at_access(context.settings)
    elif have is None or have < newest:
        yield from _look_at_access(context.settings, is_new=True) if have is None else ()
        words = f"{place} has schema {have or 'none'}; this version has {newest}"
        if is_too_old(have):
            yield Finding("problem", "database", words, THROUGH)
        else:
            yield Finding("warning", "database", words, "the next start brings it up to date")
    else:
        words = f"{place} has schema {have}, which is newer than {newest} of this version"
        yield Finding("problem", "database", words, "install the newer version of Eigensweep")


def _lacks_driver(url: str) -> bool:
    """Return whether a database is PostgreSQL's, and what speaks with it is not installed."""
    return make_url(url).get_backend_name() != "sqlite" and find_spec("psycopg") is None


def _look_at_access(settings: Settings, *, is_new: bool = False) -> Iterator[Finding]:
    """Yield that the service would not start, since strangers could come in."""
    from eigensweep.service.process.serve import require_a_token

    try:
        require_a_token(settings, is_new=is_new)
    except StartError as error:
        yield Finding("problem", "access", str(error), "until then the service does not start")


def check_folders(context: Context) -> Iterator[Finding]:
    """Yield whether folders are there, safe, writable, and on which file system they are."""
    from eigensweep.common.private_folders import cache_folder

    settings = context.settings
    try:
        require_whole(settings.home)
    except StartError as error:
        yield Finding("problem", "home", str(error), "until then the service does not start")
    for name, folder in (("home", settings.home), ("compiled steps", cache_folder())):
        yield _look_at_rights(name, folder)
    for name, folder in settings.disk_folders.items():
        yield from _look_at_place(name, folder, needs_locks=name == "home")
        yield _look_at_space(name, _nearest(folder), settings.least_free_bytes)
    if is_url(settings.storage_folder):
        yield _look_at_object_store(settings.storage_folder)


def _look_at_object_store(url: str) -> Finding:
    """Return whether what the store needs works there.

    That is to write, read, list and remove, and a put that is refused where the object exists.
    """
    from eigensweep.store.places.files import open_files, try_out

    began = time.monotonic()
    try:
        problem = try_out(open_files(url))
    except StorageError as error:
        has_keys = not isinstance(error, StoreKeysError)
        advice = "see that it runs, and that the bucket exists" if has_keys else "bring keys there"
        return Finding("problem", "storage", str(error), advice)
    if problem is not None:
        return Finding("problem", "storage", problem, "use an object store that can do this")
    seconds = time.monotonic() - began
    return ok("storage", f"{url} can be written, read and fenced; that took {seconds:.1f} s")


def _look_at_rights(name: str, folder: Path) -> Finding:
    what = f"rights of {name}"
    if not folder.exists():
        return ok(what, f"{folder} is made at the first start, for you alone")
    try:
        is_loose = require_private(folder)
    except (UnsafeFolderError, OSError) as error:
        return Finding("problem", what, str(error), "do as it says; nothing starts before that")
    if is_loose:
        words = f"others may read {folder}"
        return Finding("warning", what, words, f"chmod -R go-rwx {folder}, or start the service")
    return ok(what, f"{folder} is yours alone")


def _look_at_place(name: str, folder: Path, needs_locks: bool) -> Iterator[Finding]:
    kind = find_file_system(folder)
    here = _nearest(folder)
    try:
        with tempfile.NamedTemporaryFile(dir=here, prefix=".eigensweep-doctor-") as file:
            file.write(b"x")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        words = f"{here} cannot be written ({error.strerror}); file system {kind}"
        variable = "EIGENSWEEP_HOME" if name == "home" else "EIGENSWEEP_STORAGE"
        yield Finding("problem", name, words, f"give yourself the right, or set {variable}")
    else:
        if needs_locks and kind in NETWORK_FILE_SYSTEMS:
            words = f"{folder} is on {kind}, where locks of databases can fail"
            advice = "set EIGENSWEEP_HOME to a local disk; EIGENSWEEP_STORAGE may be shared"
            yield Finding("warning", name, words, advice)
        elif kind in PASSING_FILE_SYSTEMS:
            words = f"{folder} is on {kind}, which is empty after the next start of the machine"
            yield Finding("warning", name, words, "set it to a folder on a disk")
        else:
            yield ok(name, f"{folder} can be written; file system {kind}")


def _look_at_space(name: str, folder: Path, least_bytes: int) -> Finding:
    usage = shutil.disk_usage(folder)
    what, words = (
        f"disk of {name}",
        f"{usage.free / 2**30:.1f} of {usage.total / 2**30:.1f} GiB free",
    )
    if least_bytes and (low := find_low(folder, least_bytes)) is not None:
        advice = f"free space: no new trial begins below {least_bytes / 1e6:.0f} MB"
        return Finding("problem", what, f"{words}; it {low}", f"{advice} and {LEAST_FILES} files")
    if usage.free < min(LOW_BYTES, LOW_SHARE * usage.total):
        return Finding("warning", what, words, "free space soon; checkpoints need it")
    return ok(what, words)


def _nearest(folder: Path) -> Path:
    """Return the folder, or the one above it that exists."""
    return next(each for each in (folder, *folder.parents) if each.exists())


def find_file_system(folder: Path) -> str:
    """Return the kind of file system that a folder is on, or will be on."""
    place = str(_nearest(folder).resolve())
    best, kind = "", "unknown"
    for mount in psutil.disk_partitions(all=True):
        point = mount.mountpoint
        is_above = place == point or place.startswith(point.rstrip("/") + "/")
        if is_above and len(point) >= len(best):
            best, kind = point, mount.fstype
    return kind


def check_ports(context: Context) -> Iterator[Finding]:
    """Yield whether the ports are free, or taken by this service."""
    settings = context.settings
    alive = context.ask("/healthz") is not None
    wanted = [("port", "port", settings.host, settings.port)]
    if settings.mlflow_uri is None:
        wanted.append(("port of mlflow", "mlflow_port", "127.0.0.1", settings.mlflow_port))
    for what, name, host, port in wanted:
        with suppress(StartError):
            listen(host, port, may_move=False).close()
            yield ok(what, f"{port} is free")
            continue
        if alive:
            yield ok(what, f"{port} is taken; a service runs")
        elif name in settings.model_fields_set:
            words = f"{port} on {host} is taken, or this machine has no address {host}"
            advice = f"end what listens there, or set EIGENSWEEP_{name.upper()} to another port"
            yield Finding("problem", what, words, advice)
        else:
            yield ok(what, f"{port} is taken; the next free one is used")


def check_outer_parts(context: Context) -> Iterator[Finding]:
    """Yield whether MLflow and Ray answer, where they belong to somebody else."""
    settings = context.settings
    if settings.mlflow_uri is not None:
        secret = settings.mlflow_token.get_secret_value() if settings.mlflow_token else None
        problem = Mlflow(settings.mlflow_uri, settings.mlflow_uri, secret).find_problem()
        if problem is not None:
            told = f"{settings.mlflow_uri}: {problem}"
            yield Finding("problem", "mlflow", told, ADVICE["mlflow"])
        else:
            yield ok("mlflow", f"{settings.mlflow_uri} answers")
    if settings.ray_address is not None:
        host, _, port = settings.ray_address.rpartition(":")
        if host and port.isdecimal():
            try:
                socket.create_connection((host.strip("[]"), int(port)), PATIENCE_SECONDS).close()
            except OSError as error:
                words = f"nobody listens at {settings.ray_address}: {error}"
                advice = "start Ray's head, or correct EIGENSWEEP_RAY_ADDRESS"
                yield Finding("problem", "ray", words, advice)
                return
        yield ok("ray", f"{settings.ray_address} listens")
        yield from _look_from_nodes(settings.ray_address, settings.storage_folder)


def _look_from_nodes(address: str, storage: str) -> Iterator[Finding]:
    """Yield which nodes of a cluster cannot use the store, as a process of Ray's there sees it."""
    command = [sys.executable, "-m", "eigensweep.workers.cluster.store_trial"]
    try:
        done = subprocess.run(
            [*command, "--address", address, "--storage", storage],
            capture_output=True,
            text=True,
            timeout=NODES_SECONDS,
            check=True,
        )
    except subprocess.SubprocessError as error:
        told = getattr(error, "stderr", None) or str(error)
        words = f"no node was asked: {str(told).strip().splitlines()[-1]}"
        advice = "mend that, and call this again: trials need the store on every node"
        yield Finding("problem", "storage from the nodes", words, advice)
        return
    found: dict[str, str | None] = json.loads(done.stdout.splitlines()[-1])
    for node, problem in found.items():
        if problem is not None:
            advice = "mend it on that node; its trials go elsewhere or wait until then"
            yield Finding("problem", f"storage from {node}", problem, advice)
    if not any(found.values()):
        yield ok("storage from the nodes", f"{storage} from {say_count(len(found), 'node')}")


def check_corpora(context: Context) -> Iterator[Finding]:
    """Yield which corpora are there, whole by their digests, and which are not."""
    from eigensweep.tasks.corpora import all_under
    from eigensweep.tasks.corpus import CorpusMismatchError, CorpusMissingError

    root = context.settings.corpora
    missing = []
    for name, corpus in all_under(root).items():
        try:
            corpus.verify(root)
        except CorpusMismatchError as error:
            advice = f"make the file readable, or remove it and `eigensweep data fetch {name}`"
            yield Finding("problem", f"corpus {name}", str(error), advice)
        except CorpusMissingError:
            missing.append(name)
        except OSError as error:
            words = f"{error.filename}: {error.strerror}"
            yield Finding("problem", f"corpus {name}", words, "give yourself the right to read it")
        else:
            yield ok(f"corpus {name}", f"complete in {corpus.find(root)}, digests agree")
    if missing:
        words = f"not in {root}: {', '.join(missing)}; only tasks that read them need them"
        yield ok("corpora", f"{words} (`eigensweep data fetch`)")


def check_clock(context: Context) -> Iterator[Finding]:
    """Yield how far this machine's clock is from the service's and from the database's."""
    compared = False
    before = time.time()
    answer = context.ask("/healthz")
    if answer is not None and "date" in answer.headers:
        shown = parsedate_to_datetime(answer.headers["date"]).timestamp()
        compared = True  # the header has whole seconds: half of one is its mean error
        yield _judge_clock("service", (before + time.time()) / 2 - shown - 0.5)
    url = context.settings.database
    if make_url(url).get_backend_name() == "postgresql" and not _lacks_driver(url):
        from eigensweep.service.record.sql import database

        asked = text("SELECT extract(epoch FROM clock_timestamp())")
        with suppress(SQLAlchemyError), database.engine(url).connect() as connection:
            shown = float(connection.execute(asked).scalar_one())
            compared = True
            yield _judge_clock("database", time.time() - shown)
        database.engine(url).dispose()
    if not compared:
        yield ok("clock", f"{time.strftime('%Y-%m-%d %H:%M:%S %Z')}; nothing to compare it with")


def _judge_clock(whose: str, ahead: float) -> Finding:
    """Return a finding about a clock here that is so many seconds ahead of another one."""
    what = f"clock against {whose}"
    side = "ahead of" if ahead > 0 else "behind"
    words = f"this machine is {abs(ahead):.0f} s {side} the {whose}"
    if abs(ahead) < CLOCK_WARNING:
        return ok(what, f"within {CLOCK_WARNING:.0f} s")
    state: State = "problem" if abs(ahead) >= CLOCK_PROBLEM else "warning"
    return Finding(state, what, words, "let both follow a time server: timedatectl set-ntp true")


CHECKS: Final[dict[str, Callable[[Context], Iterator[Finding]]]] = {
    "compiler": check_compiler,
    "devices": check_devices,
    "folders": check_folders,
    "database": check_database,
    "service": check_service,
    "ports": check_ports,
    "outer parts": check_outer_parts,
    "corpora": check_corpora,
    "clock": check_clock,
}
