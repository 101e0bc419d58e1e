"""Measure what many people at once see of a service that holds a large experiment.

`python -m bench.load` fills a record with one experiment of 100,000 trials, starts the real service
with its Ray and MLflow, and prints median, 95th percentile and longest time of

- reads: 25 readers, each with a connection of its own, ask for lists, the large experiment, pages
  of its trials and single trials. Each waits a while before its next request, as a page does; then
  the same once more without any pause, where the processors are the limit;
- events: 200 streams follow an experiment that trains; from an event's time to its arrival;
- posts: 100 clients post 5 experiments each, one after another, while a driver starts and trains.

Clients and service share the machine's processors; the table says how much of one the clients
take, and the memory of the service's process after each part. Times are in milliseconds. The last
lines are that memory before the first request, and how much of a processor the service takes with
a queue of 500 experiments when nobody asks for anything.
"""

from __future__ import annotations

import json
import math
import os
import random
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import psutil  # type: ignore[import-untyped]
from rich.console import Console
from sqlalchemy import update
from starlette.testclient import TestClient

from bench.overhead import one_step
from bench.pages import fill, make_spec
from bench.report import add_json, new_parser, say, table, write
from eigensweep.command.quickstart import running_service
from eigensweep.service.api.app import create_app
from eigensweep.service.queue.dispatcher import Dispatcher
from eigensweep.service.record.migrations import migrate
from eigensweep.service.record.record import Record
from eigensweep.service.record.sql import database
from eigensweep.service.record.sql.rows import RowSession
from eigensweep.service.record.sql.tables import ExperimentRow
from eigensweep.service.settings import Settings

LONGEST_SECONDS: Final = 120.0
POSTS: Final = 5
IDLE_SECONDS: Final = 20.0
TRAINED: Final = 40
"""Trials of the experiment that the streams follow."""


class Visitor:
    """One connection to the service, as a program or a browser holds it."""

    def __init__(self, url: str) -> None:
        self._connection = HTTPConnection(urlsplit(url).netloc, timeout=LONGEST_SECONDS)

    def ask(self, path: str, body: Any = None) -> tuple[float, bytes]:
        """Return the milliseconds until the whole answer was there, and its JSON.

        Raises:
            RuntimeError: if it is refused.
        """
        began = time.perf_counter()
        content = None if body is None else json.dumps(body)
        headers = {"Content-Type": "application/json"}
        self._connection.request("GET" if body is None else "POST", path, content, headers)
        answer = self._connection.getresponse()
        text = answer.read()
        took = 1e3 * (time.perf_counter() - began)
        if answer.status >= 300:
            raise RuntimeError(f"{path} was answered {answer.status}: {text[:500]!r}")
        return took, text

    def follow(self, path: str) -> Iterator[dict[str, Any]]:
        """Yield the data of each event of a stream until it ends."""
        self._connection.request("GET", path)
        answer = self._connection.getresponse()
        while line := answer.readline():
            if line.startswith(b"data:"):
                yield json.loads(line[5:])

    def close(self) -> None:
        """End the connection."""
        self._connection.close()


def summarise(times: list[float]) -> dict[str, float]:
    """Return how many there are, the median, the 95th percentile and the longest.

    >>> summarise([3.0, 1.0, 2.0])
    {'count': 3, 'p50': 2.0, 'p95': 3.0, 'max': 3.0}
    """
    ordered = sorted(times)

    def rank(share: float) -> float:
        return ordered[max(0, math.ceil(share * len(ordered)) - 1)]

    return {"count": len(ordered), "p50": rank(0.5), "p95": rank(0.95), "max": ordered[-1]}


def watch(work: Callable[[], list[float]]) -> dict[str, float]:
    """Return the summary of some times, and how much of a processor their clients took, in %."""
    began, used = time.perf_counter(), time.process_time()
    times = work()
    share = (time.process_time() - used) / (time.perf_counter() - began)
    return summarise(times) | {"clients": 100 * share}


def at_once(work: Callable[[int], list[float]], people: int) -> list[float]:
    """Let so many people work at once; return all of their times."""
    with ThreadPoolExecutor(people) as pool:
        return [took for times in pool.map(work, range(people)) for took in times]


def read(url: str, id: str, trials: int, readers: int, requests: int, pause: float) -> list[float]:
    """Return the milliseconds of each read of `readers` people."""
    here = f"/v1/experiments/{id}"
    paths = (
        "/v1/experiments",
        here,
        f"{here}/trials",
        f"{here}/trials?state=failed",
        f"{here}/trials?sort=number&limit=100",
        f"{here}/trials/{{}}",
    )

    def visit(person: int) -> list[float]:
        chance, times = random.Random(person), []
        with closing(Visitor(url)) as visitor:
            for _ in range(requests):
                time.sleep(chance.uniform(0, 2 * pause))
                path = chance.choice(paths).format(chance.randrange(trials))
                times.append(visitor.ask(path)[0])
        return times

    return at_once(visit, readers)


def follow(url: str, streams: int) -> list[float]:
    """Return the milliseconds from each event of an experiment to each stream that follows it."""
    with closing(Visitor(url)) as poster:
        id = json.loads(poster.ask("/v1/experiments", one_step(TRAINED, 0))[1])["id"]
    opened = threading.Barrier(streams)

    def listen(person: int) -> list[float]:
        times = []
        opened.wait(LONGEST_SECONDS)
        began = time.time()
        with closing(Visitor(url)) as visitor:
            for event in visitor.follow(f"/v1/experiments/{id}/events"):
                if event["at"] > began:  # what had happened before was told at once
                    times.append(1e3 * (time.time() - event["at"]))
        return times

    return at_once(listen, streams)


def post(url: str, clients: int) -> list[float]:
    """Return the milliseconds of each post."""

    def submit(person: int) -> list[float]:
        specs = (one_step(2, 1 + POSTS * person + number) for number in range(POSTS))
        with closing(Visitor(url)) as visitor:
            return [visitor.ask("/v1/experiments", spec)[0] for spec in specs]

    return at_once(submit, clients)


def watch_idle(process: psutil.Process) -> float:
    """Return how much of a processor the service takes while nobody asks for anything, in %."""
    process.cpu_percent()
    time.sleep(IDLE_SECONDS)
    return float(process.cpu_percent())


def prepare(home: Path, trials: int) -> str:
    """Make a home folder whose record holds a completed experiment; return its id."""
    settings = Settings(home=home, data_root=home)
    migrate(settings.database)
    record = Record(settings.database)
    with TestClient(create_app(settings, record, Dispatcher(record))) as client:
        spec = make_spec(trials)
        id: str = client.post("/v1/experiments", json=spec).json()["id"]
        config = client.post("/v1/experiments/preview", json=spec).json()["first"][0]["config"]
    fill(settings.database, Path(settings.storage_folder), id, config, trials, reports=2)
    now = time.time()
    over = {"state": "completed", "tracked": True, "started_at": now - 99, "finished_at": now}

    def end(rows: RowSession) -> None:
        rows.execute(update(ExperimentRow).values(**over, left_at=now))

    database.write(settings.database, end)
    database.engine(settings.database).dispose()
    return id


@contextmanager
def service(home: Path) -> Iterator[tuple[str, psutil.Process]]:
    """Run the real service in a home folder; give its address and its process."""
    with running_service(home, Console()):
        found = json.loads((home / "service.json").read_text())
        yield found["url"], psutil.Process(found["pid"])


def main() -> None:
    """Fill, start, measure, print."""
    parser = new_parser(__doc__)
    for option, default, words in (
        ("--trials", 100_000, "trials of the large experiment"),
        ("--readers", 25, "readers at once"),
        ("--requests", 40, "requests of each reader"),
        ("--streams", 200, "streams at once"),
        ("--clients", 100, "clients that post"),
    ):
        parser.add_argument(
            option, type=int, default=default, help=f"{words}; default: %(default)s"
        )
    parser.add_argument(
        "--pause",
        type=float,
        default=0.5,
        help="seconds between two requests of a reader, on average; default: %(default)s",
    )
    add_json(parser, "load")
    given = parser.parse_args()
    os.environ.setdefault("EIGENSWEEP_MAX_EXPERIMENTS", "1")
    with tempfile.TemporaryDirectory(prefix="es-", dir="/tmp") as folder:
        home = Path(folder) / "home"
        home.mkdir(mode=0o700)
        id = prepare(home, given.trials)
        with service(home) as (url, process):
            before = process.memory_info().rss / 1e6
            size = (given.trials, given.readers, given.requests)
            works: dict[str, Callable[[], list[float]]] = {
                "reads": partial(read, url, id, *size, given.pause),
                "reads without a pause": partial(read, url, id, *size, 0.0),
                "events": partial(follow, url, given.streams),
                "posts": partial(post, url, given.clients),
            }
            shown = {}
            for name, work in works.items():
                shown[name] = watch(work) | {"mb": process.memory_info().rss / 1e6}
                say(f"{name}: p95 {shown[name]['p95']:.0f} ms")
            idle = watch_idle(process)
    headings = {"what": "", "count": "count", "p50": "median", "p95": "p95", "max": "longest"}
    headings |= {"clients": "clients, % of a processor", "mb": "service, MB"}
    say(table([{"what": name, **numbers} for name, numbers in shown.items()], headings))
    say(f"memory of the service before the first request: {before:.0f} MB")
    queued = POSTS * given.clients
    say(f"with {queued} experiments in the queue it takes {idle:.1f} % of a processor by itself")
    sizes = {name: value for name, value in vars(given).items() if name != "json"}
    memory = {"service_mb_before": before, "service_idle_percent": idle}
    write({**sizes, "milliseconds": shown, **memory}, given.json)


if __name__ == "__main__":
    main()
