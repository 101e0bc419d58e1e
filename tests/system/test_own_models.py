"""Own models and tasks: a file and a line in the project, or an installed package."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("eigensweep", "models", "tasks", "search_spaces", "workers", "service")

MODEL = '''
"""A tanh RNN whose recurrent matrix is scaled by a constant."""

from typing import Literal

from pydantic import Field

from eigensweep.models.vanilla import TanhRNN


class {cls}Config(TanhRNN.Config):
    name: Literal["{name}"] = "{name}"
    damping: float = Field(0.9, gt=0, le=1, description="Factor on W")


class {cls}(TanhRNN):
    Config = {cls}Config

    def recurrent_matrix(self):
        return self.config.damping * super().recurrent_matrix()
'''

TASK = """
from typing import Literal

from eigensweep.tasks.copying import Copying


class EchoConfig(Copying.Config):
    name: Literal["echo"] = "echo"
    delay: int = 3


class Echo(Copying):
    Config = EchoConfig
"""

FIRST_LINE = '        "tanh_rnn": TanhRNN,\n'


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return a copy of the project with one model more, and a folder with an installed package."""
    project, site = tmp_path_factory.mktemp("project"), tmp_path_factory.mktemp("site")
    for room in ROOMS:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / room, project / room, ignore=ignored, symlinks=True)
    (project / "models/damped.py").write_text(MODEL.format(name="damped", cls="Damped"))
    registry = project / "models/__init__.py"
    text = registry.read_text().replace(FIRST_LINE, FIRST_LINE + '        "damped": Damped,\n')
    line = "from eigensweep.models.asrnn import AsRNN\n"
    registry.write_text(text.replace(line, line + "from eigensweep.models.damped import Damped\n"))
    (site / "lab.py").write_text(MODEL.format(name="lab_damped", cls="LabDamped") + TASK)
    metadata = site / "lab-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: lab\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(
        "[eigensweep.models]\nlab_damped = lab:LabDamped\nlost = lab:Lost\n"
        "[eigensweep.tasks]\necho = lab:Echo\nlost = lab_without_this_file:Lost\n"
    )
    return project, site


@pytest.mark.slow  # test_seeded_killer.py trains a model of an installed package
def test_own_models_and_tasks_are_posted_searched_and_trained(
    paths: tuple[Path, Path], service: Any
) -> None:
    service.env["PYTHONPATH"] = ":".join(map(str, paths))
    service.start()

    posted = service.post(
        {
            "task": {"name": "echo", "symbols": 2, "valid_size": 8, "test_size": 8},
            "arms": [
                {"model": {"name": "damped", "hidden_size": 4}},
                {"model": {"name": "lab_damped", "hidden_size": 4}},
            ],
            "training": {"steps": 10, "evaluate_every": 5},
            "search": {"space": {"model.damping": [0.5, 1.0]}},
        }
    )

    experiment = service.wait(posted["id"])
    assert experiment["state"] == "completed"
    trials = service.trials(posted["id"])
    assert {(t["arm"], t["params"]["model.damping"]) for t in trials} == {
        (arm, damping) for arm in ("damped", "lab_damped") for damping in (0.5, 1.0)
    }
    assert all(t["state"] == "completed" and t["value"] is not None for t in trials)
    models, tasks = service.get("/v1/models"), service.get("/v1/tasks")
    assert {"damped", "lab_damped"} <= {model["name"] for model in models["items"]}
    assert [one["entry_point"] for one in models["left_out"]] == ["lost = lab:Lost (lab 1.0)"]
    assert "lab_without_this_file" in tasks["left_out"][0]["reason"]


@pytest.mark.slow
def test_a_changed_equation_is_trained_anew(paths: tuple[Path, Path], service: Any) -> None:
    service.env["PYTHONPATH"] = ":".join(map(str, paths))
    service.start()
    spec = {
        "task": {"name": "copying", "delay": 3, "symbols": 2, "valid_size": 8, "test_size": 8},
        "model": {"name": "lab_damped", "hidden_size": 4},
        "training": {"steps": 10, "evaluate_every": 5},
        "search": {"space": {"model.damping": [0.5, 1.0]}},
    }

    def run(**fields: Any) -> tuple[str, list[str], list[Any]]:
        id = service.post({**spec, **fields})["id"]
        service.wait(id)
        found = service.get(f"/v1/experiments/{id}")["reused_from"]
        return id, found, sorted((t["state"], t["value"]) for t in service.trials(id))

    first, sources, trained = run()
    assert (sources, [state for state, _ in trained]) == ([], ["completed"] * 2)
    _, sources, again = run()
    assert (sources, [state for state, _ in again]) == ([first], ["reused"] * 2)
    assert run(reuse=False)[1:] == ([], trained)
    module = paths[1] / "lab.py"
    module.write_text(module.read_text().replace("return self", "return 0.5 * self"))
    _, sources, changed = run()
    assert (sources, [state for state, _ in changed]) == ([], ["completed"] * 2)
    assert changed != trained
