"""Users, their tokens, owners of experiments, and the audit log, whose entries never change.

Revision: 0010, after 0009; made 2026-11-22.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

WORDS = "entries of the audit log are never changed"
APPEND_ONLY = {
    "sqlite": (
        "CREATE TRIGGER audit_is_append_only BEFORE UPDATE ON audit "
        f"BEGIN SELECT RAISE(ABORT, '{WORDS}'); END",
    ),
    "postgresql": (
        "CREATE FUNCTION refuse_to_change_audit() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN RAISE EXCEPTION '{WORDS}'; END $$",
        "CREATE TRIGGER audit_is_append_only BEFORE UPDATE ON audit "
        "FOR EACH ROW EXECUTE FUNCTION refuse_to_change_audit()",
    ),
}


def upgrade() -> None:
    """Bring the schema from the version before to this one."""
    owner = sa.Column("owner", sa.String(length=64), nullable=False, server_default="operator")
    op.add_column("experiments", owner)
    op.create_index(op.f("ix_experiments_owner_state"), "experiments", ["owner", "state"])
    op.create_table(
        "users",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("removed_at", sa.Double(), nullable=True),
        sa.Column("max_experiments", sa.Integer(), nullable=True),
        sa.Column("max_trials", sa.BigInteger(), nullable=True),
        sa.Column("max_spec_bytes", sa.Integer(), nullable=True),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_users")),
    )
    op.create_table(
        "tokens",
        sa.Column("id", sa.String(length=16), nullable=False),
        sa.Column("user_name", sa.String(length=64), nullable=False),
        sa.Column("scope", sa.String(length=8), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=True),
        sa.Column("revoked_at", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["user_name"], ["users.name"], name=op.f("fk_tokens_users")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tokens")),
        sa.UniqueConstraint("digest", name=op.f("uq_tokens_digest")),
    )
    op.create_index(op.f("ix_tokens_user_name"), "tokens", ["user_name"])
    op.create_table(
        "audit",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("user_name", sa.String(length=64), nullable=True),
        sa.Column("token", sa.String(length=20), nullable=True),
        sa.Column("address", sa.String(length=64), nullable=True),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("refused", sa.Boolean(), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit")),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_audit_refused_id"), "audit", ["refused", "id"])
    for statement in APPEND_ONLY[op.get_bind().dialect.name]:
        op.execute(statement)
