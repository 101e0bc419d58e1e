"""Preloads processes for the next trials. Runs in a driver's process.

Two steps of a trial's process take time: Ray starts it, and it loads PyTorch. Ray keeps a few thin
processes ready on request, and the node's zygote, from which trials are forked
(`processes/fork_server.py`), has loaded PyTorch. Both are made ready here, on the driver's node.

A process that had a task or an actor of Ray's is never given to a trial.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from typing import Final

import grpc  # type: ignore[import-untyped]
import psutil  # type: ignore[import-untyped]
import ray
from ray._private.grpc_utils import init_grpc_channel
from ray._private.utils import get_runtime_env_info
from ray.runtime_env import RuntimeEnv

from eigensweep.workers.processes.forked import keep_server
from eigensweep.workers.shared.code import own_code
from eigensweep.workers.shared.ray_nodes import RayNode, list_nodes

logger = logging.getLogger(__name__)

MOST: Final = 2
"""Thin processes that are kept ready."""
LEAST_SECONDS: Final = 60
"""Seconds that Ray keeps a preloaded process; after that it keeps as many as CPUs are free."""
ANSWER_SECONDS: Final = 5.0

THREADS: Final = "OMP_NUM_THREADS"
DEFAULT_THREADS: Final = "1"
"""What Ray sets for a trial with one core, the default."""


def load_ahead() -> None:
    """Have the missing processes for the next trials started; return at once."""
    raylet = psutil.Process(os.getppid())
    try:
        keep_server(raylet.pid, own_code().digest, _environment(raylet.environ()))
    except OSError as error:
        logger.warning("PyTorch was not loaded ahead, the first trial waits for it: %s", error)
    _start_thin()


def _start_thin() -> None:
    """Have Ray start the missing thin processes."""
    node = _own_node()
    missing = min(MOST, int(node["Resources"].get("CPU", 0))) - len(find_ready())
    if missing <= 0:
        return
    messages = import_module("ray.core.generated.node_manager_pb2")
    calls = import_module("ray.core.generated.node_manager_pb2_grpc")
    request = messages.PrestartWorkersRequest(
        language=0,  # Python
        runtime_env_info=get_runtime_env_info(RuntimeEnv()),
        keep_alive_duration_secs=LEAST_SECONDS,
        num_workers=missing,
    )
    address = f"{node['NodeManagerAddress']}:{node['NodeManagerPort']}"
    try:
        with init_grpc_channel(address) as channel:
            calls.NodeManagerServiceStub(channel).PrestartWorkers(request, timeout=ANSWER_SECONDS)
    except grpc.RpcError as error:
        logger.warning("no process was started ahead, trials wait for their own: %s", error)


def find_ready() -> list[int]:
    """Return the ids of the processes of this node that Ray has ready for anybody."""
    found = []
    for process in psutil.Process(os.getppid()).children():
        with suppress(psutil.Error):
            if "ray::IDLE" in " ".join(process.cmdline()):
                found.append(process.pid)
    return found


def _environment(inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a trial's process of one core, where Ray's own has `inherited`.

    It is the environment of this process, except for the number of threads: Ray sets that to the
    cores of the actor unless it was set for the service. NumPy chooses its threads when it is
    loaded, and another number of threads may change the last digits.
    """
    return {**os.environ, THREADS: inherited.get(THREADS, DEFAULT_THREADS)}


def _own_node() -> RayNode:
    here = ray.get_runtime_context().get_node_id()
    return next(node for node in list_nodes() if node["NodeID"] == here)
