"""Recurrent networks with a long memory, each built from its config and a task's shapes.

An installed package adds its own through the entry point group `eigensweep.models`.

>>> sorted(MODELS)[:2]
['enrnn', 'lstm']
"""

from __future__ import annotations

from importlib.metadata import entry_points

from models.base import Model
from models.enrnn import ENRNN
from models.exprnn import ExpRNN
from models.lstm import LSTM
from models.scornn import ScoRNN
from models.vanilla import TanhRNN

MODELS: dict[str, type[Model]] = {
    "tanh_rnn": TanhRNN,
    "lstm": LSTM,
    "scornn": ScoRNN,
    "enrnn": ENRNN,
    "exprnn": ExpRNN,
}

for _entry in entry_points(group="eigensweep.models"):
    if _entry.name in MODELS:
        raise ValueError(
            f"the entry point '{_entry.value}' would replace the model '{_entry.name}'; "
            "rename it in the group 'eigensweep.models' of its package"
        )
    MODELS[_entry.name] = _entry.load()

__all__ = ["MODELS", "Model"]
