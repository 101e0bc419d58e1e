"""What is to be written to runs of MLflow, many of them in one request to a server of ours.

Plain data: what `Runs` sends is read by the service's `mlflow_writer`. A server of somebody else's
does not know the request, and is sent one run after the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self

PATH: Final = "/api/2.0/eigensweep/runs"
"""Where a server of ours takes the request: `POST {"project": ID, "runs": [...]}`.

It answers `{"refused": {run id: why}}`. A project of None asks only whether it is known.
"""
MLFLOW_USER: Final = "mlflow.user"
"""The tag that MLflow's lists show as a run's user."""
PROXIED: Final = "mlflow-artifacts:/"
"""How the place of artifacts begins that a server keeps itself."""
MOST_RUNS: Final = 100
"""Runs in one request."""
MOST_POINTS: Final = 10_000
"""Metrics in one request; a longer curve comes in several."""

Point = tuple[str, float, int, int]
"""A metric's name, value, time in milliseconds and step."""


def is_kept_by_server(place: str) -> bool:
    """Return whether a server keeps the artifacts of a place itself, and no client of it does.

    >>> [is_kept_by_server(p) for p in ("mlflow-artifacts:/7", "mlflow-artifacts://host/7", "/etc")]
    [True, False, False]
    """
    return place.startswith(PROXIED) and not place.startswith(f"{PROXIED}/")


@dataclass
class RunWrite:
    """What is to be written to one run, which is made if it is not there.

    Written twice, it is there once.
    """

    run_id: str
    """32 hexadecimal digits."""
    name: str
    """Empty where it is there already: it is not made."""
    start_time: int
    """When the run began, in milliseconds; counts where it is made."""
    tags: dict[str, str] = field(default_factory=dict)
    """An empty one is removed."""
    params: dict[str, str] = field(default_factory=dict)
    points: list[Point] = field(default_factory=list)
    texts: dict[str, str] = field(default_factory=dict)
    """Path below the run's artifacts to content."""
    status: str | None = None
    """RUNNING, FINISHED, FAILED or KILLED; None leaves it as it is."""
    end_time: int | None = None

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        points = [(str(n), float(v), int(t), int(s)) for n, v, t, s in content["points"]]
        return cls(**{**content, "points": points})

    def to_dict(self) -> dict[str, object]:
        return dict(vars(self))

    def cut(self, points: int) -> RunWrite:
        """Return this, or a part with the first `points` of its points, which says of no end."""
        if len(self.points) <= points:
            return self
        return replace(self, points=self.points[:points], status=None, end_time=None)

    def drop(self, part: RunWrite) -> bool:
        """Forget what was written with a `part` of this; return whether that was all."""
        if part is self:
            return True
        self.points = self.points[len(part.points) :]
        self.name, self.params, self.texts = "", {}, {}  # it is made now
        return False


def next_request(waiting: Iterable[RunWrite]) -> list[RunWrite]:
    """Return what the next request holds of what is waiting."""
    chosen: list[RunWrite] = []
    room = MOST_POINTS
    for write in waiting:
        if room <= 0 or len(chosen) == MOST_RUNS:
            break
        chosen.append(write.cut(room))
        room -= len(chosen[-1].points)
    return chosen
