"""A trial's process without Ray: rungs, commits, and what a later attempt makes of them."""

from __future__ import annotations

import hashlib
import importlib
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from orders import make_order
from sweeps import spec

from eigensweep.analyses.base import Folders, TrialOptions, TrialSubject
from eigensweep.analyses.weights import load_network, load_snapshot
from eigensweep.common.own_packages import find_plugins
from eigensweep.protocol import code
from eigensweep.protocol.code import (
    ForeignCodeError,
    check_code,
    describe_difference,
    own_code,
    own_parts,
)
from eigensweep.protocol.messages import Code, Order, Report
from eigensweep.results.seeds import split_seeds, summarise
from eigensweep.results.trial_result import Source
from eigensweep.search_spaces.space import Point
from eigensweep.search_spaces.spec import ExperimentSpec
from eigensweep.store import marks, spectrum_files
from eigensweep.store.checkpoints import Store, replicate_key
from eigensweep.store.commits.head import StaleAttemptError
from eigensweep.store.marks import pause_mark
from eigensweep.store.upkeep.thinning import thin_out
from eigensweep.training.attempt import Attempt, cancel_mark
from eigensweep.training.training import Training
from eigensweep.training.weights import NoWeightsError, read_weights


def order(folder: Path, attempt: int = 1, reported: int = 0, **fields: Any) -> Order:
    parsed = ExperimentSpec.model_validate(spec({"space": {}}, **fields))
    config = parsed.trial(Point("scornn", {}))
    return make_order(
        attempt=attempt,
        config=config.model_dump(mode="json"),
        rungs=tuple(parsed.rung_steps(config)),
        reported=reported,
        storage=str(folder),
    )


def to_the_end(attempt: Attempt) -> list[Report]:
    reports = [attempt.advance()]
    while reports[-1].outcome is None:
        reports.append(attempt.advance())
    return reports


def drop_time(report: Report) -> Report:
    timeless = replace(report.result, seconds=0.0, step_seconds=None, by_replicate=())
    return replace(report, result=timeless)


def write_package(site: Path, package: str, version: str = "1.0", name: str = "own") -> Path:
    """Install a package that adds one model, and return its folder; one that is there stays."""
    info = site / f"{package}-1.0.dist-info"
    info.mkdir(exist_ok=True)
    metadata = f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n"
    (info / "METADATA").write_text(metadata)
    (info / "entry_points.txt").write_text(f"[eigensweep.models]\n{name} = {package}.models:Own\n")
    folder = site / package
    if not folder.exists():
        folder.mkdir()
        (folder / "models.py").write_text("raise RuntimeError('nothing is imported')\n")
        (folder / "__init__.py").touch()
    return folder


def see() -> tuple[Code, dict[str, str]]:
    """Return which code there is now."""
    importlib.invalidate_caches()
    for looked in (find_plugins, own_code, own_parts):
        looked.cache_clear()
    return own_code(), own_parts()


def see_elsewhere() -> Code:
    """Return the same as a driver on another machine has it."""
    return replace(see()[0], node="elsewhere", identity="elsewhere")


@pytest.fixture
def plugins(tmp_path: Path) -> Iterator[None]:
    """Look for packages in a folder of the test, too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(tmp_path))
        see()
        yield
    see()


KEPT = {"training": {"steps": 20, "evaluate_every": 5, "spectra": True}}

TRAINER = """
import json, sys
from eigensweep.store.commits.head import StaleAttemptError
from eigensweep.protocol.messages import Order
from eigensweep.training.attempt import Attempt

order = Order.from_dict(json.loads(sys.argv[1]))
attempt = None if sys.argv[2] == "later" else Attempt(order, "cpu")
for line in sys.stdin:
    try:
        if attempt is None:
            attempt, said = Attempt(order, "cpu"), "begun"
        else:
            said = attempt.advance().step
    except StaleAttemptError as error:
        said = error
    print(said, flush=True)
"""
"""A trial's process: each line of its input lets it train to the next rung."""


@contextmanager
def running(order: Order, begins: bool = True) -> Iterator[subprocess.Popen[str]]:
    """Run a trial's process; unless it `begins`, its attempt begins with the first line."""
    when = "now" if begins else "later"
    command = [sys.executable, "-c", TRAINER, json.dumps(order.to_dict()), when]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def go_on(process: subprocess.Popen[str]) -> str:
    """Let a trial's process train to the next rung; return what it says."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    return process.stdout.readline().strip()


def written(folder: Path) -> dict[Path, tuple[int, str]]:
    """Return each file with the digest of its content, and when it was written."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {
        path: (path.stat().st_mtime_ns, hashlib.sha256(path.read_bytes()).hexdigest())
        for path in files
    }


class TestLongerBudget:
    def test_it_goes_on_from_a_shorter_one_as_if_never_ended(self, tmp_path):
        to_the_end(Attempt(order(tmp_path / "two"), "cpu"))
        longer = {"training": {"steps": 33, "evaluate_every": 5}}
        going_on = order(tmp_path / "two", **longer)
        going_on = replace(going_on, experiment="e2", donor=Source("e1", 3))
        attempt = Attempt(going_on, "cpu")
        assert attempt.reached_step == 20

        reports = to_the_end(attempt)

        whole = to_the_end(Attempt(order(tmp_path / "one", **longer), "cpu"))
        told = [[(r.step, r.metrics, r.outcome) for r in told] for told in (reports, whole)]
        assert told[0] == told[1]
        assert drop_time(reports[-1]) == drop_time(whole[-1])
        keys = [(tmp_path / "two", "e2/00003/0"), (tmp_path / "one", "e1/00003/0")]
        curves = [[(p.step, p.metrics) for p in Store(f).points(k)] for f, k in keys]
        assert curves[0] == curves[1]

    def test_the_time_of_the_shorter_one_is_known_as_such(self, tmp_path):
        short = to_the_end(Attempt(order(tmp_path), "cpu"))[-1].result
        longer = {"training": {"steps": 33, "evaluate_every": 5}}
        going_on = replace(order(tmp_path, **longer), experiment="e2", donor=Source("e1", 3))
        Attempt(going_on, "cpu")  # lost as soon as it has begun
        reports = to_the_end(Attempt(replace(going_on, attempt=2), "cpu"))
        (seed,) = reports[-1].result.by_replicate
        assert short.seconds <= seed.reused_seconds < seed.seconds

    def test_it_has_the_spectra_of_the_shorter_one(self, tmp_path):
        to_the_end(Attempt(order(tmp_path, **KEPT), "cpu"))
        longer = {"training": {**KEPT["training"], "steps": 30}}
        going_on = replace(order(tmp_path, **longer), experiment="e2", donor=Source("e1", 3))
        to_the_end(Attempt(going_on, "cpu"))
        kept = spectrum_files.read(Store(tmp_path), "e2/00003/0")
        assert [step for step, _ in kept] == [0, 5, 10, 15, 20, 25, 30]
        assert kept[:5] == spectrum_files.read(Store(tmp_path), "e1/00003/0")

    def test_a_donor_that_is_gone_costs_no_more_than_its_training(self, tmp_path):
        reports = to_the_end(Attempt(replace(order(tmp_path), donor=Source("e0", 3)), "cpu"))
        assert reports[-1].outcome == "completed"


def test_a_mark_of_an_earlier_request_stops_no_later_attempt(tmp_path, monkeypatch):
    files = marks._files(str(tmp_path))
    monkeypatch.setattr(files, "look_seconds", 60.0, raising=False)  # as in an object store
    cancel = marks.cancel_mark(str(tmp_path), "e1")
    cancel.touch()
    assert cancel.exists()
    files.remove(cancel.path)  # as the next driver does, in another process
    assert cancel.exists(), "it is looked at every minute"
    assert to_the_end(Attempt(order(tmp_path), "cpu"))[-1].outcome == "completed"


class TestKnownSeeds:
    """The seeds of a trial that has fewer of them, and no checkpoints."""

    def train_one(self, folder: Path) -> Order:
        """Train a seed, remove its checkpoints, and return an order for two seeds that knows it."""
        first = to_the_end(Attempt(order(folder), "cpu"))[-1].result
        (seed,) = split_seeds(first)
        thin_out(Store(folder), "e1/00003", "none", 1)
        known = summarise([replace(seed, origin="another machine")])
        two = order(folder, replicates=2)
        return replace(two, experiment="e2", donor=Source("e1", 3), known=known)

    def test_they_are_not_trained_again_and_the_others_are(self, tmp_path):
        attempt = Attempt(Order.from_dict(self.train_one(tmp_path).to_dict()), "cpu")
        assert [each.training.is_finished for each in attempt.replicates] == [True, False]
        reports = to_the_end(attempt)

        whole = to_the_end(Attempt(order(tmp_path / "all", replicates=2), "cpu"))
        told = [[(r.step, r.metrics, r.outcome) for r in told] for told in (reports, whole)]
        assert told[0] == told[1]
        assert drop_time(reports[-1]) == drop_time(whole[-1])
        origins = [each.origin for each in reports[-1].result.by_replicate]
        assert origins == ["another machine", None]
        taken, own = reports[-1].result.by_replicate
        assert taken.reused_seconds == taken.seconds > 0
        assert own.reused_seconds is None
        points = [Store(tmp_path).points(f"e{n}/0000{3}/0") for n in (1, 2)]
        assert points[0] == points[1]

    def test_a_later_attempt_does_not_train_them_either(self, tmp_path):
        first = self.train_one(tmp_path)
        Attempt(first, "cpu")
        again = Attempt(replace(first, attempt=2, donor=None, known=None), "cpu")
        assert [each.training.is_finished for each in again.replicates] == [True, False]

    def test_a_donor_that_went_on_since_gives_what_is_known_alone(self, tmp_path):
        first = to_the_end(Attempt(order(tmp_path), "cpu"))[-1].result
        longer = {"training": {"steps": 33, "evaluate_every": 5}}
        Attempt(order(tmp_path, attempt=2, **longer), "cpu").advance()  # and it was cancelled there
        to_the_end(Attempt(order(tmp_path, attempt=3, **longer), "cpu"))
        known = summarise(split_seeds(first))
        two = replace(order(tmp_path, replicates=2), experiment="e2", donor=Source("e1", 3))
        reports = to_the_end(Attempt(replace(two, known=known), "cpu"))
        whole = to_the_end(Attempt(order(tmp_path / "all", replicates=2), "cpu"))
        assert drop_time(reports[-1]) == drop_time(whole[-1])
        places = [(tmp_path, "e2/00003/0"), (tmp_path / "all", "e1/00003/0")]
        own, alone = ([(p.step, p.metrics) for p in Store(f).points(k)] for f, k in places)
        assert own == alone

    def test_a_donor_whose_next_step_failed_has_come_further(self, tmp_path, monkeypatch):
        known = to_the_end(Attempt(order(tmp_path), "cpu"))[-1].result
        with monkeypatch.context() as patch:
            let_diverge(patch, 20)
            longer = {"training": {"steps": 33, "evaluate_every": 5}}
            extended = Attempt(order(tmp_path, attempt=2, **longer), "cpu")
            assert to_the_end(extended)[-1].outcome == "diverged"
        state = Store(tmp_path).newest("e1/00003/0").state
        assert (state["step"], state["failed_step"]) == (20, True)
        two = replace(order(tmp_path, replicates=2), experiment="e2", donor=Source("e1", 3))
        reports = to_the_end(Attempt(replace(two, known=known), "cpu"))
        assert reports[-1].outcome == "completed"

    @pytest.mark.parametrize("which", ["best", "last"])
    def test_weights_of_a_donor_that_went_on_are_refused_in_words(self, tmp_path, which):
        first = Attempt(order(tmp_path), "cpu")
        to_the_end(first)
        config = first.replicates[0].training.config
        mine = self.make_subject(first).model_copy(update={"place": "e1/00003"})
        options, folders = TrialOptions(weights=which), Folders(str(tmp_path))
        assert load_network(options, mine, folders).step <= 20
        longer = {"training": {"steps": 60, "evaluate_every": 5}}
        reports = to_the_end(Attempt(order(tmp_path, attempt=2, **longer), "cpu"))
        assert reports[-1].result.best_step > 20
        with pytest.raises(NoWeightsError, match="went on since, with a longer budget"):
            load_network(options, mine, folders)
        with Store(tmp_path).open_newest("e1/00003/0") as file:
            file.seek(0)
            content = file.read()
        with pytest.raises(NoWeightsError, match="went on since, with a longer budget"):
            read_weights(content, config, which)

    @pytest.mark.parametrize("donor", [None, Source("e1", 3)])
    def test_what_has_come_further_than_the_budget_is_left(self, tmp_path, donor):
        longer = {"training": {"steps": 33, "evaluate_every": 5}}
        to_the_end(Attempt(order(tmp_path, **longer), "cpu"))
        own = order(tmp_path, attempt=2)
        if donor is not None:
            own = replace(own, experiment="e2", donor=donor)
        attempt = Attempt(own, "cpu")
        assert (attempt.reached_step, attempt.replicates[0].damage) == (0, None)
        whole = to_the_end(Attempt(order(tmp_path / "all"), "cpu"))
        assert drop_time(to_the_end(attempt)[-1]) == drop_time(whole[-1])

    def test_with_a_longer_budget_they_are_trained_from_the_start(self, tmp_path):
        Attempt(self.train_one(tmp_path), "cpu")
        longer = {"training": {"steps": 33, "evaluate_every": 5}, "replicates": 2}
        later = replace(order(tmp_path, attempt=2, **longer), experiment="e2")
        attempt = Attempt(later, "cpu")
        assert (attempt.reached_step, attempt.replicates[0].damage) == (0, None)
        reports = to_the_end(attempt)
        whole = to_the_end(Attempt(order(tmp_path / "all", **longer), "cpu"))
        assert drop_time(reports[-1]) == drop_time(whole[-1])

    def test_the_best_weights_go_with_them_where_they_are_left(self, tmp_path):
        known = split_seeds(to_the_end(Attempt(order(tmp_path), "cpu"))[-1].result)
        thin_out(Store(tmp_path), "e1/00003", "best", 1)
        two = replace(order(tmp_path, replicates=2), experiment="e2", donor=Source("e1", 3))
        attempt = Attempt(replace(two, known=summarise(known)), "cpu")
        assert attempt.replicates[0].training.is_finished
        one, other = (Store(tmp_path).kept.best(f"e{n}/00003/0") for n in (1, 2))
        assert (one["step"], one["seed"]) == (other["step"], other["seed"])
        assert all(torch.equal(one["weights"][name], w) for name, w in other["weights"].items())
        options = TrialOptions(weights="best")
        network = load_network(options, self.make_subject(attempt), Folders(str(tmp_path)))
        assert network.step == one["step"]

    def make_subject(self, attempt: Attempt) -> TrialSubject:
        config = attempt.replicates[0].training.config.model_dump(mode="json")
        return TrialSubject(
            experiment="e2", number=3, arm="scornn", state="completed",
            config=config, place="e2/00003", value=0.1, step=20,
        )  # fmt: skip

    def test_their_weights_are_missed_in_words(self, tmp_path):
        attempt = Attempt(self.train_one(tmp_path), "cpu")
        with pytest.raises(ValueError, match="its result was taken up without them"):
            load_snapshot(self.make_subject(attempt), 0, Folders(str(tmp_path)))
        with Store(tmp_path).open_newest("e2/00003/0") as file:
            file.seek(0)
            content = file.read()
        with pytest.raises(NoWeightsError, match="without weights"):
            read_weights(content, attempt.replicates[0].training.config, "last")


def let_diverge(monkeypatch, after):
    """Let the loss of the step after so many be NaN."""
    see_update = Training.see_update

    def fail(training, loss, *norms):
        lost = training.step == after
        return see_update(training, loss * float("nan") if lost else loss, *norms)

    monkeypatch.setattr(Training, "see_update", fail)


class TestRungs:
    def test_a_trial_reports_its_best_so_far_at_every_rung(self, tmp_path):
        reports = to_the_end(Attempt(order(tmp_path), "cpu"))
        assert [r.step for r in reports] == [5, 10, 15, 20]
        assert [r.outcome for r in reports] == [None, None, None, "completed"]
        values = [r.metrics["objective"] for r in reports]
        assert values == sorted(values, reverse=True)
        assert reports[-1].result.value == values[-1]

    def test_an_end_by_a_failed_step_is_committed_too(self, tmp_path, monkeypatch):
        let_diverge(monkeypatch, after=20)
        fields = {"training": {"steps": 40, "evaluate_every": 10}, "scheduler": {"rung_every": 20}}
        run = replace(order(tmp_path, **fields), rungs=(20, 40))
        last = to_the_end(Attempt(run, "cpu"))[-1]
        assert (last.outcome, last.step) == ("diverged", 20)
        snapshot = Store(tmp_path).newest(replicate_key(run.experiment, run.number, 0))
        assert (snapshot.step, snapshot.state["outcome"]) == (20, "diverged")

    def test_a_seed_has_diverged_from_its_step_on_alone(self, tmp_path, monkeypatch):
        let_diverge(monkeypatch, after=13)
        attempt = Attempt(order(tmp_path), "cpu")
        to_the_end(attempt)
        (replicate,) = attempt.replicates
        told = {step: replicate.result(step) for step in (5, 10, 15)}
        assert [each.outcome for each in told.values()] == [None, None, "diverged"]
        assert [each.divergence is None for each in told.values()] == [True, True, False]

    @pytest.mark.parametrize("replicates", [1, 2])
    def test_another_attempt_goes_on_where_the_first_was_killed(self, tmp_path, replicates):
        whole = to_the_end(Attempt(order(tmp_path / "a", replicates=replicates), "cpu"))
        first = Attempt(order(tmp_path / "b", replicates=replicates), "cpu")
        first.advance()
        first.advance()
        second = Attempt(order(tmp_path / "b", 2, reported=10, replicates=replicates), "cpu")
        assert [r.training.step for r in second.replicates] == [10] * replicates
        rest = to_the_end(second)
        assert list(map(drop_time, rest)) == list(map(drop_time, whole[2:]))

    def test_unheard_rungs_are_answered_without_training(self, tmp_path, monkeypatch):
        reports = to_the_end(Attempt(order(tmp_path), "cpu"))
        later = Attempt(order(tmp_path, 2, reported=5), "cpu")
        monkeypatch.setattr(later.replicates[0].training, "run", None)
        again = to_the_end(later)
        assert [(r.step, r.metrics) for r in again] == [(r.step, r.metrics) for r in reports[1:]]
        assert again[-1].outcome == "completed"

    def test_an_attempt_with_a_successor_may_not_commit(self, tmp_path):
        first = Attempt(order(tmp_path), "cpu")
        first.advance()
        Attempt(order(tmp_path, 2), "cpu")
        with pytest.raises(StaleAttemptError):
            first.advance()

    @pytest.mark.slow  # test_fencing.py has each request alone
    def test_a_cut_off_process_writes_nothing_after_its_successor(self, tmp_path):
        """It stands still in mid-training while its successor, a process too, trains to the end."""
        first, second = (order(tmp_path, n, **KEPT) for n in (1, 2))
        with running(first) as cut_off, running(second, begins=False) as successor:
            assert go_on(cut_off) == "5"
            cut_off.send_signal(signal.SIGSTOP)
            assert [go_on(successor) for _ in range(5)] == ["begun", "5", "10", "15", "20"]
            before = written(tmp_path)
            assert {"best-2.pt", "000000020-2.json"} <= {path.name for path in before}
            cut_off.send_signal(signal.SIGCONT)
            assert go_on(cut_off) == "attempt 1 of e1/00003/0 has a successor, 2"
            assert written(tmp_path) == before

    def test_an_ended_one_writes_no_weights_over_its_successors(self, tmp_path):
        first = Attempt(order(tmp_path), "cpu")
        first.train(20)
        to_the_end(Attempt(order(tmp_path, 2), "cpu"))
        before = written(tmp_path)
        with pytest.raises(StaleAttemptError):
            first.keep_best()
        assert written(tmp_path) == before

    def test_a_cancelled_experiment_ends_its_trials_where_they_are(self, tmp_path):
        attempt = Attempt(order(tmp_path), "cpu")
        mark = cancel_mark(tmp_path, "e1")
        mark.touch()
        assert attempt.advance().outcome == "cancelled"

    @pytest.mark.parametrize("replicates", [1, 2])
    def test_a_paused_trial_commits_and_goes_on_bit_for_bit(self, tmp_path, replicates):
        whole = to_the_end(Attempt(order(tmp_path / "a", replicates=replicates), "cpu"))
        first = Attempt(order(tmp_path / "b", replicates=replicates), "cpu")
        first.replicates[0].training.evaluate_every = 1  # it looks after each evaluation
        mark = pause_mark(tmp_path / "b", "e1")
        mark.touch()
        report = first.advance()
        assert (report.lost_by, report.outcome, report.step) == ("pause", None, 1)
        assert Store(tmp_path / "b").newest("e1/00003/0").step == 1
        mark.unlink()
        rest = to_the_end(Attempt(order(tmp_path / "b", 2, replicates=replicates), "cpu"))
        assert list(map(drop_time, rest)) == list(map(drop_time, whole))

    def test_the_best_weights_lie_beside_the_checkpoints(self, tmp_path):
        attempt = Attempt(order(tmp_path), "cpu")
        result = to_the_end(attempt)[-1].result
        kept = Store(tmp_path).kept.best("e1/00003/0")
        assert (kept["step"], kept["value"]) == (result.best_step, result.value)
        attempt.replicates[0].training.model.load_state_dict(kept["weights"])
        assert Store(tmp_path).points("e1/00003/0")[-1].step == 20


class TestCode:
    def test_importing_a_trial_s_process_loads_no_torch_or_mlflow(self):
        check = (
            "import sys, eigensweep.workers.processes.trial_process\n"
            "print({'torch', 'mlflow', 'ray.tune', 'pandas'} & set(sys.modules))"
        )
        command = [sys.executable, "-c", check]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == "set()"

    def test_every_file_that_decides_numbers_is_in_the_digest(self, tmp_path, monkeypatch):
        folder = Path(own_code().folder)
        copy = tmp_path / folder.name
        shutil.copytree(
            folder / "models", copy / "models", ignore=shutil.ignore_patterns("__pycache__")
        )
        monkeypatch.setattr(code, "__file__", str(copy / "protocol/code.py"))
        seen = {own_code.__wrapped__().digest}
        files = [path for path in sorted((copy / "models/recurrence").rglob("*")) if path.is_file()]
        for path in files:
            path.write_text(f"{path.read_text()}\n")
            seen.add(own_code.__wrapped__().digest)
        assert {path.suffix for path in files} == {".py", ".cpp", ".h", ".cu"}
        (copy / "search_spaces").mkdir()
        (copy / "search_spaces/hashed_fields.yaml").write_text("copying: {}\n")
        assert own_code.__wrapped__().digest not in seen
        assert len(seen) == len(files) + 1

    def test_a_worker_with_other_code_is_refused_with_words(self):
        own = own_code()
        check_code(own)
        with pytest.raises(ForeignCodeError, match="Install the same version of Eigensweep"):
            check_code(replace(own, digest="0" * 16, node="elsewhere", identity="elsewhere"))

    def test_a_container_of_the_same_name_is_another_place(self):
        own = own_code()
        edited = replace(own, digest="0" * 16)
        check_code(edited)  # in the very folder of the driver
        with pytest.raises(ForeignCodeError):
            check_code(replace(edited, identity=own.identity.rpartition("/")[0] + "/2d-7"))
        with pytest.raises(ForeignCodeError):
            check_code(replace(edited, identity=""))  # a driver that knew nothing of it

    def test_other_packages_are_refused_in_the_same_folder_too(self):
        own = own_code()
        with pytest.raises(ForeignCodeError):
            check_code(replace(own, digest="0" * 16, packages="0" * 16))

    @pytest.mark.parametrize("name", ["torch", "numpy", "ray"])
    def test_versions_in_the_digest_leave_the_device_out(self, monkeypatch, name):
        def digest(found: str) -> str:
            versions = {"torch": "2.13.0+cpu", "numpy": "2.2.0", "ray": "2.60.0", name: found}
            monkeypatch.setattr(code, "version", versions.__getitem__)
            return own_code.__wrapped__().digest

        assert digest("9.9+cpu") == digest("9.9+cu130") != digest("9.8+cpu")

    def test_a_package_that_adds_a_model_is_in_the_digest(self, tmp_path, plugins):
        without = own_parts()
        lab = write_package(tmp_path, "lab")
        first = see()[1]
        (lab / "models.py").write_text("x = 1\n")
        write_package(tmp_path, "lab", version="1.1")
        second = see()[1]
        assert describe_difference(first, without) == (
            "the driver has no package lab, the driver has no lab: __init__.py, "
            "the driver has no lab: models.py"
        )
        words = "package lab 1.1 instead of 1.0, lab: models.py"
        assert describe_difference(second, first) == words
        assert str(lab) in map(str, code._plugin_folders(find_plugins()).values())

    def test_a_worker_has_at_least_the_models_of_the_driver(self, tmp_path, plugins):
        none = see_elsewhere()
        write_package(tmp_path, "lab")
        one = see_elsewhere()
        check_code(none)
        write_package(tmp_path, "other", name="another")
        see()
        check_code(none)
        check_code(one)
        both = see_elsewhere()
        shutil.rmtree(tmp_path / "lab-1.0.dist-info")
        see()
        for driver in (one, both):
            with pytest.raises(ForeignCodeError):
                check_code(driver)

    @pytest.mark.parametrize("other", ["file", "version", "name"])
    def test_more_models_do_not_excuse_a_changed_one(self, tmp_path, plugins, other):
        lab = write_package(tmp_path, "lab")
        driver = see_elsewhere()
        write_package(tmp_path, "other", name="own" if other == "name" else "another")
        if other == "file":
            (lab / "models.py").write_text("x = 1\n")
        elif other == "version":
            write_package(tmp_path, "lab", version="1.1")
        see()
        with pytest.raises(ForeignCodeError):
            check_code(driver)

    def test_more_models_do_not_excuse_other_code(self, tmp_path, plugins):
        driver = replace(see_elsewhere(), core="0" * 16)
        write_package(tmp_path, "lab")
        see()
        with pytest.raises(ForeignCodeError):
            check_code(driver)
