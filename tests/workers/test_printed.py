"""What a trial's process prints is kept in the store."""

import json
import logging
import multiprocessing
import subprocess
import sys
import threading

import pytest
from orders import make_order
from waiting import wait_until

from eigensweep.common import logs
from eigensweep.store.checkpoints import Store, replicate_key
from eigensweep.store.commits.kept_files import PRINTED
from eigensweep.training import printed
from eigensweep.training.printed import LONGEST, Printed
from eigensweep.workers.processes import runner
from eigensweep.workers.processes.runner import REPORT, Runner

KEY = replicate_key("e1", 3, 5)


@pytest.fixture
def order(tmp_path):
    return make_order(config={"seed": 5}, storage=str(tmp_path))


def read(order, key=KEY):
    return Store(order.storage).kept.read(key, PRINTED).decode()


def test_prints_and_logs_are_kept_and_seen(order, capsys, monkeypatch):
    monkeypatch.setattr(logging.root, "handlers", [])
    monkeypatch.setattr(logging.root, "level", logging.WARNING)
    logs.set_up("text")
    with Printed(order):
        print("loss", 3, flush=True)
        logging.getLogger("model").info("its log")
        sys.stderr.writelines(["one\n", "two\n"])
    assert read(order).splitlines() == ["loss 3", "INFO model its log", "one", "two"]
    print("outside")
    out, errors = capsys.readouterr()
    assert (out, "its log\none" in errors) == ("loss 3\noutside\n", True)
    assert "outside" not in read(order)


def test_a_thread_that_prints_on_and_on_ends_no_process(order):
    """Python's `print` holds no reference of its own to the stream that it writes to."""
    program = (
        "import sys, threading\n"
        "from eigensweep.protocol.messages import Order\n"
        "from eigensweep.training.printed import Printed\n"
        "import json\n"
        "order = Order.from_dict(json.loads(sys.argv[1]))\n"
        "with Printed(order):\n"
        "    work = lambda: [print('x' * 200) for _ in iter(int, 1)]\n"
        "    threading.Thread(target=work, daemon=True).start()\n"
        "for _ in range(300):\n"
        "    with Printed(order):\n"
        "        threading.Event().wait(0.002)\n"
        "import os\n"
        "os._exit(0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, json.dumps(order.to_dict())],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_prints_are_kept_while_the_trial_trains(order, monkeypatch):
    monkeypatch.setattr(printed, "PAUSE_SECONDS", 0.01)
    with Printed(order):
        print("here")
        wait_until(lambda: Store(order.storage).files.names(KEY))
        assert read(order) == "here\n"
        print("there")
        wait_until(lambda: read(order) == "here\nthere\n")


def test_the_newest_prints_are_kept(order):
    with Printed(order):
        for k in range(LONGEST // 4):
            print(k)
    kept = read(order)
    assert len(kept) == LONGEST
    assert kept.endswith(f"\n{LONGEST // 4 - 1}\n")


def test_nothing_is_written_where_nothing_is_printed(order):
    with Printed(order):
        pass
    assert Store(order.storage).files.names(KEY) == []


def test_an_earlier_attempt_writes_over_no_later_one(order):
    store = Store(order.storage)
    with Printed(order):
        store.begin(KEY, 2)
        store.kept.write(KEY, 2, PRINTED, b"later")
        print("late")
    assert read(order) == "later"


def test_a_store_that_fails_ends_no_trial(order, tmp_path, capsys):
    (tmp_path / "e1").write_text("no folder")
    with Printed(order):
        print("seen")
    assert capsys.readouterr().out == "seen\n"


def test_what_was_printed_before_a_failure_is_kept(order, monkeypatch):
    def fail(order, device):
        print("before it")
        raise ZeroDivisionError

    monkeypatch.setattr(runner, "open_attempt", fail)
    trial = Runner(order.to_dict())
    assert json.loads(trial.train()[REPORT])["outcome"] == "failed"
    assert read(order) == "before it\n"
    other = make_order(config={"seed": 0}, storage=order.storage, number=4)
    trial.train_next(other.to_dict())
    assert read(order, replicate_key("e1", 4, 0)) == "before it\n", "each trial has its own"


def test_a_log_made_in_one_trial_tells_of_the_next(order, capsys):
    other = make_order(config={"seed": 0}, storage=order.storage, number=4)
    log = logging.Logger("of a model, made once")
    with Printed(order):
        log.addHandler(logging.StreamHandler())
        log.warning("one")
    log.warning("between them")
    with Printed(other):
        log.warning("two")
    kept = read(order), read(other, replicate_key("e1", 4, 0))
    assert kept == ("one\n", "two\n")
    assert capsys.readouterr().err == "one\nbetween them\ntwo\n"


def test_a_forked_process_keeps_no_prints(order, monkeypatch):
    monkeypatch.setattr(printed, "PAUSE_SECONDS", 0.0)

    def print_there():
        print("there", flush=True)
        for thread in set(threading.enumerate()) - {threading.current_thread()}:
            thread.join()

    with Printed(order):
        print("here")
        wait_until(lambda: Store(order.storage).files.names(KEY))
        child = multiprocessing.get_context("fork").Process(target=print_there)
        child.start()
        child.join()
        assert read(order) == "here\n"


def test_a_print_while_another_is_kept(order, monkeypatch):
    timer = threading.Timer

    def print_and_make(*arguments):
        monkeypatch.setattr(threading, "Timer", timer)
        print("by __del__, as it may be")
        return timer(*arguments)

    def print_once():
        with Printed(order):
            print("once")

    monkeypatch.setattr(threading, "Timer", print_and_make)
    thread = threading.Thread(target=print_once, daemon=True)
    thread.start()
    thread.join(10)
    assert not thread.is_alive()
    assert "by __del__" in read(order)


def test_prints_are_kept_where_no_thread_begins(order, monkeypatch):
    def fail(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", fail)
    with Printed(order):
        print("one")
        print("two")
    assert read(order) == "one\ntwo\n"
