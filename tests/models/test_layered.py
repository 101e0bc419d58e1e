"""Networks of layers: each again in NumPy loops over steps, from the papers alone."""

from math import erf

import numpy as np
import pytest
import torch
from helpers.equations import EquationTests, encode, sigmoid

CASES = {
    "mingru": {"name": "mingru"},
    "mingru wide": {"name": "mingru", "layers": 2, "width": 4},
    "mingru whole": {"name": "mingru", "layers": 2, "kernel_size": 3, "feed_forward": 2},
    "minlstm": {"name": "minlstm", "layers": 2},
    "lru": {"name": "lru", "layers": 2},
    "lru narrow": {"name": "lru", "layers": 1, "width": 4},
}


def gelu(v):
    return np.array([x * (1 + erf(x / np.sqrt(2))) / 2 for x in v])


def rms_norm(u, scale):
    return u / np.sqrt((u**2).mean() + 1e-5) * scale


def positive(v):
    return np.array([x + 0.5 if x >= 0 else sigmoid(x) for x in v])


def minimal_layer(p, config, u, memory):
    """Return the layer's output and h of one step; `memory` is what it knows of earlier ones."""
    if config.kernel_size is not None:
        past = [u, *memory.get("inputs", [])][: config.kernel_size]
        memory["inputs"] = past
        mixed = p["q"] + sum(p["K"][:, j] * before for j, before in enumerate(past))
        u = u + p["P"] @ mixed + p["p"]
    a = rms_norm(u, p["norm"])
    v, *gates = np.split(p["G"] @ a + p["g"], config.gates)
    if config.name == "mingru":
        z = sigmoid(gates[0])
        kept, taken = 1 - z, z
    else:
        f, i = sigmoid(gates[0]), sigmoid(gates[1])
        kept, taken = f / (f + i), i / (f + i)
    h = kept * memory.get("h", 0.0) + taken * positive(v)
    memory["h"] = h
    u = u + p["O"] @ h + p["o"]
    if config.feed_forward is not None:
        inside = gelu(p["E"] @ rms_norm(u, p["norm_after"]) + p["e"])
        u = u + p["D"] @ inside + p["d"]
    return u, h


def lru_layer(p, config, u, memory):
    """Return the same for an LRU; h is complex."""
    n = len(p["nu"])
    a = (u - u.mean()) / np.sqrt(u.var() + 1e-5) * p["scale"] + p["shift"]
    eigenvalues = np.exp(-np.exp(p["nu"]) + 1j * np.exp(p["theta"]))
    B, C = p["B"][:n] + 1j * p["B"][n:], p["C"][:, :n] + 1j * p["C"][:, n:]
    h = eigenvalues * memory.get("h", 0.0) + np.exp(p["gamma"]) * (B @ a)
    memory["h"] = h
    s = gelu((C @ h).real + p["D"] * a)
    return u + (p["W"] @ s + p["w"]) * sigmoid(p["G"] @ s + p["g"]), h


LAYERS = {"mingru": minimal_layer, "minlstm": minimal_layer, "lru": lru_layer}


def finish(p, config, u):
    return rms_norm(u, p["norm"]) if "norm" in p else u


def run(p, config, shapes, x):
    """Return (logits, states of the last layer) of parameters p."""
    (steps, batch), states, logits = x.shape[:2], None, []
    each = [
        {
            name.removeprefix(f"layers.{number}."): value
            for name, value in p.items()
            if f"layers.{number}." in name
        }
        for number in range(config.layers)
    ]
    for j in range(batch):
        memories, outputs = [{} for _ in each], []
        for t in range(steps):
            u = p["U"] @ encode(p, shapes, x[t, j]) + p["b"]
            for of_layer, memory in zip(each, memories, strict=True):
                u, h = LAYERS[config.name](of_layer, config, u, memory)
            outputs.append(u)
            if states is None:
                states = np.zeros((steps, batch, len(h)), dtype=h.dtype)
            states[t, j] = h
        if shapes.readout == "last":
            outputs = [np.mean(outputs, 0) if config.pooling == "mean" else outputs[-1]]
        logits.append([p["V"] @ finish(p, config, u) + p["c"] for u in outputs])
    logits = np.swapaxes(np.array(logits), 0, 1)
    return (logits[0] if shapes.readout == "last" else logits), states


@pytest.mark.parametrize("fields", CASES.values(), ids=CASES)
class TestEquations(EquationTests):
    run = staticmethod(run)


NAMES = ["mingru", "minlstm", "lru"]


@pytest.mark.parametrize("name", NAMES)
class TestLayers:
    def test_a_mean_over_all_steps_goes_on_over_two_parts(self, nets, name):
        shapes = nets.shapes(input_kind="values", readout="last")
        model = nets.generic(name, shapes, pooling="mean")
        x = nets.input(shapes, steps=9).double()
        whole, _ = model(x)
        _, state = model(x[:4])
        torch.testing.assert_close(model(x[4:], state)[0], whole)
        _, anew = model(x[:4])
        restarted = model.restart(anew, torch.ones(3, dtype=torch.bool))
        torch.testing.assert_close(model(x[4:], restarted)[0], model(x[4:])[0])

    def test_a_mean_is_refused_where_each_step_answers(self, nets, name):
        with pytest.raises(ValueError, match="asks for one at every step; use 'pooling: last'"):
            nets.build(name, pooling="mean")

    def test_no_step_sees_a_later_one(self, nets, name):
        model = nets.generic(name)
        x = nets.input(model.shapes, steps=9)
        other = x.clone()
        other[6:] = (x[6:] + 1) % 5
        assert torch.equal(model(x)[0][:6], model(other)[0][:6])

    def test_as_many_layers_are_built_as_the_config_says(self, nets, name):
        model = nets.build(name, layers=5, width=6)
        assert len(model.layers) == 5
        assert model.V.shape == (3, 6)
        assert model.states(nets.input(model.shapes)).shape == (7, 3, 10)


def test_eigenvalues_of_an_lru_start_uniform_in_their_ring(nets):
    model = nets.build("lru", hidden_size=4000, width=2, r_min=0.6, r_max=0.9, max_phase=1.0)
    eigenvalues = torch.diagonal(model.recurrent_matrix()).detach()
    modulus, phase = eigenvalues.abs(), eigenvalues.angle()
    assert 0.6 <= modulus.min() < 0.61
    assert 0.89 < modulus.max() <= 0.9
    assert 0 <= phase.min() < 0.01
    assert 0.99 < phase.max() <= 1.0
    middle = ((0.6**2 + 0.9**2) / 2) ** 0.5  # half of the ring's area is inside of this radius
    assert (modulus < middle).double().mean().item() == pytest.approx(0.5, abs=0.03)


@pytest.mark.parametrize("ring", [{}, {"r_min": 0.9, "r_max": 0.999}])
def test_the_state_of_an_lru_starts_as_large_as_what_drives_it(nets, ring):
    shapes = nets.shapes(input_kind="values", input_size=64)
    model = nets.build("lru", shapes, hidden_size=300, width=64, layers=1, **ring)
    x = torch.randn(12_000, 1, 64)
    h = model.states(x)[2_000:].detach()
    drive = model.layers[0].B.detach()
    a = torch.nn.functional.layer_norm(x @ model.U.mT + model.b, (64,))[2_000:]
    driven = torch.complex(*(a @ drive.mT).chunk(2, -1)).detach()
    assert h.abs().square().mean().item() == pytest.approx(
        driven.abs().square().mean().item(), rel=0.1
    )


def test_updates_keep_an_lrus_eigenvalues_in_the_unit_circle(nets):
    model = nets.build("lru").double()
    with torch.no_grad():
        for layer in model.layers:
            layer.nu += 5 * torch.randn(10)
    assert model.recurrent_matrix().abs().max() < 1
    assert model.constraint_report()["largest_modulus"] <= 1


def test_what_makes_eigenvalues_has_its_rate_and_no_decay(nets):
    model = nets.build("lru", layers=2)
    orth, main = model.param_groups()
    assert (orth.name, main.name, orth.options) == ("orth", "main", {"weight_decay": 0.0})
    assert {id(p) for p in orth.params} == {
        id(p) for layer in model.layers for p in (layer.nu, layer.theta, layer.gamma)
    }


def test_a_ring_has_an_inner_and_an_outer_radius(nets):
    with pytest.raises(ValueError, match=r"'r_min' is 0\.9; allowed is below 'r_max', 0\.9"):
        nets.build("lru", r_min=0.9, r_max=0.9)


@pytest.mark.parametrize("name", ["mingru", "minlstm"])
def test_a_minimal_state_stays_between_its_candidates(nets, name):
    """h is a weighted mean of what came before, so gates and long sequences cannot make it grow."""
    model = nets.generic(name, scale=3.0, layers=1)
    layer, seen = model.layers[0], []
    layer.register_forward_hook(lambda module, given, made: seen.append((given[0], made[1])))
    model(nets.input(model.shapes, steps=300))
    (u, H), n = seen[0], model.hidden_size
    v = torch.nn.functional.rms_norm(u, u.shape[-1:], eps=1e-5) * layer.norm @ layer.G[:n].mT
    highest = torch.where(v + layer.g[:n] >= 0, v + layer.g[:n] + 0.5, 0.5).amax(0)
    assert (H > 0).all()
    assert (highest + 1e-9 >= H).all()


def test_a_forget_bias_lets_minlstm_keep_what_it_has(nets):
    plain, keeping = (nets.build("minlstm", forget_bias=bias) for bias in (0.0, 6.0))
    assert keeping.recurrent_matrix().diagonal().min() > plain.recurrent_matrix().max()
