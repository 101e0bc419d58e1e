"""Sends messages to webhooks, until each has arrived. Runs in the service's process, in a thread.

A message goes to the very address that was checked, it is signed, and redirects are not followed.
Source of headers and signature: Standard Webhooks 1.0, https://www.standardwebhooks.com.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network
from typing import Final

import httpx2
from sqlalchemy.exc import SQLAlchemyError

from eigensweep.service.record.webhooks import Message, Outbox
from eigensweep.service.webhook_rules import (
    HTTPS_PORT,
    WebhookRefusedError,
    check_url,
    is_allowed,
)
from eigensweep.workers.shared import logs

logger = logging.getLogger(__name__)

FIRST_PAUSE: Final = 5.0
"""Seconds before the second try; each further pause is twice as long, up to `LONGEST_PAUSE`."""
LONGEST_PAUSE: Final = 6 * 3600.0
MOST_TRIES: Final = 24
"""So a message is given up after about three days."""
TIMEOUT_SECONDS: Final = 10.0
GONE: Final = 410
"""The receiver wants no more of it. Source: RFC 9110."""
KEY_PREFIX: Final = "whsec_"
"""Begins a secret that is written in Base64, as Standard Webhooks has it."""

Resolve = Callable[[str, int], Sequence[str]]
"""Returns the IP addresses of a host."""


class NotArrivedError(RuntimeError):
    """A message did not arrive; the message says why."""


class GoneError(NotArrivedError):
    """The receiver wants no more messages."""


def resolve(host: str, port: int) -> list[str]:
    """Return the IP addresses of a host.

    Raises:
        OSError: if it has none.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(each[4][0]) for each in found))


def sign(secret: str, id: str, timestamp: int, body: bytes) -> str:
    """Return the signature of a message: HMAC-SHA256 of its id, its time and its body."""
    key = secret.encode()
    if secret.startswith(KEY_PREFIX):
        key = base64.b64decode(secret.removeprefix(KEY_PREFIX))
    signed = f"{id}.{timestamp}.".encode() + body
    return "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()


@dataclass
class Notifier:
    """Sends what is due. Tests put a resolver, an address book and a clock of theirs in."""

    outbox: Outbox
    hosts: Collection[str]
    secret: str = field(repr=False)
    networks: Collection[IPv4Network | IPv6Network] = ()
    """Networks that are not public and may be sent to."""
    interval: float = 2.0
    """Seconds between two looks."""
    clock: Callable[[], float] = time.time
    resolve: Resolve = resolve
    context: ssl.SSLContext = field(default_factory=ssl.create_default_context)
    _stopping: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to send, in a thread."""
        self._thread = threading.Thread(target=self._run, name="webhooks", daemon=True)
        self._thread.start()

    def stop(self, timeout: float = 2.0) -> None:
        """Stop sending. What is not sent stays in the record."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(timeout)

    def send_due(self) -> int:
        """Send each message that is due once; return how many arrived.

        Raises:
            SQLAlchemyError: if the database does not answer.
        """
        arrived = 0
        for message in self.outbox.list_due(self.clock()):
            if self._stopping.is_set():
                break
            with logs.about(message.experiment):
                arrived += self._deliver(message)
        return arrived

    def _run(self) -> None:
        while not self._stopping.wait(self.interval):
            try:
                self.send_due()
            except SQLAlchemyError as error:
                logger.warning("webhooks wait for the database error=%s", type(error).__name__)

    def _deliver(self, message: Message) -> bool:
        try:
            status = self._post(message)
            if not 200 <= status < 300:
                kind = GoneError if status == GONE else NotArrivedError
                raise kind(f"the receiver answered {status}")
        except (NotArrivedError, WebhookRefusedError, httpx2.HTTPError, OSError) as error:
            is_final = isinstance(error, (WebhookRefusedError, GoneError))
            self._put_off(message, str(error) or type(error).__name__, is_final)
            return False
        self.outbox.note_arrival(message.id)
        logger.info("webhook delivered experiment=%s message=%s", message.experiment, message.id)
        return True

    def _put_off(self, message: Message, error: str, is_final: bool) -> None:
        pause = min(FIRST_PAUSE * 2.0**message.tries, LONGEST_PAUSE)
        gives_up = is_final or message.tries + 1 >= MOST_TRIES
        self.outbox.note_failure(message.id, error, None if gives_up else self.clock() + pause)
        what = "given up" if gives_up else f"tried again in {pause:.0f} s"
        words = "webhook not delivered, %s experiment=%s message=%s error=%s"
        logger.warning(words, what, message.experiment, message.id, error)

    def _post(self, message: Message) -> int:
        """Send a message to an address that was checked; return the status of the answer."""
        host, port = check_url(message.url, self.hosts)
        address = self._choose_address(host, port)
        body = json.dumps(message.content).encode()
        now = int(self.clock())
        headers = {
            "Host": host if port == HTTPS_PORT else f"{host}:{port}",
            "Content-Type": "application/json",
            "User-Agent": "eigensweep",
            "webhook-id": message.id,
            "webhook-timestamp": str(now),
            "webhook-signature": sign(self.secret, message.id, now, body),
        }
        url = httpx2.URL(message.url).copy_with(host=address)
        with httpx2.Client(
            verify=self.context, timeout=TIMEOUT_SECONDS, trust_env=False, follow_redirects=False
        ) as client:
            # The certificate has to be the host's, although the address is called.
            named = {"sni_hostname": host}
            asked = client.build_request(
                "POST", url, content=body, headers=headers, extensions=named
            )
            answer = client.send(asked, stream=True)  # what the receiver says is not read
            answer.close()
            return answer.status_code

    def _choose_address(self, host: str, port: int) -> str:
        """Return an address of a host, all of whose addresses are public or of `networks`.

        Raises:
            NotArrivedError: if one is not, or there is none.
        """
        addresses = self.resolve(host, port)
        inner = [each for each in addresses if not is_allowed(each, self.networks)]
        if inner or not addresses:
            raise NotArrivedError(
                f"{host} leads to {', '.join(inner) or 'no address'}: webhooks go to public "
                "addresses, and to networks that EIGENSWEEP_WEBHOOK_NETWORKS names"
            )
        return addresses[0]
