"""The tables of the record. A change here needs a migration beside it, in `migrations/versions`."""

from __future__ import annotations

from typing import Any, Final, Literal, NotRequired, TypedDict

import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from eigensweep.common.direction import Better
from eigensweep.protocol.messages import ConfigJson, Params, SpecJson
from eigensweep.results.ranking import UNRANKED
from eigensweep.results.trial_result import Metrics, Outcome
from eigensweep.store.upkeep.thinning import Keep

OPERATOR = "operator"
"""Who runs the service: the user of EIGENSWEEP_TOKEN, and of everybody while there is no token."""

JobKind = Literal["analysis", "reproduction", "deletion", "pruning", "webhook"]
"""What the service does beside experiments."""

JsonColumn = sa.JSON(none_as_null=True)
Serial = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


class SourceJson(TypedDict):
    """The trial whose result was taken over."""

    experiment: str
    number: int
    run_id: str | None


class ResultJson(TypedDict, total=False):
    """The result of a trial; a number that was not finite is stored as null."""

    outcome: str
    value: float | None
    best_step: int | None
    step: int
    valid: dict[str, float | None]
    test: dict[str, float | None]
    seconds: float
    parameters: dict[str, int]
    reused_from: SourceJson | None


class EarlierJson(TypedDict):
    """How a trial had ended before it was opened again. Result and value stay in their columns."""

    state: Outcome
    config: ConfigJson
    error: str | None
    ended_at: float | None
    reason: str


class EventDetails(TypedDict, total=False):
    """What only some kinds of events say."""

    name: str
    params: Params
    metrics: Metrics
    value: float | None
    reason: str | None
    error: str | None
    source: int
    priority: int


class LeaderJson(TypedDict):
    """The service that leads."""

    host: str
    pid: int
    address: str
    home: str
    storage: str
    mlflow: str | None
    """Address of the MLflow server; None: it has its own."""
    ray: str | None
    """Address of Ray; None: it has its own."""
    idle_since: NotRequired[float]
    """Since when nobody looks after drivers, in seconds since 1970; gone once this service does."""


class Base(DeclarativeBase):
    """Declares the tables; times are seconds since 1970 (UTC)."""

    metadata = sa.MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_name)s",
            "fk": "fk_%(table_name)s_%(referred_table_name)s",
            "pk": "pk_%(table_name)s",
        }
    )


class ExperimentRow(Base):
    """One posted experiment: its place in the queue, its state, and its newest driver."""

    __tablename__ = "experiments"
    __table_args__ = (
        sa.Index(None, "state", "owner", "priority", "created_at", "id"),
        sa.Index(None, "created_at", "id"),
        sa.Index(None, "name", "id"),
        sa.Index(None, "tracked"),
        sa.Index(None, "owner", "state"),
    )

    id: Mapped[str] = mapped_column(sa.String(32), primary_key=True)
    owner: Mapped[str] = mapped_column(sa.String(64), default=OPERATOR, server_default=OPERATOR)
    """The user who posted it."""
    name: Mapped[str] = mapped_column(sa.Text)
    project: Mapped[str] = mapped_column(sa.Text)
    priority: Mapped[int] = mapped_column(sa.Integer)
    spec: Mapped[SpecJson] = mapped_column(JsonColumn)
    metric: Mapped[str] = mapped_column(sa.Text)
    unit: Mapped[str] = mapped_column(sa.Text)
    better: Mapped[Better] = mapped_column(sa.String(8))
    baseline: Mapped[float | None] = mapped_column(sa.Double)
    trial_steps: Mapped[int | None] = mapped_column(sa.BigInteger)
    """Optimizer steps of a trial; None if they differ between trials."""
    state: Mapped[str] = mapped_column(sa.String(16), default="queued")
    total: Mapped[int | None] = mapped_column(sa.BigInteger)
    error: Mapped[str | None] = mapped_column(sa.Text)
    notices: Mapped[list[dict[str, Any]] | None] = mapped_column(JsonColumn)
    """Each `Notice` that its driver gives now: why it comes on slowly; None if there is none."""
    wants: Mapped[dict[str, object] | None] = mapped_column(JsonColumn)
    """The `Demand` that its driver gave last, with what it may have (`shares`); None before."""
    stops: Mapped[list[int] | None] = mapped_column(JsonColumn)
    """Numbers of the trials that a person has asked to stop; None: none."""
    run_id: Mapped[str | None] = mapped_column(sa.Text)
    run_project: Mapped[str | None] = mapped_column(sa.Text)
    """The id of MLflow's experiment that holds the run."""
    tracked: Mapped[bool] = mapped_column(sa.Boolean, default=False)
    created_at: Mapped[float] = mapped_column(sa.Double)
    started_at: Mapped[float | None] = mapped_column(sa.Double)
    finished_at: Mapped[float | None] = mapped_column(sa.Double)
    left_at: Mapped[float | None] = mapped_column(sa.Double)
    """Since when it is paused, over, or waits for a place, until it is started again or trains."""
    idle_seconds: Mapped[float] = mapped_column(sa.Double, default=0.0, server_default="0")
    """How long it was paused or over, between its first start and its last, waited for a place, had
    no driver, or the clock leapt."""
    trial_seconds: Mapped[float] = mapped_column(sa.Double, default=0.0, server_default="0")
    """How long its trials had a process, up to the newest reports; their sum."""
    cpu_seconds: Mapped[float] = mapped_column(sa.Double, default=0.0, server_default="0")
    """The same, times the CPU cores that it occupied."""
    gpu_seconds: Mapped[float] = mapped_column(sa.Double, default=0.0, server_default="0")
    """The same, times its GPUs."""
    generation: Mapped[int] = mapped_column(sa.Integer, default=0)
    """Number of the newest driver; writes of an earlier one are refused."""
    claimed_at: Mapped[float | None] = mapped_column(sa.Double)
    claimed_steps: Mapped[int] = mapped_column(sa.BigInteger, default=0)
    """Steps done when the newest driver was started; the speed is measured from there."""
    edition: Mapped[int] = mapped_column(sa.Integer, default=0, server_default="0")
    """How often it was taken up again after it was over."""
    closed: Mapped[bool] = mapped_column(sa.Boolean, default=False, server_default=sa.false())
    """Whether it was cancelled, and now only its failed trials are tried again."""
    archived_at: Mapped[float | None] = mapped_column(sa.Double)
    """When it was archived; None: lists show it."""
    kept: Mapped[Keep | None] = mapped_column(sa.String(8))
    """The strictest rule by which checkpoints of its ended trials were removed; None: none were."""
    pruned_at: Mapped[float | None] = mapped_column(sa.Double)
    """When checkpoints were last removed."""
    round_step: Mapped[int] = mapped_column(sa.BigInteger, default=0, server_default="0")
    """Step at which the last round of population-based training has ended; 0 before."""
    deaths: Mapped[int] = mapped_column(sa.Integer, default=0)
    """Drivers that died in a row, without progress between their deaths."""
    progress_mark: Mapped[int] = mapped_column(sa.BigInteger, default=0)
    """Rung reports, ended trials and committed steps of the others at the last death; another
    number is progress."""
    idempotency_key: Mapped[str | None] = mapped_column(sa.String(255), unique=True)
    """The key as it was sent; of a user who is not the operator, a digest of name and key."""
    trace: Mapped[str | None] = mapped_column(sa.String(64))
    """The place in a trace at which it was posted, as W3C's `traceparent`; None: no traces."""
    fingerprint: Mapped[str | None] = mapped_column(sa.String(64))
    """Digest of the posted body; it differs if the same key comes with another body."""


class TrialRow(Base):
    """One configuration of an experiment."""

    __tablename__ = "trials"
    __table_args__ = (
        sa.Index(None, "experiment_id", "state", "number", "step", "steps"),
        sa.Index(None, "experiment_id", "tier", "rank", "number"),
        sa.Index(None, "experiment_id", "arm", "tier", "rank", "number", "state"),
        sa.Index(None, "config_hash", "state"),
        sa.Index(None, "state", "tracked", "ended_at", "started_at"),
    )

    experiment_id: Mapped[str] = mapped_column(
        sa.ForeignKey("experiments.id", ondelete="CASCADE"), primary_key=True
    )
    number: Mapped[int] = mapped_column(sa.Integer, primary_key=True, autoincrement=False)
    arm: Mapped[str] = mapped_column(sa.Text)
    params: Mapped[Params] = mapped_column(JsonColumn)
    config: Mapped[ConfigJson | None] = mapped_column(JsonColumn)
    config_hash: Mapped[str | None] = mapped_column(sa.String(64))
    seed: Mapped[int | None] = mapped_column(sa.BigInteger)
    replicates: Mapped[int | None] = mapped_column(sa.Integer)
    steps: Mapped[int] = mapped_column(sa.BigInteger, default=0)
    """Optimizer steps that it may take."""
    state: Mapped[str] = mapped_column(sa.String(16), default="waiting")
    attempt: Mapped[int] = mapped_column(sa.Integer, default=0)
    step: Mapped[int] = mapped_column(sa.BigInteger, default=0)
    """The step last reported."""
    value: Mapped[float | None] = mapped_column(sa.Double)
    tier: Mapped[int] = mapped_column(sa.Integer, default=0, server_default="0")
    """What decides the ranking before `rank`: 0, less the seeds that a race has added."""
    rank: Mapped[float] = mapped_column(sa.Double, default=UNRANKED)
    """The value, negated where higher is better, so that the best comes first."""
    result: Mapped[ResultJson | None] = mapped_column(JsonColumn)
    lineage: Mapped[list[dict[str, object]] | None] = mapped_column(JsonColumn)
    """Each `Takeover`, by step; None if there was none, so that it has one configuration."""
    sampler_state: Mapped[dict[str, object] | None] = mapped_column(JsonColumn)
    """What the sampler that drew it noted with it; None: nothing."""
    error: Mapped[str | None] = mapped_column(sa.Text)
    run_id: Mapped[str | None] = mapped_column(sa.Text)
    run_project: Mapped[str | None] = mapped_column(sa.Text)
    """The id of MLflow's experiment that holds the run."""
    tracked: Mapped[bool] = mapped_column(sa.Boolean, default=False)
    started_at: Mapped[float | None] = mapped_column(sa.Double)
    ended_at: Mapped[float | None] = mapped_column(sa.Double)
    trial_seconds: Mapped[float] = mapped_column(sa.Double, default=0.0, server_default="0")
    """How long it had a process, up to the newest report."""
    cpu_seconds: Mapped[float] = mapped_column(sa.Double, default=0.0, server_default="0")
    """The same, times the CPU cores that it occupied."""
    gpu_seconds: Mapped[float] = mapped_column(sa.Double, default=0.0, server_default="0")
    """The same, times its GPUs."""
    earlier: Mapped[EarlierJson | None] = mapped_column(JsonColumn)
    """How it had ended before it was opened again, until it ends anew; else None."""

    @property
    def scores(self) -> ResultJson:
        """The result as it is stored; empty before there is one."""
        return self.result or {}

    @property
    def counted_state(self) -> str:
        """Its state; of a ranked one that is open once more, the one that its result is of."""
        return self.earlier["state"] if self.earlier and self.rank < UNRANKED else self.state

    @property
    def counted_config(self) -> ConfigJson:
        """The configuration that its result is of, or will be; empty if it has none."""
        is_earlier = self.earlier and self.rank < UNRANKED
        return (self.earlier["config"] if self.earlier and is_earlier else self.config) or {}


class TrialCount(Base):
    """The trials of one state. Triggers keep it, in the transaction of each change of a trial."""

    __tablename__ = "trial_counts"

    experiment_id: Mapped[str] = mapped_column(
        sa.ForeignKey("experiments.id", ondelete="CASCADE"), primary_key=True
    )
    state: Mapped[str] = mapped_column(sa.String(16), primary_key=True)
    trials: Mapped[int] = mapped_column(sa.BigInteger)
    step: Mapped[int] = mapped_column(sa.BigInteger)
    """The sum of their steps."""
    steps: Mapped[int] = mapped_column(sa.BigInteger)
    """The sum of their budgets."""


def _of_trial() -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(
        ["experiment_id", "number"], ["trials.experiment_id", "trials.number"], ondelete="CASCADE"
    )


class AttemptRow(Base):
    """One process of a trial: where it ran, and why it ended early, if it did."""

    __tablename__ = "attempts"
    __table_args__ = (_of_trial(),)

    experiment_id: Mapped[str] = mapped_column(sa.String(32), primary_key=True)
    number: Mapped[int] = mapped_column(sa.Integer, primary_key=True, autoincrement=False)
    attempt: Mapped[int] = mapped_column(sa.Integer, primary_key=True, autoincrement=False)
    started_at: Mapped[float] = mapped_column(sa.Double)
    ended_at: Mapped[float | None] = mapped_column(sa.Double)
    reason: Mapped[str | None] = mapped_column(sa.Text)
    counted_at: Mapped[float | None] = mapped_column(sa.Double)
    """Up to when its time is counted in what the trial has used; None: not at all yet."""
    token: Mapped[str] = mapped_column(sa.String(32))
    """Made by the caller of `begin`: a call repeated after a lost answer starts nothing new."""
    place: Mapped[dict[str, Any]] = mapped_column(JsonColumn, default=dict)
    """The `Place`, once it is known."""


class ReportRow(Base):
    """What a trial reported at a rung."""

    __tablename__ = "reports"
    __table_args__ = (_of_trial(),)

    experiment_id: Mapped[str] = mapped_column(sa.String(32), primary_key=True)
    number: Mapped[int] = mapped_column(sa.Integer, primary_key=True, autoincrement=False)
    step: Mapped[int] = mapped_column(sa.BigInteger, primary_key=True, autoincrement=False)
    attempt: Mapped[int] = mapped_column(sa.Integer)
    metrics: Mapped[Metrics] = mapped_column(JsonColumn)
    at: Mapped[float] = mapped_column(sa.Double)


class Webhook(Base):
    """An address that is told how an experiment ends."""

    __tablename__ = "webhooks"

    experiment_id: Mapped[str] = mapped_column(
        sa.ForeignKey("experiments.id", ondelete="CASCADE"), primary_key=True
    )
    url: Mapped[str] = mapped_column(sa.Text, primary_key=True)


class JobRow(Base):
    """Something that the service does beside experiments, until it is done or given up."""

    __tablename__ = "jobs"
    __table_args__ = (sa.Index(None, "kind", "due_at"), sa.Index(None, "experiment_id"))

    kind: Mapped[JobKind] = mapped_column(sa.String(16), primary_key=True)
    key: Mapped[str] = mapped_column(sa.String(32), primary_key=True)
    """The digest of an analysis or a reproduction, the id of an experiment or of a message."""
    experiment_id: Mapped[str | None] = mapped_column(
        sa.ForeignKey("experiments.id", ondelete="CASCADE")
    )
    """The experiment with which the job is removed; None: it stays."""
    owner: Mapped[str | None] = mapped_column(sa.String(64))
    state: Mapped[str] = mapped_column(sa.String(16), default="queued")
    request: Mapped[dict[str, Any]] = mapped_column(JsonColumn)
    """What is to be done. Each kind has its own form."""
    outcome: Mapped[dict[str, Any] | None] = mapped_column(JsonColumn)
    """What came of it, beside files and `error`."""
    error: Mapped[str | None] = mapped_column(sa.Text)
    """Why it failed, or why its last try was in vain."""
    tries: Mapped[int] = mapped_column(sa.Integer, default=0)
    due_at: Mapped[float | None] = mapped_column(sa.Double)
    """When to work on it; None: it is done, or given up."""
    created_at: Mapped[float] = mapped_column(sa.Double)
    started_at: Mapped[float | None] = mapped_column(sa.Double)
    finished_at: Mapped[float | None] = mapped_column(sa.Double)


class Leader(Base):
    """Which service leads, of those that share the database: one row."""

    __tablename__ = "leaders"

    id: Mapped[int] = mapped_column(sa.Integer, primary_key=True)
    term: Mapped[int] = mapped_column(sa.Integer)
    """Each new leader raises it."""
    about: Mapped[LeaderJson] = mapped_column(JsonColumn)
    since: Mapped[float] = mapped_column(sa.Double)
    heartbeat_at: Mapped[float] = mapped_column(sa.Double)


class EventRow(Base):
    """Something that happened. It is written in the transaction of the change it reports."""

    __tablename__ = "events"
    __table_args__ = (sa.Index(None, "experiment_id", "id"), {"sqlite_autoincrement": True})

    id: Mapped[int] = mapped_column(Serial, primary_key=True)
    experiment_id: Mapped[str] = mapped_column(sa.ForeignKey("experiments.id", ondelete="CASCADE"))
    kind: Mapped[str] = mapped_column(sa.String(40))
    data: Mapped[dict[str, Any]] = mapped_column(JsonColumn)
    """The id of the `experiment`, `EventDetails`, and for a trial which it is, and how far."""
    at: Mapped[float] = mapped_column(sa.Double)


class User(Base):
    """A user with tokens, or with a quota. Users of a proxy may be here, and need not."""

    __tablename__ = "users"

    name: Mapped[str] = mapped_column(sa.String(64), primary_key=True)
    created_at: Mapped[float] = mapped_column(sa.Double)
    removed_at: Mapped[float | None] = mapped_column(sa.Double)
    """A user who was removed is kept, since experiments and the audit log have the name."""
    max_experiments: Mapped[int | None] = mapped_column(sa.Integer)
    max_trials: Mapped[int | None] = mapped_column(sa.BigInteger)
    max_spec_bytes: Mapped[int | None] = mapped_column(sa.Integer)


class Token(Base):
    """A token of a user. The token itself is not kept, only its digest."""

    __tablename__ = "tokens"
    __table_args__ = (sa.Index(None, "user_name"),)

    id: Mapped[str] = mapped_column(sa.String(16), primary_key=True)
    """Names the token in lists and in the audit log; it is no secret."""
    user_name: Mapped[str] = mapped_column(sa.ForeignKey("users.name"))
    scope: Mapped[str] = mapped_column(sa.String(8))
    digest: Mapped[str] = mapped_column(sa.String(64), unique=True)
    """SHA-256. A token is 256 random bits, so a slow digest with a salt would add nothing."""
    created_at: Mapped[float] = mapped_column(sa.Double)
    expires_at: Mapped[float | None] = mapped_column(sa.Double)
    revoked_at: Mapped[float | None] = mapped_column(sa.Double)


class AuditEntry(Base):
    """Who did what, or was refused. Entries are added, and the oldest removed; none is changed."""

    __tablename__ = "audit"
    __table_args__ = (sa.Index(None, "refused", "id"), {"sqlite_autoincrement": True})

    id: Mapped[int] = mapped_column(Serial, primary_key=True)
    at: Mapped[float] = mapped_column(sa.Double)
    user_name: Mapped[str | None] = mapped_column(sa.String(64))
    token: Mapped[str | None] = mapped_column(sa.String(20))
    address: Mapped[str | None] = mapped_column(sa.String(64))
    action: Mapped[str] = mapped_column(sa.Text)
    refused: Mapped[bool] = mapped_column(sa.Boolean)
    detail: Mapped[str] = mapped_column(sa.Text)


_WORDS: Final = "entries of the audit log are never changed"
_LEAVE: Final = """
    UPDATE trial_counts
    SET trials = trials - 1, step = step - OLD.step, steps = steps - OLD.steps
    WHERE experiment_id = OLD.experiment_id AND state = OLD.state;
"""
_ENTER: Final = """
    INSERT INTO trial_counts (experiment_id, state, trials, step, steps)
    VALUES (NEW.experiment_id, NEW.state, 1, NEW.step, NEW.steps)
    ON CONFLICT (experiment_id, state) DO UPDATE SET
        trials = trial_counts.trials + 1,
        step = trial_counts.step + excluded.step,
        steps = trial_counts.steps + excluded.steps;
"""
_CHANGED: Final = "OLD.state <> NEW.state OR OLD.step <> NEW.step OR OLD.steps <> NEW.steps"
_TRIGGERS: Final = {
    "sqlite": (
        "CREATE TRIGGER audit_is_append_only BEFORE UPDATE ON audit "
        f"BEGIN SELECT RAISE(ABORT, '{_WORDS}'); END",
        f"CREATE TRIGGER trials_enter AFTER INSERT ON trials BEGIN {_ENTER} END",
        f"CREATE TRIGGER trials_leave AFTER DELETE ON trials BEGIN {_LEAVE} END",
        "CREATE TRIGGER trials_change AFTER UPDATE OF state, step, steps ON trials "
        f"WHEN {_CHANGED} BEGIN {_LEAVE} {_ENTER} END",
    ),
    "postgresql": (
        "CREATE FUNCTION refuse_to_change_audit() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN RAISE EXCEPTION '{_WORDS}'; END $$",
        "CREATE TRIGGER audit_is_append_only BEFORE UPDATE ON audit "
        "FOR EACH ROW EXECUTE FUNCTION refuse_to_change_audit()",
        "CREATE FUNCTION count_trials() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        f"IF TG_OP <> 'INSERT' THEN {_LEAVE} END IF; "
        f"IF TG_OP <> 'DELETE' THEN {_ENTER} END IF; "
        "RETURN NULL; END $$",
        "CREATE TRIGGER trials_enter_or_leave AFTER INSERT OR DELETE ON trials "
        "FOR EACH ROW EXECUTE FUNCTION count_trials()",
        "CREATE TRIGGER trials_change AFTER UPDATE OF state, step, steps ON trials "
        f"FOR EACH ROW WHEN ({_CHANGED}) EXECUTE FUNCTION count_trials()",
    ),
}
for _dialect, _statements in _TRIGGERS.items():
    for _each in _statements:
        _ddl = sa.DDL(_each).execute_if(dialect=_dialect)  # type: ignore[no-untyped-call]
        sa.event.listen(Base.metadata, "after_create", _ddl)
