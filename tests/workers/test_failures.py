"""Trials that fail one after another: on one node, or everywhere."""

from __future__ import annotations

from pathlib import Path

import pytest
from sweeps import Bench, at, spec

from eigensweep.protocol.messages import DriverOptions
from eigensweep.results.trial_result import Result
from eigensweep.workers.driver.experiment import ExperimentDriver
from eigensweep.workers.driver.nodes.failures import MOST_HERE, MOST_IN_A_ROW, Failures

BUG = "Traceback (most recent call last):\n  File 'lab.py', line 7\nKeyError: 'the bug'"


def rates(count: int) -> dict[str, list[float]]:
    return {"optimizer.lr": [1e-1 / (1 + k) for k in range(count)]}


def bench(folder: Path, trials: int, nodes: set[str]) -> tuple[Bench, list[float]]:
    now = [0.0]
    content = spec({"method": "grid", "space": rates(trials)})
    return Bench(folder, content, clock=lambda: now[0], find_nodes=lambda: nodes), now


def run_one(b: Bench, node: str, outcome: str = "failed", error: str | None = BUG) -> bool:
    """Let the next trial end on a node; return whether there was one, which may go there."""
    job = b.sweep.next_job()
    if job is None or node in job.avoid:
        if job is not None:
            b.sweep._handed_out.discard(job.entry.number)
            b.sweep._queue.appendleft(job.entry.number)
        return False
    number = job.entry.number
    b.sweep.begin(number, job.attempt, at(node))
    result = None if outcome == "failed" else Result(value=1.0, step=20)
    b.sweep.end(number, outcome, result, error if outcome == "failed" else None)
    return True


class TestANode:
    def test_that_fails_all_where_others_do_well_is_left_out(self, tmp_path):
        b, now = bench(tmp_path, 60, {"bad", "good"})
        failed = 0
        for _ in range(60):
            now[0] += 4.0
            failed += run_one(b, "bad")
            run_one(b, "good", "completed")
        states = [entry.state for entry in b.ledger.load()]
        assert states.count("failed") == failed <= MOST_HERE + 5, "one more at each new look"
        assert states.count("completed") == 60 - failed
        assert not b.sweep.has_given_up

    def test_that_fails_first_is_left_out_before_others_report(self, tmp_path):
        b, _ = bench(tmp_path, 50, {"bad", "good"})
        assert [run_one(b, "bad") for _ in range(MOST_HERE + 2)] == [True] * MOST_HERE + [False] * 2
        (notice,) = b.sweep.notices()
        assert (notice.kind, notice.node) == ("node", "bad")
        assert notice.words.endswith("The last: KeyError: 'the bug'")

    def test_is_not_blamed_for_a_bug_that_trials_meet_everywhere(self, tmp_path):
        b, _ = bench(tmp_path, 50, {"n1", "n2"})
        for _ in range(10):
            assert run_one(b, "n1")
            assert run_one(b, "n2")
        assert b.sweep.notices() == []

    def test_is_not_blamed_where_trials_come_on_in_between(self, tmp_path):
        b, _ = bench(tmp_path, 50, {"n1", "n2"})
        for turn in range(20):
            assert run_one(b, "n1", "failed" if turn % 3 else "diverged")
        assert b.sweep.notices() == []

    def test_that_is_the_only_one_is_never_left_out(self, tmp_path):
        b, _ = bench(tmp_path, 50, {"n1"})
        assert all(run_one(b, "n1") for _ in range(MOST_IN_A_ROW - 1))
        assert b.sweep.notices() == []

    def test_that_loses_its_device_again_and_again_is_left_out(self, tmp_path):
        b, _ = bench(tmp_path, 50, {"bad", "good"})
        for _ in range(MOST_HERE):
            job = b.sweep.next_job()
            b.sweep.begin(job.entry.number, job.attempt, at("bad"))
            words = "CUDA error: unspecified launch failure"
            b.sweep.lose(job.entry.number, job.attempt, words, by="device", place=at("bad"))
        assert [notice.node for notice in b.sweep.notices()] == ["bad"]


class TestASweepWhoseEveryTrialFails:
    def test_begins_no_more_after_some_tens_and_quotes_the_error(self, tmp_path):
        b, _ = bench(tmp_path, 200, {"n1", "n2"})
        count = 0
        while run_one(b, f"n{1 + count % 2}"):
            count += 1
        assert count == MOST_IN_A_ROW
        assert b.sweep.has_given_up
        assert not b.sweep.is_handed_out
        (notice,) = b.sweep.notices()
        assert notice.kind == "failures"
        assert "paused, because 30 trials in a row have failed" in notice.words
        assert notice.words.endswith(BUG)

    @pytest.mark.parametrize("trials", [4, MOST_IN_A_ROW])
    def test_ends_as_failed_where_nothing_is_left_to_begin(self, tmp_path, trials):
        b, _ = bench(tmp_path, trials, {"n1"})
        while run_one(b, "n1"):
            pass
        assert b.sweep.is_over
        state, error = b.sweep.close()
        assert (state, error.partition(";")[0]) == ("failed", f"all {trials} trials failed")

    @pytest.mark.parametrize("outcome", ["completed", "pruned", "diverged"])
    def test_is_another_one_if_a_trial_ends_well_in_between(self, tmp_path, outcome):
        b, _ = bench(tmp_path, 100, {"n1"})
        for _ in range(2):
            assert all(run_one(b, "n1") for _ in range(MOST_IN_A_ROW - 1))
            assert run_one(b, "n1", outcome)
        assert not b.sweep.has_given_up

    def test_goes_on_after_a_resume_with_the_trials_that_are_left(self, tmp_path):
        b, _ = bench(tmp_path, 40, {"n1"})
        while run_one(b, "n1"):
            pass
        b.start()
        while run_one(b, "n1", "completed"):
            pass
        states = [entry.state for entry in b.ledger.load()]
        assert states == ["failed"] * MOST_IN_A_ROW + ["completed"] * 10

    def test_is_paused_by_its_driver_as_by_a_person_once(self, tmp_path, monkeypatch):
        b, _ = bench(tmp_path, 200, {"n1"})
        options = DriverOptions(storage=str(tmp_path / "store"))
        driver = ExperimentDriver("e1", b.spec, b.ledger, options)
        driver.sweep = b.sweep
        assert not driver.must_stop()
        while run_one(b, "n1"):
            pass
        asked = []
        monkeypatch.setattr(
            b.ledger, "request_pause", lambda why: asked.append(why) or b.ledger.want("pause")
        )
        driver.why_stop.asked_at = float("-inf")
        assert driver.must_stop()
        assert driver.must_stop()
        assert driver.why_stop.is_pause
        assert asked == ["trials fail one after another"]
        assert b.ledger.read("notices")[0]["kind"] == "failures"


def test_of_a_long_traceback_the_end_is_told():
    failures = Failures()
    for _ in range(MOST_IN_A_ROW):
        failures.see_end("failed", "n1", "first line\n" + "x" * 10_000 + "\nKeyError: 'a'")
    words = failures.notice().words
    assert words.endswith("KeyError: 'a'")
    assert "first line" not in words
