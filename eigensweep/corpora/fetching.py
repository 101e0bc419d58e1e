"""Downloads corpora from where they are published. Runs in a user's terminal.

What arrives is kept in a folder of its own under the data root. It is put in its place only after
its digest was checked, as for an import. A download that breaks off is resumed, in the same call or
in a later one. pooch is not used: it begins a broken download anew, and takes as many bytes as a
server sends.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO
from urllib.parse import urlsplit

import httpx2
from filelock import FileLock, Timeout
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_exponential

from eigensweep.corpora.importing import Importer, describe_write_error
from eigensweep.tasks.corpora import KnownCorpus
from eigensweep.tasks.corpus import Corpus, CorpusMissingError, name_digest

ATTEMPTS = 3
"""How often a download is begun or resumed in one call."""
FIRST_PAUSE = 0.5
"""Seconds before the second attempt; the next pause is twice as long."""
TIMEOUT = httpx2.Timeout(30.0, connect=10.0)
HERE = ("localhost", "127.0.0.1", "::1")
INCOMING = ".fetching"
"""The folder under the data root for files that are not complete or not checked yet."""
MAX_BYTES = 200_000_000
"""The largest download: no corpus has a file of so many bytes."""

OnProgress = Callable[[str, int, int | None], None]
"""Called with an address, the bytes that have arrived, and the expected bytes or None."""


class FetchError(RuntimeError):
    """A corpus could not be fetched; the message has the addresses and what to do by hand."""


class AddressError(RuntimeError):
    """There is no file of the corpus at an address; the message says what is there."""


def fetch(corpus: KnownCorpus, data_root: Path, on_progress: OnProgress) -> list[tuple[str, str]]:
    """Download a corpus; return the place of each new file and the address it came from.

    Files that are in their place already are kept. The addresses are tried in turn until the corpus
    is complete.

    Raises:
        FetchError: if no address has the files, or if another process is fetching them.
        UnwritableError: if the data root cannot be written.
    """
    copied: list[tuple[str, str]] = []
    failures: list[str] = []
    for way in corpus.ways:
        if _is_complete(corpus, data_root):
            break
        for url in way:
            if _is_in_place(corpus, url, data_root):
                continue
            try:
                copied += _fetch_one(corpus, url, data_root, on_progress)
            except AddressError as error:
                failures.append(f"{url}: {error}")
                break
    if not _is_complete(corpus, data_root):
        raise FetchError(_explain_by_hand(corpus, data_root, failures))
    return copied


def _fetch_one(
    corpus: KnownCorpus, url: str, data_root: Path, on_progress: OnProgress
) -> list[tuple[str, str]]:
    """Download one address, and put the files that it holds in their places.

    A wrong file is removed. If its download went on after a break, its parts may belong to two
    versions, so it is downloaded once more.
    """
    for _ in range(2):
        with _open_incoming(url, data_root) as file:
            was_resumed = download(url, file, on_progress)
            path = Path(file.name)
            importer = Importer(data_root, [corpus])
            importer.take(path)
            is_wrong = not (importer.copied or importer.kept)
            content = path.read_bytes() if is_wrong else b""
            path.unlink()
        if not is_wrong:
            return [(place, url) for place, _ in importer.copied]
        if not was_resumed:
            break
    reasons = "; ".join(words.replace(str(path), "it") for words in importer.refused)
    if not content:
        raise AddressError("sent nothing")
    if content[:512].lstrip().lower().startswith((b"<!doctype html", b"<html")):
        reasons = f"a page of HTML, such as one to sign in{reasons and f'; {reasons}'}"
    raise AddressError(
        f"is another file, with SHA-256 {sha256(content).hexdigest()}, of {len(content):,} bytes"
        f"{reasons and f' ({reasons})'}"
    )


@contextmanager
def _open_incoming(url: str, data_root: Path) -> Iterator[BinaryIO]:
    """Lend the file for what arrives from an address, to one process at a time."""
    folder = data_root / INCOMING
    name = urlsplit(url).path.rpartition("/")[2]
    path = folder / f"{sha256(url.encode()).hexdigest()[:8]}-{name}"
    lock = FileLock(f"{path}.lock", timeout=0)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with lock:
            try:
                with open(path, "ab") as file:
                    yield file
            finally:
                if path.exists() and path.stat().st_size == 0:
                    path.unlink()
                Path(lock.lock_file).unlink()
    except Timeout:
        raise FetchError(f"another process is fetching {url}; wait for its end") from None
    except OSError as error:
        raise describe_write_error(path, error) from error
    finally:
        with suppress(OSError):
            folder.rmdir()  # unless a file is left to be resumed


def download(url: str, file: BinaryIO, on_progress: OnProgress) -> bool:
    """Append to a file the rest of what an address holds; return whether it came in parts.

    Raises:
        AddressError: if the server refuses, if it fails or the connection breaks ATTEMPTS times, or
            if there are more than MAX_BYTES. Except for the last, the part is kept.
    """
    part = _length(file)
    on_progress(url, part, None)
    retrying = Retrying(
        retry=retry_if_exception_type(httpx2.TransportError),
        stop=stop_after_attempt(ATTEMPTS),
        wait=wait_exponential(FIRST_PAUSE),
        reraise=True,
    )
    try:
        # A proxy leads away from this machine, so it is not used for a server on it.
        use_proxy = urlsplit(url).hostname not in HERE
        with httpx2.Client(follow_redirects=True, timeout=TIMEOUT, trust_env=use_proxy) as client:
            retrying(_receive, client, url, file, on_progress)
    except (httpx2.HTTPError, ImportError) as error:  # a proxy may need another package
        raise AddressError(str(error) or type(error).__name__) from error
    file.flush()
    return part > 0 or retrying.statistics["attempt_number"] > 1


def _receive(client: httpx2.Client, url: str, file: BinaryIO, on_progress: OnProgress) -> None:
    have = _length(file)
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={have}-"} if have else {})
    with client.stream("GET", url, headers=headers) as response:
        if response.status_code == httpx2.codes.RANGE_NOT_SATISFIABLE:
            if response.headers.get("Content-Range") == f"bytes */{have}":
                return  # the file was complete
            file.truncate(0)
            raise httpx2.ReadError("the part that was downloaded before does not belong to it")
        if response.is_error:
            words = f"answers {response.status_code} {response.reason_phrase}"
            raise httpx2.ReadError(words) if response.is_server_error else AddressError(words)
        if response.status_code != httpx2.codes.PARTIAL_CONTENT:
            file.truncate(0)  # the server sends the whole file again
            have = 0
        elif not response.headers.get("Content-Range", "").startswith(f"bytes {have}-"):
            file.truncate(0)
            raise httpx2.ReadError("it sends another part than the one that was asked for")
        length = response.headers.get("Content-Length")
        expected = have + int(length) if length else None
        for piece in response.iter_raw():
            file.write(piece)
            have += len(piece)
            if have > MAX_BYTES:
                file.truncate(0)
                raise AddressError(f"has more than {MAX_BYTES:,} bytes, so it is no corpus")
            on_progress(url, have, expected)


def _length(file: BinaryIO) -> int:
    file.flush()
    return os.fstat(file.fileno()).st_size


def _is_complete(corpus: KnownCorpus, data_root: Path) -> bool:
    try:
        corpus.verify(data_root)
    except CorpusMissingError:
        return False
    return True


def _is_in_place(corpus: KnownCorpus, url: str, data_root: Path) -> bool:
    """Return whether the file that an address is named after is in its place, undamaged."""
    name = url.rpartition("/")[2].removesuffix(".gz")
    if not isinstance(corpus.contents, Corpus) or name not in corpus.contents.files:
        return False
    try:
        corpus.contents.read(name, data_root)
    except CorpusMissingError:
        return False
    return True


def _explain_by_hand(corpus: KnownCorpus, data_root: Path, failures: list[str]) -> str:
    failures = failures or ["the addresses do not have all of its files"]
    lines = [f"{corpus.name} could not be fetched:", *(f"  {failure}" for failure in failures)]
    lines.append(
        "If this machine is offline, download it on another one and run `eigensweep data import "
        f"PATH` on the file, folder or archive, or put these files into "
        f"{data_root / corpus.folder}:"
    )
    if isinstance(corpus.contents, Corpus):
        for name, (size, digest) in corpus.contents.files.items():
            lines.append(f"  {name}  {size:,} bytes  {name_digest(digest)}")
    elif corpus.contents is not None:
        whole = corpus.contents
        lines.append(f"  {whole.count:,} files; SHA-256 of their `sha256sum`: {whole.sha256}")
    return "\n".join(lines)
