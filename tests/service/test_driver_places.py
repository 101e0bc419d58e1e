"""Small experiments that share a driver, over a real record, with drivers that a test plays."""

from __future__ import annotations

from typing import Any

import pytest

from eigensweep.search_spaces.spec import ExperimentSpec
from eigensweep.service.queue.dispatcher import MOST_DEATHS, Dispatcher
from eigensweep.service.queue.driver_places import MOST_TRIALS, DriverPlaces, is_small
from eigensweep.service.record.record import Record
from eigensweep.workers.shared.deaths import Death
from eigensweep.workers.shared.messages import DriverOptions

OPTIONS = DriverOptions(storage="/storage")
LARGE = {"low": 1e-4, "high": 1e-1}
"""A range that is searched with more trials than a small experiment has."""


@pytest.fixture
def shared(record: Record, launcher: Any) -> Dispatcher:
    """A dispatcher that puts three small experiments into each of two drivers."""
    places = DriverPlaces(experiments=3, drivers=2)
    return Dispatcher(record, 6, places=places, launcher=launcher, options=OPTIONS, problem=None)


@pytest.fixture
def post(record: Record, spec: Any) -> Any:
    """Return a function that queues an experiment, small or large, and gives its id."""

    def post_spec(large: bool = False) -> str:
        search = {"method": "random", "trials": MOST_TRIALS + 1, "space": {"optimizer.lr": LARGE}}
        content = spec(**({"search": search} if large else {}))
        return record.add(ExperimentSpec.model_validate(content))[0].id

    return post_spec


def find_processes(launcher: Any) -> list[str]:
    return [driver.process for driver in launcher.launched]


SHARED = Death("Ray's own words", "shared")


def kill_all(launcher: Any, process: str, death: Death) -> None:
    """Let a process die with all experiments in it."""
    for driver in launcher.launched:
        if driver.process == process:
            driver.now, driver.death = "died", death


@pytest.mark.parametrize(
    ("changes", "small"),
    [
        ({}, True),
        ({"limits": {"trials": 2}}, True),
        ({"search": {"method": "tpe", "trials": 100, "space": {"optimizer.lr": LARGE}}}, True),
        ({"search": {"method": "tpe", "trials": 101, "space": {"optimizer.lr": LARGE}}}, False),
        ({"search": {"method": "gp", "trials": 4, "space": {"optimizer.lr": LARGE}}}, False),
        ({"resources": {"lanes": 4}}, False),
        ({"resources": {"lanes": "auto"}}, False),
        ({"model": {"name": "gone"}}, False),
    ],
)
def test_small_is_what_costs_a_driver_little(spec, changes, small):
    assert is_small(spec(**changes)) is small


def test_small_ones_share_and_each_has_its_own_generation(shared, launcher, post):
    posted = [post() for _ in range(4)]
    shared.tick()
    assert find_processes(launcher) == ["process 0"] * 3 + ["process 3"]
    assert [each.ledger.experiment_id for each in launcher.launched] == posted
    assert {each.ledger.generation for each in launcher.launched} == {1}


def test_a_large_one_has_a_driver_to_itself(shared, launcher, post):
    post(), post(large=True), post()
    shared.tick()
    assert find_processes(launcher) == ["process 0", "process 1", "process 0"]


def test_no_more_drivers_run_than_there_may_be_and_the_queue_keeps_its_order(
    shared, launcher, record, post
):
    post(), post(large=True)
    large, small = post(large=True), post()
    shared.tick()
    assert len(launcher.launched) == 2
    assert {record.row(id).state for id in (large, small)} == {"queued"}
    launcher.launched[1].ledger.end("completed")
    launcher.launched[1].ledger.set_tracked(None)
    shared.tick()
    assert find_processes(launcher) == ["process 0", "process 1", "process 2", "process 0"]


def test_with_the_default_each_has_a_driver_to_itself(dispatcher, launcher, post):
    post(), post()
    dispatcher.tick()
    assert find_processes(launcher) == ["process 0", "process 1"]


def test_an_experiment_that_ends_leaves_its_place_in_the_driver_to_the_next(shared, launcher, post):
    for _ in range(3):
        post()
    shared.tick()
    launcher.launched[1].ledger.end("completed")
    launcher.launched[1].ledger.set_tracked(None)
    post()
    shared.tick()
    assert find_processes(launcher) == ["process 0"] * 4


def test_when_a_shared_driver_dies_each_goes_on_alone_and_none_is_blamed(
    shared, launcher, record, post
):
    ids = [post() for _ in range(3)]
    shared.tick()
    shared.places = DriverPlaces(experiments=3, drivers=6)
    kill_all(launcher, "process 0", SHARED)
    shared.tick()
    assert find_processes(launcher)[3:] == ["process 3", "process 4", "process 5"]
    assert {driver.ledger.generation for driver in launcher.launched[3:]} == {2}
    assert {record.row(id).deaths for id in ids} == {0}


def test_the_one_that_ends_drivers_fails_and_the_others_do_not(record, launcher, post):
    clock = iter(range(0, 10**9, 1000))
    places = DriverPlaces(experiments=3, drivers=6)
    dispatcher = Dispatcher(
        record, 6, places=places, launcher=launcher, options=OPTIONS, clock=lambda: next(clock)
    )
    poison, *others = [post() for _ in range(3)]
    dispatcher.tick()
    kill_all(launcher, "process 0", SHARED)
    for _ in range(MOST_DEATHS + 1):
        dispatcher.tick()
        (own,) = [
            each.process
            for each in launcher.launched
            if each.ledger.experiment_id == poison and each.now == "running"
        ] or [""]
        kill_all(launcher, own, Death("the driver's process died"))
    assert record.row(poison).state == "failed"
    assert {record.row(id).deaths for id in others} == {0}
    assert len([d for d in launcher.launched if d.ledger.experiment_id in others]) == 4


def test_after_such_a_death_they_wait_for_room_before_all_others(shared, launcher, record, post):
    for _ in range(3):
        post()
    post(large=True)
    queued = post()
    shared.tick()
    assert len(launcher.launched) == 4
    kill_all(launcher, "process 0", SHARED)
    shared.tick()
    assert find_processes(launcher)[4:] == ["process 4"]
    assert record.row(queued).state == "queued"
    for driver in (launcher.launched[3], launcher.launched[4]):
        driver.ledger.end("completed")
        driver.ledger.set_tracked(None)
    shared.tick()
    assert find_processes(launcher)[5:] == ["process 5", "process 6"]
    assert record.row(queued).state == "queued"


def test_a_driver_that_takes_no_other_one_is_not_tried_again(shared, launcher, post, monkeypatch):
    post()
    shared.tick()
    works = launcher.launch
    monkeypatch.setattr(launcher, "launch", lambda *told: works(*told[:4]))  # it refuses to share
    post()
    shared.tick()
    monkeypatch.setattr(launcher, "launch", works)
    post(), post()
    shared.tick()
    assert find_processes(launcher) == ["process 0"] + ["process 1"] * 3


@pytest.mark.parametrize("cause", ["node", "memory"])
def test_after_a_death_that_is_nobodys_fault_they_share_again(record, launcher, post, cause):
    now = [0.0]
    dispatcher = Dispatcher(
        *(record, 6),
        places=DriverPlaces(3, 2),
        launcher=launcher,
        options=OPTIONS,
        clock=lambda: now[0],
    )
    post(), post()
    dispatcher.tick()
    kill_all(launcher, "process 0", Death("gone", cause))
    dispatcher.tick()
    now[0] += 60.0
    dispatcher.tick()
    assert find_processes(launcher)[2:] == ["process 2"] * 2
