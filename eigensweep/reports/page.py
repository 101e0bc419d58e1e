"""A report as one HTML page that needs nothing else: pictures are inside, and no link leads out."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, StrictUndefined

from eigensweep.reports import markdown
from eigensweep.reports.report import ReportContent

LARGEST = 5_000_000
"""Bytes of a page at most."""
MEDIA_TYPES = {".svg": "image/svg+xml", ".png": "image/png"}


@dataclass(frozen=True)
class Picture:
    """A picture of a page."""

    address: str
    """The picture itself, as a `data:` address."""
    words: str


def write_page(content: ReportContent, pictures: Sequence[tuple[str, Sequence[Path]]]) -> str:
    """Return the page. A picture is its words and its files, of which the first that fits is taken.

    Pictures that do not fit into `LARGEST` are left out.
    """
    environment = Environment(autoescape=True, undefined=StrictUndefined)
    template = environment.from_string(
        (files("eigensweep.reports") / "page.html").read_text(encoding="utf-8")
    )
    return template.render(
        content=content,
        title=markdown.title_of(content),
        remarks=markdown.remarks_of(content),
        pictures=list(_embed(pictures, LARGEST - len(content.model_dump_json()) * 2)),
        tables=[*markdown.make_tables(content, "\n"), _list_runs(content)],
        cost=markdown.cost_words(content),
    )


def _embed(pictures: Sequence[tuple[str, Sequence[Path]]], room: int) -> list[Picture]:
    found: list[Picture] = []
    for words, paths in pictures:
        share = room // max(1, len(pictures) - len(found))
        for path in paths:
            coded = base64.b64encode(path.read_bytes()).decode()
            if len(coded) <= share:
                found.append(Picture(f"data:{MEDIA_TYPES[path.suffix]};base64,{coded}", words))
                room -= len(coded)
                break
    return found


def _list_runs(content: ReportContent) -> markdown.ReportTable:
    return markdown.ReportTable(
        "Experiments and analyses",
        ("what", "id", "state"),
        [
            *((e.name, e.id or "", e.problem or e.state) for e in content.experiments),
            *((a.label, a.id or "", a.problem or "made") for a in content.analyses),
        ],
    )
