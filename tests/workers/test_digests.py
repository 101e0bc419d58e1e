from __future__ import annotations

from eigensweep.workers.driver.search.digests import MOST_NEW, Digests, digest


def test_digests_are_found_before_and_after_they_were_sorted_in():
    seen, each = Digests(), [digest("scornn", str(k)) for k in range(MOST_NEW + 100)]
    for known in each:
        assert known not in seen
        seen.add(known)
        seen.add(known)
    assert len(seen) == len(each) == len(set(each))
    assert all(known in seen for known in each)
    assert not any(digest("lstm", str(k)) in seen for k in range(1000))


def test_smallest_and_largest_numbers_are_found():
    seen = Digests()
    ends = [0, 2**64 - 1]
    for known in [*ends, *range(1, MOST_NEW)]:
        seen.add(known)
    assert all(known in seen for known in ends)
    assert MOST_NEW not in seen


def test_words_are_not_run_together():
    assert digest("ab", "c") != digest("a", "bc")
    assert 0 <= digest("a") < 2**64
