"""An engine: one device, and the trials of any experiments that share it as lanes.

Callers are threads, one for each trial, which `ask` for its reports, rung by rung. One thread
trains: groups of replicates of equal shape side by side, one group after another in short slices of
time. A lane goes on past its rung while the scheduler decides. A lane that becomes free is refilled
at once from the trials that wait, which are those of callers beyond the number of lanes: so there
should be some more callers than lanes.

A group has the same number of lanes from beginning to end, whoever has them: so what a lane trains
does not depend, not by a bit, on its neighbours.

Checkpoints are those of a trial alone: an engine that is killed costs the steps since the last
commits, and each trial goes on in another engine or in a process of its own.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor

import torch

from eigensweep.protocol.messages import Order, Report
from eigensweep.search_spaces.trial import TrialConfig
from eigensweep.store.checkpoints import Store
from eigensweep.training.attempt import Attempt
from eigensweep.training.corpora import find_data_root
from eigensweep.training.errors import contain, is_of_the_disk, is_out_of_memory
from eigensweep.training.lanes.engine.commits import Commits
from eigensweep.training.lanes.engine.faults import Faults
from eigensweep.training.lanes.engine.groups import Groups, Sharing
from eigensweep.training.lanes.engine.members import MemberLane, MemberTrial
from eigensweep.training.lanes.engine.occupancy import Span
from eigensweep.training.lanes.engine.register import EngineError, Register
from eigensweep.training.lanes.engine.turn_loop import TurnLoop

logger = logging.getLogger(__name__)

SLICE_SECONDS = 0.25
"""Seconds for which one group trains before the engine looks around."""

WRITERS = 2
"""Threads that write commits."""

IDLE_SECONDS = 0.5
"""An engine with nothing to train looks around this often."""


class Engine:
    """What callers see: it takes their trials in, starts the thread that trains, and answers.

    Any thread may call it. It takes the register's lock to look and to change something, and
    `Groups.making` to open a trial. `TurnLoop` trains, `Groups` has the lanes, `Commits` has them
    written, `Faults` judges errors, and `Register` knows the members.
    """

    def __init__(
        self,
        device: str,
        lanes: int,
        *,
        sharing: Sharing | None = None,
        slice_seconds: float = SLICE_SECONDS,
        threads: int = 1,
        clock: Callable[[], float] = time.monotonic,
        writers: Executor | None = None,
        in_background: bool = True,
    ) -> None:
        """Prepare an engine on `device`, `cpu` or `cuda`; it trains from the first order on.

        `lanes` is how many replicates of one shape train side by side; an order that names its
        lanes gets those. `threads` are those of PyTorch on
        the CPU. Tests give a clock of their own, another pool that writes commits, and turn the
        engine themselves, with `turn`, where it is not `in_background`.

        Raises:
            ValueError: if there is no lane.
        """
        if lanes < 1:
            raise ValueError(f"an engine needs at least one lane; got lanes={lanes}")
        self.device, self._lanes = device, lanes
        self._sharing = sharing or Sharing()
        self._threads, self._clock = threads, clock
        self._thread: threading.Thread | None = None
        self._in_background = in_background
        self._register = Register()
        self._groups = Groups(device, self._sharing.make_group)
        pool = writers or ThreadPoolExecutor(WRITERS, thread_name_prefix="commits")
        self._commits = Commits(self._register, pool)
        self._faults = Faults(device, self._register, self._groups, self._open_attempt)
        self._loop = TurnLoop(
            self._register,
            self._groups,
            self._commits,
            self._faults,
            slice_seconds=slice_seconds,
            clock=clock,
        )
        self._turn_began: float | None = None
        """When the turn of now began, in seconds of `time.monotonic`; None between two turns."""
        self.longest_turn = 0.0
        """Seconds of the longest turn so far."""

    def ask(self, order: Order, seconds: float) -> Report | None:
        """Return the report of a trial's next rung; None if it is not there after some seconds.

        The first call for an attempt makes the trial a member, and each further one returns the
        next report. Rungs up to `order.reported` are left out. A report with an outcome is the last
        one. A report comes after the commit of the steps that it is about.

        Raises:
            StaleAttemptError: if the trial has a later attempt.
            EngineError: if engine or machine could not go on; the trial can, in another attempt.
        """
        deadline = time.monotonic() + seconds
        trial = self._register.enter(order)
        if not self._open(trial, deadline):
            return None
        self._start()
        return self._register.take_report(trial, order.reported, deadline)

    def leave(self, order: Order, *, commit: bool = False) -> None:
        """Drop a trial, without waiting for it; with `commit`, commit first what it has trained.

        A trial that goes on elsewhere needs the `commit`; one that ends here does not. A trial that
        nobody asks for any more stays until somebody says so (`EngineActor` gives leases).
        """
        self._register.leave(order, commit)

    @property
    def is_broken(self) -> bool:
        """Whether the engine does not go on."""
        return self._register.broken is not None

    def occupancy(self) -> dict[str, object]:
        """Return lane-seconds by what lanes did: occupied, idle though wanted, and idle."""
        busy = self._loop.occupancy
        return {
            "occupied": busy.occupied,
            "idle_wanted": busy.idle_wanted,
            "idle": busy.idle,
            "wasted": busy.wasted,
        }

    def seconds_in_turn(self) -> float:
        """Return for how long the turn of now has lasted; 0 while there is nothing to do.

        A turn is a slice of a quarter of a second, or one step or evaluation that takes longer.
        """
        began = self._turn_began
        return 0.0 if began is None else time.monotonic() - began

    def spans(self) -> list[Span]:
        """Return the occupancy over time, for a plot."""
        with self._register.changed:
            return list(self._loop.occupancy.spans)

    def turn(self) -> bool:
        """Take one turn, for tests: return False if nothing could train."""
        return self._loop.turn()

    def stop(self) -> None:
        """Commit every lane, end the training, and refuse whoever asks from now on."""
        with self._register.changed:
            self._register.is_stopping = True
            self._register.changed.notify_all()
        if self._thread is not None:
            self._thread.join()
        else:
            self._loop.close()
        self._commits.close()

    def _open(self, trial: MemberTrial, deadline: float) -> bool:
        """Pick a new trial up from the store; return False if the time was too short for that."""
        changed = self._register.changed
        with changed:
            while trial.is_opening or (trial.predecessor and not trial.predecessor.is_gone):
                self._start()
                if not self._register.wait(deadline):
                    return False
            trial.predecessor = None
            if trial.attempt is not None or trial.is_over:
                return True
            trial.is_opening = True
        try:
            self._begin(trial)
        finally:
            with changed:
                trial.is_opening = False
                changed.notify_all()
        return True

    def _begin(self, trial: MemberTrial) -> None:
        """Make the replicates of a trial; an error in that is the trial's own."""
        try:
            attempt = self._open_attempt(trial.order)
            config = TrialConfig.from_dict(trial.order.config).resolve()
            alone = self._sharing.explain_alone(config)
            shape = self._sharing.shape_key(config)
            need = trial.order.engine
            lanes = 1 if alone else self._lanes if need is None else need.lanes
        except Exception as error:
            # Groups are the training thread's: what only this trial has met closes none of them.
            if is_out_of_memory(error) or is_of_the_disk(error):
                with self._register.changed:
                    trial.error = EngineError(f"a trial cannot begin here: {error}")
                    trial.error.__cause__ = error
                    trial.is_over = True
            else:
                self._faults.settle(trial, error)
            return
        with self._register.changed:
            trial.attempt, trial.alone = attempt, alone
            trial.lanes_of_group = max(1, lanes)
            trial.shape = f"{shape}-x{trial.lanes_of_group}"
            trial.lanes = [MemberLane(trial, replicate) for replicate in attempt.replicates]

    @contain()
    def _open_attempt(self, order: Order) -> Attempt:
        # A corpus may take long to come, and who makes groups would wait for it.
        config = TrialConfig.from_dict(order.config)
        find_data_root(config, Store(order.storage), order.data_root, order.corpus)
        with self._groups.making:
            return Attempt(order, self.device, self._clock)

    def _start(self) -> None:
        with self._register.changed:
            if self._in_background and self._thread is None:
                self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        """Take turns until the engine stops or breaks: what the thread that trains does."""
        torch.set_num_threads(self._threads)
        register = self._register
        try:
            while not register.is_stopping and register.broken is None:
                self._turn_began = began = time.monotonic()
                has_trained = self._loop.turn()
                self._turn_began = None
                self.longest_turn = max(self.longest_turn, time.monotonic() - began)
                if not has_trained:
                    with register.changed:
                        if not register.is_stopping:
                            register.changed.wait(IDLE_SECONDS)
        except Exception as error:
            # A bug in the engine: no trial's failure, and nobody may wait for ever.
            logger.exception("engine fails device=%s", self.device)
            self._faults.lose(error, for_good=True)
        finally:
            self._loop.close()
