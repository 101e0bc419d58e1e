"""Which code a process runs: a trial's process must run the same code as its driver.

What counts are the files of Eigensweep and of the packages that add models and tasks, native
sources among them, and the versions of what computes. Compiled steps follow from the sources. Of a
version only the public part counts: `2.13.0+cpu` and `2.13.0+cu130` are one, since the driver's
node may be the one without a GPU. A worker may have models and tasks that the driver has not.

Importing this loads neither torch nor Ray.
"""

from __future__ import annotations

import importlib
import platform
import runpy
import uuid
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.metadata import EntryPoint, PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from eigensweep.common.own_packages import (
    SUFFIXES,
    digest_all,
    digest_files,
    digest_package,
    find_package,
    find_plugins,
)
from eigensweep.protocol.messages import Code

PACKAGES = (
    "models",
    "tasks",
    "search_spaces",
    "results",
    "common",
    "protocol",
    "store",
    "training",
    "workers",
)
"""The packages whose code decides a trial's numbers, beside the modules above them."""

VERSIONS = ("torch", "numpy", "ray")
"""The distributions whose version decides a trial's numbers, or whether it runs at all."""

MOST_NAMED = 5
"""Differences that an error names; the others are counted."""

BOOT = Path("/proc/sys/kernel/random/boot_id")


class ForeignCodeError(RuntimeError):
    """A trial's process would import other code than its driver did."""


@cache
def own_parts() -> dict[str, str]:
    """Return what the code here consists of: a digest of each file, the version of each package.

    Names of files are paths, such as `training/training.py`; names of versions are words.
    """
    plugins = find_plugins()
    plugin_files = _plugin_files(_plugin_folders(plugins))
    return _project_files() | plugin_files | _own_versions() | _plugin_versions(plugins)


@cache
def own_code() -> Code:
    """Return which code this process imports, and from where."""
    folder, files, versions = _own_folder(), _project_files(), _own_versions()
    plugins = find_plugins()
    plugin_folders = _plugin_folders(plugins)
    plugin_files, plugin_versions = _plugin_files(plugin_folders), _plugin_versions(plugins)
    return Code(
        folder=str(folder),
        digest=digest_all(files | plugin_files | versions | plugin_versions),
        node=platform.node(),
        packages=digest_all(versions | plugin_versions),
        identity=_identify([folder, *plugin_folders.values()]),
        core=digest_all(files | versions),
        plugins=_digest_plugins(plugins, plugin_files),
    )


def has_changed() -> bool:
    """Return whether the files and packages here are other ones than when `own_code` looked."""
    importlib.invalidate_caches()
    return digest_all(own_parts.__wrapped__()) != own_code().digest


def check_code(driver: Code, parts: Mapping[str, str] | None = None) -> None:
    """Raise ForeignCodeError unless this process would run the same code as the driver.

    In the driver's own folder, on the same disk of the same machine, it does: a file that was
    edited there meanwhile is no other version. More models and tasks than the driver has do no
    harm, because no trial asks for them. `parts` are the driver's, for words about what differs.
    """
    own = own_code()
    is_same_folder = bool(own.identity) and own.identity == driver.identity
    if own.digest == driver.digest or (is_same_folder and own.packages == driver.packages):
        return
    if own.core == driver.core and driver.plugins.items() < own.plugins.items():
        return
    what = "" if parts is None else f"; what differs: {describe_difference(own_parts(), parts)}"
    raise ForeignCodeError(
        f"the worker on {own.node} has other code than the driver: {own.folder} "
        f"({own.digest}) against {driver.folder} ({driver.digest}) on {driver.node}{what}. "
        "Install the same version of Eigensweep, and of the packages beside it, on both. If files "
        "were changed on purpose, pause the experiment and resume it"
    )


def check_build(device: str) -> None:
    """Raise ForeignCodeError if PyTorch here was built without what a device needs.

    It costs no import of PyTorch, so a node that offers GPUs and has the build for CPUs is found
    within milliseconds. Whether a device works is another question (`training/devices.py`).
    """
    if device == "cpu" or _is_built_for_gpus():
        return
    raise ForeignCodeError(
        f"the worker on {platform.node()} offers GPUs, and its PyTorch {version('torch')} is built "
        "without CUDA. Install the build for CUDA there, or let the node join with --num-gpus=0"
    )


@cache
def _is_built_for_gpus() -> bool:
    """Return what PyTorch's own file of versions says; True where there is none."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return True
    try:
        names = runpy.run_path(str(Path(spec.origin).with_name("version.py")))
    except OSError:
        return True
    return any(names.get(kind) is not None for kind in ("cuda", "hip"))


def describe_difference(own: Mapping[str, str], driver: Mapping[str, str]) -> str:
    """Return which files and packages differ, for a person to read.

    >>> describe_difference({"torch": "2.1", "a.py": "0"}, {"torch": "2.2", "a.py": "0", "b.h": ""})
    'torch 2.1 instead of 2.2, b.h is missing'
    """
    found = []
    # Packages first: their names have no suffix, and where one differs, it says the most.
    for name in sorted({*own, *driver}, key=lambda name: (_is_file(name), name)):
        here, there = own.get(name), driver.get(name)
        if here == there:
            continue
        if here is None:
            found.append(f"{name} is missing")
        elif there is None:
            found.append(f"the driver has no {name}")
        elif _is_file(name):
            found.append(name)
        else:
            found.append(f"{name} {here} instead of {there}")
    more = len(found) - MOST_NAMED
    return ", ".join(found[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def _is_file(name: str) -> bool:
    """Tell a file, of a package that adds models too, from a version."""
    return ": " in name or Path(name).suffix in SUFFIXES


def _own_folder() -> Path:
    return Path(__file__).parents[1]


def _project_files() -> dict[str, str]:
    folder = _own_folder()
    found = [*folder.glob("*"), *(path for name in PACKAGES for path in (folder / name).rglob("*"))]
    code = (path for path in found if path.suffix in SUFFIXES)
    return digest_files({path.relative_to(folder).as_posix(): path for path in code})


def _plugin_files(packages: Iterable[str]) -> dict[str, str]:
    return {
        f"{package}: {name}": value
        for package in packages
        for name, value in digest_package(package).items()
    }


def _own_versions() -> dict[str, str]:
    versions = {"Python": ".".join(platform.python_version_tuple()[:2])}
    for name in VERSIONS:
        try:
            versions[name] = version(name).partition("+")[0]
        except PackageNotFoundError:
            versions[name] = "none"
    return versions


def _plugin_versions(plugins: Iterable[EntryPoint]) -> dict[str, str]:
    return {f"package {e.dist.name}": e.dist.version for e in plugins if e.dist is not None}


def _digest_plugins(plugins: Iterable[EntryPoint], files: Mapping[str, str]) -> dict[str, str]:
    """Return a digest of what is behind each entry point; of all where packages share a name."""
    behind: dict[str, list[str]] = {}
    for entry in plugins:
        package = f"{entry.module.partition('.')[0]}: "
        own = {name: value for name, value in files.items() if name.startswith(package)}
        version = "" if entry.dist is None else f"{entry.dist.name} {entry.dist.version}"
        words = f"{entry.value} {version} {digest_all(own)}"
        behind.setdefault(f"{entry.group}: {entry.name}", []).append(words)
    return {name: digest_all({name: "\n".join(sorted(each))}) for name, each in behind.items()}


def _plugin_folders(plugins: Iterable[EntryPoint]) -> dict[str, Path]:
    """Return where the packages are that add models and tasks."""
    names = {entry.module.partition(".")[0] for entry in plugins}
    found = {name: find_package(name) for name in sorted(names)}
    return {name: place for name, place in found.items() if place is not None}


def _identify(places: Iterable[Path]) -> str:
    """Return what only these very folders have: two containers have different disks."""
    try:
        machine = BOOT.read_text().strip()
    except OSError:
        machine = f"{platform.node()}-{uuid.getnode():x}"
    stats = [place.stat() for place in places]
    return "/".join([machine, *(f"{each.st_dev:x}-{each.st_ino:x}" for each in stats)])
