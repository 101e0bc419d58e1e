"""Recurrent networks with a long memory, each built from its config and a task's shapes.

To add a model, write one file here and one line in `MODELS`. An installed package adds models by
the entry point group `eigensweep.models`.

>>> "scornn" in MODELS
True
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from eigensweep.common.registry import Registry
from eigensweep.models.asrnn import AsRNN
from eigensweep.models.base import Model, ModelConfig, Shapes
from eigensweep.models.constructed import ConstructedAdding, ConstructedCopying
from eigensweep.models.cornn import CoRNN
from eigensweep.models.enrnn import ENRNN
from eigensweep.models.eurnn import EURNN
from eigensweep.models.exprnn import ExpRNN
from eigensweep.models.full_urnn import FullURNN
from eigensweep.models.goru import GORU
from eigensweep.models.gru import GRU
from eigensweep.models.irnn import IRNN
from eigensweep.models.lem import LEM
from eigensweep.models.lru import LRU
from eigensweep.models.lstm import LSTM
from eigensweep.models.lt_rnn import LTRNN
from eigensweep.models.mingru import MinGRU
from eigensweep.models.minlstm import MinLSTM
from eigensweep.models.modrelu_rnn import ModReLURNN
from eigensweep.models.nnrnn import NNRNN
from eigensweep.models.ornn import ORNN
from eigensweep.models.scornn import ScoRNN
from eigensweep.models.spectral_rnn import SpectralRNN
from eigensweep.models.srnn import SRNN
from eigensweep.models.urnn import URNN
from eigensweep.models.vanilla import TanhRNN

MODELS: Registry[Model] = Registry(
    "model",
    Model,
    ModelConfig,
    {
        "tanh_rnn": TanhRNN,
        "modrelu_rnn": ModReLURNN,
        "irnn": IRNN,
        "srnn": SRNN,
        "lt_rnn": LTRNN,
        "constructed_copying": ConstructedCopying,
        "constructed_adding": ConstructedAdding,
        "lstm": LSTM,
        "gru": GRU,
        "scornn": ScoRNN,
        "enrnn": ENRNN,
        "exprnn": ExpRNN,
        "nnrnn": NNRNN,
        "asrnn": AsRNN,
        "urnn": URNN,
        "full_urnn": FullURNN,
        "eurnn": EURNN,
        "goru": GORU,
        "ornn": ORNN,
        "spectral_rnn": SpectralRNN,
        "lru": LRU,
        "mingru": MinGRU,
        "minlstm": MinLSTM,
        "cornn": CoRNN,
        "lem": LEM,
    },
)

_drawing = threading.RLock()
"""Held by the thread that draws: PyTorch's generator is the process's."""


def make_model(config: ModelConfig, shapes: Shapes, seed: int) -> Model:
    """Return a network on the CPU whose initial values are drawn from `seed`.

    What other threads make meanwhile changes nothing in them, and the generator is left as it was.
    """
    with draw_from(seed):
        return MODELS[config.name](config, shapes)


@contextmanager
def draw_from(seed: int) -> Iterator[None]:
    """Let what this thread draws on the CPU follow from `seed`; threads wait for one another."""
    with _drawing, torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


__all__ = ["MODELS", "Model", "draw_from", "make_model"]
