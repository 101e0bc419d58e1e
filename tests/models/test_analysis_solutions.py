"""Success counts of the constructed copying solution, in bands; and against the network itself."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from eigensweep.models import MODELS
from eigensweep.models.analysis.solutions import draw_problem, scores, successes


def test_the_scores_are_those_of_the_network_that_is_run():
    planes, K, S, delay = 24, 5, 4, 17
    draw = draw_problem(planes, K, S, delay, torch.Generator().manual_seed(3))
    shapes = SimpleNamespace(
        input_size=K + 2, input_kind="symbols", output_size=K + 1, readout="all"
    )
    cls = MODELS["constructed_copying"]
    config = cls.Config(hidden_size=2 * planes + 1, delay=delay, symbols=S)
    model = cls(config, shapes).double()
    angles = 2 * torch.pi / (delay + S) * draw.hands.double()
    for j, angle in enumerate(angles):
        turn = [[angle.cos(), -angle.sin()], [angle.sin(), angle.cos()]]
        model.W[2 * j : 2 * j + 2, 2 * j : 2 * j + 2] = torch.tensor(turn, dtype=torch.float64)
    model.U[:-1, 1:-1], model.V[1:, :-1] = draw.vectors.T, draw.vectors
    x = torch.zeros(delay + 2 * S, 1, dtype=torch.int64)
    x[:S, 0], x[delay + S - 1] = draw.string + 1, K + 1

    logits, _ = model(x)

    expected = logits[-S:, 0, 1:]  # the variant `exact` gives the counter no say in them
    torch.testing.assert_close(scores(draw, delay), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("planes", "symbols", "recalls", "least", "most"),
    [
        (512, 8, 10, 98, 100),
        (128, 8, 5, 98, 100),
        (128, 64, 10, 85, 100),
        (128, 8, 20, 28, 64),
        (32, 64, 5, 44, 80),
        (32, 8, 40, 0, 0),
        (32, 8, 10, 4, 30),
    ],
)
def test_successes_fall_with_the_string_less_with_the_alphabet(
    planes, symbols, recalls, least, most
):
    assert least <= successes(planes, symbols, recalls) <= most


def test_the_delay_hardly_matters():
    counts = [successes(64, 8, 10, delay) for delay in (50, 500, 5000)]
    assert max(counts) - min(counts) <= 25
    assert min(counts) > 40


def test_the_same_seed_gives_the_same_count():
    assert successes(48, 8, 10, seed=5) == successes(48, 8, 10, seed=5)
