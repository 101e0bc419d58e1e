"""What Ray Tune has in place of the processes of trials.

Tune wants a subclass of its `Trainable`, and starts it as an actor. Here Tune starts a
`TrialProcess` instead, which has the three methods that Tune calls and loads nothing of Tune.
"""

from __future__ import annotations

import os
from functools import lru_cache, partial
from typing import Any, Final

import ray
from ray import tune
from ray.tune.execution.class_cache import ENV_VARS_TO_PROPAGATE, _ActorClassCache
from ray.util.placement_group import NODE_ID_LABEL_KEY, PlacementGroup, placement_group

from eigensweep.workers.driver.cpu_nodes import CPU_NODES
from eigensweep.workers.lanes.shares import Share
from eigensweep.workers.processes.trial_process import TrialProcess
from eigensweep.workers.shared.messages import Order

CREDENTIALS: Final = frozenset(each for each in ENV_VARS_TO_PROPAGATE if each.startswith("AWS_"))
"""Variables of a driver that Tune hands on to the processes of its trials."""


StartArguments = dict[str, dict[str, object]]
"""What a process is started with: `config`, the order as plain data."""


class TrialTrainable(tune.Trainable):
    """Says what a trial asks Ray for. No process ever makes an instance."""

    @classmethod
    def default_resource_request(cls, config: dict[str, object]) -> tune.PlacementGroupFactory:
        order = Order.from_dict(config)
        return request_place(
            frozenset(order.resources.items()), frozenset(order.labels.items()), order.avoid
        )


class OwnPlace(tune.PlacementGroupFactory):
    """What a trial asks Ray for; without a GPU, best on a node that has none (`cpu_nodes`)."""

    def __init__(self, share: Share, avoid: tuple[str, ...]) -> None:
        """`avoid` has Ray's ids of the nodes that the trial avoids."""
        self._share, self._avoid = share, avoid
        labels = dict(share.labels)
        if avoid:
            labels[NODE_ID_LABEL_KEY] = f"!in({','.join(avoid)})"
        self._labels = [labels] if labels else None
        super().__init__([share.resources], bundle_label_selector=self._labels)

    def to_placement_group(self) -> PlacementGroup:
        best = CPU_NODES.choose(self._share, self._avoid)
        if best is None:
            return super().to_placement_group()  # type: ignore[no-untyped-call]
        wish = partial(placement_group, self.bundles, "STRICT_PACK", _soft_target_node_id=best)
        return wish(bundle_label_selector=self._labels)


class TrialProcesses(_ActorClassCache):
    """Gives Tune the class of a trial's process, with the variables that it is started with.

    Tune asks for a variable that this project does not need. For a process with its own variables
    Ray starts Python twice, and uses no idle process. So they are set only if Tune passes on what a
    trial may need, such as the credentials of an object store.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._plain: Any = None

    def get(self, trainable_cls: type[TrialTrainable] = TrialTrainable) -> Any:
        if not CREDENTIALS.isdisjoint(os.environ):
            return super().get(TrialProcess)  # type: ignore[no-untyped-call]
        self._plain = self._plain or ray.remote(TrialProcess)
        return self._plain


def give_order_alone(arguments: StartArguments) -> StartArguments:
    """Return what a process is started with, without what Tune adds for its own `Trainable`.

    A process would have to load Tune to read the rest.
    """
    config = arguments["config"]
    return {"config": {name: each for name, each in config.items() if not name.startswith("__")}}


@lru_cache(maxsize=64)
def request_place(
    resources: frozenset[tuple[str, float]],
    labels: frozenset[tuple[str, str]],
    avoid: tuple[str, ...],
) -> OwnPlace:
    """Return what Tune asks Ray for; one object for equal arguments, since Tune compares often."""
    return OwnPlace(Share(dict(resources), labels=dict(labels)), avoid)
