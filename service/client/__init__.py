"""The service from Python, over HTTP. It loads neither torch nor Ray nor MLflow."""

from __future__ import annotations

from eigensweep.service.client.analyses import Analysis
from eigensweep.service.client.answers import Event, RefusedError, ServiceAwayError
from eigensweep.service.client.client import Client
from eigensweep.service.client.experiments import Experiment
from eigensweep.service.client.spec_file import InputError

__all__ = [
    "Analysis",
    "Client",
    "Event",
    "Experiment",
    "InputError",
    "RefusedError",
    "ServiceAwayError",
]
