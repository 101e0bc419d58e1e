"""The command line and the client where neither the service nor what trains is installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from helpers.needed_packages import HIDE, find_absent

ROOT = Path(__file__).parents[1]
HEAVY = {"torch", "numpy", "ray", "mlflow", "optuna", "sqlalchemy", "fastapi", "pandas"}
MAIN = """
import sys
from eigensweep.command.cli import main
sys.argv = ["eigensweep", *{words!r}]
main()
"""


@pytest.fixture(scope="module")
def begin() -> str:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    absent = find_absent(project["dependencies"])
    assert absent >= HEAVY
    return HIDE.format(absent=absent)


@pytest.fixture
def address() -> Iterator[str]:
    """The address of a stub of a service that has no experiment, and curves of any."""

    class Empty(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            known = {"items": [], "next_cursor": None, "id": "e1"}
            if "/curves" in self.path:
                line = {"arm": "lstm", "steps": [1], "mean": [1.0], "n": 1}
                known |= {"items": [line], "metric": "valid/loss", "unit": None, "baseline": 1.0}
            self.wfile.write(json.dumps(known).encode())

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Empty) as server:
        threading.Thread(target=server.serve_forever).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def run(program: str, **variables: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if "EIGENSWEEP" not in name}
    command = [sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, text=True, env=kept | variables)


@pytest.mark.parametrize("words", ["--help", "list --help", "--version", "list", "models"])
@pytest.mark.quick_cases(2)
def test_the_command_line_works(begin: str, address: str, words: str) -> None:
    done = run(begin + MAIN.format(words=words.split()), EIGENSWEEP_URL=address)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


def test_the_client_works(begin: str, address: str) -> None:
    program = "from eigensweep import Client\nprint(Client().experiments())"
    done = run(begin + program, EIGENSWEEP_URL=address)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[]\n", "")


@pytest.mark.parametrize(
    ("words", "extra"),
    [
        ("serve", "service"),
        ("doctor", "service"),
        ("data list", "service"),
        ("token list", "service"),
        ("models", "service"),
        ("backup a.tar.gz", "service"),
        ("schema", "worker"),
    ],
)
@pytest.mark.quick_cases(3)
def test_a_command_that_needs_more_says_which_extra(
    begin: str, tmp_path: Path, words: str, extra: str
) -> None:
    ended = {"url": "http://127.0.0.1:9", "pid": 2**22 + 1}  # so that no other service is asked
    (tmp_path / "service.json").write_text(json.dumps(ended))
    home = {"EIGENSWEEP_HOME": str(tmp_path), "EIGENSWEEP_URL": ""}
    done = run(begin + MAIN.format(words=words.split()), **home)
    assert done.returncode == 1
    assert f"pip install 'eigensweep[{extra}]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_plot_needs_the_packages_of_a_notebook(begin: str, address: str, tmp_path: Path) -> None:
    words = ["plot", "e1", "--out", str(tmp_path / "a.svg")]
    done = run(begin + MAIN.format(words=words), EIGENSWEEP_URL=address)
    assert done.returncode == 1
    assert "pip install 'eigensweep[notebook]'" in done.stderr


@pytest.mark.parametrize("words", ["serve", pytest.param("token list", marks=pytest.mark.slow)])
def test_postgresql_needs_its_driver(tmp_path: Path, words: str) -> None:
    told = {"EIGENSWEEP_HOME": str(tmp_path), "EIGENSWEEP_DATABASE_URL": "postgresql://me@/none"}
    done = run(HIDE.format(absent={"psycopg"}) + MAIN.format(words=words.split()), **told)
    assert done.returncode == 1
    assert "pip install 'eigensweep[postgres]'" in done.stderr
    assert "Traceback" not in done.stderr
