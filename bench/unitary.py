"""Plain loops over time for networks with a unitary matrix, on complex tensors."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import linear

from bench.authors import Loop, modrelu


class ComplexLoop(Loop):
    """h_t = modReLU(U x_t + W h_{t-1}; b), [Re h; Im h] read out; W is built once."""

    reads = "both"

    def forward(self, x: Tensor) -> Tensor:
        model = self.model
        real, imaginary = model.input_matrix().chunk(2)
        U, W, h, states = torch.complex(real, imaginary), self.matrix(), model.initial_state(x), []
        for x_t in x:
            h = self.apply_activation(linear(x_t.to(U.dtype), U) + linear(h, W))
            states.append(h)
        if self.reads == "real":
            return self.read_out([h.real for h in states])
        return self.read_out([torch.cat([h.real, h.imag], dim=-1) for h in states])

    def apply_activation(self, z: Tensor) -> Tensor:
        """Return modReLU of z as in the uRNN program, which is smooth at zero."""
        size = torch.sqrt(z.real**2 + z.imag**2 + 1e-5)
        return z * (torch.relu(size + self.model.b) / (size + 1e-5))


class EURNNLoop(ComplexLoop):
    """With the modReLU of the EUNN program, for complex or real states; Re h is read out."""

    reads = "real"

    def forward(self, x: Tensor) -> Tensor:
        model = self.model
        if model.config.complex:
            return super().forward(x)
        U, W, h, states = model.input_matrix(), self.matrix(), model.initial_state(x), []
        for x_t in x:
            h = modrelu(linear(x_t, U) + linear(h, W), model.b + 0.01)
            states.append(h)
        return self.read_out(states)

    def apply_activation(self, z: Tensor) -> Tensor:
        size = torch.abs(z) + 0.01
        return z / size * torch.relu(size + self.model.b)
