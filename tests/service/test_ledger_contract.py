"""What every ledger promises its driver: one contract, and each ledger that there is keeps it.

These are the record in SQLite and in PostgreSQL, and the ledger in a file that the tests of drivers
use. What only the record does is in test_ledger.py.
"""

from __future__ import annotations

import dataclasses
import pickle
from pathlib import Path
from typing import Any

import pytest
from file_ledger import FileLedger

from eigensweep.protocol.fair_shares import Allotment, Demand
from eigensweep.protocol.ledger import (
    Earlier,
    Finished,
    RungReport,
    StaleWriteError,
    SupersededError,
)
from eigensweep.protocol.messages import Notice, Place, Takeover
from eigensweep.results.seeds import summarise
from eigensweep.results.trial_result import (
    ParameterCount,
    ReplicateResult,
    Result,
    Source,
)
from eigensweep.search_spaces.spec import ExperimentSpec
from eigensweep.service.record.ledger import RecordLedger
from eigensweep.service.record.record import Record

CONFIG: dict[str, Any] = {"training": {"steps": 100}, "seed": 3, "replicates": 1}
THREE = CONFIG | {"replicates": 3}
RESULT = Result(outcome="completed", value=0.25, step=100, best_step=90)
TAKEOVER = Takeover(40, 0, {"optimizer.lr": 0.2}, "abd")
PLACE = Place(node="here", pid=7, device="cpu")

WRITES: dict[str, tuple[Any, ...]] = {
    "open": (1, "scornn", {}, CONFIG, "abd"),
    "begin": (0,),
    "interrupt": (0, 1, "lost"),
    "report": (0, 1, 10, {"loss": 0.5}, PLACE),
    "finish": (0, 1, "completed", RESULT),
    "reopen": (0, CONFIG, "another try"),
    "end_round": (20, {}),
    "set_total": (3,),
    "set_run": ("run7", "1"),
    "set_tracked": (),
    "set_delivered": ({0: "run7"}, "1", [0]),
    "forget_delivery": (),
    "record_phase": ("running",),
    "record_demand": (Demand(3),),
    "record_notices": ([Notice("disk", "full")],),
    "request_pause": ("no",),
    "pause": (),
    "end": ("completed",),
}
"""All that a ledger writes, with arguments."""


def post_and_claim(record: Record, spec: dict[str, Any]) -> RecordLedger:
    """Post an experiment and return the ledger of its first driver."""
    experiment, _ = record.add(ExperimentSpec.model_validate(spec))
    claim = record.claim(experiment.id)
    assert claim is not None
    return RecordLedger(record.url, experiment.id, claim.generation, patience=0)


class Subject:
    """A ledger, and what happens to its experiment from outside."""

    def __init__(self, ledger: RecordLedger | FileLedger) -> None:
        self.ledger = ledger

    def cancel(self) -> None:
        if isinstance(self.ledger, FileLedger):
            self.ledger.cancel()
        else:
            Record(self.ledger.url).cancel(self.ledger.experiment_id)

    def pause(self) -> None:
        if isinstance(self.ledger, FileLedger):
            self.ledger.want("pause")
        else:
            Record(self.ledger.url).pause(self.ledger.experiment_id)

    def stop(self, number: int) -> None:
        if isinstance(self.ledger, FileLedger):
            self.ledger.stop(number)
        else:
            Record(self.ledger.url).stop_trial(self.ledger.experiment_id, number)

    def replace_driver(self) -> None:
        if isinstance(self.ledger, FileLedger):
            self.ledger.replace_driver()
        else:
            Record(self.ledger.url).claim(self.ledger.experiment_id)


@pytest.fixture(params=["file", "sqlite", "postgresql"])
def subject(request: pytest.FixtureRequest, tmp_path: Path, spec: Any) -> Subject:
    if request.param == "file":
        return Subject(FileLedger(tmp_path / "e1.json"))
    url = request.getfixturevalue("url" if request.param == "sqlite" else "postgresql_url")
    return Subject(post_and_claim(Record(url), spec()))


@pytest.fixture
def ledger(subject: Subject) -> RecordLedger | FileLedger:
    return subject.ledger


class TestEveryLedger:
    def test_a_trial_is_told_back_as_it_was_written(self, ledger):
        ledger.open(0, "scornn", {"optimizer.lr": 0.1}, CONFIG, "abc")
        assert ledger.begin(0) == 1
        ledger.report(0, 1, 10, {"valid/loss": 0.5}, PLACE)
        ledger.report(0, 1, 20, {"valid/loss": 0.4}, PLACE)
        ledger.set_delivered({0: "run7"}, "1", [])
        (entry,) = ledger.load()
        assert (entry.number, entry.arm, entry.params) == (0, "scornn", {"optimizer.lr": 0.1})
        assert (entry.config, entry.config_hash) == (CONFIG, "abc")
        assert (entry.state, entry.attempt, entry.run_id) == ("running", 1, "run7")
        assert entry.reports == {10: {"valid/loss": 0.5}, 20: {"valid/loss": 0.4}}
        assert entry.place == PLACE

    def test_opening_a_trial_twice_changes_nothing(self, ledger):
        ledger.open(0, "scornn", {}, CONFIG, "abc")
        ledger.begin(0)
        ledger.open(0, "other", {}, CONFIG, "other")
        (entry,) = ledger.load()
        assert (entry.arm, entry.state) == ("scornn", "running")

    def test_an_interrupted_trial_waits_for_its_next_attempt(self, ledger):
        ledger.open(0, "scornn", {}, CONFIG, "abc")
        ledger.interrupt(0, ledger.begin(0), "its process was lost")
        assert ledger.load()[0].state == "waiting"
        assert ledger.begin(0) == 2

    def test_an_earlier_attempt_cannot_write(self, ledger):
        ledger.open(0, "scornn", {}, CONFIG, "abc")
        ledger.begin(0)
        ledger.begin(0)
        for write in (
            lambda: ledger.report(0, 1, 10, {}, PLACE),
            lambda: ledger.interrupt(0, 1, "late"),
            lambda: ledger.finish(0, 1, "completed", RESULT),
        ):
            with pytest.raises(StaleWriteError):
                write()
        assert ledger.load()[0].state == "running"

    def test_reports_that_come_with_an_end_are_written_once(self, ledger):
        ledger.open(0, "scornn", {}, CONFIG, "abc")
        ledger.begin(0)
        for metrics in ({"valid/loss": 0.25}, {"valid/loss": 9.0}):
            last = RungReport(100, metrics, PLACE)
            ledger.finish(0, 1, "completed", RESULT, None, last)
        (entry,) = ledger.load()
        assert (entry.state, entry.result, entry.place) == ("completed", RESULT, PLACE)
        assert entry.reports == {100: {"valid/loss": 0.25}}

    def test_the_first_end_stands(self, ledger):
        ledger.open(0, "scornn", {}, CONFIG, "abc")
        ledger.begin(0)
        ledger.finish(0, 1, "completed", RESULT)
        ledger.finish(0, 1, "completed", RESULT)
        ledger.finish(0, 1, "cancelled")
        (entry,) = ledger.load()
        assert (entry.state, entry.result) == ("completed", RESULT)
        with pytest.raises(StaleWriteError):
            ledger.begin(0)

    def test_an_invalid_point_is_never_scheduled(self, ledger):
        ledger.open(0, "scornn", {"model.negative_ones": 99}, {}, "", error="at most 6")
        (entry,) = ledger.load()
        assert (entry.state, entry.error, entry.attempt) == ("invalid", "at most 6", 0)

    def test_a_completed_result_is_found_by_hash_seeds_and_budget(self, ledger):
        ledger.open(0, "scornn", {}, CONFIG, "abc")
        ledger.begin(0)
        ledger.set_delivered({0: "run7"}, "1", [])
        assert ledger.find_finished("abc", 3, 1, 100) is None
        assert not ledger.knows("abc")
        ledger.finish(0, 1, "completed", RESULT)
        assert (ledger.knows("abc"), ledger.knows("abd")) == (True, False)
        found = ledger.find_finished("abc", 3, 1, 100)
        assert found == Finished(Source(ledger.experiment_id, 0, "run7"), RESULT)
        for other in (
            ("abd", 3, 1, 100),
            ("abc", 4, 1, 100),
            ("abc", 3, 2, 100),
            ("abc", 3, 1, 99),
        ):
            assert ledger.find_finished(*other) is None

    def test_a_result_of_other_code_than_named_is_not_found(self, ledger):
        for number, trained_by in enumerate(["aaaa,bbbb", "bbbb", None, "aaaa"]):
            ledger.open(number, "scornn", {}, {**CONFIG, "code": "aaaa"}, "abc")
            ledger.begin(number)
            assert ledger.find_finished("abc", 3, 1, 100) is None
            assert ledger.find_shorter("abc", 3, 1, 200) is None
            ledger.finish(number, 1, "completed", dataclasses.replace(RESULT, code=trained_by))
        assert ledger.find_finished("abc", 3, 1, 100).source.number == 3
        assert ledger.find_shorter("abc", 3, 1, 200).source.number == 3

    def test_a_longer_budget_finds_the_longest_shorter_one(self, ledger):
        for number, steps in enumerate([20, 60, 100]):
            config = {**CONFIG, "training": {**CONFIG["training"], "steps": steps}}
            ledger.open(number, "scornn", {}, config, "abc")
            ledger.begin(number)
            ledger.finish(number, 1, "completed" if steps < 100 else "pruned", RESULT)
        found = ledger.find_shorter("abc", 3, 1, 100)
        assert found is not None
        assert found.source.number == 1
        assert ledger.find_shorter("abc", 3, 1, 20) is None
        assert ledger.find_shorter("abd", 3, 1, 100) is None

    def test_a_result_of_more_seeds_is_cut_to_fewer(self, ledger):
        self.complete_three_seeds(ledger)
        assert ledger.find_finished("abc", 3, 4, 100) is None
        assert ledger.find_finished("abc", 4, 2, 100) is None
        found = ledger.find_finished("abc", 3, 2, 100)
        assert [each.seed for each in found.result.by_replicate] == [3, 4]
        assert (found.result.value, found.result.replicates) == (3.5, 2)
        assert found.result.parameters == ParameterCount(free=5, stored=7)

    def test_a_result_of_fewer_seeds_is_found_as_part_of_more(self, ledger):
        whole = self.complete_three_seeds(ledger)
        found = ledger.find_part("abc", 3, 100)
        assert (found.source.number, found.result) == (0, whole)
        for other in (("abd", 3, 100), ("abc", 4, 100), ("abc", 3, 99)):
            assert ledger.find_part(*other) is None

    @pytest.mark.parametrize(("others", "is_found"), [("completed", True), (None, False)])
    def test_ended_seeds_beside_a_diverged_one_are_part_of_more(self, ledger, others, is_found):
        ledger.open(0, "scornn", {}, THREE, "abc")
        seeds = [dataclasses.replace(self.seed(seed), outcome=others) for seed in (3, 5)]
        seeds.insert(1, dataclasses.replace(self.seed(4), outcome="diverged", value=None))
        ledger.finish(0, ledger.begin(0), "diverged", summarise(seeds))
        found = ledger.find_part("abc", 3, 100)
        assert (found is not None) == is_found
        assert ledger.find_finished("abc", 3, 3, 100) is None

    def test_what_mlflow_holds_of_many_trials_is_recorded_at_once(self, ledger):
        for number in range(3):
            ledger.open(number, "scornn", {}, CONFIG, f"hash {number}")
            ledger.begin(number)
        ledger.set_delivered({0: "run a", 1: "run b"}, "7", [0, 2])
        told = [(entry.run_id, entry.tracked) for entry in ledger.load()]
        assert told == [("run a", True), ("run b", False), (None, True)]

    def complete_three_seeds(self, ledger: Any) -> Result:
        ledger.open(0, "scornn", {}, THREE, "abc")
        result = summarise([self.seed(seed) for seed in (3, 4, 5)])
        ledger.finish(0, ledger.begin(0), "completed", result)
        ledger.set_delivered({}, "1", [0])
        return ledger.load()[0].result

    def seed(self, seed: int) -> ReplicateResult:
        count = ParameterCount(free=5, stored=7)
        return ReplicateResult(
            seed=seed, value=float(seed), step=100, outcome="completed", parameters=count
        )

    def reopen(self, ledger: Any) -> int:
        """Open the trial of three seeds again for two more, and return its attempt."""
        ledger.reopen(0, THREE | {"replicates": 5}, "seeds 6 to 7 of the race")
        return ledger.begin(0)

    def test_a_reopened_trial_keeps_its_result_until_a_new_one(self, ledger):
        old = self.complete_three_seeds(ledger)
        ledger.reopen(0, THREE | {"replicates": 5}, "seeds 6 to 7 of the race")
        ledger.reopen(0, THREE | {"replicates": 9}, "a call that came again")
        (entry,) = ledger.load()
        assert (entry.state, entry.result, entry.tracked) == ("waiting", old, False)
        assert entry.config["replicates"] == 5
        assert entry.earlier == Earlier("completed", THREE, "seeds 6 to 7 of the race")
        new = summarise([self.seed(seed) for seed in range(3, 8)])
        ledger.finish(0, ledger.begin(0), "completed", new)
        (entry,) = ledger.load()
        assert (entry.state, entry.attempt, entry.earlier) == ("completed", 2, None)
        assert (entry.result.replicates, entry.config["replicates"]) == (5, 5)

    @pytest.mark.parametrize("outcome", ["failed", "stalled", "cancelled"])
    def test_a_reopened_trial_that_fails_is_what_it_was(self, ledger, outcome):
        old = self.complete_three_seeds(ledger)
        attempt = self.reopen(ledger)
        ledger.finish(0, attempt, outcome, None, "words")
        (entry,) = ledger.load()
        assert (entry.state, entry.result, entry.config) == ("completed", old, THREE)
        assert (entry.earlier, entry.tracked) == (None, False)
        assert (entry.error is None) == (outcome == "cancelled")

    def test_the_end_of_an_experiment_restores_reopened_trials(self, ledger):
        old = self.complete_three_seeds(ledger)
        self.reopen(ledger)
        ledger.end("cancelled")
        (entry,) = ledger.load()
        assert (entry.state, entry.result, entry.config) == ("completed", old, THREE)

    def test_a_reopened_failure_that_fails_has_the_new_error(self, ledger):
        ledger.open(0, "scornn", {}, CONFIG, "abc")
        ledger.finish(0, ledger.begin(0), "failed", None, "first")
        ledger.reopen(0, CONFIG, "another try")
        assert ledger.load()[0].error is None
        ledger.finish(0, ledger.begin(0), "failed", None, "second")
        (entry,) = ledger.load()
        assert (entry.state, entry.error) == ("failed", "second")

    def test_the_end_of_a_round_is_written_once_and_all_of_it(self, ledger):
        for number in range(2):
            ledger.open(number, "scornn", {"optimizer.lr": 0.1}, CONFIG, "abc")
            ledger.interrupt(number, ledger.begin(number), "waits")
        assert ledger.read_round() == 0
        ledger.end_round(40, {1: TAKEOVER})
        ledger.end_round(40, {0: TAKEOVER})
        ledger.end_round(20, {0: TAKEOVER})
        untouched, replaced = ledger.load()
        assert (untouched.lineage, replaced.lineage) == ((), (TAKEOVER,))
        assert replaced.params == {"optimizer.lr": 0.1}
        assert replaced.current_params == {"optimizer.lr": 0.2}
        assert (untouched.reached, replaced.reached, ledger.read_round()) == (0, 40, 40)
        later = dataclasses.replace(TAKEOVER, step=60)
        ledger.end_round(60, {1: later})
        assert ledger.load()[1].lineage == (TAKEOVER, later)

    def test_a_trial_that_changed_is_no_result_of_its_start(self, ledger):
        for number in range(2):
            ledger.open(number, "scornn", {}, CONFIG, "abc")
        ledger.end_round(40, {0: TAKEOVER})
        ledger.begin(0)
        ledger.finish(0, 1, "completed", RESULT)
        assert ledger.find_finished("abc", 3, 1, 100) is None
        assert ledger.find_shorter("abc", 3, 1, 200) is None
        ledger.begin(1)
        ledger.finish(1, 1, "completed", RESULT)
        assert ledger.find_finished("abc", 3, 1, 100).source.number == 1
        assert ledger.find_shorter("abc", 3, 1, 200).source.number == 1

    def test_what_is_not_finite_is_stored_as_unknown(self, ledger):
        ledger.open(0, "scornn", {}, CONFIG, "abc")
        ledger.begin(0)
        ledger.report(0, 1, 10, {"loss": float("inf"), "gain": 2.0}, PLACE)
        result = Result(value=float("nan"), step=10, valid={"loss": float("nan"), "gain": 2.0})
        ledger.finish(0, 1, "diverged", result)
        (entry,) = ledger.load()
        assert entry.reports == {10: {"gain": 2.0}}
        assert entry.result == Result(value=None, step=10, valid={"gain": 2.0})

    def test_the_first_report_of_a_step_stands(self, ledger):
        ledger.open(0, "scornn", {}, CONFIG, "abc")
        ledger.begin(0)
        ledger.report(0, 1, 10, {"loss": 0.5}, PLACE)
        ledger.report(0, 1, 10, {"loss": 0.1}, None)
        (entry,) = ledger.load()
        assert (entry.reports, entry.place) == ({10: {"loss": 0.5}}, PLACE)

    def test_a_later_search_learns_from_ends_that_tell_something(self, ledger):
        outcomes = ["completed", "pruned", "diverged", "failed", "stalled", "pruned", "cancelled"]
        for number, outcome in enumerate([*outcomes, None]):
            ledger.open(number, "scornn", {}, CONFIG, f"abc{number}")
            attempt = ledger.begin(number)
            ledger.report(number, attempt, 10, {"objective": number / 4}, PLACE)
            if outcome is not None:
                ledger.finish(number, attempt, outcome, RESULT)
        found = ledger.load_earlier([ledger.experiment_id])
        assert [source.number for source, _ in found] == [0, 1, 2, 5]
        assert {source.experiment for source, _ in found} == {ledger.experiment_id}
        entries = [entry for _, entry in found]
        assert [entry.state for entry in entries] == ["completed", "pruned", "diverged", "pruned"]
        pruned = [entry.reports for entry in entries if entry.state == "pruned"]
        assert pruned == [{10: {"objective": 0.25}}, {10: {"objective": 1.25}}]

    def test_what_a_person_wants_reaches_the_driver(self, subject):
        assert subject.ledger.intent() == "run"
        subject.cancel()
        assert subject.ledger.intent() == "cancel"

    def test_the_driver_is_told_which_trials_to_stop(self, subject):
        for number in range(3):
            subject.ledger.open(number, "scornn", {}, CONFIG, f"hash {number}")
        subject.ledger.begin(1)
        assert subject.ledger.find_stops() == frozenset()
        subject.stop(1)
        subject.stop(2)
        assert subject.ledger.find_stops() == {1, 2}

    def test_the_end_of_an_experiment_closes_its_trials(self, ledger):
        ledger.open(0, "scornn", {}, CONFIG, "abc")
        ledger.begin(0)
        ledger.end("cancelled")
        ledger.end("completed")
        assert ledger.load()[0].state == "cancelled"

    def test_it_travels_to_another_process(self, ledger):
        ledger.set_run("parent", "1")
        assert pickle.loads(pickle.dumps(ledger)).experiment_run() == "parent"

    @pytest.mark.quick_cases(20)
    @pytest.mark.parametrize("name", WRITES)
    def test_no_write_of_a_driver_with_a_successor_is_taken(self, subject, name):
        ledger = subject.ledger
        ledger.open(0, "scornn", {}, CONFIG, "abc")
        ledger.begin(0)
        before = ledger.load()
        subject.replace_driver()
        with pytest.raises(SupersededError):
            getattr(ledger, name)(*WRITES[name])
        assert ledger.load() == before
        with pytest.raises(SupersededError):
            ledger.intent()

    @pytest.mark.parametrize(
        "outcome", ["pruned", "diverged", "stalled", "failed", "cancelled", "reused"]
    )
    def test_no_result_but_a_completed_one_is_found_again(self, ledger, outcome):
        ledger.open(0, "scornn", {}, CONFIG, "abc")
        ledger.begin(0)
        ledger.finish(0, 1, outcome, RESULT)
        assert ledger.find_finished("abc", 3, 1, 100) is None
        assert ledger.find_shorter("abc", 3, 1, 200) is None

    def test_a_report_of_a_trial_that_has_ended_changes_nothing(self, ledger):
        ledger.open(0, "scornn", {}, CONFIG, "abc")
        ledger.begin(0)
        ledger.finish(0, 1, "completed", RESULT)
        ledger.report(0, 1, 10, {"loss": 0.5}, None)
        assert ledger.load()[0].reports == {}

    def test_it_is_walked_through_as_it_is_loaded(self, ledger):
        for number in range(3):
            ledger.open(number, "scornn", {}, CONFIG, f"hash {number}")
        assert list(ledger.walk()) == ledger.load()
        assert [entry.number for entry in ledger.walk()] == [0, 1, 2]

    def test_what_the_sampler_noted_is_told_back(self, ledger):
        ledger.open(0, "scornn", {}, CONFIG, "abc", {"cma:n": 4})
        ledger.open(1, "scornn", {}, CONFIG, "abd")
        assert [entry.sampler_state for entry in ledger.load()] == [{"cma:n": 4}, {}]

    def test_a_cancellation_accepted_at_the_end_is_recorded(self, subject):
        subject.cancel()
        assert subject.ledger.end("completed")[0] == "cancelled"

    def test_an_end_that_nobody_has_cancelled_is_recorded_as_it_is(self, ledger):
        assert ledger.end("completed")[0] == "completed"

    def test_the_first_end_of_an_experiment_stands_and_is_told(self, ledger):
        assert ledger.resume_state().ended is None
        assert ledger.end("failed", "no luck") == ("failed", "no luck")
        assert ledger.end("completed") == ("failed", "no luck")
        assert ledger.resume_state().ended == ("failed", "no luck")

    def test_a_pause_that_nobody_wants_is_refused(self, subject):
        ledger = subject.ledger
        for number in range(2):
            ledger.open(number, "scornn", {}, CONFIG, f"hash {number}")
        ledger.begin(0)
        assert not ledger.pause()
        assert ledger.load()[0].state == "running"
        subject.pause()
        assert ledger.intent() == "pause"
        assert ledger.pause()
        assert [entry.state for entry in ledger.load()] == ["waiting", "waiting"]

    def test_a_driver_may_ask_for_a_pause_itself(self, ledger):
        ledger.open(0, "scornn", {}, CONFIG, "abc")
        ledger.begin(0)
        ledger.request_pause("trials fail one after another")
        assert ledger.intent() == "pause"
        assert ledger.pause()

    def test_a_phase_changes_nothing_of_what_a_person_wants(self, subject):
        subject.ledger.record_phase("waiting_for_room")
        assert subject.ledger.intent() == "run"
        subject.cancel()
        subject.ledger.record_phase("starting")
        assert subject.ledger.intent() == "cancel"

    def test_alone_it_may_have_all_and_unasked_nothing(self, ledger):
        assert ledger.find_allotment() == Allotment()
        ledger.record_demand(Demand(3, {"CPU": 0.25}))
        assert ledger.find_allotment() == Allotment(trials=3)

    def test_a_first_driver_resumes_nothing(self, ledger):
        found = ledger.resume_state()
        assert (found.edition, found.is_closed) == (0, False)
        assert 0 <= found.spent_seconds < 1000

    def test_what_mlflow_has_lost_is_to_be_delivered_again(self, ledger):
        for number in range(3):
            ledger.open(number, "scornn", {}, CONFIG, "abc")
        ledger.set_delivered({0: "run7", 2: "run9"}, "1", [0, 2])
        assert [entry.tracked for entry in ledger.load()] == [True, False, True]
        ledger.forget_delivery()
        assert [entry.tracked for entry in ledger.load()] == [False, False, False]
        assert ledger.load()[0].run_id == "run7"

    def test_the_run_of_the_experiment_is_known_once_it_is_set(self, ledger):
        assert ledger.experiment_run() is None
        ledger.set_run("parent", "1")
        assert ledger.experiment_run() == "parent"
