"""Where compiled steps and kernels are kept."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """Return the folder for files that can be made again, by the XDG base directory rules."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "eigensweep"
