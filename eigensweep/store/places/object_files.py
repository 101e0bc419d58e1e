"""The store's files in an object store, such as S3.

A file that must not exist yet is made by a conditional put: `If-None-Match` of S3,
`ifGenerationMatch=0` of Google Cloud Storage. That is all that is asked of the object store, and
lists and reads that show what was put before.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import IO, Any, Final, NamedTuple, NoReturn

from eigensweep.store.places.durable_files import StoreAwayError, StoreKeysError, write_whole


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

SKEWED: Final = "RequestTimeTooSkewed"
"""What S3 answers to a request whose time is far from its own."""

PROXY: Final = "a proxy may stand between (HTTP_PROXY, HTTPS_PROXY, NO_PROXY)"
FOREIGN: Final = f"something else than S3 answers, with status {{}}; {PROXY}"

BLOCK: Final = 4 * 1024 * 1024
"""Bytes that one request fetches of an object that is read piece by piece."""


class ObjectFiles:
    """Files below a URL such as `s3://bucket/prefix`; see `Files`.

    Access comes from what the library of the object store reads: for S3 the variables `AWS_*` and
    its configuration files, for Google Cloud Storage the file that GOOGLE_APPLICATION_CREDENTIALS
    names or the login of `gcloud`, for both the role of the machine.
    """

    look_seconds = 5.0

    def __init__(self, url: str) -> None:
        self.place = url.rstrip("/")
        self._scheme, _, self._root = self.place.partition("://")

    @cached_property
    def _library(self) -> Any:
        """The file system of fsspec; made when it is first needed, by each process anew."""
        library = LIBRARIES[self._scheme]
        try:
            return getattr(import_module(library.module), library.name)(use_listings_cache=False)
        except (ImportError, ValueError) as error:
            raise StoreAwayError(
                f"cannot use EIGENSWEEP_STORAGE={self.place}: {error}. On every node "
                f"run pip install '.[{library.extra}]' in a checkout of Eigensweep"
            ) from error

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if name != "_library"}

    def read(self, path: str) -> bytes:
        # With more than one the library of S3 asks for the size first, with a request of its own.
        content: bytes = self._ask("read", path, "cat_file", max_concurrency=1)
        return content

    def open(self, path: str) -> IO[bytes]:
        opened: IO[bytes] = self._ask("read", path, "open", "rb", block_size=BLOCK)
        return opened

    def size(self, path: str) -> int | None:
        try:
            return int(self._ask("read", path, "size"))
        except FileNotFoundError:
            return None

    def names(self, folder: str) -> list[str]:
        try:
            listed = self._ask("list", folder, "ls", detail=False, refresh=True)
        except FileNotFoundError:
            return []
        return sorted(path.rpartition("/")[2] for path in listed)

    def sizes(self) -> Iterator[tuple[str, int]]:
        try:
            found = self._ask("list", "", "find", detail=True)
        except FileNotFoundError:
            return
        for path, about in found.items():
            yield path.removeprefix(f"{self._root}/"), int(about["size"])

    def write(self, path: str, content: bytes, *, makes_folder: bool = True) -> None:
        try:
            self._put(path, content)
        except FileNotFoundError as error:  # the bucket
            self.fail("write", path, error)

    def create(self, path: str, content: bytes, *, makes_folder: bool = True) -> bool:
        try:
            self._put(path, content, mode="create")
        except FileExistsError:
            return False
        except FileNotFoundError as error:
            self.fail("write", path, error)
        return True

    def remove(self, path: str) -> None:
        try:
            self._ask("remove", path, "rm_file")
        except FileNotFoundError:
            return

    def remove_all(self, folder: str) -> None:
        try:
            self._ask("remove", folder, "rm", recursive=True)
        except FileNotFoundError:
            return

    def fetch(self, path: str, target: Path) -> None:
        content = self.read(path)
        target.parent.mkdir(exist_ok=True)
        write_whole(target, content)

    def refresh(self, folder: str) -> None:
        """Do nothing: a list shows what was put before."""

    def fail(self, act: str, path: str, error: Exception) -> NoReturn:
        """Raise that an act failed: whatever the reason, no trial is to blame."""
        where = f"{self.place}/{path}".rstrip("/")
        words = f"cannot {act} {where}: {type(error).__name__}: {error}"
        if (status := _find_foreign(error)) is not None:
            words = f"cannot {act} {where}: {FOREIGN.format(status)}"
        if not _lacks_keys(error):
            raise StoreAwayError(words) from error
        # An administrator may bring keys at any time; the library would go on without them.
        if (library := self.__dict__.pop("_library", None)) is not None:
            type(library).clear_instance_cache()
        what = (
            f"has no keys that open {self._scheme}://{self._root.partition('/')[0]}: "
            f"{KEYS[self._scheme]}, on this node and on every other one. Ray's processes there "
            "see variables that were set before Ray started"
        )
        if any(_find_code(each) == SKEWED for each in _causes(error)):
            what = "has a clock that is far from the object store's: set it by NTP"
        raise StoreKeysError(f"{words.rstrip('.')}. Node {platform.node()} {what}") from error

    def _put(self, path: str, content: bytes, **named: Any) -> None:
        answer = self._ask("write", path, "pipe_file", content, **named)
        # An object in several parts has no answer; its parts were asked for their ETag.
        if self._scheme == "s3" and answer is not None and "ETag" not in answer:
            raise StoreAwayError(f"cannot write {self.place}/{path}: {FOREIGN.format(200)}")

    def _ask(self, act: str, path: str, name: str, *given: Any, **named: Any) -> Any:
        """Return what a method of the library does with an object.

        Raises:
            FileNotFoundError: if there is no such object.
            FileExistsError: if it was to be new, and is not.
            StoreAwayError: if the object store does not answer, or refuses.
        """
        place = f"{self._root}/{path}".rstrip("/")
        try:
            return getattr(self._library, name)(place, *given, **named)
        except FileNotFoundError as error:
            if _lacks_bucket(error):
                self.fail(act, path, error)
            raise
        except (FileExistsError, StoreAwayError):
            raise
        except Exception as error:
            if named.get("mode") == "create" and _is_conflict(error):
                raise FileExistsError(place) from error
            self.fail(act, path, error)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _lacks_keys(error: Exception) -> bool:
    """Tell whether there are no keys here, or the object store does not accept them."""
    for each in _causes(error):
        code = _find_code(each) or str(getattr(each, "code", ""))
        is_refused = isinstance(each, PermissionError) or str(each).startswith("Forbidden:")
        if is_refused or code in KEY_CODES or type(each).__name__ in KEY_ERRORS:
            return True
    return False


def _find_code(error: BaseException) -> str:
    """Return the code that an object store of the kind of S3 gave with an error, or nothing."""
    response = getattr(error, "response", None)
    return str(response.get("Error", {}).get("Code", "")) if isinstance(response, dict) else ""


def _find_foreign(error: BaseException) -> int | None:
    """Return the status of an answer that was none of an object store's: it has no code."""
    for each in _causes(error):
        response = getattr(each, "response", None)
        if isinstance(response, dict) and not response.get("Error", {}).get("Code"):
            status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
            return status if isinstance(status, int) else None
    return None


def _lacks_bucket(error: Exception) -> bool:
    """Tell whether the whole bucket is missing, as while the object store starts."""
    return any(_find_code(each) == "NoSuchBucket" for each in _causes(error))


def _is_conflict(error: Exception) -> bool:
    """Tell whether a put was refused because the object exists, or is being made at this moment."""
    for each in _causes(error):
        if _find_code(each) in ("PreconditionFailed", "ConditionalRequestConflict", "412", "409"):
            return True
    return False
