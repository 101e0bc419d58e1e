"""A class name stands for one thing in service and workers: a search for it finds one class."""

from __future__ import annotations

from pathlib import Path

from bench.weight import find_twice

ROOT = Path(__file__).parents[1]
TWICE = frozenset(("Child",))
"""Names that still stand for two things or more. One that no longer does is taken out of here."""


def test_no_class_name_stands_for_two_things_but_those_known():
    assert find_twice(ROOT).keys() - TWICE == set()
