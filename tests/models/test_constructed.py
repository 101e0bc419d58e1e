"""The solutions of copying and adding that are written down, on the tasks themselves."""

from types import SimpleNamespace

import pytest
import torch

from eigensweep import train
from eigensweep.models import MODELS
from eigensweep.models.stack import Stack
from eigensweep.tasks import TASKS


def task_of(name, **fields):
    return TASKS[name](TASKS[name].Config(**fields))


def solution(task, seed=0, **fields):
    name = f"constructed_{task.config.name}"
    torch.manual_seed(seed)
    return MODELS[name](MODELS[name].Config(**fields), task.config.shapes)


def copying(delay, seed=0, planes=256, **fields):
    task = task_of("copying", delay=delay, batch_size=8)
    model = solution(task, seed, hidden_size=2 * planes + 1, delay=delay, **fields)
    batch = task.train_batch(0, 1)
    return model, batch, model(batch.x)[0].argmax(-1)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_exact_solution_of_copying_is_right_at_every_step(seed):
    _, batch, answers = copying(100, seed)
    assert torch.equal(answers, batch.y)


def test_it_does_not_depend_on_the_delay():
    _, batch, answers = copying(500, planes=640)
    assert torch.equal(answers, batch.y)


def test_the_positive_variant_misses_the_delimiter_alone():
    _, batch, answers = copying(100, variant="positive", planes=512)
    wrong = (answers != batch.y).any(1).nonzero().flatten()
    assert wrong.tolist() == [109]


@pytest.mark.parametrize(("variant", "before", "after"), [("exact", 2, -0.25), ("positive", 3, 10)])
def test_the_counter_decides_between_blanks_and_symbols(variant, before, after):
    model, batch, _ = copying(20, planes=8, variant=variant)
    counter = model.states(batch.x)[..., -1]
    blank = model(batch.x)[0][..., 0]
    seen = torch.arange(1.0, 11.0)[:, None].expand(10, 8)
    torch.testing.assert_close(counter[:10], -seen)
    torch.testing.assert_close(counter[10:29], -10 * torch.ones(19, 8))
    torch.testing.assert_close(counter[29:], after * torch.ones(11, 8))
    torch.testing.assert_close(blank, -before * counter)
    rows = model.V[1:, -1]
    assert torch.equal(rows, torch.full((8,), 0.0 if variant == "exact" else -1.0))


def test_few_planes_are_too_noisy():
    _, batch, answers = copying(100, planes=16)
    assert not torch.equal(answers, batch.y)


def test_the_clock_of_copying_has_a_period_and_is_orthogonal():
    model, _, _ = copying(20, planes=8)
    W = model.recurrent_matrix().double()
    assert torch.allclose(torch.linalg.matrix_power(W, 30), torch.eye(17).double(), atol=1e-5)
    assert torch.allclose(W.mT @ W, torch.eye(17).double(), atol=1e-6)


def test_the_solution_of_adding_is_exact_to_rounding():
    task = task_of("adding", length=750)
    model, batch = solution(task).double(), task.train_batch(0, 1)
    found, _ = model(batch.x.double())
    value, marker = batch.x.double().unbind(-1)
    torch.testing.assert_close(found[:, 0], (value * marker).sum(0), atol=1e-14, rtol=0)


def test_two_halves_of_a_sequence_agree_with_their_states():
    model, batch, _ = copying(20, planes=8)
    first, state = model(batch.x[:13])
    second, _ = model(batch.x[13:], state)
    whole = torch.cat((first, second))
    torch.testing.assert_close(whole, model(batch.x)[0])
    torch.testing.assert_close(whole, model.states(batch.x) @ model.V.mT)


def test_they_have_nothing_to_train_and_stack_all_the_same():
    one, batch, _ = copying(20, planes=8, seed=1)
    two, _, _ = copying(20, planes=8, seed=2)
    assert one.count_parameters("free") == one.count_parameters("stored") == 0
    assert one.penalty() == 0
    assert [group.params for group in one.param_groups()] == [[]]
    stack = Stack([one, two])
    stack.after_update({"main": 0.1})
    logits, _ = stack(batch.x, shared=True)
    assert len(stack) == 2
    torch.testing.assert_close(logits, torch.stack([one(batch.x)[0], two(batch.x)[0]]))


def test_a_trial_of_one_beats_the_baseline_without_a_step():
    content = {
        "task": {"name": "adding", "length": 30},
        "model": {"name": "constructed_adding"},
        "training": {"steps": 2, "evaluate_every": 1},
    }
    result = train(content)
    assert result.outcome == "completed"
    assert result.value < 1e-10


@pytest.mark.parametrize(
    ("name", "fields", "words"),
    [
        ("constructed_copying", {"hidden_size": 8}, "allowed are odd sizes, such as 9"),
        ("constructed_copying", {}, "exactly one of 'hidden_size' and 'parameters'; neither"),
    ],
)
def test_sizes_that_make_no_clock_are_refused(name, fields, words):
    shapes = SimpleNamespace(input_size=10, output_size=9, input_kind="symbols", readout="all")
    with pytest.raises(ValueError, match=words):
        MODELS[name].Config(**fields).resolve(shapes)
