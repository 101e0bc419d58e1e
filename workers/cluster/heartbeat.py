"""Whether Ray's processes answer, and not only the kernels of their machines. No Ray here.

A kernel accepts connections for a process that stands still. So a look says hello as each client of
Ray's does, and waits for the answer to that, which needs no token.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

ANSWER_SECONDS: Final = 2.0
"""How long a process may take to answer; one that works needs a millisecond."""
LOOKS: Final = 32
"""Processes that are looked at at once."""
HELLO: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
"""What begins a connection of gRPC: preface and empty settings. Source: RFC 9113, section 3.4."""

Place = tuple[str, int]
"""Host and port."""


def answers(place: Place) -> bool:
    """Return whether the process that listens there says anything to a hello.

    One that wants encryption hangs up, which is an answer, too.
    """
    try:
        with socket.create_connection(place, ANSWER_SECONDS) as connection:
            connection.sendall(HELLO)
            connection.recv(1)
    except (ConnectionResetError, BrokenPipeError):
        return True
    except OSError:
        return False
    return True


def find_silent(places: Iterable[Place]) -> set[Place]:
    """Return those at which no process answers."""
    asked = list(places)
    with ThreadPoolExecutor(LOOKS) as threads:
        found = threads.map(answers, asked)
        return {place for place, answer in zip(asked, found, strict=True) if not answer}
