"""What the measurement of slots makes of the times of trials."""

from __future__ import annotations

import pytest

from bench.slots import measure_full


def test_slots_count_from_when_the_last_one_has_a_process():
    # One process has three trials of 2 s, from 0 on; the second one is loaded after 3 s.
    starts = [(0.0, 11), (2.0, 11), (3.0, 12), (4.0, 11)]
    found = measure_full(starts, last_end=6.0, slots=2, seconds=2.0)
    assert found["filled_after"] == 3
    # From then on two slots had 3 s each: 1 s of the second trial, and 2 s of the last two.
    assert found["of_ideal_then"] == pytest.approx(5 / 6)


def test_fewer_processes_than_slots_are_no_measurement():
    with pytest.raises(RuntimeError, match="only 1 of 2 slots"):
        measure_full([(0.0, 11)], last_end=2.0, slots=2, seconds=2.0)
