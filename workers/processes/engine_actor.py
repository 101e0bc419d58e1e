"""An engine as a process that Ray starts, and a trial's slot in it.

The trials of one device share its engine, whatever experiment they are of. The engine has a name
made of node and device, so the first trial there starts it and the others find it. It outlives them
all, takes no part in Ray's accounts (the trials' shares are the account), and ends by itself when
it has had no trial for a while.

Importing this loads neither torch nor MLflow.
"""

from __future__ import annotations

import asyncio
import logging
import os
import platform
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

import ray
import ray.exceptions
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from eigensweep.common import logs
from eigensweep.common.logs import LogFormat
from eigensweep.protocol.code import check_code
from eigensweep.protocol.messages import Code, EngineNeed, LostBy, Order, Place, Report
from eigensweep.protocol.patience import START_SECONDS, patience_with
from eigensweep.store.commits.head import StaleAttemptError
from eigensweep.store.places.durable_files import disk_failure
from eigensweep.training.devices import DeviceError, see_only, try_out
from eigensweep.training.errors import is_of_the_device
from eigensweep.workers.ray_nodes import list_nodes

if TYPE_CHECKING:
    from eigensweep.training.lanes.engine.engine import Engine

logger = logging.getLogger(__name__)

T = TypeVar("T")

PROCESS_LOST = (ray.exceptions.RayActorError, ray.exceptions.OutOfMemoryError)
"""How Ray tells that a process has ended. The second one is no kind of the first."""

NAMESPACE = "eigensweep"
"""Ray's namespace of all named actors of a service."""

ANSWER_SECONDS = 5.0
"""A trial that waits for its rung is answered at least this often, and asks again."""

LEASE_SECONDS = 30.0
"""A trial that has not asked for so long loses its slot: its process is gone."""

IDLE_SECONDS = 60.0
"""An engine without a trial ends after this time."""

MOST_CALLS = 2_000
"""Calls that an engine takes at once: several for each trial."""

JOIN_TRIES = 5
"""How often a trial looks for another engine after its engine ended."""

PAUSE_SECONDS = 0.5
"""Pause between two looks for an engine with a free slot."""

UNANSWERED_SECONDS = 120.0
"""Patience, at least, of a trial whose engine gives no answer at all."""

Key = tuple[str, int]
"""Experiment and number of a trial."""


class NoSlotError(LookupError):
    """A trial asked an engine in which it has no slot: it was away for longer than its lease."""


@dataclass
class _HeldSlot:
    """A trial that has a slot."""

    order: Order
    asked_at: float = field(default_factory=time.monotonic)
    asking: asyncio.Lock = field(default_factory=asyncio.Lock)
    last: Report | None = None
    """The newest report, kept until the trial has it: an answer may be lost on its way."""

    @property
    def weight(self) -> float:
        """The part of the engine that the trial takes."""
        assert self.order.engine is not None
        return 1 / self.order.engine.trials


class EngineActor:
    """The process of an engine. Calls meet in one event loop; what blocks has a thread each."""

    def __init__(
        self,
        device: str,
        gpu: str | None,
        need: EngineNeed,
        code: Code,
        log_format: LogFormat = "text",
    ) -> None:
        """Take the device as trials name it, `cpu` or `cuda:ID`, and the id of its GPU."""
        logs.set_up(log_format)
        # Ray gives this process no GPU, because the trials' shares are the account. It sees the one
        # that Ray gave to the trial which started it.
        see_only(gpu)
        self._device, self._need, self._code = device, need, code
        self._place = Place(platform.node(), os.getpid(), device, node_id=find_node())
        self._engine: Engine | None = None
        self._opening = asyncio.Lock()
        self._slots: dict[Key, _HeldSlot] = {}
        self._threads = ThreadPoolExecutor(MOST_CALLS, thread_name_prefix="trial")
        self._empty_since = time.monotonic()
        self._is_broken = False
        self._stalled: str | None = None
        """Why the engine ends because it hangs; None: it does not."""
        self._watch: asyncio.Task[None] | None = None
        self._lonely = threading.Timer(START_SECONDS, self._end_unless_joined)
        self._lonely.daemon = True
        self._lonely.start()

    def _end_unless_joined(self) -> None:
        """End this process if the trial that started it has gone before it joined."""
        if self._watch is None:
            logger.info("engine ends, since no trial has joined it")
            os._exit(0)

    async def join(self, order: Order) -> bool:
        """Give a trial a slot; False if all are taken, or this process is about to end.

        Raises:
            ForeignCodeError: if this process would run other code than the trial's driver.
            StaleAttemptError: if the trial has a later attempt.
            DeviceError: if the device cannot be used; this process ends then.
        """
        async with self._opening:
            if self._watch is None:
                self._watch = asyncio.create_task(self._look_after())
                self._lonely.cancel()
            if self._engine is None:
                try:
                    self._engine = await self._in_thread(self._open)
                except DeviceError:
                    self._is_broken = True  # in another process it may work again
                    raise
                self._empty_since = time.monotonic()
        earlier = self._slots.get(_key(order))
        if earlier is not None and earlier.order.attempt > order.attempt:
            later = earlier.order.attempt
            raise StaleAttemptError(f"trial {order.number} has begun attempt {later}")
        if earlier is not None:  # its process was lost, or its driver
            self._drop(earlier, commit=True)
        slot = _HeldSlot(order)
        taken = sum(each.weight for each in self._slots.values())
        if self._is_broken or taken + slot.weight > 1 + 1e-9:
            return False
        self._slots[_key(order)] = slot
        return True

    async def advance(self, order: Order) -> Report | None:
        """Return the report of the trial's next rung, None if it is not there yet: ask again.

        Raises:
            NoSlotError: if the trial has no slot.
            StaleAttemptError: if the trial has a later attempt.
        """
        slot = self._slots.get(_key(order))
        if slot is None or slot.order.attempt != order.attempt:
            raise NoSlotError(f"trial {order.number} of {order.experiment} has no slot here")
        slot.asked_at = time.monotonic()
        async with slot.asking:
            if slot.last is None or order.reported >= slot.last.step:
                report = await self._ask(order)
                if report is None:
                    return None
                lanes = None if order.engine is None else order.engine.lanes
                slot.last = replace(report, place=replace(self._place, lanes=lanes))
            return slot.last

    async def leave(self, order: Order) -> None:
        """Take its slot from this attempt of a trial, if it has one."""
        slot = self._slots.get(_key(order))
        if slot is not None and slot.order.attempt == order.attempt:
            self._drop(slot)

    async def occupancy(self) -> dict[str, object]:
        """Return lane-seconds by what the lanes did."""
        return {} if self._engine is None else self._engine.occupancy()

    def _open(self) -> Engine:
        check_code(self._code)
        import torch

        from eigensweep.training.lanes.engine.engine import Engine

        threads = max(1, int(self._need.cpus))
        torch.set_num_threads(threads)
        logger.info("engine starts device=%s lanes=%d", self._device, self._need.lanes)
        device = self._device.partition(":")[0]  # one GPU is visible
        try_out(device)
        return Engine(device, self._need.lanes, threads=threads)

    async def _ask(self, order: Order) -> Report | None:
        """Ask the engine; if it cannot go on, that is a report, too."""
        from eigensweep.tasks.corpus import CorpusMissingError
        from eigensweep.training.lanes.engine.register import EngineError

        assert self._engine is not None
        try:
            report = await self._in_thread(self._engine.ask, order, ANSWER_SECONDS)
            if report is None and self._stalled is not None:
                return Report(order.reported, lost=self._stalled, lost_by="engine")
            return report
        except (CorpusMissingError, DeviceError) as error:
            words = f"node {platform.node()}: {error}"
            return Report(order.reported, lost=words, lost_by="node")
        except EngineError as error:
            # A report, because the trial's thin process would load torch to read the error itself.
            self._is_broken = self._is_broken or self._engine.is_broken
            by: LostBy = "engine"
            if disk_failure(error) is not None:
                by = "disk"
            elif is_of_the_device(error):
                by = "device"
            words = str(error) if by == "engine" else f"node {platform.node()}: {error}"
            return Report(order.reported, lost=words, lost_by=by)

    def _drop(self, slot: _HeldSlot, *, commit: bool = False) -> None:
        assert self._engine is not None
        self._slots.pop(_key(slot.order), None)
        self._empty_since = time.monotonic()
        self._engine.leave(slot.order, commit=commit)

    async def _look_after(self) -> None:
        """Drop trials whose processes are gone; end this process when it is idle or broken.

        It also ends when its training thread hangs: that stops all lanes, and a thread cannot be
        ended. Each trial goes on from its last commit. A trial that hangs again and again trains
        in a process of its own at last, and ends as `stalled`.
        """
        while not self._is_broken and (
            self._slots
            or self._opening.locked()
            or time.monotonic() - self._empty_since < IDLE_SECONDS
        ):
            await asyncio.sleep(1)
            self._look_for_stall()
            for slot in list(self._slots.values()):
                if slot.asking.locked():  # its process waits for an answer
                    slot.asked_at = time.monotonic()
                waits = time.monotonic() - slot.asked_at
                if waits > LEASE_SECONDS:
                    words = "trial has not asked for %.0f s, off the engine experiment=%s trial=%d"
                    with logs.about(*_key(slot.order)):
                        logger.warning(words, waits, *_key(slot.order))
                    self._drop(slot, commit=True)
        if self._is_broken:
            words = self._stalled or "it could not go on"
            logger.error("engine ends, %s device=%s", words, self._device)
            # So that every trial is answered.
            await asyncio.sleep(2 * PAUSE_SECONDS + (ANSWER_SECONDS if self._stalled else 0))
        else:
            logger.info("engine ends, it had no trial for %.0f s", IDLE_SECONDS)
        os._exit(0)

    def _look_for_stall(self) -> None:
        """Note that the engine hangs, if one of its turns takes longer than trials are waited for.

        Where trials are waited for differently long, the longest time counts.
        """
        if self._engine is None or not self._slots:
            return
        longest, seconds = self._engine.longest_turn, self._engine.seconds_in_turn()
        limits = [slot.order.stall_seconds for slot in self._slots.values()]
        if seconds > max(patience_with(limit, longest) for limit in limits):
            self._stalled = f"no lane of the engine took a step for {seconds:.0f} s"
            self._is_broken = True

    async def _in_thread(self, act: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, act, *arguments)


class EngineSlot:
    """A trial's slot in an engine, as the trial's own thin process has it."""

    def __init__(self, order: Order) -> None:
        """Look for no engine yet: `advance` does, because an actor may be made and never used."""
        self._order = order
        self._engine: Any = None

    @property
    def reached_step(self) -> int:
        """Step of the last report."""
        return self._order.reported

    def advance(self) -> Report:
        """Return the report of the next rung, or one that says how the engine was lost."""
        while True:
            try:
                if self._engine is None:
                    self._engine = self._join()
                report: Report | None = ray.get(
                    self._engine.advance.remote(self._order),
                    timeout=max(patience_with(self._order.stall_seconds), UNANSWERED_SECONDS),
                )
            except NoSlotError:
                self._engine = None
            except ray.exceptions.ActorUnavailableError:
                time.sleep(PAUSE_SECONDS)
            except ray.exceptions.GetTimeoutError:
                ray.kill(self._engine)
                self._engine = None
                return Report(self.reached_step, lost="the engine that trained it gave no answer")
            except PROCESS_LOST as error:
                self._engine = None
                return Report(self.reached_step, lost=f"the engine that trained it died: {error}")
            else:
                if report is not None:
                    if report.lost is not None:
                        self.leave()
                    self._order = replace(self._order, reported=report.step)
                    return report

    def leave(self) -> None:
        """Give the slot back."""
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.leave.remote(self._order)

    def _join(self) -> Any:
        """Return an engine of this node's in which the trial has a slot now.

        An engine may hang under a trial whose process has been ended meanwhile. Then nobody else
        notices, and whoever comes next ends it.

        Raises:
            RayActorError, OutOfMemoryError: if one engine after another ends while the trial
                joins.
        """
        tries = 0
        while True:
            for name, device, gpu in _engines_here(self._order):
                engine = _find_or_start(name, device, gpu, self._order)
                try:
                    asked = engine.join.remote(self._order)
                    if ray.get(asked, timeout=START_SECONDS):
                        return engine
                except ray.exceptions.GetTimeoutError:
                    logger.warning("engine %s gave no answer for %.0f s", name, START_SECONDS)
                    ray.kill(engine)
                except PROCESS_LOST:  # it was about to end, idle
                    tries += 1
                    if tries >= JOIN_TRIES:
                        raise
            time.sleep(PAUSE_SECONDS)


def find_node() -> str | None:
    """Return Ray's id of this node, None outside of Ray."""
    return ray.get_runtime_context().get_node_id() if ray.is_initialized() else None


def _engines_here(order: Order) -> list[tuple[str, str, str | None]]:
    """Return name, device and visible GPU of each engine of this node that the trial may use.

    On a GPU it is the one of the GPU that Ray gave to the trial. On CPUs there are as many as the
    node has room for, to be filled one after another.
    """
    need = order.engine
    assert need is not None
    node = ray.get_runtime_context().get_node_id()
    first, last = f"engine-{node[:16]}", order.code.digest
    gpus = ray.get_gpu_ids()
    if gpus:
        return [(f"{first}-gpu{gpus[0]}-{last}", f"cuda:{gpus[0]}", str(gpus[0]))]
    cores = next(n["Resources"].get("CPU", 1) for n in list_nodes() if n["NodeID"] == node)
    count = max(1, int(cores / need.cpus + 1e-6))
    return [(f"{first}-cpu{k}x{need.cpus:g}-{last}", "cpu", None) for k in range(count)]


def find_or_start(kind: type, name: str, *given: object, **options: int) -> Any:
    """Return the actor of a name, which outlives its callers; start it here if there is none.

    It is not in the placement group of a trial that starts it, with which it would end.
    """
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    same = {"namespace": NAMESPACE, "get_if_exists": True, "lifetime": "detached", "num_cpus": 0}
    made: Any = ray.remote(kind).options(name=name, scheduling_strategy=here, **same, **options)
    return made.remote(*given)


def _find_or_start(name: str, device: str, gpu: str | None, order: Order) -> Any:
    given = device, gpu, order.engine, order.code, order.log_format
    return find_or_start(EngineActor, name, *given, num_gpus=0, max_concurrency=MOST_CALLS)


def _key(order: Order) -> Key:
    return order.experiment, order.number
