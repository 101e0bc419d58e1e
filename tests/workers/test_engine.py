"""An engine without Ray: who gets a lane, what is reported, and what goes wrong for whom."""

from __future__ import annotations

import errno
import os
import random
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from engines import Bench, Lockstep
from test_attempt import drop_time, to_the_end
from toys import Line, Lines

from eigensweep.models import MODELS
from eigensweep.protocol.messages import EngineNeed
from eigensweep.store.checkpoints import Store, replicate_key
from eigensweep.store.commits.head import StaleAttemptError
from eigensweep.store.marks import cancel_mark, pause_mark
from eigensweep.store.places.durable_files import StoreAwayError, disk_failure, storage_error
from eigensweep.tasks import TASKS
from eigensweep.training import attempt
from eigensweep.training.attempt import Attempt
from eigensweep.training.devices import DeviceError
from eigensweep.training.lanes.engine import faults
from eigensweep.training.lanes.engine.engine import Engine
from eigensweep.training.lanes.engine.register import EngineError

LONG = {"steps": 200, "evaluate_every": 100}


@pytest.fixture(autouse=True)
def _toys(monkeypatch):
    monkeypatch.setitem(MODELS, "line", Line)
    monkeypatch.setitem(TASKS, "lines", Lines)
    monkeypatch.setattr(os, "fsync", lambda file: None)  # these tests commit often


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path / "engine")


def alone(order, folder):
    """Return the reports of a trial that has its process to itself."""
    return to_the_end(Attempt(replace(order, storage=str(folder)), "cpu"))


def plain(reports):
    return [replace(drop_time(r), error=None) if r.result else r for r in reports]


def let_diverge(monkeypatch, diverging):
    """Let the inputs of some seeds be infinite at a step of each: `diverging` has it by seed."""
    draw = Lines.train_batch

    def draw_or_diverge(self, step, seed):
        batch = draw(self, step, seed)
        return replace(batch, x=batch.x / 0) if diverging.get(seed) == step else batch

    monkeypatch.setattr(Lines, "train_batch", draw_or_diverge)


class TestReports:
    @pytest.mark.parametrize("replicates", [1, 3])
    @pytest.mark.quick_cases(1)
    def test_they_are_those_of_a_trial_alone(self, bench, tmp_path, replicates):
        orders = [bench.order(n, replicates=replicates, seed=10 * n) for n in range(4)]
        told = bench.to_the_end(*orders)
        for order, reports in zip(orders, told, strict=True):
            assert plain(reports) == plain(alone(order, tmp_path / "alone"))

    def test_what_was_trained_beyond_a_rung_does_not_show(self, bench, tmp_path):
        order = bench.order(0, replicates=2, training={"test_every_evaluation": True})
        bench.engine.ask(order, 0)
        for _ in range(20):
            bench.engine.turn()
        assert not bench.in_lanes()  # it has trained to its end, and nobody has asked
        assert plain(bench.to_the_end(order)[0]) == plain(alone(order, tmp_path / "alone"))

    def test_a_rung_before_the_checkpoint_is_told_as_it_was_then(self, tmp_path):
        bench = Bench(tmp_path)
        order = bench.order(0, training={"test_every_evaluation": True})
        reports = alone(order, tmp_path)
        again = alone(replace(order, attempt=2), tmp_path)
        assert plain(again) == plain(reports)

    @pytest.mark.parametrize("diverging", [{0: 17}, {1: 12}, {2: 3}, {1: 28, 2: 5}])
    def test_replicates_after_a_diverged_one_count_to_its_rung(
        self, bench, tmp_path, monkeypatch, diverging
    ):
        let_diverge(monkeypatch, diverging)
        order = bench.order(0, replicates=3)
        reports = bench.to_the_end(order)[0]
        assert reports[-1].outcome == "diverged"
        assert plain(reports) == plain(alone(order, tmp_path / "alone"))

    @pytest.mark.parametrize("diverging", [{0: 17}, {2: 3}, {1: 28, 2: 5}, {0: 7, 1: 12, 2: 3}])
    def test_the_other_seeds_go_on_where_one_has_diverged(
        self, bench, tmp_path, monkeypatch, diverging
    ):
        let_diverge(monkeypatch, diverging)
        order = replace(bench.order(0, replicates=3), seeds_go_on=True)
        reports = bench.to_the_end(order)[0]
        last, steps = reports[-1], order.rungs[-1]
        assert last.outcome == last.result.outcome == "diverged"
        assert {each.seed: (each.outcome, each.step) for each in last.result.by_replicate} == {
            seed: ("diverged", diverging[seed]) if seed in diverging else ("completed", steps)
            for seed in range(3)
        }
        whole = [each for each in last.result.by_replicate if each.outcome == "completed"]
        assert all(each.test for each in whole)
        if whole:
            mean = sum(each.value for each in whole) / len(whole)
            assert last.result.value == pytest.approx(mean)
            assert last.result.statistics["value"].n == len(whole)
            assert [r.step for r in reports] == list(order.rungs)
        assert plain(reports) == plain(alone(order, tmp_path / "alone"))

    @pytest.mark.parametrize("where", ["__init__", "train_batch"])
    def test_a_model_that_calls_exit_fails_its_own_trial(self, bench, monkeypatch, where):
        works = getattr(Lines, where)

        def leave(task, *told):
            is_bad = told[0].batch_size == 7 if where == "__init__" else told[1] == 7
            return sys.exit(3) if is_bad else works(task, *told)

        monkeypatch.setattr(Lines, where, leave)
        bad = bench.order(0, seed=7, task={"batch_size": 7})
        failed, other = bench.to_the_end(bad, bench.order(1))
        assert "has called sys.exit(3)" in failed[-1].error
        assert [failed[-1].outcome, other[-1].outcome] == ["failed", "completed"]

    @pytest.mark.parametrize("beside", [False, True])
    def test_a_step_that_fails_after_a_rung_is_told_at_the_next(
        self, tmp_path, monkeypatch, beside
    ):
        """A lane goes on while other seeds of its trial wait for one: that does not show."""
        let_diverge(monkeypatch, {0: 10})
        bench = Bench(tmp_path / "engine", lanes=2)
        neighbour, order = bench.order(7, seed=50), bench.order(0, replicates=2)
        if beside:
            bench.engine.ask(neighbour, 0)
        reports = bench.to_the_end(order)[0]
        assert [(r.step, r.outcome) for r in reports] == [(10, None), (10, "diverged")]
        assert [each.value is not None for each in reports[-1].result.by_replicate] == [True, True]
        assert plain(reports) == plain(alone(order, tmp_path / "alone"))

    def test_the_best_weights_lie_beside_the_checkpoints(self, bench):
        result = bench.to_the_end(bench.order(2))[0][-1].result
        kept = Store(bench.folder).kept.best("e1/00002/0")
        assert (kept["step"], kept["value"]) == (result.best_step, result.value)

    def test_what_a_report_tells_is_committed(self, bench):
        order = bench.order(0)
        report = bench.until_report(order)
        points = Store(bench.folder).points("e1/00000/0")
        assert points[-1].step >= report.step == 10


class TestLanes:
    def test_a_lane_goes_on_while_the_scheduler_decides(self, bench):
        order = bench.order(0)
        assert bench.until_report(order).step == 10
        for _ in range(3):
            bench.engine.turn()
        steps = [lane["step"] for lane in bench.status()["groups"][0]["occupied"]]
        assert steps[0] > 20
        assert bench.engine.ask(order, 0).step == 20  # at once, from the curve

    def test_a_trial_that_leaves_makes_room_for_one_that_waits(self, tmp_path):
        bench = Bench(tmp_path, lanes=2)
        orders = [bench.order(n) for n in range(3)]
        for order in orders:
            bench.engine.ask(order, 0)
        bench.engine.turn()
        assert bench.in_lanes() == {(0, 0), (1, 0)}
        bench.engine.leave(orders[0])
        bench.engine.turn()
        assert bench.in_lanes() == {(1, 0), (2, 0)}

    @pytest.mark.parametrize("commit", [False, True])
    def test_a_trial_that_moves_leaves_what_it_has_trained(self, tmp_path, commit):
        bench = Bench(tmp_path, lanes=1)
        order = bench.order(0, training={"steps": 10**6, "evaluate_every": 10**5})
        store, key = Store(str(tmp_path)), replicate_key("e1", 0, 0)
        for _ in range(3):
            bench.engine.ask(order, 0)
            bench.engine.turn()
        trained = bench.status()["groups"][0]["occupied"][0]["step"]
        snapshot = store.newest(key)
        committed = 0 if snapshot is None else snapshot.step
        assert trained > committed
        bench.engine.leave(order, commit=commit)
        bench.engine.turn()
        assert bench.in_lanes() == set()
        snapshot = store.newest(key)
        stored = 0 if snapshot is None else snapshot.step
        assert stored == (trained if commit else committed)

    def test_replicates_take_lanes_by_turns_when_there_are_too_few(self, tmp_path):
        bench = Bench(tmp_path / "engine", lanes=2)
        order = bench.order(0, replicates=5)
        seen = set()
        while bench.engine.ask(order, 0) is None:
            bench.engine.turn()
            seen |= bench.in_lanes()
            assert len(bench.in_lanes()) <= 2
        assert seen == {(0, seed) for seed in range(5)}
        rest = bench.to_the_end(order)[0]
        assert plain(rest) == plain(alone(order, tmp_path / "alone"))[1:]

    def test_shapes_share_the_device_by_the_lanes_they_fill(self, bench):
        many = [bench.order(n, training={"steps": 10**6}) for n in range(3)]
        one = bench.order(9, training={"steps": 10**6}, task={"batch_size": 8})
        for order in (*many, one):
            bench.engine.ask(order, 0)
        for _ in range(40):
            bench.engine.turn()
        groups = bench.status()["groups"]
        steps = {len(g["occupied"]): g["occupied"][0]["step"] for g in groups}
        assert steps == {3: 150, 1: 50}  # of 200 steps, each lane's equal share

    def test_each_experiment_has_its_own_number_of_lanes(self, bench):
        orders = [
            replace(bench.order(n, training={"steps": 10**6}), engine=EngineNeed(lanes, 9, 1, 0))
            for n, lanes in enumerate((2, 2, 2, 3, 3))
        ]
        for order in orders:
            bench.engine.ask(order, 0)
        bench.engine.turn()
        groups = bench.status()["groups"]
        assert {g["lanes"]: [lane["trial"] for lane in g["occupied"]] for g in groups} == {
            2: [0, 1],
            3: [3, 4],
        }
        assert [lane["trial"] for lane in bench.status()["waiting"]] == [2]

    def test_one_that_cannot_share_trains_alone_in_the_same_engine(self, bench, tmp_path, caplog):
        orders = [bench.order(0), bench.order(1, seed=901), bench.order(2, seed=902)]
        with caplog.at_level("INFO"):
            told = bench.to_the_end(*orders)
        for order, reports in zip(orders, told, strict=True):
            assert plain(reports) == plain(alone(order, tmp_path / "alone"))
        assert [r.getMessage() for r in caplog.records if "alone" in r.getMessage()] == [
            "trial trains alone experiment=e1 trial=1 why=it is alone"
        ]

    def test_one_lane_on_a_cpu_trains_as_a_process_alone_does(self, tmp_path):
        bench = Bench(tmp_path / "engine", lanes=1)
        orders = [bench.order(n) for n in range(2)]
        told = bench.to_the_end(*orders)
        assert not bench.groups
        assert [reports[-1].outcome for reports in told] == ["completed", "completed"]

    def test_an_engine_without_lanes_is_refused(self):
        with pytest.raises(ValueError, match="at least one lane; got lanes=0"):
            Engine("cpu", 0)


class TestCommits:
    @pytest.mark.slow
    def test_evaluations_of_many_lanes_take_a_share_of_the_time(self, bench, monkeypatch):
        commit, steps = Store.commit, []

        def commit_slowly(self, key, attempt, step, *content):
            commit(self, key, attempt, step, *content)
            bench.clock.now += 0.5
            steps.append(step)

        monkeypatch.setattr(Store, "commit", commit_slowly)
        training = {"steps": 10**6, "evaluate_every": 10**6}
        for n in range(4):
            order = bench.order(n, training=training)
            bench.engine.ask(replace(order, checkpoint_seconds=600), 0)
        while bench.clock.now < 500:
            bench.engine.turn()
        share = 0.5 * len(steps) / bench.clock.now
        assert 0.03 < share < 0.06

    def test_an_interval_that_has_passed_is_reason_enough(self, bench, monkeypatch):
        order = bench.order(0, training={"steps": 10**6, "evaluate_every": 10**6})
        bench.engine.ask(replace(order, checkpoint_seconds=20), 0)
        monkeypatch.setattr(attempt, "COMMIT_SHARE", 1e-9)
        for _ in range(10):
            bench.engine.turn()
        assert Store(bench.folder).newest("e1/00000/0").step >= 30

    def test_who_finds_no_free_lane_waits(self, bench):
        bench.engine.ask(bench.order(0, replicates=5), 0)
        bench.engine.turn()
        status = bench.status()
        assert [lane["seed"] for lane in status["groups"][0]["occupied"]] == [0, 1, 2, 3]
        assert status["waiting"] == [{"experiment": "e1", "trial": 0, "seed": 4, "step": 0}]
        assert bench.engine.occupancy()["occupied"] == 4 * Lockstep.steps


class TestEnds:
    def test_only_a_cancelled_experiment_loses_its_lanes(self, bench):
        mine = bench.order(0, training=LONG)
        other = replace(mine, experiment="e2")
        for order in (mine, other):
            bench.engine.ask(order, 0)
        bench.engine.turn()
        cancel_mark(bench.folder, "e1").touch()
        assert bench.until_report(mine).outcome == "cancelled"
        assert [lane["experiment"] for lane in bench.status()["groups"][0]["occupied"]] == ["e2"]

    def test_a_paused_experiment_commits_and_gives_its_lanes_back(self, bench):
        mine = bench.order(0, training=LONG)
        other = replace(mine, experiment="e2")
        for order in (mine, other):
            bench.engine.ask(order, 0)
        bench.engine.turn()
        mark = pause_mark(bench.folder, "e1")
        mark.touch()
        report = bench.until_report(mine)
        assert (report.lost_by, report.outcome) == ("pause", None)
        assert Store(bench.folder).newest("e1/00000/0").step == report.step > 0
        (group,) = bench.status()["groups"]
        assert [lane["experiment"] for lane in group["occupied"]] == ["e2"]
        mark.unlink()
        assert bench.until_report(replace(mine, attempt=2)).step == 100

    def test_a_trial_that_waits_for_a_lane_is_paused_where_it_is(self, tmp_path):
        bench, training = Bench(tmp_path, lanes=1), {"steps": 10**6, "evaluate_every": 10**5}
        first, second = (bench.order(number, training=training) for number in range(2))
        for order in (first, second):
            bench.engine.ask(order, 0)
        bench.engine.turn()
        pause_mark(bench.folder, "e1").touch()
        bench.clock.now += 5.0
        report = bench.until_report(second)
        assert (report.lost_by, report.step, report.outcome) == ("pause", 0, None)

    def test_a_later_attempt_goes_on_from_the_earlier_one(self, bench):
        first = bench.order(0, training=LONG)
        bench.engine.ask(first, 0)
        for _ in range(4):
            bench.engine.turn()
        second = replace(first, attempt=2)
        bench.engine.ask(second, 0)
        bench.engine.turn()
        bench.engine.ask(second, 0)
        bench.engine.turn()
        (lane,) = bench.status()["groups"][0]["occupied"]
        assert lane["step"] == 25
        with pytest.raises(StaleAttemptError):
            bench.engine.ask(first, 0)

    def test_of_several_attempts_in_a_row_the_last_one_trains(self, bench):
        first = bench.order(0, training=LONG)
        bench.engine.ask(first, 0)
        bench.engine.turn()
        for number in (2, 3, 4):
            bench.engine.ask(replace(first, attempt=number), 0)
        last = bench.until_report(replace(first, attempt=4))
        assert last.step == 100
        assert len(bench.in_lanes()) == 1

    def test_an_attempt_with_a_successor_ends_alone(self, bench):
        orders = [bench.order(n) for n in range(2)]
        for order in orders:
            bench.engine.ask(order, 0)
        bench.engine.turn()
        Attempt(replace(orders[0], attempt=2), "cpu")
        with pytest.raises(StaleAttemptError):
            bench.to_the_end(orders[0])
        assert bench.to_the_end(orders[1])[0][-1].outcome == "completed"

    def test_a_trial_that_moves_is_committed_and_dropped(self, tmp_path):
        bench = Bench(tmp_path)
        order = bench.order(0, training=LONG)
        bench.engine.ask(order, 0)
        bench.engine.turn()
        bench.engine.leave(order, commit=True)
        bench.engine.turn()
        assert not bench.in_lanes()
        assert Store(tmp_path).newest("e1/00000/0").step == 5
        assert bench.to_the_end(order)[0][-1].outcome == "completed"  # who comes back goes on

    def test_a_stopped_engine_has_committed_what_was_in_lanes(self, bench):
        order = bench.order(0, training=LONG)
        bench.engine.ask(order, 0)
        bench.engine.turn()
        bench.engine.stop()
        assert Store(bench.folder).newest("e1/00000/0").step == 5
        with pytest.raises(EngineError, match="has been stopped"):
            bench.engine.ask(order, 0)


class TestErrors:
    def test_a_bug_in_one_trial_fails_that_trial_alone(self, bench, tmp_path):
        orders = [bench.order(0), bench.order(1, model={"broken": True}), bench.order(2)]
        told = bench.to_the_end(*orders)
        assert [reports[-1].outcome for reports in told] == ["completed", "failed", "completed"]
        assert "a bug in the model" in told[1][-1].error
        assert plain(told[0]) == plain(alone(orders[0], tmp_path / "alone"))

    def test_a_config_that_no_model_takes_fails_with_its_traceback(self, bench):
        order = bench.order(0)
        order = replace(order, config={**order.config, "model": {"name": "nobody"}})
        report = bench.until_report(order)
        assert report.outcome == "failed"
        assert "there is no model 'nobody'" in report.error

    def test_a_store_that_refuses_one_trial_fails_that_trial_alone(self, bench, monkeypatch):
        commit = Store.commit

        def refuse(self, key, *content):
            if key.startswith("e1/00001"):
                raise ValueError("a metric is not finite")
            commit(self, key, *content)

        monkeypatch.setattr(Store, "commit", refuse)
        told = bench.to_the_end(bench.order(0), bench.order(1))
        assert [reports[-1].outcome for reports in told] == ["completed", "failed"]
        assert "a metric is not finite" in told[1][-1].error

    def test_a_damaged_head_sends_its_own_trial_back_alone(self, bench):
        orders = [bench.order(n, seed=n, training=LONG) for n in range(3)]
        for each in orders:
            bench.engine.ask(each, 0)
        for _ in range(6):
            bench.engine.turn()
        head = max((bench.folder / replicate_key("e1", 0, 0)).glob("head-*"))
        head.write_bytes(head.read_bytes()[:-9] + b"123456789")
        for _ in range(12):
            bench.engine.turn()
        with pytest.raises(EngineError) as error:
            bench.engine.ask(orders[0], 0)
        assert disk_failure(error.value) is error.value
        assert [reports[-1].outcome for reports in bench.to_the_end(*orders[1:])] == [
            "completed",
            "completed",
        ]

    def test_a_full_disk_is_nobodys_failure(self, bench, monkeypatch):
        def refuse(self, key, *content):
            error = OSError(errno.ENOSPC, "No space left on device")
            raise storage_error("write", Path(self.place), error) from error

        orders = [bench.order(0), bench.order(1)]
        with monkeypatch.context() as patch:
            patch.setattr(Store, "commit", refuse)
            for order in orders:
                bench.engine.ask(order, 0)
            for _ in range(3):
                bench.engine.turn()
            for order in orders:
                with pytest.raises(EngineError, match="No space left on device"):
                    bench.engine.ask(order, 0)
        told = bench.to_the_end(*(replace(order, attempt=2) for order in orders))
        assert [reports[-1].outcome for reports in told] == ["completed", "completed"]

    def test_words_of_a_gpu_in_a_trial_on_a_cpu_are_its_own(self, bench):
        def ask_for_one(group):
            if any(t.config.model.broken for t in group.trainings):
                raise RuntimeError("No CUDA GPUs are available")

        bench.fails = ask_for_one
        orders = [bench.order(0), bench.order(1, model={"broken": True})]
        told = bench.to_the_end(*orders)
        assert [reports[-1].outcome for reports in told] == ["completed", "failed"]
        assert not bench.engine.is_broken

    def test_a_lost_device_ends_the_engine_and_fails_no_trial(self, bench, monkeypatch):
        monkeypatch.setattr(bench.engine._faults, "_device", "cuda:0")

        def lose(group):
            raise RuntimeError("CUDA error: unspecified launch failure")

        bench.fails = lose
        order = bench.order(0)
        bench.engine.ask(order, 0)
        bench.engine.turn()
        for late in (order, bench.order(1)):
            with pytest.raises(EngineError, match="unspecified launch failure"):
                bench.engine.ask(late, 0)

    def test_out_of_memory_makes_the_group_smaller_and_nobody_fails(self, tmp_path, caplog):
        bench = Bench(tmp_path / "engine", lanes=8)

        def fill(group):
            if group.lanes > 2:
                raise torch.OutOfMemoryError("CUDA out of memory")

        bench.fails = fill
        orders = [bench.order(n) for n in range(5)]
        told = bench.to_the_end(*orders)
        for order, reports in zip(orders, told, strict=True):
            assert plain(reports) == plain(alone(order, tmp_path / "alone"))
        assert [group.lanes for group in bench.groups] == [8, 4, 2]
        lines = [r.getMessage() for r in caplog.records if "out of memory" in r.getMessage()]
        assert lines == [
            "out of memory, fewer lanes lanes=4 of=8",
            "out of memory, fewer lanes lanes=2 of=4",
        ]

    def test_memory_that_a_commit_lacks_is_not_its_trials_fault(self, tmp_path, monkeypatch):
        bench = Bench(tmp_path / "engine", lanes=4)
        update, short = Lockstep.update, [True]

        def run_short(group, training):
            if short and short.pop():
                raise torch.OutOfMemoryError("CUDA out of memory")
            return update(group, training)

        monkeypatch.setattr(Lockstep, "update", run_short)
        orders = [bench.order(n) for n in range(3)]
        lost = []
        while not lost:
            for order in orders:
                try:
                    bench.engine.ask(order, 0)
                except EngineError as error:
                    lost.append((order, str(error)))
            bench.engine.turn()
        ((order, words),) = lost
        assert "the memory of cpu ran out" in words
        told = bench.to_the_end(*(replace(o, attempt=2) if o is order else o for o in orders))
        assert {reports[-1].outcome for reports in told} == {"completed"}

    @pytest.mark.parametrize("times", [1, 2])
    def test_memory_that_is_short_at_an_end_leaves_no_lane_behind(
        self, tmp_path, monkeypatch, times
    ):
        bench = Bench(tmp_path / "engine", lanes=4)
        leave, short = Lockstep.leave, [True] * times

        def run_short(group, training):
            leave(group, training)
            if short and short.pop():
                raise torch.OutOfMemoryError("CUDA out of memory")

        monkeypatch.setattr(Lockstep, "leave", run_short)
        order = bench.order(0, replicates=3)
        with pytest.raises(EngineError, match="the memory of cpu ran out"):
            bench.to_the_end(order)
        bench.engine.leave(order)
        told = bench.to_the_end(replace(order, attempt=2))
        assert told[0][-1].outcome == "completed"
        bench.clock.now += 100.0
        assert not any(bench.engine.turn() for _ in range(3)), "nobody is in a lane"
        assert [group.free for group in bench.groups] == [4]

    def test_memory_that_is_short_as_a_seed_makes_way_is_its_trials(self, tmp_path, monkeypatch):
        bench = Bench(tmp_path / "engine", lanes=2)
        leave, short = Lockstep.leave, [True]

        def run_short(group, training):
            leave(group, training)
            if short and not training.is_finished:
                short.pop()
                raise torch.OutOfMemoryError("CUDA out of memory")

        monkeypatch.setattr(Lockstep, "leave", run_short)
        with pytest.raises(EngineError, match="the memory of cpu ran out"):
            bench.to_the_end(bench.order(0, replicates=3))
        assert not short
        assert not bench.engine.is_broken
        told = bench.to_the_end(bench.order(1, replicates=3))
        assert told[0][-1].outcome == "completed"

    def test_one_that_cannot_begin_takes_no_other_along(self, bench, monkeypatch):
        mine, other = bench.order(0, training=LONG), bench.order(1, training=LONG)
        bench.engine.ask(mine, 0)
        bench.engine.turn()
        begin = Store.begin

        def fail(store, key, attempt):
            if "/00001/" in key:
                raise StoreAwayError("cannot read s3://runs: no answer")
            return begin(store, key, attempt)

        monkeypatch.setattr(Store, "begin", fail)
        with pytest.raises(EngineError, match="cannot begin here") as caught:
            bench.engine.ask(other, 0)
        assert disk_failure(caught.value) is not None
        (group,) = bench.groups
        assert not group.is_closed
        assert bench.until_report(mine).step == 100

    def test_groups_are_closed_after_a_while_without_trials(self, bench):
        bench.to_the_end(bench.order(0))
        bench.engine.turn()
        (group,) = bench.groups
        assert not group.is_closed, "the next trial may come at once"
        bench.clock.now += 10.0  # about as long as a trial with a GPU of its own takes to start
        bench.engine.turn()
        assert group.is_closed
        (again,) = bench.to_the_end(bench.order(1))
        assert again[-1].outcome == "completed"

    def test_one_that_never_fits_waits_and_then_fails_with_words(self, bench):
        def fill(group):
            if any(t.config.task.batch_size == 8 for t in group.trainings):
                raise torch.OutOfMemoryError("CUDA out of memory")

        bench.fails = fill
        fits, never = bench.order(0), bench.order(1, task={"batch_size": 8})
        told = bench.to_the_end(fits, never)
        assert [reports[-1].outcome for reports in told] == ["completed", "failed"]
        assert "does not hold one lane of this size" in told[1][-1].error

    def test_a_device_that_others_fill_is_no_trials_fault(self, bench, monkeypatch):
        def fill(group):
            raise torch.OutOfMemoryError("CUDA out of memory")

        bench.fails = fill
        words = "other processes hold 70.0 of its 80.0 GB"
        monkeypatch.setattr(faults, "find_crowding", lambda device, share: words)
        with pytest.raises(DeviceError, match=words):
            bench.to_the_end(bench.order(0))
        assert not bench.engine.is_broken

    def test_the_trial_that_breaks_a_group_is_found(self, bench, tmp_path):
        def fail(group):
            if any(t.config.model.broken for t in group.trainings):
                raise ZeroDivisionError("somewhere in the program")

        bench.fails = fail
        orders = [bench.order(0), bench.order(1, model={"broken": True}), bench.order(2)]
        told = bench.to_the_end(*orders)
        assert [reports[-1].outcome for reports in told] == ["completed", "failed", "completed"]
        assert "a bug in the model" in told[1][-1].error
        for number in (0, 2):
            assert plain(told[number]) == plain(alone(orders[number], tmp_path / "alone"))
        assert [group.is_closed for group in bench.groups] == [True, False]

    def test_a_seed_that_ended_before_keeps_no_group_apart(self, tmp_path, monkeypatch):
        let_diverge(monkeypatch, {0: 3})

        def fail(group):
            if any(t.config.model.broken for t in group.trainings):
                raise ZeroDivisionError("somewhere in the program")

        bench = Bench(tmp_path / "engine", lanes=6)
        bench.fails, often = fail, {"steps": 300, "evaluate_every": 10}
        order = replace(bench.order(0, replicates=2, training=often), seeds_go_on=True)
        orders = [order, bench.order(1, seed=20, training=often)]
        broken = bench.order(2, seed=40, model={"broken": True}, training=often)
        for turn in range(25):
            for each in [*orders, broken] if turn >= 10 else orders:
                bench.engine.ask(each, 0)
            bench.engine.turn()
        together = {g["shape"]: len(g["occupied"]) for g in bench.status()["groups"]}
        assert together == {"alone": 0, "line-4-x6": 2}, "the one to blame was found long ago"

    def test_when_no_trial_alone_is_to_blame_the_shape_trains_alone(self, bench, caplog):
        def fail(group):
            raise ZeroDivisionError("somewhere in the program")

        bench.fails = fail
        orders = [bench.order(n) for n in range(3)]
        told = bench.to_the_end(*orders)
        assert [reports[-1].outcome for reports in told] == ["completed"] * 3
        assert len(bench.groups) == 1
        assert "none of its trials fails alone, so they stay alone" in caplog.text


class TestOccupancy:
    @pytest.mark.slow
    def test_lanes_hardly_idle_while_trials_come_and_go(self, tmp_path):
        """As under ASHA: two of three trials are stopped at a rung, after a while of deciding."""
        bench = Bench(tmp_path, lanes=8)
        dice, started = random.Random(1), 0
        deciding: dict[int, float] = {}
        callers: list = []
        while started < 60:  # trials are pending all the time
            while len(callers) < 10:
                training = {"steps": 160, "evaluate_every": 20}
                callers.append(bench.order(started, seed=dice.randrange(800), training=training))
                started += 1
            for order in list(callers):
                if deciding.get(order.number, 0) > bench.clock.now:
                    continue
                report = bench.engine.ask(order, 0)
                if report is None:
                    continue
                deciding[order.number] = bench.clock.now + 4
                if report.outcome or dice.random() < 2 / 3:
                    bench.engine.leave(order)
                    callers.remove(order)
            bench.engine.turn()
        lane_seconds = 8 * bench.clock.now
        assert sum(group.trained for group in bench.groups) > 0.95 * lane_seconds
        busy = bench.engine.occupancy()
        assert busy["wasted"] < 0.05
        assert busy["occupied"] + busy["idle_wanted"] + busy["idle"] == lane_seconds
        assert sum(s.seconds * s.occupied for s in bench.engine.spans()) == busy["occupied"]
