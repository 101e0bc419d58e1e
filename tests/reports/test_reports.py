"""Reports: verdicts on numbers whose answer is known, and what a report says of made trials."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from dataclasses import replace
from math import inf, nan
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import orders
from scipy.special import bdtrc

from eigensweep.analyses.messages import OUTCOME
from eigensweep.models import MODELS
from eigensweep.reports import __main__ as process
from eigensweep.reports import pictures
from eigensweep.reports.book import is_outdated, make_page
from eigensweep.reports.front import (
    Shown,
    _p_words,
    machine_words,
    write_logs,
)
from eigensweep.reports.markdown import write_report
from eigensweep.reports.measurements import ArmsMeasured, find_number, first_step, join_trials
from eigensweep.reports.messages import (
    FILES,
    HTML,
    JSON,
    MARKDOWN,
    RESULTS,
    MadeAnalysis,
    MeasuredExperiment,
    MeasuredTrial,
    ReportOrder,
    ReportOutcome,
)
from eigensweep.reports.page import LARGEST
from eigensweep.reports.report import (
    ArmCurve,
    ClaimFound,
    ExperimentCurves,
    ReadOff,
    ReportContent,
)
from eigensweep.reports.report import make_report as judge_results
from eigensweep.reports.results import collect, read_results, with_what_has_ended
from eigensweep.reports.verdicts import (
    ArmNumbers,
    ArmsCompared,
    ClaimVerdict,
    judge_alike,
    judge_all,
    judge_bounds,
    judge_number,
    judge_order,
)
from eigensweep.results.seeds import cut_seeds, split_seeds, summarise
from eigensweep.results.statistics import summarize
from eigensweep.results.trial_result import ReplicateResult, Result
from eigensweep.search_spaces.shipped.reproductions import Measure, make_specs
from eigensweep.search_spaces.space import Point
from eigensweep.search_spaces.spec import ExperimentSpec
from eigensweep.store.checkpoints import Store, trial_key
from eigensweep.store.commits.curves import CurvePoint
from eigensweep.training.attempt import Attempt

LOW, HIGH = {0: 0.10, 1: 0.11, 2: 0.09}, {0: 0.30, 1: 0.32, 2: 0.29}
NEAR = {0: 0.12, 1: 0.08, 2: 0.11}


class TestOrder:
    @pytest.mark.parametrize(
        ("side", "other", "verdict", "words"),
        [
            (ArmNumbers(LOW), ArmNumbers(HIGH), "holds", "all comparisons hold"),
            (ArmNumbers(HIGH), ArmNumbers(LOW), "does not hold", "other way"),
            (ArmNumbers(LOW), ArmNumbers(NEAR), "not distinguishable", "may be chance"),
            (ArmNumbers({0: 0.1}), ArmNumbers({0: 0.3}), "not distinguishable", "may be chance"),
            (ArmNumbers(LOW), ArmNumbers({7: 0.3, 8: 0.4}), "not comparable", "cannot be made"),
            (ArmNumbers(missing="lost"), ArmNumbers(HIGH), "not comparable", "cannot be made"),
            (ArmNumbers(LOW), ArmNumbers(diverged=frozenset({0, 1, 2})), "holds", "hold"),
            (
                ArmNumbers(diverged=frozenset({0, 1, 2})),
                ArmNumbers(HIGH),
                "does not hold",
                "other way",
            ),
            (
                ArmNumbers({0: 0.1, 1: 0.11, 2: 0.1}, diverged=frozenset({3})),
                ArmNumbers({**HIGH, 3: 0.3}),
                "not distinguishable",
                "may be chance",
            ),
            (
                ArmNumbers({0: inf, 1: inf}, last=90.0),
                ArmNumbers({0: inf, 1: inf}, last=90.0),
                "not distinguishable",
                "may be chance",
            ),
            (
                ArmNumbers({0: 1.0}, diverged=frozenset({1, 2})),
                ArmNumbers(diverged=frozenset({0, 1, 2})),
                "not distinguishable",
                "may be chance",
            ),
            (
                ArmNumbers(LOW, doubt="it was busy"),
                ArmNumbers(HIGH),
                "not comparable",
                "cannot be made",
            ),
        ],
    )
    def test_one_against_another(self, side, other, verdict, words):
        found = judge_order("a", side, {"b": other})
        assert found.verdict == verdict
        assert words in found.because

    def test_higher_may_be_better(self):
        assert (
            judge_order("a", ArmNumbers(HIGH), {"b": ArmNumbers(LOW)}, "higher").verdict == "holds"
        )

    def test_against_several_the_p_values_are_corrected(self):
        sides = {"b": ArmNumbers(HIGH), "c": ArmNumbers({0: 0.5, 1: 0.52, 2: 0.49})}
        alone = judge_order("a", ArmNumbers(LOW), {"b": sides["b"]}).pairs[0].p
        together = judge_order("a", ArmNumbers(LOW), sides)
        assert together.verdict == "holds"
        assert alone is not None
        assert max(pair.p or 0 for pair in together.pairs) >= alone

    def test_what_could_be_shown_is_corrected_likewise(self):
        sides = {name: ArmNumbers(NEAR) for name in "bcd"}
        alone = judge_order("a", ArmNumbers(LOW), {"b": sides["b"]}).pairs[0].detectable
        together = judge_order("a", ArmNumbers(LOW), sides).pairs[0].detectable
        assert (alone, together) == (
            pytest.approx(0.0942, abs=1e-3),
            pytest.approx(0.1636, abs=1e-3),
        )
        early = ArmNumbers({seed: 10.0 * seed for seed in range(4)}, last=800.0)
        never = ArmNumbers(dict.fromkeys(range(4), inf), last=800.0)
        (pair, _) = judge_order("a", early, {"b": never, "c": never}).pairs
        assert (pair.p, pair.least_p) == (pytest.approx(2 * 2 / 70), pytest.approx(2 * 2 / 70))

    def test_one_failing_comparison_decides(self):
        found = judge_order(
            "a",
            ArmNumbers(HIGH),
            {"b": ArmNumbers({0: 0.5, 1: 0.53, 2: 0.49}), "c": ArmNumbers(LOW)},
        )
        assert [pair.verdict for pair in found.pairs] == ["holds", "does not hold"]
        assert found.verdict == "does not hold"

    def test_a_ratio_is_of_the_seeds_that_both_have(self):
        a, b = {0: 1.0, 1: 1.1, 2: 1.2}, {0: 2.0, 1: 2.1, 2: 2.4} | dict.fromkeys(range(3, 30), 0.1)
        (pair,) = judge_order("a", ArmNumbers(a), {"b": ArmNumbers(b)}).pairs
        assert pair.difference < 0
        assert pair.ratio == pytest.approx(3.3 / 6.5)
        assert "; compared over the 3 seeds of both" in pair.because

    def test_sides_that_lack_different_seeds_say_so(self):
        a, b = dict.fromkeys((0, 1, 2), 1.0), {0: 2.0, 1: 2.1, 3: 9.0}
        (pair,) = judge_order("a", ArmNumbers(a), {"b": ArmNumbers(b)}).pairs
        assert "; compared over the 2 seeds of both" in pair.because

    @pytest.mark.parametrize("seeds", [2, 4, 8])
    def test_equal_differences_do_not_say_what_could_be_shown(self, seeds):
        a, b = dict.fromkeys(range(seeds), 0.5), dict.fromkeys(range(seeds), 0.75)
        (pair,) = judge_order("a", ArmNumbers(a), {"b": ArmNumbers(b)}).pairs
        assert pair.detectable is None

    def test_ratios_tell_losses_apart_whose_differences_do_not(self):
        small, large = {0: 1e-6, 1: 3e-5, 2: 2e-4}, {0: 0.01, 1: 0.2, 2: 0.9}
        assert (
            judge_order("a", ArmNumbers(small), {"b": ArmNumbers(large)}).verdict
            == "not distinguishable"
        )
        found = judge_order("a", ArmNumbers(small), {"b": ArmNumbers(large)}, logarithms=True)
        assert found.verdict == "holds"
        assert found.pairs[0].ratio == pytest.approx(
            (1e-4 * 1.5e-4 * 2e-4 / 0.9) ** (1 / 3), rel=1e-6
        )

    def test_it_says_what_so_many_seeds_could_have_shown(self):
        (pair,) = judge_order("a", ArmNumbers(LOW), {"b": ArmNumbers(NEAR)}).pairs
        assert pair.detectable == pytest.approx(0.0942, abs=1e-3)
        assert pair.seeds is None  # more than a thousand
        apart = ArmNumbers({seed: value + 0.05 for seed, value in NEAR.items()})
        assert judge_order("a", ArmNumbers(LOW), {"b": apart}).pairs[0].seeds > 3
        assert judge_order("a", ArmNumbers(LOW), {"b": ArmNumbers(HIGH)}).pairs[0].seeds is None
        (pair,) = judge_order("a", ArmNumbers(LOW), {"b": ArmNumbers(NEAR)}, logarithms=True).pairs
        assert pair.detectable is None
        assert pair.detectable_ratio == pytest.approx(2.616, abs=0.01)


class TestFirstSteps:
    EARLY = ArmNumbers(dict(enumerate([100.0, 90.0, 110.0, 100.0])), last=800.0)
    LATE = ArmNumbers(dict(enumerate([400.0, inf, inf, inf])), last=800.0)

    def test_one_that_never_gets_there_is_later_than_the_budget(self):
        found = judge_order("a", self.EARLY, {"b": self.LATE})
        assert found.verdict == "holds"
        (pair,) = found.pairs
        assert pair.p == pytest.approx(2 / 70)
        assert "a 100 (90 to 110); b > 800 (400 to > 800)" in pair.because
        assert (pair.low, pair.high) == (None, None)
        assert judge_order("b", self.LATE, {"a": self.EARLY}).verdict == "does not hold"

    def test_the_least_p_of_many_seeds_is_that_of_random_divisions(self):
        early = ArmNumbers({seed: 10.0 + seed for seed in range(10)}, last=800.0)
        late = ArmNumbers({seed: 400.0 + seed for seed in range(10)}, last=800.0)
        (pair,) = judge_order("a", early, {"b": late}).pairs
        assert pair.p == pair.least_p == pytest.approx(2 / 10_000)

    def test_three_seeds_cannot_decide_and_the_report_says_so(self):
        three = [ArmNumbers({k: s for k, s in each.values.items() if k < 3}, last=800.0)
                 for each in (self.EARLY, self.LATE)]  # fmt: skip
        (pair,) = judge_order("a", three[0], {"b": three[1]}).pairs
        assert pair.verdict == "not distinguishable"
        assert pair.least_p == pytest.approx(0.1)

    @pytest.mark.parametrize(
        ("steps", "verdict"),
        [
            ([350.0] * 6, "holds"),
            ([350.0] * 4, "not distinguishable"),
            ([350.0] * 9 + [inf], "holds"),
            ([inf] * 6, "does not hold"),
        ],
    )
    def test_by_a_step_means_in_most_trainings(self, steps, verdict):
        side = ArmNumbers(dict(enumerate(steps)), last=1500.0)
        assert judge_bounds(side, at_most=500).verdict == verdict

    def test_a_spike_after_it_got_there_changes_nothing(self):
        assert first_step([(0, 3.0), (450, 0.01), (500, 14.0)], 0.1, "lower") == 450


class TestAlike:
    def test_two_one_sided_tests_show_that_arms_are_the_same(self):
        a = ArmNumbers({0: 1.00, 1: 1.02, 2: 0.99, 3: 1.01})
        b = ArmNumbers({0: 1.01, 1: 1.01, 2: 1.00, 3: 1.00})
        assert judge_alike("a", a, {"b": b}, 0.1).verdict == "holds"
        assert judge_alike("a", a, {"b": ArmNumbers(LOW)}, 0.1).verdict == "does not hold"
        wide = ArmNumbers({0: 0.8, 1: 1.3, 2: 0.9, 3: 1.2})
        assert judge_alike("a", a, {"b": wide}, 0.1).verdict == "not distinguishable"
        assert (
            judge_alike("a", a, {"b": ArmNumbers(missing="lost")}, 0.1).verdict == "not comparable"
        )

    def test_sides_whose_difference_is_shown_none_are_equivalent(self):
        a = ArmNumbers({k: 1 + k / 100 for k in range(6)})
        c = ArmNumbers({k: v + (-1) ** k / 50 for k, v in a.values.items()})
        assert judge_order("a", a, {"c": c}).verdict == "not distinguishable"
        found = judge_order("a", a, {"c": c}, alike_within=0.2)
        assert found.verdict == "equivalent"
        assert "alike within 20%" in found.pairs[0].because
        assert "differ by no more than" in judge_order("a", a, {"c": c}).pairs[0].because

    def test_survivors_are_no_proof_that_all_are_alike(self):
        b = ArmNumbers({seed: 1 + 0.001 * seed for seed in range(10)})
        rest = ArmNumbers({0: 1.0, 1: 1.01, 2: 0.99, 3: 1.0}, frozenset(range(4, 10)))
        found = judge_alike("a", rest, {"b": b}, 0.1)
        assert (found.verdict, found.stuck) == ("not distinguishable", True)
        none = ArmNumbers({}, frozenset(range(10)))
        found = judge_alike("a", none, {"b": b}, 0.1)
        assert (found.verdict, found.stuck) == ("not distinguishable", True), "nor is their lack"
        better = ArmNumbers({0: 0.9, 1: 0.901, 2: 0.899, 3: 0.9}, frozenset(range(4, 10)))
        found = judge_order("a", better, {"b": b}, alike_within=0.2)
        assert (found.verdict, found.stuck) == ("not distinguishable", True)


class TestAnyLook:
    """Where seeds are added until a claim is decided, what decides holds at every look."""

    def test_few_seeds_decide_nothing_that_a_fixed_number_would(self):
        a = ArmNumbers({seed: 1 + 0.1 * (seed % 2) for seed in range(4)})
        b = ArmNumbers({seed: 1.2 + 0.1 * (seed % 3) for seed in range(4)})
        assert judge_order("a", a, {"b": b}).verdict == "holds"
        found = judge_order("a", a, {"b": b}, any_look=True)
        assert found.verdict == "not distinguishable"
        assert found.pairs[0].p > 0.05
        more = [
            ArmNumbers({seed: 1 + 0.1 * (seed % 2) for seed in range(12)}),
            ArmNumbers({seed: 1.2 + 0.1 * (seed % 3) for seed in range(12)}),
        ]
        assert judge_order("a", more[0], {"b": more[1]}, any_look=True).verdict == "holds"
        assert judge_order("b", more[1], {"a": more[0]}, any_look=True).verdict == "does not hold"
        alike = judge_order("a", more[0], {"b": more[1]}, alike_within=2.0, any_look=True)
        assert alike.verdict == "holds"
        same = ArmNumbers({seed: 1 + 0.01 * (seed % 2) for seed in range(12)})
        near = ArmNumbers({seed: 1 + 0.01 * (seed % 3) for seed in range(12)})
        found = judge_order("a", same, {"b": near}, alike_within=0.2, any_look=True)
        assert found.verdict == "equivalent"
        assert judge_alike("a", same, {"b": near}, 0.2, any_look=True).verdict == "holds"

    def test_first_steps_are_compared_by_who_was_first_on_each_seed(self):
        early = ArmNumbers({seed: 100.0 + seed for seed in range(8)}, last=800.0)
        late = ArmNumbers({seed: inf for seed in range(8)}, last=800.0)
        found = judge_order("a", early, {"b": late}, any_look=True)
        assert (found.verdict, found.pairs[0].p) == ("holds", pytest.approx(9 / 2**8))
        seven = ArmNumbers({seed: 100.0 + seed for seed in range(7)}, last=800.0)
        assert judge_order("a", seven, {"b": late}, any_look=True).verdict == "not distinguishable"
        assert judge_bounds(early, at_most=500, any_look=True).verdict == "holds"
        assert judge_bounds(seven, at_most=500, any_look=True).verdict == "not distinguishable"

    def test_bounds_are_judged_by_an_interval_that_is_wider(self):
        side = ArmNumbers({0: 0.10, 1: 0.14, 2: 0.12, 3: 0.13}, domain="positive")
        assert judge_bounds(side, at_most=0.17).verdict == "holds"
        assert judge_bounds(side, at_most=0.17, any_look=True).verdict == "not distinguishable"
        assert judge_bounds(side, at_most=5.0, any_look=True).verdict == "holds"


def make_order(name: str, storage: Path, **parts: Any) -> ReportOrder:
    """Return the order of a suite's report with the short budget."""
    parts = {"experiments": [], "analyses": [], "budget": "short", **parts}
    return ReportOrder(id="r1", name=name, storage=str(storage), **parts)


class TestBounds:
    @pytest.mark.parametrize(
        ("side", "bounds", "verdict"),
        [
            (ArmNumbers(LOW), {"at_most": 0.2}, "holds"),
            (ArmNumbers(LOW), {"at_least": 0.2}, "does not hold"),
            (ArmNumbers(NEAR), {"at_most": 0.11}, "not distinguishable"),
            (ArmNumbers({0: 0.1}), {"at_most": 0.2}, "not distinguishable"),
            (ArmNumbers({0: 0.1}), {"at_most": 0.2, "exact": True}, "holds"),
            (ArmNumbers({0: 0.3}), {"at_most": 0.2, "exact": True}, "does not hold"),
            (ArmNumbers(LOW), {"at_least": 0.01, "at_most": 0.5}, "holds"),
            (ArmNumbers(missing="lost"), {"at_most": 0.2}, "not comparable"),
            (ArmNumbers(diverged=frozenset({0})), {"at_most": 0.2}, "does not hold"),
            (ArmNumbers(diverged=frozenset({0})), {"at_least": 0.2}, "not comparable"),
            (ArmNumbers(LOW, diverged=frozenset({3})), {"at_most": 0.2}, "not distinguishable"),
            (ArmNumbers(HIGH, diverged=frozenset({3})), {"at_least": 0.2}, "holds"),
            (ArmNumbers(LOW, doubt="it was busy"), {"at_most": 0.2}, "not comparable"),
            (ArmNumbers(dict.fromkeys(range(5), 0.1)), {"at_most": 0.2}, "not distinguishable"),
            (ArmNumbers(dict.fromkeys(range(6), 0.1)), {"at_most": 0.2}, "holds"),
            (ArmNumbers(dict.fromkeys(range(5), 0.0)), {"at_least": 1}, "not distinguishable"),
            (
                ArmNumbers(dict.fromkeys(range(5), 0.1)),
                {"at_most": 0.2, "any_look": True},
                "not distinguishable",
            ),
        ],
    )
    def test_a_number_and_its_bounds(self, side, bounds, verdict):
        assert judge_bounds(side, **bounds).verdict == verdict


def test_the_interval_of_a_ratio_is_that_of_its_logarithm():
    ratios = ArmNumbers({0: 10.0, 1: 1e4, 2: 1e6})
    assert judge_bounds(ratios, at_least=1e-3).verdict == "not distinguishable"
    assert judge_bounds(ratios, at_least=1e-3, ratios=True).verdict == "holds"
    assert judge_bounds(ArmNumbers({0: 0.0, 1: 0.1}), at_most=2, ratios=True).verdict == "holds"


def test_a_number_agrees_where_the_papers_is_in_its_interval():
    measured = summarize([0.1, 0.2, 0.3])
    assert judge_number(measured, 0.25, None).verdict == "holds"
    assert judge_number(measured, 0.9, None).verdict == "does not hold"
    assert judge_number(measured, 0.25, "it is cut").because == "it is cut"
    assert judge_number(summarize([0.1]), 0.1, None).verdict == "not distinguishable"
    assert judge_number(summarize([15046.0]), 15_000, None, 0.05).verdict == "holds"
    assert judge_number(None, 1.0, None).verdict == "not comparable"


def test_a_few_equal_seeds_disagree_with_no_number():
    few, six = (summarize([0.5] * n) for n in (3, 6))
    assert judge_number(few, 0.6, None).because == "3 equal seeds give no interval"
    assert judge_number(six, 0.6, None).verdict == "does not hold"
    sides = ArmNumbers(dict.fromkeys(range(3), 1.0)), ArmNumbers(dict.fromkeys(range(3), 2.0))
    assert judge_alike("a", sides[0], {"b": sides[1]}, 0.1).verdict == "not distinguishable"
    sides = ArmNumbers(dict.fromkeys(range(6), 1.0)), ArmNumbers(dict.fromkeys(range(6), 2.0))
    assert judge_alike("a", sides[0], {"b": sides[1]}, 0.1).verdict == "does not hold"


def test_the_papers_error_counts_beside_ours():
    measured = summarize([0.1, 0.11, 0.12])
    assert judge_number(measured, 0.2, None).verdict == "does not hold"
    assert judge_number(measured, 0.2, None, spread=0.05).verdict == "holds"
    assert judge_number(measured, 0.9, None, spread=0.05).verdict == "does not hold"


def test_the_first_claim_decides_and_the_others_are_counted():
    decided = [
        ClaimVerdict("holds"),
        ClaimVerdict("does not hold"),
        ClaimVerdict("not distinguishable"),
    ]
    assert judge_all(decided).verdict == "holds"
    assert judge_all(decided).because == (
        "primary claim: holds; others: 1 does not hold, 1 not distinguishable"
    )
    assert (
        judge_all([ClaimVerdict("not distinguishable"), *decided]).verdict == "not distinguishable"
    )
    assert judge_all([ClaimVerdict("holds", counts=False), *decided]).verdict == "not comparable"
    assert judge_all([]).verdict == "not comparable"


def test_what_a_figure_plots_is_told_from_what_it_is_about():
    claims = [
        ClaimVerdict("holds", setting="as plotted"),
        ClaimVerdict("does not hold", setting="matched"),
    ]
    assert judge_all(claims).because == "as plotted: holds; matched: 1 does not hold"


def test_numbers_are_found_in_results():
    content = {"counts": [{"S": 5, "n": 7}, {"S": 6, "n": 1}], "x": {"y": [1, 2]}, "t": True}
    assert find_number(content, "counts[S=6].n") == 1
    assert find_number(content, "x.y.1") == 2
    for path in ("counts[S=9].n", "x.z", "t", "x.y.7", "t.y", "t[S=5].n", "x.y[S=5].n", "x.y.z"):
        with pytest.raises(LookupError):
            find_number(content, path)


def test_the_first_step_beyond_a_threshold():
    assert first_step([(0, 0.1), (50, 0.6), (100, 0.9)], 0.5, "higher") == 50
    assert first_step([(0, 3.0), (50, 2.0)], 1.0, "lower") is None


def make_experiment(
    folder: Path,
    label: str,
    spec: ExperimentSpec,
    values: dict[str, list[float]],
    **more: Any,
) -> MeasuredExperiment:
    """Return an experiment with one trial an arm, whose seeds end at `values`; NaN diverges."""
    store, trials = Store(folder), []
    for number, arm in enumerate(spec.arms_):
        config = spec.trial(Point(arm.label, {}))
        replicates = []
        for seed, value in zip(config.seeds, values.get(arm.label, []), strict=False):
            diverged = value != value
            replicates.append(
                ReplicateResult(
                    seed=seed,
                    outcome="diverged" if diverged else "completed",
                    value=None if diverged else value,
                    step=100,
                    seconds=10.0,
                    step_seconds=0.1,
                    test={} if diverged else {spec.objective_metric.name: value},
                    baseline=spec.baseline,
                )
            )
            key = f"{trial_key(label, number)}/{seed}"
            store.begin(key, 1)
            name = f"valid/{spec.objective_metric.name}"
            points = [
                CurvePoint(step, {name: 1.0 / (1 + step) + (0 if diverged else value),
                                  "constraint/orthogonality_error": 1e-6 * (1 + step)}, 0)
                for step in (0, 50, 100)
            ]  # fmt: skip
            store.commit(key, 1, 100, {}, points)
        if replicates:
            result = summarise(replicates)
            trials.append(
                MeasuredTrial(
                    number=number,
                    arm=arm.label,
                    state=result.outcome or "completed",
                    params={},
                    config=config.model_dump(mode="json"),
                    place=trial_key(label, number),
                    result=result.to_dict(),
                )
            )
    metric = spec.objective_metric
    return MeasuredExperiment(
        **{
            "label": label,
            "id": "e1",
            "state": "completed",
            "spec": spec.model_dump(mode="json"),
            "metric": metric.name,
            "unit": metric.unit,
            "better": metric.better,
            "baseline": spec.baseline,
            "trials": tuple(trials),
            "started_at": 0.0,
            "finished_at": 60.0,
            **more,
        }
    )


def make_report(tmp_path: Path, order: ReportOrder) -> ReportContent:
    folder = tmp_path / "report"
    folder.mkdir()
    process.main(folder, order.model_dump_json())
    outcome = ReportOutcome.model_validate_json((folder / OUTCOME).read_bytes())
    assert outcome.error is None, outcome.error
    return ReportContent.model_validate_json((folder / JSON).read_bytes())


class TestReport:
    @pytest.fixture
    def content(self, tmp_path: Path) -> ReportContent:
        """ENRNN's figure 2 with made numbers: scoRNN diverges in a seed, full uRNN is missing."""
        spec = make_specs("enrnn/figure-2", "short")["main"]
        baseline = spec.baseline
        assert baseline is not None
        values = {
            "enrnn": [1e-5, 2e-5, 1.5e-5],
            "scornn": [1e-3, float("nan"), 2e-3],
            "lstm": [baseline, 1.01 * baseline, 0.99 * baseline],
        }
        main = make_experiment(tmp_path / "store", "main", spec, values)
        order = make_order("enrnn/figure-2", tmp_path / "store", experiments=[main])
        return make_report(tmp_path, order)

    def test_it_decides_each_claim_and_says_why(self, content):
        ends, stays, left_out = content.claims
        verdicts = {pair.than: pair.verdict for pair in ends.comparisons}
        assert verdicts["full_urnn"] == "not comparable"
        assert ends.verdict == "not comparable"
        assert stays.verdict == "holds"
        assert left_out.verdict == "not comparable"
        assert "leaves it out" in left_out.because
        assert [claim.counts for claim in content.claims] == [True, True, False]
        assert content.verdict == "not comparable"
        assert content.words == "primary claim: not comparable; others: 1 holds"

    def test_it_tells_divergences_drift_and_cost(self, content):
        arms = {arm.arm: arm for arm in content.arms}
        assert arms["scornn"].diverged_seeds == [1]
        assert arms["scornn"].value is not None
        assert arms["scornn"].value.n == 2
        assert arms["enrnn"].drift["orthogonality_error"] == pytest.approx(1.01e-4)
        assert arms["full_urnn"].trial is None
        assert content.cost.trial_seconds == 90.0
        assert content.command == "eigensweep reproduce enrnn/figure-2 --budget short"

    def test_its_curves_have_the_baseline_and_undiverged_seeds(self, content):
        (curves,) = content.curves
        assert curves.baseline == pytest.approx(0.0399, abs=1e-4)
        assert {line.arm: line.seeds for line in curves.lines} == {
            "enrnn": 3,
            "scornn": 2,
            "lstm": 3,
        }
        assert "scornn's seeds that diverged are not drawn: 1." in curves.left_out

    def test_points_of_the_paper_for_another_task_are_not_drawn(self, content, tmp_path):
        (curves,) = content.curves
        assert curves.paper == []
        assert curves.left_out is not None
        assert "delay is 500 here and 2000 in the paper" in curves.left_out
        picture = (tmp_path / "report" / "curves.svg").read_text()
        assert "paper, read off" not in picture

    def test_points_of_the_paper_for_the_same_task_are_drawn(self, tmp_path):
        spec = make_specs("enrnn/figure-2", "full")["main"]
        values = {"enrnn": [1e-5], "scornn": [1e-3], "lstm": [0.01]}
        main = make_experiment(tmp_path / "store", "main", spec, values)
        order = make_order("enrnn/figure-2", tmp_path / "store", experiments=[main], budget="full")
        (curves,) = make_report(tmp_path, order).curves
        assert {(point.arm, point.step) for point in curves.paper} == {
            ("lstm", 4000),
            ("lstm_large", 4000),
        }
        assert curves.left_out is None

    def test_its_page_needs_nothing_else(self, content, tmp_path):
        page = (tmp_path / "report" / HTML).read_text()
        assert len(page.encode()) < LARGEST
        addresses = re.findall(r"""(?:src|href)=["']([^"']*)""", page)
        assert addresses
        assert all(address.startswith("data:image/") for address in addresses)
        assert "<script" not in page
        for name in FILES:
            assert (tmp_path / "report" / name).stat().st_size > 0

    def test_it_stands_on_the_page_of_all(self, content, tmp_path):
        folder = tmp_path / "docs" / "p" / "results"
        folder.mkdir(parents=True)
        kept = (tmp_path / "report" / RESULTS).read_bytes()
        (folder / "enrnn-figure-2-short.json").write_bytes(kept)
        make_page(folder, tmp_path / "docs" / "p.md")
        page = (tmp_path / "docs" / "p.md").read_text()
        assert "## enrnn/figure-2: Copying over 2,000 steps" in page
        assert "](#enrnnfigure-2-copying-over-2000-steps) | **ENRNN ends lower" in page
        assert "| 20 %, delay 500 of 2,000 | 3 |" in page
        assert "](p/results/enrnn-figure-2-short.json)" in page
        assert "| enrnn/figure-3 | needs TIMIT, " in page
        assert "| asrnn/figure-1b | decides nothing in the short budget; " in page
        assert "nan" not in (tmp_path / "report" / MARKDOWN).read_text()

    def test_the_page_says_how_much_was_trained_for_each_claim(self, tmp_path):
        kept = Path(__file__).parents[2] / "docs" / "reproduction" / "results"
        folder = tmp_path / "docs" / "p" / "results"
        folder.mkdir(parents=True)
        for name in ("asrnn-table-3", "henaff-figure-5", "henaff-figure-6", "nnrnn-figure-6a"):
            shutil.copy(kept / f"{name}-full.json", folder)
        make_page(folder, tmp_path / "docs" / "p.md")
        rows = (tmp_path / "docs" / "p.md").read_text().splitlines()
        shares = [row.split(" | ")[-2] for row in rows if "| **" in row and row.startswith("| [")]
        assert shares == ["100 steps timed", "all", "all", "all"]

    def test_rows_name_their_experiment_where_there_are_several(self, content):
        assert "| enrnn |" in write_report(content, None)
        (run,) = content.experiments
        two = content.model_copy(update={"experiments": [run, run]})
        assert "| main/enrnn |" in write_report(two, None)


class TestPictures:
    def draw(self, curves: ExperimentCurves, content: ReportContent) -> Any:
        """Return the only panel of a picture with these curves."""
        figure = pictures._draw(content.model_copy(update={"curves": [curves]}))
        return figure.axes[0]

    @pytest.fixture
    def content(self, tmp_path):
        """ENRNN's figure 2, where nothing was trained."""
        return make_report(tmp_path, make_order("enrnn/figure-2", tmp_path))

    def curves(self, values: list[float], paper: list[ReadOff]) -> ExperimentCurves:
        steps = list(range(0, 100 * len(values), 100))
        line = ArmCurve(
            arm="enrnn", trial=0, seeds=2, step=steps, mean=values, low=values, high=values
        )
        heads = {"experiment": "main", "title": "t", "metric": "valid/mse", "unit": ""}
        return ExperimentCurves(**heads, baseline=0.2, lines=[line], paper=paper)

    def test_the_papers_points_stretch_no_axis_and_zero_is_an_arrow(self, content):
        values = [1.0, 0.1, 0.01]
        bare = self.draw(self.curves(values, []), content)
        points = [ReadOff(arm="enrnn", step=100, value=0.0), ReadOff(arm="x", step=200, value=0.1)]
        panel = self.draw(self.curves(values, points), content)
        assert panel.get_yscale() == "log"
        assert (panel.get_xlim(), panel.get_ylim()) == (bare.get_xlim(), bare.get_ylim())
        drawn = {line.get_label(): line for line in panel.get_lines()}
        arrow = drawn["paper, read off: lower"]
        assert (arrow.get_marker(), *arrow.get_ydata()) == ("v", panel.get_ylim()[0])
        assert list(drawn["paper, read off"].get_ydata()) == [0.1]

    def test_a_spike_does_not_hide_the_rest_and_is_named(self, content):
        panel = self.draw(self.curves([1.0, 1e32, 0.5], []), content)
        assert panel.get_ylim()[1] == pytest.approx(10.0)
        words = " ".join(panel.get_xlabel().split())
        assert "The axis ends at 10; values go to 1e+32." in words

    @pytest.mark.parametrize(
        ("name", "label", "scale"),
        [("asrnn/table-3", "seconds per step", "linear"), ("asrnn/table-4", "parameters", "log")],
    )
    def test_a_table_shows_its_numbers_beside_the_papers(self, tmp_path, name, label, scale):
        made = [
            make_experiment(tmp_path, label, spec, {"asrnn": [0.9, 0.91, 0.92]})
            for label, spec in make_specs(name, "full").items()
        ]
        content = make_report(tmp_path, make_order(name, tmp_path, experiments=made, budget="full"))
        figure = pictures._draw(content)
        assert len(figure.axes) == 2
        panel = figure.axes[0]
        assert (panel.get_xlabel(), panel.get_xscale()) == (label, scale)
        words = {text.get_text() for text in panel.get_legend().get_texts()}
        assert any(each.startswith("paper") for each in words)


def test_one_parameters_values_are_compared_in_place_of_arms(tmp_path):
    spec = make_specs("nnrnn/figure-6a", "short")["one_hot"]
    store, trials = Store(tmp_path), []
    for number, name in enumerate(("rmsprop", "adam")):
        config = spec.trial(Point("nnrnn", {"optimizer.name": name}))
        results = [
            ReplicateResult(seed=s, value=0.1 * (number + 1) + s / 1e3, step=1)
            for s in config.seeds
        ]
        trials.append(
            MeasuredTrial(
                number=number,
                arm="nnrnn",
                state="completed",
                params={"optimizer.name": name},
                config=config.model_dump(mode="json"),
                place=f"e/{number}",
                result=summarise(results).to_dict(),
            )
        )
    made = make_experiment(tmp_path, "main", spec, {}, trials=tuple(trials), sides="optimizer.name")
    measured = ArmsMeasured(made, store)
    sides = {name: measured.side(name, Measure(metric="value")) for name in ("rmsprop", "adam")}
    assert judge_order("rmsprop", sides["rmsprop"], {"adam": sides["adam"]}).verdict == "holds"


def test_further_repetitions_keep_what_claims_are_about(tmp_path):
    (tmp_path / "result.json").write_text(json.dumps({"curves": [1.0], "other": [2.0]}))
    made = [
        MadeAnalysis(label="memory", repeat=repeat, id=None, folder=str(tmp_path))
        for repeat in (0, 1)
    ]
    first, second = collect(make_order("nnrnn/figure-1c", tmp_path, analyses=made)).analyses
    assert first.content == {"curves": [1.0], "other": [2.0]}
    assert second.content == {"curves": [1.0]}


@pytest.mark.parametrize(("code", "is_temporary"), [(errno.EIO, True), (errno.ENOENT, False)])
def test_an_analysis_that_cannot_be_read_now_is_waited_for(
    tmp_path, monkeypatch, code, is_temporary
):
    read = Path.read_bytes

    def read_late(path):
        if path.name == "result.json":
            raise OSError(code, os.strerror(code), str(path))
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", read_late)
    (tmp_path / "figure.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg'/>")
    made = MadeAnalysis(label="memory", repeat=0, id="a1", folder=str(tmp_path))
    order = make_order("nnrnn/figure-1c", tmp_path, analyses=[made])
    process.main(tmp_path, order.model_dump_json())
    outcome = ReportOutcome.model_validate_json((tmp_path / OUTCOME).read_bytes())
    assert outcome.is_temporary == is_temporary
    assert (outcome.error is not None) == is_temporary


def test_a_report_waits_for_a_disk_that_is_full(tmp_path, monkeypatch):
    def save(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(pictures, "save", save)
    process.main(tmp_path, make_order("nnrnn/figure-1c", tmp_path).model_dump_json())
    outcome = ReportOutcome.model_validate_json((tmp_path / OUTCOME).read_bytes())
    assert outcome.is_temporary


def test_claims_about_analyses_read_their_results(tmp_path):
    curves = [
        {
            "alpha": alpha,
            "beta": beta,
            "d": d,
            "J": [1.0] * 130 + [0.0] * 20 if d else [1.0] * 100 + [0.0] * 50,
        }
        for alpha in (0.95, 1.0, 1.05)
        for beta in (0.0, 0.005)
        for d in (0.0, 0.2)
    ]
    (tmp_path / "result.json").write_text(json.dumps({"curves": curves}))
    (tmp_path / "figure.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg'/>")
    made = MadeAnalysis(label="memory", repeat=0, id="a1", folder=str(tmp_path))
    order = make_order("nnrnn/figure-1c", tmp_path, analyses=[made])
    content = make_report(tmp_path, order)
    assert [claim.verdict for claim in content.claims] == ["holds"] * 4
    missing = order.model_copy(
        update={"analyses": [made.model_copy(update={"folder": None, "problem": "no memory"})]}
    )
    (tmp_path / "other").mkdir()
    content = make_report(tmp_path / "other", missing)
    assert content.verdict == "not comparable"
    assert "no memory" in content.claims[0].because


def test_what_a_cut_training_has_not_reached_is_not_refuted(tmp_path):
    values = {"copying": [1e-3, 2e-3, 1e-3], "adding": [0.16, 0.17, 0.16]}
    made = [
        make_experiment(tmp_path, label, spec, {"lt_ornn_pooled": values[label]}, chosen={})
        for label, spec in make_specs("henaff/figure-6", "short").items()
    ]
    order = make_order("henaff/figure-6", tmp_path, experiments=made)
    content = make_report(tmp_path, order)
    assert [claim.verdict for claim in content.claims[:2]] == ["holds", "not comparable"]
    assert "ends earlier" in content.claims[1].because


def measure(tmp_path: Path, values: dict[str, list[float]], **more: Any) -> ArmsMeasured:
    """Return ENRNN's figure 2 with made numbers, and with other fields of the experiment."""
    spec = make_specs("enrnn/figure-2", "short")["main"]
    made = make_experiment(tmp_path, "main", spec, values)
    return ArmsMeasured(made.model_copy(update=more), Store(tmp_path))


def test_an_arm_with_one_diverged_seed_has_not_diverged(tmp_path):
    """An older service ended the other seeds with it: they have a value, and no test score."""
    measured = measure(tmp_path, {"lstm": [0.5, float("nan"), 0.6]})
    by = Measure(metric="test/cross_entropy")
    whole = measured.side("lstm", by)
    assert (whole.values, whole.diverged) == ({0: 0.5, 2: 0.6}, {1})
    found = judge_order("lstm", whole, {"b": ArmNumbers({0: 0.9, 2: 1.1})})
    assert "lstm 0.55" in found.pairs[0].because
    assert "(1 seed diverged)" in found.pairs[0].because

    for each in measured.arms["lstm"].replicates:
        each.test.clear()
    cut = measured.side("lstm", by)
    assert cut.missing == "it has no test/cross_entropy: 1 of 3 seeds diverged"
    found = judge_order("a", ArmNumbers({0: 0.1, 2: 0.2}), {"lstm": cut})
    assert found.verdict == "not comparable"
    assert "all seeds" not in found.pairs[0].because

    lost = measure(tmp_path / "lost", {"lstm": [float("nan")] * 3}).side("lstm", by)
    found = judge_order("a", ArmNumbers({0: 0.1, 2: 0.2}), {"lstm": lost})
    assert found.pairs[0].because == "lstm diverged in all seeds"


def test_more_seeds_make_no_side_good_of_which_some_diverged():
    good = ArmNumbers({seed: 0.1 + seed / 1000 for seed in range(9)}, frozenset({9}))
    bad = ArmNumbers({seed: 0.9 + seed / 500 for seed in range(10)})
    alike = ArmNumbers({seed: 0.1 + (-1) ** seed / 100 for seed in range(10)})
    for any_look in (False, True):
        found = judge_order("a", good, {"b": bad}, any_look=any_look)
        assert (found.verdict, found.stuck) == ("not distinguishable", True)
        assert found.pairs[0].seeds is None
        assert not judge_order("a", good, {"b": bad, "c": alike}, any_look=any_look).stuck
        assert not judge_order("b", bad, {"a": good}, any_look=any_look).stuck
        assert judge_bounds(good, at_most=0.5, any_look=any_look).stuck
        assert not judge_bounds(good, at_most=0.103, any_look=any_look).stuck


def test_no_further_seeds_are_added_where_neither_got_there():
    never = ArmNumbers(dict.fromkeys(range(6), float("inf")), last=800.0)
    once = ArmNumbers({**dict.fromkeys(range(5), float("inf")), 5: 790.0}, last=800.0)
    lost = ArmNumbers({}, frozenset(range(6)))
    for any_look in (False, True):
        found = judge_order("a", never, {"b": never}, any_look=any_look)
        assert found.pairs[0].because == "neither got there within the budget"
        assert found.stuck
        assert judge_order("a", lost, {"b": lost}, any_look=any_look).stuck
        assert not judge_order("a", once, {"b": never}, any_look=any_look).stuck


def test_equal_arms_are_called_different_one_time_in_twenty():
    """The looks of a reproduction, of which each has a quarter more seeds; two arms have them."""
    rng, runs, wrong = np.random.default_rng(0), 200, 0
    for _ in range(runs):
        a, b, c = np.exp(rng.normal(-3, 0.5, size=(3, 40)))
        third = ArmNumbers(dict(enumerate(c[:10])))
        seeds = 10
        while seeds <= 40:
            sides = (ArmNumbers(dict(enumerate(each[:seeds]))) for each in (a, b))
            first, second = sides
            found = judge_order(
                "a", first, {"b": second, "c": third}, logarithms=True, any_look=True
            )
            if any(pair.verdict in ("holds", "does not hold") for pair in found.pairs):
                wrong += 1
                break
            seeds += max(1, seeds // 4)
    assert bdtrc(wrong - 1, runs, 0.05) > 1e-4, wrong / runs


def test_intervals_stay_where_a_number_can_lie(tmp_path):
    measured = measure(tmp_path, {"lstm": [1e-6, 2e-5, 0.9], "scornn": [0.4, 0.99, 1.0]})
    loss = measured.side("lstm", Measure(metric="value")).summary
    assert 0 < loss.low < loss.mean < loss.high
    curve = measured.side("lstm", Measure(curve="valid/cross_entropy", of_baseline=True)).summary
    assert curve.low > 0
    for each in measured.arms["scornn"].replicates:
        each.test["accuracy"] = each.value
    right = measured.side("scornn", Measure(metric="test/accuracy")).summary
    assert right.mean < right.high <= 1


def test_times_of_a_busy_machine_are_shown_and_decide_nothing(tmp_path):
    measured = measure(tmp_path, {"lstm": [0.5, 0.6, 0.5]})
    by = Measure(metric="seconds_per_step")
    assert measured.side("lstm", by).doubt is None
    results = measured.arms["lstm"].result.by_replicate
    busy = replace(results[0], step_seconds=0.13), *results[1:]
    measured.arms["lstm"] = replace(
        measured.arms["lstm"], result=replace(measured.arms["lstm"].result, by_replicate=busy)
    )
    side = measured.side("lstm", by)
    assert "spread by 16%" in side.doubt
    assert side.summary.n == 3
    assert judge_bounds(side, at_most=1.0).verdict == "not comparable"


def test_the_papers_rate_stands_for_an_arm_where_it_is_named(tmp_path):
    spec = make_specs("nnrnn/figure-6a", "short")["one_hot"]
    params = ({"optimizer.lr": 1e-3}, {"optimizer.lr": 1e-4})
    made = make_experiment(tmp_path, "main", spec, {"nnrnn": [0.1, 0.1, 0.1]})
    (best,) = made.trials
    result = {**best.result, "value": 0.9}
    trials = (
        best.model_copy(update={"params": params[0]}),
        best.model_copy(update={"params": params[1], "number": 1, "result": result}),
    )
    made = made.model_copy(update={"trials": trials})
    chosen = made.model_copy(update={"chosen": {"nnrnn": params[1]}})
    numbers = [
        ArmsMeasured(each, Store(tmp_path)).arms["nnrnn"].trial.number for each in (made, chosen)
    ]
    assert numbers == [0, 1]


def test_a_share_of_the_baseline_is_of_the_data_that_was_scored(tmp_path):
    spec = make_specs("nnrnn/figure-4", "short")["main"]
    made = make_experiment(tmp_path, "main", spec, {"lstm": [0.1] * spec.replicates})
    measured = ArmsMeasured(made, Store(tmp_path))
    valid, test = (spec.task.baselines_on(split)["mse"] for split in ("valid", "test"))
    assert valid != test
    for metric, baseline in (("value", valid), ("test/mse", test)):
        side = measured.side("lstm", Measure(metric=metric, of_baseline=True))
        assert side.values[0] == pytest.approx(0.1 / baseline)


def test_a_picture_has_the_baseline_of_the_data_that_it_shows(tmp_path):
    spec = make_specs("enrnn/figure-1", "short")["main"]
    made = make_experiment(tmp_path, "main", spec, {"lstm": [0.1] * spec.replicates})
    measured = ArmsMeasured(made, Store(tmp_path))
    valid, test = (spec.task.baselines_on(split)["mse"] for split in ("valid", "test"))
    drawn = {name: measured.baseline_of(spec.task, name) for name in ("valid/mse", "test_now/mse")}
    assert drawn == {"valid/mse": valid, "test_now/mse": test}
    results = collect(make_order("enrnn/figure-1", tmp_path, experiments=[made]))
    (curves,) = judge_results(results).curves
    assert (curves.metric, curves.baseline) == ("test_now/mse", test)


def test_a_seed_that_diverges_untested_never_gets_there(tmp_path):
    spec = make_specs("enrnn/figure-1", "short")["main"]
    measure_it = Measure(curve="test_now/mse", steps_to=0.01)
    for values, steps in (([0.1, nan, 0.1], [150, inf, 150]), ([nan] * 3, [inf] * 3)):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        made = make_experiment(folder, "main", spec, {"lstm": values})
        store = Store(folder)
        for seed, value in enumerate(values):
            if value == value:
                place = next(each.place for each in made.trials if each.arm == "lstm")
                store.commit(
                    f"{place}/{seed}", 1, 150, {}, [CurvePoint(150, {"test_now/mse": 0.001}, 0)]
                )
        side = ArmsMeasured(made, store).side("lstm", measure_it)
        assert [side.values[seed] for seed in range(3)] == steps


def test_results_with_fewer_seeds_than_the_suite_are_marked():
    path = Path(__file__).parents[2] / "docs/reproduction/results/nnrnn-figure-2-full.json"
    whole = read_results(path.read_bytes())
    assert not is_outdated(whole)
    main, *others = whole.experiments
    first, *rest = main.trials
    cut = cut_seeds(Result.from_dict(first.result), 9).to_dict()
    for changed, found in (({"result": cut}, True), ({"result": None, "state": "failed"}, False)):
        trials = (first.model_copy(update=changed), *rest)
        experiments = (main.model_copy(update={"trials": trials}), *others)
        assert is_outdated(whole.model_copy(update={"experiments": experiments})) is found


def test_an_experiment_that_cannot_run_here_is_not_comparable(tmp_path):
    spec = make_specs("enrnn/figure-3", "short")["main"]
    gone = make_experiment(
        tmp_path, "main", spec, {}, id=None, state="unavailable", problem="TIMIT is not here"
    )
    order = make_order("enrnn/figure-3", tmp_path, experiments=[gone])
    content = make_report(tmp_path, order)
    assert content.verdict == "not comparable"
    assert "TIMIT is not here" in content.claims[0].comparisons[0].because


def test_permuted_pixels_show_accuracies_and_name_the_diverged(tmp_path):
    spec = make_specs("nnrnn/figure-3", "short")["main"]
    values = {"exprnn": [0.7, 0.7, 0.7], "rnn": [0.9, float("nan"), 0.9]}
    made, store = make_experiment(tmp_path, "main", spec, values), Store(tmp_path)
    for trial in made.trials:
        for seed in range(spec.replicates):
            key = f"{trial.place}/{seed}"
            lost = (trial.arm, seed) == ("rnn", 1)
            scores = {"valid/accuracy": 0.8, "valid/cross_entropy": 1e32 if lost else 0.7}
            store.begin(key, 2)
            store.commit(key, 2, 300, {}, [CurvePoint(step, scores, 0) for step in (0, 300)])
    content = make_report(tmp_path, make_order("nnrnn/figure-3", tmp_path, experiments=[made]))
    (panel,) = pictures._draw(content).axes
    assert panel.get_ylabel() == "valid/accuracy, fraction"
    assert panel.get_ylim()[1] <= 1
    assert "rnn's seeds that diverged are not drawn: 1." in " ".join(panel.get_xlabel().split())


def test_a_p_value_stands_beside_a_verdict_that_it_decides():
    def words(*pairs: tuple[str, str, float | None], verdict: str = "", stuck: bool = False) -> str:
        compared = tuple(
            ArmsCompared("a", than, each, "", p=p, stuck=stuck) for than, each, p in pairs
        )
        lost = any(each == "does not hold" for _, each, _ in pairs)
        verdict = verdict or ("does not hold" if lost else "holds")
        about = {"says": "", "because": "", "by": "", "counts": True}
        return _p_words(ClaimFound(verdict=verdict, comparisons=compared, **about))

    assert words(("b", "holds", 0.01), ("c", "holds", 0.03)) == "p = 0.03"
    lost = ("b", "does not hold", 0.001)
    assert words(lost, ("c", "not distinguishable", 0.3)) == "p = 0.001 against b"
    assert words(lost) == "p = 0.001"
    assert words(("b", "does not hold", 1.0)) == "", "its interval decides"
    assert words(("b", "not comparable", None)) == ""
    assert words(("b", "holds", 1e-9), verdict="not comparable") == ""
    undecided = ("b", "not distinguishable", 0.2)
    assert words(undecided, ("c", "holds", 0.5), verdict=undecided[1]) == "p = 0.2"
    assert words(undecided, verdict=undecided[1], stuck=True) == "", "a divergence decides"


def test_what_the_logs_show_stands_beside_a_claim(tmp_path):
    made = make_experiment(
        tmp_path, "main", make_specs("nnrnn/figure-5a", "full")["main"], {"l1_256": [0.1] * 10}
    )
    results = collect(make_order("nnrnn/figure-5a", tmp_path, experiments=[made], budget="full"))
    rows = write_logs({results.name: Shown(results, judge_results(results), False)})[2:]
    assert len(rows) == 2
    assert "both after 41 iterations" in rows[1]
    assert "not comparable" in rows[1]


def test_what_else_ran_is_one_sentence_however_it_was_written(tmp_path):
    spec = make_specs("nnrnn/figure-5a", "full")["main"]
    made = make_experiment(tmp_path, "main", spec, {"l1_256": [0.1] * 10})
    order = make_order("nnrnn/figure-5a", tmp_path, experiments=[made], budget="full")
    results = collect(order).model_copy(update={"note": "nothing else."})
    (line,) = machine_words([Shown(results, judge_results(results), False)])
    assert line.endswith("What else ran there: nothing else.")


def test_the_time_of_another_machine_is_not_this_ones(tmp_path):
    spec = make_specs("nnrnn/figure-5a", "full")["main"]
    made = make_experiment(tmp_path, "main", spec, {"l1_256": [0.1, 0.2]})
    order = make_order("nnrnn/figure-5a", tmp_path, experiments=[made], budget="full")
    results = collect(order).model_copy(update={"processor": "Slow, 2 cores", "note": "nothing"})
    ((trial,),) = (each.trials for each in results.experiments)
    for seed, seconds in zip(trial.result["by_replicate"], (3600, 7200), strict=True):
        seed["seconds"] = seconds
    trial.result["by_replicate"][1]["origin"] = "Fast GPU; revision 1; torch 2"
    lines = machine_words([Shown(results, judge_results(results), False)])
    assert [line.split(" hours")[0] for line in lines] == [
        "- Slow, 2 cores, 1 thread for each trial, 1.0",
        "- Fast GPU, 2.0",
    ]
    assert lines[1].endswith("What else ran there: nobody has said so.")


def test_seeds_that_have_ended_are_kept_of_a_trial_that_goes_on(tmp_path, monkeypatch, caplog):
    """A machine that is there for hours only leaves what it has trained of a trial of days."""
    spec = make_specs("enrnn/figure-2", "full")["main"]
    task = {"name": "copying", "delay": 3, "batch_size": 2, "valid_size": 2, "test_size": 2}
    small = {"replicates": 3, "training": {"steps": 4, "evaluate_every": 2}, "task": task}
    spec = ExperimentSpec.model_validate(spec.model_dump(exclude_unset=True) | small)
    config = spec.trial(Point("lstm", {})).resolve()
    assert spec.rung_steps(config) == [4], "each seed trains to its end before the next begins"
    order = orders.make_order(
        experiment="main",
        number=0,
        config=config.model_dump(mode="json"),
        rungs=(4,),
        storage=str(tmp_path),
    )
    attempt = Attempt(order, "cpu")
    trials = [
        MeasuredTrial(
            number=number,
            arm=config.model.name,
            state="running",
            params={},
            config=config.model_dump(mode="json"),
            place=trial_key("main", number),
            result=None,
            config_hash="h",
        )
        for number in (0, 1)
    ]
    made = make_experiment(tmp_path, "main", spec, {}, trials=tuple(trials))

    def see():
        return with_what_has_ended(made, Store(tmp_path), None).trials

    assert see() == (), "none has ended"
    for replicate in attempt.replicates[:2]:
        replicate.train(4)
    attempt.replicates[2].train(2)
    (kept,) = see()
    assert (kept.number, kept.state, kept.config["replicates"]) == (0, "completed", 2)
    ended = tuple(each.training.result() for each in attempt.replicates[:2])
    found = split_seeds(Result.from_dict(kept.result))
    timeless = {"seconds": 0, "step_seconds": None}
    assert [replace(each, **timeless) for each in found] == [
        replace(each, **timeless) for each in ended
    ]
    assert all(each.test for each in ended)
    ended = with_what_has_ended(made, Store(tmp_path), None)
    about = make_order("enrnn/figure-2", tmp_path, budget="full", experiments=[ended])
    (written,) = collect(about).experiments[0].trials
    assert list(written.curves) == [0, 1]
    fewer = {"state": "completed", "result": summarise([found[0]]).to_dict()}
    first = made.model_copy(update={"trials": (trials[0].model_copy(update=fewer),)})
    (joined,) = join_trials(first, ended).trials
    assert joined.config["replicates"] == 2, "those of an experiment with more seeds count, too"
    monkeypatch.setattr(MODELS["lstm"], "result_version", 99)
    assert see() == (), "what other code trained is no part of it"
    assert "this training is of" in caplog.text
