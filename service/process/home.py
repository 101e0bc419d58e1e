"""The home folder: one service at a time, and nothing left running by the one before."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from eigensweep.service.process import guard
from eigensweep.service.settings import StartError

logger = logging.getLogger(__name__)


class HomeTakenError(StartError):
    """Another service works in this home folder."""


class HomeUnusableError(StartError):
    """The home folder cannot be written."""


@contextmanager
def occupied(home: Path) -> Iterator[None]:
    """Hold the home folder for this process, with a guard over all that the process starts.

    The lock is the kernel's, so it ends with the process however that ends. What an earlier holder
    and its guard, both killed, left running is ended first.

    Raises:
        HomeTakenError: if another service holds it.
        HomeUnusableError: if the folder cannot be made or written.
    """
    try:
        home.mkdir(parents=True, exist_ok=True)
        lock = os.open(home / "service.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise HomeUnusableError(
            f"the home folder {home} cannot be written ({error.strerror}); "
            "set EIGENSWEEP_HOME to a folder of yours"
        ) from error
    try:
        _take(lock, home)
        mark = guard.new_mark(home)
        if left := guard.end(guard.of_home(home, but=mark)):
            logger.warning("ended what an earlier service left running processes=%d", left)
        watch = [sys.executable, "-I", guard.__file__, mark]
        # Its pipe is closed by the end of this process, or below.
        watcher = subprocess.Popen(watch, stdin=subprocess.PIPE, start_new_session=True)
        os.environ.update(guard.environment(mark))  # what is started from here on has it
        try:
            yield
        finally:
            del os.environ[guard.VARIABLE]
            watcher.communicate()
    finally:
        os.close(lock)


def _take(lock: int, home: Path) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.read(lock, 4096).decode(errors="replace").strip()
        raise HomeTakenError(
            f"another service works in {home} ({holder or 'it has just started'}); stop it, "
            "or set EIGENSWEEP_HOME to another folder"
        ) from error
    os.ftruncate(lock, 0)
    moment = time.strftime("%Y-%m-%d %H:%M:%S")
    os.write(lock, f"process {os.getpid()}, started {moment}".encode())


def announce(home: Path, content: dict[str, Any]) -> None:
    """Write where the service is to `service.json` in the home folder, for programs."""
    path = home / "service.json"
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    fresh.replace(path)
