"""What a result was made with: versions of packages, and the revision of our own code."""

from __future__ import annotations

import importlib.metadata
import platform
import subprocess
from contextlib import suppress
from functools import partial

from eigensweep.common.own_packages import find_package

PACKAGES = ("eigensweep", "torch", "ray", "optuna", "mlflow")
"""The packages whose versions every run names."""


def name_versions() -> str:
    """Return the packages that decide results, each with its version."""
    found = []
    for name in PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            found.append(f"{name} {importlib.metadata.version(name)}")
    return ", ".join([*found, f"python {platform.python_version()}"])


def git_revision() -> str:
    """Return the revision of our own code, `unknown` where it is not in a repository.

    An environment may lie within another one's repository, which does not have our files.
    """
    git = partial(subprocess.run, capture_output=True, text=True, timeout=10, check=True)
    here = ["git", "-C", str(find_package("eigensweep"))]
    try:
        git([*here, "ls-files", "--error-unmatch", "__init__.py"])
        return git([*here, "rev-parse", "HEAD"]).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return "unknown"
