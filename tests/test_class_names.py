"""A class name stands for one thing: a search for it finds one class."""

from __future__ import annotations

from pathlib import Path

from bench.weight import find_twice

ROOT = Path(__file__).parents[1]


def test_no_class_name_stands_for_two_things():
    assert find_twice(ROOT) == {}
