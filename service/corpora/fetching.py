"""Corpora fetched from where they are published: resumed, checked, and only then put in place.

What comes in is kept in a folder of its own under the data root until its contents are recognised
by their digests, as those of an import are. A connection that breaks is taken up where it broke, in
this call or a later one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from fcntl import LOCK_EX, LOCK_NB, flock
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO
from urllib.parse import urlsplit

import httpx2

from eigensweep.service.corpora.importing import Importer, unwritable
from eigensweep.tasks.corpora import KnownCorpus
from eigensweep.tasks.corpus import Corpus, CorpusMissingError

TRIES = 3
"""How often a download is begun or taken up in one call."""
TIMEOUT = httpx2.Timeout(30.0, connect=10.0)
INCOMING = ".fetching"
"""Folder under the data root for what is not complete or not checked yet."""
MOST_BYTES = 200_000_000
"""Of what an address gives; what is more is no corpus."""

Told = Callable[[str, int, int | None], None]
"""Takes an address, bytes that have come, and bytes that are expected if that is known."""


class FetchError(RuntimeError):
    """A corpus could not be fetched; says from where it was tried and what to do by hand."""


class AddressError(RuntimeError):
    """One address gave nothing, or not what was expected."""


def fetch(corpus: KnownCorpus, data_root: Path, told: Told) -> list[tuple[str, str]]:
    """Bring a corpus, and return each file put in place with where it came from.

    What is there already is kept. Addresses are tried in turn until all is there.

    Raises:
        FetchError: if that is not to be had from any of them, or another process is at it.
        UnwritableError: if the data root cannot be written.
    """
    copied: list[tuple[str, str]] = []
    failures: list[str] = []
    for way in corpus.ways:
        if _is_there(corpus, data_root):
            break
        for url in way:
            if _holds(corpus, url, data_root):
                continue
            try:
                copied += _fetch_one(corpus, url, data_root, told)
            except AddressError as error:
                failures.append(f"{url}: {error}")
                break
    if not _is_there(corpus, data_root):
        raise FetchError(_by_hand(corpus, data_root, failures))
    return copied


def _fetch_one(corpus: KnownCorpus, url: str, data_root: Path, told: Told) -> list[tuple[str, str]]:
    """Download one address, and put what it holds in place.

    What is wrong is removed; if it was put together in several calls, it is asked for once more.
    """
    for _ in range(2):
        with _incoming(url, data_root) as file:
            resumed = download(url, file, told)
            path = Path(file.name)
            importer = Importer(data_root, [corpus])
            importer.take(path)
            wrong = not (importer.copied or importer.kept)
            digest = sha256(path.read_bytes()).hexdigest() if wrong else ""
            path.unlink()
        if not wrong:
            return [(place, url) for place, _ in importer.copied]
        if not resumed:
            break
    said = "; ".join(words.replace(str(path), "it") for words in importer.refused)
    raise AddressError(f"gave something else, of SHA-256 {digest}{f' ({said})' if said else ''}")


@contextmanager
def _incoming(url: str, data_root: Path) -> Iterator[BinaryIO]:
    """Lend the file that collects what comes from an address, to one process at a time."""
    folder = data_root / INCOMING
    name = urlsplit(url).path.rpartition("/")[2]
    path = folder / f"{sha256(url.encode()).hexdigest()[:8]}-{name}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with open(path, "ab") as file:
            try:
                flock(file, LOCK_EX | LOCK_NB)
            except BlockingIOError:
                raise FetchError(
                    f"another process is fetching {url}; let it end, then try again"
                ) from None
            try:
                yield file
            finally:
                with suppress(FileNotFoundError):
                    if not path.stat().st_size:
                        path.unlink()
    except OSError as error:
        raise unwritable(path, error) from error
    finally:
        with suppress(OSError):
            folder.rmdir()  # if nothing is left to resume


def download(url: str, file: BinaryIO, told: Told) -> bool:
    """Append to a file what an address holds beyond what is in it; return whether there was some.

    Raises:
        AddressError: if it does not answer, refuses, or breaks off too often. What has come stays,
            unless it is more than any corpus.
    """
    began = _length(file)
    told(url, began, None)
    loopback = urlsplit(url).hostname in {"127.0.0.1", "localhost", "::1"}
    failure = ""
    with httpx2.Client(follow_redirects=True, timeout=TIMEOUT, trust_env=not loopback) as client:
        for _ in range(TRIES):
            try:
                _receive(client, url, file, told)
            except httpx2.TransportError as error:
                failure = str(error) or type(error).__name__
                continue
            except httpx2.HTTPError as error:
                raise AddressError(str(error)) from error
            file.flush()
            return began > 0
    raise AddressError(failure)


def _receive(client: httpx2.Client, url: str, file: BinaryIO, told: Told) -> None:
    have = _length(file)
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={have}-"} if have else {})
    with client.stream("GET", url, headers=headers) as response:
        if response.status_code == httpx2.codes.RANGE_NOT_SATISFIABLE:
            if response.headers.get("Content-Range") == f"bytes */{have}":
                return  # it was complete
            file.truncate(0)
            raise httpx2.ReadError("what had come before is no part of it")
        if response.is_error:
            raise AddressError(f"answers {response.status_code} {response.reason_phrase}")
        if response.status_code != httpx2.codes.PARTIAL_CONTENT:
            file.truncate(0)  # the whole again
            have = 0
        length = response.headers.get("Content-Length")
        expected = have + int(length) if length else None
        for piece in response.iter_raw():
            file.write(piece)
            have += len(piece)
            if have > MOST_BYTES:
                file.truncate(0)
                raise AddressError(f"gives more than {MOST_BYTES:,} bytes; no corpus has so many")
            told(url, have, expected)


def _length(file: BinaryIO) -> int:
    file.flush()
    return os.fstat(file.fileno()).st_size


def _is_there(corpus: KnownCorpus, data_root: Path) -> bool:
    try:
        corpus.verify(data_root)
    except CorpusMissingError:
        return False
    return True


def _holds(corpus: KnownCorpus, url: str, data_root: Path) -> bool:
    """Tell whether the one file that an address is named after is in place."""
    name = url.rpartition("/")[2].removesuffix(".gz")
    if not isinstance(corpus.contents, Corpus) or name not in corpus.contents.files:
        return False
    try:
        corpus.contents.read(name, data_root)
    except CorpusMissingError:
        return False
    return True


def _by_hand(corpus: KnownCorpus, data_root: Path, failures: list[str]) -> str:
    failures = failures or ["what came is not the whole of it"]
    lines = [f"{corpus.name} could not be fetched:", *(f"  {failure}" for failure in failures)]
    lines.append(
        "Is this machine offline? Then get it elsewhere and run `eigensweep data import PATH` on "
        f"the file, folder or archive, or put these files into {data_root / corpus.folder}:"
    )
    if isinstance(corpus.contents, Corpus):
        for name, (size, digest) in corpus.contents.files.items():
            lines.append(f"  {name}  {size:,} bytes  SHA-256 {digest}")
    elif corpus.contents is not None:
        whole = corpus.contents
        lines.append(f"  {whole.count:,} files  SHA-256 {whole.sha256} of their `sha256sum`")
    return "\n".join(lines)
