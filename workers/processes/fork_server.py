"""A process that has loaded PyTorch once and forks itself for each trial of its node.

To load PyTorch takes three seconds of a processor and 240 MB. A forked process has it after some
milliseconds, and shares the memory of what was loaded. One such process serves one Ray node, code
and environment; the first trial starts it, and `forked` is the other side. Linux only.

`python -m eigensweep.workers.processes.fork_server NAME RAYLET DIGEST` listens on an abstract
socket of that name, which vanishes with the process and belongs to at most one. It says no to other
users. Nothing of Ray is loaded here, and nothing that starts threads: a fork copies only the thread
that forks.

Each connection is for one forked process, and is its lifeline: when the trial's process is gone,
for whatever reason, the kernel closes the connection, and the forked process is killed. When this
process is gone, the kernel kills all that it has forked. It ends with its Ray node, and after it
was not asked for anything for a while.

Each forked process has a process group of its own, with all that the trial's code starts: what that
code does to its group reaches no other trial, and the group ends with the trial.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import socket
import struct
import sys
import time
import traceback
from contextlib import suppress
from importlib import import_module
from multiprocessing.connection import Connection, wait
from typing import Final

from eigensweep.common.loading import load_for_good
from eigensweep.common.parents import die_with_starter, end_fork, reap

logger = logging.getLogger(__name__)

IDLE_SECONDS: Final = 180.0
"""It ends when it has had nothing to do for so long."""
REQUEST_SECONDS: Final = 5.0
"""A client that has not said what it wants after this time gets nothing."""
REFUSED_SECONDS: Final = 1.0
"""How long it waits where no more files may be open."""
WAITING: Final = 1024
"""Clients that may wait for an answer at once."""

FORK, LOOK = b"f", b"l"
"""What a client may ask for: to fork, or nothing but to stay. The first one sends three files."""
FILES: Final = 3
"""The connection for calls, standard output and standard error of the forked process."""

TRAINING: Final = (
    "eigensweep.training.lanes.replicates",
    "eigensweep.workers.processes.runner",
)
"""What is loaded before a fork: with it come PyTorch, the models and the tasks."""

PR_SET_NAME: Final = 15
"""Of `prctl`, from Linux' sys/prctl.h."""


def main(name: str, raylet: int, digest: str) -> None:
    """Load what trains and serve, unless another process has this name already.

    The process that was started ends as soon as the socket can be connected to, and the one that
    serves is nobody's child: whoever asked for it first may end long before it.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(f"\0{name}")
    except OSError:
        return
    listener.listen(WAITING)
    end_of_ray = os.pidfd_open(raylet)
    if os.fork():
        os._exit(0)
    if load(digest):
        Server(listener, end_of_ray).serve()


def load(digest: str) -> bool:
    """Load what trains; return False if the code here is not the code that is wanted.

    Then each trial's process loads its own, and finds out itself what is wrong.
    """
    from eigensweep.protocol.code import own_code
    from eigensweep.search_spaces.hashing import read_rules

    with load_for_good():
        if own_code().digest != digest:
            return False
        for name in TRAINING:
            import_module(name)
        read_rules()
    return True


class Server:
    """Forks for its clients, until Ray's node ends or nobody has asked for long."""

    def __init__(self, listener: socket.socket, end_of_ray: int) -> None:
        self._listener, self._end_of_ray = listener, end_of_ray
        self._lifelines: dict[int, socket.socket | None] = {}
        """Of each forked process, by what `pidfd_open` gave for it. That can be read when it has
        ended, and the lifeline when its trial's process has, which never writes to it. None: it was
        killed, and may take its time, as a process does that reads from a disk which hangs."""
        self._groups: dict[int, int] = {}
        """Their process groups, by the same."""

    def serve(self) -> None:
        """Serve until the end of Ray's node, or until nobody has asked for long."""
        asked_at = time.monotonic()
        while self._lifelines or time.monotonic() < asked_at + IDLE_SECONDS:
            ends, lifelines = self._lifelines.keys(), filter(None, self._lifelines.values())
            ready = wait([self._listener, self._end_of_ray, *ends, *lifelines], IDLE_SECONDS)
            if self._end_of_ray in ready:
                for end in self._groups:
                    self._kill_group(end)
                return
            if ready:
                asked_at = time.monotonic()
            for end, lifeline in list(self._lifelines.items()):
                if end in ready:
                    self._bury(end)
                elif lifeline in ready:
                    self._kill(end)
            if self._listener in ready:
                self._answer()

    def _answer(self) -> None:
        """Fork for a client that waits, if it is of the same user and wants that."""
        try:
            lifeline, _ = self._listener.accept()
        except OSError as error:  # no more files may be open until a trial ends
            logger.warning("a trial's process has to wait: %s", error)
            time.sleep(REFUSED_SECONDS)
            return
        lifeline.settimeout(REQUEST_SECONDS)
        files: list[int] = []
        has_forked = False
        try:
            if find_peer(lifeline)[1] == os.getuid():
                word, files, _, _ = socket.recv_fds(lifeline, 1, FILES)
                if word == FORK and len(files) == FILES:
                    self._fork(lifeline, files)
                    has_forked = True
        except OSError as error:
            logger.warning("a request of a trial's process was not met: %s", error)
        finally:
            for each in files:
                os.close(each)
            if not has_forked:
                lifeline.close()

    def _fork(self, lifeline: socket.socket, files: list[int]) -> None:
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._become_child(parent, lifeline, files)
        try:
            end = os.pidfd_open(pid)
        except OSError:  # no more files may be open: nobody would notice that its trial is gone
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise
        _lead_group(pid)
        self._lifelines[end], self._groups[end] = lifeline, pid

    def _become_child(self, parent: int, lifeline: socket.socket, files: list[int]) -> None:
        """Train in this process, which was forked, and end it."""
        status = 1
        try:
            die_with_starter()
            if os.getppid() != parent:
                return
            _lead_group(0)
            self._listener.close()
            os.close(self._end_of_ray)
            lifeline.close()  # the server's alone: this process may leave copies of itself
            for end, other in self._lifelines.items():
                os.close(end)
                if other is not None:
                    other.close()
            calls, *standard = files
            for target, file in enumerate(standard, start=1):
                os.dup2(file, target)
                os.close(file)
            answer_calls(Connection(calls))
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            end_fork(status)

    def _kill(self, end: int) -> None:
        """Kill a forked process whose trial's process has ended, and its group."""
        self._kill_group(end)
        lifeline, self._lifelines[end] = self._lifelines[end], None
        if lifeline is not None:
            lifeline.close()

    def _bury(self, end: int) -> None:
        """Forget a forked process that has ended, and tell its trial's process how."""
        self._kill_group(end)  # before its number may be another's
        del self._groups[end]
        status, lifeline = reap(end), self._lifelines.pop(end)
        if lifeline is not None:
            with lifeline, suppress(OSError):
                lifeline.send(str(status).encode())

    def _kill_group(self, end: int) -> None:
        """Kill a forked process, if it has not ended, and all that it has started."""
        with suppress(OSError):
            os.killpg(self._groups[end], signal.SIGKILL)


def _lead_group(pid: int) -> None:
    """Give a process a group of its own; 0: this one. Both sides do so, as either may be late."""
    with suppress(OSError):  # it has ended
        os.setpgid(pid, pid)


def find_peer(connection: socket.socket) -> tuple[int, int]:
    """Return id and user id of the process that began to listen at the other side, or connected."""
    size = struct.calcsize("3i")
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    process, user, _ = struct.unpack("3i", raw)
    return process, user


def answer_calls(calls: Connection) -> None:
    """Train what the trial's process says, call by call, until it says no more."""
    from eigensweep.protocol.ledger import StaleWriteError
    from eigensweep.training.memory import use_one_heap
    from eigensweep.workers.processes.runner import Runner

    use_one_heap()
    order, node_id, environment, sys.path[:] = calls.recv()
    os.environ.clear()
    os.environ.update(environment)
    name_process(f"trial-{order['number']}")
    runner = Runner(order, "cpu", node_id)
    calls.send(os.getpid())
    while True:
        try:
            method, *orders = calls.recv()
        except EOFError:
            return
        for order in orders:
            name_process(f"trial-{order['number']}")
        try:
            answer = getattr(runner, method)(*orders)
        except StaleWriteError as error:
            answer = error
        calls.send(answer)


def name_process(name: str) -> None:
    """Let `ps` and `top` show a name of at most 15 letters for this process."""
    ctypes.CDLL(None).prctl(PR_SET_NAME, name.encode()[:15])


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
