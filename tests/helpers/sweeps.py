"""Sweeps without Ray: a spec, and a ledger in a file."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Set
from pathlib import Path
from typing import Any

from file_ledger import FileLedger

from eigensweep.protocol.messages import DriverOptions, Order, Place, Report
from eigensweep.protocol.shares import share_of
from eigensweep.results.trial_result import Result
from eigensweep.search_spaces.spec import ExperimentSpec
from eigensweep.workers.driver.experiment import make_order
from eigensweep.workers.driver.nodes.cordons import NOWHERE, Cordons
from eigensweep.workers.driver.search.study import Study
from eigensweep.workers.driver.sweep import Job, Sweep
from eigensweep.workers.driver.tune.searcher import ExperimentSearch

COPYING: dict[str, Any] = {
    "name": "copying",
    "delay": 4,
    "symbols": 2,
    "batch_size": 4,
    "train_size": None,
    "valid_size": 8,
    "test_size": 8,
}

SCORNN = {"name": "scornn", "hidden_size": 10, "negative_fraction": 0.5}


def spec(search: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """Return a spec of a small scoRNN on copying, with a search."""
    arm = {} if "arms" in fields else {"model": SCORNN}
    return {
        "task": COPYING,
        "training": {"steps": 20, "evaluate_every": 5},
        "search": search,
        **arm,
        **fields,
    }


def at(node: str, host: str | None = None) -> Place:
    """Return a place on a node by Ray's id, with the name of its host."""
    return Place(host or node, 1, "cpu", node_id=node)


class Bench:
    """A driver's memory: one ledger, and a new sweep whenever it starts anew."""

    def __init__(
        self,
        folder: Path,
        content: dict[str, Any],
        retries: int = 3,
        find_nodes: Callable[[], Set[str]] = lambda: frozenset((NOWHERE,)),
        find_silent_nodes: Callable[[], Set[str]] = frozenset,
        clock: Callable[[], float] = time.monotonic,
        **how: Any,
    ) -> None:
        """`how` is what each new sweep is given beside its memory, its nodes and its clock."""
        self.find_nodes, self.find_silent_nodes, self.clock = find_nodes, find_silent_nodes, clock
        self.folder, self.retries, self.how = folder, retries, how
        folder.mkdir(exist_ok=True)
        self.spec = ExperimentSpec.model_validate(content)
        self.share = share_of(self.spec.resources, self.spec.replicates, None)
        self.ledger = FileLedger(folder / "ledger.json")
        self.start()

    def start(self) -> None:
        """Forget everything but the files, as a new driver does."""
        self.study = Study(self.spec)
        how = {"resume_state": self.ledger.resume_state(), **self.how}
        self.sweep = Sweep(
            self.spec,
            self.ledger,
            self.study,
            retries=self.retries,
            cordons=Cordons(
                lambda: self.find_nodes(), lambda: self.find_silent_nodes(), lambda: self.clock()
            ),
            clock=lambda: self.clock(),
            **how,
        )
        self.search = ExperimentSearch(self, {})

    def next_order(self) -> Order | None:
        job = self.sweep.next_job()
        options = DriverOptions(storage=str(self.folder))
        return None if job is None else make_order("e1", self.spec, options, self.share, job)

    def must_stop(self) -> bool:
        return False

    def find_missing_commit(self, order: Order, report: Report) -> str | None:
        return None

    def is_full(self) -> bool:
        return False

    def ask(self) -> Job | None:
        """Return the job that Tune is given, None if there is none for now."""
        order = self.next_order()
        if order is None:
            return None
        return Job(self.sweep.entries[order.number], order.attempt, order.donor)

    def ends(self) -> bool:
        """Return whether Tune, if it asks once more, finds that the search is over."""
        return self.ask() is None and self.search.is_finished()

    def run(
        self,
        value: Callable[[dict[str, Any]], float | Result] = lambda params: 1.0,
        most: int = 10_000,
    ) -> list[dict[str, Any]]:
        """Run trials one by one; `value` makes the result, diverged where that is infinite."""
        points: list[dict[str, Any]] = []
        while len(points) < most and isinstance(job := self.ask(), Job):
            points.append(job.entry.params)
            self.sweep.begin(job.entry.number, job.attempt)
            result = value(job.entry.params)
            if isinstance(result, Result):
                self.sweep.end(job.entry.number, "completed", result)
            elif math.isfinite(result):
                self.sweep.report(job.entry.number, 20, {"objective": result}, None)
                self.sweep.end(job.entry.number, "completed", Result(value=result, step=20))
            else:
                self.sweep.end(job.entry.number, "diverged", Result(value=None, step=3))
        return points

    def in_optuna(self) -> dict[int, Any]:
        """Return what Optuna of a new driver would know of the ledger's trials, by number."""
        found = {}
        for entry in self.ledger.load():
            study = Study(self.spec)
            study.take_up([entry])
            found[entry.number] = next(iter(study.trials()), None)
        return found
