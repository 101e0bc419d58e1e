"""The drivers of a service, as its process sees them: it has them forked, and learns their ends.

Runs in the service's process, without Ray. Drivers outlive it and their zygote
(`workers/driver/process/zygote.py`). One that dies, hangs or has older code than the disk is
replaced.
"""

from __future__ import annotations

import logging
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from queue import SimpleQueue
from typing import Any, Final, Literal

from eigensweep.workers.deaths import Death, count_kills, describe_status
from eigensweep.workers.driver.process.driver_order import DriverOrder, Request

logger = logging.getLogger(__name__)

PROGRAM: Final = "eigensweep.workers.driver.process.zygote"
DRIVER_BYTES: Final = 60 * 10**6
"""Memory that a driver holds beyond what it shares with its zygote."""
LOADING_SECONDS: Final = 300.0
"""So long a zygote may take to load what drivers need."""
SILENT_SECONDS: Final = 30.0
"""A zygote that was not heard for so long is replaced. Its drivers go on."""
LONGEST_PAUSE: Final = 8.0
"""Seconds between two starts of a zygote, at most."""
MOST_STARTS: Final = 3
"""A zygote that ended so often while it loaded is a problem to tell of; it is tried again."""
SINGLE: Final = {
    "OMP_NUM_THREADS": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
    "SPT_NOENV": "1",
}
"""With the first two a zygote has one thread: others would not be forked. Ray sets the first one in
the same way for a process that reserves no processor. The last one keeps the environment readable
when a driver gets its title."""
UNSEEN: Final = "nobody saw how its process ended, because the one that had forked it was gone"

State = Literal["running", "ended", "died", "lost"]


@dataclass
class DriverProcess:
    """The process that drives an experiment, from when it was asked for."""

    experiment: str
    request: Request | None = None
    """None: an earlier service had it forked, on a Ray that has outlived that."""
    was_well: Callable[[float], bool | None] = lambda moment: True
    """Says whether Ray was well when it died, by `time.monotonic`; None: that is not known yet."""
    pid: int | None = None
    """None: it is not forked yet."""
    death: Death | None = None
    """Why it died, or ended early, once `state` says so."""
    ended_at: float = 0.0
    """When it was seen to be over, by the clock of `time.monotonic`."""
    is_orphan: bool = False
    """Whether its zygote is gone, so that nobody learns its exit status."""
    _over: State | None = None
    _end: int | None = None
    """Of `pidfd_open`: can be read when the process has ended."""
    _killed: int = field(default_factory=lambda: count_kills())
    _why: Death | None = None
    """Why it was killed here, if it was."""

    def state(self) -> State:
        """Return how it is; `lost` if it died because Ray was lost.

        One that is not forked yet counts as running, and so does one that has died until it is
        known how Ray was.
        """
        if self._over is None and self.is_orphan and self._has_ended():
            self.finish("died", self._why or Death(UNSEEN, "unseen"))
        if self._over == "died" and self.death and self.death.cause in ("failure", "ray", "unseen"):
            was_well = self.was_well(self.ended_at)
            if not was_well:
                return "running" if was_well is None else "lost"
        return self._over or "running"

    def kill(self, why: Death | None = None) -> None:
        """End the process at once; Ray ends those of its trials."""
        if self._over is None and self._end is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._end, signal.SIGKILL)
                self._why = why

    def begin(self, pid: int) -> None:
        """Note that it was forked."""
        self.pid = pid
        with suppress(ProcessLookupError):  # it has ended already, which will be told
            self._end = os.pidfd_open(pid)

    def end(self, status: int, death: Death | None) -> None:
        """Note its exit status, and what it said of its end."""
        if self._why is not None:
            self.finish("died", self._why)
        elif death is not None:
            self.finish("ended" if death.cause == "superseded" else "died", death)
        elif status == 0:
            self.finish("ended", None)
        elif status == -signal.SIGKILL and count_kills() > self._killed:
            words = "the machine had no memory left, and the kernel ended the driver's process"
            self.finish("died", Death(words, "memory"))
        else:
            self.finish("died", Death(f"the driver's process ended {describe_status(status)}"))

    def finish(self, state: State, death: Death | None = None) -> None:
        """Note how it was when it ended."""
        self.death, self.ended_at, self._over = death, time.monotonic(), state
        end, self._end = self._end, None
        if end is not None:
            os.close(end)

    def _has_ended(self) -> bool:
        end = self._end
        return end is None or bool(wait([end], 0))


@dataclass
class Drivers:
    """Drivers, by their experiments, and the zygote that forks them. Threads may share it."""

    modules: Sequence[str] = ()
    """Modules that a zygote loads beside those of a driver: the one of its ledger."""
    problem: str | None = None
    """Why no driver can be started; None: drivers can, at the latest when a zygote has loaded."""
    starts: int = 0
    """How many zygotes were started."""
    _environment: Mapping[str, str] = field(default_factory=dict)
    _processes: dict[int, DriverProcess] = field(default_factory=dict)
    """Drivers that have not ended, by the numbers of their requests."""
    _numbers: Any = field(default_factory=count)
    _zygote: subprocess.Popen[bytes] | None = None
    _requests: SimpleQueue[Request | None] = field(default_factory=SimpleQueue)
    """What the zygote is still to be asked for; None: nothing more."""
    _heard: float | None = None
    """When the zygote was last heard; None: it loads."""
    _started: float = 0.0
    _failures: int = 0
    """How many zygotes in a row ended before they had loaded."""
    _reader: threading.Thread | None = None
    """Takes what the zygote tells."""
    _turn: threading.RLock = field(default_factory=threading.RLock)

    def start(self, environment: Mapping[str, str] | None = None) -> None:
        """Start a zygote with this environment, that of this process by default.

        Call `start`, `watch` and `stop` in one thread.
        """
        self._environment = dict(os.environ if environment is None else environment)
        self._spawn()

    def watch(self) -> None:
        """Forget drivers that are over, and replace a zygote that has ended or hangs.

        To be called regularly.
        """
        with self._turn:
            self._forget_ended()
        if self._zygote is None:
            return
        now = time.monotonic()
        heard, patience = self._heard, SILENT_SECONDS
        if heard is None:
            heard, patience = self._started, LOADING_SECONDS
        if self._zygote.poll() is None and now < heard + patience:
            return
        if self._failures and now < self._started + min(2.0**self._failures, LONGEST_PAUSE):
            return
        logger.warning("the process that drivers are forked from ended or hangs, replacing it")
        self._end_zygote()
        self._spawn()

    def launch(
        self,
        order: DriverOrder,
        log: str,
        was_well: Callable[[float], bool | None] = lambda moment: True,
    ) -> DriverProcess:
        """Have a driver forked, which writes its output to the file `log`; return at once."""
        with self._turn:
            request = Request(next(self._numbers), pickle.dumps(order), log)
            process = DriverProcess(order.experiment, request, was_well)
            self._processes[request.number] = process
            self._requests.put(request)  # if it ends before it forks, the next one is asked
            return process

    def find(self, experiment: str) -> DriverProcess | None:
        """Return the driver of an experiment that was launched here and still works."""
        with self._turn:
            self._forget_ended()
            return next((p for p in self._processes.values() if p.experiment == experiment), None)

    def stop(self, *, kill: bool = False) -> None:
        """End the zygote. Its drivers go on unless `kill`; requested ones never begin."""
        self._end_zygote()
        with self._turn:
            self._zygote = None
            for process in self._processes.values():
                if process.pid is None:
                    process.finish("died", Death(UNSEEN, "unseen"))
                elif kill:
                    process.kill()
            self._forget_ended()  # the next zygote begins none of them

    def _forget_ended(self) -> None:
        """Forget the drivers that are over: of those whose zygote is gone nobody tells."""
        for number, process in list(self._processes.items()):
            if process.state() != "running":
                del self._processes[number]

    def _end_zygote(self) -> None:
        if self._zygote is None or self._reader is None:
            return
        self._zygote.kill()
        self._zygote.wait()
        self._requests.put(None)
        self._reader.join()  # who was forked last is known after that
        with self._turn:
            for process in self._processes.values():
                process.is_orphan = process.pid is not None

    def _spawn(self) -> None:
        pipe, theirs = Pipe()
        out = Connection(os.dup(pipe.fileno()))  # whose thread may still write when `pipe` closes
        zygote = subprocess.Popen(
            [sys.executable, "-m", PROGRAM, str(theirs.fileno()), *self.modules],
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            env={**SINGLE, **self._environment},
            start_new_session=True,  # a group of its own, which Ctrl-C does not reach
        )
        theirs.close()
        with self._turn:
            self.starts += 1
            self._zygote, self._requests = zygote, SimpleQueue()
            self._heard, self._started = None, time.monotonic()
            for process in self._processes.values():
                if process.pid is None:
                    self._requests.put(process.request)
        self._reader = threading.Thread(target=self._read, args=[pipe], name="drivers", daemon=True)
        self._reader.start()
        asking = [out, self._requests]
        threading.Thread(target=_write, args=asking, name="requests", daemon=True).start()

    def _read(self, pipe: Connection) -> None:
        """Take what a zygote tells until it ends."""
        with suppress(EOFError, OSError), pipe:
            while True:
                word, *about = pipe.recv()
                with self._turn:
                    self._heard, self._failures, self.problem = time.monotonic(), 0, None
                    self._take(word, *about)
        if self._heard is None:
            self._failures += 1
            if self._failures >= MOST_STARTS:
                self.problem = "the process that drivers are forked from ends while it loads"

    def _take(self, word: str, number: int = -1, *about: Any) -> None:
        process = self._processes.get(number)
        if process is None:
            return
        if word == "forked":
            process.begin(*about)
        else:
            process.end(*about)
            del self._processes[number]


def _write(pipe: Connection, requests: SimpleQueue[Request | None]) -> None:
    """Ask a zygote for drivers. One that hangs may not take a large request, and is waited for."""
    with suppress(OSError), pipe:  # it has ended
        while (request := requests.get()) is not None:
            pipe.send(request)
