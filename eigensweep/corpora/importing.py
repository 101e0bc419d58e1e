"""Copies corpora from files, folders and archives to where tasks look for them.

Files are recognised by their digests, so their names and the archive around them do not matter. A
file that is recognised is written unpacked, under its name in the corpus; nothing else is written.
Runs in a user's terminal.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterable, Iterator
from hashlib import sha256
from io import BytesIO
from pathlib import Path

from eigensweep.corpora.offered_files import Offered, UnreadableError, find_files
from eigensweep.store.places.durable_files import StorageError, write_whole
from eigensweep.tasks.corpora import FileGroup, KnownCorpus
from eigensweep.tasks.corpus import (
    MD5,
    Corpus,
    CorpusMissingError,
    digest_like,
    find_problem,
    name_digest,
)

MAX_PACKED_BYTES = 100_000_000
"""A larger gzip file is not unpacked."""
MAX_RECORDING_BYTES = 1_000_000
"""A larger file is none of a corpus of many small files."""


class UnwritableError(RuntimeError):
    """The data root cannot be written; the message says what to do."""


class Importer:
    """Copies the files of `corpora` out of files, folders and archives that are offered to it."""

    def __init__(self, data_root: Path, corpora: Iterable[KnownCorpus]) -> None:
        self.data_root = data_root
        self.copied: list[tuple[str, str]] = []
        """The place of each file that was copied, and where it came from."""
        self.kept: list[str] = []
        """The places of files that were offered and are there already."""
        self.refused: list[str] = []
        """What is wrong with files that have the name of a file of a corpus."""
        self._wholes = [c for c in corpora if isinstance(c.contents, FileGroup)]
        self._corpora = [c.contents for c in corpora if isinstance(c.contents, Corpus)]
        self._digests = {
            digest: (corpus, name)
            for corpus in self._corpora
            for name, (_, digest) in corpus.files.items()
            if digest is not None
        }
        self._sizes = {size for c in self._corpora for size, _ in c.files.values()}
        self._forms = [
            form for c in self._corpora for forms in c.other_forms.values() for form in forms
        ]
        self._sizes |= {form.size for form in self._forms if form.size is not None}

    def take(self, path: Path) -> None:
        """Copy the files that are recognised: a file, those in a folder, or an archive's members.

        Raises:
            OSError: if there is nothing at `path`.
            UnwritableError: if a file cannot be put in its place.
        """
        parts: dict[str, dict[str, dict[str, bytes]]] = {}
        for offered in find_files(path, self._refuse):
            try:
                self._look_at(offered)
                self._collect(offered, parts)
            except UnreadableError as error:
                self._refuse(str(error))
        for corpus in self._wholes:
            self._finish(corpus, parts.get(corpus.name, {}), path)

    def _look_at(self, offered: Offered) -> None:
        is_packed = offered.name.lower().endswith(".gz")
        name = offered.name[:-3] if is_packed else offered.name
        expected = {n.replace("-idx", ".idx"): n for c in self._corpora for n in c.files}
        name = expected.get(name, name)
        named = next((c for c in self._corpora if name in c.files), None)
        is_unpacked = is_packed and offered.size <= MAX_PACKED_BYTES
        if not is_unpacked and offered.size not in self._sizes:
            if named is not None:
                self._refuse(
                    f"{offered.place} holds {offered.size:,} bytes; expected "
                    f"{named.files[name][0]:,}"
                )
            return
        content = offered.read()
        reason = ""
        try:
            for variant in self._variants(content):
                corpus, known = self._recognise(variant)
                if corpus is None and named is not None and named.files[name][1] is None:
                    if (problem := find_problem(variant, None, named)) is not None:
                        raise ValueError(problem)
                    corpus, known = named, name
                if corpus is not None:
                    self._place(corpus, known, variant, offered.place)
                    return
        except ValueError as error:
            reason = str(error)
        if named is not None:
            found = digest_like(named.files[name][1] or "", content)
            self._refuse(
                f"{offered.place} {reason or f'has {name_digest(found)}'}; "
                f"expected, unpacked: {(named.files[name][1] or 'the file').removeprefix(MD5)}"
            )

    def _recognise(self, content: bytes) -> tuple[Corpus | None, str]:
        for algorithm in ("", MD5):
            if found := self._digests.get(digest_like(algorithm, content)):
                return found
        return None, ""

    def _variants(self, content: bytes) -> Iterator[bytes]:
        """Yield the contents that a file may stand for: as it is, unpacked, or decoded."""
        if content.startswith(b"\x1f\x8b"):
            content = _unpack(content, max(self._sizes, default=0))
        yield content
        for form in self._forms:
            if form.size == len(content):
                yield form.decode(content)

    def _place(self, corpus: Corpus, name: str, content: bytes, origin: str) -> None:
        path = self.data_root / corpus.folder / name
        try:
            corpus.read(name, self.data_root)
        except (CorpusMissingError, OSError):
            self._write(path, content, origin)
        else:
            self.kept.append(str(path))

    def _collect(self, offered: Offered, parts: dict[str, dict[str, dict[str, bytes]]]) -> None:
        """Add a file to those of its corpus, by the folder that it is in and by its name."""
        for corpus in self._wholes:
            assert isinstance(corpus.contents, FileGroup)
            if offered.size <= MAX_RECORDING_BYTES and corpus.contents.names.fullmatch(
                offered.name
            ):
                folders, place = parts.setdefault(corpus.name, {}), str(offered.place)
                folder = folders.setdefault(place.removesuffix(offered.name), {})
                folder.setdefault(offered.name, offered.read())

    def _finish(
        self, corpus: KnownCorpus, folders: dict[str, dict[str, bytes]], origin: Path
    ) -> None:
        """Put a corpus of many files in its place if a folder, or all together, offer it whole."""
        whole = corpus.contents
        assert isinstance(whole, FileGroup)
        every: dict[str, bytes] = {}
        for folder in folders.values():
            every = folder | every
        if not every:
            return
        complete = [each for each in (every, *folders.values()) if len(each) == whole.count]
        if not complete:
            self._refuse(
                f"{origin} has {len(every):,} files of '{corpus.name}'; all {whole.count:,} are "
                "needed"
            )
            return
        files = next((each for each in complete if _digest(whole, each) == whole.sha256), None)
        if files is None:
            self._refuse(
                f"the files of '{corpus.name}' in {origin} have SHA-256 "
                f"{_digest(whole, complete[0])} together; expected {whole.sha256}"
            )
            return
        try:
            corpus.verify(self.data_root)
        except (CorpusMissingError, OSError):
            for name, content in files.items():
                path = self.data_root / whole.folder / name
                if _holds(path, content):
                    self.kept.append(str(path))
                else:
                    self._write(path, content, str(origin))
        else:  # it may be in another of its folders
            self.kept += [str(corpus.find(self.data_root) / name) for name in files]

    def _refuse(self, words: str) -> None:
        if words not in self.refused:  # each member tells of its archive's damage
            self.refused.append(words)

    def _write(self, path: Path, content: bytes, origin: str) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, content)
        except (OSError, StorageError) as error:
            raise describe_write_error(path, error) from error
        self.copied.append((str(path), origin))


def _digest(whole: FileGroup, files: dict[str, bytes]) -> str:
    """Return the digest of the files together, as `sha256sum` lists them."""
    folder = Path(whole.folder).name
    lines = (f"{sha256(files[name]).hexdigest()}  {folder}/{name}\n" for name in sorted(files))
    return sha256("".join(lines).encode()).hexdigest()


def _holds(path: Path, content: bytes) -> bool:
    try:
        return path.read_bytes() == content
    except OSError:
        return False


def describe_write_error(path: Path, error: OSError | StorageError) -> UnwritableError:
    """Return the error that says which file could not be written, why, and what to do."""
    reason = error.strerror if isinstance(error, OSError) else str(error).rpartition(": ")[2]
    return UnwritableError(
        f"cannot write {path}: {reason}. EIGENSWEEP_DATA_ROOT names the folder of the corpora; "
        "set it to a folder that you can write to, on a disk with enough space"
    )


def _unpack(content: bytes, most: int) -> bytes:
    """Return what a gzip file holds, or its first `most` bytes and one more.

    Raises:
        ValueError: if it is damaged; the message continues a sentence about the file.
    """
    try:
        with gzip.GzipFile(fileobj=BytesIO(content)) as file:
            return file.read(most + 1)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"is damaged or not a gzip file ({error})") from error
