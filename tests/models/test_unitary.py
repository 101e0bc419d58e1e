"""What uRNN, full uRNN, EURNN and GORU are by construction, and how a unitary matrix moves."""

import numpy as np
import pytest
import torch

from eigensweep.models.cayley_unitary import CayleyUnitary
from eigensweep.models.matrices import fast_rotations, rotations
from eigensweep.models.matrices.orthogonal import nearest_orthogonal, orthogonality_error
from eigensweep.models.matrices.rotations import Angles, fft_product, tunable_product
from eigensweep.models.matrices.unitary import restricted_product
from eigensweep.models.recurrence.reference import recurrent_states

ROTATED = [
    ("urnn", {}),
    ("eurnn", {"capacity": 10}),
    ("eurnn", {"capacity": 10, "complex": True}),
    ("eurnn", {"hidden_size": 16, "style": "fft", "complex": True}),
    ("goru", {"hidden_size": 16, "style": "fft"}),
    ("goru", {"capacity": 10}),
]


def unitary(n, seed=0):
    torch.manual_seed(seed)
    return nearest_orthogonal(torch.randn(n, n, dtype=torch.complex128))


def parts(W):
    return torch.stack((W.real, W.imag)).clone().requires_grad_()


def objective(n):
    """Return a smooth real function of real and imaginary part of W."""
    A, B = (torch.randn(n, n, dtype=torch.float64) for _ in range(2))
    return lambda p: (A * p[0].sin()).sum() + (B * p[1].cos()).sum() + (p[0] * p[1] * A).sum()


class TestMatrices:
    @pytest.mark.parametrize(("name", "fields"), ROTATED)
    @pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
    def test_the_matrix_is_unitary_whatever_the_parameters_are(self, nets, name, fields, scale):
        model = nets.generic(name, scale=scale, **fields)
        assert model.constraint_report()["orthogonality_error"] < 1e-13
        W = model.recurrent_matrix()
        torch.testing.assert_close(W.mH @ W, torch.eye(len(W), dtype=W.dtype), atol=1e-13, rtol=0)

    def test_factors_that_undo_one_another_give_the_identity(self):
        """θ = 0, Π = I and v_2 = F* v_1, for any v_1."""
        v1 = np.random.default_rng(0).normal(size=(9, 2)) @ np.array([1, 1j])
        v2 = np.fft.ifft(v1, norm="ortho")
        v = torch.tensor(np.array([[*v.real, *v.imag] for v in (v1, v2)]))
        theta = torch.zeros(3, 9, dtype=torch.float64)
        W = restricted_product(theta, v, torch.arange(9))
        torch.testing.assert_close(W, torch.eye(9, dtype=W.dtype), atol=1e-14, rtol=0)

    def test_the_length_of_a_reflections_vector_does_not_matter(self, nets):
        model = nets.generic("urnn")
        W = model.recurrent_matrix()
        model.v.data[0] *= 3
        model.v.data[1] *= -0.1
        torch.testing.assert_close(model.recurrent_matrix(), W, atol=1e-13, rtol=0)

    @pytest.mark.parametrize("style", [{"capacity": 8}, {"style": "fft"}])
    @pytest.mark.parametrize("is_complex", [False, True])
    def test_without_angles_eurnn_has_the_identity(self, nets, style, is_complex):
        model = nets.build("eurnn", hidden_size=8, complex=is_complex, **style)
        for name, parameter in model.named_parameters():
            if name.startswith(("theta", "phi", "omega")):
                parameter.data.zero_()
        W = model.recurrent_matrix()
        assert torch.equal(W, torch.eye(8, dtype=W.dtype))

    def test_the_fft_style_mixes_all_units_two_tunable_layers_not(self):
        angles = torch.rand(3, 4) + 0.3
        assert (fft_product(Angles(angles)) != 0).all()
        tunable = tunable_product(Angles(angles[:1]), Angles(angles[:1, :3]))
        assert (tunable == 0).sum() == 64 - 2 * 4 - 3 * 8 + 2 * 2

    def test_full_urnn_starts_unitary_and_each_start_is_another(self, nets):
        starts = [nets.build("full_urnn", recurrent_init=i) for i in ("restricted", "polar")]
        matrices = [model.recurrent_matrix() for model in starts]
        assert max(orthogonality_error(W) for W in matrices) < 1e-5
        assert not torch.allclose(*matrices)


def draw_angles(style, is_complex, lanes=()):
    """Return leaves, and a function from a module and leaves to a product."""
    torch.manual_seed(0)
    shapes = [(4, 8)] if style == "fft" else [(3, 5), (3, 4)]
    leaves = [torch.randn(*lanes, *s, dtype=torch.float64) for s in shapes * (1 + is_complex)]

    def product(module, *leaves):
        count = len(shapes)
        phases = leaves[count:] or (None,) * count
        angles = [Angles(*pair) for pair in zip(leaves[:count], phases, strict=True)]
        return getattr(module, f"{style}_product")(*angles)

    return [leaf.requires_grad_() for leaf in leaves], product


@pytest.mark.parametrize("is_complex", [False, True])
@pytest.mark.parametrize("style", ["tunable", "fft"])
class TestFastRotations:
    def test_products_and_gradients_are_those_of_the_readable_form(self, style, is_complex):
        leaves, product = draw_angles(style, is_complex)
        outcomes = []
        for module in (rotations, fast_rotations):
            W = product(module, *leaves)
            weights = torch.linspace(-1, 2, W.numel(), dtype=torch.float64).view_as(W)
            loss = (W.real * weights).sum() + (W * weights.mT).abs().square().sum()
            outcomes.append([W, *torch.autograd.grad(loss, leaves)])
        for found, expected in zip(*outcomes, strict=True):
            torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)

    def test_lanes_are_single_products_with_gradients_either_way(self, style, is_complex):
        leaves, product = draw_angles(style, is_complex, lanes=(2,))

        def loss(*leaves):
            return product(fast_rotations, *leaves).real.sin().sum()

        stacked = torch.vmap(loss)(*leaves)
        outside = torch.autograd.grad(stacked.sum(), leaves)
        detached = [leaf.detach() for leaf in leaves]
        inside = torch.vmap(torch.func.grad(loss, argnums=tuple(range(len(leaves)))))(*detached)
        for i in range(2):
            alone = [leaf[i].detach().requires_grad_() for leaf in leaves]
            value = loss(*alone)
            torch.testing.assert_close(stacked[i], value, atol=1e-12, rtol=0)
            for k, expected in enumerate(torch.autograd.grad(value, alone)):
                torch.testing.assert_close(outside[k][i], expected, atol=1e-12, rtol=0)
                torch.testing.assert_close(inside[k][i], expected, atol=1e-12, rtol=0)

    def test_a_second_derivative_is_refused_with_words(self, style, is_complex):
        leaves, product = draw_angles(style, is_complex)
        W = product(fast_rotations, *leaves)
        (first,) = torch.autograd.grad(W.real.sin().sum(), leaves[0], create_graph=True)
        with pytest.raises(
            RuntimeError, match=r"first derivatives only; eigensweep\.models\.matrices"
        ):
            torch.autograd.grad(first.sum(), leaves[0])


class TestReductions:
    def test_goru_with_open_reset_and_closed_update_is_a_real_eurnn(self, nets):
        goru = nets.generic("goru", hidden_size=8, capacity=6)
        n = 8
        with torch.no_grad():
            goru.R.zero_()
            goru.U[: 2 * n].zero_()
            goru.b[:n], goru.b[n : 2 * n] = 60.0, -800.0
        W, threshold = goru.recurrent_matrix(), goru.b[2 * n :] + 0.001
        x = nets.input(goru.shapes)
        h0 = torch.zeros(3, n, dtype=torch.float64)
        expected = recurrent_states(x, goru.U[2 * n :], W, threshold, activation="modrelu", h0=h0)
        torch.testing.assert_close(goru.states(x), expected, atol=1e-12, rtol=0)
        eurnn = nets.generic("eurnn", hidden_size=n, capacity=6)
        with torch.no_grad():
            for kind in ("theta_even", "theta_odd"):
                getattr(eurnn, kind).copy_(getattr(goru, kind))
            eurnn.U.copy_(goru.U[2 * n :])
            eurnn.b.copy_(goru.b[2 * n :] + 0.001 - 0.01)
        torch.testing.assert_close(goru.states(x), eurnn.states(x), atol=1e-12, rtol=0)

    def test_with_b_zero_the_complex_eurnn_is_linear(self, nets):
        shapes = nets.shapes(input_kind="values")
        model = nets.generic("eurnn", shapes, capacity=6, complex=True)
        model.b.data.zero_()
        x = nets.input(shapes).double()
        torch.testing.assert_close(model.states(-3 * x), -3 * model.states(x), atol=1e-12, rtol=0)

    @pytest.mark.parametrize("is_complex", [False, True])
    def test_an_eurnn_is_odd(self, nets, is_complex):
        shapes = nets.shapes(input_kind="values")
        model = nets.generic("eurnn", shapes, complex=is_complex)
        x = nets.input(shapes).double()
        torch.testing.assert_close(model.states(-x), -model.states(x), atol=1e-12, rtol=0)

    @pytest.mark.parametrize("name", ["urnn", "full_urnn"])
    def test_a_phase_of_input_and_first_state_is_one_of_all_states(self, nets, name):
        model = nets.generic(name)
        x = nets.input(model.shapes)
        before, n, turn = model.states(x), 10, np.exp(0.7j)
        with torch.no_grad():
            for value in (model.U, model.h0):
                turned = turn * torch.complex(value[:n], value[n:])
                value.copy_(torch.cat((turned.real, turned.imag)))
        torch.testing.assert_close(model.states(x), turn * before, atol=1e-12, rtol=0)

    def test_a_linear_urnn_keeps_the_length_of_its_state(self, nets):
        """With b = ε the smoothed modReLU is the identity where ε is that of the quotient."""
        model = nets.generic("urnn", nets.shapes(input_kind="values"))
        with torch.no_grad():
            model.b.fill_(1e-5)
        h = model.states(torch.zeros(30, 2, 5, dtype=torch.float64))
        lengths = torch.linalg.vector_norm(h, dim=-1)
        first = torch.linalg.vector_norm(model.h0).expand_as(lengths)
        torch.testing.assert_close(lengths, first, atol=1e-12, rtol=0)


class TestCayleyUnitary:
    def test_the_loss_falls_by_half_the_square_of_s_to_first_order(self):
        p, loss = parts(unitary(6)), objective(6)
        loss(p).backward()
        G, W = torch.complex(*p.grad), torch.complex(*p.detach())
        S = G @ W.mH - W @ G.mH
        expected = -0.5 * S.abs().square().sum().item()
        values = []
        for lr in (1e-6, 2e-6):
            moved = p.detach().clone().requires_grad_()
            moved.grad = p.grad.clone()
            CayleyUnitary([moved], lr=lr).step()
            assert orthogonality_error(torch.complex(*moved.detach())) < 1e-12
            values.append((loss(moved) - loss(p)).item() / lr)
        assert 2 * values[0] - values[1] == pytest.approx(expected, rel=1e-6)
        assert values[0] < 0

    @pytest.mark.parametrize("natgrad_rms", [False, True])
    def test_steps_are_those_of_the_formula(self, natgrad_rms):
        p = parts(unitary(4))
        W = p.detach().numpy()[0] + 1j * p.detach().numpy()[1]
        optimizer = CayleyUnitary([p], lr=0.3, natgrad_rms=natgrad_rms)
        squares, eye = np.zeros((2, 4, 4)), np.eye(4)
        for _ in range(5):
            p.grad = torch.randn(2, 4, 4, dtype=torch.float64)
            g = p.grad.numpy().copy()
            if natgrad_rms:
                squares = 0.9 * squares + 0.1 * g**2
                g = g / (np.sqrt(squares) + 1e-8)
            G = g[0] + 1j * g[1]
            S = G @ W.conj().T - W @ G.conj().T
            W = np.linalg.inv(eye + 0.15 * S) @ (eye - 0.15 * S) @ W
            optimizer.step()
            np.testing.assert_allclose(p.detach(), [W.real, W.imag], atol=1e-12)

    def test_a_matrix_that_drifted_far_is_projected(self):
        W = torch.stack([unitary(5, 1) * (1 + drift) for drift in (1e-3, 1e-6)])
        p = torch.stack((W.real, W.imag), 1).requires_grad_()
        p.grad = torch.zeros_like(p)
        CayleyUnitary([p]).step()
        errors = orthogonality_error(torch.complex(*p.detach().unbind(1)))
        assert errors[0] < 1e-12
        assert errors[1] == pytest.approx(2e-6, rel=0.1)

    @pytest.mark.parametrize("natgrad_rms", [False, True])
    def test_lanes_have_their_own_rates_and_step_counts(self, natgrad_rms):
        lanes = torch.stack([parts(unitary(3, seed) * (1 + 1e-6)).detach() for seed in (1, 2, 3)])
        rates, steps = torch.tensor([0.1, 0.0, 0.3]).double(), torch.tensor([5.0, 999.0, 999.0])
        together, alone = lanes.clone().requires_grad_(), [p.requires_grad_() for p in lanes]
        G = torch.randn(3, 2, 3, 3, dtype=torch.float64)

        def move(p, gradient, rate, steps):
            optimizer = CayleyUnitary([p], lr=rate, natgrad_rms=natgrad_rms)
            p.grad = torch.zeros_like(p)
            optimizer.step()
            optimizer.state[p]["step"].copy_(steps)
            p.grad = gradient
            optimizer.step()
            return p.detach()

        found = move(together, G, rates, steps)
        for i, p in enumerate(alone):
            expected = move(p, G[i], rates[i].item(), steps[i])
            torch.testing.assert_close(found[i], expected, atol=1e-14, rtol=0)
        errors = orthogonality_error(torch.complex(*found.unbind(1)))
        assert (errors > 1e-9).tolist() == [True, False, False]

    def test_every_thousandth_step_projects_in_any_case(self):
        p = parts(unitary(3) * (1 + 1e-6))
        p.grad = torch.zeros_like(p)
        optimizer = CayleyUnitary([p])
        optimizer.state[p]["step"] = torch.tensor(998.0)
        for expected in (2e-6, 0.0):
            optimizer.step()
            error = orthogonality_error(torch.complex(*p.detach()))
            assert error.item() == pytest.approx(expected, rel=0.1, abs=1e-12)

    def test_a_parameter_without_gradient_stays(self):
        p = parts(unitary(3))
        before = p.detach().clone()
        optimizer = CayleyUnitary([p])
        optimizer.step()
        assert torch.equal(p.detach(), before)
        with pytest.raises(ValueError, match="without closure"):
            optimizer.step(lambda: 0.0)
