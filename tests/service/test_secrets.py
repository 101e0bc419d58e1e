"""Secrets are in no log, answer, page, export or database. The whole service: tests/system."""

from __future__ import annotations

import json
import logging
from typing import Any

from pydantic import SecretStr
from starlette.testclient import TestClient

from eigensweep.service.api.app import create_app
from eigensweep.service.api.callers.identity import PROXY_SECRET
from eigensweep.service.record.sql import database
from eigensweep.service.record.users.accounts import Accounts
from eigensweep.service.settings import Mlflow, Settings

OURS = "planted-in-the-environment"
PROXYS = "planted-for-the-proxy"
MLFLOWS = "planted-for-mlflow"


def test_planted_secrets_are_in_no_answer_log_file_or_database(
    settings: Settings, record: Any, dispatcher: Any, spec: Any, caplog: Any, url: str
) -> None:
    caplog.set_level(logging.DEBUG)
    own = settings.model_copy(
        update={"token": SecretStr(OURS), "proxy_secret": SecretStr(PROXYS), "proxy_scopes": {}}
    )
    app = create_app(own, record, dispatcher, Mlflow("http://127.0.0.1:9", "/mlflow", MLFLOWS))
    client = TestClient(app, base_url="http://localhost:8642", raise_server_exceptions=False)
    token = Accounts(record.url).create_token("anna", "admin", None).token
    secrets = [OURS, PROXYS, MLFLOWS, token]
    told = []
    for secret in (OURS, token, f"{token}x", "wrong"):
        client.cookies.clear()
        sent = client.post("/session", data={"token": secret, "place": "/"})
        told.append(str(sent.history or sent.headers) + sent.text)
        secrets += client.cookies.values()
        client.cookies.clear()
        headers = {"Authorization": f"Bearer {secret}", PROXY_SECRET: PROXYS}
        posted = client.post("/v1/experiments", json=spec(), headers=headers)
        here = posted.json().get("links", {}).get("self", "/v1/experiments/none")
        for path in (
            *(here, f"{here}/trials.csv", f"{here}/trials", "/v1/experiments", "/v1/audit"),
            *("/v1/me", "/v1/tokens", "/v1/users", "/readyz", "/metrics", "/openapi.json"),
            *("/mlflow/", "/", here.removeprefix("/v1"), "/v1/nothing", "/new"),
        ):
            answer = client.get(path, headers=headers)
            told.append(str(answer.headers) + answer.text)
        for body in ("{", json.dumps({"name": 1}), json.dumps([])):
            kind = {"Content-Type": "application/json"}
            told.append(client.post("/v1/experiments", content=body, headers=headers | kind).text)
    with database.engine(url).connect() as connection:
        told += connection.connection.driver_connection.iterdump()
    told += [path.read_text() for path in settings.home.rglob("*.json")]
    told += [caplog.text, repr(own), repr(app.state.service)]
    text = "\n".join(told)
    assert len(secrets) == 6
    assert [secret for secret in secrets if secret in text] == []
