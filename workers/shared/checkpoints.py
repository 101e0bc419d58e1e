"""The store of checkpoints and curves: a killed trial goes on from it, and MLflow is sent from it.

One folder for each key, which is `experiment/trial/seed`:

    curve-2.jsonl   one line a point; the second attempt appends to it
    step-*-2.pt     checkpoints of the second attempt; the newest two count
    best.pt         the weights of the best evaluation, written at the end
    head.json       replaced last and in one act: the only commit point
    attempt-2.tmp   what the second attempt replaces a file by
    lock            held for as long as somebody changes the folder
    damaged-*       what an attempt found damaged when it began, the last of each kind

`head.json` names the checkpoints and how much of which curve counts. What is beyond that was never
committed and is written over. So a process may die at any byte: the checkpoint and the points that
belong to it appear together or not at all. torch is imported when needed: drivers read curves only.

A head and each line of a curve carry a checksum of their own, a checkpoint has its in the head. An
attempt that begins goes back behind what is damaged: to the points before the first damaged line,
to a checkpoint that needs no others, or to the start. Training makes the rest again, bit for bit.

A lock is not enough. A network's file system takes it from a node that is cut off for long, and a
process there may stand still between any two lines. So each attempt writes to files of its own
alone, and to a file that both have only by replacing it: it makes its `attempt-N.tmp`, then looks
whether a later attempt has begun, and then moves that file into place. An attempt that begins
replaces the head first and removes the `.tmp` of all earlier ones then, also of those that another
attempt was to remove and died. One that was made before can no longer be moved, and whoever makes
one later finds the successor. If an earlier attempt had moved its own in between, the head shows
it, and the later attempt begins once more. This asks of a file system that a name is made, moved
and removed in one act, and that a list shows the names that were made before it.
"""

from __future__ import annotations

import io
import json
import logging
import os
import re
import shutil
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import IO, Any, Final, Literal, Protocol, Self, TypeVar

from eigensweep.workers.shared.durable_files import (
    DamagedError,
    Draft,
    StorageError,
    StoreAwayError,
    hold_lock,
    make_folder,
    open_draft,
    storage_error,
    sync_folder,
    write_from,
    write_whole,
)
from eigensweep.workers.shared.ledger import StaleWriteError
from eigensweep.workers.shared.messages import Metrics

logger = logging.getLogger(__name__)

Keep = Literal["last", "best", "none"]
"""What stays of a trial that is over: see `Store.thin_out`."""

STRICTNESS: Final[dict[Keep | None, int]] = {None: 0, "last": 1, "best": 2, "none": 3}
"""How much a rule removes, compared with others; None stands for no rule."""


def stricter(rule: Keep, other: Keep | None) -> Keep:
    """Return the rule that removes more.

    >>> stricter("best", "last"), stricter("last", None)
    ('best', 'last')
    """
    return rule if other is None or STRICTNESS[rule] >= STRICTNESS[other] else other


KEPT = 2
"""Checkpoints kept for each key: the newest, and one to fall back to if the disk damages it."""

BEST = "best.pt"
"""The file with the weights of the best evaluation."""

PIECE: Final = 1024 * 1024
"""Bytes of a file that is read piece by piece."""

DAMAGED: Final = "checkpoint damaged, falling back path=%s step=%d"

STEP_FILE = re.compile(r"step-(?P<step>\d+)-(?P<commit>\d+)(?:-\d+)?\.pt")
CURVE_FILE = re.compile(r"curve(?:-\d+)?\.jsonl")
OWN_FILE = re.compile(r"(?:step-\d+-\d+|curve|attempt)-(\d+)\.(?:pt|pt\.tmp|jsonl|jsonl\.tmp|tmp)")
"""Files that one attempt alone writes, with its number; older versions gave no number."""

DAMAGED_HEAD, DAMAGED_CURVE = "damaged-head.json", "damaged-curve.jsonl"
"""What is kept of a head, and of a curve, that an attempt has gone back behind."""

CHECKSUM: Final = b', "crc32": '
"""Stands before the last value of a head and of a curve's line: the CRC-32 of all before it. What
older versions wrote has none."""

StateDict = dict[str, Any]
"""What training goes on from: nested dicts, lists and tuples of tensors and plain values."""


def trial_key(experiment: str, number: int) -> str:
    """Return the part of the store's keys that all replicates of a trial share."""
    return f"{experiment}/{number:05d}"


def replicate_key(experiment: str, number: int, seed: int) -> str:
    """Return the key under which the store keeps one replicate of a trial.

    >>> replicate_key("e7", 12, seed=3)
    'e7/00012/3'
    """
    return f"{trial_key(experiment, number)}/{seed}"


class Mark(Protocol):
    """A file of the store whose presence says something; a `Path` is one."""

    def exists(self) -> bool:
        """Return whether it is there."""

    def touch(self) -> None:
        """Make it."""

    def unlink(self, missing_ok: bool = False) -> None:
        """Remove it."""


def cancel_mark(storage: str | Path, experiment: str) -> Mark:
    """Return the file whose presence tells the trials of an experiment to stop."""
    return _mark(storage, experiment, "cancelled")


def pause_mark(storage: str | Path, experiment: str) -> Mark:
    """Return the file whose presence tells the trials of an experiment to commit and to leave."""
    return _mark(storage, experiment, "paused")


def leave_mark(storage: str | Path, experiment: str, number: int, attempt: int) -> Mark:
    """Return the file whose presence tells one attempt to commit and to leave: its node drains."""
    return _mark(storage, experiment, f"leave-{number}-{attempt}")


def _mark(storage: str | Path, experiment: str, name: str) -> Mark:
    if not is_url(storage):
        return Path(storage) / experiment / name
    from eigensweep.workers.shared.object_store import ObjectMark

    return ObjectMark(str(storage), f"{experiment}/{name}")


class StaleAttemptError(StaleWriteError):
    """A later attempt has begun at this key: what this one would write is refused."""


class NewerStoreError(StoreAwayError):
    """A newer version of Eigensweep wrote this; it is left as it is, and no trial is to blame."""


@dataclass(frozen=True)
class CurvePoint:
    """The metrics of one step, finite numbers only, and when they were taken."""

    step: int
    metrics: Metrics
    timestamp_ms: int


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


@dataclass(frozen=True)
class _Checkpoint:
    file: str
    step: int
    crc: int
    points: int = -1
    """Points of the curve when it was committed; older versions did not say so."""


@dataclass(frozen=True)
class _Head:
    attempt: int = 0
    commits: int = 0
    curve: str = "curve.jsonl"
    """The curve's file, which the attempt alone appends to; older versions had one for all."""
    curve_bytes: int = 0
    curve_points: int = 0
    last_step: int = -1
    """Step of the curve's last point."""
    checkpoints: tuple[_Checkpoint, ...] = ()
    """Newest first."""
    taken_over: str = ""
    """The last takeover: `STEP KEY` of what took the place of all checkpoints before it."""

    @classmethod
    def read(cls, found: dict[str, Any]) -> Self:
        """Return the head whose values were found.

        Raises:
            ValueError, TypeError, KeyError: if they are not a head's.
        """
        head = cls(**found | {"checkpoints": tuple(_Checkpoint(**c) for c in found["checkpoints"])})
        numbers = [head.attempt, head.commits, head.curve_bytes, head.curve_points]
        numbers += [number for c in head.checkpoints for number in (c.step, c.crc)]
        if not all(isinstance(number, int) and number >= 0 for number in numbers):
            raise ValueError(f"whole numbers from 0 on were expected; got {numbers}")
        return head


H = TypeVar("H", bound=_Head)
T = TypeVar("T")


class Store:
    """Checkpoints and curves below one folder. Picklable; several processes may use it at once."""

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root)
        self.place = str(root)
        """Where it is, for a person to read: a folder or a URL."""
        self._read: dict[str, tuple[int, int]] = {}
        self._begun: dict[str, int] = {}
        """The attempts that began here, by key."""

    def begin(self, key: str, attempt: int) -> str | None:
        """Make `attempt` the only one that may commit at `key`.

        Where head or curve are damaged, go back behind that, and return what was damaged; what is
        damaged is kept aside.

        Raises:
            StaleAttemptError: if a higher attempt has begun.
            NewerStoreError: if a newer version has written there.
            StorageError: if the folder cannot be written.
        """
        damage = self._enter(key, attempt, lambda head: head)
        self._begun[key] = attempt
        return damage

    def attempt(self, key: str) -> int:
        """Return the highest attempt that has begun at `key`, 0 if none has."""
        return self._head(self._folder(key)).attempt

    def progress(self, key: str, *, surely: bool = False) -> Progress:
        """Return how far the commits at `key` have come, by reading one small file.

        With `surely` the folder's lock is taken: a network's file system then shows what other
        machines have written, and not what it remembers of it.
        """
        folder = self._folder(key)
        with hold_lock(folder) if surely else nullcontext():
            head = self._head(folder)
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
        folder = self._folder(key)
        content = pack(state)
        with self._turn(key, attempt) as (head, draft):
            self._check_commit(key, head, attempt)
            file = _checkpoint_name(step, head.commits + 1, attempt)
            checkpoint = _Checkpoint(file, step, zlib.crc32(content))
            after, lines = extend(head, attempt, checkpoint, points)
            try:
                if lines:
                    write_from(folder / head.curve, head.curve_bytes, lines)
                write_whole(folder / file, content)
                self._replace_head(folder, after, draft)
            except StorageError:
                self._clean(folder, head)
                raise
            self._clean(folder, after)

    def newest(self, key: str) -> Snapshot | None:
        """Return the newest snapshot whose checkpoint is undamaged, None if there is none.

        Its points are the whole committed curve, even if the checkpoint is an older one: training
        makes the points between them again, and `commit` leaves them out.
        """
        import torch

        folder = self._folder(key)
        if not self._head(folder).checkpoints:
            return None
        found = self._newest(folder, self._content)
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
        found = self._newest(self._folder(key), self._open_whole)
        return None if found is None else found[1]

    def best(self, key: str) -> StateDict | None:
        """Return what was kept of the best evaluation: `step`, `value`, `weights`; None: nothing.

        Raises:
            StorageError: if it cannot be read.
        """
        import torch

        try:
            content = self.read_kept(key, BEST)
        except FileNotFoundError:
            return None
        found: StateDict = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
        return found

    def has_best(self, key: str) -> bool:
        """Return whether the weights of the best evaluation were kept; reads none."""
        return self._size(self._folder(key) / BEST) is not None

    def has_checkpoint(self, key: str) -> bool:
        """Return whether anything was committed at `key`; reads no checkpoint."""
        return bool(self._head(self._folder(key)).checkpoints)

    def points(self, key: str, since: int = 0) -> list[CurvePoint]:
        """Return the committed points of `key` from the index `since` on."""
        folder = self._folder(key)
        head = self._head(folder)
        if since >= head.curve_points:
            return []
        index, offset = self._read.get(key, (0, 0))
        if since < index:
            index, offset = 0, 0
        try:
            lines = self._read_curve(folder, head, offset).splitlines()
            if len(lines) != head.curve_points - index:
                raise DamagedError(
                    f"the curve in {folder} holds {index + len(lines)} points, "
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
        folder = self._folder(key)
        head, _ = self._see(folder)
        lines = self._read_what_is_there(folder, head).splitlines()[since:]
        return [point for line in lines if (point := _read_if_whole(line)) is not None]

    def forget(self, key: str) -> None:
        """Forget up to where the curve of `key` was read; it can be read again."""
        self._read.pop(key, None)

    def sample(self, key: str, metric: str, most: int) -> list[CurvePoint]:
        """Return about `most` committed points of `key` that hold `metric`: evenly spread, ends in.

        Only these points are parsed. Nothing committed gives no points.
        """
        folder = self._folder(key)
        head = self._head(folder)
        if not head.curve_points:
            return []
        lines = self._read_curve(folder, head, 0).splitlines()
        name = json.dumps(metric).encode() + b":"
        having = [line for line in lines if name in line]
        every = max(1, -(-(len(having) - 1) // max(1, most - 1)))
        kept = having[::every]
        if having and kept[-1] is not having[-1]:
            kept.append(having[-1])
        return [point for line in kept if (point := _read_if_whole(line)) is not None]

    def list_checkpoints(self, key: str) -> list[StoredCheckpoint]:
        """Return what the committed checkpoints of `key` are, the newest first."""
        folder = self._folder(key)
        found = []
        for checkpoint in self._head(folder).checkpoints:
            size = self._size(folder / checkpoint.file)
            if size is not None:
                found.append(StoredCheckpoint(checkpoint.file, checkpoint.step, size))
        return found

    def copy(self, donor_key: str, key: str) -> bool:
        """Give `key` the newest snapshot and curve of `donor_key`; return whether that was done.

        Nothing is done where the donor has no snapshot, or `key` has one already.
        """
        if self._head(self._folder(key)).checkpoints:
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

    def copy_out(self, key: str, target: Path, attempt: int) -> tuple[str, int] | None:
        """Copy what is committed at `key` into an empty folder; return the curve's name and bytes.

        On the same disk files are linked, since none of them is ever written over; of the curve,
        which grows, only so many bytes count. If a later attempt than `attempt` has begun, the
        copy's head does not know of it. None: nothing was begun there.

        Raises:
            StorageError: if it cannot be read.
            OSError: if the copy cannot be written.
        """
        folder = self._folder(key)
        with hold_lock(folder):
            head = self._head(folder)
            if head.attempt == 0:
                return None
            spectra = [f"{path.parent.name}/{path.name}" for path in folder.glob("*/*.json")]
            named = [checkpoint.file for checkpoint in head.checkpoints]
            for name in (head.curve, BEST, *named, *spectra):
                if (folder / name).exists():
                    _link_or_copy(folder / name, target / name)
        known = replace(head, attempt=min(head.attempt, attempt))
        with open_draft(target / _draft_name(known.attempt), target) as draft:
            self._replace_head(target, known, draft)
        return head.curve, head.curve_bytes

    def take_over(self, source_key: str, key: str, attempt: int, step: int) -> None:
        """Let `attempt` at `key` go on from the source's newest checkpoint, byte for byte.

        All of its own checkpoints go, and its curve stays. `step` names the takeover: a second call
        changes nothing, wherever source and `key` have come to since. Where the source has no
        undamaged checkpoint, `key` has none either, and both begin anew.

        Raises:
            StaleAttemptError: if a higher attempt has begun at `key`.
            StorageError: if it cannot be read or written.
        """
        name, folder, source = f"{step} {source_key}", self._folder(key), self._folder(source_key)
        if self._see(folder)[0].taken_over == name:
            return
        found = self._newest(source, self._content)

        def change(head: _Head) -> _Head:
            after = replace(head, commits=head.commits + 1, checkpoints=(), taken_over=name)
            if found is None:
                return after
            checkpoint, content = found
            file = _checkpoint_name(checkpoint.step, after.commits, attempt)
            write_whole(folder / file, content)
            return replace(after, checkpoints=(replace(checkpoint, file=file),))

        self._enter(key, attempt, change)

    def thin_out(self, trial: str, keep: Keep, attempt: int, *, only_measure: bool = False) -> int:
        """Remove checkpoints of a trial that is over; return how many bytes that frees.

        `trial` is a `trial_key`. Of each replicate `last` leaves the newest undamaged checkpoint
        and the best weights; `best` leaves the best weights, and where there are none the newest
        checkpoint; `none` leaves neither. Curves stay. A replicate at which a later attempt than
        `attempt` has begun is left as it is. A process may die at any byte: what is left then is
        whole, and the next call removes the rest.

        Raises:
            StorageError: if it cannot be read or written.
        """
        freed = 0
        for head in sorted(self._folder(trial).glob("*/head.json")):
            key = f"{trial}/{head.parent.name}"
            if only_measure:
                with _leaving_damage(key):
                    freed += self._find_removable(head.parent, keep, attempt, checked=False)[1]
                continue
            with _leaving_damage(key), self._turn(key, attempt) as (now, draft):
                kept, size, gone = self._find_removable(head.parent, keep, attempt, checked=True)
                if gone:  # also where it stays the same: a later attempt may have begun
                    self._replace_head(head.parent, replace(now, checkpoints=kept), draft)
                for path in gone:
                    _remove(path)
                freed += size
        return freed

    def _find_removable(
        self, folder: Path, keep: Keep, attempt: int, *, checked: bool
    ) -> tuple[tuple[_Checkpoint, ...], int, list[Path]]:
        """Return which checkpoints stay, and the size and the paths of what goes."""
        head, best = self._head(folder), folder / BEST
        if head.attempt > attempt:
            return head.checkpoints, 0, []
        kept = self._choose_kept(folder, head, keep, has_best=best.exists(), checked=checked)
        names = {checkpoint.file for checkpoint in kept}
        files = [path for path in folder.glob("step-*.pt") if _maker(path.name) <= attempt]
        gone = [path for path in files if path.name not in names]
        if keep == "none" and best.exists():
            gone.append(best)
        size = 0
        for path in gone:
            with suppress(FileNotFoundError):
                size += path.stat().st_size
        return kept, size, gone

    def _choose_kept(
        self, folder: Path, head: _Head, keep: Keep, *, has_best: bool, checked: bool
    ) -> tuple[_Checkpoint, ...]:
        """Return which checkpoints a rule leaves; with `checked` one that is undamaged."""
        if keep == "none" or (keep == "best" and has_best):
            return ()
        if not checked:
            return head.checkpoints[:1]
        whole = (c for c in head.checkpoints if self._content(folder, c) is not None)
        return next(((c,) for c in whole), head.checkpoints)

    def read_file(self, path: str) -> bytes:
        """Return the content of a file that is no checkpoint; `path` is relative to the store.

        Raises:
            FileNotFoundError: if there is none.
            StorageError: if it cannot be read.
        """
        try:
            return (self.root / path).read_bytes()
        except FileNotFoundError:
            raise
        except OSError as error:
            raise storage_error("read", self.root / path, error) from error

    def write_file(self, path: str, content: bytes) -> None:
        """Write such a file whole or not at all; folders above it are made.

        Raises:
            StorageError: if it cannot be written.
        """
        place = self.root / path
        make_folder(place.parent)
        write_whole(place, content)

    def keep_file(self, key: str, attempt: int, name: str, content: bytes) -> None:
        """Write a file beside the checkpoints of a key, as `write_file` does.

        `name` may have a folder before it, such as `spectra/000000050.json`.

        Raises:
            StaleAttemptError: if a higher attempt has begun.
            StorageError: if it cannot be written.
        """
        place = self._folder(key) / name
        with self._turn(key, attempt) as (_, draft):
            make_folder(place.parent)
            draft.replace(place, content)

    def read_kept(self, key: str, name: str) -> bytes:
        """Return the content of a file that `keep_file` wrote; of several attempts the last one's.

        Raises:
            FileNotFoundError: if there is none.
            StorageError: if it cannot be read.
        """
        return self.read_file(self._kept_file(key, name))

    def open_kept(self, key: str, name: str) -> IO[bytes]:
        """Open the same file, for who reads it piece by piece.

        Raises:
            FileNotFoundError: if there is none.
            StorageError: if it cannot be read.
        """
        return self._open(self.root / self._kept_file(key, name))

    def kept_path(self, key: str, name: str, scratch: Path) -> Path:
        """Return where a file lies that `keep_file` wrote; one of an object store in `scratch`.

        Raises:
            FileNotFoundError: if there is none.
            StorageError: if it cannot be read, or written into `scratch`.
        """
        path = self._folder(key) / name
        if self._size(path) is None:
            raise FileNotFoundError(path)
        return path

    def kept_names(self, key: str, folder: str) -> list[str]:
        """Return the names of what `keep_file` wrote into a folder of a key, sorted.

        Raises:
            StorageError: if it cannot be read.
        """
        return self.file_names(f"{key}/{folder}")

    def file_names(self, folder: str) -> list[str]:
        """Return the names of what lies in a folder, sorted; none if there is no such folder.

        Raises:
            StorageError: if it cannot be read.
        """
        try:
            return sorted(os.listdir(self.root / folder))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise storage_error("read", self.root / folder, error) from error

    def remove_file(self, path: str) -> None:
        """Remove such a file, if it is there.

        Raises:
            StorageError: if it cannot be removed.
        """
        _remove(self.root / path)

    def remove_all(self, folder: str) -> None:
        """Remove a folder with all that is in it, if it is there.

        Raises:
            StorageError: if it cannot be removed.
        """
        try:
            shutil.rmtree(self.root / folder)
        except FileNotFoundError:
            return
        except OSError as error:
            raise storage_error("remove", self.root / folder, error) from error

    @contextmanager
    def _turn(
        self, key: str, attempt: int, told: list[str] | None = None
    ) -> Iterator[tuple[_Head, Draft]]:
        """Let an attempt change a key: give the head, and the draft by which it replaces a file.

        Where the head is damaged, and `told` is given, that is told there, and what the files
        themselves say is given in its place.

        Raises:
            StaleAttemptError: if a higher attempt has begun, be it meanwhile.
            StorageError: if it cannot be locked, read or written.
        """
        folder = self._folder(key)
        with hold_lock(folder), open_draft(folder / _draft_name(attempt), folder) as draft:
            if told is None:
                head = self._head(folder)  # only now, see above
            else:
                head, damage = self._see(folder)
                if damage:
                    told.append(damage)
                    write_whole(folder / DAMAGED_HEAD, (folder / "head.json").read_bytes())
            check_attempt(key, head, attempt)
            try:
                yield head, draft
            except StorageError:
                with suppress(StorageError):
                    check_attempt(key, self._head(folder), attempt)
                raise

    def _enter(self, key: str, attempt: int, change: Callable[[_Head], _Head]) -> str | None:
        """Replace the head by what `change` makes of it, and shut all earlier attempts out.

        Return what was damaged; `change` is given what is whole.
        """
        folder, is_in, told = self._folder(key), False, list[str]()
        while not is_in:
            with self._turn(key, attempt, told) as (head, draft):
                after = change(self._take_curve(folder, head, attempt, told))
                self._replace_head(folder, after, draft)
                _remove_drafts(folder, range(min(head.attempt, attempt - 1), attempt))
                is_in = self._head(folder) == after  # else one of them came first
                if is_in:
                    self._clean(folder, after)
        return explain_damage(key, told, after)

    def _take_curve(self, folder: Path, head: _Head, attempt: int, told: list[str]) -> _Head:
        """Return the head of an attempt that begins, with a curve of its own: a copy."""
        lines = self._read_what_is_there(folder, head)
        whole = go_back(head, lines)
        if whole is not head:
            told.append(f"the curve {folder / head.curve}")
            if lines:
                write_whole(folder / DAMAGED_CURVE, lines)
        curve = whole.curve if whole.attempt == attempt else f"curve-{attempt}.jsonl"
        if whole.curve_bytes and curve != whole.curve:
            write_whole(folder / curve, lines[: whole.curve_bytes])
        return replace(whole, attempt=attempt, curve=curve)

    def _see(self, folder: Path) -> tuple[_Head, str]:
        """Return the head; where it is damaged, one made of the files, and what is damaged."""
        try:
            return self._head(folder), ""
        except DamagedError as error:
            return self._rebuild_head(folder), str(error)

    def _rebuild_head(self, folder: Path) -> _Head:
        """Return a head of what the files themselves say, as far as they are whole.

        An attempt writes lines before the checkpoint that needs them, so its own checkpoints have
        theirs. Of an earlier attempt's nobody knows, unless the curve has gone beyond them.
        """
        names = sorted(path.name for path in folder.iterdir())
        curve = max((name for name in names if CURVE_FILE.fullmatch(name)), key=_maker, default="")
        lines = (folder / curve).read_bytes() if curve else b""
        lines = lines[: lines.rfind(b"\n") + 1]  # the last one was being written
        count = lines.count(b"\n")
        found: list[tuple[int, int, _Checkpoint]] = []
        for name in names:
            made = STEP_FILE.fullmatch(name)
            if made and (content := _read_if_zip(folder / name)) is not None:
                points = count if _maker(name) == _maker(curve) else -1
                step, commit = int(made["step"]), int(made["commit"])
                checkpoint = _Checkpoint(name, step, zlib.crc32(content), points)
                found.append((step, commit, checkpoint))
        found.sort(key=lambda each: each[:2], reverse=True)
        head = _Head(
            attempt=_maker(curve),
            commits=max((commit for _, commit, _ in found), default=0),
            curve=curve or _Head.curve,
            curve_bytes=len(lines),
            curve_points=count,
            checkpoints=tuple(checkpoint for *_, checkpoint in found),
        )
        # The curve is left as it is: who begins goes back behind what is damaged there.
        whole = cut(head, *find_whole(head, lines))
        return replace(whole, curve_points=count, curve_bytes=len(lines))

    def _read_what_is_there(self, folder: Path, head: _Head) -> bytes:
        """Return the committed bytes of a curve, or fewer, if some are missing."""
        if not head.curve_bytes:
            return b""
        try:
            return self._read_curve(folder, head, 0)
        except DamagedError:
            return b""

    def _check_commit(self, key: str, head: _Head, attempt: int) -> None:
        """Raise if an attempt may not commit at a key: it has a successor, or never began."""
        check_attempt(key, head, attempt)
        if head.attempt < attempt and self._begun.get(key) == attempt:
            raise StoreAwayError(
                f"{self.root / key} was emptied since attempt {attempt} began: another store, or "
                "an empty folder, stands where the store was"
            )
        if head.attempt < attempt:
            raise ValueError(f"attempt {attempt} of {key} commits before it began")

    def _read_curve(self, folder: Path, head: _Head, offset: int) -> bytes:
        """Return what is committed of a curve from byte `offset` on."""
        try:
            with open(folder / head.curve, "rb") as file:
                file.seek(offset)
                return file.read(head.curve_bytes - offset)
        except OSError as error:
            newer = self._head(folder)
            if newer.curve == head.curve and isinstance(error, FileNotFoundError):
                raise DamagedError(f"the curve {folder / head.curve} is gone") from error
            if newer.curve == head.curve:
                raise storage_error("read", folder / head.curve, error) from error
            # An attempt has begun since, and has a copy.
            return self._read_curve(folder, replace(newer, curve_bytes=head.curve_bytes), offset)

    def _size(self, path: Path) -> int | None:
        """Return the bytes of a file, None if there is none."""
        try:
            return path.stat().st_size
        except FileNotFoundError:
            return None

    def _newest(
        self, folder: Path, read: Callable[[Path, _Checkpoint], T | None]
    ) -> tuple[_Checkpoint, T] | None:
        """Return the newest checkpoint of a folder of which `read` finds something, and that."""
        with hold_lock(folder):
            for checkpoint in self._see(folder)[0].checkpoints:
                content = read(folder, checkpoint)
                if content is not None:
                    return checkpoint, content
        return None

    def _kept_file(self, key: str, name: str) -> str:
        """Return the path in the store of a file that `keep_file` wrote."""
        return f"{key}/{name}"

    def _open(self, path: Path) -> IO[bytes]:
        try:
            return path.open("rb")
        except FileNotFoundError:
            raise
        except OSError as error:
            raise storage_error("read", path, error) from error

    def _open_whole(self, folder: Path, checkpoint: _Checkpoint) -> IO[bytes] | None:
        """Open a checkpoint that is undamaged; None if it is not."""
        path, crc = folder / checkpoint.file, 0
        try:
            file = self._open(path)
            while piece := file.read(PIECE):
                crc = zlib.crc32(piece, crc)
            if crc == checkpoint.crc:
                return file
            file.close()
        except FileNotFoundError:
            pass
        except OSError as error:
            raise storage_error("read", path, error) from error
        logger.warning(DAMAGED, path, checkpoint.step)
        return None

    def _folder(self, key: str) -> Path:
        if not re.fullmatch(r"[\w-][\w.-]*(/[\w-][\w.-]*)*", key, re.ASCII):
            raise ValueError(f"a key is names joined by slashes, such as e7/00012/0; got {key!r}")
        return self.root / key

    def _head(self, folder: Path) -> _Head:
        path = folder / "head.json"
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return _Head()
        except OSError as error:
            raise storage_error("read", path, error) from error
        return read_head(_Head, content, str(path))

    def _replace_head(self, folder: Path, head: _Head, draft: Draft) -> None:
        draft.replace(folder / "head.json", write_head(head))
        sync_folder(folder)

    def _content(self, folder: Path, checkpoint: _Checkpoint) -> bytes | None:
        path = folder / checkpoint.file
        try:
            content = path.read_bytes()
            if zlib.crc32(content) == checkpoint.crc:
                return content
        except FileNotFoundError:
            pass
        except OSError as error:
            raise storage_error("read", path, error) from error
        logger.warning(DAMAGED, path, checkpoint.step)
        return None

    def _clean(self, folder: Path, head: _Head) -> None:
        """Remove what `head` does not name. If that fails, the next commit does it.

        Nothing of a later attempt is touched.
        """
        named = {head.curve, *(c.file for c in head.checkpoints)}
        with suppress(OSError):
            curve = folder / head.curve
            if curve.exists() and curve.stat().st_size > head.curve_bytes:
                os.truncate(curve, head.curve_bytes)
            for kind in ("step-*.pt", "curve*.jsonl", "*.tmp"):
                for path in folder.glob(kind):
                    if path.name not in named and _maker(path.name) <= head.attempt:
                        path.unlink(missing_ok=True)


def open_store(place: str | Path) -> Store:
    """Return the store in a folder, or in an object store where `place` is a URL."""
    if not is_url(place):
        return Store(place)
    from eigensweep.workers.shared.object_store import ObjectStore

    return ObjectStore(str(place))


def is_url(place: str | Path) -> bool:
    """Tell whether a store's place is a URL, such as `s3://bucket/prefix`, and no folder.

    >>> is_url("s3://lab/sweeps"), is_url("/srv/storage")
    (True, False)
    """
    return "://" in str(place)


def _checkpoint_name(step: int, commit: int, attempt: int) -> str:
    """Return a name that is never used for two states."""
    return f"step-{step:09d}-{commit}-{attempt}.pt"


def _draft_name(attempt: int) -> str:
    return f"attempt-{attempt}.tmp"


def _remove_drafts(folder: Path, attempts: range) -> None:
    """Remove the drafts of these attempts, and those of earlier ones that lie there still.

    Whoever was to remove the latter may have been killed before.
    """
    lying = {p.name for p in folder.glob("attempt-*.tmp") if _maker(p.name) < attempts.stop}
    for name in sorted(lying | {_draft_name(attempt) for attempt in attempts}):
        _remove(folder / name)


def _maker(name: str) -> int:
    """Return the attempt that alone writes a file of this name, 0 if the name does not say."""
    found = OWN_FILE.fullmatch(name)
    return int(found[1]) if found else 0


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise storage_error("remove", path, error) from error


def _link_or_copy(source: Path, target: Path) -> None:
    target.parent.mkdir(exist_ok=True)
    try:
        os.link(source, target)
    except OSError:  # a file system without links, or too many
        shutil.copyfile(source, target)


def check_attempt(key: str, head: _Head, attempt: int) -> None:
    """Raise StaleAttemptError if a higher attempt has begun."""
    if head.attempt > attempt:
        raise StaleAttemptError(f"attempt {attempt} of {key} has a successor, {head.attempt}")


def extend(
    head: _Head, attempt: int, checkpoint: _Checkpoint, points: Iterable[CurvePoint]
) -> tuple[_Head, bytes]:
    """Return the head after a commit, and the lines that it appends to the curve.

    Raises:
        ValueError: if a metric is not finite.
    """
    fresh = [p for p in points if p.step > head.last_step]
    lines = b"".join(map(_write_line, fresh))
    older = [c for c in head.checkpoints if c.step < checkpoint.step][: KEPT - 1]
    count = head.curve_points + len(fresh)
    after = replace(
        head,
        attempt=attempt,
        commits=head.commits + 1,
        curve_bytes=head.curve_bytes + len(lines),
        curve_points=count,
        last_step=fresh[-1].step if fresh else head.last_step,
        checkpoints=(replace(checkpoint, points=count), *older),
    )
    return after, lines


def _write_line(point: CurvePoint) -> bytes:
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
    point = _read_if_whole(line)
    if point is None:
        raise DamagedError(f"a line of a curve is damaged: {line[:80]!r}")
    return point


def _read_if_whole(line: bytes) -> CurvePoint | None:
    if has_checksum(line) is False:
        return None
    try:
        content = json.loads(line)
        content.pop("crc32", None)
        return CurvePoint(**content)
    except (ValueError, TypeError, AttributeError):
        return None


def write_head(head: _Head) -> bytes:
    """Return a head as it is stored."""
    return add_checksum(json.dumps(asdict(head)).encode())


def read_head(kind: type[H], content: bytes, place: str) -> H:
    """Return a head of a kind; `place` is for words.

    Raises:
        DamagedError: if it is not what was written.
        NewerStoreError: if a newer version has written it.
    """
    is_whole = has_checksum(content)
    try:
        found = json.loads(content)
        checkpoints = found["checkpoints"]
        unknown = {*found} - {each.name for each in fields(kind)} - {"crc32"}
        unknown |= {n for c in checkpoints for n in c} - {e.name for e in fields(_Checkpoint)}
        has_all = {"attempt", "commits", "curve_bytes"} <= found.keys()
    except (ValueError, TypeError, KeyError) as error:
        raise DamagedError(f"the head {place} is damaged: {error!r}") from error
    if unknown and (is_whole or has_all):
        raise NewerStoreError(
            f"{place} was written by a newer version of Eigensweep: this one does not know "
            f"{', '.join(map(repr, sorted(unknown)))}. Install the newer version again, on every "
            "node; nothing was changed"
        )
    found.pop("crc32", None)
    try:
        if is_whole is False or not has_all:
            raise ValueError("its checksum or a part of it is wrong")
        return kind.read(found)
    except (ValueError, TypeError, KeyError) as error:
        raise DamagedError(f"the head {place} is damaged: {error}") from error


def go_back(head: H, curve: bytes) -> H:
    """Return the head itself, or where the bytes of its curve are damaged one that ends before."""
    points, size, step = find_whole(head, curve)
    is_whole = (points, size) == (head.curve_points, head.curve_bytes)
    return head if is_whole else cut(head, points, size, step)


def find_whole(head: _Head, curve: bytes) -> tuple[int, int, int]:
    """Return points and bytes of a curve before its first damaged line, and the last step there."""
    points = size = 0
    last = b""
    for line in curve[: head.curve_bytes].splitlines(keepends=True)[: head.curve_points]:
        is_whole = has_checksum(line.rstrip(b"\n")) if line.endswith(b"\n") else False
        if is_whole is False or (is_whole is None and _read_if_whole(line) is None):
            break
        points, size, last = points + 1, size + len(line), line
    return points, size, read_line(last.rstrip(b"\n")).step if last else -1


def cut(head: H, points: int, size: int, step: int) -> H:
    """Return a head that ends after so many points and bytes of its curve, the last at `step`.

    Checkpoints that need a point behind that are left out.
    """
    kept = [
        each
        for each in head.checkpoints
        if (each.points <= points if each.points >= 0 else each.step <= step)
    ]
    return replace(
        head,
        curve_points=points,
        curve_bytes=size,
        last_step=step,
        checkpoints=tuple(kept[:KEPT]),
    )


def explain_damage(key: str, told: Iterable[str], after: _Head) -> str | None:
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


@contextmanager
def _leaving_damage(key: str) -> Iterator[None]:
    """Leave a key alone that has a later attempt, or whose head is damaged."""
    try:
        yield
    except StaleAttemptError:
        pass
    except DamagedError as error:
        logger.warning("left as it is: %s", error, extra={"key": key})


def _read_if_zip(path: Path) -> bytes | None:
    """Return the content of a checkpoint whose own checksums are right, None of any other file."""
    try:
        content = path.read_bytes()
        with zipfile.ZipFile(io.BytesIO(content)) as checkpoint:
            return content if checkpoint.testzip() is None else None
    except (OSError, zipfile.BadZipFile, ValueError, EOFError):
        return None


def pack(state: StateDict) -> bytes:
    """Return a state as the bytes of a checkpoint."""
    import torch

    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()
