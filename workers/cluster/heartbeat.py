"""Whether Ray's processes answer, and not only the kernels of their machines. No Ray here.

A kernel accepts connections even for a stopped process. So a look sends gRPC's greeting, as each
client of Ray does, and waits for the answer, which needs no token.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

ANSWER_SECONDS: Final = 2.0
"""Seconds that a process may take to answer; a healthy one takes a millisecond."""
LOOKS: Final = 32
"""Processes that are asked at the same time."""
HELLO: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
"""The beginning of a gRPC connection: preface and empty settings. Source: RFC 9113, section 3.4."""

Place = tuple[str, int]
"""Host and port."""


def answers(place: Place) -> bool:
    """Return whether the process that listens there answers a greeting.

    A process that expects encryption hangs up, which is an answer, too.
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
    """Return the addresses at which no process answers."""
    asked = list(places)
    with ThreadPoolExecutor(LOOKS) as threads:
        found = threads.map(answers, asked)
        return {place for place, answer in zip(asked, found, strict=True) if not answer}
