"""What installed packages add to the models and tasks, and what becomes of a broken one."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from eigensweep.common import own_packages
from eigensweep.common.foreign_code import TorchSettings
from eigensweep.common.own_packages import digest_files, digest_package, find_plugins
from eigensweep.common.registry import Registry, UnknownNameError
from eigensweep.models import MODELS
from eigensweep.tasks import TASKS
from eigensweep.tasks.base import Task, TaskConfig
from eigensweep.tasks.copying import Copying

ECHO = """
from typing import Literal
from eigensweep.models import MODELS
from eigensweep.tasks import TASKS
from eigensweep.tasks.copying import Copying

class EchoConfig(Copying.Config):
    name: Literal["{name}"] = "{name}"

class Echo(Copying):
    Config = EchoConfig
"""


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Return a function that installs a package of one module, with its entry points."""

    def put(points: str, module: str = "", package: str = "lab") -> Path:
        folder = tmp_path / f"{package}-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        (folder / "entry_points.txt").write_text(f"[eigensweep.tasks]\n{points}\n")
        (tmp_path / f"{package}.py").write_text(module)
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.delitem(sys.modules, package, raising=False)
        find_plugins.cache_clear()
        return tmp_path

    yield put
    find_plugins.cache_clear()
    for path in tmp_path.glob("*.py"):
        sys.modules.pop(path.stem, None)


def registry() -> Registry[Task]:
    return Registry("task", Task, TaskConfig, {"copying": Copying})


def test_an_installed_package_adds_its_class_after_our_own(install):
    install("echo = lab:Echo", ECHO.format(name="echo"))
    tasks = registry()
    assert list(tasks) == ["copying", "echo"]
    assert issubclass(tasks["echo"], Copying)
    assert tasks.problems == {}


def test_what_a_package_sets_for_the_process_is_undone(install):
    sets = (
        "import signal, torch\n"
        "torch.set_float32_matmul_precision('medium')\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    )
    before = TorchSettings.read(), signal.getsignal(signal.SIGTERM)
    install("echo = lab:Echo", sets + ECHO.format(name="echo"))
    assert "echo" in registry()
    assert (TorchSettings.read(), signal.getsignal(signal.SIGTERM)) == before


def test_a_package_that_takes_long_to_load_is_named(install, monkeypatch, caplog):
    monkeypatch.setattr("eigensweep.common.registry.SLOW_SECONDS", 0.05)
    install("echo = lab:Echo", "import time\ntime.sleep(0.5)\n" + ECHO.format(name="echo"))
    assert "echo" in registry()
    assert "lab is still being loaded" in caplog.text


def test_packages_are_loaded_at_the_first_look(install):
    install("echo = lab:Echo", ECHO.format(name="echo"))
    tasks = registry()
    assert "lab" not in sys.modules
    assert "echo" in tasks
    assert "lab" in sys.modules


def test_a_package_may_read_the_registry_that_loads_it(install, monkeypatch):
    tasks = registry()
    monkeypatch.setattr("eigensweep.tasks.TASKS", tasks)
    install("echo = lab:Echo", "SEEN = []\n" + ECHO.format(name="echo") + "SEEN += list(TASKS)\n")
    assert list(tasks) == ["copying", "echo"]
    assert sys.modules["lab"].SEEN == ["copying"]


def test_threads_that_look_at_once_see_all_packages(install):
    install("echo = lab:Echo", "import time\ntime.sleep(0.2)\n" + ECHO.format(name="echo"))
    tasks, seen = registry(), []
    threads = [threading.Thread(target=lambda: seen.append(list(tasks))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [["copying", "echo"]] * 3


def test_the_code_of_a_class_is_that_of_its_loaded_package(install):
    folder = install("echo = lab:Echo", ECHO.format(name="echo"))
    tasks = registry()
    loaded = tasks.code_of("echo")
    assert loaded == tasks.code_of("echo", now=True)
    (folder / "lab.py").write_text(ECHO.format(name="echo") + "# changed")
    assert tasks.code_of("echo") == loaded
    assert tasks.code_of("echo", now=True) == registry().code_of("echo") != loaded
    assert tasks.code_of("copying") is None


def test_a_notebooks_class_in_place_of_a_packages_has_no_code(install):
    install("echo = lab:Echo", ECHO.format(name="echo"))
    tasks = registry()
    tasks["echo"] = tasks["echo"]
    assert tasks.code_of("echo") is tasks.code_of("echo", now=True) is None


@pytest.mark.filterwarnings("ignore:Field name")
@pytest.mark.parametrize(
    ("point", "module", "reason"),
    [
        ("echo = lab:Echo", "import no_such_module", "ModuleNotFoundError: .*no_such_module"),
        ("echo = lab:Echo", "Echo = 1 +", "SyntaxError"),
        ("echo = lab:Echo", "raise SystemExit(3)", "SystemExit: 3"),
        ("echo = lab:Ecko", ECHO.format(name="echo"), "AttributeError: .*'Ecko'"),
        ("echo = lab:Echo", "Echo = 'a word'", "'a word' is not a subclass of .*base.Task"),
        ("echo = lab:Echo", "class Echo: pass", "lab.Echo'> is not a subclass"),
        (
            "echo = lab:Echo",
            "from eigensweep.tasks.base import Task\nclass Echo(Task): pass",
            "lab.Echo does not define evaluation, loss, scores, train_batch",
        ),
        (
            "echo = lab:Echo",
            "from eigensweep.tasks.copying import Copying\n"
            "class Echo(Copying):\n    class Config: pass",
            "lab.Echo.Config must be a subclass of eigensweep.tasks.base.TaskConfig",
        ),
        (
            "echo = lab:Echo",
            ECHO.format(name="echo").replace('= "echo"', '= "echo"; sequence_length: int = 10'),
            "lab.EchoConfig has sequence_length as a field: write it as a property",
        ),
        (
            "echo = lab:Echo",
            ECHO.format(name="eco"),
            r"lab.EchoConfig must declare `name: Literal\['echo'\] = 'echo'`",
        ),
        ("copying = lab:Echo", ECHO.format(name="copying"), "name 'copying' belongs to .*Copying"),
        (
            "echo = lab:Echo",
            ECHO.format(name="echo").replace('= "echo"', '= "echo"; clip: float = float("inf")'),
            "lab.EchoConfig.clip is inf by default, which JSON cannot hold: take None for it",
        ),
        (
            "echo = lab:Echo",
            "from pydantic import Field\n"
            + ECHO.format(name="echo").replace(
                '= "echo"', '= "echo"; f: int = Field(3, alias="g")'
            ),
            "lab.EchoConfig.f has an alias",
        ),
    ],
)
def test_a_broken_entry_point_is_named_and_left_out(install, caplog, point, module, reason):
    install(f"{point}\ngood = good:Echo", module)
    (Path(sys.path[0]) / "good.py").write_text(ECHO.format(name="good"))
    tasks = registry()
    assert list(tasks) == ["copying", "good"]
    assert tasks["copying"] is Copying
    assert list(tasks.problems) == [f"{point} (lab 1.0)"]
    assert re.search(reason, tasks.problems[f"{point} (lab 1.0)"])
    assert f"task left out entry_point='{point} (lab 1.0)'" in caplog.text


@pytest.mark.parametrize("name", ["a.json", "b.yml", "c.c", "d.cuh", "e.npz", "sub/f.txt"])
def test_every_file_of_a_package_is_in_its_digest(tmp_path, monkeypatch, name):
    place = tmp_path / "labs"
    (place / "sub" / "__pycache__").mkdir(parents=True)
    (place / "__init__.py").touch()
    (place / name).write_text("1")
    monkeypatch.syspath_prepend(str(tmp_path))
    before = digest_package("labs")
    for made in ("g.so", "README.md", "py.typed", ".hidden", "sub/__pycache__/h.txt"):
        (place / made).write_text("1")
    assert digest_package("labs") == before
    (place / name).write_text("2")
    assert digest_package("labs") != before


def test_linked_folders_and_second_places_of_a_package_count(tmp_path, monkeypatch):
    first, second, outside = tmp_path / "one/spread", tmp_path / "two/spread", tmp_path / "outside"
    for folder in (first, second, outside):
        folder.mkdir(parents=True)
        (folder / "x.py").write_text("x = 1")
        monkeypatch.syspath_prepend(folder.parent)
    (first / "linked").symlink_to(outside)
    (outside / "round").symlink_to(first)
    (second / "y.py").write_text("y = 1")
    before = digest_package("spread")
    assert sorted(before) == ["linked/x.py", "x.py", "y.py"]
    for file in (second / "y.py", outside / "x.py"):
        file.write_text("other = 1")
        assert digest_package("spread") != before
        before = digest_package("spread")


def test_a_name_that_was_left_out_is_answered_with_the_reason(install):
    install("echo = lab:Echo", "import no_such_module")
    with pytest.raises(UnknownNameError) as caught:
        registry()["echo"]
    assert str(caught.value) == (
        "there is no task 'echo' (echo = lab:Echo (lab 1.0) was left out: "
        "ModuleNotFoundError: No module named 'no_such_module'); there are copying"
    )


def test_of_two_packages_with_one_name_the_same_is_chosen(install):
    install("echo = second:Echo", ECHO.format(name="echo"), package="second")
    install("echo = first:Echo", ECHO.format(name="echo"), package="first")
    tasks = registry()
    assert tasks["echo"].__module__ == "first"
    assert "belongs to first.Echo" in tasks.problems["echo = second:Echo (second 1.0)"]
    assert tasks.explain_absence("echo") is None


def test_a_class_that_no_spec_could_name_is_refused_in_words():
    with pytest.raises(TypeError, match=r"must declare `name: Literal\['copy'\] = 'copy'`"):
        Registry("task", Task, TaskConfig, {"copy": Copying})


def test_the_projects_own_come_first_in_their_order():
    assert list(TASKS)[:2] == ["adding", "copying"]
    assert list(MODELS)[:2] == ["tanh_rnn", "modrelu_rnn"]


def test_the_api_lists_what_was_left_out_and_says_why(install):
    site = install("echo = lab:Echo", "import no_such_module")
    points = site / "lab-1.0.dist-info/entry_points.txt"
    points.write_text(points.read_text() + "[eigensweep.models]\nlab_rnn = lab:RNN\n")
    program = """
import json, sys
from pathlib import Path
from starlette.testclient import TestClient
from eigensweep.service.api.app import create_app
from eigensweep.service.queue.dispatcher import Dispatcher
from eigensweep.service.record.migrations import migrate
from eigensweep.service.record.record import Record
from eigensweep.service.settings import Settings

home = Path(sys.argv[1])
url = f"sqlite:///{home / 'record.db'}"
migrate(url)
record = Record(url)
app = create_app(Settings(home=home, data_root=home), record, Dispatcher(record))
spec = {"task": {"name": "echo"}, "model": {"name": "lab_rnn"}, "training": {"steps": 1}}
with TestClient(app) as client:
    print(json.dumps({
        "models": client.get("/v1/models").json(),
        "tasks": client.get("/v1/tasks").json(),
        "page": client.get("/openapi.json").status_code,
        "model": client.get("/v1/models/lab_rnn").json(),
        "posted": client.post("/v1/experiments", json=spec).json(),
    }))
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program, str(site)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout)
    reason = "ModuleNotFoundError: No module named 'no_such_module'"
    model, task = "lab_rnn = lab:RNN (lab 1.0)", "echo = lab:Echo (lab 1.0)"
    assert told["models"]["left_out"] == [{"entry_point": model, "reason": reason}]
    assert told["tasks"]["left_out"] == [{"entry_point": task, "reason": reason}]
    assert {"scornn", "lstm"} <= {item["name"] for item in told["models"]["items"]}
    assert told["page"] == 200
    assert told["model"]["status"] == 404
    assert f"({model} was left out: {reason})" in told["model"]["detail"]
    assert {error["path"] for error in told["posted"]["errors"]} == {"task.name", "model.name"}
    assert all(reason in error["message"] for error in told["posted"]["errors"])


def test_a_large_file_is_read_again_only_where_it_looks_changed(tmp_path, monkeypatch):
    monkeypatch.setattr(own_packages, "LARGE", 8)
    large, small = tmp_path / "large.npz", tmp_path / "small.py"
    large.write_bytes(b"0123456789")
    small.write_bytes(b"1")
    files = {"large": large, "small": small}
    read, whole = [], own_packages._hash
    monkeypatch.setattr(
        own_packages, "_hash", lambda path: (read.append(path.name), whole(path))[1]
    )
    first = digest_files(files)
    assert digest_files(files) == first
    assert read == ["large.npz", "small.py", "small.py"]
    large.write_bytes(b"9876543210")
    os.utime(large, (0, 1))
    assert digest_files(files)["large"] != first["large"]
