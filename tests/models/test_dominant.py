"""Following the dominant eigenvalue of a large matrix from update to update."""

import pytest
import torch

from eigensweep.models.matrices import dominant
from eigensweep.models.matrices.dominant import EVERY, WORTH_IT, DominantEigenvalue
from eigensweep.models.matrices.spectral_radius import dominant_eigenvalue, spectral_normalise
from eigensweep.models.stack import Stack

S, ON = 140, torch.tensor(True)
DOMINANT = {"real": [[1.0]], "negative": [[-1.0]], "complex pair": [[0.6, -0.8], [0.8, 0.6]]}


def matrix(blocks, seed=0):
    """Return a matrix of S rows with these diagonal blocks and small other eigenvalues."""
    generator = torch.Generator().manual_seed(seed)
    basis = torch.randn(S, S, generator=generator, dtype=torch.float64) / S**0.5
    basis += torch.eye(S, dtype=torch.float64)
    D = torch.block_diag(*(torch.tensor(b, dtype=torch.float64) for b in blocks))
    rest = 0.9 * torch.linspace(-1, 1, S - len(D)).double().diag()
    return basis @ torch.block_diag(D, rest) @ torch.linalg.inv(basis)


def modulus(follower):
    return torch.linalg.vector_norm(follower.value).item()


def radius(T):
    return torch.linalg.eigvals(T.double()).abs().max().item()


@pytest.fixture
def decompositions(monkeypatch):
    """A list that grows by one with each decomposition of all eigenvalues."""
    seen = []

    def count(T):
        seen.append(T)
        return dominant_eigenvalue(T)

    monkeypatch.setattr(dominant, "dominant_eigenvalue", count)
    return seen


@pytest.mark.parametrize("kind", DOMINANT)
def test_it_is_the_one_of_a_decomposition_along_many_updates(kind, decompositions):
    T, follower = matrix([DOMINANT[kind]]), DominantEigenvalue(S)
    generator = torch.Generator().manual_seed(1)
    for _ in range(2 * EVERY + 5):
        step = torch.randn(S, 2, generator=generator) @ torch.randn(2, S, generator=generator)
        T += 1e-4 * step
        follower.update(T, ON)
        exact, near = radius(T), follower.value.clone()
        assert modulus(follower) == pytest.approx(exact, rel=1e-3)
        W, _ = spectral_normalise(T, ON, near=near)
        torch.testing.assert_close(W, T / exact, atol=1e-12, rtol=0)
    assert 2 <= len(decompositions) <= 6


def test_the_gradient_is_that_of_a_decomposition():
    T = matrix([DOMINANT["complex pair"]]).requires_grad_()
    G = torch.randn(S, S, dtype=torch.float64)
    gradients = [
        torch.autograd.grad(spectral_normalise(T, ON, near=near)[0], T, G)[0]
        for near in (None, torch.tensor([0.6, 0.79], dtype=torch.float64))
    ]
    torch.testing.assert_close(*gradients, atol=1e-8, rtol=0)


@pytest.mark.parametrize("jump", [False, True], ids=["slowly", "at once"])
def test_a_pair_that_overtakes_is_seen_after_bounded_updates(jump):
    first, second = DOMINANT["complex pair"], torch.tensor([[-0.8, -0.6], [0.6, -0.8]])
    follower, late = DominantEigenvalue(S), 0
    for k in range(60):
        size = (1.3 if k > 30 else 0.1) if jump else 0.9 + k / 150
        T = matrix([first, (size * second).tolist()])
        follower.update(T, ON)
        late = late + 1 if modulus(follower) < radius(T) * (1 - 1e-3) else 0
        assert late <= EVERY
    assert late == 0
    assert follower.value[0].item() == pytest.approx(-0.8 * size, rel=1e-3)


def test_where_it_cannot_follow_every_matrix_is_decomposed(decompositions):
    follower = DominantEigenvalue(S)
    for seed in range(4):
        T = torch.randn(S, S, generator=torch.Generator().manual_seed(seed))
        follower.update(T, ON)
        assert modulus(follower) == pytest.approx(radius(T), rel=1e-6)
    assert len(decompositions) == 4


def test_a_value_with_no_eigenvalue_close_to_it_does_no_harm():
    T = matrix([DOMINANT["real"]])
    for near in ((5.0, 0.0), (0.0, 3.0), (torch.nan, torch.nan)):
        W, _ = spectral_normalise(T, ON, near=torch.tensor(near, dtype=torch.float64))
        torch.testing.assert_close(W, T, atol=1e-10, rtol=0)


def test_nothing_is_followed_before_it_is_needed():
    follower = DominantEigenvalue(S)
    before = {k: v.clone() for k, v in follower.state_dict().items()}
    follower.update(torch.randn(S, S), torch.tensor(False))
    torch.testing.assert_close(follower.state_dict(), before, equal_nan=True, rtol=0, atol=0)


def test_a_matrix_that_is_not_finite_gives_nan():
    follower = DominantEigenvalue(S)
    follower.update(torch.full((S, S), torch.nan), ON)
    assert follower.value.isnan().any()
    follower.update(matrix([DOMINANT["real"]]), ON)
    assert modulus(follower) == pytest.approx(1, rel=1e-2)


class TestENRNN:
    def build_switched(self, nets, seed=0):
        fields = {"hidden_size": WORTH_IT + 4, "short_size": WORTH_IT, "negative_ones": 1}
        model = nets.build("enrnn", seed=seed, **fields)
        with torch.no_grad():
            model.T *= 1.2
        model.after_update({})
        return model

    def train(self, model, steps, nets):
        optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3, alpha=0.9)
        for seed in range(steps):
            torch.manual_seed(seed)
            optimizer.zero_grad()
            model(nets.input(model.shapes))[0].square().sum().backward()
            optimizer.step()
            model.after_update({})
        return model

    def test_the_short_block_keeps_the_radius_of_one_in_training(self, nets):
        model = self.train(self.build_switched(nets), 8, nets)
        assert model.switched
        assert radius(model.short_block().detach()) == pytest.approx(1, abs=1e-5)

    def test_what_is_known_of_the_eigenvalue_belongs_to_the_state(self, nets):
        model = self.train(self.build_switched(nets), 3, nets)
        other = self.build_switched(nets, seed=5)
        other.load_state_dict(model.state_dict())
        for m in (model, other):
            self.train(m, 2, nets)
        for name, value in model.state_dict().items():
            assert torch.equal(value, other.state_dict()[name]), name

    def test_lanes_are_single_networks(self, nets):
        models = [self.build_switched(nets, seed) for seed in range(2)]
        stack = Stack(models)
        stack.after_update({"main": 0.0, "orth": 0.0})
        x = nets.input(models[0].shapes)
        logits, _ = stack(x, shared=True)
        for i, model in enumerate(models):
            model.after_update({})
            torch.testing.assert_close(logits[i], model(x)[0], atol=1e-5, rtol=1e-5)
            lane, alone = stack.lane(i), model.state_dict()
            torch.testing.assert_close(lane["dominant.value"], alone["dominant.value"])
            assert lane["dominant.age"] == alone["dominant.age"]

    def test_a_small_block_is_decomposed_and_keeps_nothing(self, nets):
        names = nets.build("enrnn").state_dict()
        assert not [name for name in names if name.startswith("dominant")]
