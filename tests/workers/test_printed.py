"""What a trial's process prints is kept in the store."""

import json
import logging
import sys

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
