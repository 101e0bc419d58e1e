"""The spec: one form for POST, YAML, preset and store; a point becomes a configuration."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from eigensweep.client.spec_file import parse_settings, read
from eigensweep.models import MODELS
from eigensweep.search_spaces.checks.checks import check_spec
from eigensweep.search_spaces.checks.preview import preview
from eigensweep.search_spaces.checks.warm_start import OUTSIDE, find_point
from eigensweep.search_spaces.errors import InvalidPointError, SeveralErrors, SpecError
from eigensweep.search_spaces.shipped.presets import load_preset, preset_names
from eigensweep.search_spaces.space import Point
from eigensweep.search_spaces.spec import ExperimentSpec, read_spec
from eigensweep.search_spaces.spec_text import read_text
from eigensweep.search_spaces.trial import TrialConfig

YAML = """
task: {name: copying, delay: 20}
model: {name: scornn, hidden_size: 32}
optimizer: {name: rmsprop, lr: 1e-3}
training: {steps: 1000, evaluate_every: 30}
search:
  space:
    optimizer.lr: [1e-3, 1e-4]
    optimizer.alpha: {low: 0.5, high: 0.9, step: 0.2}
    model.negative_fraction: {choices: [0.0, 0.5], when: {optimizer.lr: 1e-3}}
    model.negative_ones: {low: 1, high: 3, when: {optimizer.lr: 1e-4}}
"""


SEARCHED = {"optimizer.lr": [0.1, 0.2], "model.hidden_size": [4, 8]}


def spec(**changes):
    content = {
        "task": {"name": "copying", "delay": 20},
        "model": {"name": "scornn", "hidden_size": 32, "negative_ones": 3},
        "training": {"steps": 1000},
    }
    return ExperimentSpec.model_validate({**content, **changes})


def test_yaml_is_the_same_spec_as_its_json_and_survives_it():
    read = read_spec(YAML)
    again = ExperimentSpec.model_validate_json(read.model_dump_json())
    assert again == read
    assert list(again.space()) == list(read.space())
    assert again.model_dump_json() == read.model_dump_json()
    check_spec(read)


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_survives_json(name):
    preset = load_preset(name)
    assert ExperimentSpec.model_validate_json(preset.model_dump_json()) == preset


def test_numbers_that_yaml_reads_as_texts_are_numbers():
    read = read_spec(YAML)
    assert read.optimizer.lr == 1e-3
    assert read.search.space["optimizer.lr"].values == (1e-3, 1e-4)
    assert read.space().count() == (2 + 3) * 3


def test_spec_files_settings_and_presets_are_read_alike(tmp_path):
    text = "{lr: 1e-3, list: [1E3, -1.5e-2, .5, 7], day: 2020-01-01}"
    expected = {"lr": 0.001, "list": [1000.0, -0.015, 0.5, 7], "day": "2020-01-01"}
    file = tmp_path / "spec.yaml"
    file.write_text(text)
    assert read_text(text) == expected
    assert read(file) == expected
    assert parse_settings([f"task={text}"]) == {"task": expected}


@pytest.mark.parametrize("text", ["1e-3", "1E3", ".5", "yes", "2020-01-01", "1_000", "'1e-3'"])
def test_a_value_means_the_same_in_a_spec_and_in_a_setting(text):
    with pytest.raises(ValidationError) as caught:
        read_spec(f"{{task: {{name: copying}}, unknown: {text}}}")
    wrong = next(e for e in caught.value.errors() if e["loc"] == ("unknown",))
    assert {"unknown": wrong["input"]} == parse_settings([f"unknown={text}"])


def test_a_text_that_is_no_object_is_refused():
    for text in ("[1, 2]", "a: [", ""):
        with pytest.raises(SpecError):
            read_spec(text)


@settings(max_examples=200)
@given(st.integers(min_value=0, max_value=14))
def test_each_point_is_a_whole_configuration_even_as_json(index):
    read = read_spec(YAML)
    config = read.trial(read.space().point(index))
    assert config == config.resolve()
    assert config.model.negative_ones is not None
    assert config.model.negative_fraction is None
    assert config.optimizer.lr_orth == config.optimizer.lr
    again = TrialConfig.from_dict(config.model_dump(mode="json"))
    assert again == config
    assert again.content_hash() == config.content_hash()


def test_a_point_reaches_all_four_sections():
    params = {
        "model.hidden_size": 40,
        "optimizer.clip_norm": 1.5,
        "task.delay": 7,
        "training.steps": 12,
    }
    config = spec().trial(Point("scornn", params))
    assert config.model.hidden_size == 40
    assert config.optimizer.clip_norm == 1.5
    assert config.task.delay == 7
    assert config.training.steps == 12


def test_a_search_varies_items_of_a_list_and_leaves_the_others():
    space = {"optimizer.betas.0": [0.5, 0.8], "optimizer.betas.1": [0.99]}
    searched = spec(search={"space": space})
    check_spec(searched)
    betas = [searched.trial(point).optimizer.betas for point in searched.space()]
    assert betas == [(0.5, 0.99), (0.8, 0.99)]
    fixed = spec(optimizer={"betas": [0.7, 0.8]}, search={"space": {"optimizer.betas.1": [0.9]}})
    (point,) = fixed.space()
    assert fixed.trial(point).optimizer.betas == (0.7, 0.9)
    assert preview(fixed).warnings == []
    earlier = searched.trial(searched.space().point(1))
    same = earlier.model_dump(mode="json"), earlier.content_hash()
    found = find_point(searched, searched.space(), {}, *same, pruned=False)
    assert found == searched.space().point(1)


@pytest.mark.parametrize(
    "field", ["model.negative_fraction", "model.parameters", "training.epochs"]
)
def test_a_trial_lies_where_a_share_or_budget_varies_only_now(field):
    section, _, name = field.partition(".")
    values = {"negative_fraction": [0.0, 0.5], "parameters": [500, 900], "epochs": [1, 2]}[name]
    task = {"name": "adding", "length": 5, "train_size": 40, "batch_size": 20}
    fixed = {"model": {"name": "lstm"}, "training": {} if name == "epochs" else {"steps": 4}}
    if name == "negative_fraction":
        fixed["model"] = {"name": "scornn", "hidden_size": 8}
    elif name == "epochs":
        fixed["model"]["hidden_size"] = 8
    earlier = spec(
        **{"task": task, **fixed, section: {**fixed[section], name: values[1]}},
        search={"space": {"optimizer.lr": [0.1, 0.01]}},
    )
    now = spec(**{"task": task, **fixed}, search={"space": {"optimizer.lr": [0.1], field: values}})
    taken = [
        find_point(
            now, now.space(), point.params, config.model_dump(mode="json"), hash_, pruned=False
        )
        for point in earlier.space()
        for config in [earlier.trial(point)]
        for hash_ in [config.content_hash()]
    ]
    assert taken[0] == Point(fixed["model"]["name"], {"optimizer.lr": 0.1, field: values[1]})
    assert taken[1] == OUTSIDE


@pytest.mark.parametrize("reading", ["tokens", "sentences"])
def test_a_stored_spec_has_the_configurations_of_the_posted(reading):
    """A stored one has all defaults, and a default may follow from what a search varies."""
    space = {"task.reading": ["tokens", "sentences"]}
    task = {"name": "ptb_chars", "reading": reading}
    posted = spec(task=task, search={"space": space})
    stored = ExperimentSpec.from_stored(posted.model_dump(mode="json"))
    for each in (posted, stored):
        assert [each.trial(point).task.bptt for point in each.space()] == [150, 518]


def test_every_configuration_trains_the_same_seeds():
    arms = [{"model": {"name": "lstm"}}, {"model": {"name": "gru"}}]
    read = spec(model=None, arms=arms, seed=5, replicates=3, search={"space": SEARCHED})
    seeds = {tuple(read.trial(read.space().point(index)).seeds) for index in range(8)}
    assert seeds == {(5, 6, 7)}


def test_a_field_that_the_space_sets_may_lack_in_the_base():
    searched = spec(
        model={"name": "scornn"},
        search={"space": {"model.parameters": [500, 900], "model.negative_fraction": [0.5]}},
    )
    check_spec(searched)
    sizes = [searched.trial(point).model.hidden_size for point in searched.space()]
    assert sizes[0] < sizes[1]


def test_a_point_that_breaks_a_rule_is_invalid_the_spec_is_not():
    model = {"name": "scornn", "hidden_size": 32}
    searched = spec(model=model, search={"space": {"model.negative_ones": [1, 99]}})
    check_spec(searched)
    with pytest.raises(InvalidPointError, match="'negative_ones' is 99; allowed are 0 to 32"):
        searched.trial(searched.space().point(1))


def test_an_arms_space_and_optimizer_replace_the_shared_ones():
    compared = spec(
        model=None,
        optimizer={"name": "rmsprop"},
        arms=[
            {"model": {"name": "lstm", "hidden_size": 4}},
            {
                "name": "big",
                "model": {"name": "lstm", "hidden_size": 8},
                "optimizer": {"name": "adagrad"},
                "space": {"optimizer.lr": [0.3], "model.forget_bias": {"low": 0, "high": 1}},
            },
        ],
        search={"space": {"optimizer.lr": [0.1, 0.2]}},
    )
    check_spec(compared)
    configs = [compared.trial(point) for point in compared.space()]
    assert [c.optimizer.lr for c in configs] == [0.1, 0.2, 0.3, 0.3]
    assert [c.optimizer.name for c in configs] == ["rmsprop"] * 2 + ["adagrad"] * 2
    assert [c.model.forget_bias for c in configs] == [1.0, 1.0, 0.0, 1.0]


@pytest.mark.parametrize(
    ("steps", "every", "rung_every", "rungs"),
    [
        (1000, 30, None, [90, 180, 270, 360, 450, 540, 630, 720, 810, 900, 990, 1000]),
        (800, 50, None, [100, 200, 300, 400, 500, 600, 700, 800]),
        (1000, 100, 250, [300, 600, 900, 1000]),
        (50, 100, None, [50]),
    ],
)
def test_rungs_are_evaluations_and_the_last_is_the_end(steps, every, rung_every, rungs):
    scheduled = spec(
        training={"steps": steps, "evaluate_every": every}, scheduler={"rung_every": rung_every}
    )
    config = scheduled.trial(Point("scornn", {}))
    assert scheduled.rung_steps(config) == rungs
    assert scheduled.rung_count(config) == len(rungs)


def test_the_number_of_trials_is_the_smallest_bound():
    grid = {"space": {"optimizer.lr": [0.1, 0.2, 0.3]}}
    assert spec(search=grid).trial_count() == 3
    assert spec(search=grid, limits={"trials": 2}).trial_count() == 2
    assert spec(search={**grid, "method": "tpe", "trials": 9}).trial_count() == 3
    endless = {"method": "random", "space": {"optimizer.lr": {"low": 0.1, "high": 0.2}}}
    assert spec(search={**endless, "trials": 9}).trial_count() == 9
    assert spec(search=endless).trial_count() is None


def test_several_mistakes_are_reported_at_once():
    wrong = spec(
        search={"space": {"model.depth": [1], "optimizer.lr": [-1]}}, objective={"metric": "bleu"}
    )
    with pytest.raises(SeveralErrors) as caught:
        check_spec(wrong)
    assert [error.path for error in caught.value.errors] == [
        "objective.metric",
        "search.space.model.depth",
        "search.space.optimizer.lr",
    ]


def test_every_registered_model_can_be_named_in_a_spec():
    for name in MODELS:
        assert spec(model={"name": name}).arms_[0].label == name
    with pytest.raises(ValidationError):
        spec(model={"name": "no such model"})


def test_every_example_of_the_schema_is_a_spec_that_passes():
    examples = ExperimentSpec.model_json_schema()["examples"]
    assert len(examples) >= 2
    for example in examples:
        check_spec(ExperimentSpec.model_validate(example))


def test_an_installed_packages_model_can_be_posted_and_searched():
    plugins = Path(__file__).parents[1] / "plugins"
    program = """
from eigensweep.search_spaces.checks.checks import check_spec
from eigensweep.search_spaces.spec import ExperimentSpec
spec = ExperimentSpec.model_validate({
    "task": {"name": "copying"}, "model": {"name": "toy_overflow", "hidden_size": 3},
    "training": {"steps": 1}, "search": {"space": {"model.growth": [2.0, 3.0]}},
})
check_spec(spec)
print([spec.trial(point).model.growth for point in spec.space()])
"""
    path = os.pathsep.join([str(plugins), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": path},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[2.0, 3.0]"


class TestTheObjective:
    @pytest.mark.parametrize(
        ("objective", "name", "better", "has_baseline"),
        [
            ({}, "cross_entropy", "lower", True),
            ({"metric": "cross_entropy"}, "cross_entropy", "lower", True),
            ({"metric": "recall_accuracy"}, "recall_accuracy", "higher", True),
        ],
    )
    def test_a_spec_and_its_trials_rank_by_the_same_metric(
        self, objective, name, better, has_baseline
    ):
        ranked = spec(objective=objective)
        metric = ranked.objective_metric
        assert (metric.name, metric.better) == (name, better)
        assert ranked.trial(Point("scornn", {})).objective_metric == metric
        assert (ranked.baseline is not None) == has_baseline

    def test_a_baseline_of_a_corpus_is_not_known_from_the_spec(self):
        assert spec(task={"name": "speech_frames"}).baseline is None

    def test_a_metric_that_the_task_does_not_have_is_refused(self):
        with pytest.raises(ValueError, match="copying has no metric 'bleu'; it has"):
            _ = spec(objective={"metric": "bleu"}).objective_metric
