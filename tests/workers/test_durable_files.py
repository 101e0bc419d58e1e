"""Locks and folders on a file system of the network: what fails there is no trial's fault."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys

import pytest

from eigensweep.workers.shared import durable_files
from eigensweep.workers.shared.checkpoints import CurvePoint, Store
from eigensweep.workers.shared.durable_files import StoreAwayError, disk_failure, hold_lock

HOLD = """
import sys
from pathlib import Path
from eigensweep.workers.shared.durable_files import hold_lock
with hold_lock(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_lock_that_somebody_keeps_holding_is_the_surroundings_fault_and_is_free_later(tmp_path):
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
    with pytest.raises(StoreAwayError, match="cannot lock") as refused:
        Store(tmp_path).begin("e1/00000/0", 1)
    assert disk_failure(refused.value) is refused.value


@pytest.mark.parametrize("own_disk", [True, False])
def test_where_no_disk_keeps_the_order_the_folder_is_synced_after_the_head_took_its_place(
    tmp_path, monkeypatch, own_disk
):
    monkeypatch.setattr(durable_files, "has_own_disk", lambda folder: own_disk)
    acts, fsync, rename = [], os.fsync, os.replace

    def sync(file):
        is_folder = stat.S_ISDIR(os.fstat(file).st_mode)
        acts.append("sync folder" if is_folder else "sync file")
        fsync(file)

    def replace(source, target):
        acts.append(f"rename {os.path.basename(target)}")
        rename(source, target)

    store = Store(tmp_path)
    store.begin("e1/00000/0", 1)
    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "replace", replace)
    store.commit("e1/00000/0", 1, 5, {}, [CurvePoint(5, {}, 0)])
    checkpoint = "rename step-000000005-1-1.pt"
    expected = ["sync file", "sync file", checkpoint, "sync file", "rename head.json"]
    assert acts == expected + ([] if own_disk else ["sync folder"])
