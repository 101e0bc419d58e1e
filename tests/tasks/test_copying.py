from math import log

import pytest
import torch

from eigensweep.tasks.copying import Copying, CopyingConfig


def batch_of(**config):
    return Copying(CopyingConfig(**config)).train_batch(0, seed=3)


class TestPlaces:
    """Every position of every sequence, as the papers' programs have them."""

    def test_the_answer_starts_one_step_after_the_marker(self):
        S, T = 10, 30
        batch = batch_of(delay=T)
        assert batch.x.shape == batch.y.shape == (T + 2 * S, 20)
        assert ((batch.x[:S] >= 1) & (batch.x[:S] <= 8)).all()
        assert batch.x[S : S + T - 1].eq(0).all()
        assert batch.x[S + T - 1].eq(9).all()
        assert batch.x[S + T :].eq(0).all()
        assert batch.y[: S + T].eq(0).all()
        assert torch.equal(batch.y[S + T :], batch.x[:S])

    def test_the_answer_starts_at_the_marker(self):
        S, T = 10, 30
        batch = batch_of(delay=T, marker="at_marker")
        assert batch.x.shape == batch.y.shape == (T + 2 * S, 20)
        assert batch.x[S : S + T].eq(0).all()
        assert batch.x[S + T].eq(9).all()
        assert batch.x[S + T + 1 :].eq(0).all()
        assert batch.y[: S + T].eq(0).all()
        assert torch.equal(batch.y[S + T :], batch.x[:S])

    def test_a_delay_of_one_still_has_its_marker(self):
        batch = batch_of(delay=1, symbols=2, alphabet=3)
        assert batch.x[2].eq(4).all()
        assert batch.x[3:].eq(0).all()

    def test_every_symbol_of_the_alphabet_comes_up_equally_often(self):
        task = Copying(CopyingConfig(delay=1, symbols=10, alphabet=5, test_size=5_000))
        strings = torch.cat([batch.y[-10:] for batch in task.evaluation("test")], dim=1)
        counts = strings.flatten().bincount()
        assert counts[0] == 0
        assert len(counts) == 6
        assert (counts[1:] - 10_000).abs().max() < 500

    def test_scalar_coding_carries_the_same_codes_as_one_float(self):
        codes, floats = batch_of(delay=4), batch_of(delay=4, input_coding="scalar")
        assert torch.equal(floats.x, codes.x[..., None].float())
        assert torch.equal(floats.y, codes.y)
        assert CopyingConfig(input_coding="scalar").shapes.input_size == 1

    def test_one_hot_input_has_ten_symbols_and_nine_answers(self):
        assert (CopyingConfig().shapes.input_size, CopyingConfig().shapes.output_size) == (10, 9)


class TestBaseline:
    @pytest.mark.parametrize(
        ("delay", "nats"),
        [(100, 0.173287), (200, 0.094520), (500, 0.039989), (1000, 0.020387), (2000, 0.010294)],
    )
    def test_it_is_the_published_number(self, delay, nats):
        assert CopyingConfig(delay=delay).baseline() == pytest.approx(nats, abs=5e-7)

    @pytest.mark.parametrize("marker", ["after_marker", "at_marker"])
    def test_knowing_the_step_but_no_symbols_scores_exactly_it(self, marker):
        config = CopyingConfig(delay=7, symbols=3, alphabet=4, marker=marker)
        task = Copying(config)
        batch = task.train_batch(0, seed=0)
        logits = torch.zeros(*batch.y.shape, 5)
        logits[:-3, :, 0] = 100  # sure of a blank
        logits[-3:, :, 0] = -100  # sure of a symbol, of none in particular
        assert float(task.loss(logits, batch)) == pytest.approx(config.baseline(), rel=1e-6)
        assert config.baseline() == pytest.approx(3 * log(4) / 13)

        found = {"recall_accuracy": 0.0, "accuracy": 0.0}
        for guess in range(1, 5):  # the four constant guesses, on average
            one = logits.clone()
            one[-3:, :, guess] += 1
            for name in found:
                total, count = task.scores(one, batch)[name]
                found[name] += float(total) / count / 4
        assert found["recall_accuracy"] == pytest.approx(config.baseline("recall_accuracy"))
        assert found["accuracy"] == pytest.approx(config.baseline("accuracy"))


def test_a_perfect_answer_has_no_loss_and_every_symbol_right():
    task = Copying(CopyingConfig(delay=6, symbols=2))
    batch = task.train_batch(0, seed=0)
    logits = 100 * torch.nn.functional.one_hot(batch.y, 9).float()
    scores = {name: float(t) / n for name, (t, n) in task.scores(logits, batch).items()}
    assert scores == {"cross_entropy": 0, "recall_accuracy": 1, "accuracy": 1}


def strings(task, steps):
    return [tuple(s.tolist()) for step in steps for s in task.train_batch(step, 0).x[:10].T]


def test_a_fixed_set_comes_up_in_the_same_order_over_and_over():
    task = Copying(CopyingConfig(delay=2, batch_size=4, train_size=6))
    assert task.config.steps_per_epoch == 2
    drawn = strings(task, range(6))
    assert len(set(drawn)) == 6
    assert drawn == drawn[:6] * 4


def test_fresh_strings_do_not_wrap():
    task = Copying(CopyingConfig(delay=2, batch_size=4, train_size=None))
    assert len(set(strings(task, range(250)))) == 1000


def test_the_defaults_are_the_published_setting():
    config = CopyingConfig()
    assert (config.delay, config.batch_size, config.sequence_length) == (2000, 20, 2020)
    assert config.steps_per_epoch == 1_000
    assert sum(batch.x.shape[1] for batch in Copying(config).evaluation("test")) == 1_000
    assert sum(batch.x.shape[1] for batch in Copying(config).evaluation("valid")) == 2_000
