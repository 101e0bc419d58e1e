import pytest
import torch

from eigensweep.tasks.adding import Adding, AddingConfig


def draw(**config):
    """Return (values, marks, sums), sequence first, of many sequences."""
    task = Adding(AddingConfig(test_size=10_000, **config))
    batches = list(task.evaluation("test"))
    x = torch.cat([batch.x for batch in batches], dim=1).transpose(0, 1)
    return x[..., 0], x[..., 1], torch.cat([batch.y for batch in batches])[:, 0]


@pytest.mark.parametrize(
    ("variant", "length", "first", "second"),
    [
        ("halves", 7, range(0, 3), range(3, 7)),
        ("halves", 8, range(0, 3), range(3, 8)),
        ("halves", 3, range(0, 1), range(1, 3)),
        ("halves_nnrnn", 7, range(0, 3), range(4, 7)),
        ("halves_nnrnn", 8, range(0, 4), range(4, 8)),
        ("halves_nnrnn", 2, range(0, 1), range(1, 2)),
    ],
)
def test_one_mark_stands_in_each_half_and_every_place_is_taken(variant, length, first, second):
    _, marks, _ = draw(variant=variant, length=length)
    places = marks.nonzero()[:, 1].reshape(-1, 2)
    assert set(places[:, 0].tolist()) == set(first)
    assert set(places[:, 1].tolist()) == set(second)


def test_the_published_length_splits_into_374_and_376_places():
    _, marks, _ = draw(length=750)
    assert marks[:, :374].sum(1).eq(1).all()
    assert marks[:, 374:].sum(1).eq(1).all()
    assert marks[:, [0, 373, 374, 749]].sum(0).gt(0).all()


def test_uniform_marks_take_each_pair_of_places_equally_often():
    _, marks, _ = draw(variant="uniform", length=4)
    pairs, counts = marks.unique(dim=0, return_counts=True)
    assert pairs.sum(1).eq(2).all()
    assert len(pairs) == 6
    assert (counts - 10_000 / 6).abs().max() < 200  # five standard deviations


@pytest.mark.parametrize("variant", ["halves", "halves_nnrnn", "uniform"])
def test_the_target_is_the_sum_of_the_two_marked_values(variant):
    values, marks, sums = draw(variant=variant, length=9)
    assert ((marks == 0) | (marks == 1)).all()
    torch.testing.assert_close((values * marks).sum(1), sums)


def test_always_answering_1_scores_the_best_constant_baseline():
    _, _, sums = draw(length=20)
    assert float(((sums - 1) ** 2).mean()) == pytest.approx(1 / 6, abs=0.006)
    assert float(sums.mean()) == pytest.approx(1, abs=0.015)


@pytest.mark.parametrize("split", ["valid", "test"])
def test_the_baseline_is_that_of_the_sequences_that_are_scored(split):
    config = AddingConfig(length=100, variant="uniform", valid_size=500, test_size=700)
    task = Adding(config)
    sums = torch.cat([batch.y for batch in task.evaluation(split)]).double()
    own = float(((sums - 1) ** 2).mean())
    assert config.baselines_on(split)["mse"] == pytest.approx(own, rel=1e-12)
    if split == "valid":
        assert task.baselines == config.baselines == config.baselines_on("valid")
        assert config.baseline("mse") == pytest.approx(0.1471, abs=1e-4)


def test_the_baseline_of_many_sequences_is_the_expected_one():
    assert AddingConfig(length=1_000_000, valid_size=2_000).baseline("mse") == 1 / 6


def sequences(task, steps, seed=0):
    """Return the values of each training sequence as a tuple."""
    batches = [task.train_batch(step, seed) for step in steps]
    return [tuple(row.tolist()) for batch in batches for row in batch.x[..., 0].T]


def test_a_fixed_set_comes_once_an_epoch_in_its_seeds_order():
    task = Adding(AddingConfig(length=5, batch_size=4, train_size=20))
    fresh = Adding(AddingConfig(length=5, batch_size=4, train_size=None))
    assert task.config.steps_per_epoch == 5
    orders = set()
    for seed in (0, 1):
        rows = {row: number for number, row in enumerate(sequences(fresh, range(5), seed))}
        for epoch in (0, 1):
            drawn = sequences(task, range(5 * epoch, 5 * epoch + 5), seed)
            orders.add(tuple(rows[row] for row in drawn))
    assert len(orders) == 4
    assert all(sorted(order) == list(range(20)) for order in orders)


def test_a_last_smaller_batch_is_dropped_other_rows_next_time():
    task = Adding(AddingConfig(length=5, batch_size=4, train_size=7))
    assert task.config.steps_per_epoch == 1
    assert len(set(sequences(task, range(30)))) == 7


def test_fresh_sequences_never_come_twice():
    task = Adding(AddingConfig(length=5, batch_size=4, train_size=None))
    assert len(set(sequences(task, range(250)))) == 1000


def test_the_defaults_are_the_published_setting():
    config = AddingConfig()
    assert (config.length, config.batch_size, config.variant) == (750, 50, "halves")
    assert config.steps_per_epoch == 2_000
    assert sum(batch.x.shape[1] for batch in Adding(config).evaluation("test")) == 10_000
    assert sum(batch.x.shape[1] for batch in Adding(config).evaluation("valid")) == 2_000
