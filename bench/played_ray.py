"""Ray's part of an experiment, played: slots, futures, and trials that sleep, in one process.

The driver, Ray Tune's loop and Tune's books of actors are the real ones. What Tune asks Ray for is
answered here: resources, actors, `wait` and `get`. A trial sleeps between its reports and commits
to the store as a real one does. The processor time that this takes is counted, so that it can be
left out of the driver's.
"""

from __future__ import annotations

import json
import pickle
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

from ray import cloudpickle
from ray.air.execution import AcquiredResources, ResourceManager, ResourceRequest
from ray.air.execution._internal import actor_manager, event_manager
from ray.train._internal import storage

from eigensweep.protocol.messages import Order, Place, Report
from eigensweep.results.ranking import OBJECTIVE
from eigensweep.results.seeds import summarise
from eigensweep.results.trial_result import ReplicateResult
from eigensweep.search_spaces.trial import TrialConfig
from eigensweep.store.checkpoints import Store, replicate_key
from eigensweep.store.commits.curves import CurvePoint
from eigensweep.workers.driver.nodes import capacity
from eigensweep.workers.driver.tune import actor_events, tune_loop
from eigensweep.workers.processes.runner import LOST, REPORT

send: Any = cloudpickle.dumps
"""How Ray makes bytes of what a trial is given."""

METRICS = ("train/loss", "valid/cross_entropy", "valid/accuracy", "learning_rate", "grad_norm")
HERE = Place("played", 1, "cpu")


class Future:
    """The answer of an actor, which comes at a time of `time.monotonic()`."""

    def __init__(self, due: float, answer: Callable[[], Any]) -> None:
        self.due, self.answer = due, answer


class PlayedRay:
    """What Tune's books of actors use of the module `ray`, for trials that sleep."""

    def __init__(self, seconds: float, start_seconds: float) -> None:
        """A trial takes so many seconds; processes come up one after another, so far apart."""
        self.seconds, self.start_seconds = seconds, start_seconds
        self.started = 0
        """Processes that were started."""
        self.spent = 0.0
        """Processor seconds that the trials took, which are not the driver's."""
        self.actor, self.ObjectRef = SimpleNamespace(ActorClass=ActorClass), Future

    def wait(
        self, futures: Sequence[Future], num_returns: int = 1, timeout: float | None = None
    ) -> tuple[list[Future], list[Future]]:
        """Wait until one is due, or for so many seconds; return what is due then, and the rest."""
        if not futures:
            time.sleep(timeout or 0.0)
            return [], []
        pause = max(0.0, min(future.due for future in futures) - time.monotonic())
        time.sleep(pause if timeout is None else min(pause, timeout))
        now = time.monotonic()
        due = [future for future in futures if future.due <= now][:num_returns]
        taken = set(due)
        return due, [future for future in futures if future not in taken]

    def get(self, future: Future) -> Any:
        """Return an answer, which came as bytes."""
        began = time.thread_time()
        content = pickle.dumps(future.answer())
        self.spent += time.thread_time() - began
        return pickle.loads(content)

    def kill(self, actor: object) -> None:
        """Do nothing: a played actor has no process."""


class ActorClass:
    """Stands for `ray.remote(TrialProcess)`."""

    def __init__(self, ray: PlayedRay) -> None:
        self._ray = ray

    def options(self, **options: Any) -> ActorClass:
        return self

    def remote(self, **arguments: Any) -> Actor:
        return Actor(self._ray, arguments["config"])


class Actor:
    """A handle of a trial's process. What is not about training is answered with True."""

    def __init__(self, ray: PlayedRay, config: dict[str, Any]) -> None:
        self._ray = ray
        self._ready = time.monotonic() + ray.started * ray.start_seconds
        ray.started += 1
        self._begin(config)

    def __getattr__(self, name: str) -> Any:
        own = {"train": self._train, "train_next": self._train_next}
        return SimpleNamespace(remote=own.get(name, self._say_yes))

    def _begin(self, config: dict[str, Any]) -> None:
        self._order = Order.from_dict(config)
        self._reports = 0

    def _say_yes(self, *arguments: Any, **others: Any) -> Future:
        return Future(max(time.monotonic(), self._ready), lambda: True)

    def _train_next(self, config: dict[str, Any]) -> Future:
        send(config)
        began = time.thread_time()
        self._begin(config)
        self._ray.spent += time.thread_time() - began
        return self._train()

    def _train(self) -> Future:
        pause = self._ray.seconds / len(self._order.rungs)
        return Future(time.monotonic() + pause, self._report)

    def _report(self) -> dict[str, Any]:
        """Return what a trial's process returns at its next rung."""
        order, config = self._order, TrialConfig.from_dict(self._order.config)
        step, is_over = order.rungs[self._reports], self._reports + 1 == len(order.rungs)
        self._reports += 1
        value = config.optimizer.lr
        metrics = {OBJECTIVE: value, "cross_entropy": value, "accuracy": value}
        store = Store(order.storage)
        seeds = []
        for seed in config.seeds:
            key = replicate_key(order.experiment, order.number, seed)
            if self._reports == 1:
                store.begin(key, order.attempt)
            now = int(1000 * time.time())
            point = CurvePoint(step, dict.fromkeys(METRICS, value), now)
            store.commit(key, order.attempt, step, {}, [point])
            scores = {"cross_entropy": value, "accuracy": value}
            result = ReplicateResult(
                seed=seed, value=value, step=step, valid=scores, test=scores, seconds=1.0
            )
            seeds.append(result)
        report = Report(
            step,
            metrics,
            outcome="completed" if is_over else None,
            result=summarise(seeds) if is_over else None,
            place=HERE,
            committed=tuple((seed, step) for seed in config.seeds),
        )
        told = {"done": is_over, LOST: False, "step": step}
        return {REPORT: json.dumps(report.to_dict()), **told, **metrics}


class Slots(ResourceManager):
    """Room for so many trials, given out as Tune asks for it."""

    def __init__(self, count: int) -> None:
        self._free, self._asked = count, 0

    def get_resource_futures(self) -> list[Any]:
        return []

    def update_state(self) -> None:
        """Do nothing: all is known at once."""

    def request_resources(self, resource_request: ResourceRequest) -> None:
        self._asked += 1

    def cancel_resource_request(self, resource_request: ResourceRequest) -> None:
        self._asked -= 1

    def has_resources_ready(self, resource_request: ResourceRequest) -> bool:
        return self._free > 0 and self._asked > 0

    def acquire_resources(self, resource_request: ResourceRequest) -> AcquiredResources | None:
        self._free, self._asked = self._free - 1, self._asked - 1
        return Acquired(resource_request)

    def free_resources(self, acquired_resource: AcquiredResources) -> None:
        self._free += 1

    def clear(self) -> None:
        """Do nothing: it ends with the driver."""


class Acquired(AcquiredResources):
    """One slot."""

    def annotate_remote_entities(self, entities: list[Any]) -> list[Any]:
        return entities

    def _annotate_remote_entity(self, entity: Any, bundle: Any, bundle_index: int) -> Any:
        return entity


@contextmanager
def played_ray(slots: int, seconds: float, start_seconds: float = 0.0) -> Iterator[PlayedRay]:
    """Play a cluster of so many slots whose trials sleep so many seconds, while this is open."""
    ray = PlayedRay(seconds, start_seconds)
    room = {"CPU": float(slots), "memory": float(slots << 40)}
    nodes = [{"Alive": True, "Resources": room, "Labels": {}}]
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="played-ray-"))
        parts: list[tuple[Any, str, Any]] = [
            (actor_events, "ray", ray),
            (actor_manager, "ray", ray),
            (event_manager, "ray", ray),
            (tune_loop, "PlacementGroupResourceManager", lambda: Slots(slots)),
            (actor_events, "choose_process", lambda of_tune: ActorClass(ray)),
            (storage, "_get_ray_train_session_dir", lambda: folder),
            (capacity, "list_living_nodes", lambda: nodes),
        ]
        for place, name, played in parts:
            stack.enter_context(mock.patch.object(place, name, played))
        yield ray
