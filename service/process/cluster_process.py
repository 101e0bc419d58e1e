"""Ray, in a process of its own beside the service, which is started again when it dies.

Runs in the service's process. Where Ray's control processes die, Ray ends the process that is
connected to it; so that one is not the service.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, Final, Literal

from eigensweep.search_spaces.sections import ResourcesConfig
from eigensweep.service.counters import RESTARTS
from eigensweep.service.process import guard
from eigensweep.service.queue.dispatcher import LauncherAwayError
from eigensweep.workers.cluster.nodes import Look, Node
from eigensweep.workers.driver.capacity import look_for_room
from eigensweep.workers.lanes.shares import Capacity
from eigensweep.workers.shared.deaths import Death
from eigensweep.workers.shared.ledger import Ledger
from eigensweep.workers.shared.messages import DriverOptions, SpecJson

logger = logging.getLogger(__name__)

PROGRAM: Final = "eigensweep.workers.cluster.served"
SILENT_SECONDS: Final = 5.0
"""Seconds without a look at which all was well, after which nothing more is asked of Ray."""
ANSWER_SECONDS: Final = 60.0
"""Seconds after which a process that does not answer is killed."""
LONGEST_SILENCE: Final = 300.0
"""Seconds after which a Ray that stands still is left. Before, it may go on, and lose nothing."""
STOP_SECONDS: Final = 6.0
MOST_STARTS: Final = 5
"""How often a Ray that is not up in its time is started before the service gives up."""
LONGEST_PAUSE: Final = 8.0
"""Seconds between two starts, at most."""


class RayFailedError(RuntimeError):
    """Ray could not be started or reached."""


@dataclass
class RemoteDriver:
    """A driver that the cluster's process knows."""

    experiment: str
    process: str
    _cluster: ClusterProcess
    _start: int
    death: Death | None = None

    def state(self) -> Literal["running", "ended", "died", "lost"]:
        """Return how the driver is; `lost` if Ray was, and it has to be looked for again."""
        if self._start != self._cluster.starts:
            return "lost"
        try:
            state, self.death = self._cluster.ask("state", self.experiment)
        except LauncherAwayError:
            return "lost"
        known: Literal["running", "ended", "died"] = state
        return known


@dataclass
class ClusterProcess:
    """Starts drivers by way of a process that holds the connection to Ray."""

    settings: dict[str, object]
    """Arguments of `RayCluster.start`, and `log_level` and `log_format`."""
    mark: str
    """The mark of this service's processes; empty: they are not marked."""
    starts: int = 0
    """How often Ray was started or joined."""
    _problem: str | None = "Ray is starting"
    _look: Look | None = None
    """What was last seen of Ray; None: nothing since it was started or joined."""
    _words: str | None = None
    """What was wrong at the last look."""
    _heard: float = 0.0
    """When all was well at a look, by the clock of `time.monotonic`."""
    _told: float = 0.0
    """When anything was told of a look."""
    _is_silent: bool = False
    """Whether the log says that Ray is silent."""
    _spawned: int = 0
    _process: subprocess.Popen[bytes] | None = None
    _reader: threading.Thread | None = None
    """Takes what the process sends."""
    _is_slow: bool = False
    """Whether the last start of Ray took too long."""
    _pipe: Connection | None = None
    _turn: threading.Lock = field(default_factory=threading.Lock)
    _asked: dict[int, Future[Any]] = field(default_factory=dict)
    _numbers: Any = field(default_factory=count)
    _pause: float = 0.5
    _not_before: float = 0.0

    @property
    def problem(self) -> str | None:
        """Why nothing can be asked now; None: all is well."""
        if self._problem is not None or self._look is None:
            return self._problem
        silent = time.monotonic() - self._heard
        if silent < SILENT_SECONDS:
            return None
        words = self._words or "the process that holds Ray does not answer"
        return f"{words}, for {silent:.0f} s now"

    def start(self) -> None:
        """Start the process and wait until Ray answers; try again where it is only slow.

        Raises:
            RayFailedError: if Ray cannot be started or reached.
        """
        self._spawn()
        while self.problem is not None:
            assert self._process is not None
            assert self._reader is not None
            if self._process.poll() is not None:
                self._reader.join()  # what it said last
                self._end()
                if not self._is_slow or self._spawned >= MOST_STARTS:
                    raise RayFailedError(self.problem)
                logger.warning("%s; trying again", self.problem)
                self._spawn()
            time.sleep(0.05)

    def watch(self) -> None:
        """Start the process again if it has ended; call it regularly."""
        assert self._process is not None
        if self._process.poll() is None:
            self._note_silence()
            return
        if time.monotonic() < self._not_before:
            return
        logger.warning("Ray is lost, starting or joining it again: %s", self.problem)
        self._end()
        self._not_before = time.monotonic() + self._pause
        self._pause = min(2 * self._pause, LONGEST_PAUSE)
        self._spawn()

    def _note_silence(self) -> None:
        """Say in the log that Ray does not answer, and that it does; end it if it is for long."""
        problem = None if self._look is None else self.problem
        if self._is_silent != (problem is not None):
            self._is_silent = problem is not None
            logger.warning("%s", problem or "Ray answers again")
        now = time.monotonic()
        if problem is not None and (
            now - self._told > ANSWER_SECONDS or now - self._heard > LONGEST_SILENCE
        ):
            assert self._process is not None
            self._process.kill()

    def stop(self) -> None:
        """Leave Ray; if it is our own, it ends."""
        self._problem = "the service is stopping"
        if self._process is None or self._pipe is None:
            return
        if self.starts > 0:  # else there is nothing to leave in order
            with suppress(OSError), self._turn:
                self._pipe.send((0, "stop", ()))
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_SECONDS)
        self._end()

    def launch(
        self,
        experiment_id: str,
        spec: SpecJson,
        ledger: Ledger,
        options: DriverOptions,
        beside: str | None = None,
    ) -> RemoteDriver:
        """Start a driver for an experiment; see `RayCluster.launch`.

        Raises:
            LauncherAwayError: if Ray is lost.
        """
        starts = self.starts
        process: str = self.ask("launch", experiment_id, spec, ledger, options, beside)
        return RemoteDriver(experiment_id, process, self, starts)

    def find(self, experiment_id: str) -> RemoteDriver | None:
        """Return the driver of an experiment, None if there is none.

        Raises:
            LauncherAwayError: if Ray is lost.
        """
        starts = self.starts
        process: str | None = self.ask("find", experiment_id)
        return None if process is None else RemoteDriver(experiment_id, process, self, starts)

    def look_for_room(self, resources: ResourcesConfig, replicates: int) -> Capacity:
        """Return how many trials with these resources the nodes hold, or why none.

        It is computed from the last look, so nobody waits for Ray.

        Raises:
            LauncherAwayError: if Ray is lost.
        """
        seen = self._last_look()
        return look_for_room(resources, replicates, may_change=seen.may_change, nodes=seen.living)

    def list_nodes(self) -> list[Node]:
        """Return the nodes at the last look, which is seconds old, or older if Ray is silent.

        Raises:
            LauncherAwayError: if Ray is lost.
        """
        return self._last_look().nodes

    def _last_look(self) -> Look:
        if self._look is None:
            raise LauncherAwayError(self.problem)
        return self._look

    def ask(self, name: str, *arguments: Any) -> Any:
        """Return the process's answer.

        Raises:
            LauncherAwayError: if Ray is lost.
            RayFailedError: if Ray refuses.
        """
        number, answer = next(self._numbers), Future[Any]()
        try:
            with self._turn:
                if self.problem is not None or self._pipe is None:
                    raise LauncherAwayError(self.problem)
                self._asked[number] = answer
                self._pipe.send((number, name, arguments))
            return answer.result(ANSWER_SECONDS)
        except FutureTimeoutError:
            assert self._process is not None
            self._process.kill()
            raise LauncherAwayError("the process that holds Ray does not answer") from None
        except OSError as error:
            raise LauncherAwayError(str(error)) from error
        finally:
            self._asked.pop(number, None)

    def _spawn(self) -> None:
        self._pipe, theirs = Pipe()
        self._spawned += 1
        if self._spawned > 1:
            RESTARTS.labels("ray").inc()
        mark = guard.environment(self._own_mark()) if self.mark else {}
        self._process = subprocess.Popen(
            [sys.executable, "-m", PROGRAM, str(theirs.fileno()), json.dumps(self.settings)],
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            env=os.environ | mark,
            start_new_session=True,  # a group of its own, which Ctrl-C does not reach
        )
        theirs.close()
        self._reader = threading.Thread(
            target=self._read, args=[self._pipe], name="ray", daemon=True
        )
        self._reader.start()

    def _own_mark(self) -> str:
        """Return the mark of what the process of now has started; it ends with the service's."""
        return f"ray{self._spawned}.{self.mark}"

    def _read(self, pipe: Connection) -> None:
        """Take what the process sends until it ends."""
        problem = "the process that holds Ray ended"
        with suppress(EOFError, OSError):
            while True:
                number, kind, content = pipe.recv()
                if kind in ("seen", "silent", "ready"):
                    self._told = time.monotonic()
                if kind == "seen":
                    self._look, self._words = content, content.problem
                    if content.problem is None:
                        self._heard = self._told
                elif kind == "silent":
                    self._words = content
                elif kind == "ready":
                    self.starts += 1
                    self._heard = self._told
                    self._problem, self._pause = None, 0.5
                    logger.info("Ray is ready starts=%d", self.starts)
                elif kind in ("failed", "lost", "slow"):
                    problem, self._is_slow = str(content), kind == "slow"
                    break
                elif (asked := self._asked.get(number)) is not None:
                    if kind == "answer":
                        asked.set_result(content)
                    else:
                        asked.set_exception(RayFailedError(content))
        with self._turn:
            self._problem, self._look, self._words = problem, None, None
            for asked in list(self._asked.values()):
                with suppress(Exception):  # answered at this moment
                    asked.set_exception(LauncherAwayError(problem))

    def _end(self) -> None:
        """End the process and all that it has started on this machine."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        if self.mark:
            mine = self._own_mark()
            guard.kill(lambda found: found == mine)
        if self._pipe is not None:
            self._pipe.close()
