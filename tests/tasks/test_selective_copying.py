from math import log

import pytest
import torch

from eigensweep.tasks.selective_copying import SelectiveCopying, SelectiveCopyingConfig


def batch(**config):
    task = SelectiveCopying(SelectiveCopyingConfig(test_size=900, **config))
    return task, next(task.evaluation("test"))


def test_the_symbols_among_blanks_are_asked_for_at_markers():
    S, T, K = 3, 8, 4
    _, drawn = batch(symbols=S, delay=T, alphabet=K)
    assert drawn.x.shape == drawn.y.shape == (T + 2 * S, 900)
    for shown, asked in zip(drawn.x.T.tolist(), drawn.y.T.tolist(), strict=True):
        string = [code for code in shown[: T + S] if code]
        assert len(string) == S
        assert set(string) <= set(range(1, K + 1))
        assert shown[T + S :] == S * [K + 1]
        assert asked == (T + S) * [0] + string


def test_each_set_of_places_comes_up_equally_often():
    _, drawn = batch(symbols=2, delay=3)
    sets, counts = (drawn.x[:5] > 0).T.unique(dim=0, return_counts=True)
    assert len(sets) == 10
    assert (counts - 90).abs().max() < 48  # five standard deviations


def test_the_defaults_are_those_of_the_papers():
    config = SelectiveCopyingConfig()
    assert (config.delay + config.symbols, config.symbols, config.sequence_length) == (
        4096,
        16,
        4112,
    )
    assert config.shapes.input_size == 16
    assert config.baseline() == pytest.approx(log(14))


def test_only_the_steps_of_the_markers_are_scored():
    task, drawn = batch(symbols=3, delay=5, alphabet=4)
    logits = torch.zeros(*drawn.y.shape, 5, requires_grad=True)
    task.loss(logits, drawn).backward()
    assert not logits.grad[:-3].any()
    assert logits.grad[-3:].abs().sum(-1).min() > 0
    assert torch.equal(drawn.mask, drawn.y > 0)
    assert drawn.mask.sum(0).eq(3).all()


def test_forgetting_every_symbol_scores_exactly_the_baseline():
    task, drawn = batch(symbols=3, delay=5, alphabet=4)
    logits = torch.zeros(*drawn.y.shape, 5)
    logits[..., 0] = -100  # never a blank
    total, count = task.scores(logits, drawn)["cross_entropy"]
    assert float(total) / count == pytest.approx(task.config.baseline(), rel=1e-6)
    found = 0.0
    for guess in range(1, 5):
        logits[..., guess] += 1e-3
        right, count = task.scores(logits, drawn)["recall_accuracy"]
        found += float(right) / count / 4
        logits[..., guess] -= 1e-3
    assert found == pytest.approx(task.config.baseline("recall_accuracy"))
