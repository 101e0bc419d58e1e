"""Starts a driver for every experiment that needs one, and another where a driver died.

Runs in the service's process, in a thread. The record is the queue and the only memory. A
dispatcher also holds handles of drivers and pauses; the next dispatcher finds drivers that outlived
the service by their names, and starts the others again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal, Protocol

from sqlalchemy.exc import SQLAlchemyError

from eigensweep.search_spaces.sections import ResourcesConfig
from eigensweep.service.counters import RESTARTS
from eigensweep.service.queue.driver_places import DriverPlaces, Seat, is_small
from eigensweep.service.record import database
from eigensweep.service.record.errors import NotLeadingError
from eigensweep.service.record.ledger import RecordLedger
from eigensweep.service.record.record import Record, Unfinished
from eigensweep.service.record.shares import Shares
from eigensweep.service.store_probe import StoreProbe
from eigensweep.workers.cluster.nodes import Node
from eigensweep.workers.lanes.shares import Capacity
from eigensweep.workers.shared import logs, traces
from eigensweep.workers.shared.checkpoints import replicate_key
from eigensweep.workers.shared.deaths import Death
from eigensweep.workers.shared.durable_files import StorageError, StoreAwayError
from eigensweep.workers.shared.ledger import Ledger
from eigensweep.workers.shared.messages import DriverOptions, SpecJson
from eigensweep.workers.shared.states import DRIVEN, ENDED

logger = logging.getLogger(__name__)

MOST_DEATHS: Final = 5
"""An experiment fails when its drivers died this often in a row without progress."""
MOST_DELIVERIES: Final = 2
"""How many drivers' processes there may be that only deliver to MLflow what has ended."""
DELIVERY_SECONDS: Final = 10.0
"""So long a delivery may take although there are too many: most take less than a new driver."""
MLFLOW_SECONDS: Final = 10.0
"""How long MLflow is taken to be away, or to be there, before it is asked again."""
FIRST_PAUSE: Final = 1.0
"""Seconds before the second try; every further pause is twice as long, up to `LONGEST_PAUSE`."""
LONGEST_PAUSE: Final = 300.0
SHARE_SECONDS: Final = 1.0
"""Between two looks at what experiments want of the cluster."""
LEAST_INTERVAL: Final = 0.1
"""Shortest time, in seconds, between two ticks: a hundred posts at once are one look."""
DELIVERY_PAUSE: Final = 5.0
"""Shortest pause, in seconds, before MLflow is tried again."""


class LauncherAwayError(RuntimeError):
    """What starts drivers is away; it may come back."""


class Driver(Protocol):
    """The process that runs one experiment, as `launch` and `find` of a launcher return it."""

    death: Death | None
    """Why it died, if that is known, or ended early; set once `state` returned so."""

    @property
    def process(self) -> str:
        """The name of its process, which several experiments may share."""

    def state(self) -> Literal["running", "ended", "died", "lost"]:
        """Return whether it is at work, has returned, or stopped before its work was done.

        `lost`: nothing is known of it any more; it may be found again.
        """


class Launcher(Protocol):
    """Starts drivers in processes of their own and finds them again.

    Its methods raise LauncherAwayError while it is away.
    """

    @property
    def problem(self) -> str | None:
        """Why no driver can be started or found now; None: all is well."""

    def launch(
        self,
        experiment_id: str,
        spec: SpecJson,
        ledger: Ledger,
        options: DriverOptions,
        beside: str | None = None,
    ) -> Driver:
        """Start a driver for an experiment, in the process of the one `beside` if that still can.

        Otherwise it has a process of its own.
        """

    def find(self, experiment_id: str) -> Driver | None:
        """Return the driver of an experiment that an earlier service started, if it still works."""

    def look_for_room(self, resources: ResourcesConfig, replicates: int) -> Capacity:
        """Return how many trials with these resources can run at once, or why none can.

        Requests wait for it, so it asks nobody.
        """

    def list_nodes(self) -> list[Node]:
        """Return the nodes that trials run on, as they were last seen. It asks nobody, too."""


@dataclass
class _Care:
    """What the dispatcher knows of one experiment beyond the record."""

    driver: Driver | None = None
    is_new: bool = True
    """Whether no driver of an earlier service has been looked for yet."""
    not_before: float = 0.0
    """Time, by the dispatcher's clock, of the next try."""
    pause: float = FIRST_PAUSE
    problem: str | None = None
    """Why the last look at this experiment failed; None: it did not."""
    is_over: bool = False
    """Whether the experiment has ended, and its driver only reports and delivers."""
    is_small: bool | None = None
    """Whether it may share a driver, as far as its spec says; None: not looked yet."""
    is_alone: bool = False
    """Whether it has a driver of its own from now on: one that it shared has died."""
    shares: bool = False
    """Whether others may have the process of its driver, too."""
    over_since: float | None = None
    """Time, by the dispatcher's clock, at which it was first seen to have ended."""
    is_told: bool = False
    """Whether its notices say already why something of it waits."""
    is_leaving: bool = False
    """Whether its driver was shut out, because there are too many that only deliver."""
    failure: str = ""
    """How its delivery died last."""
    failures: int = 0
    """How often in a row it died like that."""


@dataclass
class Dispatcher:
    """Gives every experiment that needs one a driver, at most `max_experiments` running at once.

    Beyond these each user may have one, up to `max_of_all`: so nobody waits for the end of what
    others have begun.

    Small experiments may share a driver's process. If that dies, each of them goes on in a driver
    of its own: so the one that ended it ends no other one again, and its deaths are its own.

    Each experiment is looked after by itself: if its driver cannot be started, found or asked, this
    experiment is tried again after a pause, and all others go on. If the database is away, nothing
    is started until it is back.
    """

    record: Record
    max_experiments: int = 2
    max_of_all: int = 0
    """How many may run at once where each user has one; less than `max_experiments` counts as so
    many."""
    places: DriverPlaces = field(default_factory=DriverPlaces)
    """How many experiments share a driver, and how many drivers there may be."""
    interval: float = 0.5
    """Seconds between two ticks, unless `wake` is called."""
    patience: float = 0.0
    """For so many seconds the next experiment waits for a driver that only delivers, and that it
    may have after that; 0: no driver is used again."""
    clock: Callable[[], float] = time.monotonic
    find_mlflow_problem: Callable[[], str | None] = lambda: None
    """Says why MLflow takes nothing now; None: it answers."""
    launcher: Launcher | None = None
    options: DriverOptions | None = None
    """What every driver is told; None before `start`."""
    problem: str | None = "drivers cannot be started yet: Ray is starting"
    """Why no driver could be started at the last look at the queue; None: drivers could."""
    _in_care: dict[str, _Care] = field(default_factory=dict)
    _shares: Shares = field(init=False)
    _store: StoreProbe | None = None
    """Reads what trials have committed, and waits for no store that hangs; made when needed."""
    _share_at: float = float("-inf")
    _mlflow: tuple[float, str | None] = (0.0, None)
    """Until when MLflow has which problem, as it was last seen."""
    _wake: threading.Event = field(default_factory=threading.Event)
    _stopping: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __post_init__(self) -> None:
        self._shares = Shares(self.record.url)

    @property
    def problems(self) -> dict[str, str]:
        """Experiment id to why the last look at that experiment failed; empty: all is well."""
        return {id: care.problem for id, care in self._in_care.items() if care.problem is not None}

    @property
    def away(self) -> str | None:
        """Why Ray cannot be asked at this moment; None: it can."""
        return None if self.launcher is None else self.launcher.problem

    def explain_problem(self) -> str | None:
        """Return why no experiment can be started now, None if experiments can be started.

        Also while a look at the queue waits for an answer of Ray's.
        """
        return self.away or self.problem

    @property
    def max_drivers(self) -> int:
        """How many drivers' processes experiments that run may have at once, at most."""
        return self.places.drivers or max(self.max_experiments, self.max_of_all)

    @property
    def max_processes(self) -> int:
        """How many drivers' processes there may be at once, those included that only deliver."""
        return self.max_drivers + MOST_DELIVERIES

    @property
    def driver_experiments(self) -> int:
        """How many small experiments one driver may have at once."""
        return self.places.experiments

    def look_for_room(self, resources: ResourcesConfig, replicates: int) -> Capacity | None:
        """Return the room that there is now for such trials, None while that is unknown."""
        if self.launcher is None:
            return None
        try:
            return self.launcher.look_for_room(resources, replicates)
        except LauncherAwayError:
            return None

    def list_nodes(self) -> list[Node] | None:
        """Return the nodes that trials run on, None while they are unknown."""
        if self.launcher is None:
            return None
        try:
            return self.launcher.list_nodes()
        except LauncherAwayError:
            return None

    def find_driver(self, id: str) -> Driver | None:
        """Return the driver of an experiment that still works, None if there is none.

        Raises:
            LauncherAwayError: if that cannot be known now.
        """
        if self.launcher is None or self.launcher.problem is not None:
            raise LauncherAwayError("drivers cannot be found now")
        return self.launcher.find(id)

    def start(self, launcher: Launcher, options: DriverOptions) -> None:
        """Begin to serve the queue, in a thread, with drivers started by `launcher`."""
        self.launcher, self.options = launcher, options
        self.problem = None
        self._thread = threading.Thread(target=self._run, name="dispatcher", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Look at the queue at once."""
        self._wake.set()

    def stop(self, timeout: float = 5.0) -> None:
        """Stop serving the queue; running drivers go on."""
        self._stopping.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(timeout)

    def tick(self) -> None:
        """Look once at every experiment that has or needs a driver, then at the queue.

        Raises:
            SQLAlchemyError: if the database does not answer as it should.
            NotLeadingError: if another service leads by now.
        """
        if self.clock() >= self._share_at:
            self._shares.keep()
            self._share_at = self.clock() + SHARE_SECONDS
        if self.launcher is not None and self.launcher.problem is not None:
            self.problem = self.launcher.problem
            return
        unfinished = self.record.list_unfinished()
        newcomers, queued = self._list_next(unfinished)
        ids = {each.id for each in unfinished} | set(newcomers) | set(queued)
        self._in_care = {id: care for id, care in self._in_care.items() if id in ids}
        running = free_soon = 0
        for each in unfinished:
            care = self._in_care.setdefault(each.id, _Care())
            care.is_over, care.is_told = each.is_over, each.is_told
            if not each.is_over:
                running += 1
                care.over_since, care.is_leaving = None, False
            self._try(self._look_after, each.id, care)
            free_soon += each.is_over and self._will_be_free_soon(care)
        running += max(free_soon, self._bound_deliveries())
        for id in dict.fromkeys([*newcomers, *queued]):
            most = self.max_of_all if id in newcomers else self.max_experiments
            if running >= most:
                break
            care = self._in_care.setdefault(id, _Care(is_new=False))
            if not self._has_room(id, care, [each.id for each in unfinished]):
                break  # those behind it would take what it waits for
            running += self._try(self._start, id, care)
        failing = self.problems
        everything_fails = failing and len(failing) == len(self._in_care)
        self.problem = next(iter(failing.values())) if everything_fails else None

    def _list_next(self, unfinished: Sequence[Unfinished]) -> tuple[list[str], list[str]]:
        """Return the newcomers and the head of the queue, as far as there is room for one of them.

        To put a long queue in order takes time, and each of many posts has it looked at.
        """
        running = sum(not each.is_over for each in unfinished)
        # More than there is room for: one that cannot be started lets the next ones pass.
        tried = len(self._in_care)
        newcomers: list[str] = []
        if running < self.max_of_all:
            newcomers = self.record.list_newcomers(self.max_of_all + tried)
        if running >= self.max_experiments and self._in_care.keys() <= {e.id for e in unfinished}:
            return newcomers, []
        return newcomers, self.record.list_queued(self.max_experiments + tried)

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self.tick()
            except Exception as error:  # the queue outlives a database that is away
                problem = f"{type(error).__name__}: {error}"
                if isinstance(error, NotLeadingError):
                    logger.warning("the queue is left to another service: %s", error)
                    return
                if self.problem is None and database.is_away(error):
                    logger.warning("the queue waits for the database: %s", problem)
                elif self.problem is None:
                    logger.exception("the queue cannot be served, trying again")
                self.problem = problem
            self._stopping.wait(min(LEAST_INTERVAL, self.interval))
            self._wake.wait(self.interval)
            self._wake.clear()

    def _try(self, act: Callable[[str, _Care], None], id: str, care: _Care) -> bool:
        """Do something for one experiment unless it pauses after an error; return whether it did.

        An error is logged when it is new, and kept as this experiment's problem.
        """
        if care.problem is not None and self.clock() < care.not_before:
            return False
        with logs.about(id):
            return self._try_at_once(act, id, care)

    def _try_at_once(self, act: Callable[[str, _Care], None], id: str, care: _Care) -> bool:
        try:
            act(id, care)
        except (SQLAlchemyError, LauncherAwayError, NotLeadingError):  # concerns every experiment
            raise
        except Exception as error:
            if care.problem is None:
                logger.exception(
                    "experiment cannot be looked after, trying again experiment=%s", id
                )
            care.problem = f"{type(error).__name__}: {error}"
            if self.clock() >= care.not_before:
                self._pause(care)
        else:
            if care.problem is not None:
                logger.info("experiment is looked after again experiment=%s", id)
                care.problem, care.pause = None, FIRST_PAUSE
        return True

    def _look_after(self, id: str, care: _Care) -> None:
        assert self.launcher is not None
        if care.is_new:
            care.driver = self.launcher.find(id)
            care.is_new = False
            if care.driver is not None:
                logger.info("driver found again experiment=%s", id)
        if care.driver is not None and not self._has_gone(id, care, care.driver):
            return
        if self.clock() >= care.not_before and self._has_room(id, care):
            self._start(id, care)

    def _has_room(self, id: str, care: _Care, first: Iterable[str] = ()) -> bool:
        """Return whether an experiment may have a driver now, after those that come first."""
        if care.is_over:
            return self._may_deliver(id, care)
        if self.places.drivers is None:
            return True
        before = [self._in_care[each] for each in first]
        starting = sum(each.driver is None and not each.is_over for each in before)
        return self.places.has_room(self._list_seats(), starting, shares=self._may_share(id, care))

    def _may_deliver(self, id: str, care: _Care) -> bool:
        """Return whether an experiment that is over may have a driver now."""
        if len(self._find_deliveries()) >= MOST_DELIVERIES:
            return False
        if self.clock() >= self._mlflow[0]:
            self._mlflow = self.clock() + MLFLOW_SECONDS, self.find_mlflow_problem()
        problem = self._mlflow[1]
        if problem is not None and not care.is_told:
            self.record.hold_delivery(id, f"MLflow cannot be used: {problem}")
        return problem is None

    def _find_deliveries(self) -> list[list[Seat]]:
        """Return the processes that only deliver, each as the experiments that have it."""
        aboard: defaultdict[str, list[Seat]] = defaultdict(list)
        for seat in self._list_seats():
            aboard[seat.process].append(seat)
        return [seats for seats in aboard.values() if all(seat.is_over for seat in seats)]

    def _bound_deliveries(self) -> int:
        """Return how many processes too many there are that only deliver.

        The newest of them are told to end, unless they have just begun to deliver. What they leave
        is delivered later. Until they have ended, there is so much less room for the queue.
        """

        def find_age(seats: list[Seat]) -> tuple[bool, float]:
            cares = [self._in_care[seat.experiment] for seat in seats]
            began = max(each.over_since or 0.0 for each in cares)
            return any(each.is_leaving for each in cares), began

        too_many = sorted(self._find_deliveries(), key=find_age)[MOST_DELIVERIES:]
        for seats in too_many:
            is_leaving, began = find_age(seats)
            if is_leaving or self.clock() < began + DELIVERY_SECONDS:
                continue
            for seat in seats:
                self._in_care[seat.experiment].is_leaving = True
                self.record.hold_delivery(seat.experiment, "others are delivered first")
        return len(too_many)

    def _may_share(self, id: str, care: _Care) -> bool:
        """Return whether an experiment may have a driver together with others."""
        if self.places.experiments == 1 or care.is_alone:
            return False
        if care.is_small is None:
            care.is_small = is_small(self.record.row(id).spec)
        return care.is_small

    def _note_refusal(self, host: _Care, driver: Driver) -> None:
        """Try no driver again that would not be shared: it ends after the experiments that it has.

        Until then there may be one driver more than there is room for.
        """
        if host.driver is None or host.driver.process == driver.process:
            return
        for care in self._in_care.values():
            if care.driver is not None and care.driver.process == host.driver.process:
                care.shares = False

    def _list_seats(self) -> list[Seat]:
        return [
            Seat(id, care.driver.process, care.shares, care.is_over)
            for id, care in self._in_care.items()
            if care.driver is not None
        ]

    def _will_be_free_soon(self, care: _Care) -> bool:
        """Return whether the driver of an experiment that is over may soon have the next one."""
        if care.over_since is None:
            care.over_since = self.clock()
        return care.driver is not None and self.clock() < care.over_since + self.patience

    def _has_gone(self, id: str, care: _Care, driver: Driver) -> bool:
        """Return whether the driver is gone; if it is, decide when the next one may start."""
        state = driver.state()
        if state == "running":
            return False
        if state == "lost":
            logger.warning("driver lost, it is looked for again experiment=%s", id)
            care.driver, care.is_new, care.not_before = None, True, 0.0
            return False  # looked for at the next tick, when the launcher is back
        death = driver.death or Death("for a reason that is not known")
        care.is_alone |= death.cause == "shared"
        state_now = self.record.row(id).state
        if state_now not in DRIVEN | ENDED:  # it was paused, and perhaps queued again
            care.driver = None
            return False
        if state_now in ENDED:  # all is in MLflow, or MLflow is away
            care.driver, care.is_leaving = None, False
            self._pause(care, at_least=DELIVERY_PAUSE)
            if state == "died":
                self._tell_death(id, care, death.words)
            return True
        if death.cause == "superseded":  # another service had the lead meanwhile
            logger.info("driver ended, it has a successor experiment=%s", id)
            care.driver = None
            self._pause(care)
            return True
        # Not the experiment's fault, so it is never given up for it.
        if death.cause in ("memory", "store"):
            logger.warning("driver died experiment=%s %s", id, death)
            care.driver = None
            self._pause(care)
            return True
        if death.cause == "node":  # nor for this; and what needs a node waits for one anyway
            logger.warning("driver died with its node experiment=%s", id)
            care.driver, care.not_before, care.pause = None, 0.0, FIRST_PAUSE
            return True
        if death.cause == "shared":  # perhaps another one's fault: alone, each shows its own
            logger.warning("shared driver died, it gets its own experiment=%s %s", id, death)
            care.driver, care.not_before, care.pause = None, 0.0, FIRST_PAUSE
            return True
        try:
            trained = self._count_trained(id)
        except StoreAwayError as error:  # nobody knows whether there was progress
            logger.warning("driver died while the store is away experiment=%s %s", id, error)
            care.driver = None
            self._pause(care)
            return True
        deaths = self.record.count_death(id, trained)
        care.driver = None
        words = f"its driver died {deaths} times without any progress: {death}"
        logger.warning("driver %s with work left experiment=%s %s", state, id, words)
        if deaths >= MOST_DEATHS:
            self.record.give_up(id, words)
        elif deaths > 1:
            self._pause(care)
        else:
            care.not_before, care.pause = 0.0, FIRST_PAUSE
        return True

    def _tell_death(self, id: str, care: _Care, error: str) -> None:
        """Say on an experiment that is over how its delivery died; log the same error once."""
        words = error.strip().rpartition("\n")[2]
        care.failures = care.failures + 1 if words == care.failure else 1
        told = words if words == care.failure else error
        logger.warning("delivery died experiment=%s times=%d error=%s", id, care.failures, told)
        care.failure = words
        self.record.hold_delivery(
            id, f"its delivery died {care.failures} times in a row, and is tried again: {words}"
        )

    def _count_trained(self, id: str) -> int:
        """Return how many steps an experiment's unfinished trials have committed; 0: not known.

        Raises:
            StoreAwayError: if the store does not answer.
        """
        assert self.options is not None
        keys = [
            replicate_key(id, number, seed)
            for number, seeds in self.record.list_begun(id)
            for seed in seeds
        ]
        if self._store is None:
            self._store = StoreProbe(self.options.storage)
        try:
            return self._store.ask(lambda store: sum(max(0, store.progress(k).step) for k in keys))
        except StoreAwayError:
            raise
        except StorageError as error:
            logger.warning("cannot see what trials have committed experiment=%s %s", id, error)
            return 0

    def _pause(self, care: _Care, at_least: float = 0.0) -> None:
        care.not_before = self.clock() + max(care.pause, at_least)
        care.pause = min(2 * care.pause, LONGEST_PAUSE)

    def _start(self, id: str, care: _Care) -> None:
        assert self.launcher is not None
        assert self.options is not None
        shares = self._may_share(id, care)
        claim = self.record.claim(id)
        if claim is None:
            return
        if claim.generation > 1:
            RESTARTS.labels("driver").inc()
        else:
            traces.record("queue", claim.trace, claim.created_at, experiment=id)
        ledger = RecordLedger(self.record.url, id, claim.generation)
        self._pause(care)  # if the launch fails, or the driver dies at once
        options = replace(self.options, trace=claim.trace)
        beside = self.places.find_company(self._list_seats()) if shares else None
        care.driver = self.launcher.launch(id, claim.spec, ledger, options, beside)
        care.shares = shares
        if beside is not None:
            self._note_refusal(self._in_care[beside], care.driver)
        logger.info("driver started experiment=%s generation=%d", id, claim.generation)
