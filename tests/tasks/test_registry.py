"""What installed packages add to the tasks."""

from __future__ import annotations

from pathlib import Path

import pytest

from eigensweep.tasks import TASKS
from eigensweep.tasks.adding import Adding
from eigensweep.tasks.copying import Copying
from eigensweep.tasks.registry import Registry


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Return what puts a package of one module there, with its entry points."""

    def put(points: str, module: str = "") -> Path:
        folder = tmp_path / "toys-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: toys\nVersion: 1.0\n")
        (folder / "entry_points.txt").write_text(points)
        (tmp_path / "toys_of_a_lab.py").write_text(module)
        monkeypatch.syspath_prepend(str(tmp_path))
        return tmp_path

    return put


def test_an_installed_package_adds_its_class_by_name(install):
    install("[eigensweep.tasks]\nsumming = tasks:Adding\n")
    tasks = Registry("eigensweep.tasks", {"copying": Copying})
    assert tasks["summing"] is Adding
    assert next(iter(tasks)) == "copying"


def test_a_name_that_exists_is_refused_with_words(install):
    install("[eigensweep.tasks]\ncopying = tasks:Adding\n")
    tasks = Registry("eigensweep.tasks", {"copying": Copying})
    for _ in range(2):
        with pytest.raises(ValueError, match=r"'copying = tasks:Adding'.*rename it or uninstall"):
            len(tasks)


def test_a_module_that_uses_a_registry_may_add_to_it(install):
    install(
        "[eigensweep.things]\nown = toys_of_a_lab:Own\n",
        "from tasks import TASKS\nfrom models import MODELS\nclass Own: pass\n",
    )
    assert Registry("eigensweep.things", {})["own"].__name__ == "Own"


def test_the_projects_own_come_first_in_their_order():
    assert list(TASKS)[:2] == ["adding", "copying"]
