"""How processes of ours connect to Ray, each as a job of its own. Loads Ray and nothing else."""

from __future__ import annotations

import logging
from typing import Any, Final

import ray
from ray.job_config import JobConfig

from eigensweep.workers.processes.engine_actor import NAMESPACE

EXPERIMENT: Final = "eigensweep.experiment"
"""Key of what the job of a driver says of itself: the experiment that it drives."""


def connect(experiment: str | None = None, **settings: Any) -> dict[str, str]:
    """Start Ray or connect to it, as the driver of an experiment if one is given.

    Return where Ray's processes and files are, by Ray's names.
    """
    context: Any = ray.init(
        namespace=NAMESPACE,
        job_config=JobConfig(metadata={} if experiment is None else {EXPERIMENT: experiment}),
        log_to_driver=False,
        logging_level=logging.WARNING,
        configure_logging=False,
        **settings,
    )
    return context.address_info
