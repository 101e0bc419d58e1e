"""The Ray cluster that experiments run on, our own or one that we join, and its drivers."""

from __future__ import annotations

import logging
import os
import secrets
import signal
import socket
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import ray
import ray.exceptions
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from eigensweep.private_folders import UnsafeFolderError
from eigensweep.variables import warn_of_unknown
from eigensweep.workers.cluster.nodes import Node, read_nodes
from eigensweep.workers.cluster.ray_folder import RayFolder
from eigensweep.workers.engine.actor import NAMESPACE
from eigensweep.workers.shared import logs, traces
from eigensweep.workers.shared.ledger import Ledger
from eigensweep.workers.shared.messages import DriverOptions, Json, SpecJson

if TYPE_CHECKING:
    from eigensweep.search_spaces.sections import ResourcesConfig
    from eigensweep.workers.engine.shares import Room

logger = logging.getLogger(__name__)

OBJECT_STORE_BYTES = 128 * 2**20

ANSWER_SECONDS = 20.0
"""How long a driver may take to answer; one that does not answer in time counts as running."""

KNOCK_SECONDS = 10.0

LOOK_SECONDS = 0.8
"""How long Ray's control processes may take to accept a connection; a kernel needs milliseconds."""

LINGER_SECONDS = 120.0
"""How long a driver that is over still answers, before its process ends by itself."""

State = Literal["running", "ended", "died"]


class ClusterError(RuntimeError):
    """Ray could not be started or reached."""


def begin_driver(experiment: str, options: DriverOptions) -> None:
    """Set up the log of a driver's process, and name variables that nothing reads."""
    logs.set_up(options.log_format)
    logs.name_process(experiment)
    traces.set_up("driver", options.otlp_endpoint)
    warn_of_unknown(os.environ, logger)


class DriverActor:
    """The process of one experiment's driver, which also answers how it is."""

    def __init__(self) -> None:
        self._state: State = "running"
        self._error: str | None = None

    def run(self, experiment: str, spec: SpecJson, ledger: Ledger, options: DriverOptions) -> None:
        from eigensweep.workers.driver.experiment import run_experiment

        begin_driver(experiment, options)
        if options.mlflow_token is not None:
            os.environ["MLFLOW_TRACKING_TOKEN"] = options.mlflow_token
        try:
            try:
                with traces.span("driver", options.trace, experiment=experiment):
                    inside = replace(options, trace=traces.carry())
                    run_experiment(experiment, spec, ledger, inside)
            finally:
                traces.flush()  # whoever learns that it is over ends this process
            self._state = "ended"
        except BaseException:
            # Nothing is recorded of it: the service asks for the state, and starts another driver.
            self._error, self._state = traceback.format_exc(), "died"
            logger.exception("driver died experiment=%s", experiment)
        end = threading.Timer(LINGER_SECONDS, os._exit, [0])
        end.daemon = True
        end.start()

    def state(self) -> tuple[State, str | None]:
        return self._state, self._error


@dataclass
class DriverHandle:
    """A driver, wherever its process is."""

    experiment: str
    _actor: Any
    error: str | None = None
    """Why it died, once `state` said so."""
    _over: State | None = None

    def state(self) -> State:
        """Return how the driver is. If it is over, its process and its trials' are ended."""
        if self._over is not None:
            return self._over
        try:
            state, self.error = ray.get(self._actor.state.remote(), timeout=ANSWER_SECONDS)
        except ray.exceptions.GetTimeoutError:
            return "running"
        except ray.exceptions.RayActorError as error:
            state, self.error = "died", f"the driver's process died: {error}"
        if state != "running":
            self._over = state
            self.kill()
        return state

    def wait(self, timeout: float | None = None) -> State:
        """Wait until the driver is over, or for `timeout` seconds; return its state."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while (state := self.state()) == "running":
            if deadline is not None and time.monotonic() >= deadline:
                break
            time.sleep(0.1)
        return state

    def kill(self) -> None:
        """End the driver's process at once, and with it its trials'."""
        with suppress(ray.exceptions.RayActorError, ValueError):
            ray.kill(self._actor, no_restart=True)


class RayCluster:
    """A connection to Ray. One in a process."""

    def __init__(self, folder: RayFolder | None) -> None:
        """`folder` is that of a Ray of our own; None: Ray belongs to somebody else."""
        self._folder = folder

    @classmethod
    def start(
        cls,
        address: str | None = None,
        num_cpus: int | None = None,
        num_gpus: int | None = None,
        temp_dir: Path | str | None = None,
    ) -> Self:
        """Start a Ray of our own, which ends with this process, or join the one at `address`.

        Call it in the main thread: Ray's processes die with the thread that started them. Our own
        has `temp_dir` to itself: it is emptied now, and removed by `stop`.

        Raises:
            ClusterError: if Ray does not start or does not answer, or its folder is not safe.
        """
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        if address is not None:
            _knock(address)
            with _keep_signal_handlers():
                _init(address=address)
            return cls(None)
        # Ray turns tokens on for a cluster that it starts, and keeps one in the home folder where
        # none is given. One for each process: Ray remembers the first.
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
        logging.getLogger("ray._private.authentication").setLevel(logging.ERROR)
        try:
            folder = RayFolder.make(None if temp_dir is None else Path(temp_dir))
        except (UnsafeFolderError, OSError) as error:
            raise ClusterError(f"Ray has no folder to work in: {error}") from error
        with _keep_signal_handlers():
            _init(
                address="local",
                num_cpus=num_cpus,
                num_gpus=num_gpus,
                include_dashboard=False,
                object_store_memory=OBJECT_STORE_BYTES,
                _temp_dir=str(folder.path),
            )
        return cls(folder)

    def launch(
        self, experiment: str, spec: SpecJson, ledger: Ledger, options: DriverOptions
    ) -> DriverHandle:
        """Start a driver on this node, unless one runs; return its handle at once."""
        found = self.find(experiment)
        if found is not None and found.state() == "running":
            return found
        here = ray.get_runtime_context().get_node_id()
        actor: Any = (
            ray.remote(DriverActor)
            .options(
                name=_name(experiment),
                namespace=NAMESPACE,
                lifetime="detached",
                num_cpus=0,
                max_concurrency=4,
                scheduling_strategy=NodeAffinitySchedulingStrategy(here, soft=False),
            )
            .remote()
        )
        actor.run.remote(experiment, spec, ledger, options)
        return DriverHandle(experiment, actor)

    def find(self, experiment: str) -> DriverHandle | None:
        """Return the driver of an experiment, None if there is none."""
        try:
            return DriverHandle(experiment, ray.get_actor(_name(experiment), NAMESPACE))
        except ValueError:
            return None

    def look_for_room(self, resources: ResourcesConfig, replicates: int) -> Room:
        """Return how many trials with these resources the nodes of now hold, or why none.

        The nodes of a cluster that was joined come and go; our own node stays as it is.
        """
        from eigensweep.workers.driver.capacity import look_for_room

        return look_for_room(resources, replicates, may_change=self._folder is None)

    def list_nodes(self) -> list[Node]:
        """Return the nodes of now, those that live first."""
        nodes: list[Json] = ray.nodes()  # type: ignore[no-untyped-call]
        free = ray._private.state.available_resources_per_node()  # type: ignore[no-untyped-call]
        return read_nodes(nodes, free)

    def stop(self) -> None:
        """Leave the cluster. If it is our own, it ends with all processes; else drivers go on."""
        if self._folder is not None:
            for actor in ray.util.list_named_actors(all_namespaces=True):
                with suppress(ValueError, ray.exceptions.RayError):
                    ray.kill(ray.get_actor(actor["name"], actor["namespace"]))
        with _keep_signal_handlers():
            ray.shutdown()
        if self._folder is not None:
            self._folder.remove()


def explain_loss() -> str | None:
    """Return why Ray is lost to this process; None: its control processes listen."""
    node = ray._private.worker._global_node
    if node is None:
        return "Ray has ended"
    host, _, port = str(node.gcs_address).rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), LOOK_SECONDS).close()
    except OSError as error:
        return f"Ray's control process at {node.gcs_address} does not answer: {error}"
    try:
        with socket.socket(socket.AF_UNIX) as knock:
            knock.settimeout(LOOK_SECONDS)
            knock.connect(node.raylet_socket_name)
    except OSError as error:
        return f"Ray's process for this machine does not answer: {error}"
    return None


def _name(experiment: str) -> str:
    return f"driver-{experiment}"


def _knock(address: str) -> None:
    """Raise ClusterError if nobody listens at `host:port`: Ray would try for ten minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), KNOCK_SECONDS).close()
    except OSError as error:
        raise ClusterError(f"no Ray answers at {address}: {error}") from error


def _init(**settings: Any) -> None:
    try:
        ray.init(
            namespace=NAMESPACE,
            log_to_driver=False,
            logging_level=logging.WARNING,
            configure_logging=False,
            **settings,
        )
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        place = settings["address"]
        raise ClusterError(
            f"Ray at {place} cannot be used: {error}. On a cluster with tokens set RAY_AUTH_MODE "
            "and RAY_AUTH_TOKEN, and let this node join it: ray start --address=... --num-cpus=0"
            if place != "local"
            else f"Ray does not start: {error}"
        ) from error


@contextmanager
def _keep_signal_handlers() -> Iterator[None]:
    """Put this process's signal handlers back after Ray has set its own."""
    main = threading.current_thread() is threading.main_thread()
    kinds = (signal.SIGTERM, signal.SIGINT)
    before = {kind: signal.getsignal(kind) for kind in kinds}
    try:
        yield
    finally:
        if main:
            for kind, handler in before.items():
                signal.signal(kind, handler)
