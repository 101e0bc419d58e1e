"""An analysis as a client sees it."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from eigensweep.workers.shared.states import OPEN_ANALYSES

if TYPE_CHECKING:
    from eigensweep.service.client.client import Client


class AnalysisFailedError(RuntimeError):
    """An analysis failed; the message is its error."""


class Analysis:
    """An analysis as the service last told it; `refresh` asks again."""

    def __init__(self, client: Client, content: dict[str, Any]) -> None:
        self.client = client
        self.content = content
        """The service's JSON."""

    def __repr__(self) -> str:
        return f"<Analysis {self.id} {self.content['name']} {self.state}>"

    @property
    def id(self) -> str:
        return str(self.content["id"])

    @property
    def state(self) -> str:
        """`queued`, `running`, `finished` or `failed`, when last asked."""
        return str(self.content["state"])

    @property
    def label(self) -> str:
        """A name for its files: what it is, and of what."""
        parts = [self.content[part] for part in ("name", "experiment", "trial")]
        return "-".join(str(part) for part in parts if part is not None)

    @property
    def result(self) -> dict[str, Any]:
        """Its numbers, once it is finished."""
        return dict(json.loads(self.file("result.json")))

    def file(self, name: str) -> bytes:
        """Return `result.json`, `table.csv`, `figure.png` or `figure.svg`."""
        return self.client.download(f"{self.content['links']['self']}/files/{name}")

    def refresh(self) -> Self:
        """Ask the service anew."""
        self.content = self.client.get(self.content["links"]["self"])
        return self

    def wait(self, timeout: float | None = None, pause: float = 0.2) -> Self:
        """Return once it is finished.

        Raises:
            AnalysisFailedError: if it fails instead.
            TimeoutError: if it takes longer than `timeout` seconds.
        """
        started = time.monotonic()
        while self.state in OPEN_ANALYSES:
            if timeout is not None and time.monotonic() - started > timeout:
                raise TimeoutError(f"analysis {self.id} is {self.state} after {timeout:g} s")
            time.sleep(pause)
            self.refresh()
        if self.state == "failed":
            raise AnalysisFailedError(str(self.content["error"]))
        return self

    def save(self, folder: Path | str) -> list[Path]:
        """Write its files into a folder, made if need be; return their paths.

        They are named after what they show, and its id: `gradient_norms-e7-3-0c1d.png`.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        paths = []
        for name in self.content["links"]["files"]:
            path = folder / f"{self.label}-{self.id[:4]}{Path(name).suffix}"
            path.write_bytes(self.file(name))
            paths.append(path)
        return paths
