"""JSON without a declared form stands at edges: where the API, a file or a library hands it over.

Lines of service and workers with `dict[str, Any]`, `Json` or `JsonObject` are counted, by file.
What nobody reads is a `dict[str, object]`; what is read has a class, or a `TypedDict`.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
LOOSE = re.compile(r"\b(Json|JsonObject)\b|dict\[str, Any\]")
MOST = {
    "service/api/app.py": 1,
    "service/client/analyses.py": 2,
    "service/client/answers.py": 1,
    "service/client/client.py": 4,
    "service/client/connection.py": 7,
    "service/client/events.py": 2,
    "service/client/reproductions.py": 2,
    "service/command/nodes.py": 5,
    "service/command/storage.py": 3,
    "service/record/sql/rows.py": 4,
    "service/record/sql/tables.py": 2,
    "workers/driver/tune/trainable.py": 1,
    "workers/shared/head.py": 2,
    "workers/shared/kept_files.py": 1,
    "workers/shared/messages.py": 2,
    "workers/trial/optimizers.py": 1,
}
"""The most lines of each file."""


def test_loose_json_comes_into_no_further_file_or_line():
    files = [path for name in ("service", "workers") for path in (ROOT / name).rglob("*.py")]
    counts = Counter(
        str(path.relative_to(ROOT))
        for path in files
        for line in path.read_text().splitlines()
        if LOOSE.search(line)
    )
    assert {name: count for name, count in counts.items() if count > MOST.get(name, 0)} == {}
