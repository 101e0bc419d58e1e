"""What bounds a training step of each workload: arithmetic, latency, memory, or the host.

The rates are measured here: float32 products without TF32, a copy, a time step of the scan kernel
with a batch of one row, a node of a CUDA graph, and the drawing of a batch. From them follow the
shortest times of a step, for one lane and for 32. The largest of them names what bounds it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from bench.gpu.environment import ask_nvidia_smi
from bench.gpu.predictions import RATES, compare
from bench.gpu.sections import Notes, Plan, wait_for
from bench.gpu.trials import make_config, make_training
from bench.limits import operations
from bench.report import say, table
from bench.workloads import WORKLOADS, Workload, network, small
from eigensweep.models.recurrence.cuda import kernels, scan
from eigensweep.models.recurrence.ungated import recur

CASES = (
    ("copying-20", "exprnn"),
    ("copying-128", "asrnn"),
    ("mnist-512", "exprnn"),
    ("ptb-32", "exprnn"),
)
LANES = (1, 32)
PASSES = 6
"""Times that a training step writes or reads all states: H twice, U x, and the gradients thrice."""
NODES = 2
"""Nodes of a graph for each time step, forward or backward, where no kernel takes the loop."""
THREADS = 4
"""Threads that draw batches."""
CORES = {(8, 0): 64}
"""float32 cores of a multiprocessor by compute capability; for others 128."""

SCANNED = (32, 192, 256, 320, 512)
"""Sizes of which a time step is measured: the largest of each number of blocks, and a small one."""

SCANNED_FULL, FULL_ROWS = (192, 256, 512), 4
"""Sizes of which a time step is measured with so many rows a cluster, on the whole GPU."""

MODEL = "exprnn"
"""Whose kernel is measured here."""

COLUMNS = {
    "case": "workload",
    "lanes": "lanes",
    "arithmetic": "arithmetic ms",
    "latency": "latency ms",
    "memory": "memory ms",
    "host": "host ms",
    "bound": "bound by",
    "least": "least ms",
    "measured": "measured ms",
}


def measure(plan: Plan, notes: Notes) -> None:
    """Print the rates, and what they mean for each workload."""
    rates: dict[str, float] = {}
    works = make_works(plan)
    papers = rates_on_paper(plan)
    for what, work in works.items():
        value = notes.attempt(what, work)
        if value is not None:
            rates[what] = value
            paper = f" (on paper {papers[what]:.3g})" if what in papers else ""
            guess = "" if plan.is_trial_run else compare(value, RATES.get(what))
            say(f"{what}: {value:.3g}{paper}{guess and f' (predicted {guess})'}")
    notes.keep("rates", {"measured": rates, "paper": papers})
    measured = read_earlier(plan)
    rows: list[dict[str, Any]] = []
    for name, model in CASES:
        found = notes.attempt(name, partial(bound, name, model, rates, plan))
        rows += [row | {"measured": measured.get((name, row["lanes"]))} for row in found or []]
    say("\n" + table(rows, COLUMNS))
    notes.keep("bounds", rows)


def make_works(plan: Plan) -> dict[str, Callable[[], float]]:
    """Return what measures each rate, by its words."""
    works: dict[str, Callable[[], float]] = {
        "products, TFLOP/s": partial(time_products, plan),
        "copy, GB/s": partial(time_copy, plan),
        "launch from Python, us": partial(time_launches, plan),
    }
    if plan.on_gpu:
        works["node of a graph, us"] = partial(time_nodes, plan)
    for n in SCANNED:
        works[f"time step of a scan, n={n}, us"] = partial(time_scan, n, 1, plan)
    for n in SCANNED_FULL:
        words = f"time step of a scan, n={n}, {FULL_ROWS} rows, us"
        works[words] = partial(time_scan, n, FULL_ROWS, plan)
    return works


def time_step(step: Callable[[], object], plan: Plan, rounds: int = 5) -> float:
    """Return the seconds of a call, the median over rounds; the first call is not counted."""
    times = []
    for _ in range(rounds + 1):
        wait_for(plan.device)
        began = time.perf_counter()
        step()
        wait_for(plan.device)
        times.append(time.perf_counter() - began)
    return median(times[1:])


def time_products(plan: Plan) -> float:
    """Return TFLOP/s of a float32 matrix product without TF32."""
    torch.backends.cuda.matmul.allow_tf32 = False
    n = 256 if plan.quick else 8192
    left, right = torch.randn(2, n, n, device=plan.device)
    return 2 * n**3 / time_step(lambda: left @ right, plan) / 1e12


def time_copy(plan: Plan) -> float:
    """Return GB/s of a copy within the device's memory, bytes read and written."""
    source = torch.randn(10**6 if plan.quick else 5 * 10**8, device=plan.device)
    target = torch.empty_like(source)
    return 8 * source.numel() / time_step(lambda: target.copy_(source), plan) / 1e9


def time_launches(plan: Plan) -> float:
    """Return microseconds of a small operation that Python starts, one after another."""
    x = torch.zeros(64, device=plan.device)
    return 1e6 * time_step(lambda: add_often(x, 1000), plan) / 1000


def time_nodes(plan: Plan) -> float:
    """Return microseconds of a small operation in a CUDA graph, one after another."""
    x = torch.zeros(64, device=plan.device)
    add_often(x, 3)
    wait_for(plan.device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        add_often(x, 1000)
    return 1e6 * time_step(graph.replay, plan) / 1000


def add_often(x: Tensor, times: int) -> None:
    """Add 1 so many times."""
    for _ in range(times):
        x.add_(1.0)


def time_scan(n: int, rows: int, plan: Plan) -> float:
    """Return microseconds that a further time step of the recurrence takes.

    It has one row of a batch, or as many for each cluster that runs at once.
    """
    steps, batch = 50 if plan.quick else 4000, 1
    if rows > 1 and plan.on_gpu:
        batch = rows * scan.count_clusters(n, "modrelu", torch.device(plan.device))
    x = torch.zeros(2 * steps, batch, dtype=torch.int64, device=plan.device)
    sizes = ((n, 2), (n, n), (n,), (2, n), (2,))
    leaves = [torch.randn(size, device=plan.device) / n for size in sizes]

    @torch.no_grad()
    def run(length: int) -> None:
        recur(x[:length], *leaves, activation="modrelu", readout="last", chunk=length)

    short, long = (time_step(partial(run, length), plan) for length in (steps, 2 * steps))
    return 1e6 * max(0.0, long - short) / steps


def rates_on_paper(plan: Plan) -> dict[str, float]:
    """Return the rates that follow from the device's description."""
    if not plan.on_gpu:
        return {}
    found = torch.cuda.get_device_properties(plan.device)
    clock = ask_nvidia_smi().get("clocks.max.sm", "").split(" ")[0]
    if not clock.isdigit():
        return {}
    cores = CORES.get((found.major, found.minor), 128) * found.multi_processor_count
    return {"products, TFLOP/s": 2 * cores * float(clock) * 1e6 / 1e12}


def bound(name: str, model: str, rates: dict[str, float], plan: Plan) -> list[dict[str, Any]]:
    """Return a row for each number of lanes: the shortest times of a step in milliseconds."""
    workload = small(WORKLOADS[name]) if plan.quick else WORKLOADS[name]
    config, n = workload.config(), workload.hidden_size
    B, T = config.batch_size, config.sequence_length
    work = operations(network(model, n, config.shapes), B, T)
    flops, host = work.states + work.weights, time_drawing(workload, model)
    rows = []
    for lanes in LANES:
        times = {
            "arithmetic": 1e3 * lanes * flops / (1e12 * rates["products, TFLOP/s"]),
            "latency": 1e-3 * 2 * T * step_latency(n, B * lanes, rates, plan),
            "memory": 1e3 * lanes * PASSES * 4 * T * B * n / (1e9 * rates["copy, GB/s"]),
            "host": lanes * host,
        }
        largest = max(times, key=lambda key: times[key])
        rows.append(
            {"case": name, "lanes": lanes, **times, "bound": largest, "least": times[largest]}
        )
    return rows


def step_latency(n: int, sequences: int, rates: dict[str, float], plan: Plan) -> float:
    """Return microseconds that a time step of all sequences takes if nothing but waiting counts."""
    node = rates.get("node of a graph, us", rates["launch from Python, us"])
    if n > scan.LARGEST:
        return NODES * node
    nearest = next(size for size in SCANNED if size >= n)
    one = rates.get(f"time step of a scan, n={nearest}, us", NODES * node)
    processors = kernels.count_processors(torch.device(plan.device)) if plan.on_gpu else 1
    shape = scan.choose_shape(n, sequences, max(1, processors // scan.count_blocks(n)))
    blocks = -(-sequences // shape.rows) * shape.blocks
    return one * max(1, -(-blocks // processors))


def time_drawing(workload: Workload, model: str) -> float:
    """Return milliseconds a batch, when several threads draw batches."""
    task = make_training(make_config(workload, model), "cpu").task
    task.train_batch(0, 0)
    began, count = time.perf_counter(), 2 * THREADS
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(lambda step: task.train_batch(step, 0), range(count)))
    return 1e3 * (time.perf_counter() - began) / count


def read_earlier(plan: Plan) -> dict[tuple[str, int], float]:
    """Return the measured milliseconds of a step by workload and lanes, where they are known."""
    path = Path(plan.earlier)
    if not plan.earlier or not path.exists():
        return {}
    sections = json.loads(path.read_text())["sections"]
    found: dict[tuple[str, int], float] = {}
    for name, model in CASES:
        part = sections.get("one_lane", {}).get("parts", {}).get(name, {"rows": []})
        for row in part["rows"]:
            if row["variant"] == f"{model}, one lane":
                found[name, 1] = row["ms"]
    lanes = sections.get("lanes", {}).get("parts", {}).get("copying-20", {"rows": []})
    found |= {("copying-20", row["lanes"]): row["ms"] for row in lanes["rows"]}
    return found
