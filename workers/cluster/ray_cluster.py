"""The Ray cluster that experiments run on, our own or one that we join, and its drivers."""

from __future__ import annotations

import gc
import logging
import os
import secrets
import signal
import socket
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, Self

import psutil  # type: ignore[import-untyped]
import ray
import ray.exceptions
from ray.experimental import internal_kv
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from eigensweep.private_folders import UnsafeFolderError
from eigensweep.variables import warn_of_unknown
from eigensweep.workers.cluster import heartbeat
from eigensweep.workers.cluster import warm_drivers as warm
from eigensweep.workers.cluster.crew import Crew
from eigensweep.workers.cluster.nodes import Look, Node, read_nodes
from eigensweep.workers.cluster.ray_folder import RayFolder
from eigensweep.workers.cluster.warm_drivers import WarmDrivers
from eigensweep.workers.lanes.actor import NAMESPACE, PROCESS_LOST
from eigensweep.workers.shared import logs, traces
from eigensweep.workers.shared.code import has_changed, own_code
from eigensweep.workers.shared.deaths import Death, explain, explain_shortage
from eigensweep.workers.shared.ledger import Ledger
from eigensweep.workers.shared.messages import DriverOptions, SpecJson
from eigensweep.workers.shared.ray_nodes import list_nodes

logger = logging.getLogger(__name__)

OBJECT_STORE_BYTES = 128 * 2**20

ANSWER_SECONDS = 20.0
"""How long a driver may take to answer."""

YES_SECONDS = 5.0
"""How long a driver may take to answer whether it can have an experiment."""

KNOCK_SECONDS = 10.0

LOOK_SECONDS = 0.8
"""How long Ray's control processes may take to accept a connection; a kernel needs milliseconds."""

MOST_EXPERIMENTS = 20
"""A process is given so many experiments, and ends after the last one."""

MOST_BYTES = 700 * 2**20
"""A driver's process that is larger than that gets no other experiment."""

ASKED_AT_ONCE = 3
"""Questions that a driver answers at the same moment."""

LINGER_SECONDS = 120.0
"""How long a driver that is over still answers, before its process ends by itself."""

LEASE_SECONDS = 5 * warm.LOOK_SECONDS
"""On a Ray that outlives the service, a driver that waits ends by itself when nobody has looked at
it for so long."""

NEVER_TOLD = "it was never told what to do, because the service ended at that moment"
"""Why a driver counts as dead that an earlier service has started."""

NODE_SILENT = "Ray's process for this machine does not answer"

State = Literal["running", "ended", "died"]


class ClusterError(RuntimeError):
    """Ray could not be started or reached."""


class SlowStartError(ClusterError):
    """Ray was not up in the time that it gives itself. Another try may do."""


SLOW_START = "timed out during startup"
"""So Ray says it, in an exception of no kind of its own."""


def begin_driver(options: DriverOptions) -> None:
    """Set up the log of a driver's process, and name variables that nothing reads."""
    logs.set_up(options.log_format)
    traces.set_up("driver", options.otlp_endpoint)
    warn_of_unknown(os.environ, logger)


class DriverActor:
    """The process of a driver, which also answers how its experiments are.

    It has one experiment at a time, or several small ones that share it, each in a thread. What
    these have in common is the process: memory, Python's lock, and variables of the environment,
    which are the same for all experiments of a service.
    """

    def __init__(self, loads_ahead: bool = False, is_leased: bool = False) -> None:
        """`loads_ahead` says whether processes for trials may be loaded before there are any.

        `is_leased` says whether it ends by itself when nobody looks at it while it waits.
        """
        self._loads_ahead, self._is_leased = loads_ahead, is_leased
        self._is_waiting = True
        """Whether no experiment has it: it has just started, or waits for the next one."""
        self._states: dict[str, tuple[State, Death | None]] = {}
        """How the experiments are that it has had since it last waited, and why one died."""
        self._experiments = 0
        self._end: threading.Timer | None = None
        self._turn = threading.Lock()
        self._plan_end()

    def prepare(self, modules: Sequence[str]) -> None:
        """Load what a driver needs, and what its first trials need, before there are any.

        `modules` is what it needs beside its own: that of the ledger.
        """
        from eigensweep.workers.driver.experiment import run_experiment  # noqa: F401
        from eigensweep.workers.tracking.mlflow_runs import load_client

        own_code()
        load_client()
        for name in modules:
            import_module(name)
        if self._is_waiting:  # else it has one by now, whose trials load what they need
            self.load_trials()

    def begin(self) -> bool:
        """Get ready for an experiment; return False if the code on the disk is another by now."""
        if has_changed():
            return False
        with self._turn:
            self._is_waiting = False
            self._experiments += 1
            self._plan_end()
        return True

    def join(self, experiment: str) -> bool:
        """Get ready for one more experiment beside others; return False if it should not come."""
        if has_changed() or not self._may_have_another():
            return False
        with self._turn:
            states = [state for state, _ in self._states.values()]
            has_it = self._states.get(experiment, ("ended", None))[0] == "running"
            if has_it or "died" in states:
                return False
            self._states.pop(experiment, None)
            self._experiments += 1
            self._plan_end()
            return True

    def rest(self) -> bool:
        """Wait for another experiment; return False if this process should not have one."""
        from eigensweep.workers.tracking.tracker import is_delivering

        with self._turn:
            self._states.clear()
            self._is_waiting = True
            self._plan_end()
        gc.collect()  # Ray ends the actors whose handles are gone
        return not is_delivering() and self._may_have_another()

    def _may_have_another(self) -> bool:
        size = psutil.Process().memory_info().rss
        return self._experiments < MOST_EXPERIMENTS and bool(size < MOST_BYTES)

    def load_trials(self) -> bool:
        """Have processes load what trials need; Ray gives them to the first trials."""
        with self._turn:
            self._plan_end()
        if self._loads_ahead:
            from eigensweep.workers.driver import trial_processes

            trial_processes.load_ahead()
        return True

    def run(self, experiment: str, spec: SpecJson, ledger: Ledger, options: DriverOptions) -> None:
        """Drive an experiment to its end. Several may be driven at once, each by its own call."""
        with self._turn:
            self._is_waiting = False
            self._experiments = max(1, self._experiments)
            self._states[experiment] = "running", None
            self._plan_end()
        with logs.about(experiment):
            self._run(experiment, spec, ledger, options)

    def _run(self, experiment: str, spec: SpecJson, ledger: Ledger, options: DriverOptions) -> None:
        from eigensweep.workers.driver.experiment import run_experiment

        with self._turn:  # the process is set up once
            begin_driver(options)
        if options.mlflow_token is not None:
            os.environ["MLFLOW_TRACKING_TOKEN"] = options.mlflow_token
        try:
            try:
                with traces.span("driver", options.trace, experiment=experiment):
                    inside = replace(options, trace=traces.carry(), loads_ahead=self._loads_ahead)
                    run_experiment(experiment, spec, ledger, inside)
            finally:
                traces.flush()  # whoever learns that it is over ends this process
            self._end_run(experiment, "ended", None)
        except BaseException as error:
            # Nothing is recorded of it: the service asks for the state, and starts another driver.
            death = explain(error)
            is_over = death.cause == "superseded"
            self._end_run(experiment, "ended" if is_over else "died", death)
            if is_over:
                logger.info("driver ends experiment=%s %s", experiment, death)
            else:
                logger.exception("driver died experiment=%s", experiment)
        gc.collect()  # Ray ends the trials' processes whose handles are gone

    def _end_run(self, experiment: str, state: State, death: Death | None) -> None:
        """Note how an experiment is; after the last one end this process soon."""
        with self._turn:
            self._states[experiment] = state, death
            self._plan_end()

    def _plan_end(self) -> None:
        """Let this process end by itself after some time, unless an experiment runs in it by then.

        So it does not stay for ever if the service was killed: while this process waited, after the
        last experiment, or before the service said what to do.
        """
        if self._end is not None:
            self._end.cancel()
        running = any(state == "running" for state, _ in self._states.values())
        if running or (self._is_waiting and not self._is_leased):
            return
        seconds = LEASE_SECONDS if self._is_waiting else LINGER_SECONDS
        self._end = threading.Timer(seconds, os._exit, [0])
        self._end.daemon = True
        self._end.start()

    def answer(self) -> None:
        """Return as soon as this process is up."""

    def state(self, experiment: str) -> tuple[State | None, Death | None]:
        """Return how an experiment is, and why it died; no state: it has not begun here."""
        return self._states.get(experiment, (None, None))


@dataclass(frozen=True)
class DriverProcess:
    """A driver's process, as `WarmDrivers` has it."""

    actor: Any
    name: str
    """What it is called in the cluster."""
    loading: Any = None
    """What it will answer when it has loaded; None: it has."""

    @classmethod
    def start(
        cls,
        name: str,
        loads_ahead: bool = False,
        experiments: int = 1,
        is_leased: bool = False,
    ) -> Self:
        """Start a process on this node, for so many experiments at once; return at once."""
        here = ray.get_runtime_context().get_node_id()
        actor: Any = (
            ray.remote(DriverActor)
            .options(
                name=name,
                namespace=NAMESPACE,
                lifetime="detached",
                num_cpus=0,
                max_concurrency=experiments + ASKED_AT_ONCE,
                scheduling_strategy=NodeAffinitySchedulingStrategy(here, soft=False),
            )
            .remote(loads_ahead, is_leased)
        )
        return cls(actor, name, actor.answer.remote())

    def prepare(self, modules: Sequence[str]) -> Self:
        """Let it load everything; return at once."""
        return replace(self, loading=self.actor.prepare.remote(modules))

    def is_loading(self) -> bool:
        if self.loading is None:
            return False
        done, _ = ray.wait([self.loading], timeout=0)
        return not done

    def begin(self) -> bool:
        return self._asks(self.actor.begin)

    def join(self, experiment: str) -> bool:
        """Let it get ready for one more experiment; return False if it should not have it."""
        # One that starts now cannot answer yet. It loads the code of now.
        return self.is_loading() or self._asks(self.actor.join, experiment)

    def rest(self) -> bool:
        return self._asks(self.actor.rest)

    def load_trials(self) -> bool:
        return self.is_loading() or self._asks(self.actor.load_trials)

    def end(self) -> None:
        """End it at once, and with it the processes of all its trials."""
        with suppress(*PROCESS_LOST, ValueError):
            ray.kill(self.actor, no_restart=True)

    def _asks(self, question: Any, *about: str) -> bool:
        try:
            return bool(ray.get(question.remote(*about), timeout=YES_SECONDS))
        except (ray.exceptions.RayError, ray.exceptions.GetTimeoutError):
            return False


@dataclass
class DriverHandle:
    """The driver of one experiment, wherever its process is. Others may have the same process."""

    experiment: str
    _process: DriverProcess
    death: Death | None = None
    """Why it died, or ended early, once `state` said so."""
    _pool: WarmDrivers[DriverProcess] | None = None
    """Where the process waits for another experiment after this one; None: it ends."""
    _crew: Crew = field(default_factory=Crew)
    """The experiments that have this process now."""
    _over: State | None = None
    _work: Any = None
    """What `run` will answer, which is nothing; None: an earlier service has asked for it."""
    _turn: threading.Lock = field(default_factory=threading.Lock)

    @property
    def process(self) -> str:
        """The name of its process."""
        return self._process.name

    def make_another(self, experiment: str) -> DriverHandle | None:
        """Return a handle for one more experiment of the same process; None: it takes no more."""
        if not self._crew.join():
            return None
        return DriverHandle(experiment, self._process, _pool=self._pool, _crew=self._crew)

    def state(self, seconds: float = ANSWER_SECONDS) -> State:
        """Return how the driver is. If it is over, its trials' processes end.

        Its own process ends or waits then, unless it has other experiments.
        One that does not answer within `seconds` counts as running.
        """
        with self._turn:  # it is given back once
            return self._over or self._look(seconds)

    def _look(self, seconds: float) -> State:
        try:
            answer = self._process.actor.state.remote(self.experiment)
            state, self.death = ray.get(answer, timeout=seconds)
            if isinstance(self.death, str):  # it is of an older release, which told words only
                self.death = Death(self.death, "superseded" if state == "ended" else "failure")
        except ray.exceptions.GetTimeoutError:
            return "running"
        except ray.exceptions.OutOfMemoryError as error:
            state, self.death = "died", Death(explain_shortage(str(error)), "memory")
        except ray.exceptions.RayActorError as error:
            state, self.death = "died", self._explain(error)
        if self._work is None:
            if state is None:  # Ray had kept the call in the service, until this process was up
                state, self.death = "died", Death(NEVER_TOLD)
        elif state in (None, "running"):
            state, self.death = self._see_whether_it_began(self._work)
        if state != "running":
            self._over = state
            # One that was superseded may have left processes of trials behind.
            self._leave(failed=state != "ended" or self.death is not None)
        return state

    def _explain(self, account: ray.exceptions.RayActorError) -> Death:
        """Return what ended the process, from Ray's account."""
        has_several = self._crew.die()
        if has_died_with_node(account):
            return Death(f"the node of the process died: {account}", "node")
        if has_several:
            words = f"the driver's process died, which several experiments shared: {account}"
            return Death(words, "shared")
        return Death(f"the driver's process died: {account}")

    def _leave(self, *, failed: bool) -> None:
        """Give the process up; after its last experiment it waits for another, or ends."""
        if not self._crew.leave(failed=failed):
            return
        if self._pool is not None and not self._crew.has_failed:
            self._pool.give_back(self._process)
        else:
            self.kill()

    def share(self, experiment: str) -> DriverHandle | None:
        """Return a driver for one more experiment, in the same process; None: it takes no more."""
        joined = self.make_another(experiment)
        if joined is None or self._process.join(experiment):
            return joined
        joined._leave(failed=False)
        return None

    def _see_whether_it_began(self, work: Any) -> tuple[State, Death | None]:
        """Return "died", and why, if the driver could not even read what it was told."""
        done, _ = ray.wait([work], timeout=0)
        try:
            ray.get(done)
        except ray.exceptions.OutOfMemoryError as error:
            return "died", Death(explain_shortage(str(error)), "memory")
        except ray.exceptions.RayError as error:
            return "died", Death(str(error))
        return "running", None

    def wait(self, timeout: float | None = None) -> State:
        """Wait until the driver is over, or for `timeout` seconds; return its state."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while (state := self.state()) == "running":
            if deadline is not None and time.monotonic() >= deadline:
                break
            time.sleep(0.1)
        return state

    def run(self, spec: SpecJson, ledger: Ledger, options: DriverOptions) -> None:
        """Let the driver begin with its experiment. Returns at once."""
        self._work = self._process.actor.run.remote(self.experiment, spec, ledger, options)

    def kill(self) -> None:
        """End the process at once, and with it those of the trials of all its experiments."""
        self._process.end()


class RayCluster:
    """A connection to Ray. One in a process."""

    def __init__(
        self,
        folder: RayFolder | None,
        warm_drivers: int = 0,
        modules: Sequence[str] = (),
        driver_experiments: int = 1,
    ) -> None:
        """`folder` is that of a Ray of our own; None: Ray belongs to somebody else."""
        self._folder = folder
        self._loads_ahead = folder is not None and warm_drivers > 0
        self._at_once = driver_experiments
        self._pool: WarmDrivers[DriverProcess] | None = None
        """Drivers that may have one experiment after another; None: each has one and ends."""
        self._drivers: dict[str, DriverHandle] = {}
        """By their experiments."""
        self._launching = 0
        """How many experiments get a driver at this moment."""
        self._warming, self._listing = threading.Lock(), threading.Lock()
        if warm_drivers or driver_experiments > 1:
            self._pool = WarmDrivers(warm_drivers, lambda: self._start_driver().prepare(modules))

    def _start_driver(self) -> DriverProcess:
        """Start a driver of the pool."""
        return DriverProcess.start(
            _new_name(), self._loads_ahead, self._at_once, is_leased=self._folder is None
        )

    @classmethod
    def start(
        cls,
        address: str | None = None,
        num_cpus: int | None = None,
        num_gpus: int | None = None,
        temp_dir: Path | str | None = None,
        warm_drivers: int = 0,
        modules: Sequence[str] = (),
        kept_memory: int = 0,
        driver_experiments: int = 1,
    ) -> Self:
        """Start a Ray of our own, which ends with this process, or join the one at `address`.

        Call it in the main thread: Ray's processes die with the thread that started them. Our own
        has `temp_dir` to itself: it is emptied now, and removed by `stop`. There trials do not get
        `kept_memory`, in bytes: it is for drivers. `keep_warm` keeps `warm_drivers` drivers that
        wait for an experiment; they have loaded `modules`, too. One of them may have
        `driver_experiments` at once.

        Raises:
            ClusterError: if Ray does not start or does not answer, or its folder is not safe.
        """
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        utils: Any = ray._private.utils  # without types
        if address is not None:
            _knock(address)
            with _keep_signal_handlers():
                _init(address=address)
            memory = int(utils.estimate_available_memory())
            warm_drivers = warm.count_that_fit(warm_drivers, memory, warm.DRIVER_BYTES)
            return cls(None, warm_drivers, modules, driver_experiments)
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
        memory = int(utils.estimate_available_memory()) - OBJECT_STORE_BYTES
        warm_drivers = warm.count_that_fit(warm_drivers, memory)
        # A driver that waits is one of those for which memory is kept, once it has an experiment.
        kept_memory = max(kept_memory, warm_drivers * warm.DRIVER_BYTES)
        kept_memory += warm_drivers * (warm.BYTES - warm.DRIVER_BYTES)
        with _keep_signal_handlers():
            _init(
                address="local",
                num_cpus=num_cpus,
                num_gpus=num_gpus,
                include_dashboard=False,
                object_store_memory=OBJECT_STORE_BYTES,
                _memory=max(memory // 2, memory - kept_memory),  # no trial counts on theirs
                _temp_dir=str(folder.path),
            )
        return cls(folder, warm_drivers, modules, driver_experiments)

    def keep_warm(self) -> None:
        """Take back drivers that have finished, and start what is missing; call it regularly.

        It may take a while, since it asks every driver.
        """
        with self._warming:
            self._take_back()
            if self._pool is not None:
                self._pool.fill(self._count_processes() + self._launching)

    def _count_processes(self) -> int:
        """Return how many processes the drivers of the pool have that have an experiment."""
        return len({handle.process for handle in list(self._drivers.values())})

    def _take_back(self) -> None:
        """Let drivers that have finished wait; nobody else asks how they are after their end."""
        for handle in list(self._drivers.values()):
            if handle.state(YES_SECONDS) != "running":
                self._forget(handle)

    def _forget(self, handle: DriverHandle) -> None:
        """Forget a driver that is over. Its experiment may have got the next one meanwhile."""
        with self._listing:
            if self._drivers.get(handle.experiment) is handle:
                del self._drivers[handle.experiment]
                if self._folder is None:
                    _forget_place(handle.experiment)

    def launch(
        self,
        experiment: str,
        spec: SpecJson,
        ledger: Ledger,
        options: DriverOptions,
        beside: str | None = None,
    ) -> DriverHandle:
        """Start a driver on this node, unless one runs; return its handle at once.

        It shares the process of the experiment `beside`, if that may still have another one.
        """
        found = self.find(experiment)
        if found is not None and found.state() == "running":
            return found
        with self._counting_launch():
            self._take_back()
            handle = self._take(experiment, beside)
            with self._listing:  # who looks for it meanwhile finds all of this, or nothing
                if self._folder is None:
                    _note_place(experiment, handle.process)
                handle.run(spec, ledger, options)
                self._drivers[experiment] = handle
        return handle

    def _take(self, experiment: str, beside: str | None) -> DriverHandle:
        """Return the driver that an experiment shares, or gets from the pool, or a fresh one."""
        host = None if beside is None else self._drivers.get(beside)
        handle = None if host is None else host.share(experiment)
        if handle is None:
            waiting = None if self._pool is None else self._pool.take()
            handle = DriverHandle(experiment, waiting or self._start_driver(), _pool=self._pool)
        return handle

    @contextmanager
    def _counting_launch(self) -> Iterator[None]:
        with self._listing:
            self._launching += 1
        try:
            yield
        finally:
            with self._listing:
                self._launching -= 1

    def find(self, experiment: str) -> DriverHandle | None:
        """Return the driver of an experiment, None if there is none."""
        handle = self._drivers.get(experiment)
        if handle is None and self._folder is None:
            handle = self._find_in_cluster(experiment)
        if handle is None or handle.state() == "running":
            return handle
        self._forget(handle)
        return None

    def _find_in_cluster(self, experiment: str) -> DriverHandle | None:
        """Return the driver that an earlier service has started, which Ray has outlived."""
        place = _find_place(experiment)
        if place is None:
            return None
        try:
            process = DriverProcess(ray.get_actor(place, NAMESPACE), place)
        except ValueError:  # its process has ended; the note of the next driver replaces this one
            return None
        with self._listing:
            found = self._drivers.get(experiment) or self._make_handle(experiment, process)
            self._drivers[experiment] = found
        return found

    def _make_handle(self, experiment: str, process: DriverProcess) -> DriverHandle:
        for each in self._drivers.values():
            if each.process == process.name and (found := each.make_another(experiment)):
                return found
        # The process may have other experiments, which are not found yet. So its crew has one more,
        # who never leaves: nobody here ends the process. It ends by itself after all of them.
        return DriverHandle(experiment, process, _pool=self._pool, _crew=Crew(aboard=2))

    def look(self) -> Look:
        """Return what there is to see of the cluster now. Waits for Ray's head, however long.

        The nodes of a cluster that was joined come and go; our own node stays as it is.
        """
        from eigensweep.workers.driver.capacity import list_living_nodes

        living = list_living_nodes()
        places = {n["NodeID"]: (n["NodeManagerAddress"], n["NodeManagerPort"]) for n in living}
        quiet = heartbeat.find_silent(places.values())
        silent = {id for id, place in places.items() if place in quiet}
        here = ray.get_runtime_context().get_node_id()
        return Look(
            self.list_nodes(silent),
            living,
            may_change=self._folder is None,
            problem=NODE_SILENT if here in silent else None,
        )

    def list_nodes(self, silent: Collection[str] = ()) -> list[Node]:
        """Return the nodes of now, those that live first; the `silent` ones do not answer."""
        from eigensweep.workers.driver.capacity import find_draining

        nodes = list_nodes()
        free = ray._private.state.available_resources_per_node()  # type: ignore[no-untyped-call]
        gone = {} if all(node["Alive"] for node in nodes) else _find_gone()
        return read_nodes(nodes, free, silent, find_draining(), gone, time.time())

    def stop(self) -> None:
        """Leave the cluster. If it is our own, it ends with all processes.

        Else drivers that have experiments go on, and those that wait end.
        """
        if self._warming.acquire(timeout=YES_SECONDS):  # Ray would start anew for who asks it later
            pool, self._pool = self._pool, None
            if pool is not None and self._folder is None:
                pool.end_waiting()
            self._warming.release()
        if self._folder is not None:
            for actor in ray.util.list_named_actors(all_namespaces=True):
                with suppress(ValueError, ray.exceptions.RayError):
                    ray.kill(ray.get_actor(actor["name"], actor["namespace"]))
        with _keep_signal_handlers():
            ray.shutdown()
        if self._folder is not None:
            self._folder.remove()


def has_died_with_node(error: ray.exceptions.RayActorError) -> bool:
    """Return whether Ray lost an actor with its node, rather than by a fault of its own process."""
    told = ray._private.state.actors(error.actor_id) if error.actor_id else None
    if not told or not told["DeathCause"]:
        return False
    context = told["DeathCause"].actor_died_error_context
    return bool(context.reason == context.NODE_DIED)


def _find_gone() -> dict[str, float]:
    """Return Ray's ids of the nodes that are gone, each with the Unix time of that."""
    client = ray._private.worker.global_worker.gcs_client  # type: ignore[attr-defined]
    infos = client.get_all_node_info(timeout=ANSWER_SECONDS).values()
    return {info.node_id.hex(): info.end_time_ms / 1000 for info in infos if info.end_time_ms}


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


def explain_silence() -> str | None:
    """Return which words fit a Ray whose head does not answer; None: it does."""
    node = ray._private.worker._global_node
    if node is None:
        return "Ray has ended"
    host, _, port = str(node.gcs_address).rpartition(":")
    if heartbeat.answers((host.strip("[]"), int(port))):
        return None
    return f"Ray's control process at {node.gcs_address} does not answer"


def _new_name() -> str:
    """Return the name of a driver's process, which may have many experiments."""
    return f"driver:{secrets.token_hex(4)}"


def _note_place(experiment: str, process: str) -> None:
    """Note in Ray which process drives an experiment. Ray loses the note when it loses drivers."""
    internal_kv._internal_kv_put(experiment, process, namespace=NAMESPACE)


def _find_place(experiment: str) -> str | None:
    noted = internal_kv._internal_kv_get(experiment, namespace=NAMESPACE)
    return None if noted is None else noted.decode()


def _forget_place(experiment: str) -> None:
    internal_kv._internal_kv_del(experiment, namespace=NAMESPACE)


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
    except Exception as error:
        if SLOW_START not in str(error):
            raise
        raise SlowStartError("Ray did not start in 30 s: the machine may be busy") from error


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
