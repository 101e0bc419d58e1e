"""What a person gets who installs a wheel."""

from __future__ import annotations

import ast
import configparser
import os
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
import types
import zipfile
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[1]
ROOMS = ("models", "tasks", "search_spaces", "workers", "service")


@pytest.fixture(scope="module")
def wheel(wheel_file: Path) -> Iterator[zipfile.ZipFile]:
    with zipfile.ZipFile(wheel_file) as opened:
        yield opened


def test_a_wheel_holds_every_file_of_every_room(source: Path, wheel: zipfile.ZipFile) -> None:
    expected = {
        f"eigensweep/{path.relative_to(folder).as_posix()}"
        for folder, room in [*((source, room) for room in ROOMS), (source / "eigensweep", "")]
        for path in (folder / room).rglob("*")
        if path.is_file()
    }

    assert expected - set(wheel.namelist()) == set()
    kinds = {Path(name).suffix for name in expected}
    assert {".py", ".yaml", ".mako"} <= kinds, "presets and templates are part of it"
    assert any("migrations/versions/" in name for name in expected)


def test_a_wheel_brings_the_command_line_and_the_licence(wheel: zipfile.ZipFile) -> None:
    (entry_points,) = (n for n in wheel.namelist() if n.endswith("entry_points.txt"))
    scripts = configparser.ConfigParser()
    scripts.read_string(wheel.read(entry_points).decode())

    assert scripts["console_scripts"]["eigensweep"] == "eigensweep.command.cli:main"
    assert any(name.endswith("licenses/LICENSE") for name in wheel.namelist())


@pytest.mark.slow
def test_a_wheel_of_the_source_distribution_holds_the_same(
    source: Path, wheel: zipfile.ZipFile
) -> None:
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", "both", "."]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True)

    assert done.returncode == 0, done.stdout + done.stderr
    (file,) = (source / "both").glob("*.whl")
    with zipfile.ZipFile(file) as from_source:
        assert sorted(from_source.namelist()) == sorted(wheel.namelist())


def test_an_installation_adds_one_package(installed: Any) -> None:
    added = {path.name for path in installed.site_packages.iterdir()} - {"dependencies.pth"}

    assert {name.partition("-")[0] for name in added} == {"eigensweep"}
    assert "eigensweep" in added


def test_the_command_line_starts_beside_files_of_its_names(
    installed: Any, research_folder: Path
) -> None:
    done = installed.run("eigensweep", "--version", cwd=research_folder)

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("eigensweep ")


@pytest.mark.slow
def test_a_notebook_trains_beside_files_of_the_same_names(
    installed: Any, research_folder: Path
) -> None:
    program = """
import sys
assert "" in sys.path, "a notebook imports from its own folder first"
import eigensweep
from eigensweep import Client, train
result = train({
    "task": {"name": "copying", "delay": 3, "symbols": 2, "valid_size": 8, "test_size": 8},
    "model": {"name": "lstm", "hidden_size": 4},
    "training": {"steps": 2, "evaluate_every": 1},
})
print(eigensweep.__file__, result.value > 0)
"""
    done = installed.run("python", "-W", "ignore", "-c", program, cwd=research_folder)

    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(installed.site_packages / "eigensweep/__init__.py"), "True"]


@pytest.mark.slow
def test_an_editable_installation_sees_new_files_from_anywhere(
    source: Path, clean_environment: Any, tmp_path: Path
) -> None:
    environment = clean_environment(tmp_path / "venv")
    environment.install("--editable", str(source))
    new = source / "models/added_later.py"
    new.write_text("HERE = 1\n")
    program = "from eigensweep.models.added_later import HERE; print(HERE)"

    done = environment.run("python", "-c", program, cwd=tmp_path)
    new.unlink()

    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr


def normalise(distribution: str) -> str:
    """Return a distribution's name in the one form that all its spellings have."""
    return re.sub(r"[-_.]+", "-", distribution).lower()


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_setup_refuses_a_copy_whose_links_became_text_files(tmp_path: Path) -> None:
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "eigensweep").mkdir()
    (tmp_path / "eigensweep/models").write_text("../models")

    done = subprocess.run(["make", "setup"], cwd=tmp_path, capture_output=True, text=True)

    assert done.returncode != 0
    assert "this copy was made without symbolic links. Use 'git clone'" in done.stdout
    assert not (tmp_path / ".venv").exists()


class TestInstallProgram:
    """`.ci/install.py` lets uv install what pip would install."""

    program = runpy.run_path(str(ROOT / ".ci/install.py"))

    def test_uv_is_told_where_pip_looks_and_variables_beat_files(self):
        settings = self.program["parse_settings"](
            ":env:.find-links='/wheels /more'\n"
            "global.cert='/etc/ca.pem'\n"
            "global.extra-index-url='\\nfile:///one/simple\\nhttps://two.example/simple'\n"
            "global.find-links='/never'\n"
            "global.index-url='https://zero.example/simple'\n"
            "install.no-compile='true'\n"
            "wheel.no-index='true'\n"
        )

        assert self.program["translate"](settings) == {
            "SSL_CERT_FILE": "/etc/ca.pem",
            "UV_DEFAULT_INDEX": "https://zero.example/simple",
            "UV_FIND_LINKS": "/wheels,/more",
            "UV_INDEX": "file:///one/simple https://two.example/simple",
            "UV_INDEX_STRATEGY": "unsafe-best-match",
        }

    def test_pip_installs_where_uv_has_no_word_for_a_setting(self):
        settings = self.program["parse_settings"]("global.client-cert='/me.pem'\n")

        assert self.program["translate"](settings) is None

    def test_constraints_of_ones_own_count_beside_ours(self):
        settings = self.program["parse_settings"](
            "global.constraint='/etc/pip/caps.txt https://two.example/caps.txt'\n"
        )

        assert self.program["translate"](settings) == {"UV_INDEX_STRATEGY": "unsafe-best-match"}
        assert self.program["name_files"](settings) == [
            *("--constraint", "/etc/pip/caps.txt"),
            *("--constraint", "https://two.example/caps.txt"),
        ]

    def choose(self, settings=(), environment=(), **others):
        given = {"platform": "linux", "has_gpu": False, "answers": lambda url: True, **others}
        return self.program["choose_torch"](dict(settings), dict(environment), **given)

    def test_who_has_no_gpu_gets_torch_for_processors(self):
        asked = []

        chosen, words = self.choose(answers=lambda url: asked.append(url) or True)

        assert chosen
        assert "build for processors" in words
        assert asked == ["https://download.pytorch.org/whl/cpu/torch/"]

    def test_where_that_index_is_away_the_ordinary_build_comes(self):
        chosen, words = self.choose(answers=lambda url: False)

        assert not chosen
        assert "does not answer: torch comes in its ordinary build" in words

    def test_a_wheel_on_the_disk_comes_before_any_index(self, tmp_path):
        (tmp_path / "torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl").touch()

        for folder in (str(tmp_path), f"file://{tmp_path}"):
            settings = {"find-links": f"/none {folder}"}
            chosen, words = self.choose(settings, answers=lambda url: pytest.fail("was asked"))
            assert not chosen
            assert words.endswith(f"from {folder}")

    @pytest.mark.parametrize(
        ("settings", "environment", "others"),
        [
            ({}, {}, {"has_gpu": True}),
            ({}, {}, {"platform": "darwin"}),
            ({}, {"UV_TORCH_BACKEND": "cu130"}, {}),
            ({"no-index": "true"}, {}, {}),
            ({"extra-index-url": "https://download.pytorch.org/whl/cu130"}, {}, {}),
        ],
    )
    def test_a_gpu_or_a_choice_of_one_s_own_is_left_alone(self, settings, environment, others):
        others = {"answers": lambda url: pytest.fail("was asked"), **others}

        assert self.choose(settings, environment, **others) == (False, "")

    def test_an_index_of_pytorch_that_is_away_is_asked_once(self, monkeypatch, capsys):
        program, commands, asked = self.program["main"].__globals__, [], []
        silent = "https://download.pytorch.org/whl/cpu"

        def run(command, **options):
            commands.append((command, options.get("env")))
            listed = f"global.extra-index-url='https://own.example/simple {silent}'\n"
            listed += "global.timeout='7'\n"
            return subprocess.CompletedProcess(command, 0, stdout=listed)

        def answers(url):
            asked.append(url)
            return False

        leave_out, choose = program["leave_out_silent"], program["choose_torch"]
        monkeypatch.setitem(program, "subprocess", types.SimpleNamespace(run=run))
        monkeypatch.setitem(
            program, "leave_out_silent", lambda settings: leave_out(settings, answers)
        )
        monkeypatch.setitem(
            program,
            "choose_torch",
            lambda *given, has_gpu: choose(
                *given, platform="linux", has_gpu=False, answers=answers
            ),
        )
        monkeypatch.setenv("PIP_EXTRA_INDEX_URL", silent)

        assert program["main"]() == 0
        _, (get_uv, of_pip), (_, of_uv) = commands
        assert get_uv[-1] == "uv"
        assert of_pip["PIP_EXTRA_INDEX_URL"] == "https://own.example/simple"
        assert (of_pip["PIP_TIMEOUT"], of_pip["PIP_CONFIG_FILE"]) == ("7", os.devnull)
        assert of_uv["UV_INDEX"] == "https://own.example/simple"
        assert asked == [f"{silent}/", f"{silent}/torch/"]
        said = capsys.readouterr().out.splitlines()
        assert said[0] == f"{silent} does not answer, and is left out"
        assert said[1].endswith("its ordinary build, with gigabytes for GPUs")
        assert len(said) == 2

    def test_an_index_of_one_s_own_is_kept(self, monkeypatch, capsys):
        program, commands = self.program["main"].__globals__, []

        def run(command, **options):
            commands.append((command, options.get("env")))
            listed = ":env:.extra-index-url='https://own.example/simple'\n"
            return subprocess.CompletedProcess(command, 0, stdout=listed)

        monkeypatch.setitem(program, "subprocess", types.SimpleNamespace(run=run))
        monkeypatch.setitem(program, "choose_torch", lambda *_, **__: (True, "said"))

        assert program["main"]() == 0
        command, environment = commands[-1]
        assert command[command.index("--torch-backend") + 1] == "cpu"
        assert environment["UV_INDEX"] == "https://own.example/simple"
        assert capsys.readouterr().out == "said\n"


def test_everything_that_is_imported_is_declared(source: Path) -> None:
    project = tomllib.loads((source / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    requirements = project["dependencies"] + [each for extra in extras.values() for each in extra]
    declared = {normalise(re.split(r"[\[><=]", each)[0]) for each in requirements}
    declared |= {"pydantic-core", "starlette", "markupsafe"}  # of pydantic, FastAPI, Jinja
    modules = set()
    for file in source.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                modules |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                modules.add(node.module.partition(".")[0])
    foreign = modules - set(sys.stdlib_module_names) - {"eigensweep"}

    found = packages_distributions()
    assert {m for m in foreign if not {normalise(d) for d in found[m]} & declared} == set()


def test_models_and_tasks_need_torch_numpy_and_pydantic_only():
    program = """
import sys
from importlib.abc import MetaPathFinder
from importlib.metadata import packages_distributions

ours = {"eigensweep"}
allowed = {"torch", "numpy", "pydantic", "pydantic-core", "typing-extensions", "annotated-types"}
allowed |= {"typing-inspection", "sympy", "mpmath", "networkx", "filelock", "fsspec", "jinja2"}
allowed |= {"markupsafe", "setuptools"}
owners = packages_distributions()

class Absent(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        of = {o.lower().replace("_", "-") for o in owners.get(name.partition(".")[0], [])}
        if of and not of & allowed and name.partition(".")[0] not in ours:
            raise ModuleNotFoundError(f"{name} is not there", name=name)

sys.meta_path.insert(0, Absent())
import eigensweep.models, eigensweep.models.analysis, eigensweep.models.stack, eigensweep.tasks
print(len(eigensweep.models.MODELS), len(eigensweep.tasks.TASKS))
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert min(int(count) for count in done.stdout.split()) > 0


def test_the_citation_names_the_project_and_its_version() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

    assert {"cff-version", "message", "title", "authors"} <= cited.keys()
    assert (cited["cff-version"], cited["type"]) == ("1.2.0", "software")
    assert (cited["version"], cited["license"]) == (project["version"], project["license"])
    name, words = cited["title"].split(": ")
    assert (name.lower(), words.lower()) == (project["name"], project["description"].lower())
    for each in [cited, *cited["references"]]:
        assert {"title", "authors"} <= each.keys()
        assert all("name" in a or {"family-names", "given-names"} <= a.keys()
                   for a in each["authors"])  # fmt: skip
