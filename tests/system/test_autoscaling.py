"""An experiment on a cluster without workers, to which Ray's autoscaler adds nodes."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
from experiments import Cluster, Launched
from ray.autoscaler._private.constants import AUTOSCALER_RESOURCE_REQUEST_CHANNEL
from ray.experimental import internal_kv
from waiting import wait_until

pytestmark = pytest.mark.slow

HEAD = "f" * 51 + "00000"
"""The head's name, as Ray's own fake provider counts them."""
WORKERS = 2
COMMANDS = (
    *("initialization_commands", "setup_commands", "head_setup_commands", "worker_setup_commands"),
    *("head_start_ray_commands", "worker_start_ray_commands", "cluster_synced_files"),
    *("rsync_exclude", "rsync_filter"),
)
"""Lists that Ray's file of a cluster must have, and that are empty here."""
ROOT = Path(__file__).parents[2]


def autoscaling(address: str) -> dict[str, Any]:
    """Return what `ray start` wants: up to two nodes of one CPU, as processes of this machine."""
    return {
        "cluster_name": "test",
        "max_workers": WORKERS,
        "idle_timeout_minutes": 0.1,
        "upscaling_speed": 1.0,
        **{name: {} for name in ("auth", "docker", "file_mounts")},
        **{name: [] for name in COMMANDS},
        "file_mounts_sync_continuously": False,
        "provider": {
            "type": "fake_multinode",
            "head_node_id": HEAD,
            "gcs_address": address,
            "disable_node_updaters": True,
            "worker_liveness_check": False,
        },
        "head_node_type": "ray.head.default",
        "available_node_types": {
            "ray.head.default": {"resources": {"CPU": 0}, "node_config": {}, "max_workers": 0},
            "worker": {"resources": {"CPU": 1}, "node_config": {}, "max_workers": WORKERS},
        },
    }


@pytest.fixture
def cluster(tmp_path: Path, free_port: Any) -> Iterator[Cluster]:
    port, mark = free_port(), uuid.uuid4().hex
    address = f"{ray.util.get_node_ip_address()}:{port}"
    config = tmp_path / "autoscaling.json"
    config.write_text(json.dumps(autoscaling(address)))
    env = {
        "RAY_AUTH_MODE": "disabled",
        "EIGENSWEEP_TEST_MARK": mark,
        "PYTHONPATH": os.pathsep.join(
            map(str, (ROOT, ROOT / "tests/plugins", ROOT / "tests/helpers"))
        ),
        "OMP_NUM_THREADS": "1",
    }
    fake = {
        "RAY_FAKE_CLUSTER": "1",
        "RAY_OVERRIDE_NODE_ID_FOR_TESTING": HEAD,
        "AUTOSCALER_UPDATE_INTERVAL_S": "1",
        "AUTOSCALER_METRIC_PORT": str(free_port()),
    }
    ray_command = Path(sys.executable).with_name("ray")
    command = [ray_command, "start", "--head", "--block", "--num-cpus=0", f"--port={port}"]
    command += ["--include-dashboard=false", f"--autoscaling-config={config}"]
    with (tmp_path / "head.log").open("wb") as log, pytest.MonkeyPatch.context() as patch:
        head = subprocess.Popen(command, env=os.environ | env | fake, stdout=log, stderr=log)
        for name, value in env.items():
            patch.setenv(name, value)
        try:
            text = (tmp_path / "head.log").read_text
            wait_until(lambda: listens(port) or head.poll() is not None, text)
            assert head.poll() is None, text()
            joined = Cluster.start(address)
            yield joined
            joined.stop()
        finally:
            end_all(mark)
            head.wait()


def listens(port: int) -> bool:
    with socket.socket() as knock:
        return knock.connect_ex((ray.util.get_node_ip_address(), port)) == 0


def end_all(mark: str) -> None:
    """Kill every process of the cluster, nodes that the autoscaler started included."""
    for process in psutil.process_iter():
        try:
            if process.environ().get("EIGENSWEEP_TEST_MARK") == mark and process.pid != os.getpid():
                process.kill()
        except psutil.Error:
            continue


def count_workers() -> int:
    return sum(n["Alive"] and n["Resources"].get("CPU", 0) > 0 for n in ray.nodes())


def requested() -> list[Any]:
    """Return what Ray's autoscaler is asked for, beyond what is pending."""
    text = internal_kv._internal_kv_get(AUTOSCALER_RESOURCE_REQUEST_CHANNEL)
    return json.loads(text) if text else []


def test_nodes_come_for_an_experiment_whose_wish_ends_with_it(
    cluster: Cluster, tmp_path: Path
) -> None:
    slow = {"name": "toy_slow", "hidden_size": 4, "seconds": 0.5}
    spec = {
        "task": {"name": "copying", "delay": 4, "symbols": 2, "valid_size": 8, "test_size": 8},
        "model": slow,
        "training": {"steps": 40},
        "search": {"space": {"optimizer.lr": [0.1, 0.2, 0.3]}},
        "limits": {"room_seconds": 600},
    }
    experiment = Launched(cluster, tmp_path, "grows", spec, room_seconds=1.0)
    assert count_workers() == 0
    handle = experiment.launch()
    experiment.until(lambda: [t.state for t in experiment.trials()].count("running") == 2)
    assert count_workers() == 2
    assert len(requested()) == 3
    experiment.finish(handle)
    assert {trial.state for trial in experiment.trials()} == {"completed"}
    wait_until(lambda: not requested(), requested)
