"""The preview: counts, sizes and first configurations, without walking the space."""

from __future__ import annotations

import pytest

from eigensweep.search_spaces.checks.brackets import Brackets
from eigensweep.search_spaces.checks.preview import preview, training_seconds
from eigensweep.search_spaces.checks.spec_warnings import list_warnings
from eigensweep.search_spaces.shipped.presets import load_preset, preset_names
from eigensweep.search_spaces.spec import ExperimentSpec


def make(**changes) -> ExperimentSpec:
    content = {
        "task": {"name": "copying", "delay": 20},
        "model": {"name": "scornn", "negative_fraction": 0.5},
        "training": {"steps": 100},
        "search": {"space": {"model.hidden_size": [16, 64, 32], "optimizer.lr": [0.1, 0.01]}},
    }
    return ExperimentSpec.model_validate({**content, **changes})


def test_it_counts_and_shows_the_first_configurations_in_order():
    spec = make()
    found = preview(spec)
    assert (found.points, found.trials) == (6, 6)
    assert found.first[1].params == {"model.hidden_size": 16, "optimizer.lr": 0.01}
    assert [trial.number for trial in found.first] == list(range(len(found.first)))
    assert found.first[1].hash == spec.trial(spec.space().point(1)).content_hash()
    assert abs(found.baseline - spec.task.baseline()) < 1e-12


def test_it_finds_the_smallest_and_the_largest_model_of_a_space():
    arm = preview(make()).arms[0]
    expected = [n * (n - 1) // 2 + n + 10 * n + 9 * n + 9 for n in (16, 64)]
    assert [arm.smallest_parameters, arm.largest_parameters] == expected


def test_an_endless_space_shows_examples_and_trials_asked_for():
    space = {"optimizer.lr": {"low": 1e-4, "high": 1e-1, "log": True}}
    found = preview(
        make(
            model={"name": "lstm", "hidden_size": 8},
            search={"method": "random", "trials": 7, "space": space},
        )
    )
    assert (found.points, found.trials) == (None, 7)
    assert found.first[0].params == {"optimizer.lr": 1e-4}
    assert found.first[0].number is None, "chance chooses the first trial"
    assert found.arms[0].axes[0].values == "0.0001 to 0.1, logarithmic"


def test_an_invalid_point_says_why():
    found = preview(
        make(
            model={"name": "scornn", "hidden_size": 8},
            search={"space": {"model.negative_ones": [99, 1]}},
        )
    )
    assert "allowed are 0 to 8" in found.first[0].error
    assert found.first[1].error is None


def test_the_baseline_is_that_of_all_trials_or_none():
    assert make().baseline == preview(make()).baseline == make().task.baseline()
    one = make(search={"space": {"task.delay": [7], "task.batch_size": [2, 4]}})
    assert one.baseline == make(task={**one.task.model_dump(), "delay": 7}).baseline
    several = make(search={"space": {"task.delay": [7, 70]}}, scheduler={"name": "asha"})
    found = preview(several)
    assert found.baseline is None
    assert any("asha compares their values all the same" in words for words in found.warnings)
    arms = [
        {"model": {"name": name, "hidden_size": 4}, "space": {"task.delay": [delay]}}
        for name, delay in (("lstm", 5), ("gru", 7))
    ]
    assert make(model=None, arms=arms, search={}).baseline is None
    assert not any("compares" in words for words in preview(one).warnings)


def test_points_are_shown_where_a_rule_leaves_out_the_first():
    space = {"model.hidden_size": {"low": 4, "high": 103}}
    found = preview(make(search={"space": space, "constraints": ["model.hidden_size >= 64"]}))
    assert [point.params["model.hidden_size"] for point in found.first] == [64, 65, 66, 67, 68]


def test_a_trillion_points_are_previewed_from_their_extremes(monkeypatch):
    axis = {"low": 1, "high": 1000}
    space = {
        "model.hidden_size": axis,
        "task.delay": axis,
        "training.steps": axis,
        "training.log_every": axis,
    }
    spec = make(search={"space": space})
    apply, applied = ExperimentSpec.trial, []
    monkeypatch.setattr(
        ExperimentSpec, "trial", lambda self, point: applied.append(point) or apply(self, point)
    )
    assert preview(spec).points == 10**12
    assert 5 < len(applied) < 80


def test_a_bigger_experiment_is_estimated_to_cost_more():
    little, large = make(), make(training={"steps": 1000}, replicates=3)
    assert preview(large).estimate.core_hours_low > 20 * preview(little).estimate.core_hours_low


def test_it_says_which_parameters_a_method_draws_by_themselves():
    space = {
        "optimizer.lr": {"low": 1e-4, "high": 1e-1, "log": True},
        "optimizer.lr_orth": {"low": 1e-5, "high": 1e-2, "log": True},
        "optimizer.name": ["adam", "rmsprop"],
        "optimizer.alpha": {"low": 0.5, "high": 0.9, "when": {"optimizer.name": ["rmsprop"]}},
    }
    model = {"name": "scornn", "hidden_size": 8, "negative_fraction": 0.5}
    said = {}
    for method in ("tpe", "gp", "cmaes", "nsga2"):
        search = {"method": method, "trials": 30, "space": space}
        said[method] = preview(make(model=model, search=search)).search.words
    assert said["tpe"] == []
    assert "optimizer.alpha is drawn by TPE" in said["gp"][0]
    assert "optimizer.name, optimizer.alpha are drawn by TPE" in said["cmaes"][0]
    assert said["nsga2"][0] == "A generation has 6 trials in each arm"
    assert "optimizer.alpha is drawn at random" in said["nsga2"][1]


def test_it_says_which_trials_are_drawn_at_random():
    space = {"optimizer.lr": {"low": 1e-4, "high": 1e-1, "log": True}}
    for method, words in (
        ("tpe", "tpe draws at random until 10 trials have ended; this search has 4"),
        ("gp", "gp draws at random until 10 trials have ended; this search has 4"),
        ("nsga2", "A generation has 4 trials in each arm; this search has no second one"),
    ):
        few = make(search={"method": method, "trials": 4, "space": space})
        assert words in preview(few).search.words[0]


def test_it_says_whether_arms_take_turns_or_are_chosen():
    arms = [{"model": {"name": name, "hidden_size": 4}} for name in ("lstm", "gru")]
    space = {"optimizer.lr": {"low": 1e-4, "high": 1e-1, "log": True}}
    said = {}
    for method in ("random", "tpe", "qmc", "gp"):
        search = {"method": method, "trials": 30, "space": space}
        said[method] = preview(make(model=None, arms=arms, search=search)).search.words
    for method in ("random", "tpe"):
        assert said[method] == [
            f"{method} chooses each trial's arm, too: an arm may get few trials, or none. With "
            "cmaes, gp, nsga2 and qmc the arms take turns"
        ]
    for method in ("qmc", "gp"):
        assert said[method] == ["The arms take turns, so each gets the same number of trials"]


def test_a_sample_of_a_grid_shows_its_first_points_and_count():
    spec = make(limits={"trials": 2})
    found = preview(spec)
    assert found.trials == 2
    assert "2 of 6 points run: a sample that is spread over the grid" in found.search.words[0]
    assert len(found.first) == 2
    assert found.first[0].params != spec.space().point(0).params


def test_hyperband_says_when_its_brackets_begin():
    settings = {"name": "hyperband", "min_steps": 10, "margin": None}
    (words,) = preview(make(scheduler=settings)).search.words
    assert "begin to stop trials at 10, 30, 90 steps; they get 9, 5, 3 of each 17" in words
    for first, does in ((40, "as asha stops trials from 40 steps on"), (500, "stops no trial")):
        settings = {"name": "hyperband", "min_steps": first, "margin": None}
        (words,) = preview(make(scheduler=settings)).search.words
        assert f"a single bracket here, and {does}: " in words
        assert "no room for another. Take more steps" in words
    (words,) = preview(make(scheduler=settings | {"brackets": 1, "margin": 0.1})).search.words
    assert words == "hyperband has a single bracket here, and stops no trial"


def test_pbt_says_how_many_trials_are_replaced_and_when():
    space = {"optimizer.lr": {"low": 1e-4, "high": 1e-1, "log": True}}
    search = {"method": "random", "trials": 12, "space": space}
    training = {"steps": 100, "evaluate_every": 10}
    scheduler = {"name": "pbt", "rung_every": 20}
    model = {"name": "scornn", "hidden_size": 8, "negative_fraction": 0.5}
    found = preview(make(model=model, search=search, scheduler=scheduler, training=training))
    assert found.trials == 12
    (words,) = found.search.words
    assert "waits for the last at each rung: 4 times, first at 20 steps" in words
    assert "the 2 worst go on from a copy of one of the 2 best, with changed optimizer.lr" in words
    limited = make(
        model=model,
        search=search,
        scheduler=scheduler,
        training=training,
        limits={"wall_seconds": 60},
    )
    before, said = preview(limited).search.words
    assert before == words
    assert "has trained its last round, there is no best trial, and none can go on" in said


def test_a_grid_runs_every_point_whatever_trials_are_asked_for():
    found = preview(make(search=make().search.model_dump() | {"trials": 2}))
    assert found.trials == found.points
    assert "'limits.trials' runs a sample" in found.search.words[0]


def test_a_race_says_what_it_may_cost():
    plain = preview(make(replicates=3))
    found = preview(make(replicates=3, racing={"most": 9, "leaders": 4}))
    assert (plain.race, found.race) == (0, 4 * 6)
    assert found.search.words[-1] == (
        "Every configuration trains 3 seeds. Then up to 4 leaders train on, to 4, 5, 6, 7, 8, 9 "
        "seeds, until one is better than all others by an interval that holds at every look "
        "together: at most 24 further trainings. A difference as large as its spread between seeds "
        "is decided with about 20 seeds, one of twice that size with 10, one of half with 66"
    )
    assert [(each.effect, each.seeds) for each in found.race_plan] == [(2, 10), (1, 20), (0.5, 66)]
    hours = [each.core_hours for each in found.race_plan]
    assert 0 < hours[0] < hours[1] < hours[2]
    arms = make(
        replicates=3,
        model=None,
        search={"space": {}},
        arms=[{"model": {"name": name, "hidden_size": 4}} for name in ("lstm", "gru")],
        racing={"between": "arms", "most": 9, "smallest": 0.1, "core_hours": 2},
    )
    words = preview(arms).search.words[-1]
    assert "Then the best configuration of each arm trains on" in words
    assert "or differs from them by no more than 0.1 by an interval" in words
    assert ", or 2 core-hours are spent: at most 12 further trainings" in words
    assert [each.seeds for each in preview(arms).race_plan] == [7, 15, 50]
    assert plain.race_plan == []
    assert found.estimate.core_hours_low == plain.estimate.core_hours_low
    assert found.estimate.core_hours_high > plain.estimate.core_hours_high


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"training": {"steps": 100, "evaluate_every": 500}},
            "'training.evaluate_every' is 500, and trials train 100 steps: each is evaluated once",
        ),
        (
            {"optimizer": {"warmup_steps": 101}},
            "'optimizer.warmup_steps' is 101, and trials train 100 steps: the learning rates never",
        ),
        (
            {"search": {"method": "tpe", "trials": 20, "space": {"optimizer.lr": [0.1, 0.2]}}},
            "The space has 2 points, so the search ends after 2 trials; 'search.trials' is 20",
        ),
        (
            {"scheduler": {"name": "asha", "min_steps": 5000}},
            "asha stops no trial: it compares them from 5,000 steps on, and they train 100. Take a "
            "smaller 'scheduler.min_steps'",
        ),
        (
            {"search": {"space": {"optimizer.alpha": [0.5, 0.9]}}},
            "'optimizer.alpha' changes nothing in scornn: adam does not read it",
        ),
        (
            {
                "model": {"name": "lstm", "hidden_size": 4},
                "search": {"space": {"optimizer.lr_orth": [0.1, 0.2]}},
            },
            "'optimizer.lr_orth' changes nothing in lstm: it has no orthogonal matrices",
        ),
        (
            {"scheduler": {"name": "median", "rung_every": 200}},
            "they train 100. Take a smaller 'scheduler.rung_every' or 'training.evaluate_every'",
        ),
    ],
)
def test_what_will_have_no_effect_is_told(changes, words):
    (told,) = preview(make(**changes)).warnings
    assert words in told
    assert preview(make()).warnings == []
    training = {"steps": 100, "evaluate_every": 10}
    assert preview(make(scheduler={"name": "asha"}, training=training)).warnings == []
    search = {"method": "random", "trials": 20, "space": {"optimizer.lr": [0.1, 0.2]}}
    assert preview(make(search=search, limits={"trials": 2})).warnings == []


RATES = {"space": {"optimizer.lr": [0.1, 0.2]}}
ARMS = [{"model": {"name": name, "hidden_size": 8}} for name in ("lstm", "gru")]


class TestAFixedValueThatIsSearched:
    def test_is_told(self):
        told = preview(make(optimizer={"lr": 0.3}, search=RATES)).warnings
        assert told == ["'optimizer.lr' is searched, so its fixed value 0.3 has no effect"]
        (told,) = preview(make(search={"space": {"training.steps": [5, 6]}})).warnings
        assert "'training.steps' is searched" in told
        shared = {"space": {"model.hidden_size": [9]}}
        (told,) = preview(make(model=None, arms=ARMS, search=shared)).warnings
        assert "'model.hidden_size' is searched, so its fixed value 8" in told

    def test_is_a_default_where_not_all_arms_or_points_search_it(self):
        own = [{**ARMS[0], "space": RATES["space"]}, ARMS[1]]
        assert preview(make(model=None, arms=own, optimizer={"lr": 0.3}, search={})).warnings == []
        alpha = {"choices": [0.5, 0.7], "when": {"optimizer.name": "rmsprop"}}
        space = {"optimizer.name": ["adam", "rmsprop"], "optimizer.alpha": alpha}
        found = preview(make(optimizer={"alpha": 0.8}, search={"space": space}))
        assert found.warnings == []
        told = {axis.path: axis.values for axis in found.arms[0].axes}
        assert told["optimizer.alpha"] == "0.5, 0.7, if optimizer.name = rmsprop"

    def test_is_nothing_where_a_stored_spec_has_it_by_default(self):
        stored = make(search=RATES).model_dump(mode="json")
        assert preview(ExperimentSpec.model_validate(stored)).warnings == []

    @pytest.mark.parametrize("name", preset_names())
    def test_stands_in_no_preset(self, name):
        assert list_warnings(load_preset(name)) == []


def test_asha_says_when_it_stops_and_the_estimate_counts_it():
    plain = preview(make(training={"steps": 90, "evaluate_every": 10}))
    halved = make(
        training={"steps": 90, "evaluate_every": 10}, scheduler={"name": "asha", "min_steps": 10}
    )
    found = preview(halved)
    assert found.search.words == [
        "asha compares trials at 10, 30 steps, and 1 in 3 goes on. If each rung stops all that it "
        "may, trials train 26% of their steps on average",
        "asha stops no trial before one is 10% better than the baseline; with "
        "'scheduler.margin: null' it does from the beginning",
    ]
    each_counts = make(scheduler={"name": "asha", "margin": None})
    assert not any("baseline" in words for words in preview(each_counts).search.words)
    median = preview(make(scheduler={"name": "median"})).search.words
    assert [words.partition(" better")[0] for words in median] == [
        "median stops no trial before one is 10%"
    ]
    # 10 + 20 / 3 + 60 / 9 of 90 steps
    assert found.estimate.core_hours_low == pytest.approx(
        plain.estimate.core_hours_low * 7 / 27, rel=0.1
    )
    assert found.estimate.core_hours_high == plain.estimate.core_hours_high
    assert "Low: asha stops as many trials as it can. High: it stops none." in found.estimate.words


@pytest.mark.parametrize(
    ("task", "factor"),
    [
        ({"name": "ptb_chars", "bptt": 20}, 100),
        ({"name": "pixel_mnist"}, 10),
        ({"name": "adding", "length": 50, "valid_size": 10_000}, 10),
    ],
)
def test_an_estimate_counts_evaluations(task, factor):
    """Of three steps, most of the time goes into validation and test data."""
    few = make(task=task, training={"steps": 3, "evaluate_every": 3})
    once, often = (
        preview(make(task=task, training={"steps": 100, "evaluate_every": every}))
        for every in (100, 10)
    )
    config = few.trial(next(iter(few.space())))
    assert preview(few).estimate.seconds_a_trial_high > factor * training_seconds(config)
    assert often.estimate.seconds_a_trial_high > 2 * once.estimate.seconds_a_trial_high


def test_hyperband_is_estimated_by_the_shares_of_its_brackets():
    found = Brackets(first=10, last=90, factor=3)
    trained = [10 + 20 / 3 + 60 / 9, 30 + 60 / 3, 90]  # one bracket after the other
    weights = [9, 5, 3]
    mean = sum(a * b for a, b in zip(trained, weights, strict=True)) / sum(weights)
    assert found.share == pytest.approx(mean / 90)
    assert Brackets(first=90, last=90, factor=3, most=1).share == 1
