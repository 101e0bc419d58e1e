"""What a driver reads of trials: its own, and results of others that it may take over."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from sqlalchemy import ColumnElement, bindparam, select
from sqlalchemy.orm import Session

from eigensweep.protocol.ledger import NOTHING, Earlier, Finished, TrialEntry
from eigensweep.protocol.messages import Place, Takeover
from eigensweep.protocol.states import INSTRUCTIVE
from eigensweep.results.seeds import cut_seeds
from eigensweep.results.trial_result import Metrics, Result, Source
from eigensweep.service.record.ledger.part import LedgerPart
from eigensweep.service.record.sql import database
from eigensweep.service.record.sql.rows import read_first
from eigensweep.service.record.sql.tables import (
    AttemptRow,
    EarlierJson,
    ExperimentRow,
    ReportRow,
    TrialRow,
)
from eigensweep.service.record.sql.walks import is_in

WAS_TRAINED: Final = is_in(("completed", "diverged"))
COMPLETED: Final = (
    select(TrialRow.number).where(TrialRow.config_hash == bindparam("name"), WAS_TRAINED).limit(1)
)
"""Finds a trial of a configuration that has ended with a result, by its hash."""

AT_ONCE: Final = 500
"""Trials that are read in one transaction."""


class TrialReads(LedgerPart):
    """Trials of the experiment, and finished results of any."""

    def load(self) -> list[TrialEntry]:
        return list(self.walk())

    def walk(self) -> Iterator[TrialEntry]:
        first = 0
        while part := self._load(first):
            yield from part
            first = part[-1].number + 1

    @database.reading
    def _load(self, session: Session, first: int) -> list[TrialEntry]:
        """Return the next trials from a number on, `AT_ONCE` at most."""
        mine = select(TrialRow).where(
            TrialRow.experiment_id == self.experiment_id, TrialRow.number >= first
        )
        trials = list(session.scalars(mine.order_by(TrialRow.number).limit(AT_ONCE)))
        if not trials:
            return []
        last = trials[-1].number
        of_these = ReportRow.number.between(first, last)
        reports = _load_reports(session, self.experiment_id, of_these)
        tried = select(AttemptRow).where(
            AttemptRow.experiment_id == self.experiment_id, AttemptRow.number.between(first, last)
        )
        places = {
            attempt.number: Place.from_dict(attempt.place)
            for attempt in session.scalars(tried.order_by(AttemptRow.number, AttemptRow.attempt))
            if attempt.place
        }
        return [
            _entry(trial, reports.get(trial.number, {}), places.get(trial.number))
            for trial in trials
        ]

    def knows(self, config_hash: str) -> bool:
        name = {"name": config_hash}
        found = database.look(self.url, lambda c: read_first(c, COMPLETED, name), self.patience)
        return found is not None

    def find_finished(
        self, config_hash: str, seed: int, replicates: int, steps: int
    ) -> Finished | None:
        ended = [TrialRow.steps == steps, TrialRow.result.is_not(None)]
        return self._find_completed(config_hash, seed, replicates, *ended, first=TrialRow.ended_at)

    def find_shorter(
        self, config_hash: str, seed: int, replicates: int, steps: int
    ) -> Finished | None:
        budget = TrialRow.steps < steps
        return self._find_completed(
            config_hash, seed, replicates, budget, first=TrialRow.steps.desc()
        )

    def find_part(self, config_hash: str, seed: int, steps: int) -> Finished | None:
        ended = [TrialRow.steps == steps, TrialRow.result.is_not(None)]
        most = TrialRow.replicates.desc()
        return self._find_completed(config_hash, seed, None, *ended, first=most, states=WAS_TRAINED)

    @database.reading
    def _find_completed(
        self,
        session: Session,
        config_hash: str,
        seed: int,
        replicates: int | None,
        *conditions: ColumnElement[bool],
        first: Any,
        states: ColumnElement[bool] = TrialRow.state == "completed",
    ) -> Finished | None:
        vanishing = select(ExperimentRow.id).where(ExperimentRow.state == "deleting")
        same = select(TrialRow).where(
            TrialRow.config_hash == config_hash,
            TrialRow.lineage.is_(None),
            states,
            TrialRow.seed == seed,
            TrialRow.replicates >= (replicates or 1),
            TrialRow.experiment_id.not_in(vanishing),  # its curves and weights go, too
            *conditions,
        )
        rows = session.scalars(same.order_by(first, TrialRow.replicates))
        found = next((row for row in rows if _is_by_its_code(row) and _is_whole(row)), None)
        if found is None:
            return None
        source = Source(found.experiment_id, found.number, found.run_id)
        result = Result.from_dict(found.result or {})
        if replicates is not None and found.replicates != replicates:
            result = cut_seeds(result, replicates)
        return Finished(source, result)

    @database.reading
    def load_earlier(
        self, session: Session, experiments: Sequence[str]
    ) -> list[tuple[Source, TrialEntry]]:
        found = []
        for id in sorted(set(experiments)):
            mine = TrialRow.experiment_id == id, TrialRow.lineage.is_(None)
            ended = select(TrialRow).where(*mine, TrialRow.state.in_(INSTRUCTIVE))
            pruned = select(TrialRow.number).where(*mine, TrialRow.state == "pruned")
            reports = _load_reports(session, id, ReportRow.number.in_(pruned))
            for trial in session.scalars(ended.order_by(TrialRow.number)):
                source = Source(id, trial.number, trial.run_id)
                found.append((source, _entry(trial, reports.get(trial.number, {}), None)))
        return found

    @database.reading
    def read_round(self, session: Session) -> int:
        return session.get_one(ExperimentRow, self.experiment_id).round_step


def _load_reports(
    session: Session, experiment: str, which: ColumnElement[bool]
) -> dict[int, dict[int, Metrics]]:
    """Return what some trials of an experiment reported, by trial and step."""
    mine = select(ReportRow).where(ReportRow.experiment_id == experiment, which)
    found: dict[int, dict[int, Metrics]] = {}
    for report in session.scalars(mine.order_by(ReportRow.number, ReportRow.step)):
        found.setdefault(report.number, {})[report.step] = report.metrics
    return found


def _is_by_its_code(trial: TrialRow) -> bool:
    """Tell whether a trial was trained by the code that its hash names, from beginning to end."""
    return trial.scores.get("code") == (trial.config or {}).get("code")


def _is_whole(trial: TrialRow) -> bool:
    """Tell whether all seeds of a trial came to an end: one that diverged may have ended others."""
    seeds = Result.from_dict(trial.result or {}).by_replicate
    return trial.state != "diverged" or all(each.outcome is not None for each in seeds)


def _entry(trial: TrialRow, reports: dict[int, Metrics], place: Place | None) -> TrialEntry:
    return TrialEntry(
        number=trial.number,
        arm=trial.arm,
        params=trial.params,
        config=trial.config or {},
        config_hash=trial.config_hash or "",
        state=trial.state,  # type: ignore[arg-type]  # a column cannot be a Literal
        attempt=trial.attempt,
        reports=reports,
        place=place,
        result=None if trial.result is None else Result.from_dict(trial.result),
        error=trial.error,
        run_id=trial.run_id,
        tracked=trial.tracked,
        earlier=trial.earlier and _read_earlier(trial.earlier),
        lineage=tuple(Takeover.from_dict(each) for each in trial.lineage or ()),
        sampler_state=trial.sampler_state or NOTHING,
    )


def _read_earlier(content: EarlierJson) -> Earlier:
    return Earlier(content["state"], content["config"], content["reason"], content["error"])
