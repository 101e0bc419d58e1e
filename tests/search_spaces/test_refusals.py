"""A spec that would fail on a worker is refused when posted, and the message says what to do."""

from __future__ import annotations

import json
import pickle
import re
from unittest import mock

import pytest
from pydantic import ValidationError

from eigensweep.search_spaces.checks import checks
from eigensweep.search_spaces.checks.checks import check_spec
from eigensweep.search_spaces.checks.problems import list_problems
from eigensweep.search_spaces.errors import (
    CorpusError,
    GridTooLargeError,
    ParameterValueError,
    SpecError,
    TrialLimitError,
    UnknownMetricError,
    UnknownParameterError,
)
from eigensweep.search_spaces.spec import ExperimentSpec
from eigensweep.tasks.base import Metric
from eigensweep.tasks.copying import CopyingConfig

LSTM = {"name": "lstm", "hidden_size": 8}
THOUSAND = {"low": 1, "high": 1000}


def post(**changes):
    """Return the problems of a spec that is right but for `changes`, and the error's class."""
    content = {
        "task": {"name": "copying", "delay": 20},
        "model": {"name": "scornn", "hidden_size": 32, "negative_ones": 3},
        "training": {"steps": 100},
        **changes,
    }
    content = {key: value for key, value in content.items() if value is not ...}
    counted = mock.patch.object(
        ExperimentSpec, "trial", autospec=True, side_effect=ExperimentSpec.trial
    )
    try:
        with counted as trial:
            check_spec(ExperimentSpec.model_validate(content), None)
    except (ValidationError, SpecError) as error:
        found = list_problems(error)
        assert trial.call_count < 40, "more points than the extremes were tried"
        json.dumps(found, allow_nan=False)
        return found, type(error)
    return [], None


def grid(**space):
    return {"space": {path.replace("__", "."): axis for path, axis in space.items()}}


def pbt(**changes):
    """Return a good spec for population-based training, with changes."""
    rates = {"optimizer.lr": {"low": 1e-4, "high": 1e-1, "log": True}}
    search = {"method": "random", "trials": 8, "space": rates}
    training = {"steps": 100, "evaluate_every": 10}
    return {"search": search, "scheduler": {"name": "pbt"}, "training": training, **changes}


def test_a_good_spec_has_no_problems():
    assert post() == ([], None)
    assert post(**pbt()) == ([], None)


def test_a_list_of_which_one_value_in_the_middle_fits_is_taken():
    schedules = ["none", "halve_on_plateau", "exponential"]
    search = grid(optimizer__schedule=schedules, optimizer__lr=[0.1, 0.01])
    assert post(optimizer={"schedule_patience": 3}, search=search) == ([], None)


@pytest.mark.parametrize("values", [{"low": 1e-4, "high": 1e-2}, [1e-4, 1e-2]])
def test_several_values_are_told_where_a_search_has_them(values):
    ((problem,), _) = post(optimizer={"lr": values})
    assert problem["path"] == "optimizer.lr"
    assert "as 'optimizer.lr' in 'search.space'" in problem["message"]
    ((problem,), _) = post(replicates=[1, 2])
    assert "search" not in problem["message"]


@pytest.mark.parametrize("lanes", [1, 512, "auto", None])
def test_lanes_may_be_a_number_or_measured_or_left_out(lanes):
    assert post(resources={"gpus": 1, "lanes": lanes}) == ([], None)


@pytest.mark.parametrize(
    ("changes", "path", "words"),
    [
        ({"modle": 1}, "modle", "a spec has no 'modle'; it has .* did you mean 'model'"),
        (
            {"model": {"name": "scornn", "hidden_size": 9, "negative_one": 3}},
            "model.negative_one",
            "scornn has no 'negative_one'; it has .*'negative_ones'.*did you mean 'negative_ones'",
        ),
        (
            {"model": {**LSTM, "encoder_init": "orthogonal"}},
            "model.encoder_init",
            "lstm has no 'encoder_init'; it has .*'recurrent_init'",
        ),
        (
            {"model": {"name": "srnn", "hidden_size": 8, "readout_bias_init": "zeros"}},
            "model.readout_bias_init",
            "srnn has no 'readout_bias_init'; it has .*'readout_bias'",
        ),
        ({"model": {"name": "scorn"}}, "model.name", "there is no model 'scorn'.*mean 'scornn'"),
        ({"model": {"hidden_size": 3}}, "model.name", "a model is an object with a 'name'"),
        ({"task": {"name": "coping"}}, "task.name", "there is no task 'coping'.*mean 'copying'"),
        ({"task": ...}, "task", "'task' is missing"),
        ({"model": ...}, "", "exactly one of 'model' and 'arms'; neither is given"),
        ({"arms": [{"model": LSTM}]}, "", "exactly one of 'model' and 'arms'; both are given"),
        (
            {"model": ..., "arms": [{"model": LSTM}, {"model": {**LSTM, "depth": 2}}]},
            "arms.1.model.depth",
            "lstm has no 'depth'",
        ),
        (
            {"model": ..., "arms": [{"model": LSTM}, {"model": LSTM}]},
            "",
            "two arms are called 'lstm'",
        ),
        (
            {"published": [{"arm": "lsmt", "metric": "test/cross_entropy", "value": 0.1}]},
            "",
            "arm 'lsmt', which is not there; there are scornn",
        ),
        ({"model": {**LSTM, "hidden_size": 0}}, "model.hidden_size", "equal to 1; got 0"),
        ({"optimizer": {"lr": float("nan")}}, "optimizer.lr", "finite number; got 'nan'"),
        (
            {"optimizer": {"name": "lion"}},
            "optimizer.name",
            "'adam', 'adamw', 'sgd', 'rmsprop', 'adagrad', 'adam_tf1', 'rmsprop_tf1', "
            "'adagrad_tf1' or 'rmsprop_urnn'",
        ),
        (
            {"search": grid(optimizer__clip_norm=[1.0, float("inf")])},
            "search.space.optimizer.clip_norm.choices.1",
            "a choice is finite",
        ),
        (
            {"search": grid(optimizer__clip_norm=3)},
            "search.space.optimizer.clip_norm",
            "a parameter is a list of values, or",
        ),
        (
            {"search": {"space": {"low": 0.1, "high": [0.2]}}},
            "search.space.low",
            "a parameter is a list of values, or",
        ),
        (
            {"search": grid(optimizer__lr={"low": 1, "hgh": 2})},
            "search.space.optimizer.lr.hgh",
            "did you mean 'high'",
        ),
        (
            {"search": grid(optimizer__lr={"min": 1e-4, "max": 0.1})},
            "search.space.optimizer.lr",
            "a range has 'low' and 'high'; got 'min' and 'max'",
        ),
        (
            {"search": grid(optimizer__lr={"low": 0.2, "high": 0.1})},
            "search.space.optimizer.lr",
            "'low' must be below 'high'",
        ),
        (
            {"search": grid(optimizer__lr={"low": 0.1, "high": 0.2, "step": 5.0})},
            "search.space.optimizer.lr",
            "'step' 5.0 is larger than the range",
        ),
        (
            {"search": grid(optimizer__lr={"low": 1e-320, "high": 0.1, "log": True})},
            "search.space.optimizer.lr",
            "1e-320 is too near to 0|begins above 0",  # a process that has trained reads it as 0
        ),
        ({"search": grid(optimizer__lr=[0.1, 0.1])}, "search.space.optimizer.lr.choices", "twice"),
        ({"resources": {"lanes": 0}}, "resources.lanes", "from 1 to 512; got 0"),
        ({"resources": {"lanes": 513}}, "resources.lanes", "'auto' or a whole number.*got 513"),
        ({"resources": {"lanes": "all"}}, "resources.lanes", "'auto' or a whole number"),
        ({"resources": {"lanes": True}}, "resources.lanes", "'auto' or a whole number"),
        (
            {"resources": {"gpus": 1.5}},
            "resources.gpus",
            "at most 1: a trial trains on one GPU.*got 1.5",
        ),
        ({"resources": {"gpus": 2}}, "resources.gpus", "Give 1, or a share such as 0.5.*got 2"),
        ({"resources": {"gpus": -1}}, "resources.gpus", "greater than or equal to 0"),
        ({"resources": {"gpus": 0.5, "lanes": 4}}, "resources", "share one device: give 'gpus': 1"),
        ({"resources": {"gpus": 2, "lanes": 4}}, "resources.gpus", "trials run side by side"),
    ],
)
def test_an_invalid_spec_is_refused_with_what_would_work(changes, path, words):
    found, kind = post(**changes)
    assert kind is ValidationError
    hit = [problem for problem in found if problem["path"] == path]
    assert len(hit) == 1, found
    assert re.search(words, hit[0]["message"]), hit[0]["message"]


RANGE = {"low": 0.1, "high": 0.9}


@pytest.mark.parametrize(
    ("changes", "kind", "path", "words"),
    [
        (
            {"search": grid(model__negative_one=[1])},
            UnknownParameterError,
            "search.space.model.negative_one",
            "scornn has no 'negative_one'; it has .*did you mean 'model.negative_ones'",
        ),
        (
            {"search": grid(lr=[1])},
            UnknownParameterError,
            "search.space.lr",
            "begins with model., optimizer., task., training.*did you mean 'optimizer.lr'",
        ),
        (
            {
                "model": ...,
                "arms": [{"model": LSTM, "space": {"model.negative_ones": [1]}}],
            },
            UnknownParameterError,
            "arms.0.space.model.negative_ones",
            "lstm has no 'negative_ones'",
        ),
        (
            {"search": grid(model__name=["lstm"])},
            UnknownParameterError,
            "search.space.model.name",
            "compare models with 'arms'",
        ),
        (
            {"search": grid(model__negative_ones=[1, 2, -1])},
            ParameterValueError,
            "search.space.model.negative_ones",
            "scornn refuses negative_ones = -1: it should be greater than or equal to 0",
        ),
        (
            {"search": grid(**{"optimizer.betas.1": [0.9, 1.5]})},
            ParameterValueError,
            "search.space.optimizer.betas.1",
            "optimizer refuses betas.1 = 1.5: it should be less than 1",
        ),
        (
            {"search": grid(**{"optimizer.betas.2": [0.9]})},
            UnknownParameterError,
            "search.space.optimizer.betas.2",
            "has no 'betas.2'; it has .*'optimizer.betas.0', 'optimizer.betas.1'",
        ),
        (
            {"search": grid(optimizer__betas=[0.9])},
            UnknownParameterError,
            "search.space.optimizer.betas",
            "is a list; vary its items one by one: optimizer.betas.0, optimizer.betas.1",
        ),
        (
            {
                "search": {
                    "method": "tpe",
                    "trials": 2,
                    **grid(optimizer__lr={"low": -0.5, "high": 1}),
                }
            },
            ParameterValueError,
            "search.space.optimizer.lr",
            "refuses lr = -0.5: it should be greater than 0",
        ),
        (
            {
                "search": {
                    "method": "random",
                    "trials": 2,
                    **grid(model__hidden_size={"type": "real", "low": 8, "high": 16}),
                }
            },
            ParameterValueError,
            "search.space.model.hidden_size",
            "valid integer.*type: integer",
        ),
        (
            {"search": grid(optimizer__alpha={"choices": [0.9], "when": {"optimizer.lr": 1}})},
            SpecError,
            "search.space.optimizer.alpha.when.optimizer.lr",
            "which this space does not vary",
        ),
        (
            {
                "search": grid(
                    task__batch_size=THOUSAND,
                    task__valid_size=THOUSAND,
                    task__test_size=THOUSAND,
                    training__log_every=THOUSAND,
                )
            },
            GridTooLargeError,
            "search.space",
            r"1,000,000,000,000 points and the limit is 10,000 .*batch_size \(1,000 values\)",
        ),
        (
            {"search": grid(optimizer__lr={"low": 1e-5, "high": 1e-2, "log": True})},
            GridTooLargeError,
            "search.space.optimizer.lr",
            "a grid needs single values.*'random' or 'tpe'",
        ),
        (
            {"search": {"method": "tpe", **grid(optimizer__lr=[0.1, 0.2])}},
            TrialLimitError,
            "search.trials",
            "say how many trials",
        ),
        (
            {
                "search": {
                    "method": "cmaes",
                    "trials": 9,
                    **grid(optimizer__lr={"low": 0.1, "high": 1}, optimizer__alpha=[0.5, 0.9]),
                }
            },
            SpecError,
            "search.space.optimizer.lr",
            "ranges of numbers; arm 'scornn' has 1 .* needs 2.*in place of a list, or .* 'gp'",
        ),
        (
            {"objective": {"against": ["parameter"]}},
            UnknownMetricError,
            "objective.against",
            "weighed against parameters, seconds, .*accuracy.*did you mean 'parameters'",
        ),
        (
            {"objective": {"against": ["seconds", "seconds"]}},
            UnknownMetricError,
            "objective.against",
            "'seconds' stands twice$",
        ),
        (
            {"objective": {"against": ["seconds"]}, "scheduler": {"name": "asha"}},
            SpecError,
            "scheduler.name",
            "asha would judge trials by one objective.*with 'none'",
        ),
        (
            {
                "objective": {"against": ["seconds"]},
                "search": {
                    "method": "cmaes",
                    "trials": 9,
                    **grid(optimizer__lr={"low": 0.1, "high": 1}, optimizer__alpha=RANGE),
                },
            },
            SpecError,
            "search.method",
            "cmaes looks for one best value.*'nsga2', 'tpe' or 'gp'",
        ),
        (
            {"scheduler": {"name": "asha", "brackets": 3}},
            SpecError,
            "scheduler.brackets",
            "the scheduler asha does not read 'brackets'; it is for hyperband. Leave it out",
        ),
        (
            {"scheduler": {"name": "median", "reduction_factor": 4}},
            SpecError,
            "scheduler.reduction_factor",
            "the scheduler median does not read 'reduction_factor'; it is for asha and hyperband",
        ),
        (
            {"search": {"population": 8, **grid(optimizer__lr=[0.1])}},
            SpecError,
            "search.population",
            "grid has no generations; 'population' is for cmaes and nsga2",
        ),
        (
            pbt(search=grid(optimizer__lr=[0.1, 0.01], model__negative_fraction=[0.1, 0.2])),
            SpecError,
            "search.space.model.negative_fraction",
            "'model.negative_fraction' cannot change in the middle.*can change optimizer.lr, ",
        ),
        (
            pbt(search=grid(optimizer__lr=[0.1, 0.01], optimizer__name=["adam", "rmsprop"])),
            SpecError,
            "search.space.optimizer.name",
            "what the optimizer remembers would not fit",
        ),
        (
            pbt(search=grid(optimizer__lr=[0.1, 0.01], optimizer__clip_norm=[None, 1.0])),
            SpecError,
            "search.space.optimizer.clip_norm",
            "multiplies 'optimizer.clip_norm', which takes nowhere from None; take numbers above 0",
        ),
        (
            pbt(
                search=grid(
                    optimizer__lr=[0.1, 0.01],
                    optimizer__alpha={"choices": [0.5, 0.9], "when": {"optimizer.lr": [0.1]}},
                )
            ),
            SpecError,
            "search.space.optimizer.alpha",
            "exists under a condition; pbt changes it in every trial",
        ),
        (
            pbt(search={"method": "tpe", "trials": 8, **grid(optimizer__lr=[0.1, 0.01])}),
            SpecError,
            "search.method",
            "tpe learns .*changes its configuration while it trains; .*'random', 'qmc' or 'grid'",
        ),
        (
            pbt(search=grid(optimizer__lr=[0.1])),
            SpecError,
            "search.space",
            "this experiment has 1 trial; give 'search.space' more points",
        ),
        (
            pbt(model=..., arms=[{"model": LSTM}, {"name": "b", "model": LSTM}]),
            SpecError,
            "arms",
            "those of one arm do not fit another; post an experiment for each arm",
        ),
        (pbt(resources={"lanes": 4}), SpecError, "resources.lanes", "leave 'lanes' out"),
        (
            pbt(training={"steps": 100, "evaluate_every": 10, "patience": 2}),
            SpecError,
            "training.patience",
            "would leave its population",
        ),
        (
            pbt(training={"steps": 100, "evaluate_every": 100}),
            SpecError,
            "scheduler.rung_every",
            "no rung lies before the end of the training",
        ),
        (
            pbt(scheduler={"name": "pbt", "min_steps": 1000}),
            SpecError,
            "scheduler.min_steps",
            "no rung lies before the end of the training",
        ),
        (
            pbt(objective={"against": ["seconds"]}),
            SpecError,
            "scheduler.name",
            "pbt would judge trials by one objective",
        ),
        (
            {"objective": {"metric": "recal_accuracy"}},
            UnknownMetricError,
            "objective.metric",
            "copying has no metric 'recal_accuracy'; it has .*did you mean 'recall_accuracy'",
        ),
        (
            {"task": {"name": "ptb_chars"}},
            CorpusError,
            "task",
            "no data root is set.*Put ptb.train",
        ),
        (
            {"model": {**LSTM, "parameters": 9}},
            SpecError,
            "model",
            "exactly one of 'hidden_size' and 'parameters'; both",
        ),
        (
            {"optimizer": {"clip_norm": 1, "clip_value": 1}},
            SpecError,
            "optimizer",
            "'clip_norm' or 'clip_value' or neither; both",
        ),
        ({"training": {}}, SpecError, "training", "exactly one of 'steps' and 'epochs'; neither"),
        (
            {"search": grid(model__negative_fraction=[0.1, 0.5])},
            SpecError,
            "model",
            "'negative_ones' and 'negative_fraction'; both are given .at model.negative_fraction",
        ),
        (
            {
                "training": {"steps": 10**8, "evaluate_every": 1},
                "scheduler": {"name": "asha", "rung_every": 1},
            },
            SpecError,
            "scheduler.rung_every",
            "100,000,000 rungs",
        ),
        (
            {
                "training": {"steps": 100, "evaluate_every": 1},
                "scheduler": {"name": "asha", "rung_every": 1},
                "search": grid(training__steps=[100, 10**8]),
            },
            SpecError,
            "scheduler.rung_every",
            "100,000,000 rungs",
        ),
        (
            {
                "task": {"name": "copying", "delay": 5, "batch_size": 100, "train_size": 1000},
                "training": {"epochs": 10, "evaluate_every": 1},
                "scheduler": {"name": "asha", "rung_every": 1},
                "search": grid(task__train_size=[1000, 10**6]),
            },
            SpecError,
            "scheduler.rung_every",
            "100,000 rungs",
        ),
        (
            {"model": None, "arms": [{"name": "a", "model": LSTM}, {"name": "64", "model": LSTM}]},
            SpecError,
            "arms.1.name",
            "EXPERIMENT/NUMBER means a trial",
        ),
    ],
)
def test_a_spec_that_would_fail_on_a_worker_is_refused(changes, kind, path, words):
    found, raised = post(**changes)
    assert issubclass(raised, kind)
    assert [problem["path"] for problem in found] == [path]
    assert re.search(words, found[0]["message"]), found[0]["message"]


def test_a_missing_corpus_names_the_path_that_was_tried(tmp_path):
    content = {"task": {"name": "ptb_chars"}, "model": LSTM, "training": {"steps": 1}}
    with pytest.raises(CorpusError, match=r"ptb\.train\.txt") as caught:
        check_spec(ExperimentSpec.model_validate(content), tmp_path)
    assert str(tmp_path) in caught.value.message


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("seconds", "a metric of the name 'seconds', which is a cost of training"),
        ("right %", "MLflow takes no metric of the name 'right %'"),
        ("top/../5", "MLflow takes no metric"),
        ("x" * 201, "MLflow takes no metric"),
    ],
)
def test_a_metric_whose_name_would_be_lost_is_refused(monkeypatch, name, words):
    monkeypatch.setattr(CopyingConfig, "metrics", (Metric("loss", "nats"), Metric(name, "")))
    (problem,), _ = post(model=LSTM)
    assert problem["path"] == "task"
    assert words in problem["message"]


def test_a_huge_grid_over_fifty_arms_is_refused_untried(monkeypatch):
    monkeypatch.setattr(checks, "find_misfits", lambda spec: pytest.fail("values were tried"))
    space = {f"optimizer.{field}": list(range(1, 1001)) for field in ("lr", "lr_orth", "clip_norm")}
    arms = [{"name": f"arm{i}", "model": LSTM, "space": space} for i in range(50)]
    found, _ = post(model=..., arms=arms)
    assert "150,000 values are listed" in found[0]["message"]


def test_a_refusal_survives_pickling():
    error = UnknownParameterError("a.b", "no", expected="x", got=3, available=["y"])
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.path, again.available) == ("a.b: no", "a.b", ["y"])


class TestRacing:
    def post(self, most=10, **changes):
        search = {**grid(optimizer__lr=[0.1, 0.01]), **changes.pop("search", {})}
        known = {"search": search, "replicates": 3, "racing": {"most": most}}
        return post(**{**known, **changes})

    def test_a_race_of_several_configurations_is_right(self):
        assert self.post() == ([], None)

    @pytest.mark.parametrize(
        ("changes", "path", "words"),
        [
            ({"replicates": 1}, "replicates", "one seed gives none; give 'replicates' of 2 or"),
            ({"replicates": 10}, "racing.most", "trains 10 seeds already"),
            ({"scheduler": {"name": "asha"}}, "scheduler.name", "race with the scheduler 'none'"),
            (
                {"objective": {"against": ["parameters"]}},
                "objective.against",
                "looks for one best configuration",
            ),
            ({"search": {"space": {}}}, "racing", "needs two configurations"),
            (
                {"search": {"method": "random"}},
                "search.trials",
                "a random search does not end by itself",
            ),
        ],
    )
    def test_what_cannot_race_is_refused_with_what_would_work(self, changes, path, words):
        (problem,), _ = self.post(**changes)
        assert problem["path"] == path
        assert words in problem["message"]

    def test_a_race_says_how_far(self):
        (problem,), _ = self.post(racing={"leaders": 3})
        assert (problem["path"], problem["message"]) == ("racing.most", "'most' is missing")
