"""Optuna's database may be away: a driver waits for it."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path

import optuna
import pytest
from waiting import PATIENCE, wait_until

from eigensweep.workers.driver.study import open_storage


def test_a_locked_database_is_waited_for_at_the_start_and_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "optuna.db"
    url = f"sqlite:///{path}?timeout=0.1"
    study = optuna.create_study(storage=open_storage(url, "e1"), study_name="e1")
    told: list[int] = []

    def reopen() -> None:
        found = optuna.load_study(storage=open_storage(url, "e1"), study_name="e1")
        told.append(found.ask().number)

    for act in (lambda: told.append(study.ask().number), reopen):
        caplog.clear()
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN EXCLUSIVE")
        thread = threading.Thread(target=act)
        thread.start()
        wait_until(lambda: "database is away" in caplog.text, lambda: caplog.text)
        assert thread.is_alive()
        other.execute("ROLLBACK")
        other.close()
        thread.join(PATIENCE)
    assert len(told) == 2


def test_a_database_that_was_restarted_is_asked_again(tmp_path: Path) -> None:
    storage = open_storage(f"sqlite:///{tmp_path / 'optuna.db'}", "e1")
    assert storage.engine.pool._pre_ping  # type: ignore[attr-defined]
