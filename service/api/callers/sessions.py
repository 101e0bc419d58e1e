"""Sessions of browsers, which cannot send a token: a cookie in its place.

Runs in the service's process. A cookie names the token that was given, and is known here by a
digest that is made with the token's own: it ends with the token, and who reads the file of sessions
or the database cannot make one.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from starlette.requests import cookie_parser

from eigensweep.store.places.durable_files import write_whole

COOKIE: Final = "eigensweep_session"
LONGEST: Final = 30 * 86400.0
"""Seconds after which a session ends by itself."""
MOST: Final = 1000
"""Sessions that are kept; of more, the oldest ones end."""


class Sessions:
    """The sessions of browsers. A file keeps them, so that they outlive the service's process.

    It holds when each began, under a digest of its cookie. Threads may share it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._began: dict[str, float] = {}
        self._turn = threading.Lock()
        """Held while the file is written: an older content must not come last."""
        with suppress(OSError, ValueError, TypeError, AttributeError):
            content = json.loads(path.read_bytes())
            self._began = {str(digest): float(at) for digest, at in content.items()}

    def has(self, cookie: str, token_digest: str) -> bool:
        """Return whether a cookie is that of a session of this token that has not ended."""
        began = self._began.get(_digest(cookie, token_digest))
        return began is not None and time.time() - began < LONGEST

    def begin(self, token_id: str, token_digest: str) -> str:
        """Begin a session of a token and return its cookie.

        Raises:
            StorageError: if it cannot be written.
        """
        cookie, now = f"{token_id}.{secrets.token_urlsafe(32)}", time.time()
        with self._turn:
            alive = {digest: at for digest, at in self._began.items() if now - at < LONGEST}
            self._keep(dict([*alive.items(), (_digest(cookie, token_digest), now)][-MOST:]))
        return cookie

    def end(self, cookie: str, token_digest: str) -> None:
        """End a session; its cookie opens nothing any more.

        Raises:
            StorageError: if it cannot be written; the session has ended until the next start.
        """
        ended = _digest(cookie, token_digest)
        with self._turn:
            if ended in self._began:
                self._keep({digest: at for digest, at in self._began.items() if digest != ended})

    def _keep(self, began: dict[str, float]) -> None:
        self._began = began
        write_whole(self._path, json.dumps(began).encode())


def _digest(cookie: str, token_digest: str) -> str:
    words = f"{COOKIE} {cookie}".encode()
    return hmac.new(token_digest.encode(), words, hashlib.sha256).hexdigest()


def read_cookie(cookies: str) -> tuple[str, str] | None:
    """Return the session's cookie in a Cookie header, and the id of its token; None: none."""
    found = cookie_parser(cookies).get(COOKIE)  # whatever other programs of this host have set
    return None if found is None else (found, found.partition(".")[0])
