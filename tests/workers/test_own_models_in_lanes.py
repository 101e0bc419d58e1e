"""Models and tasks of one's own: in lanes they are what they are alone, or they train alone."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import ClassVar, Literal

import numpy as np
import pytest
import torch
from helpers.lanes import assert_equal, build, train_lanes
from torch import nn
from toys import Text

from eigensweep.models import MODELS
from eigensweep.models.base import Model, ModelConfig, ParamGroup
from eigensweep.search_spaces.trial import TrialConfig
from eigensweep.tasks import TASKS
from eigensweep.tasks.base import Batch, Metric, Shapes, Task, TaskConfig
from eigensweep.training.lanes.replicates import gains_by_lanes
from eigensweep.training.lanes.stacked.group import LaneError

Kind = Literal[
    "plain",
    "first",
    "tied",
    "norm",
    "two_groups",
    "list",
    "constant",
    "words",
    "number",
    "stateless",
    "scale",
    "masked",
    "hooked",
    "averaged",
    "assigned",
    "scored",
    "frozen",
    "normed",
    "kept",
    "infinite",
]


class OwnConfig(ModelConfig):
    name: Literal["own"] = "own"
    hidden_size: int | None = 4
    kind: Kind = "plain"

    def free_parameters(self, shapes):
        return 1


class Normed(torch.optim.Optimizer):
    """A step of equal length: the norm of what lies in front of it is that of all lanes."""

    def __init__(self, groups):
        super().__init__(groups, {})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(torch.as_tensor(group["lr"]).mean() * p.grad / (p.grad.norm() + 1e-8))


class Own(Model):
    """h_t = tanh(U x_t + W h_{t-1} + b), with one peculiarity."""

    Config = OwnConfig

    def __init__(self, config, shapes):
        super().__init__(config, shapes)
        n, p = self.hidden_size, shapes.output_size
        if config.kind == "constant":
            return
        self.U = nn.Linear(shapes.input_size, n)
        self.W = nn.Parameter(0.5 * torch.eye(n))
        self.V = nn.Linear(n, p)
        if config.kind == "first":
            self.h0 = nn.Parameter(torch.zeros(n))
            nn.init.zeros_(self.V.weight)
        elif config.kind == "scale":
            self.scale = nn.Parameter(torch.tensor(1.0))
        elif config.kind == "norm":
            self.norm = nn.BatchNorm1d(n)
        elif config.kind == "masked":
            self.mask = (torch.rand(n) < 0.5).to(self.W)
        elif config.kind == "kept":
            self.keep = float(torch.rand(()))
        elif config.kind == "infinite":
            self.register_buffer("future", torch.full((n, n), -inf).triu(1))
        elif config.kind == "hooked":
            self.W.register_hook(lambda gradient: gradient.tril())
        elif config.kind in ("averaged", "assigned", "scored"):
            self.register_buffer("mean", torch.zeros(n))
        elif config.kind == "frozen":
            self.slow = nn.Parameter(0.5 * torch.eye(n), requires_grad=False)
        elif config.kind == "tied":
            self.back = nn.Linear(shapes.input_size, n, bias=False)
            self.back.weight = self.U.weight

    def recurrent_matrix(self):
        return self.W

    def param_groups(self):
        if self.config.kind == "normed":
            return [
                ParamGroup("own", [self.W], rule=Normed),
                ParamGroup("main", self.others(self.W)),
            ]
        if self.config.kind != "two_groups":
            return super().param_groups()
        rest = [self.U.weight, self.W, self.V.weight, self.V.bias]
        return [ParamGroup("main", rest), ParamGroup("main", [self.U.bias], {"weight_decay": 0.0})]

    def states(self, x, state=None):
        x = nn.functional.one_hot(x, self.shapes.input_size) if not x.is_floating_point() else x
        z = self.U(x.to(self.W.dtype))
        if self.config.kind == "tied":
            z = z + self.back(x.to(self.W.dtype))
        if self.config.kind == "first" and state is None:
            state = self.h0.expand(z.shape[1:])
        state = state[0] if isinstance(state, list) else state
        h, found = z.new_zeros(z.shape[1:]) if state is None else state, []
        for z_t in z:
            h = torch.tanh(z_t + h @ self.W.T)
            found.append(h)
        return torch.stack(found)

    def forward(self, x, state=None):
        if self.config.kind == "constant":
            return torch.zeros(*x.shape[:2], self.shapes.output_size), torch.zeros(x.shape[1], 1)
        h = self.states(x, state)
        read = h if self.shapes.readout == "all" else h[-1]
        if self.config.kind == "norm":
            read = self.norm(read)
        last = {"list": [h[-1]], "stateless": None}.get(self.config.kind, h[-1])
        if self.config.kind == "scale":
            read = self.scale * read
        if self.config.kind == "masked":
            read = self.mask * read
        if self.config.kind == "frozen":
            read = read @ self.slow
        if self.config.kind == "kept" and not self.training:
            read = 10 * self.keep * read
        if self.config.kind == "infinite":
            read = read @ (self.W + self.future).exp()
        if hasattr(self, "mean"):
            self.count(read.detach().mean(0))
            read = read - self.mean
        return self.V(read), last

    def count(self, mean):
        if self.config.kind == "assigned" and self.training:
            self.mean = 0.9 * self.mean + 0.1 * mean
        elif self.config.kind == "scored" or self.training:
            self.mean.mul_(0.9).add_(0.1 * mean)

    def after_update(self, learning_rates):
        if self.config.kind == "frozen":
            self.slow.mul_(0.9).add_(0.1 * self.W)

    def constraint_report(self):
        if self.config.kind == "words":
            return {"slope": "steep"}
        return {"half": 0.5 if self.config.kind == "number" else torch.tensor(0.5)}


class CountsConfig(TaskConfig):
    name: Literal["counts"] = "counts"
    large: bool = True
    turns: bool = False
    """Whether targets are of another type from step 5 on."""
    unequal: bool = False
    """Whether every third batch has fewer rows."""
    scored: Literal["all", "read", "none", "no_objective", "weighted", "numpy"] = "all"
    """`read`: by a value that is read from the device; `weighted`: with a count that is no whole
    number; `numpy`: with one of NumPy's."""

    shapes: ClassVar = Shapes(2, "values", 1, "last")
    metrics: ClassVar = (Metric("mse", ""), Metric("other", ""))
    sequence_length: ClassVar = 4

    @property
    def has_unequal_batches(self):
        return self.unequal


class Counts(Task):
    """Learn whole numbers, which may be large."""

    Config = CountsConfig

    def _draw(self, rows, seed):
        x = torch.randn(4, rows, 2, generator=torch.Generator().manual_seed(seed))
        return Batch(x, (x.sum((0, 2)) * (20_000 if self.config.large else 1)).round().long())

    def train_batch(self, step, seed):
        batch = self._draw(3 if self.config.unequal and not step % 3 else 8, 1000 * seed + step)
        is_other = self.config.turns and step >= 5
        return replace(batch, y=batch.y + 0.5) if is_other else batch

    def evaluation(self, split):
        yield self._draw(20, 1 if split == "valid" else 2)

    def loss(self, logits, batch):
        return (logits.squeeze(-1) - batch.y / 20_000).square().mean()

    def scores(self, logits, batch):
        found = (logits.squeeze(-1) - batch.y / 20_000).square().sum(), len(batch.y)
        none = found[0], 0
        if self.config.scored == "read":
            return {"mse": (torch.tensor(found[0].item()), found[1])}
        return {
            "all": {"mse": found, "other": found},
            "none": {"mse": none, "other": found},
            "no_objective": {"mse": found},
            "weighted": {"mse": (found[0], torch.tensor(2.55)), "other": (found[0], 2.55)},
            "numpy": {"mse": (found[0], np.int64(20)), "other": (found[0], np.float32(2.5))},
        }[self.config.scored]


@pytest.fixture(autouse=True)
def _registered():
    MODELS["own"], TASKS["counts"], TASKS["text"] = Own, Counts, Text
    yield
    for registry, name in ((MODELS, "own"), (TASKS, "counts"), (TASKS, "text")):
        del registry[name]


def config_of(task, kind="plain", **rest):
    return TrialConfig.from_dict(
        {
            "task": task,
            "model": rest.pop("model", {"name": "own", "kind": kind}),
            "optimizer": {"name": "adam", "lr": 0.01, "weight_decay": 0.5},
            "training": {"steps": 20, "evaluate_every": 10},
            **rest,
        }
    )


def train_both(config):
    """Return two trainings in lanes, and the first of them alone."""
    lanes, alone = [build(config, seed) for seed in (0, 1)], build(config, 0)
    train_lanes(lanes)
    alone.run()
    return lanes[0], alone


@pytest.mark.parametrize(
    ("task", "kind"),
    [
        ({"name": "counts"}, "plain"),
        ({"name": "counts"}, "two_groups"),
        ({"name": "counts", "large": False}, "norm"),
        ({"name": "counts"}, "stateless"),
        ({"name": "counts"}, "scale"),
        ({"name": "counts"}, "averaged"),
        ({"name": "counts"}, "infinite"),
        ({"name": "counts", "scored": "weighted"}, "plain"),
        ({"name": "counts", "scored": "numpy"}, "plain"),
        ({"name": "text"}, "plain"),
    ],
)
def test_what_lanes_can_do_is_what_is_done_alone(task, kind):
    assert_equal(*train_both(config_of(task, kind)))


@pytest.mark.parametrize(
    ("task", "kind", "reason"),
    [
        ({"name": "text"}, "first", "`restart` gives another state than `forward` begins with"),
        ({"name": "text"}, "tied", "back.weight is shared with another part of it"),
        ({"name": "counts", "unequal": True}, "norm", "batch normalisation would count"),
        (
            {"name": "counts"},
            "number",
            "`constraint_report` returns no dict of tensors",
        ),
        ({"name": "counts"}, "masked", "a step in lanes has another "),
        ({"name": "counts"}, "hooked", "a step in lanes has another gradient norm"),
        ({"name": "counts"}, "assigned", "a step in lanes gives another 'mean'"),
        ({"name": "counts"}, "scored", "an evaluation changes 'mean'"),
        ({"name": "counts"}, "frozen", "'slow' is not trained, and changes"),
        ({"name": "counts"}, "normed", "a step in lanes gives another 'W'"),
        ({"name": "counts"}, "kept", "a batch has another 'mse' in lanes"),
    ],
)
def test_what_they_cannot_do_is_told_before(task, kind, reason):
    config = config_of(task, kind)
    with pytest.raises(ValueError, match=f"own( on counts)? trains alone: {reason}"):
        train_lanes([build(config, seed) for seed in (0, 1)])
    build(config, 0).run()


def test_a_small_rate_hides_no_difference():
    config = config_of({"name": "counts"}, "normed")
    optimizer = config.optimizer.model_copy(update={"lr": 1e-6})
    with pytest.raises(ValueError, match="a step in lanes gives another 'W'"):
        train_both(config.model_copy(update={"optimizer": optimizer}))


def test_batches_of_another_type_are_not_cut_to_the_first_ones():
    with pytest.raises(LaneError) as caught:
        train_both(config_of({"name": "counts", "turns": True}))
    assert "'y' of step 5 is (8,) torch.float64, that of the first batch was (8,) torch.int64" in (
        str(caught.value.__cause__)
    )


def test_replicates_of_another_packages_task_train_one_by_one():
    model = {"name": "tanh_rnn", "hidden_size": 4}
    ours = {"name": "copying", "delay": 3, "symbols": 1, "batch_size": 4}
    assert gains_by_lanes(config_of(ours, model=model, replicates=3).resolve(), "cpu")
    config = config_of({"name": "counts"}, model=model, replicates=3)
    assert not gains_by_lanes(config.resolve(), "cpu")


@pytest.mark.parametrize("name", ["cornn", "lem"])
def test_lanes_that_are_scored_one_by_one_keep_their_numbers(name):
    task, model = {"name": "counts", "scored": "read"}, {"name": name, "hidden_size": 4}
    configs = [config_of(task, model={**model, "dt": dt}) for dt in (0.01, 0.5)]
    lanes, alone = [build(each) for each in configs], build(configs[1])
    train_lanes(lanes)
    alone.run()
    assert_equal(lanes[1], alone)


@pytest.mark.parametrize("scored", ["none", "no_objective"])
def test_scores_that_nothing_is_judged_by_are_told(scored):
    config = config_of({"name": "counts", "scored": scored}, objective={"metric": "other"})
    name = "mse" if scored == "none" else "other"
    with pytest.raises(ValueError, match=f"the validation data has no scores of '{name}'"):
        build(config).run()


def test_a_state_that_cannot_go_on_is_told():
    with pytest.raises(TypeError, match="a state must be a tensor or a tuple of tensors"):
        build(config_of({"name": "text"}, "list")).run()


def test_a_model_without_parameters_is_scored():
    training = build(config_of({"name": "text"}, "constant"))
    training.run()
    assert training.result().outcome == "completed"


def test_a_report_that_is_no_numbers_is_told():
    with pytest.raises(ValueError, match=r"Own.constraint_report must return a dict of numbers"):
        build(config_of({"name": "counts"}, "words")).run()
