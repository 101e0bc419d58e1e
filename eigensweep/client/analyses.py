"""An analysis as a client sees it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Self

from eigensweep.client.connection import JsonObject
from eigensweep.client.remote import Remote
from eigensweep.protocol.states import OPEN_ANALYSES


class AnalysisFailedError(RuntimeError):
    """An analysis failed or was cancelled; the message says why."""


class Analysis(Remote):
    """An analysis. Its states: `queued`, `running`, `finished`, `failed` and `cancelled`."""

    kind = "analysis"
    listing_path = "/v1/analyses"

    def __repr__(self) -> str:
        return f"<Analysis {self.id} {self.content['name']} {self.state}>"

    @property
    def is_over(self) -> bool:
        return self.state not in OPEN_ANALYSES

    @property
    def label(self) -> str:
        """The start of its files' names: the kind of analysis, the experiment, the trial."""
        parts = [self.content[part] for part in ("name", "experiment", "trial")]
        return "-".join(str(part) for part in parts if part is not None)

    @property
    def result(self) -> JsonObject:
        """Its numbers, once it is finished."""
        return dict(json.loads(self.file("result.json")))

    def file(self, name: str) -> bytes:
        """Return `result.json`, `table.csv`, `figure.png` or `figure.svg`."""
        return self.connection.download(f"{self.path}/files/{name}")

    def wait(self, timeout: float | None = None, pause: float = 0.2) -> Self:
        """Return once it is finished.

        Raises:
            AnalysisFailedError: if it fails or is cancelled instead.
            TimeoutError: if it takes longer than `timeout` seconds.
        """
        super().wait(timeout, pause)
        if self.state != "finished":
            raise AnalysisFailedError(self.content["error"] or f"it was {self.state}")
        return self

    def cancel(self) -> Self:
        """Ask for its end; its process ends within seconds. The same request begins it anew."""
        self.content = self.connection.post(f"{self.path}/cancel")
        return self

    def save(self, folder: Path | str) -> list[Path]:
        """Write its files into a folder and return their paths; a missing folder is made.

        The names say what the files show, and the start of its id: `gradient_norms-e7-3-0c1d.png`.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        paths = []
        for name in self.content["links"]["files"]:
            path = folder / f"{self.label}-{self.id[:4]}{Path(name).suffix}"
            path.write_bytes(self.file(name))
            paths.append(path)
        return paths
