"""Steps and evaluations of lanes wait for nothing: no value is read, nothing comes from the host.

On the device `meta`, which has shapes and no values, reading a value is an error. And a recording
of all operations, repeated as a GPU repeats a graph, does what the program does.
"""

from __future__ import annotations

from dataclasses import replace
from typing import get_args
from unittest import mock

import pytest
import torch
from lanes import assert_equal, build, config_of, train_lanes
from test_lanes import VARIANTS
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from toys import Text

from eigensweep.models.recurrence.native import library
from eigensweep.search_spaces.trial import UpdateRule
from eigensweep.tasks import TASKS
from eigensweep.training.lanes.stacked import graphs, scoring
from eigensweep.training.lanes.stacked.group import Group
from eigensweep.training.lanes.stacked.program import Program


class NoCopies(TorchDispatchMode):
    """Refuses what a captured step must not do: copies between host and device."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        given = [t for t in tree_leaves((args, kwargs)) if is_large(t)]
        made = [t for t in tree_leaves(result) if is_large(t)]
        devices = {t.device.type for t in (*given, *made)}
        assert devices <= {"meta"} or "meta" not in devices, f"{func} takes tensors to {devices}"
        return result


def is_large(t):
    return isinstance(t, torch.Tensor) and t.dim() > 0


def make_program(config, **options):
    """Return a program whose tensors have shapes and no values."""
    training = build(config, precise=False, **options)
    program = Program(training, 2, static=True)
    program.load(0, training)
    program.batches.place(0, 2)
    for split in ("valid", "test"):
        program._scorer._segments(split)  # now their data is held
    strip(program, set())
    return program


def strip(holder, seen):
    """Move all tensors below an object to the device `meta`."""
    if isinstance(holder, torch.nn.Module):
        holder.to("meta")
        return
    if id(holder) in seen or not (
        isinstance(holder, dict | list) or type(holder).__module__.startswith("eigensweep.training")
    ):
        return
    seen.add(id(holder))
    parts = holder if isinstance(holder, dict | list) else vars(holder)
    for key, value in list(enumerate(parts) if isinstance(parts, list) else parts.items()):
        if isinstance(value, torch.Tensor):
            parts[key] = value.to("meta")
        elif isinstance(value, torch.device):
            parts[key] = torch.device("meta")
        else:
            strip(value, seen)


def step_without_host(program):
    with NoCopies():
        program._tick()
        program._tick()


def score_without_host(program, split="valid"):
    scorer, state = program._scorer, []
    for segment in scorer._splits[split]:
        there = tuple(replace(p, batch=p.batch.to("meta")) for p in segment)
        with NoCopies(), torch.no_grad():
            _, state = scorer.add(there, state)
    assert scorer._sums
    program.close()


@pytest.mark.parametrize(("name", "fields"), VARIANTS)
@pytest.mark.quick_cases(2)
def test_no_step_of_any_model_asks_the_device_or_the_host(name, fields):
    program = make_program(config_of({"name": name, **fields}))
    step_without_host(program)
    score_without_host(program)


@pytest.mark.parametrize("name", get_args(UpdateRule))
def test_no_optimizer_asks_the_device(name):
    program = make_program(config_of("scornn", optimizer={"name": name}))
    step_without_host(program)
    program.close()


@pytest.mark.parametrize(
    "task",
    [
        "adding",
        "ptb_chars",
        {"name": "ptb_chars", "reading": "sentences"},
        "speech_frames",
        {"name": "speech_frames", "normalisation": "batch_padded_mean"},
    ],
    ids=str,
)
@pytest.mark.quick_cases(2)
def test_no_task_asks_the_device(task, small_corpora):
    program = make_program(config_of("tanh_rnn", task), data_root=small_corpora)
    step_without_host(program)
    score_without_host(program)


def test_a_step_that_reads_a_value_is_noticed():
    program = make_program(config_of("scornn"))
    program._task = mock.Mock(loss=lambda logits, batch: logits.sum() * float(logits.sum()))
    with pytest.raises(RuntimeError):
        step_without_host(program)


class Recording(TorchDispatchMode):
    """The operations of some work, to be repeated in the same memory without running its Python."""

    def __init__(self, act):
        super().__init__()
        self.calls = []
        with self:
            act()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, result))
        return result

    def replay(self):
        with torch._C._AutoDispatchBelowAutograd():
            for func, args, kwargs, result in self.calls:
                made = func(*args, **kwargs)
                for old, new in zip(tree_leaves(result), tree_leaves(made), strict=True):
                    if isinstance(old, torch.Tensor) and old.data_ptr() != new.data_ptr():
                        old.copy_(new)


def record(act, device, what, *, pool=None):
    """Do what `graphs.capture` does, on a CPU; the recording is the last of the runs before it."""
    for _ in range(graphs.WARM_UPS - 1):
        act()
    return Recording(act)


@pytest.fixture
def recorded(monkeypatch):
    """A function that makes a group of lanes whose steps and evaluations are recorded."""
    monkeypatch.setattr(graphs, "capture", record)
    monkeypatch.setattr(library, "load_library", lambda source: None)  # it is no operation
    monkeypatch.setitem(TASKS, "text", Text)

    def make(like, lanes):
        group = Group(like, lanes, static=True)
        program = group._program
        program._may_capture = program._scorer._captures = True
        return group

    return make


@pytest.mark.parametrize(
    ("model", "task", "segment", "evaluations"),
    [
        ("scornn", {"name": "copying", "valid_size": 1005}, 8, 3),
        ({"name": "enrnn", "hidden_size": 40, "short_size": 36}, "copying", 4_096, 2),
        ("lstm", {"name": "text", "reset": True}, 5, 3),
        ("tanh_rnn", {"name": "ptb_chars", "reading": "sentences"}, 20, None),
    ],
    ids=str,
)
@pytest.mark.quick_cases(2)
def test_repeated_steps_and_evaluations_are_those_alone(
    recorded, small_corpora, monkeypatch, model, task, segment, evaluations
):
    monkeypatch.setattr(scoring, "SEGMENT_STEPS", segment)
    training = {"steps": 10, "evaluate_every": 3, "test_every_evaluation": task == "copying"}
    config = config_of(model, task, {"lr": 0.02}, training)
    lanes, alone = ([build(config, s, data_root=small_corpora) for s in (0, 1)] for _ in range(2))
    group = recorded(lanes[0], 3)
    train_lanes(lanes, group=group)
    assert group.is_captured
    assert group.scores_captured == evaluations or evaluations is None
    for lane, expected in zip(lanes, alone, strict=True):
        expected.run()
        assert_equal(lane, expected)
        assert lane.result().test == pytest.approx(expected.result().test, rel=1e-10)


def test_shapes_beyond_the_captured_ones_are_scored_too(recorded, monkeypatch):
    monkeypatch.setattr(scoring, "MOST_GRAPHS", 1)
    monkeypatch.setattr(scoring, "HELD_BYTES", 0)
    config = config_of("scornn", training={"steps": 5, "evaluate_every": 2})
    lane, alone = build(config), build(config)
    group = recorded(lane, 2)
    train_lanes([lane], group=group)
    alone.run()
    assert_equal(lane, alone)
    assert group.scores_captured == 1
