"""The record as every earlier version left it, brought to the schema of this one."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from itertools import pairwise
from typing import Any

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from helpers.schema_of_0_2 import make_schema_of_0_2
from sqlalchemy import Connection, MetaData, Table, inspect, select

from eigensweep.results.trial_result import Result
from eigensweep.service.record.jobs import Jobs
from eigensweep.service.record.ledger import RecordLedger
from eigensweep.service.record.migrations import _configure, migrate
from eigensweep.service.record.record import Record
from eigensweep.service.record.sql import database
from eigensweep.service.record.sql.tables import Base
from eigensweep.service.record.views.counts import count_all
from eigensweep.service.record.views.queries import StateCount
from eigensweep.service.settings import StartError

SCRIPTS = ScriptDirectory.from_config(_configure())
REVISIONS = [each.revision for each in SCRIPTS.walk_revisions()][::-1]

SPEC: dict[str, Any] = {
    "name": "two rates",
    "task": {"name": "copying", "delay": 5, "symbols": 2, "batch_size": 4},
    "model": {"name": "scornn", "hidden_size": 6, "negative_ones": 2},
    "training": {"steps": 100, "evaluate_every": 10},
    "search": {"method": "grid", "space": {"optimizer.lr": [1e-3, 1e-2]}},
    "resources": {"cpus": 2},
}
CONFIG: dict[str, Any] = {"training": {"steps": 100}, "seed": 0, "replicates": 1}


def experiment(id: str, **columns: Any) -> dict[str, Any]:
    return {
        "id": id,
        "owner": "anna",
        "name": f"two rates of {id}",
        "project": "rates",
        "priority": 3,
        "spec": SPEC,
        "metric": "loss",
        "unit": "nats",
        "better": "lower",
        "baseline": 0.7,
        "trial_steps": 100,
        "total": 2,
        "tracked": False,
        "created_at": 1000.0,
        "started_at": 1010.0,
        "idle_seconds": 0.0,
        "generation": 1,
        "claimed_at": 1010.0,
        "claimed_steps": 0,
        "deaths": 0,
        "progress_mark": 0,
        "trace": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "notices": [{"kind": "disk", "words": "new trials wait"}],
        **columns,
    }


def trial(id: str, number: int, state: str, value: float | None, **columns: Any) -> dict[str, Any]:
    return {
        "experiment_id": id,
        "number": number,
        "arm": "scornn",
        "params": {"optimizer.lr": 0.01 / (number + 1)},
        "config": CONFIG,
        "config_hash": f"hash {number}",
        "seed": 0,
        "replicates": 1,
        "steps": 100,
        "state": state,
        "attempt": 1,
        "step": 100 if value is not None else 50,
        "value": value,
        "rank": float("inf") if value is None else value,
        "result": None if value is None else Result(value=value, step=100).to_dict(),
        "run_id": f"run {number}",
        "run_project": "7",
        "tracked": value is not None,
        "started_at": 1010.0,
        "ended_at": None if value is None else 1060.0,
        **columns,
    }


def attempt(id: str, number: int, **columns: Any) -> dict[str, Any]:
    place = {"node": "node7", "pid": 4711, "device": "cpu"}
    own = {"experiment_id": id, "number": number, "attempt": 1, "token": f"{id} {number}"}
    return {**own, "started_at": 1010.0, "ended_at": None, "place": place, **columns}


def job(kind: str, key: str, experiment: str, request: Any, **columns: Any) -> dict[str, Any]:
    own = {"kind": kind, "key": key, "experiment_id": experiment, "request": request}
    return {**own, "state": "queued", "tries": 0, "created_at": 1100.0, "due_at": 1100.0, **columns}


MESSAGE = {"url": "https://hooks.example.org/x", "type": "experiment.completed"}
ROWS: dict[str, list[dict[str, Any]]] = {
    "experiments": [
        experiment("done", state="completed", tracked=True, finished_at=1100.0, run_id="run"),
        experiment("running", state="running"),
        experiment("unwanted", state="cancelling"),
        experiment("queued", state="queued", idempotency_key="key", fingerprint="f" * 64),
        experiment("broken", state="failed", finished_at=1100.0, error="Überlauf: \u221e"),
        experiment("going", state="deleting", finished_at=1100.0),
        experiment("thinner", state="completed", finished_at=1100.0, kept="best", pruning="best"),
    ],
    "trials": [
        trial("done", 0, "completed", 0.5),
        trial("done", 1, "pruned", 0.6),
        trial("running", 0, "completed", 0.25),
        trial("running", 1, "running", None),
        trial("broken", 0, "failed", None, error="Traceback:\nValueError: no", ended_at=1060.0),
    ],
    "attempts": [
        attempt("done", 0, ended_at=1060.0),
        attempt("done", 1, ended_at=1030.0),
        attempt("running", 0, ended_at=1060.0),
        attempt("running", 1),
        attempt("broken", 0, ended_at=1060.0, reason="its process was lost"),
    ],
    "reports": [
        {"experiment_id": id, "number": 0, "step": step, "attempt": 1, "metrics": {"loss": 0.5}}
        | {"at": 1000.0 + step}
        for id in ("done", "running")
        for step in (50, 100)
    ],
    "events": [
        {"experiment_id": id, "kind": "experiment.queued", "data": {"experiment": id}, "at": 1000.0}
        for id in ("done", "running", "unwanted", "queued", "broken")
    ],
    "webhooks": [{"experiment_id": "running", "url": "https://hooks.example.org/x"}],
    "deliveries": [
        {"id": "d1", "experiment_id": "done", "url": "https://hooks.example.org/x", "tries": 2}
        | {"kind": "experiment.completed", "at": 1100.0, "due_at": 1200.0, "error": "away"},
        {"id": "d2", "experiment_id": "done", "url": "https://hooks.example.org/y", "tries": 1}
        | {"kind": "experiment.completed", "at": 1100.0, "delivered_at": 1110.0},
        {"id": "d3", "experiment_id": "broken", "url": "https://hooks.example.org/y", "tries": 24}
        | {"kind": "experiment.failed", "at": 1100.0, "error": "the receiver answered 410"},
    ],
    "jobs": [
        job("deletion", "going", "going", {}),
        job("pruning", "thinner", "thinner", {"keep": "best"}),
        job("webhook", "d1", "done", MESSAGE, due_at=1200.0, tries=2, error="away"),
        job("webhook", "d2", "done", MESSAGE, due_at=None, state="finished", finished_at=1110.0),
        job("webhook", "d3", "broken", MESSAGE, due_at=None, state="failed", tries=24),
    ],
    "users": [{"name": "anna", "created_at": 900.0, "max_trials": 50}],
    "tokens": [
        {"id": "t1", "user_name": "anna", "scope": "submit", "digest": "d" * 64}
        | {"created_at": 900.0}
    ],
    "audit": [
        {"at": 1000.0, "user_name": "anna", "action": "POST /v1/experiments", "refused": False}
        | {"detail": "", "token": "t1", "address": "127.0.0.1"}
    ],
}
"""What a service in use has written. A version is given the tables and columns that it had."""


@pytest.fixture(params=["bare_url", "bare_postgresql_url"], ids=["sqlite", "postgresql"])
def each_bare_url(request: pytest.FixtureRequest) -> str:
    made: str = request.getfixturevalue(request.param)
    return made


def writing(url: str) -> AbstractContextManager[Connection]:
    return database.engine(url).execution_options(mode="writes").begin()


def upgrade(connection: Connection, revision: str) -> None:
    config = _configure()
    config.attributes["connection"] = connection
    command.upgrade(config, revision)


def fill(url: str) -> dict[str, list[dict[str, Any]]]:
    """Write `ROWS` into a database, as far as it has tables and columns; return what was."""
    with writing(url) as connection:
        tables = reflect(connection)
        written: dict[str, list[dict[str, Any]]] = {}
        for name, rows in ROWS.items():
            if name in tables:
                columns = tables[name].columns.keys()
                kept = [{key: row[key] for key in row if key in columns} for row in rows]
                for row in copy.deepcopy(kept):
                    connection.execute(tables[name].insert().values(row))
                written[name] = kept
    return written


def reflect(connection: Connection) -> dict[str, Table]:
    found = MetaData()
    found.reflect(connection)
    return dict(found.tables)


def read_rows(url: str) -> dict[str, list[dict[str, Any]]]:
    with database.engine(url).connect() as connection:
        return {
            name: [dict(row) for row in connection.execute(select(table)).mappings()]
            for name, table in reflect(connection).items()
        }


def list_lost(before: dict[str, Any], after: dict[str, Any]) -> Iterator[str]:
    """Yield what of the rows before is not in the rows after, columns that were removed apart."""
    for name, rows in before.items():
        for row in rows:
            kept = {key: value for key, value in row.items() if key in after[name][0]}
            if not any(all(each[k] == v for k, v in kept.items()) for each in after[name]):
                yield f"{name}: {kept}"


@pytest.mark.parametrize("revision", REVISIONS)
class TestEveryRevision:
    @pytest.fixture
    def url(self, each_bare_url: str, revision: str) -> str:
        """A record as the version with this schema left it, brought to the newest schema."""
        with writing(each_bare_url) as connection:
            make_schema_of_0_2(connection)
            upgrade(connection, revision)
        self.before = fill(each_bare_url)
        migrate(each_bare_url)
        return each_bare_url

    @pytest.mark.quick_cases(3)
    def test_schema_and_rows_are_those_of_now_and_the_work_goes_on(self, url):
        with database.engine(url).connect() as connection:
            context = MigrationContext.configure(connection, opts={"compare_type": True})
            assert compare_metadata(context, Base.metadata) == []
        self.before.pop("deliveries", None)
        assert list(list_lost(self.before, read_rows(url))) == []
        self.read_as_the_service_does(url)
        self.look_at_jobs(url)
        self.go_on(url)

    def read_as_the_service_does(self, url: str) -> None:
        record = Record(url)
        states = {each.experiment.id: each.experiment.state for each in record.experiments()}
        assert states == {
            "done": "completed",
            "running": "running",
            "unwanted": "cancelling",
            "queued": "queued",
            "broken": "failed",
            "going": "deleting",
            "thinner": "completed",
        }
        found = record.experiment("done")
        assert found.best is not None
        assert found.best.trial.scores["value"] == 0.5
        one = StateCount(trials=1, step=100, steps=100)
        assert found.counts == {"completed": one, "pruned": one}
        assert found.experiment.owner == "anna"
        assert [each.trial.number for each in record.trials("done", sort="value")] == [0, 1]
        assert [each.kind for each in record.events("queued")] == ["experiment.queued"]
        assert count_all(url).experiments["queued"] == 1

    def look_at_jobs(self, url: str) -> None:
        jobs = Jobs(url)
        (deletion,) = jobs.list_due("deletion", time.time())
        assert (deletion.key, deletion.experiment_id, deletion.state) == (
            "going",
            "going",
            "queued",
        )
        (pruning,) = jobs.list_due("pruning", time.time())
        assert (pruning.key, pruning.request) == ("thinner", {"keep": "best"})
        sent = {each.key: each for each in jobs.list("webhook")}
        assert [sent[key].state for key in ("d1", "d2", "d3")] == [
            "queued",
            "finished",
            "failed",
        ]
        waits = sent["d1"]
        assert (waits.due_at, waits.tries, waits.error) == (1200.0, 2, "away")
        assert waits.request == {
            "url": "https://hooks.example.org/x",
            "type": "experiment.completed",
        }
        assert waits.created_at == 1100.0
        assert sent["d2"].finished_at == 1110.0
        (due,) = jobs.list_due("webhook", time.time())
        assert due.key == "d1"

    def go_on(self, url: str) -> None:
        """Drive the running experiment to its end, as the driver of the next service does."""
        claim = Record(url).claim("running")
        assert claim is not None
        ledger = RecordLedger(url, "running", claim.generation, patience=0)
        done, waiting = ledger.load()
        assert (done.state, done.result.value) == ("completed", 0.25)
        assert done.reports == {50: {"loss": 0.5}, 100: {"loss": 0.5}}
        attempt = ledger.begin(waiting.number)
        ledger.finish(waiting.number, attempt, "completed", Result(value=0.125, step=100))
        assert ledger.end("completed")[0] == "completed"
        best = Record(url).experiment("running").best
        assert best is not None
        assert (best.trial.number, attempt) == (1, 2)
        assert Record(url).experiment("running").counts == {"completed": StateCount(2, 200, 200)}


def test_the_revisions_are_one_line():
    assert len(SCRIPTS.get_heads()) == 1
    for earlier, later in pairwise(REVISIONS):
        assert SCRIPTS.get_revision(later).down_revision == earlier


@pytest.mark.parametrize("wanted", [*REVISIONS[:-1], "base"])
@pytest.mark.quick_cases(2)
def test_a_downgrade_is_refused_with_words_and_changes_nothing(each_url, wanted):
    before = read_rows(each_url)["alembic_version"]
    config = _configure()
    with database.engine(each_url).execution_options(writes=True).begin() as connection:
        config.attributes["connection"] = connection
        with pytest.raises(StartError, match="no way back") as raised:
            command.downgrade(config, wanted)
    assert REVISIONS[-1] in str(raised.value)
    assert read_rows(each_url)["alembic_version"] == before
    with database.engine(each_url).connect() as connection:
        assert "experiments" in inspect(connection).get_table_names()


def test_a_program_older_than_the_record_changes_nothing(url):
    with writing(url) as connection, pytest.raises(StartError, match="backup"):
        upgrade(connection, REVISIONS[0])


def test_a_new_record_has_what_an_old_one_is_brought_to(each_bare_url):
    migrate(each_bare_url)
    new = describe(each_bare_url)
    with writing(each_bare_url) as connection:
        Base.metadata.drop_all(connection)
        connection.exec_driver_sql("DROP TABLE alembic_version")
        if connection.dialect.name == "postgresql":  # triggers go with their tables, these do not
            connection.exec_driver_sql("DROP FUNCTION refuse_to_change_audit, count_trials")
        assert inspect(connection).get_table_names() == []
        make_schema_of_0_2(connection)
    migrate(each_bare_url)
    assert describe(each_bare_url) == new


def describe(url: str) -> dict[str, Any]:
    """Return columns, keys, indexes and triggers of a record."""
    with database.engine(url).connect() as connection:
        seen = inspect(connection)
        found: dict[str, Any] = {}
        for name in sorted(seen.get_table_names()):
            columns = {
                each["name"]: (str(each["type"]), each["nullable"], each["default"])
                for each in seen.get_columns(name)
            }
            others = (
                seen.get_pk_constraint(name),
                sorted(map(str, seen.get_foreign_keys(name))),
                sorted(map(str, seen.get_indexes(name))),
                sorted(map(str, seen.get_unique_constraints(name))),
            )
            found[name] = columns, others
        triggers = {
            "sqlite": "SELECT name, sql FROM sqlite_master WHERE type = 'trigger' ORDER BY name",
            "postgresql": "SELECT event_object_table, trigger_name, event_manipulation, "
            "action_statement, action_condition FROM information_schema.triggers ORDER BY 1, 2, 3",
        }
        asked = triggers[connection.dialect.name]
        found["triggers"] = [tuple(row) for row in connection.exec_driver_sql(asked)]
        return found
