"""MLflow's server with a lock: it answers who knows a secret, and opens its own artifacts only.

A process of its own, started by `python -m eigensweep.service.process.mlflow_app --port 5000 ...`
with the secret in EIGENSWEEP_MLFLOW_TOKEN. MLflow's own server answers everybody who reaches its
port, and reads any file for a run whose experiment names that file's folder as its artifacts.
"""

from __future__ import annotations

import argparse
import hmac
import json
import os
import re
from pathlib import Path
from typing import Any, Final

from starlette.datastructures import Headers
from starlette.responses import HTMLResponse, JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from eigensweep.common.parents import end_with_parent
from eigensweep.service.api.mlflow.mlflow_requests import CHANGES, is_read, name_request

TOKEN: Final = "EIGENSWEEP_MLFLOW_TOKEN"
QUIET: Final = {
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # thirteen processes without use here
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
}
FIRST_VISIT: Final = {
    "mlflow.workflowType_v1": '"machine_learning"',  # training, and not chats
    "mlflow.assistant.fab.autoOpenedOnFirstLoad_v1": "true",  # its panel asks what is refused here
    "mlflow.telemetry.info.alert.dismissed_v1": "true",
    "mlflow.settings.telemetry.enabled_v1": "false",
}
"""What MLflow's pages keep in a browser, as a first visit finds it. Later choices stay."""
WRITTEN: Final = re.compile(r"experiments/create|runs/(create|log-batch)|eigensweep/runs")
"""What drivers send, beside the changes that users make (`CHANGES`)."""
KEPT: Final = re.compile(r"mlflow-artifacts/artifacts/.+")
"""Where drivers put artifacts."""


def is_offered(method: str, path: str) -> bool:
    """Return whether a request is one that drivers, or the pages of experiments, need.

    >>> is_offered("POST", "/api/2.0/mlflow/runs/log-batch"), is_offered("GET", "/get-artifact")
    (True, True)
    >>> is_offered("POST", "/ajax-api/3.0/mlflow/assistant/message")
    False
    """
    name = name_request(path)
    if name is None or is_read(method, path):
        return is_read(method, path)
    if method == "PUT":
        return bool(KEPT.fullmatch(name))
    return method == "POST" and (name in CHANGES or bool(WRITTEN.fullmatch(name)))


class SecretGate:
    """Answers 401 to requests without the secret and 403 to those that are not offered."""

    def __init__(self, app: ASGIApp, secret: str) -> None:
        self._app, self._expected = app, f"Bearer {secret}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        elif scope["type"] != "http" or scope["path"] == "/health":
            await self._app(scope, receive, send)
        elif not hmac.compare_digest(
            Headers(scope=scope).get("authorization", "").encode(), self._expected
        ):
            refusal = _refuse(401, "UNAUTHENTICATED", "MLflow answers Eigensweep's service only")
            await refusal(scope, receive, send)
        elif not is_offered(scope["method"], scope["path"]):
            words = f"{scope['method']} {scope['path'][:200]} is not offered here"
            await _refuse(403, "INVALID_PARAMETER_VALUE", words)(scope, receive, send)
        else:
            await self._app(scope, receive, send)


class FirstPage:
    """Answers with MLflow's page, which sets `FIRST_VISIT` before its own scripts run."""

    def __init__(self, app: ASGIApp, page: str) -> None:
        self._app = app
        choices = f"Object.entries({json.dumps(FIRST_VISIT)})"
        each = "localStorage.getItem(name) ?? localStorage.setItem(name, value)"
        script = f"<script>for (const [name, value] of {choices}) {each};</script>"
        headers = {"Cache-Control": "no-cache", "X-Content-Type-Options": "nosniff"}
        self._answer = HTMLResponse(
            page.replace("<head>", f"<head>{script}", 1),
            headers={**headers, "X-Frame-Options": "SAMEORIGIN"},
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_page = scope["type"] == "http" and scope["path"] == "/"
        await (self._answer if is_page else self._app)(scope, receive, send)


def _refuse(status: int, code: str, words: str) -> JSONResponse:
    return JSONResponse({"error_code": code, "message": words}, status)


def confine_artifacts(folder: Path) -> None:
    """Let this process open artifacts below `folder` only, whatever address a run has."""
    from mlflow.exceptions import MlflowException
    from mlflow.protos.databricks_pb2 import INVALID_PARAMETER_VALUE
    from mlflow.store.artifact import artifact_repository_registry as registry
    from mlflow.store.artifact.local_artifact_repo import LocalArtifactRepository
    from mlflow.utils.file_utils import local_file_uri_to_path

    read_path: Any = local_file_uri_to_path
    root = folder.resolve()

    def open_repository(uri: str, *rest: Any, **named: Any) -> LocalArtifactRepository:
        path = Path(str(read_path(uri)))
        if not path.is_absolute() or not path.resolve().is_relative_to(root):
            raise MlflowException(
                f"this server keeps artifacts below its own folder only, not at {uri[:200]}",
                INVALID_PARAMETER_VALUE,
            )
        return LocalArtifactRepository(uri, *rest, **named)

    known: dict[str, Any] = registry.get_registered_artifact_repositories()  # no copy
    known.update(dict.fromkeys(known, open_repository))


def make_app() -> ASGIApp:
    """Return MLflow's application behind the lock; `main` has set its environment."""
    from mlflow import server
    from mlflow.server import constants
    from mlflow.server.fastapi_app import app
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    from eigensweep.service.process.mlflow_writer import Writer

    artifacts = Path(os.environ[constants.ARTIFACTS_DESTINATION_ENV_VAR])
    confine_artifacts(artifacts)
    page = Path(server.__file__).parent / "js" / "build" / "index.html"
    pages: ASGIApp = FirstPage(app, page.read_text(encoding="utf-8"))
    place, root = constants.BACKEND_STORE_URI_ENV_VAR, constants.ARTIFACT_ROOT_ENV_VAR
    make: Any = SqlAlchemyStore
    store = make(os.environ[place], os.environ[root])  # shares connections with MLflow's own
    return SecretGate(Writer(pages, store, artifacts), os.environ[TOKEN])


def make_database(uri: str, root: str) -> None:
    """Make MLflow's SQLite database, if there is none, under another name until it is whole.

    MLflow makes it in steps that are no transaction, and cannot go on where it was ended between.
    """
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    kind, _, place = uri.partition(":///")
    path = Path(place)
    if kind != "sqlite" or (path.exists() and path.stat().st_size):
        return
    new = path.with_name(f"{path.name}.new")
    for left in path.parent.glob(f"{new.name}*"):  # by one that was ended, with its journal
        left.unlink()
    make: Any = SqlAlchemyStore
    store = make(f"{kind}:///{new}", root)
    store.engine.dispose()
    new.replace(path)


def main() -> None:
    """Bring MLflow's database up to date and serve until a signal."""
    parser = argparse.ArgumentParser(description="MLflow's server behind a secret")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=5000)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--with-parent", action="store_true", help="end when its starter has gone")
    parser.add_argument("--artifacts", type=Path, required=True, help="folder of the artifacts")
    settings = parser.parse_args()
    if not os.environ.get(TOKEN):
        parser.error(f"set {TOKEN} to a secret, and the service's {TOKEN} to the same one")
    store = os.environ.get("MLFLOW_BACKEND_STORE_URI")
    if not store:
        parser.error("set MLFLOW_BACKEND_STORE_URI to the database of MLflow")
    os.environ.update(QUIET)
    # The secret guards better than MLflow's own look at the name by which it was asked.
    os.environ.setdefault("MLFLOW_SERVER_ALLOWED_HOSTS", "*")
    if settings.with_parent:
        end_with_parent()

    import uvicorn
    from mlflow.server import constants
    from mlflow.server.handlers import initialize_backend_stores

    from eigensweep.service.process.timed_http import TimedHttpOfArtifacts

    root = "mlflow-artifacts:/"
    os.environ |= {
        constants.BACKEND_STORE_URI_ENV_VAR: store,
        constants.REGISTRY_STORE_URI_ENV_VAR: store,
        constants.ARTIFACT_ROOT_ENV_VAR: root,
        constants.SERVE_ARTIFACTS_ENV_VAR: "true",
        constants.ARTIFACTS_DESTINATION_ENV_VAR: str(settings.artifacts.absolute()),
    }
    make_database(store, root)
    initialize_backend_stores(store, store, root)
    uvicorn.run(
        "eigensweep.service.process.mlflow_app:make_app",
        factory=True,
        http=TimedHttpOfArtifacts,
        host=settings.host,
        port=settings.port,
        workers=settings.workers,
        access_log=False,
    )


if __name__ == "__main__":
    main()
