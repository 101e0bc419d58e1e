"""What the running experiments want of a cluster, in Ray's words, so that an autoscaler adds nodes.

Ray keeps one request for a whole cluster, and a later one replaces it
(`ray.autoscaler.sdk.request_resources`). So one actor adds up what all experiments want.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

import ray
from ray.autoscaler.sdk import request_resources

from eigensweep.protocol.shares import NO_LABELS, Share
from eigensweep.workers.processes.engine_actor import find_or_start

logger = logging.getLogger(__name__)

NAME: Final = "demand"
KEPT_SECONDS: Final = 60.0
"""How long a wish counts that its driver does not repeat: the driver may be dead."""
MOST_BUNDLES: Final = 1000
"""Bundles of one experiment at most: an autoscaler packs each of them."""

Bundle = dict[str, float]
"""What one process wants, such as `{"CPU": 1.0}`."""
Labels = Mapping[str, str]
"""What the node of a bundle must have, in Ray's words."""


def bundles_of(share: Share, trials: int) -> list[Bundle]:
    """Return the bundles of `trials` at once: one for each trial, or for each engine.

    >>> bundles_of(Share({"CPU": 2.0}), 2)
    [{'CPU': 2.0}, {'CPU': 2.0}]
    """
    if share.engine is None:
        count, bundle = trials, share.resources
    else:
        count, bundle = -(-trials // share.trials), share.engine.resources
    return [dict(bundle)] * min(count, MOST_BUNDLES)


class Wishes:
    """The wishes of all experiments; the newest of each counts, for `KEPT_SECONDS`."""

    def __init__(
        self,
        request: Callable[[list[Bundle], list[Labels]], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`request` is given bundles, and for each of them its labels."""
        self._request, self._clock = request, clock
        self._wishes: dict[str, tuple[list[Bundle], Labels, float]] = {}
        self._requested: tuple[list[Bundle], list[Labels]] | None = None
        """None: it is not known what Ray was asked for last, perhaps by a process before this."""
        self._lock = threading.Lock()

    def wish(self, experiment: str, bundles: list[Bundle], labels: Labels = NO_LABELS) -> None:
        """Replace what an experiment wants: bundles, all on nodes with the same labels."""
        with self._lock:
            self._wishes[experiment] = bundles, labels, self._clock() + KEPT_SECONDS
        self.add_up()

    def add_up(self) -> None:
        """Forget old wishes, and request the sum of the others if it has changed."""
        with self._lock:
            now = self._clock()
            kept = {e: wish for e, wish in self._wishes.items() if wish[0] and wish[2] > now}
            wanted = [
                (each, labels) for _, (some, labels, _) in sorted(kept.items()) for each in some
            ]
            requested = [bundle for bundle, _ in wanted], [labels for _, labels in wanted]
            self._wishes = kept
            if requested != self._requested:
                self._request(*requested)
                self._requested = requested


class DemandActor(Wishes):
    """The one place of a cluster where wishes are added up."""

    def __init__(self) -> None:
        super().__init__(_request)
        threading.Thread(target=self._forget, daemon=True).start()

    def _forget(self) -> None:
        """Forget the wishes of dead drivers, for as long as this process lives.

        It begins once all living drivers have repeated theirs.
        """
        time.sleep(KEPT_SECONDS)
        while True:
            try:
                self.add_up()
            except Exception:
                logger.exception("the cluster's autoscaler cannot be asked now")
            time.sleep(KEPT_SECONDS / 4)


def _request(bundles: list[Bundle], labels: list[Labels]) -> None:
    selectors = [dict(each) for each in labels] if any(labels) else None
    request_resources(bundles=bundles, bundle_label_selectors=selectors)


def wish(experiment: str, bundles: list[Bundle], labels: Labels) -> None:
    """Tell the cluster's autoscaler what an experiment wants; without one nothing happens."""
    with suppress(ray.exceptions.RayError):
        actor = find_or_start(DemandActor, NAME, max_restarts=-1)
        actor.wish.remote(experiment, bundles, dict(labels))
