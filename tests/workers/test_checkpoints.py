"""The store promises: after any kill, state and curve are those of one and the same moment."""

from __future__ import annotations

import json
import os
import pickle
import random
import re
import resource
import signal
import subprocess
import sys
import time
import zlib
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from eigensweep.store import spectrum_files
from eigensweep.store.checkpoints import Store, pack
from eigensweep.store.commits.curves import CurvePoint, add_checksum
from eigensweep.store.commits.head import StaleAttemptError
from eigensweep.store.commits.heads import DAMAGED_HEAD, Heads
from eigensweep.store.commits.kept_files import PRINTED
from eigensweep.store.places.durable_files import DamagedError, StorageError
from eigensweep.store.places.folder_files import FolderFiles
from eigensweep.store.upkeep.copies import copy_out, explain_emptiness
from eigensweep.store.upkeep.thinning import thin_out

KEY = "e7/00012/0"


def point(step: int) -> CurvePoint:
    return CurvePoint(step, {"train/loss": 1 / step}, 1_700_000_000_000 + step)


def state(step: int, size: int = 100) -> dict[str, object]:
    return {"step": step, "weights": torch.full((size,), float(step)), "carried": (torch.ones(2),)}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(tmp_path)
    store.begin(KEY, 1)
    for step in (10, 20, 30):
        store.commit(KEY, 1, step, state(step), [point(step - 5), point(step)])
    return store


def files(store: Store) -> list[str]:
    return sorted(p.name for p in (Path(store.place) / KEY).iterdir())


@contextmanager
def a_full_disk(allowed: int):
    """Let no file grow beyond `allowed` bytes: the system's own refusal, as of a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (allowed, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


class TestTakeover:
    SOURCE = "e7/00003/0"

    @pytest.fixture
    def source(self, store: Store) -> Store:
        """Return the store, in which another trial has come to step 30, too."""
        store.begin(self.SOURCE, 1)
        store.commit(self.SOURCE, 1, 30, state(77), [point(30)])
        return store

    def test_the_checkpoint_is_the_sources_and_the_curve_stays(self, source):
        source.take_over(self.SOURCE, KEY, 2, 30)
        copied, original = (Path(source.place) / key for key in (KEY, self.SOURCE))
        (theirs,), (mine,) = original.glob("step-*.pt"), copied.glob("step-*.pt")
        assert mine.read_bytes() == theirs.read_bytes()
        snapshot = source.newest(KEY)
        assert (snapshot.step, snapshot.state["step"]) == (30, 77)
        assert [p.step for p in snapshot.points] == [5, 10, 15, 20, 25, 30]

    def test_it_goes_on_and_never_falls_back_to_what_it_was(self, source):
        source.take_over(self.SOURCE, KEY, 2, 30)
        source.commit(KEY, 2, 40, state(40), [point(40)])
        newest = source.list_checkpoints(KEY)[0].file
        (Path(source.place) / KEY / newest).write_bytes(b"damaged")
        snapshot = source.newest(KEY)
        assert (snapshot.step, snapshot.state["step"]) == (30, 77)
        assert snapshot.points[-1].step == 40

    def test_a_second_call_changes_nothing_wherever_both_are(self, source):
        source.take_over(self.SOURCE, KEY, 2, 30)
        source.commit(KEY, 2, 40, state(40), [point(40)])
        source.commit(self.SOURCE, 1, 50, state(50), [point(50)])
        source.take_over(self.SOURCE, KEY, 3, 30)
        assert source.newest(KEY).state["step"] == 40
        source.take_over(self.SOURCE, KEY, 3, 60)
        assert source.newest(KEY).state["step"] == 50

    def test_the_attempt_before_it_can_no_longer_commit(self, source):
        source.take_over(self.SOURCE, KEY, 2, 30)
        with pytest.raises(StaleAttemptError):
            source.commit(KEY, 1, 40, state(40), [])
        with pytest.raises(StaleAttemptError):
            source.take_over(self.SOURCE, KEY, 1, 60)

    def test_on_a_full_disk_everything_stays_as_it_was(self, source):
        with a_full_disk(100), pytest.raises(StorageError):
            source.take_over(self.SOURCE, KEY, 2, 30)
        assert source.newest(KEY).state["step"] == 30
        source.commit(KEY, 1, 40, state(40), [])
        assert source.newest(KEY).step == 40

    def test_a_source_without_a_checkpoint_lets_it_begin_anew(self, store):
        store.take_over("e7/00099/0", KEY, 2, 30)
        assert store.newest(KEY) is None
        store.begin(KEY, 2)


def test_the_newest_snapshot_has_the_whole_curve(store):
    snapshot = store.newest(KEY)
    assert (snapshot.step, snapshot.state["step"]) == (30, 30)
    assert snapshot.points == [point(s) for s in (5, 10, 15, 20, 25, 30)]


class RunsCode:
    """Makes a file when it is read from a pickle."""

    def __init__(self, made: Path) -> None:
        self.made = made

    def __reduce__(self) -> object:
        return Path.touch, (self.made,)


def test_a_checkpoint_that_would_run_code_is_refused(store, tmp_path):
    made = tmp_path / "made"
    store.commit(KEY, 1, 40, {"weights": RunsCode(made)}, [])
    with pytest.raises(pickle.UnpicklingError, match="Unsupported global"):
        store.newest(KEY)
    assert not made.exists()


def test_a_key_without_a_commit_has_no_snapshot_and_no_points(tmp_path):
    store = Store(tmp_path)
    assert store.newest("never") is None
    store.begin("begun", 1)
    assert store.newest("begun") is None
    assert store.points("begun") == []


def kinds(store: Store) -> list[str]:
    """Return the names of what lies there up to what nobody can foretell."""
    return [re.sub(r"-[0-9a-f]{8}(?=\.)", "", name) for name in files(store)]


def test_the_newest_two_checkpoints_are_kept_and_nothing_else(store):
    assert kinds(store) == [
        "curve-000000004.jsonl",
        "curve-000000006.jsonl",
        "head-000000003.json",
        "head-000000004.json",
        "step-000000020-2.pt",
        "step-000000030-3.pt",
    ]


def test_points_are_told_from_an_index_on_while_the_curve_grows(store):
    assert store.points(KEY, since=4) == [point(25), point(30)]
    store.commit(KEY, 1, 40, state(40), [point(40)])
    assert store.points(KEY, since=6) == [point(40)]
    assert store.points(KEY, since=7) == []
    assert len(store.points(KEY)) == 7


def test_a_later_attempt_shuts_the_earlier_one_out(store):
    store.begin(KEY, 2)
    with pytest.raises(StaleAttemptError, match="attempt 1 of e7/00012/0 has a successor, 2"):
        store.commit(KEY, 1, 40, state(40), [point(40)])
    with pytest.raises(StaleAttemptError):
        store.begin(KEY, 1)
    assert store.newest(KEY).step == 30
    assert store.attempt(KEY) == 2


def test_what_was_never_committed_is_removed(store):
    folder = Path(store.place) / KEY
    for name in ("step-000000040-4-1.pt", "curve-7.jsonl", "head-000000005.json.ab.tmp"):
        (folder / name).write_bytes(b"half")
    assert len(store.points(KEY)) == 6
    store.begin(KEY, 2)
    assert kinds(store)[-2:] == ["step-000000020-2.pt", "step-000000030-3.pt"]
    assert not any(b"half" in path.read_bytes() for path in folder.iterdir())
    store.commit(KEY, 2, 40, state(40), [point(40)])
    assert [p.step for p in store.points(KEY)] == [5, 10, 15, 20, 25, 30, 40]


class TestAnOlderVersion:
    """It replaced one `head.json` under a lock, and appended to one file for the curve."""

    def write(self, root: Path, *, says_attempt: bool) -> Store:
        """Write what it had when the second attempt was killed; the oldest had no checksums."""
        folder = root / KEY
        folder.mkdir(parents=True)
        mine = "-2" if says_attempt else ""
        lines = [
            {"step": p.step, "metrics": p.metrics, "timestamp_ms": p.timestamp_ms}
            for p in self.points()
        ]
        written = [json.dumps(line).encode() for line in lines]
        if says_attempt:
            written = [add_checksum(line) for line in written]
        curve = b"".join(line + b"\n" for line in written)
        (folder / f"curve{mine}.jsonl").write_bytes(curve + b'{"step": 35, "metr')
        checkpoints = []
        for commit, step in ((3, 30), (2, 20)):
            content = pack(state(step))
            file = f"step-{step:09d}-{commit}{mine}.pt"
            (folder / file).write_bytes(content)
            checkpoints.append({"file": file, "step": step, "crc": zlib.crc32(content)})
            if says_attempt:
                checkpoints[-1]["points"] = step // 5
        head = {"attempt": 2, "commits": 3, "curve_bytes": len(curve), "curve_points": 6}
        head |= {"last_step": 30, "checkpoints": checkpoints}
        content = json.dumps(head).encode()
        if says_attempt:
            head |= {"curve": "curve-2.jsonl", "taken_over": ""}
            content = add_checksum(json.dumps(head).encode())
        (folder / "head.json").write_bytes(content)
        for name in ("step-000000040-4-2.pt.tmp", "attempt-2.tmp", "lock"):
            (folder / name).write_bytes(b"half")
        (folder / "best.pt").write_bytes(b"weights")
        (folder / "spectra").mkdir()
        (folder / "spectra/000000030.json").write_bytes(b"{}")
        return Store(root)

    def points(self) -> list[CurvePoint]:
        return [point(step) for step in (5, 10, 15, 20, 25, 30)]

    @pytest.mark.parametrize("says_attempt", [True, False])
    def test_is_read_as_it_is(self, tmp_path, says_attempt):
        store = self.write(tmp_path, says_attempt=says_attempt)
        before = files(store)
        assert (store.attempt(KEY), store.progress(KEY).step) == (2, 30)
        assert store.points(KEY) == self.points()
        assert store.points(KEY, since=4) == self.points()[4:]
        assert (store.newest(KEY).step, store.newest(KEY).state["step"]) == (30, 30)
        assert [c.step for c in store.list_checkpoints(KEY)] == [30, 20]
        assert store.kept.read(KEY, "best.pt") == b"weights"
        assert spectrum_files.read(store, KEY) == [(30, {})]
        assert files(store) == before, "reading changes nothing"

    @pytest.mark.parametrize("says_attempt", [True, False])
    def test_is_gone_on_from(self, tmp_path, says_attempt):
        store, reader = self.write(tmp_path, says_attempt=says_attempt), Store(tmp_path)
        assert len(reader.points(KEY)) == 6
        with pytest.raises(StaleAttemptError):
            store.begin(KEY, 1)
        store.commit(KEY, 2, 33, state(33), [point(33)])
        assert store.begin(KEY, 3) is None
        store.commit(KEY, 3, 40, state(40), [point(40)])
        assert reader.points(KEY, since=6) == [point(33), point(40)]
        assert Store(tmp_path).points(KEY) == [*self.points(), point(33), point(40)]
        assert [c.step for c in reader.list_checkpoints(KEY)] == [40, 33]
        for step in range(41, 50):
            store.commit(KEY, 3, step, state(step), [point(step)])
        assert not {"head.json", "lock", "attempt-2.tmp"} & {*files(store)}
        assert [p.step for p in Store(tmp_path).points(KEY)][6:] == [33, *range(40, 50)]
        store.kept.write(KEY, 3, "best.pt", b"better")
        assert store.kept.read(KEY, "best.pt") == b"better"

    @pytest.mark.parametrize("torn", [b"", b'{"attempt": 2, "comm', b"null"])
    @pytest.mark.parametrize("says_attempt", [True, False])
    def test_whose_head_is_torn_is_gone_on_from_its_files(self, tmp_path, says_attempt, torn):
        store = self.write(tmp_path, says_attempt=says_attempt)
        (tmp_path / KEY / "head.json").write_bytes(torn)
        with pytest.raises(DamagedError, match=r"head\.json is damaged"):
            store.progress(KEY)
        told = store.begin(KEY, 3)
        assert f"{KEY}/head.json is damaged" in told
        assert "from the checkpoint of step 30" in told
        assert (store.newest(KEY).step, store.newest(KEY).state["step"]) == (30, 30)
        assert store.points(KEY) == self.points()
        assert [c.step for c in store.list_checkpoints(KEY)] == [30, 20]
        assert store.files.read(f"{KEY}/{DAMAGED_HEAD}") == torn
        store.commit(KEY, 3, 40, state(40), [point(40)])
        assert Store(tmp_path).points(KEY) == [*self.points(), point(40)]

    def test_a_torn_head_keeps_out_what_its_files_do_not_show(self, tmp_path):
        store = self.write(tmp_path, says_attempt=True)
        folder = tmp_path / KEY
        (folder / "head.json").write_bytes(b"")
        with pytest.raises(StaleAttemptError):
            store.begin(KEY, 1)
        (folder / "step-000000030-3-2.pt").write_bytes(b"half of it")
        (folder / "step-000000035-4-1.pt").write_bytes(pack(state(35)))
        curve = folder / "curve-2.jsonl"
        curve.write_bytes(curve.read_bytes().replace(b'"step": 30', b'"step": 31'))
        told = store.begin(KEY, 3)
        assert "head.json is damaged" in told
        assert f"the curve in {tmp_path}/{KEY}" in told
        assert "from the checkpoint of step 20" in told
        assert store.points(KEY) == self.points()[:5]

    def test_is_gone_back_behind_where_its_curve_is_damaged(self, tmp_path):
        store = self.write(tmp_path, says_attempt=True)
        curve = tmp_path / KEY / "curve-2.jsonl"
        curve.write_bytes(curve.read_bytes().replace(b'"step": 25', b'"step": 26'))
        assert "from the checkpoint of step 20" in store.begin(KEY, 3)
        assert store.points(KEY) == self.points()[:4]

    def test_is_thinned_out_and_copied(self, tmp_path):
        store = self.write(tmp_path / "store", says_attempt=True)
        (target := tmp_path / "copy" / KEY).mkdir(parents=True)
        copy_out(store, KEY, target, 2)
        assert Store(tmp_path / "copy").points(KEY) == self.points()
        assert Store(tmp_path / "copy").newest(KEY).step == 30
        assert thin_out(store, "e7/00012", "best", 2) > 0
        assert store.points(KEY) == self.points()
        assert store.list_checkpoints(KEY) == []


def test_what_a_killed_process_left_half_written_is_removed(store):
    store.kept.write(KEY, 1, "best.pt", b"weights")
    thin_out(store, "e7/00012", "last", 1)
    (Path(store.place) / KEY / "best-1.pt.tmp").write_bytes(b"weig")
    assert thin_out(store, "e7/00012", "last", 1) == 4
    assert not [name for name in store.files.names(KEY) if name.endswith(".tmp")]
    assert store.kept.read(KEY, "best.pt") == b"weights"


def test_nothing_is_kept_of_an_experiment_that_was_deleted(store):
    store.files.remove_all("e7")
    with pytest.raises(StaleAttemptError):
        store.kept.write(KEY, 1, "best.pt", b"weights")
    assert store.files.names("e7") == []


def test_what_every_store_may_hold_is_no_sign_of_a_training(tmp_path):
    store = Store(tmp_path)
    store.files.write(".doctor/a", b"")
    assert explain_emptiness(store) is not None
    store.begin(KEY, 1)
    assert explain_emptiness(store) is None


@pytest.mark.parametrize(
    "damage",
    [lambda it: b"", lambda it: it[:200], lambda it: it.replace(b"\x80\x3f", b"\x81\x3f", 1)],
    ids=["empty", "cut off", "a wrong digit"],
)
def test_best_weights_that_are_damaged_are_told(store, damage):
    content = pack({"step": 20, "value": 0.5, "weights": {"W": torch.ones(100)}})
    store.kept.write(KEY, 1, "best.pt", content)
    assert store.kept.best(KEY)["step"] == 20
    (Path(store.place) / KEY / "best-1.pt").write_bytes(damage(content))
    with pytest.raises(DamagedError, match=r"best weights in .*e7/00012/0 are damaged"):
        store.kept.best(KEY)


def test_a_copy_lacks_best_weights_that_are_pruned_meanwhile(store, tmp_path, monkeypatch):
    store.kept.write(KEY, 1, "best.pt", b"weights")
    fetch = FolderFiles.fetch

    def prune_first(files, path, target):
        if "best" in path:
            thin_out(store, "e7/00012", "none", 1)
        fetch(files, path, target)

    monkeypatch.setattr(FolderFiles, "fetch", prune_first)
    (target := tmp_path / "copy" / KEY).mkdir(parents=True)
    copy_out(store, KEY, target, 1)
    copied = Store(tmp_path / "copy")
    assert copied.points(KEY) == store.points(KEY)
    assert (copied.newest(KEY).step, copied.kept.has_best(KEY)) == (30, False)


def test_a_copy_has_what_the_last_attempt_printed(store, tmp_path):
    store.kept.write(KEY, 1, PRINTED, b"a loss")
    (target := tmp_path / "copy" / KEY).mkdir(parents=True)
    copy_out(store, KEY, target, 1)
    store.kept.write(KEY, 1, PRINTED, b"a loss, and more")
    assert Store(tmp_path / "copy").kept.read(KEY, PRINTED) == b"a loss"


def test_a_curve_reads_the_same_while_an_attempt_begins(store, monkeypatch):
    reader, look = Store(store.place), Heads.read
    assert len(reader.points(KEY)) == 6
    store.commit(KEY, 1, 40, state(40), [point(40)])

    def look_and_be_late(self, key):
        head = look(self, key)
        monkeypatch.undo()
        store.begin(KEY, 2)
        store.commit(KEY, 2, 50, state(50), [point(50)])
        return head

    monkeypatch.setattr(Heads, "read", look_and_be_late)
    assert reader.points(KEY, since=6) == [point(40)]
    assert reader.points(KEY, since=6) == [point(40), point(50)]


@pytest.mark.parametrize("damage", [b"", b"not a checkpoint"])
def test_a_damaged_checkpoint_falls_back_and_doubles_no_point(store, caplog, damage):
    (Path(store.place) / KEY / store.list_checkpoints(KEY)[0].file).write_bytes(damage)
    snapshot = store.newest(KEY)
    assert snapshot.step == 20
    assert "checkpoint damaged, falling back" in caplog.text
    store.begin(KEY, 2)
    store.commit(KEY, 2, 32, state(32), [point(25), point(30), point(32)])
    assert [p.step for p in store.points(KEY)] == [5, 10, 15, 20, 25, 30, 32]
    assert store.newest(KEY).step == 32


def test_a_full_disk_is_named_and_leaves_the_last_commit(store):
    before = files(store)
    with a_full_disk(allowed=20_000), pytest.raises(StorageError) as error:
        store.commit(KEY, 1, 40, state(40, size=100_000), [point(40)])
    assert re.search(r"step-000000040-4-\w+\.pt: File too large", str(error.value))
    assert isinstance(error.value.__cause__, OSError)
    assert files(store) == before
    assert store.newest(KEY).step == 30
    store.commit(KEY, 1, 40, state(40), [point(40)])
    assert [p.step for p in store.points(KEY)] == [5, 10, 15, 20, 25, 30, 40]


class KilledError(BaseException):
    """Stands for a kill: nobody catches it, so nothing is put in order."""


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("write", [1, 2, 3])
def test_a_kill_at_any_write_leaves_a_whole_commit_or_none(store, monkeypatch, write, moment):
    writes = []

    def kill_at(original):
        def write_or_die(*arguments, **named):
            writes.append(original)
            number = len(writes)
            if moment == "before" and number == write:
                raise KilledError
            done = original(*arguments, **named)
            if moment == "after" and number == write:
                raise KilledError
            return done

        return write_or_die

    for name in ("write", "create"):
        monkeypatch.setattr(store.files, name, kill_at(getattr(store.files, name)))
    with pytest.raises(KilledError):
        store.commit(KEY, 1, 40, state(40), [point(35), point(40)])
    monkeypatch.undo()

    later = Store(Path(store.place))
    reached = 40 if (write, moment) == (3, "after") else 30  # the third write is the head
    assert (later.newest(KEY).step, later.newest(KEY).state["step"]) == (reached, reached)
    assert [p.step for p in later.points(KEY)] == list(range(5, reached + 1, 5))
    later.begin(KEY, 2)
    later.commit(KEY, 2, 45, state(45), [point(s) for s in range(reached + 5, 46, 5)])
    assert [p.step for p in later.points(KEY)] == list(range(5, 46, 5))


def test_a_number_that_is_not_finite_is_not_written(store):
    with pytest.raises(ValueError, match="JSON"):
        store.commit(KEY, 1, 40, state(40), [CurvePoint(40, {"train/loss": float("nan")}, 0)])
    assert store.newest(KEY).step == 30


@pytest.mark.parametrize("key", ["../elsewhere", "/etc/eigensweep", "e7//0", "e7/../0", ""])
def test_a_key_cannot_lead_out_of_the_store(tmp_path, key):
    with pytest.raises(ValueError, match="a key is names joined by slashes"):
        Store(tmp_path).begin(key, 1)


def test_a_key_can_adopt_the_snapshot_of_another(store):
    store.begin("e8/00000/0", 3)
    assert store.copy(KEY, "e8/00000/0")
    assert store.newest("e8/00000/0").points == store.points(KEY)
    store.commit("e8/00000/0", 3, 40, state(40), [point(40)])
    assert not store.copy(KEY, "e8/00000/0")
    assert store.newest("e8/00000/0").step == 40
    assert store.newest(KEY).step == 30
    assert not store.copy("e9/00000/0", "e8/00001/0")


WRITER = """
import os, sys, torch
sys.path.insert(0, sys.argv[2])
from tests_of_the_store import KEY, point, state
from eigensweep.store.checkpoints import Store

store = Store(sys.argv[1])
for attempt in map(int, sys.stdin):
    if child := os.fork():
        os.waitpid(child, 0)
        print("ended", flush=True)
        continue
    store.begin(KEY, attempt)
    snapshot = store.newest(KEY)
    print(os.getpid(), flush=True)
    step = snapshot.step if snapshot else 0
    while True:
        step += 3
        points = [point(s) for s in range(step - 2, step + 1)]
        store.commit(KEY, attempt, step, state(step, size=20_000), points)
"""
"""Commits without end in a process of each attempt; all are forked from one that has PyTorch."""


def test_random_kills_never_lose_or_double_a_point(tmp_path):
    (tmp_path / "tests_of_the_store.py").write_text(Path(__file__).read_text())
    moments = random.Random(1)
    store = Store(tmp_path / "store")
    command, pipe = [sys.executable, "-c", WRITER, Path(store.place), tmp_path], subprocess.PIPE
    reached = 0
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as writer:
        for attempt in range(1, 4):
            writer.stdin.write(f"{attempt}\n")
            writer.stdin.flush()
            process = int(writer.stdout.readline())
            time.sleep(moments.uniform(0, 0.5))
            os.kill(process, signal.SIGKILL)
            assert writer.stdout.readline() == "ended\n"
            snapshot = store.newest(KEY)
            if snapshot is None:
                continue
            assert snapshot.step >= reached
            assert snapshot.state["step"] == snapshot.step
            assert torch.equal(
                snapshot.state["weights"], torch.full((20_000,), float(snapshot.step))
            )
            assert snapshot.points == [point(s) for s in range(1, snapshot.step + 1)]
            reached = snapshot.step
    assert reached > 0


def test_the_store_and_results_load_without_torch_ray_or_mlflow():
    code = """
import sys
from eigensweep.results.seeds import summarise
from eigensweep.store.checkpoints import Store
assert not {"torch", "ray", "mlflow", "pydantic"} & set(sys.modules), sorted(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)
