"""Models that came late learn the tasks of their papers, at a small size."""

from __future__ import annotations

from typing import Any

import pytest

from eigensweep import train

ADDING = {
    "name": "adding",
    "length": 100,
    "variant": "halves_nnrnn",
    "batch_size": 50,
    "train_size": None,
    "valid_size": 200,
    "test_size": 200,
}
COPYING = {
    "name": "selective_copying",
    "delay": 40,
    "symbols": 4,
    "alphabet": 6,
    "batch_size": 32,
    "valid_size": 200,
    "test_size": 200,
}
LAYERS = {"hidden_size": 64, "width": 32, "layers": 2}
FAST = {"name": "adam", "lr": 3e-3, "clip_norm": 1.0}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any], int, float]] = {
    "cornn": (
        ADDING,
        {"hidden_size": 64, "dt": 0.06, "gamma": 66.0, "epsilon": 15.0},
        {"name": "adam", "lr": 2e-2},
        2000,
        0.5,
    ),
    "lem": (ADDING, {"hidden_size": 32, "dt": 0.1}, {"name": "adam", "lr": 1e-2}, 600, 0.1),
    "mingru": (COPYING, LAYERS, FAST, 600, 0.5),
    "minlstm": (COPYING, LAYERS, FAST, 600, 0.5),
}
"""Task, model, optimizer, steps, and the share of the baseline that is reached within them."""


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_it_learns_a_task_of_its_paper(name):
    task, model, optimizer, steps, share = CASES[name]
    content = {
        "task": task,
        "model": {"name": name, **model},
        "optimizer": optimizer,
        "training": {"steps": steps, "evaluate_every": 100},
    }
    trained = train(content, progress=False)
    assert trained.value < share * trained.baseline
