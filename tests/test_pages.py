"""Every page keeps its word: links, tables, commands and examples."""

from __future__ import annotations

import ast
import json
import os
import re
import runpy
import shlex
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from textwrap import dedent
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit

import pytest
import typer
import yaml
from helpers.waiting import PATIENCE

import eigensweep
from eigensweep.analyses import ANALYSES
from eigensweep.client import Client
from eigensweep.command.cli import app
from eigensweep.common.variables import KNOWN
from eigensweep.models import MODELS
from eigensweep.reports import book
from eigensweep.search_spaces.shipped.presets import preset_names
from eigensweep.search_spaces.shipped.reproductions import suite_names
from eigensweep.search_spaces.tables import END, PAGE, START, markdown
from eigensweep.service.settings import Settings
from eigensweep.tasks import TASKS
from eigensweep.tasks.corpora import all_under

ROOT = Path(__file__).parents[1]
PAGES = sorted(str(p.relative_to(ROOT)) for p in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
ROOMS = ("models", "tasks", "search_spaces", "workers", "service", "eigensweep", "bench", "tests")
FOREIGN = {"tune.Tuner", "Tuner.restore", "torch.vmap"}
"""Names of libraries on the pages."""
GENERATED = runpy.run_path(str(ROOT / "docs/generate.py"))
ASSIGNMENT = re.compile(r"\w+=.*")


@cache
def read(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(page: str, *languages: str) -> list[str]:
    """Return the code blocks of a page in one of the languages."""
    found = re.findall(r"^ *```(\w*)\n(.*?)^ *```", read(page), re.MULTILINE | re.DOTALL)
    return [dedent(text) for language, text in found if language in languages]


def pages_with(*languages: str) -> list[str]:
    return [page for page in PAGES if blocks(page, *languages)]


def first_cells(page: str) -> set[str]:
    cells = re.findall(r"^\| (`.+?`) \|", read(page), re.MULTILINE)
    return {name for cell in cells for name in re.findall("`([^`]+)`", cell)}


def anchors(page: Path) -> set[str]:
    """Return what GitHub makes of a page's headings."""
    heads = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES)
def test_relative_links_resolve(page: str) -> None:
    prose = re.sub(r"^```.*?^```", "", read(page), flags=re.MULTILINE | re.DOTALL)
    broken = []
    for link in re.findall(r"\]\(([^)]+)\)", prose):
        if "://" in link:
            continue
        place, _, anchor = link.partition("#")
        target = (ROOT / page).parent / place if place else ROOT / page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)

    assert broken == []


def test_every_page_of_docs_is_in_the_index() -> None:
    listed = set()
    for index in ("docs/README.md", "docs/design/README.md"):
        linked = re.findall(r"\]\(([^)#]+)\)", read(index))
        listed |= {
            str((ROOT / index).parent.joinpath(p).resolve().relative_to(ROOT)) for p in linked
        }

    assert {page for page in PAGES if page.startswith("docs/")} - listed == {"docs/README.md"}


def test_the_tables_name_every_model_task_and_setting() -> None:
    ours = [
        {n for n, c in r.items() if c.__module__[:11] == "eigensweep."} for r in (MODELS, TASKS)
    ]

    assert first_cells("docs/reference/models.md") == ours[0]
    assert first_cells("docs/reference/tasks.md") == ours[1]
    assert first_cells("docs/reference/settings.md") == {
        f"EIGENSWEEP_{name.upper()}" for name in Settings.model_fields
    }


def test_the_field_tables_are_those_of_the_code() -> None:
    printed = read(PAGE).partition(START)[2].partition(END)[0]

    assert printed == markdown(), "run: python -m eigensweep.search_spaces.tables --write"


@pytest.mark.usefixtures("_no_environment")
def test_the_schema_for_editors_is_that_of_the_code():
    written = (ROOT / "docs/reference" / GENERATED["SCHEMA"]).read_text()
    assert written == GENERATED["document_schema"](), "run: python docs/generate.py"


@pytest.mark.usefixtures("_no_environment")
def test_the_examples_of_the_api_are_what_a_played_service_says():
    written = GENERATED["EXAMPLES"].read_text()
    assert written == GENERATED["document_examples"](), "run: python docs/generate.py"


@pytest.mark.parametrize("page", GENERATED["PARTS"])
def test_generated_pages_are_those_of_the_code(page: str) -> None:
    printed = GENERATED["read_part"](ROOT / "docs/reference" / page)

    assert printed == GENERATED["PARTS"][page]().strip() + "\n", "run: python docs/generate.py"


def commands(page: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the command lines of a page, each with its words, without variables and pipes."""
    typed = blocks(page, "bash", "")
    lines = [line for block in typed for line in block.replace("\\\n", " ").splitlines()]
    shown = "\n".join(blocks(page, "console"))
    lines += re.findall(r"^\$ (.*)$", shown.replace("\\\n", " "), re.MULTILINE)
    for line in lines:
        for part in re.split(r" (?:&&|\|) ", line):
            try:
                words = shlex.split(part, comments=True)
            except ValueError:  # a JSON body over several lines
                continue
            while words and ASSIGNMENT.fullmatch(words[0]):
                words = words[1:]
            if words:
                yield line, [word for word in words if word != "&"]


@cache
def make_command() -> Any:
    """Return the program's command, with all commands below it."""
    return typer.main.get_command(app)


def check_eigensweep(words: list[str]) -> None:
    """Refuse a command line that the program would refuse, or that names what does not exist."""
    if words in (["--help"], ["--version"]):
        return
    command, kind = make_command(), words[0]
    while hasattr(command, "commands"):
        assert words[0] in command.commands, f"no command '{words[0]}'"
        command, words = command.commands[words[0]], words[1:]
    context = command.make_context("eigensweep", list(words))
    arguments = [p.name for p in command.params if p.param_type_name == "argument"]
    name = context.params[arguments[0]] if arguments else None
    known: dict[str, Any] = {
        "analyse": ANALYSES,
        "analyses": ANALYSES,
        "models": MODELS,
        "tasks": TASKS,
        "presets": preset_names(),
        "reproduce": suite_names(),
    }
    if kind in known and name is not None:
        assert set([name] if isinstance(name, str) else name) <= set(known[kind])
    if kind in ("submit", "preview") and not str(name).endswith((".yaml", ".json", "-")):
        assert name in preset_names()
    if kind == "data" and "names" in context.params:
        assert set(context.params["names"] or ()) <= set(all_under(ROOT))


def check_python(words: list[str]) -> None:
    """Refuse a module, a script or an option that does not exist."""
    path = ROOT / words[0]
    if words[0] == "-m":
        path, words = ROOT / words[1].replace(".", "/"), words[1:]
        path = path / "__main__.py" if path.is_dir() else path.with_suffix(".py")
    assert path.exists()
    files = [*path.parent.glob("*.py")]
    if path.stem == "__main__":
        files += path.parents[1].glob("*.py")
    text = "".join(file.read_text(encoding="utf-8") for file in files)
    for option in (word for word in words if word.startswith("--")):
        assert f'"{option}"' in text, f"{path.name} has no option {option}"


@pytest.mark.usefixtures("_no_environment")
@pytest.mark.parametrize("page", PAGES)
def test_commands_exist_and_take_their_options(page: str) -> None:
    targets = re.findall(r"^([a-z-]+):", read("Makefile"), re.MULTILINE)
    for line, (program, *words) in commands(page):
        if program.endswith("eigensweep"):
            check_eigensweep(words)
        elif program.endswith("python"):
            check_python(words)
        elif program == "make":
            assert [w for w in words if not ASSIGNMENT.fullmatch(w) and w not in targets] == [], (
                line
            )
        elif program.endswith("pytest"):
            places = [w.partition("::") for w in words if "/" in w]
            assert all((ROOT / file).exists() for file, _, _ in places), line
            assert all(f"def {name}(" in read(file) for file, _, name in places if name), line


@pytest.mark.parametrize("page", pages_with("yaml"))
def test_specs_in_yaml_are_accepted_by_the_service(page: str, scripted_service: str) -> None:
    with Client(scripted_service, timeout=PATIENCE) as client:
        for text in blocks(page, "yaml"):
            seen = client.preview(yaml.safe_load(text))
            assert seen["arms"], text


def test_the_readmes_example_searches_ranges_with_a_condition(scripted_service: str) -> None:
    (spec,) = (yaml.safe_load(text) for text in blocks("README.md", "yaml"))
    with Client(scripted_service, timeout=PATIENCE) as client:
        seen = client.preview(spec)

    assert (spec["search"]["method"], spec["scheduler"]["name"]) == ("tpe", "asha")
    assert seen["trials"] == spec["search"]["trials"]
    for arm in seen["arms"]:
        assert [axis["path"] for axis in arm["axes"] if axis["conditional"]] == ["optimizer.alpha"]
        assert arm["points"] is None


@pytest.mark.parametrize("page", [p for p in pages_with("bash") if "curl" in read(p)])
def test_curl_examples_are_accepted(page: str, scripted_service: str) -> None:
    for command in (text for text in blocks(page, "bash") if text.startswith("curl")):
        words = shlex.split(command.replace("\\\n", ""))
        (address,) = (word for word in words if "://" in word)
        assert urlsplit(address).port == Settings.model_fields["port"].default
        with Client(scripted_service, timeout=PATIENCE) as client:
            if urlsplit(address).path != "/v1/experiments":
                client.post(urlsplit(address).path, json.loads(words[words.index("-d") + 1]))
                continue
            experiment = client.submit(json.loads(words[words.index("-d") + 1])).wait(
                timeout=PATIENCE
            )

        assert (experiment.state, experiment.content["progress"]["completed"]) == ("completed", 6)


@pytest.mark.usefixtures("_no_environment")
@pytest.mark.parametrize("page", pages_with("python"))
def test_python_examples_run(
    page: str, scripted_service: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("EIGENSWEEP_URL", scripted_service)
    monkeypatch.chdir(tmp_path)
    module = ModuleType("example")
    monkeypatch.setitem(sys.modules, "example", module)  # where pydantic looks annotations up
    models, tasks = set(MODELS), set(TASKS)
    names = vars(module)
    try:
        for example in blocks(page, "python"):
            exec(compile(example, page, "exec", dont_inherit=True), names)
    finally:
        for name in set(MODELS) - models:
            del MODELS[name]
        for name in set(TASKS) - tasks:
            del TASKS[name]

    if page == "README.md":
        assert names["experiment"].state == "completed"
        assert len(names["frame"]) == 9
        assert names["result"].outcome == "completed"
        assert max(names["steps"]) == 50


def test_the_page_of_the_papers_is_made_of_its_results() -> None:
    """After a change of rules or suites: `eigensweep reproduce --page-only`."""
    page, place = ROOT / "docs" / "reproduction.md", ROOT / "docs" / "reproduction"
    shown = book.read(place / "results")
    made = book.write(shown, place / "results", page)
    assert made == page.read_text(encoding="utf-8")
    assert all((place / book.name_picture(name)).is_file() for name in shown)
    assert sum(path.stat().st_size for path in (place / "results").iterdir()) < 8_000_000


def test_the_reference_lists_each_environment_variable() -> None:
    listed = set(re.findall(r"`(EIGENSWEEP_\w+)`", read("docs/reference/settings.md")))

    unlisted = {"EIGENSWEEP_STARTED_BY"}  # nobody sets it by hand
    assert listed | unlisted == KNOWN, "bring eigensweep/common/variables.py up to date"


@cache
def read_sources() -> dict[Path, str]:
    """Return the text of each file of Python of the project."""
    files = (p for room in ROOMS for p in (ROOT / room).rglob("*.py"))
    return {path: path.read_text(encoding="utf-8") for path in files}


def walk_statements(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the statements in a part of a program, but no expression: those are ten times more."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.expr):
            yield child
            yield from walk_statements(child)


@cache
def list_definitions(path: Path) -> set[str]:
    """Return a file's classes, functions, members and constants, its name, and its JSON files."""
    text = read_sources()[path]
    found = {path.stem, path.parent.name, *re.findall(r"[\"'](\w+\.json)[\"']", text)}
    for node in walk_statements(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {t.id for t in targets if isinstance(t, ast.Name)}
        if isinstance(node, ast.ClassDef):
            members = [n for n in node.body if isinstance(n, ast.FunctionDef)]
            found |= {f"{node.name}.{member.name}" for member in members}
            fields = [n.target for n in node.body if isinstance(n, ast.AnnAssign)]
            found |= {f"{node.name}.{t.id}" for t in fields if isinstance(t, ast.Name)}
    return found


def is_defined(name: str) -> bool:
    """Tell whether a library or the project defines a name; parses those files that may."""
    last = name.rpartition(".")[2]
    may = re.compile(rf"(?:def|class)\s+{last}\b|\b{last}\s*[:=]|[\"']{re.escape(name)}[\"']")
    return name in FOREIGN or any(
        name in list_definitions(path)
        for path, text in read_sources().items()
        if name in (path.stem, path.parent.name) or (last in text and may.search(text))
    )


@cache
def list_files() -> set[str]:
    """Return the names of all files of the project: not of what is installed, or made."""
    found: set[str] = set()
    for _, folders, files in os.walk(ROOT):
        folders[:] = [each for each in folders if each == ".ci" or not each.startswith(".")]
        found.update(files)
    return found


NOTES = sorted(f"docs/design/{path.name}" for path in (ROOT / "docs/design").glob("0*.md"))


def test_each_invariant_names_the_test_that_guards_it() -> None:
    section = read("ARCHITECTURE.md").partition("## Seven invariants")[2]
    invariants = re.findall(r"^\d\. .*?(?=^\d\. |^$)", section, re.MULTILINE | re.DOTALL)

    assert len(invariants) == 7
    for each in invariants:
        guards = re.findall(r"\((tests/[\w/]+\.py)\)", each)
        assert guards, each
        assert all((ROOT / guard).exists() for guard in guards)


@pytest.mark.parametrize("page", NOTES)
def test_a_design_note_has_the_parts_of_one(page: str) -> None:
    parts = re.findall(r"^## (.*)$", read(page), re.MULTILINE)

    assert parts == ["Problem", "Decision", "Figures", "What would change it"]


@pytest.mark.parametrize(
    "page", ["ARCHITECTURE.md", "CONTRIBUTING.md", "docs/why-it-works.md", *NOTES]
)
def test_names_and_paths_of_the_code_exist(page: str) -> None:
    prose = re.sub(r"^```.*?^```", "", read(page), flags=re.MULTILINE | re.DOTALL)
    missing = []
    for name in re.findall(r"`([^`\n]+)`", prose):
        if re.search("NAME|PAPER", name):  # to be filled in
            continue
        if "/" in name and re.fullmatch(r"[\w./-]+", name):
            if not (ROOT / name).exists():
                missing.append(name)
        elif re.fullmatch(r"[A-Z]\w*(\.\w+)*|\w+\.\w+|\w*_\w+", name) and "EIGENSWEEP" not in name:
            parts = name.split(".")
            if parts[0] == "eigensweep":
                assert hasattr(eigensweep, parts[1])
                continue
            known = is_defined(name) if len(parts) < 3 else all(map(is_defined, parts))
            if not known and name not in list_files():
                missing.append(name)

    assert missing == []


def test_the_folder_tree_in_architecture_is_the_repositorys() -> None:
    tree = blocks("ARCHITECTURE.md", "text")[0]
    drawn, room = set(), ""
    for indent, name in re.findall(r"^( *)(\w+)/ ", tree, re.MULTILINE):
        room = name if not indent else room
        drawn.add(name if not indent else f"{room}/{name}")
    actual = set(ROOMS)
    for room in ("service", "workers", "eigensweep"):
        inner = (p for p in (ROOT / room).iterdir() if (p / "__init__.py").exists())
        actual |= {f"{room}/{p.name}" for p in inner if not p.is_symlink()}

    assert actual <= drawn
    assert all((ROOT / name).is_dir() for name in drawn)
