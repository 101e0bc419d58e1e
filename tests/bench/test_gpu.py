"""The measurement on a GPU, tried out on a CPU: its numbers mean nothing there."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from helpers.compilers import need_nvrtc
from helpers.needed_packages import close, find_modules
from packaging.utils import canonicalize_name

from bench import carry
from bench.gpu import __main__ as command
from bench.gpu import (
    every_model,
    goals,
    kernels,
    lanes,
    limits,
    occupancy,
    one_lane,
    pictures,
    predictions,
    profiles,
    sanitizers,
    sections,
    sharing,
    tests,
)
from bench.gpu.sections import Notes, Plan
from bench.gpu.turns import Later, repeat, time_in_turns
from bench.workloads import WORKLOADS, small, trainable_models
from eigensweep.training.lanes.engine.occupancy import Span

ROOT = Path(__file__).parents[2]
SMALL = Plan(device="cpu", quick=True, rounds=2, seconds=10_000)


PAGE = ROOT / "docs/how-to/gpu.md"
HIDE = """
import sys
from importlib.machinery import PathFinder

class There:
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in ABSENT:
            return None
        return PathFinder.find_spec(name, path, target)

sys.meta_path = [There if each is PathFinder else each for each in sys.meta_path]
"""


def calls_of_the_page():
    """Return what Python is given in each call of `bench.gpu` on the page."""
    lines = re.findall(r"^ *python3 (-m bench\.carry run bench\.gpu .*)$", PAGE.read_text(), re.M)
    return [line.split() for line in lines]


def make_bare(folder):
    """Return an environment whose processes import only what a bare machine has, or is brought."""
    there = close(["torch", "numpy", "pytest", "pytest-xdist"]) | {*carry.WHEELS}
    absent = {
        module
        for module, names in find_modules().items()
        for name in names
        if canonicalize_name(name) not in there | {"eigensweep"}
        and not name.startswith(carry.OF_CUDA)
    }
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(f"ABSENT = {absent!r}\n{HIDE}")
    plugins = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": "xdist.plugin"}
    return {**os.environ, **plugins, "PYTHONPATH": str(folder)}


@pytest.fixture
def notes(tmp_path):
    notes = Notes(tmp_path / "notes.json", SMALL)
    notes.write()
    return notes


@pytest.mark.slow
def test_a_bare_machine_has_what_the_kit_imports_or_gets_it(tmp_path):
    program = (
        "import importlib, pkgutil, bench.gpu\n"
        "for module in pkgutil.iter_modules(bench.gpu.__path__):\n"
        "    importlib.import_module(f'bench.gpu.{module.name}')\n"
        "try:\n"
        "    import ray\n"
        "except ModuleNotFoundError as error:\n"
        "    print(error)\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env=make_bare(tmp_path / "bare"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (run.returncode, run.stdout) == (0, "No module named 'ray'\n"), run.stderr


def test_the_page_calls_each_section_once():
    parser = command.read_arguments
    sections = [name for call in calls_of_the_page() for name in parser(call[4:]).only]
    assert sorted(sections) == sorted(command.SHARES)


class TestARun:
    def test_without_a_gpu_it_says_so(self, monkeypatch, capsys):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)

        assert command.main([]) == 2
        assert "PyTorch finds no CUDA device" in capsys.readouterr().out

    @pytest.mark.slow
    def test_all_sections_run_as_the_page_says_on_a_bare_machine(self, tmp_path):
        out = tmp_path / "out"
        given = ["--quick", "--device", "cpu", "--rounds", "2", "--minutes", "20"]
        for call in calls_of_the_page():
            run = subprocess.run(
                [sys.executable, *call, *given, "--out", str(out)],
                cwd=ROOT,
                env=make_bare(tmp_path / "bare"),
                capture_output=True,
                text=True,
                check=False,
            )
            assert run.returncode == 0, run.stdout + run.stderr
            assert "NO\n" not in run.stdout, "a number of a trial run has no verdict"

        numbers = json.loads((out / "numbers.json").read_text())
        assert set(numbers["sections"]) == set(command.SHARES)
        for name, section in numbers["sections"].items():
            assert section["parts"], name
            assert section["failed"] == {}, name
        files = [path for path in out.rglob("*") if path.is_file()]
        assert len(files) <= 9
        assert all(path.parent == out for path in files)

    def test_what_an_earlier_call_found_is_known_to_the_next_one(self, tmp_path):
        wrong = {"tests": {"parts": {"tests": {"wrong": ["gated"]}}, "failed": {"tests": "1"}}}
        (tmp_path / "numbers.json").write_text(json.dumps({"sections": wrong}))
        options = ["--device", "cpu", "--quick", "--out", str(tmp_path)]
        runner = command.Runner(command.read_arguments(options), tmp_path)

        plan = runner._plan_for(60.0)

        assert (plan.is_wrong("lstm"), plan.is_wrong("exprnn")) == (True, False)
        assert runner.sections == wrong
        anyway = command.Runner(command.read_arguments([*options, "--anyway"]), tmp_path)
        assert not anyway._plan_for(60.0).is_wrong("lstm")

    @pytest.mark.slow
    def test_a_section_that_falls_restarts_without_what_ended_it(self, tmp_path, monkeypatch):
        (tmp_path / "falling").mkdir()
        (tmp_path / "falling" / "section.py").write_text(
            "import os\n"
            "def measure(plan, notes):\n"
            "    notes.attempt('first', lambda: notes.keep('first', 1))\n"
            "    notes.attempt('second', lambda: os._exit(9))\n"
            "    notes.attempt('third', lambda: notes.keep('third', 3))\n"
        )
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        arguments = command.read_arguments(["--device", "cpu", "--quick", "--out", str(tmp_path)])
        runner = command.Runner(arguments, tmp_path, package="falling")

        runner.run("section", 1.0)

        found = runner.sections["section"]
        assert found["parts"] == {"first": 1, "third": 3}
        assert found["failed"] == {"second": "the process of section section ended with 9"}

    def test_a_section_out_of_time_keeps_what_it_had_reached(self, tmp_path, monkeypatch, capsys):
        def start(name, path, end):
            notes = Notes.read(path)
            assert 0 < notes.seconds_left < 60
            notes.running = "endless"
            notes.keep("first", 1)

        arguments = command.read_arguments(["--device", "cpu", "--quick", "--out", str(tmp_path)])
        runner = command.Runner(arguments, tmp_path)
        monkeypatch.setattr(runner, "_start", start)

        runner.run("lanes", 0.1)

        found = runner.sections["lanes"]
        words = "the process of section lanes was ended: its time was over"
        assert (found["parts"], found["failed"]) == ({"first": 1}, {"endless": words})
        assert "lanes had reached, and keeps: first" in capsys.readouterr().out

    @pytest.mark.slow
    def test_what_hangs_is_ended(self, tmp_path):
        notes = Notes(tmp_path / "notes.json", Plan(device="cpu", patience=0.5))
        notes.write()
        program = (
            "import pathlib, time\n"
            "from bench.gpu.sections import Notes\n"
            f"notes = Notes.read(pathlib.Path({str(notes.path)!r}))\n"
            "notes.attempt('endless', lambda: time.sleep(100))\n"
        )

        run = subprocess.run(
            [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
        )

        assert run.returncode != 0
        assert "Timeout" in run.stderr
        assert Notes.read(notes.path).running == "endless"


class TestNotes:
    def test_work_that_fails_is_named_and_not_tried_again(self, notes, capsys):
        calls = []

        def fail():
            calls.append(1)
            raise RuntimeError("no such kernel\nand more")

        assert [notes.attempt("bad", fail) for _ in range(2)] == [None, None]
        assert len(calls) == 1
        assert "failed: bad: RuntimeError: no such kernel and more" in capsys.readouterr().out
        assert Notes.read(notes.path).failed == notes.failed

    def test_variants_take_turns_and_one_that_fails_harms_no_other(self, notes):
        def fail():
            raise RuntimeError("not here")

        good = repeat(lambda: None, "cpu")
        times = time_in_turns({"bad": Later(fail), "good": good}, notes, "part", 60)

        assert list(times) == ["good"]
        assert len(times["good"]) == SMALL.rounds
        assert list(notes.failed) == ["part: bad"]


class TestGoals:
    def test_a_floor_is_met_by_what_is_as_good(self):
        (row,) = goals.judge({"loop": 8.0}, only_measured=True)
        assert (row["measured"], row["verdict"]) == ("8x", "yes")

    def test_a_trial_run_has_no_verdict_and_no_number(self):
        (row,) = goals.judge({"loop": 8.0}, is_trial_run=True, only_measured=True)
        assert "measured" not in row
        assert row["verdict"] == "tried out only"

    def test_every_goal_of_a_workload_is_known(self):
        assert {goal for part in one_lane.PARTS.values() for goal in part.goals.values()} <= set(
            goals.GOALS
        )


class TestIdleness:
    def test_lanes_are_idle_between_spans_and_not_after_the_end(self):
        spans = [Span(0, 2, 4, 3, 1), Span(3, 2, 4, 4, 0)]
        assert occupancy.measure_idleness(spans, lanes=4, end=4) == 37.5

    def test_asha_lets_the_best_third_so_far_go_on(self):
        asha = occupancy.Asha(3)
        assert [asha.goes_on(10, v) for v in (5.0, 6.0, 4.0, 4.5, 7.0)] == [
            *(True, False, True),
            *(True, False),
        ]


class TestPlots:
    @pytest.mark.slow
    def test_of_lanes_and_of_occupancy_are_png_and_svg(self, tmp_path):
        rows = [{"lanes": n, "ms": 10.0 * n, "trials": 50.0 * n} for n in (1, 2, 4)]
        pictures.draw("lanes", {"copying": {"title": "copying", "rows": rows}}, tmp_path, "here")
        found = {"spans": [[0, 1, 2]], "pending_until": 1, "lanes": 2, "trials": 3}
        parts = {"refilled at once": found | {"seconds": 1.0, "idle": 2.0}}
        pictures.draw("occupancy", parts, tmp_path, "here")
        pictures.draw("tests", {}, tmp_path, "here")

        names = ["lanes.png", "lanes.svg", "occupancy.png", "occupancy.svg"]
        assert sorted(path.name for path in tmp_path.iterdir()) == names

    def test_without_matplotlib_it_says_so(self, tmp_path, monkeypatch, capsys):
        monkeypatch.setitem(sys.modules, "matplotlib", None)

        pictures.draw("lanes", {"copying": {"title": "", "rows": []}}, tmp_path, "here")

        assert "not drawn" in capsys.readouterr().out
        assert not list(tmp_path.iterdir())


REPORT = """<testsuites><testsuite>
<testcase classname="tests.models.test_cuda_scan" name="test_a"/>
<testcase classname="tests.models.test_cuda_scan" name="test_b"><skipped/></testcase>
<testcase classname="tests.models.test_cuda_gated" name="test_c"><failure>no</failure></testcase>
{more}</testsuite></testsuites>"""


class TestWhatIsWrong:
    def test_is_what_failed_and_what_did_not_run(self, tmp_path):
        report = tmp_path / "report.xml"
        assert tests.find_wrong(report) == ["scan", "gated", "lanes"], "there is no report"
        report.write_text(REPORT.format(more=""))
        assert tests.find_wrong(report) == ["gated", "lanes"]
        lanes = '<testcase classname="tests.workers.test_lanes_cuda" name="test_d"/>'
        report.write_text(REPORT.format(more=lanes))
        assert tests.find_wrong(report) == ["gated"]

    @pytest.mark.parametrize("section", ["lanes", "sharing", "limits", "occupancy", "profiles"])
    def test_is_not_timed_by_a_section(self, notes, section):
        notes.plan = replace(SMALL, wrong=["scan"])
        notes.write()

        sections.main(f"bench.gpu.{section}", notes.path)

        found = Notes.read(notes.path)
        assert found.parts == {}
        assert "did not go well" in found.failed[section]

    def test_is_not_timed_beside_what_is_right(self, notes):
        plan = replace(SMALL, wrong=["gated"])
        works = one_lane.make_works(one_lane.PARTS["gated"], small(WORKLOADS["copying-20"]), plan)
        assert works == {}
        part = one_lane.PARTS["copying-128"]
        assert "asrnn, one lane" in one_lane.make_works(part, small(WORKLOADS["copying-128"]), plan)

    def test_tests_find_packages_that_were_brought_along(self, monkeypatch):
        monkeypatch.setenv("PYTHONPATH", "/brought/along")
        assert "/brought/along" in tests.make_environment()["PYTHONPATH"].split(os.pathsep)

    def test_times_far_from_their_prediction_are_marked(self):
        assert predictions.compare(3.0, 2.9) == "2.9"
        assert predictions.compare(9.0, 2.9) == "2.9, FAR: x3.1"
        assert predictions.compare(1.0, None) == ""

    def test_every_rate_that_is_predicted_is_one_that_is_measured(self, notes):
        plan = replace(SMALL, device="cpu")
        measured = set(limits.make_works(plan)) | {"node of a graph, us"}
        assert set(predictions.RATES) <= measured


class TestSections:
    @pytest.mark.slow
    def test_kernels_compile_side_by_side_and_show_their_registers(
        self, notes, tmp_path, monkeypatch
    ):
        need_nvrtc()
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        kernels.measure(SMALL, notes)

        assert notes.failed == {}
        found = notes.parts["kernels"]
        assert len(list(tmp_path.rglob("*.cubin"))) == found["count"] > 40
        assert all(0 < row["registers"] <= 128 for row in found["rows"])

    @pytest.mark.slow
    def test_programs_of_sanitizers_and_profilers_run_on_a_cpu(self, notes, tmp_path):
        sanitizers.measure(SMALL, notes)
        notes.plan = replace(SMALL, out=str(tmp_path))
        profiles.measure(notes.plan, notes)
        subprocess.run([sys.executable, "-c", profiles.PROGRAM, "cpu", "2"], cwd=ROOT, check=True)

        assert notes.failed == {}
        assert (tmp_path / "step.json").stat().st_size > 0

    @pytest.mark.slow
    def test_one_lane_compares_each_model_with_the_loop_and_cudnn(self, notes):
        one_lane.measure_part("copying-20", one_lane.PARTS["copying-20"], 300, SMALL, notes)

        assert notes.failed == {}
        rows = {row["variant"]: row for row in notes.parts["copying-20"]["rows"]}
        assert {"exprnn, loop", "exprnn, one CPU core", "nn.RNN", "nn.LSTM"} <= set(rows)
        assert all(row["ms"] > 0 for row in rows.values())
        assert {"loop", "core", "rnn", "lstm"} <= set(notes.goals)

    def test_a_synthetic_task_trains_without_its_corpus(self, notes):
        one_lane.measure_part("ptb-32", one_lane.PARTS["ptb-32"], 300, SMALL, notes)

        assert notes.failed == {}
        assert set(notes.goals) == {"ptb-32"}

    @pytest.mark.slow
    def test_lanes_count_against_one_core_and_cost_what_is_priced(self, notes):
        notes.plan = replace(SMALL, price=3.0)

        lanes.measure(notes.plan, notes)

        assert notes.failed == {}
        rows = notes.parts["copying-20"]["rows"]
        assert [row["lanes"] for row in rows] == [1, 2, 4]
        for row in rows:
            assert row["cost"] == pytest.approx(3.0 / row["trials"])
        assert "cost" not in lanes.make_row(2, {"lanes": [5.0]}, SMALL)

    @pytest.mark.slow
    def test_every_model_is_tried_with_one_lane_and_with_eight(self, notes):
        every_model.measure(SMALL, notes)

        assert notes.failed == {}
        assert set(notes.parts) == set(trainable_models())
        assert all(row["how"] != "failed" for row in notes.parts.values())

    def test_lanes_are_occupied_with_refill_and_without(self, notes):
        occupancy.measure(SMALL, notes)

        assert notes.failed == {}
        for how in occupancy.WAYS:
            found = notes.parts[how]
            assert found["trials"] == occupancy.QUICK.trials
            assert 0 <= found["idle"] < 100
            assert max(lanes for _, _, lanes in found["spans"]) == found["lanes"]

    @pytest.mark.slow
    def test_processes_that_share_the_device_are_counted_together(self, notes):
        sharing.measure(SMALL, notes)

        rows = notes.parts["processes"]["rows"]
        kinds = {(row["kind"], row.get("processes")) for row in rows}
        assert kinds >= {("loop", 1), ("loop", 2), (sharing.LANES_KIND, None)}
        assert all(row["steps"] > 0 for row in rows)
        assert set(notes.goals) == {"alone", "sharing"}

    def test_the_limits_name_what_binds(self, notes):
        limits.measure(SMALL, notes)

        assert notes.failed == {}
        for row in notes.parts["bounds"]:
            assert row["least"] == max(
                row[key] for key in ("arithmetic", "latency", "memory", "host")
            )

    @pytest.mark.slow
    def test_gpu_tests_are_found_and_skipped_without_a_gpu(self, notes, capfd):
        if torch.cuda.is_available():
            pytest.skip("a CUDA device is here: `make gpu` runs them")

        tests.measure(SMALL, notes)

        assert "test_cuda_scan.py" in notes.parts["tests"]["files"]
        assert notes.failed == {}
        assert "skipped" in capfd.readouterr().out
