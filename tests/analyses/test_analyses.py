"""Analyses of real small trainings: numbers, tables, pictures, and what is refused."""

from __future__ import annotations

import csv
import errno
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from orders import make_order

from eigensweep.analyses import ANALYSES
from eigensweep.analyses.__main__ import main
from eigensweep.analyses.base import (
    ExperimentSubject,
    Folders,
    TrialOptions,
    TrialSubject,
)
from eigensweep.analyses.delivery import NotDeliveredError, deliver
from eigensweep.analyses.gradient_norms import GradientNormsContent
from eigensweep.analyses.messages import FILES, AnalysisOrder, Outcome
from eigensweep.analyses.size_study import group_arms
from eigensweep.analyses.weights import load_network, load_snapshot
from eigensweep.models.analysis.gradient_norms import gradient_norms
from eigensweep.results import figures
from eigensweep.search_spaces.trial import TrialConfig
from eigensweep.store import spectrum_files
from eigensweep.store.checkpoints import Store
from eigensweep.store.places.durable_files import DamagedError, StoreAwayError
from eigensweep.store.upkeep.thinning import thin_out
from eigensweep.tasks.adding import Adding
from eigensweep.training.attempt import Attempt

BASE: dict[str, Any] = {
    "task": {"name": "adding", "length": 9, "batch_size": 6, "train_size": 60},
    "model": {"name": "enrnn", "hidden_size": 8, "short_size": 3, "negative_ones": 1},
    "training": {"steps": 12, "evaluate_every": 4},
    "optimizer": {"lr": 1e-2},
}
SMALL = {"valid_size": 20, "test_size": 20}


def config_of(**changes: Any) -> dict[str, Any]:
    content = {name: {**section} for name, section in BASE.items()}
    content["task"] |= SMALL
    for path, value in changes.items():
        section, _, field = path.partition("__")
        if field:
            content[section][field] = value
        else:
            content[section] = value
    return TrialConfig.from_dict(content).resolve().model_dump(mode="json")


def train(storage: Path, number: int, **changes: Any) -> TrialSubject:
    """Train a configuration to its end in the store, and return it as a subject."""
    config = config_of(**changes)
    order = make_order(number=number, config=config, rungs=(12,), storage=str(storage))
    report = Attempt(order, "cpu").advance()
    assert report.outcome == "completed"
    return TrialSubject(
        experiment="e1",
        number=number,
        arm=config["model"]["name"],
        state="completed",
        config=config,
        place=f"e1/{number:05d}",
        value=report.result.value,
        step=12,
    )


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    return Folders(tmp_path_factory.mktemp("storage"))


@pytest.fixture(scope="module")
def enrnn(folders: Folders) -> TrialSubject:
    return train(folders.storage, 0, training__spectra=True)


@pytest.fixture(scope="module")
def sizes(folders: Folders, enrnn: TrialSubject) -> ExperimentSubject:
    others = [
        train(folders.storage, 1, model__short_size=0),
        train(folders.storage, 2, model__short_size=8, model__negative_ones=0, replicates=2),
        train(folders.storage, 3, model__short_size=0, optimizer={"lr": 1e-9}),
    ]
    return ExperimentSubject(
        experiment="e1",
        name="sizes",
        metric="mse",
        unit="squared error",
        better="lower",
        baseline=1 / 6,
        trials=[enrnn, *others],
    )


@pytest.fixture(scope="module")
def arms(folders: Folders, sizes: ExperimentSubject) -> ExperimentSubject:
    """ENRNN and scoRNN with 8 and 12 units, and an ENRNN of 8 units with another nonlinearity."""
    scornn = {"name": "scornn", "negative_ones": 1}
    trials = [
        train(folders.storage, 20),
        train(folders.storage, 21, model__hidden_size=12),
        train(folders.storage, 22, model={**scornn, "hidden_size": 8}),
        train(folders.storage, 23, model={**scornn, "hidden_size": 12}),
        train(folders.storage, 24, model__activation="tanh"),
    ]
    trials[-1] = trials[-1].model_copy(update={"arm": "enrnn_tanh"})
    return sizes.model_copy(update={"trials": trials})


def analyse(name: str, subject: Any, folders: Folders, **options: Any) -> dict[str, Any]:
    """Return the numbers of an analysis, as they come back from JSON."""
    analysis = ANALYSES[name]
    parsed = analysis.Options.model_validate(options)
    analysis.check(parsed, subject)
    content = analysis.run(parsed, subject, folders).content
    return json.loads(json.dumps(content.model_dump(mode="json"), allow_nan=False))


class TestWeights:
    def test_the_last_weights_are_the_checkpoints_as_doubles(self, enrnn, folders):
        network = load_network(TrialOptions(), enrnn, folders)
        state = load_snapshot(enrnn, 0, folders).state["model"]
        assert network.step == 12
        for name, value in network.model.state_dict().items():
            torch.testing.assert_close(value, state[name].to(value.dtype), rtol=0, atol=0)
        assert network.model.U.dtype == torch.float64

    def test_the_initial_weights_are_those_the_training_began_with(self, enrnn, folders):
        one = load_network(TrialOptions(weights="initial"), enrnn, folders)
        again = load_network(TrialOptions(weights="initial"), enrnn, folders)
        last = load_network(TrialOptions(), enrnn, folders)
        assert one.step == 0
        assert torch.equal(one.model.U, again.model.U)
        assert not torch.equal(one.model.U, last.model.U)

    def test_the_best_weights_are_of_an_evaluation(self, enrnn, folders):
        assert load_network(TrialOptions(weights="best"), enrnn, folders).step in (4, 8, 12)

    def test_a_replicate_that_is_not_there_is_refused(self, enrnn, folders):
        with pytest.raises(ValueError, match="has 1 replicate"):
            load_network(TrialOptions(replicate=1), enrnn, folders)

    def test_a_trial_that_left_nothing_is_refused(self, enrnn, folders):
        gone = enrnn.model_copy(update={"place": "e9/00000"})
        with pytest.raises(ValueError, match="no checkpoint of trial 0"):
            load_network(TrialOptions(), gone, folders)

    def test_weights_that_are_not_finite_are_refused_with_the_rest(
        self, enrnn, folders, monkeypatch
    ):
        kept = load_snapshot(enrnn, 0, folders)
        kept.state["model"] = {
            name: values * float("nan") for name, values in kept.state["model"].items()
        }
        monkeypatch.setattr("eigensweep.analyses.weights.load_snapshot", lambda *_: kept)
        with pytest.raises(ValueError, match=r"not finite .*; ask for the weights 'best'"):
            load_network(TrialOptions(), enrnn, folders)


class TestASmallerBatch:
    """The last batch of an epoch, which some tasks have."""

    @pytest.fixture(autouse=True)
    def smaller(self, monkeypatch):
        whole = Adding.train_batch

        def draw(task, step, seed):
            batch = whole(task, step, seed)
            return replace(batch, x=batch.x[:, :4], y=batch.y[:4])

        monkeypatch.setattr(Adding, "train_batch", draw)

    @pytest.mark.parametrize("name", ["hidden_states", "gradient_norms"])
    def test_a_sequence_beyond_it_is_refused_in_words(self, enrnn, folders, name):
        with pytest.raises(ValueError, match="'sequence' is 4; the batch after step 12 has 4 seq"):
            analyse(name, enrnn, folders, sequence=4)

    def test_its_last_sequence_is_analysed(self, enrnn, folders):
        assert analyse("gradient_norms", enrnn, folders, sequence=3)["sequences"] == 1


class TestGradientNorms:
    def test_the_map_is_of_the_batch_that_training_would_meet_next(self, enrnn, folders):
        content = analyse("gradient_norms", enrnn, folders)
        network = load_network(TrialOptions(), enrnn, folders)
        x = network.task.train_batch(12, 0).x
        expected = gradient_norms(network.model, x.double())
        assert list(content["norms"]) == ["long", "short"]
        for name, norms in expected.items():
            told = torch.tensor(content["norms"][name], dtype=torch.float64)
            torch.testing.assert_close(told, norms.mean(-1), rtol=1e-5, atol=1e-12)

    @pytest.mark.parametrize(("ends_at", "scale"), [(8.47, "linear"), (8130.0, "log")])
    def test_its_axis_is_logarithmic_where_norms_span_a_decade(
        self, enrnn, folders, ends_at, scale
    ):
        told = analyse("gradient_norms", enrnn, folders)
        length = told["length"]
        step = (ends_at / 8.13) ** (1 / (length - 1))
        told["by_delay"] = {"long": [8.13 * step**k for k in range(length)]}
        told["norms"] = {"long": told["norms"]["long"]}
        analysis = ANALYSES["gradient_norms"]
        figure = analysis.plot(GradientNormsContent.model_validate(told))
        assert figure.axes[1].get_yscale() == scale

    def test_the_short_state_keeps_theorem_3_1(self, enrnn, folders):
        theorem = analyse("gradient_norms", enrnn, folders)["theorem_3_1"]
        assert list(theorem) == ["short"]  # the long one is fed by the short one
        assert theorem["short"]["holds"]

    def test_one_sequence_is_one_of_the_batch(self, enrnn, folders):
        every = [
            torch.tensor(analyse("gradient_norms", enrnn, folders, sequence=k)["norms"]["long"])
            for k in range(6)
        ]
        mean = torch.tensor(analyse("gradient_norms", enrnn, folders)["norms"]["long"])
        torch.testing.assert_close(torch.stack(every).mean(0), mean, rtol=1e-4, atol=1e-7)

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"sequence": 6}, "has 6 sequences"),
            ({"replicate": 3}, "has 1 replicate"),
        ],
    )
    def test_what_the_batch_has_not_is_refused(self, enrnn, folders, options, words):
        with pytest.raises(ValueError, match=words):
            analyse("gradient_norms", enrnn, folders, **options)

    def test_a_map_that_takes_days_is_refused_with_what_to_set(self, enrnn):
        config = config_of(task__length=1000, model__hidden_size=2048, model__short_size=100)
        large = enrnn.model_copy(update={"config": config})
        options = ANALYSES["gradient_norms"].Options.model_validate({})
        with pytest.raises(ValueError, match="set 'sequences' below 6 or 'length' below 1000"):
            ANALYSES["gradient_norms"].check(options, large)


class TestHiddenStates:
    def test_the_marked_steps_are_those_of_the_two_values(self, enrnn, folders):
        content = analyse("hidden_states", enrnn, folders, sequence=2)
        network = load_network(TrialOptions(), enrnn, folders)
        x = network.task.train_batch(12, 0).x
        assert content["marks"] == x[:, 2, 1].nonzero().flatten().tolist()
        expected = network.model.states(x.double())[:, 2]
        told = torch.tensor(content["states"], dtype=torch.float64)
        torch.testing.assert_close(told, expected.detach(), rtol=1e-5, atol=1e-9)
        assert len(content["movement_between_marks"]) == 3

    def test_on_copying_the_marker_is_marked(self, folders):
        task = {"name": "copying", "delay": 6, "symbols": 2, "batch_size": 4, **SMALL}
        model = {"name": "lstm", "hidden_size": 5}
        trial = train(folders.storage, 7, task=task, model=model)
        assert analyse("hidden_states", trial, folders)["marks"] == [7]


class TestSpectra:
    def test_a_trial_told_to_keep_them_has_one_at_each_evaluation(self, enrnn, folders):
        content = analyse("spectra", enrnn, folders)
        assert content["over_training"]
        assert content["note"] is None
        assert content["steps"] == [0, 4, 8, 12]
        assert list(content["matrices"]) == ["whole", "long", "short"]
        for values in content["matrices"]["long"]["singular_values"]:
            assert values == pytest.approx([1.0] * 5, abs=1e-5)
        W = load_network(TrialOptions(), enrnn, folders).model.recurrent_matrix()
        last = content["matrices"]["whole"]["singular_values"][-1]
        assert last == pytest.approx(torch.linalg.svdvals(W).tolist(), rel=1e-4)

    def test_any_other_shows_first_best_and_last_and_says_so(self, sizes, folders):
        content = analyse("spectra", sizes.trials[1], folders)
        assert not content["over_training"]
        assert "training.spectra=true" in content["note"]
        assert content["steps"][0] == 0
        assert content["steps"][-1] == 12

    def test_keeping_them_changes_no_result(self, enrnn, folders):
        plain = train(folders.storage, 8)
        assert plain.value == enrnn.value
        hashes = [TrialConfig.from_dict(t.config).content_hash() for t in (plain, enrnn)]
        assert hashes[0] == hashes[1]

    def test_what_was_kept_beyond_the_last_commit_does_not_count(self, enrnn, folders):
        store, key = Store(folders.storage), enrnn.store_key(0)
        kept = spectrum_files.read(store, key)
        spectrum_files.write(store, key, store.attempt(key), 999, kept[-1][1])
        assert analyse("spectra", enrnn, folders)["steps"][-1] == 12
        (Path(store.place) / key / "spectra" / "000000999-1.json").unlink()

    def test_they_are_there_though_the_checkpoints_are_not(self, folders):
        trial = train(folders.storage, 10, training__spectra=True)
        whole = analyse("spectra", trial, folders)
        thin_out(Store(folders.storage), trial.place, "none", 1)
        assert analyse("spectra", trial, folders) == whole

    def test_those_that_a_donor_did_not_keep_are_missing(self, folders):
        trial = train(folders.storage, 9, training__spectra=True)
        key = f"{Path(Store(folders.storage).place) / trial.store_key(0)}/spectra"
        for step in (0, 4):
            next(Path(key).glob(f"{step:09d}*")).unlink()
        content = analyse("spectra", trial, folders)
        assert content["steps"] == [8, 12]
        assert "none before step 8" in content["note"]

    def test_a_gated_model_is_refused(self, enrnn):
        config = config_of(model={"name": "lstm", "hidden_size": 4})
        lstm = enrnn.model_copy(update={"config": config})
        analysis = ANALYSES["spectra"]
        with pytest.raises(ValueError, match="lstm has no single square matrix"):
            analysis.check(analysis.Options(), lstm)


class TestSizeStudy:
    def test_each_size_is_shown_by_its_best_trial(self, sizes, folders):
        content = analyse("size_study", sizes, folders)
        assert content["parameter"] == "model.short_size"
        assert [one["size"] for one in content["sizes"]] == [0, 3, 8]
        assert [one["trial"] for one in content["sizes"]] == [1, 0, 2]
        assert {one["arm"] for one in content["sizes"]} == {"enrnn"}
        assert content["sizes"][0]["trials_of_this_size"] == 2
        assert content["sizes"][0]["step"] == [0, 4, 8, 12]
        assert content["sizes"][0]["epoch"] == pytest.approx([0, 0.4, 0.8, 1.2])
        assert content["data"] == "validation"
        worst = max(content["sizes"], key=lambda one: one["final"])["size"]
        assert content["best_to_worst"][-1] == {"arm": "enrnn", "size": worst}

    def test_a_trial_that_diverged_at_once_leaves_test_data(self, sizes, folders):
        scored = {"training__test_every_evaluation": True}
        good, wide = (
            train(folders.storage, number, model__short_size=size, **scored)
            for number, size in ((30, 0), (31, 3))
        )
        lost = {"number": 32, "state": "diverged", "value": None, "place": "e1/00032"}
        trials = [good, wide, good.model_copy(update=lost)]
        content = analyse("size_study", sizes.model_copy(update={"trials": trials}), folders)
        assert content["data"] == "test"
        assert content["baseline"] == pytest.approx(0.1875, abs=1e-3), "that of the test data"
        own = {"trials": trials, "baseline": None}  # as where the task varies
        content = analyse("size_study", sizes.model_copy(update=own), folders)
        assert (content["data"], content["baseline"]) == ("test", None)

    def test_the_best_trial_of_a_size_is_the_first_in_the_ranking(self, sizes, folders):
        """The worst curve of all is that of trial 3, which hardly learns."""
        trials = [
            trial.model_copy(update={"value": 0.0 if trial.number == 3 else 1.0})
            for trial in sizes.trials
        ]
        content = analyse("size_study", sizes.model_copy(update={"trials": trials}), folders)
        assert [one["trial"] for one in content["sizes"]] == [3, 0, 2]

    def test_a_size_of_which_no_trial_ended_is_marked(self, sizes, folders):
        analysis = ANALYSES["size_study"]

        def look(*pruned):
            trials = [
                trial.model_copy(update={"state": "pruned"}) if trial.number in pruned else trial
                for trial in sizes.trials
            ]
            whole = sizes.model_copy(update={"trials": trials})
            return analysis.run(analysis.Options(), whole, folders)

        assert [one.trial for one in look(1).content.sizes] == [3, 0, 2]
        findings = look(1, 0, 3)
        assert findings.columns[3] == "state"
        assert {row[2:4] for row in findings.rows} == {
            (1, "pruned"),
            (0, "pruned"),
            (2, "completed"),
        }
        assert findings.content.best_to_worst[0].size == 8
        curves, ends = analysis.plot(findings.content).axes
        legend = [text.get_text() for text in curves.get_legend().get_texts()]
        assert legend[:3] == ["0 (pruned)", "3 (pruned)", "8"]
        assert "the smallest to the largest value of the seeds" in curves.get_xlabel()
        (rings,) = [line for line in ends.lines if line.get_label() == "not trained to its end"]
        assert set(rings.get_xdata()) == {0, 3}
        plain = analysis.plot(look().content).axes[1].lines
        assert "not trained to its end" not in [line.get_label() for line in plain]

    def test_replicates_are_a_mean_within_their_range(self, sizes, folders):
        both = analyse("size_study", sizes, folders)["sizes"][2]
        assert both["replicates"] == 2
        for low, mean, high in zip(both["low"], both["value"], both["high"], strict=True):
            assert low < mean < high
            assert mean == pytest.approx((low + high) / 2, rel=1e-4)

    def test_another_number_can_be_the_size(self, sizes, folders):
        content = analyse("size_study", sizes, folders, parameter="optimizer.lr")
        assert [one["size"] for one in content["sizes"]] == [1e-9, 1e-2]

    def test_a_size_that_varies_nowhere_is_refused_with_the_others(self, sizes):
        analysis = ANALYSES["size_study"]
        options = analysis.Options.model_validate({"parameter": "model.width"})
        with pytest.raises(ValueError, match=r"model\.short_size, optimizer\.lr"):
            analysis.check(options, sizes)
        same = sizes.model_copy(update={"trials": sizes.trials[:1]})
        with pytest.raises(ValueError, match="which number is the size"):
            analysis.check(analysis.Options(), same)

    def test_a_metric_the_task_has_not_is_refused(self, sizes):
        analysis = ANALYSES["size_study"]
        with pytest.raises(ValueError, match="adding has no metric 'accuracy'; it has mse"):
            analysis.check(analysis.Options.model_validate({"metric": "accuracy"}), sizes)

    def test_a_name_like_a_formula_is_drawn_as_it_is(self, sizes, folders):
        analysis = ANALYSES["size_study"]
        named = sizes.model_copy(update={"name": r"$\nope$ and $5"})
        content = analysis.run(analysis.Options(), named, folders).content
        figures.save(analysis.plot, content, folders.storage / "named.svg")
        assert b"</svg>" in (folders.storage / "named.svg").read_bytes()


class TestSizeStudyOfSeveralArms:
    def test_each_arm_has_its_own_curves_also_at_equal_sizes(self, arms, folders):
        content = analyse("size_study", arms, folders)
        assert [(one["arm"], one["size"], one["trial"]) for one in content["sizes"]] == [
            ("enrnn", 8, 20),
            ("enrnn", 12, 21),
            ("scornn", 8, 22),
            ("scornn", 12, 23),
            ("enrnn_tanh", 8, 24),
        ]
        assert [one["line"] for one in content["sizes"]] == [one["arm"] for one in content["sizes"]]
        assert len(content["best_to_worst"]) == 5

    def test_the_table_tells_the_arms_apart(self, arms, folders):
        analysis = ANALYSES["size_study"]
        findings = analysis.run(analysis.Options(), arms, folders)
        assert findings.columns[:3] == ("arm", "size", "trial")
        assert {tuple(row[:3]) for row in findings.rows} == {
            ("enrnn", 8, 20),
            ("enrnn", 12, 21),
            ("scornn", 8, 22),
            ("scornn", 12, 23),
            ("enrnn_tanh", 8, 24),
        }

    def test_the_picture_joins_no_two_arms_and_names_each(self, arms, folders):
        analysis = ANALYSES["size_study"]
        content = analysis.run(analysis.Options(), arms, folders).content
        curves, ends = analysis.plot(content).axes
        drawn = {line.get_label(): line for line in ends.lines}
        finals = {one.arm: [] for one in content.sizes}
        for one in content.sizes:
            finals[one.arm].append((one.size, one.final))
        for arm, points in finals.items():
            assert list(zip(*drawn[f"{arm}, final"].get_data(), strict=True)) == points
        assert len({line.get_color() for line in drawn.values()}) == 4  # three arms, baseline
        legend = [text.get_text() for text in curves.get_legend().get_texts()]
        assert legend[:5] == ["enrnn, 8", "enrnn, 12", "scornn, 8", "scornn, 12", "enrnn_tanh, 8"]

    def test_arms_that_differ_in_numbers_alone_form_one_line(self, sizes, folders):
        """As in the preset `enrnn/adding-short-sizes`, where each size is an arm."""
        arms = {1: "short_0", 0: "short_3", 2: "short_8"}
        trials = [
            trial.model_copy(update={"arm": arms[trial.number]})
            for trial in sizes.trials
            if trial.number in arms
        ]
        whole = sizes.model_copy(update={"trials": trials})
        content = analyse("size_study", whole, folders)
        assert {one["line"] for one in content["sizes"]} == {"short_0 to short_8"}
        assert [(one["arm"], one["size"]) for one in content["sizes"]] == [
            ("short_0", 0),
            ("short_3", 3),
            ("short_8", 8),
        ]
        analysis = ANALYSES["size_study"]
        _, ends = analysis.plot(analysis.run(analysis.Options(), whole, folders).content).axes
        assert list(ends.lines[0].get_xdata()) == [0, 3, 8]

    def test_arms_of_one_model_at_one_size_stay_apart(self, sizes):
        first, second = (
            sizes.trials[0].model_copy(update={"arm": arm, "number": number})
            for number, arm in enumerate(("one", "two"))
        )
        assert group_arms([first, second], "model.short_size") == {"one": "one", "two": "two"}


class TestMatrices:
    @pytest.mark.parametrize(("name", "panel"), [("fisher_memory", 0), ("transient_norms", 1)])
    def test_as_many_curves_as_a_request_may_have_look_different(self, name, panel, folders):
        analysis = ANALYSES[name]
        options = {"alpha": [k / 10 for k in range(8)], "beta": [0.0, 0.1, 0.2]}
        sizes = {"size": 4, "steps": 5, "d": [0.1]}
        vectors = {"vectors": 3} if name == "transient_norms" else {}
        parsed = analysis.Options.model_validate({**options, **sizes, **vectors})
        axes = analysis.plot(analysis.run(parsed, None, folders).content).axes[panel]
        curves = [line for line in axes.lines if "α" in line.get_label()]
        looks = {(str(line.get_color()), line.get_linestyle()) for line in curves}
        assert len(looks) == len(curves) >= 8

    def test_a_state_that_grows_stays_within_its_picture(self, folders):
        analysis = ANALYSES["transient_norms"]
        shape = {"beta": [0.0], "size": 50, "steps": 90, "vectors": 2}
        for alpha in (0.9, 1.3):
            options = analysis.Options.model_validate({"alpha": [alpha], **shape})
            content = analysis.run(options, None, folders).content
            axes = analysis.plot(content).axes[0]
            assert axes.get_ylim()[1] > max(content.curves[0].norm)
            assert (axes.get_ylim()[1] == 2.3e2) == (alpha < 1), "the paper's"

    def test_one_value_stands_for_a_list_of_one(self):
        options = ANALYSES["fisher_memory"].Options.model_validate({"d": 0.1, "alpha": 1})
        assert (options.d, options.alpha) == ((0.1,), (1.0,))

    def test_a_state_that_overflows_is_refused(self, folders):
        with pytest.raises(ValueError, match="overflows"):
            analyse(
                "transient_norms", None, folders, alpha=2, beta=2, size=1000, steps=300, vectors=2
            )

    @pytest.mark.parametrize(
        ("name", "options", "words"),
        [
            ("copying_solution", {"runs": 10_000}, "fewer runs"),
            ("transient_norms", {"size": 1_000, "steps": 10_000}, "fewer vectors, steps"),
        ],
    )
    def test_what_takes_hours_is_refused(self, name, options, words):
        analysis = ANALYSES[name]
        with pytest.raises(ValueError, match=words):
            analysis.check(analysis.Options.model_validate(options), None)


SMALLER: dict[str, dict[str, Any]] = {
    "transient_norms": {"size": 10, "steps": 12, "vectors": 5},
    "fisher_memory": {"size": 10, "steps": 15},
    "copying_solution": {"planes": [8], "alphabet": [4], "symbols": [2, 4], "runs": 5},
}


@pytest.mark.parametrize("name", ANALYSES)
@pytest.mark.quick_cases(3)
def test_every_analysis_leaves_numbers_a_table_and_two_pictures(
    name, enrnn, sizes, folders, tmp_path
):
    of = ANALYSES[name].of
    order = AnalysisOrder(
        id="0123",
        name=name,
        options=SMALLER.get(name, {}),
        trial=enrnn if of == "trial" else None,
        experiment=sizes if of == "experiment" else None,
        storage=str(folders.storage),
    )

    main(tmp_path, order.model_dump_json())

    outcome = Outcome.model_validate_json((tmp_path / "outcome.json").read_bytes())
    assert (outcome.error, outcome.mlflow_problem) == (None, "this service has no MLflow")
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([*FILES, "outcome.json"])
    content = json.loads((tmp_path / "result.json").read_bytes())
    assert (content["analysis"], content["id"]) == (name, "0123")
    with (tmp_path / "table.csv").open(newline="") as file:
        head, *rows = csv.reader(file)
    assert rows
    assert {len(row) for row in rows} == {len(head)}
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
    assert b"</svg>" in (tmp_path / "figure.svg").read_bytes()


def test_a_request_that_cannot_be_met_is_told_in_words(enrnn, tmp_path):
    order = AnalysisOrder(
        id="0", name="spectra", options={}, trial=enrnn, storage=str(tmp_path / "none")
    )
    main(tmp_path, order.model_dump_json())
    outcome = Outcome.model_validate_json((tmp_path / "outcome.json").read_bytes())
    assert outcome.error is not None
    assert outcome.error.startswith("the store has no checkpoint of trial 0 of e1")


@pytest.mark.parametrize(
    ("error", "is_temporary"),
    [
        (StoreAwayError("no answer"), True),
        (OSError(errno.ENOSPC, "No space left on device"), True),
        (DamagedError("cut"), False),
        (FileNotFoundError(errno.ENOENT, "No such file or directory"), False),
    ],
)
def test_what_cannot_be_read_now_is_told_from_what_is_damaged(
    sizes, folders, tmp_path, monkeypatch, error, is_temporary
):
    def read(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(Store, "points", read)
    order = AnalysisOrder(
        id="0", name="size_study", options={}, experiment=sizes, storage=str(folders.storage)
    )
    main(tmp_path, order.model_dump_json())
    outcome = Outcome.model_validate_json((tmp_path / "outcome.json").read_bytes())
    assert (outcome.error, outcome.is_temporary) == (str(error), is_temporary)


def test_numbers_beyond_all_bounds_are_told_in_words(enrnn, folders, tmp_path, monkeypatch):
    monkeypatch.setattr("eigensweep.analyses.hidden_states.six_digits", lambda _: math.inf)
    order = AnalysisOrder(
        id="0", name="hidden_states", options={}, trial=enrnn, storage=str(folders.storage)
    )
    main(tmp_path, order.model_dump_json())
    outcome = Outcome.model_validate_json((tmp_path / "outcome.json").read_bytes())
    assert outcome.error is not None
    assert outcome.error.startswith(
        "with these weights the analysis gets numbers that are not finite"
    )
    assert not (tmp_path / "figure.png").exists()


def test_a_bug_keeps_its_traceback(enrnn, folders, tmp_path, monkeypatch):
    def broken(*_: Any) -> None:
        raise ZeroDivisionError("no")

    monkeypatch.setattr(ANALYSES["spectra"], "run", broken)
    order = AnalysisOrder(
        id="0", name="spectra", options={}, trial=enrnn, storage=str(folders.storage)
    )
    main(tmp_path, order.model_dump_json())
    text = (tmp_path / "outcome.json").read_text()
    assert "Traceback" in text
    assert "ZeroDivisionError: no" in text


class TestDelivery:
    def test_an_mlflow_that_is_away_is_told(self, enrnn, tmp_path, monkeypatch, free_port):
        monkeypatch.setattr("eigensweep.analyses.delivery.PAUSES", ())
        trial = enrnn.model_copy(update={"run_id": "run"})
        order = delivery_order(trial, f"http://127.0.0.1:{free_port()}")
        with pytest.raises(NotDeliveredError, match="MLflow is away"):
            deliver(order, [tmp_path])

    def test_a_trial_without_a_run_waits_for_one(self, enrnn):
        with pytest.raises(NotDeliveredError, match="no run of it yet"):
            deliver(delivery_order(enrnn, "http://127.0.0.1:9"), [])


def delivery_order(trial: TrialSubject, uri: str) -> AnalysisOrder:
    return AnalysisOrder(
        id="0", name="spectra", options={}, trial=trial, storage="none", mlflow_uri=uri
    )
