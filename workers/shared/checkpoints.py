"""The store of checkpoints and curves: a killed trial goes on from it, and MLflow is sent from it.

It is made of files below a folder or in an object store (`files`), of the protocol by which an
attempt commits (`heads`), and of what attempts keep beside that (`kept_files`). A key is
`experiment/trial/seed`. torch is imported when needed: drivers read curves only.
"""

from __future__ import annotations

import io
import json
import logging
import re
import zlib
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Final, TypeVar

from eigensweep.workers.shared.curves import CurvePoint, read_if_whole, read_line
from eigensweep.workers.shared.durable_files import (
    DamagedError,
    StorageError,
    StoreAwayError,
)
from eigensweep.workers.shared.files import open_files
from eigensweep.workers.shared.heads import (
    Change,
    Checkpoint,
    Head,
    Heads,
    checkpoint_name,
)
from eigensweep.workers.shared.kept_files import KeptFiles, StateDict

logger = logging.getLogger(__name__)

T = TypeVar("T")

KEY: Final = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)*", re.ASCII)

PIECE: Final = 1024 * 1024
"""Bytes of a file that is read piece by piece."""

DAMAGED: Final = "checkpoint damaged, falling back path=%s step=%d"

DAMAGED_CURVE: Final = "damaged-curve.jsonl"
"""What is kept of a curve that an attempt has gone back behind."""


def trial_key(experiment: str, number: int) -> str:
    """Return the part of the store's keys that all replicates of a trial share."""
    return f"{experiment}/{number:05d}"


def replicate_key(experiment: str, number: int, seed: int) -> str:
    """Return the key under which the store keeps one replicate of a trial.

    >>> replicate_key("e7", 12, seed=3)
    'e7/00012/3'
    """
    return f"{trial_key(experiment, number)}/{seed}"


@dataclass(frozen=True)
class Snapshot:
    """What training goes on from, and the whole curve committed so far."""

    step: int
    state: StateDict
    points: list[CurvePoint]


@dataclass(frozen=True)
class Progress:
    """How far the commits of a key have come. It changes with each commit."""

    attempt: int
    """The highest attempt that has begun, 0 if none has."""
    commits: int
    step: int
    """Step of the newest checkpoint, -1 if there is none."""


@dataclass(frozen=True)
class StoredCheckpoint:
    """A committed checkpoint."""

    file: str
    step: int
    bytes: int


class Store:
    """Checkpoints and curves below a folder or a URL such as `s3://bucket/prefix`.

    Picklable; several processes may use it at once.
    """

    def __init__(self, place: Path | str) -> None:
        self.files = open_files(place)
        self.place = self.files.place
        """Where it is, for a person to read: a folder or a URL."""
        self.heads = Heads(self.files)
        self.kept = KeptFiles(self.files, self.heads)
        self._read: dict[str, tuple[int, int]] = {}
        """By key: points and bytes up to where a curve was read."""
        self._begun: dict[str, int] = {}
        """The attempts that began here, by key."""

    def begin(self, key: str, attempt: int) -> str | None:
        """Make `attempt` the only one that may commit at `key`.

        Where head or curve are damaged, go back behind that, and return what was damaged; what is
        damaged is kept aside.

        Raises:
            StaleAttemptError: if a higher attempt has begun.
            NewerStoreError: if a newer version has written there.
            StorageError: if it cannot be written.
        """
        told: list[str] = []

        def make(head: Head) -> Change:
            head.check_attempt(key, attempt)
            lines = self.heads.read_what_is_there(key, head)
            whole = head.go_back(lines)
            if whole is head:
                return Change(replace(head, attempt=attempt))
            told.append(f"the curve in {self.place}/{key}")
            if lines:
                self.files.write(f"{key}/{DAMAGED_CURVE}", lines)
            return Change(replace(whole, attempt=attempt), lines=lines[: whole.curve_bytes])

        after = self.heads.change(_check(key), make, told)
        self._begun[key] = attempt
        return _explain_damage(key, told, after)

    def attempt(self, key: str) -> int:
        """Return the highest attempt that has begun at `key`, 0 if none has."""
        return self.heads.read(_check(key)).attempt

    def progress(self, key: str, *, surely: bool = False) -> Progress:
        """Return how far the commits at `key` have come, by reading one small file.

        With `surely` a network's file system shows what other machines have written, and not what
        it remembers of it.
        """
        if surely:
            self.files.refresh(_check(key))
        head = self.heads.read(_check(key))
        step = head.checkpoints[0].step if head.checkpoints else -1
        return Progress(head.attempt, head.commits, step)

    def commit(
        self, key: str, attempt: int, step: int, state: StateDict, points: Iterable[CurvePoint]
    ) -> None:
        """Keep `state`, reached at `step`, and append `points` to the curve: both or neither.

        Points at steps that the curve already holds are left out: after a fallback to an older
        checkpoint they come a second time.

        Raises:
            StaleAttemptError: if a higher attempt has begun.
            StorageError: if it cannot be written, for instance because the disk is full.
            StoreAwayError: if the attempt began, and the store does not know of it any more.
            ValueError: if the attempt never began, or a metric is not finite.
        """
        content, points = pack(state), list(points)
        crc = zlib.crc32(content)

        def make(head: Head) -> Change:
            self._check_commit(key, head, attempt)
            checkpoint = Checkpoint(checkpoint_name(step, head.commits + 1), step, crc)
            after, lines = head.extend(attempt, checkpoint, points)
            return Change(after, {checkpoint.file: content}, lines)

        self.heads.change(_check(key), make)

    def newest(self, key: str) -> Snapshot | None:
        """Return the newest snapshot whose checkpoint is undamaged, None if there is none.

        Its points are the whole committed curve, even if the checkpoint is an older one: training
        makes the points between them again, and `commit` leaves them out.
        """
        import torch

        found = self._newest(key, self.read_checkpoint)
        if found is None:
            return None
        checkpoint, content = found
        state = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
        return Snapshot(checkpoint.step, state, self.points(key))

    def open_newest(self, key: str) -> IO[bytes] | None:
        """Open the newest undamaged checkpoint of `key`; None if there is none.

        It can be read to its end also if it is removed meanwhile, in a folder. None of it is kept.

        Raises:
            StorageError: if it cannot be read.
        """
        found = self._newest(key, self._open_whole)
        return None if found is None else found[1]

    def has_checkpoint(self, key: str) -> bool:
        """Return whether anything was committed at `key`; reads no checkpoint."""
        return bool(self.heads.read(_check(key)).checkpoints)

    def list_checkpoints(self, key: str) -> list[StoredCheckpoint]:
        """Return what the committed checkpoints of `key` are, the newest first."""
        found = []
        for checkpoint in self.heads.read(_check(key)).checkpoints:
            size = self.files.size(f"{key}/{checkpoint.file}")
            if size is not None:
                found.append(StoredCheckpoint(checkpoint.file, checkpoint.step, size))
        return found

    def points(self, key: str, since: int = 0) -> list[CurvePoint]:
        """Return the committed points of `key` from the index `since` on."""
        head = self.heads.read(_check(key))
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
        head = self.heads.read_whole(_check(key))
        lines = self.heads.read_what_is_there(key, head).splitlines()[since:]
        return [point for line in lines if (point := read_if_whole(line)) is not None]

    def forget(self, key: str) -> None:
        """Forget up to where the curve of `key` was read; it can be read again."""
        self._read.pop(key, None)

    def sample(self, key: str, metric: str, most: int) -> list[CurvePoint]:
        """Return about `most` committed points of `key` that hold `metric`: evenly spread, ends in.

        Only these points are parsed. Nothing committed gives no points.
        """
        head = self.heads.read(_check(key))
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

    def copy(self, donor_key: str, key: str) -> bool:
        """Give `key` the newest snapshot and curve of `donor_key`; return whether that was done.

        Nothing is done where the donor has no snapshot, or `key` has one already.
        """
        if self.has_checkpoint(key):
            return False
        try:
            snapshot = self.newest(donor_key)
        except DamagedError as error:  # the donor's trial is over: nobody goes back there
            logger.warning("not going on from a smaller budget: %s", error)
            return False
        if snapshot is None:
            return False
        attempt = self.attempt(key)
        self.commit(key, attempt, snapshot.step, snapshot.state, snapshot.points)
        return True

    def take_over(self, source_key: str, key: str, attempt: int, step: int) -> None:
        """Let `attempt` at `key` go on from the source's newest checkpoint, byte for byte.

        All of its own checkpoints go, and its curve stays. `step` names the takeover: a second call
        changes nothing, wherever source and `key` have come to since. Where the source has no
        undamaged checkpoint, `key` has none either, and both begin anew.

        Raises:
            StaleAttemptError: if a higher attempt has begun at `key`.
            StorageError: if it cannot be read or written.
        """
        name = f"{step} {source_key}"
        if self.heads.read_whole(_check(key)).taken_over == name:
            return
        found = self._newest(source_key, self.read_checkpoint)

        def make(head: Head) -> Change:
            head.check_attempt(key, attempt)
            after = replace(head, attempt=attempt, commits=head.commits + 1, taken_over=name)
            if found is None:
                return Change(replace(after, checkpoints=()))
            checkpoint, content = found
            file = checkpoint_name(checkpoint.step, after.commits)
            after = replace(after, checkpoints=(replace(checkpoint, file=file),))
            return Change(after, {file: content})

        self.heads.change(key, make, [])

    def _check_commit(self, key: str, head: Head, attempt: int) -> None:
        """Raise if an attempt may not commit at a key: it has a successor, or never began."""
        head.check_attempt(key, attempt)
        if head.attempt < attempt and self._begun.get(key) == attempt:
            raise StoreAwayError(
                f"{self.place}/{key} was emptied since attempt {attempt} began: another store, or "
                "an empty folder, stands where the store was"
            )
        if head.attempt < attempt:
            raise ValueError(f"attempt {attempt} of {key} commits before it began")

    def _newest(
        self, key: str, read: Callable[[str, Checkpoint], T | None]
    ) -> tuple[Checkpoint, T] | None:
        """Return the newest checkpoint of a key of which `read` finds something, and that."""
        head, seen = self.heads.read_whole(_check(key)), -1
        while head.number != seen:  # a newer head may have let a checkpoint go meanwhile
            for checkpoint in head.checkpoints:
                content = read(key, checkpoint)
                if content is not None:
                    return checkpoint, content
            head, seen = self.heads.read_whole(key), head.number
        return None

    def read_checkpoint(self, key: str, checkpoint: Checkpoint) -> bytes | None:
        """Return the content of a checkpoint, None if it is damaged or gone."""
        path = f"{key}/{checkpoint.file}"
        with suppress(FileNotFoundError):
            content = self.files.read(path)
            if zlib.crc32(content) == checkpoint.crc:
                return content
        logger.warning(DAMAGED, f"{self.place}/{path}", checkpoint.step)
        return None

    def _open_whole(self, key: str, checkpoint: Checkpoint) -> IO[bytes] | None:
        """Open a checkpoint that is undamaged; None if it is not."""
        path, crc = f"{key}/{checkpoint.file}", 0
        try:
            file = self.files.open(path)
            while piece := file.read(PIECE):
                crc = zlib.crc32(piece, crc)
            if crc == checkpoint.crc:
                return file
            file.close()
        except FileNotFoundError:
            pass
        except StorageError:
            raise
        except Exception as error:
            self.files.fail("read", path, error)
        logger.warning(DAMAGED, f"{self.place}/{path}", checkpoint.step)
        return None


def _check(key: str) -> str:
    """Return a key that leads to no other place."""
    if not KEY.fullmatch(key):
        raise ValueError(f"a key is names joined by slashes, such as e7/00012/0; got {key!r}")
    return key


def _explain_damage(key: str, told: Iterable[str], after: Head) -> str | None:
    """Return the words for a person about what an attempt has gone back behind; None: nothing."""
    told = list(dict.fromkeys(told))
    if not told:
        return None
    step = max((c.step for c in after.checkpoints), default=None)
    where = "from its start" if step is None else f"from the checkpoint of step {step}"
    words = (
        f"{key} goes on {where}, because something was damaged in the store: {'; '.join(told)}. "
        "Training makes the rest again, with the same numbers. What was damaged is kept there as "
        "damaged-*; look at the disk"
    )
    logger.warning("%s", words)
    return words


def pack(state: StateDict) -> bytes:
    """Return a state as the bytes of a checkpoint."""
    import torch

    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()
