"""Processes that are forked for trials: the same numbers, and an end with whom they belong to."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NoReturn

import psutil
import pytest
from orders import make_order
from waiting import wait_until

from eigensweep.protocol.code import own_code
from eigensweep.protocol.ledger import StaleWriteError
from eigensweep.protocol.messages import Order
from eigensweep.workers.processes import fork_server, forked, trial_process
from eigensweep.workers.processes.fork_server import FORK, LOOK, Server
from eigensweep.workers.processes.forked import (
    Forked,
    ForkedEndedError,
    ForkedLostError,
    ForkedShortError,
    fork,
)
from eigensweep.workers.processes.runner import REPORT, Runner
from eigensweep.workers.processes.trial_process import TrialProcess

CONFIG = {
    "task": {"name": "copying", "delay": 4, "symbols": 2, "batch_size": 4, "valid_size": 8},
    "model": {"name": "scornn", "hidden_size": 6, "negative_ones": 2},
    "training": {"steps": 20, "evaluate_every": 5, "log_every": 5},
}
CLIENT = """
import json, os, sys, time
from eigensweep.workers.processes.forked import fork

made = fork(json.loads(sys.argv[1]), None, int(sys.argv[2]))
print(made.pid, flush=True)
time.sleep(3600)
"""
LOUD = """
import json, sys
from eigensweep.workers.processes import forked

made = forked.fork(json.loads(sys.argv[1]), None, int(sys.argv[2]))
try:
    made._call("unknown")
except forked.ForkedEndedError as error:
    print(error)
"""
ANSWERS = """
import os, sys
from multiprocessing.connection import Connection
from eigensweep.workers.processes.fork_server import answer_calls

answer_calls(Connection(int(sys.argv[1])))
print(dict(os.environ), sys.path)
"""
ALONE = """
import sys
from eigensweep.workers.processes import fork_server

fork_server.IDLE_SECONDS = 1.0
fork_server.main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
"""
ENDS = """
import json, os, sys
from eigensweep.workers.processes import trial_process
from eigensweep.workers.processes.forked import ForkedEndedError

class Gone:
    def train(self):
        raise ForkedEndedError("process 7 that was forked for this trial has ended")

trial_process.fork = lambda config, node_id, raylet: Gone()
trial_process.TrialProcess(json.loads(sys.argv[1])).train()
"""

Start = Callable[..., Forked]


@pytest.fixture(scope="module")
def node() -> Iterator[subprocess.Popen[bytes]]:
    """Stands for the process of Ray's with which all of a node end."""
    with subprocess.Popen(["sleep", "3600"]) as process:
        yield process
        process.kill()


@pytest.fixture
def order(tmp_path: Path) -> Order:
    return make_order(config=CONFIG, storage=str(tmp_path))


@pytest.fixture
def start(node: subprocess.Popen[bytes], order: Order) -> Iterator[Start]:
    """Return a function that forks a process for an order."""
    made: list[Forked] = []

    def begin(wanted: Order = order, raylet: int = node.pid) -> Forked:
        found = fork(wanted.to_dict(), None, raylet)
        assert found is not None
        made.append(found)
        return found

    yield begin
    for each in made:
        each.close()


def train(runner: Runner | Forked) -> list[dict[str, Any]]:
    """Return all that is reported of a trial, without times and places."""
    reports: list[dict[str, Any]] = []
    while not reports or reports[-1]["outcome"] is None:
        report = json.loads(runner.train()[REPORT])
        for each in (report["result"], *report["result"]["by_replicate"]):
            del each["seconds"], each["step_seconds"]
        del report["place"]
        reports.append(report)
    return reports


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., str]]:
    """Return a function that sends a request to a server that must not fork, and says what came."""
    monkeypatch.setattr(Server, "_fork", lambda *_: pytest.fail("it forked"))
    name = f"\0eigensweep-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as client:
        listener.bind(name)
        listener.listen()
        client.connect(name)
        server = Server(listener, listener.fileno())

        def send(word: bytes, files: list[int]) -> str:
            socket.send_fds(client, [word], files)
            server._answer()
            try:
                return "an answer" if client.recv(1) else "closed"
            except ConnectionResetError:  # what was sent was not even read
                return "closed"

        yield send


def read_command(process: psutil.Process) -> str:
    """Return the command line of a process; nothing if it is gone."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def has_ended(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


class TestTraining:
    @pytest.mark.parametrize("threads", [1, 2])
    @pytest.mark.quick_cases(1)
    def test_gives_the_same_numbers_as_in_a_process_of_its_own(
        self, start, order, tmp_path, monkeypatch, threads
    ):
        monkeypatch.setenv("OMP_NUM_THREADS", str(threads))
        order = replace(order, resources={"CPU": threads})
        forked_reports = train(start(order))
        alone = Runner(replace(order, storage=str(tmp_path / "alone")).to_dict())
        assert train(alone) == forked_reports
        assert [each["step"] for each in forked_reports] == [5, 10, 15, 20]

    def test_goes_from_trial_to_trial(self, start, order):
        made = start()
        first = train(made)
        told = made.train_next(replace(order, number=4).to_dict())
        assert json.loads(told[REPORT])["metrics"] == first[0]["metrics"]
        assert psutil.Process(made.pid).name() == "trial-4"
        made.stop()
        assert psutil.Process(made.pid).is_running()

    def test_an_attempt_with_a_successor_is_told_so(self, start, order):
        later = Runner(replace(order, attempt=2).to_dict())
        later.train()
        with pytest.raises(StaleWriteError, match="attempt"):
            start().train()

    def test_what_it_writes_stands_in_the_log_of_the_trials_process(self, node, order):
        done = subprocess.run(
            [sys.executable, "-c", LOUD, json.dumps(order.to_dict()), str(node.pid)],
            capture_output=True,
            text=True,
            check=True,
        )
        assert "AttributeError: 'Runner' object has no attribute 'unknown'" in done.stderr
        assert "that was forked for this trial has ended" in done.stdout

    def test_it_has_environment_and_path_of_the_trials_process(self, order):
        own, other = Pipe()
        with subprocess.Popen(
            [sys.executable, "-c", ANSWERS, str(other.fileno())],
            pass_fds=[other.fileno()],
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            other.close()
            own.send((order.to_dict(), None, {"MARK": "m1"}, ["/p1"]))
            assert own.recv() == process.pid
            own.close()
            said, _ = process.communicate()
        assert said == "{'MARK': 'm1'} ['/p1']\n"


class TestTheServer:
    def test_is_one_for_all_trials_of_a_node_and_an_environment(self, start, monkeypatch):
        first, second = (psutil.Process(start().pid) for _ in range(2))
        assert first.ppid() == second.ppid()
        monkeypatch.setenv("OMP_NUM_THREADS", "2")
        assert psutil.Process(start().pid).ppid() != first.ppid()

    def test_has_no_second_thread_which_a_fork_would_lose(self, start, monkeypatch):
        monkeypatch.setenv("OMP_NUM_THREADS", "1")
        assert psutil.Process(start().pid).parent().num_threads() == 1

    def test_loads_nothing_of_ray(self, start):
        server = psutil.Process(start().pid).parent()
        loaded = {Path(each.path).name for each in server.memory_maps()}
        assert any(name.startswith("libtorch") for name in loaded)
        assert not any("raylet" in name or "cygrpc" in name for name in loaded)

    def test_ends_with_its_node_and_so_do_all_that_it_forked(self, start):
        with subprocess.Popen(["sleep", "3600"]) as raylet:
            try:
                child = psutil.Process(start(raylet=raylet.pid).pid)
                server = child.parent()
            finally:
                raylet.kill()
        wait_until(lambda: has_ended(child) and has_ended(server))

    def test_that_was_killed_is_replaced_and_leaves_no_process(self, start):
        made = start()
        child = psutil.Process(made.pid)
        server = child.parent()
        server.kill()
        wait_until(lambda: has_ended(child))
        with pytest.raises(ForkedEndedError, match=f"process {child.pid}"):
            made.train()
        assert psutil.Process(start().pid).ppid() != server.pid

    def test_ends_when_nobody_has_asked_for_long(self, node):
        name = f"eigensweep-test-{os.getpid()}"
        arguments = [name, str(node.pid), own_code().digest]
        subprocess.run([sys.executable, "-c", ALONE, *arguments], check=True)
        (server,) = (each for each in psutil.process_iter() if name in read_command(each))
        wait_until(lambda: has_ended(server))

    def test_a_second_one_of_the_same_name_ends_at_once(self, start, node):
        server = psutil.Process(start().pid).parent()
        subprocess.run(server.cmdline(), check=True)
        assert psutil.Process(start().pid).parent() == server

    def test_keeps_no_process_that_it_cannot_watch(self, monkeypatch):
        def fail(pid: int) -> int:
            raise OSError("too many open files")

        listener, lifeline = socket.socketpair()
        with listener, lifeline, subprocess.Popen(["sleep", "3600"]) as child:
            monkeypatch.setattr(fork_server.os, "fork", lambda: child.pid)
            monkeypatch.setattr(fork_server.os, "pidfd_open", fail)
            with pytest.raises(OSError, match="too many"):
                Server(listener, listener.fileno())._fork(lifeline, [])
            assert not psutil.pid_exists(child.pid)

    def test_outlives_a_request_for_which_no_file_may_be_open(self, monkeypatch):
        class Full:
            def accept(self) -> NoReturn:
                raise OSError(errno.EMFILE, "Too many open files")

        pauses: list[float] = []
        monkeypatch.setattr(fork_server.time, "sleep", pauses.append)
        Server(Full(), 0)._answer()  # type: ignore[arg-type]
        assert pauses == [fork_server.REFUSED_SECONDS]

    @pytest.mark.parametrize(
        ("status", "kills", "kind"),
        [
            *[(-9, 1, ForkedShortError), (-9, 0, ForkedEndedError), (-11, 1, ForkedEndedError)],
            *[(0, 1, ForkedEndedError), (None, 1, ForkedShortError), (None, 0, ForkedLostError)],
        ],
    )
    def test_tells_a_kill_for_lack_of_memory(self, monkeypatch, status, kills, kind):
        (lifeline, server), (own, other) = socket.socketpair(), socket.socketpair()
        counts = iter([5, 5 + kills])
        monkeypatch.setattr(forked, "count_kills", lambda: next(counts))
        left = Forked(lifeline, Connection(own.detach()))
        if status is not None:
            server.send(str(status).encode())
        server.close()
        other.close()
        with pytest.raises(ForkedEndedError) as told:
            left.train()
        assert type(told.value) is kind
        left.close()

    def test_tells_an_end_where_no_further_thread_may_run(self, monkeypatch):
        crowd = "950 processes and threads run of 1,000 that ulimit -u allows"
        monkeypatch.setattr(forked, "find_crowd", lambda: crowd)
        (lifeline, server), (own, other) = socket.socketpair(), socket.socketpair()
        left = Forked(lifeline, Connection(own.detach()))
        server.send(b"1")  # libgomp ends its process so
        server.close()
        other.close()
        with pytest.raises(ForkedShortError, match=f"with status 1: {crowd}"):
            left.train()
        left.close()

    def test_waits_for_no_killed_process_that_cannot_end_now(self, monkeypatch):
        """As one that reads from a disk which hangs; it is a pipe here, and so is Ray's node."""
        killed: list[int] = []
        monkeypatch.setattr(fork_server.os, "killpg", lambda group, _: killed.append(group))
        (stuck, _), (ray, node) = pipes = os.pipe(), os.pipe()
        listener, lifeline, trial = socket.socket(), *socket.socketpair()
        server = Server(listener, ray)
        server._lifelines[stuck], server._groups[stuck] = lifeline, 4711
        serving = threading.Thread(target=server.serve, daemon=True)
        with listener, lifeline:
            listener.bind(("127.0.0.1", 0))
            listener.listen()
            serving.start()
            trial.close()
            wait_until(lambda: server._lifelines == {stuck: None})
            with socket.create_connection(listener.getsockname()) as client:
                monkeypatch.setattr(fork_server, "find_peer", lambda connection: (1, -1))
                client.settimeout(30)
                assert client.recv(1) == b"", "it answers: no other user is forked for"
            os.write(node, b"x")
            serving.join(30)
        assert (killed, serving.is_alive()) == ([4711, 4711], False), "the last one with its node"
        for end in (end for pipe in pipes for end in pipe):
            os.close(end)

    def test_forks_nothing_for_another_user(self, ask, monkeypatch):
        monkeypatch.setattr(fork_server, "find_peer", lambda connection: (1, os.getuid() + 1))
        assert ask(FORK, files=[0, 1, 2]) == "closed"

    @pytest.mark.parametrize("word", [LOOK, FORK])
    def test_a_request_without_files_is_for_nothing_but_to_stay(self, ask, word):
        assert ask(word, files=[]) == "closed"


class TestTheGroup:
    """What the code of a trial starts, or does to its process group."""

    @pytest.fixture
    def fork(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
        """Return what forks a process that does something: a server, and the trial's side."""
        with socket.socket() as listener, open(os.devnull) as node:
            server = Server(listener, node.fileno())

            def begin(does: Callable[[Connection], None]) -> Any:
                monkeypatch.setattr(fork_server, "answer_calls", does)
                lifelines, (own, other) = socket.socketpair(), socket.socketpair()
                files = [other.detach(), os.dup(1), os.dup(2)]
                server._fork(lifelines[0], files)
                for each in files:
                    os.close(each)
                return server, Forked(lifelines[1], Connection(own.detach()))

            yield begin

    def test_ends_with_the_trials_process(self, fork):
        def start_another(calls: Connection) -> None:
            calls.send(subprocess.Popen(["sleep", "3600"], pass_fds=[calls.fileno()]).pid)
            os._exit(7)

        server, made = fork(start_another)
        other = psutil.Process(made._receive())
        (end,) = server._lifelines
        wait([end])
        assert not has_ended(other)
        server._bury(end)
        with pytest.raises(ForkedEndedError, match="has ended with status 7"):
            made.train()
        wait_until(lambda: has_ended(other))
        made.close()

    def test_is_killed_where_the_trials_process_is_gone(self, fork):
        def start_another(calls: Connection) -> None:
            calls.send(subprocess.Popen(["sleep", "3600"]).pid)
            time.sleep(3600)

        server, made = fork(start_another)
        other = psutil.Process(made._receive())
        (end,) = server._lifelines
        made.close()
        server._kill(end)
        wait_until(lambda: has_ended(other))
        wait([end])
        server._bury(end)

    def test_takes_no_other_trial_along(self, fork):
        server, made = fork(lambda calls: os.killpg(0, signal.SIGUSR1))
        (end,) = server._lifelines
        wait([end])
        server._bury(end)
        with pytest.raises(ForkedEndedError, match="has ended by SIGUSR1"):
            made.train()
        made.close()

    def test_is_not_that_of_the_server(self, start):
        made = start()
        assert os.getpgid(made.pid) == made.pid


class TestTheEnd:
    @pytest.mark.parametrize("hangs", [False, True], ids=["", "while it hangs"])
    def test_comes_with_the_trials_process_however_that_ended(self, node, order, hangs):
        with subprocess.Popen(
            [sys.executable, "-c", CLIENT, json.dumps(order.to_dict()), str(node.pid)],
            stdout=subprocess.PIPE,
            text=True,
        ) as client:
            assert client.stdout is not None
            child = psutil.Process(int(client.stdout.readline()))
            if hangs:
                child.send_signal(signal.SIGSTOP)
            client.kill()
            wait_until(lambda: has_ended(child))
        assert not has_ended(psutil.Process(node.pid))

    def test_is_noticed_by_the_trials_process_and_touches_no_other(self, start):
        made, neighbour = start(), start()
        os.kill(made.pid, signal.SIGSEGV)
        words = f"process {made.pid} that was forked for this trial has ended by SIGSEGV"
        with pytest.raises(ForkedEndedError, match=words):
            made.train()
        assert neighbour.train()["step"] == 5

    def test_is_told_in_place_of_a_report(self, order):
        done = subprocess.run(
            [sys.executable, "-c", ENDS, json.dumps(order.to_dict())],
            capture_output=True,
            text=True,
        )
        assert done.returncode == 1
        assert "process 7 that was forked for this trial has ended" in done.stderr


class TestWithoutAServer:
    @pytest.fixture
    def said(self, caplog: pytest.LogCaptureFixture) -> Callable[[], str]:
        return lambda: "\n".join(caplog.messages)

    def test_the_trials_process_notices_other_code(self, node, order, said):
        foreign = replace(order, code=replace(order.code, digest="other"))
        assert fork(foreign.to_dict(), None, node.pid) is None
        assert "so this one loads it" in said()

    def test_where_another_user_has_the_name_nothing_is_sent_to_it(
        self, node, order, said, monkeypatch
    ):
        monkeypatch.setattr(forked, "find_peer", lambda connection: (1, os.getuid() + 1))
        assert fork(order.to_dict(), None, node.pid) is None
        assert "belongs to another user" in said()

    def test_where_python_does_not_start_in_time(self, order, said, monkeypatch):
        def hang(command: list[str], timeout: float, **options: Any) -> None:
            raise subprocess.TimeoutExpired(command, timeout)

        monkeypatch.setattr(forked.subprocess, "run", hang)
        assert fork(order.to_dict(), None, raylet=1) is None
        assert "Python did not start within 60 s" in said()

    def test_where_it_does_not_fork_in_time(self, start, order, node, said, monkeypatch):
        server = psutil.Process(start().pid).parent()
        monkeypatch.setattr(forked, "LOADING_SECONDS", 0.2)
        server.suspend()
        assert fork(order.to_dict(), None, node.pid) is None
        server.resume()
        assert "no process was forked within 0 s" in said()

    @pytest.mark.parametrize("case", ["a GPU", "an engine"])
    def test_nothing_is_forked_for_a_trial_with(self, case, order, monkeypatch):
        monkeypatch.setattr(trial_process, "fork", lambda *_, **__: pytest.fail("it forked"))
        if case == "a GPU":
            monkeypatch.setattr(trial_process, "assigned_device", lambda: "cuda")
            content = order.to_dict()
        else:
            content = order.to_dict() | {
                "engine": {"lanes": 2, "trials": 2, "cpus": 1.0, "gpus": 0}
            }
        assert isinstance(TrialProcess(content)._runner, Runner)
