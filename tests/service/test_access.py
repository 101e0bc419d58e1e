"""Who may send requests: tokens, sessions of browsers, and pages of other origins."""

from __future__ import annotations

import html
import json
import os
import re
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest
from pydantic import SecretStr, ValidationError
from starlette.testclient import TestClient

from eigensweep.service.api.app import create_app
from eigensweep.service.api.callers import sessions
from eigensweep.service.api.routes import accounts as accounts_of_the_api
from eigensweep.service.queue.dispatcher import Dispatcher
from eigensweep.service.record.record import Record
from eigensweep.service.settings import Mlflow, Settings

TOKEN = "let-me-in"


class Echo(BaseHTTPRequestHandler):
    """Answers what it was asked."""

    def do_GET(self) -> None:
        size = int(self.headers.get("Content-Length", 0))
        chunked = "chunked" in self.headers.get("Transfer-Encoding", "")
        if chunked:
            size = int(self.rfile.readline(), 16)
        content = self.rfile.read(size)
        told = {
            "path": self.path,
            "headers": {name.lower(): value for name, value in self.headers.items()},
            "body": content.decode(),
        }
        body = json.dumps(told).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Set-Cookie", "planted=1")
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET  # noqa: N815

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def echo() -> Iterator[str]:
    """The address of a server in the place of MLflow's."""
    with socketserver.TCPServer(("127.0.0.1", 0), Echo) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


Make = Callable[..., TestClient]


@pytest.fixture
def make_client(settings: Settings, record: Record, dispatcher: Dispatcher) -> Make:
    def make(token: str | None = TOKEN, mlflow: str = "http://127.0.0.1:9") -> TestClient:
        own = settings.model_copy(update={"token": SecretStr(token) if token else None})
        app = create_app(own, record, dispatcher, Mlflow(mlflow, "/mlflow", "the secret"))
        return TestClient(app, base_url="http://localhost:8642", follow_redirects=False)

    return make


class TestMlflow:
    def test_what_is_asked_goes_on_with_its_secret_without_ours(self, make_client, echo):
        client = make_client(mlflow=echo)
        place = "/api/2.0/mlflow-artifacts/artifacts/1/a%2Fb%3F?c=d%20e"
        answer = client.get(
            f"/mlflow{place}", headers={"Authorization": f"Bearer {TOKEN}", "Cookie": "x=y"}
        )
        told = answer.json()
        assert told["path"] == place
        assert told["headers"]["authorization"] == "Bearer the secret"
        assert "cookie" not in told["headers"]
        assert "set-cookie" not in answer.headers

    def test_a_body_is_handed_on_as_it_was_understood(self, make_client, echo):
        told = make_client(mlflow=echo).post(
            "/mlflow/api/2.0/mlflow/runs/search",
            content='{"max_results" : 1,  "filter": "ä"}',
            headers={"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json; x=y"},
        )
        assert json.loads(told.json()["body"]) == {"max_results": 1, "filter": "ä"}
        assert told.json()["headers"]["content-type"] == "application/json"

    def test_while_it_is_away_the_answer_is_503(self, make_client):
        answer = make_client(token=None).get("/mlflow/")
        assert (answer.status_code, answer.json()["status"]) == (503, 503)
        assert "MLflow does not answer" in answer.json()["detail"]

    @pytest.mark.parametrize("path", ["/mlflow", "/mlflow/", "/mlflow/api/2.0/x", "/v1/models"])
    @pytest.mark.parametrize(
        "header",
        [{}, {"Authorization": "Bearer wrong"}, {"Cookie": "eigensweep_session=wrong"}],
    )
    @pytest.mark.quick_cases(5)
    def test_strangers_get_nothing(self, make_client, echo, path, header):
        assert make_client(mlflow=echo).get(path, headers=header).status_code == 401

    def test_its_place_leads_to_the_folder(self, make_client, echo):
        answer = make_client(None, echo).get("/mlflow")
        assert answer.headers["location"].endswith(":8642/mlflow/")


class TestSessions:
    def test_a_browser_signs_in_once_for_mlflow_and_the_api(self, make_client, echo):
        client = make_client(mlflow=echo)
        asked = client.get("/mlflow/", headers={"Accept": "text/html,*/*"})
        assert asked.status_code == 401
        assert 'action="/session"' in asked.text

        sent = client.post("/session", data={"token": TOKEN, "place": "/mlflow/#/runs/7"})

        assert (sent.status_code, sent.headers["location"]) == (303, "/mlflow/#/runs/7")
        cookie = sent.headers["set-cookie"]
        assert TOKEN not in cookie
        assert "HttpOnly" in cookie
        assert "samesite=strict" in cookie.lower()
        assert client.get("/mlflow/").status_code == 200
        assert client.get("/v1/models").status_code == 200

    def test_a_mistyped_token_keeps_the_page_that_was_asked_for(self, make_client):
        client, wanted = make_client(), '/experiments/e1/trials?state=failed&arm="a b"'
        form = client.get(wanted, headers={"Accept": "text/html"})
        for token, status in (("mistyped", 401), ("again", 401), (TOKEN, 303)):
            (place,) = re.findall(r'name="place" value="([^"]*)"', form.text)
            form = client.post("/session", data={"token": token, "place": html.unescape(place)})
            assert form.status_code == status
        assert form.headers["location"] == wanted.replace('"', "%22").replace(" ", "%20")

    @pytest.mark.parametrize("given", ["", "wrong", "ä", "x" * 100_000])
    def test_a_wrong_token_gives_no_session(self, make_client, given):
        answer = make_client().post("/session", data={"token": given, "place": "/"})
        assert answer.status_code == 401
        assert "set-cookie" not in answer.headers

    @pytest.mark.parametrize("place", ["//evil.example", "https://evil.example", "/\\evil", ""])
    def test_it_leads_to_no_other_site(self, make_client, place):
        answer = make_client().post("/session", data={"token": TOKEN, "place": place})
        assert answer.headers["location"] == "/"

    @pytest.mark.parametrize("other", ['prefs={"theme":"dark"}', "note=hello world", "arr[0]=1"])
    def test_cookies_of_other_programs_of_the_host_do_not_matter(self, make_client, other):
        client = make_client()
        client.post("/session", data={"token": TOKEN, "place": "/"})
        mine = f"eigensweep_session={client.cookies['eigensweep_session']}"
        for cookies in (f"{other}; {mine}", f"{mine}; {other}"):
            found = make_client().get("/v1/experiments", headers={"Cookie": cookies})
            assert found.status_code == 200, cookies

    def test_a_user_of_the_system_without_a_name_has_a_number(self, monkeypatch):
        def fail() -> str:
            raise KeyError("getpwuid(): uid not found: 54321")

        monkeypatch.setattr("getpass.getuser", fail)
        assert accounts_of_the_api._name_user() == f"user {os.getuid()}"

    def test_who_signs_out_is_out_also_with_a_copy_of_the_cookie(self, make_client):
        mine = make_client()
        other = TestClient(mine.app, base_url=mine.base_url, follow_redirects=False)
        for client in (mine, other):
            client.post("/session", data={"token": TOKEN, "place": "/"})
        assert "<button>Sign out</button>" in mine.get("/").text
        copied = mine.cookies["eigensweep_session"]

        sent = mine.post("/session/end")

        assert (sent.status_code, sent.headers["location"]) == (303, "/session")
        assert "eigensweep_session" not in mine.cookies
        assert "You are signed out." in mine.get("/session").text
        stale = {"Cookie": f"eigensweep_session={copied}"}
        for client in (mine, make_client()):  # the second is a service that started later
            assert client.get("/v1/experiments", headers=stale).status_code == 401
        later = make_client()
        later.cookies = other.cookies
        assert later.get("/v1/experiments").status_code == 200
        assert later.get("/session").headers["location"] == "/"

    def test_a_session_ends_with_its_time_or_another_token(self, make_client, monkeypatch):
        client = make_client()
        client.post("/session", data={"token": TOKEN, "place": "/"})
        changed = make_client("another")
        changed.cookies = client.cookies
        assert changed.get("/v1/models").status_code == 401
        assert client.get("/v1/models").status_code == 200
        monkeypatch.setattr(sessions, "LONGEST", 0.0)
        assert client.get("/v1/models").status_code == 401

    def test_who_signs_out_beside_a_slow_sign_in_is_out(self, tmp_path, monkeypatch):
        """The file of the sign-in, which was begun earlier, is not written last."""
        known = sessions.Sessions(path := tmp_path / "sessions.json")
        cookie, write, began = known.begin("t", "digest"), sessions.write_whole, threading.Event()

        def write_slowly(*given: Any) -> None:
            began.set()
            time.sleep(0.3)
            write(*given)

        monkeypatch.setattr(sessions, "write_whole", write_slowly)
        other = threading.Thread(target=known.begin, args=("t", "digest"))
        other.start()
        began.wait()
        monkeypatch.setattr(sessions, "write_whole", write)
        known.end(cookie, "digest")
        other.join()
        assert not sessions.Sessions(path).has(cookie, "digest")
        assert len(json.loads(path.read_text())) == 1

    def test_the_file_of_sessions_holds_neither_token_nor_cookie(self, make_client, settings):
        client = make_client()
        client.post("/session", data={"token": TOKEN, "place": "/"})
        kept = (settings.home / "sessions.json").read_text()
        assert len(json.loads(kept)) == 1
        assert TOKEN not in kept
        assert client.cookies["eigensweep_session"] not in kept

    def test_without_a_token_there_is_nothing_to_sign_out_of(self, make_client):
        client = make_client(None)
        assert "Sign out" not in client.get("/").text
        assert client.get("/session").status_code == 404

    def test_a_page_of_another_origin_signs_nobody_out(self, make_client):
        client = make_client()
        client.post("/session", data={"token": TOKEN, "place": "/"})
        headers = {"Origin": "https://evil.example"}
        assert client.post("/session/end", headers=headers).status_code == 403
        assert client.get("/session/end").status_code == 405
        assert client.get("/v1/models").status_code == 200


class TestPagesOfOtherOrigins:
    @pytest.mark.parametrize("token", [None, TOKEN])
    @pytest.mark.parametrize(
        "headers",
        [
            {"Origin": "https://evil.example"},
            {"Origin": "http://localhost:9999"},
            {"Origin": "null"},
            {"Origin": "http://[evil"},
            {"Sec-Fetch-Site": "cross-site"},
            {"Sec-Fetch-Site": "same-site"},
        ],
    )
    @pytest.mark.quick_cases(5)
    def test_change_nothing(self, make_client, spec, token, headers):
        client = make_client(token)
        if token:
            client.headers["Authorization"] = f"Bearer {token}"
        here = client.post("/v1/experiments", json=spec()).json()["links"]["self"]

        answer = client.post(f"{here}/cancel", headers=headers)

        assert answer.status_code == 403
        assert "another origin" in answer.json()["detail"]
        assert client.get(here).json()["state"] == "queued"

    def test_the_services_own_pages_do(self, make_client, spec):
        client = make_client(None)
        own = {"Origin": "http://localhost:8642", "Sec-Fetch-Site": "same-origin"}
        assert client.post("/v1/experiments", json=spec(), headers=own).status_code == 201


def test_a_body_of_two_lengths_is_refused_and_not_looked_at(make_client, spec):
    client = make_client(None)
    body = json.dumps(spec()).encode()
    headers = {"Content-Length": str(len(body)), "Transfer-Encoding": "chunked"}
    answer = client.post("/v1/experiments", content=body, headers=headers)
    assert (answer.status_code, answer.headers["connection"]) == (400, "close")
    assert "not both" in answer.json()["detail"]
    assert client.get("/v1/experiments").json()["items"] == []


class TestTokens:
    @pytest.mark.parametrize("token", [" ", "two words", "schlüssel", "line\nbreak", "tab\t"])
    def test_one_that_no_header_can_carry_is_refused_at_start(self, tmp_path, token):
        with pytest.raises(ValidationError, match=r"ASCII, without spaces.*openssl rand"):
            Settings(home=tmp_path, token=token)

    def test_it_is_in_no_text_of_the_settings(self, tmp_path):
        settings = Settings(home=tmp_path, token="planted", mlflow_token="planted")
        assert "planted" not in f"{settings!r} {Mlflow('', '', 'planted')!r}"
