"""The service from Python, over HTTP. Runs in a user's process; loads no torch, Ray or MLflow.

Each file uses only those above it: spec_file, connection, tables, answers, events,
remote, trial, trial_table; experiments, analyses and reproductions; client.
"""

from __future__ import annotations

from eigensweep.service.client.analyses import Analysis, AnalysisFailedError
from eigensweep.service.client.client import Client
from eigensweep.service.client.connection import RefusedError, ServiceAwayError
from eigensweep.service.client.events import Event
from eigensweep.service.client.experiments import Experiment
from eigensweep.service.client.reproductions import Reproduction
from eigensweep.service.client.spec_file import InputError

__all__ = [
    "Analysis",
    "AnalysisFailedError",
    "Client",
    "Event",
    "Experiment",
    "InputError",
    "RefusedError",
    "Reproduction",
    "ServiceAwayError",
]
