"""What a spec asks for and will not get, though it can run: words for the preview and the post."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain

from pydantic import BaseModel

from eigensweep.models import MODELS
from eigensweep.models.base import Model
from eigensweep.search_spaces.checks.memory import list_extremes
from eigensweep.search_spaces.hashing import is_default
from eigensweep.search_spaces.labels import format_value, say_count
from eigensweep.search_spaces.spec import ExperimentSpec
from eigensweep.search_spaces.trial import TrialConfig

COMPARING = frozenset({"asha", "hyperband", "median"})
"""Schedulers that stop trials."""
READ_BY: Mapping[str, frozenset[object]] = {
    "alpha": frozenset({"rmsprop", "rmsprop_tf1", "rmsprop_urnn"}),
    "betas": frozenset({"adam", "adamw", "adam_tf1"}),
    "momentum": frozenset({"sgd", "rmsprop", "rmsprop_tf1", "rmsprop_urnn"}),
}
"""The update rules that read a field of the optimizer, for those that not all of them read."""


def list_warnings(spec: ExperimentSpec) -> list[str]:
    """Return a sentence for each setting that has no effect; the spec passed `check_spec`."""
    compares = spec.scheduler.name in COMPARING
    asked = spec.training.evaluate_every is not None or any(
        "training.evaluate_every" in arm.space for arm in spec.arms_
    )
    found = (
        _warn_of_few_points,
        _warn_of_fixed,
        _warn_of_warm_up,
        _warn_of_unread,
        _warn_of_other_tasks,
    )
    words = list(dict.fromkeys(chain.from_iterable(warn(spec) for warn in found)))
    if not (compares or asked):
        return words
    configs = [config for _, config in list_extremes(spec, ("task", "training"))]
    if asked:
        words += _warn_of_evaluations(configs)
    if compares and configs:
        longest = max(configs, key=lambda config: config.training.steps or 1)
        words += _warn_of_stopping(spec, longest.training.steps or 1, spec.first_rung(longest))
    return words


def _warn_of_few_points(spec: ExperimentSpec) -> Iterator[str]:
    """Yield that the space has fewer points than the search is to try; grid says so elsewhere."""
    most, asked = spec.trial_count(), spec.search.trials
    if most is None or asked is None or spec.search.method == "grid":
        return
    if most < min(asked, spec.limits.trials or asked):
        yield (
            f"The space has {say_count(most, 'point')}, so the search ends after "
            f"{say_count(most, 'trial')}; 'search.trials' is {asked:,}"
        )


def _warn_of_fixed(spec: ExperimentSpec) -> Iterator[str]:
    """Yield the fields that have a value where the search gives them others.

    A value that all arms share is the default of an arm whose own space varies the field, and
    under a condition it is the value where the condition does not hold. An item of a list is
    written because the others are.
    """
    for index, arm in enumerate(spec.arms_):
        own = None if spec.arms is None else spec.arms[index]
        for path, axis in arm.space.items():
            section, _, field = path.partition(".")
            fixed: dict[str, BaseModel | None] = {"model": arm.model, "optimizer": arm.optimizer}
            if own is None or path not in own.space:
                fixed |= {"task": spec.task, "training": spec.training}
            else:
                fixed["optimizer"] = own.optimizer
            config = fixed.get(section)
            if config is None or axis.when or field not in type(config).model_fields:
                continue
            if not is_default(config, field):
                value = format_value(getattr(config, field))
                yield f"'{path}' is searched, so its fixed value {value} has no effect"


def _warn_of_unread(spec: ExperimentSpec) -> Iterator[str]:
    """Yield the searched fields of the optimizer that no update rule of an arm reads.

    Trials that differ in such a field alone are the same training. Fields with a condition are
    left out: whoever writes one has thought of that.
    """
    for arm in spec.arms_:
        assert arm.optimizer is not None
        model = MODELS[arm.model.name]
        has_orth = model.param_groups is not Model.param_groups
        rules: set[object] = set()
        for field in ("name", "name_orth") if has_orth else ("name",):
            axis = arm.space.get(f"optimizer.{field}")
            if axis is None or axis.when:
                rules.add(getattr(arm.optimizer, field))
            if axis is not None:
                rules |= {*axis.extremes()}
        for path, axis in arm.space.items():
            section, _, rest = path.partition(".")
            field = rest.partition(".")[0]
            if section != "optimizer" or axis.when:
                continue
            if field in ("lr_orth", "name_orth") and not has_orth:
                yield f"'{path}' changes nothing in {arm.label}: it has no orthogonal matrices"
            elif field in READ_BY and rules.isdisjoint(READ_BY[field]):
                taken = ", ".join(sorted(map(str, rules - {None})))
                yield f"'{path}' changes nothing in {arm.label}: {taken} does not read it"


def _warn_of_other_tasks(spec: ExperimentSpec) -> Iterator[str]:
    """Yield that a scheduler compares trials that learn different tasks."""
    paths = dict.fromkeys(p for arm in spec.arms_ for p in arm.space if p.startswith("task."))
    known = spec.objective_metric.name in spec.task.baselines
    if spec.scheduler.name != "none" and paths and known and spec.baseline is None:
        yield (
            f"'{', '.join(paths)}' is searched, so trials learn tasks with other baselines: "
            f"{spec.scheduler.name} compares their values all the same"
        )


def _warn_of_warm_up(spec: ExperimentSpec) -> Iterator[str]:
    """Yield which arms warm up for longer than their trials train."""
    path = "optimizer.warmup_steps"
    for arm in spec.arms_:
        assert arm.optimizer is not None
        if not arm.optimizer.warmup_steps or path in arm.space:
            continue
        extremes = list_extremes(spec, ("task", "training"))
        budgets = [config.training.steps or 1 for label, config in extremes if label == arm.label]
        if budgets and max(budgets) < arm.optimizer.warmup_steps:
            yield (
                f"'{path}' is {arm.optimizer.warmup_steps:,}, and trials train "
                f"{say_count(max(budgets), 'step')}: the learning rates never reach their values"
            )


def _warn_of_evaluations(configs: Iterable[TrialConfig]) -> Iterator[str]:
    budgets = [(each.training.steps or 1, each.training.evaluate_every or 1) for each in configs]
    rare = [(steps, every) for steps, every in budgets if every > steps]
    if rare:
        steps, every = max(rare)
        yield (
            f"'training.evaluate_every' is {every:,}, and trials train {say_count(steps, 'step')}: "
            "each is evaluated once, at its end"
        )


def _warn_of_stopping(spec: ExperimentSpec, steps: int, first_rung: int) -> Iterator[str]:
    first = spec.scheduler.min_steps or first_rung
    if first >= steps:
        cause = "'scheduler.rung_every' or 'training.evaluate_every'"
        if spec.scheduler.min_steps is not None:
            cause = "'scheduler.min_steps'"
        yield (
            f"{spec.scheduler.name} stops no trial: it compares them from {first:,} steps on, and "
            f"they train {steps:,}. Take a smaller {cause}"
        )
