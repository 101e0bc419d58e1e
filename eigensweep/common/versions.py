"""What a result was made with: versions of packages, and the revision of our own code."""

from __future__ import annotations

import importlib.metadata
import platform
import subprocess
from contextlib import suppress

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
    """Return the revision of our own code, `unknown` where it is not in a repository."""
    command = ["git", "-C", str(find_package("eigensweep")), "rev-parse", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return done.stdout.strip()
