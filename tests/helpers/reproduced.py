"""Reproductions whose experiments a test plays, and whose reports are made in this process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers.open_jobs import has_open

from eigensweep.analyses.__main__ import main as make_analysis
from eigensweep.reports.__main__ import main as make_report
from eigensweep.results import figures
from eigensweep.results.seeds import summarise
from eigensweep.results.trial_result import ReplicateResult
from eigensweep.search_spaces.spec import ExperimentSpec
from eigensweep.service.queue.analyses import AnalysisHandler
from eigensweep.service.queue.jobs import JobRunner
from eigensweep.service.queue.reproductions import ReproductionHandler
from eigensweep.service.record.ledger import RecordLedger
from eigensweep.service.record.record import Record
from eigensweep.store.checkpoints import Store, replicate_key
from eigensweep.store.commits.curves import CurvePoint

NAME = "nnrnn/figure-5b"
"""A suite with one experiment and no analysis."""


def leave_undrawn(patch: pytest.MonkeyPatch) -> None:
    """Let an empty file stand for each picture: drawing takes most of the time of a report."""

    def save(draw: Any, content: Any, *paths: Path) -> None:
        for path in paths:
            path.touch()

    patch.setattr(figures, "save", save)
    patch.setattr("eigensweep.analyses.__main__.save", save)


class Reproducer:
    """Takes the reproductions of an application further, and its analyses, in this process."""

    def __init__(self, app: Any) -> None:
        service = app.state.service
        self.reproductions = service.reproductions
        self.reports = ReproductionHandler(
            service.store, service.reproductions, service.record, service.analyses
        )
        self.reports.children.run = make_report  # type: ignore[method-assign,assignment]
        self.analyses = AnalysisHandler(service.store, service.analyses)
        self.analyses.children.run = make_analysis  # type: ignore[method-assign,assignment]
        self.runner = JobRunner(service.jobs, [self.reports, self.analyses])

    def tick(self) -> bool:
        """Take each further; return whether any is still open."""
        self.runner.tick(self.reports)
        return has_open(self.runner.jobs, "reproduction")

    def make_analyses(self) -> None:
        """Make the analyses that were asked for."""
        self.runner.tick(self.analyses)


def play_driver(
    record: Record, storage: str, id: str, state: str = "completed", trials: int | None = None
) -> None:
    """Play the driver of an experiment to its end, or until so many trials have ended.

    Then another one has a checkpoint.
    """
    claim = record.claim(id)
    assert claim is not None
    spec = ExperimentSpec.from_stored(claim.spec)
    ledger, store = RecordLedger(record.url, id, claim.generation), Store(storage)
    for number, point in enumerate(spec.space()):
        config = spec.trial(point)
        content = config.model_dump(mode="json")
        ledger.open(number, point.arm, point.params, content, config.content_hash())
        attempt = ledger.begin(number)
        results, end = [], config.training.steps or 0
        for seed in config.seeds:
            value = 0.01 * (number + 1) + 1e-4 * seed
            key = replicate_key(id, number, seed)
            store.begin(key, 1)
            curve = [CurvePoint(s, {"valid/cross_entropy": value}, 0) for s in (0, end)]
            store.commit(key, 1, end, {}, curve)
            results.append(ReplicateResult(seed=seed, value=value, step=end, seconds=1.0))
        if number == trials:
            return
        ledger.finish(number, attempt, "completed", summarise(results))
    ledger.end(state, None if state == "completed" else "out of luck")
