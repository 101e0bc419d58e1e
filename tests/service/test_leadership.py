"""Which of several services leads: the lock, the term, and what the others say."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, ClassVar

import pytest
from helpers.open_jobs import has_open
from sqlalchemy import text
from waiting import wait_until

from eigensweep.protocol.ledger import SupersededError
from eigensweep.protocol.messages import DriverOptions
from eigensweep.search_spaces.spec import ExperimentSpec
from eigensweep.service.queue.dispatcher import Dispatcher
from eigensweep.service.queue.jobs import Handler, JobRunner, NotDoneError
from eigensweep.service.record.errors import NotLeadingError
from eigensweep.service.record.jobs import Jobs
from eigensweep.service.record.leadership import HEARTBEAT_SECONDS, SILENT_SECONDS, Leadership
from eigensweep.service.record.ledger import RecordLedger
from eigensweep.service.record.record import Record
from eigensweep.service.record.sql import database
from eigensweep.service.record.sql.tables import JobKind, JobRow

OPTIONS = DriverOptions(storage="/storage")

HOLD = """
import sys, time
from eigensweep.service.record.leadership import Leadership
leadership = Leadership(sys.argv[1])
print(leadership.hold(), flush=True)
time.sleep(600)
"""

CUT = text(
    "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND granted "
    "AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)


def about(name: str) -> Any:
    return {
        "host": name,
        "pid": 7,
        "address": f"http://{name}:8642",
        "home": f"/home/{name}",
        "storage": "/storage",
        "mlflow": None,
        "ray": None,
    }


@pytest.fixture
def make(each_url: str) -> Iterator[Any]:
    """Return what makes a service's part in the lead, as if it were another process."""
    with ExitStack() as stack:

        def make_one(**settings: Any) -> Leadership:
            made = Leadership(each_url, **settings)
            stack.callback(made.stop)
            return made

        yield make_one


@pytest.fixture
def lead(make: Any) -> Any:
    """Return what makes one that leads."""

    def make_leader(name: str, **settings: Any) -> Leadership:
        made: Leadership = make(**settings)
        wait_until(made.hold)  # PostgreSQL ends a process of its own with each connection
        made.begin(about(name))
        return made

    return make_leader


def overtake(url: str) -> None:
    """Raise the term, as another service does that has taken the lock meanwhile."""
    statement = text("UPDATE leaders SET term = term + 1, heartbeat_at = heartbeat_at + 1")
    database.write(url, lambda session: session.execute(statement))


class TestLeadership:
    def test_one_leads_and_the_others_wait_until_it_is_gone(self, lead, make):
        first, second = lead("one"), make()
        assert not second.hold()
        assert second.look().about["host"] == "one"
        assert (first.term, second.term) == (1, None)
        first.stop()
        wait_until(second.hold)  # PostgreSQL may need a moment to see that the connection is closed
        second.begin(about("two"))
        assert second.term == 2
        assert second.look().words.startswith("this service (two pid 7 at http://two:8642) leads")

    def test_a_killed_process_leads_no_longer(self, make, each_url):
        command = [sys.executable, "-c", HOLD, each_url]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
            assert other.stdout.readline() == "True\n"
            waits = make()
            assert not waits.hold()
            other.kill()
        wait_until(waits.hold)

    def test_two_ways_to_one_sqlite_file_are_one_lock(self, lead, url, tmp_path):
        (tmp_path / "link.db").symlink_to(tmp_path / "record.db")
        for each in (f"sqlite:///{tmp_path}/link.db", f"sqlite:///{tmp_path}/../{tmp_path.name}"):
            other = Leadership(each if each.endswith(".db") else f"{each}/record.db")
            first = Leadership(url)
            assert first.hold()
            assert not other.hold()
            first.stop()

    def test_a_heartbeat_is_counted_by_the_clock_of_who_reads(self, lead, make):
        mine, theirs = [0.0], [1000.0]
        leader = lead("one", clock=lambda: mine[0])
        waits = make(clock=lambda: theirs[0])
        waits.look()
        theirs[0] += SILENT_SECONDS + 1
        assert waits.look().is_silent
        mine[0] += HEARTBEAT_SECONDS
        leader.keep()
        assert waits.look().heartbeat_seconds == 0
        assert "waits: one pid 7 at http://one:8642 leads since" in waits.words
        assert waits.words.endswith("heartbeat 0 s ago")

    def test_it_notices_that_another_one_leads(self, lead, each_url):
        now = [0.0]
        leader = lead("one", clock=lambda: now[0])
        leader.keep()
        overtake(each_url)
        now[0] += HEARTBEAT_SECONDS
        leader.keep()
        assert leader.term is None

    def test_a_term_that_a_standby_gives_once_more_is_another_one(self, lead, make, each_url):
        """The database went back to before the first one's term, and another one led in it."""
        first = lead("first")
        back = text("UPDATE leaders SET term = term - 1")
        database.write(each_url, lambda rows: rows.execute(back))
        term, _ = make()._raise_term(about("second"), time.time())
        assert term == first.term
        with pytest.raises(NotLeadingError):
            database.write(each_url, first.require)
        first.term = term
        assert not first._beat(term)

    def test_a_database_that_is_away_ends_no_lead(self, lead, monkeypatch):
        leader = lead("one")
        with monkeypatch.context() as patch:
            patch.setattr(leader._lock, "hold", fail)
            leader.keep()
            assert "away for a night" in leader.problem
        leader.keep()
        assert (leader.term, leader.problem) == (1, None)


def fail() -> bool:
    raise OSError("the database is away for a night")


class TestPostgresql:
    def test_a_cut_connection_is_made_anew_and_the_lead_goes_on(self, postgresql_url, request):
        leader = Leadership(postgresql_url)
        request.addfinalizer(leader.stop)
        assert leader.hold()
        leader.begin(about("one"))
        cut(postgresql_url)
        wait_until(lambda: count_locks(postgresql_url) == 1)
        wait_until(lambda: leader.problem is None)
        assert leader.term == 1

    def test_after_a_cut_the_first_to_take_the_lock_leads(self, postgresql_url, request):
        now = [0.0]
        first, second = (Leadership(postgresql_url, lambda: now[0]) for _ in range(2))
        first._stopping.set()  # it stands still, as after SIGSTOP
        for each in (first, second):
            request.addfinalizer(each.stop)
        assert first.hold()
        first.begin(about("one"))
        cut(postgresql_url)
        wait_until(second.hold)
        second.begin(about("two"))
        first.keep()  # finds its connection closed
        first.keep()
        assert (first.term, second.term) == (None, 2)

    def test_two_schemas_of_a_database_are_two_records(self, bare_postgresql_url):
        with database.engine(bare_postgresql_url).begin() as connection:
            connection.execute(text("CREATE SCHEMA other"))
        first = Leadership(bare_postgresql_url)
        second = Leadership(f"{bare_postgresql_url}&options=-csearch_path%3Dother")
        assert (first.hold(), second.hold()) == (True, True)
        assert not Leadership(bare_postgresql_url).hold()
        first.stop()
        second.stop()


def count_locks(url: str) -> int:
    with database.engine(url).begin() as connection:
        return len(connection.execute(text(str(CUT).replace("pg_terminate_backend", ""))).all())


def cut(url: str) -> None:
    with database.engine(url).begin() as connection:
        assert connection.execute(CUT).scalar_one()


class TestTwoServices:
    """Two records and two dispatchers on one database; one of them believes that it still leads."""

    def test_what_leads_no_more_claims_gives_up_and_counts_nothing(
        self, lead, each_url, launcher, spec
    ):
        old, new = Record(each_url), Record(each_url)
        old.leadership = lead("one")
        id = new.add(ExperimentSpec.model_validate(spec()))[0].id
        before = Dispatcher(old, launcher=launcher, options=OPTIONS, problem=None)
        before.tick()
        overtake(each_url)
        new.leadership = lead_again(each_url)
        successor = type(launcher)()
        after = Dispatcher(new, launcher=successor, options=OPTIONS, problem=None)
        after.tick()
        assert [driver.ledger.generation for driver in successor.launched] == [2]
        with pytest.raises(SupersededError):
            launcher.launched[0].ledger.set_total(1)
        launcher.launched[0].now = "died"
        for act in (
            before.tick,
            lambda: old.claim(id),
            lambda: old.give_up(id, "no"),
            lambda: old.count_death(id),
            lambda: old.hold_delivery(id, "no"),
        ):
            with pytest.raises(NotLeadingError, match="waits"):
                act()
        row = new.row(id)
        assert (row.state, row.generation, row.deaths) == ("starting", 2, 0)
        assert len(launcher.launched) == 1

    @pytest.mark.parametrize("outlived", [False, True])
    def test_a_night_without_a_service_is_no_work(self, lead, each_url, spec, outlived):
        record, night, now = Record(each_url), 8 * 3600.0, [0.0]
        record.leadership = lead("one", clock=lambda: now[0])
        limits = {"wall_seconds": 3600}
        id = record.add(ExperimentSpec.model_validate(spec(limits=limits)))[0].id
        ledger = RecordLedger(each_url, id, record.claim(id).generation)
        ledger.open(0, "scornn", {}, {"training": {"steps": 100}}, "h")
        ledger.begin(0)
        record.leadership.serves = True
        now[0] = HEARTBEAT_SECONDS
        record.leadership.keep()
        for table, times in {
            "experiments": ("started_at", "claimed_at"),
            "attempts": ("started_at",),
            "leaders": ("heartbeat_at",),
        }.items():
            earlier = ", ".join(f"{each} = {each} - {night + 60}" for each in times)
            statement = text(f"UPDATE {table} SET {earlier}")
            database.write(each_url, lambda rows, do=statement: rows.execute(do))
        later = text("UPDATE leaders SET heartbeat_at = heartbeat_at + 60")
        database.write(each_url, lambda rows: rows.execute(later))
        record.leadership.stop()
        lead("two").stop()  # before it was ready
        record.leadership = lead("three")
        generation = record.claim(id, outlived=outlived).generation
        again = RecordLedger(each_url, id, generation)
        work = night + 60 if outlived else 60
        assert again.resume_state().spent_seconds == pytest.approx(work, abs=20)
        again.interrupt(0, 1, "its driver was lost")
        again.begin(0)
        assert record.row(id).trial_seconds == pytest.approx(work, abs=20)
        reasons = text("SELECT reason FROM attempts ORDER BY attempt")
        first, _ = database.look(each_url, lambda rows: rows.execute(reasons).scalars().all())
        words = "its driver was lost" if outlived else "its driver ended with the service"
        assert first == words
        record.claim(id)
        assert again.resume_state().spent_seconds == pytest.approx(work, abs=20), "once a term"

    @pytest.mark.parametrize("error", [None, NotDoneError("away"), KeyError("a bug")])
    def test_one_that_lost_the_lead_writes_no_end_of_a_job(self, lead, each_url, error):
        old, new = Record(each_url), Record(each_url)
        old.leadership = lead("one")
        jobs = Jobs(each_url, old.fence)
        jobs.put(JobRow(kind="webhook", key="k", request={}, created_at=0.0, due_at=0.0, tries=0))
        overtaken = Playing(jobs, lambda: overtake(each_url), error)
        with pytest.raises(NotLeadingError, match="waits"):
            JobRunner(jobs, [overtaken]).tick(overtaken)
        (job,) = jobs.list_due("webhook", 1.0)
        assert (job.state, job.tries, job.error) == ("queued", 0, None)
        new.leadership = lead_again(each_url)
        jobs = Jobs(each_url, new.fence)
        follows = Playing(jobs, lambda: None)
        JobRunner(jobs, [follows]).tick(follows)
        assert jobs.find("webhook", "k").state == "finished"

    def test_one_that_lost_the_lead_meanwhile_removes_nothing(self, lead, each_url, spec):
        record = Record(each_url)
        record.leadership = lead("one")
        ids = [record.add(ExperimentSpec.model_validate(spec()))[0].id for _ in range(2)]
        for id in ids:
            record.cancel(id)
        record.delete(ids[0])
        record.prune(ids[1], "none")
        overtake(each_url)
        for end in (lambda: record.remove(ids[0]), lambda: record.set_pruned(ids[1], "none")):
            with pytest.raises(NotLeadingError):
                end()
        assert record.row(ids[0]).state == "deleting"
        assert has_open(Jobs(each_url), "pruning")

    def test_a_thread_of_jobs_ends_with_the_lead(self, lead, each_url, caplog):
        record = Record(each_url)
        record.leadership = lead("one")
        jobs = Jobs(each_url, record.fence)
        jobs.put(JobRow(kind="webhook", key="k", request={}, created_at=0.0, due_at=0.0, tries=0))
        runner = JobRunner(jobs, [Playing(jobs, lambda: overtake(each_url))])
        runner.start()
        wait_until(lambda: "jobs are left to the leader" in caplog.text, lambda: caplog.text)
        runner.stop()
        assert record.leadership.term is None

    def test_one_that_waits_answers_takes_posts_and_says_who_leads(
        self, make, lead, record, client, each_url, spec, monkeypatch
    ):
        leader, waits = lead("one"), make()
        assert not waits.hold()
        waits.look()
        record.leadership = waits
        assert client.post("/v1/experiments", json=spec()).status_code == 201
        words = "this service waits: one pid 7 at http://one:8642 leads since"
        ready = client.get("/readyz").json()
        assert ready["ready"]
        assert words in ready["checks"]["leader"]["detail"]
        found = client.get("/v1/cluster").json()["leader"]
        assert (found["here"], found["host"], found["pid"]) == (False, "one", 7)
        assert words in found["words"]
        assert words[1:] in client.get("/").text
        assert words[1:] in client.get("/cluster").text
        refused = client.post("/v1/reproductions", json={"name": "enrnn/figure-2"})
        assert (refused.status_code, words in refused.json()["detail"]) == (503, True)
        record.leadership = leader
        assert client.get("/v1/cluster").json()["leader"]["here"]
        assert "leads since" not in client.get("/").text

    def test_one_whose_leader_is_silent_is_not_ready(self, make, lead, record, client):
        now = [0.0]
        leader, waits = lead("one"), make(clock=lambda: now[0])
        waits.look()
        record.leadership = waits
        now[0] += SILENT_SECONDS + 1
        answer = client.get("/readyz")
        assert (answer.status_code, answer.json()["checks"]["leader"]["ready"]) == (503, False)
        assert leader.term == 1


class Playing(Handler):
    """Does a job as a test says."""

    kind: ClassVar[JobKind] = "webhook"

    def __init__(
        self, jobs: Jobs, meanwhile: Callable[[], None], error: Exception | None = None
    ) -> None:
        super().__init__()
        self.jobs, self.meanwhile, self.error = jobs, meanwhile, error

    def work(self, job: JobRow) -> None:
        self.meanwhile()
        if self.error is not None:
            raise self.error
        self.jobs.finish(job)


def lead_again(url: str) -> Leadership:
    """Return what leads in the term that the row has by now."""
    made = Leadership(url)
    made.look()
    made.term, _, made._began, _ = made._row
    return made
