from __future__ import annotations

import gc
import math
import sys
from dataclasses import replace
from pathlib import Path
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any

import pytest
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState
from orders import make_order
from ray.exceptions import RayActorError
from sweeps import SCORNN, Bench, at, spec

from eigensweep.models import MODELS
from eigensweep.protocol.ledger import Finished, StaleWriteError
from eigensweep.protocol.messages import Order, Report
from eigensweep.results.seeds import summarise
from eigensweep.results.trial_result import ReplicateResult, Result, Source
from eigensweep.search_spaces.space import Point
from eigensweep.search_spaces.spec import ExperimentSpec
from eigensweep.workers.driver.nodes import places
from eigensweep.workers.driver.nodes.cordons import SILENT_SECONDS
from eigensweep.workers.driver.nodes.losses import MOST_SHORTAGES
from eigensweep.workers.driver.search.study import Draw
from eigensweep.workers.driver.sweep import Job
from eigensweep.workers.driver.tune import searcher
from eigensweep.workers.driver.tune.actor_events import MemoryShortageError
from eigensweep.workers.driver.tune.searcher import OwnTrial, Recorder
from eigensweep.workers.processes.forked import ForkedEndedError, ForkedLostError, ForkedShortError

LR = {"low": 1e-5, "high": 1e-1, "log": True}
GRID = {"optimizer.lr": [1e-2, 1e-3, 1e-4], "model.negative_fraction": [0.0, 0.5]}
CHOICES = {
    "optimizer.lr": [1e-1, 1e-2, 1e-3, 1e-4],
    "optimizer.name": ["adam", "rmsprop", "adagrad"],
    "model.hidden_size": [8, 10, 12, 14],
}


def bytes_of(root: Any) -> int:
    """Return the memory of an object and of all that it leads to, without code."""
    seen, found = {id(root)}, [root]
    for each in found:
        for other in gc.get_referents(each):
            if id(other) not in seen and not isinstance(other, type | FunctionType | ModuleType):
                seen.add(id(other))
                found.append(other)
    return sum(map(sys.getsizeof, found))


def bench(folder: Path, search: dict[str, Any], retries: int = 3, **fields: Any) -> Bench:
    return Bench(folder, spec(search, **fields), retries)


def told_of(trial: FrozenTrial) -> tuple[Any, ...]:
    """Return what Optuna knows of a trial, but for its number and times."""
    values = trial.values, trial.intermediate_values
    return trial.params, trial.state, *values, trial.distributions, trial.system_attrs


class TestEveryConfigurationOnce:
    def test_a_grid_is_walked_in_order_and_ends_by_itself(self, tmp_path):
        b = bench(tmp_path, {"method": "grid", "space": GRID})
        points = b.run()
        assert points == [dict(p.params) for p in b.spec.space()]
        assert b.ends()
        assert b.sweep.close() == ("completed", None)
        assert b.ledger.read("total") == 6

    def test_a_huge_grid_is_begun_at_once(self, tmp_path):
        axes = ["optimizer.lr", "optimizer.lr_orth", "optimizer.clip_norm", "training.steps"]
        space = {axis: list(range(1, 1001)) for axis in axes[2:]}
        space |= {axis: [i / 1000 for i in range(1, 1001)] for axis in axes[:2]}
        b = bench(tmp_path, {"method": "grid", "space": space})
        assert b.spec.space().count() == 10**12
        assert len(b.run(most=3)) == 3

    @pytest.mark.parametrize("method", ["grid", "random", "tpe"])
    def test_points_that_resolve_to_one_configuration_run_once(self, tmp_path, method):
        space = {"model.negative_fraction": [0.0, 0.01, 0.02, 0.5, 0.51]}
        b = bench(tmp_path, {"method": method, "space": space, "trials": 5})
        b.run()
        assert sorted(e.config["model"]["negative_ones"] for e in b.ledger.load()) == [0, 5]
        assert b.ends()

    @pytest.mark.parametrize("method", ["random", "tpe"])
    def test_a_sampler_that_repeats_still_visits_a_finite_space(self, tmp_path, method):
        b = bench(tmp_path, {"method": method, "space": CHOICES, "trials": 48})
        points = b.run(lambda params: params["optimizer.lr"] + params["model.hidden_size"])
        assert len({tuple(p.items()) for p in points}) == len(points) == 48
        assert b.ends()

    @pytest.mark.parametrize("method", ["random", "tpe"])
    def test_an_endless_space_of_few_configurations_ends(self, tmp_path, method):
        space = {"model.negative_fraction": {"low": 0.0, "high": 1.0}}
        b = bench(tmp_path, {"method": method, "space": space, "trials": 100})
        assert len(b.run()) == 11
        assert b.ends()

    def test_the_trial_limit_ends_an_endless_space(self, tmp_path):
        b = bench(tmp_path, {"method": "tpe", "space": {"optimizer.lr": LR}, "trials": 7})
        assert len(b.run()) == 7
        assert b.ends()

    def test_other_budgets_of_one_configuration_are_other_trials(self, tmp_path):
        b = bench(tmp_path, {"method": "grid", "space": {"training.steps": [10, 20, 30]}})
        assert len(b.run()) == 3

    def test_a_point_that_no_config_accepts_is_recorded_not_run(self, tmp_path):
        space = {"optimizer.clip_norm": [None, 1.0], "optimizer.clip_value": [None, 1.0]}
        b = bench(tmp_path, {"method": "grid", "space": space})
        assert len(b.run()) == 3
        invalid = [e for e in b.ledger.load() if e.state == "invalid"]
        assert [e.params for e in invalid] == [
            {"optimizer.clip_norm": 1.0, "optimizer.clip_value": 1.0}
        ]
        assert "clip_norm" in invalid[0].error

    @pytest.mark.parametrize("method", ["grid", "random"])
    def test_the_total_counts_the_valid_ones_to_come(self, tmp_path, method):
        space = {"optimizer.clip_norm": [None, 1.0], "optimizer.clip_value": [None, 1.0, 2.0]}
        if method == "random":
            space["optimizer.lr"] = LR
        b = bench(tmp_path, {"method": method, "space": space, "trials": 8})
        totals = []
        while (job := b.ask()) is not None:
            invalid = [e for e in b.ledger.load() if e.state == "invalid"]
            totals.append(b.ledger.read("total") - (len(invalid) if method == "random" else 0))
            b.sweep.end(job.entry.number, "completed", Result(value=0.5, step=20))
        assert totals == ([6] * 4 if method == "grid" else [8] * 8)
        assert [e for e in b.ledger.load() if e.state == "invalid"]

    def test_a_space_without_any_valid_point_says_so(self, tmp_path):
        space = {"optimizer.clip_norm": [1.0], "optimizer.clip_value": [1.0, 2.0]}
        b = bench(tmp_path, {"method": "grid", "space": space})
        assert b.run() == []
        state, error = b.sweep.close()
        assert state == "failed"
        assert "no point of the search is a valid configuration" in error

    def test_nothing_is_taken_over_where_a_spec_wants_it_anew(self, tmp_path):
        search = {"method": "grid", "space": {"optimizer.lr": [1e-2, 1e-3]}}
        b = bench(tmp_path, search, reuse=False)
        known = b.spec.trial(b.spec.space().point(0)).content_hash()
        b.ledger.know(known, Finished(Source("e0", 7, "run7"), Result(value=0.25, step=20)))
        job = b.ask()
        assert (job.entry.params, job.donor) == ({"optimizer.lr": 1e-2}, None)

    def test_trials_that_go_on_with_other_code_are_named(self, tmp_path, monkeypatch):
        monkeypatch.setitem(MODELS._codes, "scornn", "aaaa")
        b = bench(tmp_path, {"method": "grid", "space": {"optimizer.lr": [1e-2, 1e-3, 1e-4]}})
        ended, begun = b.ask(), b.ask()
        for job in (ended, begun):
            b.sweep.begin(job.entry.number, job.attempt)
        b.sweep.end(ended.entry.number, "completed", Result(value=1.0, step=20, code="aaaa"))
        assert b.sweep.notices() == []
        monkeypatch.setitem(MODELS._codes, "scornn", "bbbb")
        b.start()
        goes_on, of_before = b.sweep.notices()
        assert (goes_on.kind, of_before.kind) == ("code", "code")
        assert "has changed since trial 1 began" in goes_on.words
        assert "reused nowhere" in goes_on.words
        assert (
            "since trial 0 ended. Later trials are trained by the new code, and" in of_before.words
        )

    def test_a_trial_whose_process_had_other_code_is_named(self, tmp_path, monkeypatch):
        monkeypatch.setitem(MODELS._codes, "scornn", "aaaa")
        b = bench(tmp_path, {"method": "grid", "space": {"optimizer.lr": [1e-2]}})
        b.run(lambda params: Result(value=1.0, step=20, code="aaaa,bbbb"))
        for _ in range(2):
            assert "since trial 0 began" in b.sweep.notices()[0].words
            b.start()

    def test_a_result_that_stands_elsewhere_is_taken_over(self, tmp_path):
        b = bench(tmp_path, {"method": "grid", "space": {"optimizer.lr": [1e-2, 1e-3]}})
        known = b.spec.trial(b.spec.space().point(0)).content_hash()
        b.ledger.know(known, Finished(Source("e0", 7, "run7"), Result(value=0.25, step=20)))
        assert b.run() == [{"optimizer.lr": 1e-3}]
        reused = b.ledger.load()[0]
        assert reused.state == "reused"
        assert reused.result.reused_from == Source("e0", 7, "run7")
        assert b.sweep.entries.best().number == 0


class TestArms:
    def test_each_has_its_own_trial_of_a_configuration_they_share(self, tmp_path):
        arms = [
            {"name": name, "model": SCORNN, "space": {"optimizer.lr": rates}}
            for name, rates in (("fast", [0.1, 0.01]), ("slow", [0.01, 0.001]))
        ]
        b = bench(tmp_path, {}, arms=arms)
        b.run()
        found = [(entry.arm, entry.params["optimizer.lr"]) for entry in b.ledger.load()]
        assert found == [("fast", 0.1), ("fast", 0.01), ("slow", 0.01), ("slow", 0.001)]

    ARMS = (
        {
            "model": SCORNN,
            "space": {
                "optimizer.name": ["adam", "rmsprop"],
                "optimizer.alpha": {
                    "low": 0.5,
                    "high": 0.99,
                    "when": {"optimizer.name": ["rmsprop"]},
                },
            },
        },
        {"model": {"name": "lstm", "hidden_size": 8}},
    )

    @pytest.mark.quick_cases(1)
    @pytest.mark.parametrize("method", ["random", "tpe"])
    def test_a_sampler_sees_each_arms_own_parameters_and_no_others(self, tmp_path, method):
        search = {"method": method, "trials": 30, "space": {"optimizer.lr": LR}}
        b = bench(tmp_path, search, arms=self.ARMS)
        b.run(lambda params: params["optimizer.lr"])
        for number, entry in enumerate(b.ledger.load()):
            is_rmsprop = entry.params.get("optimizer.name") == "rmsprop"
            assert ("optimizer.alpha" in entry.params) == is_rmsprop
            if method == "tpe":
                params = dict(b.in_optuna()[number].params)
                assert params.pop("arm") == entry.arm
                assert params == {f"{entry.arm}:{path}": v for path, v in entry.params.items()}
        assert {e.arm for e in b.ledger.load()} == {"scornn", "lstm"}


OUTCOMES = {
    "completed": (TrialState.COMPLETE, 0.5),
    "reused": (TrialState.COMPLETE, 0.5),
    "pruned": (TrialState.PRUNED, 0.5),
    "diverged": (TrialState.PRUNED, math.inf),
    "failed": (TrialState.FAIL, None),
    "cancelled": (TrialState.FAIL, None),
    "stalled": (TrialState.FAIL, None),
}


class TestOutcomes:
    @pytest.mark.parametrize("outcome", OUTCOMES)
    def test_optuna_is_told_each_outcome_as_the_table_says(self, tmp_path, outcome):
        b = bench(tmp_path, {"method": "tpe", "trials": 3, "space": {"optimizer.lr": LR}})
        job = b.ask()
        b.sweep.begin(0, 1)
        b.sweep.report(0, 5, {"objective": 0.75}, None)
        b.sweep.report(0, 10, {"objective": 0.5}, None)
        b.sweep.end(0, outcome, Result(value=0.5, step=10))
        b.sweep.end(0, "failed")  # the first end counts
        for told in (b.study.trials()[0], b.in_optuna()[job.entry.number]):
            assert (told.state, told.value) == OUTCOMES[outcome]
            if outcome == "pruned":
                assert told.intermediate_values == {5: 0.75, 10: 0.5}
        assert b.ledger.load()[0].state == outcome

    def test_diverged_is_the_worst_where_higher_is_better_too(self, tmp_path):
        search = {"method": "tpe", "trials": 1, "space": {"optimizer.lr": [0.1]}}
        b = bench(tmp_path, search, objective={"metric": "accuracy"})
        b.run(lambda params: math.inf)
        assert b.in_optuna()[0].value == -math.inf

    @pytest.mark.parametrize(
        ("metric", "direction"),
        [("cross_entropy", StudyDirection.MINIMIZE), ("accuracy", StudyDirection.MAXIMIZE)],
    )
    def test_optuna_searches_in_the_direction_of_the_metric(self, tmp_path, metric, direction):
        search = {"method": "tpe", "trials": 1, "space": {"optimizer.lr": [0.1]}}
        b = bench(tmp_path, search, objective={"metric": metric})
        assert b.study._parts[0]._study.direction == direction

    @pytest.mark.parametrize("seed", range(3))
    @pytest.mark.quick_cases(1)
    def test_tpe_learns_to_avoid_a_region_that_diverges(self, tmp_path, seed):
        search = {"method": "tpe", "trials": 60, "seed": seed, "space": {"optimizer.lr": LR}}
        b = bench(tmp_path, search)

        def value(params: dict[str, Any]) -> float:
            exponent = math.log10(params["optimizer.lr"])  # -5 to -1; the best lies at the edge
            return math.inf if exponent > -2.3 else -exponent

        last = [value(params) for params in b.run(value)][15:]
        assert len(last) == 45
        assert sum(map(math.isinf, last)) < 20

    @pytest.mark.parametrize("outcome", ["failed", "diverged"])
    def test_an_experiment_fails_only_if_every_trial_failed(self, tmp_path, outcome):
        b = bench(tmp_path, {"method": "grid", "space": {"optimizer.lr": [0.1, 0.2]}})
        for number, end in enumerate(["failed", outcome]):
            b.ask()
            b.sweep.begin(number, 1)
            b.sweep.end(number, end, error="Traceback\nLookupError: a bug\n")
        assert b.ends()
        all_failed = ("failed", "all 2 trials failed; the first: LookupError: a bug")
        assert b.sweep.close() == (all_failed if outcome == "failed" else ("completed", None))


def tell(b: Bench, *reports: Report) -> Job:
    """Start the next trial and hand in what its process tells, the way Tune does; return its job.

    The last report is one of a lost attempt.
    """
    job = b.sweep.next_job()
    b.sweep.begin(job.entry.number, job.attempt)
    order = make_order(number=job.entry.number, attempt=job.attempt)
    trial = SimpleNamespace(order=order)
    for trial.report in reports:
        Recorder(b).on_trial_result(1, [], trial, {})
    Recorder(b).on_trial_complete(1, [], trial)
    return job


@pytest.mark.parametrize(
    ("loss", "by"),
    [
        (MemoryShortageError(), "memory"),
        (RayActorError(), "process"),
        (SimpleNamespace(cause=ForkedEndedError()), "process"),
        (SimpleNamespace(cause=ForkedShortError()), "memory"),
        (SimpleNamespace(cause=ForkedLostError()), "departure"),
    ],
)
def test_a_loss_is_told_by_what_tune_was_told(tmp_path, monkeypatch, loss, by):
    b = bench(tmp_path, {"space": {"optimizer.lr": [1e-1]}})
    told = {}
    monkeypatch.setattr(b.sweep, "lose", lambda number, attempt, words, **how: told.update(how))
    trial = SimpleNamespace(order=make_order(number=0, attempt=1), loss=loss)
    Recorder(b).on_trial_error(1, [], trial)
    assert told == {"by": by, "place": None}


def test_a_node_on_which_no_process_can_start_is_left_out(tmp_path, monkeypatch):
    """It would be free at once, and take one trial after the other."""
    rates = [0.1 / (1 + k) for k in range(9)]
    nodes = {"bad", "good"}
    b = Bench(tmp_path, spec({"space": {"optimizer.lr": rates}}), find_nodes=lambda: nodes)
    monkeypatch.setattr(searcher, "place_actor", lambda actor, order: at(actor))
    job = b.sweep.next_job()
    order = make_order(number=job.entry.number, attempt=job.attempt)
    loss = RayActorError(actor_id="bad", error_msg="no eigensweep", actor_init_failed=True)
    Recorder(b).on_trial_error(1, [], SimpleNamespace(order=order, loss=loss))
    assert b.sweep.next_job().avoid == ("bad",)
    (notice,) = b.sweep.notices()
    assert (notice.kind, notice.node) == ("node", "bad")
    assert "no eigensweep" in notice.words


def test_where_there_is_no_other_node_who_cannot_start_fails(tmp_path, monkeypatch):
    search = {"space": {"optimizer.lr": [1e-1]}}
    b = Bench(tmp_path, spec(search), retries=1, find_nodes=lambda: {"bad"})
    monkeypatch.setattr(searcher, "place_actor", lambda actor, order: at(actor))
    for _ in range(2):
        job = b.sweep.next_job()
        order = make_order(number=job.entry.number, attempt=job.attempt)
        loss = RayActorError(actor_id="bad", error_msg="no CUDA", actor_init_failed=True)
        Recorder(b).on_trial_error(1, [], SimpleNamespace(order=order, loss=loss))
    assert b.sweep.entries[0].state == "failed"


@pytest.mark.parametrize("silent", [True, False])
def test_a_silent_node_is_gone_though_ray_counts_it(tmp_path, silent):
    search, nodes = {"space": {"optimizer.lr": [1e-1]}}, {"n0", "n1"}
    found = frozenset({"n0"} if silent else ())
    b = Bench(
        tmp_path,
        spec(search),
        retries=0,
        find_nodes=lambda: nodes,
        find_silent_nodes=lambda: found,
    )
    job = b.sweep.next_job()
    b.sweep.begin(job.entry.number, job.attempt, at("n0"))
    b.sweep.lose(job.entry.number, job.attempt, "The actor died")
    assert b.sweep.entries[0].state == ("waiting" if silent else "failed")


def test_a_node_that_goes_before_a_trial_begins_is_forgiven(tmp_path, monkeypatch):
    search, nodes = {"space": {"optimizer.lr": [1e-1]}}, {"n0", "n1"}
    b = Bench(tmp_path, spec(search), retries=0, find_nodes=lambda: nodes)
    monkeypatch.setattr(searcher, "place_actor", lambda actor, order: at(actor))
    job = b.sweep.next_job()
    order = make_order(number=job.entry.number, attempt=job.attempt)
    nodes.discard("n0")
    loss = RayActorError(actor_id="n0", error_msg="its node has died")
    Recorder(b).on_trial_error(1, [], SimpleNamespace(order=order, loss=loss))
    assert b.sweep.entries[0].state == "waiting"


@pytest.mark.parametrize(("gone", "state"), [(True, "waiting"), (False, "failed")])
def test_who_loses_its_node_has_not_failed(tmp_path, gone, state):
    nodes = {"n0", "n1", "n2"}
    search = {"space": {"optimizer.lr": [1e-1]}}
    b = Bench(tmp_path, spec(search), retries=1, find_nodes=lambda: nodes)
    for turn in range(3):
        job = b.sweep.next_job()
        if job is None:
            break
        b.sweep.begin(job.entry.number, job.attempt, at(f"n{turn}"))
        b.sweep.report(job.entry.number, 5 + turn, {"objective": 1.0}, at(f"n{turn}"))
        if gone:
            nodes.discard(f"n{turn}")
        b.sweep.lose(job.entry.number, job.attempt, "The actor died")
        nodes.add("n9")
    assert b.sweep.entries[0].state == state


def test_who_brings_its_nodes_down_fails_in_the_end(tmp_path):
    nodes = {"n0"}
    b = Bench(tmp_path, spec({"space": {"optimizer.lr": [1e-1]}}), find_nodes=lambda: nodes)
    for turn in range(MOST_SHORTAGES + 1):
        job = b.sweep.next_job()
        b.sweep.begin(job.entry.number, job.attempt, at(f"n{turn}"))
        nodes.clear()
        b.sweep.lose(job.entry.number, job.attempt, "The actor died")
        nodes.add(f"n{turn + 1}")
    assert b.sweep.entries[0].error.startswith(f"its process died {MOST_SHORTAGES + 1} times")


class TestALostEngine:
    def lose(self, sweep, by="engine", reported=None):
        job = sweep.next_job()
        number = job.entry.number
        sweep.begin(number, job.attempt)
        if reported is not None:
            sweep.report(number, reported, {"objective": 1.0}, None)
        sweep.lose(number, job.attempt, "it died", by=by)
        return job

    def test_it_counts_against_none_of_its_trials(self, tmp_path):
        b = bench(tmp_path, {"space": {"optimizer.lr": [1e-1]}}, retries=1)
        jobs = [self.lose(b.sweep, reported=5 * turn) for turn in range(1, 5)]
        assert [job.attempt for job in jobs] == [1, 2, 3, 4]
        assert not any(job.alone for job in jobs)
        assert b.sweep.entries[0].state == "waiting"

    def test_one_under_which_engines_die_trains_alone_and_can_fail(self, tmp_path):
        b = bench(tmp_path, {"space": {"optimizer.lr": [1e-1]}}, retries=1)
        assert [self.lose(b.sweep).alone for _ in range(3)] == [False, False, True]
        assert [self.lose(b.sweep, by="process").alone for _ in range(2)] == [True, True]
        assert b.sweep.entries[0].state == "failed"
        assert "its process died 2 times" in b.sweep.entries[0].error

    def test_a_lost_attempts_words_are_no_sign_of_progress(self, tmp_path):
        b = bench(tmp_path, {"space": {"optimizer.lr": [1e-1]}})
        lost = Report(0, lost="the engine that trained it gave no answer")
        assert [tell(b, lost).alone for _ in range(3)] == [False, False, True]

    def test_a_rung_report_in_between_is_one(self, tmp_path):
        b = bench(tmp_path, {"space": {"optimizer.lr": [1e-1]}})
        lost = Report(5, lost="the engine that trained it died")
        jobs = [tell(b, Report(5, {"objective": 1.0}), lost) for _ in range(3)]
        assert not any(job.alone for job in jobs)


class TestADiskThatFails:
    def test_its_trials_wait_longer_and_longer_and_none_is_to_blame(self, tmp_path):
        b, now = bench(tmp_path, {"space": {"optimizer.lr": [1e-1]}}, retries=0), [0.0]
        b.clock = lambda: now[0]
        pauses = []
        for turn in range(1, 9):
            job = b.sweep.next_job()
            assert job.attempt == turn
            b.sweep.begin(0, turn)
            b.sweep.lose(0, turn, "no space left", by="disk")
            began = now[0]
            while b.sweep.next_job() is None:
                assert not b.sweep.is_handed_out
                now[0] += 1.0
            pauses.append(now[0] - began)
            b.sweep._handed_out.discard(0)
            b.sweep._queue.append(0)
        assert pauses == [2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0]
        assert b.sweep.entries[0].state == "waiting"
        assert ["interrupt", 0, 1, "no space left"] in b.ledger.read("history")

    def test_that_it_was_the_disk_is_no_sign_of_progress(self, tmp_path):
        b, now = bench(tmp_path, {"space": {"optimizer.lr": [1e-1]}}, retries=0), [0.0]
        b.clock = lambda: now[0]
        pauses = []
        for _ in range(4):
            tell(b, Report(0, lost="no space left", lost_by="disk"))
            pauses.append(b.sweep._losses.rests[0] - now[0])
            now[0] = b.sweep._losses.rests[0]
        assert pauses == [2.0, 4.0, 8.0, 16.0]

    def test_cancelling_ends_one_that_waits(self, tmp_path):
        b = bench(tmp_path, {"space": {"optimizer.lr": [1e-1]}})
        job = b.sweep.next_job()
        b.sweep.begin(0, job.attempt)
        b.sweep.lose(0, job.attempt, "no space left", by="disk")
        b.sweep.cancel("cancelled on request")
        assert b.sweep.is_over
        assert b.sweep.entries[0].state == "cancelled"


class TestANodeWithoutMemory:
    def lose(self, b: Bench, now: list[float]) -> float:
        """Lose the trial and return how long it then waits; `now` goes on."""
        job = b.sweep.next_job()
        b.sweep.begin(0, job.attempt)
        b.sweep.lose(0, job.attempt, "no memory left", by="memory")
        began = now[0]
        while b.sweep._losses.rests and b.sweep.next_job() is None:
            now[0] += 1.0
        b.sweep._handed_out.discard(0)
        b.sweep._queue.append(0)
        return now[0] - began

    def bench(self, tmp_path: Path) -> tuple[Bench, list[float]]:
        b, now = bench(tmp_path, {"space": {"optimizer.lr": [1e-1]}}, retries=0), [0.0]
        b.clock = lambda: now[0]
        return b, now

    def test_its_trials_wait_longer_and_longer_and_it_is_said(self, tmp_path):
        b, now = self.bench(tmp_path)
        job = b.sweep.next_job()
        b.sweep.begin(0, job.attempt)
        b.sweep.lose(0, job.attempt, "no memory left", by="memory")
        (notice,) = b.sweep.notices()
        assert notice.kind == "memory"
        assert notice.words.startswith("1 trial waits, because a node had no memory left")
        assert ["interrupt", 0, 1, "no memory left"] in b.ledger.read("history")
        now[0] += 2.0
        assert b.sweep.next_job().attempt == 2
        assert b.sweep.notices() == []

    def test_a_trial_that_never_gets_on_fails_after_half_an_hour(self, tmp_path):
        b, now = self.bench(tmp_path)
        pauses = [self.lose(b, now) for _ in range(MOST_SHORTAGES)]
        assert pauses[:7] == [2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]
        assert b.sweep.entries[0].state == "waiting"
        self.lose(b, now)
        assert b.sweep.entries[0].state == "failed"
        assert "died 31 times; the last: no memory left" in b.sweep.entries[0].error

    def test_a_report_makes_it_patient_again(self, tmp_path):
        b, now = self.bench(tmp_path)
        assert [self.lose(b, now) for _ in range(3)] == [2.0, 4.0, 8.0]
        job = b.sweep.next_job()
        b.sweep.begin(0, job.attempt)
        b.sweep.report(0, 1, {}, None)
        b.sweep.lose(0, job.attempt, "no memory left", by="memory")
        assert b.sweep._losses.rests[0] == now[0] + 2.0


class TestANodeThatIsNotFit:
    def test_its_trials_go_elsewhere_and_it_is_retried_ever_later(self, tmp_path):
        b, now = bench(tmp_path, {"space": {"optimizer.lr": [1e-1]}}, retries=0), [0.0]
        b.clock, b.find_nodes = lambda: now[0], lambda: {"bad", "good"}
        job = b.sweep.next_job()
        for leave in (15.0, 30.0, 60.0):
            b.sweep.begin(0, job.attempt)
            words = "node bad: there is no corpus"
            b.sweep.lose(0, job.attempt, words, by="node", place=at("bad"))
            began, avoided = now[0], ("bad",)
            while avoided:
                job = b.sweep.next_job()
                avoided = job.avoid
                b.sweep._queue.append(0)
                now[0] += 1.0
            b.sweep._queue.clear()
            assert now[0] - began - 1.0 == leave
        reasons = [h[3] for h in b.ledger.read("history") if h[0] == "interrupt"]
        assert reasons == [f"{words} (the node is left out for a while)"] * 3

    @pytest.mark.parametrize(("nodes", "bad"), [(1, 1), (2, 2), (9, 3)])
    def test_with_no_elsewhere_or_after_a_few_nodes_all_waits(self, tmp_path, nodes, bad):
        b, now = bench(tmp_path, {"space": {"optimizer.lr": [1e-1, 1e-2]}}, retries=0), [0.0]
        there = {f"n{number}" for number in range(1, nodes + 1)}
        b.clock, b.find_nodes = lambda: now[0], lambda: there
        for turn in range(1, bad + 1):
            job = b.sweep.next_job()
            assert len(job.avoid) == turn - 1
            number = job.entry.number
            b.sweep.begin(number, job.attempt)
            b.sweep.lose(number, job.attempt, "other code", by="node", place=at(f"n{turn}"))
        assert b.sweep.next_job() is None
        assert not b.sweep.is_handed_out
        now[0] = 15.0
        assert b.sweep.next_job() is not None

    def test_a_node_whose_store_fails_is_named_and_left_out(self, tmp_path):
        b, now = bench(tmp_path, {"space": {"optimizer.lr": [1e-1]}}, retries=0), [0.0]
        b.clock, b.find_nodes = lambda: now[0], lambda: {"n1", "n2"}
        job, words = b.sweep.next_job(), "node node7: cannot read the store"
        b.sweep.begin(0, job.attempt)
        b.sweep.lose(0, job.attempt, words, by="disk", place=at("n1", "node7"))
        assert b.sweep.next_job().avoid == ("n1",), "the trial goes elsewhere at once"
        (notice,) = b.sweep.notices()
        assert (notice.kind, notice.node) == ("node", "node7")
        assert words in notice.words
        assert notice.until is not None
        now[0] = 15.0
        assert b.sweep.notices() == []

    @pytest.mark.parametrize("by", ["node", "disk"])
    def test_one_bad_node_that_answers_first_eats_no_trial(self, tmp_path, by):
        rates = [10.0**-k for k in range(24)]
        b, now = bench(tmp_path, {"space": {"optimizer.lr": rates}}, retries=0), [0.0]
        b.clock, b.find_nodes = lambda: now[0], lambda: {"bad", "good"}
        eaten = 0
        while job := b.sweep.next_job():
            now[0] += 1.0
            number = job.entry.number
            b.sweep.begin(number, job.attempt)
            if "bad" not in job.avoid:
                eaten += 1
                b.sweep.lose(number, job.attempt, "no corpus", by=by, place=at("bad", "bad"))
            else:
                b.sweep.end(number, "completed", Result(value=1.0, step=20))
        assert [entry.state for entry in b.ledger.load()] == ["completed"] * 24
        assert eaten <= 3, "each look at it lets it wait longer"

    def test_nobody_waits_for_a_node_that_was_left_out_and_is_gone(self, tmp_path):
        b, now = bench(tmp_path, {"space": {"optimizer.lr": [1e-1]}}, retries=0), [0.0]
        there = {"bad", "good"}
        b.clock, b.find_nodes = lambda: now[0], lambda: there
        job = b.sweep.next_job()
        b.sweep.begin(0, job.attempt)
        b.sweep.lose(0, job.attempt, "other code", by="node", place=at("bad", "node7"))
        there.remove("bad")
        assert b.sweep.next_job().entry.number == 0
        assert [notice.node for notice in b.sweep.notices()] == ["node7"]

    @pytest.mark.parametrize("by", ["process", "engine"])
    def test_who_lost_a_process_avoids_a_node_that_is_silent(self, tmp_path, by):
        there, now = {"dead", "good"}, [0.0]
        b = Bench(
            tmp_path,
            spec({"space": {"optimizer.lr": [1e-1]}}),
            clock=lambda: now[0],
            find_nodes=lambda: there,
            find_silent_nodes=lambda: {"dead"},
        )
        job = b.sweep.next_job()
        assert job.avoid == ()
        b.sweep.begin(0, job.attempt)
        b.sweep.lose(0, job.attempt, "it died", by=by)
        assert b.sweep.next_job().avoid == ("dead",)
        assert b.sweep.notices() == [], "Ray will say so, if it is"
        b.sweep._queue.append(0)
        there.remove("good")
        assert b.sweep.next_job().avoid == (), "there is no other one"
        b.sweep._queue.append(0)
        there.add("good")
        now[0] = SILENT_SECONDS
        assert b.sweep.next_job().avoid == ()

    def test_one_node_that_is_left_out_is_one(self, tmp_path):
        b = bench(tmp_path, {"space": {"optimizer.lr": [1e-1]}}, retries=0)
        b.find_nodes = lambda: {"n1"}
        b.sweep.begin(0, b.sweep.next_job().attempt)
        b.sweep.lose(0, 1, "its store is away", by="node", place=at("n1", "node1"))
        assert b.sweep.next_job() is None
        assert "wait, because 1 of 1 node is left out" in b.sweep.notices()[-1].words

    def test_when_everything_waits_for_nodes_that_is_said(self, tmp_path):
        b, now = bench(tmp_path, {"space": {"optimizer.lr": [1e-1]}}, retries=0), [0.0]
        b.clock, b.find_nodes = lambda: now[0], lambda: {"n1", "n2"}
        for turn in (1, 2):
            job = b.sweep.next_job()
            b.sweep.begin(0, job.attempt)
            b.sweep.lose(0, turn, "no space left", by="disk", place=at(f"n{turn}", f"node{turn}"))
        assert b.sweep.next_job() is None
        assert [notice.node for notice in b.sweep.notices()] == ["node1", "node2", None]
        assert "new trials wait, because 2 of 2 nodes are left out" in b.sweep.notices()[-1].words
        assert b.ledger.load()[0].state == "waiting"


@pytest.mark.parametrize("method", ["random", "qmc", "grid"])
def test_a_search_that_learns_nothing_has_no_trials_in_optuna(tmp_path, method):
    space = GRID if method == "grid" else {"optimizer.lr": LR}
    b = bench(tmp_path, {"method": method, "space": space, "trials": 5})
    assert len(b.run()) == (6 if method == "grid" else 5)
    assert b.study.trials() == []
    b.start()
    assert b.study.trials() == []


class TestANewDriver:
    @pytest.mark.parametrize("method", ["grid", "random", "tpe"])
    def test_it_takes_up_what_is_unfinished_with_the_next_attempt(self, tmp_path, method):
        space = {"optimizer.lr": [1e-1, 1e-2, 1e-3, 1e-4]}
        b = bench(tmp_path, {"method": method, "trials": 4, "space": space})
        b.run(most=1)
        running, waiting = b.ask(), b.ask()
        b.sweep.begin(running.entry.number, 1)
        b.start()
        jobs = [b.ask(), b.ask()]
        assert [(j.entry.number, j.attempt) for j in jobs] == [(1, 2), (2, 1)]
        assert [j.entry.params for j in jobs] == [running.entry.params, waiting.entry.params]
        assert ["interrupt", 1, 1, "its driver was lost"] in b.ledger.read("history")
        for job in jobs:
            b.sweep.begin(job.entry.number, job.attempt)
            b.sweep.end(job.entry.number, "completed", Result(value=1.0))
        b.run()
        assert len({e.config_hash for e in b.ledger.load()}) == len(b.ledger.load()) == 4

    @pytest.mark.parametrize("method", ["tpe", "cmaes", "nsga2"])
    def test_optuna_is_told_all_that_the_ledger_holds(self, tmp_path, method):
        space = {"optimizer.lr": LR}
        arms = {} if method == "cmaes" else {"arms": TestArms.ARMS}
        b = bench(tmp_path, {"method": method, "trials": 8, "space": space}, **arms)
        b.run(lambda params: math.inf if params["optimizer.lr"] > 5e-3 else 0.5, most=6)
        b.ask()
        before = [told_of(trial) for trial in b.study.trials()]
        b.start()
        assert [told_of(trial) for trial in b.study.trials()] == before
        assert {each[1] for each in before} >= {TrialState.COMPLETE, TrialState.RUNNING}

    def test_what_a_kill_kept_from_optuna_is_told_once(self, tmp_path):
        b = bench(tmp_path, {"method": "tpe", "trials": 9, "space": {"optimizer.lr": LR}})
        b.run(most=2)
        b.ask()
        b.sweep.begin(2, 1)
        b.ledger.finish(2, 1, "completed", Result(value=0.125))  # killed before Optuna heard of it
        b.study.draw()  # killed before the ledger heard of it
        for _ in range(2):
            b.start()
            assert [t.state for t in b.study.trials()] == [TrialState.COMPLETE] * 3
        assert b.in_optuna()[2].value == 0.125
        assert b.ask().entry.number == 3

    def test_it_does_not_draw_its_predecessors_points_again(self, tmp_path):
        b = bench(tmp_path, {"method": "random", "trials": 20, "space": {"optimizer.lr": LR}})
        b.run(most=5)
        b.start()
        discarded: list[Draw] = []
        b.study.discard = discarded.append
        b.run(most=5)
        assert discarded == []

    def test_it_keeps_of_ended_trials_the_best_alone(self, tmp_path):
        b = bench(tmp_path, {"method": "random", "space": {"optimizer.lr": LR}, "trials": 6})
        b.run(lambda params: params["optimizer.lr"], most=4)
        left = b.ask()
        b.start()
        best, again = b.sweep.entries.best(), b.ask()
        assert again.entry.number == left.entry.number
        whole = [entry.number for entry in b.sweep.entries.values() if entry.config]
        assert whole == sorted([best.number, left.entry.number])
        assert len(b.sweep.entries) == 5

    def test_trials_share_in_memory_what_their_parameters_may_be(self, tmp_path):
        b = bench(tmp_path, {"method": "tpe", "space": {"optimizer.lr": LR}, "trials": 6})
        b.run(most=3)
        b.start()
        b.run()
        axes = [trial.distributions for trial in b.study.trials()]
        assert len(axes) == 6
        assert all(each is axes[0] for each in axes)

    @pytest.mark.parametrize(("method", "most"), [("random", 250), ("tpe", 900)])
    @pytest.mark.quick_cases(1)
    def test_it_keeps_under_a_kilobyte_of_a_trial_that_has_ended(self, tmp_path, method, most):
        axes = {"optimizer.lr": LR, "optimizer.weight_decay": {"low": 0.0, "high": 0.5}}
        b = bench(tmp_path, {"method": method, "space": axes, "trials": 200})
        b.run(most=100)
        before = bytes_of(b.sweep)
        b.run(most=50)
        # The tables of dicts, which grow at other numbers, take about 100 bytes for each.
        assert 0 < (bytes_of(b.sweep) - before) / 50 < most

    def test_an_experiment_that_is_over_has_no_work(self, tmp_path):
        b = bench(tmp_path, {"method": "tpe", "trials": 4, "space": {"optimizer.lr": LR}})
        b.run()
        b.start()
        assert not b.sweep.prepare_next()
        assert b.sweep.close() == ("completed", None)


class TestLostProcesses:
    def one(self, tmp_path: Path, retries: int) -> Bench:
        search = {"method": "grid", "space": {"optimizer.lr": [0.1]}}
        return bench(tmp_path, search, retries=retries)

    def test_the_trial_is_handed_out_again_after_the_searchs_end(self, tmp_path):
        b = self.one(tmp_path, retries=3)
        first = b.ask()
        b.sweep.begin(0, 1)
        assert b.ends()
        b.sweep.lose(0, 1, "killed")
        assert not b.search.is_finished()
        again = b.ask()
        assert (first.attempt, again.attempt, again.entry.number) == (1, 2, 0)
        assert b.sweep.is_over is False

    def test_beyond_the_retries_it_has_failed_and_says_why(self, tmp_path):
        b = self.one(tmp_path, retries=2)
        for attempt in (1, 2, 3):
            assert isinstance(b.ask(), Job)
            b.sweep.begin(0, attempt)
            b.sweep.lose(0, attempt, "OutOfMemoryError: the node ran low on memory")
        assert b.ends()
        entry = b.ledger.load()[0]
        assert entry.state == "failed"
        assert "died 3 times" in entry.error
        assert "ran low on memory" in entry.error

    def test_a_driver_that_has_a_successor_is_told_so(self, tmp_path):
        b = self.one(tmp_path, retries=3)
        b.ask()
        b.ledger.begin(0)  # by another driver
        with pytest.raises(StaleWriteError):
            b.sweep.begin(0, 1)

    def test_cancelling_ends_what_is_open_and_hands_out_no_more(self, tmp_path):
        b = bench(tmp_path, {"method": "grid", "space": GRID})
        b.run(most=2)
        b.ask()
        b.sweep.begin(2, 1)
        b.ask()
        b.sweep.cancel("cancelled on request")
        assert b.ends()
        states = [e.state for e in b.ledger.load()]
        assert states == ["completed"] * 2 + ["cancelled"] * 2
        assert b.sweep.close() == ("cancelled", "cancelled on request")

    def test_a_limit_after_the_last_trial_changes_nothing(self, tmp_path):
        b = bench(tmp_path, {"method": "random", "space": GRID}, limits={"trials": 2})
        b.run(most=2)
        b.sweep.cancel("its 5 s are over (limits.wall_seconds)")
        assert b.sweep.is_over
        assert b.sweep.close() == ("completed", None)

    def test_the_first_reason_to_cancel_stands(self, tmp_path):
        b = self.one(tmp_path, retries=3)
        b.ask()
        b.sweep.cancel("its 5 s are over (limits.wall_seconds)")
        b.sweep.cancel("cancelled on request", "failed")
        assert b.sweep.close() == ("cancelled", "its 5 s are over (limits.wall_seconds)")

    def test_a_limit_of_time_completes_what_has_a_result(self, tmp_path):
        b = bench(tmp_path, {"method": "grid", "space": GRID})
        b.run(most=2)
        b.ask()
        b.sweep.begin(2, 1)
        b.sweep.end_early("its 5 s are over (limits.wall_seconds)")
        assert b.sweep.is_over
        assert [e.state for e in b.ledger.load()] == ["completed"] * 2 + ["cancelled"]
        assert b.sweep.notices()[-1].words == (
            "ended early: its 5 s are over (limits.wall_seconds), 1 trial cut off, 3 trials not "
            "begun. `eigensweep extend` with another limit goes on"
        )
        assert b.sweep.close() == ("completed", None)

    def test_a_limit_of_time_before_any_result_cancels(self, tmp_path):
        b = bench(tmp_path, {"method": "grid", "space": GRID})
        b.ask()
        b.sweep.end_early("its 5 s are over (limits.wall_seconds)")
        words = "its 5 s are over (limits.wall_seconds), and no trial was completed before"
        assert b.sweep.close() == ("cancelled", words)
        assert b.sweep.notices() == []

    @pytest.mark.parametrize(
        ("metric", "goal", "values"),
        [("cross_entropy", 2, [3.5, 2.5, 2.0, 1.0]), ("accuracy", 3, [1, 2.9, 3, 4])],
    )
    def test_a_goal_is_reached_by_a_completed_trial(self, tmp_path, metric, goal, values):
        search = {"method": "grid", "space": {"optimizer.lr": [0.1, 0.2, 0.3, 0.4, 0.5]}}
        fields = {"objective": {"metric": metric}, "limits": {"goal": goal}}
        b = bench(tmp_path, search, **fields)
        left = iter(values)
        while b.sweep.goal_reached is None:
            b.run(lambda params: next(left), most=1)
        assert len(b.ledger.load()) == 1 + values.index(goal)
        words = f"trial {values.index(goal)} reached {goal} (limits.goal: {goal})"
        assert b.sweep.goal_reached == words
        again = bench(tmp_path, search, **fields)  # another driver, before the end was recorded
        assert again.sweep.goal_reached == words


class TestResults:
    @pytest.mark.parametrize(("metric", "best"), [("cross_entropy", 1), ("accuracy", 2)])
    def test_the_best_trial_is_the_completed_with_the_best_value(self, tmp_path, metric, best):
        search = {"method": "grid", "space": {"optimizer.lr": [0.1, 0.2, 0.3, 0.4, 0.5]}}
        b = bench(tmp_path, search, objective={"metric": metric})
        ends = [("completed", 0.5), ("completed", 0.3), ("completed", 0.9)]
        ends += [("pruned", 0.1), ("pruned", 0.99)]
        for number, (outcome, value) in enumerate(ends):
            b.ask()
            b.sweep.begin(number, 1)
            b.sweep.end(number, outcome, Result(value=value, step=20))
        assert b.sweep.entries.best().number == best

    def test_a_begun_trial_goes_on_although_its_result_stands(self, tmp_path):
        b = bench(tmp_path, {"method": "grid", "space": {"optimizer.lr": [1e-2]}})
        name = b.ask().entry.config_hash
        b.sweep.begin(0, 1)
        b.ledger.know(name, Finished(Source("e0", 7, "run7"), Result(value=0.25, step=20)))
        b.start()
        job = b.ask()
        assert (job.entry.number, job.attempt) == (0, 2)

    def test_more_seeds_go_on_from_those_that_are_trained(self, tmp_path):
        search = {"method": "grid", "space": {"optimizer.lr": [1e-2]}}
        b = bench(tmp_path, search, replicates=3)
        seeds = [ReplicateResult(seed=s, outcome="completed", value=0.1, step=20) for s in (0, 1)]
        two = summarise(seeds)
        name = b.spec.trial(Point("scornn", {"optimizer.lr": 1e-2})).content_hash()
        b.ledger.know(name, Finished(Source("e0", 7), two))
        order = b.next_order()
        assert (order.donor, order.known) == (Source("e0", 7), two)
        assert order.config["replicates"] == 3

    def test_a_larger_budget_goes_on_from_the_largest_smaller_one(self, tmp_path):
        b = bench(tmp_path, {"method": "grid", "space": {"training.steps": [10, 20, 30]}})
        b.run(most=2)
        assert b.ask().donor == Source("e1", 1)


class TestTakenUpAgain:
    """An experiment that was over: its driver finds failed trials that were opened again."""

    @pytest.fixture
    def bench(self, tmp_path: Path) -> Bench:
        """Three trials are over, the second failed, and three more points were never tried."""
        search = {
            "method": "random",
            "trials": 6,
            "space": {"optimizer.lr": {"low": 1e-4, "high": 1e-1}},
        }
        made = Bench(tmp_path, spec(search))
        for outcome in ("completed", "failed", "completed"):
            job = made.ask()
            made.sweep.begin(job.entry.number, job.attempt)
            made.sweep.report(job.entry.number, 5, {"objective": 0.5}, None)
            result = Result(value=0.5, step=20) if outcome == "completed" else None
            made.sweep.end(job.entry.number, outcome, result, "KeyError: 'x'")
        return made

    def test_after_a_cancellation_only_they_are_trained(self, bench):
        bench.ledger.take_up(closed=True, failed=True)
        bench.start()
        job = bench.ask()
        assert (job.entry.number, job.attempt, job.entry.reached) == (1, 2, 5)
        assert bench.ask() is None
        bench.sweep.begin(1, 2)
        bench.sweep.report(1, 10, {"objective": 0.4}, None)
        bench.sweep.end(1, "completed", Result(value=0.3, step=20))
        assert bench.ends()
        assert sorted(bench.ledger.load()[1].reports) == [5, 10]
        assert bench.ledger.read("total") == 3

    def test_otherwise_the_search_goes_on_and_learns_how_they_ended(self, bench):
        bench.ledger.take_up(failed=True)
        bench.start()
        assert len(bench.run(lambda params: 0.25)) == 4
        assert bench.ends()
        values = [entry.result.value for entry in bench.ledger.load()]
        assert values == [0.5, 0.25, 0.5, 0.25, 0.25, 0.25]

    def test_its_process_goes_on_after_the_last_reported_rung(self, bench):
        bench.ledger.take_up(failed=True)
        bench.start()
        order = bench.next_order()
        assert (order.number, order.reported, order.reports) == (1, 5, ((5, 0.5),))

    def extend(self, bench: Bench, content: dict[str, Any]) -> None:
        bench.spec = ExperimentSpec.model_validate(content)
        bench.ledger.take_up()
        bench.start()

    def test_a_wider_grid_trains_only_what_is_new(self, tmp_path):
        rates = [1e-1, 1e-2]
        bench = Bench(tmp_path, spec({"space": {"optimizer.lr": rates}}))
        bench.run()
        self.extend(bench, spec({"space": {"optimizer.lr": [*rates, 1e-3, 1e-4]}}))
        assert [params["optimizer.lr"] for params in bench.run()] == [1e-3, 1e-4]
        assert bench.ends()

    @pytest.mark.parametrize("method", ["random", "tpe", "qmc", "nsga2"])
    def test_more_trials_are_drawn_beside_those_that_there_are(self, tmp_path, method):
        search = {"method": method, "trials": 8, "space": {"optimizer.lr": {"low": 0.1, "high": 1}}}
        bench = Bench(tmp_path, spec(search))
        first = [params["optimizer.lr"] for params in bench.run(lambda p: p["optimizer.lr"])]
        wider = {"optimizer.lr": {"low": 0.01, "high": 1}}
        self.extend(bench, spec({**search, "trials": 14, "space": wider}))
        more = [params["optimizer.lr"] for params in bench.run(lambda p: p["optimizer.lr"])]
        assert (len(first), len(set(more) - set(first))) == (8, 6)
        assert bench.ends()
        assert [entry.result.value for entry in bench.ledger.load()] == first + more

    def test_a_longer_budget_trains_on_and_optuna_learns_of_it(self, tmp_path):
        search = {"method": "tpe", "trials": 3, "space": {"optimizer.lr": {"low": 0.1, "high": 1}}}
        bench = Bench(tmp_path, spec(search))
        bench.run(lambda params: 0.5)
        for entry in bench.ledger.load():
            config = {**entry.config, "training": {**entry.config["training"], "steps": 40}}
            bench.ledger.reopen(entry.number, config, "a longer budget")
        longer = {"steps": 40, "evaluate_every": 5}
        self.extend(bench, spec(search, training=longer))
        order = bench.next_order()
        assert (order.config["training"]["steps"], order.rungs[-1], order.reported) == (40, 40, 20)
        bench.start()
        bench.run(lambda params: 0.25)
        assert bench.ends()
        assert [t.value for t in bench.in_optuna().values()] == [0.25] * 3


class TestWhereATrialRuns:
    HERE = at("n1", "node7")

    def test_is_recorded_with_its_beginning(self, tmp_path):
        b = bench(tmp_path, {"space": {"optimizer.lr": [1e-1]}})
        job = b.sweep.next_job()
        b.sweep.begin(0, job.attempt, self.HERE)
        assert b.ledger.load()[0].place == b.sweep.entries[0].place == self.HERE
        assert b.ledger.load()[0].reports == {}

    def test_is_what_ray_says_of_its_process(self, monkeypatch):
        def look(id):
            asked.append(id)
            return {"Address": {"NodeID": "n1"}, "Pid": 1}

        asked: list[str] = []
        monkeypatch.setattr(places, "ActorHandle", SimpleNamespace)
        monkeypatch.setattr(places.ray._private.state, "actors", look)
        monkeypatch.setattr(
            places.ray, "nodes", lambda: [{"NodeID": "n1", "NodeManagerHostname": "node7"}]
        )
        actor = SimpleNamespace(_actor_id=SimpleNamespace(hex=lambda: "a1"))
        for find in (places._find_process, places._name_host):
            find.cache_clear()
        assert [places.find_place(actor, make_order()) for _ in range(2)] == [self.HERE] * 2
        gpu = places.find_place(actor, make_order(resources={"CPU": 1, "GPU": 0.5}))
        assert gpu == replace(self.HERE, device="cuda")
        assert asked == ["a1"], "once for a process, however many trials it has"
        for find in (places._find_process, places._name_host):
            find.cache_clear()


@pytest.mark.parametrize(("scheduler", "go_on"), [("none", True), ("asha", False)])
def test_seeds_go_on_beside_a_diverged_one_without_a_scheduler(tmp_path, scheduler, go_on):
    content = spec({"method": "grid", "space": {}}, scheduler={"name": scheduler})
    order = Bench(tmp_path, content).next_order()
    assert order.seeds_go_on is go_on
    assert Order.from_dict(order.to_dict()) == order


def test_the_loss_of_a_process_is_noted_without_a_disk():
    nowhere = SimpleNamespace(
        trial_dir_name=None,
        experiment_driver_staging_path="/dev/null",
        trial_driver_staging_path="/dev/null/00003-1",
    )
    trial = OwnTrial(
        "e1", make_order(), trial_id="1", storage=nowhere, trial_dirname_creator=lambda _: "00003-1"
    )
    trial.init_local_path()
    loss = RayActorError(error_msg="its node died")
    trial.handle_error(loss)
    assert trial.loss is loss
    assert not trial.should_recover()
