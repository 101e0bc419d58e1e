"""Training an orthogonal matrix through a skew-symmetric one, perhaps around a base that moves.

Source: Lezcano-Casado & Martínez-Rubio, ICML 2019 (static); Lezcano-Casado, NeurIPS 2019 (dynamic).

Departure: the published program moves the base between forward and backward, so that the gradient
of such a step is not one of the loss. Here it moves after an update, and once at the start.
"""

from __future__ import annotations

from typing import Any, Literal, Self

import torch
from pydantic import Field
from torch import Tensor, nn

from eigensweep.common.autograd import Function, lanes_in_front
from eigensweep.models.base import Shapes
from eigensweep.models.matrices.exponential import exponential
from eigensweep.models.matrices.orthogonal import cayley, reorthogonalise, skew
from eigensweep.models.network import NetworkConfig

OrthogonalMap = Literal["exp", "cayley"]

MAPS = {"exp": exponential, "cayley": cayley}


class TrivializationConfig(NetworkConfig):
    """What a search may vary where a matrix is trained as W = B φ(A)."""

    scalars = frozenset({"rebase_every", "project_every"})

    trivialization: Literal["static", "dynamic"] = Field(
        "static",
        description="Whether the base B moves. `static`: B stays the identity; `dynamic`: B is "
        "moved to W from time to time",
    )
    parametrization: OrthogonalMap = Field(
        "exp", description="The map φ. `exp`: the matrix exponential; `cayley`: the Cayley map"
    )
    rebase_every: int | None = Field(
        None,
        ge=1,
        le=10**9,
        description="`dynamic`: updates between two moves of the base; default: 100",
    )
    project_every: int | None = Field(
        None,
        ge=1,
        le=10**9,
        description="`dynamic`: moves of the base after which it is made exactly orthogonal "
        "again; default: 100",
    )

    def resolve(self, shapes: Shapes) -> Self:
        config = super().resolve(shapes)
        given = [f for f in ("rebase_every", "project_every") if getattr(config, f) is not None]
        if self.trivialization == "dynamic":
            defaults = {"rebase_every": 100, "project_every": 100}
            return config.model_copy(update={f: defaults[f] for f in defaults if f not in given})
        if given:
            raise ValueError(
                f"{self.name}: '{given[0]}' is given and 'trivialization' is static; "
                "set 'trivialization: dynamic' or leave it out"
            )
        return config


class Trivialization(nn.Module):
    """W = B φ(A), orthogonal; `A` holds the skew-symmetric A above its diagonal and is trained.

    Static: B = I. Dynamic: B becomes W, and A zero, at the start and after every `rebase_every`
    updates; each `project_every`-th base, counting from the one at the start, is projected.
    """

    base: Tensor | None
    updates: Tensor

    def __init__(self, X: Tensor, config: TrivializationConfig) -> None:
        super().__init__()
        self.map: OrthogonalMap = config.parametrization
        if config.trivialization == "static":
            self.A = nn.Parameter(X)
            self.register_buffer("base", None)
        else:
            self.A = nn.Parameter(torch.zeros_like(X))
            self.register_buffer("base", MAPS[self.map](skew(X)))
            self.register_buffer("updates", torch.tensor(0))

    def forward(self) -> Tensor:
        """Return W, (n, n)."""
        W = MAPS[self.map](skew(self.A))
        return W if self.base is None else self.base @ W

    @torch.no_grad()
    def after_update(self, rebase_every: int | Tensor, project_every: int | Tensor) -> None:
        """Count the update and move the base where it is due; both are as in the config."""
        if self.base is None:
            return
        self.updates += 1
        due = self.updates % rebase_every == 0
        number = self.updates // rebase_every + 1
        project = number % project_every == 0
        base, A = rebase(self.base, self.A, due, project, self.map)
        self.base.copy_(base)
        self.A.copy_(A)


def rebase(
    base: Tensor, A: Tensor, due: Tensor, project: Tensor, name: OrthogonalMap
) -> tuple[Tensor, Tensor]:
    """Return base and A, (..., n, n), after a move in lanes that are `due`; some are projected."""
    return _Rebased.apply(base, A, due, project, name)  # type: ignore[no-untyped-call]


def static_rebase(
    base: Tensor, A: Tensor, due: Tensor, project: Tensor, name: OrthogonalMap
) -> tuple[Tensor, Tensor]:
    """Return base and A after a move in lanes that are `due`; computed for every lane."""
    moved, due = _moved(base, A, project, name), due[..., None, None]
    return torch.where(due, moved, base), torch.where(due, 0, A)


def _moved(base: Tensor, A: Tensor, project: Tensor, name: OrthogonalMap) -> Tensor:
    """Return B φ(A), made exactly orthogonal again where `project`."""
    W = base @ MAPS[name](skew(A))
    return torch.where(project[..., None, None], reorthogonalise(W), W)


class _Rebased(Function):
    """What `rebase` does. Has no gradient.

    On a CPU nothing is computed for the others. Elsewhere looking for them would wait for the
    device.
    """

    @staticmethod
    def forward(
        base: Tensor, A: Tensor, due: Tensor, project: Tensor, name: OrthogonalMap
    ) -> tuple[Tensor, Tensor]:
        if due.device.type != "cpu":
            return static_rebase(base, A, due, project, name)
        base, A = base.clone(), A.clone()
        for index in due.nonzero().tolist():
            lane = tuple(index)
            base[lane] = _moved(base[lane], A[lane], project[lane], name)
            A[lane] = 0
        return base, A

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(*output)

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], *args: Any
    ) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
        return rebase(*lanes_in_front(info.batch_size, in_dims, args)), (0, 0)
