"""What tests of several packages share."""

from __future__ import annotations

import gc
import linecache
import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from math import log10
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import hypothesis
import pytest
from helpers import handing_out, quick_cases, ray_mark
from helpers.rewriting import rewrite_share

os.environ.setdefault("OMP_NUM_THREADS", "1")  # threads of tiny networks only get in the way

from eigensweep.protocol.messages import Place
from eigensweep.protocol.shares import Capacity
from eigensweep.results.trial_result import ParameterCount, ReplicateResult, Result
from eigensweep.workers.cluster.nodes import Amounts, Node

if TYPE_CHECKING:
    from eigensweep.protocol.ledger import Ledger
from eigensweep.protocol.states import ExperimentEnd

hypothesis.settings.register_profile("untimed", deadline=None)  # a machine may be busy
hypothesis.settings.load_profile("untimed")


def check_lines(filename: str | None = None, check: Any = linecache.checkcache) -> None:
    """Look whether cached lines of files are out of date, as doctests begin.

    Before Python 3.13 that fails if garbage collection removes a line's owner at this moment, such
    as a class that SQLAlchemy has made for one of Optuna's migrations.
    """
    with suppress(KeyError):
        check(filename)


linecache.checkcache = check_lines


def pytest_collection_finish() -> None:
    """Keep Python's garbage collection from looking at the tests themselves again and again.

    They are 900,000 objects, and one look at all of them takes half a second. Hypothesis is loaded
    before: it asks Python which objects refer to a generator of random numbers, and Python does not
    name objects that its garbage collection leaves out.
    """
    gc.collect()
    gc.freeze()
    ray_mark.begin()


@pytest.fixture(scope="session")
def data_root() -> Path:
    """Return the folder of the real corpora; where there is none, the test is skipped."""
    root = os.environ.get("EIGENSWEEP_DATA_ROOT")
    if not root or not Path(root).is_dir():
        pytest.skip("set EIGENSWEEP_DATA_ROOT to a folder of corpora (docs/how-to/corpora.md)")
    return Path(root).absolute()


@pytest.fixture
def free_port() -> Callable[[], int]:
    """Return a function that gives ports nobody listens on, each one once."""
    given: set[int] = set()

    def next_port() -> int:
        while True:
            with socket.socket() as attempt:
                attempt.bind(("127.0.0.1", 0))
                port = int(attempt.getsockname()[1])
            if port not in given:
                given.add(port)
                return port

    return next_port


ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of what the image is made from: the paths in .dockerignore, links included."""
    copy = tmp_path_factory.mktemp("source")
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        path = ROOT / line.removeprefix("!")
        if line.startswith("!") and path.is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(path, copy / path.name, ignore=ignored, symlinks=True)
        elif line.startswith("!"):
            shutil.copy(path, copy)
    return copy


@pytest.fixture(scope="session")
def wheel_file(source: Path) -> Path:
    """Return a wheel, built from the sources without network."""
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", "out", "."]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (file,) = (source / "out").glob("*.whl")
    return file


@dataclass(frozen=True)
class CleanEnvironment:
    """A virtual environment with Eigensweep's dependencies, but without Eigensweep."""

    folder: Path

    def __post_init__(self) -> None:
        command = [sys.executable, "-m", "venv", "--without-pip", str(self.folder)]
        subprocess.run(command, check=True)
        # A plain line of a .pth file adds a folder, and runs none of that folder's own .pth files:
        # so the dependencies are found, and an editable Eigensweep among them is not.
        dependencies = sysconfig.get_paths()["purelib"]
        (self.site_packages / "dependencies.pth").write_text(f"{dependencies}\n")

    @property
    def site_packages(self) -> Path:
        (found,) = self.folder.glob("lib/python*/site-packages")
        return found

    @property
    def variables(self) -> dict[str, str]:
        """The environment of a person's shell, in which nothing of a test run is set."""
        own = ("PYTHONPATH", "PYTHONHOME", "EIGENSWEEP_")
        return {name: value for name, value in os.environ.items() if not name.startswith(own)}

    def install(self, *words: str) -> None:
        """Install with pip, without network and without dependencies."""
        pip = [sys.executable, "-m", "pip", "--python", str(self.folder), "install", "--quiet"]
        command = [*pip, "--no-deps", "--no-index", "--no-build-isolation", *words]
        done = subprocess.run(command, capture_output=True, text=True, env=self.variables)
        assert done.returncode == 0, done.stdout + done.stderr

    def run(self, *words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        """Run one of the environment's programs in a folder."""
        program = str(self.folder / "bin" / words[0])
        return subprocess.run(
            [program, *words[1:]], cwd=cwd, env=self.variables, capture_output=True, text=True
        )


@pytest.fixture(scope="session")
def clean_environment() -> type[CleanEnvironment]:
    """Return the class, for tests that install something else than the wheel."""
    return CleanEnvironment


@pytest.fixture(scope="session")
def installed(wheel_file: Path, tmp_path_factory: pytest.TempPathFactory) -> CleanEnvironment:
    """Return an environment in which the wheel was installed."""
    environment = CleanEnvironment(tmp_path_factory.mktemp("clean") / "venv")
    environment.install(str(wheel_file))
    return environment


@pytest.fixture
def research_folder(tmp_path: Path) -> Path:
    """Return a folder whose own files are named as Eigensweep's folders; none can be imported."""
    folder = tmp_path / "research"
    for file in (
        *("models.py", "workers.py", "tasks/__init__.py", "service/__init__.py"),
        *("search_spaces/__init__.py", "search_spaces/grid.py"),
    ):
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(f"raise RuntimeError('{file} is not part of Eigensweep')\n")
    return folder


@dataclass
class ScriptedDriver:
    """Runs an experiment without training: a trial's value grows with the learning rate's distance
    from 0.01; at 10 and above it fails."""

    spec: dict[str, Any]
    ledger: Ledger
    rung_seconds: float
    thread: threading.Thread = field(init=False)
    process: str = "scripted"

    def __post_init__(self) -> None:
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def state(self) -> Literal["running", "ended", "died"]:
        return "running" if self.thread.is_alive() else "ended"

    def _run(self) -> None:
        end = self._train()
        for entry in self.ledger.load():
            self.ledger.set_delivered({}, "1", [entry.number])
        self.ledger.set_tracked()
        self.ledger.end(end)

    def _train(self) -> ExperimentEnd:
        from eigensweep.search_spaces.spec import ExperimentSpec

        spec = ExperimentSpec.model_validate(self.spec)
        points = list(spec.space())
        self.ledger.set_total(len(points))
        for number, point in enumerate(points):
            config = spec.trial(point)
            body = config.model_dump(mode="json")
            self.ledger.open(number, point.arm, point.params, body, config.content_hash())
            attempt = self.ledger.begin(number)
            value = 0.001 * (1 + abs(log10(config.optimizer.lr) + 2))
            for step in spec.rung_steps(config):
                time.sleep(self.rung_seconds)
                if self.ledger.intent() == "cancel":
                    self.ledger.finish(number, attempt, "cancelled")
                    return "cancelled"
                if number in self.ledger.find_stops():
                    self.ledger.finish(number, attempt, "pruned", error="stopped on request")
                    break
                place = Place(node="here", pid=1, device="cpu")
                self.ledger.report(number, attempt, step, {"valid/cross_entropy": value}, place)
            if number in self.ledger.find_stops():
                continue
            if config.optimizer.lr >= 10:
                error = "Traceback (most recent call last):\nRuntimeError: a bug"
                self.ledger.finish(number, attempt, "failed", error=error)
                continue
            parameters = config.model.free_parameters(config.task.shapes)
            result = Result(
                by_replicate=tuple(
                    ReplicateResult(
                        seed=seed,
                        value=value * (1 + seed / 1000),
                        test={"cross_entropy": value * (1 + seed / 1000)},
                    )
                    for seed in config.seeds
                ),
                value=value,
                best_step=config.training.steps,
                step=config.training.steps or 0,
                valid={"cross_entropy": value},
                test={"cross_entropy": value},
                seconds=1.5,
                parameters=ParameterCount(free=parameters, stored=parameters),
            )
            self.ledger.finish(number, attempt, "completed", result)
        return "completed"


NODE = Node("ab12", "here", True, Amounts(2.0, 0.0, 8 * 10**9), None)
"""The only node that there is."""


@dataclass
class ScriptedLauncher:
    """Starts scripted drivers, in threads."""

    rung_seconds: float = 0.0
    drivers: list[ScriptedDriver] = field(default_factory=list)

    def launch(
        self,
        experiment_id: str,
        spec: dict[str, Any],
        ledger: Ledger,
        options: object,
        beside: str | None = None,
    ) -> ScriptedDriver:
        self.drivers.append(ScriptedDriver(spec, ledger, self.rung_seconds))
        return self.drivers[-1]

    problem = None

    def list_nodes(self) -> list[Node]:
        return [NODE]

    def look_for_room(self, resources: Any, replicates: int) -> Capacity:
        return Capacity(trials=2, problem=None, may_change=False)

    def find(self, experiment_id: str) -> None:
        return None


@pytest.fixture(scope="module")  # beside the tests of other files it would take 6 % of a processor
def scripted_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the address of the real service, whose drivers are scripted: no Ray, no MLflow."""
    import uvicorn

    from eigensweep.protocol.messages import DriverOptions
    from eigensweep.service.api.app import create_app
    from eigensweep.service.queue.dispatcher import Dispatcher
    from eigensweep.service.record.migrations import migrate
    from eigensweep.service.record.record import Record
    from eigensweep.service.settings import Settings

    settings = Settings(home=tmp_path_factory.mktemp("home"))
    migrate(settings.database)
    record = Record(settings.database)
    launcher = ScriptedLauncher(rung_seconds=0.02)
    dispatcher = Dispatcher(record, interval=0.05)
    app = create_app(settings, record, dispatcher)
    folder = str(settings.home)
    dispatcher.start(launcher, DriverOptions(storage=folder))
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off"))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        app.state.service.tailer.closing.set()
        server.should_exit = True
        thread.join()
    dispatcher.stop()
    for driver in launcher.drivers:
        driver.thread.join()


@pytest.fixture
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep what a person has set for real services away from a test."""
    # Removed in the end, also where a command of the test has set it.
    monkeypatch.setenv("EIGENSWEEP_TOKEN_FILE", "")
    for name in [name for name in os.environ if name.startswith("EIGENSWEEP_")]:
        monkeypatch.delenv(name)


@pytest.hookimpl(tryfirst=True)  # before tests are chosen by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        ray_mark.put(item)
    quick_cases.mark_others_slow(items)
    items.sort(key=handing_out.rank)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> handing_out.RayTogether | None:
    return handing_out.RayTogether(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.hookimpl(tryfirst=True)  # before fixtures are made
def pytest_runtest_setup(item: pytest.Item) -> None:
    ray_mark.hold(item)


def pytest_configure(config: pytest.Config) -> None:
    """Let a run that is terminated end as Ctrl-C ends it: fixtures stop what they have started.

    A shell starts what it puts into the background with Ctrl-C ignored. What tests start would
    inherit that, and a shell script cannot trap what is ignored: `make test &` would fail.
    """
    ray_mark.install()
    gc.set_threshold(50_000, 20, 50)  # at 700 a seventh of the time goes into looking for garbage
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        signal.signal(signal.SIGINT, signal.default_int_handler)
    rewrite_share(config, Path(__file__).parent.rglob("test_*.py"))


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Name bytes by their argument: packed ones hold a time, and workers must agree on names."""
    return argname if isinstance(val, bytes) else None


@pytest.fixture(autouse=True)
def _no_trial_ends_the_tests(request, monkeypatch) -> None:
    """Watch no trial in this process: all tests together hold more than one may take."""
    if request.path.name != "test_memory_limit.py":
        monkeypatch.setattr("eigensweep.training.memory_limit.watch", lambda order: None)
