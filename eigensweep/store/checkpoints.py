"""The store of checkpoints and curves: a killed trial goes on from it, and MLflow is sent from it.

It is made of files below a folder or in an object store (`places`), and of `commits`: the protocol
by which an attempt commits (`heads`), readers of curves and checkpoints, and what attempts keep
beside that (`kept_files`). A key is `experiment/trial/seed`. torch is imported when needed: drivers
read curves only.
"""

from __future__ import annotations

import io
import logging
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Final

from eigensweep.store.commits.curves import CurvePoint
from eigensweep.store.commits.head import Checkpoint, Head, checkpoint_name
from eigensweep.store.commits.heads import Change
from eigensweep.store.commits.kept_files import KeptFiles, StateDict
from eigensweep.store.commits.stored_commits import StoredCommits
from eigensweep.store.places.durable_files import DamagedError, StoreAwayError

logger = logging.getLogger(__name__)

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


class Store(StoredCommits):
    """Checkpoints and curves below a folder or a URL such as `s3://bucket/prefix`.

    Picklable; several processes may use it at once. What attempts commit goes through here.
    """

    def __init__(self, place: Path | str) -> None:
        super().__init__(place)
        self.kept = KeptFiles(self.files, self.heads)
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

        after = self.heads.change(key, make, told)
        self._begun[key] = attempt
        return _explain_damage(key, told, after)

    def attempt(self, key: str) -> int:
        """Return the highest attempt that has begun at `key`, 0 if none has."""
        return self.heads.read(key).attempt

    def progress(self, key: str, *, surely: bool = False) -> Progress:
        """Return how far the commits at `key` have come, by reading one small file.

        With `surely` a network's file system shows what other machines have written, and not what
        it remembers of it.
        """
        if surely:
            self.files.refresh(key)
        head = self.heads.read(key)
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

        self.heads.change(key, make)

    def newest(self, key: str, until: float = inf) -> Snapshot | None:
        """Return the newest snapshot whose checkpoint is undamaged, None if there is none.

        One of a step beyond `until` is passed over; only the last two are kept.

        Its points are the whole committed curve, even if the checkpoint is an older one: training
        makes the points between them again, and `commit` leaves them out.
        """
        import torch

        def read(key: str, checkpoint: Checkpoint) -> bytes | None:
            return self.read_checkpoint(key, checkpoint) if checkpoint.step <= until else None

        found = self.find_newest(key, read)
        if found is None:
            return None
        checkpoint, content = found
        state = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
        return Snapshot(checkpoint.step, state, self.points(key))

    def copy(
        self, donor_key: str, key: str, can_use: Callable[[StateDict], bool] = lambda state: True
    ) -> bool:
        """Give `key` the newest snapshot and curve of `donor_key`; return whether that was done.

        Its state then says how many of its seconds are the donor's. Nothing is done where the donor
        has no snapshot, or one that `can_use` refuses, or `key` has one already.
        """
        if self.has_checkpoint(key):
            return False
        try:
            snapshot = self.newest(donor_key)
        except DamagedError as error:  # the donor's trial is over: nobody goes back there
            logger.warning("not going on from a smaller budget: %s", error)
            return False
        if snapshot is None or not can_use(snapshot.state):
            return False
        attempt = self.attempt(key)
        state = {**snapshot.state, "reused_seconds": snapshot.state.get("seconds")}
        self.commit(key, attempt, snapshot.step, state, snapshot.points)
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
        if self.heads.read_whole(key).taken_over == name:
            return
        found = self.find_newest(source_key, self.read_checkpoint)

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
    """Return a state as the bytes of a file that `torch.load` reads."""
    import torch

    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()
