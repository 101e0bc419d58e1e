"""The record: its schema, its queue, its pages."""

from __future__ import annotations

import copy
import threading
import time
from dataclasses import replace
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import event, make_url, select, text, update
from sqlalchemy.exc import DBAPIError
from waiting import PATIENCE

from eigensweep.protocol.ledger import StaleWriteError
from eigensweep.results.trial_result import ReplicateResult, Result
from eigensweep.search_spaces.spec import ExperimentSpec
from eigensweep.service.api.answers.schemas import TrialSummary, Views
from eigensweep.service.record.errors import IdempotencyKeyReusedError, WrongStateError
from eigensweep.service.record.ledger import RecordLedger
from eigensweep.service.record.migrations import (
    RecordUnusableError,
    compare_versions,
    migrate,
)
from eigensweep.service.record.record import Record
from eigensweep.service.record.sql import database
from eigensweep.service.record.sql.database import ReadOnlyError, WrongSchemaError, is_away
from eigensweep.service.record.sql.rows import RowSession
from eigensweep.service.record.sql.tables import Base, ExperimentRow, TrialCount, TrialRow
from eigensweep.service.record.views.progress import compute_progress
from eigensweep.service.record.views.queries import StateCount
from eigensweep.service.settings import Settings, StartError
from eigensweep.workers.deaths import explain

CONFIG: dict[str, Any] = {"training": {"steps": 100}, "seed": 0, "replicates": 1}


def add(record: Record, spec: dict[str, Any], key: str | None = None) -> str:
    return record.add(ExperimentSpec.model_validate(spec), key)[0].id


def post_and_claim(record: Record, spec: dict[str, Any]) -> RecordLedger:
    claim = record.claim(add(record, spec))
    assert claim is not None
    return RecordLedger(record.url, claim.id, claim.generation)


class TestSchema:
    def test_migrations_lead_to_the_tables_of_the_code(self, each_url):
        with database.engine(each_url).connect() as connection:
            context = MigrationContext.configure(connection, opts={"compare_type": True})
            assert compare_metadata(context, Base.metadata) == []

    def test_migrating_again_changes_nothing(self, url, record, spec):
        id = add(record, spec())
        migrate(url)
        assert record.row(id).state == "queued"

    def test_a_record_of_a_newer_version_is_refused_with_words(self, url):
        with database.engine(url).execution_options(writes=True).begin() as connection:
            connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
        with pytest.raises(StartError, match="EIGENSWEEP_HOME"):
            migrate(url)

    def test_a_record_before_the_baseline_is_told_the_way(self, url):
        with database.engine(url).execution_options(writes=True).begin() as connection:
            connection.exec_driver_sql("UPDATE alembic_version SET version_num = '0022'")
        with pytest.raises(StartError, match="start it once with the last Eigensweep"):
            migrate(url)
        assert compare_versions(url)[0] == "0022"

    def test_a_database_out_of_reach_is_told_in_words(self, tmp_path):
        with pytest.raises(RecordUnusableError, match="EIGENSWEEP_DATABASE_URL"):
            migrate(f"sqlite:///{tmp_path}/nowhere/record.db")
        (tmp_path / "text.db").write_text("no database, but a text that is long enough " * 9)
        with pytest.raises(RecordUnusableError, match="not a database"):
            migrate(f"sqlite:///{tmp_path}/text.db")


@pytest.mark.timeout(60)
class TestWrongSchema:
    """What is missing from the database is told at once, however long an outage is waited for."""

    @pytest.fixture
    def ledger(self, each_url: str, spec: Any) -> RecordLedger:
        found = replace(post_and_claim(Record(each_url), spec()), patience=3600.0)
        found.open(0, "scornn", {}, CONFIG, "h")
        return found

    @staticmethod
    def change(url: str, statement: str) -> None:
        with database.engine(url).execution_options(writes=True).begin() as connection:
            connection.exec_driver_sql(statement)

    def test_a_missing_table_is_an_error_that_says_what_to_run(self, ledger):
        self.change(ledger.url, "ALTER TABLE experiments RENAME TO elsewhere")
        record = Record(ledger.url)
        for act in (lambda: ledger.set_total(3), ledger.experiment_run, record.ping):
            with pytest.raises(WrongSchemaError, match="eigensweep serve") as raised:
                act()
            assert not is_away(raised.value)
            assert explain(raised.value).cause == "code", "no experiment is given up for it"

    def test_a_missing_column_is_one_as_well(self, ledger):
        self.change(ledger.url, "ALTER TABLE attempts DROP COLUMN token")
        for act in (ledger.load, lambda: ledger.begin(0)):
            with pytest.raises(WrongSchemaError, match="token"):
                act()

    def test_wrong_sql_is_a_bug_and_not_waited_for(self, each_url):
        with pytest.raises(DBAPIError, match="syntax"):
            database.read(each_url, lambda session: session.execute(text("SELEC 1")), 3600.0)


def test_a_postgresql_that_only_reads_is_away_for_writes(postgresql_url, spec):
    """As a standby that a failover leads to, or a server that is full."""
    whole = make_url(postgresql_url)
    options = f"{whole.query.get('options', '')} -c default_transaction_read_only=on"
    url = whole.update_query_dict({"options": options}).render_as_string(hide_password=False)
    record = Record(url)
    with pytest.raises(ReadOnlyError, match="read-only, as a standby is"):
        record.ping()
    assert record.list_queued(3) == []
    with pytest.raises(DBAPIError) as raised:
        add(record, spec())
    assert is_away(raised.value)
    Record(postgresql_url).ping()
    database.engine(url).dispose()


class TestQueue:
    def test_it_hands_out_by_priority_and_then_by_age(self, record, spec):
        ids = [add(record, spec(name=f"e{p}", priority=p)) for p in (0, 5, 0, 5)]
        assert record.list_queued(3) == [ids[1], ids[3], ids[0]]

    def test_a_key_of_an_experiment_removed_at_that_moment_is_free(
        self, postgresql_url, spec, monkeypatch
    ):
        record = Record(postgresql_url)
        first, execute, is_removed = add(record, spec(), "k"), RowSession.execute, []

        def execute_beside_a_removal(rows: RowSession, statement: Any, params: Any = None) -> Any:
            found = execute(rows, statement, params)
            if "idempotency_key =" in str(statement) and not is_removed:
                is_removed.append(True)
                with database.engine(postgresql_url).begin() as other:
                    other.execute(text("DELETE FROM experiments"))
            return found

        monkeypatch.setattr(RowSession, "execute", execute_beside_a_removal)
        second = add(record, spec(), "k")
        assert is_removed
        assert second != first
        assert record.row(second).state == "queued"

    def test_a_repeated_key_finds_the_first_post(self, each_url, spec):
        record = Record(each_url)
        assert add(record, spec(), "k") == add(record, spec(), "k")
        with pytest.raises(IdempotencyKeyReusedError):
            add(record, spec(name="another"), "k")
        assert len(record.experiments()) == 1

    def test_a_repeated_key_finds_what_an_earlier_version_stored(self, record, spec):
        """Its specs had fewer fields, so the digest of the same body was another."""
        id = add(record, spec(), "k")
        stored = copy.deepcopy(record.row(id).spec)
        assert stored["search"].pop("constraints") == []
        change = update(ExperimentRow).values(spec=stored, fingerprint="f")
        database.write(record.url, lambda rows: rows.execute(change))
        assert add(record, spec(), "k") == id
        with pytest.raises(IdempotencyKeyReusedError):
            add(record, spec(name="another"), "k")

    def test_what_waits_is_cancelled_at_once_with_nothing_to_drive(self, record, spec):
        id = add(record, spec())
        record.cancel(id)
        record.cancel(id)
        assert record.row(id).state == "cancelled"
        assert record.claim(id) is None
        kinds = [event.kind.split(".")[1] for event in record.events(id)]
        assert kinds == ["queued", "cancel_requested", "cancelled"]

    def test_what_is_over_cannot_be_cancelled(self, record, spec):
        ledger = post_and_claim(record, spec())
        ledger.end("completed")
        with pytest.raises(WrongStateError, match="completed"):
            record.cancel(ledger.experiment_id)

    def test_a_claim_notes_the_steps_before_it_without_reused_ones(self, record, spec):
        ledger = post_and_claim(record, spec())
        assert record.row(ledger.experiment_id).claimed_steps == 0
        for number, outcome in enumerate(["completed", "reused", "pruned"]):
            ledger.open(number, "scornn", {}, CONFIG, f"h{number}")
            attempt = ledger.begin(number)
            ledger.finish(number, attempt, outcome, Result(value=0.5, step=10 + number))
        record.claim(ledger.experiment_id)
        assert record.row(ledger.experiment_id).claimed_steps == 10 + 12

    def test_giving_up_fails_it_and_shuts_its_last_driver_out(self, record, spec):
        ledger = post_and_claim(record, spec())
        record.give_up(ledger.experiment_id, "its drivers died")
        row = record.row(ledger.experiment_id)
        assert (row.state, row.error) == ("failed", "its drivers died")
        with pytest.raises(StaleWriteError):
            ledger.set_total(1)

    def test_deaths_are_counted_anew_after_progress(self, record, spec):
        ledger = post_and_claim(record, spec())
        id = ledger.experiment_id
        assert [record.count_death(id) for _ in range(2)] == [1, 2]
        ledger.open(0, "scornn", {}, {}, "", error="no")
        assert [record.count_death(id) for _ in range(2)] == [1, 2]

    def test_the_end_of_a_trial_that_was_opened_again_is_progress(self, record, spec):
        ledger = post_and_claim(record, spec())
        id, config = ledger.experiment_id, {"training": {"steps": 9}, "replicates": 1}
        for number in (0, 1):
            ledger.open(number, "scornn", {}, config, f"h{number}")
            ledger.finish(number, ledger.begin(number), "completed", Result(value=1.0, step=9))
        assert record.count_death(id) == 1
        for number in (0, 1):
            ledger.reopen(number, config | {"replicates": 2}, "seed 1 of the race")
        assert record.count_death(id) == 2
        ledger.finish(0, ledger.begin(0), "completed", Result(value=1.0, step=9, replicates=2))
        assert record.count_death(id) == 1

    def test_ids_sort_by_the_time_they_were_made(self, record, spec):
        ids = []
        for _ in range(5):
            ids.append(add(record, spec()))
            time.sleep(0.002)
        assert ids == sorted(ids)


class StepCounter:
    """Counts the instructions that SQLite's virtual machine takes, to the nearest ten."""

    def __init__(self, url: str) -> None:
        self.engine, self.steps = database.engine(url), 0

    def __enter__(self) -> StepCounter:
        self.engine.dispose()  # so that each connection is a new one
        event.listen(self.engine, "connect", self._watch)
        return self

    def __exit__(self, *_: object) -> None:
        event.remove(self.engine, "connect", self._watch)
        self.engine.dispose()

    def _watch(self, connection: Any, _: Any) -> None:
        connection.set_progress_handler(self._count, 10)

    def _count(self) -> int:
        self.steps += 10
        return 0


class TestPages:
    def test_the_best_trial_is_the_lowest_of_the_ranked(self, each_url, spec):
        record = Record(each_url)
        ledger = post_and_claim(record, spec())
        ends = [("completed", 0.5), ("pruned", 0.1), ("completed", 0.3), ("diverged", None)]
        for number, (outcome, value) in enumerate(ends):
            ledger.open(number, "scornn", {}, CONFIG, f"h{number}")
            attempt = ledger.begin(number)
            ledger.finish(number, attempt, outcome, Result(value=value, step=50))
        ledger.open(4, "scornn", {}, CONFIG, "h4")
        found = record.experiment(ledger.experiment_id)
        assert found.best is not None
        assert found.best.trial.number == 2
        assert found.counts["completed"] == StateCount(2, 100, 200)
        ranked = record.trials(ledger.experiment_id, sort="value")
        assert [r.trial.number for r in ranked] == [2, 0, 1, 3, 4]
        first = record.trials(ledger.experiment_id, sort="value", limit=3)
        last = first[-1].trial
        key = (last.tier, last.rank, last.number)
        rest = record.trials(ledger.experiment_id, sort="value", after=key)
        assert [r.trial.number for r in rest] == [3, 4]

    def test_experiments_are_found_by_all_of_several_tags(self, each_url, spec):
        record, tags = Record(each_url), {"paper": "rebuttal", "of a/b": "it's 100 %"}
        found = [
            record.add(ExperimentSpec.model_validate(spec(tags=each)))[0].id
            for each in (tags, {"paper": "rebuttal"}, {}, {"other": "rebuttal"})
        ]

        def find(*pairs: tuple[str, str]) -> set[str]:
            return {each.experiment.id for each in record.experiments(tags=pairs)}

        assert find(("paper", "rebuttal")) == set(found[:2])
        assert find(*tags.items()) == {found[0]}
        assert find(("paper", "rebuttal"), ("paper", "other")) == set()
        assert find(("paper", "Rebuttal")) == set()

    def test_what_a_list_keeps_of_a_trial_follows_each_change_of_it(self, each_url, spec):
        record, views = Record(each_url), Views("http://mlflow.example")
        ledger = post_and_claim(record, spec())

        def look() -> TrialSummary:
            """Return the trial in a list, which is the same as when it is read by itself."""
            (stored,) = record.listed_trials(ledger.experiment_id)
            (again,) = record.listed_trials(ledger.experiment_id)
            listed = views.listed_trial(stored)
            assert views.listed_trial(again) is listed, "it was read a second time"
            alone = views.trial(record.trial(ledger.experiment_id, 0))
            assert dict(listed) == {name: getattr(alone, name) for name in dict(listed)}
            return listed

        ledger.open(0, "scornn", {"optimizer.lr": 0.1, "model.name": "ä"}, CONFIG, "h0")
        assert look().params == {"optimizer.lr": 0.1, "model.name": "ä"}
        attempt = ledger.begin(0)
        for step, loss in ((50, 0.5), (75, 0.25)):
            ledger.report(0, attempt, step, {"valid/loss": loss}, None)
            assert (look().state, look().step, look().metrics) == (
                *("running", step),
                {"loss": loss},
            )
        ledger.set_delivered({0: "run0"}, "7", [])
        assert "runs/run0" in str(look().links.mlflow)
        seeds = [ReplicateResult(seed=seed, value=0.1 * (1 + seed)) for seed in range(3)]
        result = Result(by_replicate=tuple(seeds), value=0.2, valid={"loss": 0.2})
        ledger.finish(0, attempt, "completed", result)
        assert look().statistics["value"].mean == pytest.approx(0.2)
        ledger.reopen(0, CONFIG | {"replicates": 2}, "one more seed")
        assert (look().state, look().reopened_for) == ("waiting", "one more seed")

    def test_where_higher_is_better_the_highest_is_best(self, record, spec):
        ledger = post_and_claim(record, spec(objective={"metric": "recall_accuracy"}))
        for number, value in enumerate((0.5, 0.9, 0.1)):
            ledger.open(number, "scornn", {}, CONFIG, f"h{number}")
            ledger.finish(number, ledger.begin(number), "completed", Result(value=value, step=1))
        best = record.experiment(ledger.experiment_id).best
        assert best is not None
        assert best.trial.value == 0.9

    def test_a_page_of_trials_costs_the_same_however_many_there_are(self, record, spec):
        steps = []
        for trials in (1_000, 10_000):
            id = self.fill(record, spec(), trials)
            with StepCounter(record.url) as counter:
                page = record.listed_trials(id, sort="value", limit=50)
            assert [each.read().trial.number for each in page] == list(
                range(trials - 1, trials - 51, -1)
            )
            steps.append(counter.steps)
        assert steps[1] < 1.2 * steps[0]

    def test_an_experiment_costs_the_same_with_many_trials(self, record, spec):
        steps = []
        for trials in (1_000, 10_000):
            id = self.fill(record, spec(), trials)
            with StepCounter(record.url) as counter:
                found = record.experiment(id)
            assert found.best is not None
            assert found.best.trial.number == trials - 1
            assert found.counts == {"completed": StateCount(trials, 100 * trials, 100 * trials)}
            steps.append(counter.steps)
        assert steps[1] < 1.2 * steps[0]

    def fill(self, record: Record, spec: dict[str, Any], trials: int) -> str:
        """Add an experiment with so many completed trials, the last of them the best."""
        id = post_and_claim(record, spec).experiment_id
        rows = [
            {
                "experiment_id": id,
                "number": number,
                "arm": "scornn",
                "params": {},
                "config": CONFIG,
                "config_hash": f"h{number}",
                "seed": 0,
                "replicates": 1,
                "steps": 100,
                "state": "completed",
                "attempt": 1,
                "step": 100,
                "value": 1.0 / (number + 1),
                "rank": 1.0 / (number + 1),
                "tracked": False,
            }
            for number in range(trials)
        ]
        with database.engine(record.url).execution_options(writes=True).begin() as connection:
            connection.execute(Base.metadata.tables["trials"].insert(), rows)
        return id


class TestCounts:
    """Triggers of the database count trials by state; no program has to."""

    def check(self, record: Record, id: str) -> dict[str, StateCount]:
        """Return an experiment's counts, which are those of its trials one by one."""
        counted: dict[str, StateCount] = {}
        for trial in (each.trial for each in record.trials(id, limit=100)):
            so_far = counted.get(trial.state, StateCount(0, 0, 0))
            counted[trial.state] = StateCount(
                so_far.trials + 1, so_far.step + trial.step, so_far.steps + trial.steps
            )
        found = record.experiment(id).counts
        assert found == counted
        return found

    def test_they_follow_each_move_of_a_trial(self, each_url, spec):
        record = Record(each_url)
        ledger = post_and_claim(record, spec())
        id = ledger.experiment_id
        assert self.check(record, id) == {}
        for number in range(4):
            ledger.open(number, "scornn", {}, CONFIG, f"h{number}")
        assert self.check(record, id) == {"waiting": StateCount(4, 0, 400)}
        attempts = [ledger.begin(number) for number in range(3)]
        ledger.report(0, attempts[0], 50, {"loss": 0.5}, None)
        ledger.report(0, attempts[0], 75, {}, None)  # this one has no event
        assert self.check(record, id)["running"] == StateCount(3, 75, 300)
        ledger.interrupt(1, attempts[1], "its process was lost")
        ledger.finish(0, attempts[0], "completed", Result(value=0.5, step=100))
        ledger.finish(2, attempts[2], "failed", error="no")
        assert set(self.check(record, id)) == {"completed", "failed", "waiting"}
        ledger.reopen(0, {**CONFIG, "training": {"steps": 300}}, "a longer budget")
        assert self.check(record, id)["waiting"] == StateCount(3, 100, 500)
        ledger.end("failed", "no more")
        assert set(self.check(record, id)) == {"completed", "failed", "cancelled"}

    def test_a_change_that_is_not_committed_is_not_counted(self, each_url, spec):
        record = Record(each_url)
        ledger = post_and_claim(record, spec())
        ledger.open(0, "scornn", {}, CONFIG, "h")

        def begin_and_fail(session: RowSession) -> None:
            session.get_one(TrialRow, (ledger.experiment_id, 0)).state = "running"
            session.flush()
            raise KeyError("killed")

        with pytest.raises(KeyError, match="killed"):
            database.write(each_url, begin_and_fail)
        assert self.check(record, ledger.experiment_id) == {"waiting": StateCount(1, 0, 100)}

    def test_they_go_with_their_experiment_and_touch_no_other(self, each_url, spec):
        record = Record(each_url)
        kept, gone = (post_and_claim(record, spec()) for _ in range(2))
        for ledger in (kept, gone):
            ledger.open(0, "scornn", {}, CONFIG, "h")
            ledger.end("cancelled")
        record.delete(gone.experiment_id)
        record.remove(gone.experiment_id)
        left = database.read(each_url, lambda session: session.scalars(select(TrialCount)).all())
        assert {count.experiment_id for count in left} == {kept.experiment_id}
        assert set(self.check(record, kept.experiment_id)) == {"cancelled"}


class TestProgress:
    def experiment(self, **changes: Any) -> ExperimentRow:
        known = {
            "state": "running",
            "total": 10,
            "trial_steps": 100,
            "claimed_at": 1000.0,
            "claimed_steps": 0,
        }
        return ExperimentRow(**{**known, **changes})

    def test_the_time_left_follows_from_steps_done(self):
        counts = {"completed": StateCount(2, 200, 200), "running": StateCount(1, 50, 100)}
        now = compute_progress(self.experiment(), counts, now=1025.0)
        assert (now.steps_done, now.steps_total) == (250, 1000)
        assert now.fraction == 0.25
        assert now.eta_seconds == pytest.approx(75.0)

    def test_trials_that_ended_early_shorten_what_is_expected(self):
        counts = {"pruned": StateCount(4, 40, 400), "completed": StateCount(1, 100, 100)}
        now = compute_progress(self.experiment(), counts, now=1010.0)
        assert now.steps_total == 140 + 5 * 28

    def test_steps_done_before_a_restart_do_not_count_as_speed(self):
        counts = {"running": StateCount(10, 500, 1000)}
        now = compute_progress(self.experiment(claimed_steps=490), counts, now=1010.0)
        assert now.eta_seconds == pytest.approx(500.0)

    def test_nothing_is_claimed_of_the_unknown(self):
        now = compute_progress(self.experiment(total=None), {}, now=1010.0)
        assert (now.steps_total, now.fraction, now.eta_seconds) == (None, None, None)
        assert compute_progress(self.experiment(), {}, now=1010.0).eta_seconds is None

    def test_a_race_is_not_over_and_nobody_knows_how_long_it_is(self):
        counts = {"completed": StateCount(8, 800, 800), "running": StateCount(2, 200, 200)}
        raced = self.experiment()
        now = compute_progress(raced, counts, now=1010.0)
        assert (now.fraction, now.eta_seconds) == (None, None)

    def test_a_completed_experiment_is_whole(self):
        counts = {"reused": StateCount(10, 1000, 1000)}
        now = compute_progress(self.experiment(state="completed"), counts, now=1010.0)
        assert (now.fraction, now.eta_seconds) == (1.0, None)


class TestSettings:
    def test_a_secret_is_not_shown(self, monkeypatch):
        monkeypatch.setenv("EIGENSWEEP_TOKEN", "hush")
        assert "hush" not in repr(Settings())

    def test_paths_do_not_depend_on_where_it_was_started(self, monkeypatch, tmp_path):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("EIGENSWEEP_HOME", "somewhere")
        assert Settings().home == tmp_path / "somewhere"


def test_writers_of_one_process_take_turns(tmp_path, monkeypatch):
    monkeypatch.setattr(database, "BUSY_SECONDS", 0)  # SQLite itself waits for nobody
    url = f"sqlite:///{tmp_path}/turns.db"
    migrate(url)
    inside, other_waits = threading.Event(), threading.Event()
    order: list[str] = []

    def write_first(session: Any) -> None:
        inside.set()
        assert other_waits.wait(PATIENCE)
        order.append("first")

    first = threading.Thread(target=database.write, args=(url, write_first))
    first.start()
    assert inside.wait(PATIENCE)
    second = threading.Thread(target=database.write, args=(url, lambda _: order.append("second")))
    second.start()
    other_waits.set()
    first.join()
    second.join()
    assert order == ["first", "second"]
