"""The MLflow server that the service starts, where it cannot run."""

from __future__ import annotations

import socket
from pathlib import Path

from helpers.waiting import wait_until

from eigensweep.service.process.mlflow_server import MlflowServer
from eigensweep.service.settings import Mlflow


def test_what_it_said_at_its_end_is_told_where_it_is_silent(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    server = MlflowServer(tmp_path / "mlflow", port)
    (tmp_path / "mlflow" / "mlflow.db").write_bytes(b"overwritten" * 1000)
    reached = Mlflow(server.url, server.url, server.token, explain_end=server.explain_end)
    assert "it ended" not in reached.find_problem()
    server.start()
    try:

        def explain() -> str:
            server.restart_if_ended()
            return server.explain_end()

        wait_until(explain, server.log.read_text)
        assert "file is not a database" in reached.find_problem()
    finally:
        server.stop()
