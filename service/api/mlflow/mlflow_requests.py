"""What may be asked of MLflow: lists of what is allowed, so that all else is refused.

The proxy (users) and the lock of MLflow's own process (drivers, too) read them. They name methods
and paths of MLflow 3.17; what another version adds is refused until it stands here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:  # MLflow's process reads this file, and has no use for the record
    from eigensweep.service.record.users.accounts import ScopeName

API: Final = re.compile(r"/(?:ajax-)?api/[23]\.0/(?:mlflow/)?")
"""What MLflow's programs and pages put before the name of what they ask for."""
PAGES: Final = re.compile(r"/(|version|static-files/.+|build/.+|get-artifact)")
LOOKED_AT: Final = re.compile(
    r"(experiments|runs|metrics|artifacts|logged-models|traces|datasets|registered-models|issues"
    r"|model-versions|scorers|label-schemas|review-queues|unified-traces|server-info"
    r"|ui-telemetry|get-trace-artifact|mlflow-artifacts|get-online-trace-details)(/.*)?"
)
"""What may be read: no gateway to other servers, no assistant with a shell, no jobs."""
ASKED: Final = re.compile(
    r"(experiments|runs|logged-models|traces|datasets|issues)/search|experiments/search-datasets"
    r"|traces/(metrics|batchGetInfos|calculate-filter-correlation)"
)
"""What is asked for with a body, and changes nothing."""
GRAPHQL: Final = "/graphql"
"""Reads and changes have one path there; see `is_query`."""


@dataclass(frozen=True)
class MlflowChange:
    """A change of MLflow's that goes through the proxy."""

    fields: tuple[str, ...]
    """What its body has, all of it text; first the id of the run, or of MLflow's experiment."""
    scope: ScopeName = "submit"
    """With `submit` for one's own, with `admin` for everybody's."""


CHANGES: Final = {
    "runs/set-tag": MlflowChange(("run_id", "key", "value")),
    "runs/delete-tag": MlflowChange(("run_id", "key")),
    "runs/update": MlflowChange(("run_id", "run_name")),
    "experiments/set-experiment-tag": MlflowChange(("experiment_id", "key", "value")),
    "experiments/delete-experiment-tag": MlflowChange(("experiment_id", "key")),
    "experiments/update": MlflowChange(("experiment_id", "new_name"), "admin"),
    "experiments/delete": MlflowChange(("experiment_id",), "admin"),
    "experiments/restore": MlflowChange(("experiment_id",), "admin"),
    "runs/delete": MlflowChange(("run_id",), "admin"),
    "runs/restore": MlflowChange(("run_id",), "admin"),
}
OWN_TAGS: Final = ("mlflow.note.content", "mlflow.runName", "mlflow.sharedViewState.")
"""What may be written of the tags by which MLflow and drivers work: notes, names, shared views."""


def name_request(path: str) -> str | None:
    """Return the name of what a path of MLflow's API asks for.

    >>> name_request("/ajax-api/2.0/mlflow/runs/search"), name_request("/get-artifact")
    ('runs/search', None)
    """
    prefix = API.match(path)
    return path[prefix.end() :] if prefix else None


def is_read(method: str, path: str) -> bool:
    """Return whether a request asks for something and changes nothing.

    >>> is_read("GET", "/get-artifact"), is_read("POST", "/ajax-api/2.0/mlflow/runs/search")
    (True, True)
    >>> is_read("POST", "/api/2.0/mlflow/runs/log-batch")
    False
    """
    name = name_request(path)
    if method in ("GET", "HEAD", "OPTIONS"):
        return bool(PAGES.fullmatch(path) if name is None else LOOKED_AT.fullmatch(name))
    if method != "POST":
        return False
    return path == GRAPHQL if name is None else bool(ASKED.fullmatch(name))


def is_query(text: str) -> bool:
    """Return whether a text of GraphQL only asks. One that has the word for a change does not.

    >>> is_query("query GetRun { mlflowGetRun { run { info { runUuid } } } }")
    True
    >>> is_query("mutation { testMutation { output } }")
    False
    """
    return re.search(r"\b(mutation|subscription)\b", text) is None


def is_own_tag(key: str) -> bool:
    """Return whether a tag is a person's own, and none by which MLflow or drivers work.

    >>> [is_own_tag(key) for key in ("team", "mlflow.note.content", "eigensweep.trial")]
    [True, True, False]
    """
    works = key.lower().strip().startswith(("mlflow.", "eigensweep."))
    return key.startswith(OWN_TAGS) or not works
