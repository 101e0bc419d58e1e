"""How log lines look, as text or as JSON, and which experiment and trial they are about.

Only programs call `set_up`; everything else logs with the standard library. Importing this loads
neither torch nor Ray.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, Literal, TextIO

LogFormat = Literal["text", "json"]

TEXT: Final = "%(levelname)s %(name)s %(message)s"
_FIELDS: Final = ("%(levelname)s", "%(name)s", "%(message)s", "%(process)d", "%(threadName)s")
_NAMES: Final = {
    "levelname": "level",
    "name": "logger",
    "threadName": "thread",
    "exc_info": "traceback",
}

TALKATIVE: Final = ("aiobotocore", "botocore")
"""Loggers that tell each process where its keys come from."""

Subject = dict[str, str | int]
"""What a line is about: `experiment`, an id, and `trial`, its number in it."""

_subject: ContextVar[Subject | None] = ContextVar("subject", default=None)
_of_process: Subject = {}


def set_up(log_format: LogFormat, level: str | int = logging.INFO, *, anew: bool = False) -> None:
    """Send the log lines of this process to standard error, in one of the two forms.

    A process whose log is set up already keeps it, unless it is made `anew`.
    """
    handler = _StandardError()
    handler.setFormatter(make_formatter(log_format))
    handler.addFilter(add_subject)
    logging.basicConfig(level=level, handlers=[handler], force=anew)
    for name in TALKATIVE:
        logging.getLogger(name).setLevel(logging.WARNING)


class _StandardError(logging.StreamHandler[TextIO]):
    """Writes to what standard error is at that moment: a trial's is kept."""

    @property
    def stream(self) -> TextIO:
        return sys.stderr

    @stream.setter
    def stream(self, _: TextIO) -> None:
        pass


def make_formatter(log_format: LogFormat) -> logging.Formatter:
    """Return what makes text of a record: one line of JSON, or a line for people."""
    if log_format == "text":
        return logging.Formatter(TEXT)
    from pythonjsonlogger.json import JsonFormatter

    return JsonFormatter(
        " ".join(_FIELDS), rename_fields=_NAMES, timestamp="time", json_ensure_ascii=False
    )


def add_subject(record: logging.LogRecord) -> bool:
    """Note in a record which experiment and trial it is about, unless it says so itself."""
    for name, value in {**_of_process, **(_subject.get() or {})}.items():
        if not hasattr(record, name):
            setattr(record, name, value)
    return True


def name_process(experiment: str, trial: int | None = None) -> None:
    """Say what all lines of this process are about from now on, whichever thread writes them."""
    _of_process.clear()
    _of_process.update(_make(experiment, trial))


@contextmanager
def about(experiment: str, trial: int | None = None) -> Iterator[None]:
    """Say what the lines of this thread or task are about meanwhile, not those of threads below."""
    token = _subject.set(_make(experiment, trial))
    try:
        yield
    finally:
        _subject.reset(token)


def _make(experiment: str, trial: int | None) -> Subject:
    return {"experiment": experiment} | ({} if trial is None else {"trial": trial})
