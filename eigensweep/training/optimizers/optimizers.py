"""How parameters are updated: the optimizers, two learning rates, and clipping.

Group `orth` takes `name_orth` and `lr_orth` and never the optimizer's weight decay; every other
group takes `name` and `lr`. A group with a rule of its own takes the rate only. Source: `models`
name their groups, papers tune the two apart.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Final, get_args

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from eigensweep.models.base import Model, ParamGroup, trainable
from eigensweep.search_spaces.trial import OptimizerConfig, UpdateRule
from eigensweep.store.commits.kept_files import StateDict
from eigensweep.training.optimizers.plain_optimizers import (
    SGD,
    Adagrad,
    Adam,
    AdamW,
    RMSprop,
    leave_compiler_out,
)
from eigensweep.training.optimizers.tf1_optimizers import (
    URNN_EPSILON,
    URNN_FIRST_MEAN,
    AdamTF1,
    RMSpropFrom,
    adagrad_tf1,
)

_GROUPS: Final = "groups of "
"""Before the kind, in a state: the groups of a rule that a model brings along."""

TorchGroup = dict[str, Any]
"""A parameter group as torch's optimizers take it: `params`, and settings by their names."""


@dataclass(frozen=True)
class UpdatedGroup:
    """The trained parameters of one group, and how they are updated."""

    name: str
    kind: str
    """The name of the update rule; `rule of NAME` for a rule of the group's own."""
    params: list[nn.Parameter]
    rate: float
    weight_decay: float
    rule: Callable[[list[TorchGroup]], Optimizer] | None


class Optimizers:
    """The optimizers of one model: one for each kind that its groups ask for."""

    def __init__(self, model: Model, config: OptimizerConfig) -> None:
        groups = model.param_groups()
        self.params = [p for g in groups for p in trainable(g.params)]
        _check_complete(model, self.params)
        self.first_rates: dict[str, float] = {g.name: _rate(g, config) for g in groups}
        """The learning rate of each group, by its name, as in the config."""
        self.learning_rates = dict(self.first_rates)
        """What `scale` made of them."""
        self._clip = _make_clip(config)
        self.groups = [
            _describe(g, params, config) for g in groups if (params := trainable(g.params))
        ]
        """The groups that are trained; those of one kind are one optimizer."""
        self._optimizers = {
            kind: _build_kind([g for g in self.groups if g.kind == kind], config)
            for kind in dict.fromkeys(g.kind for g in self.groups)
        }
        self._built = {
            g.kind: [deepcopy(_settings(each)) for each in self._optimizers[g.kind].param_groups]
            for g in self.groups
            if g.rule is not None
        }
        """The groups of rules that the model brings along, as they began."""

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for p in self.params:
            p.grad = None

    def gradient_norm(self) -> Tensor:
        """Return the global L2 norm of the gradient before clipping; not finite if an entry is."""
        return nn.utils.get_total_norm([p.grad for p in self.params if p.grad is not None])

    def scale(self, factor: float) -> None:
        """Let the next steps take the config's learning rates times `factor`."""
        self.learning_rates = {name: lr * factor for name, lr in self.first_rates.items()}
        for optimizer in self._optimizers.values():
            for group in optimizer.param_groups:
                if group["factor"] != factor:  # else a rule of its own may have changed its rate
                    group["lr"], group["factor"] = group["first_lr"] * factor, factor

    def step(self, norm: Tensor) -> None:
        """Clip the gradient, whose global norm is `norm`, and update the parameters."""
        if any(p.grad is not None for p in self.params):  # PyTorch does not clip an empty list
            self._clip(self.params, norm)
        for optimizer in self._optimizers.values():
            optimizer.step()

    def state_dict(self) -> StateDict:
        """Return what the optimizers remember, by kind; rates and settings come from the config.

        A rule of a group's own may also remember numbers in its groups, and change its rate: what
        differs there from how they began.
        """
        groups = {
            _GROUPS + name: [
                _find_changes(_settings(now), before)
                for now, before in zip(self._optimizers[name].param_groups, built, strict=True)
            ]
            for name, built in self._built.items()
        }
        return {name: o.state_dict()["state"] for name, o in self._optimizers.items()} | groups

    def load_state_dict(self, state: StateDict) -> None:
        """Go on from what `state_dict` returned."""
        for name, optimizer in self._optimizers.items():
            groups = optimizer.state_dict()["param_groups"]
            for group, before in zip(groups, state.get(_GROUPS + name, ()), strict=False):
                rate = before["lr"]
                if before["first_lr"] != group["first_lr"]:  # a donor had other rates
                    rate = rate * (group["first_lr"] / before["first_lr"])
                group.update(before, lr=rate, first_lr=group["first_lr"])
            optimizer.load_state_dict({"state": state[name], "param_groups": groups})
            if name in self._built:
                _restore_types(optimizer, state[name])


def _describe(
    group: ParamGroup, params: list[nn.Parameter], config: OptimizerConfig
) -> UpdatedGroup:
    kind: str = config.name
    if group.rule is not None:
        kind = f"rule of {group.name}"
    elif group.name == "orth":
        kind = config.name_orth or config.name
    rate, decay = _rate(group, config), _decay(group, config)
    return UpdatedGroup(group.name, kind, params, rate, decay, group.rule)


def _build_kind(groups: list[UpdatedGroup], config: OptimizerConfig) -> Optimizer:
    leave_compiler_out()
    parts: list[TorchGroup] = [
        {"params": g.params, "lr": g.rate, "first_lr": g.rate, "factor": 1.0} for g in groups
    ]
    if (rule := groups[0].rule) is not None:
        made = rule(parts)
        if not isinstance(made, Optimizer):
            raise TypeError(
                f"the rule of group '{groups[0].name}' has to return a torch.optim.Optimizer; "
                f"it returned {type(made).__name__}"
            )
        if not all("factor" in group for group in made.param_groups):
            raise ValueError(
                f"the rule of group '{groups[0].name}' makes groups of its own, without the "
                "learning rate: give those that it gets to its optimizer"
            )
        return made
    for part, group in zip(parts, groups, strict=True):
        part["weight_decay"] = group.weight_decay
    return _build(groups[0].kind, parts, config)


def _restore_types(optimizer: Optimizer, state: dict[Any, Any]) -> None:
    """Give each remembered tensor its own type back: PyTorch casts it to its parameter's."""
    params = [p for group in optimizer.param_groups for p in group["params"]]
    for number, param in enumerate(params):
        memory = optimizer.state[param] if number in state else {}
        for name, now in memory.items():
            if isinstance(now, Tensor):
                memory[name] = state[number][name].to(now.device, copy=True)


def _settings(group: TorchGroup) -> TorchGroup:
    return {name: value for name, value in group.items() if name != "params"}


def _find_changes(now: TorchGroup, before: TorchGroup) -> TorchGroup:
    """Return the entries of a group that are others than before, and its rates."""
    return {
        name: value
        for name, value in now.items()
        if name in ("lr", "first_lr", "factor")
        or name not in before
        or not is_same(value, before[name])
    }


def is_same(one: Any, other: Any) -> bool:
    """Return whether two values are equal, also where they are tensors."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return torch.equal(one, other)
    return type(one) is type(other) and bool(one == other)


def _build(name: str, groups: list[TorchGroup], config: OptimizerConfig) -> Optimizer:
    # The fused forms do the same in one call: a third of the time on small networks.
    on_cpu = groups[0]["params"][0].device.type == "cpu"
    match name:
        case "adam":
            return Adam(groups, betas=config.betas, fused=True)
        case "adamw":
            return AdamW(groups, betas=config.betas, fused=True)
        case "sgd":
            return SGD(groups, momentum=config.momentum, fused=True)
        case "rmsprop":
            return RMSprop(groups, alpha=config.alpha, momentum=config.momentum)
        case "adagrad":
            return Adagrad(groups, fused=on_cpu or None)
        case "adam_tf1":
            return AdamTF1(groups, config.lr, config.betas)
        case "rmsprop_tf1":
            return RMSpropFrom(groups, config.lr, config.alpha, config.momentum)
        case "rmsprop_urnn":
            how = {"first": URNN_FIRST_MEAN, "eps": URNN_EPSILON}
            return RMSpropFrom(groups, config.lr, config.alpha, config.momentum, **how)
        case "adagrad_tf1":
            return adagrad_tf1(groups, fused=on_cpu or None)
    raise ValueError(f"there is no optimizer '{name}'; there are {', '.join(get_args(UpdateRule))}")


def _rate(group: ParamGroup, config: OptimizerConfig) -> float:
    return config.lr_orth or config.lr if group.name == "orth" else config.lr


def _decay(group: ParamGroup, config: OptimizerConfig) -> float:
    if group.rule is not None:
        if group.options:
            raise ValueError(
                f"group '{group.name}' has a rule of its own, which gets no options; it has "
                f"{sorted(group.options)}: give them to the rule"
            )
        return 0.0
    if unknown := sorted(set(group.options) - {"weight_decay"}):
        raise ValueError(f"group '{group.name}' has {unknown}; the known option is 'weight_decay'")
    decay: float = group.options.get(
        "weight_decay", 0.0 if group.name == "orth" else config.weight_decay
    )
    return decay


def _make_clip(config: OptimizerConfig) -> Callable[[list[nn.Parameter], Tensor], None]:
    norm_limit, value_limit = config.clip_norm, config.clip_value
    if norm_limit is not None:
        return lambda params, norm: nn.utils.clip_grads_with_norm_(params, norm_limit, norm)
    if value_limit is not None:
        return lambda params, norm: nn.utils.clip_grad_value_(params, value_limit)
    return lambda params, norm: None


def _check_complete(model: Model, params: list[nn.Parameter]) -> None:
    grouped = {id(p) for p in params}
    left_out = [n for n, p in model.named_parameters() if p.requires_grad and id(p) not in grouped]
    if left_out or len(grouped) != len(params):
        raise ValueError(
            f"{type(model).__name__}.param_groups() must name each parameter once; "
            f"left out: {left_out or 'none'}, named twice: {len(params) - len(grouped)}"
        )


__all__ = ["Optimizers", "UpdatedGroup"]
