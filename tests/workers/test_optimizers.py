"""Updates as the textbooks write them, on the groups that models name."""

from __future__ import annotations

import copy
import io
import os
import subprocess
import sys
from dataclasses import replace
from functools import partial
from typing import get_args

import numpy as np
import pytest
import torch
from torch import nn

from eigensweep.models.base import ParamGroup
from eigensweep.search_spaces.trial import OptimizerConfig, UpdateRule
from eigensweep.training.optimizers import plain_optimizers
from eigensweep.training.optimizers.optimizers import Optimizers

KINDS = get_args(UpdateRule)


class TwoGroups(nn.Module):
    """Two parameters of three entries each, one of them orthogonal by name."""

    def __init__(self, **options):
        super().__init__()
        self.A = nn.Parameter(torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64))
        self.U = nn.Parameter(torch.tensor([0.5, 0.0, -1.0], dtype=torch.float64))
        self.options = options

    def param_groups(self):
        return [ParamGroup("orth", [self.A], self.options), ParamGroup("main", [self.U])]


def take_steps(model, optimizers, gradients):
    for gradient in gradients:
        optimizers.zero_grad()
        model.A.grad, model.U.grad = (torch.tensor(g, dtype=torch.float64) for g in gradient)
        optimizers.step(optimizers.gradient_norm())


def gradients(count, seed=0):
    return np.random.default_rng(seed).normal(size=(count, 2, 3))


FIRST_SUMS = {"rmsprop_tf1": 1.0, "adagrad_tf1": 0.1, "rmsprop_urnn": 1e-3}


def textbook(kind, w, steps, lr):
    """Return the weights after `steps` gradients, from the papers' and TensorFlow 1's formulas."""
    m, v, out = np.zeros(3), np.full(3, FIRST_SUMS.get(kind, 0.0)), []
    for t, g in enumerate(steps, start=1):
        if kind == "sgd":
            w = w - lr * g
        elif kind in ("adam", "adamw"):
            m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
            w = w - lr * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
        elif kind == "rmsprop":
            v = 0.9 * v + 0.1 * g**2
            w = w - lr * g / (np.sqrt(v) + 1e-8)
        elif kind == "rmsprop_tf1":
            v = 0.9 * v + 0.1 * g**2
            w = w - lr * g / np.sqrt(v + 1e-10)
        elif kind == "adam_tf1":
            m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
            w = w - lr * np.sqrt(1 - 0.999**t) / (1 - 0.9**t) * m / (np.sqrt(v) + 1e-8)
        elif kind == "rmsprop_urnn":
            v = 0.9 * v + 0.1 * g**2
            w = w - lr * g / np.sqrt(v)
        elif kind == "adagrad_tf1":
            v = v + g**2
            w = w - lr * g / np.sqrt(v)
        else:
            v = v + g**2
            w = w - lr * g / (np.sqrt(v) + 1e-10)
        out.append(w)
    return out[-1]


@pytest.mark.parametrize("name_orth", KINDS)
@pytest.mark.parametrize("name", KINDS)
def test_each_group_follows_its_own_optimizer_and_rate(name, name_orth):
    model, steps = TwoGroups(), gradients(5)
    A, U = model.A.detach().numpy().copy(), model.U.detach().numpy().copy()
    config = OptimizerConfig(name=name, name_orth=name_orth, lr=0.01, lr_orth=0.3)
    optimizers = Optimizers(model, config)
    take_steps(model, optimizers, steps)
    np.testing.assert_allclose(model.A.detach(), textbook(name_orth, A, steps[:, 0], 0.3), 1e-9)
    np.testing.assert_allclose(model.U.detach(), textbook(name, U, steps[:, 1], 0.01), 1e-9)
    assert optimizers.learning_rates == {"orth": 0.3, "main": 0.01}


def test_sgd_s_momentum_adds_the_gradients_up():
    model, steps = TwoGroups(), gradients(6)
    config = OptimizerConfig(name="sgd", lr=0.01, momentum=0.5, weight_decay=0.2)
    w, u = model.U.detach().numpy().copy(), np.zeros(3)
    take_steps(model, Optimizers(model, config), steps)
    for gradient in steps[:, 1]:
        u = 0.5 * u + gradient + 0.2 * w
        w = w - 0.01 * u
    np.testing.assert_allclose(model.U.detach(), w, 1e-12)


def test_adamw_shrinks_the_weights_and_not_the_gradient():
    plain, shrunk, gradient = TwoGroups(), TwoGroups(), gradients(1)
    take_steps(plain, Optimizers(plain, OptimizerConfig(name="adam", lr=0.01)), gradient)
    config = OptimizerConfig(name="adamw", lr=0.01, weight_decay=0.5)
    before = shrunk.U.detach().clone()
    take_steps(shrunk, Optimizers(shrunk, config), gradient)
    torch.testing.assert_close(shrunk.U, plain.U - 0.01 * 0.5 * before, rtol=1e-12, atol=0)
    assert torch.equal(shrunk.A, plain.A), "the orthogonal group has no decay"


def test_tensorflow_s_momentum_holds_the_rates_of_its_time():
    model, steps = TwoGroups(), gradients(6)
    config = OptimizerConfig(name="rmsprop_tf1", lr=0.01, alpha=0.8, momentum=0.5)
    w, v, u = model.U.detach().numpy().copy(), np.ones(3), np.zeros(3)
    optimizers = Optimizers(model, config)
    for t, gradient in enumerate(steps):
        optimizers.scale(0.5**t)
        take_steps(model, optimizers, [gradient])
        v = 0.8 * v + 0.2 * gradient[1] ** 2
        u = 0.5 * u + 0.01 * 0.5**t * gradient[1] / np.sqrt(v + 1e-10)
        w = w - u
    np.testing.assert_allclose(model.U.detach(), w, 1e-12)


@pytest.mark.parametrize("kind", ["adam", "adam_tf1"])
def test_tensorflows_adam_adds_epsilon_before_it_corrects(kind):
    model, size = TwoGroups(), 1e-7
    before = model.U.detach().clone()
    optimizers = Optimizers(model, OptimizerConfig(name=kind, lr=0.01))
    take_steps(model, optimizers, np.full((1, 2, 3), size))
    root = 1.0 if kind == "adam" else 0.001**0.5
    expected = 0.01 * size / (size + 1e-8 / root)
    assert (before - model.U.detach())[0].item() == pytest.approx(expected, rel=1e-6)


def test_the_urnn_s_rmsprop_rests_where_a_gradient_stays_zero():
    model = TwoGroups().float()
    optimizers = Optimizers(model, OptimizerConfig(name="rmsprop_urnn", lr=0.01))
    before = model.U.detach().clone()
    for _ in range(1500):
        model.A.grad, model.U.grad = torch.zeros(3), torch.zeros(3)
        optimizers.step(optimizers.gradient_norm())
    assert torch.equal(model.U, before)


@pytest.mark.parametrize(("size", "steps"), [(0.03, 65), (1e-3, 130)])
def test_tensorflows_first_steps_are_small_for_a_while(size, steps):
    model = TwoGroups()
    optimizers = Optimizers(model, OptimizerConfig(name="rmsprop_tf1", lr=0.01))
    before = model.U.detach().clone()
    take_steps(model, optimizers, np.full((1, 2, 3), size))
    first = (before - model.U.detach())[0].item()
    take_steps(model, optimizers, np.full((steps, 2, 3), size))
    before = model.U.detach().clone()
    take_steps(model, optimizers, np.full((1, 2, 3), size))
    assert first == pytest.approx(0.01 * size / 0.9**0.5, rel=1e-3)
    assert (before - model.U.detach())[0].item() == pytest.approx(0.01 / 2**0.5, rel=0.05)


@pytest.mark.parametrize("kind", KINDS)
def test_scaled_rates_are_those_of_a_smaller_config(kind):
    scaled, smaller, steps = TwoGroups(), TwoGroups(), gradients(4)
    optimizers = Optimizers(scaled, OptimizerConfig(name=kind, lr=0.02, lr_orth=0.4))
    optimizers.scale(0.25)
    take_steps(scaled, optimizers, steps)
    take_steps(
        smaller, Optimizers(smaller, OptimizerConfig(name=kind, lr=0.005, lr_orth=0.1)), steps
    )
    assert torch.equal(scaled.A, smaller.A)
    assert torch.equal(scaled.U, smaller.U)
    assert optimizers.learning_rates == {"orth": 0.1, "main": 0.005}


def test_without_own_settings_the_orthogonal_group_is_alike():
    model, steps = TwoGroups(), gradients(3)
    A = model.A.detach().numpy().copy()
    take_steps(model, Optimizers(model, OptimizerConfig(name="rmsprop", lr=0.01)), steps)
    np.testing.assert_allclose(model.A.detach(), textbook("rmsprop", A, steps[:, 0], 0.01), 1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_weight_decay_pulls_at_all_but_the_orthogonal_group(kind):
    model = TwoGroups()
    before = model.A.detach().clone(), model.U.detach().clone()
    optimizers = Optimizers(model, OptimizerConfig(name=kind, lr=0.01, weight_decay=0.1))
    take_steps(model, optimizers, np.zeros((1, 2, 3)))
    assert torch.equal(model.A, before[0])
    assert (model.U.abs() <= before[1].abs()).all()
    assert not torch.equal(model.U, before[1])


def test_a_group_may_set_its_own_weight_decay():
    model = TwoGroups(weight_decay=0.5)
    take_steps(model, Optimizers(model, OptimizerConfig(lr=0.01)), np.zeros((1, 2, 3)))
    assert (model.A.abs() < torch.tensor([1.0, 2.0, 3.0])).all()


class OwnRule(TwoGroups):
    """Its orthogonal group brings an optimizer along."""

    def param_groups(self):
        orth, main = super().param_groups()
        return [replace(orth, rule=partial(torch.optim.SGD, momentum=0.5)), main]


def test_a_group_with_its_own_rule_takes_rate_and_clipping():
    model, steps = OwnRule(), gradients(2)
    A, U = model.A.detach().numpy().copy(), model.U.detach().numpy().copy()
    config = OptimizerConfig(lr=0.01, lr_orth=0.3, weight_decay=0.5, clip_value=0.4)
    optimizers = Optimizers(model, config)
    take_steps(model, optimizers, steps)
    first, second = np.clip(steps[:, 0], -0.4, 0.4)
    np.testing.assert_allclose(model.A.detach(), A - 0.3 * (first + 0.5 * first + second), 1e-12)
    assert abs(model.U.detach().numpy() - U).min() > 0
    assert optimizers.learning_rates == {"orth": 0.3, "main": 0.01}
    optimizers.scale(0.5)
    A, memory = model.A.detach().numpy().copy(), 0.5 * first + second
    take_steps(model, optimizers, steps[:1])
    np.testing.assert_allclose(model.A.detach(), A - 0.15 * (0.5 * memory + first), 1e-12)


def test_a_rule_of_its_own_keeps_its_weight_decay():
    """That of the config is not for it, in whichever group; what it sets itself holds."""
    for decay in (0.0, 0.1):
        model = TwoGroups()
        orth, main = model.param_groups()
        ruled = replace(main, rule=partial(torch.optim.SGD, weight_decay=decay))
        model.param_groups = lambda groups=(orth, ruled): groups
        U = model.U.detach().numpy().copy()
        optimizers = Optimizers(model, OptimizerConfig(lr=0.1, weight_decay=0.5))
        take_steps(model, optimizers, np.zeros((1, 2, 3)))
        np.testing.assert_allclose(model.U.detach(), U * (1 - 0.1 * decay), 1e-12)


class Counting(torch.optim.SGD):
    """Counts its steps in its group, slows down, and remembers in float64 and by key."""

    def __init__(self, groups):
        super().__init__(groups, lr=1.0)
        for group in self.param_groups:
            group["k"] = 0

    def step(self):
        for group in self.param_groups:
            group["k"] += 1
            group["lr"] *= 0.9
            for p in group["params"]:
                mean = self.state[p].setdefault("mean", torch.zeros(3, dtype=torch.float64))
                mean.mul_(0.7).add_(p.grad, alpha=1 / group["k"])
                p.data -= (group["lr"] * mean).to(p)


def own_rule(rule=Counting, dtype=torch.float32):
    """Return a model whose main group has a rule of its own."""
    model = TwoGroups()
    model.A, model.U = (nn.Parameter(p.detach().to(dtype)) for p in (model.A, model.U))
    orth, main = model.param_groups()
    model.param_groups = lambda: [orth, replace(main, rule=rule)]
    return model


@pytest.mark.parametrize("cut", [1, 4])
def test_what_a_rule_remembers_anywhere_survives_a_checkpoint(cut):
    whole, first, second = (own_rule() for _ in range(3))
    config, steps = OptimizerConfig(lr=0.1), torch.tensor(gradients(6), dtype=torch.float32)
    halves = [1.0, 1.0, 0.5, 0.5, 0.5, 0.5]

    def train(model, optimizers, part):
        for factor, gradient in zip(halves[part], steps[part], strict=True):
            optimizers.scale(factor)
            optimizers.zero_grad()
            model.A.grad, model.U.grad = gradient
            optimizers.step(optimizers.gradient_norm())

    train(whole, Optimizers(whole, config), slice(0, 6))
    optimizers, again = Optimizers(first, config), Optimizers(second, config)
    train(first, optimizers, slice(0, cut))
    second.load_state_dict(first.state_dict())
    again.load_state_dict(copy.deepcopy(optimizers.state_dict()))
    train(second, again, slice(cut, 6))
    assert torch.equal(second.U, whole.U)


def test_a_donors_state_is_taken_with_ones_own_rates():
    donor, taker = own_rule(), own_rule()
    theirs, ours = (Optimizers(m, OptimizerConfig(lr=r)) for m, r in ((donor, 0.1), (taker, 0.4)))
    donor.A.grad, donor.U.grad = torch.ones(3), torch.ones(3)
    theirs.step(theirs.gradient_norm())
    ours.load_state_dict(theirs.state_dict())
    (group,) = ours._optimizers["rule of main"].param_groups
    assert (group["k"], group["lr"]) == (1, pytest.approx(0.4 * 0.9))


def test_a_donors_settings_of_a_rule_are_not_taken():
    rules = [partial(torch.optim.SGD, momentum=momentum) for momentum in (0.9, 0.5)]
    theirs, ours = (Optimizers(own_rule(rule), OptimizerConfig()) for rule in rules)
    ours.load_state_dict(theirs.state_dict())
    (group,) = ours._optimizers["rule of main"].param_groups
    assert group["momentum"] == 0.5


def test_a_rule_may_remember_what_is_of_no_parameter():
    class Counted(torch.optim.SGD):
        def step(self):
            self.state["steps"] = self.state.get("steps", 0) + 1

    first, second = (Optimizers(own_rule(Counted), OptimizerConfig()) for _ in range(2))
    for optimizers in (first, second):
        optimizers.step(torch.tensor(1.0))
        second.load_state_dict(copy.deepcopy(first.state_dict()))
    second.step(torch.tensor(1.0))
    assert second._optimizers["rule of main"].state["steps"] == 2


def test_a_rule_that_makes_groups_of_its_own_is_refused():
    model = own_rule(lambda groups: torch.optim.SGD(groups[0]["params"], lr=0.1))
    with pytest.raises(ValueError, match="the rule of group 'main' makes groups of its own"):
        Optimizers(model, OptimizerConfig())


def test_a_rule_of_its_own_takes_no_options():
    model = OwnRule(weight_decay=0.5)
    with pytest.raises(ValueError, match="'orth' has a rule of its own, which gets no options"):
        Optimizers(model, OptimizerConfig())


def test_what_a_rule_of_its_own_remembers_survives_a_checkpoint():
    whole, cut = OwnRule(), OwnRule()
    config, steps = OptimizerConfig(), gradients(4)
    take_steps(whole, Optimizers(whole, config), steps)
    optimizers = Optimizers(cut, config)
    take_steps(cut, optimizers, steps[:2])
    again = Optimizers(cut, config)
    again.load_state_dict(optimizers.state_dict())
    take_steps(cut, again, steps[2:])
    assert torch.equal(cut.A, whole.A)


def test_an_option_that_no_optimizer_has_is_refused():
    with pytest.raises(ValueError, match="'orth' has \\['wieght_decay'\\]"):
        Optimizers(TwoGroups(wieght_decay=0.5), OptimizerConfig())


def test_clipping_by_norm_scales_all_groups_together():
    model = TwoGroups()
    optimizers = Optimizers(model, OptimizerConfig(clip_norm=1.0))
    model.A.grad = torch.tensor([3.0, 0, 0], dtype=torch.float64)
    model.U.grad = torch.tensor([0, 4.0, 0], dtype=torch.float64)
    norm = optimizers.gradient_norm()
    optimizers.step(norm)
    assert norm == 5
    torch.testing.assert_close(model.A.grad, torch.tensor([0.6, 0, 0], dtype=torch.float64))
    torch.testing.assert_close(model.U.grad, torch.tensor([0, 0.8, 0], dtype=torch.float64))


def test_clipping_by_value_cuts_each_entry():
    model = TwoGroups()
    optimizers = Optimizers(model, OptimizerConfig(clip_value=1.0))
    model.A.grad = torch.tensor([3.0, -0.5, -9.0], dtype=torch.float64)
    model.U.grad = torch.zeros(3, dtype=torch.float64)
    optimizers.step(optimizers.gradient_norm())
    assert model.A.grad.tolist() == [1.0, -0.5, -1.0]


@pytest.mark.parametrize("clip", [{"clip_norm": 1.0}, {"clip_value": 1.0}])
def test_where_nothing_is_trained_there_is_nothing_to_clip(clip):
    class Fixed(nn.Module):
        def param_groups(self):
            return []

    optimizers = Optimizers(Fixed(), OptimizerConfig(**clip))
    optimizers.step(optimizers.gradient_norm())
    assert optimizers.params == []


@pytest.mark.parametrize("name", KINDS)
def test_what_an_optimizer_remembers_survives_a_checkpoint(name):
    config, steps = OptimizerConfig(name=name, name_orth="adam", momentum=0.5), gradients(8)
    whole, first, second = TwoGroups(), TwoGroups(), TwoGroups()
    take_steps(whole, Optimizers(whole, config), steps)
    optimizers = Optimizers(first, config)
    take_steps(first, optimizers, steps[:4])
    file = io.BytesIO()
    torch.save([first.state_dict(), optimizers.state_dict()], file)
    file.seek(0)
    weights, memory = torch.load(file, weights_only=True)
    second.load_state_dict(weights)
    optimizers = Optimizers(second, config)
    optimizers.load_state_dict(memory)
    take_steps(second, optimizers, steps[4:])
    assert torch.equal(second.A, whole.A)
    assert torch.equal(second.U, whole.U)


@pytest.mark.parametrize(
    ("named", "message"),
    [(("U",), "left out: \\['A'\\]"), (("A", "U", "U"), "named twice: 1")],
)
def test_a_model_that_forgets_or_doubles_a_parameter_is_refused(named, message):
    model = TwoGroups()
    model.param_groups = lambda: [ParamGroup("main", [getattr(model, name) for name in named])]
    with pytest.raises(ValueError, match=message):
        Optimizers(model, OptimizerConfig())


@pytest.mark.slow  # it guards a start's speed, and no result
def test_no_update_rule_loads_pytorchs_slow_compiler():
    code = """
import sys
from test_optimizers import TwoGroups, UpdateRule, get_args
from eigensweep.search_spaces.trial import OptimizerConfig
from eigensweep.training.optimizers.optimizers import Optimizers
import torch
for name in get_args(UpdateRule):
    model = TwoGroups()
    optimizers = Optimizers(model, OptimizerConfig(name=name))
    sum(p.sum() for p in model.parameters()).backward()
    optimizers.step(optimizers.gradient_norm())
    optimizers.load_state_dict(optimizers.state_dict())
    assert "torch._dynamo" not in sys.modules, name
"""
    path = os.pathsep.join(sys.path)
    subprocess.run([sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": path}, check=True)


@pytest.mark.parametrize("kind", ["Adam", "AdamW", "SGD", "RMSprop", "Adagrad"])
def test_without_its_compiler_pytorchs_rules_are_the_same(kind):
    found = []
    for module in (torch.optim, plain_optimizers):
        w = nn.Parameter(torch.linspace(-1, 1, 7))
        optimizer = getattr(module, kind)([w], lr=0.1, weight_decay=0.01)
        for _ in range(5):
            optimizer.zero_grad()
            (w**4).sum().backward()
            optimizer.step()
        found.append(w.detach())
    assert torch.equal(*found)


def test_a_rule_that_makes_no_optimizer_is_refused_in_words():
    with pytest.raises(TypeError, match="'main' has to return"):
        Optimizers(own_rule(lambda groups: 3), OptimizerConfig())
