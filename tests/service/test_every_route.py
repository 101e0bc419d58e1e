"""Every route of the application, with every kind of caller who should get nothing from it.

The routes come from the application, so a new one is here by itself.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from fastapi import APIRouter, Depends, FastAPI
from fastapi.routing import iter_route_contexts
from pydantic import SecretStr
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from eigensweep.service.api.app import create_app
from eigensweep.service.api.callers import sessions
from eigensweep.service.api.callers.callers import (
    ADMIN,
    READ,
    READING,
    find_scope,
    require_scopes,
)
from eigensweep.service.api.callers.identity import PROXY_SECRET
from eigensweep.service.api.middleware.access import PUBLIC, PUBLIC_BELOW, Access
from eigensweep.service.api.mlflow.mlflow_proxy import PLACE
from eigensweep.service.queue.dispatcher import Dispatcher
from eigensweep.service.record.migrations import migrate
from eigensweep.service.record.record import Record
from eigensweep.service.record.users.accounts import SCOPES, Accounts
from eigensweep.service.settings import Mlflow, Settings

OURS = "the-token-of-the-environment"
SECRET = "a secret between both".replace(" ", "-")
PLANTED = "planted-experiment"
ORIGIN = "http://localhost:8642"
PROXY = "10.9.9.9"
SPEC = {
    "name": PLANTED,
    "task": {"name": "copying", "delay": 5, "symbols": 2, "batch_size": 4},
    "model": {"name": "scornn", "hidden_size": 6, "negative_ones": 2},
    "training": {"steps": 100, "evaluate_every": 10},
    "search": {"method": "grid", "space": {"optimizer.lr": [1e-3, 1e-2]}},
}
MLFLOW = [
    ("GET", f"{PLACE}/", "read"),
    ("GET", f"{PLACE}/get-artifact", "read"),
    ("POST", f"{PLACE}/graphql", "read"),
    ("POST", f"{PLACE}/ajax-api/2.0/mlflow/runs/search", "read"),
    ("POST", f"{PLACE}/api/2.0/mlflow/runs/set-tag", "submit"),
    ("POST", f"{PLACE}/api/2.0/mlflow/runs/delete", "admin"),
]
"""Some of what MLflow is asked; all of it is in test_mlflow_proxy.py."""


class Place(NamedTuple):
    """A service with a token of every kind."""

    app: FastAPI
    accounts: Accounts
    tokens: dict[str, str]
    experiment: str
    portal: BlockingPortal
    """One event loop for all requests, as in the service."""

    def client(self, address: str = "127.0.0.1") -> TestClient:
        client = TestClient(
            self.app, base_url=ORIGIN, follow_redirects=False, client=(address, 50_000)
        )
        client.portal = self.portal
        return client

    def requests(self) -> Iterator[tuple[str, str, str]]:
        """Yield method, path and needed scope of everything but what answers everybody."""
        for route in iter_route_contexts(self.app.routes):
            path = route.path or ""
            if not route.methods or path in PUBLIC:
                continue
            for method in sorted(route.methods):
                filled = path.replace("{id}", self.experiment)
                yield method, re.sub(r"\{[^}]+\}", "0", filled), find_scope(route) or "read"
        yield from MLFLOW


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("home")
    settings = Settings(
        home=folder,
        data_root=folder,
        token=SecretStr(OURS),
        proxy_addresses=PROXY,
        proxy_secret=SecretStr(SECRET),
        proxy_scopes="lab=read",
    )
    migrate(settings.database)
    record = Record(settings.database)
    mlflow = Mlflow("http://127.0.0.1:9", "/mlflow", "the secret of MLflow")
    app = create_app(settings, record, Dispatcher(record), mlflow)
    accounts = Accounts(record.url)
    made = {scope: accounts.create_token(f"{scope}er", scope, 3600).token for scope in SCOPES}
    made["expired"] = accounts.create_token("late", "admin", -1.0).token
    revoked = accounts.create_token("anna", "admin", None)
    accounts.revoke_token(revoked.id)
    made["removed"] = accounts.create_token("gone", "admin", None).token
    accounts.remove_user("gone")
    keeper = next(
        each.kwargs["session_keeper"] for each in app.user_middleware if each.cls is Access
    )
    grant = accounts.find_token_by_id(revoked.id)
    assert grant is not None
    made["session of the revoked"] = keeper.begin(revoked.id, grant.digest)
    living = accounts.find_token(made["admin"])
    assert living is not None
    elsewhere = sessions.Sessions(tmp_path_factory.mktemp("elsewhere") / "sessions.json")
    made["session of another service"] = elsewhere.begin(living.token_id, living.digest)
    made["session"] = keeper.begin(living.token_id, living.digest)
    experiment = TestClient(app, headers={"Authorization": f"Bearer {OURS}"}).post(
        "/v1/experiments", json=SPEC
    )
    tokens = made | {"revoked": revoked.token}
    with start_blocking_portal() as portal:
        yield Place(app, accounts, tokens, experiment.json()["id"], portal)


def bearer(name: str) -> Callable[[Place], dict[str, str]]:
    return lambda place: {"Authorization": f"Bearer {place.tokens[name]}"}


def cookie(name: str) -> Callable[[Place], dict[str, str]]:
    return lambda place: {"Cookie": f"{sessions.COOKIE}={place.tokens[name]}"}


def always(**headers: str) -> Callable[[Place], dict[str, str]]:
    return lambda _: {name.replace("_", "-"): value for name, value in headers.items()}


PROXIED = {"X_Forwarded_User": "eve", "X_Forwarded_Groups": "lab"}
STRANGERS: dict[str, Callable[[Place], dict[str, str]]] = {
    "a planted local user": always(),
    "a local program that claims to be a proxy": always(X_Forwarded_For="127.0.0.1", **PROXIED),
    "one who knows the proxy's secret": lambda _: {
        **{name.replace("_", "-"): value for name, value in PROXIED.items()},
        PROXY_SECRET: SECRET,
    },
    "a wrong token": always(Authorization="Bearer esw_wrong"),
    "no bearer": always(Authorization=f"Basic {OURS}"),
    "the digest": lambda place: {
        "Authorization": f"Bearer {place.accounts.find_token(place.tokens['admin']).digest}"
    },
    "expired": bearer("expired"),
    "revoked": bearer("revoked"),
    "of a removed user": bearer("removed"),
    "a made-up session": always(Cookie=f"{sessions.COOKIE}=EIGENSWEEP_TOKEN.made-up"),
    "a session of a revoked token": cookie("session of the revoked"),
    "a session of another service": cookie("session of another service"),
}


def assert_nothing(answer: Any, place: Place) -> None:
    assert PLANTED not in answer.text
    assert "access-control-allow-origin" not in answer.headers
    kinds = ("application/problem+json", "text/html; charset=utf-8")
    assert answer.headers["content-type"] in kinds


class TestStrangers:
    @pytest.mark.parametrize("name", STRANGERS)
    @pytest.mark.quick_cases(4)
    def test_they_get_nothing(self, place: Place, name: str) -> None:
        client = place.client()
        for method, path, _ in place.requests():
            answer = client.request(method, path, headers=STRANGERS[name](place))
            assert answer.status_code == 401, (method, path)
            assert_nothing(answer, place)

    def test_nobody_opens_a_web_socket(self, place: Place) -> None:
        for path in ("/v1/experiments", f"{PLACE}/"):
            with (
                pytest.raises(WebSocketDisconnect),
                place.client().websocket_connect(path, headers=bearer("admin")(place)),
            ):
                pass

    def test_a_path_that_is_not_there_tells_them_nothing_either(self, place: Place) -> None:
        for path in ("/v1/nothing", "/nothing", "//v1/experiments", "/mlflow/../v1/experiments"):
            assert place.client().get(path).status_code == 401, path

    def test_what_answers_everybody_has_no_details(self, place: Place) -> None:
        ready = place.client().get("/readyz").json()
        assert {check["detail"] for check in ready["checks"].values()} == {""}
        assert {check["url"] for check in ready["checks"].values()} == {None}
        known = place.client().get("/readyz", headers=bearer("read")(place)).json()
        assert known["checks"]["launcher"]["detail"]
        assert {"/healthz", "/readyz", "/session", "/session/end"} == PUBLIC
        for folder in PUBLIC_BELOW:
            assert place.client().get(f"{folder}../access.py").status_code in (401, 404)


class TestScopes:
    @pytest.mark.parametrize("scope", ["read", "submit"])
    def test_a_smaller_scope_is_refused_and_told_which_it_needs(
        self, place: Place, scope: str
    ) -> None:
        client = place.client()
        client.headers |= bearer(scope)(place)
        seen = set()
        for method, path, needed in place.requests():
            if path.endswith("/events"):  # it would not end
                continue
            answer = client.request(method, path)
            if SCOPES.index(needed) > SCOPES.index(scope):
                assert answer.status_code == 403, (method, path)
                words = html.unescape(answer.text)
                assert method == "HEAD" or f"scope '{needed}'" in words
                assert_nothing(answer, place)
                seen.add(needed)
            else:
                assert answer.status_code != 401, (method, path)
                assert "needs a token with scope" not in answer.text, (method, path)
        assert seen == set(SCOPES[SCOPES.index(scope) + 1 :])

    @pytest.mark.parametrize("kind", ["admin", "session"])
    def test_an_admin_is_refused_nowhere(self, place: Place, kind: str) -> None:
        client = place.client()
        client.headers |= (cookie if kind == "session" else bearer)(kind)(place)
        for method, path, _ in place.requests():
            if not path.endswith("/events"):
                assert client.request(method, path).status_code not in (401, 403), (method, path)


class TestOwners:
    def test_no_route_changes_an_experiment_of_another_user(self, place: Place) -> None:
        client, changing = place.client(), f"/v1/experiments/{place.experiment}/"
        client.headers |= bearer("submit")(place)
        found = [
            path
            for method, path, _ in place.requests()
            if method not in READING and path.startswith(changing)
        ]
        assert f"{changing}cancel" in found
        for path in found:
            answer = client.post(path)
            assert answer.status_code == 403, path
            assert "belongs to user 'operator'" in answer.json()["detail"]


FOREIGN: dict[str, dict[str, str]] = {
    "a script": {"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"},
    "a picture": {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"},
    "another port of this machine": {"Origin": "http://localhost:3000"},
    "a page of no origin": {"Origin": "null"},
}


class TestPagesOfOtherOrigins:
    @pytest.mark.parametrize("name", FOREIGN)
    def test_they_get_nothing_with_the_cookie_of_an_admin(self, place: Place, name: str) -> None:
        client = place.client()
        client.headers |= cookie("session")(place)
        for method, path, _ in place.requests():
            answer = client.request(method, path, headers=FOREIGN[name])
            assert answer.status_code == 403, (method, path)
            assert method == "HEAD" or "another origin" in answer.text
            assert_nothing(answer, place)

    def test_nor_from_a_service_that_needs_no_token(self, tmp_path: Path) -> None:
        settings = Settings(home=tmp_path, data_root=tmp_path)
        migrate(settings.database)
        record = Record(settings.database)
        app = create_app(settings, record, Dispatcher(record))
        client = TestClient(app, base_url=ORIGIN, client=("127.0.0.1", 50_000))
        assert client.get("/v1/experiments").status_code == 200
        for headers in FOREIGN.values():
            for path in ("/v1/experiments", "/", "/metrics"):
                assert client.get(path, headers=headers).status_code == 403
        preflight = {"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"}
        assert client.options("/v1/experiments", headers=preflight).status_code == 403

    def test_a_link_of_theirs_leads_to_a_page(self, place: Place) -> None:
        headers = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
        client = place.client()
        client.headers |= cookie("session")(place) | headers
        assert client.get("/").status_code == 200
        assert client.post("/v1/experiments", json=SPEC).status_code == 403


class TestHeaders:
    def test_every_answer_says_what_may_be_done_with_it(self, place: Place) -> None:
        client = place.client()
        client.headers |= bearer("admin")(place)
        for method, path, _ in [*place.requests(), ("GET", "/static/style.css", "")]:
            if path.endswith("/events"):
                continue
            headers = client.request(method, path).headers
            policy = headers["Content-Security-Policy"]
            assert headers["X-Content-Type-Options"] == "nosniff", path
            assert headers["Referrer-Policy"] == "same-origin", path
            assert re.search("frame-ancestors '(none|self)'", policy), path
            assert path.startswith(PLACE) or "unsafe" not in policy, path

    @pytest.mark.parametrize("path", ["get-artifact", "api/2.0/mlflow-artifacts/artifacts/1/x"])
    def test_a_users_file_in_mlflow_is_no_page_of_this_origin(
        self, place: Place, path: str
    ) -> None:
        answer = place.client().get(f"{PLACE}/{path}", headers=bearer("read")(place))
        policy = answer.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert policy.endswith("; sandbox")


class TestDescription:
    def test_every_operation_says_that_it_can_refuse(self, place: Place) -> None:
        for path, operations in place.app.openapi()["paths"].items():
            for method, operation in operations.items():
                refusals = {"403"} if path in PUBLIC else {"401", "403", "429", "503"}
                assert refusals <= operation["responses"].keys(), (method, path)


class TestDeclarations:
    @staticmethod
    def make(**changes: Any) -> FastAPI:
        """Return an application with one route that changes something."""
        router = APIRouter()

        async def act() -> None:
            pass

        router.add_api_route("/act", act, methods=["POST"], **changes)
        app = FastAPI(openapi_url=None)
        app.include_router(router, dependencies=[READ])
        return app

    def test_a_route_that_changes_something_must_name_a_scope(self) -> None:
        with pytest.raises(RuntimeError, match=r"POST.*/act does not say which scope it needs"):
            require_scopes(self.make(), frozenset())

    def test_one_that_names_it_can_be(self) -> None:
        require_scopes(self.make(dependencies=[ADMIN]), frozenset())

    def test_a_route_outside_of_all_routers_cannot_be_added(self) -> None:
        app = self.make(dependencies=[ADMIN])
        app.add_api_route("/look", lambda: None, dependencies=[Depends(lambda: None)])
        with pytest.raises(RuntimeError, match="/look"):
            require_scopes(app, frozenset())
