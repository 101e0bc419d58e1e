"""`eigensweep data` with corpora of a few bytes and a server on this machine."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import re
import tarfile
import tracemalloc
import wave
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from hashlib import md5
from pathlib import Path
from random import Random
from typing import Any

import httpx2
import numpy as np
import pytest
from helpers.corpus_server import CorpusServer, serving
from helpers.small_files import cifar_images, python2_pickle
from rich.console import Console
from starlette.testclient import TestClient
from typer.testing import CliRunner, Result

from eigensweep.command.cli import app
from eigensweep.corpora import fetching
from eigensweep.service.api.app import create_app
from eigensweep.service.settings import Settings
from eigensweep.store.places.durable_files import StorageError
from eigensweep.tasks import cifar, corpora
from eigensweep.tasks.corpora import FileGroup, KnownCorpus
from eigensweep.tasks.corpus import Corpus, CorpusMissingError, Form, unpack

pytestmark = pytest.mark.usefixtures("_no_environment")

FILES = {"a.txt": b"all of it " * 500, "b.bin": bytes(range(256)) * 8}
TONES = {f"{n}.wav": bytes([n]) * 100 for n in range(5)}


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


LETTERS = Corpus(
    folder="letters",
    files={name: (len(content), digest(content)) for name, content in FILES.items()},
    origin="they are nowhere",
    other_forms={
        "a.txt": (
            Form("letters/a.txt.gz", None, unpack),
            Form("letters/loud.txt", len(FILES["a.txt"]), bytes.lower),
        )
    },
)


def check_tones(data_root: Path) -> Path:
    folder = data_root / "tones"
    if not all((folder / name).is_file() for name in TONES):
        raise CorpusMissingError(f"{folder} is not whole")
    return folder


def make_letters(**changes: Any) -> KnownCorpus:
    letters = KnownCorpus(
        name="letters",
        title="A few letters",
        licence="anybody's",
        page="http://letters.example",
        size=LETTERS.size,
        folder="letters",
        find=LETTERS.find,
        verify=LETTERS.verify,
        contents=LETTERS,
    )
    return replace(letters, **changes)


LINES = "".join(f"{digest(TONES[name])}  tones/{name}\n" for name in sorted(TONES))
TOGETHER = make_letters(
    name="tones",
    folder="tones",
    find=check_tones,
    verify=check_tones,
    contents=FileGroup("tones", re.compile(r"\d\.wav"), len(TONES), digest(LINES.encode())),
)
LICENSED = make_letters(
    name="paid",
    find=partial(corpora._find_speech, "timit"),
    verify=partial(corpora._find_speech, "timit"),
    contents=None,
    how="buy it at https://paid.example and put it into 'paid'",
)


@pytest.fixture
def server() -> Iterator[CorpusServer]:
    with serving() as made:
        made.files = {f"/{name}": content for name, content in FILES.items()}
        yield made


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EIGENSWEEP_DATA_ROOT", str(tmp_path / "root"))
    use_corpora(monkeypatch, make_letters())
    return tmp_path / "root"


@pytest.fixture
def publish(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that says by which addresses the letters are fetched."""
    return lambda *ways: use_corpora(monkeypatch, make_letters(ways=ways))


def use_corpora(monkeypatch: pytest.MonkeyPatch, letters: KnownCorpus) -> None:
    all_known = {corpus.name: corpus for corpus in (letters, TOGETHER, LICENSED)}
    monkeypatch.setattr(corpora, "CORPORA", all_known)


def run(*words: str) -> Result:
    return CliRunner().invoke(app, ["data", *words])


def files_in(root: Path) -> list[str]:
    return sorted(str(p.relative_to(root)) for p in root.rglob("*") if p.is_file())


def write_letters(root: Path, **contents: bytes) -> None:
    (root / "letters").mkdir(parents=True, exist_ok=True)
    for name, content in {**FILES, **contents}.items():
        (root / "letters" / name).write_bytes(content)


def addresses(base: str) -> tuple[str, ...]:
    return tuple(f"{base}/{name}" for name in FILES)


class TestFetching:
    def test_a_corpus_is_put_in_place_and_nothing_else_is_left(self, root, server, publish):
        publish(addresses(server.url))
        done = run("fetch", "letters")
        assert (done.exit_code, files_in(root)) == (0, ["letters/a.txt", "letters/b.bin"])
        assert "letters: 2 files, checked, in" in done.stdout
        assert f"downloading {server.url}/a.txt" in done.stderr
        assert [p.name for p in root.iterdir()] == ["letters"]

    def test_a_program_is_told_in_json(self, root, server, publish):
        publish(addresses(server.url))
        where = str(root / "letters")
        assert json.loads(run("fetch", "letters", "--json").stdout) == [
            {"corpus": "letters", "where": where, "files": 2}
        ]
        assert json.loads(run("import", where, "--json").stdout)["copied"] == []
        failed = run("fetch", "paid", "--json")
        assert failed.exit_code == 1
        assert "paid is never downloaded" in json.loads(failed.stderr)["detail"]

    def test_packed_files_and_archives_are_unpacked(self, root, server, publish):
        server.files["/a.txt.gz"] = gzip.compress(FILES["a.txt"])
        server.files["/b.tgz"] = make_tar({"deep/inside/b.bin": FILES["b.bin"]})
        publish((f"{server.url}/a.txt.gz", f"{server.url}/b.tgz"))
        assert run("fetch", "letters").exit_code == 0
        assert (root / "letters/a.txt").read_bytes() == FILES["a.txt"]

    def test_a_broken_download_is_resumed_where_it_broke(self, root, server, publish):
        publish(addresses(server.url))
        server.cuts, server.whole = 1, 1_000
        assert run("fetch", "letters").exit_code == 0
        assert server.requests[:2] == [("/a.txt", None), ("/a.txt", "bytes=1000-")]

    def test_a_later_call_resumes_the_download_of_an_earlier_one(self, root, server, publish):
        publish(addresses(server.url))
        server.cuts, server.whole = 3, 1_000
        assert run("fetch", "letters").exit_code == 1
        (part,) = files_in(root)
        assert part.startswith(".fetching/")
        server.requests.clear()
        assert run("fetch", "letters").exit_code == 0
        assert server.requests[0] == ("/a.txt", "bytes=3000-")
        assert files_in(root) == ["letters/a.txt", "letters/b.bin"]

    def test_a_server_that_knows_no_ranges_is_asked_for_the_whole(self, root, server, publish):
        publish(addresses(server.url))
        server.cuts, server.whole, server.takes_ranges = 1, 1_000, False
        assert run("fetch", "letters").exit_code == 0
        assert (root / "letters/a.txt").read_bytes() == FILES["a.txt"]

    def test_a_part_of_an_older_file_is_given_up(self, root, server, publish):
        publish(addresses(server.url))
        server.cuts, server.whole = 3, 1_000
        right, server.files["/a.txt"] = server.files["/a.txt"], b"x" * 5_000
        assert run("fetch", "letters").exit_code == 1
        server.files["/a.txt"] = right
        assert run("fetch", "letters").exit_code == 0

    def test_other_contents_are_reported_by_digest_and_removed(self, root, server, publish):
        publish(addresses(server.url))
        wrong = server.files["/a.txt"] = FILES["a.txt"].replace(b"all", b"odd")
        done = run("fetch", "letters")
        assert done.exit_code == 1
        assert digest(wrong) in done.stderr
        assert digest(FILES["a.txt"]) in done.stderr
        assert files_in(root) == []

    def test_where_one_place_fails_the_next_is_asked_for_the_rest(self, root, server, publish):
        server.files = {"/b.bin": FILES["b.bin"], "/copy/a.txt": FILES["a.txt"]}
        first = (f"{server.url}/b.bin", f"{server.url}/a.txt")
        publish(first, (f"{server.url}/copy/a.txt", f"{server.url}/copy/b.bin"))
        assert run("fetch", "letters").exit_code == 0
        assert [path for path, _ in server.requests] == ["/b.bin", "/a.txt", "/copy/a.txt"]

    def test_offline_it_says_what_to_put_where(self, root, publish, free_port):
        away = f"http://127.0.0.1:{free_port()}"
        publish(addresses(away))
        done = run("fetch", "letters")
        assert done.exit_code == 1
        assert f"{away}/a.txt: " in done.stderr
        assert "eigensweep data import PATH" in done.stderr
        assert f"put these files into {root / 'letters'}" in done.stderr
        assert f"a.txt  5,000 bytes  SHA-256 {digest(FILES['a.txt'])}" in done.stderr
        assert files_in(root) == []

    def test_a_server_that_fails_is_asked_again(self, root, server, publish, monkeypatch):
        monkeypatch.setattr(fetching, "FIRST_PAUSE", 0.01)
        publish(addresses(server.url))
        server.failures = fetching.ATTEMPTS
        assert "/a.txt: answers 503 Service Unavailable" in run("fetch", "letters").stderr
        server.failures = fetching.ATTEMPTS - 1
        assert run("fetch", "letters").exit_code == 0

    def test_a_missing_file_is_reported_with_the_server_s_answer(self, root, server, publish):
        publish((f"{server.url}/nothing",))
        assert f"{server.url}/nothing: answers 404 Not Found" in run("fetch", "letters").stderr

    def test_two_processes_do_not_write_into_one_another_s_file(self, root, server, publish):
        publish(addresses(server.url), addresses(f"{server.url}/copy"))
        with fetching._open_incoming(f"{server.url}/a.txt", root):
            done = run("fetch", "letters")
        assert done.exit_code == 1
        assert f"another process is fetching {server.url}/a.txt; wait for its end" in done.stderr
        assert (server.requests, files_in(root)) == ([], [])

    def test_a_packed_file_damaged_on_its_way_is_downloaded_again(self, root, server, publish):
        publish((f"{server.url}/all.tgz",))
        server.files["/all.tgz"] = make_damaged_tar()
        done = run("fetch", "letters")
        assert done.exit_code == 1
        assert "is another file, with SHA-256" in done.stderr
        assert "it is damaged (Invalid data stream" in done.stderr
        assert files_in(root) == []
        server.files["/all.tgz"] = make_tar(FILES)
        assert run("fetch", "letters").exit_code == 0

    @pytest.mark.parametrize(
        ("content", "words"),
        [
            (b"", "all.tgz: sent nothing"),
            (b" <!DOCTYPE html><p>Sign in", "of 26 bytes (a page of HTML, such as one to sign in"),
        ],
    )
    def test_another_answer_than_a_file_is_named(self, root, server, publish, content, words):
        publish((f"{server.url}/all.tgz",))
        server.files["/all.tgz"] = content
        assert words in run("fetch", "letters").stderr

    def test_two_versions_that_one_download_mixed_are_fetched_anew(
        self, root, server, publish, monkeypatch
    ):
        publish((f"{server.url}/all.tgz",))
        good = make_tar(FILES)
        server.files["/all.tgz"] = bytes(len(good))
        server.cuts, server.whole = 1, 100
        receive = fetching._receive

        def replace_file(*asked: Any) -> None:
            try:
                receive(*asked)
            finally:
                server.files["/all.tgz"] = good

        monkeypatch.setattr(fetching, "_receive", replace_file)
        assert run("fetch", "letters").exit_code == 0

    def test_another_part_than_the_one_asked_for_is_not_appended(self, tmp_path, server):
        server.files["/a"], server.first = bytes(5000), 0
        with httpx2.Client() as client, open(tmp_path / "part", "ab") as file:
            file.write(bytes(100))
            with pytest.raises(httpx2.ReadError, match="another part"):
                fetching._receive(client, f"{server.url}/a", file, lambda *_: None)
        assert (tmp_path / "part").read_bytes() == b""

    def test_a_download_larger_than_any_corpus_is_refused(self, root, server, publish, monkeypatch):
        publish(addresses(server.url))
        monkeypatch.setattr(fetching, "MAX_BYTES", 4_999)
        done = run("fetch", "letters")
        assert done.exit_code == 1
        assert "a.txt: has more than 4,999 bytes" in done.stderr
        assert files_in(root) == []

    def test_a_file_in_its_place_is_not_downloaded(self, root, server, publish):
        publish(addresses(server.url))
        write_letters(root)
        done = run("fetch", "letters")
        assert (done.exit_code, server.requests) == (0, [])
        assert f"letters is complete in {root / 'letters'} already" in done.stdout

    def test_a_damaged_file_is_replaced(self, root, server, publish):
        publish(addresses(server.url))
        write_letters(root, **{"a.txt": b"damaged"})
        assert run("fetch", "letters").exit_code == 0
        assert (root / "letters/a.txt").read_bytes() == FILES["a.txt"]
        assert [path for path, _ in server.requests] == ["/a.txt"]

    def test_a_licensed_corpus_is_explained_and_never_fetched(self, root):
        done = run("fetch", "paid")
        assert done.exit_code == 1
        assert "paid is never downloaded: buy it at https://paid.example" in done.stderr

    def test_an_unknown_name_is_bad_input(self, root):
        done = run("fetch", "leters")
        assert done.exit_code == 2
        assert "there are letters, tones, paid; did you mean 'letters'?" in done.stderr

    def test_a_data_root_that_cannot_be_written_is_reported(self, tmp_path, server, monkeypatch):
        (tmp_path / "file").write_bytes(b"")
        monkeypatch.setenv("EIGENSWEEP_DATA_ROOT", str(tmp_path / "file/root"))
        use_corpora(monkeypatch, make_letters(ways=(addresses(server.url),)))
        done = run("fetch", "letters")
        assert done.exit_code == 1
        assert f"cannot write {tmp_path / 'file/root'}" in done.stderr
        assert "Not a directory. EIGENSWEEP_DATA_ROOT names" in done.stderr

    def test_a_full_disk_leaves_no_file_in_place(self, root, server, publish, monkeypatch):
        def full(path: Path, content: bytes) -> None:
            raise StorageError(f"cannot write {path}: No space left on device")

        publish(addresses(server.url))
        monkeypatch.setattr("eigensweep.corpora.importing.write_whole", full)
        done = run("fetch", "letters")
        assert done.exit_code == 1
        assert f"cannot write {root / 'letters/a.txt'}: No space left on device." in done.stderr
        assert not (root / "letters/a.txt").exists()
        monkeypatch.undo()
        monkeypatch.setenv("EIGENSWEEP_DATA_ROOT", str(root))
        publish(addresses(server.url))
        assert run("fetch", "letters").exit_code == 0
        assert server.requests[1] == ("/a.txt", "bytes=5000-")  # and had nothing more to give

    def test_on_a_terminal_each_download_has_a_bar(self, root, server, publish, monkeypatch):
        publish(addresses(server.url))
        drawn = io.StringIO()
        screen = Console(file=drawn, force_terminal=True, width=100, legacy_windows=False)
        monkeypatch.setattr("eigensweep.command.data.Console", lambda **_: screen)
        assert run("fetch", "letters").exit_code == 0
        assert re.search(r"a\.txt .*━+.*5\.0/5\.0 kB", drawn.getvalue())

    def test_without_a_data_root_it_goes_to_the_home_folder(
        self, tmp_path, server, publish, monkeypatch
    ):
        publish(addresses(server.url))
        monkeypatch.setenv("EIGENSWEEP_HOME", str(tmp_path))
        assert run("fetch", "letters").exit_code == 0
        assert files_in(tmp_path / "data") == ["letters/a.txt", "letters/b.bin"]
        assert Settings().corpora == tmp_path / "data"


def make_tar(files: dict[str, bytes], mode: str = "w:gz") -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode=mode) as archive:  # type: ignore[call-overload]
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return made.getvalue()


def make_damaged_tar() -> bytes:
    """Return an archive that is damaged in its second half."""
    packed = bytearray(make_tar({"c": Random(0).randbytes(1_500_000)}, "w:bz2"))
    packed[-100] ^= 255
    return bytes(packed)


def make_zip(files: dict[str, bytes], packing: int = zipfile.ZIP_STORED) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", packing) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return made.getvalue()


def write_files(place: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(content)
    return place


OFFERS: dict[str, Callable[[Path, dict[str, bytes]], Path]] = {
    "folder": write_files,
    "zip": lambda place, files: write_files(place, {"all.zip": make_zip(files)}) / "all.zip",
    "tgz": lambda place, files: write_files(place, {"all.tgz": make_tar(files)}) / "all.tgz",
    "tar": lambda place, files: write_files(place, {"x": make_tar(files, "w")}) / "x",
    "folder of archives": lambda place, files: write_files(
        place, {f"{n}.zip": make_zip({name: files[name]}) for n, name in enumerate(files)}
    ),
}


class TestImporting:
    @pytest.mark.parametrize("offer", OFFERS)
    def test_files_are_recognised_by_their_contents(self, root, tmp_path, offer):
        files = {
            "readme.txt": b"nothing",
            "some/where/a.txt": FILES["a.txt"],
            "renamed": FILES["b.bin"],
            **{f"sounds/{name}": content for name, content in TONES.items()},
        }
        done = run("import", str(OFFERS[offer](tmp_path / "offered", files)))
        assert (done.exit_code, len(files_in(root))) == (0, 7)
        assert (root / "letters/a.txt").read_bytes() == FILES["a.txt"]
        assert (root / "letters/b.bin").read_bytes() == FILES["b.bin"]
        assert f"copied into {root / 'letters'}: 2 files" in done.stdout

    @pytest.mark.parametrize("packed", [gzip.compress(FILES["a.txt"]), FILES["a.txt"].upper()])
    def test_other_forms_of_a_file_become_the_file(self, root, tmp_path, packed):
        path = tmp_path / "whatever.gz"
        path.write_bytes(packed)
        done = run("import", str(path))
        assert done.exit_code == 0
        assert files_in(root) == ["letters/a.txt"]
        assert (root / "letters/a.txt").read_bytes() == FILES["a.txt"]
        assert f"not complete: there is no {root / 'letters/b.bin'}" in done.stdout

    def test_a_packed_file_may_have_its_name_in_capitals(self, root, tmp_path):
        (tmp_path / "A.TXT.GZ").write_bytes(gzip.compress(FILES["a.txt"]))
        assert run("import", str(tmp_path / "A.TXT.GZ")).exit_code == 0
        assert files_in(root) == ["letters/a.txt"]

    def test_every_damaged_archive_in_a_folder_is_reported(self, root, tmp_path):
        files = {"1.zip": make_zip(FILES)[:-9], "2.tgz": make_damaged_tar(), **FILES}
        done = run("import", str(write_files(tmp_path / "offered", files)))
        assert done.exit_code == 1
        assert "1.zip is damaged" in done.stderr
        assert "2.tgz is damaged" in done.stderr
        assert files_in(root) == ["letters/a.txt", "letters/b.bin"]

    def test_no_more_of_a_member_is_unpacked_than_it_says_it_holds(self, root, tmp_path):
        bomb = make_zip({"a.txt": bytes(50_000_000)}, zipfile.ZIP_DEFLATED)
        said = bomb.replace((50_000_000).to_bytes(4, "little"), (5_000).to_bytes(4, "little"))
        (tmp_path / "bomb.zip").write_bytes(said)
        tracemalloc.start()
        done = run("import", str(tmp_path / "bomb.zip"))
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert (done.exit_code, files_in(root)) == (1, [])
        assert "bomb.zip is damaged" in done.stderr
        assert most < 20_000_000

    def test_no_member_of_an_archive_is_written_where_its_name_says(self, root, tmp_path):
        path = tmp_path / "evil.zip"
        path.write_bytes(make_zip({"../../a.txt": FILES["a.txt"], "/etc/b.bin": b"other"}))
        run("import", str(path))
        assert files_in(tmp_path) == ["evil.zip", "root/letters/a.txt"]

    def test_a_file_that_is_in_place_is_not_written_again(self, root, tmp_path):
        write_letters(root)
        before = (root / "letters/a.txt").stat().st_mtime_ns
        done = run("import", str(root / "letters"))
        assert (done.exit_code, done.stdout) == (0, "in place already: 2 files\n")
        assert (root / "letters/a.txt").stat().st_mtime_ns == before

    @pytest.mark.parametrize(
        ("name", "content", "message"),
        [
            ("a.txt", b"x" * 5_000, rf"a.txt has SHA-256 {digest(b'x' * 5_000)}; expected"),
            ("a.txt", b"short", r"a.txt holds 5 bytes; expected 5,000"),
            ("a.txt.gz", gzip.compress(FILES["a.txt"])[:-9], r"is damaged or not a gzip file \("),
            ("a.txt.gz", b"never packed", r"a.txt.gz has SHA-256 "),
            ("a.txt.gz", gzip.compress(b"x")[:5], r"is damaged or not a gzip file \("),
            ("all.tgz", make_tar(FILES)[:5], r"all.tgz is damaged or not an archive"),
            ("all.tgz", make_damaged_tar(), r"all.tgz is damaged \(Invalid data stream"),
            (
                "all.zip",
                make_zip({"é.txt": b""}).replace("é".encode(), b"\xff\xff"),
                r"is damaged \(",
            ),
            ("all.tgz", make_tar(FILES)[:80], r"all.tgz is damaged \("),
            ("all.zip", make_zip(FILES)[:-9], r"all.zip is damaged or not an archive"),
            (
                "all.zip",
                make_zip(FILES).replace(b"of it", b"of IT"),
                r"all.zip is damaged \(Bad CRC",
            ),
        ],
    )
    def test_a_damaged_file_is_reported_and_not_copied(
        self, root, tmp_path, name, content, message
    ):
        (tmp_path / name).write_bytes(content)
        done = run("import", str(tmp_path / name))
        assert done.exit_code == 1
        assert re.search(message, done.stderr)
        assert not (root / "letters/a.txt").exists()

    def test_many_files_are_copied_as_a_whole(self, root, tmp_path):
        source = write_files(tmp_path / "source", {**TONES, "9.wav.txt": b"no tone"})
        assert run("import", str(source)).exit_code == 0
        assert files_in(root) == [f"tones/{name}" for name in TONES]

    def test_a_wrong_file_in_another_folder_hides_no_whole_corpus(self, root, tmp_path):
        right = {f"b/{name}": content for name, content in TONES.items()}
        source = write_files(tmp_path / "source", {"a/2.wav": b"another one", **right})
        assert run("import", str(source)).exit_code == 0
        assert (root / "tones/2.wav").read_bytes() == TONES["2.wav"]

    def test_a_corpus_that_is_whole_elsewhere_is_not_written_again(
        self, root, tmp_path, monkeypatch
    ):
        place = {"find": lambda root: root / "sounds", "verify": lambda root: None}
        monkeypatch.setattr(corpora, "CORPORA", {"tones": replace(TOGETHER, **place)})
        done = run("import", str(write_files(tmp_path / "source", TONES)), "--json")
        told = json.loads(done.stdout)
        assert (told["copied"], told["kept"][0]) == ([], str(root / "sounds" / "0.wav"))
        assert files_in(root) == []

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"2.wav": None}, r"has 4 files of 'tones'; all 5 are needed"),
            ({"2.wav": b"other"}, r"the files of 'tones' in .* have SHA-256 \w{64} together; exp"),
        ],
    )
    def test_an_incomplete_corpus_of_many_files_is_not_copied(
        self, root, tmp_path, changes, message
    ):
        files = {n: c for n, c in {**TONES, **changes}.items() if c is not None}
        done = run("import", str(write_files(tmp_path / "source", files)))
        assert done.exit_code == 1
        assert re.search(message, done.stderr)
        assert files_in(root) == []

    def test_an_empty_folder_and_a_missing_folder_are_reported(self, root, tmp_path):
        (tmp_path / "empty").mkdir()
        device = run("import", "/dev/null")
        empty, none = run("import", str(tmp_path / "empty")), run("import", str(tmp_path / "none"))
        assert empty.exit_code == 1
        assert "empty holds no file of the corpora letters, tones" in empty.stderr
        assert device.exit_code == 1
        assert "/dev/null is neither a file nor a folder" in device.stderr
        assert none.exit_code == 2
        assert "none: No such file or directory" in none.stderr


def recording(channels: int = 1, width: int = 2, rate: int = 8_000) -> bytes:
    made = io.BytesIO()
    with wave.open(made, "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(width)
        file.setframerate(rate)
        file.writeframes(bytes(2_400))
    return made.getvalue()


class TestLooking:
    def test_the_list_has_present_and_missing_corpora(self, root):
        write_letters(root)
        rows = [line.split() for line in run("list").stdout.splitlines()[1:]]
        assert [row[:2] for row in rows] == [
            ["letters", "present"],
            ["tones", "missing"],
            ["paid", "missing"],
        ]
        assert str(root / "letters") in rows[0]

    def test_a_file_of_another_size_is_damaged_without_being_read(self, root):
        write_letters(root, **{"b.bin": b"short"})
        row = json.loads(run("list", "--json").stdout)[0]
        assert (row["corpus"], row["state"]) == ("letters", "damaged")
        assert f"{root / 'letters/b.bin'} has 5 bytes; expected 2,048" in row["problem"]

    def test_verifying_reads_every_byte(self, root):
        write_letters(root)
        assert run("verify").exit_code == 0
        write_letters(root, **{"b.bin": bytes(2_048)})
        done = run("verify")
        assert done.exit_code == 1
        assert f"{root / 'letters/b.bin'} has SHA-256 {digest(bytes(2_048))}" in done.stderr

    def test_verifying_what_is_not_there_fails_where_it_is_named(self, root):
        write_letters(root)
        assert run("verify", "letters").exit_code == 0
        assert run("verify", "letters", "tones").exit_code == 1
        done = run("verify", "tones")
        assert done.exit_code == 1
        assert "tones is missing: " in done.stderr

    def test_verifying_an_empty_folder_fails(self, root):
        root.mkdir()
        done = run("verify")
        assert done.exit_code == 1
        assert f"nothing to verify in {root}; `eigensweep data fetch` gets a corpus" in done.stderr

    @pytest.mark.parametrize(
        ("sound", "message"),
        [
            (recording(channels=2), "has 2 channels; expected 1"),
            (recording(width=3), "has samples of 24 bits; expected 16"),
            (recording(rate=44_100), "has 44,100 samples a second; expected 8,000 or 16,000"),
            (recording()[:-100], "is cut off"),
        ],
    )
    def test_ones_own_recordings_are_listed_with_digest_and_read(self, root, sound, message):
        lines = ""
        for part in ("train", "valid", "test"):
            content = sound if part == "valid" else recording()
            write_files(root / "mine", {f"{part}.wav": content})
            lines += f"{part} {digest(content)} {part}.wav\n"
        (root / "mine/manifest.txt").write_text(lines)
        mine = json.loads(run("list", "--json").stdout)[-1]
        assert (mine["corpus"], mine["state"]) == ("mine", "present")
        assert digest(lines.encode()) in mine["title"]
        done = run("verify", "mine")
        assert done.exit_code == 1
        assert f"{root / 'mine/valid.wav'} {message}" in done.stderr

    def test_settings_that_are_wrong_are_reported(self, root, monkeypatch):
        monkeypatch.setenv("EIGENSWEEP_PORT", "none")
        done = run("list")
        assert done.exit_code == 2
        assert "EIGENSWEEP_PORT: " in done.stderr


def test_the_service_looks_at_home_and_names_the_command(tmp_path, record, dispatcher, spec):
    service = create_app(Settings(home=tmp_path / "home"), record, dispatcher)
    with TestClient(service) as client:
        answer = client.post("/v1/experiments", json=spec(task={"name": "ptb_chars"}))
    assert answer.status_code == 422
    (problem,) = answer.json()["errors"]
    assert str(tmp_path / "home/data/ptb/ptb.train.txt") in problem["message"]
    assert "`eigensweep data fetch ptb` gets it" in problem["message"]


@pytest.mark.data
def test_the_real_corpora_are_as_published(data_root, monkeypatch):
    monkeypatch.setenv("EIGENSWEEP_DATA_ROOT", str(data_root))
    rows = json.loads(run("verify", "ptb", "mnist", "fsdd", "--json").stdout)
    assert [row["state"] for row in rows] == ["present"] * 3


@pytest.mark.data
def test_the_real_character_files_become_the_word_files(data_root, tmp_path, monkeypatch):
    for path in (data_root / "ptb").glob("ptb.char.*"):
        (tmp_path / path.name).symlink_to(path)
    monkeypatch.setenv("EIGENSWEEP_DATA_ROOT", str(tmp_path / "root"))
    done = run("import", str(tmp_path))
    assert done.exit_code == 0
    assert run("verify", "ptb").exit_code == 0


class TestCifar:
    """The two published formats of CIFAR-10, of a few images."""

    @pytest.fixture
    def published(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """A folder with both archives; the corpora have the digests and sizes of their files."""
        python = {n: python2_pickle(n, *cifar_images(n)) for n in (*cifar.TRAIN, *cifar.TEST)}
        binary = {}
        for name in python:
            pixels, labels = cifar_images(name)
            binary[f"{name}.bin"] = np.hstack([labels[:, None], pixels]).tobytes()
        digests = {n: f"md5:{md5(c).hexdigest()}" for n, c in python.items()}
        of_python = {n: (len(c), digests[n]) for n, c in python.items()}
        of_binary = {n: (len(c), None) for n, c in binary.items()}
        known = {}
        for entry, files in (("cifar10", of_python), ("cifar10_binary", of_binary)):
            real = corpora.CORPORA[entry]
            assert isinstance(real.contents, Corpus)
            made = replace(real.contents, files=files)
            known[entry] = replace(real, find=made.find, verify=made.verify, contents=made)
        monkeypatch.setattr(corpora, "CORPORA", known)
        monkeypatch.setenv("EIGENSWEEP_DATA_ROOT", str(tmp_path / "root"))
        whole = {"cifar-10-python.tar.gz": python, "cifar-10-binary.tar.gz": binary}
        for name, files in whole.items():
            folder = f"cifar-10-batches-{'py' if files is python else 'bin'}"
            content = make_tar({f"{folder}/{n}": c for n, c in files.items()})
            write_files(tmp_path / "offered", {name: content})
        return tmp_path / "offered"

    @pytest.mark.parametrize("form", ["python", "binary"])
    def test_an_archive_is_imported_and_verified(self, published, form):
        name = {"python": "cifar10", "binary": "cifar10_binary"}[form]
        assert run("import", str(published / f"cifar-10-{form}.tar.gz")).exit_code == 0
        assert {path.split("/")[0] for path in files_in(published.parent / "root")} == {name}
        assert run("verify", name).exit_code == 0
        states = {row["corpus"]: row["state"] for row in json.loads(run("list", "--json").stdout)}
        assert states.pop(name) == "present"
        assert set(states.values()) == {"missing"}

    def test_damage_is_told_in_both(self, published):
        files = {
            "data_batch_1": python2_pickle("other", *cifar_images("data_batch_1")),
            "test_batch.bin": bytes([10]) + bytes(10 * 3073 - 1),
        }
        done = run("import", str(write_files(published.parent / "bad", files)))
        assert done.exit_code == 1
        assert re.search(r"data_batch_1 h\w+ ", done.stderr)
        assert "holds something else: CIFAR-10 has bytes and labels from 0 to 9" in done.stderr
        assert files_in(published.parent / "root") == []
