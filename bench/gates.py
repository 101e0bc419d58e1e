"""Plain loops over time for networks with gates."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import linear

from bench.authors import Loop, modrelu


class LSTMLoop(Loop):
    """The four gates of a plain LSTM, in the order i, f, o, g."""

    def forward(self, x: Tensor) -> Tensor:
        model = self.model
        U, R, b = model.input_matrix(), self.matrix(), model.b
        h, cell, states = model.initial_state(x), model.initial_state(x), []
        for x_t in x:
            i, f, o, g = (linear(x_t, U, b) + linear(h, R)).chunk(4, dim=-1)
            cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(cell)
            states.append(h)
        return self.read_out(states)


class GRULoop(Loop):
    """Reset gate, update gate and candidate of a plain GRU, in this order."""

    def forward(self, x: Tensor) -> Tensor:
        model = self.model
        after_product = model.config.variant == "pytorch"
        U, R, b, n = model.input_matrix(), self.matrix(), model.b, model.hidden_size
        R_rz, R_c = R[: 2 * n], R[2 * n :]
        h, states = model.initial_state(x), []
        for x_t in x:
            u_r, u_z, u_c = linear(x_t, U, b).chunk(3, dim=-1)
            r, z = linear(h, R_rz).chunk(2, dim=-1)
            r, z = torch.sigmoid(u_r + r), torch.sigmoid(u_z + z)
            driven = r * linear(h, R_c) if after_product else linear(r * h, R_c)
            h = z * h + (1 - z) * torch.tanh(u_c + driven)
            states.append(h)
        return self.read_out(states)


class GORULoop(Loop):
    """Two gates, and a candidate that rotates the state; W is built once."""

    def forward(self, x: Tensor) -> Tensor:
        model = self.model
        n, W = model.hidden_size, self.matrix()
        U, R, b, b_c = model.input_matrix(), model.R, model.b[: 2 * n], model.b[2 * n :] + 0.001
        U_rz, U_c = U[: 2 * n], U[2 * n :]
        h, states = model.initial_state(x), []
        for x_t in x:
            r, z = torch.sigmoid(linear(x_t, U_rz, b) + linear(h, R)).chunk(2, dim=-1)
            candidate = modrelu(linear(x_t, U_c) + r * linear(h, W), b_c)
            h = z * h + (1 - z) * candidate
            states.append(h)
        return self.read_out(states)
