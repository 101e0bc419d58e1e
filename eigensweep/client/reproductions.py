"""A reproduction as a client sees it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from eigensweep.client.connection import JsonObject
from eigensweep.client.remote import Remote

FORMATS = ("html", "md", "json", "svg")
"""The forms of a report."""


class Reproduction(Remote):
    """A table or figure of a paper that is measured again.

    Its states: `running`, `reporting`, `finished`, `failed` and `cancelled`.
    """

    kind = "reproduction"
    listing_path = "/v1/reproductions"

    def __repr__(self) -> str:
        return f"<Reproduction {self.id} {self.name} {self.content['budget']} {self.state}>"

    @property
    def name(self) -> str:
        return str(self.content["name"])

    @property
    def is_over(self) -> bool:
        return self.state not in ("running", "reporting")

    @property
    def report(self) -> JsonObject:
        """The report as the API gives it, once it is finished."""
        return dict(json.loads(self.file("json")))

    def file(self, format: str) -> bytes:
        """Return the report in one of `FORMATS`, or the `results` that it is made of."""
        return self.connection.download(f"{self.path}/report.{format}")

    def cancel(self) -> Reproduction:
        """Cancel it and its experiments; ask for the same one again to go on."""
        self.connection.post(f"{self.path}/cancel")
        return self.refresh()

    def save(self, folder: Path | str, formats: Iterable[str] = FORMATS) -> list[Path]:
        """Write the report into a folder, in each format, and return the paths."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        paths, stem = [], self.name.replace("/", "-")
        for format in formats:
            path = folder / f"{stem}.{format}"
            content = self.file(format)
            if format == "md":  # its picture has another name here
                content = content.replace(b"](figure.svg)", f"]({stem}.svg)".encode())
            path.write_bytes(content)
            paths.append(path)
        return paths
