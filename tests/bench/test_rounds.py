"""How the benchmark takes its numbers: in turn, and compared within rounds."""

import math

import pytest
import torch
from helpers.compilers import need_compiler

from bench.limits import OPERATIONS, operations, peak, step_product, weight_product
from bench.memory import peaks_mb
from bench.report import table
from bench.rounds import time_in_turns
from bench.workloads import WORKLOADS, copying, network
from eigensweep.tasks import TASKS


def test_every_variant_runs_once_a_round_and_the_order_changes():
    calls = []
    variants = {name: lambda name=name: calls.append(name) for name in "abcd"}
    times = time_in_turns(variants, rounds=6)
    rounds = ["".join(calls[i : i + 4]) for i in range(0, 28, 4)]
    assert all(sorted(one) == list("abcd") for one in rounds)
    assert len(set(rounds[1:])) > 1
    assert all(len(taken) == 6 and min(taken) >= 0 for taken in times.values())


def test_a_slow_variant_sits_out_after_its_third_round():
    calls = []

    def slow():
        calls.append(sum(range(300_000)))

    times = time_in_turns({"slow": slow, "fast": lambda: None}, rounds=5, seconds=1e-3)
    assert len(calls) == 4  # one of them not counted
    assert [math.isnan(t) for t in times["slow"]] == [False, False, False, True, True]
    assert not any(map(math.isnan, times["fast"]))


class TestLimit:
    B, n, T = 3, 18, 7

    def count(self, name, task):
        shapes = TASKS[task].Config().shapes
        found = operations(network(name, self.n, shapes), self.B, self.T)
        return found.states, found.weights

    def test_of_symbols_that_are_read_out_at_each_step(self):
        rows, n, p = self.B * self.T, self.n, 9
        forward = 2 * rows * (n * n + n * p)
        assert self.count("exprnn", "copying") == (2 * forward, forward)

    def test_of_values_that_are_read_out_at_the_last_step(self):
        rows, n, m, p = self.B * self.T, self.n, 1, 10
        forward = 2 * (rows * (n * n + n * m) + self.B * n * p)
        back = forward - 2 * rows * n * m  # pixels take no gradient
        assert self.count("exprnn", "pixel_mnist") == (forward + back, forward)

    @pytest.mark.parametrize(
        ("name", "products"),
        [("lstm", 4), ("gru", 3), ("goru", 3), ("urnn", 4), ("cornn", 2), ("lem", 4)],
    )
    def test_of_more_products_a_step(self, name, products):
        rows, n = self.B * self.T, self.n
        columns = 2 * n if name == "urnn" else n
        states, weights = self.count(name, "copying")
        assert states == 4 * rows * (products * n * n + 9 * columns)
        assert weights == 2 * rows * (products * n * n + 9 * columns)

    def test_is_measured_by_products_of_these_shapes(self):
        step, weight = step_product(self.B, self.n), weight_product(self.B, self.n, self.T)
        assert step.operations == pytest.approx(OPERATIONS, rel=0.01)
        assert weight.operations == pytest.approx(OPERATIONS, rel=0.01)
        step.repeats = weight.repeats = 1
        step()
        weight()
        torch.testing.assert_close(step.out, step.left @ step.right)
        assert step.out.shape == (self.B, self.n)
        assert weight.out.shape == (self.n, self.n)
        assert weight.left.shape == (self.n, self.B * self.T)

    def test_the_peak_is_measured_by_operations_in_registers(self):
        need_compiler()
        core = peak()
        assert core is not None
        assert core.operations == pytest.approx(OPERATIONS, rel=0.01)
        assert core() == 24  # twelve chains of x = x / 2 + 1, which end at 2
        core.rounds = 1
        assert core() == 12 + sum(range(12)) / 2


@pytest.mark.slow
def test_a_plain_loop_holds_all_that_its_steps_made():
    workload = copying("long", hidden_size=64, batch_size=64, delay=480)
    ours, loop = peaks_mb(workload, [("exprnn", "ours"), ("exprnn", "loop")])
    states = 4e-6 * 500 * 64 * 64
    assert states * 0.9 < ours < 4 * states
    assert loop > 4 * states


def test_a_workload_has_the_sizes_of_the_promised_speed():
    titles = {w.title() for w in WORKLOADS.values() if w.floor}
    assert titles == {
        "copying-20: B=20 n=192 T=2020",
        "copying-128: B=128 n=138 T=1020",
        "mnist-128: B=128 n=122 T=784",
    }


def test_a_table_aligns_numbers_and_leaves_out_what_nobody_has():
    rows = [{"a": "x", "b": 1.234}, {"a": "long", "b": None}]
    assert table(rows, {"a": "name", "b": "ms", "c": "never"}).splitlines() == [
        "name    ms",
        "x     1.23",
        "long     -",
    ]
