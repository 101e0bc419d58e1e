"""`make run`: a service of its own, a small experiment posted to it over HTTP, the ranked result.

On a terminal the service goes on until Ctrl-C, so that its pages can be looked at. Otherwise it
ends, and nothing is left running. The exit code is 0 where the best trial beats the baseline.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from eigensweep.service.client import Client, Experiment, RefusedError, ServiceAwayError
from eigensweep.service.command import summaries, terminal

PRESET = "quickstart"
READY_SECONDS = 180.0
STOP_SECONDS = 30.0


class NotReadyError(RuntimeError):
    """The service did not start; the message ends with what it said last."""


def main() -> int:
    """Run the quick start and return its exit code."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    screen = terminal.console()
    home = Path(os.environ.get("EIGENSWEEP_HOME") or tempfile.mkdtemp(prefix="eigensweep-"))
    home.mkdir(parents=True, exist_ok=True)
    code = 128 + signal.SIGINT
    try:
        with running_service(home, screen) as client:
            code = run(client, screen)
            if screen.is_terminal:
                screen.print(f"\nThe service goes on at {client.url}. Ctrl-C ends it.")
                signal.pause()
    except KeyboardInterrupt:
        pass  # the way to end it on a terminal
    except (NotReadyError, RefusedError, ServiceAwayError) as error:
        screen.print(f"error: {error}", markup=False)
        return 1
    again = f"EIGENSWEEP_HOME={home} make serve"
    screen.print(f"Everything is in {home}; look again with: {again}", soft_wrap=True)
    return code


def run(client: Client, screen: Console) -> int:
    """Post the experiment, follow it to its end, print what came out, and return the exit code."""
    started = time.monotonic()
    experiment = client.submit(PRESET)
    screen.print(f"POST {client.url}/v1/experiments: {experiment.id} {experiment.name}")
    terminal.follow(experiment, screen)
    screen.print()
    terminal.show_trials(experiment.trials, screen)
    screen.print()
    screen.print(summaries.format_experiment(experiment.content), markup=False)
    screen.print(f"API         {client.url}/docs")
    screen.print(f"{time.monotonic() - started:.0f} seconds from the POST to the last trial's end")
    return 0 if _beats_the_baseline(experiment, screen) else 1


def _beats_the_baseline(experiment: Experiment, screen: Console) -> bool:
    best, baseline = experiment.content["best"], experiment.content["baseline"]
    if experiment.state != "completed" or best is None:
        screen.print("error: the experiment brought no result")
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
            start_new_session=True,  # Ctrl-C comes to us alone, and we end it in order
        )
    try:
        with Client(_address_when_ready(home, process, log)) as client:
            yield client
    finally:
        _end(process)


def _address_when_ready(home: Path, process: subprocess.Popen[bytes], log: Path) -> str:
    deadline = time.monotonic() + READY_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.2)
        with contextlib.suppress(OSError, ValueError, ServiceAwayError, RefusedError):
            announced = json.loads((home / "service.json").read_text())
            if announced["pid"] == process.pid:
                with Client(announced["url"]) as client:
                    client.get("/readyz")
                return str(announced["url"])
    why = "is not ready" if process.poll() is None else "ended"
    said = log.read_text(errors="replace").splitlines()[-20:]
    raise NotReadyError("\n".join([f"the service {why}; it said last:", *said]))


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


if __name__ == "__main__":
    sys.exit(main())
