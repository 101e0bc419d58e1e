"""What `make run` says at its end."""

from __future__ import annotations

import io
import sys
from pathlib import Path

from rich.console import Console

from eigensweep.command.quickstart import print_next_steps


def test_paths_with_spaces_can_be_pasted_into_a_shell(tmp_path, monkeypatch):
    programs = tmp_path / "my clone" / "bin"
    programs.mkdir(parents=True)
    (programs / "activate").touch()
    monkeypatch.setattr(sys, "executable", str(programs / "python"))
    monkeypatch.setenv("PATH", "")
    screen = Console(file=io.StringIO())
    print_next_steps(Path("/tmp/my home"), screen)
    assert isinstance(screen.file, io.StringIO)
    told = screen.file.getvalue()
    assert "EIGENSWEEP_HOME='/tmp/my home' make serve" in told
    assert f"source '{programs}/activate'" in told
