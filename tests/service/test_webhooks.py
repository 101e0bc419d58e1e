"""Webhooks: where they may go, how they are signed, and that none is lost."""

from __future__ import annotations

import base64
import hashlib
import hmac
import ipaddress
import json
import socketserver
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from pydantic import ValidationError
from sqlalchemy import select, text
from starlette.testclient import TestClient
from typer.testing import CliRunner

from eigensweep.command.cli import app
from eigensweep.results.trial_result import Result
from eigensweep.search_spaces.spec import ExperimentSpec
from eigensweep.service.api.answers.schemas import Views
from eigensweep.service.api.app import create_app
from eigensweep.service.queue.jobs import JobRunner
from eigensweep.service.queue.webhooks import WebhookHandler, sign
from eigensweep.service.record.jobs import Jobs
from eigensweep.service.record.ledger import RecordLedger
from eigensweep.service.record.record import Record
from eigensweep.service.record.sql import database
from eigensweep.service.record.sql.tables import JobRow
from eigensweep.service.settings import Settings
from eigensweep.service.settings.webhook_rules import WebhookRefusedError, check_url, is_public

HOST = "hooks.example.org"
SECRET = "a-secret-of-the-lab"


class Receiver:
    """An https server of this machine that notes what it is sent."""

    def __init__(self, folder: Path, name: str = HOST) -> None:
        self.status, self.headers, self.drips = 200, {}, 0
        self.got: list[tuple[str, dict[str, str], bytes]] = []
        self.name = name
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                headers = {name.lower(): value for name, value in self.headers.items()}
                receiver.got.append((self.path, headers, body))
                with suppress(OSError):  # whoever has sent it does not listen any more
                    for _ in range(receiver.drips):
                        self.wfile.write(b"HTTP/1.1 102 Processing\r\n\r\n")
                        time.sleep(0.1)
                    self.send_response(receiver.status)
                    for header, value in receiver.headers.items():
                        self.send_header(header, value)
                    self.send_header("Content-Length", "0")
                    self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        certificate = make_certificate(folder, name)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.port = self._server.server_address[1]
        self.trust = ssl.create_default_context(cafile=str(certificate))
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"https://{self.name}:{self.port}/T1?room=2"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def make_certificate(folder: Path, name: str) -> Path:
    """Return a file with a key and a certificate for a host's name."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    file = folder / f"{name}.pem"
    file.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        + made.public_bytes(serialization.Encoding.PEM)
    )
    return file


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[Receiver]:
    made = Receiver(tmp_path)
    yield made
    made.close()


@pytest.fixture
def now() -> list[float]:
    """The time, which a test moves."""
    return [1_800_000_000.0]


class Notifier(WebhookHandler):
    """Sends messages when a test says so."""

    def send_due(self) -> int:
        """Try each message that is due once; return how many arrived."""
        before = len(self.jobs.list("webhook", ["finished"]))
        JobRunner(self.jobs, [self], self.clock).tick(self)
        return len(self.jobs.list("webhook", ["finished"])) - before


@pytest.fixture
def notifier(record: Record, receiver: Receiver, now: list[float]) -> Notifier:
    """A notifier for which the receiver's name leads to this machine, and may."""
    return Notifier(
        Jobs(record.url),
        hosts=[f"{HOST}:{receiver.port}"],
        secret=SECRET,
        clock=lambda: now[0],
        resolve=lambda host, port: ["127.0.0.1"],
        networks=[ipaddress.ip_network("127.0.0.1/32")],
        context=receiver.trust,
    )


@pytest.fixture
def end(record: Record, spec: Any, receiver: Receiver, now: list[float]) -> Callable[..., str]:
    """Return a function that posts an experiment with a webhook, ends it, and gives its id."""

    def end_experiment(state: Any = "completed", url: str | None = None) -> str:
        posted = ExperimentSpec.model_validate(spec())
        experiment, _ = record.add(posted, notify=[url or receiver.url])
        if state == "cancelled":
            record.cancel(experiment.id)
        else:
            claim = record.claim(experiment.id)
            assert claim is not None
            ledger = RecordLedger(record.url, experiment.id, claim.generation)
            ledger.end(state, "Traceback\nRuntimeError: a bug" if state == "failed" else None)
        due = text("UPDATE jobs SET due_at = :now WHERE kind = 'webhook'")
        database.write(record.url, lambda session: session.execute(due, {"now": now[0]}))
        return experiment.id

    return end_experiment


def deliveries(record: Record) -> list[JobRow]:
    query = select(JobRow).where(JobRow.kind == "webhook").order_by(JobRow.created_at)
    return database.read(record.url, lambda session: list(session.scalars(query)))


class TestDelivery:
    @pytest.mark.parametrize("state", ["completed", "failed", "cancelled"])
    def test_the_end_of_an_experiment_arrives_signed(self, end, notifier, receiver, now, state):
        id = end(state)

        assert notifier.send_due() == 1
        ((path, headers, body),) = receiver.got
        assert (path, headers["host"]) == ("/T1?room=2", f"{HOST}:{receiver.port}")
        assert headers["webhook-timestamp"] == str(int(now[0]))
        signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
        mac = hmac.new(SECRET.encode(), signed, hashlib.sha256).digest()
        assert headers["webhook-signature"] == f"v1,{base64.b64encode(mac).decode()}"
        content = json.loads(body)
        assert content["type"] == f"experiment.{state}"
        assert (content["data"]["id"], content["data"]["state"]) == (id, state)
        assert content["data"]["error"] == ("RuntimeError: a bug" if state == "failed" else None)
        assert notifier.send_due() == 0
        assert len(receiver.got) == 1

    def test_what_did_not_arrive_is_sent_again_with_the_same_id(
        self, end, notifier, receiver, record, now
    ):
        end()
        receiver.status = 503
        pauses = []
        for _ in range(4):
            assert notifier.send_due() == 0
            (delivery,) = deliveries(record)
            pauses.append(delivery.due_at - now[0])
            assert delivery.error == "the receiver answered 503"
            now[0] = delivery.due_at - 1
            assert notifier.send_due() == 0, "not before its time"
            now[0] += 1
        receiver.status = 204
        assert notifier.send_due() == 1

        assert pauses == [5, 10, 20, 40]
        assert len({headers["webhook-id"] for _, headers, _ in receiver.got}) == 1
        assert len({body for _, _, body in receiver.got}) == 1
        (delivery,) = deliveries(record)
        assert (delivery.due_at, delivery.tries, delivery.error) == (None, 5, None)
        assert delivery.finished_at is not None

    def test_an_address_that_leads_nowhere_is_followed_by_the_next(self, end, notifier, receiver):
        end()
        notifier.resolve = lambda host, port: ["::1", "127.0.0.2", "127.0.0.1"]
        notifier.networks = [
            ipaddress.ip_network("::1/128"),
            ipaddress.ip_network("127.0.0.0/8"),
        ]

        assert notifier.send_due() == 1
        assert len(receiver.got) == 1

    def test_the_last_address_says_why_it_did_not_arrive(self, end, notifier, record):
        end()
        notifier.resolve = lambda host, port: ["127.0.0.2", "127.0.0.3"]
        notifier.networks = [ipaddress.ip_network("127.0.0.0/8")]

        assert notifier.send_due() == 0
        (delivery,) = deliveries(record)
        assert "connect" in delivery.error.lower()

    def test_another_service_on_the_record_sends_what_is_left(
        self, end, notifier, receiver, record, now
    ):
        end()
        receiver.status = 500
        notifier.send_due()
        receiver.status = 200
        now[0] += 5
        fields = ("hosts", "secret", "clock", "resolve", "networks", "context")
        successor = Notifier(Jobs(record.url), **{name: getattr(notifier, name) for name in fields})

        assert successor.send_due() == 1

    def test_it_is_given_up_after_days_or_when_the_receiver_is_gone(
        self, end, notifier, receiver, record, now
    ):
        end()
        receiver.status = 500
        began = now[0]
        while (due := deliveries(record)[0].due_at) is not None:
            now[0] = due
            notifier.send_due()
        assert (len(receiver.got), deliveries(record)[0].tries) == (24, 24)
        assert 2 * 86400 < now[0] - began < 4 * 86400
        assert WebhookHandler.longest_pause < 86400

        receiver.status = 410
        end(url=receiver.url + "&again=1")
        notifier.send_due()
        assert [each.due_at for each in deliveries(record)] == [None, None]

    def test_the_notices_say_what_did_not_arrive(
        self, end, notifier, receiver, record, now, monkeypatch
    ):
        id = end()
        monkeypatch.setattr("time.time", lambda: now[0])

        def list_notices() -> list[tuple[str, str]]:
            told = Views(None).experiment(record.experiment(id)).notices
            return [(notice.kind, notice.words) for notice in told]

        assert list_notices() == []
        receiver.status = 503
        notifier.send_due()
        first = (
            f"{HOST} was not told yet that the experiment is over: the receiver answered 503; "
            "next try at 08:00 UTC on 15 January"
        )
        assert list_notices() == [("webhook", first)]
        receiver.status = 410
        now[0] += 5
        late = f"{HOST} was not told yet that the experiment is over: the receiver answered 503"
        assert list_notices() == [("webhook", late)], "no service sends any"
        notifier.send_due()
        last = (
            f"{HOST} was not told that the experiment is over: the receiver answered 410; "
            "no more tries"
        )
        assert list_notices() == [("webhook", last)]

    def test_the_notices_say_nothing_of_what_arrived_later(
        self, end, notifier, receiver, record, now
    ):
        id = end()
        receiver.status = 503
        notifier.send_due()
        receiver.status = 200
        now[0] += 5
        assert notifier.send_due() == 1
        assert Views(None).experiment(record.experiment(id)).notices == []

    def test_a_late_message_tells_of_its_own_end(self, end, notifier, receiver, record, now):
        id = end("failed")
        record.retry(id)
        claim = record.claim(id)
        ledger = RecordLedger(record.url, id, claim.generation)
        ledger.open(0, "scornn", {}, {"training": {"steps": 9}}, "h")
        ledger.finish(0, ledger.begin(0), "completed", Result(value=0.5))
        ledger.end("completed")
        assert notifier.send_due() == 2
        told = [json.loads(body)["data"] for _, _, body in receiver.got]
        about = {each["state"]: (each["error"], each["trials"], each["ranked"]) for each in told}
        assert about["failed"] == ("RuntimeError: a bug", {}, 0)
        assert about["completed"] == (None, {"completed": 1}, 1)

    def test_the_notices_say_nothing_of_an_earlier_end(self, end, notifier, receiver, record, now):
        id = end("failed")
        receiver.status = 410
        notifier.send_due()
        assert len(Views(None).experiment(record.experiment(id)).notices) == 1
        record.retry(id)
        claim = record.claim(id)
        assert claim is not None
        RecordLedger(record.url, id, claim.generation).end("completed", None)
        receiver.status = 200
        assert notifier.send_due() == 1
        assert Views(None).experiment(record.experiment(id)).notices == []

    def test_the_notices_have_one_line_of_a_bug(self, end, notifier, record, now, monkeypatch):
        def fail(host: str, port: int) -> list[str]:
            raise UnicodeError("label empty or too long")  # as Python's resolver does

        id = end()
        monkeypatch.setattr(notifier, "resolve", fail)
        monkeypatch.setattr("time.time", lambda: now[0])
        notifier.send_due()
        (notice,) = Views(None).experiment(record.experiment(id)).notices
        assert "is over: UnicodeError: label empty or too long; next try" in notice.words

    def test_a_receiver_that_answers_drop_by_drop_holds_up_no_other(
        self, end, notifier, receiver, record, monkeypatch
    ):
        monkeypatch.setattr("eigensweep.service.queue.webhooks.TIMEOUT_SECONDS", 1.0)
        end()
        receiver.drips = 100
        assert notifier.send_due() == 0
        assert deliveries(record)[0].error == f"{HOST} was not found, or did not answer, within 1 s"

    def test_a_silent_receiver_is_waited_for_once_in_a_look(
        self, end, notifier, receiver, record, now, monkeypatch
    ):
        sent: list[Any] = []

        async def send(asked: Any, host: str, port: int) -> int:
            sent.append(asked)
            raise TimeoutError

        for _ in range(3):
            end()
        monkeypatch.setattr(notifier, "_send", send)
        assert notifier.send_due() == 0
        assert len(sent) == 1
        words = f"{HOST} was not found, or did not answer, within 10 s"
        found = sorted((each.tries, each.error or "") for each in deliveries(record))
        assert found == [(0, ""), (0, ""), (1, words)], "those that were not sent stay due"
        notifier.send_due()
        assert sent[0].headers["webhook-id"] != sent[1].headers["webhook-id"]
        now[0] += 60
        monkeypatch.undo()
        notifier.send_due()
        assert len(receiver.got) == 3

    def test_a_resolver_that_hangs_is_waited_for_no_longer(
        self, end, notifier, receiver, record, now, monkeypatch
    ):
        monkeypatch.setattr("eigensweep.service.queue.webhooks.TIMEOUT_SECONDS", 0.2)
        answers = threading.Event()
        resolve = notifier.resolve
        notifier.resolve = lambda host, port: resolve(host, port) if answers.wait(60) else []
        end()
        assert notifier.send_due() == 0
        assert not answers.is_set(), "it hangs yet"
        assert deliveries(record)[0].error == f"{HOST} was not found, or did not answer, within 0 s"
        monkeypatch.undo()
        answers.set()
        now[0] += 60
        assert notifier.send_due() == 1

    def test_a_redirect_is_not_followed(self, end, notifier, receiver, record):
        end()
        receiver.status, receiver.headers = 307, {"Location": receiver.url}
        notifier.send_due()

        assert len(receiver.got) == 1
        assert deliveries(record)[0].error == "the receiver answered 307"

    def test_a_certificate_of_another_host_is_refused(self, end, notifier, record, tmp_path):
        other = Receiver(tmp_path, "other.example.org")
        notifier.hosts = [f"{HOST}:{other.port}"]
        notifier.context = other.trust
        end(url=f"https://{HOST}:{other.port}/")
        notifier.send_due()
        other.close()

        assert other.got == []
        assert "certificate" in deliveries(record)[0].error.lower()

    @pytest.mark.parametrize(
        "addresses",
        [["10.0.0.7"], ["169.254.169.254"], ["127.0.0.1"], ["93.184.216.34", "::1"], []],
    )
    def test_a_name_that_leads_inside_is_not_called(
        self, end, notifier, receiver, record, addresses
    ):
        end()
        notifier.resolve = lambda host, port: addresses
        notifier.networks = [ipaddress.ip_network("10.1.0.0/16")]
        notifier.send_due()

        assert receiver.got == []
        error = deliveries(record)[0].error
        assert "public addresses, and to networks that EIGENSWEEP_WEBHOOK_NETWORKS names" in error

    def test_the_address_that_was_checked_is_the_one_that_is_called(self, end, notifier, receiver):
        """A second answer of the name server, which leads elsewhere, is never asked for."""
        end()
        answers = iter([["127.0.0.1"], ["192.0.2.1"]])
        notifier.resolve = lambda host, port: next(answers)

        assert notifier.send_due() == 1
        assert next(answers) == ["192.0.2.1"]

    def test_a_host_that_was_taken_off_the_list_gets_nothing_more(
        self, end, notifier, receiver, record
    ):
        end()
        notifier.hosts = ["elsewhere.example.org"]
        notifier.send_due()

        assert receiver.got == []
        assert deliveries(record)[0].due_at is None

    def test_an_experiment_that_is_over_is_told_once(self, record, spec, receiver):
        posted = ExperimentSpec.model_validate(spec())
        experiment, _ = record.add(posted, notify=[receiver.url])
        ledger = RecordLedger(record.url, experiment.id, record.claim(experiment.id).generation)
        ledger.end("completed")
        ledger.end("completed")

        assert len(deliveries(record)) == 1, "the second end changes nothing"

    def test_each_of_several_webhooks_is_told_once(self, url, spec):
        record = Record(url, webhooks=["https://a.example/", "https://b.example/"])
        posted = ExperimentSpec.model_validate(spec())
        experiment, _ = record.add(posted, notify=["https://b.example/", "https://c.example/"])
        record.cancel(experiment.id)

        hosts = sorted(delivery.request["url"] for delivery in deliveries(record))
        assert hosts == ["https://a.example/", "https://b.example/", "https://c.example/"]


class TestRules:
    @pytest.mark.parametrize(
        "url",
        [
            "http://hooks.example.org/",
            "https://other.example.org/",
            "https://hooks.example.org.evil.example/",
            "https://hooks.example.org:8443/",
            "https://hooks.example.org@evil.example/",
            "https://me:secret@hooks.example.org/",
            "https://127.0.0.1/",
            "https://[::1]/",
            "https:///path",
            "https://hooks.example.org/\r\nHost: evil",
            "https://hooks.example.org:0x1bb/",
            "https://höoks.example.org/",
            "file:///etc/passwd",
            "https://hooks.example.org/" + "a" * 2000,
            "",
        ],
    )
    def test_what_is_not_an_allowed_https_address_is_refused(self, url):
        with pytest.raises(WebhookRefusedError):
            check_url(url, [HOST])

    def test_upper_case_and_a_last_dot_change_nothing(self):
        assert check_url("https://HOOKS.example.org./x", [HOST]) == (HOST, 443)
        assert check_url("https://hooks.example.org:8443/x", [f"{HOST}:8443"]) == (HOST, 8443)

    @pytest.mark.parametrize(
        "address",
        [
            *("127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "0.0.0.0"),
            *("100.64.0.1", "224.0.0.1", "255.255.255.255", "::1", "::", "fe80::1%eth0", "fc00::1"),
            *("::ffff:10.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::", "ff02::1"),
        ],
    )
    def test_inner_addresses_are_not_public(self, address):
        assert not is_public(address)

    def test_public_addresses_are(self):
        assert is_public("93.184.216.34")
        assert is_public("2606:2800:220:1::1")
        assert ipaddress.ip_address("93.184.216.34").is_global

    def test_a_secret_in_base64_is_used_as_its_bytes(self):
        plain, coded = b"0123456789abcdef", base64.b64encode(b"0123456789abcdef").decode()
        assert sign(f"whsec_{coded}", "m1", 5, b"{}") == sign(plain.decode(), "m1", 5, b"{}")


class TestSettingsAndApi:
    @pytest.mark.parametrize(
        ("given", "words"),
        [
            ({"webhook_hosts": HOST}, "EIGENSWEEP_WEBHOOK_SECRET"),
            ({"webhook_hosts": HOST, "webhook_secret": "short"}, "at least 16 signs"),
            ({"webhook_urls": f"https://{HOST}/"}, "EIGENSWEEP_WEBHOOK_HOSTS"),
            ({"webhook_hosts": HOST, "webhook_secret": "whsec_no-base64-in-it!"}, "Base64"),
        ],
    )
    def test_webhooks_need_hosts_and_a_secret(self, tmp_path, given, words):
        with pytest.raises(ValidationError, match=words):
            Settings(home=tmp_path, **given)

    def test_lists_are_separated_by_commas(self, tmp_path, monkeypatch):
        monkeypatch.setenv("EIGENSWEEP_WEBHOOK_HOSTS", f"{HOST}, b.example:8443")
        monkeypatch.setenv("EIGENSWEEP_WEBHOOK_URLS", f"https://{HOST}/x,https://b.example:8443/y")
        monkeypatch.setenv("EIGENSWEEP_WEBHOOK_SECRET", SECRET)
        settings = Settings(home=tmp_path)
        assert settings.webhook_hosts == (HOST, "b.example:8443")
        assert settings.webhook_urls == (f"https://{HOST}/x", "https://b.example:8443/y")
        assert SECRET not in repr(settings)

    def test_a_post_that_names_a_forbidden_webhook_is_refused(
        self, settings, record, dispatcher, spec
    ):
        own = settings.model_copy(update={"webhook_hosts": (HOST,)})
        client = TestClient(create_app(own, record, dispatcher), base_url="http://localhost")
        address = f"https://{HOST}/x"

        refused = client.post(
            "/v1/experiments", params={"notify": "https://evil.example/"}, json=spec()
        )
        assert (refused.status_code, refused.json()["errors"][0]["path"]) == (422, "notify")
        assert HOST in refused.json()["detail"]
        many = [f"https://{n}.example/" for n in range(5)]
        refused = client.post("/v1/experiments", params={"notify": many}, json=spec())
        assert refused.json()["detail"] == "'notify' should have at most 4 items, not 5"
        assert record.experiments() == []

        posted = client.post("/v1/experiments", params={"notify": address}, json=spec())
        assert posted.status_code == 201
        client.post(f"/v1/experiments/{posted.json()['id']}/cancel")
        assert [delivery.request["url"] for delivery in deliveries(record)] == [address]

    def test_by_default_nothing_is_sent_and_that_is_said(self, client, spec):
        refused = client.post("/v1/experiments", params={"notify": f"https://{HOST}/"}, json=spec())
        assert refused.status_code == 422
        assert "sends no webhooks" in refused.json()["detail"]

    @pytest.mark.usefixtures("_no_environment")
    def test_the_command_line_hands_addresses_on(self, scripted_service, tmp_path, spec):
        file = tmp_path / "spec.json"
        file.write_text(json.dumps(spec()))
        options = ["--notify", f"https://{HOST}/", "--url", scripted_service]
        done = CliRunner().invoke(app, ["submit", str(file), *options])

        assert done.exit_code == 2
        assert "this service sends no webhooks" in done.stderr
