"""Parameter counts as the papers print them, and sizes found from a budget."""

import pytest
import torch

from eigensweep.models import MODELS

TRAINED = [name for name in MODELS if not name.startswith("constructed")]
ADDING = {"input_size": 2, "output_size": 1, "input_kind": "values", "readout": "last"}
COPYING = {"input_size": 10, "output_size": 9}
TIMIT = {"input_size": 129, "output_size": 129, "input_kind": "values"}
MNIST = {"input_size": 1, "output_size": 10, "input_kind": "values", "readout": "last"}
PTB = {"input_size": 50, "output_size": 50}
CHARS = {"input_size": 49, "output_size": 49}
SELECTIVE = {"input_size": 16, "output_size": 15}
WIDE = {"encoder": "embedding", "embedding_size": 200}

COUNTS = [
    ("enrnn", ADDING, {"hidden_size": 160, "short_size": 64}, 15_441),
    ("enrnn", COPYING, {"hidden_size": 192, "short_size": 20}, 22_395),
    ("enrnn", TIMIT, {"hidden_size": 468, "short_size": 94, "coupled": False}, 199_928),
    ("enrnn", PTB, {"hidden_size": 1030, "short_size": 720, "encoder": "embedding"}, 893_575),
    ("scornn", ADDING, {"hidden_size": 170}, 15_046),
    ("scornn", COPYING, {"hidden_size": 190}, 21_764),
    ("scornn", TIMIT, {"hidden_size": 425}, 200_304),
    ("scornn", MNIST, {"hidden_size": 170}, 16_415),
    ("lstm", ADDING, {"hidden_size": 60}, 15_181),
    ("lstm", COPYING, {"hidden_size": 68}, 22_109),
    ("lstm", COPYING, {"hidden_size": 192}, 157_641),
    ("lstm", TIMIT, {"hidden_size": 158}, 202_527),
    ("lstm", TIMIT, {"hidden_size": 468}, 1_179_957),
    ("lstm", PTB, {"hidden_size": 350, "encoder": "embedding"}, 1_016_450),
    ("lstm", PTB, {"hidden_size": 1030, "encoder": "embedding"}, 8_594_370),
    ("gru", COPYING, {"hidden_size": 68}, 3 * 68 * (68 + 10 + 1) + 68 * 9 + 9),
    ("gru", CHARS, {"hidden_size": 415}, 3 * 415 * (415 + 49 + 1) + 415 * 49 + 49),
    ("exprnn", MNIST, {"hidden_size": 170}, 16_415),
    ("exprnn", MNIST, {"hidden_size": 360}, 68_950),
    ("exprnn", MNIST, {"hidden_size": 512}, 136_970),
    ("exprnn", COPYING, {"hidden_size": 190}, 21_764),
    ("exprnn", COPYING, {"hidden_size": 176}, 18_929),
    ("exprnn", PTB, {"hidden_size": 1386, **WIDE}, 1_317_741),
    ("lt_rnn", COPYING, {"hidden_size": 80}, 80**2 + 80 * 10 + 80 * 9),
    ("lt_rnn", COPYING, {"hidden_size": 80, "pooling": True}, 80**2 + 80 * 10 + 80 * 9 + 40 * 9),
    ("lt_rnn", ADDING, {"hidden_size": 128}, 128**2 + 128 * 2 + 128 + 128),
    ("urnn", MNIST, {"hidden_size": 512}, 16_394),
    ("urnn", COPYING, {"hidden_size": 470}, 22_569),
    ("full_urnn", ADDING, {"hidden_size": 120}, 15_481),
    ("full_urnn", COPYING, {"hidden_size": 128}, 21_641),
    ("eurnn", COPYING, {"hidden_size": 128}, 127 + 128 * 10 + 128 + 128 * 9 + 9),
    (
        "eurnn",
        COPYING,
        {"hidden_size": 128, "capacity": 128, "complex": True},
        128**2 + 2 * 128 * 10 + 128 + 128 * 9 + 9,
    ),
    (
        "eurnn",
        COPYING,
        {"hidden_size": 512, "style": "fft", "complex": True},
        512 * 9 + 512 + 2 * 512 * 10 + 512 + 512 * 9 + 9,
    ),
    (
        "goru",
        CHARS,
        {"hidden_size": 512, "style": "fft"},
        3 * 512 * 49 + 2 * 512**2 + 3 * 512 + 256 * 9 + 512 * 49 + 49,
    ),
    (
        "goru",
        COPYING,
        {"hidden_size": 90, "capacity": 8},
        3 * 90 * 10 + 2 * 90**2 + 3 * 90 + 4 * 89 + 90 * 9 + 9,
    ),
    ("ornn", ADDING, {"hidden_size": 128, "reflections": 16}, 2_569),
    ("ornn", CHARS, {"hidden_size": 512, "reflections": 500}, 182_499),
    ("ornn", CHARS, {"hidden_size": 512, "reflections": 512}, 182_577),
    ("spectral_rnn", ADDING, {"hidden_size": 60, "reflections": 16}, 1_981),
    ("spectral_rnn", ADDING, {"hidden_size": 60, "reflections": 60}, 3_961),
    ("asrnn", MNIST, {"hidden_size": 122}, 16_358),
    ("asrnn", MNIST, {"hidden_size": 257}, 69_143),
    ("asrnn", MNIST, {"hidden_size": 364}, 136_874),
    ("asrnn", COPYING, {"hidden_size": 138}, 21_813),
    ("asrnn", COPYING, {"hidden_size": 138, "constrain_hh": False}, 21_813 + 138 * 139 // 2),
    ("asrnn", PTB, {"hidden_size": 1024, **WIDE}, 1_315_650),
    ("nnrnn", COPYING, {"hidden_size": 128}, 18_889),
    ("nnrnn", COPYING, {"hidden_size": 128, "mask": "code"}, 18_889 + 64),
    ("nnrnn", MNIST, {"hidden_size": 512}, 268_042),
    ("nnrnn", PTB, {"hidden_size": 1024, **WIDE}, 1_315_138),
    ("modrelu_rnn", PTB, {"hidden_size": 1024, **WIDE}, 1_316_674),
    ("tanh_rnn", COPYING, {"hidden_size": 128}, 128**2 + 128 * 10 + 128 + 128 * 9 + 9),
    ("irnn", COPYING, {"hidden_size": 128}, 128**2 + 128 * 10 + 128 + 128 * 9 + 9),
    ("srnn", COPYING, {"hidden_size": 80}, 80**2 + 80 * 10 + 80 + 80 * 9),
    (
        "lru",
        COPYING,
        {"hidden_size": 32, "width": 16, "layers": 4},
        16 * 11 + 4 * (2 * 16 + 4 * 32 * 16 + 3 * 32 + 16 + 2 * 16 * 17) + 16 * 9 + 9,
    ),
    (
        "mingru",
        SELECTIVE,
        {"hidden_size": 384, "width": 64},
        64 * 17 + 3 * (64 + 2 * 384 * 65 + 64 * 385) + 64 + 64 * 15,
    ),
    (
        "minlstm",
        SELECTIVE,
        {"hidden_size": 384, "width": 64, "kernel_size": 4, "feed_forward": 4},
        64 * 17
        + 3 * (64 * 5 + 64 * 65 + 64 + 3 * 384 * 65 + 64 * 385 + 64 + 256 * 65 + 64 * 257)
        + (64 + 64 * 15),
    ),
    ("cornn", MNIST, {"hidden_size": 256}, 134_154),
    ("cornn", ADDING, {"hidden_size": 128}, 2 * 128**2 + 128 * 2 + 128 + 128 + 1),
    ("lem", MNIST, {"hidden_size": 128}, 67_850),
    ("lem", CHARS, {"hidden_size": 64, **WIDE}, 49 * 200 + 4 * 64 * (64 + 200 + 1) + 65 * 49),
]
PUBLISHED_SHARES = [
    ("scornn", {"hidden_size": 170, "negative_fraction": 0.7}, {"negative_ones": 119}),
    ("scornn", {"hidden_size": 190, "negative_fraction": 0.5}, {"negative_ones": 95}),
    ("scornn", {"hidden_size": 425, "negative_fraction": 0.1}, {"negative_ones": 43}),
    ("scornn", {"hidden_size": 45, "negative_fraction": 0.7}, {"negative_ones": 32}),
    ("enrnn", {"hidden_size": 160, "short_fraction": 0.4, "negative_fraction": 0.3}, (64, 29)),
    ("enrnn", {"hidden_size": 192, "short_fraction": 0.1, "negative_fraction": 0.3}, (20, 52)),
    ("enrnn", {"hidden_size": 468, "short_fraction": 0.2, "negative_fraction": 1.0}, (94, 374)),
    ("enrnn", {"hidden_size": 1030, "short_fraction": 0.7, "negative_fraction": 0.6}, (720, 186)),
]
VARIANTS = [
    ("tanh_rnn", {}),
    ("modrelu_rnn", {}),
    ("modrelu_rnn", {"encoder": "embedding"}),
    ("irnn", {"scale": 0.1}),
    ("srnn", {}),
    ("srnn", {"readout_bias": True}),
    ("scornn", {}),
    ("scornn", {"encoder": "embedding"}),
    ("scornn", {"encoder": "embedding", "embedding_size": 4}),
    ("enrnn", {"short_fraction": 0.4}),
    ("enrnn", {"short_fraction": 0.4, "coupled": False, "encoder": "embedding"}),
    ("nnrnn", {}),
    ("nnrnn", {"mask": "code"}),
    ("ornn", {}),
    ("spectral_rnn", {"seed": 1}),
    ("urnn", {}),
    ("urnn", {"encoder": "embedding"}),
    ("eurnn", {"capacity": 6}),
    ("eurnn", {"encoder": "embedding"}),
    ("eurnn", {"capacity": 10, "complex": True}),
    ("eurnn", {"hidden_size": 8, "style": "fft", "complex": True, "encoder": "embedding"}),
    ("goru", {"encoder": "embedding"}),
    ("goru", {"hidden_size": 8, "style": "fft"}),
    ("lt_rnn", {}),
    ("lt_rnn", {"pooling": True, "readout_bias": True}),
    ("asrnn", {}),
    ("asrnn", {"constrain_hh": False, "form": "direct"}),
    ("exprnn", {}),
    ("exprnn", {"trivialization": "dynamic"}),
    ("lstm", {}),
    ("lstm", {"peephole": "diagonal", "encoder": "embedding"}),
    ("lstm", {"peephole": "output_full", "readout_from": "cell"}),
    ("gru", {}),
    ("gru", {"variant": "cho", "encoder": "embedding"}),
    ("lru", {"layers": 2, "width": 4, "encoder": "embedding"}),
    ("mingru", {"layers": 2, "kernel_size": 3}),
    ("mingru", {"width": 4, "feed_forward": 2, "encoder": "embedding"}),
    ("minlstm", {}),
    ("cornn", {}),
    ("cornn", {"encoder": "embedding", "embedding_size": 4}),
    ("lem", {}),
    ("lem", {"encoder": "embedding"}),
]


@pytest.mark.parametrize(("name", "shapes", "fields", "count"), COUNTS)
def test_free_parameters_are_counted_as_in_the_papers(nets, name, shapes, fields, count):
    shapes = nets.shapes(**shapes)
    config = nets.config(name, **fields).resolve(shapes)
    assert config.free_parameters(shapes) == count


@pytest.mark.parametrize(("name", "fields", "expected"), PUBLISHED_SHARES)
def test_shares_become_the_papers_counts_of_units(nets, name, fields, expected):
    config = MODELS[name].Config(**fields).resolve(nets.shapes())
    if isinstance(expected, tuple):
        expected = dict(zip(("short_size", "negative_ones"), expected, strict=True))
    assert {field: getattr(config, field) for field in expected} == expected


def test_an_odd_all_short_model_is_given_as_long_size_zero(nets):
    config = nets.config("enrnn", hidden_size=9, short_fraction=1.0, negative_ones=0)
    assert config.resolve(nets.shapes()).short_size == 8
    whole = nets.config("enrnn", hidden_size=9, short_size=9, negative_ones=0)
    assert whole.resolve(nets.shapes()).long == 0


@pytest.mark.parametrize(("name", "fields"), VARIANTS)
def test_the_free_count_is_that_of_entries_with_a_gradient(nets, name, fields):
    model = nets.generic(name, **fields)
    if model.b is not None:
        model.b.data.abs_()  # no unit is dead
    logits, _ = model(nets.input(nets.shapes(), steps=30, batch=8))
    logits.pow(2).sum().backward()
    moved = sum(int((p.grad != 0).sum()) for p in model.parameters())
    assert moved == model.count_parameters("free")


@pytest.mark.parametrize("name", TRAINED)
def test_a_resolved_config_survives_json_and_resolves_to_itself(nets, name):
    resolved = nets.config(name, parameters=900).resolve(nets.shapes())
    assert type(resolved).model_validate_json(resolved.model_dump_json()) == resolved
    assert resolved.resolve(nets.shapes()) == resolved


@pytest.mark.parametrize(
    ("name", "fields", "size"),
    [
        ("scornn", {"negative_fraction": 0.5}, 191),
        ("lstm", {}, 67),
        ("gru", {}, 78),
        ("enrnn", {"short_fraction": 0.1}, 190),
        ("exprnn", {}, 191),
        ("asrnn", {}, 138),
        ("nnrnn", {}, 138),
        ("urnn", {}, 458),
        ("full_urnn", {}, 129),
        ("goru", {"style": "fft"}, 64),
    ],
)
def test_a_budget_of_22_thousand_gives_about_the_papers_sizes(nets, name, fields, size):
    config = nets.config(name, parameters=22_000, **fields).resolve(nets.shapes(**COPYING))
    assert config.hidden_size == size


@pytest.mark.parametrize("share", [0.0, 0.1, 0.3, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("coupled", [True, False])
def test_a_budget_gives_the_largest_size_that_fits(nets, share, coupled):
    shapes = nets.shapes(input_size=1, output_size=1)
    fields = {"short_fraction": share, "coupled": coupled}
    counts = {
        n: nets.config("enrnn", hidden_size=n, **fields).resolve(shapes).free_parameters(shapes)
        for n in range(1, 120)
    }
    for budget in range(10, 1_500, 7):
        found = nets.config("enrnn", parameters=budget, **fields).resolve(shapes).hidden_size
        assert found == max(n for n, count in counts.items() if count <= budget)


def test_a_budget_respects_counts_given_beside_it(nets):
    config = nets.config("enrnn", parameters=2_000, short_size=30, negative_ones=2)
    resolved = config.resolve(nets.shapes())
    assert resolved.short_size == 30
    assert resolved.hidden_size > 32
    with pytest.raises(ValueError, match="with 32 hidden units has 1252 free parameters here"):
        config.model_copy(update={"parameters": 1_000}).resolve(nets.shapes())


@pytest.mark.parametrize(
    ("name", "fields", "words"),
    [
        ("tanh_rnn", {}, "exactly one of 'hidden_size' and 'parameters'; neither"),
        ("tanh_rnn", {"hidden_size": 3, "parameters": 9}, "'parameters'; both"),
        ("scornn", {"hidden_size": 3}, "exactly one of 'negative_ones' and 'negative_fraction'"),
        ("scornn", {"hidden_size": 3, "negative_ones": 4}, "'negative_ones' is 4; .* 0 to 3"),
        ("enrnn", {"hidden_size": 3, "negative_ones": 0}, "'short_size' and 'short_fraction'"),
        (
            "enrnn",
            {"hidden_size": 4, "negative_ones": 0, "short_size": 5},
            "'short_size' is 5; allowed are 0 to 4, the hidden size",
        ),
        (
            "enrnn",
            {"hidden_size": 4, "negative_ones": 3, "short_size": 2},
            "'negative_ones' is 3; allowed are 0 to 2, the size of the long state",
        ),
        ("lstm", {"hidden_size": 3, "embedding_size": 2}, "set 'encoder: embedding'"),
        ("exprnn", {"hidden_size": 3, "project_every": 2}, "set 'trivialization: dynamic'"),
        ("asrnn", {"hidden_size": 7, "a": 1, "b": 0.5}, "'a' is 1.0; allowed is up to 'b', 0.5"),
        ("asrnn", {"hidden_size": 7, "a": 0, "b": 0, "eps": 0}, "'eps' is above 0"),
        ("lt_rnn", {"hidden_size": 7, "pooling": True}, "allowed are multiples of 2, such as 8"),
        ("constructed_copying", {"hidden_size": 8}, "copying: blank, symbols and a delimiter in"),
        ("constructed_adding", {}, "a value and its marker in, their sum out"),
        ("ornn", {"hidden_size": 7, "reflections": 8}, "'reflections' is 8; allowed are 1 to 7"),
        ("spectral_rnn", {"hidden_size": 7}, "'reflections' is 16; allowed are 1 to 7"),
        ("nnrnn", {"hidden_size": 7}, "'hidden_size' is 7; allowed are multiples of 2, such as 8"),
        ("eurnn", {"hidden_size": 7}, "'hidden_size' is 7; allowed are multiples of 2, such as 8"),
        ("goru", {"hidden_size": 12}, "'hidden_size' is 12; .* powers of two from 2, such as 8"),
        ("goru", {"hidden_size": 1}, "'hidden_size' is 1; .* powers of two from 2, such as 2"),
        ("goru", {"hidden_size": 8, "capacity": 4}, "set 'style: tunable' or leave 'capacity' out"),
        (
            "eurnn",
            {"hidden_size": 8, "capacity": 10},
            "'capacity' is 10; allowed are even numbers from 2 to 8, the hidden size",
        ),
        (
            "eurnn",
            {"parameters": 10**4, "capacity": 5},
            "'capacity' is 5; allowed are even numbers from 2 to the hidden size",
        ),
    ],
)
def test_contradicting_fields_are_refused_with_what_is_allowed(nets, name, fields, words):
    with pytest.raises(ValueError, match=words):
        MODELS[name].Config(**fields).resolve(nets.shapes())


def test_an_embedding_of_values_is_refused(nets):
    config = nets.config("lstm", encoder="embedding")
    with pytest.raises(ValueError, match="looks symbols up"):
        config.resolve(nets.shapes(input_kind="values"))


def test_a_unitary_matrix_stores_twice_its_n_squared_freedoms(nets):
    model = nets.build("full_urnn")
    assert model.count_parameters("stored") == model.count_parameters("free") + 10**2


def test_a_capacity_beside_a_budget_bounds_the_size_from_below(nets):
    config = nets.config("eurnn", parameters=2_000, capacity=40).resolve(nets.shapes())
    assert config.hidden_size == 68
    with pytest.raises(ValueError, match="with 40 hidden units has 1143 free parameters here"):
        nets.config("eurnn", parameters=1_000, capacity=40).resolve(nets.shapes())


def test_a_built_model_stores_what_its_config_counts(nets):
    model = nets.build("lstm", nets.shapes(**COPYING), hidden_size=68)
    assert model.count_parameters("stored") == model.count_parameters("free") == 22_109
    orthogonal = nets.build("scornn")
    below = 10 * 11 // 2
    assert orthogonal.count_parameters("stored") == orthogonal.count_parameters("free") + below
    assert torch.equal(orthogonal.A.detach().tril(), torch.zeros(10, 10))
