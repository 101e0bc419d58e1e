"""What Ray tells of the nodes of a cluster, and whether its processes answer.

Ray is loaded when it is asked. Whether a process answers is seen without Ray: a kernel accepts
connections even for a stopped process, so a look sends gRPC's greeting, as each client of Ray does,
and waits for the answer, which needs no token.
"""

from __future__ import annotations

import socket
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NotRequired, TypedDict

ANSWER_SECONDS: Final = 2.0
"""Seconds that a process may take to answer; a healthy one takes a millisecond."""
LOOKS: Final = 32
"""Processes that are asked at the same time."""
HELLO: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
"""The beginning of a gRPC connection: preface and empty settings. Source: RFC 9113, section 3.4."""


class RayNode(TypedDict):
    """An entry of `ray.nodes`, as far as it is read here."""

    NodeID: str
    Alive: bool
    NodeManagerAddress: str
    NodeManagerPort: int
    NodeManagerHostname: str
    RayletSocketName: str
    Resources: dict[str, float]
    Labels: NotRequired[dict[str, str]]


def list_nodes() -> list[RayNode]:
    """Return all nodes of the cluster that this process is connected to, also those that died."""
    import ray

    return ray.nodes()  # type: ignore[no-untyped-call]


def find_silent(nodes: Collection[RayNode]) -> frozenset[str]:
    """Return Ray's ids of the nodes whose process does not answer: it is dead, or stands still."""
    places = ((n["NodeManagerAddress"], n["NodeManagerPort"]) for n in nodes)
    with ThreadPoolExecutor(LOOKS) as threads:
        found = threads.map(answers, places)
        return frozenset(n["NodeID"] for n, answer in zip(nodes, found, strict=True) if not answer)


def answers(place: tuple[str, int]) -> bool:
    """Return whether the process that listens at a host and port answers a greeting.

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
