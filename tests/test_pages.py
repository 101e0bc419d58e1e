"""The README keeps its word: links, tables, examples."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from typer.testing import CliRunner

from eigensweep.models import MODELS
from eigensweep.search_spaces.presets import preset_names
from eigensweep.search_spaces.tables import PAGE, markdown
from eigensweep.service.client import Client
from eigensweep.service.command.cli import app
from eigensweep.service.settings import Settings
from eigensweep.tasks import TASKS

ROOT = Path(__file__).parents[1]
PAGES = ["README.md", "ARCHITECTURE.md", "CHANGELOG.md", PAGE, "docs/results.md"]
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def section(title: str) -> str:
    return README.split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]


def first_cells(text: str) -> set[str]:
    cells = re.findall(r"^\| (`.+?`) \|", text, re.MULTILINE)
    return {name for cell in cells for name in re.findall("`([^`]+)`", cell)}


@pytest.mark.parametrize("page", PAGES)
def test_relative_links_resolve(page: str) -> None:
    text = (ROOT / page).read_text()
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text)

    folder = (ROOT / page).parent
    missing = [link for link in links if "://" not in link and not (folder / link).exists()]

    assert missing == []


def test_the_tables_name_every_model_and_task_that_ships() -> None:
    shipped = {name for name, cls in MODELS.items() if cls.__module__.startswith("eigensweep.")}
    assert first_cells(section("Models")) == shipped
    assert first_cells(section("Tasks")) == {
        name for name, cls in TASKS.items() if cls.__module__.startswith("eigensweep.")
    }


def test_the_table_of_settings_names_every_setting() -> None:
    expected = {f"EIGENSWEEP_{name.upper()}" for name in Settings.model_fields}

    assert first_cells(section("Settings")) == expected


def test_the_field_tables_are_those_of_the_code() -> None:
    page = (ROOT / PAGE).read_text()
    printed = page.split("<!-- fields -->\n\n", 1)[1].split("\n<!-- end of fields -->", 1)[0]

    assert printed == markdown(), "run: python -m eigensweep.search_spaces.tables --write"


def test_the_curl_example_is_accepted_and_makes_six_trials(scripted_service: str) -> None:
    (command,) = (block for block in blocks("bash") if block.startswith("curl"))
    words = shlex.split(command.replace("\\\n", ""))
    body = json.loads(words[words.index("-d") + 1])

    with Client(scripted_service) as client:
        experiment = client.submit(body).wait(timeout=60)

    assert (experiment.state, experiment.content["progress"]["completed"]) == ("completed", 6)
    (address,) = (word for word in words if "://" in word)
    assert urlsplit(address).path == "/v1/experiments"
    assert urlsplit(address).port == Settings.model_fields["port"].default


@pytest.mark.usefixtures("_no_environment")
def test_the_client_example_runs(
    scripted_service: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EIGENSWEEP_URL", scripted_service)
    (example,) = (block for block in blocks("python") if "Client" in block)
    names: dict[str, Any] = {}

    exec(example, names)

    assert names["experiment"].state == "completed"
    assert len(names["frame"]) == 9
    assert f"{names['best']['value']} {names['best']['arm']}" in capsys.readouterr().out


def test_the_training_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = (block for block in blocks("python") if "train(" in block)
    names: dict[str, Any] = {}

    exec(example, names)

    assert names["result"].outcome == "completed"
    assert f"{names['result'].value} {names['result'].baseline}" in capsys.readouterr().out
    assert max(names["steps"]) == 50


def test_the_command_line_examples_name_commands_options_and_presets_that_exist() -> None:
    (examples,) = (block for block in blocks("bash") if block.startswith("eigensweep submit"))
    for example in examples.splitlines():
        words = shlex.split(example, comments=True)
        asked = CliRunner().invoke(app, [words[1], "--help"])
        assert asked.exit_code == 0, example
        for word in words[2:]:
            assert not word.startswith("--") or word in asked.output, example
            assert "/" not in word or word in preset_names(), example
