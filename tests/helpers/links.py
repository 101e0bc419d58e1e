"""Reads links to MLflow's pages."""

from __future__ import annotations

from urllib.parse import urlsplit


def run_id_of(link: str) -> str:
    """Return the run whose page a link opens.

    >>> run_id_of("http://host/mlflow/#/experiments/1/runs/c5e4?workflowType=machine_learning")
    'c5e4'
    """
    return urlsplit(urlsplit(link).fragment).path.rpartition("/")[2]
