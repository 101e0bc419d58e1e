"""Lanes of one program are the trainings alone."""

from __future__ import annotations

import pytest
from lanes import assert_equal, build, config_of, train_lanes

from eigensweep.models import MODELS

TRAINED = [name for name in MODELS if not name.startswith("constructed")]


def pairs_of(configs, precise=True):
    """Return trainings of configs with different seeds, twice."""
    return [[build(c, seed, precise) for seed, c in enumerate(configs)] for _ in range(2)]


@pytest.mark.parametrize("name", TRAINED)
def test_every_model_trains_in_lanes_as_alone(name):
    configs = [
        config_of(name, optimizer={"lr": 0.01, "clip_norm": 1.0}),
        config_of(name, optimizer={"lr": 0.003, "weight_decay": 0.1}, training={"steps": 45}),
    ]
    together, alone = pairs_of(configs)
    for training in alone:
        training.run()
    train_lanes(together)
    for lane, expected in zip(together, alone, strict=True):
        assert_equal(lane, expected)
