"""How a driver makes sure that its trials write to the store that it reads."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Final

from eigensweep.protocol.messages import Order, Report
from eigensweep.store import store_markers
from eigensweep.store.checkpoints import Store, replicate_key
from eigensweep.workers.driver.store_watch import StoreWatch

logger = logging.getLogger(__name__)

LOOK_SECONDS: Final = 5.0
"""How long a driver relies on having seen its marker."""


class StoreMarker:
    """The driver's marker in the store, written again where somebody has removed it."""

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
                store_markers.read(self._store, self._experiment, self._marker)
                return self._marker
            except store_markers.NoMarkerError:
                logger.warning("the store was emptied experiment=%s", self._experiment)
        return store_markers.write(self._store, self._experiment, self._parts)


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
