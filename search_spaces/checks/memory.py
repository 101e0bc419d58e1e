"""How much memory a trial takes, guessed from sizes before anything is built.

`python -m bench.trial_memory` compares the guess with attempts that really train: twelve sizes take
0.6 to 1.3 times the guess.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from eigensweep.search_spaces.errors import InvalidPointError
from eigensweep.search_spaces.lanes import count_members
from eigensweep.search_spaces.parameters import Scalar
from eigensweep.search_spaces.sections import ResourcesConfig
from eigensweep.search_spaces.spec import ExperimentSpec
from eigensweep.search_spaces.trial import TrialConfig

NUMBER: Final = 4
"""Bytes of a number in single precision."""
PROCESS: Final = 330 * 10**6
"""Bytes of a trial's process that has trained nothing yet: Python, Ray and PyTorch."""
DEVICE_PROCESS: Final = 1_500 * 10**6
"""The same of one that uses a GPU. It is assumed; only processes without one were measured."""
THIN_PROCESS: Final = 90 * 10**6
"""Bytes of the process of a trial that trains in a lane: about 69 MB were measured."""
FIRST_STEP: Final = 12 * 10**6
"""What the first step and the first commit add, whatever the size."""
COPIES: Final = 20
"""Numbers for each entry of a parameter: its gradient, two means of Adam, the selected weights, and
the copies from which a commit is made."""
EVERY_OUTPUT: Final = 3
"""Numbers for each output that is scored: logits, their logarithms, their gradient."""
SMALL_UNITS: Final = 64
"""Up to so many hidden units the seeds of a trial may train side by side."""
SIZED: Final = "task", "model"
"""Sections of a configuration that decide what it takes; each trial of a spec has as many seeds."""
SPARE: Final = 10**9
"""A trial may take this and twice the guess before it is ended."""


@dataclass(frozen=True)
class MemoryEstimate:
    """What one trial takes, in bytes."""

    host: int
    """Main memory of the trial's process."""
    device: int
    """Memory of the GPU; 0 where it trains on CPUs."""


def estimate_memory(
    config: TrialConfig, *, on_gpu: bool = False, cpus: float = 1.0
) -> MemoryEstimate:
    """Return what a trial takes that has a process to itself; `config` is resolved.

    On a CPU so many seeds train at once as it has cores.
    """
    kept, training = _sizes(config)
    is_small = (config.model.hidden_size or 1) <= SMALL_UNITS
    cores = 1 if on_gpu else max(1, int(cpus))
    at_once = config.replicates if is_small else min(cores, config.replicates)
    tensors = config.replicates * kept + at_once * training + FIRST_STEP
    corpus = config.task.corpus_bytes
    if on_gpu:
        return MemoryEstimate(DEVICE_PROCESS + corpus + config.replicates * kept, tensors)
    return MemoryEstimate(PROCESS + corpus + tensors, 0)


def estimate_lanes(config: TrialConfig, lanes: int, *, on_gpu: bool) -> MemoryEstimate:
    """Return what an engine takes whose lanes are full, with the processes of its trials."""
    each = sum(_sizes(config))
    trials = count_members(lanes, config.replicates)
    around = config.task.corpus_bytes + trials * THIN_PROCESS
    if on_gpu:
        return MemoryEstimate(DEVICE_PROCESS + around, lanes * each + FIRST_STEP)
    return MemoryEstimate(PROCESS + around + lanes * each + FIRST_STEP, 0)


def list_extremes(
    spec: ExperimentSpec, sections: Collection[str] = ()
) -> Iterator[tuple[str, TrialConfig]]:
    """Yield each arm with the resolved configurations of its extreme points.

    With `sections`, such as `model`, only one of those that are the same in these sections.
    """
    space = spec.space()
    for arm in space.arms:
        seen: set[tuple[tuple[str, Scalar], ...]] = set()
        for point in spec.corners(space, arm):
            of_sections = tuple(
                (path, value)
                for path, value in point.params.items()
                if path.partition(".")[0] in sections
            )
            if sections and of_sections in seen:
                continue
            try:
                config = spec.trial(point)
            except InvalidPointError:
                continue
            seen.add(of_sections)
            yield arm, config


def estimate_arms(spec: ExperimentSpec, measured: int = 1) -> dict[str, MemoryEstimate]:
    """Return for each arm what its largest trial takes; with lanes, what their engine takes.

    `measured` is the number of lanes where the spec says `auto`.
    """
    on_gpu, lanes = spec.resources.gpus > 0, spec.resources.lanes
    lanes = measured if lanes == "auto" else lanes
    found: dict[str, MemoryEstimate] = {}
    for arm, config in list_extremes(spec, SIZED):
        if lanes is None:
            here = estimate_memory(config, on_gpu=on_gpu, cpus=spec.resources.cpus)
        else:
            here = estimate_lanes(config, lanes, on_gpu=on_gpu)
        before = found.get(arm, here)
        found[arm] = MemoryEstimate(max(here.host, before.host), max(here.device, before.device))
    return found


def reserve_memory(spec: ExperimentSpec, measured: int = 1) -> ResourcesConfig:
    """Return the resources with the memory that a trial reserves on its node.

    It is what the spec says, or the guess for the largest trial. `measured` is the number of lanes
    where the spec says `auto`.
    """
    if spec.resources.memory is not None:
        return spec.resources
    return reserve(spec, estimate_arms(spec, measured))


def reserve(spec: ExperimentSpec, guesses: Mapping[str, MemoryEstimate]) -> ResourcesConfig:
    """Return the same for guesses that are known: what `estimate_arms` says of the spec."""
    if spec.resources.memory is not None:
        return spec.resources
    most = max((each.host for each in guesses.values()), default=None)
    return spec.resources.model_copy(update={"memory": most})


def limit_memory(spec: ExperimentSpec, config: TrialConfig) -> int:
    """Return the bytes of main memory with more of which a trial is ended."""
    if spec.resources.memory is not None:
        return spec.resources.memory
    on_gpu, cpus = spec.resources.gpus > 0, spec.resources.cpus
    return limit_of(estimate_memory(config.resolve(), on_gpu=on_gpu, cpus=cpus))


def limit_of(guess: MemoryEstimate) -> int:
    """Return the bytes of main memory with more of which a trial with this guess is ended."""
    return 2 * guess.host + SPARE


def _sizes(config: TrialConfig) -> tuple[int, int]:
    """Return the bytes that one training keeps between steps, and those that a step adds."""
    shapes, model, n = config.task.shapes, config.model, config.model.hidden_size or 1
    parameters = model.free_parameters(shapes) + n * n
    positions = config.task.sequence_length * config.task.batch_size
    outputs = shapes.output_size if shapes.readout == "all" else 0
    step = model.saved_numbers + EVERY_OUTPUT * outputs + shapes.input_size
    return NUMBER * COPIES * parameters, NUMBER * positions * step
