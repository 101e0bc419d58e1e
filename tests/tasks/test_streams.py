import hashlib

import numpy as np

from eigensweep.tasks import streams
from eigensweep.tasks.streams import below, chunks, draw, epoch_order, uniform


class TestDraw:
    def test_a_row_depends_on_the_stream_and_its_number_alone(self):
        together = draw("adding/train/1", [5, 99_999, 0], 30)
        for i, row in enumerate([5, 99_999, 0]):
            np.testing.assert_array_equal(together[i], draw("adding/train/1", [row], 30)[0])

    def test_a_shorter_row_is_the_beginning_of_a_longer_one(self):
        np.testing.assert_array_equal(draw("a", [3], 100)[:, :37], draw("a", [3], 37))

    def test_no_number_is_shared_between_rows_seeds_or_splits(self):
        names = ["adding/train/0", "adding/train/1", "adding/valid", "copying/valid"]
        numbers = np.concatenate([draw(name, range(100), 50).ravel() for name in names])
        assert len(np.unique(numbers)) == numbers.size

    def test_it_is_philox_4x64_10(self):
        # Salmon et al. 2011, computed here from their definition
        digest = hashlib.sha256(b"stream").digest()
        key = [int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:16], "little")]
        assert draw("stream", [6], 4)[0].tolist() == philox([1, 6, 0, 0], key)


def philox(counter, key):
    (a, b, c, d), (k, m), mask = counter, key, 2**64 - 1
    for _ in range(10):
        p, q = 0xD2E7470EE14C6C93 * a, 0xCA5A826395121157 * c
        a, b, c, d = (q >> 64) ^ b ^ k, q & mask, (p >> 64) ^ d ^ m, p & mask
        k, m = (k + 0x9E3779B97F4A7C15) & mask, (m + 0xBB67AE8584CAA73B) & mask
    return [a, b, c, d]


def test_floats_are_uniform_in_0_to_1_and_never_1():
    numbers = uniform(draw("floats", [0], 100_000))[0]
    assert numbers.dtype == np.float32
    assert numbers.min() >= 0
    assert uniform(np.array([2**64 - 1], dtype=np.uint64))[0] < 1
    counts = np.histogram(numbers, bins=10, range=(0, 1))[0]
    assert np.abs(counts - 10_000).max() < 500  # five standard deviations


def test_integers_below_a_bound_are_all_equally_frequent():
    counts = np.bincount(below(draw("integers", [0], 70_000)[0], 7), minlength=7)
    assert len(counts) == 7
    assert np.abs(counts - 10_000).max() < 500


class TestOrderOfAnEpoch:
    def test_it_holds_each_row_once(self):
        np.testing.assert_array_equal(np.sort(epoch_order("order/1", 3, 1000)), np.arange(1000))

    def test_it_changes_with_the_epoch_and_with_the_seed(self):
        orders = {tuple(epoch_order(f"order/{s}", e, 50)) for s in range(4) for e in range(4)}
        assert len(orders) == 16

    def test_each_of_many_lanes_has_its_own_at_hand(self, monkeypatch):
        monkeypatch.setattr(streams, "CACHED_BYTES", 40 * 8 * 100)
        orders = [epoch_order(f"lane {lane}", 0, 100) for lane in range(40)]
        assert all(epoch_order(f"lane {n}", 0, 100) is order for n, order in enumerate(orders))
        epoch_order("one more", 0, 100)
        assert epoch_order("lane 39", 0, 100) is orders[39]
        again = epoch_order("lane 0", 0, 100)
        assert again is not orders[0]
        assert (again == orders[0]).all()


def test_chunks_cover_each_row_once_and_keep_long_sequences_few():
    assert [row for chunk in chunks(2_000, 750) for row in chunk] == list(range(2_000))
    assert max(map(len, chunks(1_000, 2_020))) == 99
    assert max(map(len, chunks(3, 1_000_000))) == 1
    assert max(map(len, chunks(10_000, 10))) == 1_000
