"""All mistakes of a spec are told at once, and none that only follows from another one."""

from __future__ import annotations

import json

import pytest
from pydantic import ValidationError

from eigensweep.search_spaces.checks.checks import check_spec
from eigensweep.search_spaces.checks.mistakes import find_mistakes
from eigensweep.search_spaces.checks.problems import shorten_list
from eigensweep.search_spaces.checks.single_trial import read_trial
from eigensweep.search_spaces.errors import MOST_TOLD, SeveralErrors, SpecError
from eigensweep.search_spaces.spec import ExperimentSpec

GOOD = {
    "task": {"name": "copying", "delay": 20},
    "model": {"name": "scornn", "hidden_size": 32, "negative_ones": 3},
    "training": {"steps": 100},
}
LSTM = {"model": {"name": "lstm", "hidden_size": 8}}
GRU = {"model": {"name": "gru", "hidden_size": 8}}
FIVE = {
    "task": {"name": "ptb_chars", "lenght": 3},
    "model": {"name": "scornn", "hidden_size": 32, "negative_one": 3},
    "training": {"steps": 100},
    "search": {"space": {"optimizer.lrr": [0.1, 0.2]}},
    "scheduler": {"name": "asha", "brackets": 3},
}


def mistakes(**changes) -> dict[str, str]:
    """Return place and message of all mistakes of a spec that is right but for `changes`."""
    content = {key: value for key, value in {**GOOD, **changes}.items() if value is not ...}
    before = json.dumps(content)
    found = find_mistakes(content)
    assert json.dumps(content) == before, "what a person gave was changed"
    assert len({(each["path"], each["message"]) for each in found}) == len(found)
    return {each["path"]: each["message"] for each in found}


def test_five_mistakes_of_five_kinds_are_told_at_once():
    found = find_mistakes(FIVE)
    assert [each["path"] for each in found] == [
        "task.lenght",
        "model.negative_one",
        "task",
        "search.space.optimizer.lrr",
        "scheduler.brackets",
    ]
    assert "no data root is set" in found[2]["message"]
    for each in found:
        assert each["expected"] or each["path"] == "task"
    assert found[0]["available"] is not None


def test_a_good_spec_has_no_mistake():
    assert mistakes() == {}


@pytest.mark.parametrize(
    ("changes", "places"),
    [
        ({"model": {"name": "scornn", "hidden_size": 0}}, {"model.hidden_size"}),
        ({"training": {"steps": 0}}, {"training.steps"}),
        ({"model": {"name": "scorn", "hidden_size": 8}}, {"model.name"}),
        ({"task": {"name": "coping", "delay": 8}}, {"task.name"}),
        ({"task": ...}, {"task"}),
        ({"model": ...}, {""}),
        ({"arms": [LSTM]}, {""}),
        ({"arms": [3], "model": ...}, {"arms.0"}),
        ({"arms": [{}], "model": ...}, {"arms.0.model"}),
        ({"racing": {"leaders": 3}, "replicates": 3}, {"racing.most"}),
        ({"resources": {"gpus": 2, "accelerator_type": "H100"}}, {"resources.gpus"}),
        ({"published": [{"value": 1}]}, {"published.0.metric"}),
        ({"scheduler": {"name": "hyperbnd", "brackets": 3}}, {"scheduler.name"}),
        ({"search": {"method": "tpee", "population": 9, "warm_start": ["x"]}}, {"search.method"}),
        ({"search": {"method": "tpe", "trials": "ten"}}, {"search.trials"}),
        (
            {
                "search": {
                    "space": {
                        "optimizer.name": "adam",
                        "optimizer.alpha": {
                            "choices": [0.5],
                            "when": {"optimizer.name": ["rmsprop"]},
                        },
                    }
                }
            },
            {"search.space.optimizer.name"},
        ),
        (
            {"model": {"name": "lstn"}, "search": {"space": {"model.forget_bias": [1.0]}}},
            {"model.name"},
        ),
        (
            {"task": {"name": "speech_frames", "corpsu": "timit"}},
            {"task.corpsu"},
        ),
        (
            {
                "model": ...,
                "arms": [{"model": {"name": "lstn"}}, LSTM],
                "published": [{"arm": "lstn", "metric": "test/cross_entropy", "value": 1}],
            },
            {"arms.0.model.name"},
        ),
        ({"objective": 3, "scheduler": {"name": "asha"}}, {"objective"}),
        ({"training": {"steps": 100, "evaluate_every": "x"}, "scheduler": {"name": "pbt"},
          "search": {"space": {"optimizer.lr": [0.1, 0.2]}}}, {"training.evaluate_every"}),
    ],
)  # fmt: skip
def test_what_only_follows_from_a_mistake_is_not_told(changes, places):
    assert mistakes(**changes).keys() == places


def test_rules_of_several_sections_are_told_together():
    found = mistakes(
        model={"name": "lstm", "hidden_size": 8, "parameters": 900},
        training={},
        optimizer={"clip_norm": 1, "clip_value": 1},
    )
    assert found.keys() == {"model", "training", "optimizer"}


def test_a_schedule_by_epochs_wants_a_task_that_has_epochs():
    task = {"name": "denoise", "delay": 5, "symbols": 3}
    found = mistakes(task=task, optimizer={"name": "adam", "schedule": "exponential"})
    assert list(found) == ["optimizer"]
    assert "give 'optimizer.schedule_every', in steps" in found["optimizer"]


def test_a_wrong_parameter_hides_no_rule_and_no_grids_size():
    thousand = {"low": 1, "high": 1000}
    found = mistakes(
        search={
            "space": {
                "optimizer.lrr": [0.1],
                "task.valid_size": thousand,
                "training.log_every": thousand,
            }
        },
        optimizer={"clip_norm": 1, "clip_value": 1},
        training={},
    )
    assert found.keys() == {"search.space.optimizer.lrr", "search.space", "training"}


def test_all_wrong_conditions_are_told():
    space = {
        "optimizer.name": ["adam", "rmsprop"],
        "optimizer.alpha": {"choices": [0.5], "when": {"optimizer.nam": ["rmsprop"]}},
        "optimizer.momentum": {"choices": [0.5], "when": {"optimizer.name": ["sgd"]}},
    }
    assert mistakes(search={"space": space}).keys() == {
        "search.space.optimizer.alpha.when.optimizer.nam",
        "search.space.optimizer.momentum.when.optimizer.name",
    }


def test_a_shared_mistake_of_many_arms_is_told_once():
    space = {
        "optimizer.lr": {"low": 0.1, "high": 0.2},
        "optimizer.alpha": {"choices": [0.5], "when": {"model.forget_bias": [1]}},
    }
    found = mistakes(model=..., arms=[LSTM, GRU], search={"space": space})
    (words,) = [words for path, words in found.items() if "alpha" in path]
    assert "which this space does not vary" in words
    assert "(in " not in words
    own = {**LSTM, "space": {"model.forget_bias": [1, 2]}}
    found = mistakes(model=..., arms=[own, GRU, {**GRU, "name": "b"}], search={"space": space})
    (words,) = [words for path, words in found.items() if "alpha" in path]
    assert words.endswith("(in gru, b)")
    space.pop("optimizer.alpha")
    found = mistakes(model=..., arms=[LSTM, GRU], search={"space": space})
    assert found.keys() == {"search.space.optimizer.lr"}
    found = mistakes(model=..., arms=[LSTM, GRU], training={})
    assert found.keys() == {"training"}


def test_a_point_is_named_only_where_the_mistake_depends_on_it():
    both = {"name": "lstm", "hidden_size": 8, "parameters": 900}
    found = mistakes(model=both, search={"space": {"optimizer.lr": [0.1, 0.2]}})
    assert found["model"] == (
        "lstm takes exactly one of 'hidden_size' and 'parameters'; both are given"
    )
    sizes = {"model.hidden_size": [8, 9], "optimizer.lr": [0.1, 0.2]}
    found = mistakes(model={"name": "lstm", "parameters": 900}, search={"space": sizes})
    assert found["model"].endswith(
        "both are given (at model.hidden_size = 8, and no other extreme point of the search is "
        "valid)"
    )


def test_of_many_mistakes_the_first_are_told_and_how_many_more():
    found = shorten_list(find_mistakes({**GOOD, **{f"field{i}": i for i in range(30)}}))
    assert len(found) == MOST_TOLD + 1
    assert found[-1]["message"] == "and 10 more; these come first"


def test_several_errors_are_a_list_of_lines():
    spec = ExperimentSpec.model_validate(
        {**GOOD, "training": {}, "search": {"space": {"optimizer.lrr": [1]}}}
    )
    with pytest.raises(SeveralErrors) as caught:
        check_spec(spec)
    first, *lines = str(caught.value).splitlines()
    assert first == "2 things are wrong:"
    assert [line.split(":")[0] for line in lines] == [
        "  search.space.optimizer.lrr",
        "  training",
    ]


@pytest.mark.parametrize(
    ("changes", "place", "words"),
    [
        ({"metric": {"name": "loss", "goal": "minimize"}}, "metric", "'objective.metric'"),
        ({"objective": {"name": "loss"}}, "objective.name", "'objective.metric'"),
        ({"parameters": {"lr": {"min": 0, "max": 1}}}, "parameters", "'search.space'"),
        ({"num_samples": 10}, "num_samples", "'search.trials'"),
        ({"steps": 100}, "steps", "'training.steps'"),
        ({"method": "random"}, "method", "'search.method'"),
        ({"training": {"steps": 9, "batch_size": 4}}, "training.batch_size", "'task.batch_size'"),
        (
            {"model": {"name": "lstm", "hidden_size": 8, "lr": 0.1}},
            "model.lr",
            "'optimizer.lr'",
        ),
    ],
)
def test_a_setting_of_elsewhere_is_told_where_it_stands_here(changes, place, words):
    assert mistakes(**changes)[place].endswith(f"; here it is {words}")


def test_a_parameter_of_another_arm_is_sent_to_that_arm():
    scornn = {"model": GOOD["model"]}
    space = {"model.negative_ones": [1, 2]}
    found = mistakes(model=..., arms=[LSTM, scornn], search={"space": space})
    assert found["search.space.model.negative_ones"].endswith(
        "; scornn has it: put it into the 'space' of that arm"
    )
    found = mistakes(model=..., arms=[{**LSTM, "space": space}, scornn])
    assert "scornn has it" in found["arms.0.space.model.negative_ones"]


class TestOneConfiguration:
    def test_mistakes_of_fields_and_of_rules_are_told_at_once(self):
        with pytest.raises(SeveralErrors) as caught:
            read_trial({**GOOD, "model": {"name": "lstm", "hiden_size": 8}, "training": {}})
        assert [each.path for each in caught.value.errors] == ["model.hiden_size", "training"]

    def test_its_error_shows_no_error_of_pydantic(self):
        with pytest.raises(SpecError, match="there is no model 'lstn'") as caught:
            read_trial({**GOOD, "model": {"name": "lstn"}})
        assert not isinstance(caught.value.__context__, ValidationError)
        assert caught.value.__cause__ is None
