"""What a tracker sends to MLflow, with runs in memory in the place of a server."""

from __future__ import annotations

import base64
import json
import time
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import gcs
import pytest
from file_ledger import FileLedger
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import BAD_REQUEST

from eigensweep.protocol.ledger import Earlier, TrialEntry
from eigensweep.protocol.messages import Takeover
from eigensweep.results.seeds import summarise
from eigensweep.results.trial_result import ReplicateResult, Result, Source
from eigensweep.search_spaces.spec import ExperimentSpec
from eigensweep.store.checkpoints import Store
from eigensweep.store.commits.curves import CurvePoint
from eigensweep.store.commits.kept_files import BEST
from eigensweep.store.places.durable_files import StoreAwayError
from eigensweep.workers.driver.experiment import ExperimentDriver
from eigensweep.workers.tracking import tracker as tracking
from eigensweep.workers.tracking.mlflow_runs import AwayError, MlflowRefusedError, RunContent, _ask
from eigensweep.workers.tracking.subject import make_subject
from eigensweep.workers.tracking.tracker import Tracker
from eigensweep.workers.tracking.view import make_view

SPEC = {
    "name": "a name",
    "task": {"name": "copying", "delay": 5},
    "arms": [
        {"model": {"name": "scornn", "hidden_size": 8, "negative_ones": 4}},
        {"model": {"name": "lstm", "hidden_size": 6}, "space": {"model.forget_bias": [0.0, 1.0]}},
    ],
    "search": {"space": {"optimizer.name": ["adam", "rmsprop"], "optimizer.lr": [0.01, 0.001]}},
    "training": {"steps": 20},
}


class RunsInMemory:
    """The runs of an experiment as MLflow would hold them; may be away for a number of calls."""

    def __init__(self) -> None:
        self.points: dict[str, list[CurvePoint]] = {}
        self.params: dict[str, dict[str, Any]] = {}
        self.names: dict[str, str] = {}
        self.tags: dict[str, dict[str, str]] = {}
        self.files: dict[tuple[str, str], Path] = {}
        self.contents: dict[str, bytes] = {}
        """What was in each file, by its name."""
        self.texts: dict[tuple[str, str], str] = {}
        self.ended: dict[str, str] = {}
        self.sends_until_away: int | None = None
        self.forgotten: list[int] = []

    def get(self, number: Any, seed: Any, name: str, tags: Any, parent: Any = None) -> str:
        self.names[run := f"run-{number}-{seed}"] = name
        return run

    def has_lost(self, run_id: str) -> bool:
        return False

    project_id = "1"
    lacked_experiment = False
    refused: ClassVar[dict[str, str]] = {}

    def list_seeds(self, number: int) -> dict[int, str]:
        begun = (run.split("-") for run in self.names)
        return {int(s): f"run-{n}-{s}" for _, n, s in begun if n == str(number) and s != "None"}

    def forget(self, number: int) -> None:
        self.forgotten.append(number)

    def begin_again(self, run_id: str) -> None:
        self.ended[run_id] = "RUNNING"

    def is_over(self, run_id: str) -> bool:
        return self.ended.get(run_id, "RUNNING") != "RUNNING"

    def known_params(self, run_id: str) -> dict[str, str]:
        return {name: str(value) for name, value in self.params.get(run_id, {}).items()}

    def flush(self) -> dict[str, str]:
        return {}

    def flush_all(self) -> None:
        self.flush()

    def keep_view(self, view: str) -> None:
        self.view = view

    def start_time(self, run_id: str) -> int:
        return 1000

    def keep_text(self, run_id: str, text: str, name: str) -> None:
        self.tags.setdefault(run_id, {})
        self.texts[run_id, name] = text

    def keep_file(self, run_id: str, path: Path, folder: str) -> None:
        self.files[run_id, folder] = path
        self.contents[path.name] = path.read_bytes()

    def send(self, run_id: str, content: RunContent) -> None:
        if content == RunContent():
            return
        if self.sends_until_away == 0:
            self.sends_until_away = None
            raise AwayError("MLflow is away")
        if self.sends_until_away is not None:
            self.sends_until_away -= 1
        self.points.setdefault(run_id, []).extend(content.points)
        self.params.setdefault(run_id, {}).update(content.params)
        self.tags.setdefault(run_id, {}).update(content.tags)

    def end(self, run_id: str, status: str) -> None:
        self.ended[run_id] = status


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> RunsInMemory:
    made = RunsInMemory()
    monkeypatch.setattr(tracking, "Runs", lambda *_: made)
    monkeypatch.setattr(tracking, "PASS_SECONDS", 0.01)
    return made


def make_entry(**fields: Any) -> TrialEntry:
    known: dict[str, Any] = {
        "number": 4,
        "arm": "scornn",
        "params": {},
        "config": {"seed": 7, "replicates": 1},
        "config_hash": "abc",
        "state": "completed",
        "attempt": 1,
    }
    return TrialEntry(**{**known, **fields})


def make_tracker(
    folder: Path,
    better: Any = "lower",
    ledger: FileLedger | None = None,
    replicates: int = 1,
    storage: str | None = None,
) -> Tracker:
    spec = ExperimentSpec.model_validate({**SPEC, "replicates": replicates})
    subject = replace(make_subject("e1", spec, better, "anna"), tags={})
    ledger = ledger or FileLedger(folder / "ledger.json")
    return Tracker("memory", subject, ledger, storage or str(folder))


def record_trial(folder: Path, entry: TrialEntry) -> FileLedger:
    """Return a ledger that knows the trial."""
    ledger = FileLedger(folder / "ledger.json")
    ledger.open(entry.number, entry.arm, entry.params, entry.config, entry.config_hash)
    return ledger


def commit(store: Store, key: str, *steps: int) -> None:
    points = [CurvePoint(step, {"valid/loss": 1 / step}, 1000 + step) for step in steps]
    store.commit(key, 1, steps[-1], {}, points)


def leave_commits(folder: Path, number: int, *seeds: int) -> None:
    """Leave in the store that these seeds of a trial have trained, and no curve."""
    store = Store(folder)
    for seed in seeds:
        key = f"e1/{number:05}/{seed}"
        store.begin(key, 1)
        store.commit(key, 1, 1, {}, [])


class TestBestWeights:
    VALUES = ((7, 0.5), (8, 0.2), (9, 0.9), (10, None))

    def publish(self, folder: Path, better: str, **changes: Any) -> TrialEntry:
        """Track an experiment whose best trial has four replicates with weights each."""
        by_replicate = tuple(ReplicateResult(seed=seed, value=v) for seed, v in self.VALUES)
        result = Result(value=0.5, step=20, by_replicate=by_replicate, **changes)
        best = make_entry(config={"seed": 7, "replicates": 4}, result=result)
        record_trial(folder, best)
        for name in ("e1/00004", "e0/00002"):
            for seed, _ in self.VALUES:
                (folder / name / str(seed)).mkdir(parents=True)
                (folder / name / str(seed) / "best-1.pt").write_bytes(f"{name}/{seed}".encode())
        tracker = make_tracker(folder, better)
        tracker.close("completed", None, best)
        tracker.start()
        tracker.wait()
        return best

    @pytest.mark.parametrize(("better", "seed"), [("lower", 8), ("higher", 9)])
    def test_they_are_those_of_the_replicate_with_the_best_value(
        self, tmp_path, runs, better, seed
    ):
        self.publish(tmp_path, better)
        assert runs.files.keys() == {("run-None-None", "best")}
        assert runs.contents["best.pt"] == f"e1/00004/{seed}".encode()

    def test_the_parent_run_has_their_number_spread_and_interval(self, tmp_path, runs):
        self.publish(tmp_path, "lower")
        found = runs.points["run-None-None"][-1].metrics
        assert found["objective"] == 0.5
        assert found["n"] == 3  # one of the four has no value
        spread = [found[f"objective/{part}"] for part in ("sd", "low", "high")]
        assert spread == pytest.approx([0.351188, -0.339065, 1.405732], abs=1e-5)

    def test_those_of_a_reused_trial_come_from_where_it_trained(self, tmp_path, runs):
        self.publish(tmp_path, "lower", reused_from=Source("e0", 2, "r"))
        assert runs.files.keys() == {("run-None-None", "best")}
        assert runs.contents["best.pt"] == b"e0/00002/8"

    def test_those_in_an_object_store_are_fetched(self, tmp_path, runs):
        best = make_entry(result=Result(value=0.5, step=20))
        record_trial(tmp_path, best)
        with gcs.serve() as bucket:
            Store(bucket).begin("e1/00004/7", 1)
            Store(bucket).kept.write("e1/00004/7", 1, BEST, b"weights")
            tracker = make_tracker(tmp_path, storage=bucket)
            tracker.close("completed", None, best)
            tracker.start()
            tracker.wait()
        assert runs.contents == {BEST: b"weights"}
        assert not runs.files["run-None-None", "best"].exists(), "the copy was not removed"


class TestCurves:
    """Each `_pass` of the tracker's thread is one look at what is new; here the tests look."""

    RUNNING = make_entry(state="running")
    ENDED = make_entry(state="completed", result=Result(value=0.1, step=15))

    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        made = Store(tmp_path)
        made.begin("e1/00004/7", 1)
        commit(made, "e1/00004/7", 5, 10)
        return made

    @pytest.fixture
    def tracker(self, tmp_path: Path) -> Tracker:
        return make_tracker(tmp_path, ledger=record_trial(tmp_path, self.RUNNING))

    def steps(self, runs: RunsInMemory) -> list[int]:
        return [p.step for p in runs.points["run-4-None"] if "valid/loss" in p.metrics]

    def test_a_growing_curve_is_sent_once_from_the_last_look(self, tmp_path, runs, store, tracker):
        tracker.see(self.RUNNING)
        tracker._pass()
        tracker._pass()
        assert self.steps(runs) == [5, 10]
        commit(store, "e1/00004/7", 15)
        assert runs.forgotten == []
        tracker.see(self.ENDED)
        tracker._pass()
        assert runs.forgotten == [4]
        tracker._pass()
        assert self.steps(runs) == [5, 10, 15]
        assert runs.ended == {"run-4-None": "FINISHED"}

    @pytest.mark.parametrize(
        ("outcome", "status"),
        [("diverged", "FINISHED"), ("failed", "FAILED"), ("stalled", "KILLED")],
    )
    def test_a_run_ends_as_its_trial_does(self, runs, store, tracker, outcome, status):
        tracker.see(replace(self.RUNNING, state=outcome))
        tracker._pass()
        assert runs.ended == {"run-4-None": status}
        assert runs.tags["run-4-None"]["eigensweep.outcome"] == outcome

    def test_a_trial_is_tracked_only_when_all_has_arrived(self, tmp_path, runs, store, tracker):
        ledger = FileLedger(tmp_path / "ledger.json")
        tracker.see(self.RUNNING)
        tracker._pass()
        commit(store, "e1/00004/7", 15)
        tracker.see(self.ENDED)
        runs.sends_until_away = 0
        with pytest.raises(AwayError):
            tracker._pass()
        assert (ledger.load()[0].tracked, runs.ended) == (False, {})
        tracker._pass()
        assert self.steps(runs) == [5, 10, 15]
        assert (ledger.load()[0].tracked, runs.ended) == (True, {"run-4-None": "FINISHED"})

    @pytest.mark.parametrize("begins", [True, False])
    def test_a_store_that_looks_empty_is_waited_for(self, tmp_path, runs, store, tracker, begins):
        """As where a share is not mounted, or an object store has lost its bucket for a while."""
        if begins:
            tracker.see(self.RUNNING)
            tracker._pass()
        commit(store, "e1/00004/7", 15)
        (tmp_path / "e1").rename(tmp_path / "away")
        tracker.see(self.ENDED)
        with pytest.raises(StoreAwayError, match="holds nothing at e1/00004/7, where a trial has"):
            tracker._pass()
        assert runs.ended == {}
        (tmp_path / "away").rename(tmp_path / "e1")
        tracker._pass()
        assert self.steps(runs) == [5, 10, 15]
        assert runs.ended == {"run-4-None": "FINISHED"}

    def test_a_successor_sends_all_with_the_times_of_commits(self, tmp_path, runs, store, tracker):
        tracker.see(self.RUNNING)
        tracker._pass()
        successor = make_tracker(tmp_path)
        successor.see(self.RUNNING)
        successor._pass()
        first, second = runs.points["run-4-None"][:2], runs.points["run-4-None"][2:]
        assert first == second == store.points("e1/00004/7")

    def test_it_ends_when_all_is_delivered_after_an_outage(self, tmp_path, runs, store, tracker):
        runs.sends_until_away = 1
        tracker.see(self.ENDED)
        tracker.close("completed", None, self.ENDED)
        tracker.start()
        tracker.wait()
        assert runs.ended == {"run-4-None": "FINISHED", "run-None-None": "FINISHED"}
        assert runs.tags["run-None-None"]["eigensweep.best_trial"] == "4"
        assert FileLedger(tmp_path / "ledger.json").read("tracked") is True

    def test_plots_are_drawn_once_after_the_run_is_closed(
        self, tmp_path, runs, tracker, monkeypatch
    ):
        (tmp_path / "history.png").touch()
        drawn: list[str] = []

        def draw() -> list[Path]:
            drawn.append(runs.ended["run-None-None"])
            return [tmp_path / "history.png"]

        def be_away(run_id: str, path: Path, folder: str) -> None:
            raise AwayError("MLflow is away")

        keep_file = runs.keep_file
        monkeypatch.setattr(runs, "keep_file", be_away)
        tracker.close("completed", None, None, {"report.md": "# Report"}, draw)
        with pytest.raises(AwayError):
            tracker._pass()
        ledger = FileLedger(tmp_path / "ledger.json")
        assert ledger.read("tracked") is not True
        assert runs.texts.pop(("run-None-None", "report/report.md")) == "# Report"
        monkeypatch.setattr(runs, "keep_file", keep_file)
        assert tracker._pass()
        assert drawn == ["FINISHED"]
        assert list(runs.contents) == ["history.png"]
        assert ("run-None-None", "report/report.md") not in runs.texts, "it was sent again"
        assert ledger.read("tracked") is True


class TestTrouble:
    """What a driver does whose experiment is over and cannot be delivered."""

    ENDED = make_entry(state="completed", result=Result(value=0.1, step=15))

    @pytest.fixture
    def driver(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ExperimentDriver:
        """A driver that has nothing left to do but to wait."""
        monkeypatch.setattr(tracking, "LOOK_SECONDS", 0.01)
        made = object.__new__(ExperimentDriver)
        made.experiment, made.ledger = "e1", record_trial(tmp_path, self.ENDED)
        leave_commits(tmp_path, 4, 7)
        return made

    def deliver(self, driver: ExperimentDriver, folder: Path) -> Any:
        """Let the driver wait for a delivery; return what the ledger tells."""
        tracker = make_tracker(folder, ledger=driver.ledger)
        tracker.see(self.ENDED)
        tracker.close("completed", None, self.ENDED)
        tracker.start()
        driver._wait_for_delivery(tracker)
        return driver.ledger.read("tracked"), driver.ledger.read("notices")

    def test_it_ends_and_says_why_while_mlflow_is_away(self, tmp_path, runs, driver, monkeypatch):
        monkeypatch.setattr(tracking, "AWAY_SECONDS", 0.2)
        monkeypatch.setattr(runs, "send", fail_with(AwayError("no route to it")))
        tracked, (notice,) = self.deliver(driver, tmp_path)
        assert tracked is not True
        assert notice["kind"] == "delivery"
        assert notice["words"].startswith("not delivered yet: MLflow does not answer since ")
        assert notice["words"].endswith(" UTC: no route to it")

    def test_it_waits_for_an_mlflow_that_is_away_for_a_moment(self, tmp_path, runs, driver):
        runs.sends_until_away = 0
        assert self.deliver(driver, tmp_path) == (True, [])

    def test_what_mlflow_refuses_is_told(self, tmp_path, runs, driver, monkeypatch):
        monkeypatch.setattr(runs, "send", fail_with(MlflowRefusedError("the run was deleted")))
        tracked, (notice,) = self.deliver(driver, tmp_path)
        assert tracked is True
        assert notice["words"].startswith("MLflow refuses ")
        assert notice["words"].endswith("the run was deleted")

    def test_it_ends_in_peace_when_another_driver_delivers(self, tmp_path, runs, driver):
        driver.ledger.generation -= 1
        tracked, notices = self.deliver(driver, tmp_path)
        assert (tracked is not True, notices) == (True, [])


def fail_with(error: Exception) -> Any:
    def fail(*_: Any) -> Any:
        raise error

    return fail


def refuse(words: str) -> MlflowException:
    return MlflowException(words, BAD_REQUEST)


class NoCredentialsError(Exception):
    """As the library of S3 names it."""


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (PermissionError(13, "Permission denied", "/etc/x"), MlflowRefusedError),
        (NotADirectoryError(20, "Not a directory"), MlflowRefusedError),
        (NoCredentialsError("Unable to locate credentials"), MlflowRefusedError),
        (ConnectionResetError(104, "reset"), AwayError),
        (OSError(28, "No space left on device"), AwayError),
        (TimeoutError("it takes long"), AwayError),
        (refuse("(sqlite3.DatabaseError) file is not a database"), AwayError),
        (refuse('(psycopg.errors.UndefinedTable) relation "runs" is gone'), AwayError),
        (refuse("(sqlite3.IntegrityError) UNIQUE constraint failed"), MlflowRefusedError),
        (refuse("a (sqlite3) value"), MlflowRefusedError),
        (refuse("API request to endpoint /a failed with error code 400 != 200. A page"), AwayError),
        (ZeroDivisionError("a bug"), ZeroDivisionError),
    ],
)
def test_only_what_passes_by_itself_is_tried_again(error, kind):
    with pytest.raises(kind):
        _ask(fail_with(error))


def test_a_refusal_that_passes_is_told_once_and_forgotten(tmp_path, runs, caplog):
    tracker = make_tracker(tmp_path)
    runs.flush_all = fail_with(MlflowRefusedError("a word"))
    for _ in range(3):
        assert not tracker._pass()
    assert caplog.text.count("MLflow refuses the experiment: a word") == 1
    assert "MLflow refuses the experiment" in tracker.find_refusal().words
    del runs.flush_all
    assert not tracker._pass()
    assert tracker.find_refusal() is None


class TestRunsThatAPersonDeletes:
    """MLflow refuses what is sent to them."""

    def start(self, folder: Path) -> tuple[FileLedger, Tracker, TrialEntry]:
        """Return a tracker that has delivered a trial which trains."""
        entry = make_entry(state="running")
        ledger = record_trial(folder, entry)
        leave_commits(folder, entry.number, 7)
        tracker = make_tracker(folder, ledger=ledger)
        tracker.see(entry)
        tracker._pass()
        return ledger, tracker, entry

    def test_all_is_begun_anew_once_for_a_run(self, tmp_path, runs, monkeypatch):
        tracker = self.start(tmp_path)[1]
        monkeypatch.setattr(runs, "flush", lambda: {"run-4-None": "deleted"})
        monkeypatch.setattr(runs, "has_lost", lambda run: run == "run-4-None")
        with pytest.raises(AwayError, match="has lost"):
            tracker._pass()
        assert tracker._runs is None
        tracker._pass()
        assert "trial 4: deleted" in tracker.find_refusal().words

    def test_a_trial_that_trains_on_is_not_given_up(self, tmp_path, runs, monkeypatch, caplog):
        ledger, tracker, entry = self.start(tmp_path)
        with monkeypatch.context() as patch:
            patch.setattr(runs, "flush", lambda: {"run-4-None": "a word"})
            for _ in range(3):
                tracker._pass()
        assert caplog.text.count("MLflow refuses trial 4: a word") == 1
        assert not ledger.load()[0].tracked
        tracker.see(replace(entry, state="completed", result=Result(value=0.1, step=1)))
        tracker._pass()
        assert ledger.load()[0].tracked
        assert runs.ended["run-4-None"] == "FINISHED"


def test_mlflow_is_away_since_it_took_something_last(tmp_path, runs, monkeypatch):
    """A long pass whose last batch fails says nothing of the time of its first one."""
    tracker = TestManyTrials().make(tmp_path, 3)[1]
    monkeypatch.setattr(tracking, "AT_ONCE", 1)
    took = []

    def flush() -> dict[str, str]:
        if len(took) == 2:
            raise AwayError("no route to it")
        took.append(time.monotonic())
        return {}

    tracker._parent, runs.flush = "run-None-None", flush
    with pytest.raises(AwayError):
        tracker._pass()
    assert tracker._answered >= took[1]


class TestManyTrials:
    def make(self, folder: Path, count: int) -> tuple[FileLedger, Tracker]:
        """Return a tracker that has seen so many ended trials."""
        result = Result(value=0.1, step=1)
        entries = [make_entry(number=n, state="completed", result=result) for n in range(count)]
        for entry in entries:
            ledger = record_trial(folder, entry)
            leave_commits(folder, entry.number, 7)
        tracker = make_tracker(folder, ledger=ledger)
        for entry in entries:
            tracker.see(entry)
        return ledger, tracker

    def test_what_a_batch_refuses_is_given_up_alone(self, tmp_path, runs, caplog):
        runs.flush = lambda: {"run-1-None": "a word"}
        tracker = self.make(tmp_path, 3)[1]
        tracker._parent = "run-None-None"
        tracker._pass()
        assert "MLflow refuses trial 1: a word" in caplog.text
        assert "trial 0" not in caplog.text
        told = FileLedger(tmp_path / "ledger.json").load()
        assert [each.run_id for each in told] == ["run-0-None", None, "run-2-None"]
        assert all(each.tracked for each in told)

    def test_none_is_recorded_before_its_batch_has_arrived(self, tmp_path, runs):
        ledger, tracker = self.make(tmp_path, 3)
        tracker._parent, flush = "run-None-None", runs.flush

        def fail() -> None:
            raise AwayError("MLflow is away")

        runs.flush = fail
        with pytest.raises(AwayError):
            tracker._pass()
        assert not any(entry.tracked or entry.run_id for entry in ledger.load())
        runs.flush = flush
        tracker._pass()
        assert all(entry.tracked and entry.run_id for entry in ledger.load())

    def test_curves_of_many_trials_come_in_turns(self, tmp_path, runs, monkeypatch):
        monkeypatch.setattr(tracking, "MOST_LOOKS", 1)
        entries = [make_entry(number=n, state="running") for n in range(3)]
        store = Store(tmp_path)
        for entry in entries:
            ledger = record_trial(tmp_path, entry)
            store.begin(f"e1/0000{entry.number}/7", 1)
        tracker = make_tracker(tmp_path, ledger=ledger)
        for entry in entries:
            tracker.see(entry)
        tracker._pass()
        for number in range(3):
            commit(store, f"e1/0000{number}/7", 5)
        for arrived in (1, 2, 3):
            tracker._pass()
            curves = [runs.points[f"run-{number}-None"] for number in range(3)]
            assert len([curve for curve in curves if curve]) == arrived
        for entry in entries:  # what has changed waits for no turn
            tracker.see(replace(entry, state="completed"))
        tracker._pass()
        assert all(entry.tracked for entry in ledger.load())


class TestFirstClick:
    """What a person sees who opens MLflow's pages by a link of ours."""

    def test_a_run_is_named_after_its_swept_settings(self, tmp_path, runs):
        params = {"optimizer.name": "adam", "optimizer.lr": 0.01, "model.forget_bias": 1.0}
        entry = make_entry(arm="lstm", params=params, result=Result(value=0.1, baseline=0.4))
        tracker = make_tracker(tmp_path, ledger=record_trial(tmp_path, entry))
        tracker.see(entry)
        tracker._pass()
        assert runs.names["run-4-None"] == "4 lstm optimizer=adam lr=0.01 forget_bias=1"
        own = {"model.name": "lstm", "model.hidden_size": 6}
        assert runs.params["run-4-None"] == own | params
        constants = runs.params["run-None-None"]
        assert (constants["task.delay"], constants["training.steps"]) == (5, 20)
        (end,) = runs.points["run-4-None"]
        assert (end.metrics["baseline_ratio"], end.metrics["n"]) == (0.25, 1)

    def test_the_size_that_follows_from_a_budget_is_a_parameter(self, tmp_path, runs):
        params = {"model.parameters": 900}
        config = {"seed": 7, "replicates": 1, "model": {"name": "lstm", "hidden_size": 11}}
        entry = make_entry(arm="scornn", params=params, config=config, result=Result(value=0.1))
        tracker = make_tracker(tmp_path, ledger=record_trial(tmp_path, entry))
        tracker.see(entry)
        tracker._pass()
        assert runs.params["run-4-None"]["model.hidden_size"] == 11

    def test_the_user_of_a_run_is_who_posted_it(self):
        spec = ExperimentSpec.model_validate(SPEC)
        assert make_subject("e1", spec, "lower", "anna").tags["mlflow.user"] == "anna"

    def test_every_run_has_the_tags_of_the_spec(self):
        spec = ExperimentSpec.model_validate({**SPEC, "tags": {"paper": "rebuttal"}})
        tags = make_subject("e1", spec, "lower", "anna").tags
        assert (tags["paper"], tags["mlflow.user"]) == ("rebuttal", "anna")

    def test_the_page_shows_the_trials_alone_with_what_varies_first(self, tmp_path, runs):
        make_tracker(tmp_path)._pass()
        view = json.loads(runs.view)
        assert (
            "`eigensweep.experiment` = 'e1' AND tags.`eigensweep.kind` = 'trial'"
            in (view["searchFilter"])
        )
        assert view["selectedColumns"][:5] == [
            "params.`optimizer.name`",
            "params.`optimizer.lr`",
            "params.`model.forget_bias`",
            "metrics.`objective`",
            "metrics.`baseline_ratio`",
        ]
        curve, _, shared, lstm = view["compareRunCharts"]
        assert curve["lineSmoothness"] == 0  # else MLflow smooths, and the lines end elsewhere
        assert (curve["metricKey"], curve["scaleType"]) == ("valid/cross_entropy", "log")
        assert shared["selectedParams"] == ["optimizer.name", "optimizer.lr"]
        assert "model.forget_bias" in lstm["selectedParams"]
        (folder := tmp_path / "wide").mkdir()
        wide = {f"task.{'x' * 200}{n}": [1, 2] for n in range(20)}
        subject = replace(make_tracker(folder)._subject, axes={"scornn": tuple(wide)})
        packed = make_view(subject)
        assert len(packed) < 5000
        text = zlib.decompress(base64.b64decode(packed.removeprefix("deflate;")))
        assert json.loads(text)["orderByKey"] == "metrics.`objective`"

    def test_a_trial_of_a_population_has_its_lineage_as_a_tag(self, tmp_path, runs):
        lineage = (Takeover(10, 2, {"lr": 0.1}, "a"), Takeover(20, 0, {"lr": 0.2}, "b"))
        entry = make_entry(result=Result(value=0.5, step=30), lineage=lineage)
        tracker = make_tracker(tmp_path, ledger=record_trial(tmp_path, entry))
        leave_commits(tmp_path, 4, 7)
        tracker.see(entry)
        tracker._pass()
        words = "step 10 from trial 2, step 20 from trial 0"
        assert runs.tags["run-4-None"]["eigensweep.lineage"] == words
        kept = json.loads(runs.texts["run-4-None", "lineage.json"])
        assert [(each["step"], each["source"]) for each in kept] == [(10, 2), (20, 0)]

    def test_a_trial_of_replicates_has_the_curve_of_their_means(self, tmp_path, runs):
        store = Store(tmp_path)
        entry = make_entry(state="running", config={"seed": 7, "replicates": 2})
        tracker = make_tracker(tmp_path, ledger=record_trial(tmp_path, entry), replicates=2)
        for seed in (7, 8):
            store.begin(f"e1/00004/{seed}", 1)
        for key, steps in (("e1/00004/7", (5, 10)), ("e1/00004/8", (5,))):
            points = [CurvePoint(s, {"valid/loss": float(key[-1])}, 1000 + s) for s in steps]
            store.commit(key, 1, steps[-1], {}, points)
        tracker.see(entry)
        tracker._pass()
        assert runs.points["run-4-None"] == [CurvePoint(5, {"valid/loss": 7.5}, 1005)]
        store.commit("e1/00004/8", 1, 10, {}, [CurvePoint(10, {"valid/loss": 9.0}, 1200)])
        runs.sends_until_away = 1  # what the trial's own run missed comes later
        with pytest.raises(AwayError):
            tracker._pass()
        tracker._pass()
        assert runs.points["run-4-None"][1:] == [CurvePoint(10, {"valid/loss": 8.0}, 1200)]
        assert [point.step for point in runs.points["run-4-8"]] == [5, 10]


class TestRace:
    """A trial of two seeds whose race adds a third."""

    NARROW: ClassVar[dict[str, Any]] = {"seed": 7, "replicates": 2}
    REASON = "seed 9 of the race"

    def result(self, seeds: int, **changes: Any) -> Result:
        each = [ReplicateResult(seed=s, value=float(s), step=20) for s in range(7, 7 + seeds)]
        return replace(summarise(each), outcome="completed", **changes)

    @pytest.fixture
    def ended(self, tmp_path: Path, runs: RunsInMemory) -> TrialEntry:
        """Return the trial as it ended with two seeds, delivered."""
        store = Store(tmp_path)
        for seed in (7, 8):
            store.begin(f"e1/00004/{seed}", 1)
            commit(store, f"e1/00004/{seed}", 10, 20)
        leave_commits(tmp_path, 4, 9, 10)
        reports = {20: {"objective": 7.5}}
        entry = make_entry(config=self.NARROW, result=self.result(2), reports=reports)
        self.tracker = make_tracker(tmp_path, ledger=record_trial(tmp_path, entry), replicates=2)
        self.see(entry)
        return entry

    def see(self, entry: TrialEntry) -> None:
        self.tracker.see(entry)
        self.tracker._pass()

    def newest(self, runs: RunsInMemory) -> dict[str, float]:
        """Return each metric of the trial's run as MLflow shows it."""
        points = sorted(runs.points["run-4-None"], key=lambda p: (p.step, p.timestamp_ms))
        return {name: value for point in points for name, value in point.metrics.items()}

    def race(self, entry: TrialEntry) -> TrialEntry:
        return entry.reopened({**self.NARROW, "replicates": 3}, self.REASON)

    def test_numbers_of_more_seeds_replace_those_of_fewer(self, tmp_path, runs, ended):
        curve = [p for p in runs.points["run-4-None"] if "valid/loss" in p.metrics]
        again = self.race(ended)
        self.see(again)
        assert runs.ended["run-4-None"] == "RUNNING"
        assert FileLedger(tmp_path / "ledger.json").load()[0].tracked
        self.see(again.ended("completed", self.result(3), None))
        assert (self.newest(runs)["objective"], self.newest(runs)["n"]) == (8.0, 3)
        assert runs.ended["run-4-None"] == runs.ended["run-4-9"] == "FINISHED"
        seen = [p for p in runs.points["run-4-None"] if "valid/loss" in p.metrics]
        assert {(p.step, p.timestamp_ms) for p in seen} == {(p.step, p.timestamp_ms) for p in curve}

    def test_an_end_that_no_pass_has_seen_loses_no_seed(self, runs, ended):
        """The last trial of a round ends and is opened again at once."""
        again = self.race(ended)
        self.see(again)
        self.tracker.see(third := again.ended("completed", self.result(3), None))
        fourth = third.reopened({**self.NARROW, "replicates": 4}, self.REASON)
        self.see(fourth)
        self.see(fourth.ended("completed", self.result(4), None))
        assert runs.ended["run-4-9"] == runs.ended["run-4-10"] == "FINISHED"
        assert self.newest(runs)["n"] == 4

    def test_a_result_that_waits_is_not_added_again(self, tmp_path, runs, monkeypatch):
        """While MLflow is away for a night, each pass tries the same trials."""
        entry = make_entry(result=Result(value=0.5, outcome="completed", step=20))
        tracker = make_tracker(tmp_path, ledger=record_trial(tmp_path, entry))
        leave_commits(tmp_path, 4, 7)
        tracker._pass()
        monkeypatch.setattr(runs, "flush", fail_with(AwayError("no route to it")))
        tracker.see(entry)
        for _ in range(5):
            with pytest.raises(AwayError):
                tracker._pass()
        assert sum("objective" in point.metrics for point in runs.points["run-4-None"]) == 1

    def test_a_divergence_at_an_early_step_is_shown_all_the_same(self, runs, ended):
        wide = self.result(3, step=3, value=5.0)
        self.see(self.race(ended).ended("diverged", wide, None))
        assert self.newest(runs)["objective"] == 5.0
        assert runs.tags["run-4-None"]["eigensweep.outcome"] == "diverged"

    @pytest.mark.parametrize(("outcome", "status"), [("failed", "FAILED"), ("cancelled", "KILLED")])
    def test_what_came_to_nothing_leaves_the_numbers_of_before(self, runs, ended, outcome, status):
        again = self.race(ended)
        self.see(again)
        self.see(again.ended(outcome, None, "words"))
        assert (self.newest(runs)["objective"], self.newest(runs)["n"]) == (7.5, 2)
        assert (runs.ended["run-4-None"], runs.ended["run-4-9"]) == ("FINISHED", status)

    def test_a_seed_that_had_failed_runs_when_it_is_tried_again(self, tmp_path, runs, ended):
        again = self.race(ended)
        self.see(again)
        self.see(again.ended("failed", None, "words"))
        self.tracker = make_tracker(tmp_path, replicates=2)
        self.see(replace(again, state="running", attempt=2))
        assert runs.ended["run-4-None"] == runs.ended["run-4-9"] == "RUNNING"
        assert runs.ended["run-4-7"] == runs.ended["run-4-8"] == "FINISHED"

    def test_an_end_that_is_delivered_late_does_not_count_as_all(self, tmp_path, runs, ended):
        ledger = FileLedger(tmp_path / "ledger.json")
        with ledger._change() as content:
            content["trials"]["4"]["tracked"] = False
        again = self.race(ended)
        deliver = self.tracker._trial

        def meanwhile(*arguments: Any) -> None:
            deliver(*arguments)
            self.tracker.see(again)

        self.tracker._trial = meanwhile  # type: ignore[method-assign]
        self.see(ended)
        assert not ledger.load()[0].tracked


def test_the_runs_of_what_is_taken_up_again_are_running(tmp_path, runs):
    runs.ended = {"run-None-None": "FINISHED", "run-4-None": "FAILED", "run-4-7": "FAILED"}
    runs.names = dict.fromkeys(runs.ended, "a name")
    config = {"seed": 7, "replicates": 2}
    earlier = Earlier("failed", config, "another try", "KeyError")
    entry = make_entry(state="running", attempt=2, config=config, earlier=earlier)
    tracker = make_tracker(tmp_path, ledger=record_trial(tmp_path, entry), replicates=2)
    tracker.see(entry)
    tracker._pass()
    assert set(runs.ended.values()) == {"RUNNING"}


def test_settings_before_and_after_an_extension_are_told(tmp_path, runs):
    runs.params = {"run-None-None": {"training.steps": 10, "task.name": "copying"}}
    make_tracker(tmp_path)._pass()
    assert runs.params["run-None-None"]["training.steps"] == 10  # MLflow would refuse another value
    tags = runs.tags["run-None-None"]
    assert tags["eigensweep.extended"] == "training.steps: 10 before, 20 now"
    assert runs.params["run-None-None"]["task.delay"] == 5
