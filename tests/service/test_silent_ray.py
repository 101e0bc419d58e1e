"""What the API answers while Ray stands still: its processes are there, and say nothing."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from starlette.testclient import TestClient
from test_cluster_process import HELPERS, PlayedDrivers
from waiting import wait_until

from eigensweep.protocol.messages import DriverOptions
from eigensweep.service.api.app import create_app
from eigensweep.service.queue import cluster_process
from eigensweep.service.queue.cluster_process import ClusterProcess
from eigensweep.service.queue.dispatcher import Dispatcher
from eigensweep.workers import ray_nodes

OPTIONS = DriverOptions(storage="/s")


@pytest.fixture
def still(tmp_path: Path) -> Path:
    """The file whose presence says that Ray stands still."""
    return tmp_path / "still"


@pytest.fixture
def cluster(
    tmp_path: Path, still: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ClusterProcess]:
    """A Ray that is well, until it stands still for as long as a test likes."""
    monkeypatch.setattr(cluster_process, "PROGRAM", "played_ray")
    monkeypatch.setattr(cluster_process, "SILENT_SECONDS", 0.5)
    monkeypatch.setattr(cluster_process, "ANSWER_SECONDS", 3600.0)
    monkeypatch.setenv("PYTHONPATH", str(HELPERS))
    drivers: Any = PlayedDrivers()
    made = ClusterProcess(
        {"away": str(tmp_path / "away"), "still": str(still)}, mark=uuid4().hex, drivers=drivers
    )
    made.start()
    yield made
    made._process.kill()
    made.stop()


@pytest.fixture
def client(settings, record, cluster) -> Iterator[TestClient]:
    dispatcher = Dispatcher(record, launcher=cluster, options=OPTIONS, problem=None)
    with TestClient(create_app(settings, record, dispatcher)) as made:
        yield made


def stand_still(cluster: ClusterProcess, still: Path) -> None:
    wait_until(lambda: cluster.problem is None)
    still.touch()
    wait_until(lambda: cluster.problem)


def test_requests_are_answered_from_the_last_look_and_say_so(client, cluster, still, spec):
    waiting = client.post("/v1/experiments", json=spec()).json()
    assert waiting["notices"] == []
    stand_still(cluster, still)
    found = client.get("/v1/cluster").json()
    assert [node["name"] for node in found["nodes"]] == ["here"]
    assert "the process that holds Ray does not answer, for" in found["problem"]
    assert "the nodes are shown as they were then" in found["problem"]
    assert "The nodes are not known" not in client.get("/cluster").text
    (why,) = [each["why"] for each in found["waiting"]]
    assert "does not answer" in why
    preview = client.post("/v1/experiments/preview", json=spec()).json()
    assert preview["side_by_side"]["at_once"] == 2
    large = spec(resources={"cpus": 5})
    refused = client.post("/v1/experiments", json=large)
    assert (refused.status_code, "no node has that" in refused.json()["detail"]) == (422, True)
    posted = client.post("/v1/experiments", json=spec(name="another"))
    (notice,) = client.get(posted.headers["location"]).json()["notices"]
    assert (notice["kind"], "does not answer" in notice["words"]) == ("ray", True)
    client.post(f"{posted.headers['location']}/pause")
    assert client.get(posted.headers["location"]).json()["notices"] == []


def test_it_is_not_ready_until_ray_answers_again(client, cluster, still):
    assert client.get("/readyz").json()["checks"]["launcher"] == {
        **{"ready": True, "detail": "", "url": None}
    }
    stand_still(cluster, still)
    answer = client.get("/readyz")
    launcher = answer.json()["checks"]["launcher"]
    assert (answer.status_code, launcher["ready"]) == (503, False)
    assert "does not answer, for" in launcher["detail"]


def test_a_ray_that_is_silent_for_long_is_left(cluster, still, monkeypatch):
    stand_still(cluster, still)
    monkeypatch.setattr(cluster_process, "ANSWER_SECONDS", 0.1)

    def is_left() -> Any:
        cluster.watch()
        return cluster._process.poll() is not None or cluster._spawned > 1

    wait_until(is_left)


class TestHello:
    """A process that stands still is told from one that works, though its kernel accepts both."""

    def test_a_listener_that_says_nothing_does_not_answer(self, monkeypatch):
        monkeypatch.setattr(ray_nodes, "ANSWER_SECONDS", 0.2)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            place = listener.getsockname()
            assert not ray_nodes.answers(place)
        assert not ray_nodes.answers(place), "and one that is gone"

    def test_one_that_hangs_up_does(self):
        with socket.create_server(("127.0.0.1", 0)) as listener:

            def hang_up() -> None:
                listener.accept()[0].close()

            threading.Thread(target=hang_up, daemon=True).start()
            assert ray_nodes.answers(listener.getsockname())
