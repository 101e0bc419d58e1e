"""Folders that only their user can change: made, tightened or refused."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from eigensweep.common.private_folders import UnsafeFolderError, make_private, require_own


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def test_a_new_folder_and_those_above_it_are_this_users_alone(tmp_path: Path) -> None:
    make_private(tmp_path / "above" / "home")

    assert mode(tmp_path / "above") == mode(tmp_path / "above" / "home") == 0o700


def test_a_folder_others_could_read_is_tightened_with_contents(
    tmp_path: Path,
) -> None:
    home = tmp_path / "home"
    (home / "inner").mkdir(parents=True)
    home.chmod(0o755)
    (home / "inner" / "record.db").touch(0o644)
    (tmp_path / "elsewhere").touch(0o644)
    (home / "inner" / "link").symlink_to(tmp_path / "elsewhere")

    make_private(home)

    assert mode(home) == mode(home / "inner") == 0o700
    assert mode(home / "inner" / "record.db") == 0o600
    assert mode(tmp_path / "elsewhere") == 0o644


def test_a_folder_that_others_may_write_into_is_refused(
    tmp_path: Path,
) -> None:
    (tmp_path / "open" / "home").mkdir(parents=True)
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(UnsafeFolderError, match=r"open \(its mode is drwxrwxrwx\).*chmod go-w"):
        make_private(tmp_path / "open")
    with pytest.raises(UnsafeFolderError, match=r"open .*chmod go-w"):
        make_private(tmp_path / "open" / "home")
    (tmp_path / "link").symlink_to(tmp_path / "open" / "home")
    with pytest.raises(UnsafeFolderError, match=r"open .*chmod go-w"):
        make_private(tmp_path / "link")
    (tmp_path / "open").chmod(0o1777)  # as /tmp is: others cannot exchange what is in it
    make_private(tmp_path / "open" / "home")
    with pytest.raises(UnsafeFolderError, match=r"open .*chmod go-w"):
        make_private(tmp_path / "open")


def test_a_folder_of_somebody_else_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    me = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: me + 1)
    with pytest.raises(UnsafeFolderError, match=f"belongs to user {me}, not to user {me + 1}"):
        make_private(tmp_path)


def test_what_vanishes_during_a_look_counts_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("eigensweep.db", "eigensweep.db-wal"):
        (tmp_path / name).touch(0o644)
    tmp_path.chmod(0o755)
    look = os.lstat

    def look_late(path: str | Path) -> os.stat_result:
        if str(path).endswith("-wal"):
            Path(path).unlink(missing_ok=True)
        return look(path)

    monkeypatch.setattr(os, "lstat", look_late)
    make_private(tmp_path)
    assert mode(tmp_path / "eigensweep.db") == 0o600
    monkeypatch.setattr(Path, "iterdir", lambda _: iter([tmp_path / "eigensweep.db-wal"]))
    require_own(tmp_path, but="ray")


def test_what_was_planted_in_a_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "mlflow").mkdir()
    (tmp_path / "ray").mkdir()
    for name in ("ray", "mlflow"):
        require_own(tmp_path, but="ray")
        (tmp_path / name).chmod(0o777)
    with pytest.raises(UnsafeFolderError, match=r"write to .*mlflow.*chmod -R go-rwx"):
        require_own(tmp_path, but="ray")
    (tmp_path / "mlflow").chmod(0o700)
    if os.geteuid() == 0:
        os.chown(tmp_path / "mlflow", 12345, -1)
        with pytest.raises(UnsafeFolderError, match="mlflow belongs to user 12345"):
            require_own(tmp_path, but="ray")
