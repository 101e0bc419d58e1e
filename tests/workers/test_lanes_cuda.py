"""On a GPU: a captured step, the same uncaptured, and a training alone are the same."""

from __future__ import annotations

import io
from typing import get_args

import pytest
import torch
from lanes import build, close, config_of, train_lanes

from eigensweep.models import MODELS
from eigensweep.search_spaces.trial import UpdateRule
from eigensweep.training.lanes.stacked.group import Group

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

TRAINED = [name for name in MODELS if not name.startswith("constructed")]
TASK = {"name": "copying", "delay": 20, "symbols": 3, "batch_size": 8}


def configs_of(model, optimizer=None):
    options = {"lr": 0.01, "clip_norm": 1.0}, {"lr": 0.003, "weight_decay": 0.1}
    return [
        config_of(model, TASK, {**(optimizer or {}), **o}, {"steps": 50 - 5 * number})
        for number, o in enumerate(options)
    ]


def build_all(configs, precise, device="cuda"):
    return [build(c, seed, precise, device=device) for seed, c in enumerate(configs)]


def compare(configs, atol, precise=True):
    """Train as a graph, uncaptured, and alone, and compare all that is known."""
    captured, uncaptured, alone = (build_all(configs, precise) for _ in range(3))
    group = Group(captured[0], len(captured) + 1)
    train_lanes(captured, group=group)
    assert group.is_captured, "no CUDA graph was captured; the log says why"
    assert group.scores_captured, "no evaluation was captured; the log says why"
    train_lanes(uncaptured, group=Group(uncaptured[0], len(uncaptured) + 1, capture=False))
    for one, two, three in zip(captured, uncaptured, alone, strict=True):
        three.run()
        close(one.state_dict(), two.state_dict(), atol)
        close(one.state_dict(), three.state_dict(), atol)


@pytest.mark.parametrize("name", TRAINED)
def test_every_model_is_captured_and_trains_as_alone(name):
    compare(configs_of(name), 1e-8)


@pytest.mark.parametrize("lanes", [1, 32])
@pytest.mark.parametrize("name", ["scornn", "enrnn"])
def test_the_cayley_map_of_a_real_size_is_captured(name, lanes):
    sizes = {"enrnn": {"short_size": 20, "negative_ones": 10}, "scornn": {"negative_ones": 95}}
    config = config_of({"name": name, "hidden_size": 190, **sizes[name]}, TASK)
    training = build(config, 0, precise=False, device="cuda")
    group = Group(training, lanes)
    group.join(training)
    while training.step < 2:
        group.advance(1e-9)
    assert group.is_captured, "no CUDA graph was captured; the log says why"
    group.close()


@pytest.mark.parametrize("name", get_args(UpdateRule))
def test_every_optimizer_is_captured_and_trains_as_alone(name):
    compare(configs_of("scornn", {"name": name, "momentum": 0.5, "name_orth": "rmsprop"}), 1e-9)


@pytest.mark.parametrize("name", ["exprnn", "urnn", "lstm", "gru", "goru", "asrnn", "cornn", "lem"])
def test_float32_with_kernels_trains_as_alone_for_some_steps(name):
    captured, alone = (build_all(configs_of(name), precise=False) for _ in range(2))
    group = Group(captured[0], 3)
    for training in captured:
        group.join(training)
    while min(t.step for t in captured) < 10:
        group.advance(1e-9)
    for lane, expected in zip(captured, alone, strict=True):
        group.leave(lane)
        expected.run(lane.step)
        found, known = ([p.metrics for p in t.drain()] for t in (lane, expected))
        for one, other in zip(found, known, strict=True):
            assert one == pytest.approx(other, rel=2e-3, abs=1e-4)
    group.close()


def test_carried_states_and_padded_batches_train_as_alone(tmp_path, monkeypatch):
    small_files = pytest.importorskip("small_files")
    small_files.put_small_corpora(tmp_path, monkeypatch)
    for task in ("ptb_chars", "speech_frames"):
        config = config_of("lstm", task, training={"steps": 23})
        lane, alone = (build(config, 0, data_root=tmp_path, device="cuda") for _ in range(2))
        train_lanes([lane], 2)
        alone.run()
        close(lane.state_dict()["model"], alone.state_dict()["model"], 1e-9)


def test_neighbours_change_no_bit_and_checkpoints_move_to_cpus():
    configs = configs_of("exprnn")
    first, second = build_all(configs, precise=False), build_all(configs, precise=False)
    train_lanes(first)
    second[1].model.V.data.fill_(torch.nan)
    train_lanes(second)
    close(second[0].state_dict()["model"], first[0].state_dict()["model"], 0.0)
    file = io.BytesIO()
    torch.save(first[0].state_dict(), file)
    file.seek(0)
    moved = build(config_of("exprnn", TASK, {"lr": 0.01, "clip_norm": 1.0}), 0, precise=False)
    moved.load_state_dict(torch.load(file, weights_only=True))
    assert moved.step == 50
