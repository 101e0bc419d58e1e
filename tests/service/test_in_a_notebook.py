"""What a notebook and a paper get from the client: figures, tables, text, and one trial again."""

from __future__ import annotations

import json
import pickle
from contextlib import nullcontext
from typing import Any

import pandas as pd
import pytest
from helpers.played import seed_result
from starlette.testclient import TestClient
from typer.testing import CliRunner

from eigensweep.client import Client, Experiment, InputError, RefusedError, experiments
from eigensweep.client.answers.trial_table import TrialTable
from eigensweep.command import cli, frame
from eigensweep.results.seeds import summarise
from eigensweep.search_spaces.space import Point
from eigensweep.search_spaces.spec import ExperimentSpec
from eigensweep.service.record.ledger import RecordLedger
from eigensweep.service.record.record import Record
from eigensweep.service.settings import Settings
from eigensweep.store.checkpoints import Store, trial_key
from eigensweep.store.commits.curves import CurvePoint

SPEC: dict[str, Any] = {
    "name": "two arms",
    "task": {"name": "copying", "delay": 5, "symbols": 2},
    "arms": [
        {"model": {"name": "scornn", "hidden_size": 6}, "space": {
            "model.negative_fraction": [0.25, 0.5], "optimizer.name": ["rmsprop"]}},
        {"model": {"name": "lstm", "hidden_size": 4}},
    ],
    "search": {"space": {"optimizer.lr": [3.3e-5, 0.25]}},
    "scheduler": {"name": "asha"},
    "replicates": 3,
    "training": {"steps": 100, "evaluate_every": 10},
}  # fmt: skip
LOSS = "valid/cross_entropy"


class Direct(Client):
    """A client of an application without a server."""

    def __init__(self, http: TestClient) -> None:
        self.url, self._http = "", http  # type: ignore[assignment]


@pytest.fixture
def direct(client: TestClient) -> Direct:
    return Direct(client)


@pytest.fixture
def experiment(direct: Direct, record: Record, settings: Settings) -> Experiment:
    """An experiment of four trials; scoRNN's best comes to exactly 0, and one is invalid."""
    posted = direct.submit(SPEC)
    spec = ExperimentSpec.model_validate(SPEC)
    ledger = RecordLedger(record.url, posted.id, record.claim(posted.id).generation)
    store = Store(settings.storage_folder)
    fixed = {"optimizer.name": "rmsprop", "model.negative_fraction": 0.5}
    points = [("scornn", {"optimizer.lr": 0.25, **fixed}, 0.1),
              ("scornn", {"optimizer.lr": 3.3e-5, **fixed}, 0.0),
              ("lstm", {"optimizer.lr": 0.25}, 0.4)]  # fmt: skip
    for number, (arm, params, value) in enumerate(points):
        config = spec.trial(Point(arm, params))
        ledger.open(number, arm, params, config.model_dump(mode="json"), config.content_hash())
        attempt = ledger.begin(number)
        for seed in range(3):
            key = f"{trial_key(posted.id, number)}/{seed}"
            store.begin(key, 1)
            curve = [CurvePoint(0, {LOSS: 19.0 + seed, "train/loss": 3.0}, 0),
                     CurvePoint(90, {LOSS: value, "train/loss": value}, 0)]  # fmt: skip
            store.commit(key, 1, 90, {}, curve)
        seeds = [seed_result(seed, value * (1 + seed / 10), "completed") for seed in range(3)]
        ledger.finish(number, attempt, "completed", summarise(seeds))
    ledger.open(3, "lstm", {"optimizer.lr": 3.3e-5}, {}, "", error="a rule between fields")
    ledger.end("completed")
    return posted.refresh()


class TestCurves:
    def test_are_a_frame_with_a_row_for_each_point(self, experiment):
        frame = experiment.curves()

        assert list(frame.columns) == ["trial", "arm", "seed", "step", "metric", "value"]
        assert set(frame["trial"]) == {1, 2}, "the best of each arm"
        assert set(frame["metric"]) == {LOSS, "train/loss"}
        of_one = experiment.curves(0, metric=LOSS)
        assert set(of_one["arm"]) == {"scornn"}
        ends = of_one[of_one["step"] == 90]
        assert list(zip(ends["seed"], ends["value"], strict=True)) == [(0, 0.1), (1, 0.1), (2, 0.1)]

    def test_a_curve_that_was_thinned_warns(self, experiment, settings, monkeypatch):
        monkeypatch.setattr(experiments, "MOST_ROWS", 2)
        assert len(experiment.curves(0)) == 2 * 2 * 3
        store, key = Store(settings.storage_folder), f"{trial_key(experiment.id, 0)}/0"
        store.begin(key, 1)
        store.commit(key, 1, 100, {}, [CurvePoint(100, {LOSS: 0.1}, 0)])
        with pytest.warns(UserWarning, match="a curve has 3 points; of each, 2 at most are here"):
            frame = experiment.curves(0, metric=LOSS)
        assert list(frame[frame["seed"] == 0]["step"]) == [0, 100]

    def test_an_unknown_metric_is_refused_with_those_that_exist(self, experiment):
        with pytest.raises(InputError, match=f"'valid/loss'; there are .*{LOSS}"):
            experiment.curves(metric="valid/loss")

    def test_a_trial_without_a_curve_gives_an_empty_frame(self, experiment):
        assert list(experiment.curves(3).columns) == list(experiment.curves().columns)
        assert len(experiment.curves(3)) == 0


class TestPlot:
    def test_has_a_line_and_a_band_for_the_best_trial_of_each_arm(self, experiment):
        (axes,) = experiment.plot().axes

        lines = {line.get_label(): list(line.get_ydata()) for line in axes.lines}
        assert list(lines) == ["scornn", "lstm", "memoryless baseline"]
        assert lines["lstm"] == pytest.approx([20.0, 0.4])
        assert len(axes.collections) == 2
        assert axes.get_ylabel().startswith("validation cross entropy")

    def test_a_zero_stands_at_the_lower_edge_of_a_logarithmic_axis(self, experiment):
        (axes,) = experiment.plot().axes

        assert axes.get_yscale() == "log"
        values = [value for line in axes.lines for value in line.get_ydata()]
        others = [value for value in values if value != min(values)]
        assert min(values) == pytest.approx(min(others) / 3)
        assert "exactly 0" in " ".join(text.get_text() for text in axes.texts)
        (linear,) = experiment.plot(log=False).axes
        assert linear.get_yscale() == "linear"
        assert min(linear.lines[0].get_ydata()) == 0

    def test_another_metric_has_no_baseline_an_unknown_is_refused(self, experiment):
        (axes,) = experiment.plot("train/loss").axes
        assert [line.get_label() for line in axes.lines] == ["scornn", "lstm"]
        with pytest.raises(RefusedError, match="no curve holds 'valid/los'"):
            experiment.plot("valid/los")

    def test_before_there_is_a_curve_it_says_so(self, direct):
        with pytest.raises(InputError, match="has no learning curve yet"):
            direct.submit(SPEC).plot()

    @pytest.mark.parametrize(("name", "begin"), [("a.pdf", b"%PDF"), ("a.svg", b"<?xml")])
    @pytest.mark.quick_cases(1)
    def test_the_command_writes_a_file(self, experiment, command, tmp_path, name, begin):
        done = command("plot", experiment.id, "--out", str(tmp_path / name))

        assert (done.exit_code, done.stdout.strip()) == (0, str(tmp_path / name))
        assert (tmp_path / name).read_bytes().startswith(begin)

    def test_the_command_refuses_a_format_that_there_is_not(self, experiment, command, tmp_path):
        done = command("plot", experiment.id, "--out", str(tmp_path / "a.doc"))
        assert done.exit_code == 2
        assert "a.doc: " in done.stderr
        assert "pdf" in done.stderr


@pytest.fixture
def command(direct: Direct, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that runs a command against the application."""
    monkeypatch.setattr(frame, "Client", lambda _: nullcontext(direct))
    return lambda *args: CliRunner().invoke(cli.app, args)


class TestTables:
    def test_a_file_and_a_frame_are_one_table(self, experiment, tmp_path):
        frame = experiment.trials.to_pandas().reset_index()

        for suffix, read in ((".csv", pd.read_csv), (".parquet", pd.read_parquet)):
            exported = read(experiment.export(tmp_path / f"trials{suffix}"))
            assert set(exported.columns) == set(frame.columns)
            assert list(exported["trial"]) == list(frame["trial"]) == [1, 0, 2, 3]
            for column in ("rank", "value", "low", "baseline", "ratio", "optimizer.lr", "n"):
                given = pd.to_numeric(exported[column]).astype("Float64")
                assert given.equals(frame[column].astype("Float64")), column
        heads = list(pd.read_csv(tmp_path / "trials.csv").columns)
        assert heads[:4] == ["rank", "trial", "arm", "state"]
        assert heads.index("model.negative_fraction") < heads.index("value") < heads.index("mlflow")
        first, *_ = (tmp_path / "trials.csv").read_text().splitlines()[1:]
        assert first.startswith("1,1,scornn,"), "a rank is a whole number"

    def test_numbers_are_numbers_also_where_one_seed_gives_none(self):
        row = {"number": 0, "arm": "a", "state": "completed", "params": {}, "value": 0.5}
        frame = TrialTable.rank({}, [row]).to_pandas()
        assert {str(frame[name].dtype) for name in ("sd", "low", "ratio")} == {"float64"}
        assert {str(frame[name].dtype) for name in ("rank", "parameters")} == {"Int64"}

    def test_latex_has_powers_of_ten_and_means_with_intervals(self, experiment, tmp_path):
        text = experiment.to_latex()

        heads, first, *rest = [line for line in text.splitlines() if "&" in line]
        assert heads.startswith(r"rank & arm & lr & optimizer & negative\_fraction & validation")
        assert first.startswith(
            r"1 & scornn & $3.3\times10^{-5}$ & rmsprop & $0.5$ & $0$ [$0$, $0$]"
        )
        assert rest[-1].startswith("3 & lstm & $0.25$ & -- & -- & $0.44$ [")
        assert rest[-1].endswith(r"90 \\")
        assert len(rest) == 2, "a trial without a rank is left out"
        assert r"\toprule" in text
        assert "http" not in text
        assert experiment.export(tmp_path / "a.tex").read_text() == f"{text}\n"
        assert experiment.to_latex(limit=1).count(r"\\") == 2

    def test_latex_has_a_searched_number_beside_the_counted_one(self):
        row = {"number": 0, "arm": "a", "state": "completed", "value": 999.7}
        row |= {"params": {"model.parameters": 22_000}, "parameters": 21_950}
        text = TrialTable.rank({}, [row]).to_latex()
        assert "rank & arm & model.parameters & validation & parameters" in text
        assert r"1 & a & 22{,}000 & $1000$ & 21{,}950" in text

    def test_latex_without_a_ranked_trial_has_its_heads(self):
        text = TrialTable.rank({}, []).to_latex()
        assert r"rank & arm & validation & test & parameters \\" in text


class TestText:
    def test_answers_show_themselves_and_are_dicts_still(self, direct, experiment):
        answers = {
            "trial 1 of arm scornn": experiment.best,
            "two arms: 6 trials": direct.preview({**SPEC, "name": "two arms"}),
            "other trial": experiment.pareto(),
            "none: ": experiment.race(),
            "arm": experiment.importance(),
            "verdict": direct.compare(experiment.id, f"{experiment.id}/2"),
        }
        for words, answer in answers.items():
            assert words in " ".join(repr(answer).split()), words
            assert repr(answer).count("\n") < 30
            assert "<pre>" in answer._repr_html_()
            assert json.loads(json.dumps(answer)) == dict(answer)
        assert answers["verdict"]["pairs"][0]["test"]["words"]
        assert experiment.best["number"] == 1

    def test_only_what_is_over_is_done_to_100_percent(self, experiment):
        experiment.content |= {"progress": {"fraction": 0.996}}
        assert "99 %" in experiment._repr_html_()
        with experiments.make_bar(True) as bar:
            bar.add_task("e", total=1.0, completed=0.996, state="running")
            bar.add_task("f", total=1.0, completed=1.0, state="completed")
            table = bar.make_tasks_table(bar.tasks)
        assert [str(cell) for cell in table.columns[2].cells] == ["99 %", "100 %"]

    def test_a_long_table_shows_its_beginning(self, experiment):
        table = experiment.trials
        assert repr(table) == str(table)
        long = type(table)([*table] * 10)
        assert repr(long).splitlines()[-1] == "... and 20 more; print(...) shows all"
        assert len(str(long).splitlines()) == 41

    def test_a_race_survives_a_copy_to_another_process(self, experiment):
        race = pickle.loads(pickle.dumps(experiment.race()))
        assert repr(race) == repr(experiment.race())


class TestAnalyses:
    @pytest.mark.parametrize("near", ["trials", "experiments"])
    def test_an_unknown_keyword_is_named_before_anything_else(self, direct, experiment, near):
        with pytest.raises(RefusedError) as refused:
            direct.analyse("gradient_norms", **{near: [3]})
        words = str(refused.value)
        assert f"gradient_norms has no option '{near}'" in words
        assert f"did you mean '{near[:-1]}'?" in words
        assert "say which" not in words


class TestOneTrial:
    def test_is_forked_with_its_configuration_and_more_seeds(self, direct, experiment):
        made = direct.fork(f"{experiment.id}/1", replicates=5)

        spec = ExperimentSpec.model_validate(made.content["spec"])
        assert (spec.trial_count(), spec.replicates, spec.scheduler.name) == (1, 5, "none")
        config = spec.trial(Point("scornn", {}))
        assert config.content_hash() == experiment.trial(1)["hash"], "so results are taken over"
        assert made.name == "two arms, trial 1"

    def test_without_a_configuration_is_refused(self, direct, experiment):
        with pytest.raises(InputError, match="trial 3 is invalid: it has no configuration"):
            direct.fork(f"{experiment.id}/3")

    def test_a_name_with_a_slash_is_not_taken_for_a_trial(self, direct):
        posted = direct.submit(SPEC, name="enrnn/copying")
        assert direct.fork("enrnn/copying", priority=1).content["spec"]["name"] == posted.name


def test_a_longer_budget_after_a_scheduler_names_fork(experiment):
    with pytest.raises(RefusedError, match="`eigensweep fork` posts it again, changed"):
        experiment.extend(**{"training.steps": 200})


def test_a_list_of_nothing_says_what_to_do(command):
    assert "eigensweep submit quickstart" in command("list").stdout
    assert command("list", "--name", "nobody's").stdout.strip() == "none"


def test_help_begins_with_submit_and_serve():
    shown = CliRunner().invoke(cli.app, ["--help"]).stdout.partition("Commands")[2]
    first, second = (shown.index(f" {name} ") for name in ("submit", "serve"))
    others = [shown.index(f" {name} ") for name in ("audit", "nodes", "du", "token", "doctor")]
    assert first < second < min(others)
    assert "Control" in shown
