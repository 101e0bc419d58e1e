"""The presets: complete, runnable, and what the paper prints."""

from __future__ import annotations

from contextlib import suppress

import pytest

from eigensweep.search_spaces.checks import check_spec
from eigensweep.search_spaces.errors import CorpusError, UnknownPresetError
from eigensweep.search_spaces.presets import load_preset, preset_names
from eigensweep.search_spaces.preview import preview
from eigensweep.search_spaces.spec import ExperimentSpec

PUBLISHED_SIZES = {
    "adding-enrnn-best": 15_441,
    "adding-scornn-best": 15_046,
    "adding-lstm-best": 15_181,
    "copying-enrnn-best": 22_395,
    "copying-scornn-best": 21_764,
    "copying-lstm-best": 22_109,
    "copying-lstm-large-best": 157_641,
    "ptb-enrnn-best": 893_575,
    "ptb-lstm-best": 1_016_450,
    "ptb-lstm-large-best": 8_594_370,
    "timit-enrnn-best": 199_928,
    "timit-scornn-best": 200_304,
    "timit-lstm-best": 202_527,
    "timit-lstm-large-best": 1_179_957,
}

PUBLISHED_THOUSANDS = {
    "nnrnn/copying": {"nnrnn": 18.9},
    "asrnn/copying-1000": {"asrnn": 22, "exprnn": 22, "scornn": 22, "lstm": 22},
    "asrnn/permuted-mnist-16k": {"asrnn": 16, "exprnn": 16, "scornn": 16},
    "asrnn/permuted-mnist-69k": {"asrnn": 69, "exprnn": 69, "scornn": 69, "lstm": 68},
    "asrnn/permuted-mnist-137k": {"asrnn": 137, "exprnn": 137, "scornn": 137},
    "asrnn/ptb-150": dict.fromkeys(["lstm", "asrnn", "nnrnn", "exprnn", "rnn_orth", "rnn"], 1320),
}
"""LSTM on MNIST: the paper's 69 thousand count two biases for each gate."""


@pytest.mark.parametrize("name", preset_names())
class TestEveryPreset:
    def test_it_is_named_as_its_file_and_says_where_it_comes_from(self, name):
        preset = load_preset(name)
        assert preset.name == name
        assert preset.source
        assert preset.description

    def test_it_passes_every_check(self, name):
        preset = load_preset(name)
        with suppress(CorpusError):
            check_spec(preset, None)
        for arm in preview(preset).arms:
            assert arm.largest_parameters is not None

    def test_none_of_its_points_is_invalid(self, name):
        preset = load_preset(name)
        for point in preset.space():
            preset.trial(point)


@pytest.mark.parametrize(("name", "size"), PUBLISHED_SIZES.items())
def test_a_best_setting_is_one_trial_of_the_published_size(name, size):
    found = preview(load_preset(f"enrnn/{name}"))
    assert found.trials == 1
    assert found.arms[0].largest_parameters == size


@pytest.mark.parametrize(("name", "thousands"), PUBLISHED_THOUSANDS.items())
def test_the_arms_of_a_comparison_have_the_published_sizes(name, thousands):
    found = {arm.name: arm.largest_parameters for arm in preview(load_preset(name)).arms}
    for arm, size in thousands.items():
        assert found[arm] == pytest.approx(1000 * size, rel=0.04), arm


@pytest.mark.parametrize(
    "name",
    [
        "adding-enrnn",
        "adding-scornn",
        "copying-enrnn",
        "copying-scornn",
        "ptb-enrnn",
        "timit-enrnn",
        "timit-scornn",
    ],
)
def test_the_best_setting_is_a_point_of_the_searched_grid(name):
    searched, best = load_preset(f"enrnn/{name}"), load_preset(f"enrnn/{name}-best")
    wanted = best.trial(best.space().point(0)).content_hash()
    assert wanted in {searched.trial(point).content_hash() for point in searched.space()}


@pytest.mark.parametrize("name", ["adding-lstm", "ptb-lstm", "timit-lstm"])
def test_the_lstms_best_setting_is_a_point_of_the_searched_grid(name):
    searched, best = load_preset(f"enrnn/{name}"), load_preset(f"enrnn/{name}-best")
    wanted = best.trial(best.space().point(0)).content_hash()
    assert wanted in {searched.trial(point).content_hash() for point in searched.space()}


@pytest.mark.parametrize("name", [name for name in preset_names() if "copying" in name])
def test_a_copying_preset_runs_at_a_shorter_delay_too(name):
    content = load_preset(name).model_dump(mode="json")
    content["task"]["delay"] = 100
    shorter = ExperimentSpec.model_validate(content)
    check_spec(shorter)
    assert shorter.task.sequence_length == 120


def test_the_quick_start_compares_three_models_of_equal_size():
    found = preview(load_preset("quickstart"))
    assert [arm.model for arm in found.arms] == ["scornn", "enrnn", "lstm"]
    assert [arm.points for arm in found.arms] == [3, 3, 3]
    sizes = [arm.largest_parameters for arm in found.arms]
    assert max(sizes) < 1.05 * min(sizes)


def test_the_quick_starts_curves_have_at_least_ten_points():
    quick = load_preset("quickstart")
    training = quick.trial(quick.space().point(0)).training
    assert training.steps // training.evaluate_every >= 10


def test_an_unknown_preset_is_refused_with_the_nearest_name():
    with pytest.raises(UnknownPresetError, match="did you mean 'enrnn/copying'"):
        load_preset("enrnn/copyin")


@pytest.mark.parametrize(
    "name", ["../trial", "/etc/passwd", "enrnn", "enrnn/", "", "enrnn/../quickstart"]
)
def test_a_name_never_becomes_a_path(name):
    with pytest.raises(UnknownPresetError):
        load_preset(name)


@pytest.mark.data
def test_the_treebank_presets_find_their_corpus(data_root):
    check_spec(load_preset("enrnn/ptb"), data_root)


@pytest.mark.data
def test_the_preset_of_spoken_digits_finds_its_corpus_and_compares_models_of_equal_size(data_root):
    preset = load_preset("speech/fsdd")
    check_spec(preset, data_root)
    sizes = [arm.largest_parameters for arm in preview(preset).arms]
    assert max(sizes) < 1.01 * min(sizes)
