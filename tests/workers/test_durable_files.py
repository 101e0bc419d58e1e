"""Locks and folders on a file system of the network: what fails there is no trial's fault."""

from __future__ import annotations

import errno
import os
import resource
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from eigensweep.store.checkpoints import Store
from eigensweep.store.commits.curves import CurvePoint
from eigensweep.store.places import durable_files
from eigensweep.store.places.durable_files import (
    StorageError,
    StoreAwayError,
    disk_failure,
    hold_lock,
    write_whole,
)
from eigensweep.store.places.folder_files import FolderFiles

HOLD = """
import sys
from pathlib import Path
from eigensweep.store.places.durable_files import hold_lock
with hold_lock(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_held_lock_is_the_surroundings_fault_and_free_later(tmp_path):
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, tmp_path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with holder:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(StoreAwayError, match="has held") as error, hold_lock(tmp_path, 0.2):
            pytest.fail("two hold it")
        assert disk_failure(error.value) is error.value
        holder.kill()
    with hold_lock(tmp_path, 60.0):
        pass


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOLCK, "No locks available"),
        OSError(errno.EIO, "Input/output error"),
        OSError(errno.EBADF, "Bad file descriptor"),
        NotImplementedError("FileSystem does not appear to support flock"),
    ],
)
def test_a_file_system_that_gives_no_lock_is_nobodys_fault(tmp_path, monkeypatch, error):
    def refuse(*given, **named):
        raise error

    monkeypatch.setattr(durable_files.FileLock, "acquire", refuse)
    with pytest.raises(StoreAwayError, match="cannot lock") as refused, hold_lock(tmp_path):
        pytest.fail("it is held")
    assert disk_failure(refused.value) is refused.value


@pytest.mark.parametrize(
    ("kind", "limit"), [(resource.RLIMIT_FSIZE, 100), (resource.RLIMIT_NOFILE, 1)]
)
def test_a_limit_of_the_process_is_no_trials_fault(tmp_path, kind, limit):
    soft, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (limit, hard))
    try:
        with pytest.raises(StorageError, match="cannot write") as error:
            write_whole(tmp_path / "file", b"x" * 101)
    finally:
        resource.setrlimit(kind, (soft, hard))
    assert disk_failure(error.value) is error.value


def test_two_may_write_the_same_file_at_once(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        written = [
            pool.submit(write_whole, tmp_path / "file", bytes([n]) * 10_000) for n in range(64)
        ]
    assert [each.exception() for each in written] == [None] * 64
    assert len({*(tmp_path / "file").read_bytes()}) == 1
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("own_disk", [True, False])
def test_a_commit_syncs_three_files_and_an_unordered_folder(tmp_path, monkeypatch, own_disk):
    monkeypatch.setattr(durable_files, "has_own_disk", lambda folder: own_disk)
    acts, fsync, rename, link = [], os.fsync, os.replace, os.link

    def sync(file):
        is_folder = stat.S_ISDIR(os.fstat(file).st_mode)
        acts.append("sync folder" if is_folder else "sync file")
        fsync(file)

    def replace(source, target):
        acts.append(f"rename {target.name.partition('-')[0]}")
        rename(source, target)

    def link_and_tell(source, target):
        acts.append(f"link {target.name}")
        link(source, target)

    store = Store(tmp_path)
    store.begin("e1/00000/0", 1)
    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "replace", replace)
    monkeypatch.setattr(os, "link", link_and_tell)
    store.commit("e1/00000/0", 1, 5, {}, [CurvePoint(5, {}, 0)])
    expected = ["sync file", "rename step", "sync file", "rename curve"]
    expected += ["sync file", "link head-000000002.json"]
    assert acts == expected + ([] if own_disk else ["sync folder"])


def test_a_head_whose_folder_was_not_synced_keeps_what_it_names(tmp_path, monkeypatch):
    """The head is seen by all, so the commit is neither undone nor made a second time."""
    monkeypatch.setattr(durable_files, "has_own_disk", lambda folder: False)  # as on NFS
    key, fsync = "e1/00000/0", os.fsync
    points = [CurvePoint(step, {"train/loss": 1.0}, 1) for step in range(1, 31)]
    store = Store(tmp_path)
    store.begin(key, 1)
    store.commit(key, 1, 10, {}, points[:10])

    def fail(file):
        if stat.S_ISDIR(os.fstat(file).st_mode):
            raise OSError(errno.EIO, "Input/output error")
        fsync(file)

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(StoreAwayError):
        store.commit(key, 1, 20, {}, points[10:20])
    monkeypatch.setattr(os, "fsync", fsync)
    assert store.points(key) == points[:20]
    store.commit(key, 1, 30, {}, points[20:])
    assert Store(tmp_path).points(key) == points


class TestAFileThatMustNotExistYet:
    def test_is_made_by_one_alone_and_whole(self, tmp_path):
        files = FolderFiles(tmp_path)
        assert files.create("e1/head", b"first")
        assert not files.create("e1/head", b"second")
        assert files.read("e1/head") == b"first"
        assert files.names("e1") == ["head"]

    def test_is_known_as_ones_own_after_a_lost_answer(self, tmp_path, monkeypatch):
        """A network's file system may ask twice, and be told of the first time the second time."""
        link = os.link

        def link_twice(source, target):
            link(source, target)
            link(source, target)

        monkeypatch.setattr(os, "link", link_twice)
        files = FolderFiles(tmp_path)
        assert files.create("head", b"mine")
        assert not files.create("head", b"theirs")

    def test_is_made_on_a_file_system_without_links(self, tmp_path, monkeypatch):
        def refuse(source, target):
            raise OSError(errno.EPERM, "Operation not permitted")

        monkeypatch.setattr(os, "link", refuse)
        files = FolderFiles(tmp_path)
        assert files.create("head", b"first")
        assert not files.create("head", b"second")
        assert (files.read("head"), files.names("")) == (b"first", ["head"])

    def test_is_nobodys_fault_where_nobody_knows(self, tmp_path, monkeypatch):
        def break_off(source, target):
            raise OSError(errno.EIO, "Input/output error")

        monkeypatch.setattr(os, "link", break_off)
        with pytest.raises(StoreAwayError, match="cannot write") as error:
            FolderFiles(tmp_path).create("head", b"x")
        assert disk_failure(error.value) is error.value
