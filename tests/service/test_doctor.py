"""`eigensweep doctor`: what it looks at, and what it says."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import time
from collections.abc import Callable, Iterable
from email.utils import formatdate
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest
from helpers import s3
from pydantic import SecretStr, ValidationError
from sqlalchemy import create_engine, text
from typer.testing import CliRunner

from eigensweep.command.cli import app
from eigensweep.models.recurrence.native import library
from eigensweep.service.process import checkup
from eigensweep.service.process.checkup import Context, Finding, examine
from eigensweep.service.record.migrations import migrate
from eigensweep.service.settings import Settings
from eigensweep.tasks import treebank

pytestmark = pytest.mark.usefixtures("_no_environment")
SECRET = "planted-secret"


@pytest.fixture
def context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Context]:
    """Return a function that makes a context with a fresh home; answers of a service by path."""

    def make(answers: dict[str, httpx2.Response] | None = None, **settings: Any) -> Context:
        if answers:
            monkeypatch.setattr(Context, "ask", lambda _, path: answers.get(path))
        made = Settings(home=tmp_path / "home", **settings)
        return Context(made, "http://127.0.0.1:1" if answers else None)

    return make


def only(found: Iterable[Finding], what: str) -> Finding:
    (finding,) = (each for each in found if each.what == what)
    return finding


class TestCommand:
    def test_a_sound_machine_has_no_problem_and_the_exit_code_is_0(self, monkeypatch, tmp_path):
        monkeypatch.setenv("EIGENSWEEP_HOME", str(tmp_path / "home"))
        done = CliRunner().invoke(app, ["doctor", "--json"])

        content = json.loads(done.stdout)
        assert (done.exit_code, content["ok"]) == (0, True), content
        looked_at = {finding["what"] for finding in content["findings"]}
        assert {
            *("variables", "python", "packages", "compiler", "processors", "gpus", "home"),
            *("rights of home", "disk of home", "storage", "database", "service", "port"),
            *("port of mlflow", "corpora", "clock"),
        } <= looked_at
        assert not (tmp_path / "home").exists(), "it only looks"

    def test_a_problem_comes_with_what_to_do_and_exit_code_1(self, monkeypatch, tmp_path):
        monkeypatch.setenv("EIGENSWEEP_HOME", str(tmp_path))
        monkeypatch.setenv("EIGENSWEEP_PORT", "70000")
        done = CliRunner().invoke(app, ["doctor"])

        assert done.exit_code == 1
        assert "problem  settings" in done.stdout
        assert "EIGENSWEEP_PORT: Input should be less than or equal to 65535" in done.stdout
        assert "-> correct it" in done.stdout
        assert done.stdout.splitlines()[-1].startswith("1 problem,")

    def test_in_a_pipe_a_path_stays_whole(self, monkeypatch, tmp_path):
        home = tmp_path / ("a-long-name-" * 12)
        monkeypatch.setenv("EIGENSWEEP_HOME", str(home))
        said = CliRunner().invoke(app, ["doctor"]).stdout
        assert any(str(home) in line for line in said.splitlines())

    def test_no_secret_is_shown(self, monkeypatch, tmp_path):
        monkeypatch.setenv("EIGENSWEEP_HOME", str(tmp_path / "home"))
        monkeypatch.setenv("EIGENSWEEP_TOKEN", SECRET)
        monkeypatch.setenv("EIGENSWEEP_TOKENN", SECRET)
        url = f"postgresql://me:{SECRET}@127.0.0.1:1/record"
        monkeypatch.setenv("EIGENSWEEP_DATABASE_URL", url)
        monkeypatch.setattr(
            checkup, "CHECKS", {"database": checkup.check_database, "clock": checkup.check_clock}
        )
        done = CliRunner().invoke(app, ["doctor", "--json"])

        assert SECRET not in done.stdout
        assert "EIGENSWEEP_TOKENN" in done.stdout
        assert "***@127.0.0.1" in done.stdout

    def test_with_a_running_service_it_shows_what_that_says(self, scripted_service):
        found = [*checkup.check_service(Context(Settings(), scripted_service))]

        assert only(found, "service").detail == f"it answers at {scripted_service}"
        assert {finding.state for finding in found} == {"ok"}
        assert only(found, "service: database").detail == "ready"
        clock = [*checkup.check_clock(Context(Settings(), scripted_service))]
        assert only(clock, "clock against service").state == "ok"

    def test_a_place_that_cannot_be_looked_at_hides_no_other(self, monkeypatch, tmp_path):
        monkeypatch.setenv("EIGENSWEEP_HOME", str(tmp_path))

        def broken(context: Context) -> Any:
            raise RuntimeError("out of order")

        checks = {"first": broken, "second": checkup.check_clock}
        monkeypatch.setattr(checkup, "CHECKS", checks)
        found = examine()

        assert "out of order" in only(found, "first").detail
        assert only(found, "first").state == "problem"
        assert only(found, "clock").state == "ok"


class TestInstallation:
    def test_a_package_that_is_too_old_or_missing_is_named(self, monkeypatch):
        known = checkup._find_version
        changed = {"fastapi": "0.1", "optuna": None}
        monkeypatch.setattr(
            checkup, "_find_version", lambda name: changed[name] if name in changed else known(name)
        )
        finding = only(checkup.check_installation(), "packages")

        assert finding.state == "problem"
        assert "fastapi is 0.1, needed is >=" in finding.detail
        assert "optuna is missing" in finding.detail

    def test_another_version_than_the_pinned_one_is_a_warning(self, monkeypatch):
        known = checkup._find_version
        monkeypatch.setattr(
            checkup, "_find_version", lambda name: "99.0" if name == "rich" else known(name)
        )
        finding = only(checkup.check_installation(), "packages")

        assert finding.state == "warning"
        assert "rich 99.0, tested with " in finding.detail

    def test_without_a_compiler_training_is_slower_and_that_is_said(self, monkeypatch, context):
        monkeypatch.setattr(library, "find_compiler", lambda: None)
        finding = only(checkup.check_compiler(context()), "compiler")

        assert finding.state == "warning"
        assert "apt-get install g++" in finding.advice

    def test_nvidia_tools_without_a_gpu_for_torch_are_a_warning(self, monkeypatch, context):
        import torch

        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        monkeypatch.setattr(checkup.shutil, "which", lambda name: f"/usr/bin/{name}")
        assert only(checkup.check_devices(context()), "gpus").state == "warning"
        monkeypatch.setattr(checkup.shutil, "which", lambda name: None)
        assert only(checkup.check_devices(context()), "gpus").state == "ok"


class TestStores:
    @pytest.mark.parametrize(
        ("version", "state", "advice"),
        [
            ("0022", "problem", "start it once with the last Eigensweep 0.2 (commit f9ac8f7)"),
            ("9999", "problem", "install the newer version"),
        ],
    )
    def test_a_schema_of_another_version_is_named(self, context, url, version, state, advice):
        engine = create_engine(url)
        with engine.begin() as connection:
            connection.execute(text(f"UPDATE alembic_version SET version_num = '{version}'"))
        engine.dispose()
        finding = only(checkup.check_database(context(database_url=url)), "database")

        assert (finding.state, version in finding.detail) == (state, True)
        assert advice in finding.advice

    def test_a_record_of_this_version_is_well(self, context, each_url):
        assert (
            only(checkup.check_database(context(database_url=each_url)), "database").state == "ok"
        )

    def test_a_file_that_is_no_database_is_a_problem(self, context, tmp_path):
        (tmp_path / "record.db").write_text("not a database, but long enough to be looked at" * 99)
        url = f"sqlite:///{tmp_path}/record.db"
        assert (
            only(checkup.check_database(context(database_url=url)), "database").state == "problem"
        )

    def test_a_home_that_others_change_is_a_problem_read_a_warning(self, context, tmp_path):
        home = tmp_path / "home"
        for mode, state in ((0o700, "ok"), (0o755, "warning"), (0o777, "problem")):
            home.mkdir(exist_ok=True)
            home.chmod(mode)
            found = only(checkup.check_folders(context()), "rights of home")
            assert (found.state, home.stat().st_mode & 0o777) == (state, mode), "it only looks"

    def test_a_folder_that_cannot_be_written_is_a_problem(self, context, tmp_path):
        (tmp_path / "file").touch()
        found = checkup.check_folders(context(storage=tmp_path / "file" / "storage"))
        finding = only(list(found)[:-1], "storage")
        assert (finding.state, "EIGENSWEEP_STORAGE" in finding.advice) == ("problem", True)

    def test_an_object_store_is_tried_and_no_bucket_is_a_problem(self, context):
        with s3.serve() as bucket:
            found = [*checkup.check_folders(context(storage=f"{bucket}/sweeps/"))]
            finding = only(found, "storage")
            assert (finding.state, "written, read and fenced" in finding.detail) == ("ok", True)
            assert "disk of storage" not in {each.what for each in found}
            found = [*checkup.check_folders(context(storage="s3://nowhere"))]
        finding = only(found, "storage")
        assert (finding.state, "bucket exists" in finding.advice) == ("problem", True)
        assert s3.SECRET not in repr(found)

    @pytest.mark.parametrize(
        ("place", "words"),
        [
            ("s3://me:secret@bucket/x", "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or"),
            ("gs://secret@bucket/x", "name a key's file in GOOGLE_APPLICATION_CREDENTIALS, or"),
            ("s3://", "a folder, s3://bucket/prefix or gs://bucket/prefix; got something else"),
            ("gs://bucket/x?key=secret", "got something else behind gs://"),
            ("http://host/x", "got http://... A commit needs a store that refuses to write over"),
            ("abfs://box/x", "(a conditional put), and Eigensweep knows how to ask only these"),
        ],
    )
    def test_an_address_that_is_no_store_or_names_a_key_is_refused(self, context, place, words):
        with pytest.raises(ValidationError, match=re.escape(words)):
            context(storage=place)

    @pytest.mark.parametrize(
        ("kind", "home", "storage"),
        [("nfs4", "warning", "ok"), ("tmpfs", "warning", "warning"), ("ext4", "ok", "ok")],
    )
    def test_the_file_system_matters(self, context, monkeypatch, kind, home, storage):
        monkeypatch.setattr(checkup, "find_file_system", lambda folder: kind)
        found = [*checkup.check_folders(context())]
        assert (only(found, "home").state, only(found, "storage").state) == (home, storage)
        assert kind in only(found, "home").detail

    def test_the_kind_of_a_file_system_is_that_of_the_nearest_mount(self):
        assert checkup.find_file_system(Path("/proc/self")) == "proc"

    @pytest.mark.parametrize(
        ("free", "state"), [(2**27, "problem"), (2**31, "warning"), (2**38, "ok")]
    )
    def test_little_space_is_named(self, monkeypatch, tmp_path, free, state):
        usage = SimpleNamespace(free=free, total=2**40)
        monkeypatch.setattr(checkup.shutil, "disk_usage", lambda folder: usage)
        assert checkup._look_at_space("home", tmp_path, 2**28).state == state

    def test_the_limit_for_new_trials_is_that_of_the_settings(self, context, monkeypatch):
        monkeypatch.setenv("EIGENSWEEP_LEAST_FREE_MB", "1e12")
        found = only([*checkup.check_folders(context())], "disk of home")
        assert (found.state, "below 1000000000000 MB" in found.advice) == ("problem", True)


class TestNetwork:
    def test_a_port_that_was_chosen_and_is_taken_is_a_problem(self, context):
        with socket.create_server(("127.0.0.1", 0)) as other:
            port = other.getsockname()[1]
            chosen = only(checkup.check_ports(context(port=port)), "port")
            assert (chosen.state, "EIGENSWEEP_PORT" in chosen.advice) == ("problem", True)
            alive = {"/healthz": httpx2.Response(200)}
            assert only(checkup.check_ports(context(alive, port=port)), "port").state == "ok"

    def test_what_a_service_is_not_ready_for_comes_with_advice(self, context):
        checks = {"mlflow": {"ready": False, "detail": "no answer"}, "database": {"ready": True}}
        answers = {
            "/healthz": httpx2.Response(200),
            "/readyz": httpx2.Response(503, json={"ready": False, "checks": checks}),
        }
        found = [*checkup.check_service(context(answers))]
        assert only(found, "service: mlflow").state == "problem"
        assert "mlflow/server.log" in only(found, "service: mlflow").advice
        assert only(found, "service: database").state == "ok"

    def test_outer_parts_that_do_not_answer_are_problems(self, context, free_port):
        found = [
            *checkup.check_outer_parts(
                context(
                    mlflow_uri=f"http://127.0.0.1:{free_port()}",
                    ray_address=f"127.0.0.1:{free_port()}",
                )
            )
        ]
        assert {finding.what: finding.state for finding in found} == {
            "mlflow": "problem",
            "ray": "problem",
        }

    @pytest.mark.parametrize(
        ("nodes", "states"),
        [
            ({"a (12)": None, "b (34)": None}, {"storage from the nodes": "ok"}),
            ({"a (12)": None, "b (34)": "no keys"}, {"storage from b (34)": "problem"}),
            (None, {"storage from the nodes": "problem"}),
        ],
    )
    def test_a_node_that_cannot_use_the_store_is_named(self, context, monkeypatch, nodes, states):
        def run(command: list[str], **how: Any) -> subprocess.CompletedProcess[str]:
            assert command[command.index("--storage") + 1] == "s3://lab/x"
            if nodes is None:
                raise subprocess.CalledProcessError(1, command, stderr="Ray cannot be used")
            return subprocess.CompletedProcess(command, 0, stdout=json.dumps(nodes))

        monkeypatch.setattr(subprocess, "run", run)
        with socket.create_server(("127.0.0.1", 0)) as head:
            address = f"127.0.0.1:{head.getsockname()[1]}"
            found = [*checkup.check_outer_parts(context(ray_address=address, storage="s3://lab/x"))]
        assert {each.what: each.state for each in found} == {"ray": "ok"} | states

    @pytest.mark.parametrize(("ahead", "state"), [(0, "ok"), (20, "warning"), (-3600, "problem")])
    def test_a_clock_that_differs_is_named(self, monkeypatch, context, ahead, state):
        date = formatdate(time.time() - ahead, usegmt=True)
        answer = httpx2.Response(200, headers={"Date": date})
        monkeypatch.setattr(Context, "ask", lambda self, path: answer)
        finding = only(checkup.check_clock(context()), "clock against service")
        assert finding.state == state

    def test_the_clock_is_compared_with_the_database(self, context, postgresql_url):
        found = [*checkup.check_clock(context(database_url=postgresql_url))]
        assert only(found, "clock against database").state == "ok"


class TestCorpora:
    def test_files_that_differ_are_a_problem_missing_ones_are_none(self, context, tmp_path):
        folder = tmp_path / "data" / treebank.CORPUS.folder
        folder.mkdir(parents=True)
        for name, (size, _) in treebank.CORPUS.files.items():
            with (folder / name).open("wb") as file:
                os.truncate(file.fileno(), size)
        found = [*checkup.check_corpora(context(data_root=tmp_path / "data"))]

        damaged = only(found, f"corpus {treebank.CORPUS.folder}")
        assert (damaged.state, "SHA-256" in damaged.detail) == ("problem", True)
        assert "eigensweep data fetch" in damaged.advice
        assert only(found, "corpora").state == "ok"
        assert "mnist" in only(found, "corpora").detail

    @pytest.mark.data
    def test_the_folder_that_is_named_has_the_files(self, context, data_root):
        found = [*checkup.check_corpora(context(data_root=data_root))]
        complete = [each.detail for each in found if each.detail.startswith("complete in ")]
        assert complete
        for words in complete:
            assert Path(words.removeprefix("complete in ").removesuffix(", digests agree")).is_dir()


@pytest.mark.parametrize(("given", "sent"), [("of-a-file", "of-a-file"), (None, "of-settings")])
def test_the_service_is_asked_with_the_token_of_the_file(monkeypatch, tmp_path, given, sent):
    asked = []
    monkeypatch.setattr(checkup.httpx2, "get", lambda url, headers, **_: asked.append(headers))
    settings = Settings(home=tmp_path, token=SecretStr("of-settings"))
    checkup.Context(settings, "http://127.0.0.1:8642", given).ask("/readyz")
    assert asked == [{"Authorization": f"Bearer {sent}"}]


@pytest.mark.parametrize("is_new", [True, False])
def test_a_host_that_strangers_reach_needs_a_token(context, tmp_path, is_new):
    reached = context(host="0.0.0.0")
    if not is_new:
        reached.settings.home.mkdir()
        migrate(reached.settings.database)
    found = only(checkup.check_database(reached), "access")
    assert found.state == "problem"
    assert "make a token with `eigensweep token create`" in found.detail
    closed = context(host="0.0.0.0", token=SecretStr("s" * 20))
    assert "access" not in [each.what for each in checkup.check_database(closed)]


def test_a_database_without_its_driver_is_told_in_words(context, monkeypatch):
    monkeypatch.setattr(checkup, "find_spec", lambda name: None)
    made = context(database_url="postgresql://me@127.0.0.1:1/record")
    (found,) = checkup.check_database(made)
    assert "needs psycopg, which is not installed" in found.detail
    assert found.advice == "pip install 'eigensweep[postgres]'"


@pytest.mark.parametrize(
    ("url", "leads_away"), [("http://127.0.0.1:8642", False), ("https://lab.example", True)]
)
def test_proxies_and_certificates_count_as_for_the_client(monkeypatch, tmp_path, url, leads_away):
    asked = []
    monkeypatch.setattr(checkup.httpx2, "get", lambda _, trust_env, **__: asked.append(trust_env))
    checkup.Context(Settings(home=tmp_path), url).ask("/healthz")
    assert asked == [leads_away]


def test_a_service_that_should_run_and_is_silent_is_a_problem(tmp_path):
    settings = Settings(home=tmp_path)
    (known,) = checkup.check_service(checkup.Context(settings, "http://127.0.0.1:1"))
    assert (known.state, known.detail) == ("problem", "none answers at http://127.0.0.1:1")
    (unknown,) = checkup.check_service(checkup.Context(settings, None))
    assert unknown.state == "ok"


def test_an_address_without_a_scheme_is_asked_like_others(monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(checkup.httpx2, "get", lambda url, **_: asked.append(url))
    for url in ("127.0.0.1:8642", "https://service.example/"):
        checkup.Context(Settings(home=tmp_path), url).ask("/healthz")
    assert asked == ["http://127.0.0.1:8642/healthz", "https://service.example/healthz"]
