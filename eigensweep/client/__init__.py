"""The service from Python, over HTTP. Runs in a user's process; loads no torch, Ray or MLflow.

Each uses only those above it: spec_file and answers, connection, events, remote and trial;
experiments, analyses and reproductions; client.
"""

from __future__ import annotations

from eigensweep.client.analyses import Analysis, AnalysisFailedError
from eigensweep.client.client import Client
from eigensweep.client.connection import RefusedError, ServiceAwayError
from eigensweep.client.events import Event
from eigensweep.client.experiments import Experiment
from eigensweep.client.reproductions import Reproduction
from eigensweep.client.spec_file import InputError

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
