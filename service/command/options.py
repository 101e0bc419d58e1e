"""Exit codes, the option `--json`, which all commands share, and times such as `30d`."""

from __future__ import annotations

import re
from typing import Annotated, Final

import typer

FAILURE, BAD_INPUT, INTERRUPTED = 1, 2, 130

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]

SECONDS: Final = {"m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def read_seconds(text: str, *others: str) -> int:
    """Return how long `30d` is, in seconds; `others` are the words that work besides.

    Raises:
        BadParameter: if it is no time.
    """
    found = re.fullmatch(r"(\d{1,5})([mhdw])", text)
    if found is None:
        words = "".join(f", or {word}" for word in others)
        raise typer.BadParameter(f"write a number with m, h, d or w, such as 12h or 30d{words}")
    return int(found[1]) * SECONDS[found[2]]
