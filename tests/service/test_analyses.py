"""Analyses through the API and the command line: what is refused, kept, carried out, served."""

from __future__ import annotations

import json
import shutil
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers.open_jobs import has_open
from sqlalchemy import event
from starlette.testclient import TestClient
from typer.testing import CliRunner

from eigensweep.analyses import ANALYSES
from eigensweep.analyses.__main__ import main as carry_out
from eigensweep.analyses.base import ExperimentSubject, TrialSubject
from eigensweep.analyses.messages import Outcome
from eigensweep.client import AnalysisFailedError, Client
from eigensweep.command.cli import app as command_line
from eigensweep.results.trial_result import Result
from eigensweep.search_spaces.space import Point
from eigensweep.search_spaces.spec import ExperimentSpec
from eigensweep.service.api.app import create_app
from eigensweep.service.queue.analyses import AnalysisHandler
from eigensweep.service.queue.jobs import JobRunner, NotDoneError, StoppedError
from eigensweep.service.record.jobs import Jobs
from eigensweep.service.record.ledger import RecordLedger
from eigensweep.service.record.requests.analyses import Analyses, AnalysisSpec
from eigensweep.service.record.sql import database
from eigensweep.service.settings import Settings
from eigensweep.service.store_probe import StoreProbe
from eigensweep.store.checkpoints import Store

SMALL = {"name": "transient_norms", "options": {"size": 6, "steps": 8, "vectors": 4, "beta": 0}}

REFUSED: list[tuple[dict[str, Any], int, str]] = [
    ({"name": "transient_norm"}, 422, "name: there is no analysis 'transient_norm'"),
    ({"name": "transient_norm"}, 422, "did you mean 'transient_norms'?"),
    ({}, 422, "name: 'name' is missing"),
    ({"name": "spectra"}, 422, "experiment: spectra looks at one trial"),
    ({"name": "spectra", "experiment": "e"}, 422, "trial: spectra looks at one trial"),
    ({"name": "size_study", "experiment": "e", "trial": 0}, 422, "experiment as a whole"),
    ({"name": "fisher_memory", "experiment": "e"}, 422, "leave 'experiment' out"),
    ({"name": "spectra", "experiment": "e", "trial": 0}, 404, "no experiment 'e'"),
    ({"name": "spectra", "trial": -1, "experiment": "e"}, 422, "trial"),
    ({**SMALL, "options": {"siz": 3}}, 422, "options.siz: transient_norms has no option"),
    ({**SMALL, "options": {"siz": 3}}, 422, "did you mean 'size'?"),
    ({**SMALL, "options": {"size": 1}}, 422, "options.size"),
    ({**SMALL, "options": {"alpha": [0.5, 9]}}, 422, "options.alpha.1: 'alpha.1' should be"),
    ({"name": "copying_solution", "options": {"runs": 10_000}}, 422, "take fewer runs"),
    ({**SMALL, "where": "/etc"}, 422, "where"),
]

MISTYPED: list[tuple[tuple[str, ...], str]] = [
    (("fisher_memori",), "did you mean 'fisher_memory'?"),
    (("spectra", "--trial", "e7"), "write EXPERIMENT/NUMBER"),
    (("spectra", "--trial", "e7/1"), "there is no experiment 'e7'"),
    (("fisher_memory", "--option", "d"), "write name=value"),
    (("fisher_memory", "--option", "d=2"), "options.d"),
    (("spectra", "--option", "trial=2"), "give it as --trial EXPERIMENT/NUMBER"),
    (("fisher_memory", "--out", "/dev/null"), "/dev/null: File exists"),
]


def post(client: TestClient, **request: Any) -> Any:
    return client.post("/v1/analyses", json=request)


def read_refusal(answer: Any) -> str:
    """Return what a refusal says, path and words."""
    problem = answer.json()
    return " ".join(
        [f"{e['path']}: {e['message']}" for e in problem["errors"]] or [problem["detail"]]
    )


def of(trial: TrialSubject) -> AnalysisSpec:
    whole = ExperimentSubject(
        experiment="e",
        name="sizes",
        metric="mse",
        unit="",
        better="lower",
        baseline=None,
        trials=[trial],
        run_id=trial.run_id,
    )
    return AnalysisSpec(name="size_study", options={}, trial=trial, experiment=whole)


@pytest.fixture
def analyses(client: TestClient) -> Analyses:
    """The analyses of the application."""
    return client.app.state.service.analyses  # type: ignore[attr-defined]


class Runner:
    """Carries them out."""

    def __init__(self, analyses: Analyses, settings: Settings) -> None:
        self.handler = AnalysisHandler(
            StoreProbe(settings.storage_folder), analyses, str(settings.corpora)
        )
        self.jobs = JobRunner(analyses.jobs, [self.handler])

    def tick(self) -> bool:
        """Carry out what is queued; return whether any is left."""
        self.jobs.tick(self.handler)
        return has_open(self.jobs.jobs, "analysis")


@pytest.fixture
def runner(analyses: Analyses, settings: Settings) -> Runner:
    """What carries them out."""
    return Runner(analyses, settings)


def end(outcome: Outcome) -> Callable[..., Outcome]:
    """Return what ends an analysis at once."""
    return lambda *_: outcome


@pytest.fixture
def make_finished(client, record, settings, spec) -> Callable[..., str]:
    """Return a function that posts an experiment with one ended trial, and its store."""

    def make(
        state: str = "completed", ended: bool = True, stored: bool = True, **changes: Any
    ) -> str:
        changes = {"search/space": {}, "training/steps": 4, **changes}
        id = client.post("/v1/experiments", json=spec(**changes)).json()["id"]
        posted = ExperimentSpec.model_validate(spec(**changes))
        config = posted.trial(Point(posted.model.name, {})).resolve()
        ledger = RecordLedger(record.url, id, record.claim(id).generation)
        ledger.open(0, "scornn", {}, config.model_dump(mode="json"), config.content_hash())
        attempt = ledger.begin(0)
        if state != "running":
            ledger.finish(0, attempt, state, Result(value=0.5, step=4))
        if stored:
            store, key = Store(settings.storage_folder), f"{id}/00000/0"
            store.begin(key, 1)
            store.commit(key, 1, 0, {}, [])
        if ended:
            ledger.end("completed")
        return id

    return make


class TestRefusals:
    def test_bad_input_is_refused_with_what_would_work(self, client):
        for request, status, words in REFUSED:
            answer = client.post("/v1/analyses", json=request)
            assert answer.status_code == status, answer.text
            assert words in read_refusal(answer)
        assert client.get("/v1/analyses").json()["items"] == []

    @pytest.mark.parametrize("state", ["running", "failed"])
    def test_a_trial_that_is_not_over_or_left_nothing_is_refused(
        self, client, make_finished, state
    ):
        id = make_finished(state, ended=False, stored=state == "running")
        answer = post(client, name="spectra", experiment=id, trial=0)
        assert answer.status_code == 409
        assert f"trial 0 of {id} is {state}" in read_refusal(answer)

    def test_a_trial_of_a_vanishing_experiment_is_refused(self, client, make_finished, record):
        id = make_finished(stored=True)
        record.delete(id)
        answer = post(client, name="spectra", experiment=id, trial=0)
        assert (answer.status_code, "is being deleted" in read_refusal(answer)) == (409, True)

    def test_a_trial_that_was_never_opened_is_not_found(self, client, make_finished):
        answer = post(client, name="spectra", experiment=make_finished(), trial=7)
        assert (answer.status_code, "has no trial 7" in read_refusal(answer)) == (404, True)

    def test_an_experiment_that_is_not_over_is_refused(self, client, make_finished):
        answer = post(client, name="size_study", experiment=make_finished(ended=False))
        assert (answer.status_code, "is running" in read_refusal(answer)) == (409, True)

    def test_a_model_without_what_is_needed_is_refused(self, client, make_finished):
        id = make_finished(model={"name": "lstm", "hidden_size": 3})
        answer = post(client, name="spectra", experiment=id, trial=0)
        assert answer.status_code == 422
        assert "lstm has no single square matrix" in read_refusal(answer)

    def test_a_replicate_the_trial_has_not_is_refused(self, client, make_finished):
        request = {"name": "hidden_states", "experiment": make_finished(), "trial": 0}
        answer = post(client, **request, options={"replicate": 2})
        assert (answer.status_code, "has 1 replicate" in read_refusal(answer)) == (422, True)


class TestQueue:
    def test_an_analysis_is_queued_and_found_where_the_answer_says(self, client):
        answer = client.post("/v1/analyses", json=SMALL)
        assert answer.status_code == 201
        content = client.get(answer.headers["Location"]).json()
        assert (content["state"], content["name"]) == ("queued", "transient_norms")
        assert content["options"]["seed"] == 4
        assert content["options"]["beta"] == [0.0]
        assert client.get("/v1/analyses").json()["items"] == [content]

    def test_the_same_request_is_the_same_analysis(self, client):
        first = client.post("/v1/analyses", json=SMALL).json()
        written_out = {**SMALL, "options": {**SMALL["options"], "seed": 4, "beta": [0.0]}}
        again = client.post("/v1/analyses", json=written_out)
        assert (again.status_code, again.json()["id"]) == (200, first["id"])
        other = client.post("/v1/analyses", json={**SMALL, "options": {"size": 7}})
        assert other.json()["id"] != first["id"]

    def test_one_that_failed_is_tried_again_when_asked_for_again(self, client, runner, monkeypatch):
        id = client.post("/v1/analyses", json=SMALL).json()["id"]
        monkeypatch.setattr(runner.handler, "_carry_out", end(Outcome(error="out of luck")))
        assert not runner.tick()
        failed = client.get(f"/v1/analyses/{id}").json()
        assert (failed["state"], failed["error"]) == ("failed", "out of luck")
        again = client.post("/v1/analyses", json=SMALL)
        assert (again.status_code, again.json()["state"]) == (201, "queued")
        assert again.json()["error"] is None

    def test_one_that_waits_for_the_store_is_queued(self, client, runner, monkeypatch):
        id = client.post("/v1/analyses", json=SMALL).json()["id"]

        def wait(*_: Any) -> Outcome:
            raise NotDoneError("the store does not answer")

        monkeypatch.setattr(runner.handler, "_carry_out", wait)
        assert runner.tick()
        assert client.get(f"/v1/analyses/{id}").json()["state"] == "queued"

    def test_one_that_mlflow_lacks_is_delivered_when_asked_again(
        self, client, analyses, runner, monkeypatch
    ):
        id = client.post("/v1/analyses", json=SMALL).json()["id"]
        analyses.has_mlflow = True
        (analyses.folder / id / "result.json").write_text("{}")
        monkeypatch.setattr(runner.handler, "_carry_out", end(Outcome(mlflow_problem="away")))
        runner.tick()
        finished = client.get(f"/v1/analyses/{id}").json()
        assert (finished["state"], finished["mlflow_problem"]) == ("finished", "away")
        assert client.post("/v1/analyses", json=SMALL).status_code == 201
        monkeypatch.setattr(runner.handler, "_carry_out", end(Outcome(mlflow_run="r")))
        runner.tick()
        assert client.post("/v1/analyses", json=SMALL).status_code == 200

    def test_the_next_service_begins_again_what_a_killed_one_did(
        self, client, analyses, runner, settings, monkeypatch
    ):
        id = client.post("/v1/analyses", json=SMALL).json()["id"]

        def stop(record: Any) -> None:
            raise StoppedError

        monkeypatch.setattr(runner.handler, "_carry_out", stop)
        assert runner.tick()
        assert analyses.get(id).state == "running"
        successor = Runner(analyses, settings)
        analyses.jobs.requeue("analysis")
        begun_again = analyses.get(id)
        assert (begun_again.state, begun_again.started_at) == ("queued", None)
        monkeypatch.setattr(successor.handler, "_carry_out", end(Outcome()))
        assert not successor.tick()
        assert analyses.get(id).state == "finished"

    def test_a_child_that_dies_fails_its_analysis_in_its_words(
        self, client, runner, monkeypatch, tmp_path
    ):
        program = tmp_path / "python"
        program.write_text("#!/bin/sh\necho out of memory >&2\nexit 9\n")
        program.chmod(0o700)
        monkeypatch.setattr(sys, "executable", str(program))
        id = client.post("/v1/analyses", json=SMALL).json()["id"]
        runner.tick()
        error = client.get(f"/v1/analyses/{id}").json()["error"]
        assert error == "its process ended with status 9\nout of memory"

    def test_an_unwritable_folder_is_told_and_nothing_is_queued(self, client, analyses):
        analyses.folder.parent.mkdir(exist_ok=True)
        analyses.folder.write_text("a file in its place")
        answer = client.post("/v1/analyses", json=SMALL)
        assert (answer.status_code, "cannot write" in read_refusal(answer)) == (503, True)
        assert client.get("/v1/analyses").json()["items"] == []

    def test_a_bug_fails_its_analysis_and_the_queue_goes_on(
        self, client, analyses, runner, monkeypatch
    ):
        ids = [
            client.post("/v1/analyses", json={**SMALL, "options": {"size": n}}).json()["id"]
            for n in (5, 6)
        ]

        def meet_a_bug(record: Any) -> Outcome:
            if record.id == ids[0]:
                raise KeyError("a bug")
            return Outcome()

        monkeypatch.setattr(runner.handler, "_carry_out", meet_a_bug)
        assert not runner.tick()
        assert [analyses.get(id).state for id in ids] == ["failed", "finished"]
        assert "KeyError: 'a bug'" in (analyses.get(ids[0]).error or "")

    def test_what_was_removed_from_the_folder_is_made_again(self, client, runner, monkeypatch):
        id = client.post("/v1/analyses", json=SMALL).json()["id"]
        monkeypatch.setattr(runner.handler, "_carry_out", end(Outcome()))
        runner.tick()
        answer = client.get(f"/v1/analyses/{id}/files/result.json")
        assert (answer.status_code, "were removed" in read_refusal(answer)) == (404, True)
        again = client.post("/v1/analyses", json=SMALL)
        assert (again.status_code, again.json()["state"]) == (201, "queued")

    def test_one_whose_folder_was_removed_is_carried_out_too(
        self, client, analyses, runner, tmp_path, monkeypatch
    ):
        program = "import pathlib, sys; pathlib.Path(sys.argv[1], 'outcome.json').write_text('{}')"
        (tmp_path / "ends_at_once.py").write_text(program)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        monkeypatch.setattr(runner.handler.children, "module", "ends_at_once")
        id = client.post("/v1/analyses", json=SMALL).json()["id"]
        shutil.rmtree(analyses.folder / id)
        assert not runner.tick()
        assert client.get(f"/v1/analyses/{id}").json()["state"] == "finished"

    def test_an_analysis_s_name_does_not_hang_on_mlflows_place(self):
        trial = TrialSubject(
            experiment="e", number=0, arm="lstm", state="completed", config={}, place="e/00000"
        )
        known = trial.model_copy(update={"run_id": "r"})
        assert of(known).id == of(trial).id
        assert of(trial.model_copy(update={"number": 1})).id != of(trial).id

    def test_a_list_is_filtered_and_paged(self, client, make_finished, analyses, monkeypatch):
        of = make_finished()
        ids = [
            client.post("/v1/analyses", json={**SMALL, "options": {"size": n}}).json()["id"]
            for n in (5, 6, 7)
        ]
        mine = post(client, name="hidden_states", experiment=of, trial=0).json()["id"]
        for query, expected in (
            ("", [mine, *ids[::-1]]),
            (f"?experiment={of}", [mine]),
            ("?name=transient_norms&state=queued", ids[::-1]),
            ("?state=finished", []),
        ):
            items = client.get(f"/v1/analyses{query}").json()["items"]
            assert [item["id"] for item in items] == expected, query
        first = client.get("/v1/analyses?limit=3").json()
        rest = client.get(f"/v1/analyses?limit=3&cursor={first['next_cursor']}").json()
        assert [i["id"] for i in first["items"] + rest["items"]] == [mine, *ids[::-1]]
        assert rest["next_cursor"] is None

    def test_a_list_is_one_read_without_the_subjects(self, each_url, tmp_path):
        kept = Analyses(Jobs(each_url), tmp_path)
        trial = TrialSubject(
            experiment="e", number=3, arm="lstm", state="completed", config={}, place="e/00003"
        )
        added, _ = kept.add(of(trial))
        kept.add(AnalysisSpec(name="transient_norms", options={"size": 5}))
        reads: list[str] = []
        engine = database.engine(each_url)
        event.listen(engine, "before_cursor_execute", lambda *call: reads.append(call[2]))
        other, listed = kept.list(lambda each: True)
        assert len([each for each in reads if "FROM jobs" in each]) == 1
        assert listed == replace(added, subject={})
        assert (other.options, other.experiment, other.trial) == ({"size": 5}, None, None)


class TestFiles:
    def test_a_real_analysis_serves_its_numbers_and_pictures(self, client, make_finished, runner):
        request = {"name": "hidden_states", "experiment": make_finished(), "trial": 0}
        here = post(client, **request, options={"weights": "initial"}).json()["links"]["self"]
        assert client.get(f"{here}/files/result.json").status_code == 404

        runner.tick()

        content = client.get(here).json()
        assert (content["state"], content["error"]) == ("finished", None)
        assert content["mlflow_problem"] == "this service has no MLflow"
        files = {name: client.get(link) for name, link in content["links"]["files"].items()}
        assert {name: f.headers["Content-Type"].split(";")[0] for name, f in files.items()} == {
            "result.json": "application/json",
            "table.csv": "text/csv",
            "figure.png": "image/png",
            "figure.svg": "image/svg+xml",
        }
        result = files["result.json"].json()
        assert result["experiment"] == request["experiment"]
        assert len(result["states"]) == 9  # delay 5 and twice two symbols
        assert files["figure.png"].content.startswith(b"\x89PNG")

    @pytest.mark.parametrize("name", ["state.json", "log", "..%2Fstate.json", "%2Fetc%2Fpasswd"])
    def test_no_name_becomes_a_path(self, client, runner, monkeypatch, name):
        id = client.post("/v1/analyses", json=SMALL).json()["id"]
        monkeypatch.setattr(runner.handler, "_carry_out", end(Outcome()))
        runner.tick()
        assert client.get(f"/v1/analyses/{id}/files/{name}").status_code == 404
        assert client.get(f"/v1/analyses/..%2F{id}").status_code == 404


class TestKinds:
    def test_the_catalogue_describes_every_kind_from_the_code(self, client):
        listed = client.get("/v1/analysis-kinds").json()["items"]
        assert [item["name"] for item in listed] == list(ANALYSES)
        for item in listed:
            entry = client.get(f"/v1/analysis-kinds/{item['name']}").json()
            assert item["source"]
            assert set(entry["schema"]["properties"]) == set(
                ANALYSES[item["name"]].Options.model_fields
            )

    def test_an_unknown_one_is_told_with_those_there_are(self, client):
        answer = client.get("/v1/analysis-kinds/heat")
        assert (answer.status_code, "gradient_norms" in answer.text) == (404, True)


class TestCancelling:
    def test_one_that_is_queued_is_never_carried_out(self, client, runner, analyses):
        id = post(client, **SMALL).json()["id"]
        answer = client.post(f"/v1/analyses/{id}/cancel")
        assert (answer.status_code, answer.json()["state"]) == (202, "cancelled")
        assert answer.json()["finished_at"] is not None
        assert client.post(f"/v1/analyses/{id}/cancel").json()["state"] == "cancelled"
        runner.handler.children.run = lambda *_: pytest.fail("it was carried out")
        assert not runner.tick()
        refused = client.get(f"/v1/analyses/{id}/files/result.json")
        assert refused.json()["detail"] == f"analysis '{id}' is cancelled: it has no files"

    def test_one_that_runs_stays_cancelled_until_asked_for_anew(self, client, runner):
        id = post(client, **SMALL).json()["id"]

        def run(folder: Path, order: str) -> None:
            """Be cancelled, and finish all the same."""
            assert runner.handler.children.is_wanted()
            assert client.post(f"/v1/analyses/{id}/cancel").json()["state"] == "cancelled"
            assert not runner.handler.children.is_wanted()
            carry_out(folder, order)

        runner.handler.children.run = run
        assert not runner.tick()
        assert client.get(f"/v1/analyses/{id}").json()["state"] == "cancelled"
        assert post(client, **SMALL).json()["state"] == "queued"
        runner.handler.children.run = carry_out
        assert not runner.tick()
        assert client.get(f"/v1/analyses/{id}").json()["state"] == "finished"

    def test_one_that_is_over_is_refused(self, client, runner):
        id = post(client, **SMALL).json()["id"]
        runner.handler.children.run = carry_out
        runner.tick()
        refused = client.post(f"/v1/analyses/{id}/cancel")
        assert refused.status_code == 409
        assert "is over: it has finished" in refused.json()["detail"]
        assert client.post("/v1/analyses/none/cancel").status_code == 404


@pytest.mark.usefixtures("_no_environment")
class TestCommandLine:
    @pytest.fixture
    def url(self, tmp_path: Path, empty_record: Path) -> Iterator[str]:
        """The real service without drivers, its analyses carried out in their thread."""
        import uvicorn

        from eigensweep.service.queue.dispatcher import Dispatcher
        from eigensweep.service.record.record import Record

        settings = Settings(home=tmp_path / "home")
        settings.home.mkdir()
        shutil.copyfile(empty_record, settings.home / "eigensweep.db")
        record = Record(settings.database)
        app = create_app(settings, record, Dispatcher(record))
        runner = Runner(app.state.service.analyses, settings)
        runner.handler.children.run = carry_out  # type: ignore[method-assign,assignment]
        runner.jobs.start()
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off"))
        with socket.create_server(("127.0.0.1", 0)) as listener:
            thread = threading.Thread(target=server.run, args=([listener],))
            thread.start()
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
            server.should_exit = True
            thread.join()
        runner.jobs.stop()

    def test_one_line_draws_a_figure(self, url, tmp_path):
        done = CliRunner().invoke(
            command_line,
            [
                *("analyse", "fisher_memory", "--url", url, "--out", str(tmp_path / "out")),
                *("--option", "size=8", "--option", "steps=9", "--option", "d=0.1"),
            ],
        )
        assert done.exit_code == 0, done.output
        assert "fisher_memory finished" in done.stdout
        assert "not in MLflow: this service has no MLflow" in done.stdout
        assert {path.suffix for path in (tmp_path / "out").iterdir()} == {
            ".json",
            ".csv",
            ".png",
            ".svg",
        }
        with Client(url) as client:
            again = client.analyse("fisher_memory", size=8, steps=9, d=0.1)
            assert again.state == "finished"
            assert [curve["d"] for curve in again.result["curves"]] == [0.1] * 6

    def test_python_code_cancels_one(self, url, monkeypatch):
        monkeypatch.setattr(AnalysisHandler, "work", lambda *_: None)  # it waits
        with Client(url) as client:
            slow = client.analyse("fisher_memory", size=8, steps=9).cancel()
            assert slow.state == "cancelled"
            with pytest.raises(AnalysisFailedError, match="it was cancelled"):
                slow.wait()

    def test_bad_input_is_exit_code_2_and_says_what_would_work(self, url):
        for args, words in MISTYPED:
            done = CliRunner().invoke(command_line, ["analyse", *args, "--url", url])
            assert (done.exit_code, done.stdout) == (2, ""), args
            assert words in done.stderr

    def test_the_kinds_are_listed_and_shown(self, url):
        listed = CliRunner().invoke(command_line, ["analyses", "--url", url])
        shown = CliRunner().invoke(
            command_line, ["analyses", "gradient_norms", "--url", url, "--json"]
        )
        assert "transient_norms" in listed.stdout
        assert "norm" in json.loads(shown.stdout)["schema"]["properties"]
