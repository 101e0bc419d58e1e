"""Holds tests to the mark `ray`: without it, none may start Ray or a service.

`make test` runs the marked tests one after another, in one process beside all others. Unmarked, a
test that starts Ray would run beside others that do, and each takes as many processes as the
machine has processors. What Ray leaves in the environment is taken back after the last marked test.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

PROGRAMS = {"gcs_server", "raylet"}
"""Ray's own processes."""
MODULES = {"eigensweep.service.process.serve", "eigensweep.command.quickstart"}
COMMANDS = {("ray", "start"), ("eigensweep", "serve")}

_popen = subprocess.Popen.__init__
_is_marked = True
_environment = mock.patch.dict(os.environ)


def starts_ray(command: Any) -> bool:
    """Tell whether a command starts Ray, or a service, which does.

    >>> starts_ray(["/venv/bin/ray", "start", "--head"]), starts_ray(["ray", "status"])
    (True, False)
    >>> starts_ray(["python", "-m", "eigensweep.service.process.serve"])
    True
    """
    alone = isinstance(command, str | bytes | os.PathLike)
    words = [os.fsdecode(each) for each in ([command] if alone else command)]
    names = [Path(word).name for word in words]
    return (
        not PROGRAMS.isdisjoint(names)
        or not MODULES.isdisjoint(words)
        or not COMMANDS.isdisjoint(zip(names, words[1:], strict=False))
    )


def put(item: pytest.Item) -> None:
    """Mark a test whose folder, or whose fixture, says that it starts Ray."""
    folder, fixtures = item.path.parent.name, getattr(item, "fixturenames", ())
    if folder == "system" or (folder == "workers" and "cluster" in fixtures):
        item.add_marker("ray")


def has_marked(file: Path) -> bool:
    """Return whether a file has tests that start Ray, by its folder and its text."""
    if file.parent.name == "system":
        return True
    text = file.read_text()
    return "mark.ray" in text or "Cluster.start(" in text


def begin() -> None:
    """Keep the environment as it is before the first test."""
    _environment.start()


def hold(item: pytest.Item) -> None:
    """From here on, a test is under way: refuse Ray to it, unless it is marked."""
    global _is_marked
    was_marked, _is_marked = _is_marked, item.get_closest_marker("ray") is not None
    if was_marked and not _is_marked:
        _give_way()


def _give_way() -> None:
    """Give this process the environment that it had before Ray was started, and a lower priority.

    Tests that start Ray mostly wait, and are many minutes one after another: what they want of the
    machine, they get first.
    """
    _environment.stop()
    if "PYTEST_XDIST_WORKER" in os.environ:
        os.nice(5)


def _start(self: Any, args: Sequence[Any] | str, *rest: Any, **options: Any) -> None:
    if not _is_marked and starts_ray(args):
        pytest.fail(f"this test starts Ray ({args}): mark it with @pytest.mark.ray")
    _popen(self, args, *rest, **options)


def install() -> None:
    """Have each command that this process starts looked at."""
    subprocess.Popen.__init__ = _start  # type: ignore[method-assign]
