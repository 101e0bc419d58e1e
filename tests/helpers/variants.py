"""Every model and the variants of it that compute in another way; groups of a stack."""

from dataclasses import replace

import torch

from eigensweep.models import MODELS

TRAINED = [name for name in MODELS if not name.startswith("constructed")]
DYNAMIC = {"trivialization": "dynamic", "rebase_every": 2, "project_every": 2}
VARIANTS = [
    *((name, {}) for name in TRAINED),
    ("enrnn", {"coupled": False, "activation": "tanh", "eps": 0.1}),
    ("enrnn", {"short_size": 0, "encoder": "embedding"}),
    ("lstm", {"peephole": "diagonal", "encoder": "embedding"}),
    ("lstm", {"peephole": "output_full", "readout_from": "cell"}),
    ("gru", {"variant": "cho", "encoder": "embedding"}),
    ("scornn", {"encoder": "embedding", "embedding_size": 4}),
    ("nnrnn", {"gamma_penalty": "l1", "mask": "code", "gamma_weight": 0.5}),
    ("lt_rnn", {"pooling": True, "activation_clip": 1.0, "scale_gradient": True}),
    ("lt_rnn", {"orthogonality_penalty": 1.0, "orthogonality_vectors": 3}),
    ("ornn", {"reflections": 10}),
    ("full_urnn", {"natgrad_rms": True}),
    ("eurnn", {"capacity": 6, "complex": True}),
    ("eurnn", {"hidden_size": 8, "style": "fft", "complex": True}),
    ("goru", {"hidden_size": 8, "style": "fft"}),
    ("lru", {"layers": 1, "width": 4, "r_min": 0.5}),
    ("mingru", {"layers": 2, "kernel_size": 3, "feed_forward": 2}),
    ("exprnn", DYNAMIC),
    ("asrnn", {**DYNAMIC, "form": "direct"}),
    ("asrnn", {"constrain_hh": False}),
    ("exprnn", {**DYNAMIC, "parametrization": "cayley"}),
]
RATES = {"main": torch.tensor([0.01, 0.02]), "orth": 0.01}


def stacked_groups(stack, network):
    """Return a network's groups with the parameters of all lanes in place of its own."""
    stacked = {id(p): stack.parameters[f"model.{name}"] for name, p in network.named_parameters()}
    return [replace(g, params=[stacked[id(p)] for p in g.params]) for g in network.param_groups()]
