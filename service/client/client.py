"""The service from Python: post an experiment, follow it, read its trials.

    from eigensweep import Client

    experiment = Client("http://127.0.0.1:8642").submit("quickstart", seed=7)
    experiment.wait()
    print(experiment.best["value"], experiment.trials)

Nothing heavy is imported: neither torch nor Ray nor MLflow.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote, urlsplit

import httpx2
from platformdirs import user_data_path

from eigensweep.service.client.analyses import Analysis
from eigensweep.service.client.answers import (
    PATIENCE_SECONDS,
    Event,
    RefusedError,
    ServiceAwayError,
    content_of,
)
from eigensweep.service.client.experiments import Experiment, path_of
from eigensweep.service.client.spec_file import InputError, looks_like_a_file, read, with_settings

__all__ = [
    "Analysis",
    "Client",
    "Event",
    "Experiment",
    "InputError",
    "RefusedError",
    "ServiceAwayError",
]

DEFAULT_URL = "http://127.0.0.1:8642"


class Client:
    """One service, by its address and token.

    Without them: EIGENSWEEP_URL, or where this machine's service said it is; EIGENSWEEP_TOKEN.
    """

    def __init__(
        self, url: str | None = None, token: str | None = None, *, timeout: float = 30.0
    ) -> None:
        url = (url or os.environ.get("EIGENSWEEP_URL") or _announced_url()).rstrip("/")
        self.url = url if "://" in url else f"http://{url}"
        token = token or os.environ.get("EIGENSWEEP_TOKEN")
        try:
            loopback = urlsplit(self.url).hostname in {"127.0.0.1", "localhost", "::1"}
            self._http = httpx2.Client(
                base_url=self.url,
                headers={"Authorization": f"Bearer {token}"} if token else {},
                timeout=timeout,
                trust_env=not loopback,  # a proxy leads away from this machine
            )
        except (ValueError, httpx2.InvalidURL) as error:
            raise InputError(f"{self.url} is not the address of a service: {error}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    def submit(self, spec: Mapping[str, Any] | str | Path, **settings: Any) -> Experiment:
        """Post an experiment: a dict, a YAML or JSON file, or the name of a preset.

        `settings` are laid over it by dotted path:
        `submit("quickstart", seed=7, **{"training.steps": 50})`.

        Raises:
            RefusedError: if the service finds something wrong with it.
        """
        body = json.dumps(self.spec(spec, settings))
        headers = {"Content-Type": "application/json", "Idempotency-Key": uuid.uuid4().hex}
        answer = self.request("POST", "/v1/experiments", content=body, headers=headers)
        return Experiment(self, answer)

    def preview(self, spec: Mapping[str, Any] | str | Path, **settings: Any) -> dict[str, Any]:
        """Return what an experiment would do, without posting it."""
        body = json.dumps(self.spec(spec, settings))
        headers = {"Content-Type": "application/json"}
        return self.request("POST", "/v1/experiments/preview", content=body, headers=headers)

    def spec(
        self, source: Mapping[str, Any] | str | Path, settings: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the spec that `source` names, with `settings` laid over it."""
        if isinstance(source, Mapping):
            return with_settings(source, settings)
        if isinstance(source, Path) or looks_like_a_file(source):
            return with_settings(read(source), settings)
        return with_settings(self.get(f"/v1/presets/{quote(source)}")["spec"], settings)

    def experiment(self, experiment_id: str) -> Experiment:
        """Return an experiment that was posted before."""
        return Experiment(self, self.get(path_of(experiment_id)))

    def experiments(self, limit: int | None = None, **filters: Any) -> list[dict[str, Any]]:
        """Return experiments, newest first: all, or those with a `state`, `project` or `name`."""
        return self.items("/v1/experiments", limit, **filters)

    def analyse(
        self,
        name: str,
        *,
        experiment: str | None = None,
        trial: int | None = None,
        **options: Any,
    ) -> Analysis:
        """Ask for an analysis of a finished trial, an experiment, or of matrices of its own.

        `analyse("gradient_norms", experiment=id, trial=3, norm="frobenius").wait().save("out")`.
        The same request gives the same analysis, finished at once where it was made before.

        Raises:
            RefusedError: if it cannot be met; the words say why.
        """
        body = {"name": name, "experiment": experiment, "trial": trial, "options": options}
        return Analysis(self, self.request("POST", "/v1/analyses", json=body))

    def analysis(self, analysis_id: str) -> Analysis:
        """Return an analysis that was asked for before."""
        return Analysis(self, self.get(f"/v1/analyses/{quote(analysis_id, safe='')}"))

    def download(self, path: str) -> bytes:
        """Return the bytes at a path of the API."""
        return self._answered("GET", path).read()

    def get(self, path: str, **query: Any) -> dict[str, Any]:
        """Return the JSON at a path of the API."""
        asked = {name: value for name, value in query.items() if value is not None}
        return self.request("GET", path, params=asked)

    def items(self, path: str, limit: int | None = None, **query: Any) -> list[dict[str, Any]]:
        """Return the items of a listing, over as many pages as `limit` needs (None: all)."""
        found: list[dict[str, Any]] = []
        while True:
            wanted = 100 if limit is None else min(100, limit - len(found))
            page = self.get(path, limit=wanted, **query)
            found += page["items"]
            query["cursor"] = page["next_cursor"]
            if query["cursor"] is None or (limit is not None and len(found) >= limit):
                return found

    def request(self, method: str, path: str, **options: Any) -> Any:
        """Return the JSON that the service answers with.

        Raises:
            RefusedError: if the answer is a problem.
            ServiceAwayError: if there is no answer.
        """
        return content_of(self._answered(method, path, **options))

    def _answered(self, method: str, path: str, **options: Any) -> httpx2.Response:
        try:
            response = self._http.request(method, path, **options)
        except httpx2.TransportError as error:
            raise self._away(error) from error
        if not response.is_success:
            content_of(response)  # raises
        return response

    def events(self, experiment_id: str, after: str | None = None) -> Iterator[Event]:
        """Yield an experiment's events, from the first (or from `after`, an event's id) to its end.

        A connection that breaks is made again where it stopped, for up to a minute.
        """
        path, last, deadline = f"{path_of(experiment_id)}/events", after, None
        while True:
            try:
                headers = {"Accept": "text/event-stream"} | (
                    {"Last-Event-ID": last} if last else {}
                )
                with self._http.stream("GET", path, headers=headers) as response:
                    if response.is_error:
                        response.read()
                        content_of(response)
                    deadline = None
                    for sent in httpx2.EventSource(response):
                        last = sent.id or last
                        event = Event(sent.id, sent.event, json.loads(sent.data or "{}"))
                        yield event
                        if event.is_end:
                            return
                if self.experiment(experiment_id).ended:
                    return  # the end lay before `after`
            except (httpx2.TransportError, ServiceAwayError) as error:
                deadline = deadline or time.monotonic() + PATIENCE_SECONDS
                if time.monotonic() > deadline:
                    raise self._away(error) from error
            time.sleep(0.5)

    def _away(self, error: Exception) -> ServiceAwayError:
        reason = str(error) or type(error).__name__
        return ServiceAwayError(f"no answer from the service at {self.url} ({reason})")


def _announced_url() -> str:
    """Return where the service of this home folder is, or was last."""
    home = Path(os.environ.get("EIGENSWEEP_HOME") or user_data_path("eigensweep"))
    try:
        return str(json.loads((home.expanduser() / "service.json").read_text())["url"])
    except (OSError, ValueError, KeyError, TypeError):
        return DEFAULT_URL
