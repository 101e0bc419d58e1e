"""What the parts of a driver's ledger share: where the record is, and the fence around each write.

Every write locks the experiment's row first: its writers stand in line, its events come out in the
order of their ids, and a driver that has a successor is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

from eigensweep.protocol.ledger import StaleWriteError, SupersededError
from eigensweep.service.record.journal.usage import leave_out_leap
from eigensweep.service.record.sql import database
from eigensweep.service.record.sql.rows import RowSession
from eigensweep.service.record.sql.tables import ExperimentRow, TrialRow


@dataclass(frozen=True)
class LedgerPart:
    """One experiment's part of the record, written by one generation of its driver.

    Picklable: a connection is opened where it is used. While the database is locked or away every
    call waits and tries again, for `patience` seconds.
    """

    url: str
    experiment_id: str
    generation: int
    patience: float = 24 * 3600.0

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        database.hold_few_connections(self.url)  # this is a driver's process

    def check_generation(self, generation: int) -> None:
        """Raise SupersededError if the experiment's newest driver is another one."""
        if generation != self.generation:
            raise SupersededError(
                f"driver {self.generation} of experiment {self.experiment_id} has a successor, "
                f"driver {generation}"
            )

    def get_trial(self, rows: RowSession, number: int, attempt: int | None = None) -> TrialRow:
        """Return a trial; raise StaleWriteError if a later attempt than `attempt` has begun."""
        trial = rows.get_one(TrialRow, (self.experiment_id, number))
        if attempt is not None and attempt < trial.attempt:
            raise StaleWriteError(
                f"attempt {attempt} of trial {number} has a successor, attempt {trial.attempt}"
            )
        return trial


P = ParamSpec("P")
T = TypeVar("T")
L = TypeVar("L", bound=LedgerPart)
RowWork = Callable[[RowSession], T]


def writes(
    method: Callable[Concatenate[L, RowSession, ExperimentRow, P], T],
) -> Callable[Concatenate[L, P], T]:
    """Make a method a transaction: it is given rows, and the experiment's row, locked.

    It may run more than once, as in `database.write`.
    """
    return _fence(method, database.write)


def writes_relaxed(
    method: Callable[Concatenate[L, RowSession, ExperimentRow, P], T],
) -> Callable[Concatenate[L, P], T]:
    """Do the same without waiting for the disk: see `database.write_relaxed`.

    What is written so may be lost if the machine loses its power, until the next other write: a
    trial that was opened, and what it reported. Then it is opened anew, or reports the same again
    from what it has committed. That an attempt begins is never lost.
    """
    return _fence(method, database.write_relaxed)


def _fence(
    method: Callable[Concatenate[L, RowSession, ExperimentRow, P], T],
    write: Callable[[str, RowWork[T], float], T],
) -> Callable[Concatenate[L, P], T]:
    @wraps(method)
    def call(self: L, /, *args: P.args, **kwargs: P.kwargs) -> T:
        def work(rows: RowSession) -> T:
            experiment = rows.get_one(ExperimentRow, self.experiment_id, lock=True)
            self.check_generation(experiment.generation)
            leave_out_leap(rows, experiment)
            return method(self, rows, experiment, *args, **kwargs)

        return write(self.url, work, self.patience)

    return call
