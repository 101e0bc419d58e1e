"""Exit codes and the option `--json`, which all commands share."""

from __future__ import annotations

from typing import Annotated

import typer

FAILURE, BAD_INPUT, INTERRUPTED = 1, 2, 130

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
