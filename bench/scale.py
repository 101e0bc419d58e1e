"""Measure what a driver costs a trial, with trials that sleep, and what 1,000 slots do.

`python -m bench.scale` drives one experiment in this process: Ray Tune's loop, the search, the
ledger in SQLite, the store, and the delivery to an MLflow server as the service starts it. Ray's
part is played (bench/played_ray.py), so that a machine of two cores has any number of slots.

It prints the processor time of the driver for each trial, tracking included; how it grows with the
number of trials, and the memory that the driver keeps of each; how far the slots were in use.
"""

from __future__ import annotations

import gc
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench.delivery import mlflow_beside_us
from bench.overhead import MODEL, TASK
from bench.played_ray import PlayedRay, played_ray
from bench.report import add_json, new_parser, say, table, write
from eigensweep.search_spaces.spec import ExperimentSpec
from eigensweep.service.record.ledger import RecordLedger
from eigensweep.service.record.migrations import migrate
from eigensweep.service.record.record import Record
from eigensweep.workers.driver.experiment import run_experiment
from eigensweep.workers.driver.searcher import LIVE
from eigensweep.workers.shared.messages import DriverOptions
from eigensweep.workers.trial.memory import private_bytes

LOOKS = 10
"""How often memory and time are noted on the way."""


def sleepers(trials: int, method: str, reports: int) -> dict[str, Any]:
    """Return a spec of so many trials, each of which reports so often."""
    return {
        "name": "sleepers",
        "task": TASK,
        "model": MODEL,
        "search": {
            "method": method,
            "trials": trials,
            "space": {
                "optimizer.lr": {"low": 1e-5, "high": 1.0, "log": True},
                "optimizer.weight_decay": {"low": 1e-9, "high": 0.5, "log": True},
            },
        },
        "training": {"steps": 10 * reports, "evaluate_every": 10, "log_every": 10},
        "scheduler": {"name": "none", "rung_every": 10},
    }


class Watch:
    """Notes time and memory of this process whenever so many more trials have ended."""

    def __init__(self, ray: PlayedRay, every: int) -> None:
        self._ray, self._every, self._over = ray, every, threading.Event()
        self.rows: list[dict[str, float]] = []
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(0.1):
            for live in list(LIVE.values()):
                ended = len(live.sweep.entries) - live.sweep.running
                if ended >= self._every * (len(self.rows) + 1):
                    self.note(ended)

    def note(self, ended: int) -> None:
        gc.collect()
        self.rows.append(
            {
                "ended": ended,
                "driver_seconds": time.process_time() - self._ray.spent,
                "wall_seconds": time.monotonic(),
                "mb": (private_bytes() or 0) / 1e6,
            }
        )


def drive(
    trials: int, slots: int, seconds: float, method: str, reports: int, tracks: bool, folder: Path
) -> dict[str, Any]:
    """Return what the driver of one experiment takes."""
    database = f"sqlite:///{folder / 'record.db'}"
    migrate(database)
    record = Record(database)
    spec = ExperimentSpec.model_validate(sleepers(trials, method, reports))
    row, _ = record.add(spec)
    claim = record.claim(row.id)
    assert claim is not None
    ledger = RecordLedger(database, row.id, claim.generation)
    with ExitStack() as stack:
        url = stack.enter_context(mlflow_beside_us(folder / "mlflow")) if tracks else None
        ray = stack.enter_context(played_ray(slots, seconds))
        storage, optuna = str(folder / "storage"), str(folder / "optuna")
        options = DriverOptions(storage=storage, optuna=optuna, mlflow_uri=url)
        watch = Watch(ray, max(1, trials // LOOKS))
        stack.callback(watch.stop)
        watch.note(0)
        run_experiment(row.id, spec.model_dump(mode="json"), ledger, options)
        watch.note(trials)
    states = {each.state for each in ledger.load()}
    if states != {"completed"}:
        raise RuntimeError(f"not every trial was completed: {states}")
    return summarize(trials, slots, seconds, watch.rows)


def summarize(
    trials: int, slots: int, seconds: float, rows: list[dict[str, float]]
) -> dict[str, Any]:
    """Return the costs of a trial, over the whole run and in its last part."""
    first, early, late, last = rows[0], rows[1], rows[-2], rows[-1]
    wall = last["wall_seconds"] - first["wall_seconds"]
    between = late["ended"] - early["ended"]
    return {
        "trials": trials,
        "slots": slots,
        "seconds": seconds,
        "ms_a_trial": 1e3 * (last["driver_seconds"] - first["driver_seconds"]) / trials,
        "last_ms_a_trial": 1e3
        * (late["driver_seconds"] - rows[-3]["driver_seconds"])
        / (late["ended"] - rows[-3]["ended"]),
        "kb_a_trial": 1e3 * (late["mb"] - early["mb"]) / between,
        "mb": late["mb"],
        "wall_seconds": wall,
        "overhead": wall / (trials * seconds / slots) - 1 if seconds else None,
        "rows": rows,
    }


HEADINGS = {
    "trials": "trials",
    "slots": "slots",
    "seconds": "s each",
    "ms_a_trial": "driver's ms a trial",
    "last_ms_a_trial": "of the last tenth",
    "kb_a_trial": "KB kept of each",
    "mb": "MB",
    "wall_seconds": "s in all",
    "overhead": "overhead",
}


def main() -> None:
    """Measure, print a table, and write the numbers as JSON."""
    parser = new_parser(__doc__)
    parser.add_argument("--trials", type=int, nargs="+", default=[2000], help="default: 2000")
    parser.add_argument("--slots", type=int, default=16, help="default: %(default)s")
    parser.add_argument("--seconds", type=float, default=0, help="of a trial; default: 0")
    parser.add_argument("--reports", type=int, default=1, help="of a trial; default: %(default)s")
    parser.add_argument("--method", default="random", help="of search; default: %(default)s")
    parser.add_argument("--no-mlflow", action="store_true", help="deliver nothing")
    add_json(parser, "scale")
    given = parser.parse_args()
    found = []
    for trials in given.trials:
        with tempfile.TemporaryDirectory(prefix="eigensweep-bench-") as folder:
            found.append(
                drive(
                    trials,
                    given.slots,
                    given.seconds,
                    given.method,
                    given.reports,
                    not given.no_mlflow,
                    Path(folder),
                )
            )
    say(table(found, HEADINGS))
    write({"runs": found}, given.json)


if __name__ == "__main__":
    main()
