"""A plain loop computes what our model computes, so that the benchmark compares equal things."""

import pytest
import torch
from torch.nn.functional import cross_entropy, one_hot

from bench.loops import LOOPS, loop_of
from bench.steps import loop_step, lstm_step, our_step
from bench.workloads import WORKLOADS as WHOLE
from bench.workloads import Material, lstm_size, network, random_batch, small, trainable_models
from eigensweep.models import MODELS
from eigensweep.tasks import TASKS

WORKLOADS = {name: small(WHOLE[name]) for name in ("copying-20", "ptb-32")}
WORKLOADS["pixels"] = small(WHOLE["mnist-128"])
PUBLISHED = ("exprnn", "scornn", "enrnn", "asrnn")
SIZE = 18
SHAPES = TASKS["copying"].Config().shapes
ALL = [name for name in trainable_models() if loop_of(network(name, SIZE, SHAPES))]


def generic(name, shapes):
    """Return a network in float64, away from special values."""
    model = network(name, SIZE, shapes).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, dtype=parameter.dtype))
    model.after_update({"main": 0.0, "orth": 0.0})
    return model


def test_the_four_published_programs_have_loops_of_their_own():
    assert set(PUBLISHED) <= set(LOOPS)


@pytest.mark.parametrize("kind", ["symbols", "values"])
@pytest.mark.parametrize("name", ALL)
class TestEqual:
    @pytest.mark.quick_cases(20)
    def test_the_loop_has_the_loss_and_the_gradients_of_the_model(self, name, kind):
        task = "copying" if kind == "symbols" else "pixel_mnist"
        config = TASKS[task].Config(batch_size=3, **({"delay": 4} if kind == "symbols" else {}))
        batch, shapes = random_batch(config), config.shapes
        x, y = batch.x[:25], batch.y if shapes.readout == "last" else batch.y[:25]
        model = generic(name, shapes)
        loop = loop_of(model)
        if kind == "symbols":
            values = one_hot(x, shapes.input_size).double()
        else:
            x = values = x.double()
        ours = cross_entropy(model(x)[0].flatten(0, -2), y.flatten())
        theirs = cross_entropy(loop(values).flatten(0, -2), y.flatten())
        torch.testing.assert_close(theirs, ours, atol=1e-11, rtol=0)
        ours.backward()
        theirs.backward()
        gradients = {n: p.grad for n, p in model.named_parameters() if p.requires_grad}
        assert any(g is not None and g.abs().max() > 1e-6 for g in gradients.values())
        for parameter, of_loop in loop.model.named_parameters():
            ours, theirs = gradients.get(parameter), of_loop.grad
            if ours is None or theirs is None:
                assert ours is None or not ours.any(), parameter
                assert theirs is None or not theirs.any(), parameter
                continue
            torch.testing.assert_close(theirs, ours, atol=1e-10, rtol=1e-8, msg=parameter)


@pytest.mark.parametrize("name", ["exprnn", "lstm"])
def test_a_step_moves_every_network_that_is_timed(name):
    config = WORKLOADS["copying-20"].config()
    batch = random_batch(config)
    task = TASKS[config.name](config)
    given = Material(task, batch, one_hot(batch.x, config.shapes.input_size).float(), "drawn")
    model = network(name, 8, config.shapes)
    for step in (loop_step(model), our_step(model), lstm_step(4, given)):
        before = [p.detach().clone() for p in step.module.parameters()]
        step.on(given)()
        after = list(step.module.parameters())
        assert any(not torch.equal(a, b) for a, b in zip(after, before, strict=True))


@pytest.mark.parametrize("workload", WORKLOADS.values(), ids=WORKLOADS)
def test_what_is_drawn_has_the_shapes_and_ranges_of_the_task(workload):
    config = workload.config()
    batch, shapes = random_batch(config), config.shapes
    size = (config.sequence_length, config.batch_size)
    assert batch.x.shape == (size if shapes.input_kind == "symbols" else (*size, 1))
    assert batch.y.shape == (size if shapes.readout == "all" else size[1:])
    assert batch.y.min() >= 0
    assert batch.y.max() < shapes.output_size


def test_the_lstm_beside_a_model_has_at_most_its_parameters():
    shapes = TASKS["copying"].Config().shapes
    n = lstm_size(22_000, shapes)

    def count(size):
        config = MODELS["lstm"].Config(name="lstm", hidden_size=size)
        return config.resolve(shapes).free_parameters(shapes)

    assert count(n) <= 22_000 < count(n + 1)
