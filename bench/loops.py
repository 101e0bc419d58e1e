"""The plain loop that belongs to each model."""

from __future__ import annotations

from bench import authors, gates, layered, unitary
from bench.authors import Loop
from eigensweep.models import Model
from eigensweep.models.network import RecurrentModel

LOOPS: dict[str, type[Loop]] = {
    "exprnn": authors.ExpRNNLoop,
    "scornn": authors.ScoRNNLoop,
    "enrnn": authors.ENRNNLoop,
    "nnrnn": authors.NNRNNLoop,
    "asrnn": authors.AsRNNLoop,
    "lt_rnn": authors.LTRNNLoop,
    "lstm": gates.LSTMLoop,
    "gru": gates.GRULoop,
    "goru": gates.GORULoop,
    "cornn": gates.CoRNNLoop,
    "lem": gates.LEMLoop,
    "urnn": unitary.ComplexLoop,
    "full_urnn": unitary.ComplexLoop,
    "eurnn": unitary.EURNNLoop,
    "lru": layered.LayeredLoop,
    "mingru": layered.LayeredLoop,
    "minlstm": layered.LayeredLoop,
}
"""Every other model of the form h_t = f(U x_t + W h_{t-1} + b) uses `Loop` itself."""


def loop_of(model: Model) -> Loop | None:
    """Return the plain loop of a model, with the model's parameters; None if it has none."""
    if (loop := LOOPS.get(model.config.name)) is not None:
        return loop(model)
    return Loop(model) if isinstance(model, RecurrentModel) else None
