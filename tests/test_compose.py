"""docker-compose.yml: the commands of its services, run as plain processes of this machine.

For root each process gets what the file takes from its container: the root is read-only, only the
volumes and the tmpfs can be written, and it has no capabilities.
"""

from __future__ import annotations

import glob
import json
import os
import re
import shlex
import shutil
import signal
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
from links import run_id_of
from waiting import PATIENCE, wait_until

from eigensweep.service.client import Client, RefusedError
from eigensweep.service.settings import Settings

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docker-compose.yml").read_text()
SECRETS = {
    *("POSTGRES_PASSWORD", "RAY_AUTH_TOKEN", "EIGENSWEEP_TOKEN", "EIGENSWEEP_MLFLOW_TOKEN"),
}
MOST_RESTARTS = 5
"""Ray's processes give up on a machine that is busy; containers that end are started again."""
SPEC = {
    "name": "small",
    "task": {"name": "copying", "delay": 5, "valid_size": 50, "test_size": 50},
    "model": {"name": "scornn", "hidden_size": 8, "negative_ones": 4},
    "training": {"steps": 20, "evaluate_every": 10},
    "search": {"space": {"optimizer.lr": [1e-2, 1e-3]}},
}


def interpolate(text: str, variables: dict[str, str]) -> str:
    """Return a text with Compose's ${NAME}, ${NAME:-default}, ${NAME:?message} and $$ replaced."""

    def value(match: re.Match[str]) -> str:
        name, how, rest = match.groups()
        if variables.get(name):
            return variables[name]
        if how == ":-":
            return rest
        raise KeyError(f"{name}: {rest}")

    return re.sub(r"\$\{(\w+)(:[-?])?([^}]*)\}", value, text).replace("$$", "$")


def read(**variables: str) -> dict[str, Any]:
    """Return the file's content with these variables, and secrets that are not secret."""
    content: dict[str, Any] = yaml.safe_load(
        interpolate(TEXT, dict.fromkeys(SECRETS, "secret") | variables)
    )
    return content


@pytest.mark.parametrize("secret", sorted(SECRETS))
def test_nothing_starts_without_its_secrets(secret: str) -> None:
    given = {name: "secret" for name in SECRETS - {secret}}

    with pytest.raises(KeyError, match=f"{secret}: set {secret} in .env, see .env.example"):
        interpolate(TEXT, given)
    assert f"\n{secret}=\n" in (ROOT / ".env.example").read_text()


def test_every_variable_of_the_service_is_a_setting() -> None:
    content = read()
    named = {n for n in content["services"]["service"]["environment"] if n.startswith("EIGEN")}

    assert named <= {f"EIGENSWEEP_{name.upper()}" for name in Settings.model_fields}


def test_every_service_is_watched_and_only_loopback_is_published() -> None:
    content = read()

    assert [n for n, s in content["services"].items() if "healthcheck" not in s] == []
    published = [port for s in content["services"].values() for port in s.get("ports", [])]
    assert published == ["127.0.0.1:8642:8642"]


@pytest.mark.parametrize("name", sorted(read()["services"]))
def test_every_container_is_locked_and_limited(name: str) -> None:
    service = read()["services"][name]

    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["read_only"] is True
    assert service["mem_limit"]
    assert service["pids_limit"]
    assert any(path.partition(":")[0] == "/tmp" for path in service["tmpfs"])
    assert "privileged" not in service
    assert "cap_add" not in service


def words_for_ray(service: dict[str, Any], folder: Path) -> list[str]:
    """Return the words that a service's command gives to the program `ray`."""
    fake = folder / "ray"
    fake.write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n")
    fake.chmod(0o755)
    environment = {
        **{name: str(value) for name, value in service["environment"].items()},
        "PATH": f"{folder}:/usr/bin:/bin",
    }
    command = service["command"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.split("\n")


@pytest.mark.parametrize("name", ["ray-worker", "ray-worker-gpu"])
def test_a_worker_tells_ray_of_what_its_container_was_given(name: str, tmp_path: Path) -> None:
    service = read(RAY_WORKER_CPUS="3", RAY_WORKER_GIB="6")["services"][name]

    words = words_for_ray(service, tmp_path)

    assert (service["cpus"], service["mem_limit"]) == (3, "6g")
    assert {"--num-cpus=3", f"--memory={5 * 2**30}"} <= set(words)


def ports_of(words: list[str]) -> dict[str, str]:
    """Return the ports in the words of a command, by the name of their option."""
    return dict(re.findall(r"--(?:([a-z-]+)-)?port=(\d+)", " ".join(words)))


def test_the_page_lists_exactly_the_ports_that_containers_use(tmp_path: Path) -> None:
    services = read()["services"]
    of_ray = ports_of(words_for_ray(services["ray-head"], tmp_path))
    of_worker = ports_of(words_for_ray(services["ray-worker"], tmp_path))
    assert of_worker | {"": "6379"} == of_ray
    assert "$NODE_PORTS" in services["service"]["command"][-1]

    page = (ROOT / "docs" / "how-to" / "cluster.md").read_text()
    table = page.partition("## Ports")[2].partition("\n## ")[0]
    listed = set(re.findall(r"^\| (\d+)(?: to (\d+))? \|", table, re.MULTILINE))

    first, last = of_ray.pop("min-worker"), of_ray.pop("max-worker")
    others = {"5432", "5000", "8642"}
    assert listed == {(port, "") for port in others | set(of_ray.values())} | {(first, last)}
    for name in ("ray-head", "ray-worker", "ray-worker-gpu"):
        test = services[name]["healthcheck"]["test"]
        assert f"--port={of_ray['node-manager']}" in test, "the check asks another process"


class Composition:
    """The services of the file as processes, with hosts, ports and folders of this machine."""

    def __init__(self, folder: Path, free_port: Callable[[], int], programs: Path) -> None:
        self.folder, self.programs, self.free_port = folder, programs, free_port
        self.mark = uuid.uuid4().hex
        self.ports = {name: str(free_port()) for name in ("5432", "5000", "6379", "8642")}
        self.secrets = {name: uuid.uuid4().hex for name in SECRETS}
        self.content = yaml.safe_load(self.move(interpolate(TEXT, self.secrets)))
        services = self.content["services"]
        for place, name in enumerate(sorted(name for name in services if name != "postgres")):
            services[name] = json.loads(self.give_ports(json.dumps(services[name]), place))
        self.is_confined = os.geteuid() == 0 and can_confine()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.restarts = 0

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
        known = "|".join(self.ports)
        text = re.sub(rf"--port=({known})", lambda match: f"--port={self.ports[match[1]]}", text)
        text = text.replace('"8642"', f'"{self.ports["8642"]}"').replace("0.0.0.0", "127.0.0.1")
        text = text.replace("/home/eigensweep", f"{self.folder}/user")
        return text.replace("/srv/", f"{self.folder}/")

    def give_ports(self, service: str, place: int) -> str:
        """Return a service whose node has ports of its own: here all nodes share one address."""
        given: dict[str, str] = {}

        def exchange(match: re.Match[str]) -> str:
            given.setdefault(match[2], str(self.free_port()))
            return f"{match[1]}{given[match[2]]}"

        first = 20_002 + 1000 * place
        text = re.sub(r"(--(?:[a-z-]+-)?port=)(638\d)\b", exchange, service)
        text = text.replace("--min-worker-port=10002", f"--min-worker-port={first}")
        return text.replace("--max-worker-port=10999", f"--max-worker-port={first + 997}")

    def confine(self, name: str, command: list[str]) -> list[str]:
        """Return a command that runs with what the file leaves to its container."""
        service = self.content["services"][name]
        lines = ["set -e", "mount --make-rprivate /"]
        # Ray starts drivers on the first node of an address, and here all nodes share one: so each
        # node sees the volumes of all services.
        services = self.content["services"]
        others = [name for name in services if name != "postgres"]
        volumes = {volume for name in others for volume in services[name].get("volumes", [])}
        for volume in sorted(volumes):
            _, path, *how = volume.split(":")
            lines.append(f"mount --bind {path} {path}")
            lines += [f"mount -o remount,bind,ro {path}"] if how == ["ro"] else []
        shared = self.folder / "ray"
        lines += [f"mount --bind {shared} {shared}", "mount -o remount,bind,ro /"]
        # Nodes that share an address find each other's sockets by their place, so /tmp is common.
        lines.append(f"mount --bind {shared} /tmp")
        for path in service["tmpfs"]:
            path, _, options = path.partition(":")
            if path == "/tmp":
                continue
            kept = [each for each in options.split(",") if not each.startswith(("uid=", "gid="))]
            lines.append(f"mount -t tmpfs -o {','.join(['rw', *kept]).rstrip(',')} tmpfs {path}")
        rights = "setpriv --no-new-privs --inh-caps=-all --bounding-set=-all"
        lines.append(f"exec {rights} {shlex.join(command)}")
        return ["unshare", "--mount", "bash", "-c", "\n".join(lines)]

    def environment(self, name: str) -> dict[str, str]:
        here = {n: v for n, v in os.environ.items() if not n.startswith(("EIGENSWEEP_", "RAY_"))}
        return {
            **here,
            **self.of_file(name),
            "PATH": f"{Path(sys.executable).parent}:{self.programs}:{os.environ['PATH']}",
            "PGHOST": "127.0.0.1",
            "PGPORT": self.ports["5432"],
            "HOME": str(self.folder / "user"),
            "COMPOSITION": self.mark,
            **({} if self.is_confined else {"RAY_TMPDIR": str(self.folder / "ray")}),
        }

    def of_file(self, name: str) -> dict[str, str]:
        """Return the environment that the file gives to a service."""
        given = self.content["services"][name].get("environment", {})
        return {variable: str(value) for variable, value in given.items()}

    def start(self, name: str, command: list[str] | None = None, user: str | None = None) -> None:
        """Start a service and wait until it is healthy."""
        if command is None:
            command = self.content["services"][name]["command"]
            command = self.confine(name, command) if self.is_confined else command
        self.spawn(name, command, user)
        wait_until(lambda: self.is_healthy(name, command, user), lambda: self.log_of(name), 0.5)

    def spawn(self, name: str, command: list[str], user: str | None) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                command,
                cwd=self.folder,
                env=self.environment(name),
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                user=user,
            )

    def is_healthy(self, name: str, command: list[str], user: str | None) -> bool:
        """Return whether a service is well; one that has ended is restarted, as Compose does."""
        if self.processes[name].poll() is not None:
            assert self.content["services"][name]["restart"] == "unless-stopped"
            self.restarts += 1
            assert self.restarts < MOST_RESTARTS, self.log_of(name)
            self.spawn(name, command, user)
        return self.check(name).returncode == 0

    def check(self, name: str) -> subprocess.CompletedProcess[str]:
        """Run the health check of a service."""
        test = self.content["services"][name]["healthcheck"]["test"]
        assert test[0] == "CMD"
        environment = self.environment(name)
        return subprocess.run(test[1:], env=environment, capture_output=True, text=True)

    def nodes(self) -> list[dict[str, float]]:
        """Return the resources of each node, as the head knows them."""
        asked = (
            "import json, sys; from ray._raylet import GcsClient;"
            "nodes = GcsClient(address=sys.argv[1]).get_all_node_info(timeout=20).values();"
            "print(json.dumps([dict(node.resources_total) for node in nodes]))"
        )
        head = f"127.0.0.1:{self.ports['6379']}"
        words = [sys.executable, "-c", asked, head]
        done = subprocess.run(
            words, env=self.environment("ray-head"), capture_output=True, text=True, check=True
        )
        found: list[dict[str, float]] = json.loads(done.stdout)
        return found

    def end_node(self, name: str) -> None:
        """Kill the process of a service's Ray node, and nothing else."""
        (port,) = re.findall(r"--node-manager-port=(\d+)", self.of_file(name)["NODE_PORTS"])
        for process in self.find_survivors():
            words = process.cmdline()
            if words[0].endswith("raylet") and f"--node_manager_port={port}" in words:
                process.send_signal(signal.SIGKILL)
                return
        raise AssertionError(f"{name} has no process that listens on {port}")

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


def can_confine() -> bool:
    """Return whether mounts of a process of its own can be made here."""
    try:
        command = ["unshare", "--mount", "mount", "--make-rprivate", "/"]
        return subprocess.run(command, capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


@pytest.fixture
def composition(free_port: Callable[[], int]) -> Iterator[Composition]:
    installed = sorted(glob.glob("/usr/lib/postgresql/*/bin/initdb"), reverse=True)
    initdb = shutil.which("initdb") or next(iter(installed), None)
    if initdb is None:
        pytest.skip("install PostgreSQL (initdb on PATH or in /usr/lib/postgresql) to run this")
    # Ray's sockets lie below it, and a socket's path has at most 107 characters. Not in /tmp: a
    # container's own /tmp would hide it.
    place = "/var/tmp"
    with tempfile.TemporaryDirectory(prefix="es-", dir=place, ignore_cleanup_errors=True) as name:
        folder = Path(name)
        folder.chmod(0o755)
        for inner in ("home", "storage", "artifacts", "data", "ray", "user"):
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
    (worker,) = [node for node in composition.nodes() if node.get("CPU")]
    assert (worker["CPU"], worker["memory"]) == (2, 3 * 2**30)
    with Client(url) as stranger, pytest.raises(RefusedError, match="Unauthorized"):
        stranger.submit(SPEC)

    with Client(url, composition.secrets["EIGENSWEEP_TOKEN"]) as client:
        experiment = client.submit(SPEC).wait(timeout=PATIENCE)
        trials = experiment.listing()

    assert experiment.state == "completed", composition.log_of("service")
    assert [trial["state"] for trial in trials] == ["completed", "completed"]
    run = run_id_of(experiment.content["links"]["run"])
    asked = f"api/2.0/mlflow/runs/get?run_id={run}"
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(f"http://127.0.0.1:{composition.ports['5000']}/{asked}")
    bearer = {"Authorization": f"Bearer {composition.secrets['EIGENSWEEP_TOKEN']}"}
    mlflow = urllib.request.Request(f"{url}/mlflow/{asked}", headers=bearer)
    wait_until(lambda: status_of(mlflow) == "FINISHED", lambda: status_of(mlflow), pause=1)
    assert (composition.folder / "home" / "eigensweep.db").exists() is False

    composition.end_node("ray-worker")

    words = "counts no living node of this machine"
    wait_until(lambda: words in composition.check("ray-worker").stderr, pause=0.5)
    assert composition.check("ray-worker").returncode == 1
    assert composition.check("ray-head").returncode == 0


def status_of(request: urllib.request.Request) -> Any:
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)["run"]["info"]["status"]
