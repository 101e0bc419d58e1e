"""How many trials fit on a node, and what a trial asks Ray for so that all of them do."""

from __future__ import annotations

import pytest

from eigensweep.search_spaces.lanes import count_aboard
from eigensweep.search_spaces.sections import ResourcesConfig
from eigensweep.workers.engine.shares import UNITS, share_of


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
def test_the_trials_of_an_engine_fit_on_its_device_with_some_to_spare(lanes, replicates):
    found = share(replicates, lanes, cpus=1, gpus=1)
    training = max(1, lanes // replicates)
    assert found.trials == count_aboard(lanes, replicates) > training
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
