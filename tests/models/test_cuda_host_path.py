"""The host path of the kernels, from PyTorch to the driver, with a driver that stands in."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
CELLS = ("lstm", "lstm diagonal", "lstm full", "gru", "gru cho", "goru", "cornn", "lem")


@pytest.fixture(scope="module")
def answers(kernels_folder):
    """Return why each scene of `stand_in.py` failed; its process has the driver that stands in."""
    pytest.importorskip("cuda.bindings.driver")
    folders = [HERE, HERE.parent, HERE.parent / "helpers", HERE.parents[1]]
    path = os.pathsep.join([*map(str, folders), os.environ.get("PYTHONPATH", "")])
    run = subprocess.run(
        [sys.executable, str(HERE / "stand_in.py"), str(kernels_folder)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return json.loads(run.stdout.splitlines()[-1])


@pytest.mark.parametrize("scene", ["scan", "scan in clusters", "scan of pairs", *CELLS, "lanes"])
@pytest.mark.quick_cases(1)
def test_values_and_gradients_are_those_of_the_reference(answers, scene):
    assert answers[scene] is None


@pytest.mark.parametrize("scene", ["stream", "clusters", "two devices"])
def test_launches_know_stream_device_and_room(answers, scene):
    assert answers[scene] is None


@pytest.mark.parametrize(
    "call",
    [
        *("cuDevicePrimaryCtxRetain", "cuModuleLoadData", "cuModuleGetFunction"),
        *("cuFuncSetAttribute", "cuLaunchKernel"),
    ],
)
def test_no_memory_in_any_call_is_no_memory_and_goes_well_later(answers, call):
    assert answers[f"no memory in {call}"] is None


@pytest.mark.parametrize("scene", ["a dead device", "a driver that refuses a kernel"])
def test_a_device_that_fails_is_told_from_one_that_refuses(answers, scene):
    assert answers[scene] is None
