"""Each model again, in NumPy loops over single numbers of time and batch, from the papers alone."""

import numpy as np
import pytest
from helpers.equations import EquationTests, check, encode, sigmoid
from numpy.linalg import eigvals, inv

CASES = {
    "tanh_rnn": {"name": "tanh_rnn"},
    "modrelu_rnn": {"name": "modrelu_rnn"},
    "irnn": {"name": "irnn", "scale": 0.5},
    "srnn": {"name": "srnn"},
    "srnn relu": {"name": "srnn", "activation": "relu", "readout_bias": True},
    "scornn": {"name": "scornn"},
    "enrnn coupled": {"name": "enrnn"},
    "enrnn apart": {"name": "enrnn", "coupled": False},
    "enrnn relu": {"name": "enrnn", "activation": "relu", "eps": 0.1},
    "enrnn tanh": {"name": "enrnn", "activation": "tanh"},
    "exprnn": {"name": "exprnn"},
    "exprnn dynamic": {"name": "exprnn", "trivialization": "dynamic", "rebase_every": 3},
    "exprnn cayley": {"name": "exprnn", "parametrization": "cayley"},
    "nnrnn": {"name": "nnrnn", "hidden_size": 6},
    "nnrnn as its code": {"name": "nnrnn", "hidden_size": 6, "mask": "code"},
    "asrnn": {"name": "asrnn"},
    "asrnn direct": {"name": "asrnn", "form": "direct", "constrain_hh": False},
    "asrnn dynamic": {"name": "asrnn", "trivialization": "dynamic", "rebase_every": 1},
    "lt_rnn": {"name": "lt_rnn"},
    "lt_rnn pooled": {"name": "lt_rnn", "hidden_size": 6, "pooling": True, "readout_bias": True},
    "lt_rnn clipped": {"name": "lt_rnn", "activation_clip": 1.5},
    "ornn": {"name": "ornn"},
    "ornn full": {"name": "ornn", "reflections": 7},
    "spectral_rnn": {"name": "spectral_rnn"},
    "spectral_rnn full": {"name": "spectral_rnn", "reflections": 7},
    "lstm": {"name": "lstm"},
    "lstm reads the cell": {"name": "lstm", "readout_from": "cell"},
    "lstm diagonal peephole": {"name": "lstm", "peephole": "diagonal"},
    "lstm full peephole": {"name": "lstm", "peephole": "output_full"},
    "gru": {"name": "gru"},
    "gru of cho": {"name": "gru", "variant": "cho"},
    "cornn": {"name": "cornn", "dt": 0.3, "gamma": 1.2, "epsilon": 0.7},
    "cornn undamped": {"name": "cornn", "dt": 1.0, "gamma": 0.0, "epsilon": 0.0},
    "lem": {"name": "lem", "dt": 0.4},
}
ACTIVATIONS = {
    "tanh_rnn": "tanh",
    "irnn": "relu",
    "spectral_rnn": "relu",
    "ornn": "leaky_relu",
}


def modrelu(z, b):
    return np.array(
        [np.sign(z_i) * max(abs(z_i) + b_i, 0.0) for z_i, b_i in zip(z, b, strict=True)]
    )


def skew(X):
    return np.triu(X, 1) - np.triu(X, 1).T


def cayley(X):
    A, eye = skew(X), np.eye(len(X))
    return inv(eye + A) @ (eye - A)


def exp(X):
    values, vectors = np.linalg.eigh(-1j * skew(X))
    return (vectors @ np.diag(np.exp(1j * values)) @ vectors.conj().T).real


def trivialise(p, config, name):
    W = (exp if config.parametrization == "exp" else cayley)(p[f"{name}.A"])
    return p[f"{name}.base"] @ W if config.trivialization == "dynamic" else W


def non_normal(p, config):
    n = config.hidden_size
    theta = np.zeros((n, n))
    for k in range(n // 2):
        i, c, s = 2 * k, np.cos(p["theta"][k]), np.sin(p["theta"][k])
        theta[i : i + 2, i : i + 2] = p["gamma"][k] * np.array([[c, -s], [s, c]])
    for i in range(n):
        for j in range(i):
            in_block = i // 2 == j // 2
            if config.mask == "code" or not in_block:
                theta[i, j] += p["T"][i, j]
    return exp(p["A"]) @ theta @ exp(p["A"]).T


def reflect(u, last_sign=None):
    """Return the product of reflections, one factor after the other."""
    n, r = u.shape
    W = np.eye(n)
    for k in range(r):
        if k == n - 1 and last_sign is not None:
            return W @ np.diag([*np.ones(n - 1), last_sign])
        v = np.array([u[i, k] if i >= k else 0.0 for i in range(n)])
        W = W @ (np.eye(n) - 2 * np.outer(v, v) / (v @ v))
    return W


def matrix_of(p, config):
    if "W" in p:
        return p["W"]
    if config.name == "gru":
        return p["R"]
    if config.name in ("exprnn", "asrnn"):
        return trivialise(p, config, "recurrent")
    if config.name == "ornn":
        return reflect(p["u"], last_sign=np.sign(p["u"][-1, -1]))
    if config.name == "spectral_rnn":
        sigma = 1 + 2 * config.margin * (sigmoid(p["p"]) - 0.5)
        return reflect(p["P"]) @ np.diag(sigma) @ reflect(p["Q"]).T
    if config.name == "nnrnn":
        return non_normal(p, config)
    W_L = cayley(p["A"]) @ np.diag(p["D"])
    if config.name == "scornn":
        return W_L
    W_S = p["T"]
    if p["switched"]:
        W_S = W_S / (max(abs(eigvals(W_S))) + config.eps)
    W_C = p.get("coupling", np.zeros((len(W_L), len(W_S))))
    return np.block([[W_L, W_C], [np.zeros((len(W_S), len(W_L))), W_S]])


def linear_transition(p, Ux, Wh):
    return (np.maximum(Ux + p["b"], 0) if "b" in p else Ux) + Wh


def clip(h, limit):
    length = np.sqrt((h**2).sum())
    return h * limit / length if limit is not None and length > limit else h


def pairs(h):
    return np.array([np.hypot(h[i], h[i + 1]) for i in range(0, len(h), 2)])


def simple_cell(p, config, W, U):
    if config.name == "gru":
        return lambda x, h: gru_step(p, config, U, x, h)

    if config.name == "asrnn":
        W_f = trivialise(p, config, "saturation") @ np.diag(abs(p["s"]) + config.eps)
        return lambda x, h: inv(W_f) @ np.tanh(W_f @ (U @ x + W @ h + p["b"]))

    if config.name == "lt_rnn":
        return lambda x, h: clip(linear_transition(p, U @ x, W @ h), config.activation_clip)

    def step(x, h):
        z = U @ x + W @ h + p.get("b_u", 0)
        kind = getattr(config, "activation", ACTIVATIONS.get(config.name, "modrelu"))
        if kind == "modrelu":
            return modrelu(z, p["b"])
        z = z + p["b"]
        if kind == "leaky_relu":
            return np.where(z > 0, z, 0.1 * z)
        return np.tanh(z) if kind == "tanh" else np.maximum(z, 0)

    return step


def gru_step(p, config, U, x, h):
    W, R, b = (dict(zip("rzh", np.split(p_, 3), strict=True)) for p_ in (U, p["R"], p["b"]))
    r = sigmoid(W["r"] @ x + R["r"] @ h + b["r"])
    z = sigmoid(W["z"] @ x + R["z"] @ h + b["z"])
    reset = R["h"] @ (r * h) if config.variant == "cho" else r * (R["h"] @ h)
    return z * h + (1 - z) * np.tanh(W["h"] @ x + reset + b["h"])


def lstm_step(p, config, U, x, h, c):
    n = len(h)
    W, R, b = (dict(zip("ifog", np.split(p_, 4), strict=True)) for p_ in (U, p["R"], p["b"]))
    a = {k: W[k] @ x + R[k] @ h + b[k] for k in "ifog"}
    if config.peephole == "diagonal":
        a["i"] = a["i"] + p["peephole_input_forget"][:n] * c
        a["f"] = a["f"] + p["peephole_input_forget"][n:] * c
    c = sigmoid(a["f"]) * c + sigmoid(a["i"]) * np.tanh(a["g"])
    if config.peephole == "diagonal":
        a["o"] = a["o"] + p["peephole_output"] * c
    elif config.peephole == "output_full":
        a["o"] = a["o"] + p["peephole_output"] @ c
    return sigmoid(a["o"]) * np.tanh(c), c


def cornn_step(p, config, U, x, y, z):
    n, drive = len(y), U @ x + p["b"]
    W, of_z = p["R"][:n], p["R"][n:]
    accelerations = np.array(
        [
            np.tanh(drive[i] + sum(W[i, k] * y[k] + of_z[i, k] * z[k] for k in range(n)))
            - config.gamma * y[i]
            - config.epsilon * z[i]
            for i in range(n)
        ]
    )
    z = z + config.dt * accelerations
    return y + config.dt * z, z


def lem_step(p, config, U, x, y, z):
    names = ("slow", "quick", "z", "y")
    V, W, b = (dict(zip(names, np.split(p_, 4), strict=True)) for p_ in (U, p["R"], p["b"]))
    slow, quick = (config.dt * sigmoid(W[k] @ y + V[k] @ x + b[k]) for k in ("slow", "quick"))
    z = (1 - slow) * z + slow * np.tanh(W["z"] @ y + V["z"] @ x + b["z"])
    y = (1 - quick) * y + quick * np.tanh(W["y"] @ z + V["y"] @ x + b["y"])
    return y, z


PAIRED_STEPS = {"lstm": lstm_step, "cornn": cornn_step, "lem": lem_step}
"""Steps of models with two states, the first of which is the state that `states` returns."""


def run(p, config, shapes, x):
    """Return (logits, states) of parameters p, by loops over sequences and steps."""
    n, (steps, batch) = config.hidden_size, x.shape[:2]
    states, logits = np.zeros((steps, batch, n)), np.zeros((steps, batch, shapes.output_size))
    U = p.get("U", np.eye(n))
    paired = PAIRED_STEPS.get(config.name)
    step = None if paired else simple_cell(p, config, matrix_of(p, config), U)
    for j in range(batch):
        h, c = p.get("h0", np.zeros(n)), np.zeros(n)
        for t in range(steps):
            x_t = encode(p, shapes, x[t, j])
            seen = None
            if paired:
                h, c = paired(p, config, U, x_t, h, c)
                seen = c if getattr(config, "readout_from", "state") == "cell" else h
            else:
                seen = h = step(x_t, h)
            states[t, j] = h
            logits[t, j] = p["V"] @ seen + p["c"]
            if "V_2" in p:
                logits[t, j] += p["V_2"] @ pairs(h)
    return (logits[-1] if shapes.readout == "last" else logits), states


@pytest.mark.parametrize("fields", CASES.values(), ids=CASES)
class TestEquations(EquationTests):
    run = staticmethod(run)


@pytest.mark.parametrize("switched", [False, True])
def test_the_numpy_loops_cover_both_sides_of_enrnns_switch(nets, switched):
    model = nets.generic("enrnn", scale=1.0 if switched else 0.01, hidden_size=7)
    assert bool(model.switched) is switched
    check(run, nets, nets.shapes(), {"name": "enrnn", "scale": 1.0 if switched else 0.01})
