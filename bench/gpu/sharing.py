"""Processes that share the device, one trial each, as a service without lanes runs them.

`python -m bench.gpu.sharing PLAN` is one such process. It trains when its standard input says so:
a line of JSON names the kind of training, and the beginning and the end of a time window. It
answers with the times at which its steps ended. The processes take turns on the device as its
driver lets them, without NVIDIA's multi-process service.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch

from bench.gpu.sections import Notes, Plan
from bench.gpu.trials import Lanes, make_config, make_training, without_kernels
from bench.report import say, table
from bench.workloads import WORKLOADS, Workload, small

WORKLOAD, MODEL = "copying-20", "exprnn"

COUNTS = (1, 2, 4, 8, 16)
"""Numbers of processes."""

KINDS = ("loop", "kernel")
"""How a process trains: the loop over time in PyTorch, or with our kernels."""

LANES = 32
LANES_KIND = "lanes of one process"

LEAD_SECONDS = 0.3
"""From the order to train until the window begins."""

COLUMNS = {
    "kind": "each process runs",
    "processes": "processes",
    "lanes": "lanes",
    "ms": "ms a step of one",
    "steps": "steps a second",
    "trials": "trials an hour",
    "gain": "x one process",
}


def get_workload(plan: Plan) -> Workload:
    """Return what the processes train."""
    return small(WORKLOADS[WORKLOAD]) if plan.quick else WORKLOADS[WORKLOAD]


class Trainer:
    """A process that trains one trial when it is told to."""

    def __init__(self, plan: Plan, number: int) -> None:
        command = [sys.executable, "-u", "-m", "bench.gpu.sharing", json.dumps(asdict(plan))]
        self._process = subprocess.Popen(
            [*command, str(number)],
            cwd=Path(__file__).parents[2],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def order(self, **content: Any) -> None:
        """Send an order."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(content) + "\n")
        self._process.stdin.flush()

    def answer(self) -> Any:
        """Wait for the next answer.

        Raises:
            RuntimeError: if the process has ended.
        """
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"a process ended with status {self._process.wait()}")
        return json.loads(line)

    def end(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()


def measure(plan: Plan, notes: Notes) -> None:
    """Let 1 to 16 processes train side by side, then 32 lanes, and compare their trials an hour."""
    counts: tuple[int, ...] = COUNTS[:2] if plan.quick else COUNTS
    lanes = 4 if plan.quick else LANES
    say(f"{get_workload(plan).title()}, {MODEL}; a trial has {plan.trial_steps} steps")
    rows: list[dict[str, Any]] = []
    trainers = [Trainer(plan, number) for number in range(counts[-1])]
    with ThreadPoolExecutor(len(trainers)) as pool:
        try:
            work = notes.attempt(
                "lanes", lambda: Lanes(get_workload(plan), MODEL, lanes, plan.device)
            )
            starting = [pool.submit(each.answer) for each in trainers]
            longest = plan.patience if plan.quick else notes.seconds_left
            if not notes.attempt("processes start", partial(wait_for_answers, starting, longest)):
                counts = ()
            spent = plan.seconds - notes.seconds_left
            say(f"{len(trainers)} processes started within {spent:.0f} s")
            seconds = min(5.0, max(0.5, notes.seconds_left / (2 * len(counts) + 3) - 1.5))
            for kind in KINDS:
                if work is not None:
                    rows += run_lanes(work, lanes, seconds, notes)
                for count in counts:
                    name = f"{kind}, {count} processes"
                    if notes.seconds_left < 2 * seconds:
                        say(f"{name}: left out, there is no time")
                        continue
                    window = partial(run_window, trainers[:count], kind, seconds, pool, plan)
                    if (row := notes.attempt(name, window)) is None:
                        break  # an answer is missing, so later ones would be taken for others
                    rows.append(row)
                    say(f"{name}: {row['trials']:.4g} trials an hour")
                    notes.keep("processes", {"rows": rows, "window_seconds": seconds})
        finally:
            for each in trainers:
                each.end()
    rows = compare(rows)
    say("\n" + table(rows, COLUMNS))
    notes.keep("processes", {"rows": rows, "window_seconds": seconds})
    notes.reach(find_goals(rows))


def run_lanes(work: Lanes, lanes: int, seconds: float, notes: Notes) -> list[dict[str, Any]]:
    """Train lanes for some seconds; return their steps a second as a row, none if they fail."""
    notes.attempt("first steps of the lanes", lambda: work(0.1))
    began = time.perf_counter()
    steps = notes.attempt("lanes", lambda: work(seconds)) or 0
    rate = lanes * steps / (time.perf_counter() - began)
    if not rate:
        return []
    trials = 3_600 * rate / notes.plan.trial_steps
    say(f"{lanes} lanes: {trials:.4g} trials an hour")
    row = {"kind": LANES_KIND, "lanes": lanes, "ms": 1e3 * lanes / rate}
    return [row | {"steps": rate, "trials": trials}]


def compare(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows in order, each with its gain over one process that runs the loop."""
    first = next((r for r in rows if r["kind"] == KINDS[0] and r["processes"] == 1), None)
    if first is not None:
        rows = [row | {"gain": row["steps"] / first["steps"]} for row in rows]
    order = [*KINDS, LANES_KIND]
    return sorted(rows, key=lambda row: (order.index(row["kind"]), row.get("processes", 0)))


def find_goals(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Return the gain of the lanes over one process, and over the best number of processes."""
    lanes = [row["steps"] for row in rows if row["kind"] == LANES_KIND]
    loops = [row["steps"] for row in rows if row["kind"] == KINDS[0]]
    if not lanes or not loops:
        return {}
    return {"alone": median(lanes) / loops[0], "sharing": median(lanes) / max(loops)}


def run_window(
    trainers: list[Trainer], kind: str, seconds: float, pool: ThreadPoolExecutor, plan: Plan
) -> dict[str, Any]:
    """Let processes train in a common window of time; return their steps a second as a row."""
    start = time.monotonic() + LEAD_SECONDS
    for each in trainers:
        each.order(kind=kind, start=start, end=start + seconds)
    answers = [pool.submit(each.answer) for each in trainers]
    rates = [rate_of(times, seconds) for times in wait_for_answers(answers, 20 * seconds + 30)]
    return {
        "kind": kind,
        "processes": len(trainers),
        "ms": 1e3 * len(rates) / sum(rates),
        "steps": sum(rates),
        "trials": 3_600 * sum(rates) / plan.trial_steps,
    }


def wait_for_answers(answers: list[Future[Any]], seconds: float) -> list[Any]:
    """Return all answers.

    Raises:
        TimeoutError: if they are not there after so many seconds.
    """
    end = time.monotonic() + seconds
    try:
        return [each.result(max(0.0, end - time.monotonic())) for each in answers]
    except FutureTimeoutError:
        raise TimeoutError(f"processes did not answer within {seconds:.0f} s") from None


def rate_of(times: list[float], seconds: float) -> float:
    """Return steps a second, from the times at which steps ended in a window of so many seconds.

    >>> rate_of([10.0, 10.5, 11.0], 1.2)
    2.0
    """
    if len(times) < 2:
        return len(times) / seconds
    return (len(times) - 1) / (times[-1] - times[0])


def train_on_orders(plan: Plan, number: int) -> None:
    """Be one of the processes."""
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    training = make_training(make_config(get_workload(plan), MODEL, number), plan.device)

    def step(kind: str) -> None:
        with without_kernels() if kind == "loop" else nullcontext():
            training.run(training.step + 1)

    for kind in KINDS:
        step(kind)
    say(json.dumps("ready"))
    for line in sys.stdin:
        order = json.loads(line)
        while time.monotonic() < order["start"]:
            time.sleep(0.001)
        times = []
        while time.monotonic() < order["end"]:
            step(order["kind"])
            times.append(time.monotonic())
        say(json.dumps([t for t in times if t <= order["end"]]))


if __name__ == "__main__":
    train_on_orders(Plan(**json.loads(sys.argv[1])), int(sys.argv[2]))
