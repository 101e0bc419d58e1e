"""Whose fault an error is, as a trial's process tells it."""

import errno
import json
import platform
import sys
from dataclasses import replace

import pytest
from orders import make_order
from ray._raylet import raise_sys_exit_with_custom_error_message
from ray.tune.result import STDERR_FILE, STDOUT_FILE, TRIAL_INFO

from eigensweep.protocol.code import ForeignCodeError
from eigensweep.store.places.durable_files import storage_error
from eigensweep.tasks.corpus import CorpusMissingError
from eigensweep.training.errors import refuse_exit
from eigensweep.workers.driver.tune.trainable import give_order_alone, request_place
from eigensweep.workers.processes import runner
from eigensweep.workers.processes.runner import LOST, REPORT, Runner


@pytest.fixture
def trial(monkeypatch, tmp_path):
    """Return a function that lets a trial's process meet an error, and returns what it tells."""

    def meet(error):
        def fail(order, device):
            raise error

        monkeypatch.setattr(runner, "open_attempt", fail)
        told = Runner(make_order(storage=str(tmp_path)).to_dict()).train()
        return told | {REPORT: json.loads(told[REPORT])}

    return meet


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS])
def test_a_disk_that_fails_loses_the_attempt_not_the_trial(trial, tmp_path, code):
    cause = OSError(code, "the disk fails")
    error = storage_error("write", tmp_path / "head.json", cause)
    error.__cause__ = cause
    told = trial(error)
    assert (told["done"], told[LOST]) == (True, True)
    report = told[REPORT]
    assert (report["outcome"], report["lost_by"]) == (None, "disk")
    words = f"cannot write {tmp_path / 'head.json'}: the disk fails"
    assert report["lost"] == f"node {platform.node()}: {words}"


def test_an_unreadable_store_is_the_disks_fault_a_file_is_not(trial, tmp_path):
    cause = PermissionError(errno.EACCES, "Permission denied")
    error = storage_error("read", tmp_path / "head.json", cause)
    error.__cause__ = cause
    assert trial(error)[REPORT]["lost_by"] == "disk"
    assert trial(cause)[REPORT]["outcome"] == "failed"


@pytest.mark.parametrize("kind", [ForeignCodeError, CorpusMissingError])
def test_a_node_with_other_code_or_no_corpus_is_named(trial, kind):
    report = trial(kind("not what the driver has"))[REPORT]
    assert (report["outcome"], report["lost_by"]) == (None, "node")
    assert report["lost"] == f"node {platform.node()}: not what the driver has"


def test_a_trial_keeps_away_from_the_nodes_that_are_left_out():
    order = replace(make_order(), avoid=("a1", "b2"))
    asked = request_place(order)
    selector = [{"ray.io/node-id": "!in(a1,b2)"}]
    assert asked._bound.kwargs["bundle_label_selector"] == selector
    asked = request_place(make_order())
    assert "bundle_label_selector" not in asked._bound.kwargs


def test_a_process_is_given_nothing_that_only_tune_can_read():
    order = make_order().to_dict()
    added = {TRIAL_INFO: object(), STDOUT_FILE: None, STDERR_FILE: None}
    assert give_order_alone(order | added) == order


def test_ray_ends_its_own_processes_by_an_exit():
    with pytest.raises(SystemExit), refuse_exit():
        raise_sys_exit_with_custom_error_message("the node drains")
    with pytest.raises(RuntimeError, match=r"called sys.exit\(3\)"), refuse_exit():
        sys.exit(3)


@pytest.mark.parametrize("error", [ZeroDivisionError("a bug"), FileNotFoundError(2, "no file")])
def test_a_bug_is_a_failure(trial, error):
    told = trial(error)
    assert (told["done"], told[LOST], told[REPORT]["outcome"]) == (True, False, "failed")
    assert type(error).__name__ in told[REPORT]["error"]
