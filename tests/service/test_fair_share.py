"""Experiments in one record share a cluster: real drivers, Ray's part played by the test."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from types import SimpleNamespace

import pytest
from clocks import Clock

from eigensweep.protocol.fair_shares import Allotment, Demand, share_out
from eigensweep.protocol.messages import DriverOptions
from eigensweep.protocol.states import OUTCOMES
from eigensweep.results.trial_result import Result
from eigensweep.search_spaces.spec import ExperimentSpec
from eigensweep.service.record.ledger import RecordLedger
from eigensweep.service.record.record import Record
from eigensweep.service.record.users import shares as shares_module
from eigensweep.service.record.users.shares import Shares
from eigensweep.workers.driver import experiment as module
from eigensweep.workers.driver.experiment import ExperimentDriver
from eigensweep.workers.driver.nodes.fair_share import LOOK_SECONDS
from eigensweep.workers.driver.tune import stopping

SLOTS, TICKS = 4, 3
"""Places of the cluster, and how many looks of a driver a trial lasts."""


class Cluster:
    """A cluster of `SLOTS` places, and the drivers of the experiments on it.

    As Ray does it, a trial begins when a place is free, and whoever asked first comes first.
    """

    def __init__(self, record: Record, folder: Path, clock: Clock) -> None:
        self.record, self.folder, self.clock = record, folder, clock
        self.drivers: list[ExperimentDriver] = []
        self.asked: list[tuple[ExperimentDriver, int, int]] = []
        self.ends: dict[tuple[str, int], float] = {}
        self.shares, self.has_leader = Shares(record.url, clock), True
        self.slots = SLOTS
        self.used: list[list[int]] = []
        """How many trials of each experiment ran, tick by tick."""

    def post(
        self, owner: str, trials: int, priority: int = 0, wall_seconds: float | None = None
    ) -> ExperimentDriver:
        content = {
            "task": {"name": "copying", "delay": 5, "symbols": 2, "batch_size": 4},
            "model": {"name": "scornn", "hidden_size": 6, "negative_ones": 2},
            "training": {"steps": 5},
            "search": {"space": {"optimizer.lr": [1 / (n + 1) for n in range(trials)]}},
            "seed": len(self.drivers),
            "priority": priority,
            "limits": {"wall_seconds": wall_seconds},
        }
        spec = ExperimentSpec.model_validate(content)
        id = self.record.add(spec, owner=owner)[0].id
        claim = self.record.claim(id)
        assert claim is not None
        ledger = RecordLedger(self.record.url, id, claim.generation)
        options = DriverOptions(storage=str(self.folder / "store"))
        self.drivers.append(ExperimentDriver(id, spec, ledger, options))
        return self.drivers[-1]

    def tick(self) -> None:
        """End the trials whose time is over, let drivers hand out more, and begin what fits."""
        self.clock.now += LOOK_SECONDS
        if self.has_leader:
            self.shares.keep()
        for driver in self.drivers:
            if driver.sweep.is_over:
                continue
            for entry in driver.sweep.training:
                if self.ends[driver.experiment, entry.number] <= self.clock.now:
                    driver.sweep.end(entry.number, "completed", Result(value=1.0, step=5))
            while not driver.is_full() and (order := driver.next_order()) is not None:
                self.asked.append((driver, order.number, order.attempt))
            driver.must_stop()
            if driver.sweep.is_over:
                driver.ledger.end("completed")
        while self.asked and sum(len(d.sweep.training) for d in self.drivers) < self.slots:
            driver, number, attempt = self.asked.pop(0)
            driver.sweep.begin(number, attempt)
            self.ends[driver.experiment, number] = self.clock.now + TICKS * LOOK_SECONDS
        self.used.append([len(driver.sweep.training) for driver in self.drivers])

    def run_out(self, driver: ExperimentDriver) -> None:
        """Go on until an experiment is over."""
        for _ in range(100):
            self.tick()
            if driver.sweep.is_over:
                return
        raise AssertionError(f"it is not over, but {self.state(driver)}: {self.notices(driver)}")

    def state(self, driver: ExperimentDriver) -> str:
        return self.record.row(driver.experiment).state

    def notices(self, driver: ExperimentDriver) -> list[str]:
        return [each["words"] for each in self.record.row(driver.experiment).notices or []]


@pytest.fixture
def cluster(record: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    clock = Clock()
    monkeypatch.setattr(module.capacity, "count_slots", lambda share: SLOTS)
    monkeypatch.setattr(module.capacity, "find_parts", lambda share: {"CPU": 1 / SLOTS})
    # The demand has it in steps, and the memory of the tests' own process may pass one.
    monkeypatch.setattr(module, "unshared_bytes", lambda: 10**8)
    stopped = SimpleNamespace(monotonic=clock, time=clock)
    monkeypatch.setattr(module, "time", stopped)
    return Cluster(record, tmp_path, clock)


def test_two_users_share_the_places_as_soon_as_trials_end(cluster):
    first = cluster.post("anna", 24)
    for _ in range(2):
        cluster.tick()
    assert cluster.used[-1] == [4]
    second = cluster.post("ben", 12)
    cluster.tick()
    assert cluster.state(second) == "waiting_for_room"
    assert cluster.notices(second) == ["its fair share is 2 of 4 places, beside 1 other experiment"]
    for _ in range(2 * TICKS):
        cluster.tick()
    assert cluster.state(second) == "running"
    assert cluster.notices(first) == ["its fair share is 2 of 4 places, beside 1 other experiment"]
    shared = len(cluster.used)
    for _ in range(3 * TICKS):
        cluster.tick()
    of_first, of_second = (sum(used) for used in zip(*cluster.used[shared:], strict=True))
    assert of_second == pytest.approx((of_first + of_second) / 2, rel=0.1)
    cluster.run_out(first)
    assert second.sweep.is_over
    assert [4, 0] in cluster.used[shared:], "what one did not need any more the other did not get"
    for driver in (first, second):
        assert cluster.state(driver) == "completed"
        assert {entry.state for entry in driver.sweep.entries.tried} <= OUTCOMES


def test_one_without_a_share_waits_until_there_is_one(cluster):
    cluster.post("anna", 4, priority=1)
    last = cluster.post("ben", 2)
    cluster.tick()
    cluster.tick()
    assert cluster.used[-1] == [4, 0]
    assert last.is_full()
    assert cluster.state(last) == "waiting_for_room"
    assert cluster.notices(last) == [
        "its fair share is 0 of 2 places, beside 1 other experiment, 1 of higher priority"
    ]
    cluster.run_out(last)
    assert cluster.state(last) == "completed"


def test_users_take_turns_where_a_trial_takes_the_whole_cluster(cluster, monkeypatch):
    """Of two users who sweep for days on one GPU, both get on."""
    cluster.slots = 1
    monkeypatch.setattr(module.capacity, "count_slots", lambda share: 1)
    monkeypatch.setattr(module.capacity, "find_parts", lambda share: {"GPU": 1.0})
    monkeypatch.setattr(shares_module, "TURN_SECONDS", 3 * TICKS * LOOK_SECONDS)
    for owner in ("anna", "anna", "ben"):
        cluster.post(owner, 40)
    for _ in range(16 * TICKS):
        cluster.tick()
    served = [used.index(1) for used in cluster.used]
    turns = [(place, len(list(ticks))) for place, ticks in groupby(served)]
    assert [place for place, _ in turns] == [0, 2, 0, 2, 0][: len(turns)]
    assert len(turns) >= 4
    assert all(3 * TICKS <= ticks <= 5 * TICKS for _, ticks in turns[:-1]), turns


def test_a_time_limit_stands_still_while_it_waits(cluster, monkeypatch):
    monkeypatch.setattr(stopping, "time", SimpleNamespace(monotonic=cluster.clock))
    cluster.post("anna", 40, priority=1)
    second = cluster.post("anna", 4, wall_seconds=4 * TICKS * LOOK_SECONDS)
    begun = cluster.clock.now
    cluster.run_out(second)
    assert cluster.clock.now > begun + 8 * TICKS * LOOK_SECONDS
    assert {entry.state for entry in second.ledger.load()} == {"completed"}


def test_a_priority_that_is_changed_counts_for_what_runs(cluster, record):
    first, second = cluster.post("anna", 40), cluster.post("ben", 40)
    for _ in range(3 * TICKS):
        cluster.tick()
    assert cluster.used[-1] == [2, 2]
    record.prioritize(second.experiment, 5)
    for _ in range(3 * TICKS):
        cluster.tick()
    assert cluster.used[-1] == [0, 4]
    assert cluster.state(first) == "waiting_for_room"


def test_a_pause_and_a_dead_driver_leave_their_slots_to_others(cluster, record):
    first, second = cluster.post("anna", 40), cluster.post("ben", 40)
    cluster.tick()
    cluster.tick()
    assert [each.ledger.find_allotment().trials for each in (first, second)] == [2, 2]
    record.count_death(first.experiment)
    cluster.shares.keep()
    assert second.ledger.find_allotment() == Allotment(4)
    record.pause(second.experiment)
    cluster.shares.keep()
    assert first.ledger.find_allotment() == Allotment()


def test_drivers_keep_shares_while_nobody_computes_them(cluster):
    first = cluster.post("anna", 40)
    cluster.tick()
    cluster.tick()
    cluster.has_leader = False
    second = cluster.post("ben", 40)
    for _ in range(3 * TICKS):
        cluster.tick()
    assert second.ledger.find_allotment().trials == 2
    assert first.ledger.find_allotment().trials == 4
    assert cluster.used[-1][1] > 0, "it asked for places before the first one's next trials did"
    cluster.has_leader = True
    cluster.tick()
    assert first.ledger.find_allotment().trials == 2


def test_shares_are_computed_anew_only_where_wants_changed(cluster, monkeypatch):
    computed: list[int] = []
    monkeypatch.setattr(
        shares_module, "share_out", lambda some: computed.append(len(some)) or share_out(some)
    )
    first = cluster.post("anna", 40)
    for _ in range(2 * TICKS):
        cluster.tick()
    assert computed[-1:] == [1]
    count = len(computed)
    second = cluster.post("ben", 40)
    for _ in range(4 * TICKS):
        cluster.tick()
    assert computed[count:] == [2]
    assert {first.ledger.find_allotment(), second.ledger.find_allotment()} == {Allotment(2, 1)}


def test_the_dispatcher_keeps_shares_also_while_ray_is_away(cluster, dispatcher, monkeypatch):
    first, second = cluster.post("anna", 40), cluster.post("ben", 40)
    cluster.has_leader = False
    cluster.tick()
    assert first.ledger.find_allotment().trials == 4
    dispatcher.clock = cluster.clock
    monkeypatch.setattr(dispatcher.launcher, "problem", "Ray is starting", raising=False)
    dispatcher.tick()
    assert [each.ledger.find_allotment().trials for each in (first, second)] == [2, 2]


def test_both_databases_keep_wants_and_shares(each_url, spec):
    record, ledgers = Record(each_url), []
    for number in range(2):
        content = ExperimentSpec.model_validate(spec(name=str(number)))
        id = record.add(content, owner=f"user {number}")[0].id
        ledgers.append(RecordLedger(each_url, id, record.claim(id).generation))
        assert ledgers[-1].find_allotment() == Allotment()
        ledgers[-1].record_demand(Demand(4, {"CPU": 0.25}))
    assert [each.find_allotment().trials for each in ledgers] == [4, 2]
    Shares(each_url).keep()
    ledgers[0].record_demand(Demand(1, {"CPU": 0.25}))
    assert [each.find_allotment() for each in ledgers] == [Allotment(2, others=1)] * 2
    Shares(each_url).keep()
    assert [each.find_allotment().trials for each in ledgers] == [1, 3]
