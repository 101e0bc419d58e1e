"""Measure how slots are used: trials that sleep, on nodes that are processes here.

`python -m bench.slots` prints one table, in about half an hour. `--quick` tries it out in less than
two minutes, and `--only` chooses one of its parts:

- `nodes`: 64 trials of 8 s on a cluster with a head without CPUs and 8, 4, 2 and 1 nodes of one
  slot, which are taken away between the runs;
- `slots`: 1,000 trials of one second on one node of 16 slots;
- `package`: the same for a model of another package, whose trials have a new process each;
- `played`: 1,000 slots of one-minute trials, with Ray's part played (bench/played_ray.py).

All but the last have a real Ray, a real driver and real trials' processes. All have the ledger in
SQLite and MLflow's server. The ideal is the time that the trials sleep, divided by the slots. Wall
time is from the first trial's start to the last one's end; the launch of the driver, and the
delivery after the last trial, stand beside it. So does the use of the slots from when the last
one had a process that trained: 16 processes start at once on few processors.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psutil  # type: ignore[import-untyped]

from bench.delivery import mlflow_beside_us
from bench.looks import look_every
from bench.overhead import TASK
from bench.report import add_json, add_quick, new_parser, say, table, write
from eigensweep.workers.driver.process.driver_order import TITLE

PARTS: Final = ("nodes", "slots", "package", "played")
ROOT = Path(__file__).parents[1]
TOYS = ROOT / "tests" / "plugins"
"""The package of the tests' models, among them `toy_slow`, which sleeps in each forward pass."""
OURS = "bench.toy_as_ours"
PASSES = 4
"""Forward passes of a trial of one step: the step itself, and its evaluations."""
STORE_BYTES = 80 * 2**20


def sleepers(trials: int, seconds: float) -> dict[str, Any]:
    """Return a spec of trials that sleep so many seconds each."""
    return {
        "name": "sleepers",
        "task": TASK | {"valid_size": 4, "test_size": 4},
        "model": {"name": "toy_slow", "hidden_size": 4, "seconds": seconds / PASSES},
        "search": {"space": {"model.shade": {"low": 0, "high": trials - 1, "step": 1}}},
        "training": {"steps": 1, "evaluate_every": 1, "log_every": 1},
    }


@dataclass
class DriverUse:
    """Processor time and memory of the driver's process, which ends before it can be asked."""

    seconds: float = 0.0
    mb: float = 0.0
    _process: psutil.Process | None = None

    def look(self) -> None:
        """Look for the process, and ask it."""
        with suppress(psutil.Error):
            self._process = self._process or _find_driver()
            if self._process is not None:
                times = self._process.cpu_times()
                self.seconds = max(self.seconds, times.user + times.system)
                self.mb = max(self.mb, self._process.memory_full_info().uss / 1e6)


def _find_driver() -> psutil.Process | None:
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if process.cmdline()[0].startswith(TITLE):
                return process
    return None


def drive(
    cluster: Any,
    url: str,
    trials: int,
    slots: int,
    seconds: float,
    preload: Sequence[str] = (OURS,),
) -> dict[str, Any]:
    """Return how long an experiment takes on a cluster of so many slots.

    The driver has what is in `preload` loaded.
    """
    from bench.scale import read_times
    from eigensweep.protocol.messages import DriverOptions
    from eigensweep.search_spaces.spec import ExperimentSpec
    from eigensweep.service.record.ledger import RecordLedger
    from eigensweep.service.record.migrations import migrate
    from eigensweep.service.record.record import Record
    from eigensweep.workers.cluster.drivers import Drivers
    from eigensweep.workers.driver.process.driver_order import DriverOrder

    with tempfile.TemporaryDirectory(prefix="eigensweep-bench-") as folder:
        place = f"sqlite:///{folder}/record.db"
        migrate(place)
        record = Record(place)
        spec = ExperimentSpec.model_validate(sleepers(trials, seconds))
        row, _ = record.add(spec)
        claim = record.claim(row.id)
        assert claim is not None
        ledger = RecordLedger(place, row.id, claim.generation)
        options = DriverOptions(
            storage=f"{folder}/storage",
            mlflow_uri=url,
            mlflow_token=os.environ["MLFLOW_TRACKING_TOKEN"],
        )
        order = DriverOrder(
            row.id, spec.model_dump(mode="json"), ledger, options, cluster.place.address
        )
        drivers = Drivers([RecordLedger.__module__, *preload])
        drivers.start()
        use, began = DriverUse(), time.time()
        with look_every(0.5, use.look):
            driver = drivers.launch(order, f"{cluster.place.logs}/driver-{row.id}.log")
            while (state := driver.state()) == "running":
                time.sleep(0.02)
            whole = time.time() - began
        drivers.stop()
        if state != "ended":
            raise RuntimeError(f"the driver {state}: {driver.death}")
        ends = {each.state for each in ledger.load()}
        if ends != {"completed"}:
            raise RuntimeError(f"not every trial was completed: {ends}")
        starts, last_end = read_times(place)
    ideal, wall = trials * seconds / slots, last_end - starts[0][0]
    return {
        "slots": slots,
        "trials": trials,
        "seconds": seconds,
        "ideal": ideal,
        "wall": wall,
        "of_ideal": ideal / wall,
        **measure_full(starts, last_end, slots, seconds),
        "whole": whole,
        "driver_ms": 1e3 * use.seconds / trials,
        "driver_mb": use.mb,
    }


def measure_full(
    starts: Sequence[tuple[float, int]], last_end: float, slots: int, seconds: float
) -> dict[str, float]:
    """Return when each slot had a process that trained, and how well slots were used since.

    Until then processes start, which takes processors that nodes here do not have. A trial that
    began before counts with the part of it that was left.

    Args:
        starts: when each trial began, and its process, in order.
        last_end: when the last trial ended.
        slots: number of slots.
        seconds: length of a trial.

    Raises:
        RuntimeError: if fewer processes trained than there are slots.
    """
    first: dict[int, float] = {}
    for began, pid in starts:
        first.setdefault(pid, began)
    if len(first) < slots:
        raise RuntimeError(f"only {len(first)} of {slots} slots had a process that trained")
    full = sorted(first.values())[slots - 1]
    left = sum(min(seconds, max(0.0, began + seconds - full)) for began, _ in starts)
    return {
        "filled_after": full - starts[0][0],
        "of_ideal_then": left / slots / (last_end - full),
    }


HEADINGS = {
    "part": "",
    "slots": "slots",
    "trials": "trials",
    "seconds": "s each",
    "ideal": "ideal s",
    "wall": "first start to last end",
    "of_ideal": "of ideal",
    "filled_after": "all processes train after s",
    "of_ideal_then": "of ideal from then on",
    "whole": "launch to delivered",
    "driver_ms": "driver's CPU ms a trial",
    "driver_mb": "driver's MB",
}


@dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    nodes: tuple[int, ...] = (8, 4, 2, 1)
    node_trials: int = 64
    node_seconds: float = 8.0
    slots: int = 16
    slot_trials: int = 1000
    slot_seconds: float = 1.0
    played: int = 1000
    played_trials: int = 3000
    played_seconds: float = 60.0


QUICK: Final = Sizes((2, 1), 4, 1.0, 2, 8, 0.5, 20, 100, 2.0)


def measure_nodes(sizes: Sizes, url: str) -> list[dict[str, Any]]:
    """Return a row for each number of one-slot nodes, the largest first."""
    from ray.cluster_utils import Cluster

    from eigensweep.workers.cluster.ray_cluster import RayCluster

    with ExitStack() as stack:
        head = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": STORE_BYTES}
        make: Any = Cluster
        nodes = make(initialize_head=True, head_node_args=head)
        stack.callback(nodes.shutdown)
        most = max(sizes.nodes)
        living = [nodes.add_node(num_cpus=1, object_store_memory=STORE_BYTES) for _ in range(most)]
        cluster = RayCluster.start(nodes.address)
        stack.callback(cluster.stop)
        rows = []
        for count in sorted(sizes.nodes, reverse=True):
            while len(living) > count:
                nodes.remove_node(living.pop())
            nodes.wait_for_nodes()
            rows.append(drive(cluster, url, sizes.node_trials, count, sizes.node_seconds))
        return rows


def measure_slots(sizes: Sizes, url: str, preload: Sequence[str]) -> list[dict[str, Any]]:
    """Return a row for one node of many slots, by a driver that has loaded `preload`."""
    from eigensweep.workers.cluster.ray_cluster import RayCluster

    cluster = RayCluster.start(num_cpus=sizes.slots)
    try:
        return [drive(cluster, url, sizes.slot_trials, sizes.slots, sizes.slot_seconds, preload)]
    finally:
        cluster.stop()


def measure_played(sizes: Sizes) -> list[dict[str, Any]]:
    """Return a row for very many slots, whose part is played."""
    from bench import scale

    trials, slots, seconds = sizes.played_trials, sizes.played, sizes.played_seconds
    with tempfile.TemporaryDirectory(prefix="eigensweep-bench-") as folder:
        found = scale.drive(trials, slots, seconds, "random", 1, True, Path(folder))
    ideal = trials * seconds / slots
    return [
        {
            "slots": slots,
            "trials": trials,
            "seconds": seconds,
            "ideal": ideal,
            "wall": found["trials_seconds"],
            "of_ideal": ideal / found["trials_seconds"],
            "whole": found["wall_seconds"],
            "driver_ms": found["ms_a_trial"],
            "driver_mb": found["mb"],
        }
    ]


def measure(part: str, sizes: Sizes) -> list[dict[str, Any]]:
    """Return the rows of one part. A process measures one: Ray starts once in a process."""
    if part == "played":
        return measure_played(sizes)
    with (
        tempfile.TemporaryDirectory(prefix="eigensweep-mlflow-") as folder,
        mlflow_beside_us(Path(folder)) as url,
    ):
        if part == "nodes":
            return measure_nodes(sizes, url)
        return measure_slots(sizes, url, [OURS] if part == "slots" else [])


def measure_apart(part: str, quick: bool) -> list[dict[str, Any]]:
    """Return the rows of one part, measured in a process of its own."""
    paths = [str(ROOT), str(TOYS), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {
        "PYTHONPATH": ":".join(filter(None, paths)),
        "OMP_NUM_THREADS": "1",
        "RAY_worker_niceness": "0",
    }
    with tempfile.TemporaryDirectory(prefix="eigensweep-slots-") as folder:
        numbers = Path(folder) / "rows.json"
        command = [sys.executable, "-m", "bench.slots", "--inside", part, f"--json={numbers}"]
        subprocess.run([*command, *(["--quick"] * quick)], check=True, env=environment)
        rows: list[dict[str, Any]] = json.loads(numbers.read_text())["rows"]
    return [{"part": part, **row} for row in rows]


def main() -> None:
    """Measure, print a table, and write the numbers as JSON."""
    parser = new_parser(__doc__)
    add_quick(parser)
    parser.add_argument("--only", choices=PARTS, help="measure this part; default: all")
    parser.add_argument("--inside", choices=PARTS, help=argparse.SUPPRESS)
    add_json(parser, "slots")
    given = parser.parse_args()
    if given.inside:
        write({"rows": measure(given.inside, QUICK if given.quick else Sizes())}, given.json)
        return
    rows = []
    for part in [given.only] if given.only else PARTS:
        found = measure_apart(part, given.quick)
        say(table(found, HEADINGS))
        rows += found
    say(table(rows, HEADINGS))
    write({"rows": rows}, given.json)


if __name__ == "__main__":
    main()
