"""What ended an actor, as Ray says by type: a changed word of Ray's changes nothing here."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import ray
import ray.exceptions
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from waiting import wait_until

from eigensweep.workers.cluster.ray_cluster import RayCluster, has_died_with_node


def lose(actor: ray.actor.ActorHandle) -> ray.exceptions.RayActorError:
    """Return how Ray says that an actor is gone."""

    def ask() -> ray.exceptions.RayActorError | None:
        try:
            ray.get(actor.pid.remote(), timeout=10)
        except ray.exceptions.ActorDiedError as error:
            return error
        except (ray.exceptions.ActorUnavailableError, ray.exceptions.GetTimeoutError):
            pass
        return None

    return wait_until(ask)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_killed_raylet_is_told_apart_from_a_killed_process():
    @ray.remote(num_cpus=1, max_restarts=0, max_task_retries=0)
    class Process:
        def pid(self) -> int:
            """Return its process."""
            return os.getpid()

    cluster = RayCluster.start(num_cpus=1)
    address = ray.get_runtime_context().gcs_address
    program = Path(sys.executable).parent / "ray"
    command = [program, "start", f"--address={address}", "--num-cpus=2", "--block"]
    node = subprocess.Popen(command, start_new_session=True)
    try:
        here = ray.get_runtime_context().get_node_id()

        def find_others() -> list[str]:
            return [n["NodeID"] for n in ray.nodes() if n["Alive"] and n["NodeID"] != here]

        (there,) = wait_until(find_others, ray.nodes)
        affinity = NodeAffinitySchedulingStrategy(there, soft=False)
        first, second = (Process.options(scheduling_strategy=affinity).remote() for _ in range(2))
        pid, _ = ray.get([first.pid.remote(), second.pid.remote()])
        os.kill(pid, signal.SIGKILL)
        assert not has_died_with_node(lose(first))
        children = psutil.Process(node.pid).children(recursive=True)
        (raylet,) = [each for each in children if each.name() == "raylet"]
        raylet.kill()
        assert has_died_with_node(lose(second))
    finally:
        node.terminate()
        node.wait()
        cluster.stop()
