"""Curves as the store holds them: a line of JSON a point, each with a checksum of its own."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Final, TypeVar

from eigensweep.store.places.durable_files import DamagedError

T = TypeVar("T")

CHECKSUM: Final = b', "crc32": '
"""Stands before the last value of a head and of a curve's line: the CRC-32 of all before it. What
older versions wrote has none."""


@dataclass(frozen=True)
class CurvePoint:
    """The metrics of one step, finite numbers only, and when they were taken."""

    step: int
    metrics: dict[str, float]
    timestamp_ms: int


def cut(points: Iterable[CurvePoint], steps: int | None) -> list[CurvePoint]:
    """Return the points of a training of so many steps; None or 0: that is not known, so all.

    Others may lie behind them: of a longer budget that was cancelled, or of the trial whose result
    was reused, if it went on since.
    """
    return [point for point in points if not steps or point.step <= steps]


def write_line(point: CurvePoint) -> bytes:
    """Return the line of a point.

    Raises:
        ValueError: if a metric is not finite.
    """
    return add_checksum(json.dumps(asdict(point), allow_nan=False).encode()) + b"\n"


def add_checksum(content: bytes) -> bytes:
    r"""Return an object in JSON with its checksum as its last value.

    >>> add_checksum(b'{"step": 5}'), has_checksum(add_checksum(b'{"step": 5}'))
    (b'{"step": 5, "crc32": 1592480825}', True)
    """
    return b"%b%b%d}" % (content[:-1], CHECKSUM, zlib.crc32(content))


def has_checksum(content: bytes) -> bool | None:
    """Return whether the checksum in an object is right, None if there is none."""
    body, mark, crc = content.rpartition(CHECKSUM)
    return crc == b"%d}" % zlib.crc32(body + b"}") if mark else None


def read_line(line: bytes) -> CurvePoint:
    """Return the point of a curve's line.

    Raises:
        DamagedError: if it is not what was written.
    """
    point = read_if_whole(line)
    if point is None:
        raise DamagedError(f"a line of a curve is damaged: {line[:80]!r}")
    return point


def read_if_whole(line: bytes) -> CurvePoint | None:
    """Return the point of a curve's line, None if it is not what was written."""
    if has_checksum(line) is False:
        return None
    try:
        content = json.loads(line)
        content.pop("crc32", None)
        return CurvePoint(**content)
    except (ValueError, TypeError, AttributeError):
        return None


def thin(points: Sequence[T], most: int) -> list[T]:
    """Return `most` points at most, 2 or more: evenly spread, the first and the last among them.

    The distance is a power of two, so that curves of other lengths keep the same places.

    >>> thin(range(10), 4), thin(range(20), 4)
    ([0, 4, 8, 9], [0, 8, 16, 19])
    """
    least = -(-(len(points) - 1) // (most - 1))
    every = 1 << max(0, least - 1).bit_length()
    kept = list(points[::every])
    if (len(points) - 1) % every:
        kept.append(points[-1])
    return kept


def find_whole(curve: bytes, most: int) -> tuple[int, int, int]:
    """Return points and bytes of a curve before its first damaged line, and the last step there.

    Lines behind the first `most` do not count.
    """
    points = size = 0
    last = b""
    for line in curve.splitlines(keepends=True)[:most]:
        is_whole = has_checksum(line.rstrip(b"\n")) if line.endswith(b"\n") else False
        if is_whole is False or (is_whole is None and read_if_whole(line) is None):
            break
        points, size, last = points + 1, size + len(line), line
    return points, size, read_line(last.rstrip(b"\n")).step if last else -1
