"""Turns a request into its caller: by token, by a browser's session, or by a proxy's headers.

Runs in the service's process. This is the one place that decides who somebody is.
"""

from __future__ import annotations

import hmac
from ipaddress import ip_address
from typing import Final

from starlette.datastructures import Headers
from starlette.requests import HTTPConnection

from eigensweep.service.api.callers.callers import Caller
from eigensweep.service.api.callers.sessions import Sessions, read_cookie
from eigensweep.service.record.errors import NotAllowedError
from eigensweep.service.record.sql.tables import OPERATOR
from eigensweep.service.record.users.accounts import (
    SCOPES,
    Accounts,
    Grant,
    check_name,
    digest_token,
)
from eigensweep.service.settings import Settings, is_loopback

DEPLOYMENT: Final = "EIGENSWEEP_TOKEN"
"""What lists call the token of the environment."""
PROXY: Final = "proxy"
"""What the audit log has in the place of a token for users of a proxy."""
PROXY_SECRET: Final = "X-Eigensweep-Proxy-Secret"
"""The header in which a proxy shows that it is the one of the settings."""
HOW: Final = (
    "send the header 'Authorization: Bearer TOKEN' with the value of EIGENSWEEP_TOKEN or a token "
    "of your own, which `eigensweep token create` makes"
)


class UnknownCallerError(Exception):
    """The request is of nobody who is known; the message says what is wrong."""


class Identity:
    """Knows who sends a request."""

    def __init__(self, settings: Settings, accounts: Accounts, sessions: Sessions) -> None:
        self._settings = settings
        self._accounts = accounts
        self._sessions = sessions
        self._token = settings.token.get_secret_value() if settings.token else None
        secret = settings.proxy_secret
        self._proxy_secret = secret.get_secret_value() if secret else None
        needs_nothing = self._token is None and self._proxy_secret is None
        self.may_be_open = needs_nothing and is_loopback(settings.host)
        """Whether everybody on this machine may all, unless a token was made since it was asked."""

    def is_open(self) -> bool:
        """Return whether everybody on this machine may all, because no token was ever made.

        Raises:
            SQLAlchemyError: if the database does not answer.
        """
        if self.may_be_open and self._accounts.has_tokens():
            self.may_be_open = False
        return self.may_be_open

    def knows(self, request: HTTPConnection) -> bool:
        """Return whether who sent a request is known, also a while after it was sent.

        Raises:
            SQLAlchemyError: if the database does not answer.
        """
        try:
            self.identify(request)
        except UnknownCallerError:
            return False
        return True

    def identify(self, request: HTTPConnection) -> Caller:
        """Return the caller of a request.

        Raises:
            UnknownCallerError: if it is nobody who is known.
            SQLAlchemyError: if the database does not answer.
        """
        if self.is_open():
            return self.name_operator(request)
        headers, address = request.headers, self.find_address(request)
        if self._is_from_proxy(headers, request.client and request.client.host):
            return self._read_proxy(headers, address)
        if (given := headers.get("authorization")) is not None:
            kind, _, token = given.partition(" ")
            if kind.lower() != "bearer":
                raise UnknownCallerError(f"this is no token; {HOW}")
            return self._accept(self.check(token), address)
        return self._accept(self._find_session(headers.get("cookie", "")), address)

    def name_operator(self, request: HTTPConnection) -> Caller:
        """Return the caller of a request to a service that is open."""
        return Caller(OPERATOR, "admin", None, self.find_address(request))

    def check(self, token: str) -> Grant:
        """Return what a token gives.

        Raises:
            UnknownCallerError: if it is not known, or is not usable any more.
        """
        grant = self._find_deployment()
        if grant is None or not hmac.compare_digest(grant.digest, digest_token(token)):
            grant = self._accounts.find_token(token)
        if grant is None:
            raise UnknownCallerError("this token is not known; look for a part that is missing")
        return _require_usable(grant)

    def find_address(self, request: HTTPConnection) -> str | None:
        """Return where a request comes from; a proxy of the settings is believed about that."""
        peer = request.client and request.client.host
        if not self._is_proxy(peer):
            return peer
        told = ",".join(request.headers.getlist("x-forwarded-for"))  # a proxy may add its own line
        for each in reversed(told.split(",")):
            found = _drop_port(each.strip())
            if not _is_address(found):
                return peer  # what stands before it may be of the client's own making
            if not self._is_proxy(found):
                return found
        return peer

    def _is_proxy(self, address: str | None) -> bool:
        if address is None or not _is_address(address):
            return False
        return any(ip_address(address) in network for network in self._settings.proxy_addresses)

    def _is_from_proxy(self, headers: Headers, peer: str | None) -> bool:
        """Return whether a request names a user and is sent by the proxy, which knows its secret.

        From anywhere else such headers have no meaning.
        """
        if self._proxy_secret is None or not self._is_proxy(peer):
            return False
        given = headers.get(PROXY_SECRET, "").encode()
        knows = hmac.compare_digest(given, self._proxy_secret.encode())
        return knows and self._settings.proxy_user_header in headers

    def _read_proxy(self, headers: Headers, address: str | None) -> Caller:
        """Return the user that a proxy names, with the largest scope of the user's groups."""
        names = headers.getlist(self._settings.proxy_user_header)
        groups = headers.getlist(self._settings.proxy_groups_header)
        if len(names) != 1 or len(groups) > 1:
            raise UnknownCallerError(
                "the proxy sent the headers of user or groups more than once: it must remove what "
                "a browser sends under these names"
            )
        user = names[0].strip()
        try:
            check_name(user)
        except NotAllowedError as error:
            raise UnknownCallerError(
                f"the proxy names a user that cannot be one: {error}"
            ) from None
        if self._accounts.is_removed(user):
            raise UnknownCallerError(f"user '{user}' was removed")
        mine = {"*", *(each.strip() for each in "".join(groups).split(","))}
        scopes = {scope for group, scope in self._settings.proxy_scopes.items() if group in mine}
        if not scopes:
            raise UnknownCallerError(
                f"user '{user}' is in no group of EIGENSWEEP_PROXY_SCOPES; ask an admin"
            )
        return Caller(user, max(scopes, key=SCOPES.index), PROXY, address)

    def end_session(self, headers: Headers) -> None:
        """End the session of a request's cookie, if there is one.

        Raises:
            StorageError: if the file of sessions cannot be written.
        """
        found = read_cookie(headers.get("cookie", ""))
        if found is not None and (grant := self._find_grant(found[1])) is not None:
            self._sessions.end(found[0], grant.digest)

    def _find_session(self, cookies: str) -> Grant:
        found = read_cookie(cookies)
        if found is None:
            raise UnknownCallerError(f"this service needs a token: {HOW}")
        cookie, token_id = found
        grant = self._find_grant(token_id)
        if grant is None or not self._sessions.has(cookie, grant.digest):
            raise UnknownCallerError("this session is over: sign in again")
        return _require_usable(grant)

    def _find_grant(self, token_id: str) -> Grant | None:
        if token_id == DEPLOYMENT:
            return self._find_deployment()
        return self._accounts.find_token_by_id(token_id)

    def _find_deployment(self) -> Grant | None:
        if self._token is None:
            return None
        return Grant(DEPLOYMENT, OPERATOR, "admin", digest_token(self._token), None)

    @staticmethod
    def _accept(grant: Grant, address: str | None) -> Caller:
        return Caller(grant.user, grant.scope, grant.token_id, address)


def _require_usable(grant: Grant) -> Grant:
    if grant.problem is not None:
        raise UnknownCallerError(grant.problem)
    return grant


def _drop_port(text: str) -> str:
    """Return an address as some proxies write it, without its port.

    >>> _drop_port("203.0.113.9:4711"), _drop_port("[2001:db8::1]:80"), _drop_port("2001:db8::1")
    ('203.0.113.9', '2001:db8::1', '2001:db8::1')
    """
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0] if text.count(":") == 1 else text


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True
