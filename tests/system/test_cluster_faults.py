"""Faults of a cluster whose nodes have addresses of their own: docker-compose.yml's services.

The tests of one cluster follow one another, and each leaves it whole. Their grids sleep for
different times, so that none takes over results of an earlier one. What they measure goes into the
log, and from there into docs/how-to/cluster.md.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
import urllib.error
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from composition import WORKER, Composition, make_composition
from grids import CHECKPOINT_SECONDS, Grid
from waiting import wait_until

from tests.system.conftest import RunningService

logger = logging.getLogger(__name__)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

CUT_SECONDS = float(os.environ.get("CUT_SECONDS", "90"))
"""How long a link is cut."""
WORKERS = [WORKER, f"{WORKER}-2", f"{WORKER}-3"]


class ComposedService(RunningService):
    """The service of a composition, as a user reaches it."""

    def __init__(self, composition: Composition) -> None:
        self.composition, self.folder = composition, composition.folder
        self.url, self.token = composition.url, composition.secrets["EIGENSWEEP_TOKEN"]
        self.log = self.folder / "service.log"
        self.steps = self.folder / "storage" / "steps"
        self.steps.mkdir(exist_ok=True)
        self.env = composition.of_file("service")

    @property
    def database_url(self) -> str:
        return self.env["EIGENSWEEP_DATABASE_URL"].replace(
            "@postgres:", f"@{self.composition.host('postgres')}:"
        )

    def mlflow_uri(self) -> str:
        """Return the address of MLflow behind the service, where the user's token opens it."""
        return f"{self.url}/mlflow"

    def readiness(self) -> dict[str, Any]:
        """Return what the service says of its parts."""
        try:
            return self.get("/readyz")["checks"]
        except urllib.error.HTTPError as error:
            with error:
                return json.load(error)["checks"]

    def is_ready(self) -> bool:
        return all(check["ready"] for check in self.readiness().values())

    def worker_of(self, trial: dict[str, Any]) -> str:
        """Return the service of the file whose process trains a trial now."""
        pid = trial["attempts"][-1]["pid"]
        marks = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
        (mark,) = [each for each in marks if each.startswith("COMPOSITION=")]
        return mark.rpartition(":")[2]


@contextmanager
def run_cluster(*workers: str, **variables: str) -> Iterator[ComposedService]:
    """Run a cluster with these workers, each with one processor."""
    with make_composition(None, len(workers), RAY_WORKER_CPUS="1", **variables) as made:
        for service in made.content["services"].values():
            service["environment"]["TOY_STEPS"] = f"{made.folder}/storage/steps"
        settings = {"CHECKPOINT_SECONDS": CHECKPOINT_SECONDS, "MAX_EXPERIMENTS": 1}
        for name, value in settings.items():
            made.content["services"]["service"]["environment"][f"EIGENSWEEP_{name}"] = value
        service = ComposedService(made)
        made.start_all(*workers)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("MLFLOW_TRACKING_TOKEN", service.token)
            yield service


@pytest.fixture(scope="module")
def cluster() -> Iterator[ComposedService]:
    with run_cluster(*WORKERS) as service:
        yield service


@dataclass
class Commits:
    """Looks at the heads of an experiment's trials again and again, in a thread."""

    folder: Path
    seen: dict[str, list[tuple[int, int, float]]] = field(default_factory=dict)
    """Attempt, number of commits, and time, by trial; a line for each change."""
    ending: threading.Event = field(default_factory=threading.Event)

    def look(self) -> None:
        while not self.ending.wait(0.02):
            for head in self.folder.glob("*/*/head.json"):
                with suppress(OSError, ValueError):
                    now = json.loads(head.read_bytes())
                    lines = self.seen.setdefault(head.parts[-3], [])
                    found = (now["attempt"], now["commits"])
                    if not lines or lines[-1][:2] != found:
                        lines.append((*found, time.monotonic()))

    def first_after(self, trial: str, attempt: int) -> float | None:
        """Return when a trial was first committed by an attempt later than this one."""
        lines = self.seen.get(trial, [])
        begun = next((line for line in lines if line[0] > attempt), None)
        if begun is None:
            return None
        return next((at for a, commits, at in lines if a > attempt and commits > begun[1]), None)


@contextmanager
def watching(cluster: ComposedService, id: str) -> Iterator[Commits]:
    commits = Commits(cluster.storage / id)
    thread = threading.Thread(target=commits.look, daemon=True)
    thread.start()
    try:
        yield commits
    finally:
        commits.ending.set()
        thread.join()


def begin(
    cluster: ComposedService, grid: Grid, slots: int = len(WORKERS)
) -> tuple[str, dict[str, Any], str]:
    """Post a grid and wait until all slots train; return its id, one trial, and its worker."""
    for path in cluster.steps.iterdir():
        path.unlink()
    id = cluster.post(grid.spec())["id"]

    def trains() -> bool:
        trials = cluster.trials(id)
        training = [trial for trial in trials if (trial["step"] or 0) > 0]
        return len(training) == min(grid.trials, slots)

    wait_until(trains, lambda: (cluster.experiment(id), cluster.log.read_text()[-3000:]), 0.3)
    trial = cluster.trials(id)[0]
    return id, trial, cluster.worker_of(trial)


def attempts_of(cluster: ComposedService, id: str) -> dict[int, int]:
    return {trial["number"]: trial["attempt"] for trial in cluster.trials(id)}


def test_a_node_that_is_killed_costs_the_work_since_the_last_commit(
    cluster: ComposedService,
) -> None:
    grid = Grid(trials=2, steps=200, seconds=0.15)
    id, victim, worker = begin(cluster, grid)
    with watching(cluster, id) as commits:
        killed = time.monotonic()
        cluster.composition.stop(worker)
        wait_until(lambda: commits.first_after("00000", victim["attempt"]))
        resumed = commits.first_after("00000", victim["attempt"])
        assert resumed is not None
        logger.info("node killed: committed elsewhere after %.1f s", resumed - killed)
        cluster.composition.start_again(worker)
        grid.check(cluster, id)
    assert attempts_of(cluster, id) == {0: 2, 1: 1}


def test_a_link_that_is_cut_and_healed_leaves_one_end_of_each_trial(
    cluster: ComposedService,
) -> None:
    network = cluster.composition.network
    assert network is not None
    grid = Grid(trials=2, steps=800, seconds=0.18)
    id, victim, worker = begin(cluster, grid)
    old = victim["attempts"][-1]["pid"]
    with watching(cluster, id) as commits:
        cut = time.monotonic()
        network.cut(worker)
        time.sleep(CUT_SECONDS)
        network.heal(worker)
        wait_until(lambda: commits.first_after("00000", victim["attempt"]))
        resumed = commits.first_after("00000", victim["attempt"])
        assert resumed is not None
        logger.info("link cut: committed elsewhere after %.1f s", resumed - cut)
        grid.check_results(cluster, id)
    assert attempts_of(cluster, id) == {0: 2, 1: 1}
    for lines in commits.seen.values():
        assert [line[:2] for line in lines] == sorted(line[:2] for line in lines)
    pids = [int(line) for line in (cluster.steps / "0").read_text().split()]
    new = [pid for pid in dict.fromkeys(pids) if pid != old]
    assert len(new) == 1, "one process went on"
    late = pids[pids.index(new[0]) :].count(old)
    logger.info("link cut: the cut-off process took %d steps beside its successor", late)
    wait_until(lambda: cluster.composition.check(worker).returncode == 0, pause=0.5)
