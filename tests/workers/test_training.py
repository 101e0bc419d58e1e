"""Training a replicate: what it selects, when it ends, and that it goes on bit for bit."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
import time
from dataclasses import fields
from math import isfinite, nan
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from toys import Line, LineConfig, Lines, Text, TextConfig, reload, to_exact, train_toy, trial

from eigensweep.models import MODELS
from eigensweep.results.seeds import summarise
from eigensweep.results.trial_result import (
    Measures,
    ParameterCount,
    ReplicateResult,
    Result,
)
from eigensweep.store.checkpoints import Store
from eigensweep.tasks import TASKS
from eigensweep.tasks.base import Batch
from eigensweep.training.evaluation import carry_into, evaluate
from eigensweep.training.notebook import train
from eigensweep.training.selection import selected
from eigensweep.training.training import Training

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _toys(monkeypatch):
    monkeypatch.setitem(MODELS, "line", Line)
    monkeypatch.setitem(TASKS, "lines", Lines)
    monkeypatch.setitem(TASKS, "text", Text)


def test_the_time_of_a_step_is_the_processors_not_a_sleeps():
    training = Training(trial(training={"steps": 20}), 0)
    take_step = training.take_step

    def sleep_and_step():
        time.sleep(0.02)
        take_step()

    training.take_step = sleep_and_step
    training.run()
    found = training.result()
    assert 0 < found.step_seconds < 0.02 < found.seconds / found.step
    again = Training(training.config, 0)
    again.load_state_dict(training.state_dict())
    assert again.result().step_seconds == found.step_seconds
    whole = Result.from_dict(summarise([found]).to_dict())
    assert whole.step_seconds == whole.by_replicate[0].step_seconds == found.step_seconds


class NoisyConfig(LineConfig):
    name: Literal["noisy"] = "noisy"


class Noisy(Line):
    """A line whose inputs are dropped at random, and whose outputs are normed."""

    Config = NoisyConfig

    def __init__(self, config, shapes):
        super().__init__(config, shapes)
        self.drop, self.norm = torch.nn.Dropout(0.5), torch.nn.BatchNorm1d(1, affine=False)

    def forward(self, x, state=None):
        x = self.norm(self.drop(x).flatten(0, 1)).view_as(x)
        return super().forward(x, state)


def test_own_models_draw_the_same_again_and_score_as_loaded(monkeypatch):
    monkeypatch.setitem(MODELS, "noisy", Noisy)
    config = trial(model={"name": "noisy"}, training={"steps": 20})
    before = torch.get_rng_state()
    whole, first = Training(config, 0), Training(config, 0)
    whole.run()
    first.run(10)
    second = reload(first, config)
    second.run()
    assert torch.equal(torch.get_rng_state(), before)
    assert to_exact(second.model.state_dict()) == to_exact(whole.model.state_dict())
    assert second.result().value == whole.result().value
    assert int(whole.model.norm.num_batches_tracked) == 20, "scores track none"
    loaded = whole.model.eval()
    score = evaluate(loaded, whole.task, "valid")["error"]
    assert score == evaluate(loaded, whole.task, "valid")["error"]
    assert whole.result().valid["error"] == score
    assert whole.model.train().training
    evaluate(whole.model, whole.task, "valid")
    assert whole.model.training


@pytest.mark.parametrize(
    ("scores", "words"),
    [
        (lambda loss: [loss], "Lines.scores must return a dict; it returned a list"),
        (lambda loss: {"error": float(loss)}, "for 'error' it returned a float"),
        (lambda loss: {"error": (0.5, 1)}, "for 'error' it returned a pair of 0.5 and 1"),
        (lambda loss: {"error": (loss, None)}, "a pair of a tensor of shape () and None"),
        (lambda loss: {"error": (loss, -1)}, "a pair of a tensor of shape () and -1"),
        (lambda loss: {"error": (loss, nan)}, "a pair of a tensor of shape () and nan"),
        (lambda loss: {"error": (loss.expand(3), 1)}, "a pair of a tensor of shape (3,) and 1"),
        (lambda loss: {"error": (loss, 1), "right %": (loss, 1)}, "got 'right %'"),
        (lambda loss: {"score": (loss, 1)}, "Lines has no scores of 'error' on its valid data"),
    ],
)
def test_scores_of_ones_own_task_are_checked_in_words(monkeypatch, scores, words):
    answer = lambda self, logits, batch: scores(self.loss(logits, batch))  # noqa: E731
    monkeypatch.setattr(Lines, "scores", answer)
    with pytest.raises((TypeError, ValueError), match=re.escape(words)):
        train_toy(trial())


@pytest.mark.parametrize(
    ("method", "answer", "words"),
    [
        ("train_batch", None, "Lines.train_batch must return a Batch; it returned a NoneType"),
        ("train_batch", (1, 2), "Lines.train_batch must return a Batch; it returned a tuple"),
        (
            "train_batch",
            Batch(torch.zeros(3, 0, 1), torch.zeros(3, 0, 1)),
            "Lines.train_batch returned an empty batch: 'x' has the shape (3, 0, 1)",
        ),
        ("loss", torch.zeros(1), "Lines.loss must return a tensor of one number"),
    ],
)
def test_batches_and_losses_of_ones_own_task_are_checked(monkeypatch, method, answer, words):
    training = train_toy(trial(), until=0)
    monkeypatch.setattr(Lines, method, lambda *_: answer)
    with pytest.raises((TypeError, ValueError), match=re.escape(words)):
        training.take_step()


MODEL_SIZES = {
    "tanh_rnn": {"hidden_size": 6},
    "lstm": {"hidden_size": 6},
    "scornn": {"hidden_size": 6, "negative_ones": 2},
    "enrnn": {"hidden_size": 8, "short_size": 4, "negative_ones": 2},
    "full_urnn": {"hidden_size": 4},
}
SMALL_TASKS = {
    "copying": {"delay": 3, "symbols": 2, "batch_size": 4, "valid_size": 20, "test_size": 20},
    "text": {"reset": True},
}


def network_of(model):
    task = {"name": "copying", **SMALL_TASKS["copying"]}
    return Training(trial(task=task, model={"hidden_size": 2, **model}), 0).model


class TestGoingOn:
    @pytest.mark.parametrize("task", SMALL_TASKS)
    @pytest.mark.parametrize("optimizer", ["adam", "rmsprop", "adagrad"])
    @pytest.mark.parametrize("model", [*MODEL_SIZES, "enrnn with the switch on"])
    @pytest.mark.quick_cases(5)
    def test_a_training_that_was_cut_off_goes_on_bit_for_bit(self, model, optimizer, task):
        name, _, switched = model.partition(" ")
        config = trial(
            task={"name": task, **SMALL_TASKS[task]},
            model={"name": name, **MODEL_SIZES[name]},
            optimizer={"name": optimizer, "momentum": 0.5, "clip_norm": 1.0},
            training={"steps": 24, "evaluate_every": 8},
        )
        whole, cut = Training(config, 3), Training(config, 3)
        if switched:
            for training in (whole, cut):
                training.model.switched.fill_(True)
        whole.run()
        cut.run(until=13)
        resumed = reload(cut, config)
        resumed.run()
        assert resumed.outcome == "completed"
        assert to_exact(resumed.state_dict()) == to_exact(whole.state_dict())
        assert [p.step for p in resumed.drain()] == [0, 4, 8, 12, 16, 20, 24]

    @pytest.mark.parametrize("short", [40, 37])
    def test_a_longer_budget_continues_a_finished_training(self, short):
        shorter = train_toy(trial(training={"steps": short}))
        assert shorter.outcome == "completed"
        longer = reload(shorter, trial(training={"steps": 100}))
        assert not longer.is_finished
        assert longer.result().test == {}
        longer.run()
        whole = train_toy(trial(training={"steps": 100}))
        assert to_exact(longer.result()) == to_exact(whole.result())
        assert to_exact(longer.state_dict()["model"]) == to_exact(whole.state_dict()["model"])

    def test_a_shorter_budgets_irregular_end_is_forgotten(self):
        curve = {10: 3.0, 15: 1.0, 20: 2.0}
        short = train_toy(trial(task={"curve": curve}, training={"steps": 15}))
        assert short.result().best_step == 15
        longer = reload(short, trial(task={"curve": curve}, training={"steps": 20}))
        longer.run()
        assert longer.result().best_step == 20

    def test_what_a_shorter_budget_alone_has_seen_diverge_goes_on(self):
        task = {"curve": {15: 1e39}}
        short = train_toy(trial(task=task, training={"steps": 15}))
        assert short.outcome == "diverged"
        longer = reload(short, trial(task=task, training={"steps": 40}))
        longer.run()
        whole = train_toy(trial(task=task, training={"steps": 40}))
        assert whole.outcome == "completed"
        assert to_exact(longer.result()) == to_exact(whole.result())

    def test_the_last_rate_of_a_resumed_training_is_the_whole_ones(self):
        optimizer = {"schedule": "exponential", "schedule_every": 1, "schedule_factor": 0.5}
        config = trial(
            task={"bad_step": 15}, optimizer=optimizer, training={"steps": 40, "log_every": 4}
        )
        resumed = reload(train_toy(config, until=15), config)
        resumed.run()
        assert resumed.divergence is not None
        assert resumed.drain()[-1].metrics == train_toy(config).drain()[-1].metrics

    def test_what_patience_ended_stays_ended_under_a_longer_budget(self):
        task = {"curve": {s: float(s) for s in range(200)}}
        config = trial(task=task, training={"patience": 2})
        longer = reload(train_toy(config), trial(task=task, training={"patience": 2, "steps": 99}))
        assert (longer.outcome, longer.step) == ("completed", 30)
        assert longer.result().test

    def test_what_has_trained_it_is_in_its_result(self, monkeypatch):
        config = trial(training={"steps": 10, "evaluate_every": 5})
        assert Training(config, 0).result().code is None
        monkeypatch.setitem(MODELS._codes, config.model.name, "aaaa")
        first = Training(config, 0)
        first.run(until=5)
        monkeypatch.setitem(MODELS._codes, config.model.name, "bbbb")
        second = reload(first, config)
        second.run()
        assert (first.result().code, second.result().code) == ("aaaa", "aaaa,bbbb")
        monkeypatch.setitem(MODELS._codes, config.model.name, "cccc")
        assert reload(second, config).result().code == "aaaa,bbbb", "it has nothing left to train"
        assert summarise([second.result(), first.result()]).code == "aaaa,bbbb"

    def test_a_checkpoint_of_something_else_is_refused(self):
        state = train_toy(trial(), until=8).state_dict()
        with pytest.raises(ValueError, match="of configuration"):
            Training(trial(optimizer={"lr": 0.1}), 0).load_state_dict(state)
        with pytest.raises(ValueError, match=r"with seed 0; this training is of .* with seed 1"):
            Training(trial(), 1).load_state_dict(state)
        with pytest.raises(ValueError, match="at step 8 of another budget than 8"):
            Training(trial(training={"steps": 8}), 0).load_state_dict(state)

    def test_points_keep_their_times_in_a_checkpoint_and_come_once(self):
        config = trial()
        first = train_toy(config, until=20)
        second = reload(first, config)
        assert second.drain() == first.drain()
        second.run()
        assert [p.step for p in second.drain()] == [24, 28, 30, 32, 36, 40]

    def test_a_state_stays_when_the_training_beside_it_goes_on(self):
        training = train_toy(trial(), until=8)
        state = training.state_dict()
        before = to_exact(state)
        other = Training(trial(), 0)
        other.load_state_dict(state)
        other.run()
        training.run()
        assert to_exact(state) == before

    def test_the_time_spent_adds_up_over_resumes(self):
        training = train_toy(trial(), until=20)
        spent = training.seconds
        other = reload(training, trial())
        other.run()
        assert 0 < spent < other.seconds


class TestStepping:
    def test_it_learns(self):
        training = train_toy(trial(training={"steps": 400}))
        assert training.result().value < 1e-3
        weights = selected(training.state_dict()).weights
        torch.testing.assert_close(weights["w"], torch.tensor(2.0), atol=0.03, rtol=0)

    def test_the_first_parameters_follow_from_the_seed_alone(self):
        torch.manual_seed(123)
        before = torch.get_rng_state()
        first = Training(trial(), 7).state_dict()["model"]
        torch.manual_seed(456)
        assert to_exact(first) == to_exact(Training(trial(), 7).state_dict()["model"])
        assert to_exact(first) != to_exact(Training(trial(), 8).state_dict()["model"])
        torch.manual_seed(123)
        assert torch.equal(torch.get_rng_state(), before)

    def test_training_leaves_the_global_random_numbers_alone(self):
        before = torch.get_rng_state()
        train_toy(trial())
        assert torch.equal(torch.get_rng_state(), before)

    def test_a_model_is_told_each_groups_rate_after_every_update(self):
        training = train_toy(trial(optimizer={"lr": 0.01, "lr_orth": 0.2}))
        assert training.model.rates == {"orth": 0.2, "main": 0.01}
        assert training.model.updates == 40

    def test_a_bug_comes_through_as_it_is(self):
        with pytest.raises(ZeroDivisionError, match="a bug in the model"):
            train_toy(trial(model={"broken": True}))

    def test_a_point_holds_all_that_was_taken_at_its_step(self):
        points = {p.step: p.metrics for p in train_toy(trial(training={"steps": 22})).drain()}
        assert list(points) == [0, 4, 8, 10, 12, 16, 20, 22]
        in_training = {"train/error", "train/gradient_norm"}
        evaluated = {"valid/error", "valid/score", "constraint/slope", "baseline"}
        assert set(points[8]) == in_training
        assert set(points[0]) == set(points[10]) == evaluated
        assert set(points[20]) == set(points[22]) == in_training | evaluated
        assert points[10]["baseline"] == 5.0

    def test_a_points_training_loss_is_the_mean_since_the_last(self):
        each = train_toy(trial(training={"log_every": 1, "steps": 8})).drain()[1:]
        losses = [p.metrics["train/error"] for p in each]
        means = [p.metrics["train/error"] for p in train_toy(trial(), until=8).drain()[1:]]
        assert means == pytest.approx([sum(losses[:4]) / 4, sum(losses[4:]) / 4], rel=1e-12)

    def test_a_checkpoint_is_asked_for_after_evaluations_and_time(self):
        steps = []
        training = Training(trial(training={"steps": 25}), 0)
        training.run(commit=lambda: steps.append(training.step))
        assert steps == [10, 20, 25]
        often = []
        training = Training(trial(training={"steps": 5}), 0)
        training.run(commit=lambda: often.append(training.step), checkpoint_seconds=0)
        assert often == [1, 2, 3, 4, 5]


class TestCarriedState:
    @pytest.mark.parametrize("model", MODEL_SIZES)
    def test_a_text_read_in_pieces_scores_as_read_at_once(self, model):
        config = trial(task={"name": "text"}, model={"name": model, **MODEL_SIZES[model]})
        network = Training(config, 0).model
        in_pieces = evaluate(network, Text(TextConfig(piece=5)), "valid")
        at_once = evaluate(network, Text(TextConfig(piece=20)), "valid")
        assert in_pieces == pytest.approx(at_once, rel=1e-5)

    def test_rows_that_begin_anew_drop_their_state_others_keep_it(self):
        model = network_of({"name": "lstm"})
        state = (torch.ones(3, 2), torch.full((3, 2), 2.0))
        h, c = carry_into(model, torch.tensor([False, True, False]), state)
        assert h.tolist() == [[1, 1], [0, 0], [1, 1]]
        assert c[:, 0].tolist() == [2, 0, 2]
        assert carry_into(model, torch.tensor([True] * 3), state) is None
        assert carry_into(model, None, state) is None

    @pytest.mark.parametrize("model", [{"name": "ornn", "reflections": 2}, {"name": "urnn"}])
    def test_rows_that_begin_anew_begin_where_the_model_trained_to(self, model):
        network = network_of(model)
        first = network.initial_state(torch.zeros(1, 1))[0]
        state = torch.full((2, 2), 7).to(first)
        carried = carry_into(network, torch.tensor([False, True]), state)
        assert torch.equal(carried, torch.stack([state[0], first]))
        assert first.abs().min() > 0

    def test_training_carries_the_state_on_without_its_gradient(self):
        model = {"name": "tanh_rnn", "hidden_size": 6}
        training = train_toy(trial(task={"name": "text"}, model=model), until=2)
        state = training.state_dict()["carried"]
        fresh = Training(training.config, 0)
        fresh.load_state_dict(training.state_dict())
        assert not training.carried.requires_grad
        assert state.abs().sum() > 0
        assert torch.equal(fresh.carried, state)


class TestSelection:
    @pytest.mark.parametrize(("better", "step"), [("lower", 10), ("higher", 40)])
    def test_the_best_point_follows_the_metrics_direction(self, better, step):
        config = trial(task={"better": better}, objective={"metric": "score"})
        result = train_toy(config).result()
        assert (result.value, result.best_step) == (step, step)
        assert result.baseline is None

    def test_test_data_is_scored_once_with_the_selected_weights(self, monkeypatch):
        splits = []
        evaluation = Lines.evaluation
        monkeypatch.setattr(
            Lines, "evaluation", lambda task, split: splits.append(split) or evaluation(task, split)
        )
        training = train_toy(trial(task={"curve": {10: 9.0, 20: 0.5, 30: 7.0, 40: 8.0}}))
        assert splits == ["valid"] * 5 + ["test"]
        result = training.result()
        assert (result.best_step, result.value) == (20, 0.5)
        assert result.valid == {"error": 0.5, "score": 20.0}
        assert result.test == {"error": 0.5, "score": 20.0}
        assert training.model.updates == 40
        assert selected(training.state_dict()).weights["updates"] == 20

    def test_training_stops_after_evaluations_without_a_new_best(self):
        curve = {10: 5.0, 20: 6.0, 30: 4.0, 40: 4.0, 50: 4.5, 60: 1.0}
        training = train_toy(trial(task={"curve": curve}, training={"steps": 90, "patience": 2}))
        assert (training.outcome, training.step) == ("completed", 50)
        assert training.result().best_step == 30

    def test_the_unscheduled_last_evaluation_uses_no_patience(self):
        curve = {10: 3.0, 20: 4.0, 25: 5.0, 30: 2.0, 40: 3.0, 50: 4.0}
        task, training = {"curve": curve}, {"steps": 25, "patience": 2}
        short = train_toy(trial(task=task, training=training))
        assert (short.outcome, short.step, short.selection.stale) == ("completed", 25, 1)
        content = trial(task=task, training=training | {"steps": 90})
        longer = reload(short, content)
        longer.run()
        whole = train_toy(content)
        assert (longer.step, longer.result().best_step) == (50, 30)
        assert to_exact(longer.result()) == to_exact(whole.result())

    def test_the_unscheduled_last_evaluation_counts_no_divergence(self):
        rule = {"factor": 2, "evaluations": 2}
        curve = {0: 4.0, 20: 20.0, 25: 20.0}
        ended = train_toy(trial(task={"curve": curve}, training={"steps": 25}, divergence=rule))
        assert (ended.outcome, ended.step) == ("completed", 25)

    def test_the_result_is_finite_and_survives_json(self):
        result = summarise([train_toy(trial()).result()])
        content = json.loads(json.dumps(result.to_dict(), allow_nan=False))
        assert Result.from_dict(content).to_dict() == content
        assert result.parameters == ParameterCount(free=3, stored=2)
        assert set(result.constraint) == {"slope"}


class TestDivergence:
    @pytest.mark.parametrize("bad_gradient", [False, True])
    def test_a_step_that_is_not_finite_leaves_the_parameters(self, bad_gradient):
        bad = train_toy(trial(task={"bad_step": 26, "bad_gradient": bad_gradient}))
        assert (bad.outcome, bad.step) == ("diverged", 26)
        what = "norm of the gradient" if bad_gradient else "training loss"
        assert re.fullmatch(f"step 27: the {what} was (nan|inf)", bad.result().divergence)
        assert reload(bad, bad.config).result() == bad.result()
        good = train_toy(trial(), until=26)
        assert to_exact(bad.model.state_dict()) == to_exact(good.model.state_dict())
        result, points = bad.result(), bad.drain()
        assert result.best_step == 20
        assert result.test == {}
        assert [p.step for p in points] == [0, 4, 8, 10, 12, 16, 20, 24, 26]
        assert all(isfinite(v) for p in points for v in p.metrics.values())

    def test_diverging_before_the_first_evaluation_leaves_no_value(self):
        training = train_toy(trial(task={"bad_step": 0}))
        assert (training.outcome, training.step) == ("diverged", 0)
        assert [p.step for p in training.drain()] == [0]
        assert training.result().value is None

    def test_an_evaluation_that_is_not_finite_ends_it(self):
        training = train_toy(trial(task={"curve": {10: 1.0, 20: 1e39}}))
        assert (training.outcome, training.step) == ("diverged", 20)
        assert training.result().divergence == "step 20: the validation error was inf"
        assert training.result().value == 1.0
        assert "valid/error" not in training.drain()[-1].metrics

    @pytest.mark.parametrize(
        ("curve", "end"),
        [
            ({20: 501.0, 30: 501.0, 40: 501.0}, ("diverged", 40)),
            ({20: 499.0, 30: 501.0, 40: 501.0}, ("completed", 50)),
            ({20: 501.0, 30: 501.0, 40: 4.0, 50: 501.0}, ("completed", 50)),
            ({0: 6.0, 20: 501.0, 30: 599.0, 40: 599.0}, ("completed", 50)),
            ({0: 4.0, 10: 501.0, 20: 501.0, 30: 501.0}, ("diverged", 30)),
        ],
    )
    def test_a_loss_far_above_baseline_and_start_ends_it_at_last(self, curve, end):
        training = train_toy(trial(task={"curve": {0: 4.0} | curve}, training={"steps": 50}))
        assert (training.outcome, training.step) == end

    def test_how_far_and_how_often_are_fields_of_the_spec(self):
        config = trial(
            task={"curve": {0: 4.0, 20: 11.0}}, divergence={"factor": 2, "evaluations": 1}
        )
        training = train_toy(config)
        assert training.step == 20
        assert training.result().divergence == (
            "step 20: the validation error was 11, and so 1 evaluation in a row above 2 times what "
            "it was before training, or the baseline"
        )

    def test_a_diverged_training_stays_so_under_a_longer_budget(self):
        task = {"bad_step": 26}
        longer = reload(train_toy(trial(task=task)), trial(task=task, training={"steps": 80}))
        assert longer.outcome == "diverged"

    def test_diverging_after_a_shorter_budget_adds_no_second_point(self):
        task = {"bad_step": 37}
        short = train_toy(trial(task=task, training={"steps": 37}))
        longer = reload(short, trial(task=task))
        longer.run()
        assert (longer.outcome, longer.step) == ("diverged", 37)
        assert [p.step for p in longer.drain()][-2:] == [36, 37]


class TestReplicates:
    def result(self, value, outcome="completed"):
        return ReplicateResult(
            seed=0,
            outcome=outcome,
            value=value,
            best_step=10,
            step=40,
            valid={"error": value or 0.0},
            test={"error": 2 * (value or 0.0)},
            seconds=1.5,
            parameters=ParameterCount(free=3, stored=2),
            baseline=5.0,
        )

    def test_values_are_means_with_a_t_interval(self):
        summary = summarise([self.result(v) for v in (1.0, 2.0, 3.0)])
        assert (summary.value, summary.seconds, summary.replicates) == (2.0, 4.5, 3)
        assert summary.statistics["value"].standard_error == pytest.approx(1 / 3**0.5)
        assert summary.interval["value"] == pytest.approx((-0.484138, 4.484138))
        assert summary.test == {"error": 4.0}
        assert summary.interval["test/error"] == pytest.approx((-0.968275, 8.968275))

    def test_one_replicate_is_its_own_result_without_an_interval(self):
        alone = self.result(1.0)
        summary = summarise([alone])
        measures = [each.name for each in fields(Measures)]
        assert [getattr(summary, n) for n in measures] == [getattr(alone, n) for n in measures]
        assert summary.interval["value"] is None

    def test_one_diverged_replicate_makes_the_trial_diverged(self):
        results = [self.result(1.0), self.result(None, outcome="diverged"), self.result(3.0)]
        assert (summarise(results).outcome, summarise(results).value) == ("diverged", 2.0)

    def test_train_gives_every_replicate_and_their_mean(self):
        told = []
        result = train(
            trial(seed=5, replicates=3), on_point=lambda seed, point: told.append((seed, point))
        )
        assert result.outcome == "completed"
        assert list(result.curves) == [5, 6, 7]
        assert result.value == pytest.approx(sum(r.value for r in result.replicates) / 3)
        assert told == [(seed, p) for seed, curve in result.curves.items() for p in curve]
        assert to_exact(result.replicates[1]) == to_exact(train_toy(trial(), seed=6).result())

    @pytest.mark.parametrize("replicates", [2, 3])  # three train side by side
    def test_train_raises_what_a_users_own_task_does(self, replicates, monkeypatch):
        def fail(task, step, seed):
            if (step, seed) == (3, 1):
                raise OSError("no such batch")
            return batch(task, step, seed)

        batch = TASKS["copying"].train_batch
        monkeypatch.setattr(TASKS["copying"], "train_batch", fail)
        content = {
            "task": {"name": "copying", **SMALL_TASKS["copying"]},
            "model": {"name": "scornn", **MODEL_SIZES["scornn"]},
            "training": {"steps": 6, "evaluate_every": 3},
            "replicates": replicates,
        }
        with pytest.raises(OSError, match="no such batch"):
            train(content, progress=False)

    def test_train_goes_on_from_its_folder_and_to_a_longer_budget(self, tmp_path, monkeypatch):
        def no_more(task, step, seed):
            if step == 25:
                raise KeyboardInterrupt
            return batch(task, step, seed)

        batch = Lines.train_batch
        monkeypatch.setattr(Lines, "train_batch", no_more)
        with pytest.raises(KeyboardInterrupt):
            train(trial(), folder=tmp_path)
        monkeypatch.setattr(Lines, "train_batch", batch)
        kept = Store(tmp_path).points(f"{trial().resolve().content_hash()}/0")
        assert kept[-1].step == 20
        content = trial(training={"steps": 60}).model_dump(mode="json")
        result = train(content, folder=tmp_path)
        assert result.curves[0][: len(kept)] == kept
        assert to_exact(result.replicates) == to_exact(train(content).replicates)

    @pytest.mark.slow  # test_checkpoints.py kills at random moments, without a training
    def test_a_process_killed_at_random_changes_nothing_in_the_end(self, tmp_path):
        content = {
            "task": {"name": "copying", **SMALL_TASKS["copying"]},
            "model": {"name": "enrnn", **MODEL_SIZES["enrnn"]},
            "training": {"steps": 200, "evaluate_every": 10},
        }
        told = "on_point=lambda seed, point: print(point.step, flush=True)"
        code = f"from eigensweep import train; train({content}, folder='here', {told})"
        moments = random.Random(2)
        for _ in range(2):
            with subprocess.Popen(
                [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r}); {code}"],
                cwd=tmp_path,
                stdout=subprocess.PIPE,
            ) as process:
                for _ in range(moments.randrange(1, 6)):
                    assert process.stdout.readline()
                time.sleep(moments.uniform(0, 0.05))
                process.kill()
        killed = train(content, folder=tmp_path / "here")
        whole = train(content)
        assert to_exact(killed.replicates) == to_exact(whole.replicates)
        values = [[(p.step, p.metrics) for p in r.curves[0]] for r in (killed, whole)]
        assert values[0] == values[1]


class TestOnAGpu:
    @pytest.fixture
    def chosen(self, monkeypatch):
        """Play a PyTorch with CUDA that takes TF32, and return the libraries that are chosen."""
        chosen, before = [], torch.get_float32_matmul_precision()
        monkeypatch.setattr(torch.version, "cuda", "13.0")
        monkeypatch.setattr(torch.backends.cuda, "preferred_linalg_library", chosen.append)
        torch.set_float32_matmul_precision("high")  # TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=1 does so
        yield chosen
        torch.set_float32_matmul_precision(before)

    def test_products_are_in_float32_and_factors_suit_graphs(self, chosen):
        Training(trial(), 0, device="meta")
        assert torch.get_float32_matmul_precision() == "highest"
        assert chosen == ["cusolver"]

    def test_a_training_on_a_cpu_changes_nothing(self, chosen):
        Training(trial(), 0)
        assert (torch.get_float32_matmul_precision(), chosen) == ("high", [])


def test_a_state_that_no_checkpoint_holds_is_told_by_its_place():
    training = Training(trial(optimizer={"name": "adam"}), 0)
    training.run(until=1)
    (optimizer,) = training.optimizers._optimizers.values()
    memory = next(iter(optimizer.state.values()))
    memory["d"] = np.float64(0.5)
    words = "the state/optimizers/adam/0/d is a numpy.float64: a checkpoint holds tensors and plain"
    with pytest.raises(ValueError, match=words):
        training.state_dict()
    del memory["d"]
    memory[np.int64(3)] = 0.5
    with pytest.raises(ValueError, match=r"a key of the state/optimizers/adam/0 is a numpy\.int64"):
        training.state_dict()
