"""How many lanes are chosen, from measurements that the tests tell."""

from __future__ import annotations

import json

import pytest
import torch

from eigensweep.search_spaces.trial import TrialConfig
from eigensweep.training.lanes import sizing
from eigensweep.training.lanes.sizing import Measurement, choose_lanes, decide

CONTENT = {
    "task": {"name": "copying", "delay": 3, "symbols": 2, "batch_size": 2},
    "model": {"name": "irnn", "hidden_size": 4},
    "training": {"steps": 10},
}


def measuring(seconds, bytes_a_lane=None, base=0):
    """Return what measures lanes by a function that tells the seconds of a step."""

    def measure(lanes):
        used = None if bytes_a_lane is None or not lanes else base + lanes * bytes_a_lane
        return Measurement(lanes, seconds(lanes), used)

    return measure


def test_lanes_are_doubled_until_they_gain_too_little():
    choice = decide(measuring(lambda lanes: 1.0 if lanes <= 32 else lanes / 32), None)
    assert choice.lanes == 32
    assert choice.why == "64 lanes take 1.00 times the steps of 32"
    assert [m.lanes for m in choice.measurements] == [1, 2, 4, 8, 16, 32, 64]


def test_the_memory_is_filled_to_four_fifths_never_beyond():
    choice = decide(measuring(lambda lanes: 1.0, bytes_a_lane=10, base=100), 1000)
    assert choice.lanes == 64
    assert choice.why == "the memory holds 70 lanes"


def test_a_number_that_does_not_fit_after_all_is_not_chosen():
    def measure(lanes):
        if lanes > 4:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return Measurement(lanes, 1.0, None)

    choice = decide(measure, None)
    assert (choice.lanes, choice.why) == (4, "the memory does not hold 8 lanes")


def test_a_number_between_that_fills_the_device_is_found():
    def seconds(lanes):  # 26 lanes fill it; what exceeds them runs once more
        return 1.0 * -(-lanes // 26)

    choice = decide(measuring(seconds), None, full=[6, 13, 19, 26, 33, 39, 52])
    assert (choice.lanes, choice.why) == (26, "26 lanes just fill the device")
    lanes = [m.lanes for m in choice.measurements]
    assert lanes == sorted(lanes)
    assert not {6, 52} & set(lanes), "far from the best doubled number"


def test_numbers_that_fill_the_device_are_not_tried_beyond():
    measure = measuring(lambda lanes: 1.0, bytes_a_lane=10, base=100)
    choice = decide(measure, 1000, full=[66, 90])
    assert [m.lanes for m in choice.measurements][-2:] == [64, 66]
    assert choice.lanes == 64, "66 lanes gain too little"
    assert decide(measure, None, most=64, full=[65]).measurements[-1].lanes == 64


def test_an_error_of_another_kind_is_no_full_memory():
    def measure(lanes):
        raise RuntimeError("a bug")

    with pytest.raises(RuntimeError, match="a bug"):
        decide(measure, None)


@pytest.mark.parametrize(("alone", "lanes"), [(0.9, 1), (1.5, 4)])
def test_on_a_cpu_lanes_have_to_gain_over_a_training_alone(alone, lanes):
    steps = {0: alone / 4, 1: 1.0, 2: 1.0, 4: 1.0, 8: 8.0}
    choice = decide(measuring(steps.__getitem__), None, can_train_alone=True)
    assert choice.lanes == lanes
    assert choice.measurements[0].lanes == 0


def test_the_choice_is_kept_for_device_shape_and_code(tmp_path, monkeypatch):
    monkeypatch.setattr(sizing, "ROUND_SECONDS", 0.01)
    config = TrialConfig.from_dict(CONTENT)
    choice = choose_lanes(config, "cpu", folder=tmp_path / "sizes", most=2)
    assert [m.lanes for m in choice.measurements] == [0, 1, 2]
    (file,) = (tmp_path / "sizes").iterdir()

    monkeypatch.setattr(sizing, "Group", None)  # nothing can be measured any more
    faster = {**CONTENT, "optimizer": {"lr": 0.1}, "seed": 5}
    assert choose_lanes(TrialConfig.from_dict(faster), "cpu", folder=tmp_path / "sizes") == choice
    assert json.loads(file.read_text())["lanes"] == choice.lanes

    file.write_text("{half a fi")
    with pytest.raises(TypeError):
        choose_lanes(config, "cpu", folder=tmp_path / "sizes")


def test_a_shape_that_cannot_share_gets_one_lane_and_the_reason(monkeypatch):
    monkeypatch.setattr(sizing, "explain_alone", lambda config: "it runs alone")
    choice = choose_lanes(TrialConfig.from_dict(CONTENT), "cpu")
    assert (choice.lanes, choice.why) == (1, "it runs alone")


def test_what_would_diverge_stays_as_it_is_while_timed():
    diverging = TrialConfig.from_dict({**CONTENT, "optimizer": {"lr": 100.0}})
    training = sizing._Bench(diverging, "cpu", None)._make(0)
    before = training.weights()
    training.run(5)
    torch.testing.assert_close(training.weights(), before, atol=1e-20, rtol=0)


def test_a_network_without_a_finite_loss_is_not_timed_for_ever():
    bench = sizing._Bench(TrialConfig.from_dict(CONTENT), "cpu", None)
    training = bench._make(0)
    training.outcome = "diverged"
    with pytest.raises(RuntimeError, match="is not finite"):
        bench._time(training, lambda: None)
