"""An object store that does not answer for a while, or lets nobody in: all wait, nothing ends."""

from __future__ import annotations

import errno
import json
import os
import platform
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError
from clocks import Clock
from file_ledger import FileLedger
from helpers import s3
from s3fs import S3FileSystem
from s3fs.errors import translate_boto_error
from sweeps import spec

from eigensweep.protocol.messages import DriverOptions, Report
from eigensweep.search_spaces.spec import ExperimentSpec
from eigensweep.service.store_probe import StoreProbe
from eigensweep.store import marks
from eigensweep.store.checkpoints import Store, replicate_key
from eigensweep.store.commits.curves import CurvePoint
from eigensweep.store.marks import pause_mark
from eigensweep.store.places import store_watch
from eigensweep.store.places.durable_files import (
    StorageError,
    StoreAwayError,
    StoreKeysError,
    disk_failure,
)
from eigensweep.store.places.folder_files import FolderFiles
from eigensweep.store.places.store_watch import FIRST_PAUSE, LONGEST_PAUSE, StoreWatch
from eigensweep.workers.deaths import explain
from eigensweep.workers.driver.experiment import READ_SECONDS, ExperimentDriver
from eigensweep.workers.driver.tune import stopping
from eigensweep.workers.processes.runner import LOST, REPORT, Runner

Outage = Callable[[], AbstractContextManager[None]]


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[str, Outage]]:
    with s3.serve_with_outages() as found:
        yield found


@pytest.fixture
def url(served: tuple[str, Outage], tmp_path: Path) -> str:
    return f"{served[0]}/{tmp_path.name}"


@pytest.fixture
def outage(served: tuple[str, Outage]) -> Outage:
    return served[1]


@pytest.fixture
def ledger(tmp_path: Path) -> FileLedger:
    return FileLedger(tmp_path / "ledger.json")


@pytest.fixture
def driver(url: str, tmp_path: Path, ledger: FileLedger, monkeypatch: Any) -> ExperimentDriver:
    """Return a driver whose looks have no pauses between them."""
    monkeypatch.setattr(stopping, "ASK_SECONDS", 0.0)
    monkeypatch.setattr(store_watch, "FIRST_PAUSE", 0.0)
    options = DriverOptions(storage=url)
    content = ExperimentSpec.model_validate(spec({"space": {"optimizer.lr": [1e-2, 1e-3]}}))
    driver = ExperimentDriver("e1", content, ledger, options)
    monkeypatch.setattr(driver, "_concurrency", lambda: 2)
    return driver


def tell(driver: ExperimentDriver, ledger: FileLedger) -> list[dict[str, Any]]:
    """Let the driver look around; return the notices that the ledger has then."""
    assert not driver.must_stop()
    return [each for each in ledger.read("notices") if each["kind"] == "store"]


class TestADriver:
    def test_waits_and_says_since_when_and_goes_on(self, driver, ledger, outage):
        with outage():
            assert driver.next_order() is None
            (notice,) = tell(driver, ledger)
            assert re.match(
                r"the store has not answered since 2[\d-]+ \d\d:\d\d UTC: ", notice["words"]
            )
            assert "go on by themselves" in notice["words"]
            assert driver.end_stalled() == set()
            assert driver.next_order() is None
            assert tell(driver, ledger) == [notice], "the same words, so one event"
        order = driver.next_order()
        assert order is not None
        assert tell(driver, ledger) == []

    def test_ends_trials_of_which_it_cannot_read_the_curves(self, driver, ledger, outage):
        order = driver.next_order()
        driver.sweep.begin(order.number, order.attempt)
        store = Store(order.storage)
        key = replicate_key(order.experiment, order.number, order.config["seed"])
        store.begin(key, 1)
        store.commit(key, 1, 5, {}, [CurvePoint(5, {"valid/cross_entropy": 0.5}, 0)])
        entry = driver.sweep.entries[order.number]
        assert driver.read_so_far(entry).value == 0.5
        with outage():
            driver.sweep.cancel("cancelled on request")
        (ended,) = [each for each in ledger.load() if each.attempt]
        assert (ended.state, ended.result) == ("cancelled", None)
        driver._read_seconds = READ_SECONDS
        assert driver.read_so_far(entry) is None, "what was slow so far is not waited for"

    def test_that_starts_meanwhile_begins_when_the_store_is_back(
        self, driver, ledger, outage, monkeypatch
    ):
        looks = []
        with ExitStack() as stack:
            stack.enter_context(outage())

            def look(seconds: float) -> None:
                looks.append(tell(driver, ledger))
                if len(looks) == 3:
                    stack.close()

            clock = SimpleNamespace(sleep=look, monotonic=time.monotonic)
            monkeypatch.setattr("eigensweep.workers.driver.experiment.time", clock)
            driver._wait_for_store()
        assert [bool(notices) for notices in looks] == [True] * 3
        assert driver.next_order() is not None

    def test_leaves_its_marks_when_the_store_is_back(self, driver, ledger, outage, url):
        order = driver.next_order()
        driver.sweep.begin(order.number, order.attempt)
        with outage():
            ledger.want("pause")
            assert not driver.must_stop(), "its trials may commit and leave yet"
        assert not pause_mark(url, "e1").exists()
        driver.must_stop()
        Store(url).files.read("e1/marks/paused")

    def test_can_be_cancelled_meanwhile(self, driver, ledger, outage):
        with outage():
            assert driver.next_order() is None
            ledger.want("cancel")
            assert driver.must_stop()
        assert driver.sweep.is_over

    def test_that_died_of_it_all_the_same_is_known_by_its_error(self, url, outage):
        with outage(), pytest.raises(StoreAwayError) as error:
            Store(url).files.read("e1/x")
        raised = RuntimeError("Tune's own words")
        raised.__cause__ = error.value
        assert explain(raised).cause == "store"


class TestATrial:
    def test_that_was_begun_is_lost_and_goes_on_from_its_commit(self, driver, outage):
        order = driver.next_order()
        runner = Runner(order.to_dict())
        assert json.loads(runner.train()[REPORT])["step"] == 5
        with outage():
            told = runner.train()
        report = Report.from_dict(json.loads(told[REPORT]))
        assert (told[LOST], report.lost_by, report.outcome) == (True, "disk", None)
        again = Runner(replace(order, attempt=2, reported=5).to_dict())
        assert json.loads(again.train()[REPORT])["step"] == 10


class TestMissingKeys:
    @pytest.fixture
    def no_keys(self, monkeypatch, tmp_path):
        """Return a function that takes the keys away from this process."""

        def take() -> None:
            for name in s3.KEYS:
                monkeypatch.delenv(name)
            for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
                monkeypatch.setenv(name, str(tmp_path / "none"))
            monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
            S3FileSystem.clear_instance_cache()

        yield take
        S3FileSystem.clear_instance_cache()

    def test_are_no_outage_and_are_asked_for_by_name_and_node(
        self, driver, ledger, no_keys, monkeypatch
    ):
        keys = {name: os.environ[name] for name in s3.KEYS}
        no_keys()
        assert driver.next_order() is None
        (notice,) = tell(driver, ledger)
        assert "the store has refused the driver since" in notice["words"]
        for words in (platform.node(), "s3://lab", "AWS_ACCESS_KEY_ID", "before Ray started"):
            assert words in notice["words"]
        for name, value in keys.items():  # an administrator brings them
            monkeypatch.setenv(name, value)
        assert driver.next_order() is not None
        assert tell(driver, ledger) == []

    @pytest.mark.parametrize(
        "refusal",
        [PermissionError("Access Denied"), OSError("Forbidden: https://storage/b/lab\nno right")],
    )
    def test_that_are_wrong_are_told_alike(self, url, monkeypatch, refusal):
        store = Store(url)

        def refuse(*given: Any, **named: Any) -> None:
            raise refusal

        monkeypatch.setattr(store.files._library, "cat_file", refuse)
        with pytest.raises(StoreKeysError, match="has no keys that open s3://lab") as error:
            store.files.read("e1/x")
        assert disk_failure(error.value) is error.value

    @pytest.mark.parametrize(
        ("about", "words"),
        [
            ({"Code": "RequestTimeTooSkewed"}, "has a clock that is far from"),
            ({}, "something else than S3 answers, with status 403; a proxy may"),
        ],
    )
    def test_a_wrong_clock_and_a_proxy_are_told_as_that(self, url, monkeypatch, about, words):
        store = Store(url)

        def refuse(*given: Any, **named: Any) -> None:
            answer = {"Error": about, "ResponseMetadata": {"HTTPStatusCode": 403}}
            raise translate_boto_error(ClientError(answer, "GetObject"))

        monkeypatch.setattr(store.files._library, "cat_file", refuse)
        with pytest.raises(StoreAwayError, match=words) as error:
            store.files.read("e1/x")
        assert "AWS_ACCESS_KEY_ID" not in str(error.value)


class Page(BaseHTTPRequestHandler):
    """What a proxy with a page to log in answers to everything."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        content = b"<html><body>Please log in</body></html>"
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_PUT(self) -> None:
        self.do_GET()

    def log_message(self, *given: Any) -> None:
        """Say nothing."""


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Return the URL of a store in whose place a page answers."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Page)
    Thread(target=server.serve_forever, daemon=True).start()
    access = {"AWS_ACCESS_KEY_ID": "me", "AWS_SECRET_ACCESS_KEY": "mine"}
    access["AWS_ENDPOINT_URL"] = f"http://127.0.0.1:{server.server_port}"
    for name, value in access.items():
        monkeypatch.setenv(name, value)
    S3FileSystem.clear_instance_cache()
    yield "s3://lab/page"
    S3FileSystem.clear_instance_cache()
    server.shutdown()
    server.server_close()


def test_a_page_that_says_yes_to_everything_is_no_store(page):
    for write in (Store(page).files.write, Store(page).files.create):
        with pytest.raises(StoreAwayError, match="something else than S3 answers, with status 200"):
            write("e1/x", b"content")
    found = StoreProbe(page).find_problem() or ""
    assert "s3://lab/page shows a file that nobody wrote" in found


def test_a_full_disk_to_which_is_copied_is_named(tmp_path, monkeypatch):
    files, target = FolderFiles(tmp_path / "store"), tmp_path / "elsewhere" / "x"
    files.write("e1/x", b"content")

    def refuse(*given: Any) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    def fill(source: Path, to: Path) -> None:
        to.touch()
        raise OSError(errno.ENOSPC, "No space left on device", str(source))

    monkeypatch.setattr(os, "link", refuse)
    monkeypatch.setattr(shutil, "copyfile", fill)
    with pytest.raises(StorageError, match=rf"cannot write {target}: .*No space left"):
        files.fetch("e1/x", target)
    assert not target.exists()


class TestTheWatch:
    def test_asks_ever_less_often_and_at_once_when_it_is_back(self):
        clock = Clock()
        watch, pauses = StoreWatch("e1", clock), []
        for _ in range(8):
            with watch.asking():
                raise StoreAwayError("cannot read it")
            pauses.append(0.0)
            while not watch.may_ask:
                clock.now += 1.0
                pauses[-1] += 1.0
        assert (pauses[0], pauses[-1]) == (FIRST_PAUSE, LONGEST_PAUSE)
        with watch.asking():
            pass
        assert watch.may_ask
        assert watch.notice is None

    def test_tells_what_is_new_and_not_the_same_in_other_words(self):
        watch, seen = StoreWatch("e1", Clock()), []
        faults = [StoreAwayError("1"), StoreAwayError("2"), StoreKeysError("3"), StorageError("4")]
        for fault in faults:
            with watch.asking():
                raise fault
            seen.append(watch.notice)
        assert seen[0] is seen[1]
        assert [
            word
            for each in seen[1:]
            for word in ("answered", "refused", "be used")
            if word in each.words.partition(" since")[0]
        ] == ["answered", "refused", "be used"]


def test_a_store_that_hangs_is_asked_for_marks_once(tmp_path, monkeypatch):
    asked: list[str] = []

    def hang(files: FolderFiles, folder: str) -> list[str]:
        asked.append(folder)
        raise StoreAwayError("cannot read the store: no answer")

    touched = [marks.leave_mark(tmp_path, "e1", number, 1) for number in range(24)]
    for mark in touched[:12]:
        mark.touch()
    before = [mark.exists() for mark in touched]
    monkeypatch.setattr(FolderFiles, "names", hang)
    assert [mark.exists() for mark in touched] == before == [True] * 12 + [False] * 12
    assert len(asked) == 1
    monkeypatch.undo()
    monkeypatch.setattr(marks, "_AWAY_UNTIL", {})
    touched[12].touch()
    assert touched[12].exists()
