"""Hashes are names of results that are kept: no later field and no removed one changes them."""

from __future__ import annotations

import json
from math import pi
from pathlib import Path
from typing import Literal

import pytest
from pydantic import Field

from eigensweep.models import MODELS
from eigensweep.models.base import ModelConfig
from eigensweep.search_spaces import hashing
from eigensweep.search_spaces.hashing import rule_of
from eigensweep.search_spaces.spec import ExperimentSpec
from eigensweep.search_spaces.trial import (
    TRAINER_RESULT_VERSION,
    DivergenceConfig,
    ObjectiveConfig,
    OptimizerConfig,
    Strict,
    TrainingConfig,
    TrialConfig,
)
from eigensweep.tasks import TASKS
from eigensweep.tasks.copying import Copying

GOLDEN = json.loads((Path(__file__).parent / "golden_hashes.json").read_text())
"""Computed before the rules in `hashed_fields.yaml` existed: the ends of each arm of each preset as
it was then, and specs that use each model, each task and each optimizer option."""

SECTIONS = {
    "optimizer": OptimizerConfig,
    "training": TrainingConfig,
    "divergence": DivergenceConfig,
    "objective": ObjectiveConfig,
}

LAYERED = {
    "hidden_size": None,
    "parameters": None,
    "encoder": "direct",
    "embedding_size": None,
    "embedding_init": "glorot_uniform",
    "encoder_init": "fan_in_uniform",
    "readout_init": "fan_in_uniform",
    "layers": 3,
    "width": None,
    "pooling": "last",
}
MINIMAL = {**LAYERED, "kernel_size": None, "feed_forward": None}

ODE_DEFAULTS = {
    "hidden_size": None,
    "parameters": None,
    "encoder": "direct",
    "embedding_size": None,
    "embedding_init": "glorot_uniform",
    "readout_init": "fan_in_uniform",
    "readout_bias_init": "fan_in_uniform",
}

LATER_DEFAULTS = {
    "optimizer": (
        1,
        {
            "schedule": "none",
            "schedule_factor": None,
            "schedule_every": None,
            "schedule_patience": None,
            "warmup_steps": 0,
        },
    ),
    "training": (1, {"test_every_evaluation": False}),
    "model.lstm": (1, {"scale_gradient": False}),
    "model.lru": (
        1,
        {
            **LAYERED,
            "layers": 6,
            "readout_bias_init": "zeros",
            "r_min": 0.0,
            "r_max": 1.0,
            "max_phase": 2 * pi,
        },
    ),
    "model.mingru": (1, MINIMAL),
    "model.minlstm": (1, {**MINIMAL, "forget_bias": 0.0}),
    "task.pixel_cifar": (
        1,
        {
            "batch_size": 50,
            "split": "heldout_5000",
            "colour": "rgb",
            "normalisation": "standard",
        },
    ),
    "task.noisy_cifar": (1, {"batch_size": 100, "split": "heldout_3000", "length": 1000}),
    "task.selective_copying": (
        1,
        {
            "batch_size": 64,
            "delay": 4080,
            "symbols": 16,
            "alphabet": 14,
            "train_size": None,
            "valid_size": 2000,
            "test_size": 1000,
        },
    ),
    "model.cornn": (1, {**ODE_DEFAULTS, "dt": 0.042, "gamma": 2.7, "epsilon": 4.7}),
    "model.lem": (1, {**ODE_DEFAULTS, "readout_init": "kaiming_normal", "dt": 1.0}),
}
"""For each class of the project with later fields: its result version, and their defaults."""


class TestGoldenHashes:
    @pytest.mark.parametrize("name", sorted({row[0] for row in GOLDEN["presets"]}))
    def test_the_ends_of_a_first_preset_keep_their_hashes(self, name):
        rows = [row[1:] for row in GOLDEN["presets"] if row[0] == name]
        specs = [ExperimentSpec.model_validate(content) for content, _ in rows]
        found = [spec.trial(spec.space().point(0)).content_hash() for spec in specs]
        assert found == [hash_ for _, hash_ in rows]

    @pytest.mark.parametrize(("content", "hash_"), GOLDEN["specs"])
    def test_a_spec_keeps_its_hash(self, content, hash_):
        spec = ExperimentSpec.model_validate(content)
        assert spec.trial(spec.space().point(0)).content_hash() == hash_

    def test_every_founding_model_and_task_has_one(self):
        specs, founding = (
            [content for content, _ in GOLDEN["specs"]],
            hashing.read_rules()["founding"],
        )
        assert {spec["model"]["name"] for spec in specs} == set(founding["model"])
        assert {spec["task"]["name"] for spec in specs} == set(founding["task"])


class TestOwnCode:
    def config(self) -> TrialConfig:
        content, _ = GOLDEN["specs"][0]
        spec = ExperimentSpec.model_validate(content)
        return spec.trial(spec.space().point(0))

    @pytest.mark.parametrize("kind", ["model", "task"])
    def test_other_code_of_the_package_gives_another_hash(self, kind, monkeypatch):
        registry = {"model": MODELS, "task": TASKS}[kind]
        name, hashes = getattr(self.config(), kind).name, {self.config().content_hash()}
        for code in ("aaaa", "bbbb"):
            monkeypatch.setitem(registry._codes, name, code)
            assert self.config().code == code
            hashes.add(self.config().content_hash())
        assert len(hashes) == 3

    def test_one_package_that_brings_both_counts_once(self, monkeypatch):
        monkeypatch.setitem(MODELS._codes, self.config().model.name, "aaaa")
        monkeypatch.setitem(TASKS._codes, self.config().task.name, "aaaa")
        assert self.config().code == "aaaa"

    def test_a_checkpoint_is_gone_on_from_whatever_the_code(self, monkeypatch):
        known = self.config().settings_hash()
        monkeypatch.setitem(MODELS._codes, self.config().model.name, "aaaa")
        assert self.config().settings_hash() == known


class Toy(ModelConfig):
    name: Literal["toy"] = "toy"
    hidden_size: int = 3
    slope: float = 1.0


class GrownToy(Toy):
    bias: float = 0.0
    shape: tuple[int, ...] = Field(default_factory=lambda: (1, 2))


class ToyWithAnotherDefault(Toy):
    slope: float = 2.0


@pytest.fixture
def toy_model(monkeypatch):
    """Register a toy as a model of today or as an installed package's."""

    def register(name, config):
        cls = type("ToyModel", (), {"Config": config, "result_version": 1})
        monkeypatch.setitem(MODELS, name, cls)
        return cls

    return register


def trial(model: ModelConfig, **sections) -> TrialConfig:
    return TrialConfig(
        task=Copying.Config(delay=20), model=model, training=TrainingConfig(steps=5), **sections
    )


class TestGrowth:
    def test_a_new_field_at_its_default_changes_no_hash(self, toy_model):
        toy_model("toy", Toy)
        before = trial(Toy(slope=3.0)).content_hash()
        assert trial(GrownToy(slope=3.0)).content_hash() == before

    @pytest.mark.parametrize("changes", [{"bias": 1.0}, {"shape": (2, 1)}])
    def test_a_new_field_with_another_value_does(self, toy_model, changes):
        toy_model("toy", Toy)
        assert trial(GrownToy(**changes)).content_hash() != trial(Toy()).content_hash()

    def test_a_model_of_the_project_may_grow_too(self, toy_model):
        today = MODELS["tanh_rnn"].Config

        class Grown(today):
            leak: float = 0.0

        before = trial(today(hidden_size=4)).content_hash()
        assert trial(Grown(hidden_size=4)).content_hash() == before
        assert trial(Grown(hidden_size=4, leak=0.1)).content_hash() != before

    def test_two_models_with_the_same_settings_have_two_hashes(self, toy_model):
        class Other(Toy):
            name: Literal["other"] = "other"

        toy_model("toy", Toy)
        toy_model("other", Other)
        assert trial(Toy()).content_hash() != trial(Other()).content_hash()

    def test_a_new_section_is_hashed_only_where_it_is_used(self, toy_model):
        class Curriculum(Strict):
            stages: int = 1

        class LaterTrial(TrialConfig):
            curriculum: Curriculum = Curriculum()
            note: str = ""

        toy_model("toy", Toy)
        now = trial(Toy())
        content = dict(now)
        assert LaterTrial(**content).content_hash() == now.content_hash()
        used = LaterTrial(**content, curriculum=Curriculum(stages=2))
        assert used.content_to_hash()["curriculum"] == {"stages": 2}
        assert LaterTrial(**content, note="x").content_to_hash()["note"] == "x"


class TestRemoval:
    @pytest.fixture
    def shrunk(self, monkeypatch):
        """Add a field to what is hashed of scoRNN, as if its class had had it once."""
        rules = json.loads(json.dumps(hashing.read_rules()))
        rules["founding"]["model"]["scornn"]["old_init"] = "glorot"
        monkeypatch.setattr(hashing, "read_rules", lambda: rules)
        return {"name": "scornn", "hidden_size": 32, "negative_ones": 4}

    def test_a_removed_field_keeps_its_place_in_the_hash(self, shrunk):
        config = MODELS["scornn"].Config(**shrunk)
        assert trial(config).content_to_hash()["model"]["old_init"] == "glorot"

    def test_stored_content_that_has_it_is_still_read(self, shrunk):
        config = trial(MODELS["scornn"].Config(**shrunk))
        stored = config.model_dump(mode="json")
        stored["model"]["old_init"] = "glorot"
        assert TrialConfig.from_dict(stored) == config

    def test_a_stored_spec_that_has_it_is_still_read(self, shrunk):
        content = {"task": {"name": "copying"}, "training": {"steps": 5}}
        stored = {"model": {**shrunk, "old_init": "glorot"}}
        plain = ExperimentSpec.model_validate({**content, "model": shrunk})
        assert ExperimentSpec.from_stored({**content, **stored}) == plain
        arms = ExperimentSpec.from_stored({**content, "arms": [stored]})
        assert arms.arms_ == plain.arms_

    @pytest.mark.parametrize(
        ("name", "field"),
        [
            ("lstm", "encoder_init"),
            ("gru", "encoder_init"),
            ("srnn", "readout_bias_init"),
            ("lt_rnn", "readout_bias_init"),
        ],
    )
    def test_the_fields_without_effect_keep_their_place(self, name, field):
        config = trial(MODELS[name].Config(hidden_size=8))
        hashed = config.content_to_hash()["model"]
        assert hashed[field] == hashing.read_rules()["founding"]["model"][name][field]
        stored = config.model_dump(mode="json")
        stored["model"][field] = hashed[field]
        assert TrialConfig.from_dict(stored) == config

    def test_another_value_of_it_is_refused(self, shrunk):
        stored = trial(MODELS["scornn"].Config(**shrunk)).model_dump(mode="json")
        stored["model"]["old_init"] = "orthogonal"
        with pytest.raises(ValueError, match="old_init"):
            TrialConfig.from_dict(stored)


class TestAChangedDefault:
    def test_of_a_later_field_keeps_the_hash_of_its_result_version(self, toy_model):
        registered = toy_model("toy", Toy)
        before = trial(Toy()).content_hash()
        assert trial(ToyWithAnotherDefault()).content_hash() == before
        registered.result_version += 1
        assert trial(ToyWithAnotherDefault()).content_hash() != before

    def test_of_a_founding_field_gives_another_hash_by_itself(self):
        today = MODELS["tanh_rnn"].Config

        class Changed(today):
            scale: float = 2.0

        before = trial(today(hidden_size=4)).content_hash()
        assert trial(Changed(hidden_size=4)).content_hash() != before
        assert trial(Changed(hidden_size=4, scale=1.0)).content_hash() == before

    def test_of_the_projects_own_later_fields_is_never_forgotten(self):
        found = {}
        for section, config in SECTIONS.items():
            found[section] = TRAINER_RESULT_VERSION, _later_defaults(section, config())
        for section, registry in (("model", MODELS), ("task", TASKS)):
            for name, cls in registry.items():
                if cls.__module__.startswith("eigensweep."):
                    config = cls.Config.model_construct(name=name)
                    defaults = _later_defaults(section, config)
                    found[f"{section}.{name}"] = cls.result_version, defaults
        found = {owner: later for owner, later in found.items() if later[1]}
        changed = [o for o in {**found, **LATER_DEFAULTS} if found.get(o) != LATER_DEFAULTS.get(o)]
        assert not changed, (
            "if a default changed, first raise result_version of its model or task, or "
            "TRAINER_RESULT_VERSION; then write into LATER_DEFAULTS:\n"
            + "\n".join(f"    {owner!r}: {found.get(owner)!r}," for owner in changed)
        )


def _later_defaults(section, config):
    rule = rule_of(section, config)
    return {
        name: declared.get_default(call_default_factory=True)
        for name, declared in type(config).model_fields.items()
        if name not in rule.founding and name not in rule.never
    }
