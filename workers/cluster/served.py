"""A process that holds the connection to Ray for the service, so that it may die with Ray.

Started as `python -m eigensweep.workers.cluster.served DESCRIPTOR SETTINGS`: the number of an open
pipe, and JSON. It answers the requests that come through the pipe and ends when Ray is lost: Ray
itself ends a process that lost it, without a word of its reason.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib import import_module
from multiprocessing.connection import Connection
from typing import Any, Final

from eigensweep.workers.cluster.ray_cluster import (
    ClusterError,
    DriverHandle,
    RayCluster,
    SlowStartError,
    explain_loss,
    explain_silence,
)
from eigensweep.workers.shared import logs
from eigensweep.workers.shared.deaths import Death

logger = logging.getLogger(__name__)

CHECK_SECONDS: Final = 1.0
"""Seconds between two looks at Ray."""
STRIKES: Final = 2
"""How often in a row Ray does not answer before it counts as lost: so after less than 5 seconds,
also if no packet comes back."""
PAUSE_SECONDS: Final = 30.0
"""Seconds until another try after drivers could not be made ready."""
REQUESTS: Final = 8
"""How many requests are worked on at once; a driver that is busy answers late."""


@dataclass
class Served:
    """Answers the service's requests with a cluster."""

    cluster: RayCluster
    pipe: Connection
    _drivers: dict[str, DriverHandle] = field(default_factory=dict)
    _turn: threading.Lock = field(default_factory=threading.Lock)

    def serve(self) -> None:
        """Answer until the service has gone, or asks to stop."""
        with ThreadPoolExecutor(REQUESTS) as pool:
            try:
                while (request := self.pipe.recv())[1] != "stop":
                    pool.submit(self._answer, *request)
            except EOFError:
                pass

    def tell(self, number: int | None, kind: str, content: Any) -> None:
        """Send an answer, or, with no number, what nobody has asked for."""
        with self._turn:
            self.pipe.send((number, kind, content))

    def watch(self) -> None:
        """Look at Ray again and again; end this process when it is lost."""
        strikes = 0
        while strikes < STRIKES:
            time.sleep(CHECK_SECONDS)
            loss = explain_loss()
            strikes = 0 if loss is None else strikes + 1
        self.tell(None, "lost", loss)
        os._exit(1)  # leaving Ray in order would wait for it

    def look(self) -> None:
        """Tell the service what there is to see of Ray, or that it does not answer.

        If Ray stands still within the look, nothing is told, and the service notices that.
        """
        silence = explain_silence()
        if silence is not None:
            self.tell(None, "silent", silence)
            return
        try:
            self.tell(None, "seen", self.cluster.look())
        except Exception as error:  # the edge of this thread
            logger.debug("Ray cannot be looked at", exc_info=True)
            self.tell(None, "silent", f"Ray does not answer ({type(error).__name__}: {error})")

    def keep_looking(self) -> None:
        """Look again and again: requests to the service are answered from the last look."""
        while True:
            time.sleep(CHECK_SECONDS)
            self.look()

    def keep_warm(self) -> None:
        """Keep drivers ready. They only save time: where that fails, it is tried again later."""
        while True:
            try:
                self.cluster.keep_warm()
            except Exception:  # the edge of this thread
                logger.warning("no driver could be made ready, trying again", exc_info=True)
                time.sleep(PAUSE_SECONDS)
            time.sleep(CHECK_SECONDS)

    def _answer(self, number: int, name: str, arguments: tuple[Any, ...]) -> None:
        try:
            self.tell(number, "answer", getattr(self, f"_{name}")(*arguments))
        except Exception as error:  # the edge of this process: the service is told
            logger.debug("request failed name=%s", name, exc_info=True)
            self.tell(number, "error", f"{type(error).__name__}: {error}")

    def _launch(self, experiment: str, *rest: Any) -> str:
        driver = self._drivers[experiment] = self.cluster.launch(experiment, *rest)
        return driver.process

    def _find(self, experiment: str) -> str | None:
        found = self.cluster.find(experiment)
        if found is None:
            return None
        self._drivers[experiment] = found
        return found.process

    def _state(self, experiment: str) -> tuple[str, Death | None]:
        driver = self._drivers[experiment]
        return driver.state(), driver.death


def main() -> None:
    """Start or join Ray, serve requests, and leave it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the service, which ends this
    settings = json.loads(sys.argv[2])
    logs.set_up(settings.pop("log_format"), settings.pop("log_level"))
    pipe = Connection(int(sys.argv[1]))
    try:
        cluster = RayCluster.start(**settings)
    except ClusterError as error:
        kind = "slow" if isinstance(error, SlowStartError) else "failed"
        pipe.send((None, kind, str(error)))
        return
    served = Served(cluster, pipe)
    served.look()
    served.tell(None, "ready", socket.gethostname())
    for name in settings.get("modules", ()):  # which the first request would load
        import_module(name)
    threading.Thread(target=served.watch, name="watch", daemon=True).start()
    threading.Thread(target=served.keep_looking, name="look", daemon=True).start()
    threading.Thread(target=served.keep_warm, name="warm", daemon=True).start()
    served.serve()
    cluster.stop()
    os._exit(0)


if __name__ == "__main__":
    main()
