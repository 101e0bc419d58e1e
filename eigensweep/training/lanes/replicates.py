"""The replicates of one trial side by side, in the trial's own process on a CPU.

Small networks leave a core waiting for PyTorch's calls, and lanes share these calls. Which trials
gain was measured (`python -m bench.replicates`). The config alone decides: a trial that is picked
up again, on the same machine, goes on bit for bit.
"""

from __future__ import annotations

from functools import partial

from eigensweep.protocol.messages import Order
from eigensweep.search_spaces.trial import TrialConfig
from eigensweep.training.attempt import GLANCE_SECONDS, Attempt, Paused

LEAST_REPLICATES = 3
MOST_UNITS = 64
"""Hidden units n."""

MOST_WORK = 10_000_000
"""Sequence length times batch size times n², the multiplications of one pass over a batch."""

GAINING = frozenset(
    {
        "asrnn",
        "cornn",
        "eurnn",
        "exprnn",
        "full_urnn",
        "goru",
        "gru",
        "irnn",
        "lem",
        "lstm",
        "lt_rnn",
        "modrelu_rnn",
        "nnrnn",
        "ornn",
        "scornn",
        "spectral_rnn",
        "srnn",
        "tanh_rnn",
        "urnn",
    }
)
"""Models that gained a tenth or more at the edge of these limits, in lane-steps a CPU second."""


class AttemptInLanes(Attempt):
    """An attempt at a trial whose replicates train side by side."""

    def train(self, rung: int) -> None:
        """Train all replicates to `rung`; commit each.

        Raises:
            NoLongerWanted: if the experiment was cancelled.
            Paused: if it was paused; all that was trained is committed.
        """
        # It loads what most trials never need.
        from eigensweep.training.lanes.stacked.group import Group, LaneError

        behind = [r for r in self.replicates if not r.has_come_to(rung)]
        if behind:
            group = Group(behind[0].training, len(self.replicates))
            try:
                for replicate in behind:
                    group.join(replicate.training)
                while behind:
                    group.advance(GLANCE_SECONDS)
                    for replicate in list(behind):
                        if replicate.has_come_to(rung):
                            group.leave(replicate.training)
                            behind.remove(replicate)
                        else:
                            replicate.glance(partial(group.update, replicate.training))
            except Paused:
                for replicate in self.replicates:
                    if replicate.has_news:
                        in_lane = replicate in behind
                        update = partial(group.update, replicate.training) if in_lane else None
                        replicate.commit(update)
                raise
            except LaneError as error:  # whose fault it is, its cause says, as without lanes
                cause = error.__cause__ or error
                raise cause from cause.__cause__
            finally:
                group.close()
        for replicate in self.replicates:
            if replicate.has_news:
                replicate.commit()


def open_attempt(order: Order, device: str) -> Attempt:
    """Return an attempt whose replicates train side by side where that is faster.

    Raises:
        StaleAttemptError: if a later attempt has begun.
    """
    config = TrialConfig.from_dict(order.config).resolve()
    return (AttemptInLanes if gains_by_lanes(config, device) else Attempt)(order, device)


def gains_by_lanes(config: TrialConfig, device: str) -> bool:
    """Tell whether the replicates of this config train faster side by side in one process.

    `config` is resolved. Lanes share the work of PyTorch's calls, but a core does the loop over
    time for one lane after another: they gain where the calls are the larger part.
    """
    task, n = config.task, config.model.hidden_size
    if not (
        device == "cpu"
        and config.replicates >= LEAST_REPLICATES
        and config.model.name in GAINING
        and type(task).__module__.startswith("eigensweep.tasks.")  # others may not allow lanes
        and n is not None
        and n <= MOST_UNITS
        and task.sequence_length * task.batch_size * n * n <= MOST_WORK
    ):
        return False
    from eigensweep.training.lanes.stacked.group import explain_alone

    return explain_alone(config) is None
