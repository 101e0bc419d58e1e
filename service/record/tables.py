"""The tables of the record. A change here needs a migration beside it, in `migrations/versions`."""

from __future__ import annotations

import math
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Double,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    MetaData,
    String,
    Text,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from eigensweep.direction import Better

UNRANKED = math.inf
"""The rank of a trial that has no place in the ranking: after every other."""

Json = JSON(none_as_null=True)
Serial = BigInteger().with_variant(Integer(), "sqlite")


class Base(DeclarativeBase):
    """Declares the tables; times are seconds since 1970 (UTC)."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_name)s",
            "fk": "fk_%(table_name)s_%(referred_table_name)s",
            "pk": "pk_%(table_name)s",
        }
    )


class Experiment(Base):
    """One posted experiment: its place in the queue, and what is known of it as a whole."""

    __tablename__ = "experiments"
    __table_args__ = (
        Index(None, "state", "priority", "created_at"),
        Index(None, "created_at", "id"),
        Index(None, "name", "id"),
        Index(None, "tracked"),
    )

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    name: Mapped[str] = mapped_column(Text)
    project: Mapped[str] = mapped_column(Text)
    priority: Mapped[int] = mapped_column(Integer)
    spec: Mapped[dict[str, Any]] = mapped_column(Json)
    metric: Mapped[str] = mapped_column(Text)
    unit: Mapped[str] = mapped_column(Text)
    better: Mapped[Better] = mapped_column(String(8))
    baseline: Mapped[float | None] = mapped_column(Double)
    trial_steps: Mapped[int | None] = mapped_column(BigInteger)
    """The budget of a trial where the spec fixes it."""
    state: Mapped[str] = mapped_column(String(16), default="queued")
    intent: Mapped[str] = mapped_column(String(8), default="run")
    total: Mapped[int | None] = mapped_column(BigInteger)
    error: Mapped[str | None] = mapped_column(Text)
    run_id: Mapped[str | None] = mapped_column(Text)
    tracked: Mapped[bool] = mapped_column(Boolean, default=False)
    created_at: Mapped[float] = mapped_column(Double)
    started_at: Mapped[float | None] = mapped_column(Double)
    finished_at: Mapped[float | None] = mapped_column(Double)
    generation: Mapped[int] = mapped_column(Integer, default=0)
    """Raised with each driver that is started; writes of an earlier one are refused."""
    claimed_at: Mapped[float | None] = mapped_column(Double)
    claimed_steps: Mapped[int] = mapped_column(BigInteger, default=0)
    """Steps done when the newest driver was started: speed is measured from there."""
    deaths: Mapped[int] = mapped_column(Integer, default=0)
    """Drivers that died one after the other without any progress between."""
    progress_mark: Mapped[int] = mapped_column(BigInteger, default=0)
    idempotency_key: Mapped[str | None] = mapped_column(String(255), unique=True)
    fingerprint: Mapped[str | None] = mapped_column(String(64))
    """Digest of the posted body, to tell a repeated post from a different one."""


class Trial(Base):
    """One configuration of an experiment."""

    __tablename__ = "trials"
    __table_args__ = (
        Index(None, "experiment_id", "state", "step", "steps"),
        Index(None, "experiment_id", "rank", "number"),
        Index(None, "config_hash", "state"),
    )

    experiment_id: Mapped[str] = mapped_column(
        ForeignKey("experiments.id", ondelete="CASCADE"), primary_key=True
    )
    number: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    arm: Mapped[str] = mapped_column(Text)
    params: Mapped[dict[str, Any]] = mapped_column(Json)
    config: Mapped[dict[str, Any] | None] = mapped_column(Json)
    config_hash: Mapped[str | None] = mapped_column(String(64))
    seed: Mapped[int | None] = mapped_column(BigInteger)
    replicates: Mapped[int | None] = mapped_column(Integer)
    steps: Mapped[int] = mapped_column(BigInteger, default=0)
    """Its budget."""
    state: Mapped[str] = mapped_column(String(16), default="waiting")
    attempt: Mapped[int] = mapped_column(Integer, default=0)
    step: Mapped[int] = mapped_column(BigInteger, default=0)
    """The step last reported."""
    value: Mapped[float | None] = mapped_column(Double)
    rank: Mapped[float] = mapped_column(Double, default=UNRANKED)
    """The value, negated where higher is better, so that the best comes first."""
    result: Mapped[dict[str, Any] | None] = mapped_column(Json)
    error: Mapped[str | None] = mapped_column(Text)
    run_id: Mapped[str | None] = mapped_column(Text)
    tracked: Mapped[bool] = mapped_column(Boolean, default=False)
    started_at: Mapped[float | None] = mapped_column(Double)
    ended_at: Mapped[float | None] = mapped_column(Double)


def _of_trial() -> ForeignKeyConstraint:
    return ForeignKeyConstraint(
        ["experiment_id", "number"], ["trials.experiment_id", "trials.number"], ondelete="CASCADE"
    )


class Attempt(Base):
    """One start of a trial: where it ran, and why it ended early if it did."""

    __tablename__ = "attempts"
    __table_args__ = (_of_trial(),)

    experiment_id: Mapped[str] = mapped_column(String(32), primary_key=True)
    number: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    attempt: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    started_at: Mapped[float] = mapped_column(Double)
    ended_at: Mapped[float | None] = mapped_column(Double)
    reason: Mapped[str | None] = mapped_column(Text)
    token: Mapped[str] = mapped_column(String(32))
    """Tells a `begin` whose answer was lost from a second one."""
    place: Mapped[dict[str, Any]] = mapped_column(Json, default=dict)
    """Node, pid and device."""


class Report(Base):
    """What a trial reported at a rung."""

    __tablename__ = "reports"
    __table_args__ = (_of_trial(),)

    experiment_id: Mapped[str] = mapped_column(String(32), primary_key=True)
    number: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    step: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    attempt: Mapped[int] = mapped_column(Integer)
    metrics: Mapped[dict[str, float]] = mapped_column(Json)
    at: Mapped[float] = mapped_column(Double)


class Event(Base):
    """Something that happened, in order; written in one transaction with what it tells of."""

    __tablename__ = "events"
    __table_args__ = (Index(None, "experiment_id", "id"), {"sqlite_autoincrement": True})

    id: Mapped[int] = mapped_column(Serial, primary_key=True)
    experiment_id: Mapped[str] = mapped_column(ForeignKey("experiments.id", ondelete="CASCADE"))
    kind: Mapped[str] = mapped_column(String(40))
    data: Mapped[dict[str, Any]] = mapped_column(Json)
    at: Mapped[float] = mapped_column(Double)
