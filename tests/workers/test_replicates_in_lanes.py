"""The replicates of a trial side by side in its own process: the same reports, bit for bit."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest
from test_attempt import order, to_the_end
from toys import to_exact

from eigensweep.search_spaces.trial import TrialConfig
from eigensweep.store.checkpoints import Store
from eigensweep.store.marks import cancel_mark, pause_mark
from eigensweep.tasks.corpus import CorpusMissingError
from eigensweep.training.attempt import Attempt
from eigensweep.training.errors import is_of_the_node
from eigensweep.training.lanes.replicates import AttemptInLanes, gains_by_lanes, open_attempt

SEEDS = (0, 1, 2)


def states(folder):
    return [to_exact(Store(folder).newest(f"e1/00003/{seed}").state) for seed in SEEDS]


def curves(folder):
    points = [Store(folder).points(f"e1/00003/{seed}") for seed in SEEDS]
    return [[(p.step, p.metrics) for p in curve] for curve in points]


class TestReplicatesInLanes:
    def test_they_report_what_they_report_one_after_another(self, tmp_path):
        lanes = to_the_end(AttemptInLanes(order(tmp_path / "lanes", replicates=3), "cpu"))
        alone = to_the_end(Attempt(order(tmp_path / "alone", replicates=3), "cpu"))
        assert [(r.step, r.outcome) for r in lanes] == [(r.step, r.outcome) for r in alone]
        for one, other in zip(lanes, alone, strict=True):
            assert one.metrics == pytest.approx(other.metrics, rel=1e-4)
        for one, other in zip(curves(tmp_path / "lanes"), curves(tmp_path / "alone"), strict=True):
            assert [step for step, _ in one] == [step for step, _ in other]

    def test_another_attempt_goes_on_bit_for_bit(self, tmp_path):
        to_the_end(AttemptInLanes(order(tmp_path / "whole", replicates=3), "cpu"))
        first = AttemptInLanes(order(tmp_path / "killed", replicates=3), "cpu")
        first.advance()
        first.advance()
        second = order(tmp_path / "killed", 2, reported=10, replicates=3)
        assert len(to_the_end(AttemptInLanes(second, "cpu"))) == 2
        assert states(tmp_path / "killed") == states(tmp_path / "whole")
        assert curves(tmp_path / "killed") == curves(tmp_path / "whole")

    @pytest.mark.parametrize("kind", [Attempt, AttemptInLanes])
    def test_no_weights_are_kept_that_the_result_does_not_count(self, tmp_path, kind):
        """One seed diverges at step 10, where the others have come to step 10, or not."""
        attempt = kind(replace(order(tmp_path, replicates=3), seeds_go_on=False), "cpu")
        first, *others = attempt.replicates
        first.training.selection._is_too_high = lambda _: first.training.step > 5
        *_, last = to_the_end(attempt)
        assert (last.outcome, last.step) == ("diverged", 10)
        counted = {each.seed: each.best_step for each in last.result.by_replicate}
        assert [counted[each.training.seed] for each in others] == [5, 5]
        for seed in SEEDS:
            kept = Store(tmp_path).kept.best(f"e1/00003/{seed}")
            assert kept["step"] == counted[seed]

    def test_a_cancelled_experiment_ends_them(self, tmp_path):
        attempt = AttemptInLanes(order(tmp_path, replicates=3), "cpu")
        attempt.replicates[0].training.evaluate_every = 1  # it looks after each evaluation
        cancel_mark(tmp_path, "e1").touch()
        assert attempt.advance().outcome == "cancelled"

    def test_a_paused_experiment_has_all_of_them_committed(self, tmp_path):
        to_the_end(AttemptInLanes(order(tmp_path / "whole", replicates=3), "cpu"))
        first = AttemptInLanes(order(tmp_path / "paused", replicates=3), "cpu")
        first.advance()
        for replicate in first.replicates:
            replicate.training.evaluate_every = 1  # it looks after each evaluation
        mark = pause_mark(tmp_path / "paused", "e1")
        mark.touch()
        assert first.advance().lost_by == "pause"
        steps = [Store(tmp_path / "paused").newest(f"e1/00003/{seed}").step for seed in SEEDS]
        assert steps == [first.reached_step] * 3
        mark.unlink()
        to_the_end(AttemptInLanes(order(tmp_path / "paused", 2, reported=5, replicates=3), "cpu"))
        assert states(tmp_path / "paused") == states(tmp_path / "whole")

    def test_what_fails_around_one_is_told_as_without_lanes(self, tmp_path, monkeypatch):
        attempt = AttemptInLanes(order(tmp_path, replicates=3), "cpu")
        missing = CorpusMissingError("there is no pixels.gz")

        def miss(step, seed):
            if seed == 1:
                raise missing
            return draw(step, seed)

        for replicate in attempt.replicates:
            draw = replicate.training.task.train_batch
            monkeypatch.setattr(replicate.training.task, "train_batch", miss)
        with pytest.raises(CorpusMissingError) as raised:
            attempt.advance()
        assert raised.value is missing
        assert is_of_the_node(missing)

    @pytest.mark.parametrize("where", ["train_batch", "scores"])
    def test_a_task_that_calls_exit_is_an_error(self, tmp_path, monkeypatch, where):
        attempt = AttemptInLanes(order(tmp_path, replicates=3), "cpu")
        task = type(attempt.replicates[0].training.task)
        monkeypatch.setattr(task, where, lambda *_: sys.exit("enough"))
        with pytest.raises(RuntimeError, match=r"has called sys.exit\('enough'\)"):
            attempt.advance()

    def test_a_pause_commits_one_that_has_left_its_lane(self, tmp_path):
        attempt = AttemptInLanes(order(tmp_path, replicates=3), "cpu")
        ahead = attempt.replicates[0]
        ahead.training.run(4)  # so it comes to the rung of step 5 before the others
        for replicate in attempt.replicates:
            replicate.training.evaluate_every = 1  # it looks after each evaluation
            replicate._is_paused = lambda: ahead.training.step == 5
        assert attempt.advance().lost_by == "pause"
        steps = [replicate.training.step for replicate in attempt.replicates]
        assert steps == [5, 1, 1]
        assert [Store(tmp_path).newest(f"e1/00003/{seed}").step for seed in SEEDS] == steps


class TestWhichGain:
    def config(self, **fields):
        content = {
            "task": {"name": "copying", "delay": 80, "symbols": 10, "batch_size": 20},
            "model": {"name": "lstm", "hidden_size": 32},
            "training": {"steps": 10},
            "replicates": 3,
        }
        return TrialConfig.from_dict({**content, **fields}).resolve()

    @pytest.mark.parametrize("model", ["lstm", "cornn", "lem"])
    def test_small_networks_with_several_replicates_do(self, model):
        assert gains_by_lanes(self.config(model={"name": model, "hidden_size": 32}), "cpu")

    @pytest.mark.parametrize(
        "fields",
        [
            {"replicates": 1},
            {"model": {"name": "lstm", "hidden_size": 138}},
            {"model": {"name": "minlstm", "hidden_size": 32}},
            {"task": {"name": "copying", "delay": 2000, "symbols": 10, "batch_size": 20}},
        ],
    )
    def test_others_do_not(self, fields):
        assert not gains_by_lanes(self.config(**fields), "cpu")

    def test_a_gpu_trains_one_replicate_at_a_time_in_one_process(self):
        assert not gains_by_lanes(self.config(), "cuda")

    def test_an_order_gets_the_attempt_that_is_faster(self, tmp_path):
        several = order(tmp_path, replicates=3)
        assert type(open_attempt(several, "cpu")) is AttemptInLanes
        one = replace(order(tmp_path, replicates=1), number=4)
        assert type(open_attempt(one, "cpu")) is Attempt
