"""An installed Eigensweep in a folder whose own files are named as Eigensweep's folders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

SPEC = """
task: {name: copying, delay: 3, symbols: 2, valid_size: 8, test_size: 8}
model: {name: scornn, hidden_size: 4, negative_ones: 2}
training: {steps: 4, evaluate_every: 2}
search: {space: {optimizer.lr: [1e-2]}}
"""


@pytest.fixture
def running(installed: Any, research_folder: Path, service: Any) -> Any:
    """Return a service that was started there with `eigensweep serve`."""
    service.env = {
        **installed.variables,
        **{name: value for name, value in service.env.items() if name.startswith("EIGENSWEEP_")},
    }
    service.command = [str(installed.folder / "bin/eigensweep"), "serve"]
    service.cwd = research_folder
    return service


@pytest.mark.slow  # test_packaging.py starts the wheel; test_serve.py a service beside such files
def test_the_command_line_the_service_and_a_trial_work_there(
    installed: Any, research_folder: Path, running: Any
) -> None:
    (research_folder / "spec.yaml").write_text(SPEC)
    running.start()

    def eigensweep(*words: str) -> str:
        done = installed.run("eigensweep", *words, "--url", running.url, cwd=research_folder)
        assert done.returncode == 0, done.stderr
        return str(done.stdout)

    assert "quickstart" in eigensweep("presets")
    assert "1 trial over 1 point" in eigensweep("preview", "spec.yaml")
    followed = eigensweep("submit", "spec.yaml", "--follow")
    assert "trial 0 scornn completed" in followed
    (experiment,) = running.get("/v1/experiments")["items"]
    assert experiment["state"] == "completed"
