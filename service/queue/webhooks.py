"""Sends messages to webhooks, until each has arrived. Runs in the service's process.

A message goes to the very address that was checked, it is signed, and redirects are not followed.
Source of headers and signature: Standard Webhooks 1.0, https://www.standardwebhooks.com.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import logging
import socket
import ssl
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from ipaddress import IPv4Network, IPv6Network
from typing import ClassVar, Final

import httpx2
from sqlalchemy.orm import Session

from eigensweep.common import logs
from eigensweep.common.aside import call_aside
from eigensweep.results.ranking import RANKED
from eigensweep.service.queue.jobs import Handler, NeverError, NotDoneError
from eigensweep.service.record.jobs import Jobs
from eigensweep.service.record.sql import database
from eigensweep.service.record.sql.tables import ExperimentRow, JobKind, JobRow
from eigensweep.service.record.views.queries import count_states
from eigensweep.service.settings.webhook_rules import (
    HTTPS_PORT,
    KEY_PREFIX,
    WebhookRefusedError,
    check_url,
    is_allowed,
)

logger = logging.getLogger(__name__)

TIMEOUT_SECONDS: Final = 10.0
"""The longest delivery, from the host's name to the status: other receivers wait meanwhile."""
CONNECT_SECONDS: Final = 3.0
"""How long a connection to an address may take where the host has another."""
GONE: Final = 410
"""The status by which a receiver declines all further messages. Source: RFC 9110."""

Resolve = Callable[[str, int], Sequence[str]]
"""Returns the IP addresses of a host."""


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
class WebhookHandler(Handler):
    """Sends due messages. Tests pass their own resolver, address book and clock."""

    kind: ClassVar[JobKind] = "webhook"
    first_pause: ClassVar[float] = 5.0
    longest_pause: ClassVar[float] = 6 * 3600.0
    most_tries: ClassVar[int | None] = 24
    """A message is given up after about three days."""
    jobs: Jobs
    hosts: Collection[str]
    secret: str = field(repr=False)
    networks: Collection[IPv4Network | IPv6Network] = ()
    """Networks that are not public, but allowed as receivers."""
    clock: Callable[[], float] = time.time
    resolve: Resolve = resolve
    context: ssl.SSLContext = field(default_factory=ssl.create_default_context)
    _silent: set[tuple[str, int]] = field(default_factory=set)
    """Receivers that did not answer in this look: other messages to them stay due."""

    def look(self) -> None:
        self._silent.clear()

    def work(self, job: JobRow) -> None:
        with logs.about(job.experiment_id or ""):
            try:
                host, port = check_url(job.request["url"], self.hosts)
                if (host, port) in self._silent:
                    return  # the next look begins with it
                if (content := make_message(self.jobs, job)) is None:
                    return  # its experiment was deleted meanwhile
                status = self._post(job, json.dumps(content).encode(), host, port)
            except WebhookRefusedError as error:
                raise NeverError(str(error)) from error
            except (httpx2.HTTPError, OSError) as error:
                raise NotDoneError(str(error) or type(error).__name__) from error
            if not 200 <= status < 300:
                kind = NeverError if status == GONE else NotDoneError
                raise kind(f"the receiver answered {status}")
            self.jobs.finish(job)
            logger.info("webhook delivered experiment=%s message=%s", job.experiment_id, job.key)

    def _post(self, job: JobRow, body: bytes, host: str, port: int) -> int:
        """Send a message to an address that was checked; return the status of the answer."""
        address = job.request["url"]
        now = int(self.clock())
        headers = {
            "Host": host if port == HTTPS_PORT else f"{host}:{port}",
            "Content-Type": "application/json",
            "User-Agent": "eigensweep",
            "webhook-id": job.key,
            "webhook-timestamp": str(now),
            "webhook-signature": sign(self.secret, job.key, now, body),
        }
        # The certificate has to be the host's, although the address is called.
        named = {"sni_hostname": host}
        asked = httpx2.Request("POST", address, content=body, headers=headers, extensions=named)
        try:
            return asyncio.run(self._send(asked, host, port))
        except TimeoutError as error:
            self._silent.add((host, port))
            words = f"{host} was not found, or did not answer, within {TIMEOUT_SECONDS:.0f} s"
            raise NotDoneError(words) from error

    async def _send(self, asked: httpx2.Request, host: str, port: int) -> int:
        """Send a request; the client's own limits are for each read, and bound no whole."""
        async with (
            asyncio.timeout(TIMEOUT_SECONDS),
            httpx2.AsyncClient(
                verify=self.context, timeout=None, trust_env=False, follow_redirects=False
            ) as client,
        ):
            found = call_aside(partial(self._find_addresses, host, port), "resolver")
            *others, last = await asyncio.wrap_future(found)
            for address in others:  # such as one of IPv6, which leads nowhere from here
                with suppress(httpx2.ConnectError, httpx2.ConnectTimeout):
                    return await self._ask(client, asked, address, CONNECT_SECONDS)
            return await self._ask(client, asked, last)

    async def _ask(
        self,
        client: httpx2.AsyncClient,
        asked: httpx2.Request,
        address: str,
        patience: float | None = None,
    ) -> int:
        """Send a request to one address; `patience` is for the connection alone."""
        asked.url = asked.url.copy_with(host=address)
        asked.extensions["timeout"] = {"connect": patience}
        answer = await client.send(asked, stream=True)  # what the receiver says is not read
        await answer.aclose()
        return answer.status_code

    def _find_addresses(self, host: str, port: int) -> Sequence[str]:
        """Return the addresses of a host, all of which are public or of `networks`.

        Raises:
            NotDoneError: if one is not, or there is none.
        """
        addresses = self.resolve(host, port)
        inner = [each for each in addresses if not is_allowed(each, self.networks)]
        if inner or not addresses:
            raise NotDoneError(
                f"{host} leads to {', '.join(inner) or 'no address'}: webhooks go to public "
                "addresses, and to networks that EIGENSWEEP_WEBHOOK_NETWORKS names"
            )
        return addresses


@database.reading
def make_message(jobs: Jobs, session: Session, job: JobRow) -> dict[str, object] | None:
    """Return the content of a message; None if its experiment was deleted meanwhile."""
    if (experiment := session.get(ExperimentRow, job.experiment_id)) is None:
        return None
    told = job.request
    if "trials" not in told:  # an earlier version wrote it
        counts = count_states(session, [experiment.id])[experiment.id]
        trials = {state: count.trials for state, count in sorted(counts.items())}
        told = {**told, "error": experiment.error, "trials": trials}
    error = told["error"].strip().rsplit("\n", 1)[-1][:300] if told["error"] else None
    return {
        "type": told["type"],
        "timestamp": datetime.fromtimestamp(job.created_at, UTC).isoformat(),
        "data": {
            "id": experiment.id,
            "name": experiment.name,
            "project": experiment.project,
            "state": told["type"].removeprefix("experiment."),
            "error": error,
            "metric": experiment.metric,
            "trials": told["trials"],
            "ranked": sum(told["trials"].get(state, 0) for state in RANKED),
            "page": f"/experiments/{experiment.id}",
        },
    }
