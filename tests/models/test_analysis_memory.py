"""Transient norms and Fisher memory curves against the reference tables and closed forms.

The tables are in float64 with the authors' draws (norms), and in 70-digit arithmetic (memory).
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from eigensweep.models.analysis.fisher_memory import memory_curve, noise_root
from eigensweep.models.analysis.transient import ensemble, feed_forward, transient

TIMES = (10, 25, 50, 75, 90, 99)
NORMS = {
    (0.95, 0.0): ("0.5675 0.2401 0.05426 0.01057 0.003044 0.0004755", "1", 0),
    (1.00, 0.0): ("0.9478 0.8654 0.7052 0.4951 0.3079 0.0763", "1", 0),
    (1.05, 0.0): ("1.544 2.931 8.086 19.22 24.85 9.556", "25.01", 89),
    (0.95, 0.005): ("0.6844 0.8819 0.5479 0.06226 0.005875 0.0004755", "1", 0),
    (1.00, 0.005): ("1.115 2.826 6.104 2.573 0.5599 0.0763", "6.105", 49),
    (1.05, 0.005): ("1.78 8.608 60.74 89.04 42.88 9.556", "95.22", 68),
}

AT = (0, 1, 10, 50, 99, 100, 120, 149)
MEMORY = """
0   0.95 0     3.0327  1 0.4744 0.05167 0.0005804 3.787e-06 0 0 0
0   1.00 0     5.1874  1 0.5 0.09091 0.01961 0.01 0 0 0
0   1.05 0     12.0873 1 0.5244 0.1413 0.09362 0.09298 0 0 0
0   0.95 0.005 3.1758  1 0.4744 0.05256 0.003367 3.259e-06 0 0 0
0   1.00 0.005 5.3014  1 0.5 0.09138 0.02136 0.00878 0 0 0
0   1.05 0.005 12.0865 1 0.5244 0.1415 0.0936 0.09205 0 0 0
0.2 0.95 0     11.9393 0.9791 0.4657 0.09801 0.07438 0.0722 0.07213 0.06032 0.0001462
0.2 1.00 0     16.2975 0.9801 0.4902 0.1316 0.109 0.1031 0.1031 0.08152 0.0007826
0.2 1.05 0     20.8347 0.9811 0.5137 0.1691 0.1463 0.1335 0.1327 0.1031 0.002393
0.2 0.95 0.005 12.0894 0.9791 0.4652 0.09878 0.07541 0.07337 0.07323 0.06187 0.0001368
0.2 1.00 0.005 16.3903 0.9801 0.4898 0.132 0.1095 0.1039 0.1038 0.08252 0.0007499
0.2 1.05 0.005 20.8824 0.9811 0.5133 0.1691 0.1463 0.1342 0.1331 0.1041 0.00233
"""
ROWS = [row.split() for row in MEMORY.strip().splitlines()]


def curve(d: float, alpha: float, beta: float, size: int = 100, steps: int = 150) -> torch.Tensor:
    u = torch.zeros(size, dtype=torch.float64)
    u[0] = 1
    return memory_curve(feed_forward(alpha, beta, d, size), u, steps)


class TestTransientNorms:
    @pytest.mark.parametrize("setting", NORMS)
    def test_the_means_are_those_of_the_reference_digit_by_digit(self, setting):
        row, largest, at = NORMS[setting]
        norm = transient(feed_forward(*setting), ensemble()).norm
        assert " ".join(f"{norm[t].item():.4g}" for t in TIMES) == row
        assert (f"{norm.max().item():.4g}", int(norm.argmax())) == (largest, at)

    def test_a_nilpotent_matrix_ends_everything_at_its_size(self):
        found = transient(feed_forward(1.05, 0.005), ensemble(), 125)
        assert (found.norm[:100] > 0).all()
        assert not found.norm[100:].any()
        assert not found.unit_sd[100:].any()

    def test_the_spread_is_that_of_each_unit_over_the_ensemble(self):
        H0, Theta = ensemble(6, 40, 1), feed_forward(0.9, 0.1, 0.3, 6)
        found = transient(Theta, H0, 3)
        H = np.linalg.matrix_power(Theta.numpy(), 3) @ H0.numpy()
        lengths, spreads = np.sqrt((H**2).sum(0)), H.std(1)
        expected = [lengths.mean(), lengths.std(), spreads.mean(), spreads.std()]
        assert [values[3].item() for values in vars(found).values()] == pytest.approx(expected)

    def test_initial_states_have_length_one(self):
        torch.testing.assert_close(ensemble().norm(dim=0), torch.ones(1000).double())


class TestFisherMemory:
    @pytest.mark.parametrize("row", ROWS, ids=[" ".join(row[:3]) for row in ROWS])
    def test_the_curves_are_those_of_the_reference_digit_by_digit(self, row):
        J = curve(*map(float, row[:3]))
        assert f"{J.sum().item():.4f}" == row[3]
        assert [f"{J[t].item():.4g}" for t in AT] == row[4:]

    @pytest.mark.parametrize("alpha", [0.8, 1.0, 1.2])
    def test_a_chain_shares_its_memory_with_the_noise_before(self, alpha):
        J = curve(0, alpha, 0, size=30, steps=40)
        powers = alpha ** (2 * np.arange(30))
        expected = np.concatenate([powers / powers.cumsum(), np.zeros(10)])
        np.testing.assert_allclose(J.numpy(), expected, rtol=1e-12)

    def test_the_root_squares_to_the_sum_of_powers(self):
        generator = torch.Generator().manual_seed(0)
        Theta = torch.randn(5, 5, generator=generator, dtype=torch.float64)
        Theta = 0.8 * Theta / torch.linalg.matrix_norm(Theta, 2)
        C, P = torch.zeros(5, 5).double(), torch.eye(5).double()
        for _ in range(200):
            C, P = C + P @ P.mT, Theta @ P
        L = noise_root(Theta)
        torch.testing.assert_close(L @ L.mT, C, rtol=1e-12, atol=1e-12)

    @pytest.mark.parametrize("d", [1.0, -1.0, 1.2])
    def test_noise_that_never_ends_is_refused(self, d):
        with pytest.raises(ValueError, match="without end"):
            curve(d, 1.0, 0.0, size=10)
