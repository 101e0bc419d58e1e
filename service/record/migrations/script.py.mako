"""${message}.

Revision: ${up_revision}, follows ${down_revision | comma,n}; made ${create_date}.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
${imports if imports else ""}
revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = ${repr(branch_labels)}
depends_on = ${repr(depends_on)}


def upgrade() -> None:
    """Bring the schema from the version before to this one."""
    ${upgrades if upgrades else "pass"}
