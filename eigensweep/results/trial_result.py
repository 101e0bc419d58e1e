"""The result of a trial and of each of its replicates, as it is stored."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from eigensweep.common.plain_data import Message
from eigensweep.results.statistics import Summary, find_domain, summarize

Outcome = Literal[
    "completed", "pruned", "diverged", "stalled", "failed", "cancelled", "reused", "invalid"
]
"""How a trial can end."""

End = Literal["completed", "diverged"]
"""How a training ends by itself."""

Metrics = dict[str, float]
"""Values by name, finite numbers only."""


@dataclass(frozen=True)
class Source(Message):
    """A trial, in any experiment, whose result is reused or whose training is continued."""

    experiment: str
    """The experiment's id."""
    number: int
    run_id: str | None = None
    """Its MLflow run, if it is known."""


@dataclass(frozen=True)
class ParameterCount(Message):
    """How many parameters a model has."""

    free: int
    """Trained ones; of a matrix that a constraint binds, those that may be chosen freely."""
    stored: int
    """Numbers that its weights hold."""


def _read_metrics(content: Mapping[str, float | None]) -> Metrics:
    """Return metrics without the numbers that were not finite when they were stored."""
    return {name: value for name, value in content.items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class Measures(Message):
    """What was measured of a training so far: finite numbers only, None or empty where unknown.

    Metrics carry the units that their task declares.
    """

    outcome: Outcome | None = None
    """None while there is more to train."""
    value: float | None = None
    """The best validation value of the objective's metric."""
    best_step: int | None = None
    """Optimizer step at which `value` was reached: the selected point."""
    step: int = 0
    """Optimizer steps taken."""
    valid: Metrics = field(default_factory=dict)
    """Validation scores at the selected point."""
    test: Metrics = field(default_factory=dict)
    """Test scores at the selected point; empty before the end."""
    seconds: float = 0.0
    """Time spent in training, evaluations included."""
    parameters: ParameterCount | None = None
    baseline: float | None = None
    """What a memoryless model scores on the objective's metric."""
    constraint: Metrics = field(default_factory=dict)
    """How well the model's constraint holds, at the last evaluation."""
    best_test: Metrics | None = None
    """The best test scores of any evaluation; None unless each evaluation tests."""
    last_test: Metrics | None = None
    """The test scores of the last evaluation; None unless each evaluation tests."""
    code: str | None = None
    """What `TrialConfig.code` was where it trained; several with commas, if that changed."""
    step_seconds: float | None = None
    """Median processor time of an optimizer step; None on a GPU, whose time no processor counts."""

    READ: ClassVar[Mapping[str, Callable[[Any], Any]]] = {
        "parameters": ParameterCount.from_dict,
        **dict.fromkeys(("valid", "test", "constraint", "best_test", "last_test"), _read_metrics),
    }
    RARE: ClassVar[frozenset[str]] = frozenset({"best_test", "last_test", "code", "step_seconds"})


@dataclass(frozen=True, kw_only=True)
class ReplicateResult(Measures):
    """The result of one replicate: one training of a trial, with its own seed."""

    seed: int
    origin: str | None = None
    """Where it was trained, in words, if it was taken up from a file of results; else None."""
    divergence: str | None = None
    """What was not finite, or too high, and at which step; None if it did not diverge."""
    reused_seconds: float | None = None
    """Those of `seconds` that were taken over from another trial; None: it was trained here."""

    RARE = Measures.RARE | {"origin", "divergence", "reused_seconds"}

    def to_dict(self) -> dict[str, object]:
        """Return plain data without what is the same for, or summed up over, all replicates."""
        content = super().to_dict()
        for name in ("parameters", "baseline", "constraint"):
            del content[name]
        return {"seed": self.seed, **content}


LAST = ("best_test", "last_test", "by_replicate", "reused_from")
"""What comes last in the plain data of a result."""


@dataclass(frozen=True, kw_only=True)
class Result(Measures):
    """The result of a trial: means over its replicates, with their spread.

    Those that diverged count in neither, unless all of them did.
    `seconds` is the sum over the replicates, and `step` the least. Trainings side by side in lanes
    share the time that passes among them, so the sum over all is the time of the device.
    """

    replicates: int = 1
    by_replicate: tuple[ReplicateResult, ...] = ()
    reused_from: Source | None = None
    """The trial whose result this is, where it was not trained again."""

    READ = {  # noqa: RUF012
        **Measures.READ,
        "by_replicate": lambda each: tuple(map(ReplicateResult.from_dict, each)),
        "reused_from": Source.from_dict,
    }
    RARE = Measures.RARE | {"by_replicate", "reused_from"}

    @property
    def statistics(self) -> dict[str, Summary]:
        """Mean, n, spread and interval of `value`, and of each `valid/NAME` and `test/NAME`."""
        return summarize_replicates(self.by_replicate)

    @property
    def interval(self) -> dict[str, tuple[float, float] | None]:
        """The 95% confidence interval of each of `statistics`; None for a single replicate."""
        return {name: found.interval for name, found in self.statistics.items()}

    def to_dict(self) -> dict[str, object]:
        """Return plain data, with the spread of the replicates; its order is that of answers."""
        content, found = super().to_dict(), self.statistics
        last = {name: content.pop(name) for name in LAST if name in content}
        spread = {
            "standard_error": {name: each.standard_error for name, each in found.items()},
            "interval": {n: each.interval and list(each.interval) for n, each in found.items()},
        }
        return content | spread | last


def find_ratio(value: float | None, baseline: float | None) -> float | None:
    """Return a value as a part of the baseline; None where one of them is unknown."""
    return value / baseline if value is not None and baseline else None


def summarize_replicates(replicates: Iterable[Measures]) -> dict[str, Summary]:
    """Return the statistics of `value`, `valid/NAME` and `test/NAME` over the replicates.

    Those that diverged are left out, unless all of them did.
    """
    given = list(replicates)
    kept = [each for each in given if each.outcome != "diverged"] or given
    return _summarize((each.value, {"valid": each.valid, "test": each.test}) for each in kept)


def summarize_stored(
    result: Mapping[str, Any], splits: Sequence[str] = ("valid", "test")
) -> dict[str, Summary]:
    """Return the `statistics` of a result as it is stored, without reading the rest of it."""
    given = result.get("by_replicate", ())
    kept = [each for each in given if each.get("outcome") != "diverged"] or given
    return _summarize(
        (each.get("value"), {split: each.get(split) or {} for split in splits}) for each in kept
    )


def _summarize(
    rows: Iterable[tuple[float | None, Mapping[str, Mapping[str, float | None]]]],
) -> dict[str, Summary]:
    """Summarize the value, and the metrics on each part of the data, of several trainings."""
    columns: dict[str, list[float]] = {}
    for value, splits in rows:
        if value is not None:
            columns.setdefault("value", []).append(value)
        for split, metrics in splits.items():
            for name, number in metrics.items():
                if number is not None:
                    columns.setdefault(f"{split}/{name}", []).append(number)
    domains = {name: find_domain(name) for name in columns}
    if "value" in columns:  # it has no name of its own: it is the metric with the same numbers
        of = (name for name in columns if name != "value" and columns[name] == columns["value"])
        domains["value"] = find_domain(next(of, "value"))
    return {name: summarize(numbers, domains[name]) for name, numbers in columns.items()}
