from math import log

import pytest
import torch

from eigensweep.tasks.denoise import Denoise, DenoiseConfig


def sequences(**config):
    batches = list(Denoise(DenoiseConfig(test_size=3_000, **config)).evaluation("test"))
    return (torch.cat([getattr(b, name) for b in batches], dim=1) for name in ("x", "y"))


def test_the_symbols_among_blanks_are_asked_for_in_order():
    S, T, K = 3, 8, 4
    x, y = sequences(symbols=S, delay=T, alphabet=K)
    assert x.shape == y.shape == (T + 2 * S, 3_000)
    for shown, asked in zip(x.T.tolist(), y.T.tolist(), strict=True):
        string = [code for code in shown[: T + S - 1] if code]
        assert len(string) == S
        assert set(string) <= set(range(1, K + 1))
        assert shown[T + S - 1 :] == [K + 1] + S * [0]
        assert asked == (T + S) * [0] + string


def test_each_set_of_places_comes_up_equally_often():
    x, _ = sequences(symbols=2, delay=4)
    sets, counts = (x[:5] > 0).T.unique(dim=0, return_counts=True)
    assert len(sets) == 10
    assert (counts - 300).abs().max() < 85  # five standard deviations


def test_a_delay_of_one_leaves_no_blank_among_the_symbols():
    x, y = sequences(symbols=3, delay=1)
    assert (x[:3] > 0).all()
    assert torch.equal(y[4:], x[:3])


def test_the_defaults_are_those_of_the_program():
    config = DenoiseConfig()
    assert (config.batch_size, config.delay, config.sequence_length) == (128, 200, 220)
    assert (config.shapes.input_size, config.shapes.output_size) == (11, 10)
    assert config.baseline() == pytest.approx(0.099874, abs=5e-7)


def test_knowing_the_step_but_no_symbols_scores_the_baseline():
    config = DenoiseConfig(delay=7, symbols=3, alphabet=4)
    task = Denoise(config)
    batch = task.train_batch(0, seed=0)
    logits = torch.zeros(*batch.y.shape, 5)
    logits[:-3, :, 0] = 100  # sure of a blank
    logits[-3:, :, 0] = -100  # sure of a symbol, of none in particular
    assert config.baseline() == pytest.approx(float(task.loss(logits, batch)), rel=1e-6)
    assert config.baseline() == pytest.approx(3 * log(4) / 13)
