"""Whether a node sees the very store that its driver sees.

Each driver writes a marker, a file in the experiment's folder under a name that nobody can guess,
and each attempt looks for it before it trains. A folder that is only called the same, a mount that
is missing, and a copy of the store made earlier do not hold it. No name is ever used twice, so that
no network's file system remembers of it that it is not there. The marker lists what the driver's
code consists of, so that a node with other code can say what differs.

Importing this loads neither torch nor Ray.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping

from eigensweep.store.checkpoints import Store
from eigensweep.store.durable_files import StoreAwayError

PREFIX = "nonce-"
"""How the names of markers begin, as versions before 0.3 called them."""


class NoMarkerError(StoreAwayError):
    """The store answers, and does not hold the driver's marker."""


def write(store: Store, experiment: str, parts: Mapping[str, str]) -> str:
    """Write a new marker with the parts of the driver's code, remove those of earlier drivers.

    Return its name.

    Raises:
        StorageError: if it cannot be written.
    """
    marker = secrets.token_hex(16)
    for name in store.files.names(experiment):
        if name.startswith(PREFIX):
            store.files.remove(f"{experiment}/{name}")
    store.files.write(_file(experiment, marker), json.dumps(parts).encode())
    return marker


def read(store: Store, experiment: str, marker: str) -> dict[str, str]:
    """Return what a marker says: the parts of the driver's code.

    Raises:
        NoMarkerError: if there is no such file, so the store is not the driver's.
        StorageError: if it cannot be read.
    """
    path = _file(experiment, marker)
    try:
        parts: dict[str, str] = json.loads(store.files.read(path))
    except FileNotFoundError:
        raise NoMarkerError(
            f"{store.place} is not the store of the driver here: {path} is missing, which the "
            "driver left there. Mount the same folder at this path on every node, or set "
            "EIGENSWEEP_STORAGE to one that is shared"
        ) from None
    return parts


def _file(experiment: str, marker: str) -> str:
    return f"{experiment}/{PREFIX}{marker}.json"
