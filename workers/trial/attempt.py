"""One attempt at a trial: its replicates, trained from rung to rung with commits. No Ray here."""

from __future__ import annotations

import io
import json
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from statistics import fmean

import torch

from eigensweep.direction import best
from eigensweep.search_spaces.trial import TrialConfig
from eigensweep.workers.shared import spectrum_files
from eigensweep.workers.shared.checkpoints import CurvePoint, Store, cancel_mark, replicate_key
from eigensweep.workers.shared.durable_files import write_whole
from eigensweep.workers.shared.messages import OBJECTIVE, End, Metrics, Order, Report
from eigensweep.workers.shared.results import summarise
from eigensweep.workers.trial.training import Training

logger = logging.getLogger(__name__)

GLANCE_SECONDS = 1.0
"""Seconds of training between two looks whether the trial was cancelled or a commit is due."""

LIVELY_SECONDS = 2.0
"""A commit that costs little is made this often, so that curves in MLflow move."""

COMMIT_SHARE = 0.05
"""Commits take at most this share of the time, unless `checkpoint_seconds` have passed."""


class NoLongerWanted(Exception):  # noqa: N818  (not an error)
    """The experiment was cancelled while this trial was training."""


def warm_up() -> None:
    """Make torch load what it loads with a process's first optimizer, a second's worth."""
    torch.optim.SGD([torch.zeros(1)], lr=1.0)


class Attempt:
    """The replicates of one trial, picked up where the store has them."""

    def __init__(self, order: Order, device: str) -> None:
        """Begin the attempt that `order` describes.

        Raises:
            StaleAttemptError: if a later attempt has begun.
        """
        torch.set_num_threads(max(1, int(order.resources["CPU"])))
        config = TrialConfig.from_dict(order.config)
        store, mark = Store(order.storage), cancel_mark(order.storage, order.experiment)
        self.replicates = [
            Replicate(
                Training(config, seed, data_root=order.data_root, device=device),
                order,
                store,
                is_unwanted=mark.exists,
            )
            for seed in config.seeds
        ]
        self.rungs = order.rungs
        self.reported = order.reported
        """Step of the last rung that the ledger has heard of."""

    def advance(self) -> Report:
        """Train to the next rung that was not reported, and return what to report there.

        A rung that lies before the checkpoint is answered from the curve, without training.
        """
        rung = next((r for r in self.rungs if r > self.reported), self.rungs[-1])
        try:
            for replicate in self.replicates:
                replicate.train(rung)
                if replicate.has_diverged(rung):
                    break
        except NoLongerWanted:
            return Report(self.reached_step, outcome="cancelled")
        self.reported = rung
        diverged = any(r.has_diverged(rung) for r in self.replicates)
        ended = diverged or all(r.has_ended(rung) for r in self.replicates)
        result = summarise([r.training.result() for r in self.replicates])
        metrics = self._metrics(rung)
        outcome: End | None = None
        if ended:
            outcome = "diverged" if diverged else "completed"
            for replicate in self.replicates:
                replicate.keep_best()
            if result.value is not None and not diverged:
                metrics[OBJECTIVE] = result.value
        elif OBJECTIVE in metrics:
            result = replace(result, value=metrics[OBJECTIVE])
        reached = max(min(rung, r.training.step) for r in self.replicates)
        return Report(reached, metrics, outcome, result)

    @property
    def reached_step(self) -> int:
        """Step of the replicate that has come furthest."""
        return max(r.training.step for r in self.replicates)

    def _metrics(self, rung: int) -> Metrics:
        """Return the best value up to a rung and the latest evaluation, means over replicates."""
        metric = self.replicates[0].training.selection.metric
        key = f"valid/{metric.name}"
        bests, latest = [], []
        for replicate in self.replicates:
            seen = [metrics for step, metrics in replicate.evaluations if step <= rung]
            values = [metrics[key] for metrics in seen if key in metrics]
            if not values:
                return {}
            bests.append(best(values, metric.better))
            latest.append(seen[-1])
        shared = set.intersection(*(set(metrics) for metrics in latest))
        means = {name: fmean(m[name] for m in latest) for name in sorted(shared)}
        return {OBJECTIVE: fmean(bests), **means}


class Replicate:
    """One training with its place in the store."""

    def __init__(
        self,
        training: Training,
        order: Order,
        store: Store,
        is_unwanted: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin the attempt in the store and go on from what is committed there.

        `clock` gives seconds; a commit is due when enough of them have passed.
        """
        self.training = training
        self._store, self._is_unwanted, self._clock = store, is_unwanted, clock
        self.evaluations: list[tuple[int, Metrics]] = []
        """Step and metrics of every evaluation so far."""
        self._key = key = replicate_key(order.experiment, order.number, training.seed)
        self._attempt, self._checkpoint_seconds = order.attempt, order.checkpoint_seconds
        store.begin(key, order.attempt)
        if order.donor is not None:
            donor = replicate_key(order.donor.experiment, order.donor.number, training.seed)
            if store.copy(donor, key):
                logger.info("going on from a smaller budget donor=%s key=%s", donor, key)
        snapshot = store.newest(key)
        if snapshot is not None:
            training.load_state_dict(snapshot.state)
            self._remember(snapshot.points)
        self._committed_step = -1 if snapshot is None else snapshot.step
        self._committed_at = clock()
        self._cost = 0.0

    def train(self, rung: int) -> None:
        """Train to `rung`, unless that is behind us, and commit what is new there."""
        if not self.training.is_finished and self.training.step < rung:
            self.training.run(rung, self._glance, GLANCE_SECONDS)
        if self.training.step > self._committed_step:
            self._commit()

    def has_ended(self, rung: int) -> bool:
        """Tell whether this training was over when it came to `rung`."""
        return self.training.is_finished and self.training.step <= rung

    def has_diverged(self, rung: int) -> bool:
        """Tell whether this training had diverged when it came to `rung`."""
        return self.has_ended(rung) and self.training.outcome == "diverged"

    def keep_best(self) -> None:
        """Write the weights of the selected point to `best.pt`, beside the checkpoints."""
        best = self.training.selection.best
        if best is None:
            return
        content = {
            "config": json.dumps(self.training.config.model_dump(mode="json")),
            "seed": self.training.seed,
            "step": best.step,
            "value": best.value,
            "weights": best.weights,
        }
        buffer = io.BytesIO()
        torch.save(content, buffer)
        write_whole(self._store.root / self._key / "best.pt", buffer.getvalue())

    def _glance(self) -> None:
        if self._is_unwanted():
            raise NoLongerWanted
        pause = max(LIVELY_SECONDS, self._cost / COMMIT_SHARE)
        if self._clock() - self._committed_at >= min(pause, self._checkpoint_seconds):
            self._commit()

    def _commit(self) -> None:
        training, began = self.training, self._clock()
        for step, spectra in training.drain_spectra():
            spectrum_files.write(self._store.root / self._key, step, spectra)
        points = training.drain()
        self._store.commit(self._key, self._attempt, training.step, training.state_dict(), points)
        self._remember(points)
        self._committed_step, self._committed_at = training.step, self._clock()
        self._cost = self._committed_at - began

    def _remember(self, points: list[CurvePoint]) -> None:
        known = self.evaluations[-1][0] if self.evaluations else 0
        for point in points:
            metrics = {k: v for k, v in point.metrics.items() if k.startswith("valid/")}
            if metrics and point.step > known:
                self.evaluations.append((point.step, metrics))
