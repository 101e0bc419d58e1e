"""Where Ray of our own works, and what is left of it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from filelock import FileLock

from eigensweep.common.private_folders import UnsafeFolderError
from eigensweep.workers.cluster import ray_folder
from eigensweep.workers.cluster.ray_folder import RayFolder


@pytest.fixture
def short() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="es-", dir="/tmp") as name:
        yield Path(name)


def test_it_is_emptied_made_private_and_removed(short: Path) -> None:
    (short / "ray" / "planted").mkdir(parents=True)
    (short / "ray").chmod(0o777)

    folder = RayFolder.make(short / "ray")

    assert folder.path == short / "ray" / "r"
    assert (short / "ray").stat().st_mode & 0o777 == 0o700
    assert not (short / "ray" / "planted").exists()
    folder.remove()
    assert not (short / "ray").exists()


def test_below_a_folder_that_others_can_change_it_is_refused(short: Path) -> None:
    short.chmod(0o777)
    with pytest.raises(UnsafeFolderError, match="other users may write"):
        RayFolder.make(short / "ray")
    short.chmod(0o700)


@pytest.mark.parametrize("name", ["long" * 20, "jörg"])
def test_for_a_path_that_ray_cannot_use_it_is_a_temporary_one(
    short: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(ray_folder, "SHORT", short)
    left = [RayFolder.make(None), RayFolder.make(short / name)]
    left[0]._lock.release()  # as the end of a killed process does
    (short / "eigensweep-other").mkdir(mode=0o755)  # not made by this version

    used = RayFolder.make(None)

    assert {path.name for path in short.glob("eigensweep-*")} == {
        "eigensweep-other",
        *(folder.path.parent.name for folder in (left[1], used)),
    }
    with pytest.raises(TimeoutError), FileLock(used.path.parent / "lock").acquire(blocking=False):
        pass
    for folder in (left[1], used):
        folder.remove()
