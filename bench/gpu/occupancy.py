"""Occupied lanes over time while ASHA stops trials, with refill and without.

Trials of the copying task differ in their learning rates. An engine trains them, and a scheduler
decides at every rung, some time after the report, as Ray Tune's takes. With refill, a new trial is
there whenever one ends, and a few more wait. Without, as many trials as there are lanes begin
together, and the next ones begin when all of those have ended.

`python -m bench.gpu.occupancy --plot docs/lane-occupancy` runs it on CPU lanes and draws it.
"""

from __future__ import annotations

import math
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from bench.gpu import pictures
from bench.gpu.sections import Notes, Plan
from bench.report import add_json, add_quick, describe, new_parser, say, table, write
from bench.rounds import settle
from eigensweep.protocol.code import own_code
from eigensweep.protocol.messages import Order
from eigensweep.results.ranking import OBJECTIVE
from eigensweep.search_spaces.trial import TrialConfig
from eigensweep.training.lanes.engine.engine import Engine
from eigensweep.training.lanes.engine.occupancy import Span

REFILLED = "refilled at once"
WAYS = {REFILLED: True, "filled together": False}
"""How lanes are filled, and whether that is a refill."""

ANSWER_SECONDS = 0.5
"""A trial waits so long for a report before it asks again."""

MODEL = "exprnn"

COLUMNS = {
    "how": "lanes",
    "lanes": "of them",
    "trials": "trials",
    "stopped": "stopped early",
    "seconds": "seconds",
    "steps": "lane-steps",
    "idle": "idle % while trials are left",
}


@dataclass(frozen=True)
class Sweep:
    """The trials, and how they are scheduled."""

    trials: int
    lanes: int
    hidden_size: int
    delay: int
    batch_size: int
    rung: int
    """Steps between rungs."""
    rungs: int
    reduction_factor: int = 3
    decision_seconds: float = 0.3
    """From the report of a rung to the scheduler's decision."""
    spare: int = 4
    """Trials that wait for a lane, with refill."""

    def config(self, number: int) -> TrialConfig:
        """Return a trial: learning rates lie evenly, in logarithms, and come in mixed order."""
        place = (number * 37 % self.trials) / max(1, self.trials - 1)
        task = {"name": "copying", "delay": self.delay, "batch_size": self.batch_size}
        sizes = {"train_size": None, "valid_size": 2 * self.batch_size, "test_size": 20}
        return TrialConfig.from_dict(
            {
                "task": task | sizes,
                "model": {"name": MODEL, "hidden_size": self.hidden_size},
                "optimizer": {"name": "rmsprop", "lr": 10 ** (-4.5 + 2.5 * place), "lr_orth": 1e-4},
                "training": {"steps": self.rung * self.rungs, "evaluate_every": self.rung},
                "seed": number,
            }
        ).resolve()


GPU = Sweep(trials=96, lanes=32, hidden_size=128, delay=480, batch_size=20, rung=250, rungs=5)
CPU = Sweep(trials=48, lanes=16, hidden_size=32, delay=30, batch_size=8, rung=20, rungs=6)
QUICK = Sweep(
    trials=8,
    lanes=4,
    hidden_size=8,
    delay=5,
    batch_size=4,
    rung=4,
    rungs=3,
    decision_seconds=0.05,
    spare=2,
)


@dataclass
class Asha:
    """Asynchronous successive halving: of the values at a rung so far, one in so many goes on."""

    reduction_factor: int
    _values: dict[int, list[float]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def goes_on(self, rung: int, value: float) -> bool:
        """Tell whether a trial with this value at this rung goes on; smaller values are better."""
        with self._lock:
            values = self._values.setdefault(rung, [])
            values.append(value)
            kept = max(1, math.ceil(len(values) / self.reduction_factor))
            return value <= sorted(values)[kept - 1]


def run(sweep: Sweep, device: str, *, refill: bool) -> dict[str, Any]:
    """Train the sweep in an engine; return what happened and the occupied lanes over time."""
    engine, asha = Engine(device, sweep.lanes), Asha(sweep.reduction_factor)
    begins: list[float] = []
    with tempfile.TemporaryDirectory() as storage:

        def train(number: int) -> tuple[int, bool]:
            """Return the steps of a trial, and whether the scheduler stopped it."""
            begins.append(time.monotonic())
            order = make_order(sweep, number, storage)
            while True:
                report = engine.ask(order, ANSWER_SECONDS)
                if report is None:
                    continue
                if report.outcome is not None:
                    return report.step, False
                order = replace(order, reported=report.step)
                time.sleep(sweep.decision_seconds)
                value = report.metrics.get(OBJECTIVE, math.inf)
                if not asha.goes_on(report.step, value):
                    engine.leave(order)
                    return report.step, True

        numbers, at_once = range(sweep.trials), sweep.trials if refill else sweep.lanes
        waves = [numbers[i : i + at_once] for i in range(0, sweep.trials, at_once)]
        with ThreadPoolExecutor(sweep.lanes + (sweep.spare if refill else 0)) as pool:
            ended = [end for wave in waves for end in list(pool.map(train, wave))]
        engine.stop()
    spans = engine.spans()
    first = spans[0].start
    return {
        "trials": sweep.trials,
        "lanes": sweep.lanes,
        "stopped": sum(was_stopped for _, was_stopped in ended),
        "seconds": spans[-1].start + spans[-1].seconds - first,
        "steps": sum(step for step, _ in ended),
        "idle": measure_idleness(spans, sweep.lanes, max(begins)),
        "pending_until": max(begins) - first,
        "spans": [[span.start - first, span.seconds, span.occupied] for span in spans],
    }


def make_order(sweep: Sweep, number: int, storage: str) -> Order:
    """Return the first attempt at a trial."""
    return Order(
        experiment="occupancy",
        number=number,
        attempt=1,
        config=sweep.config(number).model_dump(mode="json"),
        rungs=tuple(sweep.rung * (i + 1) for i in range(sweep.rungs)),
        storage=storage,
        resources={"CPU": 1.0},
        code=own_code(),
    )


def measure_idleness(spans: Sequence[Span], lanes: int, end: float) -> float:
    """Return the percentage of lane time that stood idle from the first span to `end`.

    Between two spans nothing was trained, so all lanes stood idle.

    >>> measure_idleness([Span(0, 2, 4, 3, 1), Span(3, 2, 4, 4, 0)], lanes=4, end=4)
    37.5
    """
    start = spans[0].start
    busy = sum(
        span.occupied * max(0.0, min(end, span.start + span.seconds) - span.start) for span in spans
    )
    return 100 * (1 - busy / (lanes * (end - start)))


def measure(plan: Plan, notes: Notes) -> None:
    """Run the sweep with refill, then without, and print how long lanes stood idle."""
    sweep = QUICK if plan.quick else GPU if plan.on_gpu else CPU
    say(f"{sweep.trials} trials of {sweep.rung * sweep.rungs} steps, a rung every {sweep.rung}")
    for how, refill in WAYS.items():
        if how not in notes.parts:
            found = notes.attempt(how, partial(run, sweep, plan.device, refill=refill))
            if found is not None:
                notes.keep(how, {"how": how} | found)
    say(table(list(notes.parts.values()), COLUMNS))
    if REFILLED in notes.parts:
        notes.reach({"idle": notes.parts[REFILLED]["idle"]})


def main() -> None:
    """Run the sweep on lanes of a CPU, print the table, and draw it."""
    parser = new_parser(__doc__)
    parser.add_argument("--plot", type=Path, metavar="PATH", help="also draw PATH.png and PATH.svg")
    add_quick(parser)
    add_json(parser, "occupancy")
    given = parser.parse_args()
    environment = settle()
    describe(environment)
    plan = Plan(device="cpu", quick=given.quick, patience=3_600)
    with tempfile.TemporaryDirectory() as folder:
        notes = Notes(Path(folder) / "notes.json", plan)
        measure(plan, notes)
    write({"environment": environment, "sweeps": notes.parts}, given.json)
    if given.plot:
        title = f"measured on CPU lanes, {environment['processor']}"
        for path in pictures.draw_occupancy(notes.parts, given.plot, title):
            say(f"drawn: {path}")


if __name__ == "__main__":
    main()
