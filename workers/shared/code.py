"""Which code a process runs: a trial's process must run the same code as its driver.

Importing this loads neither torch nor Ray.
"""

from __future__ import annotations

import hashlib
import platform
from functools import cache
from pathlib import Path

from eigensweep.workers.shared.messages import Code

PACKAGES = ("models", "tasks", "search_spaces", "workers")
"""The packages whose code decides a trial's numbers, beside the modules above them."""

SUFFIXES = (".py", ".cpp", ".h", ".cu")


class ForeignCodeError(RuntimeError):
    """A trial's process would import other code than its driver did."""


@cache
def own_code() -> Code:
    """Return the folder this process imports Eigensweep from, and a digest of the code there."""
    folder = Path(__file__).parents[2]
    files = [*folder.glob("*"), *(path for name in PACKAGES for path in (folder / name).rglob("*"))]
    digest = hashlib.sha256()
    for path in sorted(files):
        if path.suffix in SUFFIXES:
            digest.update(path.relative_to(folder).as_posix().encode())
            digest.update(path.read_bytes())
    return Code(folder=str(folder), digest=digest.hexdigest()[:16], node=platform.node())


def check_code(driver: Code) -> None:
    """Raise ForeignCodeError unless this process would run the same code as the driver.

    In the driver's own folder it does: a file that was edited there meanwhile is no other version.
    """
    own = own_code()
    is_same_folder = (own.node, own.folder) == (driver.node, driver.folder)
    if own.digest != driver.digest and not is_same_folder:
        raise ForeignCodeError(
            f"the worker on {own.node} has other code than the driver: {own.folder} "
            f"({own.digest}) against {driver.folder} ({driver.digest}) on "
            f"{driver.node}. Install the same version of Eigensweep on both."
        )
