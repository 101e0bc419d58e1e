"""ENRNN's delayed switch, and how it starts."""

import pytest
import torch

from eigensweep.models.matrices import spectral_radius as radius_module


def radius(T):
    return torch.linalg.eigvals(T.detach().double()).abs().max().item()


def test_the_switch_turns_on_where_an_update_leaves_the_circle(nets):
    model = nets.build("enrnn")
    model.after_update({})
    assert not model.switched
    with torch.no_grad():
        model.T.mul_(1.001 / radius(model.T))
    assert torch.equal(model.short_block(), model.T)
    model.after_update({})
    assert model.switched
    assert radius(model.short_block()) == pytest.approx(1, abs=1e-5)


def test_the_switch_stays_and_a_smaller_t_is_scaled_up(nets):
    model = nets.generic("enrnn", scale=1.0)
    assert model.switched
    model.T.data.mul_(0.1)
    model.after_update({})
    assert model.switched
    assert radius(model.T) < 1
    assert radius(model.short_block()) == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("eps", [0.0, 0.25])
def test_after_the_switch_the_radius_is_one_or_eps_below(nets, eps):
    model = nets.generic("enrnn", scale=1.0, eps=eps)
    found = radius(model.short_block())
    expected = radius(model.T) / (radius(model.T) + eps)
    assert found == pytest.approx(expected, abs=1e-12)
    assert model.constraint_report()["short_radius"].item() == pytest.approx(expected)


def test_training_that_was_switched_on_keeps_the_radius_at_one(nets):
    shapes = nets.shapes(output_size=5)
    model = nets.build("enrnn", shapes, hidden_size=40)
    with torch.no_grad():
        model.T.mul_(1.5 / radius(model.T))
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-2)
    radii, flags = [], []
    for _ in range(20):
        model.after_update({})
        flags.append(bool(model.switched))
        radii.append(model.constraint_report()["short_radius"].item())
        x = nets.input(shapes)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x)[0].flatten(0, 1), x.flatten()).backward()
        optimizer.step()
    assert all(flags)
    assert radii == pytest.approx([1.0] * 20, abs=1e-5)
    assert model.fallback_events == 0


def test_an_evaluation_decomposes_t_once(nets, monkeypatch):
    model = nets.generic("enrnn", scale=1.0)
    calls = []
    eigvals = radius_module.torch.linalg.eigvals
    monkeypatch.setattr(
        radius_module.torch.linalg, "eigvals", lambda T: calls.append(T) or eigvals(T)
    )
    with torch.no_grad():
        run, state = model.prepare(), None
        for _ in range(5):
            _, state = run(nets.input(model.shapes), state)
    assert len(calls) == 1


@pytest.mark.parametrize("switched", [False, True])
def test_a_training_step_decomposes_t_once(nets, monkeypatch, switched):
    model = nets.generic("enrnn", scale=1.0 if switched else 0.01)
    assert bool(model.switched) is switched
    calls = []
    eigvals = radius_module.torch.linalg.eigvals
    monkeypatch.setattr(
        radius_module.torch.linalg, "eigvals", lambda T: calls.append(T) or eigvals(T)
    )
    model(nets.input(model.shapes))[0].sum().backward()
    model.after_update({})
    assert len(calls) == 1


def test_the_flag_and_the_signs_are_part_of_the_state(nets):
    state = nets.generic("enrnn", scale=1.0).state_dict()
    assert state["switched"].item() is True
    assert {"D", "fallback_events"} <= set(state)


@pytest.mark.parametrize("coupling_init", ["glorot", "semi_orthogonal"])
def test_the_coupling_starts_as_its_name_says(nets, coupling_init):
    model = nets.build("enrnn", hidden_size=50, short_size=20, coupling_init=coupling_init)
    gram = model.coupling.mT @ model.coupling
    exact = torch.allclose(gram, torch.eye(20), atol=1e-5)
    assert exact is (coupling_init == "semi_orthogonal")
    assert coupling_init != "glorot" or model.coupling.abs().max() <= (6 / 50) ** 0.5


def test_ptb_settings_feed_the_embedding_to_the_state_as_it_is(nets):
    shapes = nets.shapes(input_size=50, output_size=50)
    model = nets.build("enrnn", shapes, hidden_size=30, encoder="embedding")
    assert model.U is None
    assert torch.equal(model.input_matrix(), model.embedding.mT)
