"""The command line against the real service with scripted drivers."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import httpx2
import pandas as pd
import pytest
import yaml
from helpers.waiting import PATIENCE, wait_until
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from rich.console import Console
from rich.text import Text
from typer.testing import CliRunner, Result

from eigensweep.client import Client, Event, RefusedError, ServiceAwayError, connection
from eigensweep.client.answers.answers import LIST_HEADS, Answer, describe_pareto
from eigensweep.client.answers.tables import DROPPED_FIRST, Table
from eigensweep.client.answers.trial_table import TrialTable
from eigensweep.client.spec_file import InputError, looks_like_a_file, make_spec_of_one
from eigensweep.command import quickstart, terminal
from eigensweep.command.cli import app
from eigensweep.search_spaces.labels import format_share

SPEC = """
name: nine
task: {name: copying, delay: 20}
training: {steps: 100, evaluate_every: 10}
arms:
  - model: {name: lstm, hidden_size: 8}
  - model: {name: scornn, hidden_size: 8, negative_ones: 4}
search: {space: {optimizer.lr: [1e-1, 1e-2]}}
"""

pytestmark = pytest.mark.usefixtures("_no_environment")
Cli = Callable[..., Result]


@pytest.fixture
def cli(scripted_service: str, monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.setenv("EIGENSWEEP_URL", scripted_service)
    return lambda *args, **more: CliRunner().invoke(app, args, **more)


@pytest.fixture
def spec(tmp_path: Path) -> str:
    file = tmp_path / "spec.yaml"
    file.write_text(SPEC)
    return str(file)


def test_the_command_line_loads_no_torch_ray_mlflow_or_spec() -> None:
    heavy = "{'torch', 'ray', 'mlflow', 'optuna', 'fastapi'}"
    rooms = "('eigensweep.search_spaces.', 'eigensweep.models', 'eigensweep.tasks')"
    light = {f"eigensweep.search_spaces.{m}" for m in ("spec_text", "dotted", "labels", "errors")}
    program = (
        "import sys, eigensweep.command.cli, eigensweep.client\n"
        f"print(sorted(m for m in sys.modules if m in {heavy} or m.startswith({rooms})"
        f" and m not in {light}))"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_commands_about_users_load_no_pages_of_the_service() -> None:
    program = (
        "import sys, eigensweep.command.local\n"
        "print('eigensweep.service.api.pages.routes' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("False\n", "")


def test_submit_and_follow_ends_with_a_ranking_and_baseline(cli: Cli, spec: str) -> None:
    done = cli("submit", spec, "--follow", "--set", "name=mine")

    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    table = next(n for n, line in enumerate(lines) if line.startswith("rank"))
    assert [line.split()[:5] for line in lines[table + 1 : table + 5]] == [
        ["1", "1", "lstm", "lr=0.01", "completed"],
        ["2", "3", "scornn", "lr=0.01", "completed"],
        ["3", "0", "lstm", "lr=0.1", "completed"],
        ["4", "2", "scornn", "lr=0.1", "completed"],
    ]
    assert any(line.startswith("trial 3 scornn completed") for line in lines)
    assert any(line.startswith("best") and "of the baseline: trial 1" in line for line in lines)


def test_set_changes_fields_of_arms_and_takes_lists(cli: Cli, spec: str) -> None:
    done = cli(
        *("submit", spec, "--json"),
        *("--set", "arms.scornn.model.negative_ones=2"),
        *("--set", "arms.0.optimizer={name: rmsprop, lr: 1e-3}"),
        *("--set", "search.space.optimizer.lr=[0.5, 0.25, 0.125]"),
    )

    posted = json.loads(done.stdout)["spec"]
    assert posted["arms"][1]["model"]["negative_ones"] == 2
    assert posted["arms"][0]["optimizer"]["name"] == "rmsprop"
    assert posted["search"]["space"]["optimizer.lr"] == [0.5, 0.25, 0.125]


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("training.step=5", "training.step: training has no 'step'"),
        ("arms.lstm.model.hidden_size=-1", "arms.0.model.hidden_size: "),
        ("search.space.model.negative_one=[1]", "did you mean 'model.negative_ones'?"),
        ("search.space.optimizer.lr={low: 1e-4, high: 1}", "is a range without a step"),
        ("training.steps=.nan", "training.steps: "),
        ("task.name=coppying", "did you mean 'copying'?"),
    ],
)
def test_bad_input_is_exit_code_2_and_names_the_field(
    cli: Cli, spec: str, setting: str, message: str
) -> None:
    done = cli("submit", spec, "--set", setting)

    assert (done.exit_code, done.stdout) == (2, "")
    assert message in done.stderr


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("submit", "no-such-preset"), "quickstart"),
        (("submit", "no-such-file.yaml"), "no-such-file.yaml: No such file"),
        (("show", "e7"), "there is no experiment 'e7'"),
        (("show", "../models"), "there is no experiment '../models'"),
        (("models", "grn"), "there is no model 'grn'"),
        (("list", "--state", "happy"), "state"),
        (("submit",), "Missing argument"),
    ],
)
def test_an_unknown_name_exits_with_2_and_lists_the_known(
    cli: Cli, args: tuple[str, ...], message: str
) -> None:
    done = cli(*args)

    assert done.exit_code == 2
    assert message in done.stderr


@pytest.mark.parametrize(
    ("words", "message", "command"),
    [
        ("prioritize last hi", "Invalid value for 'priority': ", " prioritize"),
        ("submit", "Missing argument 'source'.", " submit"),
        ("list --limit 0", "Invalid value for '--limit': ", " list"),
        ("token create --nobody", "No such option: --nobody", " token create"),
        ("sumbit", "No such command 'sumbit'.", ""),
        ("--nobody", "No such option: --nobody", ""),
    ],
)
def test_unreadable_arguments_are_told_as_other_mistakes(
    cli: Cli, words: str, message: str, command: str
) -> None:
    done = cli(*words.split(), prog_name="eigensweep")
    first, second = done.stderr.splitlines()
    assert (done.exit_code, done.stdout) == (2, "")
    assert first.startswith(f"error: {message}")
    assert second == f"  see `eigensweep{command} --help`"


def test_without_a_command_the_help_is_shown(cli: Cli) -> None:
    for words in ((), ("token",)):
        assert "Usage: " in cli(*words).output


def test_a_folder_is_told_with_the_files_in_it(
    cli: Cli, spec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "quickstart").mkdir()  # beside a preset of this name
    (tmp_path / "folder.yaml").mkdir()
    (tmp_path / "notes").touch()
    words = "this is a folder; give a file, such as "
    for folder, files in ((".", "folder.yaml, spec.yaml"), (str(tmp_path), spec)):
        done = cli("submit", folder)
        assert (done.exit_code, words in done.stderr, files in done.stderr) == (2, True, True)
    empty = "folder.yaml: this is a folder without a YAML, JSON or TOML file"
    assert empty in cli("submit", "folder.yaml").stderr
    assert cli("preview", "quickstart").exit_code == 0


def test_a_preview_names_ends_of_arms_where_chance_chooses(cli: Cli, spec: str) -> None:
    grid = cli("preview", "quickstart").stdout
    search = ("--set", "search.method=random", "--set", "search.trials=9")
    other = cli("preview", "quickstart", *search).stdout
    assert ("trial  arm" in grid, "one end of" in grid) == (True, False)
    assert ("trial  arm" in other, "one end of" in other) == (False, True)
    first = '[{"arm": "lstm", "params": {"optimizer.lr": 0.001}}]'
    named = cli("preview", "quickstart", *search, "--set", f"search.first={first}").stdout
    assert re.findall(r"^(0|one end) +(\w+)", named, re.M) == [
        ("0", "lstm"),
        *(("one end", arm) for arm in ("scornn", "enrnn", "lstm")),
    ]


def test_a_model_of_several_arms_is_told_with_the_place_of_one(cli: Cli, spec: str) -> None:
    id = json.loads(cli("submit", spec, "--follow", "--json").stdout.splitlines()[-1])["id"]
    done = cli("extend", id, "--set", "model.hidden_size=9")
    assert done.exit_code == 2
    words = "model: this spec has arms, each with its own model, such as 'arms.lstm.model'"
    assert words in done.stderr


def test_with_json_a_problem_is_json_too(cli: Cli, spec: str) -> None:
    done = cli("submit", spec, "--json", "--set", "training.steps=0")

    assert done.exit_code == 2
    assert json.loads(done.stderr)["errors"][0]["path"] == "training.steps"


def test_a_service_that_is_away_is_exit_code_1(free_port: Callable[[], int]) -> None:
    away = f"http://127.0.0.1:{free_port()}"

    done = CliRunner().invoke(app, ["list", "--url", away])

    assert done.exit_code == 1
    assert f"no answer from the service at {away}" in done.stderr


def test_the_address_may_stand_before_the_command_or_after_it(
    scripted_service: str, free_port: Callable[[], int]
) -> None:
    away = f"http://127.0.0.1:{free_port()}"

    before = CliRunner().invoke(app, ["--url", scripted_service, "list", "--json"])
    after = CliRunner().invoke(app, ["--url", away, "list", "--url", scripted_service, "--json"])

    assert (before.exit_code, after.exit_code) == (0, 0)


def test_without_a_service_this_process_answers_what_it_can(
    cli: Cli, spec: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked = [("models",), ("tasks", "copying", "--json"), ("preview", spec), ("preview", "none")]
    asked += [("presets", "quickstart"), ("analyses",)]
    from_service = [cli(*args) for args in asked]
    monkeypatch.delenv("EIGENSWEEP_URL")
    monkeypatch.setenv("EIGENSWEEP_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(connection, "DEFAULT_URL", "http://127.0.0.1:9")

    here = [cli(*args) for args in asked]

    assert [done.stdout for done in here] == [done.stdout for done in from_service]
    assert [done.exit_code for done in here] == [0, 0, 0, 2, 0, 0]
    assert all(done.stderr.startswith("no service answers") for done in here)
    assert cli("list").exit_code == 1
    assert not (tmp_path / "home").exists()


def test_watching_a_cancelled_experiment_ends_with_exit_code_1(cli: Cli, spec: str) -> None:
    lrs = [n / 100 for n in range(1, 100)]
    submitted = cli("submit", spec, "--json", "--set", f"search.space.optimizer.lr={lrs}")
    id = json.loads(submitted.stdout)["id"]

    cancelled = cli("cancel", id)
    done = cli("watch", id)

    assert (cancelled.exit_code, done.exit_code) == (0, 1)
    assert f"experiment {id} cancelled" in done.stdout


def test_a_fork_posts_the_same_spec_with_changes(cli: Cli, spec: str) -> None:
    first = json.loads(cli("submit", spec, "--json").stdout)
    forked = json.loads(cli("fork", first["id"], "--set", "name=fork", "--json").stdout)
    assert forked["id"] != first["id"]
    assert forked["spec"] == first["spec"] | {"name": "fork"}


def test_where_nothing_varies_no_settings_are_told(cli: Cli, spec: str) -> None:
    id = json.loads(cli("submit", spec, "--follow", "--json").stdout.splitlines()[-1])["id"]
    followed = cli("fork", f"{id}/1", "--follow").stdout
    heads, best = re.findall(r"^(?:rank|best) .*", followed, re.M)
    assert "settings" not in heads
    assert best.endswith("trial 0, lstm")
    assert "settings" not in cli("trials", "last", "0").stdout
    assert cli("trials", id).stdout.split()[:4] == ["rank", "trial", "arm", "settings"]


def test_a_fork_of_a_trial_keeps_the_limits_of_one() -> None:
    limits = {"trials": 9, "stall_seconds": 7200, "wall_seconds": None}
    config = dict.fromkeys(
        ("task", "model", "optimizer", "training", "divergence", "seed", "replicates")
    )
    made = make_spec_of_one({"name": "s", "limits": limits}, {"number": 3, "config": config})
    assert made["limits"] == {"stall_seconds": 7200}
    assert "limits" not in make_spec_of_one({"name": "s"}, {"number": 3, "config": config})


def test_a_fork_of_a_member_of_a_population_is_refused_in_words() -> None:
    trial = {"number": 3, "config": {}, "lineage": [{"step": 20, "source": 1}]}
    with pytest.raises(InputError, match="took over other trials of its population"):
        make_spec_of_one({"name": "s"}, trial)


@pytest.mark.parametrize("name", ["sweep.YAML", "./sweep", "/dev/stdin", "~/sweep"])
def test_what_is_written_as_a_path_is_a_file(name: str) -> None:
    assert looks_like_a_file(name)
    assert not looks_like_a_file("enrnn/copying")


def test_a_narrow_list_leaves_out_the_date_before_the_state() -> None:
    heads = [head for head in DROPPED_FIRST if head in LIST_HEADS]
    assert heads.index("created (UTC)") == 0
    assert heads[-1] == "state"


def test_what_is_refused_of_several_is_told_and_fails(cli: Cli, spec: str) -> None:
    id = json.loads(cli("submit", spec, "--follow", "--json").stdout.splitlines()[-1])["id"]
    done = cli("pause", id, "nobody")
    assert done.exit_code == 1
    assert f"experiment {id} is completed, so there is nothing to pause" in done.stderr
    assert "there is no experiment 'nobody'" in done.stderr


def test_a_retry_without_a_failed_trial_is_refused(cli: Cli, spec: str) -> None:
    id = json.loads(cli("submit", spec, "--follow", "--json").stdout.splitlines()[-1])["id"]
    done = cli("retry", id)
    assert done.exit_code == 1
    assert f"experiment {id} has no failed trial, so there is nothing to retry" in done.stderr
    assert "'extend' gives it more to do" in done.stderr


def test_nothing_is_deleted_without_yes(cli: Cli, spec: str) -> None:
    id = json.loads(cli("submit", spec, "--follow", "--json").stdout.splitlines()[-1])["id"]
    refused = cli("delete", id)
    assert refused.exit_code == 2
    assert "say --yes" in refused.stderr
    assert json.loads(cli("show", id, "--json").stdout)["state"] == "completed"
    assert f"{id} is deleting" in cli("delete", id, "--yes").stdout


def test_archived_experiments_are_listed_only_when_asked_for(cli: Cli, spec: str) -> None:
    id = json.loads(cli("submit", spec, "--follow", "--json").stdout.splitlines()[-1])["id"]
    archived = cli("archive", id)
    assert (archived.exit_code, archived.stdout.endswith(", and archived\n")) == (0, True)
    assert id not in cli("list").stdout
    assert id in cli("list", "--archived").stdout


def test_a_name_that_is_empty_names_nothing(cli: Cli, spec: str) -> None:
    id = json.loads(cli("submit", spec, "--follow", "--json").stdout.splitlines()[-1])["id"]
    for words in (("delete", "", "--yes"), ("show", ""), ("compare", f"{id}/0", "/1")):
        refused = cli(*words)
        assert refused.exit_code == 2
        assert "the name of an experiment is empty" in refused.stderr
    assert json.loads(cli("show", id, "--json").stdout)["state"] == "completed"


def test_a_name_longer_than_an_id_names_an_experiment(cli: Cli, spec: str) -> None:
    name = "memory over fifty steps, with nine trials"
    id = json.loads(cli("submit", spec, "--json", "--set", f"name={name}").stdout)["id"]
    assert json.loads(cli("show", name, "--json").stdout)["id"] == id


def test_a_name_of_as_many_letters_as_an_id_names_an_experiment(cli: Cli, spec: str) -> None:
    id = json.loads(cli("submit", spec, "--json", "--set", "name=copyingmemory").stdout)["id"]
    assert json.loads(cli("show", "copyingmemory", "--json").stdout)["id"] == id


def test_every_field_of_a_spec_can_be_set(cli: Cli, spec: str) -> None:
    paper = ("--set", "source=a paper")
    assert cli("preview", spec, *paper).exit_code == 0
    posted = json.loads(cli("submit", spec, "--follow", "--json", *paper).stdout.splitlines()[-1])
    assert posted["spec"]["source"] == "a paper"
    forked = json.loads(cli("fork", posted["id"], "--json", "--set", "source=another").stdout)
    assert forked["spec"]["source"] == "another"
    for name in ("self", "notify", "experiment_id"):
        for words in (("submit", spec), ("preview", spec), ("fork", posted["id"])):
            refused = cli(*words, "--set", f"{name}=1")
            assert (refused.exit_code, name in refused.stderr) == (2, True), words


def test_an_archived_experiment_is_named_like_others(cli: Cli, spec: str) -> None:
    submit = ("submit", spec, "--follow", "--json", "--set", "name=put away")
    id = json.loads(cli(*submit).stdout.splitlines()[-1])["id"]
    assert cli("archive", "put away").exit_code == 0
    assert json.loads(cli("show", id[:12], "--json").stdout)["id"] == id
    assert cli("unarchive", "put away").exit_code == 0
    assert id in cli("list").stdout


def test_a_list_that_is_cut_off_says_so(cli: Cli, spec: str) -> None:
    for _ in range(2):
        cli("submit", spec)
    assert "the newest 1; --limit shows more" in cli("list", "--limit", "1").stderr
    assert "--limit" not in cli("list", "--limit", "200").stderr


def test_one_trial_is_not_written_as_all(cli: Cli, spec: str, tmp_path: Path) -> None:
    id = json.loads(cli("submit", spec, "--follow", "--json").stdout.splitlines()[-1])["id"]
    refused = cli("trials", id, "1", "--out", str(tmp_path / "all.csv"))
    assert (refused.exit_code, list(tmp_path.glob("*.csv"))) == (2, [])
    assert "either a file or the number of one trial" in refused.stderr


def test_watch_as_json_prints_each_event_then_the_experiment(cli: Cli, spec: str) -> None:
    id = json.loads(cli("submit", spec, "--json").stdout)["id"]

    *events, last = map(json.loads, cli("watch", id, "--json").stdout.splitlines())

    assert events[0]["kind"] == "experiment.queued"
    assert events[-1]["kind"] == "experiment.completed"
    assert (last["id"], last["state"], last["best"]["number"]) == (id, "completed", 1)


def test_a_notice_is_a_line_and_its_end_is_none() -> None:
    told = {"experiment": "1m7xnz0qe2nqc", "reason": "the disk is nearly full"}
    events = [Event("1", "experiment.notice", told)]
    events += [Event("2", "experiment.notice", told | {"reason": None})]
    screen = Console(file=io.StringIO(), width=200)
    terminal.follow(Mock(events=lambda: events), screen)
    line = "experiment 1m7xnz0qe2nqc notice (the disk is nearly full)\n"
    assert screen.file.getvalue() == line


def test_a_failed_trial_shows_its_error(cli: Cli, spec: str) -> None:
    submitted = cli(
        *("submit", spec, "--follow", "--set", "name=buggy"),
        *("--set", "search.space.optimizer.lr=[10.0, 0.1]"),
    )
    assert "trial 0 lstm failed" in submitted.stdout
    assert "RuntimeError: a bug" in submitted.stdout
    id = json.loads(cli("list", "--json", "--name", "buggy").stdout)[0]["id"]

    shown = cli("trials", id, "0").stdout

    assert "RuntimeError: a bug" in shown
    assert "failed, step" in shown
    last = cli("trials", id).stdout.splitlines()[-1]
    assert last.split()[:5] == ["-", "2", "scornn", "lr=10", "failed"]


def test_list_and_show_agree(cli: Cli, spec: str) -> None:
    cli("submit", spec, "--follow", "--set", "name=agreed", "--set", "project=stories")

    (row,) = cli("list", "--project", "stories").stdout.splitlines()[1:]
    shown = cli("show", row.split()[0]).stdout

    assert row.split()[1:6] == ["agreed", "stories", "operator", "completed", "4/4"]
    assert "4 trials: 4 completed" in shown
    assert f"/experiments/{row.split()[0]}" in shown


def test_an_experiment_is_named_by_id_start_name_or_last(cli: Cli, spec: str) -> None:
    id = json.loads(cli("submit", spec, "--set", "name=called so", "--json").stdout)["id"]
    for name in (id[:-1], "called so", "last"):
        assert json.loads(cli("show", name, "--json").stdout)["id"] == id
    cli("submit", spec, "--set", "name=called so")
    twice = cli("show", "called so")
    assert twice.exit_code == 2
    assert f"{id}: give more of the id" in twice.stderr
    assert "there is no experiment 'nobody'" in cli("show", "nobody").stderr


def test_a_trial_is_shown_in_a_few_lines(cli: Cli, spec: str) -> None:
    id = json.loads(cli("submit", spec, "--follow", "--json").stdout.splitlines()[-1])["id"]
    lines = cli("trials", id, "1").stdout.splitlines()
    assert lines[0].split() == ["trial", "1", "of", "arm", "lstm"]
    assert "lr=0.01" in lines[2]
    assert any(line.startswith("valid/") for line in lines)
    assert len(lines) < 25


def test_presets_have_a_line_each_and_models_their_source(cli: Cli) -> None:
    assert max(map(len, cli("presets").stdout.splitlines())) < 150
    assert "Hochreiter & Schmidhuber 1997" in cli("models").stdout


def test_a_preview_posts_nothing(cli: Cli, spec: str) -> None:
    done = cli("preview", spec, "--set", "name=never posted")

    assert done.exit_code == 0
    assert "never posted: 4 trials over 4 points" in done.stdout
    assert "optimizer.lr: 0.1, 0.01" in done.stdout
    assert cli("list", "--name", "never posted").stdout.strip() == "none"


@pytest.mark.parametrize("command", ["submit", "preview"])
def test_a_setting_without_effect_is_told(cli: Cli, spec: str, command: str) -> None:
    done = cli(command, spec, "--set", "training={steps: 10, evaluate_every: 500}")
    assert done.exit_code == 0
    assert "warning: 'training.evaluate_every' is 500" in done.output


@pytest.mark.parametrize("command", ["submit", "preview"])
def test_all_mistakes_of_a_spec_are_printed(cli: Cli, spec: str, command: str) -> None:
    done = cli(
        *(command, spec, "--set", "search.space.optimizer.lrr=[1]", "--set", "training={}"),
        *("--set", "arms.lstm.model.hiden_size=3"),
    )
    assert done.exit_code == 2
    _, *lines = done.stderr.splitlines()
    assert [line.split(": ")[0].strip() for line in lines] == [
        "arms.0.model.hiden_size",
        "search.space.optimizer.lrr",
        "training",
    ]


@pytest.mark.parametrize("preset", ["quickstart", "enrnn/copying-scornn"])
def test_a_printed_preset_is_a_spec_that_can_be_posted(cli: Cli, preset: str) -> None:
    page = cli("presets", preset).stdout

    from_page = cli("preview", "-", "--json", input=page)
    by_name = cli("preview", preset, "--json")

    assert json.loads(from_page.stdout) == json.loads(by_name.stdout)


@pytest.mark.parametrize(
    ("kind", "name", "field"),
    [("models", "scornn", "negative_ones"), ("tasks", "copying", "delay")],
)
def test_a_catalogue_page_names_every_field(cli: Cli, kind: str, name: str, field: str) -> None:
    assert name in cli(kind).stdout
    page = cli(kind, name).stdout
    assert any(line.startswith(field) for line in page.splitlines())
    assert field in json.loads(cli(kind, name, "--json").stdout)["schema"]["properties"]


def test_on_a_terminal_each_running_trial_has_a_bar(scripted_service: str) -> None:
    screen = Console(file=io.StringIO(), force_terminal=True, width=120, legacy_windows=False)
    with Client(scripted_service) as client:
        settings: dict[str, Any] = {"search.space.optimizer.lr": [0.1, 0.2, 0.3, 0.4, 0.5]}
        experiment = client.submit(yaml.safe_load(SPEC), **settings)
        terminal.follow(experiment, screen)
        experiment.trials.show(screen)

    drawn = screen.file.getvalue()  # type: ignore[attr-defined]
    assert "of 100" in drawn
    assert "━" in drawn
    assert "completed: best" in drawn


@pytest.mark.parametrize("status", [502, 503, 504])
def test_a_live_view_outlasts_a_service_that_is_away(status: int) -> None:
    experiment = Mock()
    for error in (RefusedError(status, {}), ServiceAwayError("away")):
        experiment.listing.side_effect = error
        assert terminal._list_running(experiment) is None
    experiment.listing.side_effect = RefusedError(401, {})
    with pytest.raises(RefusedError):
        terminal._list_running(experiment)


@pytest.mark.parametrize("width", [40, 70, 100, 240])
def test_a_table_on_a_terminal_of_any_width_cuts_no_number(width: int) -> None:
    screen = Console(file=io.StringIO(), force_terminal=True, width=width, legacy_windows=False)
    trials = [
        {
            "number": number,
            "arm": "constructed_copying",
            "state": "completed",
            "value": 0.0001234 * (number + 1),
            "params": {"optimizer.lr": 0.001, "model.negative_fraction": 0.25, "model.size": 128},
            "parameters": 22_395,
            "seconds": 1234.5,
            "statistics": {
                "value": {"n": 3, "sd": 0.1, "low": 0.0001, "high": 0.0005},
                "test/loss": {"mean": 0.75, "n": 3, "sd": 0.25, "low": 0.5, "high": 1.0},
            },
            "links": {"mlflow": "http://mlflow/run"},
        }
        for number in range(2)
    ]
    table = TrialTable.rank({"baseline": 0.1733, "metric": {"name": "loss"}}, trials)

    table.show(screen)

    drawn = Text.from_ansi(screen.file.getvalue()).plain  # type: ignore[attr-defined]
    for words in ("0.0001234", "0.0002468", "negative_fraction=0.25"):
        assert words in drawn.split()
    head, *_, last = drawn.splitlines()
    dropped = [column for column in table.columns if column not in head.split()]
    if dropped:
        assert last.startswith("not shown: ")
        assert all(column in last for column in dropped)
    for column, words in {"parameters": "22,395", "seconds": "1234.5", "mlflow": "run"}.items():
        assert (words in drawn.split()) == (column not in dropped)
    assert max(map(len, drawn.splitlines()[:-1])) <= max(width, 60)
    assert bool(dropped) == (width < 240)
    assert ("0.0001 to 0.0005" in drawn) == ("interval" not in dropped)
    assert width < 240 or "0.5 to 1" in drawn
    frame = table.to_pandas()
    assert list(frame.loc[0, ["n", "sd", "low", "high"]]) == [3, 0.1, 0.0001, 0.0005]
    assert list(frame.loc[1, ["test", "test_low", "test_high"]]) == [0.75, 0.5, 1.0]


def test_a_table_in_a_pipe_is_the_same_at_every_width(monkeypatch: pytest.MonkeyPatch) -> None:
    row = ["1m7xnz0qe2nqc", "a name of several words", "a title " * 30, None]
    pages = []
    for columns in ("40", "400"):
        monkeypatch.setenv("COLUMNS", columns)
        screen = terminal.console()
        with screen.capture() as captured:
            Table(["id", "name", "title", "best"], [row]).show(screen)
        pages.append(captured.get())

    assert pages[0] == pages[1]
    assert len(pages[0].splitlines()) == 2


def test_a_column_without_a_word_is_drawn_as_well() -> None:
    screen = Console(file=io.StringIO(), force_terminal=True, width=40)
    Table(("user", ""), [("anna", ""), ("ben", "")]).show(screen)
    assert "anna" in screen.file.getvalue()  # type: ignore[attr-defined]


def test_a_bar_shows_the_best_so_far_and_the_steady_time_left() -> None:
    now = [0.0]
    left = terminal.SteadyEstimate(clock=lambda: now[0])
    shown = []
    for estimate in (100.0, 300.0, 299.0, None, 50.0):
        shown.append(left.see(estimate))
        now[0] += 1.0
    assert shown == pytest.approx([100.0, 139.2, 170.36, None, 50.0])
    trial = {"number": 3, "arm": "lstm", "step": 5, "steps": 10, "metrics": {"objective": 0.125}}
    experiment = {"name": "n", "id": "e", "state": "running", "progress": {}, "eta_seconds": 7}
    screen = Console(file=io.StringIO(), width=120)
    screen.print(terminal.board(experiment, [trial]))
    drawn = screen.file.getvalue()  # type: ignore[attr-defined]
    assert "step 5 of 10  best 0.125" in drawn
    assert "0:00:07 left" in drawn


def test_a_comparison_shows_sides_difference_and_test(cli: Cli, spec: str) -> None:
    id = json.loads(cli("submit", spec, "--set", "replicates=3", "--json").stdout)["id"]
    cli("watch", id)

    lines = cli("compare", id, f"{id}/0").stdout.splitlines()
    as_json = json.loads(cli("compare", id, f"{id}/0", "--json").stdout)

    verdict = as_json["pairs"][0]["test"]["verdict"]
    assert verdict == "better"
    (shown,) = [line for line in lines if f"{id}/0  test " in line]
    assert shown.endswith(verdict)
    assert f" {format_share(as_json['pairs'][0]['test']['effect'])} " in shown  # as on pages
    tested, seeds = lines[-2:]
    assert "paired t-test" in tested
    assert seeds.startswith(f"{id} and {id}/0, on test data at any look: e = ")


def test_arms_are_compared_at_equal_effort(cli: Cli, spec: str) -> None:
    id = json.loads(cli("submit", spec, "--json").stdout)["id"]
    cli("watch", id)
    arm = json.loads(cli("trials", id, "--json").stdout)[0]["arm"]
    as_json = json.loads(cli("compare", id, f"{id}/{arm}", "--effort", "--json").stdout)
    told = cli("compare", id, f"{id}/{arm}", "--effort").stdout
    assert all(pair["words"] in told for pair in as_json["pairs"])
    with Client() as client:
        assert client.compare_effort(id, f"{id}/{arm}") == as_json


def test_one_trial_is_stopped_and_the_search_goes_on(cli: Cli, spec: str) -> None:
    rungs = ("scheduler={name: asha, rung_every: 100}", "training.steps=100000")
    long = [word for setting in rungs for word in ("--set", setting)]
    id = json.loads(cli("submit", spec, *long, "--set", "name=long", "--json").stdout)["id"]
    wait_until(lambda: json.loads(cli("trials", id, "--json").stdout))
    assert cli("stop", f"{id}/0").stdout == "trial 0 stops within seconds\n"
    wait_until(lambda: json.loads(cli("trials", id, "0", "--json").stdout)["state"] == "pruned")
    assert "stopped on request" in cli("trials", id, "0").stdout
    again, unnamed = cli("stop", f"{id}/0"), cli("stop", "long")
    assert (again.stdout, unnamed.exit_code) == ("trial 0 is pruned\n", 2)
    assert unnamed.stderr.startswith("error: 'long' names no trial; 'long/0' would be its first")
    with Client() as client:
        trial = wait_until(lambda: client.experiment(id).trial(1))
        assert trial.stop()["number"] == 1
        client.experiment(id).cancel()
    assert cli("stop", f"{id}/99").exit_code == 2


def test_weights_of_no_completed_trial_are_told_how_to_get(cli: Cli, spec: str) -> None:
    hopeless = ("--set", "name=hopeless", "--set", "search.space.optimizer.lr=[10.0]")
    cli("submit", spec, "--follow", *hopeless)
    done = cli("weights", "hopeless", "--out", "nothing.pt")
    words = "others have weights, too: eigensweep weights 'hopeless/0'"
    assert done.exit_code == 2
    assert done.stderr == f"error: no trial of 'hopeless' was completed; {words}\n"


def test_a_race_is_told_and_that_there_was_none_too(cli: Cli, spec: str) -> None:
    id = json.loads(cli("submit", spec, "--json").stdout)["id"]
    cli("watch", id)
    found = json.loads(cli("race", id, "--json").stdout)
    assert (found["state"], found["racers"]) == ("none", [])
    assert cli("race", id).stdout.startswith("none: every trial has the same number of seeds")
    with Client() as client:
        assert client.experiment(id).race() == found


def test_importance_is_told_arm_by_arm(cli: Cli, spec: str) -> None:
    rates = "search.space.optimizer.lr=[0.1,0.05,0.02,0.01]"
    sizes = "arms.lstm.space.model.hidden_size=[4,8]"
    submitted = cli("submit", spec, "--set", rates, "--set", sizes, "--json")
    id = json.loads(submitted.stdout)["id"]
    cli("watch", id)

    found = json.loads(cli("importance", id, "--json").stdout)["arms"]
    lines = cli("importance", id).stdout.splitlines()

    shares = {arm["arm"]: {p["path"]: p["share"] for p in arm["parameters"]} for arm in found}
    assert shares["scornn"] == {"optimizer.lr": pytest.approx(1.0)}
    assert shares["lstm"]["optimizer.lr"] > 0.9
    assert set(shares["lstm"]) == {"optimizer.lr", "model.hidden_size"}
    assert lines[1].split()[:2] == ["lstm", "optimizer.lr"]


def test_the_quickstart_names_the_page_of_its_experiment(scripted_service: str) -> None:
    screen = Console(file=io.StringIO(), width=200)
    with Client(scripted_service) as client:
        quickstart.run(client, screen)
        written = screen.file.getvalue()
        (address,) = re.findall(rf"Its page +({scripted_service}/experiments/\w+)\n", written)
    assert "<h1>quickstart</h1>" in httpx2.get(address).text


@pytest.mark.parametrize(
    ("words", "ways"),
    [
        (("prune", "last"), "(last): write --experiment EXPERIMENT"),
        (
            ("analyse", "spectra", "last/3"),
            "(last/3): write --trial EXPERIMENT/NUMBER or --experiment EXPERIMENT",
        ),
    ],
)
def test_an_experiment_without_its_option_is_told_the_option(
    words: tuple[str, ...], ways: str
) -> None:
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 2
    assert ways in " ".join(done.stderr.replace("│", " ").split())


def test_the_version_is_that_of_the_installed_package() -> None:
    done = CliRunner().invoke(app, ["--version"])

    assert (done.exit_code, done.stdout) == (0, f"eigensweep {version('eigensweep')}\n")


def test_trials_become_a_frame_with_a_column_for_each_parameter(scripted_service: str) -> None:
    with Client(scripted_service) as client:
        settings: dict[str, Any] = {"search.space.optimizer.lr": [0.1, 0.01, 0.001]}
        experiment = client.submit(yaml.safe_load(SPEC), **settings).wait(timeout=PATIENCE)

        best, trials = experiment.best, experiment.trials

    frame = trials.to_pandas()
    assert best is not None
    assert frame.loc[best["number"], "optimizer.lr"] == 0.01
    assert list(frame["rank"]) == [1, 2, 3, 4, 5, 6]
    assert {str(frame[name].dtype) for name in ("sd", "low", "high")} == {"float64"}


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_exported_trials_have_all_parameters_and_metrics(
    cli: Cli, spec: str, tmp_path: Path, suffix: str
) -> None:
    id = json.loads(cli("submit", spec, "--json").stdout)["id"]
    cli("watch", id)
    file = tmp_path / f"trials.{suffix}"

    done = cli("trials", id, "--out", str(file))

    assert done.stdout == f"the trials of {id}: {file}\n"
    frame = pd.read_csv(file) if suffix == "csv" else pd.read_parquet(file)
    assert done.exit_code == 0
    assert sorted(frame["trial"]) == [0, 1, 2, 3]
    assert set(frame["optimizer.lr"]) == {0.1, 0.01}
    assert frame["value"].notna().all()
    refused = cli("trials", id, "--out", str(tmp_path / "trials.xlsx"))
    assert (refused.exit_code, "*.parquet, *.tex or *.journal" in refused.stderr) == (2, True)


def test_an_experiment_is_exported_as_a_study_that_optuna_opens(
    cli: Cli, spec: str, tmp_path: Path
) -> None:
    id = json.loads(cli("submit", spec, "--json").stdout)["id"]
    cli("watch", id)
    file = tmp_path / "study.journal"

    done = cli("export", id, "--optuna", str(file))

    assert (done.exit_code, done.stdout) == (0, f"the trials of {id}: {file}\n"), done.stderr
    storage = JournalStorage(JournalFileBackend(str(file)))
    (study,) = storage.get_all_studies()
    assert study.study_name.endswith(f"({id})")
    trials = storage.get_all_trials(study._study_id)
    assert sorted(trial.user_attrs["number"] for trial in trials) == [0, 1, 2, 3]
    assert all(trial.duration is not None for trial in trials)
    assert cli("export", id, "--optuna", str(tmp_path / "study.db")).exit_code == 2


def test_a_pareto_table_weighs_the_metric_against_a_cost(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "spec.yaml"
    small = {"model": {"name": "lstm", "hidden_size": 4}, "name": "small"}
    large = {"model": {"name": "lstm", "hidden_size": 8}, "name": "large"}
    space = {"optimizer.lr": [0.1, 0.01]}
    content = yaml.safe_load(SPEC) | {"arms": [small, large], "search": {"space": space}}
    file.write_text(yaml.safe_dump(content | {"objective": {"against": ["seconds"]}}))
    id = json.loads(cli("submit", str(file), "--json").stdout)["id"]
    cli("watch", id)

    found = json.loads(cli("pareto", id, "--against", "parameters", "--json").stdout)

    ranked = json.loads(cli("trials", id, "--json").stdout)
    least = {}
    for trial in ranked:
        least.setdefault(trial["arm"], trial["value"])
    best = ranked[0]["value"]
    expected = {
        arm: value for arm, value in least.items() if arm == "small" or value < least["small"]
    }
    assert {each["arm"]: each["values"]["cross_entropy"] for each in found["front"]} == expected
    assert [each["name"] for each in found["objectives"]] == ["cross_entropy", "parameters"]
    assert found["beaten"] == 4 - len(expected)
    by_default = json.loads(cli("pareto", id, "--json").stdout)
    equal = len([trial for trial in ranked if trial["value"] == best])  # none beats the other
    assert [each["values"] for each in by_default["front"]] == [
        {"cross_entropy": best, "seconds": 1.5}
    ] * equal
    table = cli("pareto", id, "--against", "parameters").stdout.splitlines()
    assert table[0].split() == ["trial", "arm", "settings", "cross_entropy", "parameters"]
    assert table[1].split()[-1] == f"{found['front'][0]['values']['parameters']:.0f}"
    assert "beaten by one of these: worse in something, and better in nothing" in table[-1]
    empty = {"objectives": found["objectives"], "front": [], "beaten": 0, "unknown": 0}
    assert str(Answer(empty, describe_pareto)) == "no trial has finished"
    refused = cli("pareto", id, "--against", "size")
    assert (refused.exit_code, "parameters, seconds" in refused.stderr) == (2, True)


def test_a_spec_may_be_toml(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "spec.toml"
    file.write_text(
        'name = "from toml"\n[task]\nname = "copying"\ndelay = 20\n[training]\nsteps = 100\n'
        '[model]\nname = "lstm"\nhidden_size = 8\n[search.space]\n"optimizer.lr" = [1e-1, 1e-2]\n'
    )
    assert "from toml: 2 trials over 2 points" in cli("preview", str(file)).stdout
    file.write_text("name = \n")
    done = cli("preview", str(file))
    assert done.exit_code == 2
    assert "spec.toml: not TOML: Invalid value (at line 1" in done.stderr


def test_the_schema_for_editors_is_printed(cli: Cli) -> None:
    schema = json.loads(cli("schema").stdout)
    assert schema["properties"]["task"]["required"] == ["name"]


def test_a_notebook_shows_experiments_and_trials_as_tables(scripted_service: str) -> None:
    with Client(scripted_service) as client:
        experiment = client.submit(yaml.safe_load(SPEC), name="<b>").wait(PATIENCE, progress=True)
        page, trials = experiment._repr_html_(), experiment.trials._repr_html_()
    assert "&lt;b&gt;" in page
    assert "lstm lr=0.01" in page
    assert trials.count("<tr>") == 5


def test_a_spec_of_ten_megabytes_is_refused_with_the_limit(cli: Cli) -> None:
    done = cli("submit", "-", input=f"{SPEC}\ndescription: {'x' * 10_000_000}\n")

    assert (done.exit_code, done.stdout) == (2, "")
    assert "a body has at most 1,048,576 bytes" in done.stderr
