"""The curves of the store, as who reports and delivers them reads them: committed points only."""

from __future__ import annotations

import json
from pathlib import Path

from eigensweep.store.commits.curves import CurvePoint, read_if_whole, read_line
from eigensweep.store.commits.store_part import StorePart, check_key
from eigensweep.store.places.durable_files import DamagedError


class StoredCurves(StorePart):
    """Reads curves, and goes on where it has read before."""

    def __init__(self, place: Path | str) -> None:
        super().__init__(place)
        self._read: dict[str, tuple[int, int]] = {}
        """By key: points and bytes up to where a curve was read."""

    def points(self, key: str, since: int = 0) -> list[CurvePoint]:
        """Return the committed points of `key` from the index `since` on."""
        head = self.heads.read(check_key(key))
        if since >= head.curve_points:
            return []
        index, offset = self._read.get(key, (0, 0))
        if since < index:
            index, offset = 0, 0
        try:
            lines = self.heads.read_curve(key, head, offset).splitlines()
            if len(lines) != head.curve_points - index:
                raise DamagedError(
                    f"the curve in {self.place}/{key} holds {index + len(lines)} points, "
                    f"and its head counts {head.curve_points}"
                )
            points = [read_line(line) for line in lines[since - index :]]
        except DamagedError:
            if offset == 0:
                raise
            self.forget(key)  # an attempt may have gone back, and its lines have other lengths
            return self.points(key, since)
        self._read[key] = (head.curve_points, head.curve_bytes)
        return points

    def whole_points(self, key: str, since: int = 0) -> list[CurvePoint]:
        """Return the same of a curve, or a head, that is damaged: what can still be read of it.

        For who reads of a trial that is over, so that no attempt goes back behind the damage.
        """
        head = self.heads.read_whole(check_key(key))
        lines = self.heads.read_what_is_there(key, head).splitlines()[since:]
        return [point for line in lines if (point := read_if_whole(line)) is not None]

    def forget(self, key: str) -> None:
        """Forget up to where the curve of `key` was read; it can be read again."""
        self._read.pop(key, None)

    def sample(self, key: str, metric: str, most: int) -> list[CurvePoint]:
        """Return about `most` committed points of `key` that hold `metric`: evenly spread, ends in.

        Only these points are parsed. Nothing committed gives no points.
        """
        head = self.heads.read(check_key(key))
        if not head.curve_points:
            return []
        lines = self.heads.read_curve(key, head).splitlines()
        name = json.dumps(metric).encode() + b":"
        having = [line for line in lines if name in line]
        every = max(1, -(-(len(having) - 1) // max(1, most - 1)))
        kept = having[::every]
        if having and kept[-1] is not having[-1]:
            kept.append(having[-1])
        return [point for line in kept if (point := read_if_whole(line)) is not None]
