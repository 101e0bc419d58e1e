"""Faults of a cluster whose nodes have addresses of their own: docker-compose.yml's services.

The tests of one cluster follow one another, and each leaves it whole. Their grids sleep for
different times, so that none takes over results of an earlier one. What they measure goes into the
record of faults, and from there into docs/faults.md.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import threading
import time
import urllib.error
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from helpers.composition import ROOT, WORKER, Composition, make_composition
from helpers.grids import CHECKPOINT_SECONDS, EVALUATE, Grid
from helpers.recordings import voices
from helpers.recoveries import Recoveries, Recovery, check_recovery, count_loss
from helpers.waiting import wait_until

from eigensweep.protocol.states import ENDED
from eigensweep.tasks.speech_corpora import MANIFEST
from tests.system.conftest import RunningService

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

CUT_SECONDS = float(os.environ.get("CUT_SECONDS", "90"))
"""How long a link is cut."""
AWAY_SECONDS = float(os.environ.get("AWAY_SECONDS", "60"))
"""How long PostgreSQL is away."""
HAS_REDIS = shutil.which("redis-server") is not None
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
        self.process = None  # the composition starts it, and starts it again if it ends

    @property
    def database_url(self) -> str:
        return self.env["EIGENSWEEP_DATABASE_URL"].replace(
            "@postgres:", f"@{self.composition.host('postgres')}:"
        )

    def mlflow_uri(self) -> str:
        """Return the address of MLflow behind the service, where the user's token opens it."""
        return f"{self.url}/mlflow"

    def words(self) -> str:
        """Return the end of the service's log, and all fatal words, without Ray's stack frames."""
        lines = [line for line in self.log.read_text().splitlines() if " @ 0x" not in line]
        fatal = [line for line in lines[:-40] if "Check failed" in line or " F " in line]
        return "\n".join([*fatal[-10:], *lines[-40:]])

    def family(self) -> list[psutil.Process]:
        return self.composition.family()

    def readiness(self) -> dict[str, Any]:
        """Return what the service says of its parts."""
        try:
            return self.get("/readyz")["checks"]
        except urllib.error.HTTPError as error:
            with error:
                return json.load(error)["checks"]

    def is_ready(self) -> bool:
        return all(check["ready"] for check in self.readiness().values())

    def stays_up(self) -> bool:
        """Tell whether the service answers, and is the process that was started first."""
        alive = self.get("/healthz") == {"status": "alive"}
        return alive and not self.composition.restarts["service"]

    def processes_of(self, number: int) -> list[int]:
        """Return the process of each step that a trial of a grid took, in order."""
        return [int(line) for line in (self.steps / str(number)).read_text().split()]

    def worker_of(self, number: int) -> str:
        """Return the service of the file whose process trains a trial now."""
        marks = Path(f"/proc/{self.processes_of(number)[-1]}/environ").read_bytes().decode()
        (mark,) = [each for each in marks.split("\0") if each.startswith("COMPOSITION=")]
        return mark.rpartition(":")[2]


@contextmanager
def run_cluster(
    *workers: str,
    others: int = 0,
    prepare: Callable[[Composition], None] = lambda made: None,
    **variables: str,
) -> Iterator[ComposedService]:
    """Run a cluster with these workers, each with one processor; so many others can be started."""
    count = len(workers) + others
    with make_composition(None, count, RAY_WORKER_CPUS="1", **variables) as made:
        prepare(made)
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
    variables = {"RAY_REDIS_ADDRESS": "redis:6378"} if HAS_REDIS else {}
    with run_cluster(*WORKERS, **variables) as service:
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
            for head in sorted(self.folder.glob("[0-9]*/*/head-*.json")):
                with suppress(OSError, ValueError):
                    now = json.loads(head.read_bytes())
                    lines = self.seen.setdefault(head.parts[-3], [])
                    found = (now["attempt"], now["commits"])
                    if not lines or lines[-1][:2] < found:
                        lines.append((*found, time.monotonic()))

    def wait_for(self, trial: str, attempt: int) -> float:
        """Wait for the first commit of a trial by an attempt later than this one; return when."""
        return wait_until(lambda: self.first_after(trial, attempt), lambda: self.seen)

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


def begin(cluster: ComposedService, grid: Grid, slots: int = len(WORKERS)) -> str:
    """Post a grid and wait until a trial trains on every slot; return its id."""
    for path in cluster.steps.iterdir():
        path.unlink()
    id: str = cluster.post(grid.spec())["id"]

    def train() -> bool:
        counts = [len(path.read_text().split()) for path in cluster.steps.iterdir()]
        return len(counts) == min(grid.trials, slots) and min(counts) > EVALUATE

    wait_until(train, lambda: (cluster.experiment(id), cluster.words()), 0.3)
    return id


def attempts_of(cluster: ComposedService, id: str) -> dict[int, int]:
    return {trial["number"]: trial["attempt"] for trial in cluster.trials(id)}


def write_down(
    cluster: ComposedService,
    id: str,
    grid: Grid,
    fault: str,
    back: float | None = None,
    training: float | None = None,
) -> None:
    """Add a line to the record of faults, with seconds that the test has measured itself."""
    recoveries = Recoveries(cluster, grid)
    recoveries.seen.append(Recovery(fault, 0.0, back=back, training=training))
    recoveries.write(fault, **count_loss(cluster, id, grid))


def kill_the_head(cluster: ComposedService, id: str) -> None:
    """End Ray's head, and wait until the service knows it."""
    cluster.composition.stop("ray-head")
    wait_until(lambda: not cluster.readiness()["launcher"]["ready"])
    assert cluster.stays_up()
    assert cluster.experiment(id)["state"] == "running"


OTHER_CODE, NO_ROOM, OTHER_STORE = WORKERS[1], WORKERS[2], f"{WORKER}-4"
UNFIT = [
    (OTHER_CODE, "a worker with other code", "training/training.py"),
    (NO_ROOM, "a worker without the corpus, and no room for it", "No space left on device"),
    (OTHER_STORE, "a worker without the shared storage", "is not the store of the driver here"),
]


def spoil(made: Composition, source: Path) -> None:
    """Leave one worker as it is, and take something from each of the others."""
    voices(made.folder / "data")
    services, folder = made.content["services"], made.folder
    shutil.copytree(source, folder / "other-code", symlinks=True)
    with (folder / "other-code/eigensweep/training/training.py").open("a") as file:
        file.write("# Another version.\n")
    path = f"{folder}/other-code:{ROOT / 'tests/plugins'}"
    services[OTHER_CODE]["environment"]["PYTHONPATH"] = path
    for name, volume in ((NO_ROOM, "data"), (OTHER_STORE, "storage")):
        worker, place = services[name], f"{folder}/{volume}"
        worker["volumes"] = [v for v in worker["volumes"] if v.split(":")[1] != place]
        worker["tmpfs"].append(place)
    home = next(path for path in services[NO_ROOM]["tmpfs"] if path.startswith(f"{folder}/user:"))
    services[NO_ROOM]["tmpfs"].remove(home)
    services[NO_ROOM]["tmpfs"].append(f"{home},size=4k")


def run_beside(cluster: ComposedService, grid: Grid, fault: str) -> dict[str, str]:
    """Run a grid on a fit worker and on another one; return what is said of which workers."""
    for path in cluster.steps.iterdir():
        path.unlink()
    task = {"name": "speech_frames", "corpus": "voices", "batch_size": 2}
    manifest = (cluster.folder / "data" / "voices" / MANIFEST).read_bytes()
    spec = grid.spec(task={**task, "digest": hashlib.sha256(manifest).hexdigest()})
    id, named = cluster.post(spec)["id"], {}

    def is_over() -> bool:
        found = cluster.experiment(id)
        named.update({n["node"]: n["words"] for n in found["notices"] if n["node"]})
        return found["state"] in ENDED

    wait_until(is_over, lambda: (named, cluster.words()), 0.3)
    trials = cluster.trials(id)
    assert [trial["state"] for trial in trials] == ["completed"] * grid.trials
    assert {trial["reports"][-1]["step"] for trial in trials} == {grid.steps}
    assert {trial["attempts"][-1]["node"] for trial in trials} == {WORKER}
    assert max(attempts_of(cluster, id).values()) > 1, "no trial went to the other worker"
    write_down(cluster, id, grid, fault)
    return named


@pytest.fixture(scope="class")
def small_cluster(source: Path) -> Iterator[ComposedService]:
    """Return a cluster without Redis that has one worker; others can be started, and are unfit."""
    with run_cluster(WORKER, others=3, prepare=partial(spoil, source=source)) as service:
        yield service


class TestOneWorker:
    @pytest.mark.parametrize(("worker", "fault", "words"), UNFIT)
    def test_an_unfit_node_is_named_and_left_out_without_loss(
        self, small_cluster: ComposedService, worker: str, fault: str, words: str
    ) -> None:
        cluster = small_cluster
        cluster.composition.start(worker)
        grid = Grid(trials=2, steps=50, seconds=0.05 + len(fault) / 10_000)
        named = run_beside(cluster, grid, fault)
        cluster.composition.stop(worker)
        assert named.keys() == {worker}
        assert words in named[worker]

    def test_a_head_that_starts_again_costs_work_since_commits(
        self, small_cluster: ComposedService
    ) -> None:
        cluster, grid = small_cluster, Grid(trials=2, steps=200, seconds=0.155)
        id = begin(cluster, grid, slots=1)
        with watching(cluster, id) as commits:
            kill_the_head(cluster, id)
            began = time.monotonic()
            cluster.composition.start_again("ray-head")
            wait_until(cluster.is_ready, cluster.words, 0.3)
            back = time.monotonic() - began
            training = commits.wait_for("00000", 1) - began
            grid.check(cluster, id)
        write_down(cluster, id, grid, "Ray's head ends, without Redis", back, training)
        assert attempts_of(cluster, id) == {0: 2, 1: 1}
        assert cluster.stays_up()


def test_a_killed_node_costs_the_work_since_the_last_commit(
    cluster: ComposedService,
) -> None:
    grid = Grid(trials=2, steps=200, seconds=0.15)
    id = begin(cluster, grid)
    worker = cluster.worker_of(0)
    with watching(cluster, id) as commits:
        killed = time.monotonic()
        cluster.composition.stop(worker)
        training = commits.wait_for("00000", 1) - killed
        cluster.composition.start_again(worker)
        grid.check(cluster, id)
    write_down(cluster, id, grid, "all of a worker ends", training=training)
    assert attempts_of(cluster, id) == {0: 2, 1: 1}


def test_a_database_that_is_away_costs_waiting_and_no_attempt(cluster: ComposedService) -> None:
    grid = Grid(trials=3, steps=250, seconds=0.16)
    id = begin(cluster, grid)

    def stay_away() -> None:
        cluster.composition.stop("postgres")
        wait_until(lambda: not cluster.readiness()["database"]["ready"])
        time.sleep(AWAY_SECONDS)
        assert cluster.stays_up()

    fault = f"PostgreSQL away, {AWAY_SECONDS:g} s"
    begin_again = partial(cluster.composition.start_again, "postgres")
    check_recovery(cluster, grid, id, fault, stay_away, begin_again)
    assert attempts_of(cluster, id) == {0: 1, 1: 1, 2: 1}
    assert cluster.stays_up()


def test_with_redis_a_head_that_starts_again_costs_no_attempt(cluster: ComposedService) -> None:
    if not HAS_REDIS:
        pytest.skip("install redis-server to run this")
    grid = Grid(trials=4, steps=200, seconds=0.17)
    id = begin(cluster, grid)
    fault = "Ray's head ends, with Redis"
    begin_again = partial(cluster.composition.start_again, "ray-head")
    check_recovery(cluster, grid, id, fault, partial(kill_the_head, cluster, id), begin_again)
    assert attempts_of(cluster, id) == dict.fromkeys(range(4), 1)
    assert cluster.stays_up()


def test_a_link_cut_and_healed_leaves_one_end_of_each_trial(
    cluster: ComposedService,
) -> None:
    """A rung is long here: the cut-off process trains on without its driver, and commits late."""
    network = cluster.composition.network
    assert network is not None
    grid = Grid(trials=2, steps=800, seconds=0.18, evaluate=800)
    id = begin(cluster, grid)
    worker, old = cluster.worker_of(0), psutil.Process(cluster.processes_of(0)[-1])
    with watching(cluster, id) as commits:
        cut = time.monotonic()
        network.cut(worker)
        training = commits.wait_for("00000", 1) - cut
        wait_until(lambda: old.pid not in cluster.processes_of(0)[-20:])
        assert old.is_running()
        taken = cluster.processes_of(0).count(old.pid)
        time.sleep(max(0.0, cut + CUT_SECONDS - time.monotonic()))
        network.heal(worker)
        grid.check_results(cluster, id)
    assert attempts_of(cluster, id) == {0: 2, 1: 1}
    for lines in commits.seen.values():
        assert [line[:2] for line in lines] == sorted(line[:2] for line in lines)
    first, *others = dict.fromkeys(cluster.processes_of(0))
    assert (first, len(others)) == (old.pid, 1), "one process went on"
    resumed = grid.steps - cluster.processes_of(0).count(others[0])
    assert resumed < taken, "the cut-off process trained on, and its commits were refused"
    assert cluster.processes_of(0).count(old.pid) == taken, "then it took no step more"
    write_down(cluster, id, grid, f"a worker's link cut for {CUT_SECONDS:g} s", training=training)
    wait_until(lambda: cluster.composition.check(worker).returncode == 0, pause=0.5)
