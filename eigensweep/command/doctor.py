"""`eigensweep doctor`: what the service needs, what is wrong, and what to do.

Runs in a user's terminal. What it looks at loads torch, so it is imported only for this command.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from eigensweep.client.connection import find_home, read_own_url, read_token_file
from eigensweep.command.frame import Call
from eigensweep.search_spaces.labels import say_count

if TYPE_CHECKING:
    from eigensweep.service.process.checkup import Finding

STYLES: Final = {"ok": "green", "warning": "yellow", "problem": "bold red"}


def print_findings(call: Call) -> bool:
    """Look at everything and print it; return whether there is no problem."""
    from eigensweep.service.process.checkup import examine

    url = call.url or os.environ.get("EIGENSWEEP_URL") or read_own_url(find_home())
    found = examine(url, token=read_token_file())
    is_well = all(finding.state != "problem" for finding in found)
    content = {"ok": is_well, "findings": [asdict(finding) for finding in found]}
    call.tell(content, lambda _: _show(found, call.screen))
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
        if not screen.is_terminal:  # there paths stay whole
            screen.print(Text(f"{finding.state:<7}  {finding.what}  ") + words)
    if screen.is_terminal:
        screen.print(table)
    count = {state: sum(f.state == state for f in found) for state in STYLES}
    counts = [say_count(count[state], state) for state in ("problem", "warning")]
    screen.print(f"{', '.join(counts)}, {count['ok']} ok")
