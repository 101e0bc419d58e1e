"""Orthogonal matrices trained as B exp(A): the exponential, its gradient, and bases that move."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from eigensweep.models.matrices.exponential import (
    _estimate_norm,
    exponential,
    static_exponential,
)
from eigensweep.models.matrices.orthogonal import nearest_orthogonal, orthogonality_error, skew
from eigensweep.models.trivialization import rebase, static_rebase


def random_skew(n, norm, dtype=torch.float64):
    A = skew(torch.randn(n, n, dtype=torch.float64))
    return (A * norm / torch.linalg.matrix_norm(A, ord=2)).to(dtype)


def by_eigenvalues(A):
    values, vectors = torch.linalg.eigh(-1j * A.double())
    return ((vectors * torch.exp(1j * values)) @ vectors.mH).real


def frechet(A, E):
    """Return the derivative of exp at A in the direction E, a corner of a larger exponential."""
    n = len(A)
    block = torch.cat((torch.cat((A, E), 1), torch.cat((torch.zeros_like(A), A), 1)))
    return torch.matrix_exp(block)[:n, n:]


class TestExponential:
    @pytest.fixture(params=[exponential, static_exponential])
    def exponential(self, request):
        return request.param

    @pytest.mark.parametrize("norm", [0.0, 1e-6, 0.03, 0.3, 3.0, 100.0])
    @pytest.mark.parametrize(("dtype", "close"), [(torch.float64, 2e-13), (torch.float32, 2e-5)])
    def test_it_is_the_exponential_of_the_eigenvalues(self, exponential, norm, dtype, close):
        A = random_skew(30, norm, dtype)
        found = exponential(A)
        assert found.dtype == dtype
        torch.testing.assert_close(found.double(), by_eigenvalues(A), atol=close, rtol=0)

    @pytest.mark.parametrize("norm", [1e-3, 0.03, 0.5, 2.0, 20.0])
    @pytest.mark.parametrize("n", [1, 2, 9])
    def test_its_gradient_is_the_skew_part_of_frechets_at_minus_a(self, exponential, n, norm):
        A = random_skew(n, norm) if n > 1 else torch.zeros(1, 1, dtype=torch.float64)
        G = torch.randn(n, n, dtype=torch.float64)
        A.requires_grad_()
        (found,) = torch.autograd.grad(exponential(A), A, G)
        expected = frechet(A.detach().mT, G)
        expected = (expected - expected.mT) / 2
        torch.testing.assert_close(found, expected, atol=1e-10, rtol=0)

    @pytest.mark.parametrize("norm", [0.01, 0.2, 1.0, 3.0, 6.0, 50.0])
    @pytest.mark.quick_cases(2)
    def test_large_float32_matrices_are_orthogonal_and_turn_right(self, exponential, norm):
        A = random_skew(400, norm, torch.float32)
        W = exponential(A)
        assert orthogonality_error(W) < 5e-6
        torch.testing.assert_close(W.double(), by_eigenvalues(A), atol=1e-6 * max(3, norm), rtol=0)

    @pytest.mark.parametrize("norm", [1.0, 3.0, 6.0, 50.0])
    def test_float32_gradients_are_those_of_float64(self, exponential, norm):
        A, G = random_skew(100, norm, torch.float32).requires_grad_(), torch.randn(100, 100)
        double = A.detach().double().requires_grad_()
        (found,) = torch.autograd.grad(exponential(A), A, G)
        (expected,) = torch.autograd.grad(exponential(double), double, G.double())
        scale = expected.abs().max()
        torch.testing.assert_close(found.double() / scale, expected / scale, atol=3e-5, rtol=0)

    @pytest.mark.parametrize("norm", [1e3, 1e5, 1e8])
    @pytest.mark.parametrize(("dtype", "close"), [(torch.float64, 1e-14), (torch.float32, 5e-6)])
    def test_it_is_orthogonal_however_far_training_has_gone(self, norm, dtype, close):
        A = random_skew(30, norm, dtype).requires_grad_()
        W = exponential(A)
        W.sum().backward()
        assert orthogonality_error(W) < close
        assert A.grad.isfinite().all()
        expected = by_eigenvalues(A.detach())
        rounding = 4 * torch.finfo(dtype).eps * norm
        torch.testing.assert_close(W.double(), expected, atol=rounding, rtol=0)

    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
    @pytest.mark.parametrize("other", [torch.nan, torch.inf, 0.0, 1e-3, 30.0])
    def test_a_lane_has_the_same_bits_whatever_the_other_is(self, exponential, dtype, other):
        def evaluate(neighbour):
            A = torch.stack((neighbour, mine)).requires_grad_()
            W = torch.vmap(exponential)(A)
            (gradient,) = torch.autograd.grad(W, A, torch.stack((G, G)))
            return W[1], gradient[1]

        mine, G = random_skew(6, 5.0, dtype), torch.randn(6, 6, dtype=dtype)
        expected = evaluate(mine)
        for found, same in zip(evaluate(mine * other), expected, strict=True):
            assert torch.equal(found, same)

    @pytest.mark.parametrize("value", [torch.nan, torch.inf])
    def test_what_is_not_finite_gives_nan_and_no_error(self, exponential, value):
        A = random_skew(4, 1.0)
        A[0, 1] = value
        A.requires_grad_()
        exponential(A).sum().backward()
        assert A.grad.isnan().any()

    def test_a_matrix_without_entries_is_left_alone(self, exponential):
        assert exponential(torch.zeros(0, 0)).shape == (0, 0)

    def test_lanes_of_different_norms_are_single_matrices(self, exponential):
        A = torch.stack([random_skew(6, norm) for norm in (0.01, 5.0)]).requires_grad_()
        G = torch.randn(2, 6, 6, dtype=torch.float64)
        W = torch.vmap(exponential)(A)
        (gradient,) = torch.autograd.grad(W, A, G)
        inner = torch.vmap(torch.func.grad(lambda A, G: (exponential(A) * G).sum()))(A, G)
        for i in range(2):
            alone = A[i].detach().requires_grad_()
            torch.testing.assert_close(W[i], exponential(alone), atol=1e-13, rtol=0)
            (expected,) = torch.autograd.grad(exponential(alone), alone, G[i])
            torch.testing.assert_close(gradient[i], expected, atol=1e-12, rtol=0)
            torch.testing.assert_close(inner[i], expected, atol=1e-12, rtol=0)

    def test_a_second_derivative_is_refused_not_wrong(self):
        A = random_skew(4, 1.0).requires_grad_()
        (gradient,) = torch.autograd.grad(exponential(A).pow(2).sum(), A, create_graph=True)
        with pytest.raises(RuntimeError, match="once_differentiable"):
            gradient.sum().backward()

    def test_several_gradients_of_one_matrix_are_taken_at_once(self, exponential):
        A, G = random_skew(5, 2.0).requires_grad_(), torch.randn(3, 5, 5, dtype=torch.float64)
        W = exponential(A)
        (found,) = torch.autograd.grad(W, A, G, retain_graph=True, is_grads_batched=True)
        for g, gradient in zip(G, found, strict=True):
            (expected,) = torch.autograd.grad(W, A, g, retain_graph=True)
            torch.testing.assert_close(gradient, expected, atol=1e-14, rtol=0)


@pytest.mark.parametrize("planes", ["dense", "blocks", "one"])
def test_the_estimated_norm_is_hardly_ever_too_small(planes):
    torch.manual_seed(0)  # of dense matrices some have a norm 2.1 % above its estimate
    A = random_skew(300, 1.0, torch.float32)
    if planes == "blocks":
        A = skew(torch.rand(299).diag(1))
    elif planes == "one":
        A = 1e-4 * A
        A[7, 9], A[9, 7] = 1.0, -1.0
    norm = torch.linalg.matrix_norm(A, ord=2)
    assert 0.98 < _estimate_norm(A @ A) ** 0.5 / norm < 1.001


@pytest.mark.parametrize("norm", [3.0, torch.pi, 3.3, 4.1, 8.0])
@pytest.mark.parametrize("planes", ["dense", "of two halves"])
@pytest.mark.quick_cases(2)
def test_angles_about_pi_keep_their_digits(planes, norm):
    A = random_skew(512, norm, torch.float32)
    if planes != "dense":
        A = torch.zeros_like(A)
        A[:256, 256:].fill_diagonal_(norm)
        A = A - A.mT
    A.requires_grad_()
    W, G = exponential(A), torch.randn(512, 512)
    assert orthogonality_error(W) < 4e-6
    torch.testing.assert_close(W.double(), by_eigenvalues(A.detach()), atol=6e-7 * norm, rtol=0)
    double = A.detach().double().requires_grad_()
    (found,) = torch.autograd.grad(W, A, G)
    (expected,) = torch.autograd.grad(exponential(double), double, G.double())
    scale = expected.abs().max()
    torch.testing.assert_close(
        found / scale, expected / scale, atol=2e-5, rtol=0, check_dtype=False
    )


@pytest.mark.parametrize("value", [0.0, torch.nan, torch.inf])
def test_a_large_matrix_may_hold_anything(value):
    A = torch.full((300, 300), value)
    W = exponential(A - A.mT)
    assert W.isnan().all() if value else torch.equal(W, torch.eye(300))


VIEWS = {"_unsafe_view", "alias", "detach", "diagonal", "expand", "permute", "scalar_tensor"}
VIEWS |= {"select", "slice", "squeeze", "t", "transpose", "unsqueeze", "view"}
"""Operations that start no kernel."""


class NoReading(TorchDispatchMode):
    """Refuses operations whose result on the host, or whose shape, depends on what tensors hold."""

    REFUSED = ("_local_scalar_dense", "nonzero", "is_nonzero", "equal", "masked_select", "unique")

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        assert name not in self.REFUSED, f"{name} reads a tensor"
        self.seen.append(name)
        return func(*args, **(kwargs or {}))

    def __enter__(self):
        self.seen = []
        return super().__enter__()


class TestStaticExponential:
    """It can be captured: the same operations for every A, none of which reads a tensor."""

    @staticmethod
    def operations(A):
        A = A.clone().requires_grad_()
        with NoReading() as mode:
            torch.vmap(static_exponential)(A).sum().backward()
        return mode.seen

    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
    def test_the_operations_are_the_same_for_every_matrix(self, dtype):
        A = random_skew(6, 1.0, dtype)
        expected = self.operations(torch.stack((A, A)))
        for norm in (0.0, 1e-4, 10.0, 1e3, 1e6, torch.nan):
            assert self.operations(torch.stack((A, norm * A))) == expected

    @pytest.mark.parametrize("lanes", [1, 32])
    def test_a_captured_step_has_few_operations_for_it(self, lanes):
        seen = self.operations(torch.zeros(lanes, 6, 6, device="meta"))
        kernels = [name for name in seen if name not in VIEWS]
        assert len(kernels) <= 90
        assert sum("bmm" in name for name in kernels) <= 48

    def test_it_needs_no_values(self):
        A = torch.zeros(3, 6, 6, device="meta", requires_grad=True)
        W = exponential(A)
        W.sum().backward()
        assert W.shape == A.grad.shape == (3, 6, 6)

    @pytest.mark.parametrize("n", [2, 33, 190])
    def test_small_angles_keep_their_digits(self, n):
        A = 1e-4 * random_skew(n, 1.0, torch.float32)
        error = static_exponential(A).double() - by_eigenvalues(A)
        assert error.fill_diagonal_(0).abs().max() < 1e-11

    @pytest.mark.parametrize("norm", [0.0, 1e-3, 0.5, 1.6, 10.0, 1e2, 1e3, 2e3])
    @pytest.mark.parametrize(("dtype", "close"), [(torch.float64, 1e-14), (torch.float32, 1e-6)])
    def test_it_is_right_up_to_large_norms(self, norm, dtype, close):
        A = random_skew(30, norm, dtype).requires_grad_()
        double = A.detach().double().requires_grad_()
        G = torch.randn(30, 30, dtype=dtype)
        W = static_exponential(A)
        assert orthogonality_error(W) < close
        rounding = max(close, torch.finfo(dtype).eps * norm)
        torch.testing.assert_close(W.double(), by_eigenvalues(A.detach()), atol=rounding, rtol=0)
        (found,) = torch.autograd.grad(W, A, G)
        (expected,) = torch.autograd.grad(exponential(double), double, G.double())
        scale = expected.abs().max()
        torch.testing.assert_close(
            found / scale, expected / scale, atol=4 * rounding, rtol=0, check_dtype=False
        )

    def test_beyond_them_it_is_not_a_number(self):
        assert static_exponential(random_skew(6, 1e4)).isnan().all()


def test_a_trivialised_matrixs_gradient_is_the_closed_form(nets):
    model = nets.generic("exprnn", trivialization="dynamic", rebase_every=1)
    A, base = model.recurrent.A, model.recurrent.base
    assert not torch.allclose(base, torch.eye(10, dtype=base.dtype))
    with torch.no_grad():
        A.add_(torch.randn_like(A))
    G = torch.randn(10, 10, dtype=torch.float64)
    (found,) = torch.autograd.grad(model.recurrent_matrix(), A, G)
    M = frechet(-skew(A.detach()), base.mT @ G)
    torch.testing.assert_close(found, (M - M.mT).triu(1), atol=1e-10, rtol=0)


def update(model, times):
    """Return the matrix after so many updates, each with a step that differs."""
    torch.manual_seed(4)
    for _ in range(times):
        with torch.no_grad():
            model.recurrent.A.add_(0.1 * torch.randn(10, 10, dtype=torch.float64))
        model.after_update({})
    return model.recurrent_matrix()


class TestMovingBase:
    def test_it_starts_at_the_matrix_that_a_static_one_starts_with(self, nets):
        static = nets.build("exprnn", seed=3)
        dynamic = nets.build("exprnn", seed=3, trivialization="dynamic")
        assert not dynamic.recurrent.A.any()
        assert torch.equal(dynamic.recurrent.base, static.recurrent_matrix())
        torch.testing.assert_close(dynamic.recurrent_matrix(), static.recurrent_matrix())

    @pytest.mark.parametrize("parametrization", ["exp", "cayley"])
    def test_moving_it_leaves_the_matrix_where_it_was(self, nets, parametrization):
        fields = {"trivialization": "dynamic", "parametrization": parametrization}
        model = nets.build("exprnn", rebase_every=3, **fields).double()
        update(model, 2)
        with torch.no_grad():
            model.recurrent.A.add_(0.1)
            before, base = model.recurrent_matrix(), model.recurrent.base.clone()
            model.after_update({})
        torch.testing.assert_close(model.recurrent_matrix(), before, atol=1e-14, rtol=0)
        assert torch.equal(model.recurrent.base, before)
        assert not torch.equal(base, before)
        assert not model.recurrent.A.any()

    def test_between_two_moves_only_a_changes(self, nets):
        model = nets.build("exprnn", trivialization="dynamic", rebase_every=3).double()
        base = model.recurrent.base.clone()
        update(model, 2)
        assert torch.equal(model.recurrent.base, base)
        assert model.recurrent.A.any()

    @pytest.mark.parametrize(("updates", "projected"), [(2, False), (4, True), (6, False)])
    def test_the_first_projection_follows_m_minus_one_moves(self, nets, updates, projected):
        fields = {"trivialization": "dynamic", "rebase_every": 2, "project_every": 3}
        model = nets.build("exprnn", **fields).double()
        update(model, updates - 1)
        model.recurrent.base *= 1.01
        model.after_update({})
        error = orthogonality_error(model.recurrent.base)
        assert bool(error < 1e-13) is projected

    @pytest.mark.parametrize("parametrization", ["exp", "cayley"])
    def test_on_a_gpu_the_same_lanes_are_moved_without_a_look(self, parametrization):
        torch.manual_seed(8)
        base, A = torch.randn(2, 4, 6, 6, dtype=torch.float64)
        base = nearest_orthogonal(base) * 1.001
        due, project = torch.tensor([[1, 1, 0, 0], [1, 0, 1, 0]]).bool()
        expected = rebase(base, A, due, project, parametrization)
        found = static_rebase(base, A, due, project, parametrization)
        for one, two in zip(found, expected, strict=True):
            torch.testing.assert_close(one, two, atol=1e-13, rtol=0)
        assert (orthogonality_error(found[0]) < 1e-12).tolist() == [True, False, False, False]
        assert torch.equal(found[0][2:], base[2:])
        assert torch.equal(found[1][2:], A[2:])

    def test_where_and_how_far_it_is_belongs_to_the_state(self, nets):
        model = nets.build("exprnn", trivialization="dynamic", rebase_every=2)
        assert {"recurrent.base", "recurrent.updates"} <= set(model.state_dict())
        assert set(nets.build("exprnn").state_dict()) & {"recurrent.base"} == set()
