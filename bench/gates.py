"""Plain loops over time for networks with gates, and for those that follow an ODE."""

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


class CoRNNLoop(Loop):
    """Positions and velocities of coupled oscillators, with one product a step."""

    def forward(self, x: Tensor) -> Tensor:
        model = self.model
        dt, gamma, epsilon = model.config.dt, model.config.gamma, model.config.epsilon
        of_y, of_z = self.matrix().chunk(2)
        weight = torch.cat((model.input_matrix(), of_z, of_y), 1)
        y, z, states = model.initial_state(x), model.initial_state(x), []
        for x_t in x:
            force = torch.tanh(linear(torch.cat((x_t, z, y), 1), weight, model.b))
            z = z + dt * (force - gamma * y - epsilon * z)
            y = y + dt * z
            states.append(y)
        return self.read_out(states)


class LEMLoop(Loop):
    """Both states of LEM, with one product of the input and two of states a step."""

    def forward(self, x: Tensor) -> Tensor:
        model = self.model
        U, b, dt, n = model.input_matrix(), model.b, model.config.dt, model.hidden_size
        of_y, of_z = self.matrix()[: 3 * n], self.matrix()[3 * n :]
        y, z, states = model.initial_state(x), model.initial_state(x), []
        for x_t in x:
            u_slow, u_quick, u_z, u_y = linear(x_t, U, b).chunk(4, dim=1)
            slow, quick, driven = linear(y, of_y).chunk(3, dim=1)
            slow, quick = dt * torch.sigmoid(u_slow + slow), dt * torch.sigmoid(u_quick + quick)
            z = (1 - slow) * z + slow * torch.tanh(u_z + driven)
            y = (1 - quick) * y + quick * torch.tanh(linear(z, of_z) + u_y)
            states.append(y)
        return self.read_out(states)
