"""A home is copied while an experiment trains in it, and the copy goes on to the same end."""

from __future__ import annotations

import errno
import io
import json
import os
import shutil
import sqlite3
import stat
import tarfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import s3
from helpers.schema_of_0_2 import make_schema_of_0_2
from helpers.waiting import PATIENCE, wait_until
from orders import make_order
from sqlalchemy import inspect, text
from sqlalchemy.dialects.postgresql.base import PGDialect
from sqlalchemy.exc import OperationalError
from typer.testing import CliRunner

from eigensweep.command.cli import app as command_line
from eigensweep.common.private_folders import keep_secret
from eigensweep.protocol.states import OUTCOMES
from eigensweep.search_spaces.space import Point
from eigensweep.search_spaces.spec import ExperimentSpec
from eigensweep.service.process import backup
from eigensweep.service.process.backup import BackupError, back_up, restore
from eigensweep.service.process.checkup import Context, check_folders
from eigensweep.service.process.home import hold
from eigensweep.service.process.locking import hold_alone
from eigensweep.service.record.ledger import RecordLedger
from eigensweep.service.record.migrations import RecordUnusableError, migrate
from eigensweep.service.record.record import Record
from eigensweep.service.record.sql import copying, database
from eigensweep.service.settings import Settings, StartError
from eigensweep.store.checkpoints import Store, replicate_key
from eigensweep.training.attempt import Attempt

STEPS = 80
RATES = (1e-3, 3e-3, 1e-2, 3e-2)
CONTENT: dict[str, Any] = {
    "name": "copied",
    "task": {"name": "copying", "delay": 5, "symbols": 2, "batch_size": 4},
    "model": {"name": "scornn", "hidden_size": 6, "negative_ones": 2},
    "training": {"steps": STEPS, "evaluate_every": 10},
    "search": {"method": "grid", "space": {"optimizer.lr": list(RATES)}},
}


@pytest.fixture(scope="module")
def store_url() -> Iterator[str]:
    """The URL of a bucket."""
    with s3.serve() as url:
        yield url


@pytest.fixture
def settings(tmp_path: Path, empty_record: Path) -> Settings:
    """A home with a record, and with what MLflow and a browser's user leave there."""
    made = Settings(home=tmp_path / "home")
    (made.home / "mlflow").mkdir(parents=True, mode=0o700)
    made.home.chmod(0o700)
    shutil.copyfile(empty_record, made.home / "eigensweep.db")
    with closing(sqlite3.connect(made.home / "mlflow" / "mlflow.db")) as mlflow:
        mlflow.execute("CREATE TABLE points (step INTEGER)")
    (made.home / "mlflow" / "token").write_text("the secret of MLflow")
    (made.home / "sessions.json").write_text("sessions")
    (made.home / "mlflow" / "artifacts").mkdir()
    (made.home / "mlflow" / "artifacts" / "plot.png").write_bytes(b"png")
    return made


def post(settings: Settings, steps: int = STEPS) -> str:
    content = CONTENT | {"training": CONTENT["training"] | {"steps": steps}}
    return Record(settings.database).add(ExperimentSpec.model_validate(content))[0].id


def drive(settings: Settings, id: str, at_rung: Callable[[], None] = lambda: None) -> None:
    """Train what is not over, as a driver does, to the end of the experiment."""
    record = Record(settings.database)
    claim = record.claim(id)
    assert claim is not None
    ledger = RecordLedger(record.url, id, claim.generation)
    spec = ExperimentSpec.from_stored(record.row(id).spec)
    known = {entry.number: entry for entry in ledger.load()}
    for number, rate in enumerate(RATES):
        if number in known and known[number].state in OUTCOMES:
            continue
        params = {"optimizer.lr": rate}
        config = spec.trial(Point("scornn", params))
        body = config.model_dump(mode="json")
        ledger.open(number, "scornn", params, body, config.content_hash())
        attempt = ledger.begin(number)
        order = make_order(
            experiment=id,
            number=number,
            attempt=attempt,
            config=body,
            rungs=tuple(range(10, (config.training.steps or 0) + 1, 10)),
            reported=known[number].reached if number in known else 0,
            storage=settings.storage_folder,
        )
        work = Attempt(order, "cpu")
        while (report := work.advance()).outcome is None:
            ledger.report(number, attempt, report.step, report.metrics, None)
            at_rung()
        ledger.finish(number, attempt, report.outcome, report.result)
    ledger.end("completed")


def read_curves(settings: Settings, id: str) -> list[list[tuple[int, dict[str, float]]]]:
    """Return step and metrics of each point, but for the seconds that training took."""
    store = Store(settings.storage_folder)
    return [
        [
            (point.step, {k: v for k, v in point.metrics.items() if "second" not in k})
            for point in store.points(replicate_key(id, number, 0))
        ]
        for number in range(len(RATES))
    ]


class TestWhileItRuns:
    @pytest.mark.slow
    def test_each_copy_ends_alike_and_finishes_each_trial_once(self, settings, tmp_path):
        self.check_copies(settings, tmp_path, lambda name: Settings(home=tmp_path / name))

    @pytest.mark.slow
    @pytest.mark.parametrize("outer", [False, True], ids=["from a home", "from elsewhere"])
    def test_record_and_store_come_from_anywhere_and_go_anywhere(
        self, settings, tmp_path, postgresql_server, store_url, outer
    ):
        """From PostgreSQL and S3 into a home, from either into another PostgreSQL and S3."""

        def place(name: str, is_outer: bool = True) -> Settings:
            home = tmp_path / name
            if not is_outer:
                return Settings(home=home)
            url = postgresql_server.create_database(f"copy_{uuid.uuid4().hex}")
            return Settings(home=home, database_url=url, storage=f"{store_url}/{uuid.uuid4().hex}")

        if outer:
            home, settings = settings.home, place("outer")
            home.rename(settings.home)
            (settings.home / "eigensweep.db").unlink()
            migrate(settings.database)
        kinds = [True, not outer]
        self.check_copies(settings, tmp_path, lambda name: place(name, kinds.pop(0)), 2, 40)

    def check_copies(
        self,
        settings: Settings,
        tmp_path: Path,
        place: Callable[[str], Settings],
        copies: int = 3,
        steps: int = STEPS,
    ) -> None:
        id, rungs, files = post(settings, steps), threading.Semaphore(0), []
        driver = threading.Thread(target=drive, args=(settings, id, rungs.release))
        driver.start()
        for number in range(copies):
            for _ in range(1 + 6 * number):
                assert rungs.acquire(timeout=PATIENCE)
            files.append(tmp_path / f"{number}.tar.gz")
            back_up(settings, files[-1])
        driver.join(PATIENCE)
        expected = read_curves(settings, id)
        open_trials = 0
        for file in files:
            copy = place(f"home of {file.stem}")
            restore(file, copy.home, copy.database_url, copy.storage)
            record = Record(copy.database)
            assert record.row(id).state == "running"
            running = record.experiment(id).counts.get("running")  # none between two trials
            open_trials += running.trials if running else 0
            drive(copy, id)
            assert record.row(id).state == "completed"
            ends = Counter(
                event.data["trial"]
                for event in record.events(id)
                if event.kind == "trial.completed"
            )
            assert ends == dict.fromkeys(range(len(RATES)), 1)
            assert read_curves(copy, id) == expected
            original = Record(settings.database).trials(id, sort="number")
            again = record.trials(id, sort="number")
            assert [r.trial.value for r in again] == [r.trial.value for r in original]
            database.engine(copy.database).dispose()
        assert open_trials > 0  # they were taken in the middle
        database.engine(settings.database).dispose()

    def test_what_began_after_the_moment_is_not_in_it(self, settings, tmp_path):
        """Two attempts and a trial begin between the record's copy and that of the store."""
        id, store = post(settings), Store(settings.storage_folder)
        record = Record(settings.database)
        ledger = RecordLedger(record.url, id, record.claim(id).generation)
        ledger.open(0, "scornn", {}, {"training": {"steps": 9}}, "h")
        assert ledger.begin(0) == 1
        key, unknown = replicate_key(id, 0, 0), replicate_key(id, 7, 0)
        for each in (key, unknown):
            store.begin(each, 3)
            store.commit(each, 3, 5, {"weights": torch.ones(3)}, [])
        back_up(settings, tmp_path / "b.tar.gz")
        restore(tmp_path / "b.tar.gz", tmp_path / "copy")
        copied = Store(tmp_path / "copy" / "storage")
        copied.begin(key, 2)
        assert copied.newest(key).step == 5
        assert copied.newest(unknown) is None
        store.begin(key, 4)  # the original is as it was
        assert store.newest(key).step == 5

    def test_an_artifact_s_folder_may_vanish_meanwhile(self, settings, tmp_path, monkeypatch):
        post(settings)
        for name in ("gone", "stays"):
            (folder := settings.home / "mlflow" / "artifacts" / name).mkdir(parents=True)
            (folder / "spec.yaml").write_text(name)
        scan = os.scandir

        def scan_late(place: Any = ".") -> Any:
            if str(place).endswith("artifacts/gone"):
                os.rename(place, tmp_path / "gone")
            return scan(place)

        monkeypatch.setattr(os, "scandir", scan_late)
        files = back_up(settings, tmp_path / "b.tar.gz").files
        kept = [name for name in files if name.endswith("spec.yaml")]
        assert kept == ["mlflow/artifacts/stays/spec.yaml"]

    def test_an_empty_folder_in_the_place_of_the_store_is_refused(self, settings, tmp_path):
        id, storage = post(settings, 10), Path(settings.storage_folder)
        drive(settings, id)
        storage.rename(tmp_path / "not mounted")
        storage.mkdir()
        with pytest.raises(BackupError, match=r"storage is empty, .*EIGENSWEEP_STORAGE"):
            back_up(settings, tmp_path / "b.tar.gz")
        (storage / "emptied").touch()
        back_up(settings, tmp_path / "b.tar.gz")

    def test_a_store_that_hangs_holds_up_no_writer_for_long(self, settings, tmp_path, monkeypatch):
        answers = threading.Event()
        take = backup._StoreCopy.take

        def hang(shots: Any, trials: Any, *, only_ended: bool = False) -> None:
            if not only_ended:
                answers.wait(60)
            take(shots, trials, only_ended=only_ended)

        monkeypatch.setattr(backup._StoreCopy, "take", hang)
        monkeypatch.setattr(backup, "HOLD_SECONDS", 0.2)
        with pytest.raises(BackupError, match="posts and drivers wait no longer"):
            back_up(settings, tmp_path / "a.tar.gz")
        with closing(sqlite3.connect(settings.home / backup.RECORD, timeout=1)) as record:
            record.execute("BEGIN IMMEDIATE")
        answers.set()

    def test_databases_are_whole(self, settings, tmp_path):
        with closing(sqlite3.connect(settings.home / "mlflow" / "mlflow.db")) as mlflow:
            mlflow.execute("PRAGMA journal_mode=WAL")
            mlflow.execute("INSERT INTO points VALUES (1)")
            mlflow.commit()
            mlflow.execute("INSERT INTO points VALUES (2)")  # not committed
            back_up(settings, tmp_path / "b.tar.gz")
        manifest = restore(tmp_path / "b.tar.gz", tmp_path / "copy")
        with closing(sqlite3.connect(tmp_path / "copy" / "mlflow" / "mlflow.db")) as copied:
            assert copied.execute("SELECT step FROM points").fetchall() == [(1,)]
        assert (tmp_path / "copy" / "mlflow" / "artifacts" / "plot.png").read_bytes() == b"png"
        assert not [name for name in manifest.files if name.endswith(("-wal", "-shm"))]


class TestSecrets:
    def test_it_is_its_users_alone_and_holds_no_secret(self, settings, tmp_path):
        file = tmp_path / "b.tar.gz"
        back_up(settings, file)
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        with tarfile.open(file) as archive:
            names = archive.getnames()
            assert {member.mode for member in archive} == {0o600}
            assert {member.uname for member in archive} == {""}
        assert "mlflow/token" not in names
        assert "sessions.json" not in names
        restore(file, tmp_path / "copy")
        assert stat.S_IMODE((tmp_path / "copy").stat().st_mode) == 0o700
        for path in (tmp_path / "copy").rglob("*"):
            assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path

    def test_that_of_another_home_on_one_store_is_left_alone(self, settings, tmp_path):
        other = Path(settings.storage_folder) / ".backup-abcdef-runs"
        other.mkdir(parents=True)
        (other / "x").write_text("x")
        back_up(settings, tmp_path / "b.tar.gz")
        assert (other / "x").read_text() == "x"

    def test_a_copy_that_vanishes_meanwhile_is_no_backup(self, settings, tmp_path, monkeypatch):
        list_members = backup._list_members

        def lose(settings, copies, shots):
            yield from list_members(settings, copies, shots)
            yield "gone", copies / "gone"

        monkeypatch.setattr(backup, "_list_members", lose)
        with pytest.raises(BackupError, match="removed meanwhile: begin again"):
            back_up(settings, tmp_path / "b.tar.gz")
        assert not (tmp_path / "b.tar.gz").exists()

    def test_nothing_is_left_beside_it_also_by_one_that_was_killed(self, settings, tmp_path):
        mark = keep_secret(settings.home / "backup.mark")[:6]
        left = Path(settings.storage_folder) / f".backup-{mark}-killed"
        left.mkdir(parents=True)
        (left / "x").write_text("x")
        back_up(settings, tmp_path / "b.tar.gz")
        assert list(tmp_path.rglob(".backup-*")) == []
        assert list(tmp_path.glob("*.partial")) == []


class TestRefusals:
    def test_no_file_is_written_over_and_no_two_are_made_at_once(self, settings, tmp_path):
        file = tmp_path / "b.tar.gz"
        file.write_text("mine")
        with pytest.raises(BackupError, match="there already"):
            back_up(settings, file)
        assert file.read_text() == "mine"
        other = hold_alone(settings.home / "backup.lock", BackupError("held by a backup already"))
        with other, pytest.raises(BackupError, match="another backup"):
            back_up(settings, tmp_path / "other.tar.gz")

    def test_a_record_of_another_version_is_left_to_that_one(
        self, settings, tmp_path, bare_postgresql_url
    ):
        elsewhere = settings.model_copy(update={"database_url": bare_postgresql_url})
        with database.engine(bare_postgresql_url).begin() as connection:
            make_schema_of_0_2(connection)
        with pytest.raises(BackupError, match=r"has schema 0023, .* of the version that the"):
            back_up(elsewhere, tmp_path / "b.tar.gz")

    @pytest.mark.parametrize("url", ["me:hush@127.0.0.1:1/r", "me@127.0.0.1:1/r?password=hush"])
    def test_a_silent_database_is_named_without_its_password(self, settings, tmp_path, url):
        url = f"postgresql://{url}"
        elsewhere = settings.model_copy(update={"database_url": url})
        with pytest.raises(RecordUnusableError, match="cannot be used") as raised:
            back_up(elsewhere, tmp_path / "b.tar.gz")
        assert "hush" not in str(raised.value)

    def test_a_database_or_store_that_holds_something_is_left(
        self, settings, tmp_path, postgresql_url, store_url
    ):
        file, home = tmp_path / "b.tar.gz", tmp_path / "copy"
        post(settings)
        back_up(settings, file)
        other = Record(postgresql_url).add(ExperimentSpec.model_validate(CONTENT))[0].id
        with pytest.raises(BackupError, match=r"it has the table '\w+'"):
            restore(file, home, postgresql_url)
        assert Record(postgresql_url).row(other).state == "queued"
        assert len(Record(postgresql_url).experiments()) == 1
        (tmp_path / "store").mkdir()
        (tmp_path / "store" / "mine").touch()
        Store(f"{store_url}/full").files.write("mine", b"mine")
        for place in (str(tmp_path / "store"), f"{store_url}/full"):
            with pytest.raises(BackupError, match="not empty"):
                restore(file, home, storage=place)
        assert not home.exists()

    def test_a_refused_database_is_not_brought_up_to_date(
        self, settings, tmp_path, bare_postgresql_url
    ):
        post(settings)
        back_up(settings, tmp_path / "b.tar.gz")
        with database.engine(bare_postgresql_url).begin() as connection:
            make_schema_of_0_2(connection)
        with pytest.raises(BackupError, match="is not empty"):
            restore(tmp_path / "b.tar.gz", tmp_path / "copy", bare_postgresql_url)
        with database.engine(bare_postgresql_url).begin() as connection:
            version = text("SELECT version_num FROM alembic_version")
            assert connection.scalar(version) == "0023"

    @pytest.mark.parametrize("name", ["important", "users"])
    def test_a_table_of_somebody_else_is_no_empty_database(
        self, settings, tmp_path, bare_postgresql_url, name
    ):
        post(settings)
        back_up(settings, tmp_path / "b.tar.gz")
        with database.engine(bare_postgresql_url).begin() as connection:
            connection.execute(text(f"CREATE TABLE {name} (id int)"))
        with pytest.raises(BackupError, match=f"it has the table '{name}'"):
            restore(tmp_path / "b.tar.gz", tmp_path / "copy", bare_postgresql_url)
        with database.engine(bare_postgresql_url).connect() as connection:
            assert inspect(connection).get_table_names() == [name]

    def test_a_home_whose_restore_was_cut_off_is_not_used(
        self, settings, tmp_path, postgresql_url, monkeypatch
    ):
        file, home = tmp_path / "b.tar.gz", tmp_path / "copy"
        post(settings)
        back_up(settings, file)

        def die(there: Path, here: Path) -> None:
            shutil.copytree(there, here)
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", die)
            with pytest.raises(KeyboardInterrupt):
                restore(file, home, postgresql_url)
        with pytest.raises(StartError, match="was cut off"), hold(home):
            pass
        with pytest.raises(StartError, match="remove that folder, empty"):
            restore(file, home, postgresql_url)
        with pytest.raises(StartError, match="was cut off"):
            back_up(settings.model_copy(update={"home": home}), tmp_path / "c.tar.gz")
        (finding, *_) = check_folders(Context(settings.model_copy(update={"home": home}), None))
        assert (finding.state, "was cut off" in finding.detail) == ("problem", True)
        shutil.rmtree(home)
        restore(file, home, postgresql_url)
        assert [path.name for path in home.iterdir() if "restore" in path.name] == []

    def test_a_full_disk_of_checkpoints_is_told_in_words(self, settings, tmp_path, monkeypatch):
        def refuse(there: Path, here: Path) -> None:
            shutil.copytree(there, here)
            raise shutil.Error([(there, here, "[Errno 28] No space left on device")])

        drive(settings, post(settings, steps=10))
        back_up(settings, tmp_path / "b.tar.gz")
        monkeypatch.setattr(shutil, "move", refuse)
        with pytest.raises(BackupError, match=r"cannot be written to .*: \[Errno 28\] No space"):
            restore(tmp_path / "b.tar.gz", tmp_path / "copy", storage=str(tmp_path / "store"))
        assert list((tmp_path / "store").iterdir()) == []

    def test_a_database_that_fails_at_the_end_leaves_all_as_it_was(
        self, settings, tmp_path, postgresql_url, monkeypatch
    ):
        file, home, id = tmp_path / "b.tar.gz", tmp_path / "copy", post(settings)
        back_up(settings, file)

        commit = PGDialect.do_commit

        def fail_at_the_end(dialect: PGDialect, connection: Any) -> None:
            if home.exists():
                raise OperationalError(
                    "COMMIT", None, Exception("the server closed the connection")
                )
            commit(dialect, connection)

        with monkeypatch.context() as patch:
            patch.setattr(PGDialect, "do_commit", fail_at_the_end)
            with pytest.raises(OperationalError, match="closed the connection"):
                restore(file, home, postgresql_url)
        assert not home.exists()
        assert [path.name for path in tmp_path.iterdir() if "copy" in path.name] == []
        restore(file, home, postgresql_url)
        assert Record(postgresql_url).row(id).state == "queued"

    @pytest.mark.parametrize("inner", ["storage", "trained/here"])
    def test_the_store_may_be_in_the_home(self, settings, tmp_path, inner):
        back_up(settings, tmp_path / "b.tar.gz")
        home = tmp_path / "home of the copy"
        home.mkdir()
        (tmp_path / "link").symlink_to(home)
        restore(tmp_path / "b.tar.gz", tmp_path / "link", storage=str(tmp_path / "link" / inner))
        assert (home / "eigensweep.db").is_file()
        assert Store(home / inner).place

    def test_a_mount_is_refused_with_what_would_work(self, settings, tmp_path, monkeypatch):
        back_up(settings, tmp_path / "b.tar.gz")
        monkeypatch.setattr(Path, "is_mount", lambda path: path.name == "disk")
        with pytest.raises(BackupError, match="choose a folder in it"):
            restore(tmp_path / "b.tar.gz", tmp_path / "disk")

    def test_it_is_written_where_no_links_are_known(self, settings, tmp_path, monkeypatch):
        def refuse(*_: object) -> None:
            raise PermissionError(errno.EPERM, "no links here")

        monkeypatch.setattr(os, "link", refuse)
        back_up(settings, tmp_path / "b.tar.gz")
        restore(tmp_path / "b.tar.gz", tmp_path / "copy")
        assert not list(tmp_path.glob("*.partial"))

    def test_a_home_that_holds_something_is_left_alone(self, settings, tmp_path):
        back_up(settings, tmp_path / "b.tar.gz")
        with pytest.raises(BackupError, match="not empty"):
            restore(tmp_path / "b.tar.gz", settings.home)
        (tmp_path / "empty").mkdir()
        restore(tmp_path / "b.tar.gz", tmp_path / "empty")

    def test_one_of_the_first_form_is_restored(self, settings, tmp_path):
        back_up(settings, tmp_path / "b.tar.gz")
        spoil_archive(tmp_path / "b.tar.gz", tmp_path / "older.tar.gz", "older form")
        assert restore(tmp_path / "older.tar.gz", tmp_path / "restored").format == 1

    @pytest.mark.parametrize(
        ("spoil", "words"),
        [
            ("cut", "no whole backup"),
            ("text", "no whole backup"),
            ("member", "contradicts 1 file, such as"),
            ("missing", "contradicts 1 file, such as"),
            ("newer schema", "which is newer than this one"),
            ("older schema", "restore it with Eigensweep 0.2, start it once with the last"),
            ("newer form", "reads the forms up to 2"),
            ("above", "holds '../x'"),
            ("absolute", "holds '/x'"),
            ("link", "holds 'storage/x'"),
            ("strange", "holds 'service.lock'"),
        ],
    )
    def test_what_is_no_whole_backup_is_refused_and_leaves_nothing(
        self, settings, tmp_path, spoil, words
    ):
        file, bad = tmp_path / "b.tar.gz", tmp_path / "bad.tar.gz"
        back_up(settings, file)
        if spoil == "cut":
            bad.write_bytes(file.read_bytes()[:-2000])
        elif spoil == "text":
            bad.write_text("no archive")
        else:
            spoil_archive(file, bad, spoil)
        with pytest.raises(BackupError, match=words):
            restore(bad, tmp_path / "copies" / "copy")
        assert list((tmp_path / "copies").iterdir()) == []


def spoil_archive(file: Path, bad: Path, how: str) -> None:
    """Write an archive again, as somebody who changes one thing of it would."""
    strange = {"above": "../x", "absolute": "/x", "link": "storage/x", "strange": "service.lock"}
    with tarfile.open(file) as source, tarfile.open(bad, "w:gz") as target:
        for member in source:
            content = source.extractfile(member).read()
            if member.name == "mlflow/artifacts/plot.png":
                if how == "missing":
                    continue
                content = b"PNG" if how == "member" else content
            if member.name == backup.MANIFEST:
                manifest = json.loads(content)
                schemas = {"newer schema": "9999", "older schema": "0022"}
                manifest["schema"] = schemas.get(how, manifest["schema"])
                manifest["format"] += (how == "newer form") - (how == "older form")
                content = json.dumps(manifest).encode()
                if how in strange:
                    added = tarfile.TarInfo(strange[how])
                    if how == "link":
                        added.type, added.linkname = tarfile.SYMTYPE, "/etc/passwd"
                    target.addfile(added, io.BytesIO())
            member.size = len(content)
            target.addfile(member, io.BytesIO(content))


class TestHoldingPostgresqlStill:
    def test_who_writes_waits_and_who_reads_does_not(self, postgresql_url):
        record = Record(postgresql_url)
        spec = ExperimentSpec.model_validate(CONTENT)
        posted = threading.Thread(target=record.add, args=(spec,))
        with copying.see_one_moment(postgresql_url) as moment:
            with copying.nobody_writes(postgresql_url, PATIENCE):
                assert copying.find_table_in_use(moment) is None
                posted.start()
                wait_until(lambda: count_waiting(postgresql_url) == 1)
                assert record.experiments() == []
            posted.join(PATIENCE)
            assert len(record.experiments()) == 1
            assert copying.find_table_in_use(moment) is None

    def test_it_gives_up_where_somebody_writes_and_spoils_nothing(self, postgresql_url):
        with database.engine(postgresql_url).begin() as writer:
            writer.execute(text("UPDATE trials SET step = 0"))
            held = copying.nobody_writes(postgresql_url, 0.1)
            with pytest.raises(OperationalError, match="lock timeout"), held:
                pass
            writer.execute(text("UPDATE experiments SET priority = 0"))


def count_waiting(url: str) -> int:
    """Return how many wait for the lock of a table."""
    query = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = "
    query += "CAST('experiments' AS regclass)"
    with database.engine(url).connect() as connection:
        return connection.scalar(text(query))


class TestCommands:
    def test_a_folder_names_its_backups_and_keeps_the_newest(self, settings, tmp_path, monkeypatch):
        monkeypatch.setenv("EIGENSWEEP_HOME", str(settings.home))
        folder = tmp_path / "backups"
        folder.mkdir()
        (folder / "mine.tar.gz").touch()
        mark = keep_secret(settings.home / "backup.mark")[:6]
        (folder / f"eigensweep-19691231-235900-{mark}.tar.gz.partial").touch()  # it was killed
        minutes = [0, 1, 2, 3, 9_999, 1_440, 2_880]  # once the clock was ahead
        moments = [time.gmtime(60 * minute) for minute in minutes]
        monkeypatch.setattr(backup.time, "gmtime", lambda: moments.pop(0))
        for _ in range(4):
            made = CliRunner().invoke(command_line, ["backup", str(folder), "--keep", "2"])
            assert made.exit_code == 0, made.output
        assert "removed: " in made.output
        assert sorted(path.name for path in folder.iterdir()) == [
            f"eigensweep-19700101-000200-{mark}.tar.gz",
            f"eigensweep-19700101-000300-{mark}.tar.gz",
            "mine.tar.gz",
        ]
        for _ in range(3):
            made = CliRunner().invoke(command_line, ["backup", str(folder), "--keep", "1"])
            assert made.exit_code == 0, made.output
        assert sorted(path.name for path in folder.glob("eigensweep*")) == [
            f"eigensweep-19700103-000000-{mark}.tar.gz"
        ]
        made = CliRunner().invoke(command_line, ["backup", str(tmp_path / "x.gz"), "--keep", "2"])
        assert made.exit_code == 2
        assert "for a folder that is there (`mkdir`)" in made.output

    def test_it_is_restored_into_no_database_of_another_kind(self, tmp_path):
        (file := tmp_path / "b.tar.gz").touch()
        words = ["restore", str(file), "--home", str(tmp_path / "new")]
        told = CliRunner().invoke(command_line, [*words, "--database-url", "mysql://a:secret@b/c"])
        assert told.exit_code == 2, told.output
        assert "no URL of SQLite or PostgreSQL" in told.output
        assert "secret" not in told.output
        file.unlink()
        assert CliRunner().invoke(command_line, words).exit_code == 2

    @pytest.mark.parametrize("where", ["sqlite:///record.db", "sqlite:///{home}/record.db"])
    def test_no_database_is_made_in_the_new_home(self, settings, tmp_path, where):
        home, file = tmp_path / "new", tmp_path / "b.tar.gz"
        post(settings)
        back_up(settings, file)
        home.mkdir()
        words = ["restore", str(file), "--home", str(home)]
        told = CliRunner().invoke(command_line, [*words, "--database-url", where.format(home=home)])
        assert told.exit_code == 2, told.output
        assert "leave out --database-url" in told.output
        assert not [*home.iterdir()]

    def test_a_backup_comes_through_a_pipe(self, settings, tmp_path):
        file, pipe, home = tmp_path / "b.tar.gz", tmp_path / "pipe", tmp_path / "new"
        post(settings)
        back_up(settings, file)
        os.mkfifo(pipe)
        threading.Thread(target=lambda: pipe.write_bytes(file.read_bytes()), daemon=True).start()
        done = CliRunner().invoke(command_line, ["restore", str(pipe), "--home", str(home)])
        assert done.exit_code == 0, done.output
        assert (home / "eigensweep.db").exists()

    def test_a_home_goes_into_a_file_and_comes_back(self, settings, tmp_path, monkeypatch):
        id, file = post(settings), str(tmp_path / "b.tar.gz")
        monkeypatch.setenv("EIGENSWEEP_HOME", str(settings.home))
        made = CliRunner().invoke(command_line, ["backup", file])
        assert made.exit_code == 0, made.output
        assert "left out: corpora" in made.output
        again = CliRunner().invoke(command_line, ["backup", file])
        assert again.exit_code == 2
        assert "there already" in again.output
        home = tmp_path / "copy"
        done = CliRunner().invoke(command_line, ["restore", file, "--home", str(home), "--json"])
        assert done.exit_code == 0, done.output
        assert json.loads(done.output)["home"] == str(home)
        assert Record(Settings(home=home).database).row(id).state == "queued"
