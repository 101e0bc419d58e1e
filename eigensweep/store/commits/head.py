"""What a head of the store says: which checkpoints and which parts of the curve count at a key.

Versions before 0.3 kept one `head.json` in a folder, and one file for the curve. It is read as a
head of number 0, whose curve has one part.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Final, Self

from eigensweep.protocol.ledger import StaleWriteError
from eigensweep.store.commits.curves import (
    CurvePoint,
    add_checksum,
    find_whole,
    has_checksum,
    write_line,
)
from eigensweep.store.places.durable_files import DamagedError, StoreAwayError

KEPT: Final = 2
"""Checkpoints kept for each key: the newest, and one to fall back to if the disk damages it."""

OLD_HEAD: Final = "head.json"
HEAD: Final = re.compile(r"head-(\d+)\.json")


class StaleAttemptError(StaleWriteError):
    """A later attempt has begun at this key: what this one would write is refused."""


class NewerStoreError(StoreAwayError):
    """A newer version of Eigensweep wrote this; it is left as it is, and no trial is to blame."""


@dataclass(frozen=True)
class Checkpoint:
    """A committed checkpoint."""

    file: str
    step: int
    crc: int
    points: int = -1
    """Points of the curve when it was committed; older versions did not say so."""


@dataclass(frozen=True)
class Part:
    """A part of a curve."""

    file: str
    bytes: int
    """Bytes of the file that count."""


@dataclass(frozen=True)
class Head:
    """What counts at a key."""

    attempt: int = 0
    commits: int = 0
    curve_bytes: int = 0
    curve_points: int = 0
    last_step: int = -1
    """Step of the curve's last point."""
    checkpoints: tuple[Checkpoint, ...] = ()
    """Newest first."""
    taken_over: str = ""
    """The last takeover: `STEP KEY` of what took the place of all checkpoints before it."""
    number: int = 0
    """0: there is no head yet, or an older version's."""
    maker: str = ""
    """Identifies the writer: after a lost answer it recognises its own head."""
    parts: tuple[Part, ...] = ()

    @classmethod
    def read(cls, content: bytes, place: str) -> Self:
        """Return the head that was written; `place` is for words.

        Raises:
            DamagedError: if it is not what was written.
            NewerStoreError: if a newer version has written it.
        """
        is_whole = has_checksum(content)
        try:
            found: dict[str, Any] = json.loads(content)
            unknown = {*found} - KNOWN
            unknown |= {name for each in found["checkpoints"] for name in each} - KNOWN_OF_EACH
            has_all = found.keys() >= NEEDED
        except (ValueError, TypeError, KeyError) as error:
            raise DamagedError(f"the head {place} is damaged: {error!r}") from error
        if unknown and (is_whole or has_all):
            raise NewerStoreError(
                f"{place} was written by a newer version of Eigensweep: this one does not know "
                f"{', '.join(map(repr, sorted(unknown)))}. Install the newer version again, on "
                "every node; nothing was changed"
            )
        try:
            if is_whole is False or not has_all:
                raise ValueError("its checksum or a part of it is wrong")
            return cls._build(found)
        except (ValueError, TypeError, KeyError) as error:
            raise DamagedError(f"the head {place} is damaged: {error}") from error

    @classmethod
    def _build(cls, found: dict[str, Any]) -> Self:
        made = {**found, "checkpoints": tuple(Checkpoint(**each) for each in found["checkpoints"])}
        curve, _ = made.pop("curve", "curve.jsonl"), made.pop("crc32", None)
        if (parts := found.get("parts")) is None:  # an older version's
            size = found["curve_bytes"]
            parts = [{"file": curve, "bytes": size}] if size else []
        made["parts"] = tuple(Part(**each) for each in parts)
        head = cls(**made)
        numbers = [head.attempt, head.commits, head.curve_bytes, head.curve_points]
        numbers += [number for c in head.checkpoints for number in (c.step, c.crc)]
        if not all(isinstance(number, int) and number >= 0 for number in numbers):
            raise ValueError(f"whole numbers from 0 on were expected; got {numbers}")
        return head

    def write(self) -> bytes:
        """Return it as it is stored."""
        return add_checksum(json.dumps(asdict(self)).encode())

    @property
    def file(self) -> str:
        """The name of its file."""
        return f"head-{self.number:09d}.json" if self.number else OLD_HEAD

    @property
    def files(self) -> set[str]:
        """The names of all files that it names."""
        return {*(c.file for c in self.checkpoints), *(p.file for p in self.parts)}

    def check_attempt(self, key: str, attempt: int) -> None:
        """Raise StaleAttemptError if a higher attempt has begun."""
        if self.attempt > attempt:
            raise StaleAttemptError(f"attempt {attempt} of {key} has a successor, {self.attempt}")

    def extend(
        self, attempt: int, checkpoint: Checkpoint, points: Iterable[CurvePoint]
    ) -> tuple[Self, bytes]:
        """Return the head after a commit, and the lines that it appends to the curve.

        Raises:
            ValueError: if a metric is not finite.
        """
        fresh = [p for p in points if p.step > self.last_step]
        lines = b"".join(map(write_line, fresh))
        older = [c for c in self.checkpoints if c.step < checkpoint.step][: KEPT - 1]
        count = self.curve_points + len(fresh)
        after = replace(
            self,
            attempt=attempt,
            commits=self.commits + 1,
            curve_bytes=self.curve_bytes + len(lines),
            curve_points=count,
            last_step=fresh[-1].step if fresh else self.last_step,
            checkpoints=(replace(checkpoint, points=count), *older),
        )
        return after, lines

    def go_back(self, curve: bytes) -> Self:
        """Return the head itself, or where the bytes of its curve are damaged one that ends before.

        That one names no part of the curve, and no checkpoint that needs a point behind its end.
        """
        points, size, step = find_whole(curve[: self.curve_bytes], self.curve_points)
        if (points, size) == (self.curve_points, self.curve_bytes):
            return self
        kept = [
            each
            for each in self.checkpoints
            if (each.points <= points if each.points >= 0 else each.step <= step)
        ]
        return replace(
            self,
            curve_points=points,
            curve_bytes=size,
            last_step=step,
            checkpoints=tuple(kept),
            parts=(),
        )


NEEDED: Final = frozenset({"attempt", "commits", "curve_bytes"})
KNOWN: Final = frozenset({*(each.name for each in fields(Head)), "crc32", "curve"})
KNOWN_OF_EACH: Final = frozenset(each.name for each in fields(Checkpoint))
"""What a head must have, what it may have, and what each of its checkpoints may have."""


def checkpoint_name(step: int, commit: int) -> str:
    """Return a name that is never used for two states."""
    return f"step-{step:09d}-{commit}-{secrets.token_hex(4)}.pt"
