"""What a driver needs of the record of experiments, and the words both use for how a trial can end.

The ledger is the only memory that recovery trusts: a driver is a function of (spec, ledger). The
service passes an implementation in; it must survive pickling into the driver's process. What uses
only a part of it asks for the protocol of that part. Every write
carries the driver's generation, and the trial's attempt: a lower one than the ledger's is refused
with `StaleWriteError`, so that a process that was cut off cannot write over its successor.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol, cast

from eigensweep.protocol.fair_shares import Allotment, Demand
from eigensweep.protocol.messages import ConfigJson, Notice, Params, Place, Takeover
from eigensweep.protocol.states import (
    OPEN_TRIALS,
    OUTCOMES,
    ExperimentEnd,
    Intent,
    Phase,
    TrialState,
    brings_back,
)
from eigensweep.results.trial_result import Metrics, Outcome, Result, Source

PAUSED = "paused on request"
"""Why an attempt is over whose experiment was paused."""


class StaleWriteError(RuntimeError):
    """A write came from a driver or an attempt that has a successor."""


class OtherVersionError(Exception):
    """The ledger is of another version than the code here; waiting does not help."""


class SupersededError(StaleWriteError):
    """A write came from a driver that has a successor: it has nothing left to do."""


@dataclass(frozen=True)
class Earlier:
    """How a trial had ended before it was opened again, and why it was. Its result it still has."""

    state: Outcome
    config: ConfigJson
    reason: str
    """Why it was opened again."""
    error: str | None = None


NOTHING: Final[dict[Any, Any]] = {}
"""Shared by all entries that have nothing there; nobody writes to it."""


@dataclass(frozen=True, slots=True)
class TrialEntry:
    """What the record holds of one trial."""

    number: int
    arm: str
    params: Params
    config: ConfigJson
    """Empty where no config accepts the point."""
    config_hash: str
    state: TrialState
    attempt: int = 0
    """How often it has been started."""
    reports: dict[int, Metrics] = field(default_factory=dict)
    """Rung step to what was reported there."""
    place: Place | None = None
    """Where the newest attempt runs, or ran; None where nobody has said so."""
    result: Result | None = None
    error: str | None = None
    run_id: str | None = None
    """Its MLflow run, once known."""
    tracked: bool = False
    """Whether MLflow holds all of its curve and its end."""
    earlier: Earlier | None = None
    """How it had ended before, where it was opened again and has not ended since. Until then
    `result` is that of before."""
    lineage: tuple[Takeover, ...] = ()
    """What population-based training made of it, by step. Where there is any, `params`, `config`
    and `config_hash` are those that it began with, and its result is not theirs alone."""
    sampler_state: dict[str, object] = field(default_factory=dict)
    """What the sampler that drew it noted with it."""

    @property
    def current_params(self) -> Params:
        """The values that it trains with now."""
        return dict(self.lineage[-1].params if self.lineage else self.params)

    @property
    def reached(self) -> int:
        """Step of the last rung that it has reported, or that it was brought to."""
        return max([*self.reports, *(each.step for each in self.lineage)], default=0)

    @property
    def is_over(self) -> bool:
        """Whether it has ended and was not opened again."""
        return self.state not in OPEN_TRIALS

    @property
    def added_seeds(self) -> int:
        """How many seeds it has more, as far as it was opened again for that."""
        if self.earlier is None:
            return 0
        added: int = self.config["replicates"] - self.earlier.config["replicates"]
        return added

    def outline(self) -> TrialEntry:
        """Return the little of a trial that is over which a driver keeps in memory.

        That is number, arm, state and the last line of an error; the ledger has the rest.
        """
        error = None if self.error is None else self.error.strip().rsplit("\n", 1)[-1]
        return TrialEntry.of_ended(self.number, self.arm, self.state, error)

    @classmethod
    def of_ended(
        cls, number: int, arm: str, state: TrialState, error: str | None = None
    ) -> TrialEntry:
        """Return an outline."""
        return cls(
            number, arm, NOTHING, NOTHING, "", state,
            reports=NOTHING, error=error, sampler_state=NOTHING,
        )  # fmt: skip

    def reopened(self, config: ConfigJson, reason: str) -> TrialEntry:
        """Return this trial as `TrialLedger.reopen` records it."""
        assert self.state in OUTCOMES
        earlier = Earlier(cast(Outcome, self.state), self.config, reason, self.error)
        return replace(
            self, state="waiting", config=config, error=None, tracked=False, earlier=earlier
        )

    def ended(self, outcome: Outcome, result: Result | None, error: str | None) -> TrialEntry:
        """Return this trial as `TrialLedger.finish` records it."""
        before, end = self.earlier, replace(self, earlier=None, tracked=False)
        if before is None or not brings_back(before.state, outcome):
            return replace(end, state=outcome, result=result, error=error)
        error = error_of_undone(before.error, before.reason, outcome, error)
        return replace(end, state=before.state, config=before.config, error=error)


@dataclass(frozen=True)
class RungReport:
    """What a trial reported at a rung, and where it runs if that is known."""

    step: int
    metrics: Metrics
    place: Place | None = None


@dataclass(frozen=True)
class Finished:
    """A finished result with the same hash and seeds, in any experiment."""

    source: Source
    result: Result


def error_of_undone(
    before: str | None, reason: str, outcome: Outcome, error: str | None
) -> str | None:
    """Return the error of a trial that is again what it was before it was opened again.

    A failure is kept for a person to read, and so that nobody opens the trial for the same again. A
    trial that was cancelled may be opened again.
    """
    if outcome == "cancelled":
        return before
    happened = f"{error or 'unknown'}\n\nIt had been opened again for {reason}."
    return f"{happened} The result is that of before."


Ended = tuple[ExperimentEnd, str | None]
"""How an experiment ended, and why if not well."""


@dataclass(frozen=True)
class ResumeState:
    """What a driver is told of its experiment when it starts, for the first time or again."""

    edition: int = 0
    """How often the experiment was taken up again after it was over."""
    is_closed: bool = False
    """Whether no new trials are drawn: only those that were opened again are trained."""
    spent_seconds: float = 0.0
    """How long the experiment has been at work, but not paused, over, or waiting for a place."""
    owner: str = "unknown"
    """The user who posted it."""
    ended: Ended | None = None
    """How it has ended, and its driver only brings MLflow up to date; None: it has not."""


class TrialLedger(Protocol):
    """The trials of one experiment, as its driver reads and writes them."""

    def load(self) -> list[TrialEntry]:
        """Return every trial recorded so far, by number."""

    def walk(self) -> Iterator[TrialEntry]:
        """Yield every trial recorded so far, by number, with few of them in memory at a time."""

    def open(
        self,
        number: int,
        arm: str,
        params: Params,
        config: ConfigJson,
        config_hash: str,
        sampler_state: dict[str, object] = NOTHING,
        error: str | None = None,
    ) -> None:
        """Record a new trial as `waiting`. Opening one that is there already changes nothing.

        `sampler_state` is what the sampler that drew it noted with it. It is forgotten when the
        experiment is taken up again after it was over: its space and budget may be others then.
        `error` says why no config accepts the point, whose config and hash are empty then: its
        outcome is `invalid`, and it is never scheduled.
        """

    def begin(self, number: int, place: Place | None = None) -> int:
        """Mark the trial `running` and return its next attempt number, from 1.

        `place` is where its process runs, if that is known.
        """

    def interrupt(self, number: int, attempt: int, reason: str) -> None:
        """Mark the trial `waiting` again: this attempt's process was lost."""

    def report(
        self, number: int, attempt: int, step: int, metrics: Metrics, place: Place | None
    ) -> None:
        """Record a rung report and, if it is known, where the attempt runs.

        The first report of a step counts. Numbers that are not finite are left out.
        """

    def finish(
        self,
        number: int,
        attempt: int,
        outcome: Outcome,
        result: Result | None = None,
        error: str | None = None,
        last: RungReport | None = None,
    ) -> None:
        """Record how the trial ended; the first end counts. A number not finite is unknown.

        `last` is what it reported with its end. It is recorded as `report` does, in the same act.
        A trial that was opened again and now failed or was cancelled is again what it was before.
        """

    def reopen(self, number: int, config: ConfigJson, reason: str) -> None:
        """Take a trial that has ended back to `waiting`, to be trained further as `config` says.

        What it had is kept: it stays in the ranking, and comes back if the trial fails or is
        cancelled. `config` may ask for more seeds or more steps. `reason` says what for, in words
        that follow "for". A trial that is open already is left as it is.
        """

    def read_round(self) -> int:
        """Return the step of the last round of population-based training that has ended, or 0."""

    def end_round(self, step: int, takeovers: Mapping[int, Takeover]) -> None:
        """Record that a round has ended at `step`, and what became of trials: all or nothing.

        A round that has ended does not end again.
        """

    def set_total(self, trials: int | None) -> None:
        """Record how many trials the experiment will have, None while that is unknown."""


class ResultLedger(Protocol):
    """Results of any experiment, which a trial may take over."""

    def knows(self, config_hash: str) -> bool:
        """Tell whether any trial with this configuration has ended with a result: mostly none has.

        Where none has, the next three functions find nothing.
        """

    def find_finished(
        self, config_hash: str, seed: int, replicates: int, steps: int
    ) -> Finished | None:
        """Return a `completed` result of the same configuration, seeds and budget, if any.

        One with more seeds is cut to these. Trials with a lineage did not train with one
        configuration, and those of other code than their hash names (`Measures.code`) not by one
        program: here and in the next two functions they count for nothing.
        """

    def find_part(self, config_hash: str, seed: int, steps: int) -> Finished | None:
        """Return the result of the same configuration, first seed and budget with most seeds.

        It is `completed`, or some seeds have diverged and all others came to their end.
        """

    def find_shorter(
        self, config_hash: str, seed: int, replicates: int, steps: int
    ) -> Finished | None:
        """Return the longest `completed` result of the same with a budget below `steps`, if any."""

    def load_earlier(self, experiments: Sequence[str]) -> list[tuple[Source, TrialEntry]]:
        """Return the trials of other experiments that completed, diverged or were stopped early.

        Those that were stopped early come with their reports.
        """


class CourseLedger(Protocol):
    """How one experiment stands, what people are told of it, its pause and its end."""

    def resume_state(self) -> ResumeState:
        """Return how the experiment stands as a driver starts."""

    def intent(self) -> Intent:
        """Return what the person wants of this experiment now. Cheap enough for once a second."""

    def find_stops(self) -> frozenset[int]:
        """Return the trials that a person has asked to stop. Cheap enough for once a second."""

    def record_phase(self, phase: Phase) -> None:
        """Record what the driver is at, unless the experiment is to be paused or cancelled.

        `begin` records `running` by itself.
        """

    def record_notices(self, notices: Sequence[Notice]) -> None:
        """Replace what people are told about why the experiment comes on, or is delivered, slowly.

        It is forgotten when the experiment is paused or over; then only notices of its delivery
        are taken. What says that trials fail one after another stays until a paused one is resumed.
        """

    def request_pause(self, reason: str) -> None:
        """Ask for a pause as a person would, because trials fail one after another."""

    def pause(self) -> bool:
        """Record that an experiment that is to be paused is so: its trials have no process.

        Return whether it is. It is not where a person has cancelled it meanwhile.
        """

    def end(self, state: ExperimentEnd, error: str | None = None) -> Ended:
        """Record that the experiment is over; return how, as it is recorded.

        It is `cancelled` in place of `completed` if a person asked for it before. An experiment
        that is over already stays as it is.
        """


class ShareLedger(Protocol):
    """What one experiment wants of the cluster, and what it may have."""

    def record_demand(self, demand: Demand) -> None:
        """Record what the experiment wants of the cluster now."""

    def find_allotment(self) -> Allotment:
        """Return what it may have of it, as it was computed last. Cheap enough for once a second.

        Nothing, before it was asked for.
        """


class DeliveryLedger(Protocol):
    """What MLflow holds of one experiment."""

    def walk(self) -> Iterator[TrialEntry]:
        """Yield every trial, by number."""

    def forget_delivery(self) -> None:
        """Record that MLflow holds nothing of the experiment's trials any more."""

    def set_run(self, run_id: str, project_id: str) -> None:
        """Record the experiment's own MLflow run, and the experiment of MLflow's that holds it."""

    def experiment_run(self) -> str | None:
        """Return the experiment's own MLflow run, once known."""

    def set_tracked(self) -> None:
        """Record that MLflow holds all of the experiment, and forget its notices."""

    def set_delivered(
        self, runs: Mapping[int, str], project_id: str, whole: Collection[int]
    ) -> None:
        """Record the MLflow runs of trials, and which trials MLflow holds whole: in one write."""


class SweepLedger(TrialLedger, ResultLedger, Protocol):
    """What a sweep needs: its trials, and the results that it may take over."""


class Ledger(SweepLedger, CourseLedger, ShareLedger, DeliveryLedger, Protocol):
    """One experiment's part of the record, as its driver sees it."""
