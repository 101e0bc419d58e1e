"""The optimizers of M lanes as one: the same update rules, with settings for each lane.

Letters in shapes: M lanes, P trained numbers of one network. The parameters of all groups lie in
one tensor (M, P), group after group, so that a rule is a few operations on all of them. Every rule
is that of `training/optimizers.py`; tests hold the two together. What an optimizer remembers
moves between the two forms exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from eigensweep.search_spaces.trial import OptimizerConfig
from eigensweep.store.commits.kept_files import StateDict
from eigensweep.training.optimizers.optimizers import Optimizers, UpdatedGroup, is_same
from eigensweep.training.optimizers.tf1_optimizers import (
    ADAM_EPSILON,
    EPSILON,
    FIRST_SUM,
    URNN_EPSILON,
    URNN_FIRST_MEAN,
)

Memory = dict[str, Tensor]
"""What a rule remembers of its numbers, (M, width), by the names that torch's optimizers use."""


@dataclass(frozen=True)
class PerLane:
    """The settings of each lane for a step, (M, 1) each."""

    steps: Tensor
    """Number of this step, from 1; float64."""
    alpha: Tensor
    beta1: Tensor
    beta2: Tensor
    momentum: Tensor


Rule = Callable[[Tensor, Tensor, Memory, Tensor, PerLane], tuple[Tensor, Memory]]
"""Takes parameters p, gradient g, memory, rates (M, 1) and settings; returns the next p and memory.

Nothing is changed in place: the caller keeps what was there in lanes that are not updated.
"""


def adam(p: Tensor, g: Tensor, memory: Memory, lr: Tensor, s: PerLane) -> tuple[Tensor, Memory]:
    """Take a step as `torch.optim.Adam` does."""
    m = torch.lerp(memory["exp_avg"], g, (1 - s.beta1).to(p.dtype))
    v = s.beta2.to(p.dtype) * memory["exp_avg_sq"] + (1 - s.beta2).to(p.dtype) * g * g
    rate = lr / (1 - s.beta1**s.steps)
    root = (1 - s.beta2**s.steps).sqrt()
    p = p - rate.to(p.dtype) * m / (v.sqrt() / root.to(p.dtype) + 1e-8)
    return p, {"exp_avg": m, "exp_avg_sq": v}


def sgd(p: Tensor, g: Tensor, memory: Memory, lr: Tensor, s: PerLane) -> tuple[Tensor, Memory]:
    """Take a step as `torch.optim.SGD` does; a momentum of 0 is none."""
    u = s.momentum.to(p.dtype) * memory["momentum_buffer"] + g
    return p - lr.to(p.dtype) * u, {"momentum_buffer": u}


def rmsprop(p: Tensor, g: Tensor, memory: Memory, lr: Tensor, s: PerLane) -> tuple[Tensor, Memory]:
    """Take a step as `torch.optim.RMSprop` does; a momentum of 0 is none."""
    alpha, rest = s.alpha.to(p.dtype), (1 - s.alpha).to(p.dtype)
    v = alpha * memory["square_avg"] + rest * g * g
    u = s.momentum.to(p.dtype) * memory["momentum_buffer"] + g / (v.sqrt() + 1e-8)
    return p - lr.to(p.dtype) * u, {"square_avg": v, "momentum_buffer": u}


def adam_tf1(p: Tensor, g: Tensor, memory: Memory, lr: Tensor, s: PerLane) -> tuple[Tensor, Memory]:
    """Take a step as `AdamTF1` does."""
    m = torch.lerp(memory["m"], g, (1 - s.beta1).to(p.dtype))
    v = s.beta2.to(p.dtype) * memory["v"] + (1 - s.beta2).to(p.dtype) * g * g
    rate = lr * (1 - s.beta2**s.steps).sqrt() / (1 - s.beta1**s.steps)
    return p - rate.to(p.dtype) * m / (v.sqrt() + ADAM_EPSILON), {"m": m, "v": v}


def rmsprop_tf1(
    p: Tensor, g: Tensor, memory: Memory, lr: Tensor, s: PerLane, eps: float = EPSILON
) -> tuple[Tensor, Memory]:
    """Take a step as `RMSpropFrom` does; a momentum of 0 is none."""
    alpha, rest = s.alpha.to(p.dtype), (1 - s.alpha).to(p.dtype)
    v = alpha * memory["v"] + rest * g * g
    u = s.momentum.to(p.dtype) * memory["u"] + lr.to(p.dtype) * g / (v + eps).sqrt()
    return p - u, {"v": v, "u": u}


def adagrad(p: Tensor, g: Tensor, memory: Memory, lr: Tensor, s: PerLane) -> tuple[Tensor, Memory]:
    """Take a step as `torch.optim.Adagrad` does."""
    total = memory["sum"] + g * g
    return p - lr.to(p.dtype) * g / (total.sqrt() + 1e-10), {"sum": total}


def adagrad_tf1(
    p: Tensor, g: Tensor, memory: Memory, lr: Tensor, s: PerLane
) -> tuple[Tensor, Memory]:
    """Take a step as TensorFlow 1's Adagrad does: without an epsilon."""
    total = memory["sum"] + g * g
    return p - lr.to(p.dtype) * g / total.sqrt(), {"sum": total}


@dataclass(frozen=True)
class Kind:
    """A rule, and what it remembers before the first step."""

    rule: Rule
    first: Mapping[str, float]
    with_momentum: tuple[str, ...] = ()
    """Names that torch's form remembers only with a momentum."""
    counts_steps: bool = True
    """Whether torch's form remembers the number of steps."""
    from_the_start: bool = False
    """Whether torch's form remembers before the first step."""
    shrinks: bool = False
    """Whether the decay shrinks the parameters before the step, and leaves the gradient alone."""


KINDS: dict[str, Kind] = {
    "adam": Kind(adam, {"exp_avg": 0.0, "exp_avg_sq": 0.0}),
    "adamw": Kind(adam, {"exp_avg": 0.0, "exp_avg_sq": 0.0}, shrinks=True),
    "sgd": Kind(sgd, {"momentum_buffer": 0.0}, ("momentum_buffer",), counts_steps=False),
    "rmsprop": Kind(rmsprop, {"square_avg": 0.0, "momentum_buffer": 0.0}, ("momentum_buffer",)),
    "adagrad": Kind(adagrad, {"sum": 0.0}, from_the_start=True),
    "adam_tf1": Kind(adam_tf1, {"m": 0.0, "v": 0.0}),
    "rmsprop_tf1": Kind(rmsprop_tf1, {"v": 1.0, "u": 0.0}, ("u",), counts_steps=False),
    "rmsprop_urnn": Kind(
        partial(rmsprop_tf1, eps=URNN_EPSILON),
        {"v": URNN_FIRST_MEAN, "u": 0.0},
        ("u",),
        counts_steps=False,
    ),
    "adagrad_tf1": Kind(adagrad_tf1, {"sum": FIRST_SUM}, from_the_start=True),
}


@dataclass(frozen=True)
class GroupColumns:
    """Parameters of one group in all lanes: columns of the tensor (M, P)."""

    group: UpdatedGroup
    number: int
    """The number of the group: two may have one name."""
    columns: slice
    numbers: list[int]
    """The numbers that the parameters have in torch's optimizer of their kind."""
    params: list[nn.Parameter]
    """One network's, in the order of the columns."""
    is_rare: bool
    """Whether they have a gradient only where a sequence begins, and rest otherwise."""


class LaneOptimizers:
    """The optimizers of M networks that were built from configs of one shape."""

    def __init__(
        self, like: Optimizers, lanes: int, device: torch.device, rare: Collection[nn.Parameter]
    ) -> None:
        """Lay the lanes out as `like` has its groups.

        `rare` are the parameters that have a gradient only where a sequence begins. The others have
        one in every step.
        """
        self.parts = _lay_out(like, {id(p) for p in rare})
        self.params = [p for part in self.parts for p in part.params]
        """The parameters of `like` in the order of the columns."""
        dtype = _single_dtype(self.params)

        def numbers(value: float) -> Tensor:
            return torch.full((lanes, 1), value, dtype=torch.float64, device=device)

        self.first_rates = {name: numbers(0.0) for name in like.first_rates}
        """The learning rate of each lane's config, by group, (M, 1) float64."""
        self._decays = [numbers(0.0) for _ in like.groups]
        self._steps = {is_rare: numbers(0.0) for is_rare in (False, True)}
        names = ("alpha", "beta1", "beta2", "momentum")
        self._settings = {name: numbers(0.0) for name in names}
        self._limits = {name: numbers(inf) for name in ("clip_norm", "clip_value")}
        self._memories: dict[str, Memory] = {}
        """By kind, in the columns that the parameters of the kind have."""
        self._rules: dict[str, _LaneRule] = {}
        for kind in self._kinds():
            parts = self._parts_of(kind)
            if kind in KINDS:
                width = parts[-1].columns.stop - parts[0].columns.start
                self._memories[kind] = {
                    name: torch.full((lanes, width), first, dtype=dtype, device=device)
                    for name, first in KINDS[kind].first.items()
                }
            else:
                self._rules[kind] = _LaneRule(parts[0], lanes, dtype, device)

    def rates(self, factor: Tensor) -> dict[str, Tensor]:
        """Return the learning rate of each group, (M, 1) float64; factor is (M, 1)."""
        return {name: rate * factor for name, rate in self.first_rates.items()}

    def step(
        self,
        p: Tensor,
        g: Tensor,
        norm: Tensor,
        rates: Mapping[str, Tensor],
        alive: Tensor,
        begins: Tensor,
    ) -> Tensor:
        """Return the parameters after a step, (M, P), and remember it in the lanes alive.

        g is the gradient, (M, P), whose norm in each lane is `norm`, (M,). In lanes where no
        sequence begins the rare parameters rest. Rows of lanes that are not alive are of no use.
        """
        coefficient = (self._limits["clip_norm"] / (norm.unsqueeze(1) + 1e-6)).clamp(max=1.0)
        limit = self._limits["clip_value"].to(g.dtype)
        g = torch.clamp(g * coefficient.to(g.dtype), -limit, limit)
        moving = {False: alive.unsqueeze(1), True: (alive & begins).unsqueeze(1)}
        pieces = []
        for part in self.parts:
            group, own_p, flag = part.group, p[:, part.columns], moving[part.is_rare]
            rate, decay = rates[group.name], self._decays[part.number]
            own_g = g[:, part.columns]
            if group.kind in self._rules:
                pieces.append(self._rules[group.kind].step(own_p, own_g, rate, flag))
                continue
            how, from_p = KINDS[group.kind], own_p
            if how.shrinks:
                from_p = (1 - rate * decay).to(g.dtype) * own_p
            else:
                own_g = own_g + decay.to(g.dtype) * own_p
            settings = PerLane(steps=self._steps[part.is_rare] + 1, **self._settings)
            columns = self._within_kind(part)
            memory = {n: known[:, columns] for n, known in self._memories[group.kind].items()}
            moved, found = how.rule(from_p, own_g, memory, rate, settings)
            for name, known in memory.items():
                known.copy_(torch.where(flag, found[name], known))
            pieces.append(torch.where(flag, moved, own_p) if part.is_rare else moved)
        for is_rare, steps in self._steps.items():
            steps += moving[is_rare]
        return torch.cat(pieces, 1) if len(pieces) > 1 else pieces[0]

    def load(self, lane: int, optimizers: Optimizers, config: OptimizerConfig, steps: int) -> None:
        """Give a lane the settings and the memory of one network's optimizers after `steps`."""
        for name, rate in optimizers.first_rates.items():
            self.first_rates[name][lane] = rate
        for decay, group in zip(self._decays, optimizers.groups, strict=True):
            decay[lane] = group.weight_decay
        self._settings["alpha"][lane] = config.alpha
        self._settings["beta1"][lane], self._settings["beta2"][lane] = config.betas
        self._settings["momentum"][lane] = config.momentum
        self._limits["clip_norm"][lane] = inf if config.clip_norm is None else config.clip_norm
        self._limits["clip_value"][lane] = inf if config.clip_value is None else config.clip_value
        state, rare_steps = optimizers.state_dict(), 0.0
        for kind, memory in self._memories.items():
            for name, known in memory.items():
                known[lane] = KINDS[kind].first[name]
            for number, param, place, is_rare in self._places(kind):
                entry = state[kind].get(number, {})
                for name in memory.keys() & entry.keys():
                    memory[name][lane, place] = entry[name].flatten().to(param)
                if is_rare and entry:
                    rare_steps = max(rare_steps, float(entry.get("step", 1.0)))
        for kind, rule in self._rules.items():
            rule.load(lane, state[kind])
        self._steps[False][lane], self._steps[True][lane] = steps, rare_steps

    def state_dict(self, lane: int) -> StateDict:
        """Return what a lane remembers, as `Optimizers.state_dict` does."""
        momentum = self._settings["momentum"][lane, 0].item()
        steps = {is_rare: known[lane, 0].item() for is_rare, known in self._steps.items()}
        state: StateDict = {}
        for kind in self._kinds():
            if kind in self._rules:
                state[kind] = self._rules[kind].state_dict(lane) if steps[False] else {}
                continue
            how, entries = KINDS[kind], {}
            for number, param, place, is_rare in self._places(kind):
                if not steps[is_rare] and not how.from_the_start:
                    continue
                entry = {"step": torch.tensor(steps[is_rare])} if how.counts_steps else {}
                for name, known in self._memories[kind].items():
                    if momentum or name not in how.with_momentum:
                        entry[name] = known[lane, place].reshape(param.shape).clone()
                if entry:  # SGD without momentum remembers nothing
                    entries[number] = entry
            state[kind] = dict(sorted(entries.items()))
        return state

    def _kinds(self) -> list[str]:
        return list(dict.fromkeys(part.group.kind for part in self.parts))

    def _parts_of(self, kind: str) -> list[GroupColumns]:
        return [part for part in self.parts if part.group.kind == kind]

    def _within_kind(self, part: GroupColumns) -> slice:
        first = self._parts_of(part.group.kind)[0].columns.start
        return slice(part.columns.start - first, part.columns.stop - first)

    def _places(self, kind: str) -> Iterator[tuple[int, nn.Parameter, slice, bool]]:
        """Yield number, parameter, columns in the memory, and whether it is rare, for a kind."""
        for part in self._parts_of(kind):
            at = self._within_kind(part).start
            for number, param in zip(part.numbers, part.params, strict=True):
                yield number, param, slice(at, at + param.numel()), part.is_rare
                at += param.numel()


def _lay_out(like: Optimizers, rare: Collection[int]) -> list[GroupColumns]:
    """Return the parts in the order of their columns: those of one kind side by side."""
    parts, at = [], 0
    for kind in dict.fromkeys(group.kind for group in like.groups):
        groups = [(n, group) for n, group in enumerate(like.groups) if group.kind == kind]
        numbers = {id(p): n for n, p in enumerate(p for _, group in groups for p in group.params)}
        for number, group in groups:
            for is_rare in (False, True):
                params = [p for p in group.params if (id(p) in rare) == is_rare]
                if params:
                    width = sum(p.numel() for p in params)
                    own = [numbers[id(p)] for p in params]
                    columns = slice(at, at + width)
                    parts.append(GroupColumns(group, number, columns, own, params, is_rare))
                    at += width
    return parts


class _LaneRule:
    """A group's own optimizer over the stacked parameters of all lanes.

    The optimizer takes a rate for each lane, moves each lane by itself, and remembers tensors with
    lanes in front that are zero before the first step.
    """

    def __init__(
        self,
        part: GroupColumns,
        lanes: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        group = part.group
        assert group.rule is not None
        if part.is_rare or len(part.params) < len(group.params):
            raise ValueError(
                f"group '{group.name}' has a rule of its own, and a parameter without a gradient "
                "in some steps; such networks train alone"
            )
        self._sizes = [p.numel() for p in part.params]
        self._params = [
            nn.Parameter(torch.zeros(lanes, *p.shape, dtype=dtype, device=device))
            for p in part.params
        ]
        self._rate = torch.ones(lanes, dtype=dtype, device=device)
        self._optimizer: Optimizer = group.rule([{"params": self._params, "lr": self._rate}])
        before = deepcopy(self._remembered())
        with torch.no_grad():
            for param, own in zip(self._params, part.params, strict=True):
                param.copy_(own)
                param.grad = torch.zeros_like(param)
        self._optimizer.step()  # so that it makes all that it remembers
        after = self._remembered()
        if after.keys() != before.keys() or not all(
            is_same(after[name], known) for name, known in before.items()
        ):
            raise ValueError(
                f"the rule of group '{group.name}' remembers numbers that all lanes would have in "
                "common, in its groups or in itself; such networks train alone"
            )
        for memory in self._memories():
            for known in memory.values():
                known.zero_()

    def step(self, p: Tensor, g: Tensor, rate: Tensor, alive: Tensor) -> Tensor:
        """Return the parameters after a step, (M, width), and remember it in the lanes alive."""
        self._rate.copy_(rate.squeeze(1))
        before = [{name: t.clone() for name, t in memory.items()} for memory in self._memories()]
        parts = zip(*(torch.split(t, self._sizes, 1) for t in (p, g)), self._params, strict=True)
        for own_p, own_g, param in parts:
            param.detach().copy_(own_p.reshape(param.shape))
            param.grad = own_g.reshape(param.shape)
        self._optimizer.step()
        for memory, old in zip(self._memories(), before, strict=True):
            for name, known in memory.items():
                lanes = alive.reshape(-1, *[1] * (known.dim() - 1))
                known.copy_(torch.where(lanes, known, old[name]))
        return torch.cat([param.detach().flatten(1) for param in self._params], 1)

    def load(self, lane: int, state: dict[int, Memory]) -> None:
        for number, memory in enumerate(self._memories()):
            for name, known in memory.items():
                known[lane] = state[number][name].to(known) if number in state else 0

    def state_dict(self, lane: int) -> dict[int, Memory]:
        return {
            number: {name: known[lane].clone() for name, known in memory.items()}
            for number, memory in enumerate(self._memories())
        }

    def _remembered(self) -> dict[Any, Any]:
        """Return what the optimizer holds beside parameters and what it remembers of each."""
        found: dict[Any, Any] = {
            (number, name): value
            for number, group in enumerate(self._optimizer.param_groups)
            for name, value in group.items()
            if name != "params"
        }
        found |= {k: v for k, v in self._optimizer.state.items() if not isinstance(k, Tensor)}
        own = vars(self._optimizer).items()
        return found | {n: v for n, v in own if n[0] != "_" and isinstance(v, int | float)}

    def _memories(self) -> list[Memory]:
        return [self._optimizer.state[param] for param in self._params]


def _single_dtype(params: list[nn.Parameter]) -> torch.dtype:
    dtypes = {p.dtype for p in params}
    if len(dtypes) != 1:
        raise ValueError(
            "lanes need trained parameters of one dtype; this model has "
            f"{', '.join(sorted(map(str, dtypes))) or 'none'}"
        )
    return dtypes.pop()
