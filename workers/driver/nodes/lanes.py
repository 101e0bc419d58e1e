"""How many lanes an engine gets where a spec says `auto`: measured where the trials will run."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

import ray
import ray.exceptions
import torch

from eigensweep.common.machine import find_free_memory
from eigensweep.common.private_folders import cache_folder
from eigensweep.protocol.code import check_code, own_code
from eigensweep.protocol.messages import Code, ConfigJson, DriverOptions
from eigensweep.protocol.shares import node_labels
from eigensweep.search_spaces.checks.memory import THIN_PROCESS, list_extremes
from eigensweep.search_spaces.checks.preview import training_seconds
from eigensweep.search_spaces.spec import ExperimentSpec
from eigensweep.search_spaces.trial import TrialConfig
from eigensweep.store.checkpoints import Store
from eigensweep.store.places.files import is_url
from eigensweep.training.corpora import find_data_root
from eigensweep.training.lanes import sizing

logger = logging.getLogger(__name__)

LANES_UNMEASURED = {"cpu": 4, "cuda": 16}
"""Lanes where they could not be measured."""

MEASURING_SECONDS = 300.0
"""How long the measurement may take, waiting for a free device included."""


def choose_lanes(
    spec: ExperimentSpec,
    options: DriverOptions,
    why_stop: Callable[[], str | None],
    provide: Callable[[ConfigJson], str | None],
) -> int:
    """Return how many lanes are best for the largest configuration of a spec.

    `provide` returns the archive in the store with a configuration's corpus, if there is one.

    A Ray task with an engine's cores and GPU measures that. Where it fails, or no device becomes
    free for so long, a log line says so, and a fixed number is taken.
    """
    device = "cuda" if spec.resources.gpus else "cpu"
    config = max((config for _, config in list_extremes(spec)), key=training_seconds)
    task = ray.remote(
        num_cpus=spec.resources.cpus,
        num_gpus=spec.resources.gpus,
        label_selector=node_labels(spec.resources),
        max_retries=0,
        max_calls=1,  # its process ends, and with it the memory that was tried out
    )(_measure)
    threads = max(1, int(spec.resources.cpus))
    content = config.model_dump(mode="json")
    found = task.remote(
        content, device, threads, options.storage, options.data_root, provide(content), own_code()
    )
    deadline = time.monotonic() + MEASURING_SECONDS
    while why_stop() is None and time.monotonic() < deadline:
        ready, _ = ray.wait([found], timeout=1.0)
        if ready:
            break
    else:
        ray.cancel(found, force=True)
    lanes = LANES_UNMEASURED[device]
    try:
        measured, why = ray.get(found, timeout=1.0)
    except (ray.exceptions.RayError, ray.exceptions.GetTimeoutError) as error:
        words = "lanes could not be measured, taking a fixed number device=%s lanes=%d: %s"
        logger.warning(words, device, lanes, error)
        return lanes
    logger.info("lanes measured device=%s lanes=%d why=%s", device, measured, why)
    return int(measured)


def _measure(
    config: ConfigJson,
    device: str,
    threads: int,
    storage: str,
    data_root: str | None,
    archive: str | None,
    code: Code,
) -> tuple[int, str]:
    """Measure in a process that has the device to itself; the storage remembers what came out."""
    check_code(code)
    torch.set_num_threads(threads)
    parsed = TrialConfig.from_dict(config)
    most = find_free_memory() // 2 // THIN_PROCESS
    chosen = sizing.choose_lanes(
        parsed,
        device,
        folder=(cache_folder() if is_url(storage) else Path(storage)) / "lanes",
        data_root=find_data_root(parsed, Store(storage), data_root, archive),
        most=max(1, min(most, sizing.MOST_LANES)),
    )
    return chosen.lanes, chosen.why
