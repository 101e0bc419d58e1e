"""Whose fault an error is, where code of a package meets the disk."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eigensweep.models import MODELS
from eigensweep.store.places.durable_files import storage_error
from eigensweep.training.errors import is_of_the_disk

READ_ONLY = OSError(errno.EROFS, "Read-only file system", "/opt/lab/cache")
FULL = OSError(errno.ENOSPC, "No space left on device", "/opt/lab/cache")


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch) -> Callable[[Exception], Any]:
    """A function of a package with a model, which raises what it is given."""
    monkeypatch.setitem(MODELS, "lab", type("Lab", (), {"__module__": "lab.models"}))
    names: dict[str, Any] = {"__name__": "lab.caches"}
    exec("def write(error): raise error", names)
    return names["write"]


def meet(write: Callable[[Exception], Any], error: Exception) -> Exception:
    with pytest.raises(type(error)) as caught:
        write(error)
    return caught.value


def refuse(error: Exception) -> Any:
    raise error


def test_a_read_only_place_of_a_package_is_its_own_affair(lab):
    assert not is_of_the_disk(meet(lab, OSError(*READ_ONLY.args)))
    told = RuntimeError("no cache")
    told.__cause__ = meet(lab, OSError(*READ_ONLY.args))
    assert not is_of_the_disk(told)


def test_a_full_disk_is_the_disks_wherever_it_is_met(lab):
    assert is_of_the_disk(meet(lab, OSError(*FULL.args)))


def test_what_our_own_code_meets_is_the_disks(lab):
    assert is_of_the_disk(meet(refuse, OSError(*READ_ONLY.args)))
    stored = storage_error("write", Path("head-1"), OSError(*READ_ONLY.args))
    stored.__cause__ = OSError(*READ_ONLY.args)
    assert is_of_the_disk(meet(lab, stored))


def test_other_errors_are_not_the_disks(lab):
    assert not is_of_the_disk(meet(lab, ValueError("a bug")))
