"""docker-compose.yml: the commands of its services, run as plain processes of this machine."""

from __future__ import annotations

import glob
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from waiting import PATIENCE, wait_until

from eigensweep.service.client import Client, RefusedError
from eigensweep.service.settings import Settings

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docker-compose.yml").read_text()
SECRETS = {
    *("POSTGRES_PASSWORD", "RAY_AUTH_TOKEN", "EIGENSWEEP_TOKEN", "EIGENSWEEP_MLFLOW_TOKEN"),
}
SPEC = {
    "name": "small",
    "task": {"name": "copying", "delay": 5, "valid_size": 50, "test_size": 50},
    "model": {"name": "scornn", "hidden_size": 8, "negative_ones": 4},
    "training": {"steps": 20, "evaluate_every": 10},
    "search": {"space": {"optimizer.lr": [1e-2, 1e-3]}},
}


def interpolate(text: str, variables: dict[str, str]) -> str:
    """Return a text with Compose's ${NAME}, ${NAME:-default} and ${NAME:?message} replaced."""

    def value(match: re.Match[str]) -> str:
        name, how, rest = match.groups()
        if variables.get(name):
            return variables[name]
        if how == ":-":
            return rest
        raise KeyError(f"{name}: {rest}")

    return re.sub(r"\$\{(\w+)(:[-?])?([^}]*)\}", value, text)


@pytest.mark.parametrize("secret", sorted(SECRETS))
def test_nothing_starts_without_its_secrets(secret: str) -> None:
    given = {name: "secret" for name in SECRETS - {secret}}

    with pytest.raises(KeyError, match=f"{secret}: set {secret} in .env, see .env.example"):
        interpolate(TEXT, given)
    assert f"\n{secret}=\n" in (ROOT / ".env.example").read_text()


def test_every_variable_of_the_service_is_a_setting() -> None:
    content = yaml.safe_load(interpolate(TEXT, dict.fromkeys(SECRETS, "secret")))
    named = {n for n in content["services"]["service"]["environment"] if n.startswith("EIGEN")}

    assert named <= {f"EIGENSWEEP_{name.upper()}" for name in Settings.model_fields}


def test_every_service_is_watched_and_only_loopback_is_published() -> None:
    content = yaml.safe_load(interpolate(TEXT, dict.fromkeys(SECRETS, "secret")))

    assert [n for n, s in content["services"].items() if "healthcheck" not in s] == []
    published = [port for s in content["services"].values() for port in s.get("ports", [])]
    assert published == ["127.0.0.1:8642:8642"]


class Composition:
    """The services of the file as processes, with hosts, ports and folders of this machine."""

    def __init__(self, folder: Path, free_port: Callable[[], int], programs: Path) -> None:
        self.folder, self.programs = folder, programs
        self.mark = uuid.uuid4().hex
        self.ports = {name: str(free_port()) for name in ("5432", "5000", "6379", "8642")}
        self.secrets = {name: uuid.uuid4().hex for name in SECRETS}
        self.content = yaml.safe_load(self.move(interpolate(TEXT, self.secrets)))
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def move(self, text: str) -> str:
        """Return the file's text with this machine's hosts, ports and folders."""
        for host, port in {
            "postgres": "5432",
            "mlflow": "5000",
            "ray-head": "6379",
            "localhost": "5000",
            "127.0.0.1": r"(?:5000|8642)",
        }.items():
            text = re.sub(
                rf"(?<![\w:]){re.escape(host)}:({port})(?!:)",
                lambda match: f"127.0.0.1:{self.ports[match[1]]}",
                text,
            )
        text = re.sub(r"--port=(\d+)", lambda match: f"--port={self.ports[match[1]]}", text)
        text = text.replace('"8642"', f'"{self.ports["8642"]}"').replace("0.0.0.0", "127.0.0.1")
        return text.replace("/srv/", f"{self.folder}/")

    def environment(self, name: str) -> dict[str, str]:
        here = {n: v for n, v in os.environ.items() if not n.startswith(("EIGENSWEEP_", "RAY_"))}
        return {
            **here,
            **self.content["services"][name].get("environment", {}),
            "PATH": f"{Path(sys.executable).parent}:{self.programs}:{os.environ['PATH']}",
            "PGHOST": "127.0.0.1",
            "PGPORT": self.ports["5432"],
            "RAY_TMPDIR": str(self.folder / "ray"),
            "COMPOSITION": self.mark,
        }

    def start(self, name: str, command: list[str] | None = None, user: str | None = None) -> None:
        """Start a service and wait until it is healthy."""
        with (self.folder / f"{name}.log").open("wb") as log:
            self.processes[name] = subprocess.Popen(
                command or self.content["services"][name]["command"],
                cwd=self.folder,
                env=self.environment(name),
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                user=user,
            )
        wait_until(lambda: self.is_healthy(name), lambda: self.log_of(name), pause=0.5)

    def is_healthy(self, name: str) -> bool:
        assert self.processes[name].poll() is None, self.log_of(name)
        test = self.content["services"][name]["healthcheck"]["test"]
        assert test[0] == "CMD"
        done = subprocess.run(test[1:], env=self.environment(name), capture_output=True)
        return done.returncode == 0

    def log_of(self, name: str) -> str:
        return f"{name}:\n{(self.folder / f'{name}.log').read_text()[-4000:]}"

    def start_postgres(self) -> None:
        """Do what the image's entry point does: make a cluster, start it, run the scripts."""
        service = self.content["services"]["postgres"]
        user = "postgres" if os.geteuid() == 0 else None
        made, secret = self.folder / "postgres", self.folder / "secret"
        made.mkdir()
        secret.write_text(service["environment"]["POSTGRES_PASSWORD"])
        if user:
            shutil.chown(made, user)
            shutil.chown(secret, user)
        login = service["environment"]["POSTGRES_USER"]
        how = ["-U", login, "-A", "scram-sha-256", f"--pwfile={secret}", "--no-sync"]
        init = [str(self.programs / "initdb"), "-D", str(made), *how]
        subprocess.run(init, check=True, capture_output=True, user=user, cwd=made)
        listen = ["-h", "127.0.0.1", "-p", self.ports["5432"], "-k", str(made)]
        command = [str(self.programs / "postgres"), "-D", str(made), *listen]
        self.start("postgres", command, user)
        script = self.content["configs"]["more-databases"]["content"]
        script += f"CREATE DATABASE {service['environment']['POSTGRES_DB']};"
        env = self.environment("postgres") | {"PGPASSWORD": secret.read_text()}
        psql = [str(self.programs / "psql"), "-U", login, "-d", "postgres", "-v", "ON_ERROR_STOP=1"]
        subprocess.run(psql, input=script, text=True, env=env, check=True, capture_output=True)

    def end(self) -> None:
        """End every process that was started, the last one first."""
        for process in reversed(self.processes.values()):
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for process in self.find_survivors():
            process.kill()

    def find_survivors(self) -> list[psutil.Process]:
        """Return the processes that carry our mark; Ray's processes are not our children."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get("COMPOSITION") == self.mark:
                    found.append(process)
            except (psutil.Error, OSError):
                continue
        return found


@pytest.fixture
def composition(free_port: Callable[[], int]) -> Iterator[Composition]:
    installed = sorted(glob.glob("/usr/lib/postgresql/*/bin/initdb"), reverse=True)
    initdb = shutil.which("initdb") or next(iter(installed), None)
    if initdb is None:
        pytest.skip("install PostgreSQL (initdb on PATH or in /usr/lib/postgresql) to run this")
    # Ray's sockets lie below it, and a socket's path has at most 107 characters.
    with tempfile.TemporaryDirectory(prefix="es-", dir="/tmp", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        folder.chmod(0o755)
        for inner in ("home", "storage", "artifacts", "data", "ray"):
            (folder / inner).mkdir()
        composition = Composition(folder, free_port, Path(os.path.realpath(initdb)).parent)
        try:
            yield composition
        finally:
            composition.end()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_composition_runs_an_experiment(composition: Composition) -> None:
    composition.start_postgres()
    for name in ("mlflow", "ray-head", "ray-worker", "service"):
        composition.start(name)
    url = f"http://127.0.0.1:{composition.ports['8642']}"
    with Client(url) as stranger, pytest.raises(RefusedError, match="Unauthorized"):
        stranger.submit(SPEC)

    with Client(url, composition.secrets["EIGENSWEEP_TOKEN"]) as client:
        experiment = client.submit(SPEC).wait(timeout=PATIENCE)
        trials = experiment.listing()

    assert experiment.state == "completed", composition.log_of("service")
    assert [trial["state"] for trial in trials] == ["completed", "completed"]
    run = experiment.content["links"]["mlflow"].rpartition("/")[2]
    asked = f"api/2.0/mlflow/runs/get?run_id={run}"
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(f"http://127.0.0.1:{composition.ports['5000']}/{asked}")
    bearer = {"Authorization": f"Bearer {composition.secrets['EIGENSWEEP_TOKEN']}"}
    mlflow = urllib.request.Request(f"{url}/mlflow/{asked}", headers=bearer)
    wait_until(lambda: status_of(mlflow) == "FINISHED", lambda: status_of(mlflow), pause=1)
    assert (composition.folder / "home" / "eigensweep.db").exists() is False


def status_of(request: urllib.request.Request) -> Any:
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)["run"]["info"]["status"]
