"""From the queue to drivers: starts what waits, and starts again what died.

The record is the queue and the only memory. What a dispatcher holds besides (handles, pauses) is
found again by the next one: drivers that outlived the service by their name, the rest started anew.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol

from eigensweep.service.record.ledger import RecordLedger
from eigensweep.service.record.lifecycle import ENDED
from eigensweep.service.record.record import Record
from eigensweep.workers.shared.ledger import Ledger

logger = logging.getLogger(__name__)

MOST_DEATHS: Final = 5
"""After so many deaths of its driver in a row, without progress, an experiment has failed."""
MOST_DELIVERIES: Final = 4
"""Drivers at a time that are started only to bring MLflow up to date."""
FIRST_PAUSE: Final = 1.0
LONGEST_PAUSE: Final = 300.0


class Driver(Protocol):
    """A running driver, as `launch` and `find` of a launcher return it."""

    error: str | None
    """Why it died, once `state` said so and if that is known."""

    def state(self) -> Literal["running", "ended", "died"]:
        """Return whether it still works, has returned, or is gone with its work undone."""


class Launcher(Protocol):
    """Starts drivers in processes of their own and finds them again; `RayCluster` is one."""

    def launch(
        self, experiment_id: str, spec: dict[str, Any], ledger: Ledger, options: Any
    ) -> Driver:
        """Start a driver for an experiment."""

    def find(self, experiment_id: str) -> Driver | None:
        """Return the driver of an experiment that an earlier service started, if it still works."""


@dataclass
class _Charge:
    """An experiment in the dispatcher's care."""

    driver: Driver | None = None
    is_new: bool = True
    """Whether this dispatcher has not looked yet for a driver that outlived another service."""
    not_before: float = 0.0
    pause: float = FIRST_PAUSE


@dataclass
class Dispatcher:
    """Gives every experiment that needs one a driver, at most `max_experiments` running at once."""

    record: Record
    max_experiments: int = 2
    interval: float = 0.5
    clock: Callable[[], float] = time.monotonic
    launcher: Launcher | None = None
    options: Any = None
    """What the launcher hands to every driver."""
    problem: str | None = "drivers cannot be started yet: Ray is starting"
    """Why drivers cannot be started now; None if they can."""
    _charges: dict[str, _Charge] = field(default_factory=dict)
    _wake: threading.Event = field(default_factory=threading.Event)
    _stopping: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self, launcher: Launcher, options: Any) -> None:
        """Begin to tend the queue, in a thread, with drivers started by `launcher`."""
        self.launcher, self.options = launcher, options
        self.problem = None
        self._thread = threading.Thread(target=self._run, name="dispatcher", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Look at the queue at once."""
        self._wake.set()

    def stop(self, timeout: float = 5.0) -> None:
        """Stop tending the queue; running drivers go on."""
        self._stopping.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(timeout)

    def tick(self) -> None:
        """Look once at every experiment that is under way, then at the queue."""
        underway = self.record.underway()
        ids = {each.id for each in underway}
        self._charges = {id: charge for id, charge in self._charges.items() if id in ids}
        delivering = running = 0
        for each in underway:
            charge = self._charges.setdefault(each.id, _Charge())
            if each.is_over:
                delivering += 1
            else:
                running += 1
            self._tend(each.id, charge, may_start=not each.is_over or delivering <= MOST_DELIVERIES)
        for id in self.record.next_queued(max(0, self.max_experiments - running)):
            self._start(id, self._charges.setdefault(id, _Charge(is_new=False)))

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self.tick()
                self.problem = None
            except Exception as error:  # the queue outlives a database or a cluster that is away
                if self.problem is None:
                    logger.exception("the queue is not tended, trying again")
                self.problem = f"{type(error).__name__}: {error}"
            self._wake.wait(self.interval)
            self._wake.clear()

    def _tend(self, id: str, charge: _Charge, may_start: bool) -> None:
        assert self.launcher is not None
        if charge.is_new:
            charge.driver = self.launcher.find(id)
            charge.is_new = False
            if charge.driver is not None:
                logger.info("driver found again experiment=%s", id)
        if charge.driver is not None and not self._has_gone(id, charge):
            return
        if may_start and self.clock() >= charge.not_before:
            self._start(id, charge)

    def _has_gone(self, id: str, charge: _Charge) -> bool:
        """Return whether the driver is gone, with the consequences for its experiment drawn."""
        assert charge.driver is not None
        driver, state = charge.driver, charge.driver.state()
        if state == "running":
            return False
        charge.driver = None
        if self.record.row(id).state in ENDED:  # delivered, or MLflow is away: tried again later
            self._pause(charge, at_least=5.0)
            if state == "died":
                logger.warning("delivery died experiment=%s error=%s", id, driver.error)
            return True
        deaths = self.record.count_death(id)
        words = f"its driver died {deaths} times without any progress: {driver.error}"
        logger.warning("driver %s with work left experiment=%s %s", state, id, words)
        if deaths >= MOST_DEATHS:
            self.record.give_up(id, words)
        elif deaths > 1:
            self._pause(charge)
        else:
            charge.not_before, charge.pause = 0.0, FIRST_PAUSE
        return True

    def _pause(self, charge: _Charge, at_least: float = 0.0) -> None:
        charge.not_before = self.clock() + max(charge.pause, at_least)
        charge.pause = min(2 * charge.pause, LONGEST_PAUSE)

    def _start(self, id: str, charge: _Charge) -> None:
        assert self.launcher is not None
        claim = self.record.claim(id)
        if claim is None:
            return
        ledger = RecordLedger(self.record.url, id, claim.generation)
        self._pause(charge)  # should the launch fail
        charge.driver = self.launcher.launch(id, claim.spec, ledger, self.options)
        logger.info("driver started experiment=%s generation=%d", id, claim.generation)
