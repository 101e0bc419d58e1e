"""Whose fault an error is, as a trial's process tells it."""

import errno
import json
import platform
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from orders import make_order
from ray._raylet import raise_sys_exit_with_custom_error_message
from ray.tune.result import STDERR_FILE, STDOUT_FILE, TRIAL_INFO

from eigensweep.common.foreign_code import TRAINING, TorchSettings
from eigensweep.protocol.code import ForeignCodeError
from eigensweep.store.places.durable_files import storage_error
from eigensweep.tasks.corpus import CorpusMissingError
from eigensweep.training.errors import contain
from eigensweep.training.training import set_up_thread
from eigensweep.workers.driver.tune.trainable import give_order_alone, request_place
from eigensweep.workers.processes import runner, trial_process
from eigensweep.workers.processes.forked import Forked
from eigensweep.workers.processes.runner import LOST, REPORT, Runner
from eigensweep.workers.processes.trial_process import TrialProcess


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
    with pytest.raises(SystemExit), contain():
        raise_sys_exit_with_custom_error_message("the node drains")
    with pytest.raises(RuntimeError, match=r"called sys.exit\(3\)"), contain():
        sys.exit(3)


class Panic(BaseException):
    """What a library in another language raises."""


def test_what_is_no_exception_is_an_error_of_its_trial():
    with pytest.raises(RuntimeError, match="has raised Panic: out of bounds"), contain():
        raise Panic("out of bounds")
    with pytest.raises(KeyboardInterrupt), contain():
        raise KeyboardInterrupt


def test_an_interrupt_in_a_thread_is_an_error_of_the_trial(trial):
    def run() -> None:
        with contain():
            raise KeyboardInterrupt

    with ThreadPoolExecutor() as threads:
        assert isinstance(threads.submit(run).exception(), RuntimeError)
    report = trial(KeyboardInterrupt())[REPORT]
    assert (report["outcome"], "KeyboardInterrupt" in report["error"]) == ("failed", True)


class SpeechlessError(RuntimeError):
    """An error that cannot say what it is."""

    def __str__(self) -> str:
        raise ValueError("no words")


def test_an_error_without_words_is_told_with_its_traceback(trial):
    report = trial(SpeechlessError())[REPORT]
    assert report["outcome"] == "failed"
    assert "SpeechlessError" in report["error"]


def test_what_a_package_sets_for_all_of_pytorch_is_undone():
    with contain():
        torch.set_default_dtype(torch.float64)
        torch.set_grad_enabled(False)
    assert (torch.get_default_dtype(), torch.is_grad_enabled()) == (torch.float32, True)
    with torch.no_grad():
        with contain():
            torch.set_grad_enabled(True)
        assert not torch.is_grad_enabled()


SETTINGS = {
    "the precision of products": lambda: torch.set_float32_matmul_precision("medium"),
    "it in the new way": lambda: setattr(torch.backends, "fp32_precision", "bf16"),
    "it of recurrences": lambda: setattr(torch.backends.mkldnn.rnn, "fp32_precision", "bf16"),
    "the device": lambda: torch.set_default_device("meta"),
    "deterministic algorithms": lambda: torch.use_deterministic_algorithms(True),
    "the search for anomalies": lambda: torch.autograd.set_detect_anomaly(True),
}


@pytest.mark.parametrize("what", SETTINGS)
def test_each_of_these_settings_is_undone(what):
    with contain():
        SETTINGS[what]()
        assert TorchSettings.read() != TRAINING
    assert TorchSettings.read() == TRAINING
    SETTINGS[what]()
    set_up_thread(1)
    assert TorchSettings.read() == TRAINING


def test_after_another_packages_code_a_new_process_is_forked(monkeypatch):
    class Played(Forked):
        def __init__(self) -> None:
            made.append(self)
            self.is_closed = False

        def train(self):
            return {"by": made.index(self)}

        def train_next(self, config):
            return self.train()

        def close(self):
            self.is_closed = True

    made: list[Played] = []
    monkeypatch.setattr(trial_process, "fork", lambda *_, **__: Played())
    monkeypatch.setattr(trial_process, "find_node", lambda: "a1")
    ours = make_order().to_dict()
    theirs = ours | {"config": ours["config"] | {"code": "4f2a"}}
    process = TrialProcess(theirs)
    assert [process.train_next(each)["by"] for each in (ours, ours, theirs, ours)] == [1, 1, 1, 2]
    assert [each.is_closed for each in made] == [True, True, False]


def test_a_very_long_message_is_cut_in_the_middle(trial):
    told = trial(ValueError("begin" + "x" * 10**6 + "end"))[REPORT]["error"]
    assert len(told) < 70_000
    assert "ValueError: begin" in told
    assert "characters are left out" in told
    assert told.rstrip().endswith("end")


def test_an_error_without_words_is_a_failure(trial):
    class MuteError(Exception):
        def __str__(self) -> str:
            raise ValueError("no words")

    assert trial(MuteError())[REPORT]["outcome"] == "failed"


@pytest.mark.parametrize(
    "error",
    [RuntimeError("can't start new thread"), BlockingIOError(errno.EAGAIN, "try again")],
)
def test_a_thread_that_may_not_run_is_no_fault_of_the_trial(trial, monkeypatch, error):
    monkeypatch.setattr(runner, "find_crowd", lambda: "950 processes and threads run")
    report = trial(error)[REPORT]
    assert (report["outcome"], report["lost_by"]) == (None, "memory")
    assert report["lost"] == f"node {platform.node()}: {error}: 950 processes and threads run"
    monkeypatch.setattr(runner, "find_crowd", lambda: None)
    assert trial(error)[REPORT]["outcome"] == "failed"


@pytest.mark.parametrize("error", [ZeroDivisionError("a bug"), FileNotFoundError(2, "no file")])
def test_a_bug_is_a_failure(trial, error):
    told = trial(error)
    assert (told["done"], told[LOST], told[REPORT]["outcome"]) == (True, False, "failed")
    assert type(error).__name__ in told[REPORT]["error"]
