"""All kernels that tests and measurements ask for, compiled side by side: what each of them takes.

It comes before the tests, whose processes then find the kernels in the cache folder. Without a GPU
they are compiled for an H200 all the same, if NVRTC is installed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from bench.gpu.sections import Notes, Plan
from bench.report import say, table
from eigensweep.common.private_folders import cache_folder
from eigensweep.models.recurrence.complex_reference import FORMS
from eigensweep.models.recurrence.cuda import gated, kernels, scan
from eigensweep.models.recurrence.cuda.compiler import CompileError, compile_kernel, load_cubin
from eigensweep.models.recurrence.native.gated import Cell
from eigensweep.models.recurrence.steps import ACTIVATIONS

ARCHITECTURE, SHARED_BYTES = "sm_90", 227 << 10
"""Of an H100 or H200, where there is no GPU to ask."""

SIZES = (2, 8, 16, 64, 96, 128, 138, 192, 256, 300, 320, 512)
"""Of GPU tests and workloads."""

SHOWN = (138, 192, 256, 512)
"""Sizes whose registers and spills are shown, for modReLU."""

COLUMNS = {
    "n": "n",
    "blocks": "blocks",
    "rows": "rows",
    "direction": "direction",
    "registers": "registers",
    "spilled": "spilled bytes",
}

Job = tuple[Path, kernels.Definitions]


def measure(plan: Plan, notes: Notes) -> None:
    """Compile everything in threads, and print the registers and spills of some kernels."""
    architecture, shared_bytes = ARCHITECTURE, SHARED_BYTES
    if plan.on_gpu:
        number = torch.device(plan.device).index or 0
        architecture = "sm_{}{}".format(*torch.cuda.get_device_capability(number))
        shared_bytes = kernels.count_shared_bytes(number)
    jobs = list(list_jobs(shared_bytes, quick=plan.quick))
    began = time.perf_counter()
    refused: dict[str, str] = {}

    def make(job: Job) -> None:
        source, definitions = job
        try:
            load_cubin(cache_folder(), source, dict(definitions), architecture)
        except CompileError as error:
            refused[f"{source.name} {dict(definitions)}"] = str(error)

    try:
        with ThreadPoolExecutor() as pool:
            list(pool.map(make, jobs))
    except ImportError as error:
        words = f"no kernel can be compiled: {error}"
        notes.keep("kernels", {"words": words})
        say(words)
        if plan.on_gpu:
            notes.fail("kernels", words)
        return
    except CompileError as error:
        refused["NVRTC"] = str(error)
    seconds = time.perf_counter() - began
    say(f"{len(jobs)} kernels for {architecture} in {seconds:.1f} s, in {cache_folder()}")
    for name, words in list(refused.items())[:3]:
        say(f"refused: {name}: {words}")
    if refused and (plan.on_gpu or "NVRTC cannot be used" not in str(refused)):
        notes.fail("kernels", f"{len(refused)} of {len(jobs)} are refused")
    rows = [] if refused else list(show(architecture, quick=plan.quick))
    say(table(rows, COLUMNS))
    found = {"count": len(jobs), "seconds": seconds, "architecture": architecture, "rows": rows}
    notes.keep("kernels", found)


def list_jobs(shared_bytes: int, *, quick: bool) -> Iterator[Job]:
    """Yield sources and macros of all kernels."""
    for activation in (*ACTIVATIONS, *FORMS)[: 1 if quick else None]:
        for n in (2,) if quick else SIZES:
            blocks = scan.count_blocks(n, is_paired=activation in FORMS)
            for rows in scan.ROWS:
                for is_backward in (False, True):
                    shape = scan.ScanShape(n, rows, blocks, is_backward, activation)
                    yield scan.SOURCE, shape.definitions
    for cell in Cell:
        largest = gated.CLUSTERS[cell][-1][0]
        for n in (2,) if quick else sorted({*(n for n in SIZES if n < largest), largest}):
            for rows in kernels.ROWS:
                for is_backward in (False, True):
                    blocks = gated.count_blocks(cell, n)
                    gate = gated.GatedShape(cell, n, rows, blocks, is_backward)
                    yield gated.SOURCE, gate.definitions(shared_bytes)


def show(architecture: str, *, quick: bool) -> Iterator[dict[str, Any]]:
    """Yield a row for each of some kernels, with what the compiler says of it."""
    for n in SHOWN[:1] if quick else SHOWN:
        for rows in (1, 4, scan.ROWS[-1]):
            for is_backward in (False, True):
                blocks = scan.count_blocks(n)
                shape = scan.ScanShape(n, rows, blocks, is_backward, "modrelu")
                made = compile_kernel(scan.SOURCE, dict(shape.definitions), architecture)
                yield {
                    "n": n,
                    "blocks": blocks,
                    "rows": rows,
                    "direction": "back" if is_backward else "forward",
                    "registers": made.registers,
                    "spilled": made.spilled_bytes,
                }
