"""Which names of metrics MLflow takes: with another one it refuses all numbers of a run."""

from __future__ import annotations

import re
from posixpath import normpath
from typing import Final

NAME: Final = re.compile(r"[\w.: /-]{1,200}")
"""MLflow takes 250 characters, and here something stands before the name."""
EXPECTED: Final = "1 to 200 letters, digits, spaces, and '_', '-', '.', ':', and '/' between parts"


def is_metric_name(name: str) -> bool:
    """Tell whether MLflow takes a name: no part of it between slashes is empty, `.` or `..`.

    >>> [is_metric_name(name) for name in ("top/5", "-log p", "top//5", "../5", "right %")]
    [True, True, False, False, False]
    """
    path = f"valid/{name}"
    return bool(NAME.fullmatch(name)) and normpath(path) == path
