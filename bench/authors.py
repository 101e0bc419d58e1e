"""Plain loops over time, as published programs write these networks; autograd differentiates them.

A loop has the parameters of one of our models, so that the two can be compared entry by entry. It
computes W from them as the authors do. Each time step computes both matrix products and the
nonlinearity. The input is float, (τ, B, m), with symbols as one-hot vectors. The states are stacked
and read out together.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import leaky_relu, linear

from eigensweep.models import Model


class Loop(nn.Module):
    """h_t = f(U x_t + W h_{t-1} + b), with W as our model makes it."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model: Any = copy.deepcopy(model)

    def matrix(self) -> Tensor:
        """Return W, (n, n)."""
        W: Tensor = self.model.recurrent_matrix()
        return W

    def forward(self, x: Tensor) -> Tensor:
        """Return logits, (τ, B, p), or (B, p) if only the last step is read out."""
        model = self.model
        U, W, b = model.input_matrix(), self.matrix(), model.b
        h, states = model.initial_state(x), []
        for x_t in model.encode_input(x):
            if model.activation == "modrelu":
                h = modrelu(linear(x_t, U) + linear(h, W), b)
            else:
                h = apply_activation(linear(x_t, U, b) + linear(h, W), model.activation)
            states.append(h)
        return self.read_out(states)

    def read_out(self, states: list[Tensor]) -> Tensor:
        """Return V h + c of all states, (τ, B, p), or of the last one, (B, p), as the task asks."""
        model = self.model
        seen = torch.stack(states) if model.shapes.readout == "all" else states[-1]
        return linear(seen, model.V, model.c)


def modrelu(z: Tensor, b: Tensor) -> Tensor:
    """Return sign(z) · relu(|z| + b)."""
    return torch.sign(z) * torch.relu(torch.abs(z) + b)


def apply_activation(z: Tensor, activation: str) -> Tensor:
    """Return f(z) for a nonlinearity f without parameters."""
    match activation:
        case "tanh":
            return torch.tanh(z)
        case "relu":
            return torch.relu(z)
        case "leaky_relu":
            return leaky_relu(z, 0.1)
        case "identity":
            return z
    raise ValueError(f"no plain loop has the activation '{activation}'")


def skew_symmetric(X: Tensor) -> Tensor:
    """Return the part of X above its diagonal, minus its transpose, (n, n)."""
    upper = torch.triu(X, diagonal=1)
    return upper - upper.T


def scaled_cayley(X: Tensor, D: Tensor) -> Tensor:
    """Return (I + A)⁻¹ (I - A) diag(D), (n, n), with A skew-symmetric from X."""
    A, eye = skew_symmetric(X), torch.eye(len(X), dtype=X.dtype)
    return torch.linalg.solve(eye + A, eye - A) @ torch.diag(D)


class ExpRNNLoop(Loop):
    """W = exp(A) through `torch.matrix_exp`."""

    def matrix(self) -> Tensor:
        return torch.matrix_exp(skew_symmetric(self.model.recurrent.A))


class ScoRNNLoop(Loop):
    """W by solving a linear system, through which autograd differentiates."""

    def matrix(self) -> Tensor:
        return scaled_cayley(self.model.A, self.model.D)


class ENRNNLoop(Loop):
    """Wᴸ as in scoRNN; T is divided by its largest eigenvalue modulus, through autograd."""

    def matrix(self) -> Tensor:
        model = self.model
        W_L, T = scaled_cayley(model.A, model.D), model.T
        if model.switched:
            T = T / (torch.linalg.eigvals(T).abs().max() + model.config.eps)
        above = torch.cat([W_L, model.coupling], dim=1)
        below = torch.cat([T.new_zeros(len(T), len(W_L)), T], dim=1)
        return torch.cat([above, below], dim=0)


class NNRNNLoop(Loop):
    """W = P (Λ + T) Pᵀ with P through `torch.matrix_exp`."""

    def matrix(self) -> Tensor:
        model = self.model
        P = torch.matrix_exp(skew_symmetric(model.A))
        return P @ (model.rotations() + model.T * model.mask()) @ P.T


class AsRNNLoop(Loop):
    """The paper's form: three products at each step."""

    def forward(self, x: Tensor) -> Tensor:
        model = self.model
        U, b, h, states = model.input_matrix(), model.b, model.initial_state(x), []
        W = torch.matrix_exp(skew_symmetric(model.recurrent.A))
        U_f = torch.matrix_exp(skew_symmetric(model.saturation.A))
        d = torch.abs(model.s) + model.config.eps
        W_f, inverse = U_f @ torch.diag(d), torch.diag(1 / d) @ U_f.T
        for x_t in x:
            a = linear(x_t, U, b) + linear(h, W)
            h = linear(torch.tanh(linear(a, W_f)), inverse)
            states.append(h)
        return self.read_out(states)


class LTRNNLoop(Loop):
    """h_t = ReLU(U x_t + b) + W h_{t-1}; without b no ReLU."""

    def forward(self, x: Tensor) -> Tensor:
        model = self.model
        U, W, b = model.input_matrix(), self.matrix(), model.b
        h, states = model.initial_state(x), []
        for x_t in x:
            driven = linear(x_t, U) if b is None else torch.relu(linear(x_t, U, b))
            h = driven + linear(h, W)
            states.append(h)
        return self.read_out(states)


class TorchGated(nn.Module):
    """`nn.LSTM` or `nn.GRU` with a linear readout."""

    def __init__(
        self,
        kind: type[nn.LSTM] | type[nn.GRU],
        input_size: int,
        hidden_size: int,
        output_size: int,
        readout: str,
    ) -> None:
        super().__init__()
        self.recurrent = kind(input_size, hidden_size)
        self.linear = nn.Linear(hidden_size, output_size)
        self.readout = readout

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.recurrent(x)
        logits: Tensor = self.linear(states if self.readout == "all" else states[-1])
        return logits
