"""What the files of a key say themselves, where the `head.json` of an older version is damaged."""

from __future__ import annotations

import io
import re
import zipfile
import zlib
from typing import Final

from eigensweep.store.commits.curves import find_whole
from eigensweep.store.commits.head import Checkpoint, Head, Part
from eigensweep.store.places.files import Files

CHECKPOINT: Final = re.compile(r"step-(?P<step>\d+)-(?P<commit>\d+)(?:-(?P<attempt>\d+))?\.pt")
CURVE: Final = re.compile(r"curve(?:-(?P<attempt>\d+))?\.jsonl")
"""Older versions gave each attempt its own files; the oldest had one curve, and no attempt."""


def rebuild_head(files: Files, key: str, names: list[str]) -> Head:
    """Return a head of the files of a key as far as they are whole; `names` are all that lie there.

    It names the whole curve, so that whoever begins goes back behind what is damaged there. An
    attempt wrote the lines before the checkpoint that needs them, so a checkpoint of the attempt
    that wrote the curve has its lines. Any other one counts where the curve has gone beyond it.
    """
    curves = {int(it["attempt"] or 0): it[0] for it in map(CURVE.fullmatch, names) if it}
    attempt = max(curves, default=0)
    curve = files.read(f"{key}/{curves[attempt]}") if curves else b""
    curve = curve[: curve.rfind(b"\n") + 1]  # the last line was being written
    count = curve.count(b"\n")
    points, _, last = find_whole(curve, count)
    found = []
    for it in filter(None, map(CHECKPOINT.fullmatch, names)):
        content, step = files.read(f"{key}/{it[0]}"), int(it["step"])
        is_own = int(it["attempt"] or 0) == attempt and points == count
        if (step <= last or is_own) and is_whole_archive(content):
            needs = count if step > last else -1
            checkpoint = Checkpoint(it[0], step, zlib.crc32(content), needs)
            found.append((step, int(it["commit"]), checkpoint))
    found.sort(key=lambda each: each[:2], reverse=True)
    return Head(
        attempt=attempt,
        commits=max((commit for _, commit, _ in found), default=0),
        curve_bytes=len(curve),
        curve_points=count,
        last_step=last,
        checkpoints=tuple(checkpoint for *_, checkpoint in found),
        parts=(Part(curves[attempt], len(curve)),) if curve else (),
    )


def is_whole_archive(content: bytes) -> bool:
    """Tell whether a checkpoint's own checksums are right; PyTorch writes it as a zip archive."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            return archive.testzip() is None
    except (zipfile.BadZipFile, ValueError, EOFError):
        return False
