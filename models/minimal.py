"""The layers of minGRU and minLSTM: gates that do not see the state, so that steps need not wait.

    h̃_t = g(W_h a_t + b_h),   g(v) = v + 1/2 where v >= 0, else sigmoid(v)
    h_t = (1 - z_t) ⊙ h_{t-1} + z_t ⊙ h̃_t,      z_t = sigmoid(W_z a_t + b_z)            (minGRU)
    h_t = f'_t ⊙ h_{t-1} + i'_t ⊙ h̃_t,          f' = f / (f + i), i' = i / (f + i)      (minLSTM)

A layer: u ← u + O h + o, where a = RMSNorm(u). With `kernel_size` k, u ← u + P (Σ_j K_j ⊙ u_{t-j} +
q) + p stands before it, j from 0 to k - 1; with `feed_forward`, u ← u + D gelu(E RMSNorm(u) + e) +
d after it. An RMSNorm stands before the readout, which has no bias.

Source: Feng, Tung, Ahmed, Bengio & Hajimirsadeghi, Were RNNs All We Needed?, 2024, section 3 and
appendix B, and the authors' program (BorealisAI/minRNNs at ff52e9d).

Departure: the paper computes logarithms of h; g > 0 makes that possible. Here the same recurrence
is computed as it stands. There is no dropout, h_0 = 0 is not trained, and a symbol's encoding
starts uniform in ±1/√m, where the program's is a standard normal.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import gelu, linear

from eigensweep.models.base import Shapes
from eigensweep.models.layered import (
    Layer,
    LayeredConfig,
    LayeredNetwork,
    Scan,
    bias,
    matrix,
    rms_norm,
)


class MinimalConfig(LayeredConfig):
    """What a search may vary on minGRU and minLSTM."""

    gates: ClassVar[int]
    """Rows of the gates' matrix and of the candidate's, as multiples of n."""
    readout_bias_init: ClassVar[None] = None  # type: ignore[misc]  # there is no readout bias

    kernel_size: int | None = Field(
        None,
        ge=2,
        le=64,
        description="Steps k that a causal convolution before each layer sees; null: none",
    )
    feed_forward: int | None = Field(
        None,
        ge=1,
        le=16,
        description="Units of a feed-forward network after each layer, in multiples of w; null: "
        "none",
    )

    @property
    def trains_readout_bias(self) -> bool:
        return False

    @property
    def layer_parameters(self) -> int:
        n, w, k, e = self.n, self.w, self.kernel_size, (self.feed_forward or 0) * self.w
        recurrence = w + self.gates * n * (w + 1) + w * (n + 1)
        convolution = 0 if k is None else w * (k + 1) + w * (w + 1)
        return recurrence + convolution + (w + e * (w + 1) + w * (e + 1) if e else 0)

    @property
    def layer_numbers(self) -> int:
        convolution = 0 if self.kernel_size is None else self.kernel_size + 2
        return (
            (2 * self.gates + 3) * self.n
            + (5 + convolution) * self.w
            + ((4 + 2 * self.feed_forward) * self.w if self.feed_forward else 0)
        )

    def free_parameters(self, shapes: Shapes) -> int:
        return super().free_parameters(shapes) + self.w


class MinimalLayer(Layer):
    """A convolution, the recurrence, and a feed-forward network, each added to its input."""

    K: nn.Parameter | None
    E: nn.Parameter | None

    def __init__(self, config: MinimalConfig) -> None:
        super().__init__()
        n, w, k = config.n, config.w, config.kernel_size
        self.n, self.carried = n, 1 if k is None else 2
        for name in ("K", "q", "P", "p", "norm_after", "E", "e", "D", "d"):
            self.register_parameter(name, None)
        if k is not None:
            self.K, self.q = matrix(w, k), bias(w, k)
            self.P, self.p = matrix(w, w), bias(w, w)
        self.norm = nn.Parameter(torch.ones(w))
        self.G, self.g = matrix(config.gates * n, w), bias(config.gates * n, w)
        self.O, self.o = matrix(w, n), bias(w, n)
        if config.feed_forward is not None:
            units = config.feed_forward * w
            self.norm_after = nn.Parameter(torch.ones(w))
            self.E, self.e = matrix(units, w), bias(units, w)
            self.D, self.d = matrix(w, units), bias(w, units)

    @abstractmethod
    def shares(self, gates: Tensor) -> tuple[Tensor, Tensor]:
        """Return how much of h_{t-1} and of h̃_t is taken, given what the gates are functions of."""

    def initial_state(self, u: Tensor) -> tuple[Tensor, ...]:
        h0 = u.new_zeros(u.shape[1], self.n)
        if self.K is None:
            return (h0,)
        return h0, u.new_zeros(u.shape[1], self.K.shape[-1] - 1, u.shape[2])

    def forward(
        self, u: Tensor, carried: tuple[Tensor, ...], scan: Scan
    ) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
        h0, *rest = carried
        if self.K is not None:
            u, last = self._convolve(u, rest[0])
            rest = [last]
        v, gates = linear(rms_norm(u, self.norm), self.G, self.g).tensor_split((self.n,), -1)
        kept, taken = self.shares(gates)
        H = scan(kept, taken * positive(v), h0)
        u = u + linear(H, self.O, self.o)
        if self.E is not None:
            inside = gelu(linear(rms_norm(u, self.norm_after), self.E, self.e))
            u = u + linear(inside, self.D, self.d)
        return u, H, (H[-1], *rest)

    def recurrent_matrix(self) -> Tensor:
        """Return diag of how much of h_{t-1} is taken where the layer's input is zero."""
        return torch.diag(self.shares(self.g[self.n :])[0])

    def _convolve(self, u: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
        assert self.K is not None
        seen = torch.cat((before.transpose(0, 1), u))
        k, steps = self.K.shape[-1], len(u)
        mixed: Tensor = self.q
        for j in range(k):
            mixed = mixed + self.K[:, j] * seen[k - 1 - j : k - 1 - j + steps]
        return u + linear(mixed, self.P, self.p), seen[steps:].transpose(0, 1)


def positive(v: Tensor) -> Tensor:
    """Return g(v), which is positive and grows.

    >>> positive(torch.tensor([-1.0, 0.0, 2.0]))
    tensor([0.2689, 0.5000, 2.5000])
    """
    return torch.where(v >= 0, v + 0.5, torch.sigmoid(v))


class MinimalNetwork(LayeredNetwork):
    """A network of such layers, with a norm before the readout."""

    config: MinimalConfig

    def __init__(self, config: MinimalConfig, shapes: Shapes) -> None:
        super().__init__(config, shapes)
        self.norm = nn.Parameter(torch.ones(self.config.w))

    def finish(self, u: Tensor) -> Tensor:
        return rms_norm(u, self.norm)
