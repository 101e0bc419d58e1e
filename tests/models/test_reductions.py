"""Where one model is another, and what the papers prove of them."""

import numpy as np
import pytest
import torch

from eigensweep.models.recurrence.reference import modrelu

IDENTITY = {"recurrent_init": "identity"}
MODRELU = ["scornn", "enrnn", "exprnn", "nnrnn"]


def share(source, target):
    """Copy the tensors that two models have in common; the rest of the target stays."""
    known = target.state_dict()
    common = {k: v for k, v in source.state_dict().items() if k in known}
    target.load_state_dict({**known, **{k: v.reshape(known[k].shape) for k, v in common.items()}})


def test_enrnn_without_short_units_is_scornn(nets):
    scornn = nets.generic("scornn", hidden_size=9, negative_ones=4)
    enrnn = nets.generic("enrnn", hidden_size=9, short_size=0, negative_ones=4)
    share(scornn, enrnn)
    x = nets.input(scornn.shapes)
    for model in (scornn, enrnn):
        model(x)[0].pow(2).sum().backward()
        model.after_update({})
    torch.testing.assert_close(enrnn.states(x), scornn.states(x), atol=1e-13, rtol=0)
    torch.testing.assert_close(enrnn.A.grad, scornn.A.grad, atol=1e-12, rtol=1e-12)
    assert enrnn.constraint_report()["short_radius"] == 0


def test_enrnn_without_long_units_has_the_normalised_matrix(nets):
    model = nets.generic("enrnn", hidden_size=6, short_size=6, negative_ones=0, scale=1.0)
    T = model.T.detach()
    radius = torch.linalg.eigvals(T).abs().max()
    assert radius > 1
    torch.testing.assert_close(model.recurrent_matrix(), T / radius, atol=1e-12, rtol=0)
    model(nets.input(model.shapes))[0].sum().backward()
    assert model.constraint_report()["orthogonality_error"] == 0


def test_enrnn_apart_is_two_networks_that_share_a_readout(nets):
    model = nets.generic("enrnn", hidden_size=8, short_size=4, negative_ones=2, coupled=False)
    x = nets.input(model.shapes)
    parts = {
        "scornn": (slice(0, 4), {"negative_ones": 2}),
        "enrnn": (slice(4, 8), {"short_size": 4, "negative_ones": 0}),
    }
    for name, (rows, fields) in parts.items():
        part = nets.generic(name, hidden_size=4, **fields)
        with torch.no_grad():
            part.U.copy_(model.U[rows])
            part.b.copy_(model.b[rows])
            if name == "scornn":
                part.A.copy_(model.A)
            else:
                part.T.copy_(model.T)
                part.switched.copy_(model.switched)
        expected = part.states(x)
        torch.testing.assert_close(model.states(x)[..., rows], expected, atol=1e-12, rtol=0)


def test_enrnn_coupled_by_zeros_is_enrnn_apart(nets):
    apart = nets.generic("enrnn", coupled=False)
    coupled = nets.generic("enrnn", coupled=True)
    share(apart, coupled)
    coupled.coupling.data.zero_()
    x = nets.input(apart.shapes)
    assert torch.equal(coupled(x)[0], apart(x)[0])


def test_nothing_leads_from_the_long_state_to_the_short_one(nets):
    model = nets.generic("enrnn", hidden_size=9, short_size=4)
    x = nets.input(model.shapes)
    before = model.states(x)[..., 5:]
    with torch.no_grad():
        model.A.add_(torch.randn_like(model.A))
        model.U[:5].add_(1)
    assert torch.equal(model.states(x)[..., 5:], before)


def test_scornn_without_negative_ones_is_exprnns_cayley_form(nets):
    scornn = nets.generic("scornn", negative_ones=0)
    exprnn = nets.generic("exprnn", parametrization="cayley")
    share(scornn, exprnn)
    exprnn.recurrent.A.data.copy_(scornn.A)
    x = nets.input(scornn.shapes)
    assert torch.equal(exprnn(x)[0], scornn(x)[0])


def test_before_the_switch_the_gradient_of_t_is_plain(nets):
    model = nets.generic("enrnn", scale=0.01)
    assert not model.switched
    W = model.recurrent_matrix()
    G = torch.randn_like(W)
    W.backward(G)
    s = model.config.short
    assert torch.equal(model.T.grad, G[-s:, -s:])


@pytest.mark.parametrize("name", MODRELU)
def test_with_b_zero_modrelu_makes_the_network_linear(nets, name):
    model = nets.generic(name)
    model.b.data.zero_()
    U, W = model.input_matrix().detach(), model.recurrent_matrix().detach()
    x = nets.input(model.shapes)
    h = torch.zeros(3, 10, dtype=torch.float64)
    for t in range(7):
        h = U.mT[x[t]] + h @ W.mT
    torch.testing.assert_close(model.states(x)[-1], h, atol=1e-12, rtol=0)


@pytest.mark.parametrize("name", MODRELU)
def test_a_modrelu_network_is_odd(nets, name):
    model = nets.generic(name, nets.shapes(input_kind="values"))
    x = nets.input(model.shapes).double()
    torch.testing.assert_close(model.states(-x), -model.states(x), atol=1e-12, rtol=0)


@pytest.mark.parametrize(("name", "fields"), [("irnn", {}), ("lt_rnn", IDENTITY)])
def test_identity_networks_start_by_keeping_their_state(nets, name, fields):
    model = nets.build(name, nets.shapes(input_kind="values"), **fields)
    h0 = torch.rand(3, 10)
    h = model.states(torch.zeros(9, 3, 5), h0)
    assert torch.equal(h, h0.expand(9, 3, 10))


def test_leading_zeros_keep_the_state_zero_without_gradient(nets):
    model = nets.generic("scornn", nets.shapes(input_kind="values"))
    h = model.states(torch.zeros(4, 2, 5, dtype=torch.float64))
    h.sum().backward()
    assert not h.any()
    assert not model.b.grad.any()
    assert not model.A.grad.any()


@pytest.mark.parametrize("activation", ["relu", "modrelu"])
@pytest.mark.quick_cases(1)
def test_theorem_3_1_the_short_state_fades_by_its_matrix(nets, activation):
    shapes = nets.shapes(input_kind="values", readout="last")
    fields = {"hidden_size": 6, "short_size": 6, "negative_ones": 0, "activation": activation}
    steps = 7
    for seed in range(50):
        model = nets.generic("enrnn", shapes, seed=seed, **fields)
        with torch.no_grad():
            model.T.mul_(0.9 / torch.linalg.matrix_norm(model.T, ord=2))
            model.switched.fill_(False)
        x = torch.randn(steps, 1, 5, dtype=torch.float64)
        h0 = torch.randn(1, 6, dtype=torch.float64)
        jacobian = torch.autograd.functional.jacobian(lambda h, m=model, x=x: m(x, h)[1], h0)
        assert torch.linalg.matrix_norm(jacobian[0, :, 0], ord=2) <= 0.9**steps + 1e-12
        by_x = torch.autograd.functional.jacobian(lambda x, m=model, h=h0: m(x, h)[1], x)[
            0, :, 0, 0
        ]
        bound = 0.9 ** (steps - 1) * torch.linalg.matrix_norm(model.U, ord=2)
        assert torch.linalg.matrix_norm(by_x, ord=2) <= bound + 1e-12


def test_an_lstm_with_open_gates_adds_the_marked_values(nets):
    """With f = o = 1, i = marker and g close to linear, the cell holds the sum."""
    shapes = nets.shapes(input_size=2, output_size=1, input_kind="values", readout="last")
    model = nets.generic("lstm", shapes, hidden_size=1, readout_from="cell")
    small = 1e-5
    with torch.no_grad():
        model.R.zero_()
        model.U.zero_()
        model.U[0, 1], model.U[3, 0] = 100.0, small
        model.b.copy_(torch.tensor([-50.0, 50.0, 50.0, 0.0]))
        model.V.fill_(1 / small)
        model.c.zero_()
    values = torch.rand(40, 3, dtype=torch.float64)
    marker = torch.zeros(40, 3, dtype=torch.float64)
    marker[[4, 31]] = 1.0
    found, _ = model(torch.stack((values, marker), -1))
    torch.testing.assert_close(found[:, 0], values[4] + values[31], atol=1e-9, rtol=0)


@pytest.mark.parametrize("variant", ["pytorch", "cho"])
class TestGRU:
    def with_gates(self, nets, variant, reset, keep):
        """Return a GRU whose gates are held at r = `reset` and z = `keep`, each 0 or 1."""
        model = nets.generic("gru", variant=variant)
        n = model.hidden_size
        with torch.no_grad():
            model.U[: 2 * n] = 0
            model.R[: 2 * n] = 0
            model.b[: 2 * n] = torch.tensor([reset, keep]).repeat_interleave(n) * 200.0 - 100.0
        return model

    def test_with_r_1_and_z_0_it_is_the_tanh_rnn(self, nets, variant):
        gru = self.with_gates(nets, variant, reset=1, keep=0)
        rnn = nets.generic("tanh_rnn")
        n = gru.hidden_size
        for name, rows in (("U", gru.U), ("W", gru.R), ("b", gru.b)):
            getattr(rnn, name).data.copy_(rows[2 * n :])
        x = nets.input(gru.shapes)
        torch.testing.assert_close(gru.states(x), rnn.states(x), atol=1e-12, rtol=0)

    def test_with_r_0_the_candidate_does_not_see_the_state(self, nets, variant):
        gru = self.with_gates(nets, variant, reset=0, keep=0)
        x = nets.input(gru.shapes)
        apart = torch.tanh(gru.U.mT[x] + gru.b)[..., 2 * gru.hidden_size :]
        torch.testing.assert_close(gru.states(x), apart, atol=1e-12, rtol=0)

    def test_with_z_1_it_keeps_its_state(self, nets, variant):
        gru = self.with_gates(nets, variant, reset=1, keep=1)
        h0 = torch.randn(3, 10, dtype=torch.float64)
        _, h = gru(nets.input(gru.shapes), h0)
        torch.testing.assert_close(h, h0, atol=1e-12, rtol=0)


def test_both_grus_agree_where_the_reset_gate_is_one_number(nets):
    """R (r ⊙ h) = r ⊙ R h if all units have the same r."""
    models = [nets.generic("gru", variant=variant) for variant in ("pytorch", "cho")]
    n, x = 10, nets.input(models[0].shapes)
    for model in models:
        with torch.no_grad():
            model.U[:n] = model.U[:1]
            model.R[:n] = model.R[:1]
            model.b[:n] = model.b[:1]
    one, two = (model(x)[0] for model in models)
    torch.testing.assert_close(one, two, atol=1e-12, rtol=0)


def test_a_diagonal_peephole_of_zeros_is_none(nets):
    plain = nets.generic("lstm")
    seeing = nets.generic("lstm", peephole="diagonal")
    share(plain, seeing)
    with torch.no_grad():
        seeing.peephole_input_forget.zero_()
        seeing.peephole_output.zero_()
    x = nets.input(plain.shapes)
    torch.testing.assert_close(seeing(x)[0], plain(x)[0], atol=1e-14, rtol=0)


def test_modrelu_is_zero_at_zero_and_jumps_by_its_threshold(nets):
    z = torch.tensor([-1e-9, 0.0, 1e-9, -2.0, 0.4], requires_grad=True)
    b = torch.tensor([0.5, 0.5, 0.5, -0.5, -0.5], requires_grad=True)
    h = modrelu(z, b)
    np.testing.assert_allclose(h.detach(), [-0.5, 0, 0.5, -1.5, 0], atol=1e-6)
    h.sum().backward()
    assert z.grad.tolist() == [1, 0, 1, 1, 0]
    assert b.grad.tolist() == [-1, 0, 1, -1, 0]


def test_a_cornn_without_weights_is_a_damped_oscillator(nets):
    """With small steps y solves y'' + epsilon y' + gamma y = 0."""
    model = nets.generic("cornn", hidden_size=1, dt=1e-3, gamma=1.0, epsilon=0.2)
    with torch.no_grad():
        for parameter in (model.U, model.R, model.b):
            parameter.zero_()
    start = torch.tensor([[1.0]], dtype=torch.float64), torch.zeros(1, 1, dtype=torch.float64)
    times = np.arange(1, 6_001) * 1e-3
    turn = np.sqrt(1 - 0.1**2)
    exact = np.exp(-0.1 * times) * (np.cos(turn * times) + 0.1 / turn * np.sin(turn * times))
    found = model.states(torch.zeros(6_000, 1, dtype=torch.int64), start).detach()[:, 0, 0]
    np.testing.assert_allclose(found, exact, atol=2e-3)


def test_a_lem_whose_steps_are_one_forgets_its_states(nets):
    """With both time steps at 1, z is a layer of y, and y a layer of z."""
    model = nets.generic("lem", dt=1.0)
    n = model.hidden_size
    with torch.no_grad():
        model.U[: 2 * n], model.R[: 2 * n], model.b[: 2 * n] = 0, 0, 100.0
    x = nets.input(model.shapes)
    y, Y = torch.zeros(3, n, dtype=torch.float64), []
    for symbols in x:
        met = model.U.mT[symbols] + model.b
        z = torch.tanh(met[:, 2 * n : 3 * n] + y @ model.R[2 * n : 3 * n].mT)
        y = torch.tanh(met[:, 3 * n :] + z @ model.R[3 * n :].mT)
        Y.append(y)
    torch.testing.assert_close(model.states(x), torch.stack(Y), atol=1e-12, rtol=0)
