"""The store of a real cluster: every node tries it, experiments train with it, through outages."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from helpers import s3
from helpers.waiting import wait_until
from sweeps import spec

from eigensweep.store.checkpoints import Store

HELPERS = Path(__file__).parents[1] / "helpers"


@pytest.mark.slow
@pytest.mark.ray
def test_a_node_without_keys_is_named_a_shared_folder_tried(tmp_path: Path) -> None:
    import ray

    from eigensweep.workers.cluster.ray_cluster import RayCluster

    with s3.serve() as bucket:
        cluster = RayCluster.start(num_cpus=1)
        address = ray.get_runtime_context().gcs_address
        no_keys = {name: value for name, value in os.environ.items() if name not in s3.KEYS}
        no_keys |= {"AWS_EC2_METADATA_DISABLED": "true", "HOME": str(tmp_path)}
        command = [str(Path(sys.executable).parent / "ray"), "start", f"--address={address}"]
        node = subprocess.Popen(
            [*command, "--num-cpus=1", "--block"], env=no_keys, start_new_session=True
        )

        def try_out(storage: str) -> list[str | None]:
            module = "eigensweep.workers.cluster.store_trial"
            asked = [sys.executable, "-m", module, "--address", address, "--storage", storage]
            answer = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
            return list(json.loads(answer).values())

        try:
            wait_until(lambda: len([n for n in ray.nodes() if n["Alive"]]) == 2, ray.nodes)
            assert try_out(str(tmp_path / "store")) == [None, None]
            problem = max(each or "" for each in try_out(f"{bucket}/x"))
            assert "has no keys that open s3://lab: set AWS_ACCESS_KEY_ID" in problem
            assert None in try_out(f"{bucket}/x")
        finally:
            node.terminate()
            node.wait()
            cluster.stop()


@pytest.fixture
def start_cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Any]]:
    """Return what starts Ray with two slots, and with the addresses and keys of that moment."""
    from experiments import Cluster

    monkeypatch.setenv("PYTHONPATH", str(HELPERS), prepend=os.pathsep)
    with ExitStack() as clusters:

        def start() -> Any:
            cluster = Cluster.start(num_cpus=2)
            clusters.callback(cluster.stop)
            return cluster

        yield start


@pytest.mark.slow
@pytest.mark.ray
def test_an_experiment_runs_to_its_end_with_checkpoints_in_s3(
    tmp_path: Path, start_cluster: Callable[[], Any]
) -> None:
    """Real processes: a driver, trials in processes and in lanes, and the store's server."""
    from experiments import Launched

    with s3.serve() as bucket:
        cluster = start_cluster()
        for name, resources in (("alone", {}), ("lanes", {"lanes": 2})):
            (folder := tmp_path / name).mkdir()
            content = spec({"space": {"optimizer.lr": [1e-2, 1e-3]}}, resources=resources)
            e = Launched(cluster, folder, name, content, storage=f"{bucket}/sweeps").run()
            store = Store(f"{bucket}/sweeps")
            assert [t.state for t in e.trials()] == ["completed"] * 2
            for number in range(2):
                key = f"{name}/{number:05d}/0"
                assert store.newest(key).step == 20
                assert store.points(key)[-1].step == 20
            assert not (folder / "store").exists()
    assert not (Path.cwd() / "lab").exists(), "nothing is written into the working folder"


@pytest.mark.slow
@pytest.mark.ray
def test_an_outage_ends_no_trial_that_trains_or_starts(
    tmp_path: Path, start_cluster: Callable[[], Any]
) -> None:
    """Real processes: the server ends in mid-sweep, a driver starts, and the server is back."""
    from experiments import Launched

    rates = {"space": {"optimizer.lr": [0.1 / n for n in range(1, 13)]}}
    content = spec(rates, training={"steps": 200, "evaluate_every": 50})
    with s3.serve_with_outages() as (bucket, outage):
        cluster = start_cluster()
        sweeps = [Launched(cluster, tmp_path, id, content, storage=bucket) for id in "ab"]
        drivers = [sweeps[0].launch()]
        sweeps[0].until(lambda: any(t.state == "completed" for t in sweeps[0].trials()))
        with outage():
            drivers.append(sweeps[1].launch())
            for e in sweeps:
                (notice,) = e.until(
                    lambda e=e: [n for n in e.ledger.read("notices") if n["kind"] == "store"]
                )
                assert "has not answered since" in notice["words"]
            assert [driver.state() for driver in drivers] == ["running"] * 2
            assert any(not trial.is_over for trial in sweeps[0].trials())
        for e, driver in zip(sweeps, drivers, strict=True):
            e.finish(driver)
            assert [trial.state for trial in e.trials()] == ["completed"] * 12
            assert [n for n in e.ledger.read("notices") if n["kind"] == "store"] == []
