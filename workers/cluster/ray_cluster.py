"""The Ray cluster that experiments run on: our own, or one that we join."""

from __future__ import annotations

import logging
import os
import secrets
import socket
import time
from collections.abc import Collection
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import ray
import ray.exceptions
from ray._raylet import GcsClient  # type: ignore[attr-defined]

from eigensweep.common.foreign_code import keep_signal_handlers
from eigensweep.common.machine import count_processors, find_free_memory
from eigensweep.common.private_folders import UnsafeFolderError
from eigensweep.workers.cluster.nodes import ClusterSnapshot, Node, RayPlace, read_nodes
from eigensweep.workers.cluster.ray_folder import RayFolder
from eigensweep.workers.cluster.threads import find_thread_problem
from eigensweep.workers.driver.process.ray_job import EXPERIMENT, connect
from eigensweep.workers.ray_nodes import answers, find_silent, list_nodes

logger = logging.getLogger(__name__)

OBJECT_STORE_BYTES = 128 * 2**20

ANSWER_SECONDS = 20.0
"""How long Ray's head may take to answer."""

KNOCK_SECONDS = 10.0

LOOK_SECONDS = 0.8
"""How long Ray's control processes may take to accept a connection; a kernel needs milliseconds."""

NODE_SILENT = "Ray's process for this machine does not answer"


class ClusterError(RuntimeError):
    """Ray could not be started or reached."""


class SlowStartError(ClusterError):
    """Ray was not up in the time that it gives itself. Another try may do."""


SLOW_START = ("timed out during startup", "Timed out waiting for file")
"""So Ray says it, in an exception of no kind of its own."""


class RayCluster:
    """A connection to Ray. One in a process."""

    def __init__(self, folder: RayFolder | None, addresses: dict[str, str]) -> None:
        """`folder` is that of a Ray of our own; None: Ray belongs to somebody else."""
        self._folder, self._addresses = folder, addresses
        self._found: dict[str, str] | None = None
        """Ids of the jobs that drive experiments, by these; None: not looked yet."""

    @classmethod
    def start(
        cls,
        address: str | None = None,
        num_cpus: int | None = None,
        num_gpus: int | None = None,
        temp_dir: Path | str | None = None,
        kept_memory: int = 0,
    ) -> Self:
        """Start a Ray of our own, which ends with this process, or join the one at `address`.

        Call it in the main thread: Ray's processes die with the thread that started them. Our own
        has `temp_dir` to itself: it is emptied now, and removed by `stop`. There trials do not get
        `kept_memory`, in bytes: it is for drivers. Without `num_cpus` it has the processors that
        this process may use.

        Raises:
            ClusterError: if Ray does not start or does not answer, or its folder is not safe.
        """
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        if address is not None:
            _knock(address)
            with keep_signal_handlers():
                addresses = _init(address=address)
            return cls(None, addresses)
        # Ray turns tokens on for a cluster that it starts, and keeps one in the home folder where
        # none is given. One for each process: Ray remembers the first.
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
        # Ray's autoscaler would show its metrics to everybody on this machine, and has no switch.
        os.environ["AUTOSCALER_METRIC_PORT"] = "-1"  # cannot be listened at; Ray logs that
        os.environ["SPT_NOENV"] = "1"  # Ray's processes keep their environment readable
        logging.getLogger("ray._private.authentication").setLevel(logging.ERROR)
        try:
            folder = RayFolder.make(None if temp_dir is None else Path(temp_dir))
        except (UnsafeFolderError, OSError) as error:
            raise ClusterError(f"Ray has no folder to work in: {error}") from error
        if num_cpus is None:  # Ray knows only the limits of containers
            num_cpus = count_processors()
        if (problem := find_thread_problem(num_cpus)) is not None:
            logger.warning("%s: take fewer by EIGENSWEEP_CPUS, or raise that limit", problem)
        memory = find_free_memory() - OBJECT_STORE_BYTES
        with keep_signal_handlers():
            addresses = _init(
                address="local",
                num_cpus=num_cpus,
                num_gpus=num_gpus,
                include_dashboard=False,
                object_store_memory=OBJECT_STORE_BYTES,
                _memory=max(memory // 2, memory - kept_memory),  # no trial counts on theirs
                _temp_dir=str(folder.path),
            )
        return cls(folder, addresses)

    @property
    def place(self) -> RayPlace:
        """Where drivers find this Ray, and leave their logs."""
        logs = Path(self._addresses["session_dir"]) / "logs"
        return RayPlace(self._addresses["gcs_address"], str(logs))

    def look(self) -> ClusterSnapshot:
        """Return what there is to see of the cluster now. Waits for Ray's head, however long.

        The nodes of a cluster that was joined come and go; our own node stays as it is.
        """
        from eigensweep.workers.driver.nodes.capacity import list_living_nodes

        living = list_living_nodes()
        silent = find_silent(living)
        here = ray.get_runtime_context().get_node_id()
        return ClusterSnapshot(
            self.list_nodes(silent),
            living,
            may_change=self._folder is None,
            problem=NODE_SILENT if here in silent else None,
            drivers=self._find_drivers(),
        )

    def list_nodes(self, silent: Collection[str] = ()) -> list[Node]:
        """Return the nodes of now, those that live first; the `silent` ones do not answer."""
        from eigensweep.workers.driver.nodes.capacity import find_draining

        nodes = list_nodes()
        free = ray._private.state.available_resources_per_node()  # type: ignore[no-untyped-call]
        gone = {} if all(node["Alive"] for node in nodes) else self._find_gone()
        return read_nodes(nodes, free, silent, find_draining(), gone, time.time())

    def _find_drivers(self) -> frozenset[str]:
        """Return the experiments that drivers of an earlier service drive now.

        Their jobs are looked for once. Drivers that are launched later are known to `Drivers`.
        """
        if self._folder is not None:  # it began empty
            return frozenset()
        if self._found is None:
            self._found = {
                job.config.metadata[EXPERIMENT]: id.hex()
                for id, job in self._list_jobs().items()
                if EXPERIMENT in job.config.metadata and not job.is_dead
            }
        for experiment, id in list(self._found.items()):
            if all(job.is_dead for job in self._list_jobs(id).values()):
                del self._found[experiment]
        return frozenset(self._found)

    @cached_property
    def _head(self) -> Any:
        return GcsClient(address=self._addresses["gcs_address"])

    def _list_jobs(self, id: str | None = None) -> dict[Any, Any]:
        """Return Ray's jobs of now and of before by their ids; only one if an `id` is given."""
        return self._head.get_all_job_info(
            job_or_submission_id=id,
            skip_submission_job_info_field=True,
            skip_is_running_tasks_field=True,
            timeout=ANSWER_SECONDS,
        )

    def _find_gone(self) -> dict[str, float]:
        """Return Ray's ids of the nodes that are gone, each with the Unix time of that."""
        infos = self._head.get_all_node_info(timeout=ANSWER_SECONDS).values()
        return {info.node_id.hex(): info.end_time_ms / 1000 for info in infos if info.end_time_ms}

    def explain_loss(self) -> str | None:
        """Return why Ray is lost to this process; None: its control processes listen."""
        address = self._addresses["gcs_address"]
        try:
            socket.create_connection(_split(address), LOOK_SECONDS).close()
        except OSError as error:
            return f"Ray's control process at {address} does not answer: {error}"
        try:
            with socket.socket(socket.AF_UNIX) as knock:
                knock.settimeout(LOOK_SECONDS)
                knock.connect(self._addresses["raylet_socket_name"])
        except BlockingIOError:  # as many knocks wait as may: somebody listens, and stands still
            return None
        except OSError as error:
            return f"Ray's process for this machine does not answer: {error}"
        return None

    def explain_silence(self) -> str | None:
        """Return which words fit a Ray whose head does not answer; None: it does."""
        address = self._addresses["gcs_address"]
        if answers(_split(address)):
            return None
        return f"Ray's control process at {address} does not answer"

    def stop(self) -> None:
        """Leave the cluster. If it is our own, it ends with all processes."""
        if self._folder is not None:
            for actor in ray.util.list_named_actors(all_namespaces=True):
                with suppress(ValueError, ray.exceptions.RayError):
                    ray.kill(ray.get_actor(actor["name"], actor["namespace"]))
        with keep_signal_handlers():
            ray.shutdown()
        if self._folder is not None:
            self._folder.remove()


def _knock(address: str) -> None:
    """Raise ClusterError if nobody listens at `host:port`: Ray would try for ten minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        return
    try:
        socket.create_connection(_split(address), KNOCK_SECONDS).close()
    except OSError as error:
        raise ClusterError(f"no Ray answers at {address}: {error}") from error


def _split(address: str) -> tuple[str, int]:
    """Return host and port of `host:port`; the host may be an IPv6 address in brackets."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def _init(**settings: Any) -> dict[str, str]:
    try:
        return connect(**settings)
    except Exception as error:
        if any(words in str(error) for words in SLOW_START):
            raise SlowStartError("Ray did not start in 30 s: the machine may be busy") from error
        if not isinstance(error, RuntimeError | ValueError | OSError):
            raise
        place = settings["address"]
        raise ClusterError(
            f"Ray at {place} cannot be used: {error}. On a cluster with tokens set RAY_AUTH_MODE "
            "and RAY_AUTH_TOKEN, and let this node join it: ray start --address=... --num-cpus=0"
            if place != "local"
            else f"Ray does not start: {error}"
        ) from error
