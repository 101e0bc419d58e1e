"""What Prometheus reads: the state of the record, and what this process has counted.

Runs in the service's process.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import accumulate
from typing import Any, Final

from fastapi import APIRouter, Request, Response
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from sqlalchemy.exc import SQLAlchemyError

from eigensweep.service.api.answers.shared_answers import TimedCache
from eigensweep.service.api.answers.writers import BusyError
from eigensweep.service.api.parts import Service
from eigensweep.service.api.routes.health import CHECKS
from eigensweep.service.counters import REGISTRY
from eigensweep.service.record.views.counts import DURATIONS, Counts, Durations, Trainer, count_all
from eigensweep.store.places.durable_files import StoreAwayError

router = APIRouter(tags=["health"])

FRESH_SECONDS: Final = 1.0
"""Seconds for which counts are shown again at least."""
SHARE: Final = 0.05
"""The most that counting takes of one core, however often it is asked for."""


class FreshCounts(TimedCache[Counts]):
    """The counts of the record; `read` raises SQLAlchemyError if the database does not answer."""

    def __init__(self, url: str, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(self._count, seconds=FRESH_SECONDS, share=SHARE, clock=clock)
        self._url = url
        self._counts: Counts | None = None

    def _count(self) -> Counts:
        self._counts = keep_rising(self._counts, count_all(self._url))
        return self._counts


def keep_rising(before: Counts | None, now: Counts) -> Counts:
    """Return the counts of now, where what Prometheus takes for counters never falls.

    A trial that is opened again, or an experiment that is deleted, makes counts fall; Prometheus
    would take that for a restart and add the whole count once more.
    """
    if before is None:
        return now
    counted = (before.counted or before, now)
    delivered = before.delivered + max(0, now.delivered - counted[0].delivered)
    seconds = {
        kind: before.device_seconds[kind] + max(0.0, later - counted[0].device_seconds[kind])
        for kind, later in now.device_seconds.items()
    }
    durations = {}
    for outcome in before.durations.keys() | now.durations.keys():
        shown = before.durations.get(outcome, Durations())
        earlier, later = (each.durations.get(outcome, Durations()) for each in counted)
        rises = (max(0, b - a) for a, b in zip(earlier.below, later.below, strict=True))
        below = [have + rise for have, rise in zip(shown.below, rises, strict=True)]
        durations[outcome] = Durations(
            below, shown.seconds + max(0.0, later.seconds - earlier.seconds)
        )
    return replace(
        now, delivered=delivered, durations=durations, device_seconds=seconds, counted=now
    )


class ServiceCollector(Collector):
    """What there is to see of one service; without its database: only what needs none."""

    def __init__(self, service: Service | None, version: str = "0") -> None:
        """`service` is None where only the names of the metrics are asked for."""
        self._service, self._version = service, version
        self._fresh = None if service is None else FreshCounts(service.record.url)

    def describe(self) -> list[Metric]:
        return [*_about_parts(None, self._version), *_about_record(Counts())]

    def collect(self) -> Iterator[Metric]:
        yield from _about_parts(self._service, self._version)
        if self._fresh is None:
            return
        try:
            counts = self._fresh.read()
        except (SQLAlchemyError, BusyError):
            return  # `eigensweep_ready` says so
        yield from _about_record(counts)


def _about_parts(service: Service | None, version: str) -> Iterator[Metric]:
    info = InfoMetricFamily("eigensweep_build", "The version of the service.")
    info.add_metric([], {"version": version})
    yield info
    ready, free, size = dict[str, float](), dict[str, float](), dict[str, float]()
    if service is not None:
        ready = {name: look(service).ready for name, look in CHECKS.items()}
        for name, folder in service.settings.disk_folders.items():
            # The folder is made when it is first needed, and a shared one may hang.
            with suppress(OSError, StoreAwayError):
                usage = service.look_at(name, partial(shutil.disk_usage, folder))
                free[name], size[name] = usage.free, usage.total
    words = "Whether a part is ready (1) or not (0), as /readyz says."
    yield _by_label("ready", words, "part", ready)
    yield _by_label("disk_free_bytes", "Free space of a folder's disk.", "folder", free)
    yield _by_label("disk_size_bytes", "Size of a folder's disk.", "folder", size)


def _about_record(counts: Counts) -> Iterator[Metric]:
    yield _by_label("experiments", "Experiments in each state.", "state", counts.experiments)
    yield GaugeMetricFamily(
        "eigensweep_queue_depth",
        "Experiments that wait to be started.",
        counts.experiments["queued"],
    )
    yield _by_label("trials", "Trials in each state.", "state", counts.trials)
    seconds = HistogramMetricFamily(
        "eigensweep_trial_seconds",
        "Seconds from the first start of a trial to its end, waits included, by outcome.",
        labels=["outcome"],
    )
    for outcome, durations in counts.durations.items():
        bounds = [*map(str, map(float, DURATIONS)), "+Inf"]
        rising = list(zip(bounds, map(float, accumulate(durations.below)), strict=True))
        seconds.add_metric([outcome], rising, durations.seconds)
    yield seconds
    yield GaugeMetricFamily(
        "eigensweep_trials_ended_last_hour",
        "Trials that have ended in the last 3600 seconds.",
        counts.ended_last_hour,
    )
    yield CounterMetricFamily(
        "eigensweep_mlflow_delivered_trials",
        "Trials that have ended and that MLflow holds.",
        counts.delivered,
    )
    backlog = {"trials": counts.undelivered_trials, "experiments": counts.undelivered_experiments}
    yield _by_label("mlflow_backlog", "What has ended and is not in MLflow yet.", "what", backlog)
    words = "Seconds for which trials had a process, times the CPU cores or GPUs of each."
    yield _by_label("device_seconds", words, "kind", counts.device_seconds, CounterMetricFamily)
    yield from _about_devices(counts.trainers)


def _about_devices(trainers: list[Trainer]) -> Iterator[Metric]:
    devices = {(trainer.node, trainer.device) for trainer in trainers}
    engines = [
        (trainer.lanes, trainer.replicates) for trainer in trainers if trainer.lanes is not None
    ]
    kinds = {"cpu": 0, "cuda": 0}
    for _, device in devices:
        kinds["cuda" if device.startswith("cuda") else "cpu"] += 1
    yield _by_label(
        "devices_in_use",
        "Devices on which trials train. All CPUs of a node are one device. A trial counts from "
        "its first report on.",
        "kind",
        kinds,
    )
    lanes = {
        "used": sum(min(lanes, replicates) for lanes, replicates in engines),
        "free": sum(max(0, lanes - replicates) for lanes, replicates in engines),
    }
    yield _by_label("lanes", "Lanes of engines that train, used and free.", "use", lanes)


def _by_label(
    name: str, words: str, label: str, values: Mapping[str, float], kind: Any = GaugeMetricFamily
) -> Metric:
    family = kind(f"eigensweep_{name}", words, labels=[label])
    for value, count in values.items():
        family.add_metric([value], count)
    return family


def make_registry(service: Service | None, version: str = "0") -> CollectorRegistry:
    """Return what collects the metrics of one service and of its process."""
    registry = CollectorRegistry()
    registry.register(ServiceCollector(service, version))
    ProcessCollector(registry=registry)
    registry.register(REGISTRY)
    return registry


@router.get(
    "/metrics",
    summary="Metrics for Prometheus",
    response_class=Response,
    responses={200: {"content": {"text/plain": {}}, "description": "Prometheus's text format"}},
)
def show_metrics(request: Request) -> Response:
    """Return all metrics in Prometheus's text format; docs/reference/metrics.md lists them."""
    encode, kind = choose_encoder(request.headers.get("accept", ""))
    return Response(encode(request.app.state.metrics), headers={"Content-Type": kind})
