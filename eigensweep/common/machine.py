"""What machine this is."""

from __future__ import annotations

import platform
from pathlib import Path


def read_processor() -> tuple[str, int]:
    """Return the processor's name as Linux knows it, else as Python does, and its cores.

    0 cores: their number is unknown.
    """
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return (names[0] if names else platform.processor() or platform.machine()), len(names)
