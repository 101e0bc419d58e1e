"""What one GPU can do: tests, and tables of times, beside the floors that were set for them.

`python -m bench.gpu` needs Python 3.12, torch 2.11, numpy, pydantic, PyYAML and a CUDA device, and
neither Ray nor a network. Kernels need cuda-bindings, the tests pytest, the plots matplotlib; what
is missing is said. The sections run one after another, each in a process of its own:

  environment  what the numbers are measured on
  kernels      all kernels, compiled in threads: registers and spills
  tests        the tests that are marked `gpu`, several at a time
  sanitizers   compute-sanitizer on small steps, if it is there
  one_lane     a training step: one lane, alone, the loop over time, cuDNN, one CPU core, the paper
  lanes        1 to 128 lanes: time of a step, trials an hour, memory, cost
  sharing      1 to 16 processes that share the GPU, one trial each
  limits       what bounds each workload: arithmetic, latency, memory or the host
  occupancy    occupied lanes over time while ASHA stops trials, with refill and without
  every_model  each model of the registry with one lane and with eight
  profiles     ncu on the scans, if it is there, and PyTorch's trace of a step, as files

Where the tests of a kernel fail, or do not come to their end, no time of it is measured, unless
`--anyway` asks for it. `--out` names a folder that several calls may share: each keeps what the
others have found, and knows what is wrong. Times stand beside predictions, by a model that no GPU
has confirmed; those that are far from it are marked.

Variants take turns in every round. Times are medians over rounds, ratios medians of the ratios
within rounds. A line is printed as soon as it is known, and the file numbers.json is replaced after
every section. A section that fails leaves the others their turn. `--quick --device cpu` shows in a
minute that everything works on a machine without a GPU; its numbers mean nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import IO, Any

from bench.gpu import pictures
from bench.gpu.environment import is_there
from bench.gpu.goals import COLUMNS, judge
from bench.gpu.sections import Notes, Plan
from bench.report import add_quick, new_parser, say, table, write

SHARES = {
    "environment": 60,
    "kernels": 20,
    "tests": 130,
    "sanitizers": 40,
    "one_lane": 130,
    "lanes": 80,
    "sharing": 80,
    "limits": 25,
    "occupancy": 40,
    "every_model": 45,
    "profiles": 40,
}
"""The sections, the most important first, and how they share the time. What one leaves unused is
shared by those after it. A section knows its share, and leaves out what does not fit."""

NUMBERS = "numbers.json"

START_SECONDS = 8.0
"""About so long a process takes to start, and to end after its time."""

QUICK_ROUNDS = 2
QUICK_GRACE = 120.0
"""So long after its time a section is ended in a quick run, whose machine may have much to do."""

FALLS = 4
"""A section is begun anew at most so often after it ended early; what ended it is left out."""


class Runner:
    """Runs sections one after another until the time is over."""

    def __init__(
        self, arguments: argparse.Namespace, folder: Path, package: str = "bench.gpu"
    ) -> None:
        """Run modules of `package`, with their notes in `folder`."""
        self._folder, self._package = folder, package
        self.plan = Plan(
            device=arguments.device,
            quick=arguments.quick,
            patience=600.0 if arguments.quick else Plan.patience,
            rounds=min(arguments.rounds, QUICK_ROUNDS) if arguments.quick else arguments.rounds,
            trial_steps=arguments.trial_steps,
            price=arguments.price,
            earlier=str((arguments.out / NUMBERS).resolve()),
            out=str(arguments.out.resolve()),
        )
        self._anyway = arguments.anyway
        self._end = time.monotonic() + 60 * arguments.minutes
        self._log = arguments.out / "log.txt"
        self._log.write_bytes(b"")
        self.sections: dict[str, Any] = read_sections(arguments.out / NUMBERS)
        """What is known, of earlier calls, too."""
        self.goals: dict[str, float] = {}

    def run(self, name: str, share: float) -> None:
        """Run a section within this share of the time that is left, and keep what it found."""
        seconds = share * (self._end - time.monotonic())
        self.say(f"\n=== {name} (about {seconds:.0f} seconds)")
        notes = Notes(self._folder / f"{name}.json", self._plan_for(seconds))
        notes.write()
        end, began = time.monotonic() + seconds, time.monotonic()
        last = end + QUICK_GRACE if self.plan.quick else min(end + START_SECONDS, self._end)
        for _ in range(FALLS):
            known = set(notes.failed)
            status = self._start(name, notes.path, last)
            notes = Notes.read(notes.path)
            if status == 0:
                break
            words = "was ended: its time was over" if status is None else f"ended with {status}"
            culprit = notes.running or (name if known == set(notes.failed) else None)
            if culprit is not None:
                notes.running = None
                notes.fail(culprit, f"the process of section {name} {words}")
                self.say(f"{name} had reached, and keeps: {', '.join(notes.parts) or 'nothing'}")
            if status is None or name in notes.failed or end - time.monotonic() < START_SECONDS:
                break
            notes.plan = self._plan_for(end - time.monotonic())
            notes.write()
        self.sections[name] = notes.content() | {"seconds": round(time.monotonic() - began, 1)}
        self.goals |= notes.goals

    def say(self, text: str) -> None:
        """Print a line and keep it in the log."""
        say(text)
        self._keep(text.encode() + b"\n")

    def _plan_for(self, seconds: float) -> Plan:
        seconds = max(1.0, seconds - START_SECONDS)
        return replace(self.plan, seconds=seconds, begun=time.monotonic(), wrong=self._find_wrong())

    def _find_wrong(self) -> tuple[str, ...]:
        """Return what the tests found wrong, in this call or an earlier one."""
        known = self.sections.get("tests", {}).get("parts", {}).get("tests", {})
        return () if self._anyway else tuple(known.get("wrong", ()))

    def _start(self, name: str, path: Path, end: float) -> int | None:
        """Run the process of a section; return its exit status, None if it had to be ended."""
        module = f"{self._package}.{name}"
        process = subprocess.Popen(
            [sys.executable, "-u", "-m", "bench.gpu.sections", module, str(path)],
            cwd=Path(__file__).parents[2],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # so that its own processes end with it
        )
        assert process.stdout is not None
        copier = Thread(target=self._copy, args=(process.stdout,), daemon=True)
        copier.start()
        try:
            return process.wait(max(1.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            return None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            copier.join(5)

    def _copy(self, source: IO[bytes]) -> None:
        with source:
            while chunk := os.read(source.fileno(), 1 << 16):
                sys.stdout.write(chunk.decode(errors="replace"))
                sys.stdout.flush()
                self._keep(chunk)

    def _keep(self, chunk: bytes) -> None:
        with self._log.open("ab") as log:
            log.write(chunk)


def read_sections(path: Path) -> dict[str, Any]:
    """Return what earlier calls with the same folder have found."""
    if not path.exists():
        return {}
    found: dict[str, Any] = json.loads(path.read_text())["sections"]
    return found


def read_arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    """Return what the command line asks for."""
    parser = new_parser(__doc__)
    names = list(SHARES)
    parser.add_argument("--only", nargs="+", metavar="SECTION", choices=names, default=names)
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1, or cpu to try it out")
    parser.add_argument("--minutes", type=float, default=7.8, help="time for everything")
    parser.add_argument("--rounds", type=int, default=9, help="most rounds of each table")
    parser.add_argument("--trial-steps", type=int, default=4_000, help="steps of a trial")
    parser.add_argument("--anyway", action="store_true", help="time what the tests found wrong")
    parser.add_argument("--price", type=float, help="of an hour of the GPU: adds costs")
    parser.add_argument("--out", type=Path, default=Path(".bench/gpu"), help="folder of the files")
    add_quick(parser)
    return parser.parse_args(given)


def given_as_json(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments as JSON."""
    return vars(arguments) | {"out": str(arguments.out)}


def main(given: Sequence[str] | None = None) -> int:
    """Run the sections and print what they found; return 1 if anything failed."""
    arguments = read_arguments(given)
    if not is_there(arguments.device):
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # ends sections, too
    arguments.out.mkdir(parents=True, exist_ok=True)
    title = "tried out only: these numbers mean nothing" if arguments.quick else arguments.device
    with tempfile.TemporaryDirectory() as folder:
        runner = Runner(arguments, Path(folder))
        for name in (names := [name for name in SHARES if name in arguments.only]):
            left = sum(SHARES[each] for each in names[names.index(name) :])
            runner.run(name, SHARES[name] / left)
            numbers = {"arguments": given_as_json(arguments), "sections": runner.sections}
            write(numbers, arguments.out / NUMBERS)
            pictures.draw(name, runner.sections[name]["parts"], arguments.out, title)
    runner.say("\n=== floors and aims")
    runner.say(table(judge(runner.goals, is_trial_run=runner.plan.is_trial_run), COLUMNS))
    failed = {work: why for name in names for work, why in runner.sections[name]["failed"].items()}
    runner.say(f"failed: {len(failed)}")
    for work, why in failed.items():
        runner.say(f"  {work}: {why}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
