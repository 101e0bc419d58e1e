"""How long the parts of a service are away after a fault, as a record that bench.faults prints.

`FAULT_RECORD` names a file; each test of faults adds a line of JSON to it.
"""

from __future__ import annotations

import json
import os
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil
from helpers.grids import CHECKPOINT_SECONDS, Grid

PAUSE = 0.25
"""Seconds between two looks: so exact are the times."""


@dataclass
class Recovery:
    """What came of one fault. Seconds count from its end."""

    fault: str
    at: float
    """Seconds since the first fault could come."""
    beside: tuple[str, ...] = ()
    """What was struck at the same moment."""
    down: float = 0.0
    """Seconds for which the fault went on, or until service or database were started again."""
    back: float | None = None
    """Seconds until the part was there again and the service said that it is ready."""
    training: float | None = None
    """Seconds until a step was taken by each trial that had lost its process, or by any."""


@dataclass
class _Open:
    """A fault whose end is not seen yet."""

    recovery: Recovery
    since: float
    before: set[int] | None
    """Processes of the part at the moment of the fault; None: it may go on with them."""
    steps: dict[str, tuple[int, str]]
    """Steps that were taken until then, and the process of the last one, of each trial at work."""


@dataclass
class Recoveries:
    """Looks at a service in a thread of its own, and notes when what was struck is back."""

    service: Any
    grid: Grid
    database: Any = None
    began: float = field(default_factory=time.monotonic)
    seen: list[Recovery] = field(default_factory=list)
    _open: list[_Open] = field(default_factory=list)
    _turn: threading.Lock = field(default_factory=threading.Lock)
    _over: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> Recoveries:
        self._thread = threading.Thread(target=self._look_on, name="recoveries", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        assert self._thread is not None
        self._thread.join()

    def expect(self, faults: Sequence[str], *, are_kills: bool = True) -> list[_Open]:
        """Note the moment before faults that come all at once, named by what is killed."""
        now, parts, steps = time.monotonic(), self._find_parts(), self._read_steps()
        alive = {str(pid) for pid in parts.get("trial", ())}
        at_work = {shade: found for shade, found in steps.items() if found[1] in alive}
        opened = []
        for fault in faults:
            beside = tuple(other for other in faults if other != fault)
            recovery = Recovery(fault, round(now - self.began, 2), beside)
            before = set(parts.get(fault, ())) if are_kills else None
            opened.append(_Open(recovery, now, before, at_work))
        return opened

    def follow(self, opened: list[_Open], down: float | None = None) -> None:
        """Look for the end of faults from now on; what was kept down so long is started now."""
        if down is not None:
            for each in opened:
                each.recovery.down, each.since = down, time.monotonic()
        with self._turn:
            self._open += opened
            self.seen += [each.recovery for each in opened]

    def write(self, test: str, **more: Any) -> None:
        """Add a line to the record, if one is asked for."""
        if path := os.environ.get("FAULT_RECORD"):
            line = {"test": test, **more, "recoveries": [asdict(each) for each in self.seen]}
            with Path(path).open("a") as file:
                file.write(json.dumps(line) + "\n")

    def _look_on(self) -> None:
        while not self._over.wait(PAUSE):
            with self._turn:
                pending = list(self._open)
            if not pending:
                continue
            with suppress(psutil.Error, OSError, IndexError):  # it went while it was looked at
                parts, steps, ready = self._find_parts(), self._read_steps(), self._is_ready()
                for each in pending:
                    self._update(each, parts, steps, ready, time.monotonic())
            with self._turn:
                self._open = [each for each in self._open if each.recovery.training is None]

    def _update(
        self,
        each: _Open,
        parts: dict[str, set[int]],
        steps: dict[str, tuple[int, str]],
        ready: bool,
        now: float,
    ) -> None:
        recovery = each.recovery
        if recovery.back is None:
            has_come = each.before is None or parts.get(recovery.fault, set()) - each.before
            if not ready or not has_come:
                return
            recovery.back = round(now - each.since, 2)
            each.steps = {s: (steps[s][0], pid) for s, (_, pid) in each.steps.items()}
            return  # steps that are taken from now on count
        if not each.steps:  # no trial was at work
            recovery.training = recovery.back
        elif all(
            steps[shade][0] > min(count, self.grid.steps - 1)  # or it took its last one
            for shade, (count, _) in each.steps.items()
        ):
            recovery.training = round(now - each.since, 2)

    def _find_parts(self) -> dict[str, set[int]]:
        """Return the processes of each part, found in one look at all processes."""
        found: dict[str, set[int]] = self.service.find_parts()
        if self.database is not None:
            found["postgresql"] = {each.pid for each in self.database.processes()}
        return found

    def _read_steps(self) -> dict[str, tuple[int, str]]:
        """Return how many steps each trial took, and in which process the last one."""
        read = {path.name: path.read_text().split() for path in self.service.steps.iterdir()}
        return {shade: (len(lines), lines[-1]) for shade, lines in read.items() if lines}

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(self.service.url + "/readyz", timeout=5):
                return True
        except (urllib.error.URLError, OSError):
            return False


def check_recovery(
    service: Any,
    grid: Grid,
    id: str,
    fault: str,
    happen: Callable[[], object],
    repair: Callable[[], object] = lambda: None,
) -> None:
    """Let a fault happen while a grid runs, check that nothing is lost, and write a line of it.

    Seconds count from the end of `happen`; then comes `repair`.
    """
    with Recoveries(service, grid) as recoveries:
        opened, began = recoveries.expect([fault], are_kills=False), time.monotonic()
        happen()
        recoveries.follow(opened, down=round(time.monotonic() - began, 2))
        repair()
        grid.check(service, id)
    recoveries.write(fault, **count_loss(service, id, grid))


def count_loss(service: Any, id: str, grid: Grid) -> dict[str, Any]:
    """Return what an experiment that has ended lost: attempts, and steps that were taken twice."""
    trials = service.trials(id)
    taken = [
        len((service.steps / str(t["params"]["model.shade"])).read_text().split()) for t in trials
    ]
    lost = sum(t["attempt"] - 1 for t in trials)
    return {
        "trials": grid.trials,
        "trials_lost": 0,
        "attempts_lost": lost,
        "steps": grid.trials * grid.steps,
        "steps_taken_twice": sum(taken) - grid.trials * grid.steps,
        "seconds_a_step": grid.seconds,
        "checkpoint_seconds": CHECKPOINT_SECONDS,
    }
