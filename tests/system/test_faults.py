"""Faults that end no process by themselves: a grid is finished exactly once all the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.error
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from helpers.grids import Grid
from helpers.recoveries import check_recovery
from helpers.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

STOPPED_SECONDS = float(os.environ.get("STOPPED_SECONDS", "60"))
FULL_SECONDS = SHORT_SECONDS = 30.0
GRID = Grid(trials=4, steps=200)

ROOM = 5 * 10**9
"""Bytes that may be taken beside what is taken already; a service with its trials takes less."""
BEYOND = 2 * 10**9
"""Bytes by which it is then more, also when Ray has ended all trials."""

HOG = """
import sys, time

taken = bytearray(b"x") * int(sys.argv[1])
print("all of it", flush=True)
time.sleep(600)
"""

CLOCK = """
import os, time

HOUR = 3600


def back(read, unit):
    return lambda: read() - (HOUR * unit if os.path.exists(os.environ["TOY_CLOCK"]) else 0)


time.time, time.time_ns = back(time.time, 1), back(time.time_ns, 10**9)
"""
"""Sets the clock of each Python process back once a file is there; the machine's is not ours."""


def end(service):
    service.stop()
    service.wait_until_alone()


@pytest.mark.parametrize(
    "names",
    [("trial", "fork server", "mlflow"), ("driver",), ("raylet",), ("gcs",), ("service",)],
    ids=" and ".join,
)
def test_processes_stand_still_for_a_minute(service, names):
    def stand_still() -> None:
        stopped = [process for name in names for process in service.find_part(name)]
        assert len(stopped) >= len(names)
        for process in stopped:
            process.suspend()
        time.sleep(STOPPED_SECONDS)
        for process in stopped:
            with suppress(psutil.NoSuchProcess):  # it was given up, and has a successor
                process.resume()

    fault = f"SIGSTOP of {' and '.join(names)}, {STOPPED_SECONDS:g} s"
    check_recovery(service, GRID, GRID.begin(service), fault, stand_still)
    end(service)


@pytest.mark.parametrize("name", ["gcs", "raylet"])
def test_requests_are_answered_while_ray_stands_still(service, name):
    id = GRID.begin(service)
    (process,) = service.find_part(name)
    process.suspend()
    try:
        wait_until(lambda: service.experiment(id)["notices"], lambda: service.get("/v1/cluster"))
        with ThreadPoolExecutor(8) as threads:
            found = list(threads.map(service.get, ["/v1/cluster"] * 8))
            assert service.get("/v1/experiments?limit=5")["items"]
        assert all("does not answer" in each["problem"] and each["nodes"] for each in found)
        assert service.post(GRID.spec())["notices"][0]["kind"] == "ray"
        with pytest.raises(urllib.error.HTTPError) as unready:
            service.get("/readyz")
        assert "does not answer, for" in json.load(unready.value)["checks"]["launcher"]["detail"]
    finally:
        process.resume()
    wait_until(lambda: not service.experiment(id)["notices"], lambda: service.get("/v1/cluster"))
    assert service.get("/v1/cluster")["problem"] is None
    assert service.wait(id)["state"] == "completed"
    end(service)


@contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """Mount a disk of 300 MB; where that is not allowed, the test is skipped."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=300m,mode=0700", "small", str(folder)]
    if (done := subprocess.run(command, capture_output=True, text=True)).returncode:
        pytest.skip(f"a disk of a given size cannot be mounted here: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(path: Path) -> None:
    """Write a file until the disk is full."""
    with suppress(OSError), path.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


def test_the_disk_of_the_home_folder_is_full_for_half_a_minute(service):
    ballast = service.folder / "home" / "ballast"

    def fill_for_a_while() -> None:
        fill(ballast)
        assert psutil.disk_usage(str(ballast.parent)).free == 0
        time.sleep(FULL_SECONDS)
        ballast.unlink()

    with small_disk(service.folder / "home"):
        service.env["EIGENSWEEP_LEAST_FREE_MB"] = "0"  # so that trials run into it
        fault = f"disk full, {FULL_SECONDS:g} s"
        check_recovery(service, GRID, GRID.begin(service), fault, fill_for_a_while)
        end(service)


def test_the_clock_is_set_back_by_an_hour(service):
    (service.folder / "clock").mkdir()
    (service.folder / "clock" / "sitecustomize.py").write_text(CLOCK)
    back = service.folder / "back"
    service.env["PYTHONPATH"] = f"{service.folder / 'clock'}:{service.env['PYTHONPATH']}"
    service.env["TOY_CLOCK"] = str(back)
    id = GRID.begin(service, limits={"wall_seconds": 900})
    before = service.experiment(id)
    check_recovery(service, GRID, id, "clock set back by an hour", back.touch)
    after = service.experiment(id)
    assert after["finished_at"] < before["started_at"], "the service sees the other clock"
    assert after["wall_seconds"] >= 0
    assert all(trial["seconds"] >= 0 for trial in service.trials(id))
    end(service)


def test_a_trial_that_takes_endless_memory_fails_alone(service):
    service.start()
    spec = {
        "task": GRID.spec()["task"],
        "model": {"name": "toy_hoard", "hidden_size": 4},
        "search": {"method": "grid", "space": {"model.megabytes": [0, 100, 1]}},
        "training": {"steps": 40, "evaluate_every": 40, "log_every": 5},
        "resources": {"memory": "900 MB"},
    }
    id = service.post(spec)["id"]
    assert service.wait(id)["state"] == "completed"
    first, greedy, last = service.trials(id)
    assert [first["state"], greedy["state"], last["state"]] == ["completed", "failed", "completed"]
    assert [t["attempt"] for t in (first, greedy, last)] == [1, 1, 1]
    assert greedy["error"].startswith("MemoryLimitError: trial 1 held ")
    assert "its limit was 0.90 GB" in greedy["error"]
    assert "resources.memory" in greedy["error"]
    end(service)


def test_the_node_has_no_memory_left_for_half_a_minute(service):
    """Another program takes it, and Ray ends trials, but no driver."""
    memory = psutil.virtual_memory()
    limit = memory.total - memory.available + ROOM
    if limit + BEYOND > 0.9 * memory.total:
        pytest.skip(f"this takes {(ROOM + BEYOND) / 1e9:.0f} GB of memory, and there is less")
    service.env["RAY_memory_usage_threshold"] = f"{limit / memory.total:.4f}"
    service.env["EIGENSWEEP_RETRIES"] = "0"

    def take_memory() -> None:
        now = psutil.virtual_memory()
        more = limit + BEYOND - (now.total - now.available)
        hog = subprocess.Popen([sys.executable, "-c", HOG, str(more)], stdout=subprocess.PIPE)
        try:
            assert hog.stdout is not None
            assert hog.stdout.readline() == b"all of it\n"
            time.sleep(SHORT_SECONDS)
        finally:
            hog.kill()
            hog.communicate()

    fault = f"memory of the node exhausted, {SHORT_SECONDS:g} s"
    id = GRID.begin(service)
    check_recovery(service, GRID, id, fault, take_memory)
    assert not [line for line in service.log.read_text().splitlines() if "driver died" in line]
    assert max(trial["attempt"] for trial in service.trials(id)) > 1, "Ray ended none"
    end(service)
