"""The store of checkpoints and curves: a killed trial goes on from it, and MLflow is sent from it.

One folder for each key, which is `experiment/trial/seed`:

    curve-2.jsonl   one line a point; the second attempt appends to it
    step-*-2.pt     checkpoints of the second attempt; the newest two count
    best.pt         the weights of the best evaluation, written at the end
    head.json       replaced last and in one act: the only commit point
    attempt-2.tmp   what the second attempt replaces a file by
    lock            held for as long as somebody changes the folder

`head.json` names the checkpoints and how much of which curve counts. What is beyond that was never
committed and is written over. So a process may die at any byte: the checkpoint and the points that
belong to it appear together or not at all. torch is imported when needed: drivers read curves only.

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
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal, Protocol

from eigensweep.workers.shared.durable_files import (
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

OWN_FILE = re.compile(r"(?:step-\d+-\d+|curve|attempt)-(\d+)\.(?:pt|pt\.tmp|jsonl|jsonl\.tmp|tmp)")
"""Files that one attempt alone writes, with its number; older versions gave no number."""

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


def _mark(storage: str | Path, experiment: str, name: str) -> Mark:
    if not is_url(storage):
        return Path(storage) / experiment / name
    from eigensweep.workers.shared.object_store import ObjectMark

    return ObjectMark(str(storage), f"{experiment}/{name}")


class StaleAttemptError(StaleWriteError):
    """A later attempt has begun at this key: what this one would write is refused."""


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


class Store:
    """Checkpoints and curves below one folder. Picklable; several processes may use it at once."""

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root)
        self.place = str(root)
        """Where it is, for a person to read: a folder or a URL."""
        self._read: dict[str, tuple[int, int]] = {}
        self._begun: dict[str, int] = {}
        """The attempts that began here, by key."""

    def begin(self, key: str, attempt: int) -> None:
        """Make `attempt` the only one that may commit at `key`.

        Raises:
            StaleAttemptError: if a higher attempt has begun.
            StorageError: if the folder cannot be written.
        """
        self._enter(key, attempt, lambda head: head)
        self._begun[key] = attempt

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
        found = self._newest_content(folder)
        if found is None:
            return None
        checkpoint, content = found
        state = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
        return Snapshot(checkpoint.step, state, self.points(key))

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
        lines = self._read_curve(folder, head, offset).splitlines()
        if len(lines) != head.curve_points - index:
            raise StorageError(
                f"the curve in {folder} holds {index + len(lines)} points, "
                f"and its head counts {head.curve_points}"
            )
        self._read[key] = (head.curve_points, head.curve_bytes)
        return [CurvePoint(**json.loads(line)) for line in lines[since - index :]]

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
        return [CurvePoint(**json.loads(line)) for line in kept]

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
        snapshot = self.newest(donor_key)
        if snapshot is None:
            return False
        attempt = self.attempt(key)
        self.commit(key, attempt, snapshot.step, snapshot.state, snapshot.points)
        return True

    def copy_out(self, key: str, target: Path, attempt: int) -> tuple[str, int]:
        """Copy what is committed at `key` into an empty folder; return the curve's name and bytes.

        On the same disk files are linked, since none of them is ever written over; of the curve,
        which grows, only so many bytes count. If a later attempt than `attempt` has begun, the
        copy's head does not know of it.

        Raises:
            StorageError: if it cannot be read.
            OSError: if the copy cannot be written.
        """
        folder = self._folder(key)
        with hold_lock(folder):
            head = self._head(folder)
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
        if self._head(folder).taken_over == name:
            return
        found = self._newest_content(source)

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
            if only_measure:
                freed += self._find_removable(head.parent, keep, attempt, checked=False)[1]
                continue
            key = f"{trial}/{head.parent.name}"
            with suppress(StaleAttemptError), self._turn(key, attempt) as (now, draft):
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
        return self.read_file(f"{key}/{name}")

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
    def _turn(self, key: str, attempt: int) -> Iterator[tuple[_Head, Draft]]:
        """Let an attempt change a key: give the head, and the draft by which it replaces a file.

        Raises:
            StaleAttemptError: if a higher attempt has begun, be it meanwhile.
            StorageError: if it cannot be locked, read or written.
        """
        folder = self._folder(key)
        with hold_lock(folder), open_draft(folder / _draft_name(attempt), folder) as draft:
            head = self._head(folder)  # only now, see above
            check_attempt(key, head, attempt)
            try:
                yield head, draft
            except StorageError:
                with suppress(StorageError):
                    check_attempt(key, self._head(folder), attempt)
                raise

    def _enter(self, key: str, attempt: int, change: Callable[[_Head], _Head]) -> None:
        """Replace the head by what `change` makes of it, and shut all earlier attempts out."""
        folder, is_in = self._folder(key), False
        while not is_in:
            with self._turn(key, attempt) as (head, draft):
                after = change(self._take_curve(folder, head, attempt))
                self._replace_head(folder, after, draft)
                _remove_drafts(folder, range(min(head.attempt, attempt - 1), attempt))
                is_in = self._head(folder) == after  # else one of them came first
                if is_in:
                    self._clean(folder, after)

    def _take_curve(self, folder: Path, head: _Head, attempt: int) -> _Head:
        """Return the head of an attempt that begins, with a curve of its own: a copy."""
        curve = head.curve if head.attempt == attempt else f"curve-{attempt}.jsonl"
        if head.curve_bytes and curve != head.curve:
            write_whole(folder / curve, self._read_curve(folder, head, 0))
        return replace(head, attempt=attempt, curve=curve)

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

    def _newest_content(self, folder: Path) -> tuple[_Checkpoint, bytes] | None:
        """Return the newest undamaged checkpoint of a folder, and what is in it."""
        with hold_lock(folder):
            for checkpoint in self._head(folder).checkpoints:
                content = self._content(folder, checkpoint)
                if content is not None:
                    return checkpoint, content
        return None

    def _folder(self, key: str) -> Path:
        if not re.fullmatch(r"[\w-][\w.-]*(/[\w-][\w.-]*)*", key, re.ASCII):
            raise ValueError(f"a key is names joined by slashes, such as e7/00012/0; got {key!r}")
        return self.root / key

    def _head(self, folder: Path) -> _Head:
        path = folder / "head.json"
        try:
            content = json.loads(path.read_bytes())
        except FileNotFoundError:
            return _Head()
        except (OSError, ValueError) as error:
            raise storage_error("read", path, error) from error
        checkpoints = tuple(_Checkpoint(**c) for c in content.pop("checkpoints"))
        return _Head(**content, checkpoints=checkpoints)

    def _replace_head(self, folder: Path, head: _Head, draft: Draft) -> None:
        draft.replace(folder / "head.json", json.dumps(asdict(head)).encode())
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
        logger.warning("checkpoint damaged, falling back path=%s step=%d", path, checkpoint.step)
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
    lines = "".join(json.dumps(asdict(p), allow_nan=False) + "\n" for p in fresh).encode()
    older = [c for c in head.checkpoints if c.step < checkpoint.step][: KEPT - 1]
    after = replace(
        head,
        attempt=attempt,
        commits=head.commits + 1,
        curve_bytes=head.curve_bytes + len(lines),
        curve_points=head.curve_points + len(fresh),
        last_step=fresh[-1].step if fresh else head.last_step,
        checkpoints=(checkpoint, *older),
    )
    return after, lines


def pack(state: StateDict) -> bytes:
    """Return a state as the bytes of a checkpoint."""
    import torch

    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()
