"""A copy of a home folder in one file, made while a service works in it, and the way back.

Runs in a user's terminal. What is copied belongs to one moment, as after a cut of power: while the
heads of the store are read nobody writes to the record, so no attempt, trial or round begins. A
service goes on from such a moment by itself.

    eigensweep.db, mlflow/mlflow.db   SQLite's own online backup, in that moment
    storage/                          head by head; checkpoints are linked, as they never change
    mlflow/artifacts/, analyses/, reproductions/    files, after that moment
    manifest.json                     names, sizes and digests of all of them; the last one

An attempt that began after that moment is none: each head is written with the attempt of the
record, or the next service could not begin it again.

An archive has one form, wherever its record and its store were: rows of PostgreSQL are in the same
SQLite file, and objects of an object store in the same files. So it can be restored anywhere.
"""

from __future__ import annotations

import errno
import gzip
import hashlib
import io
import json
import os
import shutil
import sqlite3
import tarfile
import tempfile
import time
import zlib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Final, cast

from sqlalchemy import Connection, make_url, select

from eigensweep.common.aside import call_aside
from eigensweep.common.private_folders import keep_secret, require_private
from eigensweep.protocol.states import OPEN_TRIALS
from eigensweep.search_spaces.labels import say_count
from eigensweep.service.process.home import UNFINISHED, require_whole
from eigensweep.service.process.locking import hold_alone
from eigensweep.service.record import migrations
from eigensweep.service.record.sql import copying, database
from eigensweep.service.record.sql.tables import TrialRow
from eigensweep.service.settings import Settings, read_version
from eigensweep.store.checkpoints import Store
from eigensweep.store.places.files import is_url
from eigensweep.store.places.folder_files import give_name
from eigensweep.store.upkeep.copies import STAGING, copy_out, explain_emptiness

FORMAT: Final = 2
"""The form of the archive; a later one that cannot be read by this version has another number."""
FORMATS: Final = (1, FORMAT)
"""Forms that can be restored; in the first one the store's heads were `head.json`."""
MANIFEST: Final = "manifest.json"
RECORD: Final = "eigensweep.db"
MLFLOW: Final = "mlflow/mlflow.db"
LIVE: Final = ("mlflow/artifacts", "analyses", "reproductions")
"""Folders whose files are written whole, and copied as they are."""
ROOTS: Final = (RECORD, "mlflow", "optuna", "storage", "analyses", "reproductions")
"""What an archive may hold, besides its manifest; an older one has Optuna's journals, too."""
HOLD_SECONDS: Final = 900.0
"""How long posts and drivers wait for a backup at most: a store may hang for a night."""
BUSY_SECONDS: Final = 60.0
"""How long to wait for another writer of a database."""
CHUNK: Final = 1 << 20
FETCHES: Final = 16
"""Trials that are fetched from an object store at once."""
TIME_IN_NAME: Final = "%Y%m%d-%H%M%S"
PARTIAL: Final = ".partial"
"""What the name of a backup ends with until it is whole."""
ANY_TIME: Final = "????????-??????"


class BackupError(RuntimeError):
    """No backup can be made, or none can be restored; the message says what would work."""


@dataclass(frozen=True)
class Member:
    """A file of an archive."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """What an archive says of itself."""

    format: int
    version: str
    schema: str
    """Version of the record's schema."""
    made_at: float
    """Seconds since 1970."""
    left_out: tuple[str, ...]
    """What is not in it, in words."""
    files: dict[str, Member] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Size of all files together."""
        return sum(each.bytes for each in self.files.values())

    @classmethod
    def from_json(cls, content: bytes) -> Manifest:
        """Read what `to_json` gave.

        Raises:
            BackupError: if it is none, or one of a version that this one does not know.
        """
        try:
            known = json.loads(content)
            if known["format"] not in FORMATS:
                raise BackupError(
                    f"this backup has the form {known['format']}, and this version of Eigensweep "
                    f"reads the forms up to {FORMAT}: restore it with Eigensweep {known['version']}"
                )
            files = {name: Member(**each) for name, each in known.pop("files").items()}
            return cls(**{**known, "left_out": tuple(known["left_out"])}, files=files)
        except (AttributeError, ValueError, KeyError, TypeError) as error:
            raise BackupError(f"the manifest of this backup cannot be read: {error}") from error

    def to_json(self) -> bytes:
        """Return it as the archive holds it."""
        return json.dumps(asdict(self), indent=1).encode()


def back_up(settings: Settings, file: Path) -> Manifest:
    """Write a backup of the home folder into a new file, which only this user can read.

    A service may work in the home meanwhile. Posts and drivers wait while SQLite's databases are
    copied and the heads of trials that run are read; training goes on.

    Raises:
        BackupError: if the file is there already, there is no record, another backup is being
            made, or the store does not answer.
        RecordUnusableError: if the record's database does not answer.
        OSError, sqlite3.Error, SQLAlchemyError, StorageError: if something cannot be read or
            written.
    """
    _require_record(settings)
    if file.exists():
        raise BackupError(f"{file} is there already; choose another name, or remove it")
    place, record = settings.storage_folder, _find_record(settings)
    with ExitStack() as stack:
        taken = BackupError(f"another backup of {settings.home} is being made")
        stack.enter_context(hold_alone(settings.home / "backup.lock", taken))
        storage = settings.home if is_url(place) else Path(place)
        prefix = f"{STAGING}{_read_mark(settings.home)}-"
        _remove_leftovers(settings.home, STAGING)
        _remove_leftovers(storage, prefix)  # which other homes may share
        copies = stack.enter_context(_make_staging(settings.home, prefix))
        shots = _StoreCopy(place, stack.enter_context(_make_staging(storage, prefix)))
        shots.take(record.read_trials(), only_ended=True)
        with record.hold_still(copies / RECORD) as trials:
            if settings.mlflow_uri is None:
                copy_database(settings.home / MLFLOW, copies / MLFLOW)
            try:
                call_aside(partial(shots.take, trials), "backup").result(HOLD_SECONDS)
            except TimeoutError as error:
                shots.is_abandoned = True
                raise BackupError(
                    f"what trains now was not read from the store {place} within "
                    f"{HOLD_SECONDS:.0f} s, and posts and drivers wait no longer: make the backup "
                    "when the store answers, or while less trains"
                ) from error
        with _write_new(file) as target:
            return _write_archive(target, settings, copies, shots)


def name_by_time(folder: Path, settings: Settings) -> Path:
    """Return the name of a new backup of a home, in a folder of backups.

    Raises:
        BackupError: if there is nothing to be saved.
    """
    _require_record(settings)
    return folder / _name(settings.home, time.strftime(TIME_IN_NAME, time.gmtime()))


def remove_older(made: Path, home: Path, keep: int) -> list[Path]:
    """Remove all but the newest `keep` backups of a home, from the folder of the one just made.

    Those with a later name are from when the clock was ahead, and go first. What killed
    backups of this home have left goes, too. Returns the whole ones that were removed.
    """
    found = made.parent.glob(_name(home, ANY_TIME))
    older = sorted(found, key=lambda path: (path.name <= made.name, path.name))[:-keep]
    partial = made.parent.glob(_name(home, ANY_TIME) + PARTIAL)
    for path in (*older, *(each for each in partial if each.name < made.name)):
        path.unlink(missing_ok=True)
    return older


def _name(home: Path, moment: str) -> str:
    return f"eigensweep-{moment}-{_read_mark(home)}.tar.gz"


def _read_mark(home: Path) -> str:
    """Return what tells a home's backups from those of others in the same places."""
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    return keep_secret(home / "backup.mark")[:6]


def _require_record(settings: Settings) -> None:
    require_whole(settings.home)
    if settings.database_url is None and not (settings.home / RECORD).exists():
        raise BackupError(
            f"there is no record in {settings.home}; set EIGENSWEEP_HOME to the home folder of "
            "the service"
        )


def _find_record(settings: Settings) -> _SqliteRecord | _PostgresqlRecord:
    url = make_url(settings.database)
    if url.get_backend_name() == "postgresql":
        record = _PostgresqlRecord(settings.database)
        record.check()
        return record
    path = database.file_of(settings.database)
    if path is None or not path.is_file():
        raise BackupError(
            f"the record at {database.show_place(settings.database)} cannot be saved: only "
            "PostgreSQL and files of SQLite can"
        )
    return _SqliteRecord(path)


@contextmanager
def _make_staging(folder: Path, prefix: str) -> Iterator[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(
        prefix=prefix, dir=folder, ignore_cleanup_errors=True
    ) as made:  # the next backup removes what stays
        yield Path(made)


def _remove_leftovers(folder: Path, prefix: str) -> None:
    """Remove what backups that were killed have left."""
    for path in folder.glob(f"{prefix}*"):
        shutil.rmtree(path, ignore_errors=True)


@dataclass(frozen=True)
class _TrialRow:
    experiment: str
    number: int
    state: str
    attempt: int


@dataclass(frozen=True)
class _SqliteRecord:
    path: Path

    def read_trials(self) -> list[_TrialRow]:
        query = "SELECT experiment_id, number, state, attempt FROM trials"
        with closing(sqlite3.connect(self.path, timeout=BUSY_SECONDS)) as source:
            return [_TrialRow(*row) for row in source.execute(query)]

    @contextmanager
    def hold_still(self, copy: Path) -> Iterator[list[_TrialRow]]:
        """Make whoever wants to write wait, copy the record, and give its trials."""
        with closing(
            sqlite3.connect(self.path, timeout=BUSY_SECONDS, isolation_level=None)
        ) as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                copy_database(self.path, copy)
                yield _SqliteRecord(copy).read_trials()
            finally:
                connection.execute("ROLLBACK")


@dataclass(frozen=True)
class _PostgresqlRecord:
    url: str

    def check(self) -> None:
        """Raise BackupError if the record is not one of this version."""
        with migrations.try_database(self.url):
            have, ours = migrations.compare_versions(self.url)
        if have != ours:
            place = database.show_place(self.url)
            raise BackupError(
                f"the record at {place} has schema {have}, and this version of Eigensweep reads "
                f"{ours}: run `eigensweep backup` of the version that the service has"
            )

    def read_trials(self) -> list[_TrialRow]:
        with copying.see_one_moment(self.url) as source:
            return self._read_trials(source)

    def _read_trials(self, source: Connection) -> list[_TrialRow]:
        query = select(TrialRow.experiment_id, TrialRow.number, TrialRow.state, TrialRow.attempt)
        return [_TrialRow(*row) for row in source.execute(query)]

    @contextmanager
    def hold_still(self, copy: Path) -> Iterator[list[_TrialRow]]:
        """Make whoever wants to write wait, and give the trials; copy that moment's rows then."""
        with copying.see_one_moment(self.url) as source:
            with copying.nobody_writes(self.url, BUSY_SECONDS):
                yield self._read_trials(source)
            with _fill_sqlite(copy) as target:
                copying.copy_rows(source, target)


@contextmanager
def _fill_sqlite(path: Path) -> Iterator[Connection]:
    """Lend a connection to a new record in one file, without a log beside it."""
    url = f"sqlite:///{path}"
    migrations.migrate(url)
    with database.engine(url).execution_options(mode="writes").begin() as connection:
        yield connection
    database.engine(url).dispose()
    with closing(sqlite3.connect(path)) as made:
        made.execute("PRAGMA journal_mode=DELETE")


def copy_database(source: Path, target: Path) -> None:
    """Copy a SQLite database while others use it; nothing happens where there is none."""
    if not source.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with (
        closing(sqlite3.connect(source, timeout=BUSY_SECONDS)) as here,
        closing(sqlite3.connect(target)) as there,
    ):
        here.backup(there)
        there.execute("PRAGMA journal_mode=DELETE")  # one file, without a log beside it


class _StoreCopy:
    """Copies of the replicates of some trials, made of links in a folder of the store's disk.

    Of an object store they are copies indeed.
    """

    def __init__(self, storage: str, staging: Path) -> None:
        self._store, self.staging = Store(storage), staging
        self._reports = None if is_url(storage) else Path(storage)
        self._taken: dict[tuple[str, int], _TrialRow] = {}
        self._wanted: list[_TrialRow] = []
        self._copied: dict[str, list[Path]] = {}
        """The files of each trial, by its place."""
        self.is_abandoned = False
        """Whether nobody waits for what is still to be copied."""

    def take(self, trials: Iterable[_TrialRow], only_ended: bool = False) -> None:
        """Copy trials, but those that were copied before and have not changed since.

        Raises:
            BackupError: if this cannot be the store that they were trained in.
        """
        self._wanted = [each for each in trials if not (only_ended and each.state in OPEN_TRIALS)]
        self._require_commits()
        changed = [
            trial
            for trial in self._wanted
            if trial.state in OPEN_TRIALS
            or self._taken.get((trial.experiment, trial.number)) != trial
        ]
        with ThreadPoolExecutor(FETCHES if self._reports is None else 1) as threads:
            list(threads.map(self._copy, changed))
        self._taken.update({(trial.experiment, trial.number): trial for trial in changed})

    def _require_commits(self) -> None:
        """Raise BackupError if trials have trained, and the store holds nothing at all."""
        has_trained = any(each.state == "completed" for each in self._wanted)
        if has_trained and (words := explain_emptiness(self._store)) is not None:
            raise BackupError(words)

    def _copy(self, trial: _TrialRow) -> None:
        place = f"{trial.experiment}/{trial.number:05d}"
        shutil.rmtree(self.staging / place, ignore_errors=True)
        for seed in self._store.files.names(place):
            key = f"{place}/{seed}"
            target = self.staging / key
            if self.is_abandoned:
                return
            target.mkdir(parents=True)
            copy_out(self._store, key, target, trial.attempt)
        self._copied[place] = _list_files(self.staging / place)

    def list_files(self) -> Iterator[tuple[str, Path]]:
        """Yield name and path of each file."""
        for trial in self._wanted:
            for path in self._copied.get(f"{trial.experiment}/{trial.number:05d}", ()):
                name = path.relative_to(self.staging).as_posix()
                yield f"storage/{name}", path
        if self._reports is None:
            return
        for experiment in dict.fromkeys(trial.experiment for trial in self._wanted):
            for path in _list_files(self._reports / experiment / "report"):
                yield f"storage/{path.relative_to(self._reports).as_posix()}", path


def _list_files(folder: Path) -> list[Path]:
    """Return the files below a folder, but for links and what vanishes meanwhile, in order."""

    def note(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            raise error

    walked = os.walk(folder, onerror=note)
    found = (Path(place, name) for place, _, names in walked for name in names)
    return sorted(path for path in found if path.is_file() and not path.is_symlink())


@contextmanager
def _write_new(file: Path) -> Iterator[IO[bytes]]:
    """Lend a new file for this user alone, which gets its name when it is whole."""
    partial = file.with_name(file.name + PARTIAL)
    with suppress(FileNotFoundError):
        partial.unlink()
    try:
        with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as target:
            yield target
            target.flush()
            os.fsync(target.fileno())
        if not give_name(partial, file):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(file))
    finally:
        partial.unlink(missing_ok=True)


def _write_archive(
    target: IO[bytes], settings: Settings, copies: Path, shots: _StoreCopy
) -> Manifest:
    made = Manifest(
        FORMAT, read_version(), _read_schema(copies / RECORD), time.time(), _tell(settings)
    )
    with tarfile.open(fileobj=target, mode="w:gz", compresslevel=1) as archive:
        for name, path in _list_members(settings, copies, shots):
            with _may_vanish(path, copies, shots.staging), path.open("rb") as source:
                made.files[name] = _add(archive, name, source)
        content = made.to_json()
        archive.addfile(_describe(MANIFEST, len(content), made.made_at), io.BytesIO(content))
    return made


@contextmanager
def _may_vanish(path: Path, *staging: Path) -> Iterator[None]:
    """Pass over a file that has vanished, unless it is a copy that was made for the backup."""
    try:
        yield
    except FileNotFoundError:
        if any(path.is_relative_to(folder) for folder in staging):
            raise BackupError(f"{path} was removed meanwhile: begin again") from None


def _list_members(
    settings: Settings, copies: Path, shots: _StoreCopy
) -> Iterator[tuple[str, Path]]:
    for path in _list_files(copies):
        yield path.relative_to(copies).as_posix(), path
    yield from shots.list_files()
    for folder in LIVE:
        for path in _list_files(settings.home / folder):
            if path.suffix not in (".tmp", ".new", ".lock"):
                yield path.relative_to(settings.home).as_posix(), path


def _add(archive: tarfile.TarFile, name: str, source: IO[bytes]) -> Member:
    """Add as much of a file as it holds now."""
    seen = os.fstat(source.fileno())
    info = _describe(name, seen.st_size, seen.st_mtime)
    reader = _Digesting(source)
    archive.addfile(info, cast(IO[bytes], reader))
    return Member(info.size, reader.digest.hexdigest())


def _describe(name: str, size: int, changed_at: float) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size, info.mode, info.mtime = size, 0o600, int(changed_at)
    return info


class _Digesting:
    """Reads a file, and computes the digest of what was read."""

    def __init__(self, source: IO[bytes]) -> None:
        self._source, self.digest = source, hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes."""
        content = self._source.read(size)
        self.digest.update(content)
        return content


def _tell(settings: Settings) -> tuple[str, ...]:
    """Return what a backup leaves out, in words."""
    words = [
        "corpora, which `eigensweep data` fetches or imports again",
        "sessions of browsers: people sign in again",
        "Ray's folder and logs",
    ]
    if settings.mlflow_uri is not None:
        words.append(f"MLflow, which runs by itself at {settings.mlflow_uri}")
    return tuple(words)


def _read_schema(record: Path) -> str:
    with closing(sqlite3.connect(record)) as source:
        (found,) = source.execute("SELECT version_num FROM alembic_version").fetchone()
    return str(found)


def restore(
    file: Path, home: Path, database_url: str | None = None, storage: str | None = None
) -> Manifest:
    """Make a home folder of a backup; the folder is there as a whole, or not at all.

    Args:
        file: What `back_up` wrote.
        home: A new folder, or an empty one.
        database_url: An empty database of PostgreSQL for the record; None: SQLite in the home.
        storage: An empty folder, or an empty place in an object store, for checkpoints and curves;
            None: a folder in the home.

    Raises:
        BackupError: if one of the places holds something, the file is no backup, is cut off or
            damaged, or was made by a newer version.
        UnsafeFolderError: if others could change the folder.
        RecordUnusableError: if the database does not answer.
        OSError, SQLAlchemyError, StorageError: if something cannot be read or written. Then the
            new store may hold a part.
    """
    home = home.expanduser().resolve()
    _require_empty(home, "--home")
    database_file = None if database_url is None else database.file_of(database_url)
    if database_file is not None and database_file.resolve().is_relative_to(home):
        raise BackupError(
            f"{database_file} would lie in the new home folder, which is empty: leave out "
            "--database-url, and the record is SQLite there"
        )
    if home.is_mount():
        raise BackupError(
            f"a file system is mounted at {home}, which cannot be replaced as a whole: choose a "
            "folder in it with --home"
        )
    home.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix=f".{home.name}-", dir=home.parent) as made,
        ExitStack() as stack,
    ):
        folder = Path(made) / "home"
        folder.mkdir(mode=0o700)
        require_private(folder)
        manifest = _extract(file, folder)
        _check_record(folder / RECORD, manifest)
        if database_url is not None:
            stack.enter_context(_put_into_database(folder / RECORD, database_url))
        if storage is not None:
            _put_into_store(folder / "storage", _find_within(storage, home, folder))
        if database_url is not None:
            (folder / UNFINISHED).touch()
        os.replace(folder, home)  # takes the place of an empty folder
        try:
            stack.close()  # the database has the record from now on
        except BaseException:
            os.replace(home, folder)
            raise
        (home / UNFINISHED).unlink(missing_ok=True)
    return manifest


def _find_within(storage: str, home: Path, made: Path) -> str:
    """Return where the store is made: in the new home, if its place is in the home."""
    place = Path(storage).expanduser()
    if is_url(storage) or not (place := place.resolve()).is_relative_to(home):
        return storage
    return str(made / place.relative_to(home))


def _require_empty(folder: Path, option: str) -> None:
    require_whole(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BackupError(
            f"{folder} is not empty, and a backup is restored into a new folder only: choose "
            f"another one with {option}, or move this one away"
        )


@contextmanager
def _put_into_database(record: Path, url: str) -> Iterator[None]:
    """Move the record's file into PostgreSQL; nothing is there before the block ends well."""
    ours = f"sqlite:///{record}"
    migrations.migrate(ours)
    with database.engine(url).connect() as target:
        if (table := copying.find_table_in_use(target)) is not None:
            place = database.show_place(url)
            raise BackupError(
                f"the database at {place} is not empty (it has the table '{table}'), and a record "
                "is restored into an empty one only: make one with `createdb`"
            )
    migrations.migrate(url)
    with database.engine(url).begin() as target:
        with database.engine(ours).connect() as source:
            copying.copy_rows(source, target)
        database.engine(ours).dispose()
        record.unlink()
        yield


def _put_into_store(copied: Path, place: str) -> None:
    """Move checkpoints and curves of a backup to their place; it must be empty."""
    if not is_url(place):
        folder = Path(place)
        if folder == copied:
            return
        _require_empty(folder, "--storage")
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            for each in sorted(copied.iterdir()) if copied.exists() else ():
                shutil.move(each, folder / each.name)
        except shutil.Error as error:  # of each file that could not be copied
            for each in folder.iterdir():
                shutil.rmtree(each, ignore_errors=True)
            raise BackupError(
                f"checkpoints and curves cannot be written to {folder}: {error.args[0][0][-1]}"
            ) from error
        return
    store = Store(place)
    if next(store.files.sizes(), None) is not None:
        raise BackupError(
            f"{place} is not empty, and a backup is restored into an empty place only: choose "
            "another prefix with --storage"
        )
    for folder in sorted({head.parent for head in copied.glob("*/*/*/head*.json")}):
        for path in _list_files(folder):
            store.files.write(path.relative_to(copied).as_posix(), path.read_bytes())
    shutil.rmtree(copied, ignore_errors=True)


def _extract(file: Path, folder: Path) -> Manifest:
    """Write the files of a backup into a folder, and compare them with its manifest."""
    found: dict[str, Member] = {}
    manifest: Manifest | None = None
    try:
        with tarfile.open(file, mode="r|gz") as archive:
            for info in archive:
                source = archive.extractfile(info) if info.isreg() else None
                if source is None or manifest is not None:
                    raise BackupError(f"{file} is no backup of Eigensweep: it holds {info.name!r}")
                if info.name == MANIFEST:
                    manifest = Manifest.from_json(source.read())
                else:
                    found[info.name] = _write_member(folder, info, source)
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise BackupError(f"{file} is no whole backup of Eigensweep: {error}") from error
    if manifest is None:
        raise BackupError(f"{file} is no whole backup of Eigensweep: it has no manifest at its end")
    if wrong := sorted(
        name
        for name in found.keys() | manifest.files.keys()
        if found.get(name) != manifest.files.get(name)
    ):
        raise BackupError(
            f"{file} is damaged: its manifest contradicts {say_count(len(wrong), 'file')}, such as "
            f"{wrong[0]}; take another backup"
        )
    return manifest


def _write_member(folder: Path, info: tarfile.TarInfo, source: IO[bytes]) -> Member:
    path = PurePosixPath(info.name)
    if path.is_absolute() or ".." in path.parts or (path.parts or ("",))[0] not in ROOTS:
        raise BackupError(f"this is no backup of Eigensweep: it holds {info.name!r}")
    target = folder / path
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    reader = _Digesting(source)
    with open(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        shutil.copyfileobj(cast(IO[bytes], reader), file, CHUNK)
        file.flush()
        os.fsync(file.fileno())
    return Member(info.size, reader.digest.hexdigest())


def _check_record(record: Path, manifest: Manifest) -> None:
    """Refuse a record that this version cannot read, in words."""
    if not record.exists():
        raise BackupError("this backup has no record")
    if migrations.is_too_old(manifest.schema):
        raise BackupError(
            f"this backup was made by Eigensweep {manifest.version} (its record has schema "
            f"{manifest.schema}): restore it with Eigensweep 0.2, {migrations.THROUGH}"
        )
    if manifest.schema not in migrations.list_revisions():
        raise BackupError(
            f"this backup was made by Eigensweep {manifest.version}, which is newer than this one "
            f"(its record has schema {manifest.schema}): install that version, and restore it then"
        )
    with closing(sqlite3.connect(record)) as source:
        (answer,) = source.execute("PRAGMA quick_check").fetchone()
    if answer != "ok":
        raise BackupError(f"the record of this backup is damaged: {answer}")
