"""What Ray Tune has in place of the processes of trials.

Tune wants a subclass of its `Trainable`, and starts it as an actor. Here Tune starts a
`TrialProcess` instead, which has the three methods that Tune calls and loads nothing of Tune.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache, lru_cache
from typing import Any, Final

import ray
from ray import tune
from ray.tune.execution.class_cache import ENV_VARS_TO_PROPAGATE
from ray.util.placement_group import NODE_ID_LABEL_KEY, PlacementGroup, placement_group

from eigensweep.protocol.messages import Order
from eigensweep.protocol.shares import Share
from eigensweep.workers.driver.nodes.cpu_nodes import CPU_NODES
from eigensweep.workers.processes.trial_process import TrialProcess

CREDENTIALS: Final = frozenset(each for each in ENV_VARS_TO_PROPAGATE if each.startswith("AWS_"))
"""Variables of a driver that Tune hands on to the processes of its trials."""


class TrialTrainable(tune.Trainable):
    """What Tune registers for an experiment. No process ever makes an instance."""


class OwnPlace(tune.PlacementGroupFactory):
    """What a trial asks Ray for; without a GPU, best on a node that has none (`cpu_nodes`)."""

    def __init__(self, share: Share, avoid: tuple[str, ...]) -> None:
        """`avoid` has Ray's ids of the nodes that the trial avoids."""
        self._share, self._avoid = share, avoid
        labels = dict(share.labels)
        if avoid:
            labels[NODE_ID_LABEL_KEY] = f"!in({','.join(avoid)})"
        self._where: dict[str, Any] = {"bundle_label_selector": [labels]} if labels else {}
        super().__init__([share.resources], **self._where)

    def to_placement_group(self) -> PlacementGroup:
        best = CPU_NODES.choose(self._share, self._avoid)
        if best is None:
            return super().to_placement_group()  # type: ignore[no-untyped-call]
        wish = {**self._where, "_soft_target_node_id": best}
        return placement_group(self.bundles, "STRICT_PACK", **wish)


def choose_process(of_tune: Any) -> Any:
    """Return the class of a trial's process: Tune's, which sets variables, or a plain one.

    Tune sets a variable that this project does not need. For a process with its own variables Ray
    starts Python twice, and uses no idle process. So they are set only if Tune passes on what a
    trial may need, such as the credentials of an object store.
    """
    return _plain_process() if CREDENTIALS.isdisjoint(os.environ) else of_tune


@cache
def _plain_process() -> Any:
    return ray.remote(TrialProcess)


def give_order_alone(config: Mapping[str, object]) -> dict[str, object]:
    """Return an order as a process is given it, without what Tune adds for its own `Trainable`.

    A process would have to load Tune to read the rest.
    """
    return {name: each for name, each in config.items() if not name.startswith("__")}


def request_place(order: Order) -> OwnPlace:
    """Return what a trial asks Ray for; one object for equal wishes, since Tune compares often."""
    return _place(frozenset(order.resources.items()), frozenset(order.labels.items()), order.avoid)


@lru_cache(maxsize=64)
def _place(
    resources: frozenset[tuple[str, float]],
    labels: frozenset[tuple[str, str]],
    avoid: tuple[str, ...],
) -> OwnPlace:
    return OwnPlace(Share(dict(resources), labels=dict(labels)), avoid)
