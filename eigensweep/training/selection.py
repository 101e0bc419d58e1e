"""What the evaluations of a training mean: its best point, when to stop early, when it diverged."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite

from torch import Tensor

from eigensweep.common.direction import best, is_better
from eigensweep.results.trial_result import End, Metrics
from eigensweep.search_spaces.labels import say_count
from eigensweep.search_spaces.trial import TrialConfig
from eigensweep.store.commits.kept_files import StateDict
from eigensweep.tasks.base import Metric

Weights = dict[str, Tensor]


@dataclass(frozen=True)
class Best:
    """The evaluation with the best value of the objective, and the weights it was made with."""

    value: float
    step: int
    valid: Metrics
    weights: Weights


class Selection:
    """Follows the evaluations of one training.

    The last evaluation of a budget that is no multiple of `evaluate_every` counts for the best
    point and for nothing else, and is forgotten when a longer budget continues the training.
    """

    def __init__(self, config: TrialConfig, baselines: Mapping[str, float]) -> None:
        self.metric = config.objective_metric
        self.loss = config.task.find_metric().name
        self.baseline = baselines.get(self.metric.name)
        """What a memoryless model scores on the objective's metric, None if that is not known."""
        self._baseline_loss = baselines.get(self.loss)
        self._patience = config.training.patience
        self._rule = config.divergence
        self._scheduled: Best | None = None
        self._final: Best | None = None
        self.stale = 0
        """Evaluations running that brought no new best; the one at a budget's end is no such."""
        self._high = 0
        self._first_loss = 0.0
        self.divergence: str | None = None
        """What was not finite, or too high, once that ends the training."""

    @property
    def best(self) -> Best | None:
        """The selected point, None before there is a finite value."""
        return self._final or self._scheduled

    def begin(self, scores: Metrics) -> End | None:
        """Take in the untrained model's scores; return `diverged` if its loss is not finite."""
        self._first_loss = _find(scores, self.loss)
        self._judge(0, self._first_loss, is_too_high=False)
        return None if self.divergence is None else "diverged"

    def see(
        self, step: int, scores: Metrics, weights: Callable[[], Weights], scheduled: bool
    ) -> End | None:
        """Take in the scores of an evaluation; return how the training ends here, None to go on."""
        value, loss = _find(scores, self.metric.name), _find(scores, self.loss)
        if isfinite(value) and (
            self.best is None or is_better(value, self.best.value, self.metric.better)
        ):
            best = Best(value, step, scores, weights())
            if not scheduled:
                self._final = best
            else:
                self._scheduled, self.stale = best, 0
        elif scheduled:
            self.stale += 1
        self._judge(step, loss, is_too_high=scheduled and self._is_too_high(loss))
        if self.divergence is not None:
            return "diverged"
        return "completed" if self.is_out_of_patience else None

    @property
    def is_out_of_patience(self) -> bool:
        """Whether as many evaluations as `patience` allows have gone by without a new best."""
        return self._patience is not None and self.stale >= self._patience

    def continue_beyond_budget(self) -> None:
        """Forget the evaluation that only the end of a shorter budget asked for."""
        self._final = None

    def state_dict(self) -> StateDict:
        return {
            "scheduled": vars(self._scheduled) if self._scheduled else None,
            "final": vars(self._final) if self._final else None,
            "stale": self.stale,
            "high": self._high,
            "first_loss": self._first_loss,
        }

    def load_state_dict(self, state: StateDict) -> None:
        self._scheduled = Best(**state["scheduled"]) if state["scheduled"] else None
        self._final = Best(**state["final"]) if state["final"] else None
        self.stale, self._high = state["stale"], state["high"]
        self._first_loss = state["first_loss"]

    def _judge(self, step: int, loss: float, *, is_too_high: bool) -> None:
        """Note why the training has diverged, if it has."""
        about = f"step {step}: the validation {self.loss} was {loss:g}"
        if not isfinite(loss):
            self.divergence = about
        elif is_too_high:
            self.divergence = (
                f"{about}, and so {say_count(self._high, 'evaluation')} in a row above "
                f"{self._rule.factor:g} times what it was before training, or the baseline"
            )

    def _is_too_high(self, loss: float) -> bool:
        """Whether the loss has been above its limit often enough. Source: `DivergenceConfig`."""
        floor = max(self._first_loss, self._baseline_loss or 0.0)
        self._high = self._high + 1 if loss > self._rule.factor * floor else 0
        return self._high >= self._rule.evaluations


class ReportedTests:
    """The best and the last test scores of one training, as some papers report them.

    The best of each metric may be of another evaluation, and was chosen by the test data itself: it
    stands beside such papers' numbers and selects nothing. As in `Selection`, what only the end of
    a budget asked for is forgotten when a longer one continues.
    """

    def __init__(self, metrics: Sequence[Metric]) -> None:
        self._better = {metric.name: metric.better for metric in metrics}
        self.best: Metrics = {}
        self.last: Metrics = {}
        self._scheduled = self.best, self.last

    def see(self, scores: Metrics, scheduled: bool) -> None:
        """Take in the test scores of an evaluation, finite numbers only."""
        self.best = {
            name: best(known, better)
            for name, better in self._better.items()
            if (known := [s[name] for s in (self.best, scores) if name in s])
        }
        self.last = scores
        if scheduled:
            self._scheduled = self.best, self.last

    def continue_beyond_budget(self) -> None:
        """Forget the evaluation that only the end of a shorter budget asked for."""
        self.best, self.last = self._scheduled

    def state_dict(self) -> StateDict:
        return {"best": self.best, "last": self.last, "scheduled": list(self._scheduled)}

    def load_state_dict(self, state: StateDict) -> None:
        self.best, self.last = state["best"], state["last"]
        best, last = state["scheduled"]
        self._scheduled = best, last


def selected(state: StateDict) -> Best | None:
    """Return the selected point in a state of `Training`, None if there is none."""
    best = state["selection"]["final"] or state["selection"]["scheduled"]
    return Best(**best) if best else None


def _find(scores: Metrics, name: str) -> float:
    """Return a score of the validation data.

    Raises:
        ValueError: if a task of one's own has not counted it there.
    """
    if name not in scores:
        raise ValueError(
            f"the validation data has no scores of '{name}', by which trainings are judged: "
            "`Task.scores` must count that metric in one of the batches that `evaluation` yields"
        )
    return scores[name]
