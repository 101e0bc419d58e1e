"""A sweep of 32 trials through the service on one GPU, its trials as lanes of one engine.

`python -m bench.gpu_service` needs everything that the service needs, Ray and MLflow among it. It
starts a Ray and a service of its own, posts the sweep over HTTP, waits, and tells trials an hour
and how long lanes stood idle, as the engine counted it: while a trial waited for one, and in all,
with the start of the trials' processes and the end of the sweep. It fails if a trial has failed or
none is better than the memoryless baseline. `--device cpu --quick` tries it out with lanes of a
CPU; what it prints then says nothing about GPUs.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ray
from rich.console import Console

from bench.gpu.environment import is_there
from bench.report import add_json, add_quick, describe, new_parser, say, write
from bench.rounds import processor
from eigensweep.client import Experiment
from eigensweep.command.quickstart import running_service
from eigensweep.workers.cluster.ray_cluster import RayCluster

TRIALS = 32
GOOD = ("completed", "pruned")
"""States of trials that ended as they should."""


def make_spec(device: str, lanes: int | str, *, quick: bool) -> dict[str, Any]:
    """Return the sweep: expRNN on copying, learning rates drawn at random, stopped by ASHA."""
    delay, n, batch, steps = (10, 32, 10, 100) if quick else (1_000, 192, 20, 1_500)
    sizes = {"train_size": None, "valid_size": 4 * batch, "test_size": 4 * batch}
    rates = {"optimizer.lr": (1e-4, 1e-2), "optimizer.lr_orth": (1e-5, 1e-3)}
    return {
        "name": f"{TRIALS} trials in lanes",
        "task": {"name": "copying", "delay": delay, "batch_size": batch, **sizes},
        "model": {"name": "exprnn", "hidden_size": n},
        "optimizer": {"name": "rmsprop"},
        "training": {"steps": steps, "evaluate_every": steps // 10},
        "search": {
            "method": "random",
            "trials": TRIALS,
            "space": {
                path: {"low": low, "high": high, "log": True} for path, (low, high) in rates.items()
            },
        },
        "scheduler": {"name": "asha"},
        "resources": {"cpus": 1, "gpus": int(device == "cuda"), "lanes": lanes},
    }


def read_engines() -> list[dict[str, Any]]:
    """Return what each engine counted: lane-seconds by what its lanes did."""
    found: list[dict[str, Any]] = []
    for actor in ray.util.list_named_actors(all_namespaces=True):
        name: str = actor["name"]
        if name.startswith("engine-"):
            engine: Any = ray.get_actor(name, actor["namespace"])
            counted: Any = ray.get(engine.occupancy.remote(), timeout=30)
            found.append({"name": name} | counted)
    return found


def follow(experiment: Experiment, seconds: float) -> list[dict[str, Any]]:
    """Wait for the end; return what the engines counted up to there.

    Raises:
        TimeoutError: if it takes longer than so many seconds.
    """
    end = time.monotonic() + seconds
    engines: dict[str, dict[str, Any]] = {}
    while not experiment.refresh().is_over:
        if time.monotonic() > end:
            raise TimeoutError(f"the sweep did not end within {seconds:.0f} s")
        time.sleep(1)
        try:
            engines |= {each["name"]: each for each in read_engines() if "occupied" in each}
        except (ValueError, ray.exceptions.RayError) as error:  # it ended, or is busy to start
            say(f"no answer of an engine: {type(error).__name__}")
    return list(engines.values())


def summarise(
    experiment: Experiment, engines: Sequence[dict[str, Any]], seconds: float
) -> dict[str, Any]:
    """Return the numbers of a sweep that has ended."""
    trials = list(experiment.trials)
    ended = [trial for trial in trials if trial["state"] in GOOD]
    total = sum(sum(each[key] for key in ("occupied", "idle_wanted", "idle")) for each in engines)
    best = experiment.best
    numbers: dict[str, Any] = {
        "state": experiment.state,
        "trials": dict(Counter(trial["state"] for trial in trials)),
        "best": None if best is None else best["value"],
        "baseline": experiment.content["baseline"],
        "seconds": seconds,
        "trials_an_hour": 3_600 * len(ended) / seconds,
        "engines": list(engines),
    }
    if total:
        numbers["idle_though_wanted_percent"] = (
            100 * sum(each["idle_wanted"] for each in engines) / total
        )
        numbers["idle_percent"] = 100 * (1 - sum(each["occupied"] for each in engines) / total)
    return numbers


def find_faults(numbers: dict[str, Any]) -> list[str]:
    """Return what is wrong with a sweep."""
    faults = []
    if numbers["state"] != "completed":
        faults.append(f"the experiment is {numbers['state']}")
    bad = {state: count for state, count in numbers["trials"].items() if state not in GOOD}
    if bad or sum(numbers["trials"].values()) != TRIALS:
        faults.append(f"{TRIALS} trials should have ended well; they are {numbers['trials']}")
    if numbers["best"] is None or numbers["best"] >= numbers["baseline"]:
        faults.append(f"no trial beats the baseline: best {numbers['best']}")
    if not numbers["engines"]:
        faults.append("no engine trained: the trials did not run in lanes")
    return faults


def read_arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    """Return what the command line asks for."""
    parser = new_parser(__doc__)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--lanes", default="32", help="a number, or auto; default: %(default)s")
    parser.add_argument("--minutes", type=float, default=8.0, help="time for the sweep")
    add_quick(parser)
    add_json(parser, "gpu_service")
    return parser.parse_args(given)


def main(given: Sequence[str] | None = None) -> int:
    """Run the sweep; return 1 if something is wrong with it."""
    arguments = read_arguments(given)
    lanes = arguments.lanes if arguments.lanes == "auto" else int(arguments.lanes)
    on_gpu = arguments.device == "cuda"
    if not is_there(arguments.device):
        return 2
    describe({"processor": processor(), "device": arguments.device, "lanes": lanes})
    cluster = RayCluster.start(num_cpus=os.cpu_count(), num_gpus=int(on_gpu))
    try:
        address = ray.get_runtime_context().gcs_address
        os.environ["EIGENSWEEP_RAY_ADDRESS"] = address
        with (
            tempfile.TemporaryDirectory(prefix="eigensweep-") as home,
            running_service(Path(home), Console()) as client,
        ):
            began = time.monotonic()
            spec = make_spec(arguments.device, lanes, quick=arguments.quick)
            experiment = client.submit(spec)
            engines = follow(experiment, 60 * arguments.minutes)
            numbers = summarise(experiment, engines, time.monotonic() - began)
    finally:
        cluster.stop()
    describe({key: value for key, value in numbers.items() if key != "engines"})
    write({"spec": spec, **numbers}, arguments.json)
    faults = find_faults(numbers)
    for fault in faults:
        say(f"error: {fault}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
