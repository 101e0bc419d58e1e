"""The book of an experiment's trials gives back what was put into it, and keeps little of it."""

from dataclasses import replace

import pytest

from eigensweep.protocol.ledger import TrialEntry
from eigensweep.results.trial_result import Result
from eigensweep.workers.driver.entries import Entries

WHOLE = TrialEntry(0, "scornn", {"optimizer.lr": 0.1}, {"seed": 3}, "abc", "waiting")


def test_every_trial_comes_back_as_it_was_written_last():
    entries = Entries("lower", keeps_all=True)
    ended = replace(WHOLE, state="completed", result=Result(value=0.5))
    failed = replace(WHOLE, number=2, state="failed", error="Traceback\nValueError: no")
    expected = [
        ended.outline(),
        replace(WHOLE, number=1),
        failed.outline(),
        replace(ended, number=3, arm="lstm").outline(),
        replace(ended, number=4),
    ]
    for number in range(5):
        entries.keep(replace(WHOLE, number=number))
    for entry in reversed(expected):
        entries.keep(entry)
    assert list(entries.values()) == expected
    assert list(entries.items()) == list(enumerate(expected))
    assert entries[2].error == "ValueError: no"
    entries.keep(replace(WHOLE, attempt=1))  # opened again
    assert entries[0] == replace(WHOLE, attempt=1)
    assert len(entries) == 5


@pytest.mark.parametrize("number", [-1, 1])
def test_a_trial_that_was_never_opened_is_not_there(number):
    entries = Entries("lower")
    entries.keep(replace(WHOLE, state="pruned"))
    assert number not in entries
    with pytest.raises(KeyError):
        entries[number]
