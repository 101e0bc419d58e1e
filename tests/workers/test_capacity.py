"""What the nodes of a cluster hold, and the words where none holds a trial; made-up nodes."""

from __future__ import annotations

import socket
import threading

import pytest

from eigensweep.search_spaces.sections import ResourcesConfig
from eigensweep.workers.driver.nodes import capacity

NODES = [
    {"Alive": True, "Resources": {"CPU": 4.0, "memory": 4e9}, "Labels": {"zone": "a"}},
    {"Alive": True, "Resources": {"CPU": 8.0, "memory": 2e9}, "Labels": {}},
    {"Alive": False, "Resources": {"CPU": 99.0, "memory": 9e12}, "Labels": {"zone": "a"}},
]


@pytest.fixture(autouse=True)
def nodes(monkeypatch):
    monkeypatch.setattr("ray.nodes", lambda: NODES)


def look(lanes=None, **resources):
    needs, nodes = ResourcesConfig(lanes=lanes, **resources), capacity.list_living_nodes()
    return capacity.look_for_room(needs, 1, may_change=False, nodes=nodes)


def test_a_node_is_not_filled_beyond_its_memory():
    assert look().trials == 12
    assert look(memory="1 GB").trials == 4 + 2
    assert look(memory="3 GB").trials == 1


def test_a_node_that_does_not_answer_is_found_whatever_ray_says(monkeypatch):
    monkeypatch.setattr("eigensweep.workers.ray_nodes.ANSWER_SECONDS", 0.5)
    with socket.socket() as answering, socket.socket() as stopped, socket.socket() as closed:
        for each in (answering, stopped, closed):
            each.bind(("127.0.0.1", 0))
        for each in (answering, stopped):
            each.listen()
        hang_up = threading.Thread(target=lambda: answering.accept()[0].close(), daemon=True)
        hang_up.start()
        places = [
            {
                "Alive": alive,
                "NodeID": id,
                "NodeManagerAddress": "127.0.0.1",
                "NodeManagerPort": port,
            }
            for id, alive, port in (
                ("well", True, answering.getsockname()[1]),
                ("stopped", True, stopped.getsockname()[1]),
                ("silent", True, closed.getsockname()[1]),
                ("dead", False, closed.getsockname()[1]),
            )
        ]
        monkeypatch.setattr("ray.nodes", lambda: places)
        assert capacity.find_silent_nodes() == {"silent", "stopped"}


def test_only_nodes_with_the_labels_count():
    assert look(labels={"zone": "a"}).trials == 4


@pytest.mark.parametrize(
    ("resources", "words"),
    [
        (
            {"memory": "5 GB"},
            "a trial needs 1 CPU, 5.00 GB memory, and no node has that; there are 4 CPU, 4.00 GB "
            "memory; 8 CPU, 2.00 GB memory. Less memory is taken by a smaller batch",
        ),
        (
            {"labels": {"zone": "c"}},
            "a trial needs 1 CPU, label zone=c, and no node has that; there are 4 CPU, label "
            "zone=a; 8 CPU",
        ),
        (
            {"gpus": 1, "accelerator_type": "H100"},
            "label ray.io/accelerator-type=H100, and no node has that",
        ),
        ({"lanes": 4, "memory": "5 GB"}, "Less memory is taken by fewer lanes"),
    ],
)
def test_what_no_node_has_is_named_beside_what_they_have(resources, words):
    assert words in look(**resources).problem
