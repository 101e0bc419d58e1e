"""Fair shares of a cluster, from what experiments want alone."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace

import pytest
from clocks import Clock
from file_ledger import FileLedger
from hypothesis import given
from hypothesis import strategies as st

from eigensweep.protocol import fair_shares as module
from eigensweep.protocol.fair_shares import (
    ROUNDING,
    Claimant,
    Demand,
    allot,
    share_out,
)
from eigensweep.protocol.shares import Share
from eigensweep.workers.driver.nodes.fair_share import LOOK_SECONDS, FairShare

SLOTS = st.integers(1, 40)
OF_ONE_SIZE = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(-1, 1), st.integers(0, 50)), max_size=8
)
"""Owner, priority and wanted trials of experiments whose trials are of one size."""
PARTS = st.dictionaries(st.sampled_from(["CPU", "GPU"]), st.floats(0.01, 1.0), min_size=1)


def contend(slots: int, *those: tuple[str, int, int]) -> list[Claimant]:
    """Return experiments of (owner, priority, trials), in the order in which they were posted."""
    return [
        Claimant(f"e{n}", owner, priority, n, Demand(trials, {"CPU": 1 / slots}))
        for n, (owner, priority, trials) in enumerate(those)
    ]


def divide(slots: int, *those: tuple[str, int, int]) -> list[int]:
    return list(share_out(contend(slots, *those)).values())


def test_two_users_share_alike_whatever_they_posted():
    assert divide(4, ("a", 0, 9), ("b", 0, 9)) == [2, 2]
    assert divide(4, ("a", 0, 9), ("a", 0, 9), ("a", 0, 9), ("b", 0, 9)) == [1, 1, 0, 2]


def test_what_one_cannot_use_goes_to_the_others():
    assert divide(8, ("a", 0, 1), ("b", 0, 9), ("c", 0, 9)) == [1, 4, 3]
    assert divide(8, ("a", 0, 3)) == [3]


def test_a_higher_priority_is_served_before_all_others():
    assert divide(4, ("a", 0, 9), ("b", 5, 3)) == [1, 3]
    assert divide(4, ("a", -1, 9), ("a", 0, 9)) == [0, 4]


def test_what_a_user_has_by_priority_counts_for_the_user():
    assert divide(8, ("a", 1, 4), ("a", 0, 9), ("b", 0, 9)) == [4, 0, 4]


def test_with_too_few_slots_the_first_experiments_have_them():
    assert divide(2, *[("a", 0, 9)] * 8) == [1, 1, 0, 0, 0, 0, 0, 0]


def test_trials_of_other_sizes_count_by_their_dominant_resource():
    wide, narrow = Demand(9, {"CPU": 0.25, "GPU": 0.1}), Demand(99, {"CPU": 0.0625})
    found = share_out([Claimant("w", "a", 0, 0, wide), Claimant("n", "b", 0, 1, narrow)])
    assert found == {"w": 2, "n": 8}


def test_who_needs_gpus_leaves_the_cpus_to_others():
    gpus, cpus = Demand(9, {"CPU": 0.05, "GPU": 0.5}), Demand(99, {"CPU": 0.1})
    found = share_out([Claimant("g", "a", 0, 0, gpus), Claimant("c", "b", 0, 1, cpus)])
    assert found == {"g": 2, "c": 9}


@given(SLOTS, OF_ONE_SIZE)
def test_no_slot_is_given_twice_or_stays_free_while_wanted(slots, those):
    shares = divide(slots, *those)
    wanted = [trials for _, _, trials in those]
    assert all(share <= most for share, most in zip(shares, wanted, strict=True))
    assert sum(shares) == min(slots, sum(wanted))


@given(SLOTS, OF_ONE_SIZE)
def test_shares_differ_by_one_slot_at_most(slots, those):
    those = [(owner, 0, trials) for owner, _, trials in those]
    shares, of_users = divide(slots, *those), Counter()
    for (owner, _, _), share in zip(those, shares, strict=True):
        of_users[owner] += share
    for (owner, _, trials), share in zip(those, shares, strict=True):
        if share < trials:
            assert max(of_users.values()) <= of_users[owner] + 1
            mine = [s for (o, _, _), s in zip(those, shares, strict=True) if o == owner]
            assert max(mine) <= share + 1


@given(SLOTS, OF_ONE_SIZE)
def test_a_lower_priority_has_what_higher_ones_leave(slots, those):
    shares = divide(slots, *those)
    served = [priority for (_, priority, _), share in zip(those, shares, strict=True) if share]
    for (_, priority, trials), share in zip(those, shares, strict=True):
        assert share == trials or not any(lower < priority for lower in served)


@given(SLOTS, OF_ONE_SIZE)
def test_a_node_more_takes_nothing_from_anybody(slots, those):
    before, after = divide(slots, *those), divide(slots + 1, *those)
    assert all(less <= more for less, more in zip(before, after, strict=True))


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 30), PARTS), max_size=6))
def test_no_resource_is_given_twice_and_nothing_more_fits(those):
    claimants = [
        Claimant(f"e{n}", owner, 0, n, Demand(trials, parts))
        for n, (owner, trials, parts) in enumerate(those)
    ]
    shares = share_out(claimants)
    now = [replace(each, running=shares[each.experiment]) for each in claimants]
    for kind in ("CPU", "GPU"):
        assert sum(c.running * c.demand.parts.get(kind, 0) for c in now) <= 1 + 2 * ROUNDING
    more = [
        replace(each, demand=replace(each.demand, trials=each.demand.trials + 1)) for each in now
    ]
    found = allot(more, {each.experiment: each.running + 1 for each in now})
    for each in now:
        assert each.running == each.demand.trials or found[each.experiment].is_crowded


def share_place_by_place(claimants: list[Claimant]) -> dict[str, int]:
    """Return what `share_out` does, by a look at all experiments for each place."""
    shares = dict.fromkeys((each.experiment for each in claimants), 0)
    used: defaultdict[str, float] = defaultdict(float)
    of_users: defaultdict[str, float] = defaultdict(float)
    ordered = sorted(claimants, key=lambda c: (-c.priority, c.since, c.experiment))
    for priority in dict.fromkeys(each.priority for each in ordered):
        waiting = [each for each in ordered if each.priority == priority]
        while waiting:
            least = min(
                waiting,
                key=lambda c: (
                    round(of_users[c.owner], 9),
                    round(shares[c.experiment] * c.demand.dominant, 9),
                ),
            )
            parts = least.demand.parts
            fits = all(used[kind] + part <= 1 + ROUNDING for kind, part in parts.items())
            if shares[least.experiment] >= least.demand.trials or not fits:
                waiting.remove(least)
                continue
            shares[least.experiment] += 1
            of_users[least.owner] += least.demand.dominant
            for kind, part in parts.items():
                used[kind] += part
    return shares


@given(
    st.lists(
        st.tuples(
            st.sampled_from("abc"),
            st.integers(-1, 1),
            st.integers(0, 3),
            st.integers(0, 60),
            st.one_of(st.integers(1, 40).map(lambda n: {"CPU": 1 / n}), PARTS),
        ),
        max_size=12,
    )
)
def test_the_shares_are_those_of_filling_place_by_place(those):
    claimants = [
        Claimant(f"e{n}", owner, priority, since, Demand(trials, parts))
        for n, (owner, priority, since, trials, parts) in enumerate(those)
    ]
    assert share_out(claimants) == share_place_by_place(claimants)


@given(
    st.lists(
        st.tuples(
            st.sampled_from("abc"),
            st.integers(-1, 1),
            st.sampled_from([1, 7, 200, 5000]),
            st.sampled_from([1, 2, 3, 16, 50]),
            st.sampled_from([{"CPU": 1.0}, {"CPU": 1.0, "GPU": 20.0}, {"CPU": 2.0, "memory": 1.0}]),
        ),
        min_size=1,
        max_size=8,
    ),
    st.sampled_from([400, 1500]),
)
def test_many_slots_given_at_once_make_the_same_shares(those, places):
    claimants = [
        Claimant(
            f"e{n}",
            owner,
            priority,
            n,
            Demand(trials, {kind: size * part / places for kind, part in parts.items()}),
        )
        for n, (owner, priority, trials, size, parts) in enumerate(those)
    ]
    assert share_out(claimants) == share_place_by_place(claimants)


def test_few_places_are_given_one_by_one(monkeypatch):
    looked_at, fits = [], module._fits
    monkeypatch.setattr(module, "_fits", lambda *given: looked_at.append(1) or fits(*given))
    found = share_out(contend(100_000, *[("ab"[n % 2], 0, 10**6) for n in range(50)]))
    assert set(found.values()) == {2000}
    assert len(looked_at) < 100_000 / 50


class TestWhatADriverKeepsTo:
    """One experiment whose ledger a test fills with others, which have another user."""

    DEMAND = Demand(4, {"CPU": 0.25})

    @pytest.fixture
    def clock(self):
        return Clock()

    @pytest.fixture
    def ledger(self, tmp_path):
        return FileLedger(tmp_path / "ledger.json")

    @pytest.fixture
    def fair(self, ledger, clock):
        return FairShare(ledger, clock)

    def look(self, fair, clock, want=DEMAND):
        clock.now += LOOK_SECONDS
        return fair.count(lambda: want)

    def test_alone_it_has_all_and_says_nothing(self, fair, clock):
        assert self.look(fair, clock) == 4
        assert fair.notice() is None
        assert not fair.has_no_place

    def test_beside_another_it_says_why_it_has_half(self, fair, clock, ledger):
        ledger.contend(("e0", "b", self.DEMAND, 2))
        assert self.look(fair, clock) == 2
        notice = fair.notice()
        assert notice.kind == "share"
        assert notice.words == "its fair share is 2 of 4 places, beside 1 other experiment"

    def test_it_says_that_it_waits_for_the_trials_of_others(self, fair, clock, ledger):
        ledger.contend(("e0", "b", self.DEMAND, 4))
        assert self.look(fair, clock, Demand(1, {"CPU": 0.25})) == 1
        assert fair.has_no_place
        assert fair.notice().words.endswith("it gets them when trials of others end")
        ledger.contend(("e0", "b", self.DEMAND, 3))
        assert self.look(fair, clock, Demand(1, {"CPU": 0.25})) == 1
        assert not fair.has_no_place
        assert fair.notice() is None

    def test_it_looks_often_and_writes_only_what_has_changed(
        self, fair, clock, ledger, monkeypatch
    ):
        calls = []
        record_demand, find_allotment = ledger.record_demand, ledger.find_allotment
        monkeypatch.setattr(
            ledger, "record_demand", lambda some: calls.append("want") or record_demand(some)
        )
        monkeypatch.setattr(
            ledger, "find_allotment", lambda: calls.append("share") or find_allotment()
        )
        for _ in range(3):
            self.look(fair, clock)
            fair.count(lambda: self.DEMAND)
        assert calls == ["want", "share", "share", "share"]


def test_a_trial_takes_the_part_that_its_nodes_lose(monkeypatch):
    from eigensweep.workers.driver.nodes import capacity

    nodes = [{"CPU": 3.0}, {"CPU": 3.0}, {"CPU": 1.0}, {"CPU": 9.0, "GPU": 1.0}]
    monkeypatch.setattr(capacity, "list_living_nodes", lambda: [{"Resources": n} for n in nodes])
    assert capacity.find_parts(Share({"CPU": 2.0})) == {"CPU": pytest.approx(15 / 16 / 6)}
    gpu = capacity.find_parts(Share({"CPU": 1.0, "GPU": 0.5}))
    assert gpu == {"CPU": 1 / 16, "GPU": 0.5}
