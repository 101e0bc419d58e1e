"""What a client hears from the service: content, problems, events."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import httpx2

from eigensweep.workers.shared.states import ENDED

PATIENCE_SECONDS = 60.0
"""How long a client that follows an experiment waits for a service that went away."""


class ServiceAwayError(ConnectionError):
    """Nobody answers at the service's address."""


class RefusedError(Exception):
    """The service answered with a problem; `problem` is its `application/problem+json` body."""

    def __init__(self, status: int, problem: dict[str, Any]) -> None:
        self.status = status
        self.problem = problem
        super().__init__(status, problem)

    @property
    def errors(self) -> list[dict[str, Any]]:
        """One entry for each wrong field: path, message, and what was expected."""
        return self.problem.get("errors") or []

    def __str__(self) -> str:
        title = self.problem.get("title") or f"HTTP {self.status}"
        if not self.errors:
            return f"{title}: {self.problem.get('detail') or 'no more is known'}"
        lines = [f"{title}:"]
        for error in self.errors:
            words, names = error["message"], error.get("available") or []
            if names and not any(name in words for name in names):
                words += f"; there are {', '.join(names)}"
            lines.append(f"  {error['path']}: {words}" if error.get("path") else f"  {words}")
        return "\n".join(lines)


@dataclass(frozen=True)
class Event:
    """Something that happened to an experiment or one of its trials."""

    id: str
    kind: str
    """`experiment.started`, `trial.report`, `trial.completed`, ..."""
    data: dict[str, Any]

    @property
    def is_end(self) -> bool:
        """Whether nothing follows: the experiment is over."""
        subject, _, what = self.kind.partition(".")
        return subject == "experiment" and what in ENDED


def content_of(response: httpx2.Response) -> Any:
    """Return a response's JSON; raise RefusedError where it is a problem."""
    try:
        content = response.json()
    except ValueError:
        content = {"title": f"HTTP {response.status_code}", "detail": "the answer is not JSON"}
        raise RefusedError(response.status_code, content) from None
    if response.is_success:
        return content
    raise RefusedError(response.status_code, content if isinstance(content, dict) else {})
