"""What the numbers are measured on."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from typing import Any

import torch

from bench.gpu.sections import Notes, Plan
from bench.report import describe, say
from bench.rounds import processor
from eigensweep.models.recurrence.native import gated, paired, ungated
from eigensweep.models.recurrence.native.library import load_library

SOURCES = (ungated.SOURCE, gated.SOURCE, paired.SOURCE)
"""What the CPU core runs, compiled at first use."""

ASKED = (
    "driver_version",
    "clocks.sm",
    "clocks.max.sm",
    "clocks.mem",
    "power.draw",
    "power.limit",
    "temperature.gpu",
    "memory.used",
    "memory.total",
    "mig.mode.current",
)
"""What nvidia-smi is asked for."""


def is_there(device: str) -> bool:
    """Tell whether PyTorch finds a device; say so if it does not."""
    if torch.device(device).type != "cuda" or torch.cuda.is_available():
        return True
    say("error: PyTorch finds no CUDA device, which this needs; --quick --device cpu tries it out")
    return False


def measure(plan: Plan, notes: Notes) -> None:
    """Print and note what is known of the machine; compile the steps that its CPU will run."""
    found = describe_host()
    if plan.on_gpu:
        found |= describe_gpu(plan.device) | ask_nvidia_smi()
    describe(found)
    notes.keep("environment", found)
    began = time.perf_counter()
    with ThreadPoolExecutor() as pool:
        loaded = list(pool.map(load_library, SOURCES))
    compiled = {
        "compiled_steps": all(library is not None for library in loaded),
        "compiled_within_seconds": round(time.perf_counter() - began, 1),
    }
    describe(compiled)
    notes.keep("environment", found | compiled)


def describe_host() -> dict[str, Any]:
    """Return processor and versions."""
    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        "load": [round(load, 1) for load in os.getloadavg()],
        "python": platform.python_version(),
        **{name: version(name) for name in ("torch", "numpy", "cuda-bindings", "matplotlib")},
    }


def version(package: str) -> str | None:
    """Return the version of an installed package; None if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def describe_gpu(device: str) -> dict[str, Any]:
    """Return what PyTorch knows of a GPU."""
    found = torch.cuda.get_device_properties(device)
    return {
        "gpu": found.name,
        "capability": f"{found.major}.{found.minor}",
        "multiprocessors": found.multi_processor_count,
        "memory_gb": round(found.total_memory / 1e9, 1),
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),  # type: ignore[no-untyped-call]
        "tf32_products": torch.backends.cuda.matmul.allow_tf32,
    }


def ask_nvidia_smi() -> dict[str, str]:
    """Return driver, clocks and power as nvidia-smi tells them; nothing if it cannot be run."""
    command = ["nvidia-smi", f"--query-gpu={','.join(ASKED)}", "--format=csv,noheader"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return {}
    values = answer.stdout.splitlines()[0].split(", ")
    return dict(zip(ASKED, values, strict=False))
