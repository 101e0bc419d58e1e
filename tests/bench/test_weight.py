"""What is counted of a tree of files is what a person counts in it."""

from __future__ import annotations

import pytest

from bench.weight import count, draw, find_private, find_twice, read_imports

TREE = {
    "house/__init__.py": "",
    "house/roof.py": "from house.hall import stairs\nimport json\n",
    "house/hall/__init__.py": "",
    "house/hall/door.py": "from house.hall.stairs import STEPS\n",
    "house/hall/stairs.py": "from house import cellar\n\nSTEPS = cellar.DEPTH\n",
    "house/cellar.py": "DEPTH = 3\n\n\ndef look():\n    import house.tank\n",
    "house/tank.py": "import house.cellar\n",
    "house/shed.py": "",
}


@pytest.fixture
def root(tmp_path):
    for name, text in TREE.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_a_circle_of_rooms_is_one_floor(root):
    drawn = draw(read_imports(root, "house"), "house")
    assert drawn == {"rooms": 5, "floors": 3, "arrows": 4, "circles": 1}


def test_an_inner_folder_has_rooms_of_its_own(root):
    drawn = draw(read_imports(root, "house"), "house.hall")
    assert drawn == {"rooms": 2, "floors": 2, "arrows": 1, "circles": 0}


def test_code_is_no_docstring_import_comment_or_blank(tmp_path):
    text = '"""A\nfile."""\n\nfrom a import (\n    b,\n)\n\n# why\nC = b()  # how\n"""A C."""\n'
    (tmp_path / "file.py").write_text(f'{text}\n\ndef d():\n    """Do."""\n    return """\n"""\n')
    assert count([tmp_path / "file.py"]) == {"files": 1, "lines": 16, "code": 4}


def test_a_class_in_two_folders_stands_for_two_things(tmp_path):
    for folder, text in {
        "service": "class A:\n    class B: ...\n",
        "workers": "class A: ...",
    }.items():
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "file.py").write_text(text)
    assert find_twice(tmp_path) == {"A": 2}


def test_a_private_member_is_one_that_we_do_not_define(tmp_path):
    (tmp_path / "service").mkdir()
    (tmp_path / "service/file.py").write_text(
        "from ray._raylet import GcsClient\n"
        "from ray.tune import _Bracket, Tuner\n"
        "class A:\n"
        "    def _mine(self): return self._mine() and Tuner()._theirs and self.__dict__\n"
        "    def set(self): self._kept = self._kept\n"
    )
    assert find_private(tmp_path) == {"GcsClient", "_Bracket", "_theirs"}
