"""NVIDIA's sanitizers on the kernels: reads and writes out of bounds, races, barriers."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from bench.gpu.sections import Notes, Plan
from bench.report import say

TOOLS = ("memcheck", "racecheck", "synccheck")
SIZES = (50, 200, 300)
"""One, two and four blocks a cluster."""

PROGRAM = """
import sys
import torch
from eigensweep.models.recurrence.ungated import recur
device, sizes = sys.argv[1], map(int, sys.argv[2:])
for n in sizes:
    shapes = ((n, 3), (n, n), (n,), (2, n), (2,))
    leaves = [(torch.randn(s, device=device) / n).requires_grad_() for s in shapes]
    x = torch.randint(3, (4, 3), device=device)
    logits, h = recur(x, *leaves, activation="tanh")
    logits.sum().backward()
"""
BESIDE_CUDA = Path("/usr/local/cuda/bin")
FOUND_ERRORS = 9


def find_tool(name: str) -> str | None:
    """Return the path of a tool of CUDA's; None if it is not installed."""
    beside = BESIDE_CUDA / name
    return shutil.which(name) or (str(beside) if beside.exists() else None)


def measure(plan: Plan, notes: Notes) -> None:
    """Run each tool on small steps of three sizes; what it finds fails the section."""
    tool = find_tool("compute-sanitizer")
    program = [sys.executable, "-c", PROGRAM, plan.device, *map(str, SIZES)]
    if tool is None or not plan.on_gpu:
        say("compute-sanitizer is not here: the program is run without it")
        run = subprocess.run(program, check=False)
        notes.keep("sanitizers", {"tool": None})
        if run.returncode:
            notes.fail("sanitizers", f"the program ended with status {run.returncode}")
        return
    for name in TOOLS:
        if name in notes.parts or name in notes.failed:
            continue
        seconds = max(5.0, notes.seconds_left / (len(TOOLS) - TOOLS.index(name)))
        command = [tool, "--tool", name, "--error-exitcode", str(FOUND_ERRORS), *program]
        try:
            run = subprocess.run(command, timeout=seconds, check=False)
        except subprocess.TimeoutExpired:
            notes.fail(name, f"it was ended after {seconds:.0f} seconds")
            continue
        notes.keep(name, {"exit_status": run.returncode})
        if run.returncode:
            notes.fail(
                name, f"it ended with status {run.returncode}; {FOUND_ERRORS}: it found errors"
            )
