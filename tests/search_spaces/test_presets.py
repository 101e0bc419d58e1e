"""The presets: complete, runnable, and what the paper prints."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

import pytest

from eigensweep.analyses import ANALYSES
from eigensweep.search_spaces.checks.checks import check_spec
from eigensweep.search_spaces.checks.preview import preview
from eigensweep.search_spaces.errors import CorpusError, UnknownPresetError
from eigensweep.search_spaces.shipped.presets import load_preset, preset_names
from eigensweep.search_spaces.spec import ExperimentSpec

PUBLISHED_SIZES = {
    "adding-enrnn-best": 15_441,
    "adding-scornn-best": 15_046,
    "adding-lstm-best": 15_181,
    "copying-enrnn-best": 22_395,
    "copying-scornn-best": 21_764,
    "copying-lstm-best": 22_109,
    "copying-lstm-large-best": 157_641,
    "copying-full-urnn-best": 21_641,
    "adding-spectral-rnn-best": 1_981,
    "adding-ornn-best": 2_569,
    "adding-full-urnn-best": 15_481,
    "ptb-enrnn-best": 893_575,
    "ptb-lstm-best": 1_016_450,
    "ptb-lstm-large-best": 8_594_370,
    "timit-enrnn-best": 199_928,
    "timit-scornn-best": 200_304,
    "timit-lstm-best": 202_527,
    "timit-lstm-large-best": 1_179_957,
}

OTHER_SIZES = {
    ("enrnn", 893_575): "1016k",
    ("eurnn", 526_145): "1.32M",
}
"""Sizes that the papers' own settings do not have, beside what they print; the presets say so."""

MEASURED_AS = ("valid/", "test/", "best_test/", "test_now/", "train/")


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

    @pytest.mark.quick_cases(40)
    def test_none_of_its_points_is_invalid(self, name):
        preset = load_preset(name)
        for point in preset.space():
            preset.trial(point)


@pytest.mark.parametrize(("name", "size"), PUBLISHED_SIZES.items())
def test_a_best_setting_is_one_trial_of_the_published_size(name, size):
    found = preview(load_preset(f"enrnn/{name}"))
    assert found.trials == 1
    assert found.arms[0].largest_parameters == size


def read_count(printed: str) -> float:
    """Return a number of parameters as papers print it.

    >>> read_count("1.32M"), read_count("16k"), read_count("15000")
    (1320000.0, 16000.0, 15000.0)
    """
    factor = {"k": 1e3, "m": 1e6}.get(printed[-1].lower())
    return float(printed) if factor is None else float(printed[:-1]) * factor


@pytest.mark.parametrize("name", [name for name in preset_names() if load_preset(name).published])
class TestPublishedNumbers:
    def test_an_arm_has_the_parameters_that_the_paper_prints(self, name):
        preset = load_preset(name)
        if preset.trial_count() > 50:
            return  # a searched grid holds other sizes, too
        sizes = {arm.name: arm.largest_parameters for arm in preview(preset).arms}
        for number in preset.published:
            printed = str(number.value) if number.metric == "parameters" else number.parameters
            if number.arm is None or printed is None:
                continue
            if printed == OTHER_SIZES.get((number.arm, sizes[number.arm])):
                continue
            if number.note is not None and f"{sizes[number.arm]:,}" in number.note:
                continue
            assert sizes[number.arm] == pytest.approx(read_count(printed), rel=0.04), number.arm

    def test_a_number_can_be_measured_and_says_where_it_stands(self, name):
        preset = load_preset(name)
        metrics = {metric.name for metric in preset.task.metrics}
        for number in preset.published:
            assert number.place
            if number.metric in ("parameters", "baseline", "seconds_per_step"):
                continue
            assert number.metric.startswith(MEASURED_AS)
            assert number.metric.partition("/")[2] in metrics
            tests_at_evaluations = number.metric.startswith(("best_test/", "test_now/"))
            assert preset.training.test_every_evaluation or not tests_at_evaluations


def test_each_figure_and_table_has_a_preset_or_an_analysis():
    page = (Path(__file__).parents[2] / "docs" / "reference" / "papers.md").read_text("utf-8")
    rows = [line.split(" | ") for line in page.splitlines() if line.startswith("| ")]
    rows = [row for row in rows if len(row) == 4 and row[0] not in ("| what", "| ---")]
    assert len(rows) == 32
    known = {*preset_names(), *ANALYSES}
    for row in rows:
        named = re.findall(r"`([^`]+)`", row[1])
        assert named
        assert set(named) <= known


@pytest.mark.parametrize(
    "name",
    [
        "adding-enrnn",
        "adding-full-urnn",
        "adding-ornn",
        "adding-scornn",
        "adding-spectral-rnn",
        "copying-enrnn",
        "copying-full-urnn",
        "copying-scornn",
        "ptb-enrnn",
        "timit-enrnn",
        "timit-scornn",
    ],
)
def test_the_best_setting_is_a_point_of_the_searched_grid(name):
    searched, best = load_preset(f"enrnn/{name}"), load_preset(f"enrnn/{name}-best")
    wanted = best.trial(best.space().point(0)).content_hash()
    assert any(searched.trial(point).content_hash() == wanted for point in searched.space())


@pytest.mark.parametrize("name", ["adding-lstm", "ptb-lstm", "timit-lstm"])
def test_the_lstms_best_setting_is_a_point_of_the_searched_grid(name):
    searched, best = load_preset(f"enrnn/{name}"), load_preset(f"enrnn/{name}-best")
    wanted = best.trial(best.space().point(0)).content_hash()
    assert any(searched.trial(point).content_hash() == wanted for point in searched.space())


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
def test_the_preset_of_spoken_digits_compares_equal_sizes(data_root):
    preset = load_preset("speech/fsdd")
    check_spec(preset, data_root)
    sizes = [arm.largest_parameters for arm in preview(preset).arms]
    assert max(sizes) < 1.01 * min(sizes)
