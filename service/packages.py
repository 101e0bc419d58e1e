"""Our own top-level packages, told from a user's of the same names."""

from __future__ import annotations

import importlib.util
import os
import site
import sys
from pathlib import Path
from typing import Final

from service.settings import StartError

NAMES: Final = ("models", "tasks", "search_spaces", "workers", "service")
ROOT: Final = Path(__file__).resolve().parents[1]


class ForeignPackageError(StartError):
    """A name of ours leads to somebody else's package."""


def settle() -> None:
    """Make our packages the ones that are imported, here and in every process started from here.

    A folder that the service happens to be started in, and that may have a `models` of its own, is
    no place to import from.

    Raises:
        ForeignPackageError: if a name of ours leads elsewhere even so.
    """
    here = Path.cwd().resolve()
    sys.path[:] = [os.path.abspath(entry or ".") for entry in sys.path]
    if here != ROOT and any((here / name).exists() for name in NAMES):
        sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != here]
    for name in NAMES:
        found = importlib.util.find_spec(name)
        where = Path(found.origin).resolve().parent if found and found.origin else None
        if where != ROOT / name:
            raise ForeignPackageError(
                f"the package '{name}' is found at {where or 'no file'}, but ours is at "
                f"{ROOT / name}: take the other one off PYTHONPATH, uninstall it, or rename it"
            )
    if str(ROOT) not in [*site.getsitepackages(), site.getusersitepackages()]:
        given = os.environ.get("PYTHONPATH")
        entries = [os.path.abspath(entry) for entry in given.split(os.pathsep)] if given else []
        os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *entries])
