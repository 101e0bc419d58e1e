"""Experiments that are over and are taken up again: failed trials once more, or more to do."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient

from eigensweep.models import MODELS
from eigensweep.protocol.ledger import StaleWriteError
from eigensweep.results.trial_result import Result
from eigensweep.search_spaces.space import Point
from eigensweep.search_spaces.spec import ExperimentSpec
from eigensweep.service.record.ledger import CLOSED, RecordLedger
from eigensweep.service.record.record import Record
from eigensweep.service.record.sql import database
from eigensweep.service.record.sql.tables import ExperimentRow

CONFIG: dict[str, Any] = {"training": {"steps": 100}, "seed": 0, "replicates": 1}


class Played:
    """An experiment whose driver the test plays."""

    def __init__(self, record: Record, content: dict[str, Any]) -> None:
        self.record = record
        self.id = record.add(ExperimentSpec.model_validate(content))[0].id
        self.drive()

    def drive(self) -> RecordLedger:
        """Start the next driver."""
        claim = self.record.claim(self.id)
        assert claim is not None
        self.ledger = RecordLedger(self.record.url, self.id, claim.generation)
        return self.ledger

    def train(self, number: int, outcome: Any = "completed", value: float = 0.5) -> None:
        self.ledger.open(number, "scornn", {}, CONFIG, f"h{number}")
        attempt = self.ledger.begin(number)
        result = Result(value=value, step=100) if outcome == "completed" else None
        error = "KeyError: 'x'" if outcome == "failed" else None
        self.ledger.finish(number, attempt, outcome, result, error)

    def states(self) -> list[str]:
        return [entry.state for entry in self.ledger.load()]

    def kinds(self) -> list[str]:
        return [event.kind for event in self.record.events(self.id)]


@pytest.fixture
def played(record: Record, spec: Any) -> Played:
    """An experiment of three trials, the second of which failed; it is not over."""
    made = Played(record, spec())
    for number, outcome in enumerate(("completed", "failed", "completed")):
        made.train(number, outcome)
    return made


class TestRetry:
    def test_only_the_failed_trials_are_opened_again(self, client, record, played):
        played.ledger.end("completed")
        played.ledger.set_tracked()
        answer = client.post(f"/v1/experiments/{played.id}/retry")
        assert (answer.status_code, answer.json()["state"]) == (202, "queued")
        assert answer.json()["finished_at"] is None
        assert not answer.json()["delivered"]
        assert played.states() == ["completed", "waiting", "completed"]
        assert played.kinds()[-2:] == ["trial.reopened", "experiment.reopened"]
        assert record.list_queued(9) == [played.id]
        ledger = played.drive()
        assert (ledger.resume_state().edition, ledger.resume_state().is_closed) == (1, False)
        played.ledger.finish(1, played.ledger.begin(1), "completed", Result(value=0.1, step=100))
        assert record.experiment(played.id).best.trial.number == 1
        assert ledger.end("completed")[0] == "completed"

    def test_a_driver_that_still_delivers_may_write_no_more(self, record, played):
        played.ledger.end("completed")
        record.retry(played.id)
        with pytest.raises(StaleWriteError):
            played.ledger.set_tracked()
        assert not record.row(played.id).tracked

    def test_what_was_cancelled_draws_nothing_and_ends_cancelled(self, record, played):
        record.cancel(played.id)
        played.ledger.end("completed")
        record.retry(played.id)
        ledger = played.drive()
        assert ledger.resume_state().is_closed
        ledger.finish(1, ledger.begin(1), "completed", Result(value=0.1, step=100))
        assert ledger.end("completed")[0] == "cancelled"
        row = record.row(played.id)
        assert (row.state, row.error) == ("cancelled", CLOSED)

    def test_what_its_failure_cut_off_goes_on(self, record, played):
        played.ledger.open(3, "scornn", {}, CONFIG, "h3")
        played.ledger.begin(3)
        record.give_up(played.id, "its driver died 5 times")
        assert played.states() == ["completed", "failed", "completed", "cancelled"]
        record.retry(played.id)
        assert played.states() == ["completed", "waiting", "completed", "waiting"]
        assert record.events(played.id)[-1].data["reason"] == "another try of 1 failed trial"

    def test_a_longer_budget_is_not_begun_anew_without_checkpoints(self, record, spec):
        grid = make_grid(record, spec())
        grid.ledger.end("completed")
        grid.ledger.set_tracked()
        longer = ExperimentSpec.model_validate(spec(training={"steps": 300, "evaluate_every": 10}))
        record.extend(grid.id, longer)
        grid.drive().end("failed", "a bug")
        grid.ledger.set_tracked()
        record.prune(grid.id, "best")
        record.set_pruned(grid.id, "best")
        record.retry(grid.id)
        assert set(grid.states()) == {"completed"}

    def test_what_a_person_cancelled_stays_so_when_it_fails_later(self, record, played):
        played.ledger.open(3, "scornn", {}, CONFIG, "h3")
        record.cancel(played.id)
        played.ledger.end("cancelled")
        record.retry(played.id)
        played.drive()
        record.give_up(played.id, "its driver died 5 times")
        record.retry(played.id)
        assert played.states()[3] == "cancelled"

    def test_a_failed_one_goes_on_also_without_a_failed_trial(self, record, spec):
        made = Played(record, spec())
        made.ledger.end("failed", "resources: no node has 64 GPUs")
        record.retry(made.id)
        row = record.row(made.id)
        assert (row.state, row.error, row.closed) == ("queued", None, False)

    def test_a_trial_that_is_tried_again_in_vain_is_as_it_was(self, record, played):
        played.ledger.end("completed")
        record.retry(played.id)
        record.cancel(played.id)
        entry = played.ledger.load()[1]
        assert (entry.state, entry.error) == ("failed", "KeyError: 'x'")
        assert "trial.kept" in played.kinds()

    def test_one_that_failed_in_an_extension_may_be_extended_again(self, record, played):
        played.ledger.reopen(0, CONFIG | {"replicates": 2}, "seed 1 of the race")
        played.ledger.finish(0, played.ledger.begin(0), "failed", None, "OSError: lost")
        played.ledger.end("completed")
        assert played.ledger.load()[0].error is not None
        record.retry(played.id)
        first = played.ledger.load()[0]
        assert (first.state, first.error) == ("completed", None)

    def test_where_nothing_has_failed_it_is_refused_in_words(self, client, record, spec):
        made = Played(record, spec())
        made.train(0)
        made.ledger.end("completed")
        answer = client.post(f"/v1/experiments/{made.id}/retry")
        assert answer.status_code == 409
        assert "has no failed trial, so there is nothing to retry" in answer.json()["detail"]
        assert record.row(made.id).state == "completed"

    def test_a_population_is_refused_in_words(self, client, record, spec):
        content = spec(scheduler={"name": "pbt"}, search={"method": "random", "trials": 4})
        content["search"]["space"] = {"optimizer.lr": {"low": 1e-4, "high": 1e-2}}
        made = Played(record, content)
        made.train(0, "failed")
        made.ledger.end("completed")
        answer = client.post(f"/v1/experiments/{made.id}/retry")
        assert answer.status_code == 409
        assert "trained as one population" in answer.json()["detail"]

    def test_a_used_time_limit_is_told_and_pauses_do_not_count(self, client, record, spec):
        made = Played(record, spec(limits={"wall_seconds": 1000}))
        made.train(0, "failed")
        made.ledger.end("completed")

        def move_start(seconds: float) -> None:
            def work(session: Any) -> None:
                session.get_one(ExperimentRow, made.id).started_at -= seconds

            database.write(record.url, work)

        move_start(2000)
        answer = client.post(f"/v1/experiments/{made.id}/retry")
        assert answer.status_code == 409
        assert "has used up its limits.wall_seconds (1000)" in answer.json()["detail"]
        move_start(-1500)
        record.retry(made.id)
        assert 500 <= made.drive().resume_state().spent_seconds < 1000

    def test_a_stream_goes_on_over_an_end_to_the_next_one(self, client: TestClient, record, played):
        played.ledger.end("completed")
        record.retry(played.id)
        ledger = played.drive()
        ledger.finish(1, ledger.begin(1), "completed", Result(value=0.1, step=100))
        ledger.end("completed")
        text = client.get(f"/v1/experiments/{played.id}/events").text
        kinds = [line.split(": ")[1] for line in text.splitlines() if line.startswith("event: ")]
        assert kinds == played.kinds()
        assert kinds.count("experiment.completed") == 2

    def test_the_page_has_a_button_only_where_it_would_do_something(self, client, record, played):
        def page() -> str:
            return client.get(f"/experiments/{played.id}").text

        assert "Retry failed trials" not in page()
        played.ledger.end("completed")
        assert "Retry failed trials" in page()
        record.retry(played.id)
        assert "Retry failed trials" not in page()


def test_results_of_what_is_being_deleted_are_not_taken_over(record, spec):
    made, other = Played(record, spec()), Played(record, spec())
    made.train(0)
    assert other.ledger.find_finished("h0", 0, 1, 100) is not None
    made.ledger.end("completed")
    made.ledger.set_tracked()
    record.delete(made.id)
    assert other.ledger.find_finished("h0", 0, 1, 100) is None
    assert other.ledger.find_part("h0", 0, 100) is None


def make_grid(record: Record, content: dict[str, Any]) -> Played:
    """Return an experiment whose points are all trained; it is not over."""
    made, parsed = Played(record, content), ExperimentSpec.model_validate(content)
    for number, point in enumerate(parsed.space()):
        config = parsed.trial(point)
        stored = config.model_dump(mode="json")
        made.ledger.open(number, point.arm, point.params, stored, config.content_hash())
        result = Result(value=0.5 - number / 10, step=100)
        made.ledger.finish(number, made.ledger.begin(number), "completed", result)
    return made


class TestExtend:
    """An experiment of two points of a grid, both trained, with configurations of their own."""

    @pytest.fixture
    def grid(self, record: Record, spec: Any) -> Played:
        return make_grid(record, spec())

    def post(self, client: TestClient, id: str, content: dict[str, Any]) -> Any:
        return client.post(f"/v1/experiments/{id}/extend", json=content)

    def test_a_wider_grid_queues_it_again_and_keeps_its_trials(self, client, record, spec, grid):
        grid.ledger.end("completed")
        wider = {"optimizer.lr": [1e-3, 1e-2, 1e-1]}
        answer = self.post(client, grid.id, spec(search={"method": "grid", "space": wider}))
        assert answer.status_code == 202, answer.text
        now = answer.json()
        assert (now["state"], now["progress"]["total"]) == ("queued", 3)
        assert now["spec"]["search"]["space"] == wider
        assert grid.states() == ["completed"] * 2
        event = record.events(grid.id)[-1]
        assert (event.kind, event.data["reason"]) == ("experiment.reopened", "optimizer.lr wider")

    def test_a_longer_budget_opens_the_trials_again_that_completed(
        self, client, record, spec, grid
    ):
        grid.ledger.open(2, "scornn", {"optimizer.lr": 0.5}, CONFIG, "h2")
        grid.ledger.finish(2, grid.ledger.begin(2), "diverged", Result(step=3))
        grid.ledger.end("completed")
        training = {"steps": 300, "evaluate_every": 10}
        assert self.post(client, grid.id, spec(training=training)).status_code == 202
        assert grid.states() == ["waiting", "waiting", "diverged"]
        first = grid.ledger.load()[0]
        assert first.config["training"]["steps"] == 300
        assert (first.earlier.reason, first.result.value) == ("a longer budget", 0.5)
        now = client.get(f"/v1/experiments/{grid.id}").json()
        assert now["best"]["number"] == 1  # by the value of before
        assert now["progress"]["steps_total"] - now["progress"]["steps_done"] == 2 * 200
        ledger = grid.drive()
        ledger.finish(1, ledger.begin(1), "failed", None, "KeyError: 'x'")
        ledger.finish(0, ledger.begin(0), "completed", Result(value=0.3, step=300))
        ledger.end("completed")
        kept = grid.ledger.load()[1]
        assert (kept.state, kept.config["training"]["steps"]) == ("completed", 100)
        record.retry(grid.id)
        again = grid.ledger.load()[1]
        assert (again.state, again.config["training"]["steps"]) == ("waiting", 300)

    def test_an_arm_that_varies_its_budget_is_opened_by_none(self, client, record, spec):
        arm = {"model": {"name": "gru", "hidden_size": 8}}
        own = {"name": "own", "space": {"training.steps": [50, 100]}}
        content = {key: value for key, value in spec().items() if key not in ("model", "search")}
        content |= {"arms": [arm | own, arm | {"name": "base"}], "search": {"method": "grid"}}
        parsed, made = ExperimentSpec.model_validate(content), Played(record, content)
        for number, point in enumerate(parsed.space()):
            config = parsed.trial(point)
            stored = config.model_dump(mode="json")
            made.ledger.open(number, point.arm, point.params, stored, config.content_hash())
            result = Result(value=0.5, step=config.training.steps)
            made.ledger.finish(number, made.ledger.begin(number), "completed", result)
        made.ledger.end("completed")
        longer = content | {"training": {"steps": 300, "evaluate_every": 10}}
        assert self.post(client, made.id, longer).status_code == 202
        found = {
            (each.arm, each.config["training"]["steps"]): each.state for each in made.ledger.load()
        }
        assert found == {
            ("own", 50): "completed",
            ("own", 100): "completed",
            ("base", 300): "waiting",
        }

    def test_one_without_a_name_keeps_its_own_with_further_arms(self, client, record, spec):
        both = [{"model": {"name": name, "hidden_size": 8}} for name in ("gru", "lstm")]
        content = {key: value for key, value in spec(arms=both[:1]).items() if key != "model"}
        content.pop("name", None)
        content.pop("search", None)
        made = Played(record, content)
        made.ledger.end("completed")
        answer = self.post(client, made.id, {**content, "arms": both})
        assert answer.status_code == 202, answer.text
        assert answer.json()["name"] == answer.json()["spec"]["name"] == "gru on copying"

    def test_a_longer_budget_of_a_changed_model_is_refused(
        self, client, spec, grid, monkeypatch, tmp_path
    ):
        package = tmp_path / "own_lab.py"
        package.write_text("FACTOR = 1.0")
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.setitem(MODELS._packages, "scornn", "own_lab")
        monkeypatch.setitem(MODELS._codes, "scornn", MODELS.code_of("scornn", now=True))
        config = ExperimentSpec.model_validate(spec()).trial(Point("scornn", {}))
        grid.ledger.open(2, "scornn", {}, config.model_dump(mode="json"), config.content_hash())
        grid.ledger.finish(2, grid.ledger.begin(2), "completed", Result(value=0.1, step=100))
        grid.ledger.end("completed")
        package.write_text("FACTOR = 0.5")
        answer = self.post(client, grid.id, spec(training={"steps": 300, "evaluate_every": 10}))
        assert answer.status_code == 409
        assert "with other code of the package that brings them" in answer.json()["detail"]

    def test_what_was_cancelled_goes_on_with_the_spec_as_it_was(self, client, record, spec, grid):
        parsed = ExperimentSpec.model_validate(spec())
        point = Point("scornn", {"optimizer.lr": 0.5})
        config = parsed.trial(point)
        content = config.model_dump(mode="json")
        grid.ledger.open(2, point.arm, point.params, content, config.content_hash())
        record.cancel(grid.id)
        grid.ledger.end("cancelled")
        assert grid.states() == ["completed", "completed", "cancelled"]
        assert self.post(client, grid.id, spec()).status_code == 202
        assert grid.states() == ["completed", "completed", "waiting"]
        assert not grid.drive().resume_state().is_closed

    def test_a_cancelled_one_that_was_retried_may_be_extended(self, client, record, spec, grid):
        grid.train(2, "failed")
        record.cancel(grid.id)
        grid.ledger.end("cancelled")
        record.retry(grid.id)
        grid.drive().end("completed")
        assert self.post(client, grid.id, spec()).status_code == 202
        assert not record.row(grid.id).closed

    @pytest.mark.parametrize("end", ["cancelled", "failed"])
    @pytest.mark.parametrize("path", ["optimizer.lr", "task.delay"])
    def test_a_longer_budget_that_was_cut_off_is_taken_up_again(
        self, client, record, spec, end, path
    ):
        space = {path: [5, 9] if path == "task.delay" else [1e-3, 1e-2]}
        content = spec(search={"method": "grid", "space": space})
        grid = make_grid(record, content)
        grid.ledger.end("completed")
        longer = {**content, "training": {"steps": 300, "evaluate_every": 10}}
        assert self.post(client, grid.id, longer).status_code == 202
        ledger = grid.drive()
        ledger.finish(0, ledger.begin(0), "completed", Result(value=0.3, step=300))
        ledger.begin(1)
        if end == "cancelled":
            record.cancel(grid.id)
        ledger.end(end)
        kept = grid.ledger.load()[1]
        assert (kept.state, kept.config["training"]["steps"]) == ("completed", 100)
        if end == "cancelled":
            assert self.post(client, grid.id, longer).status_code == 202
        else:
            record.retry(grid.id)
        again = grid.ledger.load()
        assert [(t.state, t.config["training"]["steps"]) for t in again] == [
            ("completed", 300),
            ("waiting", 300),
        ]

    def test_a_cut_off_budget_stays_so_where_checkpoints_are_gone(self, client, record, spec):
        content = spec()
        grid = make_grid(record, content)
        grid.ledger.end("completed")
        longer = {**content, "training": {"steps": 300, "evaluate_every": 10}}
        assert self.post(client, grid.id, longer).status_code == 202
        ledger = grid.drive()
        ledger.finish(0, ledger.begin(0), "failed", None, "OSError: lost")
        record.cancel(grid.id)
        ledger.end("cancelled")
        ledger.set_tracked()
        record.prune(grid.id, "best")
        wider = {"method": "grid", "space": {"optimizer.lr": [1e-3, 1e-2, 1e-1]}}
        assert self.post(client, grid.id, {**longer, "search": wider}).status_code == 202
        found = [(t.state, t.config["training"]["steps"]) for t in grid.ledger.load()]
        assert found == [("completed", 100)] * 2

    def test_a_task_that_varies_from_now_on_has_no_one_baseline(self, client, record, spec):
        def over(*delays: int) -> dict[str, Any]:
            return spec(search={"method": "grid", "space": {"task.delay": list(delays)}})

        made = Played(record, over(5))
        made.ledger.end("completed")
        assert record.row(made.id).baseline is not None
        assert self.post(client, made.id, over(5, 9)).status_code == 202
        assert record.row(made.id).baseline is None

    def test_what_it_started_from_may_be_gone_by_now(self, client, record, spec, grid):
        grid.ledger.end("completed")
        space = {"optimizer.lr": {"low": 1e-4, "high": 1e-1, "log": True}}
        search = {"method": "tpe", "trials": 2, "space": space, "warm_start": [grid.id]}
        posted = client.post("/v1/experiments", json=spec(search=search))
        assert posted.status_code == 201, posted.text
        id = posted.json()["id"]
        claim = record.claim(id)
        RecordLedger(record.url, id, claim.generation).end("completed")
        longer = spec(search=search, training={"steps": 300, "evaluate_every": 10})
        assert self.post(client, id, longer).status_code == 202
        claim = record.claim(id)
        RecordLedger(record.url, id, claim.generation).end("completed")
        record.delete(grid.id)
        record.remove(grid.id)
        more = {**longer, "search": {**search, "trials": 5}}
        assert self.post(client, id, more).status_code == 202

    def test_nothing_more_is_refused_in_words(self, client, spec, grid):
        grid.ledger.end("completed")
        answer = self.post(client, grid.id, spec())
        assert answer.status_code == 409
        assert "asks for nothing more" in answer.json()["detail"]

    def test_a_completed_one_takes_up_what_was_cancelled(self, client, record, spec, grid):
        like = record.trial(grid.id, 0).trial
        grid.ledger.open(2, like.arm, like.params, like.config, "h2")
        grid.ledger.finish(2, grid.ledger.begin(2), "cancelled", None, "by an earlier version")
        grid.ledger.end("completed")
        assert self.post(client, grid.id, spec()).status_code == 202
        assert grid.states() == ["completed", "completed", "waiting"]

    def test_another_experiment_is_refused_with_the_path(self, client, record, spec, grid):
        grid.ledger.end("completed")
        answer = self.post(client, grid.id, spec(seed=3))
        assert answer.status_code == 422
        assert answer.json()["errors"][0]["path"] == "seed"
        assert record.row(grid.id).state == "completed"

    def test_a_spec_that_cannot_run_is_refused_as_when_it_is_posted(self, client, spec, grid):
        grid.ledger.end("completed")
        space = {"optimizer.lr": [1e-3, 1e-2], "model.no_such": [1]}
        answer = self.post(client, grid.id, spec(search={"method": "grid", "space": space}))
        assert answer.status_code == 422
        assert "no_such" in answer.text

    def test_the_form_of_the_page_extends(self, client, grid):
        grid.ledger.end("completed")
        page = client.get(f"/experiments/{grid.id}").text
        assert f"/new?experiment={grid.id}&amp;extend=true" in page
        form = client.get(f"/new?experiment={grid.id}&extend=true").text
        assert f'data-post="/v1/experiments/{grid.id}/extend"' in form
        assert 'data-post="/v1/experiments"' in client.get("/new").text
