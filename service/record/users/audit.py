"""The audit log: who did what, when and from where, and which requests were refused.

Runs in the service's process, and in a terminal of the database's owner. Entries are added, and the
oldest are removed when there are too many. Refusals are counted apart, so that many refusals cannot
push out what others did.
"""

from __future__ import annotations

import itertools
import time
from datetime import datetime
from functools import partial
from typing import Final

from pydantic import AliasChoices, BaseModel, ConfigDict, Field
from sqlalchemy import delete, select

from eigensweep.service.record.sql import database
from eigensweep.service.record.sql.rows import RowSession
from eigensweep.service.record.sql.tables import AuditEntry

PRUNED_EVERY: Final = 100
"""Entries that are added between two removals of the oldest ones."""
LONGEST: Final = 500
"""The most characters of a method and path, which anyone may send."""
LONGEST_DETAIL: Final = 20_000
"""The most characters of a detail: a thousand experiments are named."""


class AuditNow(BaseModel):
    """An entry of the audit log."""

    model_config = ConfigDict(frozen=True, from_attributes=True)

    id: int
    at: datetime
    user: str | None = Field(
        validation_alias=AliasChoices("user", "user_name"), description="null: nobody who is known"
    )
    token: str | None = Field(description="Id of the token, EIGENSWEEP_TOKEN, or `proxy`")
    address: str | None = Field(description="null: at the database, by command")
    action: str = Field(description="Method and path of a request, or the words of a command")
    refused: bool
    detail: str


class Audit:
    """The audit log in the record at a database URL; it keeps `most` deeds and `most` refusals."""

    def __init__(self, url: str, most: int) -> None:
        self.url = url
        self._most = most
        self._added = itertools.count(1)

    def add(
        self,
        action: str,
        *,
        user: str | None,
        token: str | None,
        address: str | None,
        refused: bool,
        detail: str = "",
        within: RowSession | None = None,
    ) -> None:
        """Add an entry: in the transaction `within`, else in one of its own."""
        make = partial(
            AuditEntry,
            at=time.time(),
            user_name=user,
            token=token,
            address=None if address is None else address[:64],
            action=_plain(action[:LONGEST]),
            refused=refused,
            detail=_plain(detail[:LONGEST_DETAIL]),
        )
        if within is None:
            database.write(self.url, lambda rows: self._add(rows, make()))
        else:
            self._add(within, make())

    def _add(self, rows: RowSession, entry: AuditEntry) -> None:
        if next(self._added) % PRUNED_EVERY == 0:
            _make_room(rows, entry.refused, self._most)
        rows.add(entry)

    def list(
        self,
        *,
        user: str | None = None,
        refused: bool | None = None,
        limit: int = 50,
        before: int | None = None,
    ) -> list[AuditNow]:
        """Return entries, the newest first; `before` is the id of the last one of a page."""
        query = select(AuditEntry).order_by(AuditEntry.id.desc()).limit(limit)
        if user is not None:
            query = query.where(AuditEntry.user_name == user)
        if refused is not None:
            query = query.where(AuditEntry.refused.is_(refused))
        if before is not None:
            query = query.where(AuditEntry.id < before)
        read = AuditNow.model_validate
        return database.read(self.url, lambda session: list(map(read, session.scalars(query))))


def _make_room(rows: RowSession, refused: bool, most: int) -> None:
    """Remove the oldest entries, so that there are `most` with one more."""
    same = AuditEntry.refused.is_(refused)
    newest = select(AuditEntry.id).where(same).order_by(AuditEntry.id.desc())
    if (id := rows.execute(newest.offset(most - 1).limit(1)).scalar()) is not None:
        rows.execute(delete(AuditEntry).where(same, AuditEntry.id <= id))


def _plain(text: str) -> str:
    """Return a text without control characters, which would forge lines of a terminal's list."""
    return "".join(sign if sign.isprintable() else "�" for sign in text)
