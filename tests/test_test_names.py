"""A test's name is a sentence that fits into a line of a report: fewer than 60 letters."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parent
LETTERS = 60


def test_every_name_of_a_test_has_fewer_than_60_letters():
    found = {
        f"{path.relative_to(TESTS)}: {name}"
        for path in TESTS.rglob("*.py")
        for name in re.findall(r"^ *(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE)
        if len(name) >= LETTERS
    }
    assert not found
