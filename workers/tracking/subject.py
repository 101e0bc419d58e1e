"""The experiment that is tracked, as its runs in MLflow describe it."""

from __future__ import annotations

import importlib.metadata
import platform
import subprocess
from contextlib import suppress
from dataclasses import dataclass

import yaml

from eigensweep.direction import Better
from eigensweep.search_spaces.spec import ExperimentSpec
from eigensweep.workers.shared.code import own_code

PACKAGES = ("eigensweep", "torch", "ray", "optuna", "mlflow")
"""The packages whose versions every run names."""


@dataclass(frozen=True)
class Subject:
    """The experiment that is tracked."""

    id: str
    name: str
    project: str
    description: str
    spec: str
    """As YAML."""
    better: Better
    tags: dict[str, str]
    """What every run of it carries."""


def make_subject(experiment: str, spec: ExperimentSpec, better: Better) -> Subject:
    """Return how MLflow describes the experiment, with the versions that run it here."""
    return Subject(
        id=experiment,
        name=spec.name,
        project=spec.project,
        description=spec.description,
        spec=yaml.safe_dump(spec.model_dump(mode="json", exclude_unset=True), sort_keys=False),
        better=better,
        tags={"eigensweep.versions": name_versions(), "eigensweep.git": git_revision()},
    )


def name_versions() -> str:
    """Return the packages that decide results, each with its version."""
    found = []
    for name in PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            found.append(f"{name} {importlib.metadata.version(name)}")
    return ", ".join([*found, f"python {platform.python_version()}"])


def git_revision() -> str:
    """Return the revision of our own code, `unknown` where it is not in a repository."""
    command = ["git", "-C", own_code().folder, "rev-parse", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return done.stdout.strip()
