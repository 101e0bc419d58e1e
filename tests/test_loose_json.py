"""JSON without a declared form stands at edges: where the API, a file or a library hands it over.

Lines of service, workers and eigensweep with `dict[str, Any]`, `Json` or `JsonObject` are counted,
by file.
What nobody reads is a `dict[str, object]`; what is read has a class, or a `TypedDict`.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("service", "workers", "eigensweep")
LOOSE = re.compile(r"\b(Json|JsonObject)\b|dict\[str, Any\]")
MOST = {
    "service/api/app.py": 1,
    "eigensweep/client/analyses.py": 2,
    "eigensweep/client/answers/answers.py": 1,
    "eigensweep/client/client.py": 4,
    "eigensweep/client/connection.py": 7,
    "eigensweep/client/events.py": 2,
    "eigensweep/client/reproductions.py": 2,
    "eigensweep/command/nodes.py": 5,
    "eigensweep/command/storage.py": 3,
    "service/process/mlflow_app.py": 1,
    "service/record/sql/rows.py": 4,
    "service/record/sql/tables.py": 5,
    "workers/driver/tune/trainable.py": 1,
    "eigensweep/reports/pictures.py": 1,
    "eigensweep/results/arms_report.py": 1,
    "eigensweep/results/trial_rows.py": 1,
    "eigensweep/store/commits/head.py": 2,
    "eigensweep/store/commits/kept_files.py": 1,
    "eigensweep/protocol/messages.py": 2,
    "eigensweep/training/optimizers/optimizers.py": 1,
}
"""The most lines of each file."""


def test_loose_json_comes_into_no_further_file_or_line():
    files = [
        path
        for name in ("service", "workers", "eigensweep")
        for path in (ROOT / name).rglob("*.py")
    ]
    counts = Counter(
        str(path.relative_to(ROOT))
        for path in files
        for line in path.read_text().splitlines()
        if LOOSE.search(line)
    )
    assert {name: count for name, count in counts.items() if count > MOST.get(name, 0)} == {}
