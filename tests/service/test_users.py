"""Users, tokens, quotas, owners, the audit log, rates, and users of a proxy."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest
import uvicorn
from pydantic import SecretStr, ValidationError
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from starlette.requests import HTTPConnection
from starlette.testclient import TestClient
from typer.testing import CliRunner

from eigensweep.command import local
from eigensweep.command.cli import app as command_line
from eigensweep.search_spaces.spec import ExperimentSpec
from eigensweep.service.api.app import create_app
from eigensweep.service.api.callers.identity import PROXY_SECRET
from eigensweep.service.api.middleware import rates
from eigensweep.service.process.serve import require_a_token
from eigensweep.service.record import migrations
from eigensweep.service.record.errors import ConflictError, NotAllowedError, QuotaExceededError
from eigensweep.service.record.leadership import Leadership
from eigensweep.service.record.record import Record
from eigensweep.service.record.sql import database
from eigensweep.service.record.sql.rows import RowSession
from eigensweep.service.record.sql.tables import Token, User
from eigensweep.service.record.users import audit as audit_log
from eigensweep.service.record.users.accounts import Accounts, Quotas
from eigensweep.service.record.users.audit import Audit
from eigensweep.service.settings import Settings, StartError

ORIGIN = "http://localhost:8642"
Make = Callable[..., TestClient]


@pytest.fixture
def accounts(record: Record) -> Accounts:
    return Accounts(record.url)


@pytest.fixture
def make(settings: Settings, record: Record, dispatcher: Any) -> Make:
    """Return what makes an application with other settings."""

    def make(address: str = "127.0.0.1", raises: bool = True, **changes: Any) -> TestClient:
        app = create_app(settings.model_copy(update=changes), record, dispatcher)
        return TestClient(
            app,
            base_url=ORIGIN,
            follow_redirects=False,
            raise_server_exceptions=raises,
            client=(address, 50_000),
        )

    return make


@pytest.fixture
def of(make: Make, accounts: Accounts) -> Make:
    """Return what makes a client with a fresh token: `of("anna", "submit")`."""
    first = make()

    def make_client(user: str, scope: Any = "submit") -> TestClient:
        client = TestClient(first.app, base_url=ORIGIN, follow_redirects=False)
        token = accounts.create_token(user, scope, 3600).token
        client.headers["Authorization"] = f"Bearer {token}"
        return client

    return make_client


def post(client: TestClient, spec: dict[str, Any], **headers: str) -> str:
    answer = client.post("/v1/experiments", json=spec, headers=headers)
    assert answer.status_code in (200, 201), answer.text
    return answer.json()["id"]


class TestTokens:
    def test_the_record_does_not_hold_them(self, accounts, url):
        made = accounts.create_token("anna", "admin", None)
        engine = database.engine(url)
        with engine.connect() as connection:
            dump = "\n".join(connection.connection.driver_connection.iterdump())
        assert made.id in dump
        assert made.token not in dump
        assert made.token.startswith("esw_")

    def test_without_any_all_may_all_and_from_the_first_on_nobody(self, make):
        client = make()
        assert client.get("/v1/me").json() == {"user": "operator", "scope": "admin", "token": None}
        made = client.post("/v1/tokens", json={"user": "anna", "scope": "read"}).json()
        assert client.get("/v1/me").status_code == 401
        known = {"Authorization": f"Bearer {made['token']}"}
        me = client.get("/v1/me", headers=known).json()
        assert me == {"user": "anna", "scope": "read", "token": made["id"]}

    def test_a_token_made_beside_a_running_service_closes_it(self, make, accounts):
        client = make()
        assert client.get("/v1/experiments").status_code == 200
        made = accounts.create_token("anna", "admin", 60)
        assert client.get("/v1/experiments").status_code == 401
        accounts.revoke_token(made.id)  # it does not open again
        assert client.get("/v1/experiments").status_code == 401
        assert make().get("/v1/experiments").status_code == 401

    def test_a_service_for_other_machines_is_never_open(self, make):
        assert make(host="0.0.0.0").get("/v1/experiments").status_code == 401

    def test_one_that_is_over_says_why(self, make, accounts):
        client = make()
        revoked = accounts.create_token("anna", "admin", None)
        accounts.revoke_token(revoked.id)
        expired = accounts.create_token("anna", "admin", -1.0)
        for token, words in ((revoked, "was revoked"), (expired, "has expired")):
            answer = client.get("/v1/me", headers={"Authorization": f"Bearer {token.token}"})
            assert (answer.status_code, words in answer.json()["detail"]) == (401, True)
        assert [t["usable"] for t in map(dict, accounts.list_tokens())] == [False, False]

    def test_the_token_of_the_environment_stays_beside_them(self, make, accounts):
        accounts.create_token("anna", "read", None)
        client = make(token=SecretStr("ours"))
        client.headers["Authorization"] = "Bearer ours"
        me = client.get("/v1/me").json()
        assert me == {"user": "operator", "scope": "admin", "token": "EIGENSWEEP_TOKEN"}

    def test_one_made_while_its_user_is_removed_gives_nothing(self, each_url, monkeypatch):
        accounts, removals = Accounts(each_url), list[threading.Thread]()
        accounts.create_user("anna")
        add = RowSession.add

        def add_beside_a_removal(rows: RowSession, row: Any) -> None:
            if isinstance(row, Token):
                removals.append(threading.Thread(target=accounts.remove_user, args=["anna"]))
                removals[0].start()
                removals[0].join(0.5)
            add(rows, row)

        monkeypatch.setattr(RowSession, "add", add_beside_a_removal)
        made = accounts.create_token("anna", "read", None)
        removals[0].join()
        assert accounts.find_token(made.token).problem == "this token was revoked"

    def test_two_made_at_once_for_a_new_user_both_hold(self, postgresql_url, monkeypatch):
        accounts, before, add = Accounts(postgresql_url), list[str](), RowSession.add

        def add_after_another(rows: RowSession, row: Any) -> None:
            if isinstance(row, User) and row.name not in before:
                before.append(row.name)
                accounts.create_token(row.name, "submit", None)
            add(rows, row)

        monkeypatch.setattr(RowSession, "add", add_after_another)
        assert accounts.create_token("anna", "read", None).usable
        assert {each.scope for each in accounts.list_tokens("anna")} == {"read", "submit"}
        with pytest.raises(ConflictError, match="there is a user 'bob' already"):
            accounts.create_user("bob")

    def test_a_removed_user_gets_no_new_ones_before_coming_back(self, accounts):
        accounts.create_token("anna", "read", None)
        accounts.remove_user("anna")
        with pytest.raises(ConflictError, match="eigensweep user create anna"):
            accounts.create_token("anna", "read", None)
        accounts.create_user("anna")
        assert accounts.create_token("anna", "read", None).usable
        assert [token.usable for token in accounts.list_tokens("anna")] == [True, False]

    @pytest.mark.parametrize("name", ["operator", "", "a b", "-a", "x" * 65, "ä", "a\n"])
    def test_a_name_that_nobody_can_have_is_refused(self, accounts, name):
        with pytest.raises(NotAllowedError):
            accounts.create_token(name, "read", None)

    def test_a_wrong_name_is_told_in_words(self, make):
        for path, field in (("/v1/users", "name"), ("/v1/tokens", "user")):
            answer = make().post(path, json={field: "a b", "scope": "read"})
            problem = next(e for e in answer.json()["errors"] if e["path"] == field)
            assert answer.status_code == 422
            assert problem["message"] == (
                f"'{field}' should have 1 to 64 letters, digits and ._@+- of ASCII, and begin with "
                "a letter or digit; got 'a b'"
            )

    def test_a_service_for_others_starts_once_somebody_may_enter(self, settings, record, accounts):
        own = settings.model_copy(update={"host": "0.0.0.0", "database_url": record.url})
        with pytest.raises(StartError, match="eigensweep token create"):
            require_a_token(own)
        accounts.create_token("anna", "admin", None)
        require_a_token(own)


class TestSchema:
    def test_an_entry_of_the_audit_log_cannot_be_changed(self, each_url):
        log = Audit(each_url, 100)
        log.add("POST /x", user="eve", token=None, address=None, refused=False)
        with (
            pytest.raises(DBAPIError, match="never changed"),
            database.engine(each_url).execution_options(writes=True).begin() as connection,
        ):
            connection.execute(text("UPDATE audit SET user_name = 'anna'"))
        assert log.list()[0].user == "eve"


class TestOwners:
    def test_lists_say_and_select_whose_an_experiment_is(self, of, spec):
        anna, bob = of("anna"), of("bob")
        mine, other = post(anna, spec()), post(bob, spec())
        assert bob.get(f"/v1/experiments/{mine}").json()["owner"] == "anna"
        found = bob.get("/v1/experiments?owner=bob").json()["items"]
        assert [each["id"] for each in found] == [other]
        assert 'href="/?owner=anna"' in bob.get("/").text
        assert mine not in bob.get("/?owner=bob").text

    def test_what_others_have_used_is_for_an_admin(self, of, spec):
        anna, bob, boss = of("anna"), of("bob", "read"), of("boss", "admin")
        post(anna, spec())
        users = [
            [each["user"] for each in client.get("/v1/usage").json()["items"]]
            for client in (anna, bob, boss)
        ]
        assert users == [["anna"], [], ["anna"]]

    def test_only_the_owner_and_an_admin_cancel(self, of, spec):
        anna, bob, boss = of("anna"), of("bob"), of("boss", "admin")
        first, second = post(anna, spec()), post(anna, spec())
        refused = bob.post(f"/v1/experiments/{first}/cancel")
        assert refused.status_code == 403
        assert "belongs to user 'anna'" in refused.json()["detail"]
        assert anna.post(f"/v1/experiments/{first}/cancel").json()["state"] == "cancelled"
        assert boss.post(f"/v1/experiments/{second}/cancel").json()["state"] == "cancelled"

    def test_in_bulk_what_belongs_to_another_user_is_left_be(self, of, spec):
        anna, bob = of("anna"), of("bob")
        mine, other = post(anna, spec()), post(bob, spec())
        asked = {"action": "cancel", "ids": [mine, other]}
        first, second = anna.post("/v1/experiments/bulk", json=asked).json()["items"]
        assert (first["state"], first["problem"]) == ("cancelled", None)
        assert second["state"] == "queued"
        assert "belongs to user 'bob'" in second["problem"]

    def test_what_was_refused_in_bulk_is_no_deed_of_the_audit_log(self, of, spec):
        anna, bob, boss = of("anna"), of("bob"), of("boss", "admin")
        mine, other = post(anna, spec()), post(bob, spec())
        for ids in ([other], [mine, other]):
            anna.post("/v1/experiments/bulk", json={"action": "cancel", "ids": ids})
        told = [
            (entry["refused"], mine in entry["detail"], other in entry["detail"])
            for entry in boss.get("/v1/audit").json()["items"]
            if entry["action"] == "POST /v1/experiments/bulk"
        ]
        assert sorted(told) == [(False, True, False), (True, False, True), (True, False, True)]

    def test_the_audit_log_names_all_that_was_asked_for_in_bulk(self, of, spec):
        anna, boss = of("anna"), of("boss", "admin")
        own = [post(anna, spec()) for _ in range(40)]
        anna.post("/v1/experiments/bulk", json={"action": "cancel", "ids": own})
        newest = boss.get("/v1/audit").json()["items"][0]
        assert newest["action"] == "POST /v1/experiments/bulk"
        assert [id for id in own if id not in newest["detail"]] == []

    def test_the_audit_log_names_the_priority_that_was_given(self, of, spec):
        anna, boss = of("anna"), of("boss", "admin")
        id = post(anna, spec())
        anna.post(f"/v1/experiments/{id}/prioritize", json={"priority": 7})
        newest = boss.get("/v1/audit").json()["items"][0]
        assert newest["action"] == f"POST /v1/experiments/{id}/prioritize"
        assert newest["detail"] == "priority 7"

    def test_a_key_of_one_user_is_not_that_of_another(self, of, spec, record):
        anna, bob = of("anna"), of("bob")
        first = post(anna, spec(), **{"Idempotency-Key": "k"})
        assert post(anna, spec(), **{"Idempotency-Key": "k"}) == first
        assert post(bob, spec(name="other"), **{"Idempotency-Key": "k"}) != first
        changed = anna.post(
            "/v1/experiments", json=spec(name="other"), headers={"Idempotency-Key": "k"}
        )
        assert changed.status_code == 422

    def test_nobody_is_offered_what_the_scope_does_not_allow(self, of, spec):
        here = post(of("anna"), spec())
        paths = ("/", f"/experiments/{here}")
        pages = {
            (user, scope): {path: of(user, scope).get(path) for path in paths}
            for user, scope in (("anna", "submit"), ("bob", "submit"), ("carl", "read"))
        }
        for (user, scope), answers in pages.items():
            for path, answer in answers.items():
                assert ('href="/new' in answer.text) == (scope == "submit"), (user, path)
                assert f"{user}, {scope}" in answer.text
            cancel = f'data-post="/v1/experiments/{here}/cancel"' in answers[path].text
            assert cancel == (user == "anna")
        refused = of("carl", "read").get("/new", headers={"Accept": "text/html"})
        assert refused.status_code == 403
        assert "needs a token with scope" in refused.text


class TestQuotas:
    def test_by_default_there_are_none(self, of, accounts, spec):
        for _ in range(3):
            post(of("anna"), spec())
        assert accounts.list_users()[0].quotas == Quotas()

    def test_who_comes_back_has_the_quotas_of_before(self, accounts):
        accounts.create_user("dora", Quotas(max_experiments=2, max_trials=7))
        accounts.remove_user("dora")
        back = accounts.create_user("dora", Quotas(max_trials=9))
        assert back.quotas == Quotas(max_experiments=2, max_trials=9)

    @pytest.mark.parametrize(
        ("quotas", "words"),
        [
            ({"max_trials": 1}, "may have 1 trial in an experiment, this one has 2"),
            ({"max_spec_bytes": 100}, "may have 100 bytes"),
            ({"max_experiments": 0}, "0 experiments that are not over, has 0"),
        ],
    )
    def test_what_is_too_much_is_refused_in_words(self, of, accounts, spec, quotas, words):
        anna, boss = of("anna"), of("boss", "admin")
        assert boss.post("/v1/users/anna/quotas", json=quotas).status_code == 200
        answer = anna.post("/v1/experiments", json=spec())
        assert answer.status_code == 403
        assert answer.json()["type"] == "urn:eigensweep:problem:quota-exceeded"
        assert words in answer.json()["detail"]
        assert anna.get("/v1/experiments").json()["items"] == []
        seen = anna.post("/v1/experiments/preview", json=spec()).json()["side_by_side"]
        if "max_experiments" not in quotas:  # which counts at the moment of the post
            assert words in " ".join(seen["warnings"])
        post(of("bob"), spec())  # it is nobody else's

    def test_an_exceeded_quota_is_told_beside_mistakes_of_the_spec(self, of, accounts, spec):
        accounts.create_user("anna", Quotas(max_trials=1))
        wrong = spec(scheduler={"name": "asha", "brackets": 3})
        answer = of("anna").post("/v1/experiments", json=wrong)
        assert answer.status_code == 422
        first, second = answer.json()["errors"]
        assert (first["path"], second["path"]) == ("scheduler.brackets", "limits.trials")
        assert "an experiment, this one has 2" in second["message"]

    def test_a_search_that_only_time_ends_has_too_many_trials(self, accounts, record, spec):
        accounts.create_user("anna", Quotas(max_trials=10**9))
        rate = {"low": 1e-4, "high": 1e-1, "log": True}
        endless = spec(search={"method": "random", "space": {"optimizer.lr": rate}})
        checked = ExperimentSpec.model_validate({**endless, "limits": {"wall_seconds": 60}})
        with pytest.raises(QuotaExceededError, match="any number"):
            record.add(checked, None, "anna")

    def test_of_many_posts_at_once_no_more_than_the_quota_is_queued(self, each_url, spec):
        record, checked = Record(each_url), ExperimentSpec.model_validate(spec())
        Accounts(each_url).create_user("anna", Quotas(max_experiments=3))

        def post_one(_: int) -> bool:
            try:
                record.add(checked, None, "anna")
            except QuotaExceededError:
                return False
            return True

        with ThreadPoolExecutor(8) as pool:
            assert sum(pool.map(post_one, range(8))) == 3

    def test_an_ended_one_frees_its_place_a_second_post_takes_none(self, of, accounts, spec):
        anna = of("anna")
        accounts.change_quotas("anna", Quotas(max_experiments=1))
        here = post(anna, spec(), **{"Idempotency-Key": "k"})
        assert post(anna, spec(), **{"Idempotency-Key": "k"}) == here
        assert anna.post("/v1/experiments", json=spec()).status_code == 403
        anna.post(f"/v1/experiments/{here}/cancel")
        post(anna, spec())

    def test_what_is_over_is_not_taken_up_again_beyond_the_quota(self, of, accounts, spec):
        anna = of("anna")
        here = post(anna, spec())
        anna.post(f"/v1/experiments/{here}/cancel")
        longer = spec(search={"space": {"optimizer.lr": [1e-3, 1e-2, 1e-1]}})
        accounts.change_quotas("anna", Quotas(max_trials=2))
        extended = anna.post(f"/v1/experiments/{here}/extend", json=longer)
        assert (extended.status_code, "2 trials" in extended.json()["detail"]) == (403, True)
        accounts.change_quotas("anna", Quotas(max_experiments=0))
        retried = anna.post(f"/v1/experiments/{here}/retry")
        assert (retried.status_code, "not over" in retried.json()["detail"]) == (403, True)
        asked = {"action": "retry", "ids": [here]}
        (item,) = anna.post("/v1/experiments/bulk", json=asked).json()["items"]
        assert "not over" in item["problem"]
        told = of("boss", "admin").get("/v1/audit?refused=true").json()["items"]
        assert f"retry {here}: beyond a quota" in [entry["detail"] for entry in told]

    @pytest.mark.parametrize("no_number", [False, "3"])
    def test_what_is_no_number_is_no_quota(self, of, accounts, no_number):
        boss, quotas = of("boss", "admin"), {"max_trials": no_number}
        assert boss.post("/v1/users/boss/quotas", json=quotas).status_code == 422
        token = {"user": "anna", "scope": "read", "seconds": no_number}
        assert boss.post("/v1/tokens", json=token).status_code == 422

    def test_a_reproduction_is_refused_as_a_whole(self, of, accounts):
        anna = of("anna")
        accounts.change_quotas("anna", Quotas(max_trials=0))
        name = anna.get("/v1/reproduction-suites").json()["items"][0]["name"]
        answer = anna.post("/v1/reproductions", json={"name": name})
        assert answer.status_code == 403
        assert anna.get("/v1/reproductions").json()["items"] == []
        assert anna.get("/v1/experiments").json()["items"] == []


class TestAudit:
    def test_it_says_who_did_what_from_where(self, make, accounts, spec):
        client = make("10.0.0.7", token=SecretStr("ours"))
        ours = {"Authorization": "Bearer ours"}
        made = client.post(
            "/v1/tokens", json={"user": "anna", "scope": "submit"}, headers=ours
        ).json()
        anna = {"Authorization": f"Bearer {made['token']}"}
        here = client.post("/v1/experiments", json=spec(), headers=anna).json()["links"]["self"]
        client.post(f"{here}/cancel", headers=anna)
        client.post("/v1/experiments/preview", json=spec(), headers=anna)
        client.get("/v1/experiments", headers=anna)
        client.post("/session", data={"token": made["token"], "place": "/"})
        client.post("/session", data={"token": "wrong", "place": "/"})
        client.post("/v1/users", json={"name": "bob"}, headers=anna)
        client.post(f"/v1/tokens/{made['id']}/revoke", headers=ours)

        entries = client.get("/v1/audit", headers=ours).json()["items"]

        told = [(e["user"], e["token"], e["action"], e["refused"]) for e in reversed(entries)]
        mine = ("anna", made["id"])
        assert told == [
            ("operator", "EIGENSWEEP_TOKEN", "POST /v1/tokens", False),
            (*mine, "POST /v1/experiments", False),
            (*mine, f"POST {here}/cancel", False),
            (*mine, "POST /session", False),
            (None, None, "POST /session", True),
            (*mine, "POST /v1/users", True),
            ("operator", "EIGENSWEEP_TOKEN", f"POST /v1/tokens/{made['id']}/revoke", False),
        ]
        assert {entry["address"] for entry in entries} == {"10.0.0.7"}
        details = [entry["detail"] for entry in reversed(entries)]
        assert details[0] == f"token {made['id']} of user anna, scope submit"
        assert details[1] == here
        assert "scope 'admin'" in details[5]
        assert made["token"] not in json.dumps(entries)

    def test_nothing_is_posted_without_its_entry(self, make, accounts, record, spec):
        client = make(raises=False)
        write = database.engine(record.url).execution_options(writes=True)
        with write.begin() as connection:
            connection.execute(
                text(
                    "CREATE TRIGGER full BEFORE INSERT ON audit "
                    "BEGIN SELECT RAISE(ABORT, 'no entry'); END"
                )
            )
        assert client.post("/v1/experiments", json=spec()).status_code >= 500
        assert record.experiments() == []
        with write.begin() as connection:
            connection.execute(text("DROP TRIGGER full"))
        key = {"Idempotency-Key": "k"}
        for status in (201, 200):
            assert client.post("/v1/experiments", json=spec(), headers=key).status_code == status
        (posted,) = record.experiments()
        entries = Audit(record.url, 100).list()
        assert [(e.action, e.detail) for e in entries] == [
            ("POST /v1/experiments", f"/v1/experiments/{posted.experiment.id}")
        ] * 2

    def test_refusals_cannot_push_out_deeds(self, url, monkeypatch):
        monkeypatch.setattr(audit_log, "PRUNED_EVERY", 1)
        log = Audit(url, 3)
        for number in range(5):
            log.add(f"deed {number}", user="anna", token=None, address=None, refused=False)
        for number in range(9):
            log.add(f"try {number}", user=None, token=None, address="10.0.0.9", refused=True)
        assert [e.action for e in log.list(refused=False)] == ["deed 4", "deed 3", "deed 2"]
        assert [e.action for e in log.list(refused=True)] == ["try 8", "try 7", "try 6"]

    def test_the_same_refusal_is_told_once_a_minute(self, make, record):
        client = make(token=SecretStr("ours"))
        for path in ("/v1/experiments", "/v1/models", "/v1/tasks"):
            client.get(path, headers={"Authorization": "Bearer wrong"})
        assert [e.action for e in Audit(record.url, 100).list()] == ["GET /v1/experiments"]

    def test_it_is_read_page_by_page(self, of, url):
        log = Audit(url, 100)
        for number in range(5):
            log.add(f"deed {number}", user="anna", token=None, address=None, refused=False)
        boss = of("boss", "admin")
        first = boss.get("/v1/audit?limit=2&user=anna").json()
        second = boss.get(
            "/v1/audit", params={"limit": 9, "user": "anna", "cursor": first["next_cursor"]}
        ).json()
        actions = [each["action"] for each in first["items"] + second["items"]]
        assert actions == [f"deed {number}" for number in (4, 3, 2, 1, 0)]
        assert second["next_cursor"] is None

    def test_what_a_stranger_writes_forges_no_lines(self, url):
        log = Audit(url, 100)
        log.add("GET /\x1b[2K\nanna", user=None, token=None, address=None, refused=True)
        assert log.list()[0].action == "GET /�[2K�anna"


class TestRates:
    def test_too_many_requests_are_answered_429_with_a_pause(self, make, accounts):
        client = make(rate_limit="3/hour", token=SecretStr("ours"))
        known = {"Authorization": "Bearer ours"}
        statuses = [client.get("/v1/me", headers=known).status_code for _ in range(4)]
        refused = client.get("/v1/me", headers=known)
        assert statuses == [200, 200, 200, 429]
        assert 0 < int(refused.headers["Retry-After"]) <= 3600
        assert "try again in" in refused.json()["detail"]
        other = accounts.create_token("anna", "read", None).token
        assert client.get("/v1/me", headers={"Authorization": f"Bearer {other}"}).is_success
        assert client.get("/healthz").is_success

    def test_an_address_that_guesses_is_not_listened_to_for_a_while(self, make):
        client = make("10.0.0.9", host="0.0.0.0", token=SecretStr("ours"))
        for _ in range(rates.FAILURES.amount):
            assert client.post("/session", data={"token": "guess"}).status_code == 401
        for refused in (
            client.post("/session", data={"token": "ours"}),
            client.get("/v1/me", headers={"Authorization": "Bearer ours"}),
        ):
            assert refused.status_code == 429
            assert 0 < int(refused.headers["Retry-After"]) <= 60

    def test_on_loopback_nothing_is_limited_unless_it_is_set(self, settings):
        def count(**changes: Any) -> list[int | None]:
            counter = rates.Rates(settings.model_copy(update=changes))
            return [counter.count("anna", "10.0.0.9") for _ in range(3001)]

        assert count()[-1] is None
        assert count(host="0.0.0.0", rate_limit="off")[-1] is None
        assert [pause is None for pause in count(host="0.0.0.0")[-2:]] == [True, False]

    def test_a_clock_that_is_set_back_refuses_nobody_for_long(self, settings, monkeypatch):
        limited = settings.model_copy(update={"rate_limit": "2/minute"})
        counter, now = rates.Rates(limited), time.time()
        assert [counter.count("anna", "10.0.0.9") is None for _ in range(3)] == [True, True, False]
        monkeypatch.setattr(time, "time", lambda: now - 3600)
        again = [counter.count("anna", "10.0.0.9") for _ in range(4)]
        assert [pause is None for pause in again] == [True, True, True, False]
        assert again[-1] <= 60

    @pytest.mark.parametrize("rate", ["", "many", "5", "5/fortnight"])
    def test_a_rate_that_is_none_is_refused_at_start(self, tmp_path, rate):
        with pytest.raises(ValidationError, match="600/minute"):
            Settings(home=tmp_path, rate_limit=rate)


SECRET = "between-the-proxy-and-us"
PROXY_FIELDS = [name for name in Settings.model_fields if name.startswith("proxy_")]
PROXY = {"proxy_addresses": "10.1.0.0/16", "proxy_secret": SECRET}


class TestProxy:
    @pytest.fixture
    def proxied(self, make: Make, tmp_path: Path) -> TestClient:
        found = Settings(home=tmp_path, proxy_scopes="lab=submit, leads=admin", **PROXY)
        client = make("10.1.2.3", **{name: getattr(found, name) for name in PROXY_FIELDS})
        client.headers |= {PROXY_SECRET: SECRET, "X-Forwarded-For": "8.8.8.8, 192.0.2.7"}
        return client

    @pytest.mark.parametrize(
        ("groups", "scope"), [("lab", "submit"), ("x, lab,leads", "admin"), ("leads", "admin")]
    )
    def test_it_names_user_and_groups(self, proxied, groups, scope):
        headers = {"X-Forwarded-User": "anna@lab.example", "X-Forwarded-Groups": groups}
        me = proxied.get("/v1/me", headers=headers).json()
        assert me == {"user": "anna@lab.example", "scope": scope, "token": "proxy"}

    @pytest.mark.parametrize(
        ("forwarded", "found"),
        [
            ("8.8.8.8, 192.0.2.7", "192.0.2.7"),
            ("192.0.2.7, 10.1.9.9", "192.0.2.7"),
            ("8.8.8.8, 192.0.2.7:4711", "192.0.2.7"),
            ("8.8.8.8, [2001:db8::1]:80", "2001:db8::1"),
            ("8.8.8.8, unknown", "10.1.2.3"),
            ("8.8.8.8\n192.0.2.7", "192.0.2.7"),
            ("", "10.1.2.3"),
        ],
    )
    def test_an_address_of_a_clients_own_making_does_not_count(self, proxied, forwarded, found):
        identity = proxied.app.state.service.identity
        lines = [(b"x-forwarded-for", line.encode()) for line in forwarded.split("\n")]

        def find(peer: str) -> str | None:
            scope = {"type": "http", "headers": lines, "client": (peer, 1)}
            return identity.find_address(HTTPConnection(scope))

        assert find("10.1.2.3") == found
        assert find("8.8.4.4") == "8.8.4.4", "it is no proxy"

    def test_its_users_own_what_they_post_and_have_quotas(self, proxied, spec, accounts):
        accounts.create_user("anna", Quotas(max_experiments=1))
        proxied.headers |= {"X-Forwarded-User": "anna", "X-Forwarded-Groups": "lab"}
        assert proxied.post("/v1/experiments", json=spec()).json()["owner"] == "anna"
        assert proxied.post("/v1/experiments", json=spec()).status_code == 403
        entry = Audit(accounts.url, 100).list(refused=False)[0]
        assert (entry.user, entry.token, entry.address) == ("anna", "proxy", "192.0.2.7")

    @pytest.mark.parametrize(
        ("headers", "words"),
        [
            ({"X-Forwarded-User": "anna"}, "no group"),
            ({"X-Forwarded-User": "anna", "X-Forwarded-Groups": "guests"}, "no group"),
            ({"X-Forwarded-User": "operator", "X-Forwarded-Groups": "lab"}, "choose another"),
            ({"X-Forwarded-User": "a b", "X-Forwarded-Groups": "lab"}, "cannot be one"),
            ({"X-Forwarded-User": "", "X-Forwarded-Groups": "lab"}, "cannot be one"),
            ({"X-Forwarded-User": "gone", "X-Forwarded-Groups": "lab"}, "was removed"),
            ({PROXY_SECRET: "wrong", "X-Forwarded-User": "anna"}, "needs a token"),
            ({}, "needs a token"),
        ],
    )
    def test_who_is_in_no_group_or_has_no_such_name_is_refused(
        self, proxied, accounts, headers, words
    ):
        accounts.create_user("gone")
        accounts.remove_user("gone")
        answer = proxied.get("/v1/me", headers=headers)
        assert (answer.status_code, words in answer.json()["detail"]) == (401, True)

    def test_each_of_its_users_has_a_rate_of_their_own(self, proxied, make):
        shared = {name: getattr(proxied.app.state.settings, name) for name in PROXY_FIELDS}
        client = make("10.1.2.3", **shared, rate_limit="1/hour")
        client.headers |= {PROXY_SECRET: SECRET, "X-Forwarded-Groups": "lab"}
        sent = [client.get("/v1/me", headers={"X-Forwarded-User": u}) for u in ("a", "b", "a")]
        assert [answer.status_code for answer in sent] == [200, 200, 429]

    def test_a_header_that_comes_twice_is_refused(self, proxied):
        twice = [("X-Forwarded-User", "eve"), ("X-Forwarded-User", "anna")]
        groups = [("X-Forwarded-Groups", "lab")]
        secret = [(PROXY_SECRET, SECRET)]
        answer = proxied.get("/v1/me", headers=[*twice, *groups, *secret])
        assert answer.status_code == 401
        assert "more than once" in answer.json()["detail"]

    def test_tokens_work_behind_it_as_well(self, proxied, accounts):
        token = accounts.create_token("bob", "read", None).token
        me = proxied.get("/v1/me", headers={"Authorization": f"Bearer {token}"}).json()
        assert (me["user"], me["scope"]) == ("bob", "read")

    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({"proxy_secret": SECRET}, "all three"),
            ({"proxy_scopes": "lab=read"}, "all three"),
            ({**PROXY, "proxy_scopes": "lab"}, "group=scope"),
            ({**PROXY, "proxy_scopes": "lab=owner"}, "'read', 'submit' or 'admin'"),
            ({**PROXY, "proxy_secret": "short", "proxy_scopes": "lab=read"}, "at least 16"),
            ({"proxy_addresses": "everybody"}, "everybody"),
        ],
    )
    def test_settings_that_let_anybody_in_are_refused_at_start(self, tmp_path, changes, words):
        with pytest.raises(ValidationError, match=words):
            Settings(home=tmp_path, **changes)

    def test_an_address_is_believed_of_a_proxy_only(self, make, accounts):
        client = make("203.0.113.5", token=SecretStr("ours"))
        client.get("/v1/me", headers={"X-Forwarded-For": "10.0.0.1"})
        assert Audit(accounts.url, 100).list()[0].address == "203.0.113.5"


class TestSessions:
    def test_a_session_is_the_tokens_users_and_ends_with_it(self, make, accounts):
        made = accounts.create_token("anna", "read", None)
        client = make()
        sent = client.post("/session", data={"token": made.token, "place": "/"})
        assert (sent.status_code, made.token in sent.headers["set-cookie"]) == (303, False)
        me = client.get("/v1/me").json()
        assert me == {"user": "anna", "scope": "read", "token": made.id}
        accounts.revoke_token(made.id)
        assert client.get("/v1/me").status_code == 401

    def test_a_wrong_token_is_told_on_the_form(self, make, accounts):
        expired = accounts.create_token("anna", "read", -1.0)
        answer = make().post("/session", data={"token": expired.token, "place": "/"})
        assert answer.status_code == 401
        assert "this token has expired" in answer.text


@pytest.mark.usefixtures("_no_environment")
class TestCommands:
    @pytest.fixture
    def run(self, monkeypatch: pytest.MonkeyPatch, settings: Settings, url: str) -> Any:
        """Run a command at the database of the record, without a service."""
        monkeypatch.setenv("EIGENSWEEP_HOME", str(settings.home))
        monkeypatch.setenv("EIGENSWEEP_DATABASE_URL", url)
        return lambda *words: CliRunner().invoke(command_line, words)

    @pytest.fixture
    def address(self, make: Make) -> Iterator[str]:
        """The address of a service on the same record."""
        server = uvicorn.Server(uvicorn.Config(make().app, log_config=None, port=0, lifespan="off"))
        thread = threading.Thread(target=server.run)
        thread.start()
        while not server.started:
            thread.join(0.01)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
        server.should_exit = True
        thread.join()

    def test_who_owns_the_database_makes_the_first_token(self, run, make, accounts):
        made = run(*["token", "create", "--user", "anna", "--scope", "admin", "--expires", "30d"])
        assert made.exit_code == 0, made.output
        token = made.stdout.strip()
        assert make().get("/v1/me", headers={"Authorization": f"Bearer {token}"}).is_success
        listed = run("token", "list")
        assert token not in listed.output
        (found,) = accounts.list_tokens()
        assert found.id in listed.stdout
        assert round((found.expires_at - found.created_at).total_seconds() / 86400) == 30
        assert run("token", "revoke", found.id).exit_code == 0
        assert not accounts.list_tokens()[0].usable
        told = run("audit").stdout
        assert "eigensweep token create" in told
        assert "eigensweep token revoke" in told

    def test_a_wrong_home_is_told_of_and_not_just_an_empty_list(self, tmp_path, monkeypatch):
        monkeypatch.setenv("EIGENSWEEP_HOME", str(tmp_path / "wrong"))
        first, second = (CliRunner().invoke(command_line, ["token", "list"]) for _ in range(2))
        assert first.exit_code == second.exit_code == 0
        assert f"a new record is made at sqlite:///{tmp_path}/wrong" in first.stderr
        assert second.stderr == ""

    def test_under_a_service_of_another_version_they_change_nothing(self, run, url, monkeypatch):
        monkeypatch.setattr(local, "PATIENCE_SECONDS", 0.0)
        monkeypatch.setattr(migrations, "compare_versions", lambda url: ("0023", "0025"))
        changed = list[str]()
        monkeypatch.setattr(migrations, "migrate", changed.append)
        other = Leadership(url)
        assert other.hold()
        try:
            refused = run("user", "list")
        finally:
            other.stop()
        assert (refused.exit_code, changed) == (1, [])
        assert "whose schema is 0023 and not 0025: end it first" in refused.output
        assert run("user", "list").exit_code == 0
        assert changed == [url]

    def test_at_the_database_a_refusal_is_the_services(self, run, address):
        here = run("token", "revoke", "none", "--json")
        there = run("token", "revoke", "none", "--json", "--url", address)
        assert here.exit_code == there.exit_code == 2
        assert json.loads(here.stderr) == json.loads(there.stderr)
        assert "eigensweep token" not in run("audit").stdout  # a refusal is no deed

    def test_in_a_folder_that_is_not_there_yet_as_well(self, monkeypatch, tmp_path):
        monkeypatch.setenv("EIGENSWEEP_HOME", str(tmp_path / "fresh"))
        words = [
            "token",
            "create",
            "--user",
            "anna",
            "--scope",
            "admin",
            "--expires",
            "never",
            "--json",
        ]
        made = json.loads(CliRunner().invoke(command_line, words).stdout)
        assert (made["user"], made["expires_at"]) == ("anna", None)
        assert (tmp_path / "fresh").stat().st_mode & 0o777 == 0o700
        assert (tmp_path / "fresh" / "eigensweep.db").stat().st_mode & 0o077 == 0

    def test_with_an_address_the_service_is_asked_by_a_files_token(
        self, run, address, accounts, tmp_path, monkeypatch
    ):
        monkeypatch.setenv("EIGENSWEEP_TOKEN_FILE", "")  # so that it is put back
        file = tmp_path / "token"
        file.write_text(accounts.create_token("boss", "admin", None).token + "\n")
        file.chmod(0o644)
        words = ("--token-file", str(file), "--url", address)
        refused = run(*words, "user", "list")
        assert (refused.exit_code, "chmod 600" in refused.output) == (2, True)
        file.chmod(0o600)
        assert run(*words, "user", "create", "bob", "--trials", "9").exit_code == 0
        assert run(*words, "user", "quota", "bob", "--experiments", "2").exit_code == 0
        assert run(*words, "user", "quota", "bob", "--trials", "-1").exit_code == 0
        bob = next(user for user in accounts.list_users() if user.name == "bob")
        assert bob.quotas == Quotas(max_experiments=2)
        assert run(*words, "token", "create", "--user", "bob", "--scope", "read").exit_code == 0
        assert run(*words, "user", "remove", "bob").exit_code == 0
        assert not accounts.list_tokens("bob")[0].usable
        assert "POST /v1/users/bob/remove" in run(*words, "audit", "--user", "boss").stdout
        monkeypatch.setenv("EIGENSWEEP_TOKEN_FILE", "")
        alone = run("--url", address, "user", "list")
        assert (alone.exit_code, "--token-file" in alone.output) == (2, True)

    def test_a_refusal_speaks_of_the_token_where_that_is_the_reason(
        self, run, address, accounts, spec, tmp_path
    ):
        accounts.create_user("anna", Quotas(max_experiments=0))
        ben = accounts.create_token("ben", "submit", None)
        file, body = tmp_path / "token", tmp_path / "spec.json"
        body.write_text(json.dumps(spec(name="a scope of rates")))

        def run_as(token: str, *words: str) -> tuple[str, bool]:
            file.write_text(token)
            file.chmod(0o600)
            done = run("--token-file", str(file), "--url", address, *words)
            assert done.exit_code == 2, done.output
            return done.output, "the token is read from" in done.output

        mine = accounts.create_token("anna", "submit", None).token
        assert run_as(mine, "submit", str(body))[1] is False  # the quota
        post = {"Authorization": f"Bearer {ben.token}"}
        here = httpx2.post(f"{address}/v1/experiments", json=spec(), headers=post).json()["id"]
        told, speaks = run_as(mine, "prioritize", here, "3")
        assert (speaks, "belongs to user 'ben'" in told) == (False, True)
        reader = accounts.create_token("carl", "read", None).token
        assert run_as(reader, "submit", str(body))[1] is True
        assert run_as("mistyped", "submit", str(body))[1] is True
        assert "EIGENSWEEP_TOKEN_FILE" in run_as("mistyped", "submit", str(body))[0]

    @pytest.mark.parametrize(
        ("words", "told"),
        [
            ("token create --user anna --scope owner", "'owner' is not one of"),
            ("token create --user anna --scope read --expires soon", "30d"),
            ("token create --user anna --scope read --expires 0d", "1m or longer"),
            ("token create --user operator --scope read", "choose another name"),
            ("token revoke none", "there is no token 'none'"),
            ("user quota nobody --trials 3", "there is no user 'nobody'"),
        ],
    )
    def test_what_cannot_be_done_is_said_in_words(self, run, words, told):
        done = run(*words.split())
        assert (done.exit_code, told in done.output) == (2, True), done.output
