"""A class name stands for one thing in service and workers: a search for it finds one class."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
TWICE = frozenset(("Child", "Crew", "Driver"))
"""Names that still stand for two things or more. One that no longer does is taken out of here."""


def test_no_class_name_stands_for_two_things_but_those_known():
    files = [path for name in ("service", "workers") for path in (ROOT / name).rglob("*.py")]
    names = [re.findall(r"^class (\w+)", path.read_text(), re.MULTILINE) for path in files]
    counts = Counter(name for found in names for name in found)
    assert {name for name, count in counts.items() if count > 1} <= TWICE
