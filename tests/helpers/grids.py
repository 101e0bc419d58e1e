"""A grid of slow trials, and the check that it was finished exactly once with whole curves."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from helpers.waiting import wait_until
from mlflow import MlflowClient
from sqlalchemy import select

from eigensweep.protocol.states import ENDED
from eigensweep.service.record.sql import database
from eigensweep.service.record.sql.tables import EventRow
from eigensweep.store.checkpoints import Store, replicate_key

CHECKPOINT_SECONDS = 2.0
LOG, EVALUATE = 5, 25
TRAIN, VALID = "train/cross_entropy", "valid/cross_entropy"


@dataclass(frozen=True)
class Grid:
    """So many trials; each step of theirs sleeps for `seconds` and is written down."""

    trials: int
    steps: int
    seconds: float = 0.1
    evaluate: int = EVALUATE
    """Steps from one evaluation to the next."""

    def spec(self, **more: Any) -> dict[str, Any]:
        sizes = {"batch_size": 4, "train_size": None, "valid_size": 8, "test_size": 8}
        return {
            "name": "a grid",
            "task": {"name": "copying", "delay": 4, "symbols": 2, **sizes},
            "model": {"name": "toy_slow", "hidden_size": 4, "seconds": self.seconds},
            "search": {"method": "grid", "space": {"model.shade": list(range(self.trials))}},
            "training": {"steps": self.steps, "evaluate_every": self.evaluate, "log_every": LOG},
            **more,
        }

    def begin(self, service: Any, **more: Any) -> str:
        """Start a service, post the grid, and return its id once a trial trains."""
        service.env["EIGENSWEEP_CHECKPOINT_SECONDS"] = str(CHECKPOINT_SECONDS)
        service.start()
        id: str = service.post(self.spec(**more))["id"]
        self.wait_for_steps(service, 1)
        return id

    def wait_for_steps(self, service: Any, more: int) -> None:
        """Wait until so many more steps were taken, whatever the record knows of them."""
        wanted = self._count_steps(service) + more
        wait_until(lambda: self._count_steps(service) >= wanted, service.log.read_text)

    def _wait_for_end(self, service: Any, id: str) -> None:
        """Wait for the end of the experiment; fail if no step is taken for long.

        After many faults nobody knows how many steps are left.
        """

        def is_over() -> bool:
            return service.experiment(id)["state"] in ENDED

        while not is_over():
            taken = self._count_steps(service)
            wait_until(
                lambda taken=taken: is_over() or self._count_steps(service) > taken,
                lambda: service.experiment(id)["progress"],
                1.0,
            )

    @staticmethod
    def _count_steps(service: Any) -> int:
        return sum(len(each.read_text().splitlines()) for each in service.steps.iterdir())

    def check(self, service: Any, id: str) -> None:
        """Wait for the experiment's end and check all that was left of it."""
        self.check_results(service, id)
        self._check_steps(service, service.trials(id))

    def check_results(self, service: Any, id: str) -> None:
        """The same, but for the steps that were taken twice."""
        self._wait_for_end(service, id)
        ended = service.wait(id)
        assert ended["state"] == "completed", ended["error"]
        trials = service.trials(id)
        assert [t["number"] for t in trials] == list(range(self.trials))
        assert {t["state"] for t in trials} == {"completed"}
        assert len({t["hash"] for t in trials}) == self.trials
        assert {t["reports"][-1]["step"] for t in trials} == {self.steps}
        self._check_ends(service, id)
        self.check_curves(service, id)

    def check_curves(self, service: Any, id: str) -> None:
        """Check that the store and MLflow hold each point of each trial's curve once."""
        self._check_store(service, id)
        self._check_mlflow(service, id)

    def _check_ends(self, service: Any, id: str) -> None:
        """Check that the record holds one end of each trial, and one of the experiment."""
        wanted = select(EventRow.kind, EventRow.data).where(EventRow.experiment_id == id)
        events = database.read(service.database_url, lambda session: session.execute(wanted).all())
        ends = Counter(data["trial"] for kind, data in events if kind == "trial.completed")
        assert ends == dict.fromkeys(range(self.trials), 1)
        assert [kind for kind, _ in events].count("experiment.completed") == 1

    def _check_store(self, service: Any, id: str) -> None:
        store = Store(service.storage)
        for number in range(self.trials):
            points = store.points(replicate_key(id, number, seed=0))
            assert [p.step for p in points if TRAIN in p.metrics] == self._logged()
            assert [p.step for p in points if p.step and VALID in p.metrics] == self._evaluated()

    def _check_steps(self, service: Any, trials: list[dict[str, Any]]) -> None:
        """Check that no attempt that was lost cost more steps than fit into the interval."""
        most = CHECKPOINT_SECONDS / self.seconds + 2  # one at each end
        for trial in trials:
            shade = str(trial["params"]["model.shade"])
            taken = len((service.steps / shade).read_text().splitlines())
            assert self.steps <= taken <= self.steps + most * (trial["attempt"] - 1), trial

    def _check_mlflow(self, service: Any, id: str) -> None:
        """Check that MLflow holds one finished run for each trial, with whole curves."""
        client = MlflowClient(service.mlflow_uri())
        experiment = client.get_experiment_by_name("Default")
        assert experiment is not None
        ours = f"tags.`eigensweep.experiment` = '{id}'"

        def find_runs() -> Any:
            return client.search_runs([experiment.experiment_id], ours, max_results=1000)

        wait_until(
            lambda: {r.info.status for r in find_runs()} == {"FINISHED"},
            lambda: Counter(r.info.status for r in find_runs()),
            pause=0.5,
        )
        runs = find_runs()
        nested = [r for r in runs if "mlflow.parentRunId" in r.data.tags]
        assert len(runs) == len(nested) + 1 == self.trials + 1
        assert len({r.data.tags["eigensweep.trial"] for r in nested}) == self.trials
        for run in nested:
            logged = [m.step for m in client.get_metric_history(run.info.run_id, TRAIN)]
            assert sorted(logged) == self._logged()
            evaluated = [m.step for m in client.get_metric_history(run.info.run_id, VALID)]
            assert [s for s in sorted(evaluated) if s] == self._evaluated()

    def _logged(self) -> list[int]:
        return list(range(LOG, self.steps + 1, LOG))

    def _evaluated(self) -> list[int]:
        return list(range(self.evaluate, self.steps + 1, self.evaluate))
