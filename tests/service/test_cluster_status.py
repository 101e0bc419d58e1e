"""The cluster as the API, the page and the command line show it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from played import PLACE, SPEC, open_trial, play
from typer.testing import CliRunner

from eigensweep.command.cli import app
from eigensweep.command.nodes import make_node_row, make_use_row, name_nodes
from eigensweep.protocol.fair_shares import Demand
from eigensweep.service.api.routes import cluster
from eigensweep.service.record.ledger import RecordLedger
from eigensweep.service.settings import Settings
from eigensweep.workers.cluster.drivers import DRIVER_BYTES
from eigensweep.workers.cluster.nodes import GONE_SECONDS, read_nodes


@pytest.fixture
def settings(tmp_path):
    return Settings(home=tmp_path, data_root=tmp_path, max_experiments=2)


@pytest.fixture
def ledger(client, record, settings):
    return play(client, record, Path(settings.storage_folder))


def test_it_says_who_uses_which_node_and_which_lanes(client, ledger, record):
    found = client.get("/v1/cluster").json()
    assert found["problem"] is None
    (node,) = found["nodes"]
    assert (node["name"], node["alive"]) == ("here", True)
    assert node["total"] == {"cpus": 4.0, "gpus": 1.0, "memory_bytes": 8 * 10**9}
    assert node["free"]["cpus"] == 3.0
    (use,) = found["uses"]
    assert found["running"] == 1
    assert (use["experiment"], use["trial"], use["owner"]) == (ledger.experiment_id, 7, "operator")
    assert (use["node"], use["pid"], use["device"]) == (PLACE.node, PLACE.pid, PLACE.device)
    assert client.get(use["page"]).status_code == 200
    assert found["engines"] == []
    assert found["drivers"] == {
        "running": 1,
        "at_most": 2,
        "processes": [
            {"pid": None, "memory_bytes": DRIVER_BYTES, "experiments": [use["experiment"]]}
        ],
        "memory_bytes": DRIVER_BYTES,
        "kept_bytes": 4 * DRIVER_BYTES,
    }
    ledger.record_demand(Demand(3, {"CPU": 0.25}, driver_bytes=352 * 10**6))
    assert client.get("/v1/cluster").json()["drivers"]["memory_bytes"] == 352 * 10**6
    assert "Drivers: 1 of at most 2" in client.get("/cluster").text


def test_each_driver_says_what_it_holds(client, ledger, record, spec):
    ids = [ledger.experiment_id]
    ledger.record_demand(Demand(3, driver_bytes=52 * 10**6, driver_pid=7))
    for number in range(2):
        ids.append(client.post("/v1/experiments", json=spec(name=str(number))).json()["id"])
        claim = record.claim(ids[-1])
        own = RecordLedger(record.url, ids[-1], claim.generation)
        own.record_demand(Demand(1, driver_bytes=(50 - number) * 10**6, driver_pid=8 + number))
    found = client.get("/v1/cluster").json()["drivers"]
    held = {each["pid"]: (each["memory_bytes"], each["experiments"]) for each in found["processes"]}
    assert held == {
        7: (52 * 10**6, ids[:1]),
        8: (50 * 10**6, ids[1:2]),
        9: (49 * 10**6, ids[2:]),
    }
    assert (found["running"], found["memory_bytes"]) == (3, 151 * 10**6)


def test_a_trial_is_shown_where_it_runs_before_it_has_reported(client, ledger):
    open_trial(ledger, 8, "lstm", 1e-3)
    ledger.begin(8, replace(PLACE, node="node7", node_id="ab12"))
    *_, use = client.get("/v1/cluster").json()["uses"]
    assert (use["trial"], use["node"], use["node_id"], use["pid"]) == (8, "node7", "ab12", 7)
    (attempt,) = client.get(f"/v1/experiments/{ledger.experiment_id}/trials/8").json()["attempts"]
    assert (attempt["node"], attempt["node_id"], attempt["pid"]) == ("node7", "ab12", 7)


def test_lanes_in_use_are_counted_by_engine(client, ledger):
    ledger.report(7, 1, 60, {"objective": 0.1}, replace(PLACE, lanes=8))
    (engine,) = client.get("/v1/cluster").json()["engines"]
    assert (engine["pid"], engine["lanes"], engine["used"], engine["trials"]) == (7, 8, 2, 1)


def test_what_waits_says_why(client, ledger, spec, dispatcher):
    queued = client.post("/v1/experiments", json=spec(name="later", priority=-3)).json()["id"]
    (wait,) = client.get("/v1/cluster").json()["waiting"]
    assert (wait["experiment"], wait["state"], wait["priority"]) == (queued, "queued", -3)
    assert wait["why"] == (
        "waits for its turn: of the experiments that are under way at once, at most 2 "
        "(EIGENSWEEP_MAX_EXPERIMENTS), there are 1"
    )
    dispatcher.max_of_all = 5
    (wait,) = client.get("/v1/cluster").json()["waiting"]
    assert wait["why"].endswith("there are 1; beyond these each user may have one, up to 5 in all")
    client.post(f"/v1/experiments/{queued}/pause")
    (wait,) = client.get("/v1/cluster").json()["waiting"]
    assert wait["why"] == "paused; `eigensweep resume` lets it go on"
    ledger.record_phase("waiting_for_room")
    states = {w["state"]: w["why"] for w in client.get("/v1/cluster").json()["waiting"]}
    assert states["waiting_for_room"] == "no node has room for one of its trials now"


def test_a_long_queue_is_counted_and_its_first_are_listed(client, ledger, spec, monkeypatch):
    monkeypatch.setattr(cluster, "MOST_WAITING", 3)
    posted = [
        client.post("/v1/experiments", json=spec(name=str(n), priority=n)).json()["id"]
        for n in range(6)
    ]
    found = client.get("/v1/cluster").json()
    assert [each["experiment"] for each in found["waiting"]] == posted[:-4:-1]
    assert found["drivers"]["running"] == 1, "its priority is less than that of what waits"
    assert found["unfinished"] == 7
    assert found["more_waiting"] == "/v1/experiments?state=queued&state=paused&sort=created_at"
    assert client.get(found["more_waiting"]).json()["items"][0]["id"] == posted[0]
    assert "the first 3 of those that wait" in client.get("/cluster").text
    for id in posted[:4]:
        client.post(f"/v1/experiments/{id}/cancel")
    found = client.get("/v1/cluster").json()
    assert (found["unfinished"], found["more_waiting"]) == (3, None)


def test_trials_that_wait_are_counted_without_reading_them(client, ledger):
    for number in (8, 9):
        open_trial(ledger, number, "lstm", 1e-3)
    (wait,) = client.get("/v1/cluster").json()["waiting"]
    assert (wait["experiment"], wait["trials"]) == (ledger.experiment_id, 2)


def test_it_says_where_memory_holds_too_few_drivers(client, ledger, spec, dispatcher):
    dispatcher.max_experiments = 1
    client.post("/v1/experiments", json=spec(name="later"))
    found = client.get("/v1/cluster").json()
    assert found["drivers"]["at_most"] == 1
    (wait,) = found["waiting"]
    assert wait["why"].endswith(
        "That setting is 2, but half of the machine's memory holds no more drivers of 60 MB"
    )


def test_without_ray_it_says_so_and_shows_the_rest(client, ledger, launcher, monkeypatch):
    monkeypatch.setattr(launcher, "list_nodes", lambda: None)
    found = client.get("/v1/cluster").json()
    assert (found["problem"], found["nodes"], found["running"]) == ("Ray does not answer", [], 1)
    assert "The nodes are not known" in client.get("/cluster").text


def test_the_page_is_linked_and_shows_all_of_it(client, ledger, spec):
    client.post("/v1/experiments", json=spec(name="later"))
    assert 'href="/cluster"' in client.get("/").text
    page = client.get("/cluster").text
    for words in ("3 of 4", "7.0 GB of 8.0 GB", "here, process 7, cpu", "waits for its turn"):
        assert words in page
    assert SPEC["name"] not in page  # it holds a script, and stands there as text


def test_nodes_are_read_from_rays_words():
    ray = {"NodeManagerHostname": "n1", "Alive": True, "Resources": {"CPU": 2.0, "memory": 5e9}}
    labels = {"ray.io/node-id": "b", "ray.io/accelerator-type": "H100", "zone": "a"}
    dead = {**ray, "NodeID": "a", "NodeManagerHostname": "n0", "Alive": False, "Resources": {}}
    found = read_nodes([dead, {**ray, "NodeID": "b", "Labels": labels}], {"b": {"CPU": 1.5}})
    assert [node.name for node in found] == ["n1", "n0"]
    assert (found[0].labels, found[0].accelerator_type) == ({"zone": "a"}, "H100")
    assert (found[0].free.cpus, found[0].free.memory, found[1].free) == (1.5, 0, None)


def test_what_went_an_hour_ago_is_not_shown_and_else_since_when():
    ray = {"NodeManagerHostname": "vm", "Alive": False, "Resources": {}}
    nodes = [{**ray, "NodeID": id, "NodeManagerAddress": f"10.0.0.{id}"} for id in "123"]
    now = 1e9
    found = read_nodes(nodes, {}, gone={"1": now - GONE_SECONDS - 1, "2": now - 60}, now=now)
    assert [(node.id, node.address, node.gone_at) for node in found] == [
        ("2", "10.0.0.2", now - 60),
        ("3", "10.0.0.3", None),
    ]


def test_a_node_that_is_gone_is_shown_with_id_address_and_time(client, ledger, launcher):
    (here,) = launcher.list_nodes()
    gone = replace(here, id="cd34" * 14, alive=False, free=None, address="10.0.0.7", gone_at=1e9)
    launcher.list_nodes = lambda: [here, gone]
    _, shown = client.get("/v1/cluster").json()["nodes"]
    assert (shown["alive"], shown["gone_at"]) == (False, "2001-09-09T01:46:40Z")
    row = make_node_row(shown, name_nodes([shown, {**shown, "id": "ab12"}])[shown["id"]])
    assert row[:3] == ["here cd34cd34", "10.0.0.7", "gone since 2001-09-09T01:46:40Z"]
    assert "gone since 2001-09-09 01:46" in client.get("/cluster").text


def test_the_command_shows_nodes(scripted_service):
    shown = CliRunner().invoke(app, ["nodes", "--url", scripted_service])
    assert shown.exit_code == 0
    assert "here" in shown.output
    shown = CliRunner().invoke(app, ["nodes", "--url", scripted_service, "--json"])
    assert json.loads(shown.output)["nodes"][0]["name"] == "here"


def test_nodes_of_one_name_are_told_apart():
    ids = ["1" * 56, "2" * 56, "3" * 56]
    nodes = [{"id": id, "name": name} for id, name in zip(ids, ("vm", "vm", "gpu1"), strict=True)]
    names = name_nodes(nodes)
    assert [names[id] for id in ids] == ["vm 11111111", "vm 22222222", "gpu1"]
    use = {"experiment": "e1", "trial": 3, "owner": "anna", "pid": 7, "device": "cpu"}
    assert make_use_row({**use, "node": "vm", "node_id": ids[1]}, names)[3] == "vm 22222222"
    assert make_use_row({**use, "node": "vm", "node_id": None}, names)[3] == "vm"
