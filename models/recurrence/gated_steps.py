"""The steps of the fast gated recurrences, and their form in PyTorch: any dtype, any device.

A cell carries states from step to step (LSTM: h and the cell c; GRU: h). It keeps the values of its
gates for the backward pass. Everything has an axis of lanes in front, M networks side by side:

    S (M, states, τ+1, B, row)   the states; those before the first step are at [:, :, 0]
    A (M, τ, B, kept · row)      the values that are kept of each step, side by side
    G (M, τ, B, back · row)      the gradients of the arguments of the gates
    D (M, τ, B, row)             the gradient that the readout gives to the state that it reads

`row` is n, or more where rows are padded. `states`, `kept` and `back` count parts of `row` entries.
The input is added to the first `met` of the kept parts. `seen` is the number of the state that is
read out.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from eigensweep.models.recurrence.symbols import add_rows, look_up


class GatedSteps(ABC):
    """The steps of one chunk of time, forward and back, and the sums of gradients."""

    states: ClassVar[int]
    kept: ClassVar[int]
    back: ClassVar[int]
    met: ClassVar[int]

    def __init__(self, U: Tensor, b: Tensor, weights: tuple[Tensor, ...], seen: int = 0) -> None:
        self.U, self.b, self.weights, self.seen = U, b, weights, seen
        self.lanes, rows, self.m = U.shape
        self.n = rows // self.met
        self.row = self.row_of(self.n)
        self.Ut = self.spread(U).mT
        self.sums: tuple[Tensor, ...] = ()

    def row_of(self, n: int) -> int:
        """Return the length of a row of n units, with padding. Here there is none."""
        return n

    def spread(self, rows: Tensor, gates: int | None = None) -> Tensor:
        """Return (M, gates · n, ...) with the rows of each gate padded to `row`."""
        gates = self.met if gates is None else gates
        if self.row == self.n:
            return rows
        wide = rows.new_zeros(self.lanes, gates, self.row, *rows.shape[2:])
        wide[:, :, : self.n] = torch.unflatten(rows, 1, (gates, self.n))
        return wide.flatten(1, 2)

    def gather(self, rows: Tensor) -> Tensor:
        """Return what `spread` was given."""
        return torch.unflatten(rows, 1, (-1, self.row))[:, :, : self.n].flatten(1, 2)

    def columns(self, rows: Tensor, first: int, count: int = 1) -> Tensor:
        """Return `count` of the parts, each `row` wide, that stand side by side in `rows`."""
        return rows[..., first * self.row : (first + count) * self.row]

    def project(self, x: Tensor, A: Tensor) -> None:
        """Write U x_t + b into the first `met` parts of A."""
        made, Ut = self.columns(A, 0, self.met), self.Ut
        if x.is_floating_point():
            torch.bmm(x.flatten(1, 2), Ut, out=made.flatten(1, 2))
            made += self.spread(self.b)[:, None, None]
        else:
            table = Ut + self.spread(self.b).unsqueeze(1)
            look_up(table, x.flatten(1), out=made.flatten(1, 2))

    @abstractmethod
    def forward(self, S: Tensor, A: Tensor, x: Tensor) -> None:
        """Write the states into S[:, :, 1:], starting from S[:, :, 0], and what is kept into A."""

    @abstractmethod
    def backward(self, G: Tensor, S: Tensor, A: Tensor, D: Tensor | None, carry: Tensor) -> None:
        """Write G, given what `forward` wrote.

        `carry`, (M, states, B, row), holds the gradients of the states after the chunk on entry,
        and those of the states before the chunk on return.
        """

    def add_gradients(self, G: Tensor, S: Tensor, A: Tensor, x: Tensor) -> None:
        """Add the chunk's part to the gradients of U, b and the weights."""
        if not self.sums:
            R, *others = self.weights
            like = (self.Ut, self.spread(self.b), self.spread(R, R.shape[1] // self.n), *others)
            self.sums = tuple(t.new_zeros(t.shape) for t in like)
        dz = self.columns(G, 0, self.met).flatten(1, 2)
        dUt, db, *_ = self.sums
        self.by_symbols = not x.is_floating_point()
        if not self.by_symbols:
            db += self.sum_of_arguments(G)
            dUt.baddbmm_(x.flatten(1, 2).mT, dz)
        else:
            add_rows(dUt, x.flatten(1), dz)
        self.add_weight_gradients(G, S, A)

    def sum_of_arguments(self, G: Tensor) -> Tensor:
        """Return the chunk's part of the gradient of b, (M, met · row)."""
        return self.columns(G, 0, self.met).flatten(1, 2).sum(1)

    def sums_of_vectors(self, G: Tensor, S: Tensor, A: Tensor) -> Tensor:
        """Return the chunk's part of the gradients of the weights that are vectors."""
        raise NotImplementedError

    @abstractmethod
    def add_weight_gradients(self, G: Tensor, S: Tensor, A: Tensor) -> None:
        """Add the chunk's part to `self.sums[2:]`, the gradients of R and the other weights."""

    def gradients(self) -> tuple[Tensor, ...]:
        """Return the gradients of U, b and the weights."""
        dUt, db, dR, *others = self.sums
        if self.by_symbols:  # each row of dz has gone to one symbol
            db = dUt.sum(1)
        return (self.gather(dUt.mT), self.gather(db), self.gather(dR), *others)

    def add_product(self, to: Tensor, G: Tensor, H: Tensor) -> None:
        """Add the sum of g hᵀ over steps and batch to `to`, (M, columns of G, n)."""
        to.baddbmm_(G.flatten(1, 2).mT, H[..., : self.n].flatten(1, 2))


class LSTMSteps(GatedSteps):
    """i, f, o, g are kept. Weights: R, then the peepholes there are, as in `Peephole`."""

    states, kept, back, met = 2, 4, 4, 4

    @property
    def peephole(self) -> str:
        """`none`, `diagonal` or `output_full`."""
        return ("none", "output_full", "diagonal")[len(self.weights) - 1]

    def forward(self, S: Tensor, A: Tensor, x: Tensor) -> None:
        self.project(x, A)
        R, *seen = self.weights
        Rt, n, kind = R.mT, self.n, self.peephole
        h, c = S[:, :, 0].unbind(1)
        for z, later in zip(A.unbind(1), S[:, :, 1:].unbind(2), strict=True):
            z.baddbmm_(h, Rt)
            i, f, o, g = torch.split(z, n, -1)
            g.tanh_()
            if kind == "diagonal":
                z[..., : 2 * n].addcmul_(torch.cat((c, c), -1), seen[0].unsqueeze(1))
            z[..., : (3 if kind == "none" else 2) * n].sigmoid_()
            h, earlier, c = later[:, 0], c, later[:, 1]
            torch.mul(f, earlier, out=c)
            c.addcmul_(i, g)
            if kind == "diagonal":
                o.addcmul_(c, seen[1].unsqueeze(1)).sigmoid_()
            elif kind == "output_full":
                o.baddbmm_(c, seen[0].mT).sigmoid_()
            torch.tanh(c, out=h)
            h *= o

    def backward(self, G: Tensor, S: Tensor, A: Tensor, D: Tensor | None, carry: Tensor) -> None:
        R, *weights = self.weights
        n, kind = self.n, self.peephole
        dh, dc = carry.unbind(1)
        reached = carry[:, self.seen]
        i, f, o, g = torch.split(A, n, -1)
        squashed = S[:, 1, 1:].tanh()
        to_c = o - o * squashed * squashed
        for slope, factor, gate in zip(
            torch.split(G, n, -1)[:3], (g, S[:, 1, :-1], squashed), (i, f, o), strict=True
        ):
            torch.mul(factor, gate - gate * gate, out=slope)
        torch.mul(i, 1 - g * g, out=G[..., 3 * n :])
        for t in reversed(range(G.shape[1])):
            z = G[:, t]
            zi, zf, zo, zg = torch.split(z, n, -1)
            if D is not None:
                reached += D[:, t]
            zo *= dh
            dc.addcmul_(dh, to_c[:, t])
            if kind == "diagonal":
                dc.addcmul_(zo, weights[1].unsqueeze(1))
            elif kind == "output_full":
                dc.baddbmm_(zo, weights[0])
            zi *= dc
            zf *= dc
            zg *= dc
            dc *= f[:, t]
            if kind == "diagonal":
                for z_, seen in zip(
                    (zi, zf), torch.split(weights[0].unsqueeze(1), n, -1), strict=True
                ):
                    dc.addcmul_(z_, seen)
            torch.bmm(z, R, out=dh)

    def add_weight_gradients(self, G: Tensor, S: Tensor, A: Tensor) -> None:
        dR, *seen = self.sums[2:]
        self.add_product(dR, G, S[:, 0, :-1])
        if not seen:
            return
        if self.peephole == "output_full":
            o, C = self.columns(G, 2)[..., : self.n], S[:, 1, 1:, :, : self.n]
            seen[0].baddbmm_(o.flatten(1, 2).mT, C.flatten(1, 2))
            return
        sums = self.sums_of_vectors(G, S, A)
        seen[0] += sums[:, : 2 * self.n]
        seen[1] += sums[:, 2 * self.n :]

    def sums_of_vectors(self, G: Tensor, S: Tensor, A: Tensor) -> Tensor:
        """Return the chunk's part of the gradients of diagonal peepholes, (M, 3n)."""
        parts = [self.columns(G, k) * S[:, 1, k // 2 : S.shape[2] - 1 + k // 2] for k in range(3)]
        return torch.cat([part[..., : self.n].sum((1, 2)) for part in parts], -1)


class GRUSteps(GatedSteps):
    """r, z, the candidate and R_n h are kept: the reset gate is applied to R_n h."""

    states, kept, back, met = 1, 4, 4, 3

    def squash(self, z: Tensor) -> None:
        """Turn the candidate's argument into the candidate, in place."""
        z.tanh_()

    def slope(self, candidate: Tensor) -> Tensor:
        """Return the slope of `squash`, given its result."""
        return 1 - candidate * candidate

    def forward(self, S: Tensor, A: Tensor, x: Tensor) -> None:
        self.project(x, A)
        n = self.n
        R, R_n = (M.mT for M in torch.split(self.weights[0], [2 * n, n], 1))
        h = S[:, 0, 0]
        for a, later in zip(A.unbind(1), S[:, 0, 1:].unbind(1), strict=True):
            rz, (r, z, candidate, Rh) = a[..., : 2 * n], torch.split(a, n, -1)
            rz.baddbmm_(h, R).sigmoid_()
            torch.bmm(h, R_n, out=Rh)
            self.squash(candidate.addcmul_(r, Rh))
            h = torch.lerp(candidate, h, z, out=later)

    def backward(self, G: Tensor, S: Tensor, A: Tensor, D: Tensor | None, carry: Tensor) -> None:
        n = self.n
        r, z, candidate, Rh = torch.split(A, n, -1)
        gr, gz, gn, gq = torch.split(G, n, -1)
        torch.mul(S[:, 0, :-1] - candidate, z - z * z, out=gz)
        torch.mul(1 - z, self.slope(candidate), out=gn)
        torch.mul(gn, r, out=gq)
        torch.mul(gq * (1 - r), Rh, out=gr)
        R, R_n = torch.split(self.weights[0], [2 * n, n], 1)
        dh = carry[:, 0]
        for t in reversed(range(G.shape[1])):
            if D is not None:
                dh += D[:, t]
            g = G[:, t]
            torch.unflatten(g, -1, (4, n)).mul_(dh.unsqueeze(-2))
            dh *= z[:, t]
            dh.baddbmm_(g[..., : 2 * n], R).baddbmm_(g[..., 3 * n :], R_n)

    def add_weight_gradients(self, G: Tensor, S: Tensor, A: Tensor) -> None:
        rz, n = torch.split(self.sums[2], [2 * self.row, self.row], 1)
        self.add_product(rz, self.columns(G, 0, 2), S[:, 0, :-1])
        self.add_product(n, self.columns(G, 3), S[:, 0, :-1])


class GORUSteps(GRUSteps):
    """r, z, the candidate and W h are kept. Weights: R and modReLU's threshold."""

    def squash(self, z: Tensor) -> None:
        sign = z.sign()
        z.abs_().add_(self.weights[1].unsqueeze(1)).relu_().mul_(sign)

    def slope(self, candidate: Tensor) -> Tensor:
        return (candidate != 0).to(candidate.dtype)

    def add_weight_gradients(self, G: Tensor, S: Tensor, A: Tensor) -> None:
        super().add_weight_gradients(G, S, A)
        self.sums[3].add_(self.sums_of_vectors(G, S, A))

    def sums_of_vectors(self, G: Tensor, S: Tensor, A: Tensor) -> Tensor:
        """Return the chunk's part of the gradient of the threshold, (M, n)."""
        of_candidate = self.columns(G, 2) * self.columns(A, 2).sign()
        return of_candidate[..., : self.n].sum((1, 2))


class ChoGRUSteps(GatedSteps):
    """r, z and the candidate are kept: the reset gate is applied to h."""

    states, kept, back, met = 1, 3, 3, 3

    def forward(self, S: Tensor, A: Tensor, x: Tensor) -> None:
        self.project(x, A)
        n = self.n
        R, R_n = (M.mT for M in torch.split(self.weights[0], [2 * n, n], 1))
        h = S[:, 0, 0]
        for a, later in zip(A.unbind(1), S[:, 0, 1:].unbind(1), strict=True):
            rz, (r, z, candidate) = a[..., : 2 * n], torch.split(a, n, -1)
            rz.baddbmm_(h, R).sigmoid_()
            candidate.baddbmm_(r * h, R_n).tanh_()
            h = torch.lerp(candidate, h, z, out=later)

    def backward(self, G: Tensor, S: Tensor, A: Tensor, D: Tensor | None, carry: Tensor) -> None:
        n, H = self.n, S[:, 0, :-1]
        r, z, candidate = torch.split(A, n, -1)
        gr, gz, gn = torch.split(G, n, -1)
        torch.mul(H, r - r * r, out=gr)
        torch.mul(H - candidate, z - z * z, out=gz)
        torch.mul(1 - z, 1 - candidate * candidate, out=gn)
        R, R_n = torch.split(self.weights[0], [2 * n, n], 1)
        dh = carry[:, 0]
        for t in reversed(range(G.shape[1])):
            if D is not None:
                dh += D[:, t]
            torch.unflatten(G[:, t, :, n:], -1, (2, n)).mul_(dh.unsqueeze(-2))
            reset = torch.bmm(gn[:, t], R_n)
            gr[:, t] *= reset
            dh.mul_(z[:, t]).addcmul_(reset, r[:, t]).baddbmm_(G[:, t, :, : 2 * n], R)

    def add_weight_gradients(self, G: Tensor, S: Tensor, A: Tensor) -> None:
        rz, n = torch.split(self.sums[2], [2 * self.row, self.row], 1)
        H = S[:, 0, :-1]
        self.add_product(rz, self.columns(G, 0, 2), H)
        self.add_product(n, self.columns(G, 2), self.columns(A, 0) * H)
