"""The processes of a test run share the work of rewriting asserts, a dozen seconds in a fresh copy.

pytest rewrites a file of tests when it is imported for the first time, and keeps the code. All
processes import all files in the same order, so that in a fresh copy each would rewrite all.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import suppress
from importlib.util import spec_from_file_location
from pathlib import Path
from typing import Any

import pytest


class NotRun:
    """Stands for a module whose code is made and kept, and not run."""

    __slots__ = ("__name__", "__spec__")
    __dict__: Any = ()
    """No dict, so that `exec` refuses it."""

    def __init__(self, path: Path) -> None:
        self.__name__ = str(path)
        self.__spec__ = spec_from_file_location(self.__name__, path)


def rewrite_share(config: pytest.Config, paths: Iterable[Path]) -> None:
    """Rewrite this process's share of the files, unless the code of them is kept."""
    given: dict[str, Any] | None = getattr(config, "workerinput", None)
    hook = config.pluginmanager.rewrite_hook
    if given is None or sys.dont_write_bytecode or not hasattr(hook, "exec_module"):
        return
    first, step = int(given["workerid"].removeprefix("gw")), given["workercount"]
    for path in sorted(paths)[first::step]:
        with suppress(TypeError, SyntaxError):  # its importer is told of mistakes in it
            hook.exec_module(NotRun(path))
