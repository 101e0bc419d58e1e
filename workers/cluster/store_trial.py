"""Tries the store from every node of a Ray cluster, as trials there would use it.

`python -m eigensweep.workers.cluster.store_trial --address HOST:PORT --storage PLACE` prints, as
JSON, what each living node cannot do, null where it can do all. It runs in a user's terminal.
"""

from __future__ import annotations

import argparse
import json
import secrets
import sys
from typing import Any, Final

import ray
import ray.exceptions
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from eigensweep.store.checkpoints import Store
from eigensweep.store.places.durable_files import StorageError, StoreAwayError
from eigensweep.workers.cluster.ray_cluster import RayCluster
from eigensweep.workers.ray_nodes import list_nodes

FOLDER: Final = ".doctor"
"""A folder of the store; no experiment has this name."""
ANSWER_SECONDS: Final = 60.0
"""Seconds that a node may take: it may have to start a process first."""


def try_here(storage: str, name: str) -> str | None:
    """Return why this process cannot use the store in which somebody left a file; None: it can."""
    store, own = Store(storage), f"{FOLDER}/{secrets.token_hex(8)}"
    try:
        store.files.read(f"{FOLDER}/{name}")
        store.files.write(own, b"")
        store.files.remove(own)
    except FileNotFoundError:
        return f"{storage} is another store there: what this machine has just written is missing"
    except StorageError as error:
        return str(error)
    return None


def try_nodes(storage: str) -> dict[str, str | None]:
    """Return, for each living node of the cluster that this process has joined, what fails there.

    Nodes are named by host and the beginning of Ray's id.

    Raises:
        StorageError: if this machine itself cannot use the store.
    """
    store, name = Store(storage), secrets.token_hex(8)
    living = {n["NodeID"]: n["NodeManagerHostname"] for n in list_nodes() if n["Alive"]}
    store.files.write(f"{FOLDER}/{name}", b"x")
    try:
        trial = ray.remote(num_cpus=0, max_retries=0)(try_here)
        asked = {
            trial.options(
                scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)
            ).remote(storage, name): f"{host} ({node[:8]})"
            for node, host in living.items()
        }
        answered, _ = ray.wait(list(asked), num_returns=len(asked), timeout=ANSWER_SECONDS)
        return {node: _read(answer, answer in answered) for answer, node in asked.items()}
    finally:
        store.files.remove(f"{FOLDER}/{name}")


def _read(answer: Any, is_there: bool) -> str | None:
    if not is_there:
        return f"no answer within {ANSWER_SECONDS:.0f} s"
    try:
        return ray.get(answer)
    except ray.exceptions.RayError as error:
        return f"a process there fails: {str(error).strip().splitlines()[-1]}"


def main() -> int:
    """Print what was found as JSON; return the exit status."""
    parser = argparse.ArgumentParser(description="Try the store from every node of a cluster.")
    parser.add_argument("--address", required=True, help="host:port of Ray's head")
    parser.add_argument("--storage", required=True, help="a folder or a URL")
    given = parser.parse_args()
    cluster = RayCluster.start(given.address)
    try:
        sys.stdout.write(json.dumps(try_nodes(given.storage)) + "\n")
    except StoreAwayError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    finally:
        cluster.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
