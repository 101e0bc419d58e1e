"""Takes up a finished experiment again: to retry failed trials, or with more to do.

Each action is one transaction with its events: trials that have to train further are reopened, and
the experiment is queued. Its next driver finds them in the ledger. Runs in the service's process.
"""

from __future__ import annotations

import json
import time
from functools import partial
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select

from eigensweep.protocol.messages import ConfigJson
from eigensweep.protocol.states import UNTRAINED, Action
from eigensweep.results.ranking import RANKED
from eigensweep.search_spaces.checks.extension import describe_extension, is_longer, read_steps
from eigensweep.search_spaces.space import Point
from eigensweep.search_spaces.spec import ExperimentSpec
from eigensweep.search_spaces.trial import find_code
from eigensweep.service.record.changes.control import Control, lock, was_done
from eigensweep.service.record.changes.posting import check_quotas, extend_row
from eigensweep.service.record.errors import ConflictError
from eigensweep.service.record.journal import (
    budget_of,
    reopen_experiment,
    reopen_trial,
    spent_seconds,
)
from eigensweep.service.record.sql import database
from eigensweep.service.record.sql.rows import RowSession
from eigensweep.service.record.sql.tables import ExperimentRow, TrialRow
from eigensweep.service.record.sql.walks import choose, is_in, walk

RETRIED, LENGTHENED, RESUMED = "another try", "a longer budget", "the rest of its training"
"""Why a trial is reopened."""
UNRESUMABLE = ("best", "none")
"""What is kept of experiments whose trials cannot go on."""


class Reopening(Control):
    """The part of the record that takes up finished experiments."""

    def retry(self, id: str) -> None:
        """Retry the failed trials of a finished experiment, from their last commits.

        A cancelled experiment does only that, and ends as cancelled again. A failed one also goes
        on with its search, with the trials that its end cancelled, and with a longer budget that
        it was extended by.

        Raises:
            ExperimentNotFoundError, WrongStateError: as in `Control`.
            ConflictError: if none has failed, or it may not go on.
            QuotaExceededError: if its owner may have no further open experiment.
        """
        before = self.row(id)
        was_done(before, "retry")
        spec = ExperimentSpec.from_stored(before.spec)
        if spec.scheduler.name == "pbt":
            raise ConflictError(
                f"the trials of experiment {id} trained as one population (scheduler: pbt), so "
                f"none is tried again by itself; post it again: eigensweep fork {id}"
            )
        again = _has_failed
        if before.state == "failed":
            again |= _is_short(spec) if before.closed else _is_cancelled | _is_short(spec)
        chosen = choose(again)
        configs = self._configure_all(id, spec, chosen)
        database.write(self.url, partial(_retry, before, spec, configs, chosen))

    def extend(self, id: str, spec: ExperimentSpec) -> None:
        """Queue a finished experiment again, with more to do: trials, points, or budget.

        `spec` was checked for itself. With a longer budget the trials that completed train on from
        their checkpoints. Trials that were cancelled train on in any case.

        Raises:
            ExperimentNotFoundError, WrongStateError: as in `Control`.
            SpecError: if `spec` is another experiment, or asks for less.
            ConflictError: if there is nothing more to do, no time left for it, or if the
                checkpoints are gone from which trials would train on.
            QuotaExceededError: if its owner may not have it, or not one more.
        """
        before = self.row(id)
        was_done(before, "extend")
        old = ExperimentSpec.from_stored(before.spec)
        if spec.name == spec.default_name():  # further arms would make it another name
            spec = spec.model_copy(update={"name": old.name})
        more = describe_extension(old, spec)
        further = _LENGTHENED if is_longer(old, spec) else choose(_is_cancelled | _is_short(spec))
        configs = self._configure_all(id, spec, further)
        if not more and not configs:
            _require_more(before)
        database.write(self.url, partial(_extend, before, spec, configs, further, more))

    def _configure_all(self, id: str, spec: ExperimentSpec, chosen: Select[Any]) -> dict[int, str]:
        """Return the configurations, as JSON, with which some trials train further.

        They are made before anything is written: that takes longer than to write them.
        """

        def configure(connection: Connection) -> dict[int, str]:
            trials = (trial for _, trial in walk(RowSession(connection), chosen, id))
            return {trial.number: json.dumps(_configure(spec, trial)) for trial in trials}

        return database.look(self.url, configure)


def _lock(
    rows: RowSession, before: ExperimentRow, action: Action, spec: ExperimentSpec
) -> ExperimentRow:
    """Return the row of an experiment that may be taken up again with a spec."""
    experiment = lock(rows, before.id)
    was_done(experiment, action)
    if experiment.edition != before.edition:
        raise ConflictError(f"experiment {before.id} was taken up again in the meantime")
    _check_time_left(experiment, spec.limits.wall_seconds)
    check_quotas(rows, [spec], experiment.owner)
    return experiment


def _retry(
    before: ExperimentRow,
    spec: ExperimentSpec,
    configs: dict[int, str],
    again: Select[Any],
    rows: RowSession,
) -> None:
    experiment = _lock(rows, before, "retry", spec)
    count, opened = _reopen_failed(rows, experiment, configs, again)
    if not count and experiment.state != "failed":
        if configs:  # all that failed did so on the way to a longer budget
            _check_checkpoints(experiment)
        raise ConflictError(
            f"experiment {before.id} has no failed trial, so there is nothing to retry; 'extend' "
            "gives it more to do, and takes up what was cancelled"
        )
    experiment.closed = experiment.closed or experiment.state == "cancelled"
    words = f"another try of {count} failed trial{'s' * (count != 1)}" if count else RETRIED
    if experiment.kept == "none" and opened:
        words += ", from the start: their checkpoints were removed"
    reopen_experiment(rows, experiment, words)


def _extend(
    before: ExperimentRow,
    spec: ExperimentSpec,
    configs: dict[int, str],
    further: Select[Any],
    more: str,
    rows: RowSession,
) -> None:
    experiment = _lock(rows, before, "extend", spec)
    extend_row(experiment, spec)
    is_more = bool(more)
    for part, trial in walk(rows, further, before.id):
        reason = RESUMED if trial.state == "cancelled" else LENGTHENED
        config = json.loads(configs[trial.number])
        if reason == LENGTHENED:
            if budget_of(config) <= trial.steps:
                continue  # the search varies the budget of its arm
            if further is not _LENGTHENED and experiment.kept in UNRESUMABLE:
                continue  # it cannot go on, and the longer budget is not what is asked for now
            _check_checkpoints(experiment)
        reopen_trial(part, experiment, trial, config, reason)
        is_more = True
    if not is_more:
        _require_more(before)
    experiment.closed = False
    reopen_experiment(rows, experiment, more or "the rest of the search")


def _require_more(before: ExperimentRow) -> None:
    """Refuse an extension that asks for nothing more, of an experiment that lacks nothing."""
    if before.state == "completed":
        raise ConflictError(
            f"experiment {before.id} is completed, and the spec asks for nothing more; change "
            "search.trials, limits.trials, the space or training.steps"
        )


def _configure(spec: ExperimentSpec, trial: TrialRow) -> ConfigJson:
    """Return a trial's configuration with the budget of a spec, if that is longer.

    Raises:
        ConflictError: if it is, and the checkpoints are of another version.
    """
    config = spec.trial(Point(trial.arm, trial.params))
    code = find_code(config.task.name, config.model.name, now=True)  # what a driver would load
    config = config.model_copy(update={"code": code})
    if (config.training.steps or 0) <= trial.steps:
        return trial.config or {}
    if config.content_hash() != trial.config_hash:
        id = trial.experiment_id
        raise ConflictError(
            f"trial {trial.number} of experiment {id} trained with another version of its model, "
            "task or trainer, or with other code of the package that brings them, and cannot go "
            f"on; post it again: eigensweep fork {id}"
        )
    content = config.model_dump(mode="json")
    content["replicates"] = max(config.replicates, trial.replicates or 1)
    return content


def _reopen_failed(
    rows: RowSession, experiment: ExperimentRow, configs: dict[int, str], again: Select[Any]
) -> tuple[int, int]:
    """Open trials again; return how many had failed or stalled, and how many are open.

    `configs` has the configurations, as JSON, with which they train. If a trial failed after it was
    opened again, its earlier result stands and the error is attached: then it is opened for a
    longer budget only, as a race's driver opens its own. Without its checkpoints it stays as it is.
    """
    failed = opened = 0
    for part, trial in walk(rows, again, experiment.id):
        content = json.loads(configs[trial.number])
        reason = {"cancelled": RESUMED, **dict.fromkeys(UNTRAINED, RETRIED)}.get(trial.state)
        if reason is None and budget_of(content) > trial.steps:
            if experiment.kept in UNRESUMABLE:
                continue
            reason = LENGTHENED
        failed += trial.state != "cancelled" and (reason == RETRIED or trial.error is not None)
        if reason is not None:
            reopen_trial(part, experiment, trial, content, reason)
            opened += 1
        trial.error = None
    return failed, opened


def _is_short(spec: ExperimentSpec) -> ColumnElement[bool]:
    """Return the condition for trials that may have been cut off on the way to a longer budget.

    They have their earlier result again, without an error: one that failed is for `retry`.
    `_configure` tells whether their budget is longer.
    """
    cut_off = is_in(RANKED) & TrialRow.error.is_(None)
    if spec.training.epochs is not None:  # they may have another number of steps each
        return cut_off
    return cut_off & (TrialRow.steps < (read_steps(spec) or 0))


_has_failed = is_in(UNTRAINED) | (is_in(RANKED) & TrialRow.error.is_not(None))
_is_cancelled = is_in(["cancelled"])
_LENGTHENED = choose(is_in(["cancelled", *RANKED]))


def _check_checkpoints(experiment: ExperimentRow) -> None:
    if experiment.kept in UNRESUMABLE:
        raise ConflictError(
            f"the checkpoints of experiment {experiment.id} were removed (`eigensweep prune`, "
            f"keep: {experiment.kept}), so its trials cannot train on with a longer budget; post "
            f"it again, which trains them from the start: eigensweep fork {experiment.id}"
        )


def _check_time_left(experiment: ExperimentRow, limit: float | None) -> None:
    spent = spent_seconds(experiment, time.time())
    if limit is not None and spent >= limit:
        raise ConflictError(
            f"experiment {experiment.id} has used up its limits.wall_seconds ({limit:g}): it has "
            f"been at work for {spent:.0f} s; extend it with a larger limit, or with null"
        )
