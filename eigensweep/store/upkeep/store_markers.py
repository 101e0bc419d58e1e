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
import logging
import secrets
import time
from collections.abc import Callable, Mapping
from typing import Final

from eigensweep.protocol.messages import Order, Report
from eigensweep.store.checkpoints import Store, replicate_key
from eigensweep.store.places.durable_files import StoreAwayError
from eigensweep.store.places.store_watch import StoreWatch

logger = logging.getLogger(__name__)

PREFIX = "nonce-"
"""How the names of markers begin, as versions before 0.3 called them."""

LOOK_SECONDS: Final = 5.0
"""How long a driver relies on having seen its marker."""


class NoMarkerError(StoreAwayError):
    """The store answers, and does not hold the driver's marker, or not whole."""


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
        NoMarkerError: if there is no such file, so the store is not the driver's; or if what is
            there is not what was written.
        StorageError: if it cannot be read.
    """
    path = _file(experiment, marker)
    try:
        parts: dict[str, str] = json.loads(store.files.read(path))
    except ValueError as error:
        raise NoMarkerError(
            f"{store.place} is damaged: {path}, which the driver left there, is no JSON ({error})"
        ) from error
    except FileNotFoundError:
        raise NoMarkerError(
            f"{store.place} is not the store of the driver here: {path} is missing, which the "
            "driver left there. Mount the same folder at this path on every node, or set "
            "EIGENSWEEP_STORAGE to one that is shared"
        ) from None
    return parts


def _file(experiment: str, marker: str) -> str:
    return f"{experiment}/{PREFIX}{marker}.json"


class StoreMarker:
    """The driver's marker in the store, written again where it is gone or damaged."""

    def __init__(
        self,
        store: Store,
        experiment: str,
        parts: Mapping[str, str],
        watch: StoreWatch,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Write nothing yet; `parts` are those of the driver's code."""
        self._store, self._experiment, self._parts = store, experiment, parts
        self._watch = watch
        self._clock, self._look_at = clock, clock()
        self._marker: str | None = None

    def refresh(self) -> str | None:
        """Return the name of the marker in the store; None: the store cannot be used now."""
        is_away = self._watch.notice is not None
        if self._watch.may_ask and (is_away or self._clock() >= self._look_at):
            with self._watch.asking():
                self._marker = self._find_or_write()
            self._look_at = self._clock() + LOOK_SECONDS
        return None if self._watch.notice is not None else self._marker

    def _find_or_write(self) -> str:
        if self._marker is not None:
            try:
                read(self._store, self._experiment, self._marker)
                return self._marker
            except NoMarkerError as error:
                logger.warning("marking the store again experiment=%s: %s", self._experiment, error)
        return write(self._store, self._experiment, self._parts)


def find_missing_commit(store: Store, order: Order, report: Report) -> str | None:
    """Return what the store lacks of what a report says is committed; None: nothing.

    Raises:
        StorageError: if the store cannot be read.
    """
    for seed, step in report.committed:
        key = replicate_key(order.experiment, order.number, seed)
        for surely in (False, True):
            seen = store.progress(key, surely=surely)
            if seen.attempt >= order.attempt and seen.step >= step:
                break
        else:
            return (
                f"it says that step {step} of seed {seed} is committed, and the driver finds step "
                f"{seen.step} of attempt {seen.attempt} in {store.place}/{key}. It writes to "
                "another store: mount the same folder at this path on every node"
            )
    return None
