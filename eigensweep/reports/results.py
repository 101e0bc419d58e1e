"""The results of a reproduction in one file: every seed's curve, settings and scores.

A report is made of them alone, so that a page can be made again without a service, and another
machine goes on from them. Of curves the file keeps the metrics that the suite is about, at the
steps of evaluations, and of constraints their extremes. Numbers have six digits.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any, Final

from eigensweep.analyses.base import six_digits
from eigensweep.analyses.messages import RESULT
from eigensweep.common.machine import read_processor
from eigensweep.common.versions import git_revision, name_versions
from eigensweep.reports.messages import (
    Block,
    KeptAnalysis,
    KeptExperiment,
    KeptTrial,
    MadeAnalysis,
    MeasuredExperiment,
    MeasuredTrial,
    ReportOrder,
    Results,
)
from eigensweep.results.seeds import split_seeds, summarise
from eigensweep.results.trial_result import ReplicateResult, Result
from eigensweep.search_spaces.labels import say_count
from eigensweep.search_spaces.sections import ResourcesConfig
from eigensweep.search_spaces.shipped.reproductions import Suite, load_suite, published_rows
from eigensweep.search_spaces.spec import ExperimentSpec
from eigensweep.search_spaces.trial import TrialConfig
from eigensweep.store.checkpoints import Store, trial_key
from eigensweep.store.commits.curves import CurvePoint, cut
from eigensweep.store.places.durable_files import DamagedError, StorageError, storage_error

logger = logging.getLogger(__name__)

MOST_EVALUATIONS: Final = 1000
"""Most points of a curve; of a longer one, evenly spread ones are kept."""
UNFINISHED: Final = "unfinished"
"""Folder, among the files, of what has finished of suites that have not: no page shows it."""
CONSTRAINT: Final = "constraint/"
DEEP: Final = 6
"""Spaces before a line of JSON beyond which it is written behind the line before."""
LEFT_OUT: Final = ("standard_error", "interval", "reused_from", "reused_seconds")
"""What a result says of its seeds together, which they tell, and of this machine's record."""


class KeptCurves:
    """The curves of a file of results, read as those of a store are."""

    def __init__(self, results: Results) -> None:
        self._blocks = {
            f"{trial.place}/{seed}": blocks
            for experiment in results.experiments
            for trial in experiment.trials
            for seed, blocks in trial.curves.items()
        }

    def points(self, key: str) -> list[CurvePoint]:
        """Return the points that are kept of a replicate; none if nothing is."""
        return join_blocks(self._blocks.get(key, []))


def collect(order: ReportOrder) -> Results:
    """Return all that the report of a reproduction is made of, read from store and analyses.

    A damaged curve is left out.

    Raises:
        StorageError: if the store, or the folder of an analysis, cannot be read.
    """
    suite, store = load_suite(order.name), Store(order.storage)
    return Results(
        name=order.name,
        budget=order.budget,
        versions=name_versions(),
        revision=git_revision(),
        processor=name_processor(on_gpu=any(resources_of(e).gpus for e in order.experiments)),
        made_at=datetime.now(UTC),
        experiments=[_keep_experiment(suite, each, store) for each in order.experiments],
        analyses=[_keep_analysis(suite, each) for each in order.analyses],
        until=order.until,
    )


def with_what_has_ended(
    experiment: MeasuredExperiment, store: Store, data_root: Path | None
) -> MeasuredExperiment:
    """Return the same with only what is final: trials that have ended, and seeds of the others.

    Of a trial that has not, whether it goes on, waits or failed, its first seeds count that have
    ended: they are a trial with fewer seeds, whose results another machine takes over. `data_root`
    has the corpora.

    Raises:
        StorageError: if the store cannot be read.
    """
    ended = (_keep_ended_seeds(each, store, data_root) for each in experiment.trials)
    return experiment.model_copy(update={"trials": tuple(filter(None, ended))})


def write_results(results: Results) -> bytes:
    """Return results as a file, with a line for the curve of each seed."""
    content = {"format": results.format} | results.model_dump(mode="json", exclude_defaults=True)
    lines: list[str] = []
    for line in json.dumps(content, indent=1).splitlines():
        if len(line) - len(line.lstrip()) > DEEP:
            lines[-1] += line.lstrip()
        else:
            lines.append(line)
    return ("\n".join(lines) + "\n").encode()


def read_results(content: bytes) -> Results:
    """Read what `write_results` gave.

    Raises:
        ValueError: if it is no such file, or one of a later version.
    """
    return Results.model_validate_json(content)


def read_folder(folder: Path) -> list[Results]:
    """Return the results of all files in a folder, by name.

    Raises:
        ValueError: if one of them is no such file; the message names it.
        OSError: if one cannot be read.
    """
    found = []
    for path in sorted(folder.glob("*.json")):
        try:
            found.append(read_results(path.read_bytes()))
        except ValueError as error:
            raise ValueError(f"{path} holds no results of a reproduction: {error}") from error
    return found


def name_file(name: str, budget: str) -> str:
    """Return the name of a suite's file in a folder of results.

    >>> name_file("nnrnn/figure-2", "full")
    'nnrnn-figure-2-full.json'
    """
    return f"{name.replace('/', '-')}-{budget}.json"


def count_seeds(results: Results) -> int:
    """Return how many trainings and analyses are in it."""
    seeds = sum(len(trial.curves) for each in results.experiments for trial in each.trials)
    return seeds + sum(each.content is not None for each in results.analyses)


def merge(kept: Results, new: Results) -> Results:
    """Return new results, and with them what only the kept ones have.

    Where both have trained a configuration, the training with more seeds stays: the seeds of the
    other are its first ones.
    """
    experiments = {each.label: each for each in kept.experiments}
    for each in new.experiments:
        before = experiments.get(each.label)
        experiments[each.label] = each if before is None else _merge(before, each, kept.origin)
    analyses = {(each.label, each.repeat): each for each in kept.analyses}
    for made in new.analyses:
        if made.content is not None or (made.label, made.repeat) not in analyses:
            analyses[made.label, made.repeat] = made
    return new.model_copy(
        update={
            "experiments": list(experiments.values()),
            "analyses": list(analyses.values()),
            "until": new.until if new.added >= kept.added else kept.until,
            "note": new.note or kept.note,
        }
    )


def _merge(kept: KeptExperiment, new: KeptExperiment, origin: str) -> KeptExperiment:
    trials = {_identify(each): each for each in new.trials}
    taken = {each.number for each in (*kept.trials, *new.trials)}
    free = (number for number in count() if number not in taken)
    for earlier in kept.trials:
        now = trials.get(_identify(earlier))
        if not earlier.is_ended or (now is not None and _count(now) >= _count(earlier)):
            continue
        number = earlier.number if now is None else now.number
        if now is None and any(each.number == number for each in new.trials):
            number = next(free)
        result = _bound(_leave_out(name_origin(earlier, origin).to_dict()))
        trials[_identify(earlier)] = earlier.model_copy(
            update={"number": number, "place": trial_key(new.label, number), "result": result}
        )
    return new.model_copy(update={"trials": tuple(trials.values())})


def _identify(trial: KeptTrial) -> tuple[object, ...]:
    """Return what two trainings of an arm share: configuration, budget and first seed."""
    config = trial.config or {}
    budget = TrialConfig.from_dict(dict(config)).training.steps if config else None
    values = json.dumps(trial.params, sort_keys=True)
    return trial.arm, values, trial.config_hash, config.get("seed"), budget


def _count(trial: KeptTrial) -> int:
    """Return how many seeds a trial has trained to their end."""
    return len(Result.from_dict(trial.result or {}).by_replicate) if trial.is_ended else 0


def name_origin(trial: KeptTrial, origin: str) -> Result:
    """Return the result of an ended trial, whose seeds say where they were trained."""
    seeds = split_seeds(Result.from_dict(trial.result or {}))
    return summarise([replace(each, origin=each.origin or origin) for each in seeds])


def split_points(points: Sequence[CurvePoint], metrics: Iterable[str]) -> list[Block]:
    """Return a curve as columns: metrics that were taken at the same steps share a block."""
    steps_of: dict[str, tuple[int, ...]] = {}
    for name in metrics:
        steps = tuple(point.step for point in points if name in point.metrics)
        if steps:
            steps_of[name] = steps
    values = {point.step: point.metrics for point in points}
    blocks: dict[tuple[int, ...], Block] = {}
    for name, steps in steps_of.items():
        block = blocks.setdefault(steps, {"step": list(steps)})
        block[name] = [six_digits(values[step][name]) for step in steps]
    return list(blocks.values())


def join_blocks(blocks: Iterable[Block]) -> list[CurvePoint]:
    """Return the points of a curve that `split_points` made columns of.

    >>> [point.metrics for point in join_blocks([{"step": [0, 5], "valid/mse": [1.0, 0.5]}])]
    [{'valid/mse': 1.0}, {'valid/mse': 0.5}]
    """
    by_step: dict[int, dict[str, float]] = {}
    for block in blocks:
        for name, values in block.items():
            if name != "step":
                for step, value in zip(block["step"], values, strict=True):
                    by_step.setdefault(int(step), {})[name] = value
    return [CurvePoint(step, by_step[step], 0) for step in sorted(by_step)]


def resources_of(experiment: MeasuredExperiment) -> ResourcesConfig:
    """Return what a trial of an experiment occupied."""
    return ResourcesConfig.model_validate(experiment.spec.get("resources", {}))


def name_processor(*, on_gpu: bool = False) -> str:
    """Return the processor's name as Linux knows it, else as Python does, and its cores.

    With `on_gpu` also the kinds of this machine's GPUs.
    """
    name, cores = read_processor()
    words = f"{name}, {say_count(cores, 'core')}" if cores else name
    return f"{words}, {name_gpus()}" if on_gpu else words


def name_gpus() -> str:
    """Return the kinds of this machine's GPUs; where it has none, the trainings had another's."""
    import torch

    kinds = {torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count())}
    return " and ".join(sorted(kinds)) or "GPUs of another machine"


def _keep_experiment(suite: Suite, measured: MeasuredExperiment, store: Store) -> KeptExperiment:
    spec = ExperimentSpec.from_stored(measured.spec)
    wanted = _list_metrics(suite, measured.label, spec)
    trials = tuple(_keep_trial(each, measured.label, wanted, store) for each in measured.trials)
    return KeptExperiment.made_of(measured, trials=trials, id=None, run_id=None)


def _list_metrics(suite: Suite, label: str, spec: ExperimentSpec) -> dict[str, set[int]]:
    """Return the metrics of curves that the suite is about, and steps that must be kept of them."""
    objective = f"valid/{spec.objective_metric.name}"
    asked: list[tuple[str, int | None]] = [(objective, None)]
    asked += [(suite.experiments[label].curve or objective, None)]
    asked += [(claim.by.curve, claim.by.at) for claim in suite.claims if claim.by.curve]
    asked += [(row.metric, row.step) for row in published_rows(suite, label, spec)]
    wanted: dict[str, set[int]] = {}
    for name, step in asked:
        steps = wanted.setdefault(name, set())
        if step is not None:
            steps.add(step)
    return wanted


def _keep_trial(
    trial: MeasuredTrial, label: str, wanted: dict[str, set[int]], store: Store
) -> KeptTrial:
    config = None if trial.config is None else TrialConfig.from_dict(dict(trial.config))
    seeds, steps = ((), None) if config is None else (config.seeds, config.training.steps)
    curves: dict[int, list[Block]] = {}
    for seed in seeds:
        try:
            points = cut(store.points(f"{trial.place}/{seed}"), steps)
        except DamagedError:
            continue
        if blocks := _thin(points, wanted):
            curves[seed] = blocks
    return KeptTrial.made_of(
        trial,
        place=trial_key(label, trial.number),
        result=_bound(_leave_out(trial.result)),
        curves=curves,
    )


def _keep_ended_seeds(
    trial: MeasuredTrial, store: Store, data_root: Path | None
) -> MeasuredTrial | None:
    """Return a trial as if it had only its first seeds that have ended; None if it has none."""
    if trial.is_ended:
        return trial
    if trial.config is None:
        return None
    ended = list[ReplicateResult]()
    try:
        for result in _find_ends(trial, store, data_root):
            ended.append(result)
    except DamagedError:
        pass  # the next attempt trains that seed again
    except StorageError:
        raise
    except (AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        # its corpus is not here, or another version of the code trained it
        words = "cannot read the seeds of %s after the first %d: %s"
        logger.warning(words, trial.place, len(ended), error)
    if not ended:
        return None
    whole = summarise(ended)
    return trial.model_copy(
        update={
            "state": "diverged" if whole.outcome == "diverged" else "completed",
            "config": trial.config | {"replicates": len(ended)},
            "result": whole.to_dict(),
            "error": None,
        }
    )


def _find_ends(
    trial: MeasuredTrial, store: Store, data_root: Path | None
) -> Iterator[ReplicateResult]:
    """Yield the results of a trial's seeds, up to the first that has not ended."""
    from eigensweep.training.training import Training

    config = TrialConfig.from_dict(dict(trial.config or {}))
    for seed in config.seeds:
        snapshot = store.newest(f"{trial.place}/{seed}")
        if snapshot is None or snapshot.state.get("outcome") is None:
            return
        training = Training(config, seed, data_root=data_root)
        if not training.can_use(snapshot.state):
            return
        training.load_state_dict(snapshot.state)
        if not training.is_finished:  # that was the end of a smaller budget
            return
        yield training.result()


def _thin(points: Sequence[CurvePoint], wanted: dict[str, set[int]]) -> list[Block]:
    """Return what is kept of a curve."""
    evaluated = [p.step for p in points if any(name.startswith("valid/") for name in p.metrics)]
    stride = max(1.0, (len(evaluated) - 1) / (MOST_EVALUATIONS - 1))
    spread = [evaluated[round(k * stride)] for k in range(min(len(evaluated), MOST_EVALUATIONS))]
    kept, asked = set(spread), set[int]().union(*wanted.values())
    shown = [p for p in points if p.step in kept or p.step in asked]
    blocks = split_points(shown, wanted)
    names = {name for p in points for name in p.metrics if name.startswith(CONSTRAINT)}
    for name in sorted(names):
        having = [p for p in points if name in p.metrics]
        pick = min if name.endswith("_min") else max
        blocks += split_points([pick(having, key=lambda p: p.metrics[name])], [name])
    return blocks


def _keep_analysis(suite: Suite, made: MadeAnalysis) -> KeptAnalysis:
    """Return an analysis with its numbers; of a further repetition only those of the claims."""
    content, problem = made.content, made.problem
    if made.folder is not None:
        path = Path(made.folder) / RESULT
        try:
            content = _bound(json.loads(path.read_bytes()))
        except (FileNotFoundError, ValueError) as error:
            problem = problem or str(error)
        except OSError as error:
            raise storage_error("read", path, error) from error
    if content is not None and made.repeat > 0:
        asked = {name for claim in suite.claims for name in (claim.by.number, claim.by.over)}
        wanted = {re.split(r"[.\[]", name)[0] for name in asked if name is not None}
        content = {name: value for name, value in content.items() if name in wanted}
    return KeptAnalysis.made_of(made, problem=problem, content=content)


def _leave_out(result: Any) -> Any:
    """Return a result, or a part of it, without what is left out."""
    if isinstance(result, dict):
        return {name: _leave_out(part) for name, part in result.items() if name not in LEFT_OUT}
    return [_leave_out(part) for part in result] if isinstance(result, list) else result


def _bound(content: Any) -> Any:
    """Return JSON whose numbers have six digits."""
    if isinstance(content, float):
        return six_digits(content)
    if isinstance(content, dict):
        return {name: _bound(value) for name, value in content.items()}
    return [_bound(value) for value in content] if isinstance(content, list) else content
