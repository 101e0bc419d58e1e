"""Calls that may hang for ever, made in threads for which nobody has to wait."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from contextvars import copy_context
from threading import Thread
from typing import TypeVar

T = TypeVar("T")


def call_aside(act: Callable[[], T], name: str) -> Future[T]:
    """Call `act` in a thread of this name; return what will hold its answer, or its error.

    It cannot be cancelled. The end of the process does not wait for it, as it would for a thread of
    an executor of the standard library.
    """
    answer: Future[T] = Future()
    answer.set_running_or_notify_cancel()
    context = copy_context()

    def call() -> None:
        try:
            answer.set_result(context.run(act))
        except BaseException as error:  # whoever waits is told
            answer.set_exception(error)

    Thread(target=call, name=name, daemon=True).start()
    return answer
