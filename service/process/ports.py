"""Finds ports: the one that was asked for, or the next free one. Runs in the service's process."""

from __future__ import annotations

import errno
import socket
from typing import Final

from eigensweep.service.settings import StartError

MOST_TRIED: Final = 200
"""How many ports are tried."""


def listen(host: str, port: int, may_move: bool) -> socket.socket:
    """Return a socket that listens on `port`, or with `may_move` on the next free one.

    Raises:
        StartError: if there is none, or `host` is no address of this machine.
    """
    last = min(port + MOST_TRIED, 65535) if may_move else port
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        for candidate in range(port, last + 1):
            try:
                listener = socket.create_server((host, candidate), family=family, backlog=512)
            except OSError as error:
                if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                    raise
                continue
            # Connections inherit it. asyncio sets it only if the socket names its protocol. Without
            # it, the second packet of an answer waits 40 ms until the first is acknowledged.
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return listener
    except OSError as error:
        raise StartError(
            f"cannot listen on {host}: {error}; EIGENSWEEP_HOST is an address, such as 127.0.0.1"
        ) from error
    tried = f"ports {port} to {last}" if may_move else f"port {port}"
    raise StartError(
        f"cannot listen on {host}: {tried} taken, or not allowed; set another EIGENSWEEP_PORT "
        "or, for MLflow's server, EIGENSWEEP_MLFLOW_PORT"
    )


def claim_port(host: str, port: int, may_move: bool) -> tuple[int, socket.socket]:
    """Return a port that is free and that no other service has claimed, and our claim of it.

    A program that is to listen there needs some seconds to begin, and until then the port looks
    free to others. The claim is an abstract Unix socket, and ends when it is closed.
    """
    last = min(port + MOST_TRIED, 65535) if may_move else port
    while True:
        number = find_free_port(host, port, may_move)
        claim = socket.socket(socket.AF_UNIX)
        try:
            claim.bind(f"\0eigensweep-port-{number}")
        except OSError:
            claim.close()
            if number >= last:
                raise StartError(
                    f"another service has claimed port {number} of {host}; set another "
                    "EIGENSWEEP_MLFLOW_PORT"
                ) from None
            port = number + 1
        else:
            return number, claim


def find_free_port(host: str, port: int, may_move: bool) -> int:
    """Return a port that is free now; see `listen`."""
    with listen(host, port, may_move) as found:
        return found.getsockname()[1]
