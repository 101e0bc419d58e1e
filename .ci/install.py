"""Installs Eigensweep into the environment whose Python runs this: with uv, or else with pip.

uv takes a third of pip's time. It does not read pip's settings, so they are handed to it here.

On Linux without an NVIDIA GPU, torch comes in the build for processors, which is gigabytes smaller.
"""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final
from urllib.error import HTTPError
from urllib.request import urlopen

PIP: Final = (sys.executable, "-m", "pip", "--disable-pip-version-check")
UV: Final = (sys.executable, "-m", "uv", "pip", "install", "--python", sys.executable)
EXTRAS: Final = ("service,postgres,s3,gcs,traces,gpu", "speech")
"""What the tests need, and what needs a C compiler besides."""

VARIABLES: Final = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "no-index": "UV_NO_INDEX",
    "trusted-host": "UV_INSECURE_HOST",
    "cert": "SSL_CERT_FILE",
    "proxy": "ALL_PROXY",
    "timeout": "UV_HTTP_TIMEOUT",
    "default-timeout": "UV_HTTP_TIMEOUT",
}
"""What uv calls pip's settings."""
FILES: Final = {"constraint": "--constraint", "build-constraint": "--build-constraint"}
"""Settings that name files; uv's options for them, which do not replace our own constraints.txt."""
WITHOUT_EFFECT: Final = {
    *("disable-pip-version-check", "no-cache-dir", "cache-dir", "no-compile", "retries"),
    *("quiet", "verbose", "no-color", "progress-bar", "no-input", "root-user-action"),
    *("break-system-packages", "require-virtualenv", "no-warn-script-location"),
}
"""Settings of pip that do not change what is installed."""
PYTORCH: Final = "download.pytorch.org"
CPU_INDEX: Final = f"https://{PYTORCH}/whl/cpu"
SECONDS: Final = 5
"""How long that index may take to answer."""
SCOPES: Final = ("global", "install", ":env:")
"""Where settings stand; the later ones count more."""


def parse_settings(listed: str) -> dict[str, str]:
    """Return pip's settings by their names.

    Args:
        listed: what `pip config list` writes, such as `global.index-url='https://...'`.
    """
    found: dict[str, tuple[int, str]] = {}
    for line in listed.splitlines():
        key, _, value = line.partition("=")
        scope, _, name = key.rpartition(".")
        if scope in SCOPES:
            rank = SCOPES.index(scope)
            found[name] = max(found.get(name, (-1, "")), (rank, str(ast.literal_eval(value))))
    return {name: value for name, (_, value) in found.items()}


def translate(settings: Mapping[str, str]) -> dict[str, str] | None:
    """Return the variables that tell uv the same, or None if uv has no word for a setting."""
    if settings.keys() - VARIABLES.keys() - FILES.keys() - WITHOUT_EFFECT:
        return None
    variables = {"UV_INDEX_STRATEGY": "unsafe-best-match"}  # as pip chooses among several indexes
    for name, value in settings.items():
        if name in VARIABLES:
            separator = "," if name == "find-links" else " "
            variables[VARIABLES[name]] = separator.join(value.split())
    return variables


def name_files(settings: Mapping[str, str]) -> list[str]:
    """Return uv's options for the files of constraints among pip's settings."""
    return [
        word
        for setting, option in FILES.items()
        for file in settings.get(setting, "").split()
        for word in (option, file)
    ]


def tell(words: str) -> None:
    """Write a line for the person who waits."""
    print(words, flush=True)  # noqa: T201


def answers(url: str) -> bool:
    """Say whether a server answers within some seconds."""
    try:
        urlopen(url, timeout=SECONDS).close()
    except HTTPError as error:
        return error.code < 400
    except (OSError, ValueError):
        return False
    return True


def leave_out_silent(
    settings: Mapping[str, str], answers: Callable[[str], bool] = answers
) -> tuple[dict[str, str], list[str]]:
    """Return pip's settings without indexes of PyTorch that do not answer, and what they are.

    pip would ask such an index five times for each package, and say so each time.
    """
    indexes = settings.get("extra-index-url", "").split()
    away = [each for each in indexes if PYTORCH in each and not answers(f"{each.rstrip('/')}/")]
    kept = {name: value for name, value in settings.items() if name != "extra-index-url"}
    if rest := " ".join(each for each in indexes if each not in away):
        kept["extra-index-url"] = rest
    return kept, away


def write_variables(settings: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which pip has these settings, whatever its files say."""
    others = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    own = {f"PIP_{name.upper().replace('-', '_')}": value for name, value in settings.items()}
    return {**others, **own, "PIP_CONFIG_FILE": os.devnull}


def choose_torch(
    settings: Mapping[str, str],
    environment: Mapping[str, str],
    *,
    platform: str = sys.platform,
    has_gpu: bool,
    answers: Callable[[str], bool] = answers,
) -> tuple[bool, str]:
    """Return whether torch is to come from the index of builds for processors, and why, in words.

    Whoever has chosen already keeps the choice: a wheel of torch in a folder of `find-links`, an
    index of PyTorch among pip's, `no-index`, or uv's variable UV_TORCH_BACKEND.
    """
    if (
        platform != "linux"
        or has_gpu
        or "no-index" in settings
        or environment.get("UV_TORCH_BACKEND")
    ):
        return False, ""
    if PYTORCH in settings.get("index-url", "") + settings.get("extra-index-url", ""):
        return False, ""
    for folder in settings.get("find-links", "").split():
        if any(Path(folder.removeprefix("file://")).glob("torch-*+cpu-*.whl")):
            return (
                False,
                f"No nvidia-smi here: torch comes in its build for processors, from {folder}",
            )
    if answers(f"{CPU_INDEX}/torch/"):
        return (
            True,
            "No nvidia-smi here: torch comes in its build for processors, gigabytes smaller",
        )
    words = (
        f"No nvidia-smi here, but {CPU_INDEX} does not answer: torch comes in its ordinary build"
    )
    return False, f"{words}, with gigabytes for GPUs"


def install(command: tuple[str, ...], environment: Mapping[str, str]) -> bool:
    """Install with all extras, or without those that need a C compiler; say whether it worked.

    pip knows groups of dependencies from 25.1 on only, so they are read here.
    """
    project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))
    for extras in (",".join(EXTRAS), EXTRAS[0]):
        words = [*command, "--quiet", "-c", "constraints.txt", "-e", f".[{extras}]"]
        words += project["dependency-groups"]["dev"]
        if subprocess.run(words, env=environment).returncode == 0:
            if extras == EXTRAS[0]:
                tell("PESQ was not installed: it needs a C compiler. Speech trials run without the")
                tell("scores STOI and PESQ.")
            return True
    return False


def main() -> int:
    """Install, and return the exit status."""
    listed = subprocess.run([*PIP, "config", "list"], capture_output=True, text=True).stdout
    settings, away = leave_out_silent(parse_settings(listed))
    for index in away:
        tell(f"{index} does not answer, and is left out")
    environment = write_variables(settings) if away else dict(os.environ)
    is_for_processors, words = choose_torch(
        settings, environment, has_gpu=shutil.which("nvidia-smi") is not None
    )
    if words:
        tell(words)
    variables = translate(settings)
    get_uv = [*PIP, "install", "--quiet", "-c", "constraints.txt", "uv"]
    if variables is not None and subprocess.run(get_uv, env=environment).returncode == 0:
        backend = ("--torch-backend", "cpu") if is_for_processors else ()
        if install((*UV, *backend, *name_files(settings)), {**variables, **environment}):
            return 0
        tell("uv could not install it. pip tries, which takes some minutes.")
    index = ("--extra-index-url", CPU_INDEX) if is_for_processors else ()  # beside those of pip's
    return 0 if install((*PIP, "install", "--no-compile", *index), environment) else 1


if __name__ == "__main__":
    sys.exit(main())
