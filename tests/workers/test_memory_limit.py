"""A trial that holds too much memory ends alone, with words; and the guess of what trials take."""

from __future__ import annotations

import json
import multiprocessing
import os
import queue
import subprocess
import sys
import threading
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
from helpers.waiting import PATIENCE
from orders import make_order

from bench.trial_memory import make_config, measure
from eigensweep.search_spaces.checks.memory import PROCESS, estimate_memory
from eigensweep.training import memory_limit
from eigensweep.training.memory import give_back, private_bytes
from eigensweep.training.memory_limit import EXIT_CODE, MemoryWatch, read_last_words, watch

MB = 10**6
SIZES = {"valid_size": 8, "test_size": 8}
PLUGINS = Path(__file__).parents[1] / "plugins"

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")

TRIAL = """
import json, sys
from eigensweep.workers.processes.runner import Runner
from eigensweep.protocol.code import own_code

runner = Runner({**json.loads(sys.argv[1]), "code": own_code().to_dict()})
while not (told := runner.train())["done"]:
    pass
print(json.loads(told["report"])["outcome"])
"""


def train(folder: Path, number: int, megabytes: int, limit: int) -> subprocess.Popen[str]:
    """Start a trial's process, without Ray; each forward pass keeps so many megabytes."""
    config = {
        "task": {"name": "copying", "delay": 4, "symbols": 2, "batch_size": 4, **SIZES},
        "model": {"name": "toy_hoard", "hidden_size": 4, "megabytes": megabytes},
        "training": {"steps": 200, "evaluate_every": 200, "log_every": 5},
    }
    order = make_order(
        number=number,
        config=config,
        rungs=(200,),
        storage=str(folder),
        memory_limit=limit,
    )
    return subprocess.Popen(
        [sys.executable, "-c", TRIAL, json.dumps(order.to_dict())],
        env=os.environ | {"PYTHONPATH": f"{PLUGINS}:{os.environ.get('PYTHONPATH', '')}"},
        stdout=subprocess.PIPE,
        text=True,
    )


def test_a_trial_of_endless_memory_ends_alone(tmp_path):
    limit = 800 * MB
    greedy, modest = train(tmp_path, 3, 20, limit), train(tmp_path, 4, 0, limit)
    greedy.communicate(timeout=PATIENCE)
    assert greedy.returncode == EXIT_CODE
    words = read_last_words(make_order(number=3, storage=str(tmp_path)))
    assert words.startswith("MemoryLimitError: trial 3 held 0.")
    assert "its limit was 0.80 GB" in words
    assert "resources.memory" in words
    said, _ = modest.communicate(timeout=PATIENCE)
    assert (modest.returncode, said) == (0, "completed\n")
    assert read_last_words(make_order(number=4, storage=str(tmp_path))) is None


def test_what_is_held_counts_and_what_was_given_back_does_not():
    give_back()  # what other tests of this process left would be given back in the middle
    own, ended = private_bytes(), []
    over = threading.Event()

    def end(held: int) -> None:
        ended.append(held)
        over.set()

    watching = MemoryWatch(own + 200 * MB, end)
    watching.start()
    for _ in range(5):
        bytearray(150 * MB)
    assert not over.is_set()
    kept = bytearray(b"x") * (400 * MB)
    assert over.wait(PATIENCE)
    watching.stop()
    assert ended[0] > own + 200 * MB
    assert len(kept) == 400 * MB


def test_a_store_that_does_not_answer_keeps_nobody_alive(monkeypatch):
    exits, answer = queue.SimpleQueue(), threading.Event()
    files = SimpleNamespace(write=lambda *_: answer.wait())
    monkeypatch.setattr(memory_limit, "Store", lambda _: SimpleNamespace(files=files))
    monkeypatch.setattr(memory_limit, "os", SimpleNamespace(_exit=exits.put, getpid=os.getpid))
    monkeypatch.setattr(memory_limit, "WORDS_SECONDS", 0.01)
    watching = watch(make_order(memory_limit=1))
    try:
        assert exits.get(timeout=PATIENCE) == EXIT_CODE
    finally:
        answer.set()
        watching.stop()


def test_trials_in_lanes_and_without_a_limit_are_not_watched():
    assert watch(make_order()) is None


@pytest.mark.slow
@pytest.mark.parametrize("case", ["small", "wide-lstm", "copying-gru"])
def test_the_guess_is_within_a_factor_of_two_of_the_truth(case):
    config = make_config(case)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        measured, before = pool.submit(measure, config).result()
    assert 0.5 < measured / (estimate_memory(config).host - PROCESS) < 2
    assert 0.5 < before / PROCESS < 2
