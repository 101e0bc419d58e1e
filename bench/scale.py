"""Measure what a driver costs a trial, with trials that sleep, and what 1,000 slots do.

`python -m bench.scale` drives one experiment in this process: Ray Tune's loop, the search, the
ledger in SQLite, the store, and the delivery to an MLflow server as the service starts it. Ray's
part is played (bench/played_ray.py), so that a machine of two cores has any number of slots.

It prints the processor time of the driver for each trial, tracking included, and the memory that
it keeps of each, for the whole run and for each tenth of it: so one sees whether they grow. Then it
lets a new driver take the experiment up from its ledger, in a process of its own.
"""

from __future__ import annotations

import gc
import math
import multiprocessing
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from bench.delivery import mlflow_beside_us
from bench.looks import look_every
from bench.overhead import MODEL, TASK
from bench.played_ray import PlayedRay, played_ray
from bench.report import add_json, new_parser, say, table, write
from eigensweep.protocol.messages import DriverOptions
from eigensweep.search_spaces.spec import ExperimentSpec
from eigensweep.service.record.ledger import RecordLedger
from eigensweep.service.record.migrations import migrate
from eigensweep.service.record.record import Record
from eigensweep.service.record.sql.database import read
from eigensweep.service.record.sql.tables import AttemptRow, TrialRow
from eigensweep.training.memory import private_bytes
from eigensweep.workers.driver.experiment import ExperimentDriver

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


class Notes:
    """Time and memory of this process, noted whenever so many more trials have ended."""

    def __init__(self, ray: PlayedRay, every: int) -> None:
        self._ray, self._every = ray, every
        self._own = 0.0
        """Processor seconds that the looks themselves took."""
        self.rows: list[dict[str, float]] = []
        self.driver: ExperimentDriver | None = None

    def look(self) -> None:
        """Note time and memory if enough trials have ended since the last time."""
        if self.driver is None:
            return
        ended = len(self.driver.sweep.entries) - self.driver.sweep.running
        if ended >= self.rows[-1]["ended"] + self._every:
            self.note(ended)

    def note(self, ended: int) -> None:
        """Note both now; collecting garbage takes a quarter of a second, which does not count."""
        began = time.thread_time()
        gc.collect()
        self._own += time.thread_time() - began
        self.rows.append(
            {
                "ended": ended,
                "driver_seconds": time.process_time() - self._ray.spent - self._own,
                "wall_seconds": time.monotonic(),
                "mb": (private_bytes() or 0) / 1e6,
            }
        )


def drive(
    trials: int,
    slots: int,
    seconds: float,
    method: str,
    reports: int,
    tracks: bool,
    folder: Path,
    again: bool = False,
) -> dict[str, Any]:
    """Return what the driver of one experiment takes; with `again`, a driver after it, too."""
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
        options = DriverOptions(storage=str(folder / "storage"), mlflow_uri=url)
        notes = Notes(ray, max(1, trials // LOOKS))
        notes.note(0)
        stack.enter_context(look_every(0.1, notes.look))
        notes.driver = ExperimentDriver(row.id, spec, ledger, options)
        notes.driver.run()
        notes.note(trials)
    states = {each.state for each in ledger.walk()}
    if states != {"completed"}:
        raise RuntimeError(f"not every trial was completed: {states}")
    found = summarize(trials, slots, seconds, notes.rows)
    starts, last_end = read_times(database)
    found["trials_seconds"] = last_end - starts[0][0]
    if again:
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, mp_context=context) as pool:
            found |= pool.submit(take_up, row.id, spec, ledger, options).result()
    return found


def take_up(
    experiment: str, spec: ExperimentSpec, ledger: RecordLedger, options: DriverOptions
) -> dict[str, float]:
    """Return what it takes a new driver to take up an experiment, before it trains anything."""
    ledger.resume_state()  # opens the database
    options = replace(options, mlflow_uri=None)
    memory, began = private_bytes() or 0, time.process_time()
    driver = ExperimentDriver(experiment, spec, ledger, options)
    seconds = time.process_time() - began
    gc.collect()
    kept = (private_bytes() or 0) - memory
    trials = len(driver.sweep.entries)
    return {"again_ms_a_trial": 1e3 * seconds / trials, "again_kb_a_trial": kept / 1e3 / trials}


def read_times(url: str) -> tuple[list[tuple[float, int]], float]:
    """Return when each attempt of a record began, and its process, in order; and the last end.

    Processes are their numbers on the machine; 0 where an attempt did not say.
    """

    def work(session: Session) -> tuple[list[tuple[float, int]], float]:
        rows = session.execute(select(AttemptRow.started_at, AttemptRow.place)).all()
        starts = sorted((began, int((place or {}).get("pid", 0))) for began, place in rows)
        return starts, session.scalars(select(func.max(TrialRow.ended_at))).one() or 0.0

    return read(url, work)


def summarize(
    trials: int, slots: int, seconds: float, rows: list[dict[str, float]]
) -> dict[str, Any]:
    """Return the costs of a trial, from the first tenth of the run to the last one.

    What a driver takes to start, to draw its report and to end stands beside them: it is the same
    for few trials and for many. A run that is over before two looks at it has no costs: `nan`.
    """
    first, early, late, last = rows[0], rows[1], rows[-2], rows[-1]
    most = compare(early, late)
    return {
        "trials": trials,
        "slots": slots,
        "seconds": seconds,
        "ms_a_trial": most["ms_a_trial"],
        "last_ms_a_trial": compare(rows[max(0, len(rows) - 3)], late)["ms_a_trial"],
        "once_seconds": last["driver_seconds"]
        - first["driver_seconds"]
        - trials * most["ms_a_trial"] / 1e3,
        "kb_a_trial": most["kb_a_trial"],
        "mb": late["mb"],
        "wall_seconds": last["wall_seconds"] - first["wall_seconds"],
        "rows": rows,
        "points": [compare(before, after) for before, after in pairwise(rows[:-1])],
    }


def compare(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    """Return the costs of a trial between two looks."""
    names = ("ended", "driver_seconds", "mb", "wall_seconds")
    ended, seconds, mb, wall_seconds = (after[name] - before[name] for name in names)
    # A run of few trials may be over before the second look, or have one look only.
    ended, wall_seconds = ended or math.nan, wall_seconds or math.nan
    return {
        "ended": after["ended"],
        "ms_a_trial": 1e3 * seconds / ended,
        "kb_a_trial": 1e3 * mb / ended,
        "mb": after["mb"],
        "trials_a_second": ended / wall_seconds,
    }


HEADINGS = {
    "trials": "trials",
    "slots": "slots",
    "seconds": "s each",
    "ms_a_trial": "driver's ms a trial",
    "last_ms_a_trial": "of the last tenth",
    "once_seconds": "s of it once",
    "kb_a_trial": "KB kept of each",
    "mb": "MB",
    "wall_seconds": "s in all",
    "trials_seconds": "s from first start to last end",
    "again_ms_a_trial": "a new driver's ms a trial",
    "again_kb_a_trial": "and KB",
}

POINTS = {
    "ended": "trials that have ended",
    "ms_a_trial": "driver's ms a trial since then",
    "kb_a_trial": "KB kept of each",
    "mb": "MB",
    "trials_a_second": "trials a second",
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
                    again=True,
                )
            )
        say(table(found[-1]["points"], POINTS))
    say(table(found, HEADINGS))
    write({"runs": found}, given.json)


if __name__ == "__main__":
    main()
