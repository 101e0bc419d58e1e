"""The rules of the store, in a folder and on servers of S3 and of Google Cloud Storage.

Whatever dies or comes late, one line of commits can be read.
"""

from __future__ import annotations

import errno
import io
import logging
import os
import pickle
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import gcs
import pytest
import s3
import torch
from file_ledger import FileLedger
from orders import make_order
from sweeps import spec

from eigensweep.protocol.messages import DriverOptions
from eigensweep.search_spaces.space import Point
from eigensweep.search_spaces.spec import ExperimentSpec
from eigensweep.store import spectrum_files
from eigensweep.store.checkpoints import Store
from eigensweep.store.commits.curves import CurvePoint
from eigensweep.store.commits.head import StaleAttemptError
from eigensweep.store.commits.kept_files import BEST
from eigensweep.store.marks import cancel_mark, pause_mark
from eigensweep.store.places.disk_use import measure_store
from eigensweep.store.places.durable_files import StorageError, StoreAwayError, disk_failure
from eigensweep.store.places.files import is_url, open_files, try_out
from eigensweep.store.places.folder_files import FolderFiles
from eigensweep.store.places.object_files import ObjectFiles
from eigensweep.store.places.store_watch import StoreWatch
from eigensweep.store.upkeep import store_markers
from eigensweep.store.upkeep.copies import copy_out
from eigensweep.store.upkeep.thinning import thin_out
from eigensweep.training.attempt import Attempt
from eigensweep.workers.driver.deletion import remove
from eigensweep.workers.driver.experiment import ExperimentDriver
from eigensweep.workers.driver.tune import stopping
from eigensweep.workers.driver.tune.stopping import StopReason

KEY = "e1/00003/0"


SERVERS = {"s3": s3.serve, "gs": gcs.serve}


@pytest.fixture(scope="module")
def serve() -> Iterator[Callable[[str], str]]:
    """Return a function that gives the URL of a bucket on a server of the kind."""
    with ExitStack() as stack:
        yield cache(lambda kind: stack.enter_context(SERVERS[kind]()))


@pytest.fixture(params=["folder", *SERVERS])
def url(request: pytest.FixtureRequest, serve: Callable[[str], str], tmp_path: Path) -> str:
    """Return an empty place of each kind."""
    if request.param == "folder":
        return str(tmp_path / "store")
    return f"{serve(request.param)}/{tmp_path.name}"


@pytest.fixture
def store(url: str) -> Store:
    return Store(url)


def point(step: int) -> CurvePoint:
    return CurvePoint(step, {"train/loss": 1 / step}, 1000 + step)


def commit(store: Store, attempt: int, step: int, since: int | None = None) -> None:
    """Commit a step with its points, from `since` on or the last five."""
    points = [point(s) for s in range(step - 4 if since is None else since, step + 1)]
    store.commit(KEY, attempt, step, {"step": step, "W": torch.full((3,), float(step))}, points)


def steps(store: Store) -> list[int]:
    return [p.step for p in store.points(KEY)]


def names(store: Store) -> list[str]:
    return store.files.names(KEY)


class TestEveryStore:
    """What is committed, kept, taken over and removed."""

    def test_a_commit_is_read_back_whole_by_another_process(self, store):
        store.begin(KEY, 1)
        for step in (5, 10, 15):
            commit(store, 1, step)
        later = pickle.loads(pickle.dumps(store))
        snapshot = later.newest(KEY)
        assert (snapshot.step, snapshot.state["W"].tolist()) == (15, [15.0] * 3)
        assert [p.step for p in snapshot.points] == list(range(1, 16))
        assert [c.step for c in later.list_checkpoints(KEY)] == [15, 10]
        assert all(c.bytes > 0 for c in later.list_checkpoints(KEY))
        assert later.points(KEY, since=12) == [point(s) for s in (13, 14, 15)]
        assert [p.step for p in later.sample(KEY, "train/loss", 3)] == [1, 9, 15]
        assert (later.progress(KEY).commits, later.progress(KEY).step) == (3, 15)

    def test_a_later_attempt_shuts_the_earlier_one_out(self, store):
        earlier, later = store, pickle.loads(pickle.dumps(store))
        earlier.begin(KEY, 1)
        commit(earlier, 1, 5)
        later.begin(KEY, 2)
        with pytest.raises(StaleAttemptError):
            commit(earlier, 1, 10)
        with pytest.raises(StaleAttemptError):
            earlier.begin(KEY, 1)
        assert later.newest(KEY).step == 5

    def test_nothing_is_known_of_a_key_without_commits(self, store):
        assert store.newest(KEY) is None
        assert store.points(KEY) == []
        assert store.attempt(KEY) == 0
        with pytest.raises(ValueError, match="before it began"):
            commit(store, 1, 5)

    def test_a_checkpoint_can_be_taken_over_and_adopted(self, store):
        store.begin(KEY, 1)
        commit(store, 1, 10)
        store.begin("e1/00004/0", 1)
        store.take_over(KEY, "e1/00004/0", 2, 10)
        store.take_over(KEY, "e1/00004/0", 2, 10)
        assert store.progress("e1/00004/0").commits == 1
        assert store.newest("e1/00004/0").state["step"] == 10
        store.begin("e2/00000/0", 1)
        assert store.copy(KEY, "e2/00000/0")
        assert store.points("e2/00000/0") == store.points(KEY)

    def test_an_experiment_is_removed_and_no_other_one(self, store, tmp_path):
        for experiment in ("e1", "e10"):
            store.begin(f"{experiment}/00000/0", 1)
            store.commit(f"{experiment}/00000/0", 1, 5, {}, [point(5)])
        for _ in range(2):  # it may be done twice
            remove("e1", "p", store.place, None)
        assert not store.has_checkpoint("e1/00000/0")
        assert store.has_checkpoint("e10/00000/0")

    @pytest.mark.parametrize(
        ("keep", "checkpoints", "best"),
        [("last", [10], True), ("best", [], True), ("none", [], False)],
    )
    @pytest.mark.quick_cases(2)
    def test_a_rule_removes_what_it_says(self, store, keep, checkpoints, best):
        store.begin(KEY, 1)
        commit(store, 1, 5)
        commit(store, 1, 10)
        weights = io.BytesIO()
        torch.save({"step": 5}, weights)
        store.kept.write(KEY, 1, BEST, weights.getvalue())
        assert thin_out(store, "e1/00003", keep, 0) == 0, "a later attempt has begun"
        expected = thin_out(store, "e1/00003", keep, 1, only_measure=True)
        assert thin_out(store, "e1/00003", keep, 1) == expected > 0
        assert thin_out(store, "e1/00003", keep, 1) == 0
        assert [c.step for c in store.list_checkpoints(KEY)] == checkpoints
        assert (store.kept.has_best(KEY), store.kept.best(KEY)) == (
            best,
            {"step": 5} if best else None,
        )
        assert steps(store) == list(range(1, 11))
        use = measure_store(store.place)["e1"]
        assert (use.checkpoints > 0, use.weights > 0, use.curves > 0) == (
            bool(checkpoints),
            best,
            True,
        )

    def test_files_beside_the_checkpoints_are_kept(self, store, tmp_path):
        store.begin(KEY, 1)
        spectrum_files.write(store, KEY, 1, 5, {"W": {"eigenvalues": []}})
        store.kept.write(KEY, 1, BEST, b"weights")
        path = store.kept.fetch(KEY, BEST, tmp_path)
        assert (path.name, path.read_bytes()) == (BEST, b"weights")
        with pytest.raises(FileNotFoundError):
            store.kept.fetch("e1/00009/0", BEST, tmp_path)
        assert spectrum_files.read(store, KEY) == [(5, {"W": {"eigenvalues": []}})]
        marker = store_markers.write(store, "e1", {"torch": "2"})
        assert store_markers.read(store, "e1", marker) == {"torch": "2"}
        store_markers.write(store, "e1", {})
        with pytest.raises(StoreAwayError, match="not the store of the driver"):
            store_markers.read(store, "e1", marker)


def test_an_object_is_read_by_one_request(serve, monkeypatch):
    files, asked = open_files(f"{serve('s3')}/requests"), []
    files.write("e1/a", b"content")
    call = s3.S3FileSystem._call_s3

    async def note(library, method, *given, **named):
        asked.append(method)
        return await call(library, method, *given, **named)

    monkeypatch.setattr(s3.S3FileSystem, "_call_s3", note)
    assert files.read("e1/a") == b"content"
    assert asked == ["get_object"]


class TestAFolder:
    """What a folder alone may meet."""

    @pytest.fixture
    def store(self, tmp_path):
        return Store(tmp_path / "store")

    def test_is_removed_although_others_remove_files_of_it(self, store, monkeypatch):
        for name in "abcd":
            store.files.write(f"e1/{name}", b"")
        unlink, removed = os.unlink, []

        def come_second(path, **named):
            unlink(path, **named)
            if len(removed) < 2:
                removed.append(path)
                raise FileNotFoundError(path)

        monkeypatch.setattr(os, "unlink", come_second)
        store.files.remove_all("e1")
        assert (store.files.names(""), len(removed)) == ([], 2)

    def test_is_copied_although_a_commit_lets_a_file_go(self, store, tmp_path, monkeypatch):
        store.begin(KEY, 1)
        for step in (5, 10):
            commit(store, 1, step)
        fetch = FolderFiles.fetch

        def commit_first(files, path, target):
            if "step-000000005" in path:
                commit(store, 1, 15)
            fetch(files, path, target)

        monkeypatch.setattr(FolderFiles, "fetch", commit_first)
        (target := tmp_path / "copy" / KEY).mkdir(parents=True)
        copy_out(store, KEY, target, 1)
        copied = Store(tmp_path / "copy")
        assert [c.step for c in copied.list_checkpoints(KEY)] == [15, 10]
        assert copied.points(KEY) == store.points(KEY)

    def test_that_cannot_be_copied_from_is_named(self, store, tmp_path, monkeypatch):
        def fail(code):
            def act(*_):
                raise OSError(code, os.strerror(code))

            return act

        store.files.write("e1/a", b"")
        monkeypatch.setattr(os, "link", fail(errno.EXDEV))
        monkeypatch.setattr(shutil, "copyfile", fail(errno.ESTALE))
        with pytest.raises(StorageError, match=r"cannot copy .*store/e1/a: ") as failed:
            store.files.fetch("e1/a", tmp_path / "a")
        assert disk_failure(failed.value) is failed.value


class TestWhoComesLate:
    """Each stands still in the middle of a commit while its successor works."""

    def after(
        self, part: Any, monkeypatch: pytest.MonkeyPatch, name: str, act: Callable[[], Any]
    ) -> None:
        """Let `act` happen between the call before `name` of a part of a store and that call."""
        original = getattr(part, name)

        def call(*given: Any, **named: Any) -> Any:
            monkeypatch.setattr(part, name, original)
            act()
            return original(*given, **named)

        monkeypatch.setattr(part, name, call)

    def succeed(self, url: str, commits: int) -> Callable[[], None]:
        def act() -> None:
            successor = Store(url)
            successor.begin(KEY, 2)
            for step in range(11, 11 + commits):
                commit(successor, 2, step, since=step)

        return act

    @pytest.mark.parametrize("commits", [0, 1, 7])
    @pytest.mark.quick_cases(2)
    def test_its_objects_count_for_nothing(self, store, url, monkeypatch, commits):
        store.begin(KEY, 1)
        commit(store, 1, 10, since=1)
        # It has read the head and written its checkpoint; the head is not made yet. After seven
        # commits the number that it chose is free again.
        self.after(store.files, monkeypatch, "create", self.succeed(url, commits))
        with pytest.raises(StaleAttemptError):
            commit(store, 1, 20, since=11)
        reader = Store(url)
        assert reader.newest(KEY).step == 10 + commits
        assert steps(reader) == list(range(1, 11 + commits))
        assert reader.attempt(KEY) == 2
        assert not [name for name in names(reader) if name.startswith("step-000000020")]

    def test_what_it_tidies_up_is_nothing_of_its_successors(self, store, url, monkeypatch):
        store.begin(KEY, 1)
        for step in (5, 10):
            commit(store, 1, step)
        self.after(store.heads, monkeypatch, "_tidy", self.succeed(url, 9))
        commit(store, 1, 15)  # was the newest before the successor began
        reader = Store(url)
        assert steps(reader) == [*range(1, 16), *range(16, 20)]
        assert [c.step for c in reader.list_checkpoints(KEY)] == [19, 18]
        assert reader.newest(KEY).state["step"] == 19

    def test_what_it_keeps_beside_checkpoints_does_not_count(self, store, url, monkeypatch):
        store.begin(KEY, 1)
        spectrum_files.write(store, KEY, 1, 5, {"W": {"of": 1}})

        def succeed() -> None:
            successor = Store(url)
            successor.begin(KEY, 10)
            successor.kept.write(KEY, 10, BEST, b"of the tenth attempt")
            spectrum_files.write(successor, KEY, 10, 10, {"W": {"of": 10}})

        self.after(store.files, monkeypatch, "write", succeed)
        store.kept.write(KEY, 1, BEST, b"of the first attempt")  # it had looked before
        with pytest.raises(StaleAttemptError):
            spectrum_files.write(store, KEY, 1, 10, {"W": {"of": 1}})
        reader = Store(url)
        assert reader.kept.read(KEY, BEST) == b"of the tenth attempt"
        assert spectrum_files.read(reader, KEY) == [(5, {"W": {"of": 1}}), (10, {"W": {"of": 10}})]
        assert thin_out(reader, "e1/00003", "best", 10) > 0
        assert [name for name in names(reader) if name.startswith("best")] == ["best-10.pt"]

    def test_a_reader_finds_the_curve_that_was_merged_meanwhile(self, store, url, monkeypatch):
        store.begin(KEY, 1)
        for step in (5, 10, 15):
            commit(store, 1, step)
        reader, writer = Store(url), Store(url)

        def go_on() -> None:
            for step in (20, 25, 30, 35, 40):
                commit(writer, 1, step)

        self.after(reader.heads, monkeypatch, "read_curve", go_on)
        assert steps(reader) == list(range(1, 16))
        assert steps(reader) == list(range(1, 41))

    def test_an_answer_that_was_lost_doubles_nothing(self, store, monkeypatch):
        store.begin(KEY, 1)
        create = store.files.create
        monkeypatch.setattr(
            store.files, "create", lambda *a, **named: create(*a, **named) and False
        )
        commit(store, 1, 5)
        assert steps(store) == list(range(1, 6))
        assert store.progress(KEY).commits == 1


class KilledError(BaseException):
    """Stands for a kill: nobody catches it."""


@pytest.mark.parametrize(
    ("url", "moment"),
    [("s3", 3), *((kind, moment) for kind in ("folder", "gs") for moment in range(6))],
    indirect=["url"],
)
@pytest.mark.quick_cases(3)
def test_a_kill_at_any_request_leaves_a_whole_commit_or_none(store, url, monkeypatch, moment):
    store.begin(KEY, 1)
    commit(store, 1, 5)
    commit(store, 1, 10)
    requests = 0

    def guard(original: Callable[..., Any]) -> Callable[..., Any]:
        def ask(*given: Any, **named: Any) -> Any:
            nonlocal requests
            if requests == moment:
                raise KilledError
            requests += 1
            return original(*given, **named)

        return ask

    for name in ("write", "create", "remove"):
        monkeypatch.setattr(store.files, name, guard(getattr(store.files, name)))

    def commit_until_killed() -> None:
        for step in (15, 20):
            commit(store, 1, step)

    with pytest.raises(KilledError):
        commit_until_killed()
    later = Store(url)
    reached = later.newest(KEY).step
    assert reached in (10, 15, 20)
    assert steps(later) == list(range(1, reached + 1))
    later.begin(KEY, 2)
    commit(later, 2, 25, since=reached + 1)
    assert steps(later) == list(range(1, 26))
    commit(later, 2, 30)
    commit(later, 2, 35)
    assert len([n for n in names(later) if n.startswith("step-")]) <= 3, "what died was tidied up"


@pytest.mark.parametrize(
    "url", ["folder", pytest.param("gs", marks=pytest.mark.slow)], indirect=True
)
def test_a_long_curve_has_few_objects(store):
    store.begin(KEY, 1)
    for step in range(1, 34):
        commit(store, 1, step, since=step)
    kinds = [name.partition("-")[0] for name in names(store)]
    assert steps(store) == list(range(1, 34))
    assert kinds.count("curve") <= 6
    assert kinds.count("head") <= 3
    assert kinds.count("step") <= 3


def test_a_damaged_checkpoint_falls_back_to_the_one_before(store):
    store.begin(KEY, 1)
    commit(store, 1, 5)
    commit(store, 1, 10)
    file = store.list_checkpoints(KEY)[0].file
    store.files.write(f"{KEY}/{file}", b"damaged")
    assert store.newest(KEY).step == 5


def order_in(url: str, **fields: Any) -> Any:
    parsed = ExperimentSpec.model_validate(spec({"space": {}}))
    config = parsed.trial(Point("scornn", {}))
    rungs = tuple(parsed.rung_steps(config))
    content = config.model_dump(mode="json")
    return make_order(config=content, rungs=rungs, storage=url, **fields)


def test_a_trial_trains_and_another_attempt_goes_on_bit_for_bit(url, tmp_path):
    order = order_in(url)
    Attempt(order, "cpu").advance()
    second = Attempt(replace(order, attempt=2, reported=5), "cpu")
    assert second.reached_step == 5
    alone = Attempt(replace(order, storage=str(tmp_path)), "cpu")
    ends = []
    for attempt in (second, alone):
        while (report := attempt.advance()).outcome is None:
            pass
        ends.append(report.result.by_replicate[0].valid)
    assert ends[0] == ends[1]
    assert "best-2.pt" in names(Store(url))
    assert Store(url).kept.best("e1/00003/0")["step"] > 0


def test_trials_see_a_pause_or_a_cancellation(url, monkeypatch):
    monkeypatch.setattr(ObjectFiles, "look_seconds", 0.0)
    attempt = Attempt(order_in(url), "cpu")
    pause, cancel = pause_mark(url, "e1"), cancel_mark(url, "e1")
    pause.touch()
    assert pause.exists()
    assert not cancel.exists()
    monkeypatch.setattr("eigensweep.training.attempt.GLANCE_SECONDS", 0.0)
    assert attempt.advance().lost_by == "pause"
    pause.unlink()
    cancel.touch()
    assert attempt.advance().outcome == "cancelled"


def test_a_store_that_is_away_is_nobodys_fault(caplog):
    with s3.serve() as bucket:
        store = Store(f"{bucket}/x")
        store.begin(KEY, 1)
    with caplog.at_level(logging.DEBUG), pytest.raises(StoreAwayError) as error:
        commit(store, 1, 5)
    assert disk_failure(error.value) is error.value
    assert str(error.value).startswith("cannot list s3://lab/x/e1/00003/0: ")
    assert s3.SECRET not in f"{error.value!r} {caplog.text} {pickle.dumps(store)!r}"


class TestATrial:
    def test_of_a_place_finds_all_that_is_needed_and_leaves_nothing(self, store):
        assert try_out(store.files) is None
        assert store.files.names(".doctor") == []

    def test_says_that_one_writes_over_what_exists(self, store, monkeypatch):
        def put(path: str, content: bytes) -> bool:
            store.files.write(path, content)
            return True

        monkeypatch.setattr(store.files, "create", put)
        assert "writes over an object although asked not to" in try_out(store.files)

    @pytest.mark.parametrize("kind", SERVERS)
    def test_names_a_bucket_that_does_not_exist(self, serve, kind):
        nowhere = serve(kind).replace("lab", "nowhere")
        with pytest.raises(StoreAwayError, match=f"cannot write {nowhere}"):
            try_out(open_files(f"{nowhere}/x"))

    def test_without_its_bucket_a_store_is_away_and_not_empty(self, serve):
        store = Store(serve("s3").replace("lab", "nowhere"))
        for ask in (store.files.names, store.files.size, store.files.read, store.heads.read):
            with pytest.raises(StoreAwayError, match="bucket does not exist"):
                ask(KEY)


def test_a_driver_stops_trials_through_the_object_store(url, tmp_path, monkeypatch):
    monkeypatch.setattr(ObjectFiles, "look_seconds", 0.0)
    monkeypatch.setattr(stopping, "ASK_SECONDS", 0.0)
    ledger = FileLedger(tmp_path / "ledger.json")
    options = DriverOptions(storage=url)
    content = ExperimentSpec.model_validate(spec({"space": {"optimizer.lr": [1e-2, 1e-3]}}))
    driver = ExperimentDriver("e1", content, ledger, options)
    monkeypatch.setattr(driver, "_concurrency", lambda: 2)
    first, second = driver.next_order(), driver.next_order()
    store_markers.read(Store(url), "e1", first.marker)
    report = Attempt(first, "cpu").advance()
    assert driver.find_missing_commit(first, report) is None
    assert "driver finds step -1" in driver.find_missing_commit(second, report)
    ledger.want("pause")
    driver.must_stop()
    assert Attempt(second, "cpu").advance().lost_by == "pause"
    ledger.want("run")
    StopReason("e1", ledger, url, StoreWatch("e1"))()  # the next driver's
    assert Attempt(replace(second, attempt=2), "cpu").advance().step == 5
    if is_url(url):
        assert not driver._own_folder().is_relative_to(Path.cwd())
        driver._scratch.cleanup()
