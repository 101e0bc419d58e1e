"""Measure how a real Ray uses its slots: trials that sleep, on nodes that are processes here.

`python -m bench.slots --nodes 8 4 2 1 --trials 64 --seconds 8` starts a cluster with a head without
CPUs and so many nodes of one slot, and takes nodes away between the runs. `--slots 16` has one node
with so many slots instead. Each experiment has a real driver, real trials' processes, the ledger in
SQLite, and MLflow's server.

The ideal is the time that the trials sleep, divided by the slots. It prints the wall time from the
first trial's start to the last one's end, and from the launch of the driver to its end, with all
delivered; and the processor time of the driver's process for each trial.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]

from bench.delivery import mlflow_beside_us
from bench.overhead import TASK
from bench.report import add_json, new_parser, say, table, write

ROOT = Path(__file__).parents[1]
TOYS = ROOT / "tests" / "plugins"
"""The package of the tests' models, among them `toy_slow`, which sleeps in each forward pass."""
PASSES = 4
"""Forward passes of a trial of one step: the step itself, and its evaluations."""
STORE_BYTES = 80 * 2**20


def sleepers(trials: int, seconds: float) -> dict[str, Any]:
    """Return a spec of trials that sleep so many seconds each."""
    return {
        "name": "sleepers",
        "task": TASK | {"valid_size": 4, "test_size": 4},
        "model": {"name": "toy_slow", "hidden_size": 4, "seconds": seconds / PASSES},
        "search": {"space": {"model.shade": list(range(trials))}},
        "training": {"steps": 1, "evaluate_every": 1, "log_every": 1},
    }


class CpuWatch:
    """Notes the processor time of the driver's process, which ends before it can be asked."""

    def __init__(self) -> None:
        self.seconds, self.mb = 0.0, 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        found: psutil.Process | None = None
        while not self._over.wait(0.5):
            with suppress(psutil.Error):
                found = found or _find_driver()
                if found is not None:
                    times = found.cpu_times()
                    self.seconds = max(self.seconds, times.user + times.system)
                    self.mb = max(self.mb, found.memory_full_info().uss / 1e6)


def _find_driver() -> psutil.Process | None:
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if process.cmdline()[:1] == ["ray::DriverActor.run"] or (
                "DriverActor" in " ".join(process.cmdline()[:1])
            ):
                return process
    return None


def drive(cluster: Any, url: str, trials: int, slots: int, seconds: float) -> dict[str, Any]:
    """Return how long an experiment takes on a cluster of so many slots."""
    from sqlalchemy import func, select

    from eigensweep.search_spaces.spec import ExperimentSpec
    from eigensweep.service.record import database
    from eigensweep.service.record.ledger import RecordLedger
    from eigensweep.service.record.migrations import migrate
    from eigensweep.service.record.record import Record
    from eigensweep.service.record.tables import Attempt, Trial
    from eigensweep.workers.shared.messages import DriverOptions

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
            optuna=f"{folder}/optuna",
            mlflow_uri=url,
            mlflow_token=os.environ["MLFLOW_TRACKING_TOKEN"],
        )
        watch, began = CpuWatch(), time.time()
        handle = cluster.launch(row.id, spec.model_dump(mode="json"), ledger, options)
        state = handle.wait()
        whole = time.time() - began
        watch.stop()
        if state != "ended":
            raise RuntimeError(f"the driver {state}: {handle.error}")
        ends = {each.state for each in ledger.load()}
        if ends != {"completed"}:
            raise RuntimeError(f"not every trial was completed: {ends}")
        first = database.read(place, lambda s: s.scalar(select(func.min(Attempt.started_at))))
        last = database.read(place, lambda s: s.scalar(select(func.max(Trial.ended_at))))
        starts = database.read(
            place, lambda s: sorted(s.scalars(select(Attempt.started_at).order_by("started_at")))
        )
    ideal, wall = trials * seconds / slots, float(last or 0) - float(first or 0)
    full = starts[slots - 1]
    left = trials * seconds - sum(min(seconds, full - start) for start in starts[: slots - 1])
    return {
        "slots": slots,
        "trials": trials,
        "seconds": seconds,
        "ideal": ideal,
        "wall": wall,
        "of_ideal": ideal / wall,
        "filled_after": full - starts[0],
        "of_ideal_then": left / slots / (float(last or 0) - full),
        "whole": whole,
        "driver_ms": 1e3 * watch.seconds / trials,
        "driver_mb": watch.mb,
    }


HEADINGS = {
    "slots": "slots",
    "trials": "trials",
    "seconds": "s each",
    "ideal": "ideal s",
    "wall": "first start to last end",
    "of_ideal": "of ideal",
    "filled_after": "all slots in use after s",
    "of_ideal_then": "of ideal from then on",
    "whole": "launch to delivered",
    "driver_ms": "driver's CPU ms a trial",
    "driver_mb": "driver's MB",
}


def measure_nodes(counts: list[int], trials: int, seconds: float, url: str) -> list[dict[str, Any]]:
    """Return a row for each number of one-slot nodes, the largest first."""
    from ray.cluster_utils import Cluster

    from eigensweep.workers.cluster.ray_cluster import RayCluster

    with ExitStack() as stack:
        head = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": STORE_BYTES}
        make: Any = Cluster
        nodes = make(initialize_head=True, head_node_args=head)
        stack.callback(nodes.shutdown)
        most = max(counts)
        living = [nodes.add_node(num_cpus=1, object_store_memory=STORE_BYTES) for _ in range(most)]
        cluster = RayCluster.start(nodes.address)
        stack.callback(cluster.stop)
        rows = []
        for count in sorted(counts, reverse=True):
            while len(living) > count:
                nodes.remove_node(living.pop())
            nodes.wait_for_nodes()
            rows.append(drive(cluster, url, trials, count, seconds))
            say(table([rows[-1]], HEADINGS))
        return rows


def measure_slots(slots: int, trials: int, seconds: float, url: str) -> list[dict[str, Any]]:
    """Return a row for one node of so many slots."""
    from eigensweep.workers.cluster.ray_cluster import RayCluster

    cluster = RayCluster.start(num_cpus=slots)
    try:
        return [drive(cluster, url, trials, slots, seconds)]
    finally:
        cluster.stop()


def main() -> None:
    """Measure, print a table, and write the numbers as JSON."""
    parser = new_parser(__doc__)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--nodes", type=int, nargs="+", help="numbers of nodes with one slot")
    where.add_argument("--slots", type=int, help="slots of a single node")
    parser.add_argument("--trials", type=int, default=64, help="default: %(default)s")
    parser.add_argument("--seconds", type=float, default=8, help="of a trial; default: %(default)s")
    add_json(parser, "slots")
    given = parser.parse_args()
    if importlib.util.find_spec("eigensweep_toys") is None:
        path = f"{ROOT}:{TOYS}"
        own = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "RAY_worker_niceness": "0"}
        os.execve(sys.executable, [sys.executable, "-m", "bench.slots", *sys.argv[1:]], own)
    with (
        tempfile.TemporaryDirectory(prefix="eigensweep-mlflow-") as folder,
        mlflow_beside_us(Path(folder)) as url,
    ):
        if given.nodes:
            rows = measure_nodes(given.nodes, given.trials, given.seconds, url)
        else:
            rows = measure_slots(given.slots, given.trials, given.seconds, url)
    say(table(rows, HEADINGS))
    write({"rows": rows}, given.json)


if __name__ == "__main__":
    main()
