"""One configuration gives the same digits, whoever trains it: a notebook, a trial, a next attempt.

Odd sizes, since products of whole vectors hide what the number of threads and addresses change.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.small_models import REQUIRED
from orders import make_order

from eigensweep import train
from eigensweep.models import MODELS
from eigensweep.protocol.messages import Order
from eigensweep.search_spaces.checks.single_trial import read_trial
from eigensweep.store.checkpoints import Store
from eigensweep.tasks.adding import Adding
from eigensweep.tasks.copying import Copying
from eigensweep.training.lanes.replicates import open_attempt
from eigensweep.workers.processes.forked import Forked, fork
from eigensweep.workers.processes.runner import REPORT

EVEN = ("nnrnn", "eurnn", "goru")
"""Models whose number of units is even."""
UNTRAINED = ("constructed_copying", "constructed_adding")
TRAINED = [name for name in MODELS if name not in UNTRAINED]
STEPS, HALF = 6, 3

Digits = dict[int, tuple[dict[str, bytes], list[tuple[int, dict[str, float]]]]]
"""By seed: the bits of each weight at the end, and the curve."""


def content(name: str, replicates: int = 1, task: str = "copying") -> dict[str, Any]:
    length = {"delay": 30} if task == "copying" else {"length": 30}
    return {
        "task": {"name": task, **length, "batch_size": 20, "valid_size": 101, "test_size": 100},
        "model": {"name": name, "hidden_size": 33 + (name in EVEN), **REQUIRED.get(name, {})},
        "optimizer": {"name": "rmsprop", "lr": 0.003},
        "training": {"steps": STEPS, "evaluate_every": HALF, "log_every": 1},
        "replicates": replicates,
    }


CASES = {
    **{name: content(name) for name in TRAINED},
    **{f"{name} on adding": content(name, task="adding") for name in ("lstm", "scornn", "urnn")},
    **{f"{name}, three seeds": content(name, 3) for name in ("lstm", "gru", "scornn")},
}


def read(folder: Path, config: dict[str, Any], key: str) -> Digits:
    """Return what a store has of each seed; `key` is that of all of them together."""
    found = {}
    for seed in range(config["replicates"]):
        snapshot = Store(folder).newest(f"{key}/{seed}")
        assert snapshot is not None
        assert snapshot.step == STEPS
        weights = {name: bits(tensor) for name, tensor in snapshot.state["model"].items()}
        points = Store(folder).points(f"{key}/{seed}")
        found[seed] = weights, [(point.step, point.metrics) for point in points]
    return found


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.numpy().tobytes()


def in_a_notebook(config: dict[str, Any], folder: Path) -> Digits:
    train(config, folder=folder, device="cpu")
    return read(folder, config, read_trial(config).content_hash())


def order_of(config: dict[str, Any], folder: Path) -> Order:
    return make_order(config=config, rungs=(HALF, STEPS), storage=str(folder))


def assert_same(found: Digits, expected: Digits) -> None:
    for seed, (weights, curve) in expected.items():
        assert found[seed][1] == curve
        assert found[seed][0] == weights


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    """Let PyTorch have more threads than a trial, as in a notebook."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def node() -> Iterator[subprocess.Popen[bytes]]:
    """Stands for the process of Ray's with which all of a node end."""
    with subprocess.Popen(["sleep", "3600"]) as process:
        yield process
        process.kill()


@pytest.fixture(scope="module")
def forked(node: subprocess.Popen[bytes]) -> Iterator[Forked]:
    """A process that was forked, and trains one trial after another."""
    if sys.platform != "linux":
        pytest.skip("nothing is forked elsewhere")
    first = make_order(config=content("lstm"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "2")  # a service may have been started with it
        made = fork(first.to_dict(), None, node.pid)
    assert made is not None
    yield made
    made.close()


@pytest.fixture(scope="module")
def notebook(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Digits]:
    """Return a function that tells what a notebook gets for a case, trained once."""

    @cache
    def look_up(case: str) -> Digits:
        torch.set_num_threads(2)
        return in_a_notebook(CASES[case], tmp_path_factory.mktemp("notebook"))

    return look_up


@pytest.mark.parametrize("case", CASES)
class TestOneConfiguration:
    @pytest.mark.quick_cases(4)
    def test_gives_a_forked_process_what_it_gives_a_notebook(
        self, case, tmp_path, forked, notebook
    ):
        told = forked.train_next(order_of(CASES[case], tmp_path).to_dict())
        while json.loads(told[REPORT])["outcome"] is None:
            told = forked.train()
        assert json.loads(told[REPORT])["outcome"] == "completed", told[REPORT]
        assert_same(read(tmp_path, CASES[case], "e1/00003"), notebook(case))

    @pytest.mark.quick_cases(4)
    def test_gives_the_same_in_two_attempts(self, case, tmp_path, notebook):
        order = order_of(CASES[case], tmp_path)
        assert open_attempt(order, "cpu").advance().step == HALF
        second = open_attempt(replace(order, attempt=2, reported=HALF), "cpu")
        assert second.advance().outcome == "completed"
        assert_same(read(tmp_path, CASES[case], "e1/00003"), notebook(case))

    @pytest.mark.quick_cases(4)
    def test_gives_the_same_wherever_its_memory_lies(self, case, tmp_path, monkeypatch, notebook):
        expected = notebook(case)
        for task in (Copying, Adding):
            move_batches(task, monkeypatch)
        blocks = [np.empty(16 * size + 8, np.uint8) for size in range(1, 2000)]
        del blocks[::2]  # what is allocated next comes to lie between the others
        assert_same(in_a_notebook(CASES[case], tmp_path), expected)


def move_batches(task: type, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every training batch of a task begin 16 bytes behind a line of cache."""
    draw = task.train_batch

    def train_batch(self, step, seed):
        batch = draw(self, step, seed)
        return replace(batch, x=move(batch.x), y=move(batch.y))

    monkeypatch.setattr(task, "train_batch", train_batch)


def move(tensor: torch.Tensor) -> torch.Tensor:
    first = 16 // tensor.element_size()
    moved = torch.empty(first + tensor.numel(), dtype=tensor.dtype)[first:].view(tensor.shape)
    return moved.copy_(tensor)


def test_a_notebook_keeps_its_threads_and_its_smallest_numbers():
    torch.set_num_threads(2)
    torch.set_flush_denormal(False)
    train(content("lstm"), device="cpu")
    assert torch.get_num_threads() == 2
    assert torch.tensor(2.0**-126) / 2 > 0


def test_more_cores_are_the_same_to_a_notebook_and_to_a_trial(tmp_path):
    config = content("lstm")
    order = replace(order_of(config, tmp_path / "trial"), resources={"CPU": 2})
    attempt = open_attempt(order, "cpu")
    while attempt.advance().outcome is None:
        pass
    train(config, folder=tmp_path / "notebook", device="cpu", cpus=2)
    found = read(tmp_path / "notebook", config, read_trial(config).content_hash())
    assert_same(found, read(tmp_path / "trial", config, "e1/00003"))
