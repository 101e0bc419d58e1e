"""What the running experiments want of a cluster, in Ray's words, so that an autoscaler adds nodes.

Ray keeps one request for a whole cluster, and a later one replaces it
(`ray.autoscaler.sdk.request_resources`). So one actor adds up what all experiments want.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import ray
from ray.autoscaler.sdk import request_resources
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from eigensweep.workers.engine.actor import NAMESPACE
from eigensweep.workers.engine.shares import Share

NAME: Final = "demand"
KEPT_SECONDS: Final = 60.0
"""How long a wish counts that its driver does not repeat: the driver may be dead."""
MOST_BUNDLES: Final = 1000
"""Bundles of one experiment at most: an autoscaler packs each of them."""

Bundle = dict[str, float]
"""What one process wants, such as `{"CPU": 1.0}`."""


def bundles_of(share: Share, trials: int) -> list[Bundle]:
    """Return what so many trials at once want: a bundle for each trial, or for each engine.

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
        request: Callable[[list[Bundle]], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._request, self._clock = request, clock
        self._wishes: dict[str, tuple[list[Bundle], float]] = {}
        self._requested: list[Bundle] = []
        self._lock = threading.Lock()

    def wish(self, experiment: str, bundles: list[Bundle]) -> None:
        """Replace what an experiment wants."""
        with self._lock:
            self._wishes[experiment] = bundles, self._clock() + KEPT_SECONDS
        self.add_up()

    def add_up(self) -> None:
        """Forget old wishes, and request the sum of the others if it has changed."""
        with self._lock:
            now = self._clock()
            kept = {e: wish for e, wish in self._wishes.items() if wish[0] and wish[1] > now}
            bundles = [bundle for _, (some, _) in sorted(kept.items()) for bundle in some]
            self._wishes = kept
            if bundles != self._requested:
                self._request(bundles)
                self._requested = bundles


class DemandActor:
    """The one place of a cluster where wishes are added up."""

    def __init__(self) -> None:
        self._wishes = Wishes(lambda bundles: request_resources(bundles=bundles))
        threading.Thread(target=self._forget, daemon=True).start()

    def wish(self, experiment: str, bundles: list[Bundle]) -> None:
        self._wishes.wish(experiment, bundles)

    def _forget(self) -> None:
        """Forget the wishes of dead drivers, for as long as this process lives."""
        while True:
            time.sleep(KEPT_SECONDS / 4)
            self._wishes.add_up()


def wish(experiment: str, bundles: list[Bundle]) -> None:
    """Tell the cluster's autoscaler what an experiment wants; without one nothing happens."""
    here = ray.get_runtime_context().get_node_id()
    with suppress(ray.exceptions.RayError):
        actor: Any = (
            ray.remote(DemandActor)
            .options(
                name=NAME,
                namespace=NAMESPACE,
                get_if_exists=True,
                lifetime="detached",
                max_restarts=-1,
                num_cpus=0,
                scheduling_strategy=NodeAffinitySchedulingStrategy(here, soft=False),
            )
            .remote()
        )
        actor.wish.remote(experiment, bundles)
