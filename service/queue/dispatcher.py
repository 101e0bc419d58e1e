"""Starts a driver for every experiment that needs one, and another where a driver died.

Runs in the service's process, in a thread. The record is the queue and the only memory. A
dispatcher also holds handles of drivers and pauses; the next dispatcher finds drivers that outlived
the service by their names, and starts the others again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from sqlalchemy import Row

from eigensweep.common import logs, traces
from eigensweep.protocol.messages import DriverOptions
from eigensweep.protocol.shares import Capacity
from eigensweep.protocol.states import DRIVEN, ENDED
from eigensweep.search_spaces.sections import ResourcesConfig
from eigensweep.service.counters import RESTARTS
from eigensweep.service.queue.cluster_process import ClusterProcess, LauncherAwayError
from eigensweep.service.record.errors import NotLeadingError
from eigensweep.service.record.ledger import RecordLedger
from eigensweep.service.record.record import Record
from eigensweep.service.record.sql import database
from eigensweep.service.record.users.shares import Shares
from eigensweep.service.store_probe import StoreProbe
from eigensweep.store.checkpoints import replicate_key
from eigensweep.store.places.durable_files import StorageError, StoreAwayError
from eigensweep.workers.cluster.drivers import DriverProcess
from eigensweep.workers.cluster.nodes import Node
from eigensweep.workers.deaths import Death, name_crowd

logger = logging.getLogger(__name__)

MOST_DEATHS: Final = 5
"""An experiment fails when its drivers died this often in a row without progress."""
MOST_DELIVERIES: Final = 2
"""How many drivers there may be that only deliver to MLflow what has ended."""
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
STOP_SECONDS: Final = 300.0
"""Seconds for a driver to stop its trials after a pause or cancellation; then it hangs."""
INNOCENT: Final = ("superseded", "memory", "ray", "store", "code", "unseen", "stuck", "threads")
"""Causes of a driver's death that say nothing of its experiment; `superseded`: another service had
the lead meanwhile."""
DELIVERY_PAUSE: Final = 5.0
"""Shortest pause, in seconds, before MLflow is tried again."""


@dataclass
class _Supervised:
    """What the dispatcher knows of one experiment beyond the record."""

    driver: DriverProcess | None = None
    is_new: bool = True
    """Whether no driver of an earlier service has been looked for yet."""
    outlived: bool = False
    """Whether such a driver was found."""
    gone_at: float | None = None
    """When its last driver ended, in seconds since 1970; None: it had none, or that still works."""
    not_before: float = 0.0
    """Time, by the dispatcher's clock, of the next try."""
    pause: float = FIRST_PAUSE
    launched_at: float = float("-inf")
    """When its driver was launched, by the dispatcher's clock."""
    problem: str | None = None
    """Why the last look at this experiment failed; None: it did not."""
    asked_since: float | None = None
    """Time, by the dispatcher's clock, since when its trials are to stop; None: they go on."""
    is_over: bool = False
    """Whether the experiment has ended, and its driver only reports and delivers."""
    over_since: float | None = None
    """Time, by the dispatcher's clock, at which it was first seen to have ended."""
    is_told: bool = False
    """Whether its notices say already why it is not delivered."""
    is_leaving: bool = False
    """Whether its driver was shut out, because there are too many that only deliver."""
    failure: str = ""
    """How its delivery died last."""
    failures: int = 0
    """How often in a row it died like that."""

    def forget_driver(self) -> None:
        """Forget the driver of an experiment that is queued again, which was shut out then."""
        self.driver, self.is_over = None, False
        self.over_since, self.is_leaving = None, False


@dataclass
class Dispatcher:
    """Gives every experiment that needs one a driver, at most `max_experiments` running at once.

    Beyond these each user may have one, up to `max_of_all`: so nobody's only experiment stands in
    the queue behind those of others. While too many drivers only deliver, nobody may: one user's
    short experiments would leave ever more of them.

    Each experiment is looked after by itself: if its driver cannot be started, found or asked, this
    experiment is tried again after a pause, and all others go on. If the database is away, nothing
    is started until it is back.
    """

    record: Record
    max_experiments: int = 2
    max_of_all: int = 0
    """How many may run at once where each user has one; less than `max_experiments` counts as so
    many."""
    interval: float = 0.5
    """Seconds between two ticks, unless `wake` is called."""
    clock: Callable[[], float] = time.monotonic
    find_mlflow_problem: Callable[[], str | None] = lambda: None
    """Says why MLflow takes nothing now; None: it answers."""
    launcher: ClusterProcess | None = None
    """Starts drivers and finds them again; None before `start`."""
    options: DriverOptions | None = None
    """What every driver is told; None before `start`."""
    problem: str | None = "drivers cannot be started yet: Ray is starting"
    """Why no driver could be started at the last look at the queue; None: drivers could."""
    _supervised: dict[str, _Supervised] = field(default_factory=dict)
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
        known = list(self._supervised.items())  # whoever asks is in another thread
        return {id: each.problem for id, each in known if each.problem is not None}

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
        """How many drivers there may be at once, those included that only deliver."""
        return max(self.max_experiments, self.max_of_all) + MOST_DELIVERIES

    def look_for_room(self, resources: ResourcesConfig, replicates: int) -> Capacity | None:
        """Return the room that there is now for such trials, None while that is unknown."""
        return None if self.launcher is None else self.launcher.look_for_room(resources, replicates)

    def list_nodes(self) -> list[Node] | None:
        """Return the nodes that trials run on, None while they are unknown."""
        return None if self.launcher is None else self.launcher.list_nodes()

    def find_driver(self, id: str) -> DriverProcess | None:
        """Return the driver of an experiment that still works, None if there is none.

        Raises:
            LauncherAwayError: if that cannot be known now.
        """
        if self.launcher is None or self.launcher.problem is not None:
            raise LauncherAwayError("drivers cannot be found now")
        return self.launcher.find(id)

    def start(self, launcher: ClusterProcess, options: DriverOptions) -> None:
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
        driven = {each.id for each in unfinished}
        ids = driven | set(newcomers) | set(queued)
        self._supervised = {id: known for id, known in self._supervised.items() if id in ids}
        for id in self._supervised.keys() - driven:
            self._supervised[id].forget_driver()
        running = 0
        for each in unfinished:
            known = self._supervised.setdefault(each.id, _Supervised())
            known.is_over, known.is_told = each.is_over, each.is_told
            if not each.is_asked:
                known.asked_since = None
            elif known.asked_since is None:
                known.asked_since = self.clock()
            if not each.is_over:
                running += 1
                known.over_since, known.is_leaving = None, False
            elif known.over_since is None:
                known.over_since = self.clock()
            self._try(self._look_after, each.id, known)
        too_many = self._bound_deliveries()
        running += too_many
        for id in dict.fromkeys([*newcomers, *queued]):
            may_exceed = id in newcomers and not too_many
            most = self.max_of_all if may_exceed else self.max_experiments
            if running >= most:
                break
            known = self._supervised.setdefault(id, _Supervised(is_new=False))
            running += self._try(self._start, id, known)
        failing = self.problems
        everything_fails = failing and len(failing) == len(self._supervised)
        self.problem = next(iter(failing.values())) if everything_fails else None

    def _list_next(
        self, unfinished: Sequence[Row[str, bool, bool, bool]]
    ) -> tuple[list[str], list[str]]:
        """Return the newcomers and the head of the queue, as far as there is room for one of them.

        To put a long queue in order takes time, and each of many posts has it looked at.
        """
        running = sum(not each.is_over for each in unfinished)
        # More than there is room for: one that cannot be started lets the next ones pass.
        tried = len(self._supervised)
        newcomers: list[str] = []
        if running < self.max_of_all:
            newcomers = self.record.list_newcomers(self.max_of_all + tried)
        if running >= self.max_experiments and self._supervised.keys() <= {
            e.id for e in unfinished
        }:
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

    def _try(self, act: Callable[[str, _Supervised], None], id: str, known: _Supervised) -> bool:
        """Do something for one experiment unless it pauses after an error; return whether it did.

        An error is logged when it is new, and kept as this experiment's problem.
        """
        if known.problem is not None and self.clock() < known.not_before:
            return False
        with logs.about(id):
            try:
                act(id, known)
            except (LauncherAwayError, NotLeadingError):  # concerns every experiment
                raise
            except Exception as error:
                if database.is_away(error):
                    raise
                if known.problem is None:
                    words = "experiment cannot be looked after, trying again experiment=%s"
                    logger.exception(words, id)
                known.problem = f"{type(error).__name__}: {database.explain(error)}"
                if self.clock() >= known.not_before:
                    self._pause(known)
            else:
                if known.problem is not None:
                    logger.info("experiment is looked after again experiment=%s", id)
                    known.problem, known.pause = None, FIRST_PAUSE
        return True

    def _look_after(self, id: str, known: _Supervised) -> None:
        assert self.launcher is not None
        if known.is_new:
            known.driver = self.launcher.find(id)
            known.is_new = False
            known.outlived = known.driver is not None
            if known.outlived:
                known.gone_at = None
                logger.info("driver found again experiment=%s", id)
        if known.driver is not None and not self._has_gone(id, known, known.driver):
            self._end_if_stuck(id, known)
            return
        if self.clock() >= known.not_before and (not known.is_over or self._may_deliver(id, known)):
            self._start(id, known)

    def _end_if_stuck(self, id: str, known: _Supervised) -> None:
        """End a driver that does not stop its trials, as one that runs a package's endless loop."""
        if known.driver is None or known.asked_since is None:
            return
        if self.clock() >= max(known.asked_since, known.launched_at) + STOP_SECONDS:
            words = f"it had not stopped its trials {STOP_SECONDS:.0f} s after it was asked to"
            logger.warning("driver is ended experiment=%s %s", id, words)
            known.driver.kill(Death(words, "stuck"))
            known.asked_since = None  # it may take its time to end, or be ended again

    def _may_deliver(self, id: str, known: _Supervised) -> bool:
        """Return whether an experiment that is over may have a driver now."""
        if len(self._find_deliveries()) >= MOST_DELIVERIES:
            return False
        if self.clock() >= self._mlflow[0]:
            self._mlflow = self.clock() + MLFLOW_SECONDS, self.find_mlflow_problem()
        problem = self._mlflow[1]
        if problem is not None and not known.is_told:
            self.record.hold_delivery(id, f"MLflow cannot be used: {problem}")
        return problem is None

    def _find_deliveries(self) -> dict[str, _Supervised]:
        """Return the experiments that have a driver and are over."""
        return {
            id: known
            for id, known in self._supervised.items()
            if known.is_over and known.driver is not None
        }

    def _bound_deliveries(self) -> int:
        """Return how many drivers too many there are that only deliver.

        The newest of them are told to end, unless they have just begun to deliver. What they leave
        is delivered later. Until they have ended, there is so much less room for the queue.
        """

        def find_age(each: tuple[str, _Supervised]) -> tuple[bool, float]:
            return each[1].is_leaving, each[1].over_since or 0.0

        too_many = sorted(self._find_deliveries().items(), key=find_age)[MOST_DELIVERIES:]
        for id, known in too_many:
            is_leaving, began = find_age((id, known))
            if not is_leaving and self.clock() >= began + DELIVERY_SECONDS:
                known.is_leaving = True
                self.record.hold_delivery(id, "others are delivered first")
        return len(too_many)

    def _has_gone(self, id: str, known: _Supervised, driver: DriverProcess) -> bool:
        """Return whether the driver is gone; if it is, decide when the next one may start."""
        state = driver.state()
        if state == "running":
            return False
        known.gone_at = time.time() - (time.monotonic() - driver.ended_at)
        if state in ("died", "lost"):
            RESTARTS.labels("driver").inc()
        if state == "lost":
            logger.warning("driver lost, it is looked for again experiment=%s", id)
            known.driver, known.is_new, known.not_before = None, True, 0.0
            return False  # looked for at the next tick, when the launcher is back
        if self.clock() >= known.launched_at + LONGEST_PAUSE:  # it was at work for a while
            known.pause = FIRST_PAUSE
        death = driver.death or Death("for a reason that is not known")
        if death.cause == "ray":  # perhaps it had no thread for it
            death = Death(name_crowd(death.words), "ray")
        state_now = self.record.row(id).state
        if state_now not in DRIVEN | ENDED:  # it was paused, and perhaps queued again
            known.driver = None
            return False
        if state_now in ENDED:  # all is in MLflow, or MLflow is away
            known.driver, known.is_leaving = None, False
            self._pause(known, at_least=DELIVERY_PAUSE)
            if state == "died":
                self._tell_death(id, known, death)
            return True
        # Not the experiment's fault, so it is never given up for it.
        problem: object = death if death.cause in INNOCENT else None
        if problem is None:
            try:
                trained = self._count_trained(id)
            except StoreAwayError as error:  # nobody knows whether there was progress
                problem = error
        if problem is not None:
            logger.warning("driver %s experiment=%s %s", state, id, problem)
            if death.cause != "superseded":
                self.record.tell_death(id, death.line)
            known.driver = None
            self._pause(known)
            return True
        deaths = self.record.count_death(id, trained)
        known.driver = None
        words = f"its driver died {deaths} times without any progress: {death}"
        logger.warning("driver %s with work left experiment=%s %s", state, id, words)
        if deaths >= MOST_DEATHS:
            self.record.give_up(id, words)
        elif deaths > 1:
            self.record.tell_death(id, death.line)
            self._pause(known)
        else:
            known.not_before, known.pause = 0.0, FIRST_PAUSE
        return True

    def _tell_death(self, id: str, known: _Supervised, death: Death) -> None:
        """Say on an experiment that is over how its delivery died; log the same error once."""
        words = death.line
        known.failures = known.failures + 1 if words == known.failure else 1
        told = words if words == known.failure else death.words
        logger.warning("delivery died experiment=%s times=%d error=%s", id, known.failures, told)
        known.failure = words
        self.record.hold_delivery(
            id, f"its delivery died {known.failures} times in a row, and is tried again: {words}"
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

    def _pause(self, known: _Supervised, at_least: float = 0.0) -> None:
        known.not_before = self.clock() + max(known.pause, at_least)
        known.pause = min(2 * known.pause, LONGEST_PAUSE)

    def _start(self, id: str, known: _Supervised) -> None:
        assert self.launcher is not None
        assert self.options is not None
        claim = self.record.claim(id, outlived=known.outlived, gone_at=known.gone_at)
        if claim is None:
            return
        known.gone_at = time.time()  # nobody works on it before its driver is launched
        if claim.generation == 1:
            traces.record("queue", claim.trace, claim.created_at, experiment=id)
        ledger = RecordLedger(self.record.url, id, claim.generation)
        self._pause(known)  # if the launch fails, or the driver dies at once
        options = replace(self.options, trace=claim.trace)
        known.driver = self.launcher.launch(id, claim.spec, ledger, options)
        known.gone_at, known.launched_at = None, self.clock()
        logger.info("driver started experiment=%s generation=%d", id, claim.generation)
