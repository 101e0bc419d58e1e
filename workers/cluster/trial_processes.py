"""Processes that are ready for trials before there are any, on a Ray of our own.

Runs in the process that holds Ray for the service. Of each trial's process two parts take time: Ray
starts it, and something loads PyTorch. Ray keeps a few thin processes ready if it is asked to, and
the process that all of a node are forked from (`processes/fork_server.py`) has loaded PyTorch. Both
are done here. What is ready only saves time.

A process that had a task or an actor of Ray's is never given to a trial.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from typing import Final

import grpc  # type: ignore[import-untyped]
import psutil  # type: ignore[import-untyped]
import ray
from ray._private.grpc_utils import init_grpc_channel

from eigensweep.common.machine import find_memory
from eigensweep.protocol.code import has_changed, own_code
from eigensweep.workers.processes.fork_server import find_peer
from eigensweep.workers.processes.forked import keep_server
from eigensweep.workers.ray_nodes import RayNode, list_nodes

logger = logging.getLogger(__name__)

MOST: Final = 2
"""Thin processes that are kept ready."""
LEAST_SECONDS: Final = 60
"""So long Ray keeps a process that it started ahead. Then it keeps as many as CPUs are free."""
ANSWER_SECONDS: Final = 5.0
LOOK_SECONDS: Final = 1.0
"""Seconds between two looks whether trials run. After two looks without a trial, missing processes
are started; sooner, the next experiment might be starting its own."""
KEEP_SECONDS: Final = 60.0
"""Seconds between two looks at what is ready. Ray ends processes that wait while trials have all
cores."""
IDLE_SECONDS: Final = 8 * 3600.0
"""After so long without a trial, nothing is kept ready until the next trial."""
BYTES: Final = 420_000_000
"""Memory of the waiting processes: 260 MB of the one that forks, 80 MB of each thin one."""
MOST_OF_MEMORY: Final = 0.25
"""If the waiting processes took a larger part of the memory, none is kept."""

THREADS: Final = "OMP_NUM_THREADS"
DEFAULT_THREADS: Final = "1"
"""What Ray sets for a trial of one core, as trials have by default."""
OF_RAY: Final = {"PYTHONBREAKPOINT": "ray.util.rpdb.set_trace"}
"""What Ray sets in each of its processes, and otherwise in one that is connected to it."""


def keep_ready() -> None:
    """Keep processes ready for the first trials, for as long as this process lives."""
    memory = find_memory()
    if memory * MOST_OF_MEMORY < BYTES:
        logger.info("nothing is kept ready for trials: there are %.1f GB of memory", memory / 1e9)
        return
    quiet, keep_at, used_at = 1, 0.0, time.monotonic()
    while True:
        now = time.monotonic()
        try:
            if _is_used():
                quiet, keep_at, used_at = 0, 0.0, now
            elif quiet < 2:
                quiet += 1
            elif now >= keep_at and now < used_at + IDLE_SECONDS:
                load_ahead()
                keep_at = time.monotonic() + KEEP_SECONDS
        except Exception:  # the edge of this thread
            logger.debug("nothing could be made ready for trials", exc_info=True)
        time.sleep(LOOK_SECONDS)


def _is_used() -> bool:
    """Return whether a trial has some of the processors now."""
    free: dict[str, float] = ray.available_resources()  # type: ignore[no-untyped-call]
    whole: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    return bool(free.get("CPU", 0) < whole.get("CPU", 0))


def load_ahead() -> None:
    """Start the missing processes for the next trials."""
    if has_changed():  # what would be loaded is of no use to the next driver
        return
    raylet = psutil.Process(_find_raylet())
    try:
        keep_server(raylet.pid, own_code().digest, _environment(raylet.environ()))
    except OSError as error:
        logger.warning("PyTorch was not loaded ahead, the first trial waits for it: %s", error)
    _start_thin(raylet)


def _find_raylet() -> int:
    """Return the id of the raylet: it starts all of Ray's processes on this node."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(ANSWER_SECONDS)
        connection.connect(_own_node()["RayletSocketName"])
        return find_peer(connection)[0]


def _start_thin(raylet: psutil.Process) -> None:
    """Have Ray start the missing thin processes."""
    node = _own_node()
    missing = min(MOST, int(node["Resources"].get("CPU", 0))) - len(find_ready(raylet))
    if missing <= 0:
        return
    messages = import_module("ray.core.generated.node_manager_pb2")
    calls = import_module("ray.core.generated.node_manager_pb2_grpc")
    request = messages.PrestartWorkersRequest(
        language=0,  # Python
        keep_alive_duration_secs=LEAST_SECONDS,
        num_workers=missing,
    )
    address = f"{node['NodeManagerAddress']}:{node['NodeManagerPort']}"
    try:
        with init_grpc_channel(address, [("grpc.enable_http_proxy", 0)]) as channel:
            calls.NodeManagerServiceStub(channel).PrestartWorkers(request, timeout=ANSWER_SECONDS)
    except grpc.RpcError as error:
        logger.warning("no process was started ahead, trials wait for their own: %s", error)


def find_ready(raylet: psutil.Process) -> list[int]:
    """Return the ids of the processes of this node that Ray has ready for anybody."""
    found = []
    for process in raylet.children():
        with suppress(psutil.Error):
            if "ray::IDLE" in " ".join(process.cmdline()):
                found.append(process.pid)
    return found


def _environment(inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a trial's process of one core, on a raylet with `inherited`.

    It is the environment of this process, except for the number of threads: Ray sets it to the
    cores of the actor, unless it was set for the service. NumPy chooses its threads when it is
    loaded, and with another number of threads the last digits may differ.
    """
    return {**os.environ, **OF_RAY, THREADS: inherited.get(THREADS, DEFAULT_THREADS)}


def _own_node() -> RayNode:
    here = ray.get_runtime_context().get_node_id()
    return next(node for node in list_nodes() if node["NodeID"] == here)
