"""`make test` runs the number of cases that a test names, and `make test-slow` all others."""

from __future__ import annotations

from typing import Any

import pytest
from helpers import quick_cases


class Case:
    """What is asked of a collected test."""

    def __init__(self, test: str, name: str, *marks: Any) -> None:
        self.nodeid, self.name, self.marks = f"{test}[{name}]", name, list(marks)

    def get_closest_marker(self, name: str) -> Any:
        return next((mark for mark in self.marks if mark.name == name), None)

    def add_marker(self, mark: Any) -> None:
        self.marks.append(mark.mark)


def quick(cases: list[Case]) -> set[str]:
    quick_cases.mark_others_slow(cases)  # type: ignore[arg-type]
    return {case.nodeid for case in cases if case.get_closest_marker("slow") is None}


FEW, SLOW = pytest.mark.quick_cases(3).mark, pytest.mark.slow.mark


def test_so_many_cases_are_quick_and_always_the_same():
    names = [f"case-{number}" for number in range(20)]
    made = [Case(test, name, FEW) for name in names for test in ("one", "other")]
    chosen = quick(made)
    assert [sum(id.startswith(test) for id in chosen) for test in ("one[", "other[")] == [3, 3]
    assert quick([Case("one", name, FEW) for name in reversed(names)]) == {
        id for id in chosen if id.startswith("one[")
    }


def test_a_case_that_is_slow_anyway_is_none_of_them():
    cases = [Case("one", str(number), FEW, SLOW) for number in range(9)]
    cases += [Case("one", f"quick-{number}", FEW) for number in range(3)]
    assert quick(cases) == {f"one[quick-{number}]" for number in range(3)}


def test_without_the_mark_all_are_quick():
    assert quick([Case("one", str(number)) for number in range(9)]) == {
        f"one[{number}]" for number in range(9)
    }
