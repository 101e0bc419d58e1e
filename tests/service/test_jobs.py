"""The jobs of the service: side by side, tried again, stopped in the middle, and taken over."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import threading
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar

import pytest
from helpers.open_jobs import has_open
from sqlalchemy.exc import DataError, OperationalError
from waiting import wait_until

from eigensweep.analyses.messages import ChildOutcome, leave_outcome
from eigensweep.service.queue import jobs as module
from eigensweep.service.queue.jobs import (
    ChildRunner,
    Handler,
    JobRunner,
    NeverError,
    NotDoneError,
    StoppedError,
)
from eigensweep.service.record.errors import QuotaExceededError
from eigensweep.service.record.jobs import Jobs
from eigensweep.service.record.record import Record
from eigensweep.service.record.requests.analyses import Analyses
from eigensweep.service.record.requests.reproductions import Reproductions
from eigensweep.service.record.requests.state_files import take_over
from eigensweep.service.record.sql import database
from eigensweep.service.record.sql.tables import JobKind, JobRow

STATES: dict[str, Any] = json.loads(Path(__file__).with_name("states_in_files.json").read_text())
"""The files of a home whose service kept states in them, and what that service read from them."""


@pytest.fixture
def jobs(url: str) -> Jobs:
    return Jobs(url)


def make(kind: JobKind, key: str = "k", due_at: float = 0.0) -> JobRow:
    return JobRow(kind=kind, key=key, request={}, created_at=due_at, due_at=due_at, tries=0)


class Webhooks(Handler):
    """Sends messages, as a test says."""

    kind: ClassVar[JobKind] = "webhook"
    first_pause: ClassVar[float] = 1.0
    longest_pause: ClassVar[float] = 4.0

    def __init__(self, jobs: Jobs) -> None:
        super().__init__()
        self.jobs, self.done = jobs, list[str]()
        self.open = threading.Event()
        self.problem: Exception | None = None

    def work(self, job: JobRow) -> None:
        if self.problem is not None:
            raise self.problem
        assert self.open.wait(60)
        self.done.append(job.key)
        self.jobs.finish(job)


def put_off_two(jobs: Jobs, problem: Exception) -> list[tuple[str | None, float | None]]:
    """Let two jobs meet a problem; return the words that are kept of each, and when it is due."""
    handler = Webhooks(jobs)
    handler.problem = problem
    for key in "ab":
        jobs.put(make("webhook", key))
    JobRunner(jobs, [handler], clock=lambda: 0.0).tick(handler)
    return [(each.error, each.due_at) for each in jobs.list("webhook")]


class Analysing(Webhooks):
    """The same, for another kind."""

    kind: ClassVar[JobKind] = "analysis"
    most_tries: ClassVar[int | None] = 1


class TestRunner:
    def test_a_kind_that_hangs_holds_up_no_other(self, jobs):
        hangs, goes_on = Webhooks(jobs), Analysing(jobs)
        goes_on.open.set()
        runner = JobRunner(jobs, [hangs, goes_on])
        jobs.put(make("webhook"))
        runner.start()
        try:
            jobs.put(make("analysis"))
            wait_until(lambda: goes_on.done == ["k"])
            assert hangs.done == []
            hangs.open.set()
            wait_until(lambda: hangs.done == ["k"])
        finally:
            hangs.open.set()
            runner.stop()

    def test_jobs_of_a_kind_are_done_in_turn_the_longest_due_first(self, jobs):
        handler = Webhooks(jobs)
        handler.open.set()
        for key, due_at, tries in (("b", 2.0, 0), ("a", 3.0, 1), ("c", 1.0, 2), ("later", 13.0, 1)):
            job = make("webhook", key, due_at)
            job.tries = tries
            jobs.put(job)
        JobRunner(jobs, [handler], clock=lambda: 10.0).tick(handler)
        assert handler.done == ["c", "b", "a"]
        assert has_open(jobs, "webhook"), "one is due later"

    def test_pauses_grow_to_their_longest_and_a_restart_keeps_them(self, jobs):
        now, handler = [0.0], Webhooks(jobs)
        handler.problem = NotDoneError("away")
        jobs.put(make("webhook"))
        pauses = []
        for _ in range(4):
            JobRunner(jobs, [handler], clock=lambda: now[0]).tick(handler)
            assert has_open(jobs, "webhook")
            (job,) = jobs.list("webhook")
            pauses.append(job.due_at - now[0])
            now[0] = job.due_at
        assert (pauses, job.error, job.tries) == ([1.0, 2.0, 4.0, 4.0], "away", 4)

    @pytest.mark.parametrize("tries", [0, 1])
    def test_a_clock_that_is_set_back_holds_up_no_job(self, jobs, tries):
        now, handler = [100_000.0], Webhooks(jobs)
        handler.open.set()
        runner = JobRunner(jobs, [handler], clock=lambda: now[0])
        jobs.put(make("webhook", due_at=now[0]))
        if tries:
            handler.problem = NotDoneError("away")
            runner.tick(handler)
            handler.problem = None
        now[0] -= 86_400
        runner.tick(handler)
        assert not has_open(jobs, "webhook")

    @pytest.mark.parametrize("problem", [NeverError("gone"), NotDoneError("no"), KeyError("bug")])
    def test_what_is_given_up_has_failed_and_is_not_tried_again(self, jobs, problem):
        handler = Analysing(jobs)
        handler.problem = problem
        jobs.put(make("analysis"))
        JobRunner(jobs, [handler]).tick(handler)
        assert not has_open(jobs, handler.kind)
        (job,) = jobs.list("analysis")
        assert (job.state, job.due_at, job.tries) == ("failed", None, 1)
        assert str(problem) in job.error
        assert job.finished_at is not None

    def test_a_bug_gives_up_what_waits_for_others(self, jobs):
        class Reporting(Webhooks):
            most_tries: ClassVar[int | None] = 9
            fails_by_bugs: ClassVar[bool] = True

        handler, now = Reporting(jobs), [0.0]
        jobs.put(make("webhook"))
        for problem, state in ((NotDoneError("away"), "queued"), (KeyError("bug"), "failed")):
            handler.problem = problem
            JobRunner(jobs, [handler], clock=lambda: now[0]).tick(handler)
            (job,) = jobs.list("webhook")
            now[0] = job.due_at or now[0]
            assert job.state == state
        jobs.put(JobRow(kind="webhook", key="k", request={}, created_at=0.0, due_at=0.0))
        assert jobs.list("webhook")[0].tries == 0, "asked for again, it begins anew"

    def test_a_quota_puts_off_its_own_job_and_no_other(self, jobs):
        words = "user 'anna' may have 1 experiment that is not over"
        assert put_off_two(jobs, QuotaExceededError(words)) == [(words, 1.0)] * 2

    @pytest.mark.parametrize(
        ("problem", "words"),
        [
            (DataError("UPDATE", {"s": "secret"}, ValueError("out of range")), "out of range"),
            (OSError(errno.ENOSPC, "disk full", "/a/b"), "[Errno 28] disk full: '/a/b'"),
        ],
    )
    def test_what_is_refused_of_one_job_holds_up_no_other(self, jobs, problem, words):
        assert put_off_two(jobs, problem) == [(words, 1.0)] * 2

    def test_a_database_that_is_away_puts_off_no_job(self, jobs):
        with pytest.raises(OperationalError):
            put_off_two(jobs, OperationalError("UPDATE", {}, Exception("the server is gone")))
        assert [each.tries for each in jobs.list("webhook")] == [0, 0]

    def test_an_error_with_a_nul_holds_up_no_other_job(self, jobs):
        problem = NotDoneError("the log says: \0\0junk")
        assert put_off_two(jobs, problem) == [("the log says: junk", 1.0)] * 2
        failed = make("webhook", "c")
        failed.error = "bytes: \0"
        assert jobs.put(failed).error == "bytes: "

    def test_what_is_cancelled_while_it_is_tried_stays_so(self, jobs):
        jobs.put(make("webhook"))
        (job,) = jobs.list_due("webhook", 1.0)
        cancelled = make("webhook")
        cancelled.state, cancelled.due_at = "cancelled", None
        jobs.put(cancelled)
        jobs.put_off(job, "away", 5.0)
        assert not has_open(jobs, "webhook")

    def test_a_service_that_stops_leaves_the_job_to_the_next(self, jobs):
        handler = Webhooks(jobs)
        handler.problem = StoppedError()
        jobs.put(make("webhook"))
        JobRunner(jobs, [handler]).tick(handler)
        assert has_open(jobs, handler.kind)
        (job,) = jobs.list_due("webhook", 1.0)
        assert (job.state, job.tries) == ("queued", 0)


def test_a_bug_in_one_look_leaves_jobs_to_the_next(jobs, monkeypatch, caplog):
    class Stumbling(Webhooks):
        looks = 0

        def look(self) -> None:
            self.looks += 1
            if self.looks == 1:
                raise KeyError("a bug")

    monkeypatch.setattr(module, "PAUSE_SECONDS", 0.01)
    handler = Stumbling(jobs)
    handler.open.set()
    jobs.put(make("webhook"))
    runner = JobRunner(jobs, [handler])
    runner.start()
    wait_until(lambda: handler.done)
    runner.stop()
    assert "a bug" in caplog.text


@pytest.fixture
def play(tmp_path, monkeypatch):
    """Return what lets each child be a shell that runs a script."""

    def put(script: str) -> None:
        program = tmp_path / "python"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o700)
        monkeypatch.setattr(sys, "executable", str(program))

    return put


def test_a_child_that_is_killed_by_a_stop_has_not_failed(tmp_path, play):
    play("exec sleep 600")
    children = ChildRunner("a module")
    threading.Timer(0.5, children.kill).start()
    for _ in ("killed while it runs", "killed as soon as it is started"):
        with pytest.raises(StoppedError):
            children.run(tmp_path / "folder", "")


def test_a_child_that_nobody_wants_any_more_is_killed(tmp_path, monkeypatch, play):
    play("echo $$ > new\nmv new pid\nexec sleep 600")
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.05)
    pid = tmp_path / "folder" / "pid"
    children = ChildRunner("a module", is_wanted=lambda: not pid.exists())
    with pytest.raises(StoppedError):
        children.run(tmp_path / "folder", "")
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


def test_a_child_that_is_looked_at_gets_its_order(tmp_path, monkeypatch, play):
    play("sleep 0.3\nwc -c > size")
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.05)
    assert ChildRunner("a module").run(tmp_path, "x" * 1_000_000) is None
    assert (tmp_path / "size").read_text().strip() == "1000000"


def test_what_is_due_is_known_even_while_the_database_is_away(jobs, monkeypatch):
    job = jobs.put(make("webhook"))
    assert jobs.is_due(job)
    jobs.finish(job)
    assert not jobs.is_due(job)
    assert not jobs.is_due(make("analysis"))

    def refuse(*_: Any) -> None:
        raise OperationalError("select", {}, OSError("no route"))

    monkeypatch.setattr(database, "read", refuse)
    assert jobs.is_due(job)


def test_a_child_that_cannot_be_started_is_tried_again(tmp_path, monkeypatch):
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    monkeypatch.setattr(subprocess, "Popen", refuse)
    with pytest.raises(NotDoneError, match="Cannot allocate memory"):
        ChildRunner("a module").make(tmp_path, ChildOutcome(), ChildOutcome)


@pytest.mark.parametrize(("code", "waits"), [(errno.EIO, True), (errno.ENOENT, False)])
def test_an_outcome_that_cannot_be_read_now_is_no_failure(tmp_path, monkeypatch, code, waits):
    def refuse(path: Path) -> bytes:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(Path, "read_bytes", refuse)
    children = ChildRunner("a module")
    monkeypatch.setattr(children, "run", lambda folder, order: None)
    with pytest.raises(NotDoneError, match="Input/output") if waits else nullcontext():
        found = children.make(tmp_path, ChildOutcome(), ChildOutcome)
        assert found.error == "its process ended without writing an outcome"


def test_a_child_is_tried_again_if_its_outcome_cannot_be_kept(tmp_path, play):
    play("exit 75")
    with pytest.raises(NotDoneError, match="takes no outcome"):
        ChildRunner("a module").make(tmp_path / "folder", ChildOutcome(), ChildOutcome)

    (tmp_path / "a file").touch()
    with pytest.raises(SystemExit, match="75"):
        leave_outcome(tmp_path / "a file", ChildOutcome())


class TestStatesInFiles:
    """A home whose service kept the states of analyses and reproductions in files."""

    @pytest.fixture
    def home(self, tmp_path: Path) -> Path:
        for name, content in STATES["files"].items():
            path = tmp_path / "home" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(content))
        return tmp_path / "home"

    def read(self, record: Record, home: Path) -> dict[str, list[dict[str, Any]]]:
        jobs = Jobs(record.url)
        analyses = Analyses(jobs, home / "analyses").list(lambda _: True)
        kept = Reproductions(jobs, home / "reproductions", record, home)
        found = {
            "analyses": [asdict(each) for each in analyses],
            "reproductions": [asdict(each) for each in kept.list()],
        }
        told = {
            name: [{key: each[key] for key in STATES[name][0]} for each in found[name]]
            for name in found
        }
        return json.loads(json.dumps(told))

    def test_they_come_over_exactly_and_once(self, record, home):
        take_over(record.url, home)
        found = self.read(record, home)
        assert found == {name: STATES[name] for name in found}
        assert list(home.glob("*/*/state.json")) == []
        take_over(record.url, home)
        assert self.read(record, home) == found

    def test_open_work_is_due_in_its_order_with_its_request(self, record, home):
        take_over(record.url, home)
        due = Jobs(record.url).list_due("analysis", 2e9)
        assert [job.state for job in due] == ["running", "queued"]
        assert due[0].request["options"] == {"size": 8}
        due = Jobs(record.url).list_due("reproduction", 2e9)
        assert [job.state for job in due] == ["running", "reporting"]
        (spectra,) = [
            job for job in Jobs(record.url).list("analysis") if job.request["name"] == "spectra"
        ]
        assert spectra.request["subject"]["trial"]["place"] == "done/00000"

    def test_a_service_that_dies_meanwhile_has_the_next_one_go_on(self, record, home, monkeypatch):
        unlink = Path.unlink

        def die(path: Path, missing_ok: bool = False) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(Path, "unlink", die)
        with pytest.raises(KeyboardInterrupt):
            take_over(record.url, home)
        monkeypatch.setattr(Path, "unlink", unlink)
        take_over(record.url, home)
        found = self.read(record, home)
        assert found == {name: STATES[name] for name in found}

    def test_known_work_is_left_and_a_damaged_file_passed_over(self, record, home, caplog):
        first = next(iter(home.glob("analyses/*")))
        Jobs(record.url).put(make("analysis", first.name))
        (home / "reproductions/0000000000000002/state.json").write_text("{")
        take_over(record.url, home)
        assert Jobs(record.url).find("analysis", first.name).request == {}
        assert "0000000000000002/state.json" in caplog.text
        assert len(Jobs(record.url).list("reproduction")) == 4
