"""What the NumPy forms of the models share, and the tests that hold a model to its form.

A NumPy form is `run(p, config, shapes, x)`: it returns logits and states of the parameters p, a
dict of arrays, by loops over sequences and steps.
"""

import numpy as np
import pytest
import torch

INPUTS = {
    "symbols": {"input_kind": "symbols", "readout": "all"},
    "values": {"input_kind": "values", "readout": "last"},
}
EMBEDDINGS = {
    "embedding of width n": {"encoder": "embedding"},
    "narrow embedding": {"encoder": "embedding", "embedding_size": 4},
}


def sigmoid(z):
    return 1 / (1 + np.exp(-z))


def encode(p, shapes, x_t):
    """Return the vector that meets U: of one symbol, or of the values of one step."""
    if shapes.input_kind == "symbols":
        x_t = np.eye(shapes.input_size)[x_t]
    if "embedding" in p:
        x_t = sum(x_t[k] * p["embedding"][k] for k in range(shapes.input_size))
    return x_t


def check(run, nets, shapes, fields):
    """Assert that a model with generic parameters gives what `run` gives, to ten digits."""
    model = nets.generic(**{"hidden_size": 7, **fields}, shapes=shapes)
    x = nets.input(shapes, steps=5, batch=2)
    x = x if shapes.input_kind == "symbols" else x.double()
    parameters = {k: v.detach().numpy().copy() for k, v in model.state_dict().items()}
    logits, _ = model(x)
    expected, states = run(parameters, model.config, shapes, x.numpy())
    np.testing.assert_allclose(logits.detach(), expected, atol=1e-10)
    np.testing.assert_allclose(model.states(x).detach(), states, atol=1e-10)
    return model, x, parameters


class EquationTests:
    """Tests of each case in `fields`; a subclass says which ones, and has `run`."""

    @pytest.mark.parametrize("inputs", INPUTS.values(), ids=INPUTS)
    def test_states_and_logits_are_the_papers_to_ten_digits(self, nets, fields, inputs):
        check(self.run, nets, nets.shapes(**inputs), fields)

    @pytest.mark.parametrize("embedding", EMBEDDINGS.values(), ids=EMBEDDINGS)
    def test_an_embedding_stands_before_the_input_matrix(self, nets, fields, embedding):
        check(self.run, nets, nets.shapes(), {**fields, **embedding})

    @pytest.mark.quick_cases(4)
    def test_gradients_agree_with_differences_of_the_numpy_loops(self, nets, fields):
        shapes = nets.shapes(input_size=3, output_size=2)
        model, x, parameters = check(self.run, nets, shapes, fields)
        weights = torch.randn(5, 2, 2, dtype=torch.float64)
        (model(x)[0] * weights).sum().backward()

        def loss():
            logits, _ = self.run(parameters, model.config, shapes, x.numpy())
            return (logits * weights.numpy()).sum()

        for name, parameter in model.named_parameters():
            entries = parameters[name].reshape(-1)
            picked = range(0, len(entries), max(1, len(entries) // 12))
            for i in picked:
                value, step = entries[i], 1e-6
                entries[i] = value + step
                above = loss()
                entries[i] = value - step
                slope = (above - loss()) / (2 * step)
                entries[i] = value
                found = parameter.grad.reshape(-1)[i].item()
                assert found == pytest.approx(slope, abs=2e-7, rel=1e-6), f"{name}[{i}]"
