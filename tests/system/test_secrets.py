"""What is planted as a secret is looked for in everything that a whole service leaves behind."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import psutil
import pytest

SPEC = {
    "name": "small",
    "task": {"name": "copying", "delay": 5, "valid_size": 50, "test_size": 50},
    "model": {"name": "scornn", "hidden_size": 8, "negative_ones": 4},
    "training": {"steps": 200, "evaluate_every": 100},
    "search": {"space": {"optimizer.lr": [1e-2, 1e-3]}},
}


@pytest.mark.slow
def test_no_secret_is_in_logs_arguments_tags_or_databases(make_service: Any) -> None:
    planted = {"token": "planted-in-the-environment", "proxy_secret": "planted-for-the-proxy"}
    with tempfile.TemporaryDirectory(prefix="es-", dir="/tmp", ignore_cleanup_errors=True) as name:
        proxy = {"proxy_addresses": "127.0.0.1", "proxy_scopes": "lab=read"}
        service = make_service(Path(name), **planted, **proxy, cpus="2", log_level="debug")
        command = [sys.executable, "-m", "eigensweep.command.cli", "token", "create"]
        made = subprocess.run(
            [*command, "--user", "anna", "--scope", "submit", "--json"],
            env=service.env,
            capture_output=True,
            text=True,
            check=True,
        )
        service.token = json.loads(made.stdout)["token"]
        arguments = set()
        try:
            service.start()
            id = service.post(SPEC)["id"]

            def is_delivered(found: dict[str, Any]) -> bool:
                for process in service.family():
                    try:
                        arguments.add(" ".join(process.cmdline()))
                    except psutil.Error:
                        continue
                return bool(found["delivered"])

            ended = service.wait_for(id, is_delivered)
            assert ended["state"] == "completed"
            assert ended["owner"] == "anna"
        finally:
            service.clear()
        home = service.folder / "home"
        mlflows = (home / "mlflow" / "token").read_text()
        secrets = {*planted.values(), service.token, mlflows}
        files = [path for path in service.folder.rglob("*") if path.is_file()]
        files.remove(home / "mlflow" / "token")
        assert any("mlflow.db" in path.name for path in files)
        assert len(arguments) > 3
        holders = [
            str(path) for path in files if any(s.encode() in path.read_bytes() for s in secrets)
        ]
        assert holders == []
        assert [each for each in arguments if any(secret in each for secret in secrets)] == []
