"""The services of docker-compose.yml as plain processes of this machine.

For root each process gets what the file takes from its container: the root is read-only, only the
volumes and the tmpfs can be written, and it has no capabilities. Where network namespaces can be
made, each service has its own address, its name, and the ports of the file. What ends is started
again, as Docker does.
"""

from __future__ import annotations

import copy
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
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from helpers.charts import LOADER
from helpers.networks import Network, can_make_networks, make_network
from helpers.waiting import wait_until

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docker-compose.yml").read_text()
SECRETS = {
    *("POSTGRES_PASSWORD", "RAY_AUTH_TOKEN", "EIGENSWEEP_TOKEN", "EIGENSWEEP_MLFLOW_TOKEN"),
}
MOST_RESTARTS = 5
"""Ray's processes give up on a machine that is busy; containers that end are started again."""
PORTS = {"postgres": "5432", "mlflow": "5000", "ray-head": "6379", "service": "8642"}
PAUSE = 0.3
"""Seconds between two looks at what runs."""
WORKER = "ray-worker"


def interpolate(text: str, variables: dict[str, str]) -> str:
    """Return a text with Compose's ${NAME}, ${NAME:-default}, ${NAME:?message} and $$ replaced."""

    def value(match: re.Match[str]) -> str:
        name, how, rest = match.groups()
        if name is None:
            return "$"
        if variables.get(name):
            return variables[name]
        if how == ":-":
            return rest
        raise KeyError(f"{name}: {rest}")

    return re.sub(r"\$\$|\$\{(\w+)(:[-?])?([^}]*)\}", value, text)


def read(**variables: str) -> dict[str, Any]:
    """Return the file's content with these variables, and secrets that are not secret."""
    return parse(interpolate(TEXT, dict.fromkeys(SECRETS, "secret") | variables))


def parse(text: str) -> dict[str, Any]:
    """Return the content of a Compose file; no part of it is shared with another one."""
    content: dict[str, Any] = json.loads(json.dumps(yaml.load(text, LOADER)))
    for service in content["services"].values():
        given = service.get("environment", {})
        # Compose hands on what has no value here, where the person's own file has one: keys.
        handed_on = {name for name, v in given.items() if v is None and name.startswith("AWS_")}
        service["environment"] = {n: v or "" for n, v in given.items() if n not in handed_on}
    return content


@dataclass(frozen=True)
class Order:
    """How a service is started."""

    command: list[str]
    user: str | None = None


class Composition:
    """The services of the file as processes, with folders of this machine.

    In a network each has its own address. Without one, they share this machine's, and have other
    ports.
    """

    def __init__(
        self,
        folder: Path,
        free_port: Callable[[], int] | None,
        programs: Path,
        network: Network | None,
        variables: dict[str, str],
    ) -> None:
        self.folder, self.programs, self.free_port = folder, programs, free_port
        self.network = network
        self.mark = uuid.uuid4().hex
        known = PORTS.values()
        self.ports = {port: port if network else str(self.next_port()) for port in known}
        self.secrets = {name: uuid.uuid4().hex for name in SECRETS}
        given = self.secrets | {"REDIS_PASSWORD": uuid.uuid4().hex} | variables
        self.content = parse(self.move(interpolate(TEXT, given)))
        services = self.content["services"]
        if network is None:
            for place, name in enumerate(sorted(name for name in services if name != "postgres")):
                services[name] = json.loads(self.give_ports(json.dumps(services[name]), place))
        else:
            lines = [f"{address} {name}\n" for name, address in network.addresses.items()]
            (folder / "hosts").write_text("".join(["127.0.0.1 localhost\n", *lines]))
            for name in network.addresses:
                services.setdefault(name, copy.deepcopy(services[WORKER]))
        self.is_confined = os.geteuid() == 0 and can_confine()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.orders: dict[str, Order] = {}
        self.kept: set[str] = set()
        """The services that are to run."""
        self.restarts: Counter[str] = Counter()
        self.turn, self.ending = threading.Lock(), threading.Event()
        self.watcher = threading.Thread(target=self.watch, daemon=True)
        self.watcher.start()

    def next_port(self) -> int:
        assert self.free_port is not None
        return self.free_port()

    def move(self, text: str) -> str:
        """Return the file's text with this machine's hosts, ports and folders."""
        text = text.replace("/home/eigensweep", f"{self.folder}/user")
        text = text.replace("/srv/", f"{self.folder}/")
        text = re.sub(r"(?<![\w/.])/data\b", f"{self.folder}/redis", text)
        if self.network is not None:
            return text
        for host, port in {
            **PORTS,
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
        return text.replace('"8642"', f'"{self.ports["8642"]}"').replace("0.0.0.0", "127.0.0.1")

    def host(self, name: str) -> str:
        """Return the address of a service, as this machine reaches it."""
        return self.network.addresses[name] if self.network else "127.0.0.1"

    @property
    def url(self) -> str:
        """Address of the service."""
        return f"http://{self.host('service')}:{self.ports['8642']}"

    def give_ports(self, service: str, place: int) -> str:
        """Return a service whose node has ports of its own: here all nodes share one address."""
        given: dict[str, str] = {}

        def exchange(match: re.Match[str]) -> str:
            given.setdefault(match[2], str(self.next_port()))
            return f"{match[1]}{given[match[2]]}"

        first = 20_002 + 1000 * place
        text = re.sub(r"(--(?:[a-z-]+-)?port=)(638\d)\b", exchange, service)
        text = text.replace("--min-worker-port=10002", f"--min-worker-port={first}")
        return text.replace("--max-worker-port=10999", f"--max-worker-port={first + 997}")

    def confine(self, name: str, command: list[str]) -> list[str]:
        """Return a command that runs with what the file leaves to its container."""
        service = self.content["services"][name]
        lines = ["set -e", "mount --make-rprivate /", f"hostname {name}"]
        # Ray starts drivers on the first node of an address: where all nodes share one, each sees
        # the volumes of all services.
        services = self.content["services"]
        seen = [name] if self.network else [name for name in services if name != "postgres"]
        volumes = {volume for name in seen for volume in services[name].get("volumes", [])}
        for volume in sorted(volumes):
            _, path, *how = volume.split(":")
            lines.append(f"mount --bind {path} {path}")
            lines += [f"mount -o remount,bind,ro {path}"] if how == ["ro"] else []
        # Nodes that share an address find each other's sockets by their place: then /tmp is common.
        shared = self.folder / "ray" / (name if self.network else "")
        shared.mkdir(exist_ok=True)
        lines += [f"mount --bind {shared} {shared}"]
        if self.network:
            lines.append(f"mount --bind {self.folder / 'hosts'} /etc/hosts")
        lines.append("mount -o remount,bind,ro /")
        lines.append(f"mount --bind {shared} /tmp")
        for path in service["tmpfs"]:
            path, _, options = path.partition(":")
            if path == "/tmp":
                continue
            kept = [each for each in options.split(",") if not each.startswith(("uid=", "gid="))]
            lines.append(f"mount -t tmpfs -o {','.join(['rw', *kept]).rstrip(',')} tmpfs {path}")
        rights = "setpriv --no-new-privs --inh-caps=-all --bounding-set=-all"
        lines.append(f"exec {rights} {shlex.join(command)}")
        return ["unshare", "--mount", "--uts", "bash", "-c", "\n".join(lines)]

    def environment(self, name: str) -> dict[str, str]:
        here = {n: v for n, v in os.environ.items() if not n.startswith(("EIGENSWEEP_", "RAY_"))}
        return {
            **here,
            "PYTHONPATH": f"{ROOT}:{ROOT / 'tests/plugins'}",
            # Ray makes trials nicer than all else: beside other work they would hardly begin.
            "RAY_worker_niceness": "0",
            **self.of_file(name),
            "PATH": f"{Path(sys.executable).parent}:{self.programs}:{os.environ['PATH']}",
            "PGHOST": self.host("postgres"),
            "PGPORT": self.ports["5432"],
            "HOME": str(self.folder / "user"),
            "COMPOSITION": f"{self.mark}:{name}",
            **({} if self.is_confined else {"RAY_TMPDIR": str(self.folder / "ray")}),
            # gRPC's own resolver wants a server of names, which these namespaces do not reach.
            **({"GRPC_DNS_RESOLVER": "native"} if self.network else {}),
        }

    def of_file(self, name: str) -> dict[str, str]:
        """Return the environment that the file gives to a service."""
        given = self.content["services"][name]["environment"]
        return {variable: str(value) for variable, value in given.items()}

    def start_all(self, *workers: str) -> None:
        """Start everything, one after another, with these workers."""
        self.start_postgres()
        redis = ["redis"] if self.of_file("ray-head")["RAY_REDIS_ADDRESS"] else []
        for name in ("mlflow", *redis, "ray-head", *workers, "service"):
            self.start(name)

    def start(self, name: str, command: list[str] | None = None, user: str | None = None) -> None:
        """Start a service and wait until it is healthy."""
        if command is None:
            command = self.content["services"][name]["command"]
            command = self.confine(name, command) if self.is_confined else command
        if self.network is not None:
            become = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"]
            command = self.network.inside(name, [*(become if user else []), *command])
            user = None
        self.orders[name] = Order(command, user)
        self.start_again(name)

    def start_again(self, name: str) -> None:
        """Start a service that was stopped, and wait until it is healthy."""
        # Ray would give new sockets other names than those of the node of a driver, which may take
        # the head for its own: here it sees the processes of all services.
        for stale in self.folder.glob(f"ray/{name}/ray/session_*/sockets/*"):
            stale.unlink()
        with self.turn:
            self.spawn(name)
            self.kept.add(name)
        wait_until(lambda: self.is_healthy(name), lambda: self.log_of(name), 0.5)

    def stop(self, name: str) -> None:
        """End a service with all of its processes at once; it is not started again."""
        with self.turn:
            self.kept.discard(name)
        main = psutil.Process(self.processes[name].pid)  # PostgreSQL writes over its environment
        for process in {main, *main.children(recursive=True), *self.family(name)}:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self.processes[name].wait()

    def spawn(self, name: str) -> None:
        order = self.orders[name]
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                order.command,
                cwd=self.folder,
                env=self.environment(name),
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                user=order.user,
            )

    def watch(self) -> None:
        """Start again what has ended, until everything is to end."""
        while not self.ending.wait(PAUSE):
            with self.turn:
                ended = [name for name in self.kept if self.processes[name].poll() is not None]
            for name in ended:
                left = self.family(name)  # a container ends as a whole
                for process in left:
                    with suppress(psutil.NoSuchProcess):
                        process.kill()
                psutil.wait_procs(left, timeout=PAUSE)
                with self.turn:
                    if name in self.kept and not self.ending.is_set():
                        self.restarts[name] += 1
                        self.spawn(name)

    def is_healthy(self, name: str) -> bool:
        """Return whether a service is well; it may have been started again a few times."""
        assert self.content["services"][name]["restart"] == "unless-stopped"
        assert self.restarts[name] < MOST_RESTARTS, self.log_of(name)
        return self.check(name).returncode == 0

    def check(self, name: str) -> subprocess.CompletedProcess[str]:
        """Run the health check of a service."""
        test = self.content["services"][name]["healthcheck"]["test"]
        assert test[0] == "CMD"
        environment = self.environment(name)
        command = test[1:]
        if self.network is not None:
            hosts = f"mount --bind {self.folder / 'hosts'} /etc/hosts"
            inside = ["unshare", "--mount", "bash", "-c", f"{hosts} && exec {shlex.join(command)}"]
            command = self.network.inside(name, inside)
        return subprocess.run(command, env=environment, capture_output=True, text=True)

    def nodes(self) -> list[dict[str, float]]:
        """Return the resources of each node, as the head knows them."""
        asked = (
            "import json, sys; from ray._raylet import GcsClient;"
            "nodes = GcsClient(address=sys.argv[1]).get_all_node_info(timeout=20).values();"
            "print(json.dumps([dict(node.resources_total) for node in nodes]))"
        )
        head = f"{self.host('ray-head')}:{self.ports['6379']}"
        words = [sys.executable, "-c", asked, head]
        done = subprocess.run(
            words, env=self.environment("ray-head"), capture_output=True, text=True, check=True
        )
        found: list[dict[str, float]] = json.loads(done.stdout)
        return found

    def end_node(self, name: str) -> None:
        """Kill the process of a service's Ray node, and nothing else; it is not started again."""
        with self.turn:
            self.kept.discard(name)
        for process in self.family(name):
            words = process.cmdline()
            if words[:1] != [] and words[0].endswith("raylet"):
                process.send_signal(signal.SIGKILL)
                return
        raise AssertionError(f"{name} has no node")

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
        with (made / "pg_hba.conf").open("a") as file:
            file.write("host all all all scram-sha-256\n")
        listen = ["-h", self.host("postgres"), "-p", self.ports["5432"], "-k", str(made)]
        options = service["command"][1:]
        command = [str(self.programs / "postgres"), "-D", str(made), *listen, *options]
        self.start("postgres", command, user)
        script = self.content["configs"]["more-databases"]["content"]
        script += f"CREATE DATABASE {service['environment']['POSTGRES_DB']};"
        env = self.environment("postgres") | {"PGPASSWORD": secret.read_text()}
        psql = [str(self.programs / "psql"), "-U", login, "-d", "postgres", "-v", "ON_ERROR_STOP=1"]
        subprocess.run(psql, input=script, text=True, env=env, check=True, capture_output=True)

    def end(self) -> None:
        """End every process that was started, the last one first."""
        self.ending.set()
        self.watcher.join()
        for process in reversed(self.processes.values()):
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        while survivors := self.family():
            for process in survivors:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(survivors, timeout=PAUSE)

    def family(self, name: str = "") -> list[psutil.Process]:
        """Return the living processes of a service, or of all; Ray's are not our children."""
        found = []
        for process in psutil.process_iter():
            try:
                mark = process.environ().get("COMPOSITION", "")
                if mark == f"{self.mark}:{name}" or (not name and mark.startswith(self.mark)):
                    found.append(process)
            except (psutil.Error, OSError):
                continue
        return found


def can_confine() -> bool:
    """Return whether mounts of a process of its own can be made here."""
    try:
        command = ["unshare", "--mount", "--uts", "mount", "--make-rprivate", "/"]
        return subprocess.run(command, capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


@contextmanager
def make_composition(
    free_port: Callable[[], int] | None, workers: int = 1, **variables: str
) -> Iterator[Composition]:
    """Make a composition of which nothing runs yet; skip with words where that is not possible.

    Without `free_port` it has a network in any case, and so many workers: ray-worker, ray-worker-2
    and so on.
    """
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
        for inner in ("home", "storage", "artifacts", "data", "ray", "redis", "user"):
            (folder / inner).mkdir()
        with ExitStack() as stack:
            network = None
            if free_port is None or (can_make_networks() and can_confine()):
                names = [name for name in read()["services"] if name != "ray-worker-gpu"]
                names += [f"{WORKER}-{place}" for place in range(2, workers + 1)]
                network = stack.enter_context(make_network(names))
            programs = Path(os.path.realpath(initdb)).parent
            composition = Composition(folder, free_port, programs, network, variables)
            stack.callback(composition.end)
            yield composition
