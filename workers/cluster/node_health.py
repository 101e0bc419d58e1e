"""Whether the Ray node of this machine is well; containers ask it as their health check.

`python -m eigensweep.workers.cluster.node_health --address HEAD:PORT --port PORT` ends with 0 if
the node's own process listens at its port and the head counts the node as alive. Else it prints why
and ends with 1. `ray health-check` asks the head only, so it does not notice a dead worker. With
`--wait SECONDS` this program asks until the node is well, for scripts that start nodes one after
another.
"""

from __future__ import annotations

import argparse
import socket
import sys
import time
from typing import Final

import psutil  # type: ignore[import-untyped]
import ray.exceptions
from ray._raylet import GcsClient  # type: ignore[attr-defined]

ANSWER_SECONDS: Final = 10.0
"""How long the head, and the node's own process, may take to answer."""
PAUSE_SECONDS: Final = 0.2
"""Seconds between two looks at a node that is not well yet."""


def find_fault(head: str, port: int) -> str | None:
    """Return what is wrong with this machine's node, None if it is well.

    `head` is the address of Ray's head (host:port), `port` that of the node's own process
    (`ray start --node-manager-port`).
    """
    try:
        host, _, head_port = head.rpartition(":")
        _knock(host.strip("[]"), head_port)
        nodes = GcsClient(address=head).get_all_node_info(timeout=ANSWER_SECONDS).values()
    except (ray.exceptions.RayError, OSError, RuntimeError) as error:
        return f"Ray's head at {head} does not answer: {error}"
    mine = _own_addresses()
    alive = [
        node.node_manager_address
        for node in nodes
        if node.state == node.ALIVE
        and node.node_manager_port == port
        and node.node_manager_address in mine
    ]
    if not alive:
        return f"the head at {head} counts no living node of this machine at port {port}"
    try:
        _knock(alive[0], port)
    except OSError as error:
        return f"this node's process at {alive[0]}:{port} does not answer: {error}"
    return None


def _knock(host: str, port: int | str) -> None:
    """Raise OSError if nobody listens there."""
    socket.create_connection((host, int(port)), ANSWER_SECONDS).close()


def _own_addresses() -> set[str]:
    """Return the network addresses of this machine."""
    return {each.address for found in psutil.net_if_addrs().values() for each in found}


def main() -> int:
    """Look at the node that the arguments name; return the exit status."""
    parser = argparse.ArgumentParser(description="Say whether this machine's Ray node is well.")
    parser.add_argument("--address", required=True, help="host:port of Ray's head")
    parser.add_argument("--port", required=True, type=int, help="the node manager's port")
    parser.add_argument("--wait", default=0.0, type=float, help="seconds until it must be well")
    given = parser.parse_args()
    deadline = time.monotonic() + given.wait
    while (fault := find_fault(given.address, given.port)) and time.monotonic() < deadline:
        time.sleep(PAUSE_SECONDS)
    if fault is not None:
        sys.stderr.write(f"{fault}\n")
    return 0 if fault is None else 1


if __name__ == "__main__":
    sys.exit(main())
