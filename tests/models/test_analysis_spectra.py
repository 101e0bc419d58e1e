"""Spectra of matrices whose spectra are known; the parts of a state; traces."""

from __future__ import annotations

from math import pi

import pytest
import torch

from eigensweep.models import MODELS
from eigensweep.models.analysis.hidden_traces import hidden_trace, mean_between, movement
from eigensweep.models.analysis.spectra import recurrent_spectra, spectrum


def test_a_scaled_rotation_has_its_angle_and_its_factor():
    angle = torch.tensor(0.3)
    R = 0.5 * torch.stack(
        (torch.stack((angle.cos(), -angle.sin())), torch.stack((angle.sin(), angle.cos())))
    )
    found = spectrum(R)
    assert found.eigenvalues.abs().tolist() == pytest.approx([0.5, 0.5])
    assert found.eigenvalues.angle().abs().tolist() == pytest.approx([0.3, 0.3], abs=1e-7)
    assert found.singular_values.tolist() == pytest.approx([0.5, 0.5])


def test_a_shear_has_small_eigenvalues_but_a_large_norm():
    found = spectrum(torch.tensor([[0.5, 5.0], [0.0, 0.5]]))
    assert found.eigenvalues.abs().tolist() == pytest.approx([0.5, 0.5])
    assert found.singular_values[0].item() == pytest.approx(5.0495, abs=1e-4)
    assert found.singular_values.prod().item() == pytest.approx(0.25)


def test_a_cyclic_shift_has_the_roots_of_unity():
    shift = torch.eye(5).roll(1, 0)
    angles = spectrum(shift).eigenvalues.angle() / (2 * pi / 5)
    assert sorted(round(a) for a in angles.tolist()) == [-2, -1, 0, 1, 2]
    torch.testing.assert_close(angles, angles.round(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("W", [torch.ones(2, 3), torch.tensor([[float("nan")]])])
def test_what_has_no_spectrum_is_refused(W):
    with pytest.raises(ValueError, match=r"square|finite"):
        spectrum(W)


def test_enrnn_s_parts_are_shown_beside_the_whole(nets):
    model = nets.generic("enrnn", short_size=4, negative_ones=3)

    found = recurrent_spectra(model)

    assert list(found) == ["whole", "long", "short"]
    assert found["long"].singular_values.tolist() == pytest.approx([1.0] * 6)
    parts = torch.cat((found["long"].eigenvalues, found["short"].eigenvalues)).abs()
    torch.testing.assert_close(
        parts.sort().values, found["whole"].eigenvalues.abs().sort().values, rtol=1e-9, atol=1e-9
    )


@pytest.mark.parametrize(("short", "parts"), [(0, ["long"]), (10, ["short"])])
def test_a_part_without_units_is_none(nets, short, parts):
    model = nets.build("enrnn", short_size=short, negative_ones=0)
    assert list(model.state_blocks()) == parts
    assert list(recurrent_spectra(model)) == ["whole"]


@pytest.mark.parametrize("name", [n for n in MODELS if not n.startswith("constructed")])
def test_the_parts_of_every_state_cover_it_once(nets, name):
    model = nets.build(name)
    covered = [unit for block in model.state_blocks().values() for unit in range(10)[block]]
    assert covered == list(range(10))


def test_a_gated_model_has_no_spectrum(nets):
    with pytest.raises(ValueError, match="no one matrix"):
        recurrent_spectra(nets.build("lstm"))


def test_a_trace_is_the_states_of_one_sequence(nets):
    shapes = nets.shapes(input_kind="values")
    model, x = nets.generic("scornn", shapes), nets.input(shapes).double()
    torch.testing.assert_close(hidden_trace(model, x[:, 1]), model.states(x)[:, 1].detach())


def test_the_constructed_adder_moves_at_its_marks_only(nets):
    shapes = nets.shapes(input_size=2, output_size=1, input_kind="values", readout="last")
    model = nets.build("constructed_adding", shapes, hidden_size=1)
    x = torch.rand(9, 2)
    x[:, 1] = 0
    x[[2, 6], 1] = 1

    moves = movement(hidden_trace(model, x))

    assert moves.nonzero().flatten().tolist() == [2, 6]
    assert mean_between(moves, [2, 6]) == pytest.approx([0, x[2, 0].item() / 4, x[6, 0].item() / 3])
