"""The suites: each can run, is decided by numbers that exist, and fits into its budget."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

import pytest
from pydantic import ValidationError

from eigensweep.analyses import ANALYSES
from eigensweep.search_spaces.checks.checks import check_spec
from eigensweep.search_spaces.errors import CorpusError, UnknownSuiteError
from eigensweep.search_spaces.shipped.presets import load_preset
from eigensweep.search_spaces.shipped.reproductions import (
    BUDGETS,
    SHORT_SECONDS,
    SHORT_SECONDS_OF_ALL,
    Claim,
    Measure,
    Suite,
    estimate_core_seconds,
    find_deciding,
    load_suite,
    make_specs,
    published_rows,
    side_names,
    split_arm,
    suite_names,
)
from eigensweep.search_spaces.spec import ExperimentSpec

FIGURES = {
    "enrnn": [*(f"figure-{k}" for k in range(1, 8)), "table-2", "table-3"],
    "asrnn": [
        "figure-1a",
        "figure-1b",
        "figure-1c",
        "figure-2",
        *(f"table-{k}" for k in range(1, 5)),
    ],
    "nnrnn": [f"figure-{k}" for k in ("1b", "1c", "2", "3", "4", "5a", "5b", "6a", "6b")],
    "henaff": [f"figure-{k}" for k in range(1, 7)],
}
"""The tables and figures with results."""

LEAST_SEEDS = 6
"""Where arms are compared. An exact paired test of five seeds cannot fall below p = 0.06."""

STEPS_SEEDS = 10
"""Where steps to a threshold are counted, which is what ranks alone decide."""

HOW_TO = Path(__file__).parents[2] / "docs" / "how-to" / "reproduce.md"
FEW_SEEDS = {
    name: (int(seeds), float(hours.replace(",", "")))
    for name, seeds, hours in re.findall(
        r"^\| (\w+/[\w-]+) \| (\d+) \| ([\d,]+) \|", HOW_TO.read_text(encoding="utf-8"), re.M
    )
}
"""The suites whose hours forbid so many, from the one table of them: seeds and core hours."""

SCORES = ("valid", "test", "best_test", "last_test", "test_now", "train")


def test_every_table_and_figure_with_results_has_a_suite():
    assert set(suite_names()) == {
        f"{paper}/{name}" for paper, names in FIGURES.items() for name in names
    }


@pytest.mark.parametrize("name", suite_names())
class TestEverySuite:
    def test_its_experiments_can_run_in_both_budgets(self, name):
        for budget in BUDGETS:
            for spec in make_specs(name, budget).values():
                with suppress(CorpusError):
                    check_spec(spec, None)

    def test_its_claims_name_arms_and_metrics_that_exist(self, name):
        suite, specs = load_suite(name), make_specs(name, "full")
        for claim in suite.claims:
            for arm in filter(None, (claim.better, claim.alike, claim.arm, *claim.than)):
                label, side = split_arm(arm, claim)
                assert side in side_names(suite.experiments[label], specs[label])
                known = {metric.name for metric in specs[label].task.metrics}
                assert is_measurable(claim.by.curve or claim.by.metric or "value", known)
                if (claim.by.metric or "").startswith("best_test"):
                    assert specs[label].training.test_every_evaluation

    def test_its_short_budget_decides_claims_with_what_it_runs(self, name):
        suite, specs = load_suite(name), make_specs(name, "short")
        for claim in suite.claims:
            for arm in filter(None, (claim.better, claim.alike, claim.arm, *claim.than)):
                if claim.not_short is None:
                    label, side = split_arm(arm, claim)
                    assert side in side_names(suite.experiments[label], specs[label])
                    assert specs[label].replicates >= (3 if suite.needs else LEAST_SEEDS)
        assert suite.cut is not None or make_specs(name, "full") == {
            label: spec.model_copy(update={"name": spec.name.replace("short", "full")})
            for label, spec in specs.items()
        }

    def test_its_full_budget_has_the_seeds_that_decide_or_a_reason(self, name):
        suite, specs = load_suite(name), make_specs(name, "full")
        short_of = {
            label
            for claim in suite.claims
            for label in find_labels(claim)
            if specs[label].replicates < (LEAST_SEEDS if claim.by.steps_to is None else STEPS_SEEDS)
        }
        assert bool(short_of) == (name in FEW_SEEDS)
        if short_of:
            hours = sum(estimate_core_seconds(spec) for spec in specs.values()) / 3600
            few, printed = FEW_SEEDS[name]
            assert {specs[label].replicates for label in short_of} == {few}
            assert printed == round(hours, -1)
            assert suite.full_is_long is not None

    def test_first_seeds_choose_no_trial_of_its_primary_claim(self, name):
        """Else the seeds that chose one would count again where seeds are added."""
        suite = load_suite(name)
        for budget in BUDGETS:
            for label, spec in make_specs(name, budget).items():
                if label in find_deciding(suite):
                    experiment = suite.experiments[label]
                    wanted = experiment.chosen
                    chosen = [
                        str(p.params[experiment.sides]) if experiment.sides else p.arm
                        for p in spec.space()
                        if wanted.get(p.arm, {}).items() <= p.params.items()
                    ]
                    assert len(chosen) == len(set(chosen))

    def test_added_seeds_are_for_what_its_primary_claim_compares(self, name):
        suite = load_suite(name)
        for budget in BUDGETS:
            first, wider = make_specs(name, budget), make_specs(name, budget, 2)
            assert first.keys() == wider.keys()
            for label, spec in wider.items():
                if label not in find_deciding(suite):
                    assert spec == first[label]
                    continue
                experiment, sides = suite.experiments[label], find_deciding(suite)[label]
                trials = [spec.trial(point).content_hash() for point in spec.space()]
                same = {first[label].trial(point).content_hash() for point in first[label].space()}
                assert set(trials) <= same, "their first seeds would be trained again"
                assert len(trials) == len(sides & set(side_names(experiment, first[label])))
                assert spec.replicates == first[label].replicates + 2

    def test_what_stands_for_an_arm_is_a_point_that_it_runs(self, name):
        suite = load_suite(name)
        for budget in BUDGETS:
            for label, spec in make_specs(name, budget).items():
                experiment = suite.experiments[label]
                assert set(experiment.chosen) <= set(side_names(experiment, load(name, label)))
                for arm, values in experiment.chosen.items():
                    if arm in side_names(experiment, spec):
                        points = [p.params for p in spec.space() if p.arm == arm]
                        assert any(values.items() <= params.items() for params in points)

    def test_its_analyses_take_their_options(self, name):
        suite = load_suite(name)
        for analysis in suite.analyses.values():
            kind = ANALYSES[analysis.name]
            kind.Options.model_validate(analysis.options)
            assert (kind.of != "matrices") == (analysis.experiment is not None)
            assert (kind.of == "trial") == (analysis.arm is not None)
            assert analysis.repeat is None or analysis.repeat in kind.Options.model_fields

    def test_the_papers_numbers_stand_in_its_presets_alone(self, name):
        suite = load_suite(name)
        for label, spec in make_specs(name, "full").items():
            own = load_preset(suite.experiments[label].preset).published
            known = {metric.name for metric in spec.task.metrics}
            for row in published_rows(suite, label, spec):
                assert row in own
                assert is_measurable(row.metric, known), row
            assert spec.published == []

    def test_its_short_budget_takes_twenty_minutes_at_most(self, name):
        assert sum(map(estimate_core_seconds, make_specs(name, "short").values())) <= SHORT_SECONDS


def find_labels(claim: Claim) -> set[str]:
    """Return the experiments whose arms a claim names."""
    names = filter(None, (claim.better, claim.alike, claim.arm, *claim.than))
    return {split_arm(name, claim)[0] for name in names}


def load(name: str, label: str) -> ExperimentSpec:
    """Return an experiment of a suite at the paper's size."""
    return make_specs(name, "full")[label]


def is_measurable(metric: str, known: set[str]) -> bool:
    split, _, rest = metric.partition("/")
    if not rest:
        return metric in ("value", "seconds_per_step", "parameters", "baseline")
    return split in SCORES and rest in known


def test_all_short_budgets_take_five_hours_at_most():
    each = {
        spec.name: spec for name in suite_names() for spec in make_specs(name, "short").values()
    }
    assert sum(map(estimate_core_seconds, each.values())) <= SHORT_SECONDS_OF_ALL


def test_suites_that_share_experiments_post_the_same_ones():
    assert make_specs("enrnn/figure-4", "short") == make_specs("enrnn/figure-5", "short")


def test_the_table_of_few_seeds_names_suites_alone():
    assert FEW_SEEDS.keys() <= set(suite_names())


def test_an_unknown_name_is_answered_with_the_nearest():
    with pytest.raises(UnknownSuiteError, match=r"did you mean 'nnrnn/figure-5a'\?"):
        load_suite("nnrnn/figure5a")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"says": "x", "by": {"metric": "value"}}, "'better' and 'than', "),
        ({"says": "x", "by": {"metric": "value"}, "at_most": 1}, "names an 'arm'"),
        ({"says": "x", "by": {"metric": "value"}, "better": "a"}, "'better' and 'than', "),
        ({"says": "x", "by": {"metric": "value"}, "alike": "a", "than": ["b"]}, "'alike_within'"),
    ],
)
def test_a_claim_that_nothing_decides_is_refused(content, words):
    with pytest.raises(ValidationError, match=words):
        Claim.model_validate(content)


def test_a_measure_has_one_source():
    with pytest.raises(ValidationError, match="exactly one of"):
        Measure(metric="value", curve="valid/mse")
    with pytest.raises(ValidationError, match="belong to a 'curve'"):
        Measure(metric="value", at=3)


def test_a_claim_about_an_analysis_that_is_not_there_is_refused():
    claim = {"says": "x", "by": {"analysis": "maps", "number": "a"}, "at_most": 1}
    with pytest.raises(ValidationError, match="no analysis 'maps'"):
        Suite.model_validate(
            {
                "title": "t",
                "paper": "p",
                "place": "figure 1",
                "says": "s",
                "experiments": {"main": {"preset": "quickstart"}},
                "claims": [claim],
            }
        )
