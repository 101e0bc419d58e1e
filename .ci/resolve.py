"""Checks that Eigensweep can be installed on every platform with the versions in constraints.txt.

uv resolves all extras as each platform would, from the package index alone: of pip's settings it
gets the index and how to reach it, but no folder of wheels and no further index. Where the index
does not answer, the metadata of the installed packages decides, and that in recorded.toml for what
only other platforms install. With `--write` it writes pylock.toml: the same versions, with the
digests of their files.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Final

from install import PIP, parse_settings, tell, translate
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT: Final = Path(__file__).parents[1]
LOCK: Final = "pylock.toml"
PLATFORMS: Final = {
    "Linux x86-64": ("x86_64-unknown-linux-gnu", "linux", "Linux", "x86_64"),
    "Linux aarch64": ("aarch64-unknown-linux-gnu", "linux", "Linux", "aarch64"),
    "macOS arm64": ("aarch64-apple-darwin", "darwin", "Darwin", "arm64"),
}
"""What uv calls each; then its markers sys_platform, platform_system, platform_machine."""
PYTHONS: Final = ("3.11", "3.12", "3.13")
TARGETS: Final = [(platform, python) for platform in PLATFORMS for python in PYTHONS]
OF_THE_INDEX: Final = {
    *("index-url", "cert", "trusted-host", "proxy", "timeout", "default-timeout"),
}
"""Pip's settings that say where the index is and how to reach it."""


@dataclass(frozen=True)
class Answer:
    """What came of resolving for one platform."""

    problem: str = ""
    is_reached: bool = True


def read_pins(text: str) -> dict[str, str]:
    """Return the versions of a constraints file by the packages' canonical names."""
    lines = (line for line in text.splitlines() if line and not line.startswith("#"))
    return {canonicalize_name(name): v for name, _, v in (line.partition("==") for line in lines)}


def set_up(settings: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with which uv knows the index and nothing else of this machine."""
    kept = {k: v for k, v in environment.items() if not k.startswith(("UV_", "PIP_"))}
    kept |= translate({k: v for k, v in settings.items() if k in OF_THE_INDEX}) or {}
    kept |= {k: environment[k] for k in ("UV_DEFAULT_INDEX", "UV_CACHE_DIR") if k in environment}
    return kept | {"MACOSX_DEPLOYMENT_TARGET": "14.0"}  # the oldest that torch has wheels for


def judge(status: int, words: str) -> Answer:
    """Return what uv's exit status and its words mean."""
    if status == 0:
        return Answer()
    if "No solution found" in words:
        return Answer(words.strip())
    return Answer(words.strip(), is_reached=False)


def compile_all(variables: Mapping[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    """Have uv resolve all that Eigensweep's extras and tests need, with the pinned versions."""
    command = [sys.executable, "-m", "uv", "pip", "compile", "--no-config", "--quiet"]
    command += ["--all-extras", "--group", "dev", "--no-header", "-c", "constraints.txt"]
    return subprocess.run(
        [*command, *words, "pyproject.toml"],
        cwd=ROOT,
        env=variables,
        capture_output=True,
        text=True,
    )


def fetch_all(variables: Mapping[str, str]) -> bool:
    """Have uv ask the index about all packages of all platforms; return whether that went well.

    The index wants to be asked again about what uv has kept. Nine platforms would each do so, about
    two hundred packages, which takes each of them 3 s of a processor.
    """
    words = ("--universal", "--python-version", PYTHONS[0], "--no-annotate")
    return compile_all(variables, *words).returncode == 0


def write_lock(variables: Mapping[str, str]) -> int:
    """Write pylock.toml anew, and return uv's exit status."""
    (ROOT / LOCK).unlink(missing_ok=True)  # uv would keep to what is there
    words = ("--universal", "--python-version", PYTHONS[0], "--format", "pylock.toml", "-o", LOCK)
    done = compile_all(variables, *words)
    tell(done.stderr.strip() or f"written: {LOCK}")
    return done.returncode


def resolve(
    platform: str, python: str, variables: Mapping[str, str], is_fetched: bool = False
) -> Answer:
    """Resolve all extras for a platform, as uv does when it installs them there.

    With `is_fetched`, what the index has just said is not asked again, if it is enough.
    """
    words = ("--python-platform", PLATFORMS[platform][0], "--python-version", python)
    offline = ["--offline"] if is_fetched else []
    done = compile_all(variables, *words, "--no-annotate", *offline)
    answer = judge(done.returncode, done.stderr)
    if answer.problem:
        return resolve(platform, python, variables) if is_fetched else answer
    pins = read_pins((ROOT / "constraints.txt").read_text())
    loose = [
        line for line in done.stdout.split() if canonicalize_name(line.split("==")[0]) not in pins
    ]
    return Answer(f"constraints.txt does not pin {', '.join(loose)}" if loose else "")


@cache
def read_installed(name: str) -> tuple[str, list[str]]:
    """Return an installed package's version and what it needs; none if it is not installed."""
    try:
        found = distribution(name)
    except PackageNotFoundError:
        return "", []
    return found.version.partition("+")[0], found.requires or []


def read_requirements(name: str, version: str, recorded: Mapping[str, list[str]]) -> list[str]:
    """Return what a version of a package needs.

    Raises:
        LookupError: if neither the record nor the environment knows this version.
    """
    if f"{name}=={version}" in recorded:
        return recorded[f"{name}=={version}"]
    installed, needs = read_installed(name)
    if installed != version:
        here = f"{installed} is installed" if installed else "it is not installed"
        raise LookupError(f"{name}=={version} is not in .ci/recorded.toml, and {here}")
    return needs


def find_conflicts(
    wanted: list[str],
    pins: Mapping[str, str],
    recorded: Mapping[str, list[str]],
    platform: str,
    python: str,
) -> Iterator[str]:
    """Yield in words each requirement that the pins do not fulfil, without asking an index."""
    _, system, name_of_system, machine = PLATFORMS[platform]
    markers = {
        "sys_platform": system,
        "platform_system": name_of_system,
        "platform_machine": machine,
        "os_name": "posix",
        "python_version": python,
        "python_full_version": f"{python}.0",
    }
    seen: set[tuple[str, str]] = set()
    open_ones = [("eigensweep", "", Requirement(each)) for each in wanted]
    while open_ones:
        parent, extra_of_parent, requirement = open_ones.pop()
        marker = requirement.marker
        if marker is not None and not marker.evaluate({**markers, "extra": extra_of_parent}):
            continue
        name = canonicalize_name(requirement.name)
        if name not in pins:
            yield f"constraints.txt does not pin {name}, which {parent} needs"
            continue
        if not requirement.specifier.contains(pins[name], prereleases=True):
            yield f"{parent} needs {name}{requirement.specifier}, constraints.txt pins {pins[name]}"
        for extra in {"", *requirement.extras} - {e for n, e in seen if n == name}:
            seen.add((name, extra))
            try:
                needs = read_requirements(name, pins[name], recorded)
            except LookupError as error:
                yield str(error)
                break
            open_ones += [(f"{name}=={pins[name]}", extra, Requirement(each)) for each in needs]


def check_record(platform: str, python: str, pins: Mapping[str, str]) -> list[str]:
    """Return what stands against an installation on a platform, by recorded metadata."""
    content = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = content["project"]["optional-dependencies"].values()
    wanted = [*content["project"]["dependencies"], *content["dependency-groups"]["dev"]]
    wanted += [each for extra in extras for each in extra if not each.startswith("eigensweep")]
    recorded = tomllib.loads((ROOT / ".ci/recorded.toml").read_text())
    return sorted(set(find_conflicts(wanted, pins, recorded, platform, python)))


def main() -> int:
    """Say what each platform gets; return 1 if one cannot install."""
    settings = parse_settings(
        subprocess.run([*PIP, "config", "list"], capture_output=True, text=True).stdout
    )
    variables = set_up(settings, os.environ)
    if "--write" in sys.argv[1:]:
        return write_lock(variables)
    pins = read_pins((ROOT / "constraints.txt").read_text())
    is_fetched = fetch_all(variables)
    with ThreadPoolExecutor(3) as pool:
        answers = list(pool.map(lambda target: resolve(*target, variables, is_fetched), TARGETS))
    failed = False
    for (platform, python), answer in zip(TARGETS, answers, strict=True):
        problem, source = answer.problem, "the package index"
        if not answer.is_reached:
            tell(f"the package index does not answer: {' '.join(problem.split())[:300]}")
            problem, source = "\n".join(check_record(platform, python, pins)), "recorded metadata"
        failed = failed or bool(problem)
        outcome = f"cannot be installed:\n{problem}" if problem else "can be installed"
        tell(f"{platform}, Python {python}, by {source}: {outcome}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
