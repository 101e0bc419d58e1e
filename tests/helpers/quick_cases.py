"""Tests of very many cases: `make test` runs some of them, `make test-slow` all others."""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Iterable

import pytest

MARK = "quick_cases"


def mark_others_slow(items: Iterable[pytest.Item]) -> None:
    """Mark as slow what is over the number of cases that a test names with `quick_cases`.

    Checksums of the cases' names choose, so that each machine and process chooses alike, and no
    value of a product of parameters is left out because it comes back in step.
    """
    by_test = defaultdict[str, list[pytest.Item]](list)
    for item in items:
        if item.get_closest_marker(MARK) is not None:
            by_test[item.nodeid.partition("[")[0]].append(item)
    for cases in by_test.values():
        mark = cases[0].get_closest_marker(MARK)
        assert mark is not None
        (most,) = mark.args
        quick = [case for case in cases if case.get_closest_marker("slow") is None]
        for case in sorted(quick, key=lambda case: zlib.crc32(case.name.encode()))[most:]:
            case.add_marker(pytest.mark.slow)
