"""The zygote of drivers: a process that has loaded what a driver needs, and forks each driver.

To load it takes seconds of a processor and hundreds of megabytes. A forked driver has it after some
milliseconds and shares that memory. `workers/cluster/drivers.py` is the other side.

`python -m eigensweep.workers.driver.process.zygote DESCRIPTOR MODULES...` reads requests from an
open pipe, and tells what became of them. It ends with the process at the other end, even while it
is stopped; its drivers go on. No thread is started here: a fork copies only the thread that forks.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import signal
import sys
import time
from contextlib import suppress
from importlib import import_module
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Final

from eigensweep.common.loading import load_for_good
from eigensweep.common.parents import die_with_starter, end_fork, reap
from eigensweep.workers.deaths import Death, name_crowd
from eigensweep.workers.driver.process.driver_order import Request

logger = logging.getLogger(__name__)

TELL_SECONDS: Final = 1.0
"""It says at least so often that it is alive."""
LONGEST_WORDS: Final = 10_000
"""Letters of a driver's last words: as UTF-8 they fit into a pipe, which is read at the end."""
LATE: Final = (
    "mlflow.tracking.request_auth.registry",
    "mlflow.tracking.request_header.registry",
    "pyarrow.json",
    "pydantic.v1",
)
"""What MLflow and Ray import at a driver's first request: each driver would do that for itself."""
GO: Final = b"g"
"""What a driver waits for before it does anything: its zygote has told of it."""


class Zygote:
    """Forks drivers for the process at the other end of a pipe, and tells how they end."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._drivers: dict[int, tuple[int, int]] = {}
        """The number of each driver's request, and the end of a pipe with its last words; by what
        `pidfd_open` gave for its process, which can be read when that has ended."""
        self._is_stale = False

    def serve(self) -> None:
        """Serve until the other end has gone, or until the code on the disk is another one."""
        told = 0.0
        while not self._is_stale:
            if time.monotonic() >= told + TELL_SECONDS:
                self._pipe.send(("alive",))
                told = time.monotonic()
            for ready in wait([self._pipe, *self._drivers], TELL_SECONDS):
                if isinstance(ready, int):
                    self._bury(ready)
                else:
                    self._fork(self._pipe.recv())

    def _fork(self, request: Request) -> None:
        """Fork a driver, unless other code is on the disk by now: its trials would have that."""
        from eigensweep.protocol.code import has_changed

        if has_changed():
            self._is_stale = True
            return
        ends: list[int] = []
        try:
            ends += os.pipe()
            ends += os.pipe()
            pid = os.fork()
        except OSError as error:  # others may end meanwhile; those that work go on
            for end in ends:
                os.close(end)
            words = name_crowd(f"the machine forks no further process: {error}")
            death = Death(words, "threads" if error.errno == errno.EAGAIN else "memory")
            self._pipe.send(("ended", request.number, 1, death))
            return
        reading, writing, waiting, going = ends
        if pid == 0:
            os.close(reading)
            os.close(going)
            self._become_driver(request, waiting, writing)
        os.close(writing)
        os.close(waiting)
        os.set_blocking(reading, False)
        self._drivers[os.pidfd_open(pid)] = request.number, reading
        self._pipe.send(("forked", request.number, pid))
        os.write(going, GO)  # whoever was not told of it asks for another one
        os.close(going)

    def _become_driver(self, request: Request, waiting: int, words: int) -> None:
        """Drive an experiment in this process, which was forked, and end it."""
        status = 1
        try:
            os.setsid()
            self._pipe.close()
            for end, (_, others) in self._drivers.items():
                os.close(end)
                os.close(others)
            if os.read(waiting, len(GO)) != GO:
                return
            os.close(waiting)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            write_to(request.log)
            from eigensweep.workers.driver.process.drive import drive

            def tell(death: Death | None) -> None:
                told = death and {"words": death.words[-LONGEST_WORDS:], "cause": death.cause}
                text = json.dumps(told, ensure_ascii=False)
                os.write(words, f"{text}\n".encode(errors="replace"))

            tell(death := drive(request.order, tell))
            status = 0 if death is None or death.cause == "superseded" else 1
        except BaseException:
            logger.exception("driver died")
        finally:
            end_fork(status)

    def _bury(self, end: int) -> None:
        """Tell how a driver ended, and forget it."""
        number, reading = self._drivers.pop(end)
        status, death = reap(end), None
        with suppress(BlockingIOError), open(reading, "rb") as words:
            for line in words:  # the last one counts
                death = (told := json.loads(line)) and Death(**told)
        self._pipe.send(("ended", number, status, death))


def write_to(log: str) -> None:
    """Let this process write its output to a file, and read no input."""
    Path(log).parent.mkdir(parents=True, exist_ok=True)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for target in (1, 2):
        os.dup2(output, target)
    os.close(output)


def load(modules: list[str]) -> None:
    """Import what a driver needs, and `modules`."""
    from eigensweep.protocol.code import own_code, own_parts
    from eigensweep.workers.tracking.mlflow_runs import load_client

    with load_for_good():
        own_code()
        own_parts()
        load_client()
        for name in ("eigensweep.workers.driver.process.drive", *LATE, *modules):
            import_module(name)


def main() -> None:
    """Load, and fork drivers until nobody asks any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the service, which ends this
    die_with_starter()
    pipe = Connection(int(sys.argv[1]))
    load(sys.argv[2:])
    with suppress(EOFError, OSError):
        Zygote(pipe).serve()
    os._exit(0)


if __name__ == "__main__":
    main()
