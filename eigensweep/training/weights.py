"""Weights that were kept of a training, and the network that has them.

A file is what the service answers: `best.pt`, with the weights of the selected point, or a whole
checkpoint. Either is read with `weights_only`, so no code of it is run.
"""

from __future__ import annotations

import io
import json
import logging
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import torch
from pydantic import ValidationError

from eigensweep.models import make_model
from eigensweep.models.base import Model
from eigensweep.protocol.messages import ConfigJson
from eigensweep.search_spaces.trial import TrialConfig, find_code
from eigensweep.store.checkpoints import pack
from eigensweep.training.selection import Weights, selected

logger = logging.getLogger(__name__)

Which = Literal["best", "last"]

UNREADABLE: Final = (AttributeError, EOFError, LookupError, RuntimeError, pickle.UnpicklingError)
"""What reading a file raises that PyTorch has not written, or that holds no dict."""


class NoWeightsError(ValueError):
    """A training has no such weights."""


@dataclass(frozen=True)
class KeptWeights:
    """The weights of one replicate, on the CPU."""

    config: TrialConfig
    seed: int
    step: int
    """Optimizer steps before these weights."""
    weights: Weights

    def load(self) -> Model:
        """Return the network with these weights, on the CPU, ready to be evaluated."""
        config = self.config
        model = make_model(config.model, config.task.shapes, self.seed)
        code = find_code(config.task.name, config.model.name)
        if code != config.code:
            logger.warning(
                "the package that brings %s has other code here than the trial was trained with",
                config.model.name,
            )
        model.load_state_dict(self.weights)
        return model.eval()

    def save(self, path: Path | str) -> Path:
        """Write `torch.save({"config", "seed", "step", "weights"}, path)`, and return the path."""
        content = {
            "config": self.config.model_dump_json(),
            "seed": self.seed,
            "step": self.step,
            "weights": self.weights,
        }
        Path(path).write_bytes(pack(content))
        return Path(path)


def check_budget(step: int, config: TrialConfig, which: str) -> None:
    """Refuse weights of a step beyond a training's own budget.

    Raises:
        NoWeightsError: if the training that they are of has gone on since.
    """
    budget = config.training.steps
    if budget and step > budget:
        raise NoWeightsError(
            f"the training that this result comes from went on since, with a longer budget: its "
            f"{which} weights are those of step {step:,}, and this result is of {budget:,} steps"
        )


def load(path: Path | str) -> Model:
    """Return the network of a file of weights, on the CPU, ready to be evaluated.

    `eigensweep weights` writes such files, and MLflow has one with each experiment's run. No
    service is asked. `network(x)` gives (logits, state), for x of shape (τ, B) or (τ, B, m).

    Raises:
        NoWeightsError: if it is no such file.
        FileNotFoundError: if there is no file.
        UnknownNameError: if no package that is installed here has its model or its task.
    """
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
        config, seed, step, weights = map(content.get, ("config", "seed", "step", "weights"))
    except UNREADABLE as error:
        raise NoWeightsError(f"{path} cannot be read by torch.load: {error}") from error
    if config is None or weights is None:
        raise NoWeightsError(
            f"{path} has no config and weights; what `eigensweep weights` writes has both, the "
            "last weights, too"
        )
    return KeptWeights(read_config(json.loads(config)), seed, step, weights).load()


def read_config(content: ConfigJson) -> TrialConfig:
    """Return a trial's configuration, whose weights are wanted.

    Raises:
        NoWeightsError: if the model or the task has other fields here.
        UnknownNameError: if no package that is installed here has them.
    """
    try:
        return TrialConfig.from_dict(content)
    except ValidationError as error:
        found = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        raise NoWeightsError(
            f"the code here does not fit the weights' configuration: {found}. Take the version of "
            "the package that trained them"
        ) from error


def read_weights(content: bytes, config: TrialConfig, which: Which) -> KeptWeights:
    """Return the best or the last weights in a file of a training with this resolved config.

    Raises:
        NoWeightsError: if no evaluation was finite, so that none is the best, if its result was
            taken up without weights, or if its source has gone on since.
    """
    state = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    if "weights" in state:
        check_budget(state["step"], config, which)
        return KeptWeights(config, state["seed"], state["step"], state["weights"])
    if "model" not in state:
        raise NoWeightsError("its result was taken up from another training, without weights")
    weights, step = state["model"], state["step"]
    if which == "best":
        best = selected(state)
        if best is None:
            raise NoWeightsError("none of its evaluations was finite; ask for the last weights")
        weights, step = best.weights, best.step
    check_budget(step, config, which)
    return KeptWeights(config, state["seed"], step, weights)
