"""How many trials fit on a node, and what a trial asks Ray for so that all of them do."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from sweeps import spec

from eigensweep.protocol.shares import UNITS, share_of, to_units
from eigensweep.search_spaces.lanes import count_members
from eigensweep.search_spaces.sections import ResourcesConfig
from eigensweep.search_spaces.spec import ExperimentSpec
from eigensweep.workers.driver import experiment


def share(replicates=1, lanes=None, **resources):
    return share_of(ResourcesConfig(**resources), replicates, lanes)


def in_units(amount):
    """Return an amount in ten-thousandths, as Ray counts; it must be a whole number of them."""
    assert amount * UNITS == pytest.approx(round(amount * UNITS), abs=1e-6)
    return round(amount * UNITS)


@pytest.mark.parametrize(
    ("part", "count"),
    [(0.1, 10), (0.2, 5), (0.05, 20), (1 / 3, 3), (1 / 32, 32), (1 / 100, 100), (0.3, 3), (1, 1)],
)
def test_parts_of_a_device_fill_it_and_never_more(part, count):
    alone = share(cpus=0.01, gpus=part)
    assert alone.count_slots({"CPU": 64.0, "GPU": 1.0}) == count
    assert count * in_units(alone.resources["GPU"]) <= UNITS
    assert alone.count_slots({"CPU": 64.0, "GPU": 2.0}) == 2 * count


def test_a_trial_alone_needs_all_that_it_asks_for():
    assert share(cpus=2).count_slots({"CPU": 7.0}) == 3
    assert share(cpus=2, gpus=1).count_slots({"CPU": 7.0}) == 0
    assert share(cpus=2, gpus=1).count_slots({"CPU": 3.0, "GPU": 4.0}) == 1


@pytest.mark.parametrize("lanes", [1, 2, 3, 4, 7, 8, 16, 32, 100, 512])
@pytest.mark.parametrize("replicates", [1, 3, 40])
def test_an_engines_trials_fit_on_its_device_with_room_to_spare(lanes, replicates):
    found = share(replicates, lanes, cpus=1, gpus=1)
    training = max(1, lanes // replicates)
    assert found.trials == count_members(lanes, replicates) > training
    assert found.trials <= training + training / 8 + 1
    for amount in found.resources.values():
        assert found.trials * in_units(amount) <= UNITS
        assert (found.trials + 1) * in_units(amount) > UNITS - found.trials
    assert found.count_slots({"CPU": 8.0, "GPU": 1.0}) == found.trials
    assert found.count_slots({"CPU": 8.0, "GPU": 3.0}) == 3 * found.trials
    assert found.count_slots({"CPU": 8.0}) == 0


def test_memory_and_labels_count():
    found = share(memory="2 GB", labels={"zone": "a"})
    here, zone = {"CPU": 8.0, "memory": 5e9}, {"zone": "a", "other": "b"}
    assert found.count_slots(here, zone) == 2
    assert found.count_slots(here, {"zone": "b"}) == found.count_slots(here) == 0
    assert found.count_slots({"CPU": 8.0, "memory": 1e9}, zone) == 0
    shared = share(lanes=4, memory="2 GB")
    assert shared.engine.memory == 2 * 10**9
    assert shared.resources["memory"] == 2 * 10**9 // shared.trials
    gpu = share(gpus=1, accelerator_type="H100")
    assert gpu.labels == {"ray.io/accelerator-type": "H100"}


def test_an_engine_on_cpus_has_the_cores_of_the_spec():
    found = share(lanes=4, cpus=2)
    assert found.engine.resources == {"CPU": 2}
    assert found.count_slots({"CPU": 5.0}) == 2 * found.trials == 10


class TestADriverOfSeveralGpus:
    def choose(self, monkeypatch, engines, *, trials=64, replicates=1, bound=None, **resources):
        """Return the share that a driver settles on, with an engine for each of so many GPUs."""
        content = {"cpus": 1, "gpus": 1, "lanes": 32, **resources}
        driver = object.__new__(experiment.ExperimentDriver)
        driver.experiment = "e1"
        search = {"space": {"optimizer.lr": [0.1, 0.2]}}
        limits = {} if bound is None else {"limits": {"concurrency": bound}}
        given = spec(search, replicates=replicates, resources=content, **limits)
        driver.spec = ExperimentSpec.model_validate(given)
        driver.sweep = SimpleNamespace(left=trials)
        driver.share = share_of(driver.spec.resources, replicates, 32)
        slots = engines * driver.share.trials
        monkeypatch.setattr(experiment.capacity, "count_slots", lambda share: slots)
        driver._choose_lanes()
        return driver.share

    @pytest.mark.parametrize(
        ("trials", "engines", "members", "lanes"),
        [(64, 8, 8, 8), (64, 3, 22, 22), (1000, 8, 36, 32), (64, 1, 36, 32), (None, 8, 36, 32)],
    )
    def test_gives_each_its_part_of_the_trials(self, monkeypatch, trials, engines, members, lanes):
        share = self.choose(monkeypatch, engines, trials=trials)
        assert (share.trials, share.engine.lanes) == (members, lanes)
        assert share.resources["GPU"] == to_units(1 / members) / UNITS

    def test_counts_a_lane_for_each_replicate(self, monkeypatch):
        share = self.choose(monkeypatch, 4, trials=8, replicates=4)
        assert (share.trials, share.engine.lanes) == (2, 8)

    def test_counts_no_more_trials_than_run_at_once(self, monkeypatch):
        share = self.choose(monkeypatch, 4, bound=8)
        assert (share.trials, share.engine.lanes) == (2, 2)
