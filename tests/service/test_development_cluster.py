"""The development cluster: what is started is written down, and ended. With Ray: tests/system."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import development_cluster
import psutil
import pytest
from development_cluster import (
    CALL,
    STATE,
    Cluster,
    ClusterBusyError,
    ClusterFailedError,
    LocalPostgresql,
    NoPostgresqlError,
    Part,
    Plan,
    app,
    bring_up,
    find_programs,
    print_nothing,
    take_down,
)
from filelock import FileLock
from helpers.waiting import wait_until
from typer.testing import CliRunner

from eigensweep.common import guard

pytestmark = pytest.mark.usefixtures("_no_environment")
ONE_NODE = Plan(nodes=1, cpus=1, postgresql=False)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "cluster"
    place.mkdir(mode=0o700)
    (place / development_cluster.LOCK).touch(0o600)  # as each start leaves it
    yield place
    take_down(place, print_nothing, delete=True)


@pytest.fixture
def start(folder: Path) -> Callable[..., Part]:
    """Return a function that starts a process, as a part of the cluster in `folder`."""

    def start_part(name: str, kind: str, script: str = "sleep 1000 & wait") -> Part:
        process = subprocess.Popen(
            ["bash", "-c", script],
            env={**os.environ, **guard.environment(guard.new_mark(folder))},
            cwd=folder,
            start_new_session=True,
        )
        process.returncode = 0  # the cluster ends it
        created = psutil.Process(process.pid).create_time()
        return Part(name, kind, process.pid, created, "127.0.0.1:1", f"{folder}/{name}.log")

    return start_part


def run(*words: str) -> Any:
    return CliRunner().invoke(app, words)


def test_a_process_is_found_by_its_number_and_its_start(start: Callable[..., Part]) -> None:
    part = start("node-1", "node")
    other = Part(**{**part.__dict__, "created": part.created - 100})

    found = part.find()
    assert found is not None
    assert found.pid == part.pid
    assert other.find() is None, "the number is another process's now"
    for second in (-1, 1):  # the kernel's time of the machine's start goes to and fro by one
        assert Part(**{**part.__dict__, "created": part.created + second}).find() is not None
    os.killpg(part.pid, signal.SIGKILL)
    wait_until(lambda: part.find() is None)


def test_a_second_start_says_that_one_runs_and_leaves_it_alone(
    folder: Path, start: Callable[..., Part]
) -> None:
    part = start("node-1", "node")
    Cluster(folder, parts=[part]).write()

    done = run("up", "--folder", str(folder))

    assert done.exit_code == 1
    assert f"error: a cluster runs in {folder}: `{CALL} status` shows it" in done.stderr
    assert part.find() is not None


def test_two_commands_do_not_work_on_one_folder(folder: Path) -> None:
    with (
        FileLock(folder / "cluster.lock"),
        pytest.raises(ClusterBusyError, match="another command works in"),
    ):
        take_down(folder, print_nothing)


def test_the_service_ends_before_nodes_and_these_before_the_db(
    folder: Path, start: Callable[..., Part]
) -> None:
    script = """
    trap 'echo TERM {name} >>ended; exit' TERM
    trap 'echo INT {name} >>ended; exit' INT
    touch ready-{name}; while :; do sleep 0.1; done
    """
    named = {
        **{"postgresql": "postgresql", "mlflow": "mlflow", "head": "head", "node-1": "node"},
        **{"node-2": "node", "service": "service"},
    }
    parts = [start(name, kind, script.format(name=name)) for name, kind in named.items()]
    Cluster(folder, parts=parts).write()
    wait_until(lambda: len([*folder.glob("ready-*")]) == len(parts))
    said: list[str] = []

    assert take_down(folder, said.append)

    ended = (folder / "ended").read_text().splitlines()
    assert sorted(ended[1:3]) == ["TERM node-1", "TERM node-2"], (ended, said)
    assert ended[0] == "TERM service"
    assert ended[3:] == ["TERM head", "TERM mlflow", "INT postgresql"], "nodes leave a living head"
    assert said[0] == "ending service"
    assert [part.name for part in parts if part.find()] == []
    assert not (folder / STATE).exists()
    assert not take_down(folder, said.append), "there is none any more"


def test_what_does_not_end_is_killed(
    folder: Path, start: Callable[..., Part], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(development_cluster, "STOP_SECONDS", 0.2)
    part = start("head", "head", "trap '' TERM; touch ready; while :; do sleep 0.1; done")
    Cluster(folder, parts=[part]).write()
    wait_until((folder / "ready").exists)

    said: list[str] = []

    take_down(folder, said.append)

    assert part.find() is None
    assert said == ["ending head", "killing head, which did not end in 0.2 s"]


def test_what_was_not_written_down_is_found_by_its_mark(
    folder: Path, start: Callable[..., Part]
) -> None:
    orphan = start("orphan of a start that was killed", "node")

    done = run("down", "--folder", str(folder))

    assert done.exit_code == 0
    assert f"the cluster has ended; its results stay in {folder}" in done.stdout
    assert orphan.find() is None


def test_a_folder_in_which_no_cluster_ever_ran_is_not_removed(tmp_path: Path) -> None:
    (tmp_path / "chapter1.tex").touch()
    assert "no cluster ran in" in run("down", "--folder", str(tmp_path)).stdout
    assert run("down", "--delete", "--folder", str(tmp_path)).exit_code != 0
    assert [path.name for path in tmp_path.iterdir()] == ["chapter1.tex"]


def test_results_go_when_that_is_asked_for_and_only_then(folder: Path) -> None:
    (folder / "home").mkdir()

    assert f"no cluster ran in {folder}" in run("down", "--folder", str(folder)).stdout
    assert (folder / "home").exists()
    run("down", "--delete", "--folder", str(folder))
    assert not folder.exists()


def fail_as(module: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the program of a module print words and end with 3."""
    program = development_cluster._python

    def choose(asked: str, *rest: str) -> list[str]:
        return ["sh", "-c", f"echo {words}; exit 3"] if asked == module else program(asked, *rest)

    monkeypatch.setattr(development_cluster, "_python", choose)


def test_a_start_that_fails_names_the_log_and_leaves_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_as("ray.scripts.scripts", "no luck today", monkeypatch)
    said: list[str] = []

    with pytest.raises(ClusterFailedError) as caught:
        bring_up(folder, ONE_NODE, said.append)

    assert str(caught.value).splitlines()[0] == (
        f"head ended with status 3; its log, {folder}/logs/head.log, ends with:"
    )
    assert str(caught.value).endswith("no luck today")
    assert said == [
        *("starting mlflow", "starting head", "ending what was started", "ending mlflow"),
    ]
    assert guard.find_marked(lambda mark: mark.endswith(f":{folder}")) == []
    assert not (folder / STATE).exists()
    modes = {
        path.relative_to(folder).as_posix(): stat.S_IMODE(path.stat().st_mode)
        for path in (folder, *folder.iterdir(), folder / "logs" / "head.log")
    }
    assert {name for name, mode in modes.items() if mode & 0o077} == set()


def test_postgresql_has_no_port_and_keeps_its_databases(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if find_programs() is None:
        pytest.skip("install PostgreSQL (initdb on PATH or in /usr/lib/postgresql) to run this")
    fail_as("eigensweep.service.process.mlflow_app", "no luck", monkeypatch)
    fail_as_too = development_cluster._python
    monkeypatch.setattr(
        development_cluster,
        "_python",
        lambda module, *words: fail_as_too("eigensweep.service.process.mlflow_app", *words),
    )
    listening: list[Any] = []

    def look(line: str) -> None:
        if line == "starting mlflow":
            (part,) = Cluster.read(folder).parts
            found = part.find()
            assert found is not None
            listening.extend(each for each in found.net_connections("inet"))
            listening.append(found.pid)

    for _ in range(2):
        with pytest.raises(ClusterFailedError, match=r"^head "):
            bring_up(folder, Plan(nodes=1, cpus=1), look)

    assert len(listening) == 2, "a process each time, and no port"
    assert guard.find_marked(lambda mark: mark.endswith(f":{folder}")) == []
    server = LocalPostgresql.choose(folder, folder)
    assert (server.data / "base").exists()
    run("down", "--delete", "--folder", str(folder))
    assert not server.data.exists()


def test_ctrl_c_ends_what_was_started(folder: Path) -> None:
    command = [sys.executable, development_cluster.__file__, "up", "--sqlite"]
    process = subprocess.Popen(
        [*command, "--folder", str(folder)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    wait_until(lambda: Cluster.read(folder).parts or process.poll() is not None, pause=0.01)

    process.send_signal(signal.SIGINT)
    said, _ = process.communicate()

    assert process.returncode == 130, said.decode()
    assert b"ending mlflow" in said
    assert guard.find_marked(lambda mark: mark.endswith(f":{folder}")) == []
    assert not (folder / STATE).exists()


def test_without_postgresql_it_says_how_to_go_on(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(development_cluster, "find_programs", lambda: None)

    with pytest.raises(NoPostgresqlError, match="install it, or give `--sqlite`"):
        bring_up(folder, Plan(nodes=1, cpus=1), print_nothing)


def test_the_status_shows_each_process(folder: Path, start: Callable[..., Part]) -> None:
    parts = [start("head", "head"), start("service", "service")]
    Cluster(folder, url="http://127.0.0.1:8642", parts=parts).write()

    done = run("status", "--json", "--folder", str(folder))
    assert done.exit_code == 0
    found = json.loads(done.stdout)
    assert found["url"] == "http://127.0.0.1:8642"
    assert [(each["process"], each["state"]) for each in found["processes"]] == [
        *(("head", "running"), ("service", "running")),
    ]

    os.killpg(parts[0].pid, signal.SIGKILL)
    wait_until(lambda: parts[0].find() is None)
    done = run("status", "--folder", str(folder))
    assert done.exit_code == 1
    assert "head     ended" in done.stdout

    take_down(folder, print_nothing)
    done = run("status", "--folder", str(folder))
    assert done.exit_code == 1
    assert f"no cluster runs in {folder}; `{CALL} up` starts one" in done.stdout
