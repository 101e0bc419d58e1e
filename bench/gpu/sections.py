"""A section of the measurement: what it is asked for, and what it has found so far.

A section runs as `python -m bench.gpu.sections MODULE FILE`. FILE holds the plan and the notes. It
is replaced whole after every finding, so whatever ends the process, the findings up to there stay.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import logging
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch

from bench.gpu.goals import COLUMNS, judge
from bench.report import say, table

Result = TypeVar("Result")

STDERR = 2
"""File descriptor of the standard error output, whatever `sys.stderr` is."""

GATED = ("lstm", "gru", "goru", "cornn", "lem")
"""Models whose kernel is that of gated networks, or of ODEs."""

DEAD_DEVICE = 3
"""Exit status of a section after an error that leaves its process no use of the device."""


@dataclass(frozen=True)
class Plan:
    """What a section is asked for."""

    device: str = "cuda"
    quick: bool = False
    """Small sizes, to see whether everything works."""
    seconds: float = 60.0
    """About so long the section may take, with the start of its process."""
    begun: float = field(default_factory=time.monotonic)
    """When the section was asked for, on the clock that all processes of the machine share."""
    patience: float = 60.0
    """One piece of work that takes longer counts as hanging, and ends the process."""
    rounds: int = 9
    trial_steps: int = 4_000
    """Steps of a trial, where trials an hour are told."""
    price: float | None = None
    """Price of an hour of the GPU, in any currency; None leaves costs out."""
    earlier: str = ""
    """Path of the file with the numbers of earlier sections."""
    out: str = "."
    """Folder for files."""
    wrong: Sequence[str] = ()
    """What the tests have found wrong, or did not come to: `scan`, `gated`, `lanes`."""

    def is_wrong(self, model: str) -> bool:
        """Tell whether the times of a model would be those of wrong results."""
        return "lanes" in self.wrong or ("gated" if model in GATED else "scan") in self.wrong

    @property
    def is_trial_run(self) -> bool:
        """Whether the numbers mean nothing."""
        return self.quick or not self.on_gpu

    @property
    def on_gpu(self) -> bool:
        """Whether the device is a GPU."""
        return torch.device(self.device).type == "cuda"


@dataclass
class Notes:
    """What a section has found so far."""

    path: Path
    plan: Plan
    parts: dict[str, Any] = field(default_factory=dict)
    """What is measured, by the name of the part. A part that is here is not measured again."""
    failed: dict[str, str] = field(default_factory=dict)
    """Why a piece of work failed, by its name. It is not tried again."""
    goals: dict[str, float] = field(default_factory=dict)
    """Measured values that a floor is set for, by the goal's name."""
    running: str | None = None
    """The piece of work that runs now; in a process that ended, the one that ended it."""

    @classmethod
    def read(cls, path: Path) -> Notes:
        """Return the notes of a file."""
        content = json.loads(path.read_text())
        plan = Plan(**content.pop("plan"))
        return cls(path, plan, **content)

    def write(self) -> None:
        """Replace the file."""
        scratch = self.path.with_suffix(".new")
        scratch.write_text(json.dumps({"plan": asdict(self.plan), **self.content()}))
        scratch.replace(self.path)

    def content(self) -> dict[str, Any]:
        """Return what was found, as JSON."""
        return {
            "parts": self.parts,
            "failed": self.failed,
            "goals": self.goals,
            "running": self.running,
        }

    def keep(self, part: str, found: Any) -> None:
        """Add a part."""
        self.parts[part] = found
        self.write()

    def reach(self, goals: Mapping[str, float]) -> None:
        """Note measured values of goals, and print them beside their floors."""
        self.goals |= goals
        if rows := judge(goals, is_trial_run=self.plan.is_trial_run, only_measured=True):
            say(table(rows, COLUMNS))

    @property
    def seconds_left(self) -> float:
        """How much is left of the time of this section."""
        return self.plan.begun + self.plan.seconds - time.monotonic()

    def attempt(self, name: str, work: Callable[[], Result]) -> Result | None:
        """Return what `work` returns, or None if it fails or failed before.

        An error is printed and noted. Work that hangs ends the process with the name in `running`.

        Raises:
            SystemExit: after an error that leaves this process no use of the device.
        """
        if name in self.failed:
            return None
        self.running = name
        self.write()
        self._watch()
        try:
            result = work()
            wait_for(self.plan.device)
        except Exception as error:
            self.fail(name, f"{type(error).__name__}: {error}")
            self._watch()
            if not self._device_answers():
                sys.exit(DEAD_DEVICE)
            return None
        finally:
            faulthandler.cancel_dump_traceback_later()
            self.running = None
            self.write()
        return result

    def fail(self, name: str, words: str) -> None:
        """Print and note why a piece of work failed."""
        self.failed[name] = " ".join(words.split())[:300]
        say(f"failed: {name}: {self.failed[name]}")
        self.write()

    def _watch(self) -> None:
        """End the process if `patience` passes before the next call, or before the watch ends."""
        faulthandler.dump_traceback_later(self.plan.patience, exit=True, file=STDERR)

    def _device_answers(self) -> bool:
        try:
            wait_for(self.plan.device)
            torch.zeros(1, device=self.plan.device).add_(1).item()
        except RuntimeError:
            return False
        return True


def wait_for(device: str) -> None:
    """Wait until the device has done all that it was given."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)


def main(module: str, path: Path) -> None:
    """Run the section that a module measures. What the packages log is printed, too."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s %(message)s")
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    notes = Notes.read(path)
    section = importlib.import_module(module)
    model = getattr(section, "MODEL", None)
    if model is not None and notes.plan.is_wrong(model):
        words = f"not timed: the tests of {model}'s kernel, or of lanes, did not go well"
        notes.fail(module.rpartition(".")[2], f"{words}; --anyway times it")
    else:
        section.measure(notes.plan, notes)
    notes.write()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
