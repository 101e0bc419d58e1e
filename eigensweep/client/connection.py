"""One service over HTTP: requests, answers, and the errors that a request can end in."""

from __future__ import annotations

import json
import os
import platform
import uuid
from collections.abc import Callable, Mapping
from functools import partial
from math import inf
from pathlib import Path
from typing import Any, Final, Self, TypeVar
from urllib.parse import urlsplit

import httpx2
from platformdirs import user_data_path
from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_fixed

from eigensweep.client.spec_file import InputError
from eigensweep.common.variables import expand_home

JsonObject = dict[str, Any]
"""An object of the API, as docs/reference/fields.md and /docs of the service describe it."""

DEFAULT_URL = "http://127.0.0.1:8642"
TOKEN_FILE = "EIGENSWEEP_TOKEN_FILE"
"""The variable with the path of a file that holds a token."""
PAGE_SIZE = 100
PATIENCE_SECONDS = 60.0
"""How long a client that follows an experiment waits for a service that went away."""
CLOCK_SECONDS = 600.0
"""How far a clock may have been set since a service began."""
RETRY_SECONDS = 0.5
"""The pause before a service that is away is asked again."""

UNAVAILABLE: Final = frozenset({429, 502, 503, 504})
"""Statuses by which the service, or a proxy before it, says that it cannot answer now."""

LOST: Final = (
    *(httpx2.ReadError, httpx2.WriteError, httpx2.CloseError, httpx2.ReadTimeout),
    *(httpx2.WriteTimeout, httpx2.RemoteProtocolError, httpx2.DecodingError),
)
"""Errors after which a request may have been carried out."""

FOREIGN: Final = {
    "title": "This is not Eigensweep's API",
    "detail": "what answered there speaks another language; look at the address of the service",
}
"""The problem of an answer that is none of ours."""

T = TypeVar("T")


class ServiceAwayError(ConnectionError):
    """There is no answer at the service's address."""


class RefusedError(Exception):
    """The service answered with a problem; `problem` is its `application/problem+json` body."""

    def __init__(self, status: int, problem: JsonObject) -> None:
        self.status = status
        self.problem = problem
        super().__init__(status, problem)

    @property
    def kind(self) -> str:
        """What it is, for programs: the end of the problem's `type`, such as `quota-exceeded`."""
        return str(self.problem.get("type") or "").rpartition(":")[2]

    @property
    def errors(self) -> list[JsonObject]:
        """One entry for each wrong field: path, message, and what was expected."""
        found = self.problem.get("errors")
        return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []

    def __str__(self) -> str:
        title = self.problem.get("title") or f"HTTP {self.status}"
        if not self.errors:
            return f"{title}: {self.problem.get('detail') or 'the service gave no details'}"
        lines = [f"{title}:"]
        for error in self.errors:
            words, names = str(error.get("message")), error.get("available")
            names = [*map(str, names)] if isinstance(names, list) else []
            if names and not any(name in words for name in names):
                words += f"; there are {', '.join(names)}"
            lines.append(f"  {error['path']}: {words}" if error.get("path") else f"  {words}")
        return "\n".join(lines)


class Connection:
    """A connection to the service at `url`, with its token.

    The default of `url` is EIGENSWEEP_URL, or else the address that the service of this machine
    has written into its home folder. The default of `token` is what the file holds whose path is in
    EIGENSWEEP_TOKEN_FILE, or else EIGENSWEEP_TOKEN. `timeout` is the longest wait for an answer, in
    seconds.

    Raises:
        InputError: if `url` is not an address, or `token` cannot be one, or has no private file.
    """

    _options: Mapping[str, Any]
    """How a client of this address is made."""
    _process: int | None = None
    """Id of the process that opened the connection; None: every process may use it."""
    _end: str = ""
    """Why nothing may be sent to this address."""

    def __init__(
        self, url: str | None = None, token: str | None = None, *, timeout: float = 30.0
    ) -> None:
        url = url or os.environ.get("EIGENSWEEP_URL")
        if not url:
            url, self._end = _find_url()
        token = token or read_token_file() or os.environ.get("EIGENSWEEP_TOKEN", "").strip()
        if token and not (token.isascii() and token.isprintable() and " " not in token):
            raise InputError(
                "a token has letters, digits and signs of ASCII alone, and no space; look at "
                "EIGENSWEEP_TOKEN, or at the file that holds your token"
            )
        self._token, self._timeout = token, timeout
        self._aim(url)

    def _aim(self, url: str) -> None:
        """Connect to a service at an address; what is wrong with that is an InputError."""
        url = url.rstrip("/")
        self.url = url if "://" in url else f"http://{url}"
        if "@" in self.url.partition("://")[2].partition("/")[0]:
            raise InputError(
                "the address of the service has a name or a password in it, which would be sent in "
                "place of the token: leave them out"
            )
        try:
            self._options = {
                "base_url": self.url,
                "headers": {"Authorization": f"Bearer {self._token}"} if self._token else {},
                "timeout": self._timeout,
                "trust_env": not _is_loopback(self.url),
                "verify": not self.url.startswith("http:"),  # to load certificates takes 40 ms
            }
            self._connect()
        except (ValueError, httpx2.InvalidURL) as error:
            raise InputError(f"{self.url} is not the address of a service: {error}") from error
        except ImportError as error:
            raise InputError(f"the proxy that is set cannot be used: {error}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    def _connect(self) -> None:
        self._http, self._process = httpx2.Client(**self._options), os.getpid()

    def get(self, path: str, **query: Any) -> JsonObject:
        """Return the JSON at a path of the API; parameters of the query that are None are left out.

        Raises:
            RefusedError: if the answer is a problem.
            ServiceAwayError: if there is no answer.
        """
        params = {name: value for name, value in query.items() if value is not None}
        return _read_json(self._request("GET", path, params=params))

    def post(
        self,
        path: str,
        body: Mapping[str, object] | None = None,
        headers: dict[str, str] | None = None,
    ) -> JsonObject:
        """Post a JSON body, or none, and return the JSON of the answer.

        Raises:
            InputError: if the body holds what JSON has not.
            RefusedError: if the answer is a problem.
            ServiceAwayError: if there is no answer.
        """
        try:
            content = None if body is None else json.dumps(body, default=_make_plain)
        except TypeError as error:
            raise InputError(f"this cannot be sent as JSON: {error}") from error
        headers = {"Content-Type": "application/json", **(headers or {})}
        return _read_json(self._request("POST", path, content=content, headers=headers))

    def post_once(self, path: str, body: Mapping[str, object]) -> JsonObject:
        """Post what must not be posted twice, again if its answer is lost; else as `post`."""
        key = {"Idempotency-Key": uuid.uuid4().hex}
        try:
            return self.post(path, body, key)
        except ServiceAwayError as error:
            if not isinstance(error.__cause__, LOST):
                raise  # it was not sent
        except RefusedError as error:
            if error.status not in (502, 504):
                raise
        return outlast_restart(partial(self.post, path, body, key))

    def items(self, path: str, limit: int | None = None, **query: Any) -> list[Any]:
        """Return the items of a listing, over as many pages as `limit` needs (None: all)."""
        items: list[Any] = []
        while True:
            size = PAGE_SIZE if limit is None else min(PAGE_SIZE, limit - len(items))
            page = self.get(path, limit=size, **query)
            if not isinstance(page.get("items"), list):
                raise RefusedError(200, FOREIGN)
            items += page["items"]
            query["cursor"] = page.get("next_cursor")
            if query["cursor"] is None or (limit is not None and len(items) >= limit):
                return items

    def download(self, path: str) -> bytes:
        """Return the bytes at a path of the API.

        Raises:
            RefusedError: if the answer is a problem, or a page of something else that answers.
            ServiceAwayError: if there is no answer.
        """
        found = self._request("GET", path)
        is_page = found.headers.get("content-type", "").startswith("text/html")
        if is_page and not path.endswith(".html"):
            raise RefusedError(found.status_code, FOREIGN)
        return found.read()

    def open(self, path: str, headers: dict[str, str]) -> httpx2.Response:
        """Return an answer whose body is still to come; the caller closes it.

        Raises:
            RefusedError: if the answer is a problem.
            ServiceAwayError: if there is no answer.
        """
        return self._request("GET", path, stream=True, headers=headers)

    def _request(
        self, method: str, path: str, *, stream: bool = False, **options: Any
    ) -> httpx2.Response:
        if self._end:  # look whether one has begun since
            url, self._end = _find_url()
            if self._end:
                raise ServiceAwayError(self._end)
            self._aim(url)
        if self._process not in (None, os.getpid()):
            self._connect()  # after a fork: on the old one come the answers to the parent
        request = self._http.build_request(method, path, **options)
        try:
            response = self._http.send(request, stream=stream)
            if not response.is_success:
                response.read()
                response.close()
        except httpx2.RequestError as error:  # it was not sent, or its answer cannot be read
            reason = str(error) or type(error).__name__
            raise ServiceAwayError(
                f"no answer from the service at {self.url} ({reason})"
            ) from error
        if response.has_redirect_location:
            there = response.headers["location"]
            detail = f"it sends on to {there}: give the service's own address, or sign in there"
            raise RefusedError(response.status_code, {"title": "not here", "detail": detail})
        if not response.is_success:
            raise RefusedError(response.status_code, _read_json(response))
        return response


def outlast_restart(ask: Callable[[], T], most: float = inf) -> T:
    """Return `ask()`, called again while the service is away, for PATIENCE_SECONDS or `most`.

    Raises:
        ServiceAwayError: if the service is away for longer.
        RefusedError: if it, or a proxy before it, says for longer that it cannot answer now.
    """
    retrying = Retrying(
        retry=retry_if_exception(may_pass),
        wait=wait_fixed(RETRY_SECONDS),
        stop=stop_after_delay(min(PATIENCE_SECONDS, most)),
        reraise=True,
    )
    return retrying(ask)


def may_pass(error: BaseException) -> bool:
    """Return whether a service that failed so may answer later."""
    if isinstance(error, RefusedError):
        return error.status in UNAVAILABLE
    return isinstance(error, ServiceAwayError)


def read_token_file() -> str | None:
    """Return the token in the file of EIGENSWEEP_TOKEN_FILE, None if none is named.

    Raises:
        InputError: if the file cannot be read or holds no token, or if others can read it, too.
    """
    name = os.environ.get(TOKEN_FILE)
    if not name:
        return None
    path = _expand(name)
    try:
        with path.open(encoding="ascii") as file:
            is_open_to_others = bool(os.fstat(file.fileno()).st_mode & 0o077)
            words = file.read(10_000).split()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"the token file {path} cannot be read: {error}") from error
    if is_open_to_others:
        raise InputError(f"other users can read the token file {path}: `chmod 600 {path}`")
    if len(words) != 1:
        raise InputError(f"the token file {path} should hold one token, and nothing else")
    return words[0]


def _is_loopback(url: str) -> bool:
    """Return whether a URL leads to this machine; a proxy would lead away from it."""
    return urlsplit(url).hostname in {"127.0.0.1", "localhost", "::1"}


def _make_plain(value: Any) -> Any:
    """Return numbers and arrays of NumPy, and ranges, as JSON has them."""
    if isinstance(value, range):
        return list(value)
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{value!r:.100} is of the type {type(value).__name__}, which JSON has not")


def _read_json(response: httpx2.Response) -> JsonObject:
    try:
        content: Any = response.json()
    except ValueError:
        problem = {"title": f"HTTP {response.status_code}", "detail": "the answer is not JSON"}
        raise RefusedError(response.status_code, problem) from None
    if not isinstance(content, dict):
        raise RefusedError(response.status_code, FOREIGN)
    return content


def _find_url() -> tuple[str, str]:
    """Return the address that the service of this home folder has written there, or the default.

    And why nothing may be sent there: that service has ended or is starting, the home has none,
    and another one may be at the default. Empty: all is well.
    """
    home, problem = find_home(), ""
    url = read_own_url(home)
    if url is None and (home / "service.json").exists():
        problem = (
            f"the service of {home} {'is starting: wait for it' if _is_held(home) else 'has ended'}"
        )
    elif url is None and _name_home():
        problem = f"no service has begun in {home}, which EIGENSWEEP_HOME names"
    return url or DEFAULT_URL, problem


def find_home() -> Path:
    """Return the home folder of a service that is started here with these variables."""
    return _expand(_name_home() or user_data_path("eigensweep"))


def _name_home() -> str:
    return os.environ.get("EIGENSWEEP_HOME", "").strip()


def _expand(path: str | Path) -> Path:
    try:
        return expand_home(path)
    except ValueError as error:
        raise InputError(str(error)) from error


def read_own_url(home: Path) -> str | None:
    """Return the address that the service of a home folder has written there.

    None if there is none, or its process has ended: then anybody may listen there, and is sent no
    token.
    """
    path = home / "service.json"
    try:
        told = json.loads(path.read_text())
        is_here = told.get("host", platform.node()) == platform.node()
        after_boot = float(told.get("after_boot", -inf))  # earlier versions did not write it
        if is_here and not _lives(int(told["pid"]), path.stat().st_mtime, after_boot):
            return None
        return str(told["url"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _is_held(home: Path) -> bool:
    """Return whether a process lives that has written into the lock file of a home folder."""
    path = home / "service.lock"
    try:
        pid = int(path.read_text().removeprefix("process ").partition(",")[0])
        return _lives(pid, path.stat().st_mtime, -inf)
    except (OSError, ValueError):
        return False


def _lives(pid: int, written_at: float, after_boot: float) -> bool:
    """Return whether a process of this user lives that may have written a file at that time.

    It has if it began so many seconds after the machine did, also where the clock was set since.
    """
    import psutil  # type: ignore[import-untyped]

    try:
        process = psutil.Process(pid)
        began = process.create_time()
        is_same = abs(began - psutil.boot_time() - after_boot) < 1.0
        is_ours = process.uids().real == os.getuid()
        return is_ours and (is_same or began - CLOCK_SECONDS <= written_at)
    except psutil.Error:
        return False
