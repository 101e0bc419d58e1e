"""Measure how fast ended trials reach MLflow: runs a second, and what that costs.

`python -m bench.delivery` writes trials of one step that have ended into a record of its own, with
their curves, and starts MLflow's server as the service does, on SQLite. Then a tracker delivers
them, as a driver's does. The time runs from the tracker's start until the experiment's own run is
closed, which is the last one.
"""

from __future__ import annotations

import os
import resource
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from bench.overhead import one_step
from bench.report import add_json, new_parser, say, write
from eigensweep.results.seeds import summarise
from eigensweep.results.trial_result import ReplicateResult
from eigensweep.search_spaces.spec import ExperimentSpec
from eigensweep.service.process import ports
from eigensweep.service.process.mlflow_server import HOST, MlflowServer
from eigensweep.service.record.ledger import RecordLedger
from eigensweep.service.record.migrations import migrate
from eigensweep.service.record.record import Record
from eigensweep.store.checkpoints import Store, replicate_key
from eigensweep.store.commits.curves import CurvePoint
from eigensweep.workers.tracking.subject import make_subject
from eigensweep.workers.tracking.tracker import Tracker

FIRST_PORT = 5600
START_SECONDS = 60.0
METRICS = ("train/loss", "valid/cross_entropy", "valid/accuracy", "learning_rate", "grad_norm")


def end_trials(ledger: RecordLedger, spec: ExperimentSpec, store: Store, points: int) -> None:
    """Record every trial of the grid as completed, with a curve of so many points."""
    for number, point in enumerate(spec.space()):
        config = spec.trial(point)
        content, name = config.model_dump(mode="json"), config.content_hash()
        ledger.open(number, point.arm, dict(point.params), content, name)
        attempt = ledger.begin(number)
        key = replicate_key(ledger.experiment_id, number, config.seed)
        store.begin(key, attempt)
        values = dict.fromkeys(METRICS, 0.5)
        now = int(1000 * time.time())
        curve = [CurvePoint(step, values, now + step) for step in range(1, points + 1)]
        store.commit(key, attempt, points, {}, curve)
        scores = {"cross_entropy": 0.5, "accuracy": 0.5}
        seed = ReplicateResult(
            seed=config.seed, value=0.5, step=points, valid=scores, test=scores, seconds=1.0
        )
        ledger.finish(number, attempt, "completed", summarise([seed]))


@contextmanager
def mlflow_beside_us(folder: Path) -> Iterator[str]:
    """Yield the address of an MLflow server, started as the service starts it."""
    server = MlflowServer(folder, ports.find_free_port(HOST, FIRST_PORT, may_move=True))
    os.environ["MLFLOW_TRACKING_TOKEN"] = server.token
    server.start()
    try:
        deadline = time.monotonic() + START_SECONDS
        while not _answers(server.url):
            if time.monotonic() > deadline:
                raise TimeoutError(f"MLflow does not answer, see {server.log}")
            time.sleep(0.2)
        yield server.url
    finally:
        server.stop()


def _answers(url: str) -> bool:
    with suppress(urllib.error.URLError, OSError):
        return urllib.request.urlopen(f"{url}/health", timeout=5).status == 200
    return False


def deliver(trials: int, points: int, folder: Path) -> dict[str, Any]:
    """Return how long the delivery took, and the CPU seconds of the tracker and of MLflow."""
    database = f"sqlite:///{folder / 'record.db'}"
    migrate(database)
    record = Record(database)
    spec = ExperimentSpec.model_validate(one_step(trials, 0))
    row, _ = record.add(spec)
    claim = record.claim(row.id)
    assert claim is not None
    ledger = RecordLedger(database, row.id, claim.generation)
    storage = folder / "storage"
    end_trials(ledger, spec, Store(storage), points)
    ledger.end("completed")
    with mlflow_beside_us(folder / "mlflow") as url:
        subject = make_subject(row.id, spec, spec.objective_metric.better, row.owner)
        tracker = Tracker(url, subject, ledger, str(storage))
        entries = ledger.load()
        began, own = time.perf_counter(), time.process_time()
        for entry in entries:
            tracker.see(entry)
        tracker.close("completed", None, entries[0])
        tracker.start()
        tracker.wait()
        seconds, own = time.perf_counter() - began, time.process_time() - own
    if not all(entry.tracked for entry in ledger.load()):
        raise RuntimeError("not every trial was delivered")
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "trials": trials,
        "points": points,
        "seconds": seconds,
        "trials_a_second": trials / seconds,
        "tracker_cpu_ms_a_trial": 1e3 * own / trials,
        "mlflow_cpu_seconds_with_start": children.ru_utime + children.ru_stime,
    }


def main() -> None:
    """Measure, print, and write the numbers as JSON."""
    parser = new_parser(__doc__)
    parser.add_argument("--trials", type=int, default=500, help="default: %(default)s")
    parser.add_argument("--points", type=int, default=1, help="of each curve; default: %(default)s")
    add_json(parser, "delivery")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="eigensweep-bench-") as folder:
        found = deliver(given.trials, given.points, Path(folder))
    say(f"{given.trials} ended trials, all in MLflow after {found['seconds']:.1f} s: ")
    say(f"  {found['trials_a_second']:.1f} a second;")
    say(f"  the tracker took {found['tracker_cpu_ms_a_trial']:.1f} ms of CPU for each trial,")
    say(f"  MLflow {found['mlflow_cpu_seconds_with_start']:.1f} s for all, with its start")
    write(found, given.json)


if __name__ == "__main__":
    main()
