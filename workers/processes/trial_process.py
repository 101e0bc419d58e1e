"""The process of a trial: an actor of Ray's that is used for one trial after another.

It is thin: it loads neither torch nor MLflow, and nothing of Ray Tune, whose import alone takes
1.5 s of a processor and 66 MB. Who trains is one of three:

- a process that is forked for it from one that has loaded PyTorch (`fork_server`), as a rule;
- an engine, in which the trial has a slot (`engine_actor`);
- this process, where nothing is forked: with a GPU, on which that could not be tried yet, or where
  no process to fork from comes up.

Tune, in the driver, calls `train`, `train_next` and `stop`, and asks for nothing else of its own
`Trainable`: checkpoints are in the store.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module

import ray

from eigensweep.common import logs
from eigensweep.common.loading import load_for_good
from eigensweep.protocol.code import ForeignCodeError, check_code
from eigensweep.protocol.messages import Order
from eigensweep.training.devices import see_only
from eigensweep.workers.processes.engine_actor import EngineSlot, find_node
from eigensweep.workers.processes.forked import Forked, ForkedEndedError, fork
from eigensweep.workers.processes.runner import Runner


class TrialProcess:
    """Has the trial it was last given trained, one rung a call.

    Tune starts actors that it never uses and lets them stop after others have taken their trial,
    so nothing that is shared is touched before the first `train`.
    """

    def __init__(self, config: Mapping[str, object]) -> None:
        """Get ready to train: what is loaded belongs to the process, not to a trial.

        If the code here is wrong, the first report says so.
        """
        order, device, node_id = Order.from_dict(config), assigned_device(), find_node()
        self._node_id, self._package = node_id, order.config.get("code")
        logs.set_up(order.log_format)
        forked: Forked | None = None
        if order.engine is None:
            if device == "cpu":
                forked = fork(config, node_id, raylet=os.getppid())
            if forked is None:
                with suppress(ForeignCodeError, ImportError), load_for_good():
                    check_code(order.code)
                    import_module("eigensweep.training.attempt")
        self._runner = forked or Runner(config, device, node_id, EngineSlot)

    def train_next(self, config: Mapping[str, object]) -> dict[str, object]:
        """Take another trial, and return its first report, in one call of the driver's.

        After a trial of another package's code a new process is forked, since that code may have
        changed anything in the old one.
        """
        before, self._package = self._package, Order.from_dict(config).config.get("code")
        if before is not None and isinstance(self._runner, Forked):
            self._runner.close()
            if (forked := fork(config, self._node_id, raylet=os.getppid())) is not None:
                self._runner = forked
                return forked.train()
            self._runner = Runner(config, "cpu", self._node_id, EngineSlot)
        return self._runner.train_next(config)

    def train(self) -> dict[str, object]:
        """Return the report of the next rung, as `Runner.train` does.

        Raises:
            ForkedEndedError: if the process that was forked for the trial has ended; so does
                `train_next`. Tune then ends this one, too.
        """
        return self._runner.train()

    def stop(self) -> None:
        """Leave the trial where it is."""
        with suppress(ForkedEndedError):
            self._runner.stop()


def assigned_device() -> str:
    """Return the device that Ray gave to this process, `cpu` or `cuda:ID`; it sees no other GPU."""
    gpus = ray.get_gpu_ids() if ray.is_initialized() else []
    if not gpus:
        return "cpu"
    see_only(str(gpus[0]))
    return f"cuda:{gpus[0]}"
