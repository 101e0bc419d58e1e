"""Users, their quotas, and their tokens, of which only digests are kept.

Runs in the service's process, and in a terminal of the database's owner.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import time
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal, get_args

from pydantic import ConfigDict, Field
from sqlalchemy import ColumnElement, select, update
from sqlalchemy.orm import Session

from eigensweep.common.made_of import MadeOf
from eigensweep.common.plain_numbers import PlainNumbers
from eigensweep.service.record.errors import (
    ConflictError,
    NotAllowedError,
    NotFoundError,
)
from eigensweep.service.record.sql import database
from eigensweep.service.record.sql.rows import RowSession, read_first
from eigensweep.service.record.sql.tables import OPERATOR, Token, User

ScopeName = Literal["read", "submit", "admin"]
"""`read` sees everything; `submit` also posts, and cancels its own experiments; `admin` may do
all."""
SCOPES: Final[tuple[ScopeName, ...]] = get_args(ScopeName)
"""Each scope includes those before it."""
NAME: Final = r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,63}"
"""A user's name; an e-mail address is one."""
FORM: Final = "have 1 to 64 letters, digits and ._@+- of ASCII, and begin with a letter or digit"
PREFIX: Final = "esw_"
"""The prefix of every token, by which secret scanners find a leaked one."""


class Quotas(PlainNumbers):
    """The most that a user may have; null: any number."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_experiments: int | None = Field(
        None,
        ge=0,
        le=2**31 - 1,
        description="Experiments that are not over, paused ones among them",
    )
    max_trials: int | None = Field(None, ge=0, le=2**53, description="Trials of an experiment")
    max_spec_bytes: int | None = Field(
        None, ge=0, le=2**31 - 1, description="Bytes of an experiment's spec, as JSON"
    )


class UserNow(MadeOf):
    """A user."""

    model_config = ConfigDict(frozen=True)

    name: str
    created_at: datetime
    removed_at: datetime | None = Field(description="Since when the user gets nothing any more")
    quotas: Quotas


class TokenNow(MadeOf):
    """A token, without its secret."""

    model_config = ConfigDict(frozen=True)

    id: str = Field(description="Names the token in lists and in the audit log")
    user: str
    scope: ScopeName
    created_at: datetime
    expires_at: datetime | None = Field(description="null: never")
    revoked_at: datetime | None
    usable: bool = Field(description="Whether it is neither expired nor revoked")


class NewToken(TokenNow):
    """A token that was just made."""

    token: str = Field(description="The secret. It is told once and cannot be told again")


@dataclass(frozen=True)
class Grant:
    """What a token allows its holder."""

    token_id: str
    user: str
    scope: ScopeName
    digest: str
    problem: str | None
    """Why it allows nothing; None: it is usable."""


def includes(scope: ScopeName, needed: ScopeName) -> bool:
    """Return whether a scope includes another.

    >>> includes("admin", "read"), includes("read", "submit")
    (True, False)
    """
    return SCOPES.index(scope) >= SCOPES.index(needed)


def digest_token(token: str) -> str:
    """Return the digest under which a token is kept."""
    return hashlib.sha256(token.encode()).hexdigest()


class Accounts(database.AtDatabase):
    """Users and tokens in the record at a database URL."""

    @database.transaction
    def create_user(self, rows: RowSession, name: str, quotas: Quotas | None = None) -> UserNow:
        """Add a user, or restore a removed one.

        Revoked tokens stay revoked, and quotas that `quotas` does not name stay as they were.

        Raises:
            ConflictError: if there is a user of this name.
            NotAllowedError: if nobody can have this name.
        """
        user = rows.get(User, name)
        if user is not None and user.removed_at is None:
            raise ConflictError(f"there is a user '{name}' already")
        user = _make_user(rows, name) if user is None else user
        user.removed_at = None
        return _change_quotas(user, quotas or Quotas())

    @database.reading
    def list_users(self, session: Session) -> list[UserNow]:
        """Return all users by name, those who were removed among them."""
        return [_describe_user(each) for each in session.scalars(select(User).order_by(User.name))]

    def read_quotas(self, name: str) -> Quotas:
        """Return the quotas of a user; an unknown user has none."""
        return database.read(self.url, lambda s: read_quotas(s.get(User, name)))

    @database.transaction
    def change_quotas(self, rows: RowSession, name: str, changes: Quotas) -> UserNow:
        """Set the quotas that `changes` names, and leave the others.

        Raises:
            NotFoundError: if there is no such user.
        """
        return _change_quotas(_find_user(rows, name), changes)

    @database.transaction
    def remove_user(self, rows: RowSession, name: str) -> UserNow:
        """Refuse a user from now on, by token and by proxy; the user's experiments stay.

        Raises:
            NotFoundError: if there is no such user.
        """
        user, now = _find_user(rows, name), time.time()
        user.removed_at = user.removed_at or now
        usable = Token.user_name == name, Token.revoked_at.is_(None)
        rows.execute(update(Token).where(*usable).values(revoked_at=now))
        return _describe_user(user)

    def is_removed(self, name: str) -> bool:
        """Return whether a user was removed; False for an unknown one."""
        removed = select(User.removed_at).where(User.name == name)
        return database.read(self.url, lambda s: s.scalars(removed).first()) is not None

    @database.transaction
    def create_token(
        self, rows: RowSession, user_name: str, scope: ScopeName, seconds: float | None
    ) -> NewToken:
        """Make a token that holds for so many seconds (None: for ever), and its user if need be.

        Raises:
            ConflictError: if the user was removed.
            NotAllowedError: if nobody can have this name.
        """
        secret, now = PREFIX + secrets.token_urlsafe(32), time.time()
        token = Token(
            id=secrets.token_hex(4),
            user_name=user_name,
            scope=scope,
            digest=digest_token(secret),
            created_at=now,
            expires_at=None if seconds is None else now + seconds,
        )
        user = rows.get(User, user_name, lock=True) or _make_user(rows, user_name)
        if user.removed_at is not None:
            raise ConflictError(
                f"user '{user_name}' was removed; "
                f"`eigensweep user create {user_name}` brings the user back"
            )
        rows.add(token)
        return NewToken(**dict(_describe_token(token)), token=secret)

    def list_tokens(self, user_name: str | None = None) -> list[TokenNow]:
        """Return the tokens of all users or of one, the newest first."""
        query = select(Token).order_by(Token.created_at.desc(), Token.id)
        if user_name is not None:
            query = query.where(Token.user_name == user_name)
        return database.read(self.url, lambda s: [_describe_token(t) for t in s.scalars(query)])

    @database.transaction
    def revoke_token(self, rows: RowSession, id: str) -> TokenNow:
        """Revoke a token. A second call changes nothing.

        Raises:
            NotFoundError: if there is none of this id.
        """
        token = rows.get(Token, id)
        if token is None:
            raise NotFoundError(f"there is no token '{id}'")
        token.revoked_at = token.revoked_at or time.time()
        return _describe_token(token)

    def has_tokens(self) -> bool:
        """Return whether a token was ever made.

        One that is revoked or expired counts, too: a service does not open again because its last
        token has expired.
        """
        return database.look(self.url, lambda c: read_first(c, _ANY_TOKEN, {})) is not None

    def has_usable_token(self) -> bool:
        """Return whether any token is usable."""
        return any(token.usable for token in self.list_tokens())

    def find_token(self, secret: str) -> Grant | None:
        """Return what a token allows, None if there is no such token."""
        return self._find_grant(Token.digest == digest_token(secret))

    def find_token_by_id(self, id: str) -> Grant | None:
        """Return what the token with an id allows, None if there is none."""
        return self._find_grant(Token.id == id)

    @database.reading
    def _find_grant(self, session: Session, condition: ColumnElement[bool]) -> Grant | None:
        token = session.scalars(select(Token).where(condition)).first()
        if token is None:
            return None
        scope = _describe_token(token).scope
        return Grant(token.id, token.user_name, scope, token.digest, _find_problem(token))


_ANY_TOKEN: Final = select(Token.id).limit(1)
"""The statement is made once: without a token, every request executes it."""


def check_name(name: str) -> None:
    """Refuse a name that no user can have.

    Raises:
        NotAllowedError: says what names look like.
    """
    if not re.fullmatch(NAME, name):
        raise NotAllowedError(f"'{name[:64]}' is no name for a user: it should {FORM}")
    if name == OPERATOR:
        raise NotAllowedError(
            f"'{OPERATOR}' is who runs the service, with EIGENSWEEP_TOKEN; choose another name"
        )


def _make_user(rows: RowSession, name: str) -> User:
    check_name(name)
    user = User(name=name, created_at=time.time())
    rows.add(user)
    return user


def _find_user(rows: RowSession, name: str) -> User:
    user = rows.get(User, name, lock=True)
    if user is None:
        raise NotFoundError(f"there is no user '{name[:64]}'")
    return user


def _change_quotas(user: User, changes: Quotas) -> UserNow:
    """Set the quotas that `changes` names, and leave the others."""
    for name in changes.model_fields_set:
        setattr(user, name, getattr(changes, name))
    return _describe_user(user)


def _find_problem(token: Token) -> str | None:
    if token.revoked_at is not None:
        return "this token was revoked"
    if token.expires_at is not None and token.expires_at <= time.time():
        return "this token has expired"
    return None


def _describe_user(user: User) -> UserNow:
    return UserNow.made_of(user, quotas=read_quotas(user))


def read_quotas(user: User | None) -> Quotas:
    """Return a user's quotas; an unknown user has none."""
    return Quotas(**{name: getattr(user, name, None) for name in Quotas.model_fields})


def _describe_token(token: Token) -> TokenNow:
    usable = _find_problem(token) is None
    return TokenNow.made_of(token, user=token.user_name, usable=usable)
