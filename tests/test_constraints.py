"""constraints.txt can be installed on every platform, and `.ci/resolve.py` sees where it cannot."""

from __future__ import annotations

import importlib
import tomllib
from pathlib import Path
from subprocess import CompletedProcess
from types import ModuleType
from urllib.parse import urlsplit

import pytest
from packaging.markers import Marker

ROOT = Path(__file__).parents[1]
CI = ROOT / ".ci"


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(CI))
    return importlib.import_module("resolve")


@pytest.fixture
def pins(program: ModuleType) -> dict[str, str]:
    found: dict[str, str] = program.read_pins((ROOT / "constraints.txt").read_text())
    return found


PLATFORMS = ("Linux x86-64", "Linux aarch64", "macOS arm64")


@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13"])
@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.quick_cases(4)
def test_all_pins_fit_each_other(
    program: ModuleType, pins: dict[str, str], platform: str, python: str
) -> None:
    assert program.check_record(platform, python, pins) == []


@pytest.mark.parametrize("platform", PLATFORMS)
def test_a_compiler_of_kernels_that_is_not_torchs_is_refused(
    program: ModuleType, pins: dict[str, str], platform: str
) -> None:
    pins["nvidia-cuda-nvrtc"] = "13.5.37"

    found = program.check_record(platform, "3.12", pins)

    if platform == "macOS arm64":
        assert found == [], "CUDA is of Linux"
    else:
        assert any(
            "needs nvidia-cuda-nvrtc==13.0.88.*, constraints.txt pins 13.5.37" in each
            for each in found
        )


def test_the_index_is_asked_again_where_uv_kept_too_little(
    program: ModuleType, pins: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[bool] = []

    def compile_all(variables: dict[str, str], *words: str) -> CompletedProcess[str]:
        called.append("--offline" in words)
        stdout = "\n".join(f"{name}=={version}" for name, version in pins.items())
        needs = "x86_64-unknown-linux-gnu" in words
        status = int(called[-1] and needs)
        return CompletedProcess(words, status, stdout, "the network is disabled" if status else "")

    monkeypatch.setattr(program, "compile_all", compile_all)
    assert program.resolve("Linux x86-64", "3.12", {}, is_fetched=True) == program.Answer()
    assert called == [True, False]
    assert program.resolve("macOS arm64", "3.12", {}, is_fetched=True) == program.Answer()
    assert called == [True, False, True]


def test_the_lock_has_the_pinned_versions_and_digests(
    program: ModuleType, pins: dict[str, str]
) -> None:
    lock = tomllib.loads((ROOT / "pylock.toml").read_text(encoding="utf-8"))
    places = [
        {
            **{"sys_platform": system, "platform_system": name, "platform_machine": machine},
            **{"os_name": "posix", "python_version": python, "python_full_version": f"{python}.0"},
        }
        for _, system, name, machine in program.PLATFORMS.values()
        for python in program.PYTHONS
    ]
    here = [
        package
        for package in lock["packages"]
        if "marker" not in package
        or any(Marker(package["marker"]).evaluate(place) for place in places)
    ]
    found = {package["name"]: package["version"] for package in here}
    assert found == pins, "run: python .ci/resolve.py --write"
    files = [file for package in here for file in package.get("wheels", [])]
    files += [package["sdist"] for package in here if "sdist" in package]
    assert all(file["hashes"]["sha256"] for file in files)
    assert {urlsplit(file["url"]).hostname for file in files} == {"files.pythonhosted.org"}


def test_a_package_that_nothing_pins_is_named(program: ModuleType, pins: dict[str, str]) -> None:
    del pins["triton"]

    (told,) = program.check_record("Linux aarch64", "3.13", pins)

    assert told == "constraints.txt does not pin triton, which torch==2.13.0 needs"


def test_a_version_that_nobody_knows_is_named(program: ModuleType, pins: dict[str, str]) -> None:
    pins["torch"] = "2.14.0"

    found = program.check_record("Linux x86-64", "3.12", pins)

    assert found == ["torch==2.14.0 is not in .ci/recorded.toml, and 2.13.0 is installed"]


def test_pip_s_folders_and_other_indexes_are_kept_from_uv(program: ModuleType) -> None:
    settings = {
        "cert": "/etc/ca.pem",
        "constraint": "/etc/pins.txt",
        "extra-index-url": "file:///more/simple",
        "find-links": "/wheels",
        "index-url": "https://index.example/simple",
    }
    environment = {"PATH": "/bin", "PIP_FIND_LINKS": "/wheels", "UV_FIND_LINKS": "/wheels"}

    assert program.set_up(settings, environment) == {
        "MACOSX_DEPLOYMENT_TARGET": "14.0",
        "PATH": "/bin",
        "SSL_CERT_FILE": "/etc/ca.pem",
        "UV_DEFAULT_INDEX": "https://index.example/simple",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
    }


def test_a_silent_index_is_told_from_pins_that_do_not_fit(
    program: ModuleType,
) -> None:
    # What uv 0.13 writes.
    unsatisfiable = "error: No solution found when resolving dependencies\n  cause: Because ..."
    away = "error: Request failed after 3 retries\n  cause: Failed to fetch: `https://...`"

    assert program.judge(0, "").problem == ""
    assert program.judge(1, unsatisfiable).is_reached
    assert program.judge(1, unsatisfiable).problem.startswith("error: No solution found")
    assert not program.judge(2, away).is_reached
