"""Traces: off by default, and whole from the post to a trial's evaluations."""

from __future__ import annotations

import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from orders import make_order
from starlette.testclient import TestClient
from sweeps import spec

from eigensweep.common import traces
from eigensweep.protocol.messages import DriverOptions, Order
from eigensweep.protocol.shares import Capacity
from eigensweep.search_spaces.space import Point
from eigensweep.search_spaces.spec import ExperimentSpec
from eigensweep.service.api.app import create_app
from eigensweep.service.queue.dispatcher import Dispatcher
from eigensweep.service.record.migrations import migrate
from eigensweep.service.record.record import Record
from eigensweep.service.settings import Settings
from eigensweep.workers.driver import experiment as driver
from eigensweep.workers.driver.process import drive
from eigensweep.workers.driver.process.driver_order import DriverOrder
from eigensweep.workers.processes import runner
from eigensweep.workers.processes.runner import Runner

CALLER = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
SPEC = spec({"space": {}})


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    """Turn traces on, into memory; off again at the end."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    traces.use(provider)
    yield exporter
    traces.use(None)


class Launcher:
    """Notes what a driver is told."""

    problem = None

    def __init__(self) -> None:
        self.told: list[DriverOptions] = []

    def launch(self, experiment: str, spec: Any, ledger: Any, options: DriverOptions) -> Any:
        self.told.append(options)
        return SimpleNamespace(state=lambda: "running", death=None)

    def find(self, experiment: str) -> None:
        return None

    def look_for_room(self, resources: Any, replicates: int) -> Capacity:
        return Capacity(trials=1, problem=None, may_change=False)

    def list_nodes(self) -> list[Any]:
        return []


@pytest.fixture
def launcher() -> Launcher:
    return Launcher()


@pytest.fixture
def dispatcher(tmp_path: Path, launcher: Launcher) -> Dispatcher:
    settings = Settings(home=tmp_path / "home", data_root=tmp_path)
    settings.home.mkdir()
    migrate(settings.database)
    options = DriverOptions(storage=str(tmp_path))
    record = Record(settings.database)
    return Dispatcher(record, launcher=launcher, options=options, problem=None)


def post(dispatcher: Dispatcher, tmp_path: Path) -> None:
    settings = Settings(home=tmp_path / "home", data_root=tmp_path)
    client = TestClient(create_app(settings, dispatcher.record, dispatcher))
    answer = client.post("/v1/experiments", json=SPEC, headers={"traceparent": CALLER})
    assert answer.status_code == 201, answer.text


def train(options: DriverOptions, folder: Path) -> None:
    """Do what a driver and a trial's process do, for one trial."""
    parsed = ExperimentSpec.model_validate(SPEC)
    config = parsed.trial(Point("scornn", {}))
    order = make_order(
        config=config.model_dump(mode="json"),
        rungs=tuple(parsed.rung_steps(config)),
        storage=str(folder),
        trace=options.trace,
    )
    process = Runner(order.to_dict())
    while not process.train()["done"]:
        pass


def test_one_trace_leads_from_the_caller_to_each_evaluation(
    spans, dispatcher, launcher, tmp_path, monkeypatch
):
    monkeypatch.setattr(
        driver,
        "run_experiment",
        lambda experiment, spec, ledger, options: train(options, tmp_path / "storage"),
    )
    post(dispatcher, tmp_path)
    dispatcher.tick()
    (options,) = launcher.told
    drive.run_traced(DriverOrder("e1", {}, None, options, ""))  # type: ignore[arg-type]

    ended = {span.context.span_id: span for span in spans.get_finished_spans()}
    by_name: dict[str, list[Any]] = {}
    for span in ended.values():
        by_name.setdefault(span.name, []).append(span)
    assert {name: len(found) for name, found in by_name.items()} == {
        **{"POST /v1/experiments": 1, "queue": 1, "driver": 1, "attempt": 1, "evaluation": 5},
    }
    parents = {
        name: ended[found[0].parent.span_id].name
        for name, found in by_name.items()
        if found[0].parent.span_id in ended
    }
    assert parents == {
        "queue": "POST /v1/experiments",
        "driver": "POST /v1/experiments",
        "attempt": "driver",
        "evaluation": "attempt",
    }
    assert f"{by_name['POST /v1/experiments'][0].parent.span_id:016x}" == CALLER.split("-")[2]
    assert {f"{span.context.trace_id:032x}" for span in ended.values()} == {CALLER.split("-")[1]}
    (attempt,) = by_name["attempt"]
    assert attempt.attributes["eigensweep.experiment"] == "e1"
    assert attempt.attributes["eigensweep.trial"] == 3
    assert attempt.attributes["eigensweep.outcome"] == "completed"
    steps = [span.attributes["eigensweep.step"] for span in by_name["evaluation"]]
    assert steps == [0, 5, 10, 15, 20]


def test_a_trial_that_is_stopped_ends_its_span(spans, tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "open_attempt", lambda order, device: SimpleNamespace())
    process = Runner(make_order().to_dict())
    process.span = runner.begin_span(make_order())
    process.stop()
    process.stop()

    (span,) = spans.get_finished_spans()
    assert span.attributes["eigensweep.outcome"] == "stopped"


def test_no_span_of_a_read_and_none_with_a_webhooks_address(spans, dispatcher, tmp_path):
    settings = Settings(home=tmp_path / "home", data_root=tmp_path)
    client = TestClient(create_app(settings, dispatcher.record, dispatcher))
    client.get("/v1/experiments")
    client.post("/v1/experiments?notify=https://planted.example/secret", json=SPEC)

    (span,) = spans.get_finished_spans()
    assert span.name == "POST /v1/experiments"
    assert "planted" not in span.to_json()


def test_off_is_the_default_and_imports_nothing(dispatcher, launcher, tmp_path):
    program = (
        "import sys\nfrom eigensweep.common import traces\n"
        "traces.set_up('trial', None)\n"
        "with traces.span('x', step=1): pass\n"
        "traces.OpenSpan('y', None).end(); traces.flush()\n"
        "print(traces.carry(), [m for m in sys.modules if m.startswith('opentelemetry')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "None []\n", done.stderr

    post(dispatcher, tmp_path)
    dispatcher.tick()
    assert launcher.told[0].trace is None
    assert launcher.told[0].otlp_endpoint is None


@pytest.mark.parametrize(
    ("own", "environment", "expected"),
    [
        (None, {}, None),
        ("http://c:4318", {}, "http://c:4318/v1/traces"),
        ("http://c:4318/v1/traces", {}, "http://c:4318/v1/traces"),
        (None, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://d:4318/"}, "http://d:4318/v1/traces"),
        (None, {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://e/x"}, "http://e/x"),
    ],
)
def test_the_endpoint_is_ours_or_of_the_standard_variables(monkeypatch, own, environment, expected):
    for name in traces.STANDARD:
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert traces.find_endpoint(own) == expected


def test_a_missing_package_is_named_and_stops_nothing(monkeypatch, caplog):
    name = "opentelemetry.exporter.otlp.proto.http.trace_exporter"
    monkeypatch.setitem(sys.modules, name, None)
    traces.set_up("service", "http://127.0.0.1:1/v1/traces")

    assert not traces.is_on()
    assert "pip install '.[traces]'" in caplog.text


def test_an_order_carries_its_place_in_the_trace():
    order = replace(make_order(), trace=CALLER, otlp_endpoint="http://c/v1/traces")
    assert Order.from_dict(order.to_dict()) == order


def test_spans_arrive_at_a_collector():
    got: list[bytes] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Collector) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        endpoint = f"http://127.0.0.1:{server.server_address[1]}/v1/traces"
        program = (
            "from eigensweep.common import traces\n"
            f"traces.set_up('trial', {endpoint!r})\n"
            f"with traces.span('attempt', {CALLER!r}, experiment='e1'): pass\n"
            "traces.flush()"
        )
        options = ["-c", f"import os\n{program}\nos._exit(0)"]
        done = subprocess.run([sys.executable, *options], capture_output=True, text=True)
        server.shutdown()

    assert done.returncode == 0, done.stderr
    request = ExportTraceServiceRequest()
    request.ParseFromString(got[0])
    (resource,) = request.resource_spans
    named = {each.key: each.value.string_value for each in resource.resource.attributes}
    assert (named["service.name"], named["eigensweep.part"]) == ("eigensweep", "trial")
    (span,) = resource.scope_spans[0].spans
    assert (span.name, span.trace_id.hex()) == ("attempt", CALLER.split("-")[1])


def test_a_driver_sends_its_spans_before_it_is_over(monkeypatch):
    done = []
    monkeypatch.setattr(driver, "run_experiment", lambda *_: done.append("run"))
    monkeypatch.setattr(traces, "flush", lambda: done.append("flush"))
    options = DriverOptions(storage="/s")
    drive.run_traced(DriverOrder("e1", {}, None, options, ""))  # type: ignore[arg-type]

    assert done == ["run", "flush"]
