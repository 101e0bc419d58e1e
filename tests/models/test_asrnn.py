"""asRNN: its two forms, its limits, and the slope of its saturation."""

import pytest
import torch

VALUES = {"input_kind": "values", "readout": "last"}


def same(found, expected, atol=1e-12):
    torch.testing.assert_close(found, expected, atol=atol, rtol=0)


def with_saturation(model, d):
    """Set U_f = I and diag(d)."""
    with torch.no_grad():
        model.saturation.A.zero_()
        model.s.copy_(d - model.config.eps)
    return model


@pytest.mark.parametrize("constrain_hh", [True, False])
@pytest.mark.parametrize("readout", ["all", "last"])
def test_both_forms_give_the_same_values_states_and_gradients(nets, readout, constrain_hh):
    shapes = nets.shapes(readout=readout)
    fields = {"constrain_hh": constrain_hh}
    similar, direct = (
        nets.generic("asrnn", shapes, form=form, **fields) for form in ("similarity", "direct")
    )
    x = nets.input(shapes)
    logits, state = similar(x)
    expected, carried = direct(x)
    same(logits, expected, 1e-11)
    same(state, carried, 1e-11)
    (logits.sum() + similar(x, state)[0].sum()).backward()
    (expected.sum() + direct(x, carried)[0].sum()).backward()
    for one, two in zip(similar.parameters(), direct.parameters(), strict=True):
        same(one.grad, two.grad, 1e-9 * max(1.0, two.grad.norm().item()))


def test_the_similar_form_has_eigenvalues_on_the_unit_circle(nets):
    model = nets.generic("asrnn")
    W_f, inverse = model.saturation_matrix()
    values = torch.linalg.eigvals(W_f @ model.recurrent_matrix() @ inverse)
    same(values.abs(), torch.ones(10, dtype=torch.float64), 1e-10)
    same(W_f @ inverse, torch.eye(10, dtype=torch.float64))


def test_with_w_f_the_identity_it_is_the_tanh_network(nets):
    model = with_saturation(nets.generic("asrnn", eps=0.25), 1.0)
    tanh = nets.generic("tanh_rnn")
    common = {k: v for k, v in model.state_dict().items() if k in tanh.state_dict()}
    tanh.load_state_dict({**common, "W": model.recurrent_matrix()})
    x = nets.input(model.shapes)
    same(model(x)[0], tanh(x)[0])


@pytest.mark.parametrize("d", [1e-2, 1e-3, 1e-4])
def test_as_d_goes_to_zero_it_is_linear_up_to_the_square_of_d(nets, d):
    model = with_saturation(nets.generic("asrnn", a=0, b=0, eps=d), d)
    U, W, b = model.input_matrix(), model.recurrent_matrix(), model.b
    x = nets.input(model.shapes)
    h, largest = torch.zeros(3, 10, dtype=torch.float64), 0.0
    for t in range(7):
        h = U.mT[x[t]] + h @ W.mT + b
        largest = max(largest, h.abs().max().item())
    deviation = (model.states(x)[-1] - h).norm() / h.norm()
    assert 0 < deviation < 10 * (d * largest) ** 2


def test_the_jacobian_of_a_step_is_the_papers(nets):
    model = nets.generic("asrnn", nets.shapes(**VALUES), form="direct")
    x = torch.randn(1, 1, 5, dtype=torch.float64)
    h0 = torch.randn(1, 10, dtype=torch.float64)
    found = torch.autograd.functional.jacobian(lambda h: model(x, h)[1], h0)[0, :, 0]
    W_f, inverse = model.saturation_matrix()
    slope = 1 - (W_f @ model(x, h0)[1][0]) ** 2
    same(found, inverse @ torch.diag(slope) @ W_f @ model.recurrent_matrix())


def test_with_u_f_one_the_singular_values_are_the_slopes(nets):
    d = torch.linspace(0.2, 2, 10, dtype=torch.float64)
    model = with_saturation(nets.generic("asrnn", nets.shapes(**VALUES)), d)
    x = torch.randn(1, 1, 5, dtype=torch.float64)
    h0 = torch.randn(1, 10, dtype=torch.float64)
    jacobian = torch.autograd.functional.jacobian(lambda h: model(x, h)[1], h0)[0, :, 0]
    slopes = 1 - (d * model(x, h0)[1][0]) ** 2
    same(torch.linalg.svdvals(jacobian), slopes.sort(descending=True)[0])
    assert slopes.max() <= 1


def test_s_at_zero_has_no_slope_and_stays(nets):
    model = nets.build("asrnn", a=0, b=0, eps=1e-5)
    model(nets.input(model.shapes))[0].pow(2).sum().backward()
    assert not model.s.any()
    assert not model.s.grad.any()
    report = model.constraint_report()
    assert report["d_min"] == report["d_max"] == pytest.approx(1e-5)


def test_only_the_logarithm_of_w_is_in_the_orthogonal_group(nets):
    constrained, free = nets.build("asrnn"), nets.build("asrnn", constrain_hh=False)
    assert constrained.param_groups()[0].params == [constrained.recurrent.A]
    assert free.param_groups()[0].params == [free.W]
    same(free.W, nets.build("asrnn").recurrent_matrix(), 1e-6)


def test_no_logarithm_of_a_rotation_decays(nets):
    for net in (nets.build("asrnn"), nets.build("asrnn", constrain_hh=False)):
        *_, saturation = net.param_groups()
        assert saturation.params == [net.saturation.A]
        assert saturation.options == {"weight_decay": 0.0}


def test_both_rotations_have_bases_of_their_own(nets):
    model = nets.generic("asrnn", trivialization="dynamic", rebase_every=1)
    assert not torch.allclose(model.recurrent.base, model.saturation.base)
    start = nets.build("asrnn", trivialization="dynamic").saturation.base
    assert torch.equal(start, torch.eye(10))


def test_s_is_drawn_between_a_and_b(nets):
    s = nets.build("asrnn", hidden_size=400, a=-1, b=3).s
    assert -1 <= s.min() < -0.9
    assert 2.9 < s.max() <= 3
