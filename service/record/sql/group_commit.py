"""Concurrent writes of several threads share one transaction. Runs in the service's process.

With SQLite one thread writes at a time, and each commit waits for the disk. The next commit takes
along all writes that wait for it: a hundred posts at once are a few commits.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeVar

from eigensweep.service.record.sql import database
from eigensweep.service.record.sql.rows import RowSession

T = TypeVar("T")


@dataclass(frozen=True)
class _Write:
    """What one thread wants to have written."""

    work: Callable[[RowSession], Any]
    answer: Future[Any] = field(default_factory=Future)


class GroupCommit:
    """Writes to the database at a URL; concurrent ones share one transaction."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._turn = threading.Lock()
        self._waiting: deque[_Write] = deque()

    def write(self, work: Callable[[RowSession], T]) -> T:
        """Return `work(rows)` once it is committed; the same as `database.write`.

        If one of the writes in a transaction is refused, the transaction is rolled back, and each
        write gets a transaction of its own. So `work` may run more than once, in another thread.
        """
        if not database.takes_turns(self._url):
            return database.write(self._url, work)
        mine = _Write(work)
        self._waiting.append(mine)
        with self._turn:
            if not mine.answer.done():
                self._commit([self._waiting.popleft() for _ in range(len(self._waiting))])
        return mine.answer.result()

    def _commit(self, taken: Sequence[_Write]) -> None:
        def write_all(rows: RowSession) -> list[Any]:
            answers = []
            for each in taken:  # each sees what those before it have written
                part = rows.make_part()
                answers.append(each.work(part))
                part.flush()
            return answers

        try:
            answers = database.write(self._url, write_all)
        except BaseException as error:
            is_refusal = isinstance(error, Exception) and not database.is_away(error)
            for each in taken:
                if is_refusal and len(taken) > 1:
                    self._commit([each])
                else:
                    each.answer.set_exception(error)
        else:
            for each, answer in zip(taken, answers, strict=True):
                each.answer.set_result(answer)
