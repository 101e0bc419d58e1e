"""What lists of requirements bring, and a process in which only that is installed."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import requires

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

HIDE = """
import sys
from importlib.machinery import PathFinder

class Installed(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name.partition(".")[0] in {absent!r}:
            return None
        return PathFinder.find_spec(name, path, target)

sys.meta_path = [Installed if each is PathFinder else each for each in sys.meta_path]
"""
"""A program begins so in which the modules that are `absent` are not installed."""


def close(wanted: list[str]) -> set[str]:
    """Return the distributions that a list of requirements brings, with what those need."""
    found: set[tuple[str, str]] = set()
    open_ones = [(Requirement(each), "") for each in wanted]
    while open_ones:
        requirement, extra_of_parent = open_ones.pop()
        marker = requirement.marker
        if marker is not None and not marker.evaluate({"extra": extra_of_parent}):
            continue
        name = canonicalize_name(requirement.name)
        for extra in {"", *requirement.extras}:
            if (name, extra) not in found:
                found.add((name, extra))
                needs = requires(name) or []
                open_ones += [(Requirement(each), extra) for each in needs]
    return {name for name, _ in found}


def find_modules() -> dict[str, list[str]]:
    """Return the distributions of each module, as a new process sees them.

    This one may have imported Ray, which puts a folder with packages of its own on the path.
    """
    program = "import importlib.metadata as m, json; print(json.dumps(m.packages_distributions()))"
    found: dict[str, list[str]] = json.loads(
        subprocess.check_output([sys.executable, "-c", program])
    )
    return found


def find_absent(wanted: list[str]) -> set[str]:
    """Return the modules installed here that a list of requirements does not bring."""
    here = close(wanted)
    return {
        module
        for module, names in find_modules().items()
        if not {canonicalize_name(name) for name in names} & (here | {"eigensweep"})
    }
