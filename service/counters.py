"""What the service's process counts from its start; `/metrics` shows it."""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics

disable_created_metrics()  # type: ignore[no-untyped-call]  # a third of all lines, unused
REGISTRY: Final = CollectorRegistry(auto_describe=True)

RESTARTS: Final = Counter(
    "eigensweep_restarts",
    "Starts of a part that had run before: Ray, MLflow's server, guard, driver of an experiment.",
    ["part"],
    registry=REGISTRY,
)
for _part in ("ray", "mlflow", "guard", "driver"):
    RESTARTS.labels(_part)

HTTP_SECONDS: Final = Histogram(
    "eigensweep_http_seconds",
    "Seconds from a request to the first byte of its answer, by method, route and status.",
    ["method", "route", "status"],
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
    registry=REGISTRY,
)
