"""Watches a process and ends, when that ends in whatever way, all that it has started.

A script: `guard.py <pid> <file>`, with a pipe from the watched process as standard input, into
which nothing is ever written. When the process is gone, be it by SIGKILL, so is the pipe's other
end. What it started is noted meanwhile, since orphans cannot be told from strangers, and kept in
the file, so that whoever comes next can end it should the guard itself be killed.
"""

from __future__ import annotations

import json
import os
import select
import sys
from contextlib import suppress
from pathlib import Path

import psutil  # type: ignore[import-untyped]

INTERVAL = 0.5


def main(pid: int, file: Path) -> None:
    """Watch until the end of standard input, then clear up."""
    noted: dict[int, float] = {}
    while not select.select([sys.stdin], [], [], INTERVAL)[0]:
        now = {**{gone: at for gone, at in noted.items() if runs(gone, at)}, **descendants(pid)}
        if now != noted:
            note(file, now)
            noted = now
    end({**noted, **descendants(pid)})
    file.unlink(missing_ok=True)


def descendants(pid: int) -> dict[int, float]:
    """Return the number and the start time of every process below `pid`, this one apart."""
    found = {}
    with suppress(psutil.NoSuchProcess):
        for process in psutil.Process(pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                if process.pid != os.getpid():
                    found[process.pid] = process.create_time()
    return found


def runs(pid: int, started: float) -> bool:
    """Return whether the process of this number is still the one that started then."""
    try:
        return bool(abs(psutil.Process(pid).create_time() - started) < 0.01)
    except psutil.NoSuchProcess:
        return False


def note(file: Path, processes: dict[int, float]) -> None:
    """Write numbers and start times to the file, whole or not at all."""
    fresh = file.with_suffix(".new")
    with suppress(OSError):  # a full disk is no reason to stop watching
        fresh.write_text(json.dumps(processes))
        fresh.replace(file)


def noted_in(file: Path) -> dict[int, float]:
    """Return what `note` wrote, nothing where there is no such file."""
    try:
        return {int(pid): float(at) for pid, at in json.loads(file.read_text()).items()}
    except (OSError, ValueError, AttributeError):
        return {}


def end(processes: dict[int, float]) -> int:
    """Kill those of the processes that still run, and what they started; return how many."""
    left: list[psutil.Process] = []
    for pid, started in processes.items():
        with suppress(psutil.NoSuchProcess):
            if runs(pid, started):
                process = psutil.Process(pid)
                left += [process, *process.children(recursive=True)]
    for process in left:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(left, timeout=5)
    return len(left)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
