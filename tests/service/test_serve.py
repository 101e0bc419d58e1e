"""The service as a process: how it starts, what it refuses, and that it leaves nothing behind."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from helpers.waiting import PATIENCE, wait_until
from pydantic import ValidationError
from sqlalchemy.exc import OperationalError

from eigensweep.common import guard
from eigensweep.service.process import home, ports, serve
from eigensweep.service.process.serve import LeadLostError
from eigensweep.service.settings import Settings, StartError

LONG = {"training/steps": 1_000_000, "task/valid_size": 8, "task/test_size": 8}
SHORT = {"training/steps": 20, "task/valid_size": 8, "task/test_size": 8}


class ServiceProcess:
    """A service in a process of its own, started in a folder that has a `models` of its own."""

    def __init__(self, folder: Path, port: int, mlflow_port: int) -> None:
        (folder / "models").mkdir()
        (folder / "models" / "__init__.py").write_text("raise ImportError('not ours')")
        self.folder = folder
        self.url = f"http://127.0.0.1:{port}"
        self.env = {
            **os.environ,
            "EIGENSWEEP_HOME": str(folder / "home"),
            "EIGENSWEEP_PORT": str(port),
            "EIGENSWEEP_MLFLOW_PORT": str(mlflow_port),
            "EIGENSWEEP_CPUS": "2",
            # A proxy that answers nothing, which no request to this machine may meet.
            **dict.fromkeys(("http_proxy", "HTTP_PROXY", "ALL_PROXY"), "http://127.0.0.1:9"),
        }
        self.process: Any = None

    def command(self, **env: str) -> subprocess.CompletedProcess[str]:
        """Run a service that should end by itself."""
        return subprocess.run(
            [sys.executable, "-m", "eigensweep.service.process.serve"],
            cwd=self.folder,
            env={**self.env, **env},
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )

    def start(self) -> None:
        with (self.folder / "log").open("ab") as log:
            self.process = psutil.Popen(
                [sys.executable, "-m", "eigensweep.service.process.serve"],
                cwd=self.folder,
                env=self.env,
                stdout=log,
                stderr=log,
            )
        self.wait_for("/readyz", lambda _: True)

    def log(self) -> str:
        return (self.folder / "log").read_text()

    def ask(self, path: str, body: Any = None) -> Any:
        content = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self.url + path, content, headers)
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return json.load(answer)

    def wait_for(self, path: str, is_so: Callable[[Any], bool]) -> Any:
        """Return what the path answers once it is so."""

        def find() -> tuple[Any] | None:
            assert self.process.poll() is None, self.log()
            with suppress(urllib.error.URLError, ConnectionError, TimeoutError):
                if is_so(found := self.ask(path)):
                    return (found,)
            return None

        return wait_until(find, self.log)[0]

    def end(self, how: signal.Signals) -> list[psutil.Process]:
        """Send a signal and wait for the end; return the processes that outlive it for long."""
        family = self.process.children(recursive=True)
        self.process.send_signal(how)
        self.process.wait(PATIENCE)
        return psutil.wait_procs(family, timeout=PATIENCE)[1]


def test_it_says_that_it_runs_on_linux_alone(monkeypatch, capsys):
    monkeypatch.setattr(sys, "platform", "darwin")
    assert serve.main() == 2
    assert "the service runs on Linux: start it in a container" in capsys.readouterr().err


def test_two_services_that_start_at_once_have_a_port_each():
    first = ports.find_free_port("127.0.0.1", 27642, True)
    one, claim = ports.claim_port("127.0.0.1", first, True)
    other, second = ports.claim_port("127.0.0.1", first, True)
    assert one == first < other, "nobody listens there yet, and it is taken"
    with pytest.raises(StartError, match=f"another service has claimed port {first}"):
        ports.claim_port("127.0.0.1", first, False)
    claim.close()
    again, third = ports.claim_port("127.0.0.1", first, True)
    assert again == first
    second.close()
    third.close()


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        (None, "sqlite:////h/eigensweep.db"),
        ("sqlite:///record.db", "sqlite:////h/record.db"),
        ("sqlite:///a/record.db?mode=ro", "sqlite:////h/a/record.db?mode=ro"),
        ("sqlite+pysqlite:///file:r.db?uri=true", "sqlite+pysqlite:///file:/h/r.db?uri=true"),
        ("sqlite:///file:/var/r.db?uri=true", "sqlite:///file:/var/r.db?uri=true"),
        ("sqlite:////var/record.db", "sqlite:////var/record.db"),
        ("postgres://me@db/record", "postgresql://me@db/record"),
        ("postgresql+psycopg://me@db/record", "postgresql+psycopg://me@db/record"),
    ],
)
def test_a_database_is_the_same_wherever_a_command_is_called(given, meant):
    assert Settings(home=Path("/h"), database_url=given).database == meant


def test_a_home_that_ends_in_a_database_address_is_refused() -> None:
    with pytest.raises(ValueError, match=r"has a '\?', which ends a path"):
        Settings(home=Path("/tmp/what?"))


@pytest.mark.parametrize("given", ["s3:/lab/runs", "gs:lab", "s3:/"])
def test_a_bucket_with_too_few_slashes_is_no_folder(given):
    with pytest.raises(ValidationError, match="two slashes follow"):
        Settings(storage=given)


@pytest.mark.parametrize("given", ["0/minute", "1/minute;0/hour", "1/minute;2/hour"])
def test_what_is_not_one_rate_of_some_requests_is_refused(given):
    with pytest.raises(ValidationError, match=f"'{given}' is no rate"):
        Settings(rate_limit=given)


@pytest.mark.parametrize(
    "given",
    [
        *("foo", "mysql://a:secret@b/c", "postgresql+foo://a/b", "postgresql://a:secret@b:c/d"),
        *("sqlite://", "sqlite:///:memory:", "sqlite:///file::memory:?uri=true"),
    ],
)
def test_what_is_no_url_of_a_database_is_refused_in_words(given, monkeypatch, capsys):
    monkeypatch.setenv("EIGENSWEEP_DATABASE_URL", given)
    assert serve.main() == serve.REFUSED
    told = capsys.readouterr().err
    assert "EIGENSWEEP_DATABASE_URL: this is no URL of SQLite or PostgreSQL" in told
    assert "secret" not in told


@pytest.fixture(scope="module")
def service() -> Iterator[ServiceProcess]:
    free = [ports.find_free_port("127.0.0.1", first, True) for first in (28642, 25000)]
    # Ray's sockets lie below it, and a socket's path has at most 107 characters.
    with tempfile.TemporaryDirectory(prefix="es-", dir="/tmp", ignore_cleanup_errors=True) as name:
        service = ServiceProcess(Path(name), *free)
        service.start()
        yield service
        if service.process.is_running():
            service.end(signal.SIGTERM)


@pytest.mark.ray
class TestServe:
    def test_beside_anothers_models_it_trains_ours_revives_mlflow(self, service, spec):
        here = service.ask("/v1/experiments", spec(**SHORT))["links"]["self"]
        (server,) = [c for c in service.process.children() if "mlflow" in " ".join(c.cmdline())]
        for process in (server, *server.children(recursive=True)):
            process.kill()
        ended = service.wait_for(here, lambda e: e["state"] in ("completed", "cancelled", "failed"))
        assert ended["state"] == "completed", ended["error"]
        service.wait_for(here, lambda e: e["best"]["links"]["mlflow"])
        assert "MLflow ended" in service.log()
        assert "trials wait for their own" not in service.log()

    def test_mlflow_answers_through_the_service_its_own_files_only(self, service):
        def answer(url: str, body: Any = None, **headers: str) -> tuple[int, str]:
            content = None if body is None else json.dumps(body).encode()
            asked = urllib.request.Request(
                url, content, {"Content-Type": "application/json"} | headers
            )
            try:
                with urllib.request.urlopen(asked, timeout=PATIENCE) as given:
                    return given.status, given.read().decode()
            except urllib.error.HTTPError as error:
                with error:
                    return error.code, error.read().decode()

        service.wait_for("/readyz", lambda found: found["ready"])
        direct = f"http://127.0.0.1:{service.env['EIGENSWEEP_MLFLOW_PORT']}"
        secret = (service.folder / "home" / "mlflow" / "token").read_text()
        known = {"Authorization": f"Bearer {secret}"}
        assert answer(f"{direct}/api/2.0/mlflow/experiments/get?experiment_id=0")[0] == 401
        assert answer(direct)[0] == 401
        status, page = answer(f"{service.url}/mlflow/")
        assert status == 200
        script = re.search(r'src="(static-files/[^"]+)"', page)
        assert script is not None
        assert answer(f"{service.url}/mlflow/{script[1]}")[0] == 200

        (service.folder / "outside").mkdir()
        planted = {"name": "p", "artifact_location": f"file://{service.folder}/outside"}
        create = "api/2.0/mlflow/experiments/create"
        assert answer(f"{service.url}/mlflow/{create}", planted)[0] == 403
        made = json.loads(answer(f"{direct}/{create}", planted, **known)[1])
        created = answer(f"{direct}/api/2.0/mlflow/runs/create", made, **known)
        run = json.loads(created[1])["run"]["info"]
        folder = Path(run["artifact_uri"].removeprefix("file://"))
        folder.mkdir(parents=True)
        (folder / "secret").symlink_to("/etc/passwd")
        asked = f"get-artifact?path=secret&run_uuid={run['run_id']}"
        for base, headers in ((f"{service.url}/mlflow", {}), (direct, known)):
            status, words = answer(f"{base}/{asked}", **headers)
            assert (status, "root:" in words) == (400, False)
            assert "below its own folder only" in words
        assert answer(f"{service.url}/mlflow/ajax-api/3.0/mlflow/assistant/config")[0] == 403
        gateways = answer(f"{service.url}/mlflow/ajax-api/2.0/mlflow/gateway-proxy")
        assert gateways == (200, '{"endpoints":[]}')

    def test_nobody_else_can_enter_its_folders_or_read_its_files(self, service):
        home = service.folder / "home"
        assert home.stat().st_mode & 0o777 == 0o700
        assert (home / "ray").stat().st_mode & 0o777 == 0o700  # everybody's inside, as Ray wants
        opened = [
            path
            for path in home.rglob("*")
            if path.lstat().st_mode & 0o077 and not path.is_symlink()
        ]
        assert [path for path in opened if home / "ray" not in path.parents] == []

    def test_its_processes_import_from_no_folder_but_its_own(self, service):
        folders = {Path(service.process.cwd())}
        for process in service.process.children(recursive=True):
            with suppress(psutil.NoSuchProcess):  # it has ended meanwhile
                if process.name() != service.process.name():
                    folders.add(Path(process.cwd()))
        home = service.folder / "home"
        assert all(folder == home or home in folder.parents for folder in folders), folders

    def test_rays_autoscaler_shows_its_metrics_to_nobody(self, service):
        programs, ports_in_use = list[str](), set[int]()
        for process in service.process.children(recursive=True):
            with suppress(psutil.NoSuchProcess):  # it has ended meanwhile
                programs.append(" ".join(process.cmdline()))
                ports_in_use.update(each.laddr.port for each in process.net_connections("inet"))
        assert any("monitor.py" in program for program in programs)
        assert 44217 not in ports_in_use

    def test_a_second_service_does_not_share_its_home(self, service):
        refused = service.command(
            EIGENSWEEP_PORT=str(ports.find_free_port("127.0.0.1", 29642, True))
        )
        assert refused.returncode == 2
        assert str(service.process.pid) in refused.stderr
        assert "EIGENSWEEP_HOME" in refused.stderr

    @pytest.mark.slow
    @pytest.mark.parametrize("name", ["raylet", "gcs_server"])
    def test_when_ray_dies_it_is_started_again_and_trials_go_on(self, service, spec, name):
        here = service.ask("/v1/experiments", spec(**LONG))["links"]["self"]
        service.wait_for(here, lambda e: e["progress"]["running"] > 0)
        (ray,) = [
            process
            for process in service.process.children(recursive=True)
            if process.name() == name
        ]
        ray.kill()

        def launcher() -> Any:
            try:
                return service.ask("/readyz")["checks"]["launcher"]
            except urllib.error.HTTPError as error:
                with error:
                    return json.load(error)["checks"]["launcher"]

        wait_until(lambda: not launcher()["ready"], service.log)
        service.wait_for(here, lambda e: e["state"] == "running")  # the API answers all the time
        wait_until(lambda: launcher()["ready"], service.log)
        service.wait_for(
            f"{here}/trials",
            lambda page: any(
                trial["state"] == "running" and trial["attempt"] > 1 for trial in page["items"]
            ),
        )
        service.ask(f"{here}/cancel", {})
        service.wait_for(here, lambda e: e["state"] == "cancelled")

    @pytest.mark.slow
    def test_stopped_it_leaves_nothing_and_goes_on_later(self, service, spec):
        here = service.ask("/v1/experiments", spec(**LONG))["links"]["self"]
        stream = urllib.request.urlopen(f"{service.url}{here}/events", timeout=PATIENCE)
        threading.Thread(target=stream.read, daemon=True).start()
        service.wait_for(here, lambda e: e["progress"]["running"] > 0)
        assert service.end(signal.SIGTERM) == []
        # 1 on a machine so busy that the service left what was not done in time to its guard
        assert service.process.returncode in (0, 1)

        service.start()
        again = service.wait_for(here, lambda e: e["state"] == "running")
        assert again["id"] in here
        service.ask(f"{here}/cancel", {})
        service.wait_for(here, lambda e: e["state"] == "cancelled")

    def test_killed_it_leaves_nothing(self, service, spec):
        here = service.ask("/v1/experiments", spec(**LONG))["links"]["self"]
        service.wait_for(here, lambda e: e["progress"]["running"] > 0)
        assert service.end(signal.SIGKILL) == []


class TestRefusals:
    @pytest.fixture
    def alone(self, tmp_path: Path, free_port: Any) -> ServiceProcess:
        return ServiceProcess(tmp_path, free_port(), free_port())

    @pytest.mark.ray
    def test_strangers_without_a_token(self, alone):
        away = "http://127.0.0.1:9"  # so that no MLflow of its own starts
        refused = alone.command(EIGENSWEEP_HOST="0.0.0.0", EIGENSWEEP_MLFLOW_URI=away)
        assert refused.returncode == 2
        assert "EIGENSWEEP_TOKEN" in refused.stderr

    def test_a_port_that_was_asked_for_and_is_taken(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            with pytest.raises(StartError, match=str(port)) as refused:
                ports.listen("127.0.0.1", port, may_move=False)
            for name in ("EIGENSWEEP_PORT", "EIGENSWEEP_MLFLOW_PORT"):
                assert name in str(refused.value)
            with ports.listen("127.0.0.1", port, may_move=True) as moved:
                assert moved.getsockname()[1] > port


HOLD = """
import sys, time
from pathlib import Path
from eigensweep.service.process import home

with home.hold(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


class TestHome:
    @staticmethod
    def hold(folder: Path) -> subprocess.Popen[str]:
        """Return a process that holds the folder."""
        process = subprocess.Popen(
            [sys.executable, "-c", HOLD, str(folder)], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        return process

    def test_it_is_held_until_its_process_ends_in_whatever_way(self, tmp_path):
        for how in (signal.SIGKILL, signal.SIGTERM):
            process = self.hold(tmp_path)
            for _ in range(2):  # the first refusal does not blot out who holds it
                with (
                    pytest.raises(StartError, match=f"process {process.pid}, started"),
                    home.hold(tmp_path),
                ):
                    pass
            process.send_signal(how)
            process.communicate()
        with home.hold(tmp_path):
            assert str(os.getpid()) in (tmp_path / "service.lock").read_text()

    def test_a_guard_for_which_there_is_no_process_is_started_later(self, tmp_path, monkeypatch):
        def refuse(*_: Any, **__: Any) -> None:
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

        with home.hold(tmp_path) as watcher:
            first = watcher._guard
            first.kill()
            first.wait()
            with monkeypatch.context() as patch:
                patch.setattr(subprocess, "Popen", refuse)
                for _ in range(2):
                    serve.start_again(watcher.restart_if_ended)
            assert watcher._guard is first
            serve.start_again(watcher.restart_if_ended)
            assert watcher._guard.poll() is None

    def test_a_guard_that_was_killed_is_replaced_and_works(self, tmp_path):
        with home.hold(tmp_path) as watcher:
            first = watcher._guard
            watcher.restart_if_ended()
            assert watcher._guard is first
            first.kill()
            first.wait()
            child = subprocess.Popen(["sleep", "3600"])
            watcher.restart_if_ended()
            assert watcher._guard is not first
        assert child.wait(PATIENCE) == -signal.SIGKILL

    def test_a_guard_finds_packages_where_the_service_finds_them(self, tmp_path, monkeypatch):
        packages = tmp_path / "packages"
        packages.mkdir()
        (packages / "psutil.py").write_text("raise SystemExit(7)\n")
        monkeypatch.setenv("PYTHONPATH", str(packages))
        with home.hold(tmp_path / "home") as watcher:
            assert watcher._guard.wait(PATIENCE) == 7

    def test_a_folder_that_others_can_change_is_refused_in_words(self, tmp_path):
        (tmp_path / "home").mkdir()
        (tmp_path / "home").chmod(0o777)
        with (
            pytest.raises(StartError, match="not safe: other users may write into"),
            home.hold(tmp_path / "home"),
        ):
            pass

    def test_a_folder_that_cannot_be_made_is_refused_in_words(self, tmp_path):
        (tmp_path / "file").touch()
        with (
            pytest.raises(StartError, match="EIGENSWEEP_HOME"),
            home.hold(tmp_path / "file"),
        ):
            pass


class TestAFullDisk:
    @pytest.mark.parametrize(
        "error",
        [
            OSError(errno.ENOSPC, "No space left on device", "service.new"),
            OperationalError("INSERT", {}, sqlite3.OperationalError("database or disk is full")),
        ],
    )
    def test_at_the_start_is_told_in_words(self, tmp_path, monkeypatch, capsys, error):
        def fail(settings: Any) -> None:
            raise error

        monkeypatch.setenv("EIGENSWEEP_HOME", str(tmp_path))
        monkeypatch.setattr(serve, "serve", fail)
        assert serve.main() == serve.REFUSED
        told = capsys.readouterr().err
        assert told.startswith(f"error: the disk of the home folder {tmp_path} cannot be written")
        assert "Free space and files there" in told

    def test_is_no_cover_for_a_bug(self, tmp_path, monkeypatch):
        def fail(settings: Any) -> None:
            raise FileNotFoundError(errno.ENOENT, "No such file", "schema.sql")

        monkeypatch.setenv("EIGENSWEEP_HOME", str(tmp_path))
        monkeypatch.setattr(serve, "serve", fail)
        with pytest.raises(FileNotFoundError):
            serve.main()


class TestGuard:
    @pytest.fixture
    def sleeper(self) -> Iterator[Callable[[str], subprocess.Popen[bytes]]]:
        """Return what starts a marked process that has a child."""
        started = []

        def start(mark: str) -> subprocess.Popen[bytes]:
            process = subprocess.Popen(
                ["sh", "-c", "sleep 3600 & echo $!; exec sleep 3600"],
                env={**os.environ, **guard.environment(mark)},
                stdout=subprocess.PIPE,
                start_new_session=True,
            )
            started.append(process)
            return process

        yield start
        for process in started:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()

    @staticmethod
    def child(process: subprocess.Popen[bytes]) -> psutil.Process:
        """Return the child."""
        return psutil.Process(int(process.stdout.readline()))

    def test_orphans_are_ended_and_strangers_left(self, tmp_path, sleeper):
        mine, other = guard.new_mark(tmp_path), guard.new_mark(tmp_path)
        ours, theirs = sleeper(mine), sleeper(other)
        orphan, stranger = self.child(ours), self.child(theirs)
        ours.kill()
        ours.wait()
        assert orphan.is_running()
        assert guard.kill(lambda mark: mark == mine) == 1
        assert not orphan.is_running() or orphan.status() == psutil.STATUS_ZOMBIE
        assert theirs.poll() is None
        assert stranger.is_running()
        stranger.kill()

    def test_the_next_service_of_a_home_ends_what_the_last_left(self, tmp_path, sleeper):
        here, mine = sleeper(guard.new_mark(tmp_path)), guard.new_mark(tmp_path)
        elsewhere, own = sleeper(guard.new_mark(tmp_path / "other")), sleeper(mine)
        rest = [self.child(elsewhere), self.child(own)]
        assert guard.kill(guard.of_home(tmp_path, but=mine)) == 2
        assert here.wait(PATIENCE) != 0
        assert [p.poll() for p in (elsewhere, own)] == [None, None]
        for process in rest:
            process.kill()


@pytest.mark.parametrize("stopped", [True, False])
def test_a_stop_while_it_steps_down_starts_nothing_anew(monkeypatch, stopped):
    ended: list[bool] = []
    monkeypatch.setattr(serve, "_end_soon", lambda: ended.append(True))
    expected = nullcontext() if stopped else pytest.raises(LeadLostError)
    with expected, serve._signals() as stopping:
        stopping.is_starting = False
        try:
            raise LeadLostError("another service leads")
        finally:
            if stopped:
                signal.raise_signal(signal.SIGTERM)
    wait_until(lambda: bool(ended) is stopped)
