"""What every model promises; a model that is registered is tested here without a further line."""

import copy
from functools import partial
from typing import get_args

import pytest
import torch

from eigensweep.models import MODELS
from eigensweep.models.matrices.orthogonal import orthogonality_error

TRAINED = [name for name in MODELS if not name.startswith("constructed")]
KINDS = [("symbols", "all"), ("values", "last")]
LARGE = {"orth": 1e-2, "main": 1e-2}
"""Learning rates ten times the largest of the papers' best settings."""
MOVING_BASE = {"trivialization": "dynamic", "rebase_every": 3, "project_every": 2}
VARIANTS = [
    *((name, {}) for name in TRAINED),
    ("exprnn", MOVING_BASE),
    ("asrnn", MOVING_BASE),
    ("asrnn", {"constrain_hh": False}),
    ("full_urnn", {"natgrad_rms": True, "recurrent_init": "polar"}),
    ("eurnn", {"capacity": 10, "complex": True}),
    ("goru", {"capacity": 10}),
    ("ornn", {"reflections": 10}),
    ("lt_rnn", {"pooling": True, "orthogonality_penalty": 1.0}),
]


def train(model, optimizers, batches):
    for x in batches:
        for optimizer in optimizers:
            optimizer.zero_grad()
        logits, _ = model(x)
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), x.flatten())
        (loss + model.penalty()).backward()
        for optimizer in optimizers:
            optimizer.step()
        model.after_update(LARGE)


def optimizers_of(model):
    made = []
    for group in model.param_groups():
        settings = {"params": group.params, "lr": LARGE.get(group.name, LARGE["main"])}
        made.append((group.rule or partial(torch.optim.RMSprop, alpha=0.9))([settings]))
    return made


@pytest.mark.parametrize("name", TRAINED)
class TestEveryModel:
    @pytest.mark.parametrize(("kind", "readout"), KINDS)
    def test_logits_have_the_shape_of_the_task(self, nets, name, kind, readout):
        model = nets.build(name, nets.shapes(input_kind=kind, readout=readout))
        logits, _ = model(nets.input(model.shapes))
        assert logits.shape == ((7, 3, 3) if readout == "all" else (3, 3))
        assert logits.dtype == torch.float32

    def test_a_sequence_in_two_halves_gives_the_same_states(self, nets, name):
        model = nets.generic(name)
        x = nets.input(model.shapes, steps=9)
        whole, end = model(x)
        first, state = model(x[:4])
        second, state = model(x[4:], state)
        torch.testing.assert_close(torch.cat([first, second]), whole, atol=1e-13, rtol=1e-14)
        torch.testing.assert_close(state, end, atol=1e-13, rtol=1e-14)
        middle = model(x[:4])[1]
        halves = torch.cat([model.states(x[:4]), model.states(x[4:], middle)])
        torch.testing.assert_close(halves, model.states(x), atol=1e-13, rtol=1e-14)

    def test_prepared_for_many_calls_it_gives_what_forward_gives(self, nets, name):
        model = nets.generic(name)
        run = model.prepare()
        x = nets.input(model.shapes)
        logits, state = run(x, None)
        assert torch.equal(logits, model(x)[0])
        assert torch.equal(run(x, state)[0], model(x, state)[0])

    def test_sequences_of_a_batch_do_not_meet(self, nets, name):
        model = nets.generic(name)
        x = nets.input(model.shapes)
        alone = torch.cat([model(x[:, j : j + 1])[0] for j in range(3)], 1)
        torch.testing.assert_close(model(x)[0], alone, atol=1e-12, rtol=0)

    def test_the_same_seed_builds_the_same_network(self, nets, name):
        one, two = (nets.build(name, seed=5).state_dict() for _ in range(2))
        other = nets.build(name, seed=6).state_dict()
        assert all(torch.equal(one[key], two[key]) for key in one)
        assert any(not torch.equal(one[key], other[key]) for key in one)

    def test_param_groups_hold_every_parameter_once(self, nets, name):
        model = nets.build(name)
        grouped = [id(p) for group in model.param_groups() for p in group.params]
        assert sorted(grouped) == sorted(id(p) for p in model.parameters())

    @pytest.mark.parametrize("value", [torch.nan, torch.inf, 1e30], ids=str)
    def test_a_diverged_network_is_reported_on_as_well(self, nets, name, value):
        model = nets.build(name)
        for parameter in model.parameters():
            parameter.data.fill_(value)
        model.after_update(LARGE)
        assert all(found.dim() == 0 for found in model.constraint_report().values())


@pytest.mark.parametrize(("name", "fields"), VARIANTS)
class TestTraining:
    @pytest.mark.quick_cases(12)
    def test_constraints_hold_at_ten_times_the_learning_rate(self, nets, name, fields):
        model = nets.build(name, nets.shapes(output_size=5), hidden_size=64, **fields)
        start = copy.deepcopy(model.state_dict())
        batches = [nets.input(model.shapes, steps=12) for _ in range(20)]
        train(model, optimizers_of(model), batches)
        report = model.constraint_report()
        assert any(not torch.equal(start[k], v) for k, v in model.state_dict().items())
        assert report.get("orthogonality_error", 0) < 1e-4
        assert report.get("short_radius", 0) <= 1 + 1e-4
        margin = getattr(model.config, "margin", 0)
        assert report.get("singular_max", 1) < 1 + margin + 1e-4
        assert report.get("singular_min", 1) > 1 - margin - 1e-4
        assert all(value.dim() == 0 and value.isfinite() for value in report.values())

    @pytest.mark.quick_cases(12)
    def test_saved_and_reloaded_it_goes_on_bit_for_bit(self, nets, name, fields, tmp_path):
        shapes = nets.shapes(output_size=5)
        batches = [nets.input(shapes) for _ in range(8)]
        model = nets.build(name, shapes, **fields)
        optimizers = optimizers_of(model)
        train(model, optimizers, batches[:5])
        saved = {"model": model.state_dict(), "optimizers": [o.state_dict() for o in optimizers]}
        torch.save(saved, tmp_path / "step-5.pt")
        train(model, optimizers, batches[5:])

        again = nets.build(name, shapes, seed=99, **fields)
        loaded = torch.load(tmp_path / "step-5.pt", weights_only=True)
        again.load_state_dict(loaded["model"])
        optimizers = optimizers_of(again)
        for optimizer, state in zip(optimizers, loaded["optimizers"], strict=True):
            optimizer.load_state_dict(state)
        train(again, optimizers, batches[5:])
        for key, value in model.state_dict().items():
            assert torch.equal(again.state_dict()[key], value), key


INITIAL_FIELDS = [
    (name, field)
    for name in TRAINED
    for field in MODELS[name].Config.model_fields
    if field.endswith("_init")
]


@pytest.mark.parametrize(("name", "field"), INITIAL_FIELDS)
@pytest.mark.quick_cases(20)
def test_a_field_of_initial_values_changes_the_model(nets, name, field):
    extra = {"encoder": "embedding"} if field == "embedding_init" else {}
    starts = [
        nets.build(name, **{field: value}, **extra).state_dict()
        for value in get_args(MODELS[name].Config.model_fields[field].annotation)
    ]
    first = starts[0]
    assert any(not torch.equal(start[key], first[key]) for start in starts[1:] for key in first)


@pytest.mark.parametrize("init", ["glorot", "orthogonal", "identity"])
@pytest.mark.parametrize("name", ["tanh_rnn", "modrelu_rnn", "irnn", "srnn"])
def test_free_matrices_start_as_their_name_says(nets, name, init):
    fields = {"hidden_size": 30, "recurrent_init": init}
    W = nets.build(name, scale=0.5, **fields).recurrent_matrix()
    assert torch.equal(W, 0.5 * nets.build(name, **fields).recurrent_matrix())
    singular = torch.linalg.svdvals(2 * W)
    assert (init == "glorot") is bool((singular - 1).abs().max() > 1e-5)
    assert (init == "identity") is torch.equal(2 * W, torch.eye(30))


@pytest.mark.parametrize("init", ["cayley", "henaff"])
def test_the_orthogonal_baseline_starts_where_exprnn_does(nets, init):
    W = nets.build("modrelu_rnn", recurrent_init=init).recurrent_matrix()
    pairs = [W[i : i + 2, i : i + 2] for i in range(0, 10, 2)]
    torch.testing.assert_close(W, torch.block_diag(*pairs))
    angles = torch.stack([torch.atan2(pair[0, 1], pair[0, 0]) for pair in pairs])
    assert angles.abs().max() <= (1 if init == "cayley" else torch.pi)
    assert orthogonality_error(W) < 1e-6


@pytest.mark.parametrize("init", ["glorot_uniform", "glorot_normal"])
@pytest.mark.parametrize(("name", "gates"), [("lstm", 4), ("gru", 3)])
def test_kernels_of_gated_networks_are_scaled_by_their_fans(nets, name, gates, init):
    shapes = nets.shapes(input_size=20)
    model = nets.build(name, shapes, hidden_size=60, recurrent_init=init)
    outputs = gates * 60 if init == "glorot_uniform" else 60
    for kernel in (model.U, model.R):
        assert kernel.std().item() == pytest.approx((2 / (80 + outputs)) ** 0.5, rel=0.05)


def test_biases_start_at_zero_but_an_lstms_forget_bias(nets):
    model = nets.build("lstm", forget_bias=-2)
    expected = torch.zeros(4, 10)
    expected[1] = -2
    assert torch.equal(model.b.detach(), expected.flatten())
    assert not nets.build("gru").b.any()


@pytest.mark.parametrize(("name", "limit"), [("cornn", 1 / 65**0.5), ("lem", 1 / 30**0.5)])
def test_an_ode_starts_uniform_as_the_authors_programs(nets, name, limit):
    model = nets.build(name, nets.shapes(input_kind="values"), hidden_size=30)
    for tensor in (model.U, model.R, model.b):
        assert 0.8 * limit < tensor.abs().max() <= limit
    deviation = (1 / 90 if name == "cornn" else 2 / 30) ** 0.5
    assert model.V.std().item() == pytest.approx(deviation, rel=0.2)
