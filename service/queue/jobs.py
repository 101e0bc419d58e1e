"""Works on the jobs of the record, each kind by itself: a slow kind delays no other.

Runs in the service's process, in a thread for each kind, while the service leads. Work that may
take memory or crash runs in a child process: a Python module of ours, one at a time, in a folder of
its own.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import ClassVar, Final, TypeVar

from pydantic import BaseModel
from sqlalchemy.exc import SQLAlchemyError

from eigensweep.analyses.messages import NOT_WRITTEN, OUTCOME, ChildOutcome
from eigensweep.common.machine import count_processors
from eigensweep.service.record.errors import NotLeadingError
from eigensweep.service.record.jobs import Jobs
from eigensweep.service.record.sql import database
from eigensweep.service.record.sql.tables import JobKind, JobRow
from eigensweep.service.settings import Mlflow
from eigensweep.service.store_probe import StoreProbe
from eigensweep.store.places.durable_files import StorageError
from eigensweep.workers.tracking import secret_auth

logger = logging.getLogger(__name__)

LONGEST_SECONDS: Final = 2 * 3600.0
"""The longest run of a child in seconds; after that it is killed, and has failed, unless the store
hangs."""
LOG_LINES: Final = 20
"""The last lines of a failed process that become part of the error."""

Outcome = TypeVar("Outcome", bound=ChildOutcome)


class StoppedError(RuntimeError):
    """The child was killed: the service stops, or nobody wants its outcome any more."""


@dataclass
class ChildRunner:
    """Runs one child at a time. The child gets MLflow's secret, and a few processors."""

    module: str
    mlflow: Mlflow | None = None
    store: StoreProbe | None = None
    """Says whether it is the store that takes long, where the child reads there."""
    is_wanted: Callable[[], bool] = lambda: True
    """Whether somebody still waits for the child. It is asked again and again while one runs."""
    _child: subprocess.Popen[bytes] | None = None
    _is_over: bool = False

    def make(self, folder: Path, order: BaseModel, kind: type[Outcome]) -> Outcome:
        """Run a child that writes files into a folder; return the outcome among them.

        Raises:
            NotDoneError: if it cannot be started, could not read the store, or left what cannot be
                read now.
            StoppedError: if it was killed.
        """
        content = b""
        try:
            (folder / OUTCOME).unlink(missing_ok=True)
            problem = self.run(folder, order.model_dump_json())
            with suppress(FileNotFoundError):
                content = (folder / OUTCOME).read_bytes()
        except OSError as error:  # a full or broken disk, or no memory for one process more
            raise NotDoneError(f"{type(error).__name__}: {error}") from error
        try:
            outcome = kind.model_validate_json(content)
        except ValueError:
            return kind(error=problem or "its process ended without writing an outcome")
        if outcome.is_temporary:
            raise NotDoneError(outcome.error)
        return outcome

    def run(self, folder: Path, order: str) -> str | None:
        """Run a child to its end, with `order` as its input; return why it failed, if it did.

        Raises:
            NotDoneError: if the disk does not take its outcome, or the store hangs for too long.
            StoppedError: if it was killed, since the service stops or nobody wants it any more.
            OSError: if it cannot be started.
        """
        secret: dict[str, str] = {}
        if self.mlflow is not None and self.mlflow.token is not None:
            secret = secret_auth.make_variables(self.mlflow.token)
        threads = str(min(4, max(1, count_processors() // 2)))
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "log").open("wb") as log, TemporaryFile(dir=folder) as order_file:
            order_file.write(order.encode())
            order_file.seek(0)
            child = self._child = subprocess.Popen(
                [sys.executable, "-m", self.module, str(folder)],
                stdin=order_file,
                stdout=log,
                stderr=log,
                cwd=folder,
                env={"OMP_NUM_THREADS": threads, **os.environ, **secret},
                start_new_session=True,  # a group of its own, which Ctrl-C does not reach
            )
        if self._is_over:
            child.kill()
        with child:
            try:
                problem = self._wait(child)
            finally:
                child.kill()  # unless it has ended
        if problem is not None:
            return problem
        if self._is_over:
            raise StoppedError
        if child.returncode == 0:
            return None
        if child.returncode == NOT_WRITTEN:
            raise NotDoneError(f"the disk of {folder} takes no outcome: it is full or broken")
        lines = (folder / "log").read_text(errors="replace").splitlines()[-LOG_LINES:]
        return "\n".join([f"its process ended with status {child.returncode}", *lines])

    def _wait(self, child: subprocess.Popen[bytes]) -> str | None:
        """Wait for the end of a child; return why that is to be waited for no longer.

        Raises:
            NotDoneError: if the store hangs for too long.
            StoppedError: if nobody wants it any more.
        """
        end = time.monotonic() + LONGEST_SECONDS
        while True:
            try:
                child.wait(max(0.0, min(LOOK_SECONDS, end - time.monotonic())))
                return None
            except subprocess.TimeoutExpired:
                if time.monotonic() >= end:
                    if self.store and (problem := self.store.find_problem()) is not None:
                        raise NotDoneError(problem) from None
                    return f"it took longer than {LONGEST_SECONDS / 3600:.0f} hours"
                if not self.is_wanted():
                    raise StoppedError from None

    def kill(self) -> None:
        """Kill the running child, and refuse to start others from now on."""
        self._is_over = True
        if self._child is not None:
            with suppress(ProcessLookupError):  # it may end at this moment
                self._child.kill()


LOOK_SECONDS: Final = 2.0
"""Seconds between two looks at the jobs, which drivers and other services may have written, too."""
PAUSE_SECONDS: Final = 10.0
"""Seconds before the next look after a failure of the database or the disk."""


class NotDoneError(RuntimeError):
    """A job could not be done now; the message says why. It is tried again after a pause."""


class NeverError(NotDoneError):
    """A job cannot be done at all; it is given up."""


AROUND: Final = (NotDoneError, OSError, SQLAlchemyError, StorageError)
"""Problems of what is around a job, such as a quota, its disk, or a row that the database refuses:
it is tried again, and the others go on."""


@dataclass
class Handler:
    """Does the jobs of one kind."""

    kind: ClassVar[JobKind]
    module: ClassVar[str] = ""
    """Runs the child process, if the work is done in one."""
    first_pause: ClassVar[float] = PAUSE_SECONDS
    """Seconds before the second try; each further pause is twice as long, up to `longest_pause`."""
    longest_pause: ClassVar[float] = PAUSE_SECONDS
    most_tries: ClassVar[int | None] = None
    """None: it is never given up."""
    fails_by_bugs: ClassVar[bool] = False
    """Whether a bug gives a job up at once."""
    mlflow: Mlflow | None = field(default=None, kw_only=True)
    children: ChildRunner = field(init=False)
    stopping: threading.Event = field(default_factory=threading.Event, init=False)

    def __post_init__(self) -> None:
        self.children = ChildRunner(self.module, self.mlflow)

    def look(self) -> None:
        """Prepare each look at the jobs."""

    def work(self, job: JobRow) -> None:
        """Do a job and record its end. A job that has to wait stays as it is.

        Raises:
            NotDoneError, OSError, SQLAlchemyError, StorageError: if it is to be tried again after a
                pause, or given up. All jobs of the kind wait for a database that is away.
            StoppedError: if the service stops or the job is cancelled meanwhile.
            NotLeadingError: if another service leads by now, which does the job again.
        """
        raise NotImplementedError

    def stop(self) -> None:
        """End the current job soon; the next service goes on with it."""
        self.stopping.set()
        self.children.kill()


@dataclass
class ReadingHandler(Handler):
    """Does jobs whose child reads the store: if it cannot, they are tried again for about a day."""

    longest_pause: ClassVar[float] = 1800.0
    most_tries: ClassVar[int | None] = 48
    fails_by_bugs: ClassVar[bool] = True
    probe: StoreProbe
    """The store; it says where it does not answer."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.children.store = self.probe


@dataclass
class JobRunner:
    """Gives each job to the handler of its kind. `start` does so in threads; tests call `tick`."""

    jobs: Jobs
    handlers: Sequence[Handler]
    clock: Callable[[], float] = time.time
    _threads: list[threading.Thread] = field(default_factory=list)

    def start(self) -> None:
        """Begin to work."""
        for each in self.handlers:
            thread = threading.Thread(target=self._run, args=[each], name=each.kind, daemon=True)
            thread.start()
            self._threads.append(thread)

    def stop(self, timeout: float = 5.0) -> None:
        """Stop, in the middle of a job if need be; the next service goes on with it."""
        for each in self.handlers:
            each.stop()
            self.jobs.wake(each.kind)
        end = time.monotonic() + timeout
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))

    def tick(self, handler: Handler) -> None:
        """Try each job of a kind that is due once."""
        handler.look()
        for job in self.jobs.list_due(handler.kind, self.clock(), handler.longest_pause):
            if handler.stopping.is_set():
                break
            # Those before it may have taken long, and it may be cancelled or asked for anew.
            now = self.jobs.find(handler.kind, job.key)
            if now is not None and now.due_at is not None:
                self._try(handler, now)

    def _try(self, handler: Handler, job: JobRow) -> None:
        handler.children.is_wanted = partial(self.jobs.is_due, job)
        try:
            handler.work(job)
        except StoppedError:
            return
        except AROUND as error:
            if database.is_away(error):
                raise  # it holds up every job
            self._put_off(handler, job, database.explain(error), isinstance(error, NeverError))
        except NotLeadingError:
            raise
        except Exception:  # a bug fails the job that met it, and no other
            self._put_off(handler, job, traceback.format_exc(), handler.fails_by_bugs)

    def _put_off(self, handler: Handler, job: JobRow, error: str, is_final: bool = False) -> None:
        job = self.jobs.find(job.kind, job.key) or job  # a step forward begins its count anew
        most = handler.most_tries
        gives_up = is_final or (most is not None and job.tries + 1 >= most)
        pause = min(handler.first_pause * 2.0 ** min(job.tries, 100), handler.longest_pause)
        self.jobs.put_off(job, error, None if gives_up else self.clock() + pause)
        what = "given up" if gives_up else f"tried again in {pause:.0f} s"
        words = "%s not done, %s experiment=%s key=%s: %s"
        logger.warning(words, job.kind, what, job.experiment_id, job.key, error)

    def _run(self, handler: Handler) -> None:
        # A loop of our own: it has no last try, and `stop` must end its pauses.
        while not handler.stopping.is_set():
            try:
                self.tick(handler)
                pause = LOOK_SECONDS
            except NotLeadingError as error:
                logger.warning("jobs are left to the leader kind=%s: %s", handler.kind, error)
                return
            except (SQLAlchemyError, OSError, StorageError) as error:
                logger.warning("jobs wait kind=%s error=%s: %s", handler.kind, type(error), error)
                pause = PAUSE_SECONDS
            except Exception:  # a bug of one look: the next one may go well
                logger.exception("jobs wait kind=%s", handler.kind)
                pause = PAUSE_SECONDS
            self.jobs.wait(handler.kind, pause)
