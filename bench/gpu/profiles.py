"""Profiles that are kept: of the kernels by NVIDIA's tool, of a training step by PyTorch's."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path

import torch

from bench.gpu.sanitizers import find_tool
from bench.gpu.sections import Notes, Plan
from bench.gpu.trials import Lanes
from bench.report import say
from bench.workloads import WORKLOADS, small

WORKLOAD, MODEL = "copying-20", "exprnn"
STEPS = 300

PROGRAM = """
import sys
import torch
from eigensweep.models.recurrence.ungated import recur
device, steps = sys.argv[1], int(sys.argv[2])
for n, B in ((64, 20), (192, 20), (192, 528), (256, 20), (512, 64)):
    shapes = ((n, 10), (n, n), (n,), (10, n), (10,))
    leaves = [(torch.randn(s, device=device) / n).requires_grad_() for s in shapes]
    for _ in range(2):
        x = torch.randint(10, (steps, B), device=device)
        logits, h = recur(x, *leaves, activation="modrelu")
        logits.sum().backward()
"""
"""Predicted for a time step forward: 0.4 us at n = 192 with 20 rows, 1.1 us with 528. No warp waits
for a memory barrier, also at n = 256 and 512."""

METRICS = (
    "gpu__time_duration.sum",
    "smsp__inst_executed.sum",
    "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum",
    "smsp__average_warp_latency_issue_stalled_membar.ratio",
)


def measure(plan: Plan, notes: Notes) -> None:
    """Write `scan.ncu-rep` and `step.json` beside the numbers, and print what ncu counted."""
    notes.attempt("step", partial(trace_step, plan, notes))
    tool = find_tool("ncu")
    if tool is None or not plan.on_gpu:
        say("ncu is not here: kernels are not profiled")
        return
    notes.attempt("scan", partial(profile_scan, tool, plan, notes))


def trace_step(plan: Plan, notes: Notes) -> None:
    """Keep PyTorch's trace of a step of lanes, for chrome://tracing or Perfetto."""
    workload = small(WORKLOADS[WORKLOAD]) if plan.quick else WORKLOADS[WORKLOAD]
    lanes = Lanes(workload, MODEL, 2 if plan.quick else 32, plan.device)
    lanes(1e-9)
    path = Path(plan.out) / "step.json"
    with torch.profiler.profile() as profiler:
        lanes(1e-9)
    profiler.export_chrome_trace(str(path))
    lanes.group.close()
    notes.keep("step", {"file": path.name})


def profile_scan(tool: str, plan: Plan, notes: Notes) -> None:
    """Have ncu look at the scans of several sizes.

    Raises:
        CalledProcessError, TimeoutExpired: if it does not come to its end.
    """
    path = Path(plan.out) / "scan"
    program = [sys.executable, "-c", PROGRAM, plan.device, str(STEPS)]
    options = [
        "--clock-control",
        "none",
        "--set",
        "full",
        "-k",
        "regex:scan",
        "-f",
        "-o",
        str(path),
    ]
    seconds = max(30.0, notes.seconds_left)
    subprocess.run([tool, *options, *program], timeout=seconds, check=True)
    shown = ["-i", f"{path}.ncu-rep", "--page", "raw", "--csv", "--metrics", ",".join(METRICS)]
    run = subprocess.run([tool, *shown], capture_output=True, text=True, timeout=60, check=True)
    say(run.stdout)
    notes.keep("scan", {"file": f"{path.name}.ncu-rep", "metrics": run.stdout})
