"""A store whose folder hangs, as a network's does: who reads there is refused, all else goes on."""

from __future__ import annotations

import shutil
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from anyio import to_thread
from helpers.played import play
from helpers.waiting import PATIENCE, wait_until

from eigensweep.analyses.messages import ChildOutcome
from eigensweep.service import store_probe
from eigensweep.service.api.routes import health, metrics
from eigensweep.service.process.serve import THREADS
from eigensweep.service.queue import jobs
from eigensweep.service.queue.deletions import DeletionHandler
from eigensweep.service.queue.jobs import JobRunner, NotDoneError, ReadingHandler
from eigensweep.service.queue.retention import PruningHandler
from eigensweep.service.record.jobs import Jobs
from eigensweep.service.store_probe import StoreProbe
from eigensweep.store.checkpoints import Store
from eigensweep.store.places.durable_files import StoreAwayError
from eigensweep.store.places.folder_files import FolderFiles

READS = ("names", "read", "open", "size")
UNCHANGED = {name: getattr(FolderFiles, name) for name in READS}


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return an object whose `hangs` and `goes_on` say how the store's folder is."""
    monkeypatch.setattr(store_probe, "PATIENCE_SECONDS", 0.1)
    monkeypatch.setattr(store_probe, "FRESH_SECONDS", 0.2)

    class Folder:
        def __init__(self) -> None:
            self.is_well, self.waiting = threading.Event(), 0
            self.is_well.set()

        def hangs(self) -> None:
            self.is_well.clear()

        def goes_on(self) -> None:
            self.is_well.set()

    made = Folder()

    def slow(read: Any) -> Any:
        def wait_and_read(*given: Any, **named: Any) -> Any:
            made.waiting += 1
            made.is_well.wait(PATIENCE)
            made.waiting -= 1
            return read(*given, **named)

        return wait_and_read

    for name in READS:
        monkeypatch.setattr(FolderFiles, name, slow(getattr(FolderFiles, name)))
    yield made
    made.goes_on()


def test_a_deletion_says_that_the_store_hangs(client, record, settings, folder, tmp_path):
    ledger = play(client, record, Path(settings.storage_folder))
    ledger.end("completed")
    id = ledger.experiment_id
    probe = StoreProbe(settings.storage_folder)
    handler = DeletionHandler(record, lambda _: None, tmp_path / "logs", probe)
    record.delete(id)
    folder.hangs()
    JobRunner(Jobs(record.url), [handler]).tick(handler)
    (notice,) = client.get(f"/v1/experiments/{id}").json()["notices"]
    assert "not deleted yet: the store has not answered since" in notice["words"]


@pytest.mark.parametrize("hanging", ["names", "size"])
def test_a_store_hangs_whatever_part_of_it_does(tmp_path, folder, monkeypatch, hanging):
    for name in {*READS} - {hanging}:
        monkeypatch.setattr(FolderFiles, name, UNCHANGED[name])
    probe = StoreProbe(str(tmp_path))
    assert probe.find_problem() is None
    wait_until(lambda: probe._clock() >= probe._fresh_until)
    folder.hangs()
    assert "the store has not answered since" in probe.find_problem()


def test_who_waits_for_an_answer_that_never_comes_is_told(tmp_path, folder):
    probe, comes = StoreProbe(str(tmp_path)), threading.Event()
    with pytest.raises(StoreAwayError, match=r"answers others, and not this for 0\.3 s"):
        probe.ask(lambda _: comes.wait(PATIENCE), longest=0.3)
    comes.set()
    assert probe.ask(lambda _: 4) == 4


def test_a_prune_says_that_the_store_hangs(client, record, settings, folder):
    ledger = play(client, record, Path(settings.storage_folder))
    ledger.end("completed")
    ledger.set_tracked()
    handler = PruningHandler(record, StoreProbe(settings.storage_folder))
    record.prune(ledger.experiment_id, "none")
    folder.hangs()
    JobRunner(Jobs(record.url), [handler]).tick(handler)
    (notice,) = client.get(f"/v1/experiments/{ledger.experiment_id}").json()["notices"]
    assert "not pruned yet: the store has not answered since" in notice["words"]


def test_a_child_held_up_by_the_store_is_tried_again(tmp_path, folder, monkeypatch):
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\nexec sleep 600\n")
    program.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(program))
    monkeypatch.setattr(jobs, "LONGEST_SECONDS", 0.2)
    children = ReadingHandler(StoreProbe(str(tmp_path))).children
    folder.hangs()
    with pytest.raises(NotDoneError, match="the store has not answered since"):
        children.make(tmp_path, ChildOutcome(), ChildOutcome)
    folder.goes_on()
    wait_until(lambda: children.store.find_problem() is None)
    made = children.make(tmp_path, ChildOutcome(), ChildOutcome)
    assert made.error == "it took longer than 0 hours"


def test_who_reads_there_is_refused_and_all_others_are_answered(client, record, settings, folder):
    async def limit() -> None:
        to_thread.current_default_thread_limiter().total_tokens = THREADS

    id = play(client, record, Path(settings.storage_folder)).experiment_id
    client.portal.call(limit)
    assert client.get(f"/v1/experiments/{id}/curves").status_code == 200
    folder.hangs()
    paths = (
        "curves",
        "trials/0/curves",
        "trials/0/checkpoints",
        "trials/0/weights",
        "trials/0/logs",
    )
    with ThreadPoolExecutor(2 * THREADS) as threads:
        asked = [
            threads.submit(client.get, f"/v1/experiments/{id}/{paths[n % len(paths)]}")
            for n in range(2 * THREADS)
        ]
        wait_until(lambda: folder.waiting)
        assert client.get("/v1/experiments").status_code == 200
        refused = [each.result() for each in asked]
    assert {answer.status_code for answer in refused} == {503}
    assert "the store has not answered since" in refused[-1].json()["detail"]
    ready = client.get("/readyz")
    assert (ready.status_code, ready.json()["checks"]["store"]["ready"]) == (503, False)
    folder.goes_on()
    wait_until(lambda: client.get(f"/v1/experiments/{id}/curves").status_code == 200)


def test_a_question_is_refused_while_an_earlier_one_hangs(tmp_path, folder):
    probe = StoreProbe(str(tmp_path))
    assert probe.ask(lambda store: store.files.names("e1")) == []
    folder.hangs()
    with pytest.raises(StoreAwayError, match="has not answered since"):
        probe.ask(lambda store: store.files.names("e1"))
    asked = []
    with pytest.raises(StoreAwayError, match="Drivers and trials wait for it"):
        probe.ask(asked.append)
    assert asked == []


def test_a_long_answer_is_waited_for_and_others_are_answered(tmp_path, folder):
    gate, probe = threading.Event(), StoreProbe(str(tmp_path))

    def read(store: Store) -> str:
        gate.wait(PATIENCE)
        return store.place

    threading.Timer(1.0, gate.set).start()  # many times the probe's patience
    assert probe.ask(read) == str(tmp_path)


def test_what_the_reader_raises_is_raised(tmp_path):
    def fail(store: Store) -> None:
        raise FileNotFoundError(store.place)

    with pytest.raises(FileNotFoundError):
        StoreProbe(str(tmp_path)).ask(fail)


def test_readiness_names_the_store_metrics_leave_its_disk_out(
    client, folder, settings, monkeypatch
):
    looked_at = health._find_disk_problem

    def look(place: Path, least: int) -> str | None:
        if str(place) == settings.storage_folder:
            folder.is_well.wait(PATIENCE)
        return looked_at(place, least)

    def measure(place: Path, measured: Any = shutil.disk_usage) -> Any:
        if str(place) == settings.storage_folder:
            folder.is_well.wait(PATIENCE)
        return measured(place)

    Path(settings.storage_folder).mkdir()
    monkeypatch.setattr(health, "_find_disk_problem", look)
    monkeypatch.setattr(metrics.shutil, "disk_usage", measure)
    disk = 'eigensweep_disk_free_bytes{folder="storage"}'
    assert disk in client.get("/metrics").text
    folder.hangs()
    checks = client.get("/readyz").json()["checks"]
    assert [name for name, check in checks.items() if not check["ready"]] == ["store"]
    assert disk not in client.get("/metrics").text
