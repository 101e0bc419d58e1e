"""A trial's weights and prints: by the API, the client, the command, the page and `train`."""

from __future__ import annotations

import errno
import json
import re
import shutil
import sys
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
import s3
import torch
from orders import make_order
from starlette.testclient import TestClient
from typer.testing import CliRunner

from eigensweep import load, train
from eigensweep.client import Client
from eigensweep.client.experiments import Experiment
from eigensweep.client.trial import Trial
from eigensweep.command import cli, frame
from eigensweep.protocol.messages import Place
from eigensweep.results.trial_result import Source
from eigensweep.search_spaces.space import Point
from eigensweep.search_spaces.spec import ExperimentSpec
from eigensweep.search_spaces.trial import TrialConfig
from eigensweep.service.api.app import create_app
from eigensweep.service.queue.dispatcher import Dispatcher
from eigensweep.service.record.ledger import RecordLedger
from eigensweep.service.record.record import Record
from eigensweep.service.record.sql import database
from eigensweep.service.settings import Settings
from eigensweep.store.checkpoints import Store, pack, replicate_key, trial_key
from eigensweep.store.commits.curves import CurvePoint
from eigensweep.store.commits.kept_files import BEST
from eigensweep.store.commits.stored_commits import PIECE
from eigensweep.store.upkeep.thinning import thin_out
from eigensweep.training.lanes.replicates import open_attempt
from eigensweep.training.printed import Printed
from eigensweep.training.weights import NoWeightsError

SPEC: dict[str, Any] = {
    "task": {"name": "copying", "delay": 3, "symbols": 2, "batch_size": 4, "valid_size": 20,
             "test_size": 20},
    "model": {"name": "lstm", "hidden_size": 5},
    "training": {"steps": 20, "evaluate_every": 5},
    "replicates": 2,
}  # fmt: skip


class Direct:
    """A client's connection to an application without a server."""

    def __init__(self, client: TestClient) -> None:
        self.client = client

    def get(self, path: str) -> Any:
        return self.client.get(path).raise_for_status().json()

    def download(self, path: str) -> bytes:
        return bytes(self.client.get(path).raise_for_status().content)


@pytest.fixture(scope="module", params=["a folder", "an object store"])
def settings(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Settings]:
    home = tmp_path_factory.mktemp("home")
    if request.param == "a folder":
        yield Settings(home=home, data_root=home)
        return
    with s3.serve() as bucket:
        yield Settings(home=home, data_root=home, storage=f"{bucket}/sweeps")


@pytest.fixture(scope="module")
def record(settings: Settings, empty_record: Path) -> Iterator[Record]:
    shutil.copyfile(empty_record, settings.home / "record.db")
    made = Record(f"sqlite:///{settings.home / 'record.db'}")
    yield made
    database.engine(made.url).dispose()


@pytest.fixture(scope="module")
def client(settings: Settings, record: Record) -> Iterator[TestClient]:
    app = create_app(settings, record, Dispatcher(record))
    with TestClient(app, raise_server_exceptions=False) as made:
        yield made


def train_three(client: TestClient, record: Record, settings: Settings) -> RecordLedger:
    """An experiment of three trials: one has ended, one trains, one was reused from the first."""
    id = client.post("/v1/experiments", json=SPEC).raise_for_status().json()["id"]
    ledger = RecordLedger(record.url, id, record.claim(id).generation)
    spec = ExperimentSpec.model_validate(SPEC)
    config = spec.trial(Point("lstm", {}))
    content = config.model_dump(mode="json")
    for number, rungs in enumerate([(20,), (10, 20)]):
        ledger.open(number, "lstm", {}, content, config.content_hash())
        order = make_order(experiment=id, number=number, attempt=ledger.begin(number),
                           config=content, rungs=rungs,
                           storage=str(settings.storage_folder))  # fmt: skip
        with Printed(order):
            if number == 0:
                sys.stdout.write("gradients explode: λ > 1\n")
            report = open_attempt(order, "cpu").advance()
        if report.outcome is not None:
            ledger.finish(number, 1, "completed", report.result)
    ledger.open(2, "lstm", {}, content, config.content_hash())
    ledger.finish(2, 0, "reused", replace(ledger.load()[0].result, reused_from=Source(id, 0)))
    return ledger


@pytest.fixture(scope="module")
def ledger(client: TestClient, record: Record, settings: Settings) -> RecordLedger:
    """The experiment of those tests that only read."""
    return train_three(client, record, settings)


@pytest.fixture
def own_ledger(client: TestClient, record: Record, settings: Settings) -> RecordLedger:
    """An experiment of one test, which changes its files."""
    return train_three(client, record, settings)


@pytest.fixture
def experiment(client: TestClient, ledger: RecordLedger) -> Experiment:
    return Experiment.load(Direct(client), ledger.experiment_id)  # type: ignore[arg-type]


def same(one: torch.nn.Module, other: torch.nn.Module) -> bool:
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


def run(network: torch.nn.Module) -> torch.Tensor:
    with torch.no_grad():
        logits, _ = network(torch.zeros(7, 3, dtype=torch.int64))
    return logits


class TestTheClient:
    @pytest.mark.quick_cases(1)
    def test_loads_what_training_selected_and_runs_it(self, experiment):
        best = experiment.best
        assert best["number"] in (0, 2), "a dict, as it always was"
        for seed in (0, 1):
            assert same(best.load(seed=seed), train(SPEC, device="cpu").load(seed))
        assert run(best.load()).shape == (7, 3, 9)
        assert not best.load().training

    def test_loads_the_last_weights_as_well(self, experiment):
        kept = experiment.trial(0).weights("last", seed=1)
        assert (kept.seed, kept.step) == (1, 20)

    def test_loads_those_of_a_trial_that_trains(self, experiment):
        best, last = (experiment.trial(1).weights(which) for which in ("best", "last"))
        assert (best.seed, last.step) == (0, 10)
        assert best.step in (5, 10)
        assert best.load() is not None

    def test_loads_a_reused_trial_from_its_source(self, experiment):
        assert same(experiment.trial(2).load(), experiment.trial(0).load())


class TestTheRoute:
    def test_gives_a_file_that_needs_no_trust(self, client, ledger):
        here = f"/v1/experiments/{ledger.experiment_id}/trials/0/weights"
        answer = client.get(f"{here}?seed=1")
        assert answer.headers["Content-Type"] == "application/octet-stream"
        name = f"{ledger.experiment_id}-0-seed-1-best.pt"
        assert answer.headers["Content-Disposition"] == f'attachment; filename="{name}"'

    @pytest.mark.parametrize("which", ["best", "last"])
    @pytest.mark.quick_cases(1)
    def test_never_holds_a_whole_file(self, client, own_ledger, settings, which, monkeypatch):
        store, key = Store(settings.storage_folder), replicate_key(own_ledger.experiment_id, 0, 0)
        large = {"weights": torch.rand(12 * PIECE)}  # 48 MiB
        if which == "best":
            store.kept.write(key, 1, BEST, pack(large))
        else:
            store.commit(key, 1, 21, large, [])
        path = f"/v1/experiments/{own_ledger.experiment_id}/trials/0/weights"
        scope = {"type": "http", "method": "GET", "path": path, "headers": [],
                 "query_string": f"which={which}".encode(), "client": ("127.0.0.1", 1)}  # fmt: skip
        sizes: list[int] = []
        told: dict[bytes, bytes] = {}
        most = 0
        files = type(store.files)
        whole = files.read

        def refuse_weights(self: Any, path: str) -> bytes:
            assert not path.endswith(".pt"), "a file of weights is asked for in parts"
            return whole(self, path)

        monkeypatch.setattr(files, "read", refuse_weights)

        async def receive() -> Any:
            await anyio.sleep_forever()

        async def send(message: Any) -> None:
            nonlocal most
            if message["type"] == "http.response.start":
                told.update(message["headers"])
            most = max(most, tracemalloc.get_traced_memory()[0])
            sizes.append(len(message.get("body", b"")))

        if settings.storage is None:  # the memory of an object store's server is this process's
            tracemalloc.start()
        try:
            anyio.run(client.app, scope, receive, send)
        finally:
            tracemalloc.stop()
        assert sum(sizes) == int(told[b"content-length"]) > 48 * PIECE
        assert max(sizes) <= PIECE
        if settings.storage is None:
            assert 0 < most < 24 * PIECE

    def test_a_store_that_goes_away_at_the_first_piece_is_told(
        self, client, ledger, settings, monkeypatch
    ):
        files = type(Store(settings.storage_folder).files)
        whole = files.open

        def open_badly(self: Any, path: str) -> Any:
            with whole(self, path):
                return SimpleNamespace(seek=fail, read=fail, close=lambda: None)

        def fail(*_: int) -> bytes:
            raise OSError(errno.EIO, "Input/output error")

        monkeypatch.setattr(files, "open", open_badly)
        answer = client.get(f"/v1/experiments/{ledger.experiment_id}/trials/0/weights")
        assert answer.status_code == 503

    def test_says_what_is_missing(self, client, own_ledger, settings):
        here = f"/v1/experiments/{own_ledger.experiment_id}/trials"
        answer = client.get(f"{here}/0/weights?seed=7")
        assert (answer.status_code, "it has 0, 1" in answer.json()["detail"]) == (404, True)
        store = Store(settings.storage_folder)
        thin_out(store, trial_key(own_ledger.experiment_id, 0), "best", 1)
        assert client.get(f"{here}/0/weights").status_code == 200
        thin_out(store, trial_key(own_ledger.experiment_id, 0), "none", 1)
        answer = client.get(f"{here}/0/weights?which=last")
        assert answer.status_code == 404
        assert (
            "no last weights of trial 0 with seed 0: they were removed" in answer.json()["detail"]
        )

    def test_is_linked_from_the_page_of_the_trial(self, client, ledger):
        page = client.get(f"/experiments/{ledger.experiment_id}/trials/0").text
        links = re.findall(r'href="([^"]*/weights[^"]*)"', page)
        assert len(links) == 4
        for link in links:
            assert client.get(link.replace("&amp;", "&")).status_code == 200


def test_prints_are_text_for_all_who_ask(client, experiment, monkeypatch):
    prints = "gradients explode: λ > 1"
    assert [experiment.trial(n).logs() for n in range(3)] == [f"{prints}\n", "", f"{prints}\n"]
    page = client.get(f"/experiments/{experiment.id}/trials/0").text
    (link,) = re.findall(r'href="([^"]*/logs)"', page)
    answer = client.get(link)
    assert answer.text == f"{prints}\n"
    assert answer.headers["Content-Type"] == "text/plain; charset=utf-8"
    monkeypatch.setattr(Client, "experiment", lambda client, id: experiment)
    monkeypatch.setattr(frame, "Client", lambda _: Client("http://here"))
    said = CliRunner().invoke(cli.app, ["logs", f"{experiment.id}/0"])
    assert (said.exit_code, said.stdout) == (0, f"{prints}\n")
    said = CliRunner().invoke(cli.app, ["logs", f"{experiment.id}/1"])
    assert (said.exit_code, said.stdout) == (0, "\n")
    assert said.stderr == "trial 1 has printed nothing\n"


def test_a_trial_of_an_engine_printed_into_the_logs_of_ray(client, own_ledger, monkeypatch):
    place = Place(node="here", pid=7, device="cpu", lanes=4)
    own_ledger.report(1, 1, 15, {"objective": 0.5}, place)
    found = Experiment.load(Direct(client), own_ledger.experiment_id)
    monkeypatch.setattr(Client, "experiment", lambda client, id: found)
    monkeypatch.setattr(frame, "Client", lambda _: Client("http://here"))
    said = CliRunner().invoke(cli.app, ["logs", f"{found.id}/1"])
    words = "it trained in an engine, which prints into the logs of Ray"
    assert said.stderr == f"trial 1 has printed nothing of its own: {words}\n"


def test_the_command_writes_a_file(experiment, monkeypatch, tmp_path):
    monkeypatch.setattr(Client, "experiment", lambda client, id: experiment)
    monkeypatch.setattr(frame, "Client", lambda _: Client("http://here"))
    out = tmp_path / "best.pt"
    said = CliRunner().invoke(cli.app, ["weights", f"{experiment.id}/0", "--out", str(out)])
    assert (said.exit_code, "trial 0, seed 0, step" in said.output) == (0, True), said.output
    found = torch.load(out, weights_only=True)
    assert TrialConfig.from_dict(json.loads(found["config"])).model.name == "lstm"
    network = experiment.trial(0).load()
    network.load_state_dict(found["weights"])
    assert set(found) == {"config", "seed", "step", "weights"}


def test_what_lies_behind_a_trials_budget_is_not_its_own(
    client, own_ledger, settings, monkeypatch, tmp_path
):
    id = own_ledger.experiment_id
    store, key = Store(settings.storage_folder), replicate_key(id, 0, 0)
    steps = client.get(f"/v1/experiments/{id}/trials/0").json()["steps"]
    state = {**store.newest(key).state, "step": steps + 5}
    store.commit(key, 1, steps + 5, state, [CurvePoint(steps + 5, {"train/x": 0.1}, 0)])
    curves = client.get(f"/v1/experiments/{id}/trials/0/curves").json()["items"]
    assert max(max(each["steps"]) for each in curves) == steps
    experiment = Experiment.load(Direct(client), id)
    monkeypatch.setattr(Client, "experiment", lambda client, id: experiment)
    monkeypatch.setattr(frame, "Client", lambda _: Client("http://here"))
    words = ["weights", f"{id}/0", "--last", "--out", str(tmp_path / "last.pt")]
    said = CliRunner().invoke(cli.app, words)
    assert (said.exit_code, "went on since, with a longer budget" in said.output) == (1, True)


def test_a_file_of_weights_is_a_network_without_a_service(client, ledger, experiment, tmp_path):
    path = f"/v1/experiments/{ledger.experiment_id}/trials/0/weights"
    (tmp_path / "asked.pt").write_bytes(client.get(path).content)
    experiment.trial(0).weights("last").save(tmp_path / "last.pt")
    for file, which in (("asked.pt", "best"), ("last.pt", "last")):
        assert torch.equal(run(load(tmp_path / file)), run(experiment.trial(0).load(which)))


def test_weights_of_a_model_that_lost_a_field_are_refused(experiment):
    trial = experiment.trial(0)
    trial["config"] = {**trial["config"], "model": {**trial["config"]["model"], "gate": 1}}
    with pytest.raises(
        NoWeightsError, match="does not fit the weights' configuration: gate: Extra"
    ):
        trial.load()


@pytest.mark.parametrize("content", ["", "hello", "PK", [1, 2], {"model": {}, "step": 3}])
def test_a_file_without_weights_is_refused_in_words(tmp_path, content):
    path = tmp_path / "other.pt"
    torch.save(content, path)
    if isinstance(content, str):
        path.write_text(content)
    with pytest.raises(NoWeightsError, match=r"other.pt (cannot be read by|has no config and)"):
        load(path)


@pytest.mark.parametrize(
    ("given", "found"), [("a/b", "a/b"), ("a/b/0", "1m7xnz0qe2nqc"), ("0", "0"), ("c/0", "c")]
)
def test_the_command_takes_a_name_with_a_slash(experiment, monkeypatch, tmp_path, given, found):
    asked = list[str]()
    known = {"a/b": "1m7xnz0qe2nqc"}
    monkeypatch.setattr(Client, "find_id", lambda client, name: known.get(name, name))
    monkeypatch.setattr(Client, "experiment", lambda client, id: asked.append(id) or experiment)
    monkeypatch.setattr(frame, "Client", lambda _: Client("http://here"))
    said = CliRunner().invoke(cli.app, ["weights", given, "--out", str(tmp_path / "best.pt")])
    assert (said.exit_code, asked) == (0, [found]), said.output


def test_train_returns_the_network_of_its_best_point():
    result = train({**SPEC, "replicates": 1}, device="cpu")
    assert run(result.model).shape == (7, 3, 9)
    with pytest.raises(NoWeightsError, match="seed 3 has no best weights; seeds that have some: 0"):
        result.load(3)


def test_a_trial_is_a_dict_of_what_the_service_says():
    assert Trial(None, {"number": 3}) == {"number": 3}  # type: ignore[arg-type]
