"""uRNN, EURNN and GORU again, in NumPy loops over units and steps, from the papers alone."""

import numpy as np
import pytest
from helpers.equations import EquationTests, encode, sigmoid

CASES = {
    "urnn": {"name": "urnn"},
    "full_urnn": {"name": "full_urnn"},
    "eurnn": {"name": "eurnn", "hidden_size": 6, "capacity": 4},
    "eurnn of two units": {"name": "eurnn", "hidden_size": 2},
    "eurnn fft": {"name": "eurnn", "hidden_size": 8, "style": "fft"},
    "eurnn complex": {"name": "eurnn", "hidden_size": 6, "capacity": 6, "complex": True},
    "eurnn fft complex": {"name": "eurnn", "hidden_size": 8, "style": "fft", "complex": True},
    "goru": {"name": "goru", "hidden_size": 8, "style": "fft"},
    "goru tunable": {"name": "goru", "hidden_size": 6, "capacity": 4},
}


def join(parts):
    """Return Re + i Im of rows that hold the real parts and then the imaginary ones."""
    half = len(parts) // 2
    return parts[:half] + 1j * parts[half:]


def restricted_matrix(p, n):
    grid = np.arange(n)
    F = np.exp(-2j * np.pi * np.outer(grid, grid) / n) / np.sqrt(n)
    D = [np.diag(np.exp(1j * theta)) for theta in p["theta"]]
    R = []
    for v in map(join, p["v"]):
        R.append(np.eye(n) - 2 * np.outer(v, v.conj()) / sum(abs(v_i) ** 2 for v_i in v))
    P = np.zeros((n, n))
    for j in range(n):
        P[j, p["permutation"][j]] = 1
    return D[2] @ R[1] @ F.conj().T @ D[1] @ P @ R[0] @ F @ D[0]


def pair(n, a, b, theta, phi):
    """Return the rotation of units a and b alone, (n, n)."""
    M = np.eye(n, dtype=complex)
    M[a, a], M[a, b] = np.cos(theta), -np.exp(1j * phi) * np.sin(theta)
    M[b, a], M[b, b] = np.sin(theta), np.exp(1j * phi) * np.cos(theta)
    return M


def rotations(p, config):
    n = config.hidden_size
    W = np.eye(n, dtype=complex)
    no_phases = {name: np.zeros_like(v) for name, v in p.items() if name.startswith("theta")}
    angles = {**{k.replace("theta", "phi"): v for k, v in no_phases.items()}, **p}
    if config.style == "fft":
        for k in range(n.bit_length() - 1):
            size = n // 2**k
            for g in range(2**k):
                for o in range(size // 2):
                    index, a = o * 2**k + g, g * size + o
                    at = angles["theta"][k, index], angles["phi"][k, index]
                    W = pair(n, a, a + size // 2, *at) @ W
    else:
        for layer in range(config.capacity // 2):
            for kind, first in (("even", 0), ("odd", 1)):
                for j in range(n // 2 - first):
                    at = angles[f"theta_{kind}"][layer, j], angles[f"phi_{kind}"][layer, j]
                    W = pair(n, 2 * j + first, 2 * j + first + 1, *at) @ W
    if "omega" in p:
        return np.diag(np.exp(1j * p["omega"])) @ W
    return W.real


def smoothed_modrelu(z, b):
    r = np.sqrt(z.real**2 + z.imag**2 + 1e-5)
    return z * max(r + b, 0) / (r + 1e-5)


def shifted_modrelu(z, b):
    return z / (abs(z) + 0.01) * max(abs(z) + 0.01 + b, 0)


def real(eps):
    return lambda z, b: np.sign(z) * max(abs(z) + eps + b, 0)


def each(activation, z, b):
    return np.array([activation(z_i, b_i) for z_i, b_i in zip(z, b, strict=True)])


def cell(p, config, U):
    """Return (step, what is read out of a state, h_0)."""
    n, name = config.hidden_size, config.name
    if name == "goru":
        W, (U_r, U_g, U_c) = rotations(p, config), np.split(U, 3)
        (W_r, W_g), (b_r, b_g, b_c) = np.split(p["R"], 2), np.split(p["b"], 3)

        def gated_step(x, h):
            r = sigmoid(U_r @ x + W_r @ h + b_r)
            z = sigmoid(U_g @ x + W_g @ h + b_g)
            return z * h + (1 - z) * each(real(0.001), U_c @ x + r * (W @ h), b_c)

        return gated_step, lambda h: h, np.zeros(n)
    if name == "eurnn" and not config.complex:
        W = rotations(p, config)
        return lambda x, h: each(real(0.01), U @ x + W @ h, p["b"]), lambda h: h, np.zeros(n)
    U = join(U)
    if name == "eurnn":
        W = rotations(p, config)
        return lambda x, h: each(shifted_modrelu, U @ x + W @ h, p["b"]), np.real, np.zeros(n)
    W = restricted_matrix(p, n) if name == "urnn" else p["W"][0] + 1j * p["W"][1]
    step = lambda x, h: each(smoothed_modrelu, U @ x + W @ h, p["b"])  # noqa: E731
    return step, lambda h: np.concatenate((h.real, h.imag)), join(p["h0"])


def run(p, config, shapes, x):
    """Return (logits, states) of parameters p, by loops over sequences and steps."""
    step, read, h0 = cell(p, config, p.get("U", np.eye(config.hidden_size)))
    logits, states = [], []
    for j in range(x.shape[1]):
        h, H = h0, []
        for x_t in x[:, j]:
            h = step(encode(p, shapes, x_t), h)
            H.append(h)
        states.append(H)
        logits.append([p["V"] @ read(h) + p["c"] for h in H])
    logits, states = (np.swapaxes(np.array(v), 0, 1) for v in (logits, states))
    return (logits[-1] if shapes.readout == "last" else logits), states


@pytest.mark.parametrize("fields", CASES.values(), ids=CASES)
class TestEquations(EquationTests):
    run = staticmethod(run)

    def test_the_matrix_of_the_model_is_the_one_of_the_loops(self, nets, fields):
        model = nets.generic(**{"hidden_size": 7, **fields})
        p = {k: v.detach().numpy() for k, v in model.state_dict().items()}
        if "W" in p:
            W = p["W"][0] + 1j * p["W"][1]
        else:
            W = restricted_matrix(p, 7) if "permutation" in p else rotations(p, model.config)
        np.testing.assert_allclose(model.recurrent_matrix().detach(), W, atol=1e-12)
