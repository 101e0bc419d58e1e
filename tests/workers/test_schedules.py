"""Learning rates that fall, and test scores that are reported and select nothing."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from toys import Line, Lines, reload, to_exact, train_toy, trial

from eigensweep.models import MODELS
from eigensweep.results.seeds import summarise
from eigensweep.search_spaces.trial import OptimizerConfig
from eigensweep.tasks import TASKS
from eigensweep.training.training import Training

CURVE = {10: 5.0, 20: 6.0, 30: 4.0, 40: 4.0, 50: 4.5, 60: 4.1, 70: 3.0}
TESTS = {10: 5.5, 20: 3.5, 25: 1.0, 30: 4.5, 40: 4.6, 50: 4.4, 60: 4.2, 70: 3.8}
RATES = {"lr": 0.08, "lr_orth": 0.32}


@pytest.fixture(autouse=True)
def _toys(monkeypatch):
    monkeypatch.setitem(MODELS, "line", Line)
    monkeypatch.setitem(TASKS, "lines", Lines)


def make_falling(schedule, steps=80, optimizer="adam", **fields):
    fields = {f"schedule_{name}": value for name, value in fields.items()}
    return trial(
        task={"curve": CURVE},
        optimizer={**RATES, "name": optimizer, "schedule": schedule, **fields},
        training={"steps": steps, "log_every": 1},
    )


def rates(training):
    """Return how often each rate was taken, in the order of the steps."""
    taken = [p.metrics["train/lr"] for p in training.drain() if "train/lr" in p.metrics]
    return [(rate, taken.count(rate)) for rate in dict.fromkeys(taken)]


class TestExponential:
    def test_rates_fall_after_each_epoch_by_a_hundredth(self):
        steps = rates(train_toy(make_falling("exponential", steps=25)))
        assert steps == [
            (pytest.approx(0.08), 10),
            (pytest.approx(0.08 * 0.99), 10),
            (pytest.approx(0.08 * 0.99**2), 5),
        ]

    def test_factor_and_steps_are_fields(self):
        steps = rates(train_toy(make_falling("exponential", steps=8, factor=0.5, every=3)))
        assert steps == [(0.08, 3), (0.04, 3), (0.02, 2)]


class TestHalvingOnPlateaus:
    def test_each_evaluation_without_a_new_best_halves_the_rates(self):
        steps = rates(train_toy(make_falling("halve_on_plateau")))
        assert steps == [(0.08, 20), (0.04, 20), (0.02, 10), (0.01, 10), (0.005, 20)]

    def test_patience_is_counted_anew_after_each_fall_and_each_best(self):
        steps = rates(train_toy(make_falling("halve_on_plateau", patience=2, factor=0.25)))
        assert steps == [(0.08, 50), (0.02, 30)]

    def test_a_shorter_budgets_last_evaluation_lowers_no_rate(self):
        shorter = train_toy(make_falling("halve_on_plateau", steps=35))
        longer = reload(shorter, make_falling("halve_on_plateau"))
        longer.run()
        whole = train_toy(make_falling("halve_on_plateau"))
        assert to_exact(longer.state_dict()["model"]) == to_exact(whole.state_dict()["model"])


class TestCosine:
    def test_rates_fall_along_half_a_wave_to_the_end_of_training(self):
        found = [rate for rate, _ in rates(train_toy(make_falling("cosine", steps=40)))]
        wave = [0.08 * (1 + math.cos(math.pi * step / 40)) / 2 for step in range(40)]
        assert found == pytest.approx(wave)

    def test_what_is_left_and_where_it_ends_are_fields(self):
        found = rates(train_toy(make_falling("cosine", steps=25, factor=0.25, every=20)))
        assert found[10] == (pytest.approx(0.08 * (0.25 + 0.75 / 2)), 1)
        assert found[-1] == (pytest.approx(0.02), 5)

    def test_it_begins_after_the_warm_up(self):
        config = make_falling("cosine", steps=30)
        warm = config.optimizer.model_copy(update={"warmup_steps": 10})
        found = rates(train_toy(config.model_copy(update={"optimizer": warm})))
        assert [rate for rate, _ in found[:10]] == pytest.approx(
            [0.08 * step / 10 for step in range(1, 11)]
        )
        assert found[9] == (pytest.approx(0.08), 2), "the cosine's first step is a whole one"
        assert found[10][0] == pytest.approx(0.04 * (1 + math.cos(math.pi / 20)))

    def test_another_budget_is_another_one_unless_its_end_is_given(self):
        def name(steps: int, **fields: int) -> str:
            return make_falling("cosine", steps=steps, **fields).resolve().content_hash()

        assert name(40) != name(80)
        assert name(40) == name(60, every=40)

    @pytest.mark.parametrize("fields", [{}, {"schedule_every": 30}])
    def test_a_warm_up_leaves_room_for_it(self, fields):
        config = OptimizerConfig(schedule="cosine", warmup_steps=30, **fields)
        with pytest.raises(ValueError, match="less than the 30 steps in which"):
            trial(optimizer=config.model_dump(), training={"steps": 30}).resolve()


class TestWarmUp:
    @pytest.mark.parametrize(("schedule", "whole"), [("none", 22), ("exponential", 7)])
    def test_rates_rise_with_every_schedule(self, schedule, whole):
        config = make_falling(schedule, steps=25)
        warm = config.optimizer.model_copy(update={"warmup_steps": 4})
        found = rates(train_toy(config.model_copy(update={"optimizer": warm})))
        assert found[:4] == [(0.02, 1), (0.04, 1), (0.06, 1), (0.08, whole)]

    def test_without_one_nothing_of_it_is_hashed(self):
        config = trial().resolve()
        warm = config.optimizer.model_copy(update={"warmup_steps": 4})
        assert "warmup_steps" not in config.content_to_hash()["optimizer"]
        assert config.model_copy(update={"optimizer": warm}).content_hash() != config.content_hash()


class TestEverySchedule:
    @pytest.mark.parametrize("optimizer", ["adam", "sgd", "rmsprop_tf1", "adagrad_tf1"])
    @pytest.mark.parametrize("schedule", ["exponential", "halve_on_plateau", "cosine"])
    def test_a_training_that_was_cut_off_goes_on_bit_for_bit(self, schedule, optimizer):
        config = make_falling(schedule, steps=48, optimizer=optimizer)
        whole, cut = train_toy(config), train_toy(config, until=33)
        resumed = reload(cut, config)
        resumed.run()
        assert to_exact(resumed.state_dict()) == to_exact(whole.state_dict())

    @pytest.mark.parametrize("schedule", ["exponential", "halve_on_plateau"])
    def test_both_groups_fall_together_and_the_model_is_told(self, schedule):
        training = train_toy(make_falling(schedule, steps=25))
        factor = {"exponential": 0.99**2, "halve_on_plateau": 0.5}[schedule]
        last = training.drain()[-1].metrics
        told = {"orth": last["train/lr_orth"], "main": last["train/lr"]}
        assert told == pytest.approx({"orth": 0.32 * factor, "main": 0.08 * factor})
        assert training.model.rates == told

    def test_without_a_schedule_the_curve_shows_no_rate(self):
        points = train_toy(trial()).drain()
        assert not any("train/lr" in p.metrics for p in points)

    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            (
                {"schedule_factor": 0.5},
                "'schedule_factor' with schedule exponential or halve_on_plateau or cosine",
            ),
            (
                {"schedule": "exponential", "schedule_patience": 2},
                "'schedule_patience' with schedule halve_on_plateau; the schedule is exponential",
            ),
            ({"schedule": "halve_on_plateau", "schedule_every": 2}, "'schedule_every' with"),
            ({"schedule": "exponential", "schedule_factor": 0}, "0 with schedule cosine only"),
        ],
    )
    def test_a_field_of_another_schedule_is_refused(self, fields, message):
        with pytest.raises(ValueError, match=message):
            OptimizerConfig(**fields).check()

    def test_a_checkpoint_from_before_schedules_is_gone_on_from(self):
        cut = train_toy(trial(), until=13)
        state = cut.state_dict()
        del state["schedule_falls"], state["reported_tests"]
        resumed = Training(trial(), 0)
        resumed.load_state_dict(state)
        resumed.run()
        whole = train_toy(trial())
        assert to_exact(resumed.state_dict()["model"]) == to_exact(whole.state_dict()["model"])


def make_reporting(steps=70, **task):
    task = {"curve": CURVE, "test_curve": TESTS, **task}
    return trial(task=task, training={"steps": steps, "test_every_evaluation": True})


class TestReportedTests:
    def test_best_and_last_test_scores_stand_beside_the_selected(self):
        result = train_toy(make_reporting(steps=60)).result()
        assert (result.best_step, result.test["error"]) == (30, 4.5)
        assert result.best_test["error"] == 3.5
        assert result.last_test["error"] == pytest.approx(4.2)

    def test_each_metric_has_its_own_best_in_its_own_direction(self):
        result = train_toy(make_reporting(steps=60, better="higher")).result()
        assert result.best_test == {"error": 3.5, "score": 60.0}

    def test_the_curve_shows_them_under_a_name_of_their_own(self):
        points = {p.step: p.metrics for p in train_toy(make_reporting()).drain()}
        assert {s: m["test_now/error"] for s, m in points.items() if "test_now/error" in m} == (
            pytest.approx({s: value for s, value in TESTS.items() if s != 25})
        )
        assert not any(name.startswith("test/") for m in points.values() for name in m)

    def test_they_change_nothing_that_is_trained_or_selected(self):
        with_tests = train_toy(make_reporting())
        without = train_toy(
            trial(task={"curve": CURVE, "test_curve": TESTS}, training={"steps": 70})
        )
        assert to_exact(with_tests.model.state_dict()) == to_exact(without.model.state_dict())
        tests = {"best_test": None, "last_test": None, "seconds": 0.0, "step_seconds": None}
        assert replace(with_tests.result(), **tests) == replace(without.result(), **tests)

    def test_they_go_through_a_checkpoint_and_a_longer_budget(self):
        shorter = train_toy(make_reporting(steps=25))
        assert shorter.result().best_test["error"] == 1.0
        longer = reload(shorter, make_reporting())
        longer.run()
        assert to_exact(longer.result()) == to_exact(train_toy(make_reporting()).result())

    def test_a_trial_has_the_means_over_its_replicates(self):
        results = [train_toy(make_reporting(), seed=seed).result() for seed in (0, 1)]
        results[1] = replace(results[1], best_test={"error": 2.5, "score": 80.0})
        assert summarise(results).best_test == {"error": 3.0, "score": 45.0}
