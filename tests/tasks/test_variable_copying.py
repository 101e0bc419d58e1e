import pytest
import torch

from eigensweep.tasks.variable_copying import VariableCopying, VariableCopyingConfig


def sequences(**config):
    """Return (x, y) of many sequences, and the step of each one's marker."""
    config = VariableCopyingConfig(test_size=3_000, **config)
    batches = list(VariableCopying(config).evaluation("test"))
    x = torch.cat([batch.x for batch in batches], dim=1)
    y = torch.cat([batch.y for batch in batches], dim=1)
    return x, y, x.eq(config.alphabet + 1).int().argmax(0)


def test_the_answer_follows_a_marker_anywhere_after_a_blank():
    S, T, K = 3, 9, 4
    x, y, markers = sequences(symbols=S, delay=T, alphabet=K)
    assert x.shape == y.shape == (T + 2 * S, 3_000)
    for shown, asked, M in zip(x.T.tolist(), y.T.tolist(), markers.tolist(), strict=True):
        string = shown[:S]
        assert set(string) <= set(range(1, K + 1))
        assert shown == string + [0] * (M - S) + [K + 1] + [0] * (T + 2 * S - M - 1)
        assert asked == [0] * (M + 1) + string + [0] * (T + S - M - 1)


def test_the_marker_takes_each_of_its_places_equally_often():
    S, T = 2, 6
    _, _, markers = sequences(symbols=S, delay=T)
    places, counts = markers.unique(return_counts=True)
    assert places.tolist() == list(range(S + 1, S + T))
    assert (counts - 3_000 / (T - 1)).abs().max() < 110  # five standard deviations


def test_the_shortest_delay_leaves_one_place():
    x, y, markers = sequences(symbols=2, delay=2)
    assert markers.eq(3).all()
    assert torch.equal(y[4:], x[:2])


class TestBaseline:
    @pytest.mark.parametrize(
        ("delay", "nats"), [(50, 0.66377), (100, 0.44675), (200, 0.27567), (500, 0.13437)]
    )
    def test_knowing_the_step_only_gives_the_numbers_of_the_design(self, delay, nats):
        config = VariableCopyingConfig(
            delay=delay, baseline_kind="step_only", valid_size=10_000_000
        )
        assert config.baseline() == pytest.approx(nats, abs=1e-5)

    def test_knowing_the_place_but_no_symbols_scores_place_known(self):
        config = VariableCopyingConfig(symbols=3, delay=7, alphabet=4)
        task = VariableCopying(config)
        batch = task.train_batch(0, seed=0)
        logits = torch.zeros(*batch.y.shape, 5)
        logits[..., 0] = torch.where(batch.y == 0, 100.0, -100.0)
        assert config.baseline() == pytest.approx(float(task.loss(logits, batch)), rel=1e-6)
        for metric in ("recall_accuracy", "accuracy"):
            found = average_over_guesses(task, logits, batch, metric)
            assert config.baseline(metric) == pytest.approx(found)

    @pytest.mark.parametrize("split", ["valid", "test"])
    @pytest.mark.parametrize(("S", "T", "K"), [(2, 5, 3), (3, 3, 3), (1, 2, 2)])
    def test_knowing_the_step_and_its_input_scores_step_only(self, S, T, K, split):
        config = VariableCopyingConfig(
            symbols=S,
            delay=T,
            alphabet=K,
            valid_size=300,
            test_size=500,
            baseline_kind="step_only",
        )
        task = VariableCopying(config)
        (batch,) = task.evaluation(split)
        logits = forgetting(batch.x, S, T, K)
        found = config.baselines_on(split)
        assert found["cross_entropy"] == pytest.approx(float(task.loss(logits, batch)), rel=1e-6)
        accuracy = average_over_guesses(task, logits, batch, "accuracy")
        assert found["accuracy"] == pytest.approx(accuracy, rel=1e-6)
        if split == "valid":
            assert config.baselines == task.baselines == found


def forgetting(x, S, T, K):
    """Return the logits of what a blank tells at each step, counted over every marker's place."""
    step, M = torch.arange(T + 2 * S)[:, None], torch.arange(S + 1, S + T)
    blank = (step >= S) & (step != M)
    answer = (step > M) & (step <= M + S)
    q = answer.sum(1) / blank.sum(1).clamp(min=1)
    chances = torch.cat([1 - q[:, None], (q / K)[:, None].expand(-1, K)], dim=1)
    logits = chances.log().clamp(min=-100)[:, None].repeat(1, x.shape[1], 1)
    logits[x != 0] = torch.tensor([0.0] + K * [-100.0])  # before a symbol or the marker: a blank
    return logits


def average_over_guesses(task, logits, batch, metric):
    """Return a metric where each symbol in turn is the guess among equally likely ones."""
    found, K = 0.0, logits.shape[-1] - 1
    for guess in range(1, K + 1):
        one = logits.clone()
        one[..., guess] += 1e-3
        total, count = task.scores(one, batch)[metric]
        found += float(total) / count / K
    return found
