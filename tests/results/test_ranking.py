"""The ranking of a search, and what the room of results brings with it."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from math import inf
from pathlib import Path

import eigensweep.results
from eigensweep.results.ranking import UNRANKED, cost, find_best, rank


@dataclass(frozen=True)
class Scored:
    value: float | None
    replicates: int = 1


@dataclass(frozen=True)
class Entry:
    number: int
    result: Scored | None
    state: str = "completed"


def test_more_seeds_come_first_then_the_value_then_the_number():
    one, other, same = Entry(0, Scored(0.5)), Entry(1, Scored(0.2)), Entry(2, Scored(0.2))
    raced = Entry(3, Scored(0.9, replicates=4))
    assert find_best([one, same, other], "lower") is other
    assert find_best([one, same, other], "higher") is one
    assert find_best([one, raced, other], "lower") is raced


def test_who_has_not_ended_well_or_has_no_value_is_not_ranked():
    for entry in (Entry(0, None), Entry(0, Scored(None)), Entry(0, Scored(0.1), "diverged")):
        assert rank(entry, "lower") is None
        assert find_best([entry], "lower") is None
    assert rank(Entry(7, Scored(0.5), "reused"), "higher") == (-1, -0.5, 7)
    assert cost(None, "higher") == UNRANKED == inf


def test_no_module_brings_torch_ray_or_the_record():
    folder = Path(eigensweep.results.__file__).parent
    names = ", ".join(f"eigensweep.results.{path.stem}" for path in folder.glob("[!_]*.py"))
    program = f"import sys, {names}\nprint({{'torch', 'ray', 'sqlalchemy'}} & set(sys.modules))"
    command = [sys.executable, "-W", "ignore", "-c", program]
    assert subprocess.check_output(command, text=True).strip() == "set()"
