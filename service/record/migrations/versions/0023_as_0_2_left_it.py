"""The record as 0.2 left it: the first schema that this version can bring up to date.

An empty database gets the schema of now at once, so nobody makes this one any more.

Revision: 0023, the first; made 2026-11-24.
"""

from __future__ import annotations

revision = "0023"
down_revision = None
branch_labels = None
depends_on = None
