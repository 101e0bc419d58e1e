"""What a training step costs on a GPU: the scan kernel, the loop over time, cuDNN, one CPU core.

`python -m bench.gpu` needs torch, numpy, pydantic and a CUDA device, and neither Ray nor a network.
It first runs the tests that are marked `gpu`. Then it takes, for each workload, the wall time of a
training step of

- each model with the kernel of `models/recurrence/cuda`, where its size is offered;
- the same model with the loop over time in PyTorch, on the same GPU;
- `nn.RNN` of the same size and `nn.LSTM` with as many free parameters, both by cuDNN;
- the same model on one CPU core, with the compiled steps.

The variants take turns in every round, after one round that is not counted. Times are medians over
rounds, ratios medians of the ratios within rounds. Every line is printed as soon as it is measured,
and the numbers are written as JSON after each workload. `--quick --device cpu` shows that the
program works on a machine without a GPU; its numbers mean nothing.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from bench.report import add_quick, describe, new_parser, say, table, write
from bench.rounds import median_of, processor, ratio
from bench.steps import Step, lstm_step, our_step
from bench.workloads import (
    WORKLOADS,
    Material,
    Workload,
    lstm_size,
    material,
    network,
    small,
)
from eigensweep.models.recurrence.cuda import scan

MODELS = ("exprnn", "asrnn")

COLUMNS = {
    "variant": "variant",
    "ms": "ms a step",
    "ratio": "times the first",
    "failed": "failed",
}


class CudnnRNN(nn.Module):
    """`nn.RNN` (tanh) with a linear readout: the same products as an ungated network."""

    def __init__(self, inputs: int, hidden_size: int, outputs: int, readout: str) -> None:
        super().__init__()
        self.cell = nn.RNN(inputs, hidden_size)
        self.output = nn.Linear(hidden_size, outputs)
        self.reads_all = readout == "all"

    def forward(self, x: Tensor) -> Tensor:
        """Return logits, (τ, B, p) or (B, p), of values (τ, B, m)."""
        states, _ = self.cell(x)
        logits: Tensor = self.output(states if self.reads_all else states[-1])
        return logits


def plain_loss(module: nn.Module, given: Material) -> Tensor:
    """Return the cross-entropy of a network that takes its input as floats."""
    logits: Tensor = module(given.values)
    return cross_entropy(logits.flatten(0, -2), given.batch.y.flatten())


def move(given: Material, device: str) -> Material:
    """Return the batch on a device."""
    return replace(given, batch=given.batch.to(device), values=given.values.to(device))


@contextmanager
def without_kernel() -> Iterator[None]:
    """Run the loop over time in PyTorch."""
    with mock.patch.object(scan, "is_available", return_value=False):
        yield


def step_in_pytorch(step: Callable[[], None]) -> Callable[[], None]:
    """Return a training step that never takes the kernel."""

    def run() -> None:
        with without_kernel():
            step()

    return run


def make_variants(
    workload: Workload, device: str, *, on_core: bool
) -> Mapping[str, Callable[[], None]]:
    """Return the training steps of a workload, by what they are; the reference is the first."""
    given = material(workload.config())
    there, shapes, n = move(given, device), given.shapes, workload.hidden_size
    variants: dict[str, Callable[[], None]] = {}
    for name in MODELS:
        model = network(name, n, shapes).to(device)
        if n <= scan.LARGEST:
            variants[f"{name}, kernel"] = our_step(model).on(there)
        loop = our_step(network(name, n, shapes).to(device)).on(there)
        variants[f"{name}, loop"] = step_in_pytorch(loop)
        if on_core:
            variants[f"{name}, one CPU core"] = our_step(network(name, n, shapes)).on(given)
    sizes = (shapes.input_size, n, shapes.output_size, shapes.readout)
    torch.manual_seed(0)
    variants["nn.RNN"] = Step(CudnnRNN(*sizes).to(device), None, plain_loss).on(there)
    size = lstm_size(network(MODELS[0], n, shapes).count_parameters("free"), shapes)
    lstm = lstm_step(size, given)
    variants[f"nn.LSTM {size}"] = Step(lstm.module.to(device), None, plain_loss).on(there)
    return variants


def wait_for(device: str) -> None:
    """Wait until the device has done all that it was given."""
    if device != "cpu":
        torch.cuda.synchronize(device)


def time_variants(
    variants: Mapping[str, Callable[[], None]], device: str, rounds: int, seconds: float
) -> tuple[dict[str, list[float]], dict[str, str]]:
    """Return milliseconds of each variant in each round, and why a variant failed.

    No round begins after `seconds`; of the first two rounds all variants are measured.
    """
    times: dict[str, list[float]] = {name: [] for name in variants}
    failed: dict[str, str] = {}
    order, began = random.Random(0), time.perf_counter()
    for number in range(-1, rounds):
        if number > 1 and time.perf_counter() - began > seconds:
            break
        for name in order.sample(list(variants), len(variants)):
            if name in failed:
                continue
            wait_for(device)
            start = time.perf_counter()
            try:
                variants[name]()
                wait_for(device)
            except RuntimeError as error:  # one that cannot run leaves the others their turn
                failed[name] = f"{type(error).__name__}: {error}".splitlines()[0]
                continue
            if number >= 0:
                times[name].append(1e3 * (time.perf_counter() - start))
    return times, failed


def measure(
    workload: Workload, device: str, rounds: int, seconds: float, *, on_core: bool
) -> dict[str, Any]:
    """Return what the training steps of a workload cost."""
    variants = make_variants(workload, device, on_core=on_core)
    times, failed = time_variants(variants, device, rounds, seconds)
    whole = [name for name in variants if name not in failed]
    rows: list[dict[str, Any]] = [
        {
            "variant": name,
            "ms": median_of(times[name]),
            "ratio": ratio(times[name], times[whole[0]]),
        }
        for name in whole
    ]
    rows += [{"variant": name, "failed": words} for name, words in failed.items()]
    config = workload.config()
    return {
        "workload": workload.name,
        "title": workload.title(),
        "batch": config.batch_size,
        "hidden_size": workload.hidden_size,
        "length": config.sequence_length,
        "rounds": min((len(times[name]) for name in whole), default=0),
        "rows": rows,
    }


def run_tests() -> int:
    """Run the tests that need a GPU; return pytest's exit status."""
    root = Path(__file__).parents[1]
    command = [sys.executable, "-m", "pytest", "-c", "/dev/null", "--noconftest", "-q"]
    options = ["--rootdir", str(root), "--import-mode=importlib", "-m", "gpu"]
    folder = root / "tests/models"
    files = sorted(str(path) for path in folder.glob("test_cuda*.py"))
    paths = os.pathsep.join((str(root), str(folder)))  # of our packages, and of the tests' helpers
    environment = {**os.environ, "PYTHONPATH": paths}
    run = subprocess.run([*command, *options, *files], cwd=root, env=environment, check=False)
    return run.returncode


def describe_devices(device: str) -> dict[str, Any]:
    """Return what the numbers were measured on."""
    environment: dict[str, Any] = {
        "processor": processor(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }
    if device != "cpu":
        found = torch.cuda.get_device_properties(device)
        environment |= {
            "gpu": found.name,
            "capability": f"{found.major}.{found.minor}",
            "multiprocessors": found.multi_processor_count,
            "cuda": torch.version.cuda,
        }
    return environment


def read_arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    """Return what the command line asks for."""
    parser = new_parser(__doc__)
    parser.add_argument("--workloads", nargs="+", choices=list(WORKLOADS), default=list(WORKLOADS))
    parser.add_argument("--device", default="cuda", help="where the models train; cuda or cuda:1")
    parser.add_argument("--rounds", type=int, default=9, help="rounds of each workload")
    parser.add_argument(
        "--seconds", type=float, default=45, help="no new round of a workload begins after these"
    )
    parser.add_argument("--no-tests", action="store_true", help="leave out the tests")
    parser.add_argument("--no-core", action="store_true", help="leave out the CPU core")
    add_quick(parser)
    parser.add_argument("--out", type=Path, default=Path(".bench/gpu"), help="folder of the JSON")
    return parser.parse_args(given)


def main(given: Sequence[str] | None = None) -> int:
    """Run the tests, measure, print a table for each workload; return the exit status."""
    arguments = read_arguments(given)
    device = arguments.device
    if device != "cpu" and not torch.cuda.is_available():
        say("error: this needs a CUDA device, and PyTorch finds none; --device cpu tries it out")
        return 2
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    numbers: dict[str, Any] = {"environment": describe_devices(device), "workloads": []}
    describe(numbers["environment"])
    status = 0 if arguments.no_tests else run_tests()
    numbers["tests"] = "left out" if arguments.no_tests else f"exit status {status}"
    for name in arguments.workloads:
        workload = small(WORKLOADS[name]) if arguments.quick else WORKLOADS[name]
        say(f"\n{workload.title()}")
        result = measure(
            workload,
            device,
            arguments.rounds,
            arguments.seconds,
            on_core=not arguments.no_core,
        )
        say(table(result["rows"], COLUMNS))
        numbers["workloads"].append(result)
        write(numbers, arguments.out / "steps.json")
    return status


if __name__ == "__main__":
    sys.exit(main())
