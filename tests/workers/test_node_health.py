"""The health check of a Ray node, against a head that a test plays."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator

import pytest
from ray.core.generated.gcs_pb2 import GcsNodeInfo

from eigensweep.workers.cluster import node_health


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        yield made


def node(port: int, state: int = GcsNodeInfo.ALIVE, address: str = "127.0.0.1") -> GcsNodeInfo:
    return GcsNodeInfo(state=state, node_manager_port=port, node_manager_address=address)


@pytest.fixture
def fault_of(monkeypatch: pytest.MonkeyPatch, listener: socket.socket) -> Callable[..., str | None]:
    """Return what is wrong with the node at a port, if the head knows these nodes."""

    def find(port: int, *nodes: GcsNodeInfo) -> str | None:
        class Head:
            def __init__(self, address: str) -> None: ...

            def get_all_node_info(self, timeout: float) -> dict[int, GcsNodeInfo]:
                return dict(enumerate(nodes))

        monkeypatch.setattr(node_health, "GcsClient", Head)
        return node_health.find_fault(f"127.0.0.1:{listener.getsockname()[1]}", port)

    return find


def test_a_node_that_listens_and_that_the_head_knows_is_well(
    fault_of: Callable[..., str | None], listener: socket.socket
) -> None:
    port = listener.getsockname()[1]

    assert fault_of(port, node(port)) is None


def test_a_node_that_the_head_has_given_up_is_not_well(
    fault_of: Callable[..., str | None], listener: socket.socket
) -> None:
    port = listener.getsockname()[1]

    assert "counts no living node" in str(fault_of(port, node(port, GcsNodeInfo.DEAD)))


def test_a_living_node_of_another_machine_does_not_count(
    fault_of: Callable[..., str | None], listener: socket.socket
) -> None:
    port = listener.getsockname()[1]

    assert "counts no living node" in str(fault_of(port, node(port, address="203.0.113.7")))


def test_a_node_whose_process_does_not_listen_is_not_well(
    fault_of: Callable[..., str | None], free_port: Callable[[], int]
) -> None:
    port = free_port()

    assert "this node's process" in str(fault_of(port, node(port)))


def test_a_head_that_is_away_is_named(free_port: Callable[[], int]) -> None:
    head = f"127.0.0.1:{free_port()}"

    assert f"Ray's head at {head} does not answer" in str(node_health.find_fault(head, 1))


def test_a_head_with_an_ipv6_address_is_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[tuple[str, int]] = []

    def refuse(place: tuple[str, int], seconds: float) -> None:
        called.append(place)
        raise OSError("nobody listens")

    monkeypatch.setattr(node_health.socket, "create_connection", refuse)
    assert "does not answer" in str(node_health.find_fault("[2001:db8::1]:6379", 1))
    assert called == [("2001:db8::1", 6379)]
