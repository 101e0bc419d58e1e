"""The environment variables that Eigensweep reads, and what to say about others of its name.

A name with a slip of the pen would be ignored without a word: the service would start with the
default in its place.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import Final

PREFIX: Final = "EIGENSWEEP_"

KNOWN: Final = frozenset(
    PREFIX + name
    for name in [
        "AUDIT_ENTRIES",
        "CHECKPOINT_SECONDS",
        "CPUS",
        "DATABASE_URL",
        "DATA_ROOT",
        "HOME",
        "HOST",
        "LEAST_FREE_MB",
        "LOG_FORMAT",
        "LOG_LEVEL",
        "MAX_EXPERIMENTS",
        "MLFLOW_PAGES",
        "MLFLOW_PORT",
        "MLFLOW_TOKEN",
        "MLFLOW_URI",
        "OTLP_ENDPOINT",
        "PORT",
        "PROXY_ADDRESSES",
        "PROXY_GROUPS_HEADER",
        "PROXY_SCOPES",
        "PROXY_SECRET",
        "PROXY_USER_HEADER",
        "RATE_LIMIT",
        "RAY_ADDRESS",
        "RESULTS",
        "RETENTION",
        "RETENTION_DAYS",
        "RETENTION_HOURS",
        "RETRIES",
        "STARTED_BY",
        "STORAGE",
        "TOKEN",
        "TOKEN_FILE",
        "URL",
        "WEBHOOK_HOSTS",
        "WEBHOOK_NETWORKS",
        "WEBHOOK_SECRET",
        "WEBHOOK_URLS",
    ]
)
"""Every variable that some process of ours reads. A test compares it with the code."""


GONE: Final = {
    PREFIX + name: "since 0.3 each experiment has a driver of its own, which takes "
    "milliseconds to fork and a few megabytes"
    for name in ("DRIVER_EXPERIMENTS", "DRIVER_MB", "WARM_DRIVERS")
}
"""Variables of earlier versions, and why nothing reads them any more."""


def expand_home(path: Path | str) -> Path:
    """Return a path with a person's home folder in the place of ~.

    Raises:
        ValueError: if that folder is not known, as for ~name of a user who does not exist.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        words = f"the home folder in {path} is not known; write the path in full"
        raise ValueError(words) from error


def find_unknown(names: Iterable[str]) -> dict[str, str | None]:
    """Return which names look like ours and are not, with the nearest name that is.

    >>> find_unknown(["EIGENSWEEP_PROT", "EIGENSWEEP_PORT", "PATH", "EIGENSWEEP_XYZ"])
    {'EIGENSWEEP_PROT': 'EIGENSWEEP_PORT', 'EIGENSWEEP_XYZ': None}
    """
    ours = [name for name in names if name.upper().startswith(PREFIX)]
    unknown = [name for name in ours if name.upper() not in KNOWN]
    return {name: _find_nearest(name.upper()) for name in sorted(unknown)}


def _find_nearest(name: str) -> str | None:
    ends = {each.removeprefix(PREFIX) for each in KNOWN}
    close = get_close_matches(name.removeprefix(PREFIX), ends, 1)
    return PREFIX + close[0] if close else None


def describe_unknown(name: str, nearest: str | None) -> str:
    """Return a sentence about a variable that nothing reads; its value is not shown."""
    hint = f"did you mean {nearest}?" if nearest else "docs/reference/settings.md lists them all"
    hint = GONE.get(name.upper(), hint)
    return f"nothing reads the variable {name}; {hint}"


def warn_of_unknown(names: Iterable[str], logger: logging.Logger) -> None:
    """Log a warning for each variable that looks like ours and that nothing reads."""
    for name, nearest in find_unknown(names).items():
        logger.warning("%s", describe_unknown(name, nearest))
