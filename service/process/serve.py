"""The service as a process: starts its parts, and stops them again.

The API answers first, from a thread; Ray starts after it, in the main thread, which gets signals.
Started by `python -m eigensweep.service.process.serve` or `eigensweep serve`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Final

from anyio import to_thread
from pydantic import ValidationError
from sqlalchemy.exc import SQLAlchemyError

from eigensweep.common import logs, traces
from eigensweep.common.loading import load_for_good
from eigensweep.common.machine import find_memory
from eigensweep.common.variables import warn_of_unknown
from eigensweep.protocol.messages import DriverOptions
from eigensweep.service.process import home, ports
from eigensweep.service.process.mlflow_server import MlflowServer
from eigensweep.service.settings import Mlflow, Settings, StartError, explain_settings, is_loopback
from eigensweep.store.places.durable_files import disk_failure
from eigensweep.workers.cluster.drivers import DRIVER_BYTES

if TYPE_CHECKING:
    from fastapi import FastAPI

    from eigensweep.service.api.parts import Service
    from eigensweep.service.queue.cluster_process import ClusterProcess
    from eigensweep.service.queue.dispatcher import Dispatcher
    from eigensweep.service.queue.jobs import JobRunner
    from eigensweep.service.record.leadership import Leadership
    from eigensweep.service.record.sql.tables import LeaderJson

logger = logging.getLogger("eigensweep.service.process.serve")  # also where it is run as `__main__`

THREADS: Final = 6
"""Requests that are worked on at once. They share Python's lock, so more of them only wait for each
other: with 40, the default, the slowest twentieth of reads without a pause took 1.6 times as long
(`python -m bench.load`)."""

LONGEST_STOP: Final = 10.0
"""Seconds after which a service that was told to stop ends in any case."""
NODES_JOIN_SECONDS: Final = 300.0
"""How long an experiment on a cluster waits for a node with room for its trials."""
AT_ONCE: Final = 2
"""Experiments at once beside trials, unless another number is wanted."""
OF_ALL: Final = 8
"""The same on a cluster, or where each user has one."""
DISK_WORDS: Final = ("database or disk is full", "disk I/O error", "readonly database")
"""What SQLite says where its disk cannot be written."""
PAUSE_SECONDS: Final = 1.0
"""Between two looks whether another service still leads."""
REFUSED: Final = 2
"""Exit status of a service that cannot start with its settings."""


class LeadLostError(RuntimeError):
    """Another service leads now."""


class _StoppedEarly(BaseException):
    """A signal came while the service was starting."""


class _Stopping(threading.Event):
    """Set by SIGINT and SIGTERM; while the service starts, they also interrupt the start."""

    is_starting = True


def main() -> int:
    """Serve with the settings of the environment until a signal, and end the process.

    It returns only where the service could not start: the exit status.
    """
    if sys.platform != "linux":
        sys.stderr.write(
            "error: the service runs on Linux: start it in a container (docker-compose.yml) or in "
            "a virtual machine (on Windows: WSL)\n"
        )
        return REFUSED
    try:
        settings = Settings()
    except ValidationError as error:
        sys.stderr.writelines(f"error: {words}\n" for words in explain_settings(error))
        return REFUSED
    try:
        serve(settings)
    except StartError as error:
        sys.stderr.write(f"error: {error}\n")
        return REFUSED
    except (OSError, SQLAlchemyError) as error:
        if not is_of_the_disk(error):
            raise
        sys.stderr.write(
            f"error: the disk of the home folder {settings.home} cannot be written: {error}. Free "
            "space and files there (df, df -i), and start it again; nothing is lost\n"
        )
        return REFUSED
    except LeadLostError as error:
        logger.warning("%s; starting anew, as a service that waits", error)
        logging.shutdown()
        os.execv(sys.executable, sys.orig_argv)  # the same process, without any of its threads
    logging.shutdown()
    os._exit(0)  # with torch and Ray imported, the interpreter needs seconds to end


def is_of_the_disk(error: BaseException) -> bool:
    """Tell whether a disk is full or broken, for a file or for SQLite."""
    causes = [error, error.__cause__ or error]
    full = any(words in str(each) for each in causes for words in DISK_WORDS)
    return full or disk_failure(error) is not None


def serve(settings: Settings) -> None:
    """Serve until SIGINT or SIGTERM, then stop everything that was started, within 15 seconds."""
    os.umask(0o077)  # for this process and for all that it starts
    logs.set_up(settings.log_format, settings.log_level.upper(), anew=True)
    for chatty in ("httpx2", "httpcore2", "alembic", "uvicorn"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    warn_of_unknown(os.environ, logger)
    os.environ.update(_pass_by_proxies(os.environ))
    traces.set_up("service", traces.find_endpoint(settings.otlp_endpoint))
    with (
        suppress(_StoppedEarly),
        _signals() as stopping,
        home.hold(settings.home) as watcher,
        ExitStack() as stack,
    ):
        # Ray's workers import from the current folder, so it must be one that only we can change.
        stack.callback(os.chdir, os.getcwd())
        os.chdir(settings.home)
        listener = _listen(settings)
        stack.callback(listener.close)
        url = _name_address(listener, settings.host)
        about = _describe(settings, listener)
        mlflow = _make_mlflow_server(settings)
        place = _place_mlflow(settings, mlflow, url)
        if mlflow is not None:
            mlflow.start()
            stack.callback(mlflow.stop)
        # From here on imports take seconds; MLflow has begun with its own.
        with load_for_good():
            leadership = stack.enter_context(_open_record(settings, about))
            require_a_token(settings)
            app, dispatcher, jobs = _build(settings, place, leadership)
        http = _Http(listener, app)
        stack.callback(http.stop)
        home.write_address(settings.home, url, place.pages)
        words = "serving url=%s docs=%s/docs mlflow=%s home=%s"
        logger.info(words, url, url, place.pages, settings.home)

        def watch() -> None:
            start_again(watcher.restart_if_ended)
            if mlflow is not None:
                start_again(partial(mlflow.watch, place.find_problem))
            if not http.is_alive():
                raise RuntimeError("the HTTP server ended by itself")

        def watch_while_it_starts() -> None:
            watch()
            if leadership.term is None:
                raise LeadLostError(leadership.explain_loss())

        _wait_to_lead(leadership, about, dispatcher, watch)
        ray = _run_cluster(settings, dispatcher, watcher.mark, watch_while_it_starts)
        cluster = stack.enter_context(ray)
        dispatcher.start(cluster, _make_driver_options(settings, place))
        jobs.start()
        stack.callback(jobs.stop)
        leadership.serves = True
        logger.info("ready for experiments at_once=%d", dispatcher.max_experiments)
        stopping.is_starting = False
        while leadership.term is not None and not stopping.wait(1.0):
            watch()
            start_again(cluster.watch)
        logger.info("stopping")
        http.begin_to_stop()
        if mlflow is not None:
            mlflow.begin_to_stop()
        dispatcher.stop()
        if not stopping.is_set():
            raise LeadLostError(leadership.explain_loss())


def _pass_by_proxies(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with which no request to this machine goes through a proxy.

    The clients of MLflow, of object stores and of traces read them, in all that the service starts.

    >>> _pass_by_proxies({"NO_PROXY": "example.org"})["no_proxy"]
    'example.org,127.0.0.1,localhost,::1'
    """
    given = environment.get("no_proxy") or environment.get("NO_PROXY") or ""
    if given.strip() == "*":  # every address; beside others it would mean nothing
        return {}
    names = [name for each in given.split(",") if (name := each.strip())]
    names += [name for name in ("127.0.0.1", "localhost", "::1") if name not in names]
    return dict.fromkeys(("no_proxy", "NO_PROXY"), ",".join(names))


def start_again(act: Callable[[], None]) -> None:
    """Start what has ended. Where no process can be started now, the next look tries again."""
    try:
        act()
    except OSError as error:  # no memory, too many processes or files
        logger.warning("what has ended cannot be started again yet: %s", error)


@contextmanager
def _signals() -> Iterator[_Stopping]:
    """Yield an event that SIGINT and SIGTERM set; `LONGEST_STOP` later the process ends."""
    stopping = _Stopping()

    def stop(number: int, frame: FrameType | None) -> None:
        if not stopping.is_set():
            stopping.set()
            threading.Thread(target=_end_soon, daemon=True).start()
            if stopping.is_starting:
                raise _StoppedEarly

    before = {each: signal.signal(each, stop) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopping
    except LeadLostError:
        if not stopping.is_set():
            raise
        logger.info("it was told to stop meanwhile, so it does not start anew")
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _end_soon() -> None:
    time.sleep(LONGEST_STOP)
    logger.error("not stopped after %.0f s, leaving the rest to the guard", LONGEST_STOP)
    os._exit(1)


def _make_mlflow_server(settings: Settings) -> MlflowServer | None:
    if settings.mlflow_uri is not None:
        return None
    may_move = "mlflow_port" not in settings.model_fields_set
    port, claim = ports.claim_port("127.0.0.1", settings.mlflow_port, may_move)
    if port != settings.mlflow_port:
        logger.info("port %d is taken, MLflow uses %d", settings.mlflow_port, port)
    return MlflowServer(settings.home / "mlflow", port, claim)


def _place_mlflow(settings: Settings, server: MlflowServer | None, url: str) -> Mlflow:
    """Return how to reach MLflow; its pages are below the service's `url` if it has the secret."""
    handed_on = settings.mlflow_pages or f"{url}/mlflow"
    service = "" if settings.mlflow_pages else url
    if server is not None:
        end = server.explain_end
        return Mlflow(server.url, handed_on, server.token, explain_end=end, service=service)
    assert settings.mlflow_uri is not None
    if settings.mlflow_token is None:
        return Mlflow(settings.mlflow_uri, settings.mlflow_pages or settings.mlflow_uri)
    token = settings.mlflow_token.get_secret_value()
    return Mlflow(settings.mlflow_uri, handed_on, token, service=service)


@contextmanager
def _open_record(settings: Settings, about: LeaderJson) -> Iterator[Leadership]:
    """Bring the record to this version's schema, and lead, unless another service does.

    Who waits for the lead changes nothing. It needs this version's schema to answer, so it waits
    for that first, if the leader is of an earlier version.

    Raises:
        RecordUnusableError: if the database cannot be opened, read or changed.
        StartError: if its schema has a version that this one does not know, or the leader keeps
            checkpoints elsewhere.
    """
    from eigensweep.service.record import migrations
    from eigensweep.service.record.leadership import Leadership

    leadership, url, is_told = Leadership(settings.database), settings.database, False
    try:
        while True:
            with migrations.try_database(url):
                leads = leadership.hold()
                schema, newest = migrations.compare_versions(url)
            if leads or schema not in (None, *migrations.list_revisions()):
                migrations.migrate(url)  # or say that it is newer
            if leads or schema == newest:
                break
            if not is_told:
                logger.warning(
                    "another service leads, with the schema of an earlier version: this one brings "
                    "it up to date, and answers, once that service has ended"
                )
            is_told = True
            time.sleep(PAUSE_SECONDS)
        with migrations.try_database(url):
            if leads:
                _begin(leadership, about)
            else:
                _compare_with_leader(leadership, about)
        yield leadership
    finally:
        leadership.stop()


def _begin(leadership: Leadership, about: LeaderJson) -> None:
    """Begin to lead, and take over what another service or an earlier version has left."""
    from eigensweep.service.record.jobs import Jobs
    from eigensweep.service.record.requests import state_files

    leadership.begin(about)
    state_files.take_over(leadership.url, Path(about["home"]))
    Jobs(leadership.url, leadership.require).requeue("analysis")


def _compare_with_leader(leadership: Leadership, about: LeaderJson) -> None:
    """Refuse to wait for the lead with another store than the leader's.

    Raises:
        StartError: since what it has committed would be missing then.
    """
    lead = leadership.look()
    if lead is None:
        return
    if lead.about["storage"] != about["storage"]:
        raise StartError(
            f"{lead.words}; its checkpoints are in {lead.about['storage']}, and this service would "
            f"look for them in {about['storage']}: set EIGENSWEEP_STORAGE to the leader's store, "
            "which both have to see, or EIGENSWEEP_DATABASE_URL to another database"
        )
    if lead.about["mlflow"] is None or lead.about["mlflow"] != about["mlflow"]:
        logger.warning(
            "the leader has another MLflow server than this service, which would deliver to its "
            "own once it leads: set EIGENSWEEP_MLFLOW_URI for both"
        )


def _wait_to_lead(
    leadership: Leadership, about: LeaderJson, dispatcher: Dispatcher, watch: Callable[[], None]
) -> None:
    """Wait until no other service leads, and begin to lead; the API answers meanwhile.

    Raises:
        StartError: if a newer version of the service has led meanwhile.
    """
    from eigensweep.service.record.migrations import RecordUnusableError, migrate

    problem: str | None = None
    told: float | None = None
    while leadership.term is None:
        try:
            if leadership.hold():
                migrate(leadership.url)  # whoever has led may be of an earlier version
                _begin(leadership, about)
                logger.info("this service leads now term=%d", leadership.term)
                return
            leadership.look()
            problem = None
        except (SQLAlchemyError, RecordUnusableError, OSError) as error:
            if problem is None:
                logger.warning("the lead cannot be had now, trying again: %s", error)
            problem = str(error)
        dispatcher.problem = leadership.words
        if problem is None and (lead := leadership.lead) is not None and lead.since != told:
            told = lead.since
            logger.info("%s", lead.words)
        watch()
        time.sleep(PAUSE_SECONDS)


def _build(
    settings: Settings, mlflow: Mlflow, leadership: Leadership
) -> tuple[FastAPI, Dispatcher, JobRunner]:
    """Return the application, and what works off its queues."""
    from eigensweep.service.api.app import create_app
    from eigensweep.service.queue.dispatcher import MOST_DELIVERIES, Dispatcher
    from eigensweep.service.record.record import Record
    from eigensweep.service.record.sql import database

    look = database.look_for_damage
    threading.Thread(target=look, args=[settings.database], name="check", daemon=True).start()
    record = Record(settings.database, settings.webhook_urls)
    record.leadership = leadership
    wanted = settings.max_experiments
    if wanted is None:
        wanted = AT_ONCE if settings.ray_address is None else OF_ALL
    most = max(1, find_memory() // 2 // DRIVER_BYTES - MOST_DELIVERIES)
    dispatcher = Dispatcher(
        record,
        min(wanted, most),
        min(max(wanted, OF_ALL), most),
        find_mlflow_problem=mlflow.find_problem,
    )
    app = create_app(settings, record, dispatcher, mlflow)
    return app, dispatcher, _make_runner(settings, app.state.service, dispatcher, mlflow)


def _make_runner(
    settings: Settings, service: Service, dispatcher: Dispatcher, mlflow: Mlflow
) -> JobRunner:
    """Return what works on the jobs of the record."""
    from eigensweep.service.queue.analyses import AnalysisHandler
    from eigensweep.service.queue.deletions import DeletionHandler
    from eigensweep.service.queue.jobs import Handler, JobRunner
    from eigensweep.service.queue.reproductions import ReproductionHandler
    from eigensweep.service.queue.retention import PruningHandler
    from eigensweep.service.queue.webhooks import WebhookHandler

    record, probe = service.record, service.store
    keep, days, hours = settings.keep, settings.retention_days, settings.retention_hours
    logs_of_removals = settings.home / "deletions"
    handlers: list[Handler] = [
        AnalysisHandler(probe, service.analyses, str(settings.corpora), mlflow=mlflow),
        ReproductionHandler(probe, service.reproductions, record, service.analyses, mlflow=mlflow),
        DeletionHandler(record, dispatcher.find_driver, logs_of_removals, probe, mlflow=mlflow),
        PruningHandler(record, probe, keep, days, hours),
    ]
    if settings.webhook_hosts and settings.webhook_secret is not None:
        secret = settings.webhook_secret.get_secret_value()
        hosts, networks = settings.webhook_hosts, settings.webhook_networks
        handlers.append(WebhookHandler(service.jobs, hosts, secret, networks))
    return JobRunner(service.jobs, handlers)


def require_a_token(settings: Settings, *, is_new: bool = False) -> None:
    """Refuse to listen where other machines can come, while nobody could show who they are.

    `is_new` says that there is no record yet, and so nobody's token.

    Raises:
        StartError: if they can come; the message says what would help.
    """
    from eigensweep.service.record.users.accounts import Accounts

    if settings.token or settings.proxy_secret or is_loopback(settings.host):
        return
    if is_new or not Accounts(settings.database).has_usable_token():
        raise StartError(
            f"host {settings.host} can be reached from other machines: make a token with "
            "`eigensweep token create`, or set EIGENSWEEP_TOKEN to a secret of your choice, or "
            "EIGENSWEEP_HOST to 127.0.0.1"
        )


def _make_driver_options(settings: Settings, mlflow: Mlflow) -> DriverOptions:
    return DriverOptions(
        mlflow_uri=mlflow.uri,
        mlflow_token=mlflow.token,
        storage=settings.storage_folder,
        data_root=str(settings.corpora),
        shares_corpora=settings.ray_address is not None,
        retries=settings.retries,
        checkpoint_seconds=settings.checkpoint_seconds,
        least_free_bytes=settings.least_free_bytes,
        log_format=settings.log_format,
        otlp_endpoint=traces.find_endpoint(settings.otlp_endpoint),
        room_seconds=0.0 if settings.ray_address is None else NODES_JOIN_SECONDS,
    )


def _listen(settings: Settings) -> socket.socket:
    may_move = "port" not in settings.model_fields_set
    listener = ports.listen(settings.host, settings.port, may_move)
    port = listener.getsockname()[1]
    if port != settings.port:
        logger.info("port %d is taken, the API uses %d", settings.port, port)
    return listener


def _describe(settings: Settings, listener: socket.socket) -> LeaderJson:
    """Return what the record says of this service while it leads."""
    host = socket.gethostname()
    seen_as = settings.host if is_loopback(settings.host) else host
    return {
        "host": host,
        "pid": os.getpid(),
        "address": _name_address(listener, seen_as),
        "home": str(settings.home),
        "storage": settings.storage_folder,
        "mlflow": settings.mlflow_uri,
        "ray": settings.ray_address,
    }


def _name_address(listener: socket.socket, host: str) -> str:
    """Return the address of the service for programs and browsers of this machine."""
    if host in ("0.0.0.0", "::"):
        host = "localhost"
    return f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}"


class _Http:
    """Answers HTTP from a thread."""

    def __init__(self, listener: socket.socket, app: FastAPI) -> None:
        import uvicorn

        from eigensweep.service.process.timed_http import TimedHttp

        self._listener = listener
        self._closing = app.state.service.tailer.closing
        config = uvicorn.Config(
            app,
            http=TimedHttp,
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=4,
            lifespan="off",
            proxy_headers=False,  # it would believe every program of this machine
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=asyncio.run, args=(self._serve(),), name="http", daemon=True
        )
        self._thread.start()

    async def _serve(self) -> None:
        """Answer until `begin_to_stop`."""
        to_thread.current_default_thread_limiter().total_tokens = THREADS
        await self._server.serve([self._listener])

    def is_alive(self) -> bool:
        """Return whether it still answers."""
        return self._thread.is_alive()

    def begin_to_stop(self) -> None:
        """End open event streams, and take no new requests."""
        self._closing.set()
        self._server.should_exit = True

    def stop(self) -> None:
        """Return when the last request is answered, or after 6 seconds."""
        self.begin_to_stop()
        self._thread.join(6)
        self._listener.close()


@contextmanager
def _run_cluster(
    settings: Settings, dispatcher: Dispatcher, mark: str, meanwhile: Callable[[], None]
) -> Iterator[ClusterProcess]:
    """Start Ray, and end it afterwards; until it answers, `meanwhile` is called every second."""
    from eigensweep.service.queue.cluster_process import ClusterProcess
    from eigensweep.service.record.ledger import RecordLedger
    from eigensweep.workers.cluster.drivers import Drivers

    cluster = ClusterProcess(
        {
            "address": settings.ray_address,
            "num_cpus": settings.cpus,
            "temp_dir": str(settings.home / "ray"),
            "kept_memory": dispatcher.max_drivers * DRIVER_BYTES,
            "log_level": settings.log_level.upper(),
            "log_format": settings.log_format,
        },
        mark,
        Drivers([RecordLedger.__module__]),  # of what drivers are given
    )
    try:
        cluster.start(meanwhile)
        yield cluster
    finally:
        cluster.stop()


if __name__ == "__main__":
    sys.exit(main())
