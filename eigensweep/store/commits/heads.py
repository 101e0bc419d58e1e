"""The commit protocol of the store: of two that change a key at once, one succeeds.

What lies below a key, in a folder and in an object store alike:

    head-000000012.json     the 12th head, which names the files that count; the last head does
    step-*.pt               checkpoints, the newest two
    curve-*.jsonl           parts of the curve, in the order in which the head names them
    damaged-*               what an attempt found damaged when it began, the last of each kind
    best-2.pt               the weights of the best evaluation, as the second attempt found them
    spectra/*-2.json        the spectra of its evaluations

Each change reads the newest head, writes its files under names that nobody else uses, and then
makes the head with the next number, which must not exist yet: the only commit point. Whoever comes
second begins again with the head that it finds then. So a process may die at any byte, or stand
still between any two lines: an attempt that was cut off finds its successor in that head and is
refused, and what it wrote meanwhile is named by no head. This is all that is asked of a place: a
file that is created if it does not exist, and lists and reads that show what was written before.

Parts of the curve are merged as they come, so that there are never more than a few: each part is
larger than the one behind it.

A head and each line of a curve carry a checksum of their own, a checkpoint has its in the head. An
attempt that begins goes back behind what is damaged: to the head before, to the points before the
first damaged line, to a checkpoint that needs no others, or to the start. Training makes the rest
again, bit for bit.

Versions before 0.3 kept one `head.json` in a folder, replaced under a lock. It counts until the
next head is made. Where it is damaged, `rebuild_head` makes one of what the files say themselves.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final

from eigensweep.store.commits.head import HEAD, OLD_HEAD, Head, Part
from eigensweep.store.commits.old_heads import rebuild_head
from eigensweep.store.places.durable_files import DamagedError, StorageError, StoreAwayError
from eigensweep.store.places.files import Files

DAMAGED_HEAD: Final = "damaged-head.json"
"""What is kept of a head that an attempt has gone back behind."""

KEY: Final = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)*", re.ASCII)
"""A key leads to no other place: names joined by slashes, such as `e7/00012/0`."""

MOST_TRIES: Final = 50
"""How often a change begins again because others change the same key."""

OWN_FILES: Final = ("head-", "step-", "curve-", OLD_HEAD, "curve.jsonl", "attempt-", "lock")
"""How the names begin of what no head has to name any more; the last ones are older versions'."""


@dataclass
class Change:
    """What is to become of a key: the head without new parts, and what is written for it."""

    head: Head
    files: dict[str, bytes] = field(default_factory=dict)
    lines: bytes = b""
    """To be appended to the curve."""


@dataclass(frozen=True)
class _Seen:
    head: Head
    names: list[str]
    """Of all that lies there."""
    damage: tuple[str, ...] = ()
    """Words about the heads that are damaged, and newer than `head`."""
    newest: str = ""
    """The name of the newest head's file."""


class Heads:
    """Reads and changes what counts at a key."""

    def __init__(self, files: Files) -> None:
        self._files = files

    def read(self, key: str) -> Head:
        """Return the newest head of a key, one of number 0 if there is none.

        Raises:
            DamagedError: if it is damaged.
            NewerStoreError: if a newer version has written it.
            StorageError: if it cannot be read.
        """
        seen = self._look(key)
        if seen.damage:
            raise DamagedError(seen.damage[0])
        return seen.head

    def read_whole(self, key: str) -> Head:
        """Return the newest head that is not damaged."""
        return self._look(key).head

    def change(
        self, key: str, make: Callable[[Head], Change], told: list[str] | None = None
    ) -> Head:
        """Bring a change about, whole or not at all, and return the head after it.

        `make` is asked again if others were first. Where heads are damaged, and `told` is given,
        that is told there, and the newest one that is whole stands in their place.

        Raises:
            StorageError: if the place cannot be read or written.
            Exception: whatever `make` raises.
        """
        for _ in range(MOST_TRIES):
            seen = self._look(key)
            if seen.damage and told is None:
                raise DamagedError(seen.damage[0])
            try:
                change = make(seen.head)
                after, files = self._prepare(key, seen, change)
                is_made = self._make(key, after, files, makes_folder=not seen.names)
            except StoreAwayError:
                raise
            except (FileNotFoundError, StorageError) as error:
                if self._look(key).newest != seen.newest:
                    continue  # a newer head has merged the curve, or removed what was written
                if isinstance(error, StorageError):
                    raise
                raise DamagedError(f"a part of the curve is gone: {error}") from error
            if seen.damage and told is not None:
                told.extend(seen.damage)
                with suppress(FileNotFoundError):
                    content = self._files.read(f"{key}/{seen.newest}")
                    self._files.write(f"{key}/{DAMAGED_HEAD}", content)
            # Whoever was away for long may make a head whose number was used and cleaned up.
            newest = self._look(key).head
            if newest.maker == after.maker:
                earlier = {seen.head.file, *(part.file for part in seen.head.parts)}
                self._tidy(key, {*seen.names} - {after.file} - after.files - earlier)
                return after
            if newest.number > after.number and is_made:
                self._files.remove(f"{key}/{after.file}")
            self._tidy(key, {*files} - newest.files)
        raise StoreAwayError(f"others change {self._files.place}/{key} all the time")

    def read_curve(self, key: str, head: Head, offset: int = 0) -> bytes:
        """Return what is committed of a curve from byte `offset` on.

        Raises:
            DamagedError: if a part of it is gone.
        """
        try:
            return self._read_parts(key, head, offset)
        except FileNotFoundError:  # merged since by a newer head, which holds the same bytes
            newer = self.read(key)
            try:
                whole = self._read_parts(key, newer, 0)
            except FileNotFoundError as error:
                raise DamagedError(f"a part of the curve is gone: {error}") from error
            return whole[offset : head.curve_bytes]

    def read_what_is_there(self, key: str, head: Head) -> bytes:
        """Return the committed bytes of a curve, or fewer, if some are missing.

        Raises:
            FileNotFoundError: if a newer head has merged them.
        """
        read = b""
        for part in head.parts:
            try:
                found = self._read_part(key, part)
            except FileNotFoundError:
                if self.read_whole(key).number != head.number:
                    raise
                break
            read += found
            if len(found) != part.bytes:
                break  # it lacks whole lines, or has others: what follows would be out of place
        return read

    def _read_parts(self, key: str, head: Head, offset: int) -> bytes:
        """Return the curve of a head from byte `offset` on."""
        read, begins = b"", 0
        for part in head.parts:
            if begins + part.bytes > offset:
                read += self._read_part(key, part)[max(0, offset - begins) :]
            begins += part.bytes
        return read

    def _read_part(self, key: str, part: Part) -> bytes:
        # An older version's file may hold more, which was never committed.
        return self._files.read(f"{key}/{part.file}")[: part.bytes]

    def _prepare(self, key: str, seen: _Seen, change: Change) -> tuple[Head, dict[str, bytes]]:
        """Return the head that a change makes, and all files that are written before it."""
        files, parts, lines = dict(change.files), list(change.head.parts), change.lines
        if lines:
            while parts and parts[-1].bytes <= len(lines):
                lines = self._read_part(key, parts.pop()) + lines
            name = f"curve-{change.head.curve_points:09d}-{secrets.token_hex(4)}.jsonl"
            files[name] = lines
            parts.append(Part(name, len(lines)))
        last = HEAD.fullmatch(seen.newest)
        number = (int(last[1]) if last else 0) + 1
        maker = secrets.token_hex(8)
        return replace(change.head, number=number, maker=maker, parts=tuple(parts)), files

    def _make(self, key: str, after: Head, files: dict[str, bytes], *, makes_folder: bool) -> bool:
        """Write files, and make the head that names them; return whether nobody was first."""
        try:
            for name, content in files.items():
                self._files.write(f"{key}/{name}", content, makes_folder=makes_folder)
            path = f"{key}/{after.file}"
            return self._files.create(path, after.write(), makes_folder=makes_folder)
        except StoreAwayError:  # it may be made all the same
            raise
        except StorageError:  # such as a full disk
            self._tidy(key, files)
            raise

    def _look(self, key: str) -> _Seen:
        """Return what is seen of a key; ValueError if it is none."""
        if not KEY.fullmatch(key):
            raise ValueError(f"a key is names joined by slashes, such as e7/00012/0; got {key!r}")
        for _ in range(MOST_TRIES):
            names = self._files.names(key)
            heads = [name for name in reversed(names) if HEAD.fullmatch(name)]
            if OLD_HEAD in names:
                heads.append(OLD_HEAD)
            if not heads:
                return _Seen(Head(), names)
            with suppress(FileNotFoundError):  # there are newer ones, and this one was cleaned up
                return self._read_newest(key, heads, names)
        raise StoreAwayError(f"others change {self._files.place}/{key} all the time")

    def _read_newest(self, key: str, heads: list[str], names: list[str]) -> _Seen:
        """Return the first of these heads that is whole."""
        damage: tuple[str, ...] = ()
        for name in heads:
            path = f"{key}/{name}"
            try:
                head = Head.read(self._files.read(path), f"{self._files.place}/{path}")
            except DamagedError as error:
                damage = (*damage, str(error))
                continue
            made = HEAD.fullmatch(name)
            number = int(made[1]) if made else 0
            if head.number != number:  # an older version's, in an object store
                head = replace(head, number=number)
            return _Seen(head, names, damage, heads[0])
        whole = rebuild_head(self._files, key, names) if OLD_HEAD in heads else Head()
        return _Seen(whole, names, damage, heads[0])

    def _tidy(self, key: str, names: Iterable[str]) -> None:
        """Remove files that no head names. Who fails leaves them.

        Only what lay there before one's own head was made may be given: what others have written
        since, they may be about to name.
        """
        for name in sorted(names):
            if name.startswith(OWN_FILES):
                with suppress(StorageError):
                    self._files.remove(f"{key}/{name}")
