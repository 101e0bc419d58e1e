"""Processes that have loaded what a trial needs before there is one. Runs in a driver's process.

Ray starts a process ahead if it is asked to, and gives it to the next actor that wants the same
environment. So a trial's process has the environment that `want_loaded` sets: it names a function
that Ray calls in each such process at its start, and the code that the driver runs. A driver with
other code never gets what was loaded for this one.

A process that had a task or an actor of Ray's is never given to a trial.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Final

import grpc  # type: ignore[import-untyped]
import psutil  # type: ignore[import-untyped]
import ray
from ray._private.grpc_utils import init_grpc_channel
from ray._private.ray_constants import WORKER_PROCESS_SETUP_HOOK_ENV_VAR
from ray._private.utils import get_runtime_env_info
from ray.runtime_env import RuntimeEnv
from ray.tune.execution import class_cache

from eigensweep.workers.driver.trainable import TrialProcesses
from eigensweep.workers.shared.code import own_code
from eigensweep.workers.shared.messages import Json

logger = logging.getLogger(__name__)

MOST: Final = 2
"""Processes that are kept ready."""
LEAST_SECONDS: Final = 60
"""So long Ray keeps a process that it started ahead. Then it keeps as many as CPUs are free."""
ANSWER_SECONDS: Final = 5.0

HOOK: Final = "eigensweep.workers.engine.preload.load"
THREADS: Final = "OMP_NUM_THREADS"
CPUS: Final = 1.0
"""Cores of the trials that processes are kept ready for: as many as a trial has by default."""
CODE: Final = "CODE_OF_TRIALS"
"""Variable with the digest of the code that trials run."""


def want_loaded(wanted: bool, cpus: float = CPUS) -> None:
    """Let Ray Tune give the next trials processes that were loaded ahead, or let it not.

    With another number of `cpus` than `CPUS` none is found, and each is loaded for its trial.
    """
    variables = class_cache.DEFAULT_ENV_VARS
    for name, value in _variables(cpus).items():
        if wanted:
            variables[name] = value
        else:
            variables.pop(name, None)


def load_ahead() -> None:
    """Have Ray start what is missing of the processes that are kept ready; return at once."""
    node = _own_node()
    missing = min(MOST, int(node["Resources"].get("CPU", 0))) - len(find_ready())
    if missing <= 0:
        return
    variables = TrialProcesses().get()._default_options["runtime_env"]["env_vars"]
    environment = RuntimeEnv(env_vars=variables | _variables(CPUS))
    messages = import_module("ray.core.generated.node_manager_pb2")
    calls = import_module("ray.core.generated.node_manager_pb2_grpc")
    request = messages.PrestartWorkersRequest(
        language=0,  # Python
        runtime_env_info=get_runtime_env_info(environment),
        keep_alive_duration_secs=LEAST_SECONDS,
        num_workers=missing,
    )
    address = f"{node['NodeManagerAddress']}:{node['NodeManagerPort']}"
    try:
        with init_grpc_channel(address) as channel:
            calls.NodeManagerServiceStub(channel).PrestartWorkers(request, timeout=ANSWER_SECONDS)
    except grpc.RpcError as error:
        logger.warning("no process was loaded ahead, trials load their own: %s", error)


def find_ready() -> list[int]:
    """Return the ids of the processes that wait for a trial with this code, loaded or not yet."""
    variables, found = _variables(CPUS), []
    wanted = [variables[name] for name in (CODE, THREADS)]
    for process in psutil.Process(os.getppid()).children():
        with suppress(psutil.Error):
            is_free = "ray::IDLE" in " ".join(process.cmdline())
            own = process.environ()
            if is_free and [own.get(name) for name in (CODE, THREADS)] == wanted:
                found.append(process.pid)
    return found


def _variables(cpus: float) -> dict[str, str]:
    """Return what says which code to load, and for how many threads.

    Ray tells a process its path and its number of threads only with a trial. NumPy has chosen its
    threads by then, and other threads may give other last digits.
    """
    code = own_code()
    path = [str(Path(code.folder).parent), os.environ.get("PYTHONPATH", "")]
    return {
        THREADS: _given_threads() or str(max(1, int(cpus))),
        WORKER_PROCESS_SETUP_HOOK_ENV_VAR: HOOK,
        CODE: code.digest,
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
    }


def _given_threads() -> str | None:
    """Return the number of threads that was set for the service, which Ray's processes inherit."""
    with suppress(psutil.Error):  # this process's own variable may be Ray's choice
        given: str | None = psutil.Process(os.getppid()).environ().get(THREADS)
        return given
    return None


def _own_node() -> Json:
    here = ray.get_runtime_context().get_node_id()
    nodes: list[Json] = ray.nodes()  # type: ignore[no-untyped-call]
    return next(node for node in nodes if node["NodeID"] == here)
