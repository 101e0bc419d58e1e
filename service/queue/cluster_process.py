"""Ray, by way of a process beside the service, which is started again when it dies; and drivers.

Runs in the service's process. Where Ray's control processes die, Ray ends the process that is
connected to it; so that one is not the service.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, Final

from eigensweep.common import guard
from eigensweep.protocol.ledger import Ledger
from eigensweep.protocol.messages import DriverOptions, SpecJson
from eigensweep.protocol.shares import Capacity
from eigensweep.search_spaces.sections import ResourcesConfig
from eigensweep.service.counters import RESTARTS
from eigensweep.service.settings import StartError
from eigensweep.workers.cluster.drivers import DriverProcess, Drivers
from eigensweep.workers.cluster.nodes import ClusterSnapshot, Node, RayPlace
from eigensweep.workers.deaths import Death
from eigensweep.workers.driver.nodes.capacity import look_for_room
from eigensweep.workers.driver.process.driver_order import DriverOrder

logger = logging.getLogger(__name__)

PROGRAM: Final = "eigensweep.workers.cluster.served"
SILENT_SECONDS: Final = 5.0
"""Seconds without a look at which all was well, after which nothing more is asked of Ray."""
ANSWER_SECONDS: Final = 60.0
"""Seconds after which a process that tells nothing is killed."""
LOSS_SECONDS: Final = 60.0
"""A driver that dies so soon after Ray did not answer has died of that: so long it tries."""
SURE_SECONDS: Final = 2.0
"""A look at Ray that was told so long after a driver's death has begun after it."""
LONGEST_SILENCE: Final = 300.0
"""Seconds after which a Ray that stands still is left. Before, it may go on, and lose nothing."""
STOP_SECONDS: Final = 6.0
LONGEST_PAUSE: Final = 8.0
"""Seconds between two starts, at most."""
GONE: Final = "its driver ended, which an earlier service had started"
"""Why nobody knows how a driver ended."""


class LauncherAwayError(RuntimeError):
    """What starts drivers is away; it may come back."""


@dataclass
class ClusterProcess:
    """Starts drivers, and sees what becomes of Ray and of them."""

    settings: dict[str, object]
    """Arguments of `RayCluster.start`, and `log_level` and `log_format`."""
    mark: str
    """The mark of this service's processes."""
    drivers: Drivers = field(default_factory=Drivers)
    starts: int = 0
    """How often Ray was started or joined."""
    _problem: str | None = "Ray is starting"
    _look: ClusterSnapshot | None = None
    """What was last seen of Ray; None: nothing since it was started or joined."""
    _words: str | None = None
    """What was wrong at the last look."""
    _heard: float = 0.0
    """When all was well at a look, by the clock of `time.monotonic`."""
    _told: float = 0.0
    """When anything was told of a look."""
    _ill: float = float("-inf")
    """When something was wrong with Ray, last."""
    _place: RayPlace | None = None
    """Where drivers find it."""
    _found: dict[str, DriverProcess] = field(default_factory=dict)
    """Drivers of an earlier service that were asked for, by their experiments."""
    _is_silent: bool = False
    """Whether the log says that Ray is silent."""
    _spawned: int = 0
    _process: subprocess.Popen[bytes] | None = None
    _reader: threading.Thread | None = None
    """Takes what the process sends."""
    _is_slow: bool = False
    """Whether the last start of Ray took too long."""
    _pipe: Connection | None = None
    _pause: float = 0.5
    _not_before: float = 0.0

    @property
    def problem(self) -> str | None:
        """Why no driver can be started or asked now; None: all is well."""
        return self._ray_problem or self.drivers.problem

    @property
    def _ray_problem(self) -> str | None:
        if self._problem is not None:
            return self._problem
        silent = time.monotonic() - self._heard
        if silent < SILENT_SECONDS:
            return None
        words = self._words or "the process that holds Ray does not answer"
        return f"{words}, for {silent:.0f} s now"

    def start(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Start the process and wait until Ray answers; try again where it is only slow.

        `meanwhile` is called every second.

        Raises:
            StartError: if Ray cannot be started or reached.
            Exception: whatever `meanwhile` raises.
        """
        self._spawn()
        due = time.monotonic() + 1.0
        while self._ray_problem is not None:
            if time.monotonic() >= due:
                meanwhile()
                due = time.monotonic() + 1.0
            if self._has_ended():
                self._end()
                if not self._is_slow:
                    raise StartError(self._problem)
                logger.warning("%s; trying again", self._problem)
                self._spawn()
            time.sleep(0.05)

    def watch(self) -> None:
        """Start the process, and the drivers' zygote, again if one has ended; call it regularly."""
        self.drivers.watch()
        if not self._has_ended():
            self._note_silence()
            return
        if time.monotonic() < self._not_before:
            return
        logger.warning("Ray is lost, starting or joining it again: %s", self._problem)
        self._end()
        self._not_before = time.monotonic() + self._pause
        self._pause = min(2 * self._pause, LONGEST_PAUSE)
        self._spawn()

    def _has_ended(self) -> bool:
        """Tell whether the process has ended, or has told its end and hangs.

        To leave a Ray that did not come up in time can take for ever.
        """
        assert self._process is not None
        assert self._reader is not None
        is_gone = self._process.poll() is not None
        if is_gone:
            self._reader.join()
        return is_gone or not self._reader.is_alive()

    def _note_silence(self) -> None:
        """Say in the log that Ray does not answer, and that it does; end it if it is for long."""
        is_starting = self._look is None and self._problem is not None
        problem = None if is_starting else self._ray_problem
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
        """Leave Ray; if it is our own, it ends, and so do all drivers."""
        self._problem = "the service is stopping"
        self.drivers.stop(kill=self._is_own)  # before they see their trials' processes end
        if self._process is None or self._pipe is None:
            return
        if self.starts > 0:  # else there is nothing to leave in order
            with suppress(OSError):
                self._pipe.send("stop")
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_SECONDS)
        self._end()

    def launch(
        self, experiment_id: str, spec: SpecJson, ledger: Ledger, options: DriverOptions
    ) -> DriverProcess:
        """Start a driver for an experiment; return at once.

        Raises:
            LauncherAwayError: if Ray is lost.
        """
        place = self._place
        if self.problem is not None or place is None:
            raise LauncherAwayError(self.problem or "Ray has not been seen yet")
        order = DriverOrder(experiment_id, spec, ledger, options, place.address)
        log = f"{place.logs}/driver-{experiment_id}.log"
        was_well = partial(self._was_well, self.starts, time.monotonic())
        return self.drivers.launch(order, log, was_well)

    def find(self, experiment_id: str) -> DriverProcess | None:
        """Return the driver of an experiment, None if there is none.

        On a Ray that outlives services it may be one that an earlier service had forked.

        Raises:
            LauncherAwayError: if Ray is lost.
        """
        if (process := self.drivers.find(experiment_id)) is not None:
            return process
        if (seen := self._look) is None:
            raise LauncherAwayError(self.problem or "Ray has not been seen yet")
        if experiment_id not in seen.drivers:
            return None
        return self._found.setdefault(experiment_id, DriverProcess(experiment_id))

    def _was_well(self, start: int, since: float, moment: float) -> bool | None:
        """Return whether Ray was well when something died; None: that is not known yet.

        `start` says which Ray it had; `since` when it began, and `moment` when it died, by the
        clock of `time.monotonic`.
        """
        if self.starts != start or self._ill > max(since, moment - LOSS_SECONDS):
            return False
        return True if self._heard > moment + SURE_SECONDS else None

    def look_for_room(self, resources: ResourcesConfig, replicates: int) -> Capacity | None:
        """Return how many trials with these resources the nodes hold, or why none; None: unknown.

        It is computed from the last look, so nobody waits for Ray.
        """
        if (seen := self._look) is None:
            return None
        return look_for_room(resources, replicates, may_change=seen.may_change, nodes=seen.living)

    def list_nodes(self) -> list[Node] | None:
        """Return the nodes at the last look, seconds old, or older if Ray is silent; None: lost."""
        return None if (seen := self._look) is None else seen.nodes

    @property
    def _is_own(self) -> bool:
        """Whether Ray is our own, and ends with the service."""
        return self.settings.get("address") is None

    def _spawn(self) -> None:
        self._pipe, theirs = Pipe()
        self._spawned += 1
        if self._spawned > 1:
            RESTARTS.labels("ray").inc()
        # A late call of a process that has left Ray would connect it to any Ray of this machine.
        environment = os.environ | {"RAY_ENABLE_AUTO_CONNECT": "0"}
        if self._is_own:
            # As Ray would choose for a cluster that it starts; drivers need them, too.
            environment.setdefault("RAY_AUTH_MODE", "token")
            environment.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
        mark = guard.environment(self._own_mark())
        if self._is_own:
            self.drivers.start(environment | mark)
        elif self._spawned == 1:  # what outlives the service has no mark of it
            self.drivers.start({k: v for k, v in environment.items() if k != guard.VARIABLE})
        self._process = subprocess.Popen(
            [sys.executable, "-m", PROGRAM, str(theirs.fileno()), json.dumps(self.settings)],
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            env=environment | mark,
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
                kind, content = pipe.recv()
                if kind not in ("seen", "silent", "ready"):
                    problem, self._is_slow = str(content), kind == "slow"
                    break
                self._take(kind, content)
        self._problem, self._look, self._words = problem, None, None
        self._ill = time.monotonic()

    def _take(self, kind: str, content: Any) -> None:
        """Take what the process sees of Ray."""
        self._told = time.monotonic()
        if kind == "seen":
            self._look, self._words = content, content.problem
            for experiment in self._found.keys() - content.drivers:
                self._found.pop(experiment).finish("ended", Death(GONE, "unseen"))
        elif kind == "silent":
            self._words = content
        else:
            self._place, self._words = content, None
            self.starts += 1
            self._problem, self._pause = None, 0.5
            for experiment in list(self._found):  # it is to be looked for again
                self._found.pop(experiment).finish("lost")
            logger.info("Ray is ready starts=%d", self.starts)
        if self._words is None:
            self._heard = self._told
        else:
            self._ill = self._told

    def _end(self) -> None:
        """End the process and all that it has started on this machine.

        If Ray is our own, that includes all drivers.
        """
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        if self._is_own:
            self.drivers.stop(kill=True)
        mine = self._own_mark()
        guard.kill(lambda found: found == mine)
        if self._pipe is not None:
            self._pipe.close()
