"""A process that is forked for a trial, seen from the trial's own process.

`fork` asks the node's `fork_server` for it, and starts that server where there is none yet.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import Any, Final

from eigensweep.common.machine import find_crowd
from eigensweep.protocol.ledger import StaleWriteError
from eigensweep.protocol.messages import Order
from eigensweep.workers.deaths import count_kills, describe_status
from eigensweep.workers.processes.fork_server import FORK, LOOK, find_peer

logger = logging.getLogger(__name__)

MODULE: Final = "eigensweep.workers.processes.fork_server"
TRIES: Final = 3
"""How often a server is looked for, or started, that ends before it has forked."""
LOADING_SECONDS: Final = 300.0
"""So long a server may take to load PyTorch and to fork."""
STARTING_SECONDS: Final = 60.0
"""So long Python may take to start before it loads anything."""
STATUS_SECONDS: Final = 2.0
"""So long the server may take to say how a process has ended."""
LONGEST_STATUS: Final = 16
PAUSE_SECONDS: Final = 0.1
"""Pause between two tries to connect."""
STDOUT, STDERR = 1, 2
DECISIVE: Final = (
    "LD_",
    "MALLOC_",
    "MKL_",
    "NUMEXPR_",
    "OMP_",
    "OPENBLAS_",
    "PYTHON",
    "PYTORCH",
    "TORCH",
)
"""Beginnings of variables that libraries read when they are loaded."""


class ForkedEndedError(RuntimeError):
    """The process that was forked for a trial has ended."""


class ForkedShortError(ForkedEndedError):
    """Its machine had no memory left, and the kernel ended it or its server, or no thread left."""


class ForkedLostError(ForkedEndedError):
    """So has its server, by which it ended: not by its trial."""


class Forked:
    """Does what a `Runner` does, in a process of its own, which ends with this one."""

    def __init__(self, lifeline: socket.socket, calls: Connection) -> None:
        self._lifeline, self._calls = lifeline, calls
        """The server kills the process when the first one is closed, and writes there once, how it
        ended."""
        self.pid = 0
        self._kills = count_kills()
        """Processes that the kernel had ended for lack of memory when this one last answered."""

    def begin(self, config: Mapping[str, object], node_id: str | None) -> None:
        """Say what to train, and wait until the process is there.

        Raises:
            ForkedEndedError: if the server has ended instead.
            TimeoutError: if it does not fork.
        """
        self._send((config, node_id, dict(os.environ), sys.path))
        if not self._calls.poll(LOADING_SECONDS):
            raise TimeoutError(f"no process was forked within {LOADING_SECONDS:.0f} s")
        self.pid = self._receive()

    def close(self) -> None:
        """End the process."""
        self._calls.close()
        self._lifeline.close()

    def train_next(self, config: Mapping[str, object]) -> dict[str, object]:
        """Take another trial, and return its first report."""
        return self._call("train_next", config)

    def train(self) -> dict[str, object]:
        """Return the report of the next rung."""
        return self._call("train")

    def stop(self) -> None:
        """Leave the trial where it is."""
        self._call("stop")

    def _call(self, method: str, *arguments: Mapping[str, object]) -> Any:
        self._send((method, *arguments))
        answer = self._receive()
        if isinstance(answer, StaleWriteError):
            raise answer
        return answer

    def _send(self, content: tuple[object, ...]) -> None:
        try:
            self._calls.send(content)
        except OSError as error:
            raise self._ended() from error

    def _receive(self) -> Any:
        try:
            # Where the trial's code has forked, that copy holds the other end of the calls open.
            if self._calls not in wait([self._calls, self._lifeline]):
                raise self._ended()
            answer = self._calls.recv()
        except (OSError, EOFError) as error:
            raise self._ended() from error
        self._kills = count_kills()
        return answer

    def _ended(self) -> ForkedEndedError:
        what = f"process {self.pid}" if self.pid else "the process"
        what += " that was forked for this trial has ended"
        self._lifeline.settimeout(STATUS_SECONDS)
        status: int | None = None
        is_lost = False  # the server has ended, too
        with suppress(OSError):
            is_lost = not (told := self._lifeline.recv(LONGEST_STATUS))
            if told:
                status = int(told)
                what += f" {describe_status(status)}"
        if status in (None, -signal.SIGKILL) and count_kills() > self._kills:
            return ForkedShortError(
                f"{what}: its machine had no memory left, and the kernel ended it"
            )
        if (crowd := find_crowd()) is not None:
            return ForkedShortError(f"{what}: {crowd}")
        return ForkedLostError(what) if is_lost else ForkedEndedError(what)


def fork(config: Mapping[str, object], node_id: str | None, raylet: int) -> Forked | None:
    """Return a process that trains an order's trial; None if this process has to do so itself.

    Args:
        config: the order, as plain data.
        node_id: Ray's id of this node.
        raylet: id of the process with which all processes of this node end.
    """
    digest = Order.from_dict(config).code.digest
    name = name_server(raylet, digest, os.environ)
    for _ in range(TRIES):
        try:
            lifeline = connect(name, raylet, digest, os.environ)
        except OSError as error:
            logger.warning("no process to fork from was found or started: %s", error)
            return None
        if find_peer(lifeline)[1] != os.getuid():
            lifeline.close()
            logger.warning("the name %s belongs to another user of this machine", name)
            return None
        own, other = socket.socketpair()
        forked = Forked(lifeline, Connection(own.detach()))
        try:
            with other:
                socket.send_fds(lifeline, [FORK], [other.fileno(), STDOUT, STDERR])
            forked.begin(config, node_id)
        except TimeoutError as error:
            forked.close()
            logger.warning("%s", error)
            break
        except (ForkedEndedError, OSError) as error:
            forked.close()
            logger.info("asking for another process to fork from: %s", error)
        else:
            return forked
    logger.warning(
        "no process could be forked from one that has loaded PyTorch, so this one loads it"
    )
    return None


def keep_server(raylet: int, digest: str, environment: Mapping[str, str]) -> None:
    """Start the server for trials with this code and environment, or let it stay; do not wait.

    Raises:
        OSError: if it cannot be started.
    """
    name = name_server(raylet, digest, environment)
    with connect(name, raylet, digest, environment) as lifeline:
        lifeline.send(LOOK)


def name_server(raylet: int, digest: str, environment: Mapping[str, str]) -> str:
    """Return the name of the socket: of one node, code, Python and environment."""
    decisive = {name: value for name, value in environment.items() if name.startswith(DECISIVE)}
    parts = [os.getuid(), raylet, digest, sys.executable, sorted(decisive.items())]
    return f"eigensweep-{hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:24]}"


def connect(name: str, raylet: int, digest: str, environment: Mapping[str, str]) -> socket.socket:
    """Return a connection to the server, which may load still; start it if there is none.

    Raises:
        OSError: if it cannot be started.
    """
    connection = _connect(name)
    if connection is not None:
        return connection
    path = os.pathsep.join(each for each in sys.path if each)
    try:
        subprocess.run(
            [sys.executable, "-m", MODULE, name, str(raylet), digest],
            env={**environment, "PYTHONPATH": path},
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            timeout=STARTING_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise OSError(f"Python did not start within {STARTING_SECONDS:.0f} s") from error
    for _ in range(TRIES):
        connection = _connect(name)
        if connection is not None:
            return connection
        time.sleep(PAUSE_SECONDS)  # another one has taken the name and does not listen yet
    raise OSError(f"the process with the name {name} did not come up")


def _connect(name: str) -> socket.socket | None:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(f"\0{name}")
    except ConnectionRefusedError:
        connection.close()
        return None
    return connection
