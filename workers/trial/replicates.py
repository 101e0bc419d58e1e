"""All replicates of one configuration, trained here and now: for a notebook or a script."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch

from eigensweep.search_spaces.trial import TrialConfig
from eigensweep.workers.shared import spectrum_files
from eigensweep.workers.shared.checkpoints import CurvePoint, Store
from eigensweep.workers.shared.messages import ConfigJson, Metrics, ReplicateResult, Result
from eigensweep.workers.shared.results import summarise
from eigensweep.workers.shared.states import Outcome
from eigensweep.workers.trial.training import Training


@dataclass(frozen=True)
class TrialResult:
    """What came of training one configuration, for a person to look at."""

    config: TrialConfig
    summary: Result
    curves: dict[int, list[CurvePoint]] = field(repr=False)
    """Each replicate's curve, by its seed."""

    @property
    def outcome(self) -> Outcome | None:
        """`completed`, or `diverged`."""
        return self.summary.outcome

    @property
    def value(self) -> float | None:
        """Mean of the best validation values of the objective."""
        return self.summary.value

    @property
    def baseline(self) -> float | None:
        """What a memoryless model scores, to compare `value` with."""
        return self.summary.baseline

    @property
    def test(self) -> Metrics:
        """Mean of each test metric at the selected points."""
        return self.summary.test

    @property
    def replicates(self) -> tuple[ReplicateResult, ...]:
        """The result of each seed."""
        return self.summary.by_replicate


def train(
    config: TrialConfig | ConfigJson,
    *,
    data_root: Path | str | None = None,
    device: str | None = None,
    on_point: Callable[[int, CurvePoint], None] | None = None,
    folder: Path | str | None = None,
) -> TrialResult:
    """Train every replicate of a configuration, here and now, and return the result.

    With a `folder`, checkpoints are kept in it: called again after an interruption, or with a
    longer budget, training goes on from there. `on_point(seed, point)` is called with each point of
    the curve. `device` is a GPU by default, if there is one.

    Raises:
        ValueError: if the configuration contradicts itself, with what is allowed.
    """
    if isinstance(config, dict):
        config = TrialConfig.from_dict(config)
    config = config.resolve()
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    store = Store(folder) if folder else None
    results: list[ReplicateResult] = []
    curves: dict[int, list[CurvePoint]] = {}
    for seed in config.seeds:
        training = Training(config, seed, data_root=data_root, device=device)
        curves[seed] = _train_replicate(training, store, on_point)
        results.append(training.result())
    return TrialResult(config, summarise(results), curves)


def _train_replicate(
    training: Training,
    store: Store | None,
    on_point: Callable[[int, CurvePoint], None] | None,
) -> list[CurvePoint]:
    """Train to the end, from the newest checkpoint in the store on, and return the whole curve."""
    key = f"{training.config.content_hash()}/{training.seed}"
    attempt = 0
    curve: list[CurvePoint] = []
    if store is not None:
        attempt = store.attempt(key) + 1
        store.begin(key, attempt)
        if snapshot := store.newest(key):
            training.load_state_dict(snapshot.state)
            curve += snapshot.points

    def commit() -> None:
        points = training.drain()
        spectra = training.drain_spectra()
        if store is not None:
            for step, content in spectra:
                spectrum_files.write(store.root / key, step, content)
            store.commit(key, attempt, training.step, training.state_dict(), points)
        for point in points:
            curve.append(point)
            if on_point is not None:
                on_point(training.seed, point)

    training.run(commit=commit)
    return curve
