"""`eigensweep doctor`: what the service needs, what is wrong, and what to do.

Runs in a user's terminal. What it looks at loads torch, so it is imported only for this command.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from eigensweep.search_spaces.labels import say_count

if TYPE_CHECKING:
    from eigensweep.service.process.checkup import Finding

STYLES: Final = {"ok": "green", "warning": "yellow", "problem": "bold red"}


def print_findings(url: str | None, as_json: bool, screen: Console) -> bool:
    """Look at everything and print it; return whether there is no problem."""
    from eigensweep.service.process.checkup import examine

    found = examine(url)
    is_well = all(finding.state != "problem" for finding in found)
    if as_json:
        content = {"ok": is_well, "findings": [asdict(finding) for finding in found]}
        typer.echo(json.dumps(content, indent=2))
    else:
        _show(found, screen)
    return is_well


def _show(found: Sequence[Finding], screen: Console) -> None:
    table = Table(box=None, pad_edge=False)
    for head in ("", "what", "found"):
        table.add_column(head, overflow="fold")
    for finding in found:
        words = Text(finding.detail)
        if finding.advice:
            words.append(f"\n-> {finding.advice}", style="bold")
        table.add_row(Text(finding.state, style=STYLES[finding.state]), finding.what, words)
    screen.print(table)
    count = {state: sum(f.state == state for f in found) for state in STYLES}
    counts = [say_count(count[state], state) for state in ("problem", "warning")]
    screen.print(f"{', '.join(counts)}, {count['ok']} ok")
