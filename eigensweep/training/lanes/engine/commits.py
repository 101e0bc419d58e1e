"""What lanes commit: copied between two turns, written beside the training."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor

from eigensweep.protocol.messages import Report
from eigensweep.training.lanes.engine.members import MemberLane, MemberTrial
from eigensweep.training.lanes.engine.register import Register


class Commits:
    """Has commits written, each lane's one after another, and holds reports back until they are.

    The thread that trains calls it; threads of the pool write. It takes the register's lock to hold
    a report back and to give it out.
    """

    def __init__(self, register: Register, pool: Executor) -> None:
        self._register, self._pool = register, pool

    def commit(self, lane: MemberLane) -> None:
        """Copy what is new of a lane now, and have it written."""
        if lane.is_lost:
            return
        lane.wait()  # who trains faster than the disk writes is held up
        group, training = lane.group, lane.replicate.training
        update = None if group is None else lambda: group.trainer.update(training)
        commit = lane.replicate.take(update)
        self.write(lane, lambda: lane.replicate.write(commit))

    def commit_news(self, trial: MemberTrial) -> None:
        """Commit the lanes of a trial that have something new."""
        for lane in trial.lanes:
            if lane.replicate.has_news:
                self.commit(lane)

    def write(self, lane: MemberLane, act: Callable[[], None]) -> None:
        """Have something written, after what the same lane has written before."""
        before, trial = lane.writing, lane.trial

        def write() -> None:
            if before is not None:
                before.result()
            act()

        lane.writing = self._pool.submit(write)
        lane.writing.add_done_callback(lambda done: self._register.give_out(trial))

    def hold(self, trial: MemberTrial, report: Report) -> None:
        """Give out a report when what was committed for it is written."""
        writing = [lane.writing for lane in trial.lanes if lane.writing is not None]
        with self._register.changed:
            trial.held.append((report, writing))

    def close(self) -> None:
        """Wait until everything is written, and end the threads."""
        self._pool.shutdown()
