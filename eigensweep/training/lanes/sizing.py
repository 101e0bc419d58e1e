"""How many lanes a device is best given: measured with the real program, and remembered.

The number is doubled for as long as that lets the device take at least a tenth more lane-steps a
second, and its memory holds them. Then numbers near it are tried that just fill a GPU. It depends
on device and shape and not on learning rates and seeds, so one measurement serves all trials of a
shape.
"""

from __future__ import annotations

import gc
import json
import logging
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch

from eigensweep.common.machine import read_processor
from eigensweep.models.recurrence.cuda import kernels, scan
from eigensweep.protocol.code import own_code
from eigensweep.search_spaces.trial import TrialConfig
from eigensweep.store.places.durable_files import write_whole
from eigensweep.training.errors import is_out_of_memory
from eigensweep.training.lanes.stacked.group import Group, explain_alone, shape_key
from eigensweep.training.training import Training

logger = logging.getLogger(__name__)

LEAST_GAIN = 1.1
"""Doubling the lanes has to bring this many times the lane-steps a second."""

MEMORY_SHARE = 0.8
"""Lanes take at most this share of the memory that is free."""

MOST_LANES = 512
ROUNDS, ROUND_SECONDS = 3, 0.5
"""Each number of lanes is timed so often, for so long; the median counts."""

STILL_RATE = 1e-30
"""The learning rate of what is timed: at one of a search's ends a network may diverge."""


@dataclass(frozen=True)
class Measurement:
    """What was measured with one number of lanes; 0 lanes are a training without a group."""

    lanes: int
    step_seconds: float
    """Seconds of a step of all lanes together."""
    bytes: int | None
    """Memory that they take on the device; None where it was not measured."""

    @property
    def lane_steps_a_second(self) -> float:
        """Steps a second, of all lanes together."""
        return max(1, self.lanes) / self.step_seconds


@dataclass(frozen=True)
class Choice:
    """How many lanes are best for a shape on a device."""

    lanes: int
    why: str
    """Why it is not more, for a person to read."""
    measurements: tuple[Measurement, ...] = ()


Measure = Callable[[int], Measurement]
"""Measures a number of lanes; with 0, one training without a group."""


def choose_lanes(
    config: TrialConfig,
    device: str,
    *,
    folder: Path | str | None = None,
    data_root: str | None = None,
    most: int = MOST_LANES,
) -> Choice:
    """Return how many lanes are best for trials of this shape on this device.

    The first call measures, for some seconds to a minute, and keeps the choice in a file of
    `folder`; later calls with the same device, shape and code read it. Nobody else should use the
    device meanwhile.
    """
    if reason := explain_alone(config):
        return Choice(1, reason)
    path = None if folder is None else Path(folder) / _file_name(config, device)
    if path is not None and (known := _read(path)) is not None:
        return known
    bench = _Bench(config, device, data_root)
    on_cpu = torch.device(device).type == "cpu"
    full = [] if on_cpu else list_full(config, kernels.count_processors(torch.device(device)))
    choice = decide(bench.measure, bench.free_bytes, most=most, can_train_alone=on_cpu, full=full)
    logger.info("lanes chosen lanes=%d why=%s", choice.lanes, choice.why)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(asdict(choice), indent=1).encode())
    return choice


def decide(
    measure: Measure,
    free_bytes: int | None,
    *,
    most: int = MOST_LANES,
    can_train_alone: bool = False,
    full: Sequence[int] = (),
) -> Choice:
    """Return the number of lanes from which on doubling gains too little, or does not fit.

    `free_bytes` is the memory that is free before anything is measured. With `can_train_alone` the
    best number must gain over a training without a group, as on a CPU. `full` are numbers of lanes
    that just fill the device: those between half and twice the best doubled one are tried, too.
    """
    room = None if free_bytes is None else int(MEMORY_SHARE * free_bytes)
    measured = [measure(1)]
    while True:
        last = measured[-1]
        lanes = 2 * last.lanes
        if lanes > most:
            why = f"more than {most} are not asked for"
            break
        fitting = largest_fitting(measured, room)
        if fitting is not None and lanes > fitting:
            why = f"the memory holds {fitting} lanes"
            break
        try:
            measured.append(measure(lanes))
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            why = f"the memory does not hold {lanes} lanes"
            break
        gain = measured[-1].lane_steps_a_second / last.lane_steps_a_second
        if gain < LEAST_GAIN:
            why = f"{lanes} lanes take {gain:.2f} times the steps of {last.lanes}"
            break
    best = last
    for lanes in full:
        fitting = largest_fitting(measured, room)
        is_near = last.lanes < 2 * lanes and lanes < 2 * last.lanes and lanes != last.lanes
        if not is_near or lanes > most or (fitting is not None and lanes > fitting):
            continue
        try:
            filled = measure(lanes)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            break
        measured.append(filled)
        least = LEAST_GAIN if lanes > best.lanes else 1.0
        if filled.lane_steps_a_second > least * best.lane_steps_a_second:
            best, why = filled, f"{lanes} lanes just fill the device"
    measured.sort(key=lambda each: each.lanes)
    if can_train_alone:
        alone = measure(0)
        measured.insert(0, alone)
        gain = best.lane_steps_a_second / alone.lane_steps_a_second
        if gain < LEAST_GAIN:
            words = f"{best.lanes} lanes take {gain:.2f} times the steps of one training alone"
            return Choice(1, words, tuple(measured))
    return Choice(best.lanes, why, tuple(measured))


def list_full(config: TrialConfig, processors: int) -> list[int]:
    """Return the numbers of lanes whose rows just fill so many multiprocessors.

    A cluster of the scan kernel takes up to six rows of a lane's batch side by side. Gated networks
    have clusters of other sizes: for them the numbers are a guess.

    >>> from eigensweep.search_spaces.trial import TrialConfig
    >>> config = {"task": {"name": "copying", "delay": 9, "batch_size": 20},
    ...           "model": {"name": "exprnn", "hidden_size": 192}, "training": {"steps": 1}}
    >>> list_full(TrialConfig.from_dict(config), processors=132)
    [6, 13, 19, 26, 33, 39]
    """
    n = config.resolve().model.hidden_size or 1
    if n > scan.LARGEST:
        return []
    clusters, batch = processors // scan.count_blocks(n), config.task.batch_size
    return sorted({rows * clusters // batch for rows in scan.ROWS} - {0})


def largest_fitting(
    measured: tuple[Measurement, ...] | list[Measurement], room: int | None
) -> int | None:
    """Return how many lanes fit into so many bytes, None if memory was not measured.

    A lane takes what the last doubling added to each new lane.

    >>> one, two = Measurement(1, 1.0, 30), Measurement(2, 1.0, 40)
    >>> largest_fitting([one, two], 100)
    8
    """
    known = [(each.lanes, each.bytes) for each in measured if each.lanes and each.bytes is not None]
    if room is None or not known:
        return None
    (lanes, used), (fewer, before) = known[-1], known[-2] if len(known) > 1 else (0, 0)
    a_lane = max(1, (used - before) / (lanes - fewer))
    return max(1, lanes + int((room - used) / a_lane))


class _Bench:
    """Trainings of one shape, to be timed in groups."""

    def __init__(self, config: TrialConfig, device: str, data_root: str | None) -> None:
        config = config.resolve()
        endless = config.training.model_copy(
            update={"steps": 10**9, "evaluate_every": 10**9, "log_every": 10**9, "patience": None}
        )
        still = config.optimizer.model_copy(update={"lr": STILL_RATE, "lr_orth": STILL_RATE})
        self._config = config.model_copy(update={"training": endless, "optimizer": still})
        self._device, self._data_root = device, data_root
        self._is_cuda = torch.device(device).type == "cuda"
        self.free_bytes: int | None = torch.cuda.mem_get_info(device)[0] if self._is_cuda else None

    def measure(self, lanes: int) -> Measurement:
        if self._is_cuda:
            gc.collect()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self._device)
        if not lanes:
            training = self._make(0)
            return Measurement(
                0, self._time(training, lambda: training.run_for(ROUND_SECONDS)), None
            )
        trainings = [self._make(seed) for seed in range(lanes)]
        group = Group(trainings[0], lanes)
        try:
            for training in trainings:
                group.join(training)
            seconds = self._time(trainings[0], lambda: group.advance(ROUND_SECONDS))
        finally:
            group.close()
        used = torch.cuda.max_memory_reserved(self._device) if self._is_cuda else None
        return Measurement(lanes, seconds, used)

    def _make(self, seed: int) -> Training:
        return Training(self._config, seed, data_root=self._data_root, device=self._device)

    def _time(self, training: Training, act: Callable[[], Any]) -> float:
        """Return the median seconds of a step, after one round that is not counted."""
        rounds = []
        for _ in range(1 + ROUNDS):
            before, began = training.step, time.perf_counter()
            while training.step == before:  # the first call may only evaluate
                if training.is_finished:
                    raise RuntimeError("its steps cannot be timed: its loss is not finite")
                began = time.perf_counter()
                act()
            rounds.append((time.perf_counter() - began) / (training.step - before))
        return median(rounds[1:])


def _file_name(config: TrialConfig, device: str) -> str:
    """Return a file's name that says device, shape and code."""
    if torch.device(device).type == "cuda":
        name = torch.cuda.get_device_name(device)
    else:
        name = f"{read_processor()[0]} x{torch.get_num_threads()}"
    words = re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-")
    return f"lanes-{words}-{shape_key(config)}-{own_code().digest}.json"


def _read(path: Path) -> Choice | None:
    """Return the choice in a file, None if there is none that can be read."""
    try:
        content = json.loads(path.read_text())
        measured = tuple(Measurement(**each) for each in content.pop("measurements"))
        return Choice(**content, measurements=measured)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError) as error:
        logger.warning("lanes are measured again, the file cannot be read: %s", error)
        return None
