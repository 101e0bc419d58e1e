"""Files of results: what is refused, and how those of two machines are put together."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eigensweep.command.reproduce import keep_file
from eigensweep.reports.messages import KeptAnalysis, Results
from eigensweep.reports.results import UNFINISHED, merge, name_file, read_results, write_results
from eigensweep.store.checkpoints import trial_key

FOLDER = Path(__file__).parents[2] / "docs" / "reproduction" / "results"
CONTENT = json.loads((FOLDER / "asrnn-figure-1a-short.json").read_text())


def only(arm: str, seeds: int, processor: str = "ours") -> Results:
    """Return the kept file, cut to the first seeds of one arm."""
    content = copy.deepcopy(CONTENT) | {"processor": processor}
    for experiment in content["experiments"]:
        experiment["trials"] = [t for t in experiment["trials"] if t["arm"] == arm]
        for trial in experiment["trials"]:
            wanted = list(trial["curves"])[:seeds]
            trial["curves"] = {seed: trial["curves"][seed] for seed in wanted}
            trial["result"]["by_replicate"] = trial["result"]["by_replicate"][:seeds]
            trial["config"]["replicates"] = seeds
    return read_results(json.dumps(content).encode())


def seeds_of(results: Results) -> dict[str, int]:
    return {t.arm: len(t.curves) for e in results.experiments for t in e.trials}


@pytest.mark.parametrize("is_first", [True, False])
def test_seeds_of_two_machines_are_put_together(tmp_path, is_first):
    mine, theirs = only("asrnn", 3), only("lstm", 4, "theirs")
    both = [mine, theirs] if is_first else [theirs, mine]
    for each in both:
        keep_file(each, tmp_path, is_whole=False)
    place = tmp_path / UNFINISHED / name_file(mine.name, mine.budget)
    kept = read_results(place.read_bytes())
    assert seeds_of(kept) == {"asrnn": 3, "lstm": 4}
    (experiment,) = kept.experiments
    numbers = {trial.number for trial in experiment.trials}
    assert len(numbers) == 2
    assert {t.place for t in experiment.trials} == {trial_key(experiment.label, n) for n in numbers}
    (earlier,) = [t for t in experiment.trials if t.arm == both[0].experiments[0].trials[0].arm]
    assert {seed["origin"] for seed in earlier.result["by_replicate"]} == {both[0].origin}
    assert keep_file(mine, tmp_path, is_whole=False) is None, "it has them already"


def test_what_only_the_kept_file_has_stays():
    kept, new = only("lstm", 4), only("asrnn", 1)
    made = KeptAnalysis(label="norms", repeat=0, id=None, content={"x": 1.0})
    (experiment,) = kept.experiments
    other = experiment.model_copy(update={"label": "other"})
    kept = kept.model_copy(update={"experiments": [experiment, other], "analyses": [made]})
    found = merge(kept, new)
    assert [each.label for each in found.experiments] == [experiment.label, "other"]
    assert found.analyses == [made]
    assert seeds_of(found) == {"asrnn": 1, "lstm": 4}
    assert merge(kept, found).experiments == found.experiments, "twice is once"


def test_arms_with_the_same_configuration_are_two():
    both = merge(only("lstm", 3), only("lstm", 5))
    (experiment,) = both.experiments
    (trial,) = experiment.trials
    twin = trial.model_copy(update={"arm": "twin", "number": 7})
    twins = experiment.model_copy(update={"trials": (trial, twin)})
    twins = both.model_copy(update={"experiments": [twins]})
    assert seeds_of(merge(twins, only("lstm", 3))) == {"lstm": 5, "twin": 5}


@pytest.mark.parametrize(("kept", "new"), [(3, 5), (5, 3)])
def test_the_longer_one_of_the_same_configuration_stays(kept, new):
    found = merge(only("lstm", kept), only("lstm", new))
    assert seeds_of(found) == {"lstm": 5}
    assert read_results(write_results(found)) == found


def test_a_whole_file_leaves_what_only_an_unfinished_one_has(tmp_path):
    keep_file(only("lstm", 4), tmp_path, is_whole=False)
    keep_file(only("asrnn", 6), tmp_path)
    place = tmp_path / UNFINISHED / name_file(CONTENT["name"], CONTENT["budget"])
    assert seeds_of(read_results(place.read_bytes())) == {"lstm": 4}


def change_seed(trial: dict[str, Any]) -> None:
    trial["config"]["seed"] += 1


def double_seed(trial: dict[str, Any]) -> None:
    trial["result"]["by_replicate"].append(trial["result"]["by_replicate"][0])


def leave_out_seed(trial: dict[str, Any]) -> None:
    del trial["result"]["by_replicate"][1]


def break_result(trial: dict[str, Any]) -> None:
    trial["result"] = {"by_replicate": [1]}


def write_a_word(trial: dict[str, Any]) -> None:
    trial["result"]["by_replicate"][0]["value"] = "x"


def forget_task(trial: dict[str, Any]) -> None:
    trial["config"]["task"] = None


def leave_out_last_seed(trial: dict[str, Any]) -> None:
    trial["result"]["by_replicate"].pop()


def break_params(trial: dict[str, Any]) -> None:
    trial["params"] = {"a": [1, {"b": 2}]}


def exaggerate(trial: dict[str, Any]) -> None:
    trial["number"] = 2**70


def lose_steps(trial: dict[str, Any]) -> None:
    del next(iter(trial["curves"].values()))[0]["step"]


def cut_steps(trial: dict[str, Any]) -> None:
    next(iter(trial["curves"].values()))[0]["step"].pop()


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (change_seed, "and should have those of"),
        (double_seed, "and should have those of"),
        (leave_out_seed, "and should have those of"),
        (break_result, "trial 0 cannot be read"),
        (write_a_word, "trial 0 cannot be read"),
        (forget_task, "trial 0 cannot be read"),
        (leave_out_last_seed, "and should have those of"),
        (break_params, "params"),
        (exaggerate, "less than 2147483648"),
        (lose_steps, "not one value for each step"),
        (cut_steps, "not one value for each step"),
    ],
)
def test_a_file_that_was_changed_by_hand_is_refused(edit: Callable[[Any], None], words):
    content = copy.deepcopy(CONTENT)
    edit(content["experiments"][0]["trials"][0])
    with pytest.raises(ValueError, match=words):
        read_results(json.dumps(content).encode())


def test_trials_with_the_same_number_are_refused():
    content = copy.deepcopy(CONTENT)
    for trial in content["experiments"][0]["trials"]:
        trial["number"] = 0
    with pytest.raises(ValueError, match=r"two trials of .* have the same number"):
        read_results(json.dumps(content).encode())
