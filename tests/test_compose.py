"""docker-compose.yml: the commands of its services, run as plain processes of this machine."""

from __future__ import annotations

import json
import re
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from helpers.composition import (
    ROOT,
    SECRETS,
    TEXT,
    WORKER,
    Composition,
    interpolate,
    make_composition,
    read,
)
from helpers.links import run_id_of
from helpers.waiting import PATIENCE, wait_until

from eigensweep.client import Client, RefusedError
from eigensweep.service.settings import Settings

SPEC = {
    "name": "small",
    "task": {"name": "copying", "delay": 5, "valid_size": 50, "test_size": 50},
    "model": {"name": "scornn", "hidden_size": 8, "negative_ones": 4},
    "training": {"steps": 20, "evaluate_every": 10},
    "search": {"space": {"optimizer.lr": [1e-2, 1e-3]}},
}


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


def test_every_node_gets_those_keys_of_a_store_that_are_there() -> None:
    place = "s3://lab/sweeps"
    given = dict.fromkeys(SECRETS, "x") | {"EIGENSWEEP_STORAGE": place}
    services = yaml.safe_load(interpolate(TEXT, given))["services"]
    assert services["service"]["environment"]["EIGENSWEEP_STORAGE"] == place
    for name in ("service", "ray-head", "ray-worker", "ray-worker-gpu"):
        there = services[name]["environment"]
        for key in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL"):
            assert there[key] is None, "an empty key would be used in place of a machine's role"
    assert read()["services"]["service"]["environment"]["EIGENSWEEP_STORAGE"] == "/srv/storage"


def test_who_ends_in_order_has_longer_than_dockers_ten_seconds() -> None:
    from ray._private.ray_constants import RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S as DRAIN_SECONDS

    services = read()["services"]
    grace = {name: int(s.get("stop_grace_period", "10s")[:-1]) for name, s in services.items()}
    assert min(grace["ray-worker"], grace["ray-worker-gpu"]) > DRAIN_SECONDS
    assert grace["service"] > 15


def test_every_service_is_watched_and_only_loopback_published() -> None:
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
    assert "--port 6378" in services["redis"]["command"][-1]
    others = {"5432", "5000", "6378", "8642"}
    assert listed == {(port, "") for port in others | set(of_ray.values())} | {(first, last)}
    for name in ("ray-head", "ray-worker", "ray-worker-gpu"):
        test = services[name]["healthcheck"]["test"]
        assert f"--port={of_ray['node-manager']}" in test, "the check asks another process"


@pytest.fixture
def composition(free_port: Callable[[], int]) -> Iterator[Composition]:
    with make_composition(free_port) as made:
        yield made


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(1800)
def test_the_composition_runs_an_experiment(composition: Composition) -> None:
    composition.start_all(WORKER)
    url = composition.url
    (worker,) = [node for node in composition.nodes() if node.get("CPU")]
    assert (worker["CPU"], worker["memory"]) == (2, 3 * 2**30)
    with Client(url) as stranger, pytest.raises(RefusedError, match="Unauthorized"):
        stranger.submit(SPEC)

    with Client(url, composition.secrets["EIGENSWEEP_TOKEN"]) as client:
        experiment = client.submit(SPEC)
        experiment.wait(timeout=PATIENCE)
        trials = experiment.listing()

    assert experiment.state == "completed", composition.log_of("service")
    assert [trial["state"] for trial in trials] == ["completed", "completed"]
    run = run_id_of(experiment.content["links"]["run"])
    asked = f"api/2.0/mlflow/runs/get?run_id={run}"
    mlflows = f"http://{composition.host('mlflow')}:{composition.ports['5000']}/{asked}"
    named = {"Host": "mlflow:5000"} if composition.network else {}
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(urllib.request.Request(mlflows, headers=named))
    bearer = {"Authorization": f"Bearer {composition.secrets['EIGENSWEEP_TOKEN']}"}
    mlflow = urllib.request.Request(f"{url}/mlflow/{asked}", headers=bearer)
    wait_until(lambda: status_of(mlflow) == "FINISHED", lambda: status_of(mlflow), pause=1)
    assert (composition.folder / "home" / "eigensweep.db").exists() is False

    if composition.network is not None:
        composition.network.cut(WORKER)
        assert "does not answer" in composition.check(WORKER).stderr
        assert composition.check("ray-head").returncode == 0
        composition.network.heal(WORKER)
        wait_until(lambda: composition.check(WORKER).returncode == 0, pause=0.5)

    composition.end_node(WORKER)

    words = "counts no living node of this machine"
    wait_until(lambda: words in composition.check(WORKER).stderr, pause=0.5)
    assert composition.check(WORKER).returncode == 1
    assert composition.check("ray-head").returncode == 0


def status_of(request: urllib.request.Request) -> Any:
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)["run"]["info"]["status"]
