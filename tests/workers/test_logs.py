"""Log lines: as text or as JSON, and what they are about."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from orders import make_order

from eigensweep.common import logs
from eigensweep.protocol.code import ForeignCodeError
from eigensweep.protocol.messages import Code, DriverOptions, Order
from eigensweep.workers.driver.process import drive
from eigensweep.workers.processes import runner

Read = Callable[[], list[dict[str, Any]]]


@pytest.fixture
def written() -> Iterator[Read]:
    """Return what a logger has written so far, as JSON."""
    logs._of_process.clear()  # another test may have begun a trial in this process
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logs.make_formatter("json"))
    handler.addFilter(logs.add_subject)
    logger = logging.getLogger("eigensweep.test")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield lambda: [json.loads(line) for line in stream.getvalue().splitlines()]
    logger.removeHandler(handler)
    logs._of_process.clear()


@pytest.fixture
def _root_logger() -> Iterator[None]:
    """Put the handlers and the level of the root logger back."""
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    yield
    root.handlers[:], root.level = before, level
    logs._of_process.clear()


logger = logging.getLogger("eigensweep.test")


def test_a_line_of_json_has_time_level_logger_and_message(written: Read) -> None:
    logger.warning("trial %d waits\nfor ä disk", 7)

    (line,) = written()
    assert line.pop("time").endswith("+00:00")
    assert line.pop("process") > 0
    assert line == {
        "level": "WARNING",
        "logger": "eigensweep.test",
        "thread": "MainThread",
        "message": "trial 7 waits\nfor ä disk",
    }


def test_a_traceback_is_part_of_its_line(written: Read) -> None:
    try:
        raise ValueError("a bug")
    except ValueError:
        logger.exception("failed")

    (line,) = written()
    assert "ValueError: a bug" in line["traceback"]


def test_lines_name_their_experiment_and_trial(written: Read) -> None:
    logger.info("before")
    with logs.about("e1", 3):
        logger.info("during")
        with logs.about("e2"):
            logger.info("within")
    logger.info("after")

    subjects = [(line.get("experiment"), line.get("trial")) for line in written()]
    assert subjects == [(None, None), ("e1", 3), ("e2", None), (None, None)]


def test_a_process_of_one_trial_names_it_in_every_thread(written: Read) -> None:
    logs.name_process("e1", 3)
    thread = threading.Thread(target=logger.info, args=("from a thread",))
    thread.start()
    thread.join()
    logger.info("another one", extra={"trial": 4})
    logs.name_process("e2", 0)
    logger.info("the next trial")

    subjects = [(line["experiment"], line["trial"]) for line in written()]
    assert subjects == [("e1", 3), ("e1", 4), ("e2", 0)]


def test_text_stays_as_it_was() -> None:
    program = (
        "import logging; from eigensweep.common import logs\n"
        "logs.set_up('text'); logs.name_process('e1', 3)\n"
        "logging.getLogger('a.b').info('trial ends step=%d', 4)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    assert done.stderr == "INFO a.b trial ends step=4\n"


@pytest.mark.usefixtures("_root_logger")
def test_a_driver_logs_as_told_and_names_unknown_variables(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EIGENSWEEP_RETRYS", "3")
    logging.getLogger().handlers.clear()  # a fresh process has none
    options = DriverOptions(storage="/storage", log_format="json")
    with logs.about("e1"):
        drive.begin_driver(options)

    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    (line,) = (each for each in lines if "EIGENSWEEP_RETRYS" in each["message"])
    assert (line["experiment"], line["level"]) == ("e1", "WARNING")
    assert line["message"].endswith("did you mean EIGENSWEEP_RETRIES?")


def test_a_trials_process_names_each_trial_that_it_is_given(written: Read) -> None:
    for number in (3, 4):
        foreign = Code(folder="/elsewhere", digest="other", node="other")
        order = make_order(number=number, code=foreign, log_format="json")
        with pytest.raises(ForeignCodeError):
            runner.check_order(Order.from_dict(order.to_dict()))
        logger.info("on its way")

    assert [(line["experiment"], line["trial"]) for line in written()] == [("e1", 3), ("e1", 4)]
