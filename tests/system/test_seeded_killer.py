"""A killer with a seed ends processes of a real service, two at once at times, while a grid runs.

The long form kills for half an hour; `KILLER_SECONDS` sets another time.
"""

from __future__ import annotations

import logging
import os
import random
import time
import urllib.error
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import psutil
import pytest
from grids import Grid
from postgresql import PostgresqlServer, run_postgresql
from recoveries import Recoveries, count_loss
from waiting import wait_until

from eigensweep.protocol.states import ENDED

logger = logging.getLogger(__name__)

SECONDS = float(os.environ.get("KILLER_SECONDS", "1800"))
ORPHAN_SECONDS = 60.0
"""How long a process may live when the service that started it is gone."""


@dataclass(frozen=True)
class Blow:
    """What ends at one moment."""

    pause: float
    """Seconds before it."""
    kinds: tuple[str, ...]
    down: float
    """Seconds until service and database are started again. The other parts come back alone."""


class Killer:
    """Ends parts of a running service, and starts again what nobody else would start."""

    def __init__(
        self, service: Any, database: PostgresqlServer | None, parts: list[str], seed: int
    ) -> None:
        self.service, self.database = service, database
        self.recoveries: Recoveries | None = None
        self.seed, self.dice = seed, random.Random(seed)
        self.kinds = [*parts, *(["postgresql"] if database else [])]
        self.struck: Counter[str] = Counter()
        self.story = [f"killer with seed {seed}"]
        self.began = time.monotonic()
        self.orphans_lived = 0.0

    def deal(self, pauses: tuple[float, float], downs: tuple[float, ...]) -> Iterator[Blow]:
        """Yield blows that end every kind once, in an order of chance."""
        deck = self.dice.sample(self.kinds, len(self.kinds))
        while deck:
            kinds = tuple(deck.pop() for _ in range(min(len(deck), self.dice.choice((1, 2)))))
            yield Blow(self.dice.uniform(*pauses), kinds, self.dice.choice(downs))

    def kill_in(self, id: str, blows: Iterable[Blow]) -> None:
        """Strike again and again while the experiment is not over."""
        for blow in blows:
            time.sleep(blow.pause)
            self._wait_for_victims(id, blow)
            if self._is_over(id):
                return
            self.strike(blow)

    def strike(self, blow: Blow) -> None:
        """End one process of each kind, all at once; return when service and database are back."""
        self.tell(f"{', '.join(blow.kinds)}; down {blow.down:g} s")
        assert self.recoveries is not None
        opened = self.recoveries.expect(blow.kinds)
        family, began = set(self.service.family()), time.monotonic()
        for process in self._find_victims(blow):
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self.struck.update(blow.kinds)
        if "service" in blow.kinds:
            self.service.process.wait()
        if not {"service", "postgresql"} & set(blow.kinds):
            self.recoveries.follow(opened)
            return
        was_alone_at = None
        while time.monotonic() < began + blow.down:
            if was_alone_at is None and not family & set(self.service.family()):
                was_alone_at = time.monotonic()
            time.sleep(0.2)
        if was_alone_at is None and blow.down and "service" in blow.kinds:
            self.tell(f"left after {blow.down:g} s: {set(self.service.family()) & family}")
        self.recoveries.follow(opened, blow.down)
        if "postgresql" in blow.kinds:
            assert self.database is not None
            self.database.start()
        if "service" in blow.kinds:
            with ThreadPoolExecutor(1) as pool:  # beside the start, which takes time of its own
                alone = pool.submit(self._wait_until_gone, family)
                self.service.start()
                lived = (was_alone_at or alone.result()) - began
            self.orphans_lived = max(self.orphans_lived, lived)

    def _wait_until_gone(self, family: set[psutil.Process]) -> float:
        """Return when none of these processes lives any more."""
        wait_until(lambda: not family & set(self.service.family()), lambda: family, pause=0.3)
        return time.monotonic()

    def has_recovered(self) -> bool:
        """Say whether all that was struck is back, and what had stopped trains again."""
        assert self.recoveries is not None
        return all(each.training is not None for each in self.recoveries.seen)

    def tell(self, words: str) -> None:
        self.story.append(f"{time.monotonic() - self.began:6.1f} s: {words}")
        logger.info("%s", self.story[-1])

    def _wait_for_victims(self, id: str, blow: Blow) -> None:
        """Wait until there is a process of each kind, or none will come any more."""

        def is_time() -> bool:
            found = all(self._find(kind) for kind in blow.kinds)
            return found or self._is_over(id)

        wait_until(is_time, lambda: f"{blow}; {self.service.log.read_text()[-4000:]}")

    def _find_victims(self, blow: Blow) -> list[psutil.Process]:
        """Return the processes that a blow ends: one of each kind, and all of PostgreSQL's.

        All drivers, too, because one of them may only wait for an experiment.
        """
        victims = []
        for kind in blow.kinds:
            found = self._find(kind)
            is_whole = kind in ("postgresql", "driver") or not found
            victims += found if is_whole else [self.dice.choice(found)]
        return victims

    def _find(self, kind: str) -> list[psutil.Process]:
        if kind == "postgresql":
            assert self.database is not None
            return self.database.processes()
        found: list[psutil.Process] = self.service.find_part(kind)
        return found

    def _is_over(self, id: str) -> bool:
        try:
            return self.service.experiment(id)["state"] in ENDED
        except urllib.error.URLError:  # the database is coming back
            return False


@pytest.fixture(scope="module")
def database() -> Iterator[PostgresqlServer | None]:
    """PostgreSQL where it is installed; without it the record is in SQLite and less is killed."""
    with run_postgresql() as server:
        yield server


@pytest.mark.timeout(3600)
class TestWhateverIsKilled:
    """Each point of a grid is finished exactly once, every curve is whole, and nothing is left."""

    def kill(self, name: str, killer: Killer, grid: Grid, blows: Iterable[Blow]) -> None:
        service, database = killer.service, killer.database
        if database is not None:
            variable = "EIGENSWEEP_DATABASE_URL"
            service.env[variable] = database.create_database(f"killed_{uuid4().hex}")
        id = grid.begin(service)
        killer.recoveries = Recoveries(service, grid, database)
        try:
            with killer.recoveries:
                killer.kill_in(id, blows)
                assert set(killer.struck) == set(killer.kinds)
                grid.check(service, id)
            assert killer.orphans_lived < ORPHAN_SECONDS
            lived = round(killer.orphans_lived, 1)
            loss = count_loss(service, id, grid)
            killer.recoveries.write(name, seed=killer.seed, orphans_lived=lived, **loss)
        except BaseException as error:
            killer.recoveries.write(name, seed=killer.seed, failed=str(error)[:500])
            error.add_note("\n".join(killer.story))
            raise
        service.stop()
        service.wait_until_alone()

    @pytest.mark.slow
    def test_in_short(self, service, database, parts):
        service.env |= {"EIGENSWEEP_CPUS": "2"}
        killer = Killer(service, database, parts, seed=7)
        blows = killer.deal(pauses=(0.0, 1.0), downs=(0.0,))
        self.kill("in short", killer, Grid(trials=6, steps=50), blows)

    @pytest.mark.slow
    def test_alone_it_is_back_and_training_goes_on(self, service, database, parts):
        """One trial at a time, so that steps are taken again only when all is back."""
        service.env |= {"EIGENSWEEP_CPUS": "1"}
        killer = Killer(service, database, parts, seed=3)
        grid = Grid(trials=2, steps=400)

        def one_by_one() -> Iterator[Blow]:
            for kind in killer.kinds:
                grid.wait_for_steps(service, 25)
                yield Blow(0.0, (kind,), 0.0)
                wait_until(killer.has_recovered, lambda: killer.recoveries)

        self.kill("one by one", killer, grid, one_by_one())

    @pytest.mark.slow
    def test_for_half_an_hour(self, service, database, parts):
        service.env |= {
            "EIGENSWEEP_CPUS": "4",
            "EIGENSWEEP_RETRIES": "100",
        }
        killer = Killer(service, database, parts, seed=11)

        def strike_on() -> Iterator[Blow]:
            end = time.monotonic() + SECONDS
            while time.monotonic() < end:
                yield from killer.deal(pauses=(1.0, 8.0), downs=(0.0, 20.0, 60.0))

        steps = max(2, round(SECONDS / 150)) * 25  # an eighth of the time, if nothing were killed
        self.kill("for half an hour", killer, Grid(trials=60, steps=steps), strike_on())
