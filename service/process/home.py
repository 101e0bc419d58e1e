"""The home folder, which one service at a time may use.

Runs in the service's process. What an earlier service left running is ended at the start.
"""

from __future__ import annotations

import json
import logging
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psutil  # type: ignore[import-untyped]
from filelock import FileLock, Timeout

from eigensweep.common import guard
from eigensweep.common.private_folders import UnsafeFolderError, make_private, require_own
from eigensweep.service.counters import RESTARTS
from eigensweep.service.settings import StartError

logger = logging.getLogger(__name__)

UNFINISHED: Final = "restore.unfinished"
"""The file that marks a home folder while its record is being restored into a database."""


@dataclass
class Watcher:
    """Keeps a guard over all that this process starts."""

    mark: str
    """What the processes that this one starts carry in their environment."""
    _guard: subprocess.Popen[bytes] = field(init=False)

    def __post_init__(self) -> None:
        self._start()

    def restart_if_ended(self) -> None:
        """Start another guard if the one that was there has ended; call it regularly."""
        if self._guard.poll() is None:
            return
        logger.warning("the guard ended, starting it again status=%s", self._guard.returncode)
        RESTARTS.labels("guard").inc()
        self._guard.communicate()
        self._start()

    def stop(self) -> None:
        """Let the guard end what this process has started, and wait for it."""
        self._guard.communicate()

    def _start(self) -> None:
        # Its pipe is closed by the end of this process, or by `stop`.
        self._guard = subprocess.Popen(
            [sys.executable, "-P", guard.__file__, self.mark],
            stdin=subprocess.PIPE,
            env={name: value for name, value in os.environ.items() if name != guard.VARIABLE},
            start_new_session=True,
        )


def require_whole(home: Path) -> None:
    """Raise StartError if a restore was killed before the database had the record."""
    if (home / UNFINISHED).exists():
        raise StartError(
            f"the restore into {home} was cut off, so its record may be missing: remove that "
            "folder, empty the store and the database that were named, and restore it again"
        )


@contextmanager
def hold(home: Path) -> Iterator[Watcher]:
    """Hold the home folder for this process, with a guard over all that the process starts.

    If an earlier service and its guard were both killed, what they left running is ended first.

    Raises:
        StartError: if another service holds it, it cannot be made or written, is not this user's
            alone, or was not restored to the end.
    """
    path = home / "service.lock"
    # The kernel's lock: it ends with this process, however the process ends. Where a file system
    # has none, a lock file that outlives a killed service would be no help: refuse instead.
    lock = FileLock(path, mode=0o600, fallback_to_soft=False, on_acquired=_write_holder)
    try:
        make_private(home)
        require_own(home, but="ray")  # which was everybody's in earlier versions, and is made anew
        require_whole(home)
        lock.acquire(blocking=False)
    except Timeout as error:
        holder = path.read_text(errors="replace").strip()
        raise StartError(
            f"another service works in {home} ({holder or 'it has just started'}); stop it, "
            "or set EIGENSWEEP_HOME to another folder"
        ) from error
    except UnsafeFolderError as error:
        raise StartError(f"the home folder {home} is not safe: {error}") from error
    except OSError as error:
        raise StartError(
            f"the home folder {home} cannot be written or locked ({error.strerror}); "
            "set EIGENSWEEP_HOME to a folder of yours"
        ) from error
    try:
        mark = guard.new_mark(home)
        if count := guard.kill(guard.of_home(home, but=mark)):
            logger.warning("ended what an earlier service left running processes=%d", count)
        watcher = Watcher(mark)
        os.environ.update(guard.environment(mark))  # processes started from here on inherit it
        try:
            yield watcher
        finally:
            del os.environ[guard.VARIABLE]
            watcher.stop()
    finally:
        lock.release()


def _write_holder(lock: int) -> None:
    """Write into the lock file which process holds it; `lock` is the file's descriptor."""
    os.ftruncate(lock, 0)
    moment = time.strftime("%Y-%m-%d %H:%M:%S")
    os.write(lock, f"process {os.getpid()}, started {moment}".encode())


def write_address(home: Path, url: str, mlflow: str) -> None:
    """Write to `service.json` in the home folder where this service answers, for programs."""
    path = home / "service.json"
    after_boot = psutil.Process().create_time() - psutil.boot_time()  # whatever the clock says
    content = {"url": url, "mlflow": mlflow, "pid": os.getpid(), "host": platform.node()}
    content["after_boot"] = after_boot
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    fresh.replace(path)
