"""The store in an object store, such as S3: no locks, no renames, nothing is appended to.

What lies below a key there:

    head-000000012.json     the 12th head, which names the objects that count; the last head does
    damaged-*               what an attempt found damaged when it began, the last of each kind
    step-*.pt               checkpoints, the newest two
    curve-*.jsonl           parts of the curve, in the order in which the head names them
    best-2.pt               the weights of the best evaluation, as the second attempt found them
    spectra/*-2.json        the spectra of its evaluations

Each change reads the newest head, writes its objects under names that nobody else uses, and then
makes the head with the next number, which must not exist yet (a conditional put: `If-None-Match` of
S3, `ifGenerationMatch=0` of Google Cloud Storage).
So of two that change a key at once one succeeds, and the other begins again with the head that it
finds then. An attempt that was cut off finds its successor in that head and is refused: what it
wrote meanwhile is named by no head. This is all that is asked of the object store: a put with that
condition, and lists and reads that show what was put before. Weights and spectra are named by no
head: each attempt has objects of its own, and those of the last attempt that has one count.

Parts of the curve are merged as they come, so that there are never more than a few: each part is
larger than the one behind it.
"""

from __future__ import annotations

import logging
import platform
import re
import secrets
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import IO, Any, Final, NamedTuple, NoReturn, Self, TypeVar

from eigensweep.workers.shared.checkpoints import (
    BEST,
    DAMAGED,
    DAMAGED_CURVE,
    DAMAGED_HEAD,
    CurvePoint,
    Keep,
    Progress,
    StateDict,
    Store,
    _Checkpoint,
    _checkpoint_name,
    _Head,
    _leaving_damage,
    check_attempt,
    explain_damage,
    extend,
    go_back,
    pack,
    read_head,
    write_head,
)
from eigensweep.workers.shared.durable_files import (
    DamagedError,
    StorageError,
    StoreAwayError,
    StoreKeysError,
    write_whole,
)
from eigensweep.workers.shared.spectrum_files import FOLDER as SPECTRA

logger = logging.getLogger(__name__)

T = TypeVar("T")


class _Library(NamedTuple):
    """The file system of fsspec for a kind of object store, and the extra that installs it."""

    module: str
    name: str
    extra: str


LIBRARIES: Final = {
    "s3": _Library("s3fs", "S3FileSystem", "s3"),
    "gs": _Library("gcsfs.core", "GCSFileSystem", "gcs"),  # the module's own: plain JSON requests
}
"""By scheme: those whose `pipe_file` can be told that the object must not exist yet."""

KEYS: Final = {
    "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or use a profile or the machine's role",
    "gs": "name a key's file in GOOGLE_APPLICATION_CREDENTIALS, or use the machine's role",
}
"""By scheme of an object store: where its keys come from."""

KEY_ERRORS: Final = frozenset(
    {
        *("NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError"),
        *("ProfileNotFound", "TokenRetrievalError", "UnauthorizedSSOTokenError"),
        *("DefaultCredentialsError", "RefreshError"),
    }
)
"""Names of errors of botocore and Google's library that say: there are no keys here."""

KEY_CODES: Final = frozenset(
    {"AuthorizationHeaderMalformed", "InvalidToken", "TokenRefreshRequired", "401", "403"}
)
"""What an object store answers whom it lets in no more, beside what becomes a PermissionError."""

MOST_TRIES: Final = 50
"""How often a change begins again because others change the same key."""

KEPT_FILE: Final = re.compile(r"(?P<stem>.+?)(?:-(?P<attempt>\d+))?(?P<kind>\.\w+)")
"""The name of an object that an attempt keeps; older versions did not say which attempt."""

BLOCK: Final = 4 * 1024 * 1024
"""Bytes that one request fetches of an object that is read piece by piece."""

MARK_SECONDS: Final = 5.0
"""How long one relies on having seen a mark or none: each look is a request."""


@dataclass(frozen=True)
class _Part:
    """A part of a curve."""

    file: str
    bytes: int


@dataclass(frozen=True)
class _ObjectHead(_Head):
    """A head that names the parts of the curve, too."""

    number: int = 0
    """0: there is no head yet."""
    maker: str = ""
    """Says who made it: after an answer that was lost, one finds that it was oneself."""
    parts: tuple[_Part, ...] = ()

    @classmethod
    def read(cls, found: dict[str, Any]) -> Self:
        return super().read(found | {"parts": tuple(_Part(**part) for part in found["parts"])})


@dataclass
class _Change:
    """What is to become of a key: the head without its parts, and what is written for it."""

    head: _Head
    files: dict[str, bytes] = field(default_factory=dict)
    lines: bytes = b""
    """To be appended to the curve."""


class ObjectStore(Store):
    """Checkpoints and curves below a URL such as `s3://bucket/prefix`; see `Store`.

    Access comes from what the library of the object store reads: for S3 the variables `AWS_*` and
    its configuration files, for Google Cloud Storage the file that GOOGLE_APPLICATION_CREDENTIALS
    names or the login of `gcloud`, for both the role of the machine.
    """

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        super().__init__(self.url)
        self.root = Path(self.url.partition("://")[2])

    @cached_property
    def _files(self) -> Any:
        """The file system of fsspec; made when it is first needed, by each process anew."""
        library = LIBRARIES[self.url.partition("://")[0]]
        try:
            return getattr(import_module(library.module), library.name)(use_listings_cache=False)
        except (ImportError, ValueError) as error:
            raise StoreAwayError(
                f"cannot use EIGENSWEEP_STORAGE={self.url}: {error}. On every node "
                f"run pip install '.[{library.extra}]' in a checkout of Eigensweep"
            ) from error

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_files"}

    def begin(self, key: str, attempt: int) -> str | None:
        folder, told = self._folder(key), list[str]()

        def make(head: _Head) -> _Change:
            check_attempt(key, head, attempt)
            assert isinstance(head, _ObjectHead)
            lines = self._read_what_is_there(folder, head)
            whole = go_back(head, lines)
            if whole is head:
                return _Change(replace(head, attempt=attempt))
            told.append(f"the curve in {self._words(folder)}")
            if lines:
                self._put(folder / DAMAGED_CURVE, lines)
            after = replace(whole, attempt=attempt, parts=())
            return _Change(after, lines=lines[: whole.curve_bytes])

        after = self._change(key, make, told)
        self._begun[key] = attempt
        return explain_damage(key, told, after)

    def progress(self, key: str, *, surely: bool = False) -> Progress:
        return super().progress(key)  # a list shows what was put before

    def commit(
        self, key: str, attempt: int, step: int, state: StateDict, points: Iterable[CurvePoint]
    ) -> None:
        content, points = pack(state), list(points)
        crc = zlib.crc32(content)

        def make(head: _Head) -> _Change:
            self._check_commit(key, head, attempt)
            file = f"step-{step:09d}-{head.commits + 1}-{secrets.token_hex(4)}.pt"
            after, lines = extend(head, attempt, _Checkpoint(file, step, crc), points)
            return _Change(after, {file: content}, lines)

        self._change(key, make)

    def copy_out(self, key: str, target: Path, attempt: int) -> tuple[str, int] | None:
        folder = self._folder(key)
        head = self._head(folder)
        if head.number == 0:
            return None
        for _ in range(MOST_TRIES):  # a newer head may let a checkpoint go meanwhile
            read = [(each, self._content(folder, each)) for each in head.checkpoints]
            if all(content is not None for _, content in read):
                break
            before, head = head.number, self._head(folder)
            if head.number == before:
                break  # it is damaged
        known, kept = min(head.attempt, attempt), []
        for checkpoint, content in read:
            if content is not None:
                name = _checkpoint_name(checkpoint.step, head.commits, known)
                write_whole(target / name, content)
                kept.append(replace(checkpoint, file=name))
        curve = f"curve-{known}.jsonl"
        write_whole(target / curve, self._read_curve(folder, head, 0))
        files = [BEST] if self.has_best(key) else []
        for file in [*files, *(f"{SPECTRA}/{name}" for name in self.kept_names(key, SPECTRA))]:
            (target / file).parent.mkdir(exist_ok=True)
            write_whole(target / file, self.read_kept(key, file))
        after = _Head(known, head.commits, curve, head.curve_bytes, head.curve_points)
        after = replace(after, last_step=head.last_step, taken_over=head.taken_over)
        write_whole(target / "head.json", write_head(replace(after, checkpoints=tuple(kept))))
        return curve, head.curve_bytes

    def copy_in(self, key: str, source: Path) -> None:
        """Make at `key`, where nothing is yet, what `copy_out` wrote into a folder.

        Raises:
            StoreAwayError: if the object store does not answer, or refuses.
            OSError: if the folder cannot be read.
        """
        plain = read_head(_Head, (source / "head.json").read_bytes(), str(source / "head.json"))
        head = _ObjectHead(**{each.name: getattr(plain, each.name) for each in fields(_Head)})
        files = {each.file: (source / each.file).read_bytes() for each in head.checkpoints}
        curve = source / head.curve
        lines = curve.read_bytes()[: head.curve_bytes] if head.curve_bytes else b""
        self._change(key, lambda _: _Change(head, files, lines))
        for path in (source / BEST, *sorted(source.glob("*/*.json"))):
            if path.exists():
                name = path.relative_to(source).as_posix()
                self.keep_file(key, head.attempt, name, path.read_bytes())

    def take_over(self, source_key: str, key: str, attempt: int, step: int) -> None:
        name = f"{step} {source_key}"
        if self._see(self._folder(key))[0].taken_over == name:
            return
        found = self._newest(self._folder(source_key), self._content)

        def make(head: _Head) -> _Change:
            check_attempt(key, head, attempt)
            after = replace(
                head, attempt=attempt, commits=head.commits + 1, checkpoints=(), taken_over=name
            )
            if found is None:
                return _Change(after)
            checkpoint, content = found
            file = f"step-{checkpoint.step:09d}-{after.commits}-{secrets.token_hex(4)}.pt"
            after = replace(after, checkpoints=(replace(checkpoint, file=file),))
            return _Change(after, {file: content})

        self._change(key, make, [])

    def thin_out(self, trial: str, keep: Keep, attempt: int, *, only_measure: bool = False) -> int:
        freed = 0
        for name in self.file_names(trial):
            key = f"{trial}/{name}"
            with _leaving_damage(key):
                freed += self._thin_out_replicate(key, keep, attempt, only_measure=only_measure)
        return freed

    def _thin_out_replicate(self, key: str, keep: Keep, attempt: int, *, only_measure: bool) -> int:
        """Do it for one replicate.

        Raises:
            StaleAttemptError: if a later attempt has begun; then it is left as it is.
        """
        folder = self._folder(key)
        head, names = self._look(folder)
        check_attempt(key, head, attempt)
        best = _find_kept(names).get(BEST, [])
        kept = self._choose_kept(folder, head, keep, has_best=bool(best), checked=not only_measure)
        stay = {checkpoint.file for checkpoint in kept}
        gone = [name for name in names if name.startswith("step-") and name not in stay]
        gone += best if keep == "none" else best[:-1]
        freed = sum(self._size(folder / name) or 0 for name in gone)
        if only_measure or not gone:
            return freed

        def make(now: _Head) -> _Change:
            check_attempt(key, now, attempt)
            return _Change(replace(now, checkpoints=kept))

        # A head is made in any case: who is about to name one of these objects begins again.
        self._change(key, make)
        for name in gone:
            self._remove(folder / name)
        return freed

    def list_sizes(self) -> Iterator[tuple[str, int]]:
        """Yield the path in the store and the bytes of each object.

        Raises:
            StoreAwayError: if the object store does not answer.
        """
        try:
            found = self._files.find(self.root.as_posix(), detail=True)
        except FileNotFoundError:
            return
        except Exception as error:
            self._give_up("list", self.root, error)
        for path, about in found.items():
            yield path.removeprefix(f"{self.root.as_posix()}/"), int(about["size"])

    def read_file(self, path: str) -> bytes:
        return self._get(self.root / path)

    def write_file(self, path: str, content: bytes) -> None:
        self._put(self.root / path, content)

    def keep_file(self, key: str, attempt: int, name: str, content: bytes) -> None:
        # A successor may begin between the look and the put, so each attempt has its own objects.
        check_attempt(key, self._head(self._folder(key)), attempt)
        stem, _, kind = name.rpartition(".")
        self.write_file(f"{key}/{stem}-{attempt}.{kind}", content)

    def kept_path(self, key: str, name: str, scratch: Path) -> Path:
        path = scratch / Path(name).name
        write_whole(path, self.read_kept(key, name))
        return path

    def kept_names(self, key: str, folder: str) -> list[str]:
        return sorted(_find_kept(self.file_names(f"{key}/{folder}")))

    def has_best(self, key: str) -> bool:
        return BEST in _find_kept(self.file_names(key))

    def file_names(self, folder: str) -> list[str]:
        return self._names(self.root / folder)

    def remove_file(self, path: str) -> None:
        self._remove(self.root / path)

    def remove_all(self, folder: str) -> None:
        try:
            self._files.rm((self.root / folder).as_posix(), recursive=True)
        except FileNotFoundError:
            return
        except Exception as error:
            self._give_up("remove", self.root / folder, error)

    def try_out(self) -> str | None:
        """Return what the object store cannot do that this store relies on; None: it can do all.

        One object is written for that, and removed.

        Raises:
            StoreAwayError: if it does not answer, or refuses.
        """
        folder = self.root / ".doctor"
        path, content = folder / secrets.token_hex(8), secrets.token_hex(16).encode()
        try:
            if not self._create(path, content):
                return f"{self._words(path)} was not there, and making it was refused"
            if self._create(path, b""):
                return f"{self.url} writes over an object although asked not to"
            if self._get(path) != content or path.name not in self._names(folder):
                return f"{self.url} does not show what was just written"
        finally:
            self._remove(path)
        return f"{self.url} does not remove objects" if path.name in self._names(folder) else None

    def _change(
        self, key: str, make: Callable[[_Head], _Change], told: list[str] | None = None
    ) -> _ObjectHead:
        """Bring a change about, whole or not at all, and return the head after it.

        `make` is asked again if others were first. Where heads are damaged, and `told` is given,
        that is told there, and the newest one that is whole stands in their place.

        Raises:
            StoreAwayError: if the object store does not answer, or refuses.
            Exception: whatever `make` raises.
        """
        folder = self._folder(key)
        for _ in range(MOST_TRIES):
            before = len(told or ())
            head, lying = self._look(folder, told)
            is_damaged = len(told or ()) > before
            try:
                change = make(head)
                after = self._write(folder, head, change)
            except FileNotFoundError as error:  # a newer head has merged the curve
                if self._see(folder)[0].number == head.number:
                    raise DamagedError(f"a part of the curve is gone: {error}") from error
                continue
            if is_damaged:
                self._put(folder / DAMAGED_HEAD, self._get(folder / _head_name(head.number)))
            path = folder / _head_name(after.number)
            is_made = self._create(path, write_head(after))
            # Whoever was away for long may make a head whose number was used and cleaned up.
            newest, _ = self._look(folder)
            if newest.maker == after.maker:
                self._tidy(folder, [*lying, *_names_of(head)], keep=[head, after])
                return after
            if newest.number > after.number and is_made:
                self._remove(path)
            self._tidy(folder, _names_of(after), keep=[head, newest])
        raise StoreAwayError(f"others change {self._words(folder)} all the time")

    def _write(self, folder: Path, head: _ObjectHead, change: _Change) -> _ObjectHead:
        """Write what a change brings, and return its head, which is not made yet."""
        for name, content in change.files.items():
            self._put(folder / name, content)
        assert isinstance(change.head, _ObjectHead)
        parts, lines = list(change.head.parts), change.lines
        if lines:
            while parts and parts[-1].bytes <= len(lines):
                lines = self._get(folder / parts.pop().file) + lines
            name = f"curve-{change.head.curve_points:09d}-{secrets.token_hex(4)}.jsonl"
            self._put(folder / name, lines)
            parts.append(_Part(name, len(lines)))
        maker = secrets.token_hex(8)
        return replace(change.head, number=head.number + 1, maker=maker, parts=tuple(parts))

    def _look(self, folder: Path, told: list[str] | None = None) -> tuple[_ObjectHead, list[str]]:
        """Return the newest head, and the names of all that lies there; `told` as in `_change`."""
        for _ in range(MOST_TRIES):
            names = self._names(folder)
            heads = [name for name in names if name.startswith("head-")]
            if not heads:
                return _ObjectHead(), names
            with suppress(FileNotFoundError):  # there are newer ones, and this one was cleaned up
                return self._read_newest(folder, sorted(heads, reverse=True), told), names
        raise StoreAwayError(f"others change {self._words(folder)} all the time")

    def _read_newest(self, folder: Path, names: list[str], told: list[str] | None) -> _ObjectHead:
        """Return the first of these heads that is whole, with the number of the very first."""
        number = int(names[0].removeprefix("head-").removesuffix(".json"))
        for name in names:
            content = self._get(folder / name)
            try:
                head = read_head(_ObjectHead, content, self._words(folder / name))
                return replace(head, number=number)
            except DamagedError as error:
                if told is None:
                    raise
                told.append(str(error))
        return _ObjectHead(number=number)

    def _see(self, folder: Path) -> tuple[_ObjectHead, str]:
        told: list[str] = []
        return self._look(folder, told)[0], "; ".join(told)

    def _tidy(self, folder: Path, names: Iterable[str], keep: Iterable[_ObjectHead]) -> None:
        """Remove objects that no head names, but for some heads' own. Who fails leaves them.

        Only what lay there before one's own head was made may be given: what others have written
        since, they may be about to name.
        """
        named = {name for head in keep for name in (*_names_of(head), _head_name(head.number))}
        for name in sorted({*names} - named):
            if name.startswith(("head-", "step-", "curve-")):
                with suppress(StoreAwayError):
                    self._remove(folder / name)

    def _head(self, folder: Path) -> _ObjectHead:
        return self._look(folder)[0]

    def _newest(
        self, folder: Path, read: Callable[[Path, _Checkpoint], T | None]
    ) -> tuple[_Checkpoint, T] | None:
        head, seen = self._see(folder)[0], -1
        while head.number != seen:  # a newer head may have let a checkpoint go meanwhile
            for checkpoint in head.checkpoints:
                content = read(folder, checkpoint)
                if content is not None:
                    return checkpoint, content
            head, seen = self._see(folder)[0], head.number
        return None

    def _content(self, folder: Path, checkpoint: _Checkpoint) -> bytes | None:
        path = folder / checkpoint.file
        with suppress(FileNotFoundError):
            content = self._get(path)
            if zlib.crc32(content) == checkpoint.crc:
                return content
        logger.warning(DAMAGED, self._words(path), checkpoint.step)
        return None

    def _kept_file(self, key: str, name: str) -> str:
        folder, _, file = name.rpartition("/")
        place = f"{key}/{folder}" if folder else key
        found = _find_kept(self.file_names(place)).get(file)
        if not found:
            raise FileNotFoundError(f"{self.place}/{key}/{name}")
        return f"{place}/{found[-1]}"

    def _open(self, path: Path) -> IO[bytes]:
        try:
            opened: IO[bytes] = self._files.open(path.as_posix(), "rb", block_size=BLOCK)
        except FileNotFoundError:
            raise
        except Exception as error:
            self._give_up("read", path, error)
        return opened

    def _open_whole(self, folder: Path, checkpoint: _Checkpoint) -> IO[bytes] | None:
        try:
            return super()._open_whole(folder, checkpoint)
        except StorageError:
            raise
        except Exception as error:
            self._give_up("read", folder / checkpoint.file, error)

    def _read_curve(self, folder: Path, head: _Head, offset: int) -> bytes:
        assert isinstance(head, _ObjectHead)
        try:
            return self._read_parts(folder, head, offset)
        except FileNotFoundError:  # merged since by a newer head, which holds the same bytes
            newer = self._head(folder)
            try:
                whole = self._read_parts(folder, newer, 0)
            except FileNotFoundError as error:
                raise DamagedError(f"a part of the curve is gone: {error}") from error
            return whole[offset : head.curve_bytes]

    def _read_what_is_there(self, folder: Path, head: _Head) -> bytes:
        assert isinstance(head, _ObjectHead)
        read = b""
        for part in head.parts:
            try:
                found = self._get(folder / part.file)
            except FileNotFoundError:
                if self._see(folder)[0].number != head.number:
                    raise  # merged since by a newer head
                break
            read += found
            if len(found) != part.bytes:
                break  # it lacks whole lines, or has others: what follows would be out of place
        return read

    def _read_parts(self, folder: Path, head: _ObjectHead, offset: int) -> bytes:
        """Return the curve of a head from byte `offset` on."""
        read, begins = b"", 0
        for part in head.parts:
            if begins + part.bytes > offset:
                read += self._get(folder / part.file)[max(0, offset - begins) :]
            begins += part.bytes
        return read

    def _size(self, path: Path) -> int | None:
        try:
            return int(self._files.size(path.as_posix()))
        except FileNotFoundError:
            return None
        except Exception as error:
            self._give_up("read", path, error)

    def _get(self, path: Path) -> bytes:
        try:
            content: bytes = self._files.cat_file(path.as_posix())
        except FileNotFoundError:
            raise
        except Exception as error:
            self._give_up("read", path, error)
        return content

    def _put(self, path: Path, content: bytes) -> None:
        try:
            self._files.pipe_file(path.as_posix(), content)
        except Exception as error:
            self._give_up("write", path, error)

    def _create(self, path: Path, content: bytes) -> bool:
        """Write an object that must not exist yet; return whether it did not."""
        try:
            self._files.pipe_file(path.as_posix(), content, mode="create")
        except FileExistsError:
            return False
        except Exception as error:
            if _is_conflict(error):
                return False
            self._give_up("write", path, error)
        return True

    def _remove(self, path: Path) -> None:
        try:
            self._files.rm_file(path.as_posix())
        except FileNotFoundError:
            return
        except Exception as error:
            self._give_up("remove", path, error)

    def _names(self, folder: Path) -> list[str]:
        try:
            listed = self._files.ls(folder.as_posix(), detail=False, refresh=True)
        except FileNotFoundError:
            return []
        except Exception as error:
            self._give_up("list", folder, error)
        return sorted(path.rpartition("/")[2] for path in listed)

    def _words(self, path: Path) -> str:
        return f"{self.url.partition('://')[0]}://{path.as_posix()}"

    def _give_up(self, act: str, path: Path, error: Exception) -> NoReturn:
        """Raise that an act failed: whatever the reason, no trial is to blame."""
        words = f"cannot {act} {self._words(path)}: {type(error).__name__}: {error}"
        if not _lacks_keys(error):
            raise StoreAwayError(words) from error
        # An administrator may bring keys at any time; the library would go on without them.
        if (files := self.__dict__.pop("_files", None)) is not None:
            type(files).clear_instance_cache()
        scheme, _, where = self.url.partition("://")
        raise StoreKeysError(
            f"{words.rstrip('.')}. Node {platform.node()} has no keys that open "
            f"{scheme}://{where.partition('/')[0]}: {KEYS[scheme]}, on this node and on every "
            "other one. Ray's processes there see variables that were set before Ray started"
        ) from error


@dataclass(frozen=True)
class ObjectMark:
    """A mark in an object store; looked at every few seconds, and as before while it is away."""

    url: str
    path: str

    def exists(self) -> bool:
        """Return whether it is there, as far as one has seen."""
        looked_at, was_there = _SEEN.get((self.url, self.path), (float("-inf"), False))
        if time.monotonic() - looked_at < MARK_SECONDS:
            return was_there
        try:
            _store(self.url).read_file(self.path)
            is_there = True
        except FileNotFoundError:
            is_there = False
        except StoreAwayError as error:
            logger.warning("cannot look for a mark: %s", error)
            is_there = was_there
        _SEEN[self.url, self.path] = time.monotonic(), is_there
        return is_there

    def touch(self) -> None:
        """Make it."""
        _SEEN.pop((self.url, self.path), None)
        _store(self.url).write_file(self.path, b"")

    def unlink(self, missing_ok: bool = True) -> None:
        """Remove it, if it is there."""
        _SEEN.pop((self.url, self.path), None)
        _store(self.url).remove_file(self.path)


_SEEN: dict[tuple[str, str], tuple[float, bool]] = {}
"""When a mark was looked at, and whether it was there."""

_STORES: dict[str, ObjectStore] = {}


def _store(url: str) -> ObjectStore:
    """Return the process's own store, whose connections it keeps."""
    if url not in _STORES:
        _STORES[url] = ObjectStore(url)
    return _STORES[url]


def _head_name(number: int) -> str:
    return f"head-{number:09d}.json"


def _find_kept(names: Iterable[str]) -> dict[str, list[str]]:
    """Return, for each name that `keep_file` was given, its objects: the last attempt's last.

    >>> _find_kept(["best-10.pt", "best-9.pt", "000000050-2.json"])
    {'best.pt': ['best-9.pt', 'best-10.pt'], '000000050.json': ['000000050-2.json']}
    """
    found: dict[str, list[tuple[int, str]]] = {}
    for name in names:
        if parts := KEPT_FILE.fullmatch(name):
            of = found.setdefault(f"{parts['stem']}{parts['kind']}", [])
            of.append((int(parts["attempt"] or 0), name))
    return {given: [name for _, name in sorted(objects)] for given, objects in found.items()}


def _names_of(head: _ObjectHead) -> list[str]:
    """Return the names of all objects that a head names."""
    return [*(c.file for c in head.checkpoints), *(p.file for p in head.parts)]


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _lacks_keys(error: Exception) -> bool:
    """Tell whether there are no keys here, or the object store does not accept them."""
    for each in _causes(error):
        code = str(getattr(each, "code", ""))
        if isinstance(response := getattr(each, "response", None), dict):
            code = str(response.get("Error", {}).get("Code", ""))
        is_refused = isinstance(each, PermissionError) or str(each).startswith("Forbidden:")
        if is_refused or code in KEY_CODES or type(each).__name__ in KEY_ERRORS:
            return True
    return False


def _is_conflict(error: Exception) -> bool:
    """Tell whether a put was refused because the object exists, or is being made at this moment."""
    for each in _causes(error):
        response = getattr(each, "response", None)
        if isinstance(response, dict):
            code = str(response.get("Error", {}).get("Code", ""))
            if code in ("PreconditionFailed", "ConditionalRequestConflict", "412", "409"):
                return True
    return False
