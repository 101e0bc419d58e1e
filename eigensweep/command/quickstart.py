"""`make run`: start a service, post a small experiment to it over HTTP, print the ranked trials.

On a terminal the service then runs until Ctrl-C, so that its pages can be looked at. Otherwise it
ends, and nothing keeps running. The exit code is 0 if the best trial beats the baseline.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shlex import quote

from rich.console import Console
from tenacity import RetryError, Retrying, retry_if_exception_type, wait_fixed

from eigensweep.client import Client, Experiment, RefusedError, ServiceAwayError
from eigensweep.client.answers import answers
from eigensweep.client.connection import find_home
from eigensweep.client.shapes import ExperimentJson
from eigensweep.command import terminal

PRESET = "quickstart"
READY_SECONDS = 180.0
STOP_SECONDS = 30.0
DELIVERY_SECONDS = 60.0


class NotReadyError(RuntimeError):
    """The service did not start; the message ends with the last lines of its log."""


def main() -> int:
    """Run the quick start and return its exit code."""
    hear_signals()
    os.umask(0o077)
    screen = terminal.console()
    is_named = bool(os.environ.get("EIGENSWEEP_HOME", "").strip())
    home = find_home() if is_named else Path(tempfile.mkdtemp(prefix="eigensweep-"))
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    code = 128 + signal.SIGINT
    try:
        with running_service(home, screen) as client:
            code = run(client, screen)
            print_next_steps(home, screen)
            if screen.is_terminal:
                page = page_of(client, find_newest(client)["id"])
                screen.print(f"The service keeps running; look at {page}; Ctrl-C ends it.")
                signal.pause()
            else:
                wait_for_delivery(client, screen)
    except KeyboardInterrupt:
        pass  # the way to end it on a terminal
    except (NotReadyError, RefusedError, ServiceAwayError) as error:
        screen.print(f"error: {error}", markup=False)
        return 1
    return code


def hear_signals() -> None:
    """Let SIGINT and SIGTERM end what this process has started, also as a job in the background."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


def wait_for_delivery(client: Client, screen: Console) -> None:
    """Wait until MLflow has all of the last experiment, for `DELIVERY_SECONDS` at most."""
    deadline = time.monotonic() + DELIVERY_SECONDS
    while not find_newest(client)["delivered"]:
        if time.monotonic() > deadline:
            screen.print("MLflow has not received everything yet; the next start goes on with it")
            return
        time.sleep(0.2)


def find_newest(client: Client) -> ExperimentJson:
    """Return the experiment that was posted last."""
    return client.experiments(1)[0]


def page_of(client: Client, experiment_id: str) -> str:
    """Return the address of an experiment's page for browsers."""
    return f"{client.url}/experiments/{experiment_id}"


def run(client: Client, screen: Console) -> int:
    """Post the experiment, follow it to its end, print its trials, and return the exit code."""
    started = time.monotonic()
    experiment = client.submit(PRESET)
    screen.print(f"POST {client.url}/v1/experiments: {experiment.id} {experiment.name}")
    screen.print(f"Its page    {page_of(client, experiment.id)}")
    terminal.follow(experiment, screen)
    screen.print()
    experiment.trials.show(screen)
    screen.print()
    screen.print(answers.format_experiment(experiment.content, client.url), markup=False)
    screen.print(f"API         {client.url}/docs")
    screen.print(f"{time.monotonic() - started:.0f} seconds from the POST to the last trial's end")
    return 0 if _beats_the_baseline(experiment, screen) else 1


def print_next_steps(home: Path, screen: Console) -> None:
    """Print how to look at the results again, and how to call `eigensweep` from a shell."""
    programs = Path(sys.executable).parent
    again = f"EIGENSWEEP_HOME={quote(str(home))} make serve"
    lines = [f"All results are in {home}; to look at them again: {again}"]
    if shutil.which("eigensweep") is None:
        lines.append(f"The command line is {programs / 'eigensweep'}")
        if (programs / "activate").exists():
            activate = quote(str(programs / "activate"))
            lines[-1] += f"; to call it as `eigensweep`: source {activate}"
    screen.print("\n".join(lines), markup=False, soft_wrap=True)


def _beats_the_baseline(experiment: Experiment, screen: Console) -> bool:
    best, baseline = experiment.content["best"], experiment.content["baseline"]
    if experiment.state != "completed" or best is None:
        screen.print("error: the experiment has no result")
    elif best["value"] >= baseline:
        screen.print("error: no trial is below the baseline")
    else:
        return True
    return False


@contextmanager
def running_service(home: Path, screen: Console) -> Iterator[Client]:
    """Start a service, lend a client to it once it is ready, and end it."""
    log = home / "service.log"
    screen.print(f"Starting the service: its state is in {home}, its log in {log}", markup=False)
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "eigensweep.service.process.serve"],
            env=os.environ | {"EIGENSWEEP_HOME": str(home)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # so Ctrl-C reaches only this process, which ends the service
        )
    try:
        with Client(_wait_until_ready(home, process, log)) as client:
            yield client
    finally:
        _end(process)


def _wait_until_ready(home: Path, process: subprocess.Popen[bytes], log: Path) -> str:
    """Return the address of the service that runs in `process`, once it answers.

    Raises:
        NotReadyError: if it ends, or if it is not ready after READY_SECONDS.
    """
    deadline = time.monotonic() + READY_SECONDS
    retrying = Retrying(
        retry=retry_if_exception_type((OSError, ValueError, RefusedError)),
        wait=wait_fixed(0.2),
        stop=lambda _: process.poll() is not None or time.monotonic() > deadline,
    )
    try:
        return retrying(_read_address, home, process.pid)
    except RetryError:
        why = "ended" if process.poll() is not None else f"is not ready after {READY_SECONDS:g} s"
        lines = log.read_text(errors="replace").splitlines()[-20:]
        told = "its log ends with:" if lines else "its log is empty; is the machine busy?"
        raise NotReadyError("\n".join([f"the service {why}; {told}", *lines])) from None


def _read_address(home: Path, pid: int) -> str:
    """Return the address in a home folder; raise if no service with this process id answers there.

    Raises:
        OSError: if there is no address or no answer.
        ValueError: if the address is not that of this process.
        RefusedError: if the service is not ready.
    """
    announced = json.loads((home / "service.json").read_text())
    if announced["pid"] != pid:
        raise ValueError(f"the address in {home} is that of process {announced['pid']}, not {pid}")
    with Client(announced["url"]) as client:
        client.get("/readyz")
    return str(announced["url"])


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


if __name__ == "__main__":
    sys.exit(main())
