"""The guess of a trial's memory: what it grows with, and where a spec gives it instead."""

from __future__ import annotations

import pytest

from eigensweep.search_spaces.checks.memory import (
    PROCESS,
    SIZED,
    SPARE,
    THIN_PROCESS,
    estimate_arms,
    limit_memory,
    list_extremes,
    reserve_memory,
)
from eigensweep.search_spaces.checks.preview import preview
from eigensweep.search_spaces.sections import ResourcesConfig
from eigensweep.search_spaces.space import Point
from eigensweep.search_spaces.spec import ExperimentSpec
from eigensweep.search_spaces.trial import TrialConfig


def make(**changes) -> ExperimentSpec:
    content = {
        "task": {"name": "copying", "delay": 1000, "batch_size": 64},
        "arms": [
            {"model": {"name": "scornn", "hidden_size": 128, "negative_ones": 64}},
            {"model": {"name": "lstm", "hidden_size": 128}},
        ],
        "training": {"steps": 100},
    }
    return ExperimentSpec.model_validate({**content, **changes})


def host(**changes) -> int:
    return reserve_memory(make(**changes)).memory


def test_it_grows_with_batch_length_units_gates_and_parameters():
    task, lstm = {"name": "copying", "delay": 1000, "batch_size": 64}, {"name": "lstm"}
    whole = host()
    assert PROCESS < host(task={**task, "batch_size": 16}) < whole
    assert PROCESS < host(task={**task, "delay": 100}) < whole
    assert whole < host(arms=[{"model": {**lstm, "hidden_size": 256}}])
    assert whole < host(replicates=5)
    arms = estimate_arms(make())
    assert arms["scornn"].host < arms["lstm"].host == whole


def test_the_largest_point_of_a_space_counts():
    assert host(search={"space": {"task.batch_size": [8, 64]}}) == host()


def test_points_that_differ_in_the_optimizer_are_one_guess(monkeypatch):
    tried, trial = [], ExperimentSpec.trial

    def count(spec: ExperimentSpec, point: Point) -> TrialConfig:
        tried.append(point)
        return trial(spec, point)

    monkeypatch.setattr(ExperimentSpec, "trial", count)
    rates = {"optimizer.lr": [1e-3, 1e-2], "training.steps": [10, 20]}
    assert estimate_arms(make(search={"space": rates})) == estimate_arms(make())
    assert len(tried) == 2 * 2  # for each spec, one of each arm
    sizes = {**rates, "task.delay": [10, 2000], "task.batch_size": [1, 128]}
    space = {"space": sizes}
    for resources in ({}, {"lanes": 3}, {"gpus": 1}):
        spec = make(search=space, resources=resources)
        guesses = estimate_arms(spec)
        largest = {"task": {"name": "copying", "delay": 2000, "batch_size": 128}}
        assert guesses == estimate_arms(make(**largest, resources=resources))


def test_the_largest_of_a_list_counts_wherever_it_stands():
    arms = [{"model": {"name": "lstm", "hidden_size": 8}}]
    sizes = {"space": {"model.hidden_size": [64, 1024, 128]}}
    largest = [{"model": {"name": "lstm", "hidden_size": 1024}}]
    assert host(arms=arms, search=sizes) == host(arms=largest)


def test_an_invalid_point_stands_for_no_valid_one_of_its_size():
    """Without that schedule, its patience is refused: half of the extreme points are invalid."""
    space = {"optimizer.schedule": ["none", "halve_on_plateau"], "task.delay": [10, 1000]}
    spec = make(optimizer={"schedule_patience": 3}, search={"space": space})
    every = [(arm, config.task.delay) for arm, config in list_extremes(spec)]
    once = [(arm, config.task.delay) for arm, config in list_extremes(spec, SIZED)]
    assert len(once) < len(every)
    assert sorted(once) == sorted(set(every))


def test_a_corpus_counts():
    arms = [{"model": {"name": "tanh_rnn", "hidden_size": 8}}]
    mnist = host(arms=arms, task={"name": "pixel_mnist", "batch_size": 1})
    assert mnist > host(arms=arms, task={"name": "adding", "length": 784, "batch_size": 1}) + 5e7


def test_each_layer_of_a_network_counts():
    fields = {"name": "mingru", "hidden_size": 64}
    few, many, wide = (
        host(arms=[{"model": {**fields, **more}}])
        for more in ({"layers": 2}, {"layers": 8}, {"layers": 2, "width": 512})
    )
    assert many - few > 1.8 * (few - PROCESS)
    assert wide > few


def test_a_long_sequence_is_guessed_before_it_runs():
    task = {"name": "adding", "length": 10_000, "batch_size": 50}
    arms = estimate_arms(make(task=task, arms=[{"model": {"name": "lstm", "hidden_size": 128}}]))
    kept = 10_000 * 50 * 4 * 128 * 8  # states and gates of every step
    assert PROCESS + kept < arms["lstm"].host < PROCESS + 1.2 * kept


def test_an_engine_takes_its_lanes_and_its_trials_processes():
    one, eight = (host(resources={"lanes": lanes}) for lanes in (1, 8))
    assert eight - one > 7 * (one - PROCESS - 2 * THIN_PROCESS) / 2 + 7 * THIN_PROCESS
    assert reserve_memory(make(resources={"lanes": "auto"}), 8).memory == eight


def test_on_a_gpu_the_tensors_are_there():
    arms = estimate_arms(make(resources={"gpus": 1}))
    assert arms["lstm"].device > 10**8
    assert estimate_arms(make())["lstm"].device == 0


def test_what_the_spec_gives_is_reserved_and_is_the_limit():
    spec = make(resources={"memory": "2 GB"})
    assert reserve_memory(spec).memory == 2 * 10**9
    point = next(spec.space().corners("lstm"))
    assert limit_memory(spec, spec.trial(point)) == 2 * 10**9
    assert limit_memory(make(), spec.trial(point)) == 2 * host() + SPARE


def test_a_preview_says_what_each_arm_takes():
    memory = preview(make()).memory
    assert list(memory) == ["scornn", "lstm"]
    assert memory["lstm"].host_bytes == host()
    assert memory["lstm"].limit_bytes == 2 * host() + SPARE
    assert preview(make(resources={"memory": 10**9})).memory["lstm"].host_bytes == 10**9


@pytest.mark.parametrize(
    ("written", "amount"),
    [("4 GB", 4 * 10**9), ("1.5GiB", 3 * 2**29), ("512 MB", 512 * 10**6), (10**9, 10**9)],
)
def test_memory_is_written_in_bytes_or_with_a_unit(written, amount):
    assert ResourcesConfig(memory=written).memory == amount


@pytest.mark.parametrize("written", ["4", "4 TB", "lots", 5, True, 1.5, "-1 GB", "0 MB", 2**60])
def test_other_words_are_refused_with_those_that_would_work(written):
    with pytest.raises(ValueError, match="such as '4 GB'"):
        ResourcesConfig(memory=written)
