"""A training step of many lanes can be repeated by a GPU as it is, and lanes do not see each other.

Without a GPU this is shown on the `meta` device, whose tensors have no values: what needs a value
fails there, and `NoHost` refuses what would only wait.
"""

import copy

import pytest
import torch
from helpers.no_host import NoHost
from helpers.variants import RATES, VARIANTS, stacked_groups

from eigensweep.models import MODELS
from eigensweep.models.recurrence.native import library
from eigensweep.models.stack import Stack

META = torch.ones(3, 3, device="meta")


@pytest.mark.parametrize(
    "wait",
    [
        lambda: META.sum().item(),
        lambda: META.cpu(),
        lambda: META.to("meta") + torch.ones(3),
        lambda: torch.tensor(1.0).to("meta"),
        lambda: META * torch.ones(3, 3),
        lambda: META[META > 0],
        lambda: torch.linalg.solve(META, META),
        lambda: torch.linalg.eigvals(META),
        lambda: torch.linalg.svd(META),
    ],
)
def test_what_would_wait_is_seen(wait):
    with pytest.raises((AssertionError, NotImplementedError, RuntimeError)), NoHost():
        wait()


def on_meta(stack):
    """Return a stack with all tensors on the device without values."""
    stack.parameters = {
        name: torch.nn.Parameter(p.detach().to("meta"), p.requires_grad)
        for name, p in stack.parameters.items()
    }
    stack.buffers = {name: b.to("meta") for name, b in stack.buffers.items()}
    return stack


def move_by_rules(stack, network, rates):
    """Let the groups that have an update rule of their own take a step."""
    for group in stacked_groups(stack, network):
        if group.rule is not None:
            group.rule([{"params": group.params, "lr": rates["orth"]}]).step()


@pytest.mark.parametrize("kind", ["symbols", "values"])
@pytest.mark.parametrize(("name", "fields"), VARIANTS)
@pytest.mark.quick_cases(6)
def test_a_training_step_of_lanes_never_waits(nets, name, fields, kind):
    if MODELS[name].not_static is not None:
        pytest.skip(MODELS[name].not_static)
    if "encoder" in fields and kind == "values":
        pytest.skip("values are not looked up in an embedding")
    network = nets.build(name, nets.shapes(input_kind=kind), **fields)
    stack = on_meta(Stack([network, copy.deepcopy(network)], host_values=True))
    x = nets.input(network.shapes, steps=3, lanes=(2,)).to("meta")
    rates = {"main": torch.zeros(2, device="meta"), "orth": torch.zeros(2, device="meta")}
    with NoHost():
        rows = torch.zeros(2, 3, dtype=torch.bool, device="meta")
        with torch.no_grad():
            _, state = stack(x)
            state = stack.call("restart", state, rows, lanes=(0, 0))
        logits, again = stack(x)[0], stack(x, state)[0]
        ((logits + again).square().sum() + stack.call("penalty").sum()).backward()
        move_by_rules(stack, network, rates)
        with torch.no_grad():
            stack.after_update(rates)
    assert logits.device.type == "meta"
    trained = [p for p in stack.parameters.values() if p.requires_grad]
    assert all(p.grad is not None for p in trained)


def step(stack, network, x):
    """Return what a training step gives lane 1, and leave the parameters after it in the stack."""
    logits, state = stack(x)
    penalty = stack.call("penalty")
    (logits.square().sum() + penalty.sum()).backward()
    move_by_rules(stack, network, {"orth": torch.tensor([0.01, 0.02])})
    gradients = []
    with torch.no_grad():
        for parameter in stack.parameters.values():
            gradients.append(parameter.grad[1].clone())
            parameter.sub_(0.01 * parameter.grad.tanh())
            parameter.grad = None
    stack.after_update(RATES)
    stack.work_on_host()
    parts = state if isinstance(state, tuple) else (state,)
    return [logits[1], penalty[1], *(part[1] for part in parts), *gradients]


def train(networks, x, spoilt=None):
    """Return what three steps give lane 1; where `spoilt` is given, lane 0 begins with it."""
    stack = Stack(networks, host_values=True)
    if spoilt is not None:
        with torch.no_grad():
            for parameter in stack.parameters.values():
                parameter[0] = spoilt
    steps = [step(stack, networks[0], x) for _ in range(3)]
    return [*steps[0], *steps[1], *steps[2], *stack.lane(1).values()]


@pytest.fixture(scope="module")
def known():
    """What lane 1 gets beside a healthy neighbour, by backend and network."""
    return {}


@pytest.mark.parametrize(
    ("backend", "spoilt"), [("native", torch.nan), ("native", 1e30), ("torch", torch.nan)]
)
@pytest.mark.parametrize(("name", "fields"), VARIANTS)
@pytest.mark.quick_cases(12)
def test_a_lane_keeps_its_bits_whatever_its_neighbour_does(
    nets, known, name, fields, backend, spoilt, monkeypatch
):
    if backend == "torch":
        monkeypatch.setattr(library, "load_library", lambda source: None)
    networks = [nets.build(name, seed=seed, **fields) for seed in (1, 2)]
    if name == "enrnn":
        networks[1].T.data.mul_(3)
    x = nets.input(networks[0].shapes, lanes=(2,))
    key = backend, name, str(fields)
    if key not in known:
        known[key] = train(networks, x)
    for healthy, beside in zip(known[key], train(networks, x, spoilt), strict=True):
        torch.testing.assert_close(beside, healthy, atol=0, rtol=0, equal_nan=True)
    assert all(value.isfinite().all() for value in known[key][:3])
