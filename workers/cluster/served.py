"""A process that holds a connection to Ray for the service, so that it may die with Ray.

Started as `python -m eigensweep.workers.cluster.served DESCRIPTOR SETTINGS`: the number of an open
pipe, and JSON. It tells the service what there is to see of Ray, until that writes or closes the
pipe, and ends when Ray is lost: Ray itself ends a process that lost it, without a word of its
reason. On a Ray of our own it keeps processes ready for the first trials.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, Final

from eigensweep.common import logs
from eigensweep.workers.cluster.ray_cluster import ClusterError, RayCluster, SlowStartError
from eigensweep.workers.cluster.trial_processes import keep_ready

logger = logging.getLogger(__name__)

CHECK_SECONDS: Final = 1.0
"""Seconds between two looks at Ray."""
STRIKES: Final = 2
"""How often in a row Ray does not answer before it counts as lost: so after less than 5 seconds,
also if no packet comes back."""


@dataclass
class Served:
    """Tells the service of a cluster."""

    cluster: RayCluster
    pipe: Connection
    _turn: threading.Lock = field(default_factory=threading.Lock)

    def tell(self, kind: str, content: Any) -> None:
        """Send something to the service."""
        with self._turn:
            self.pipe.send((kind, content))

    def watch(self) -> None:
        """Look at Ray again and again; end this process when it is lost."""
        strikes = 0
        while strikes < STRIKES:
            time.sleep(CHECK_SECONDS)
            loss = self.cluster.explain_loss()
            strikes = 0 if loss is None else strikes + 1
        self.tell("lost", loss)
        os._exit(1)  # leaving Ray in order would wait for it

    def look(self) -> None:
        """Tell the service what there is to see of Ray, or that it does not answer.

        If Ray stands still within the look, nothing is told, and the service notices that.
        """
        silence = self.cluster.explain_silence()
        if silence is not None:
            self.tell("silent", silence)
            return
        try:
            self.tell("seen", self.cluster.look())
        except Exception as error:  # the edge of this thread
            logger.debug("Ray cannot be looked at", exc_info=True)
            self.tell("silent", f"Ray does not answer ({type(error).__name__}: {error})")

    def keep_looking(self) -> None:
        """Look again and again: requests to the service are answered from the last look."""
        while True:
            time.sleep(CHECK_SECONDS)
            self.look()


def main() -> None:
    """Start or join Ray, serve requests, and leave it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the service, which ends this
    settings = json.loads(sys.argv[2])
    logs.set_up(settings.pop("log_format"), settings.pop("log_level"))
    pipe = Connection(int(sys.argv[1]))
    try:
        cluster = RayCluster.start(**settings)
    except Exception as error:
        kind, words = "slow" if isinstance(error, SlowStartError) else "failed", str(error)
        if not isinstance(error, ClusterError):
            logger.exception("Ray could not be started or joined")
            words = f"{type(error).__name__}: {error}"
        pipe.send((kind, words))
        os._exit(1)  # leaving Ray in order would wait for it
    served = Served(cluster, pipe)
    served.look()
    served.tell("ready", cluster.place)
    threading.Thread(target=served.watch, name="watch", daemon=True).start()
    threading.Thread(target=served.keep_looking, name="look", daemon=True).start()
    if settings["address"] is None:
        threading.Thread(target=keep_ready, name="ahead", daemon=True).start()
    with suppress(EOFError, OSError):  # the service has gone
        pipe.recv()
    cluster.stop()
    os._exit(0)


if __name__ == "__main__":
    main()
