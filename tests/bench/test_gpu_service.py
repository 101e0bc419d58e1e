"""The sweep through the service on one GPU: its spec, and what counts as a fault."""

from __future__ import annotations

import pytest

from bench.gpu_service import TRIALS, find_faults, make_spec
from eigensweep.search_spaces.checks.checks import check_spec
from eigensweep.search_spaces.spec import ExperimentSpec

WELL = {
    "state": "completed",
    "trials": {"completed": 5, "pruned": TRIALS - 5},
    "best": 0.1,
    "baseline": 0.2,
    "engines": [{"name": "engine-1"}],
}


@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize(("device", "lanes"), [("cpu", 8), ("cuda", "auto")])
def test_the_sweep_is_one_that_the_service_takes(device, lanes, quick):
    spec = ExperimentSpec.model_validate(make_spec(device, lanes, quick=quick))

    check_spec(spec)

    assert spec.resources.lanes == lanes
    assert spec.resources.gpus == (device == "cuda")
    assert spec.search.trials == TRIALS


def test_a_sweep_that_went_well_has_no_faults():
    assert find_faults(WELL) == []


@pytest.mark.parametrize(
    "change",
    [
        {"state": "failed"},
        {"trials": {"completed": TRIALS - 1, "failed": 1}},
        {"trials": {"completed": TRIALS - 1}},
        {"best": 0.2},
        {"engines": []},
    ],
)
def test_each_fault_is_named(change):
    assert len(find_faults(WELL | change)) == 1
