"""A process that stands still in the middle of a change in a folder, and goes on much later."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from eigensweep.store.checkpoints import Store
from eigensweep.store.commits.curves import CurvePoint
from eigensweep.store.commits.heads import Heads
from eigensweep.store.upkeep.thinning import thin_out

KEY, TRIAL = "e7/00012/0", "e7/00012"

SLOW = """
import builtins, os, signal, sys

from tests_of_fencing import change
from eigensweep.store.commits.head import StaleAttemptError

moments = stopped = 0
root, opened = None, open


def pass_a_moment():
    global moments
    moments += 1
    if moments == stopped:
        os.kill(os.getpid(), signal.SIGSTOP)


def see(event, arguments):  # before each look at the files, and each change
    if root is not None and event.startswith(("open", "os.")):
        if arguments and root in os.fsdecode(str(arguments[0])):
            pass_a_moment()


def open_and_see(*arguments, **named):
    file = opened(*arguments, **named)
    pass_a_moment()
    return file


sys.addaudithook(see)
os.fsync = lambda file: pass_a_moment()  # after each write; no power is lost here
for order in sys.stdin:
    act, folder, moment = order.split()
    child = os.fork()
    if not child:
        root, stopped, builtins.open = folder, int(moment), open_and_see
        try:
            change(act, folder)
        except StaleAttemptError:
            os._exit(3)
        except BaseException:
            sys.excepthook(*sys.exc_info())
            os._exit(4)
        os._exit(0)
    _, status = os.waitpid(child, os.WUNTRACED)
    if os.WIFSTOPPED(status):
        print("stopped", child, flush=True)
        _, status = os.waitpid(child, 0)
    print("exited", os.waitstatus_to_exitcode(status), flush=True)
"""
"""Changes a key in a process that stands still at a given moment, as often as it is asked to."""


def point(step: int, attempt: int) -> CurvePoint:
    return CurvePoint(step, {"train/loss": float(attempt)}, 1_700_000_000_000 * attempt)


def state(attempt: int) -> dict[str, object]:
    return {"attempt": attempt, "weights": torch.full((100,), float(attempt))}


def change(act: str, root: str) -> None:
    """Do as the second attempt what is to be stopped half-way."""
    store = Store(root)
    if act == "begin":
        store.begin(KEY, 2)
    elif act == "commit":
        store.commit(KEY, 2, 20, state(2), [point(20, 2)])
    elif act == "keep_file":
        store.kept.write(KEY, 2, "best.pt", b"of the second attempt")
    else:
        thin_out(store, TRIAL, "last", 2)


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[subprocess.Popen[str]]:
    folder = tmp_path_factory.mktemp("slow")
    (folder / "tests_of_fencing.py").write_text(Path(__file__).read_text())
    path = os.pathsep.join([str(folder), *sys.path])
    with subprocess.Popen(
        [sys.executable, "-c", SLOW],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    ) as process:
        yield process
        process.stdin.close()


def prepare(root: Path, act: str) -> Store:
    """Return a store in which two attempts have trained, or one and the second is to begin."""
    store = Store(root)
    store.begin(KEY, 1)
    for step in (5, 10):
        store.commit(KEY, 1, step, state(1), [point(step, 1)])
    if act != "begin":
        store.begin(KEY, 2)
        store.commit(KEY, 2, 15, state(2), [point(15, 2)])
    return store


def succeed(store: Store) -> int:
    """Let a third attempt train to its end; return the step from which it went on."""
    store.begin(KEY, 3)
    reached = store.newest(KEY).step
    for step in (20, 25, 30):
        store.commit(KEY, 3, step, state(3), [point(step, 3)])
    store.kept.write(KEY, 3, "best.pt", b"of the third attempt")
    return reached


def check(store: Store, reached: int) -> None:
    """Check that the key holds what the third attempt has written, and what came before it."""
    reader = Store(Path(store.place))
    assert (reader.attempt(KEY), reader.progress(KEY).step) == (3, 30)
    assert reader.newest(KEY).state["attempt"] == 3
    assert [c.step for c in reader.list_checkpoints(KEY)] == [30, 25]
    assert reader.kept.read(KEY, "best.pt") == b"of the third attempt"
    points = reader.points(KEY)
    assert [p.step for p in points if p.step <= reached] == list(range(5, reached + 1, 5))
    assert [p for p in points if p.step > reached] == [
        point(step, 3) for step in (20, 25, 30) if step > reached
    ]


@pytest.mark.parametrize("act", ["begin", "commit", "keep_file", "thin_out"])
def test_an_attempt_never_writes_over_its_successor(
    slow: subprocess.Popen[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, act: str
) -> None:
    monkeypatch.setattr(os, "fsync", lambda file: None)
    moment, ends = 0, []
    while True:
        moment += 1
        root = tmp_path / str(moment)
        store = prepare(root, act)
        print(act, root, moment, file=slow.stdin, flush=True)
        word, number = slow.stdout.readline().split()
        if word == "exited":
            break
        reached = succeed(store)
        os.kill(int(number), signal.SIGCONT)
        word, code = slow.stdout.readline().split()
        assert word == "exited"
        ends.append(int(code))
        check(store, reached)
        store.begin(KEY, 4)
        assert Store(root).newest(KEY).step == 30
    assert number == "0", "without a stop it ends as it should"
    assert len(ends) >= 5, "it stood still at each look and each change"
    if act != "thin_out":  # which leaves a key with a successor alone, without a word
        assert {3} <= set(ends) <= {0, 3}, "it was refused, or done before its successor began"


class KilledError(BaseException):
    """Stands for a kill: nobody catches it."""


def test_it_counts_for_nothing_also_after_a_killed_successor(
    slow: subprocess.Popen[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The third attempt dies as soon as it has made its head, and tidies nothing up."""
    monkeypatch.setattr(os, "fsync", lambda file: None)

    def die(*given: Any) -> None:
        raise KilledError

    moment = 0
    while True:
        moment += 1
        root = tmp_path / str(moment)
        store = prepare(root, "commit")
        print("commit", root, moment, file=slow.stdin, flush=True)
        word, number = slow.stdout.readline().split()
        if word == "exited":
            break
        with monkeypatch.context() as patch:
            patch.setattr(Heads, "_tidy", die)
            with pytest.raises(KilledError):
                store.begin(KEY, 3)

        fourth = Store(root)

        def go_on_and_tidy(*given: Any, pid: int = int(number)) -> None:
            patch.undo()
            os.kill(pid, signal.SIGCONT)
            assert slow.stdout.readline().split()[0] == "exited"
            Heads._tidy(*given)

        with monkeypatch.context() as patch:
            patch.setattr(Heads, "_tidy", go_on_and_tidy)
            fourth.begin(KEY, 4)
        reached = fourth.newest(KEY).step
        fourth.commit(KEY, 4, 25, state(4), [point(25, 4)])
        Store(root).begin(KEY, 5)
        reader = Store(root)
        assert (reader.attempt(KEY), reader.newest(KEY).state["attempt"]) == (5, 4), moment
        assert [p.step for p in reader.points(KEY)] == [*range(5, reached + 1, 5), 25]
    assert moment > 10, "it stood still at each look and each change"
