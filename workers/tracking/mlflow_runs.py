"""Runs in MLflow: made once each, found again by their tags. MLflow's client is imported here only.

Every error of MLflow becomes one of two: `AwayError` if the same request may succeed later, and
`MlflowRefusedError` if it never will.
"""

from __future__ import annotations

import json
import logging
import os
import re
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from eigensweep.search_spaces import dotted
from eigensweep.store.commits.curves import CurvePoint
from eigensweep.workers.tracking.run_writes import PATH, RunWrite, is_kept_by_server, next_request

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Experiment, Metric, Run

logger = logging.getLogger(__name__)

T = TypeVar("T")

EXPERIMENT, TRIAL, SEED = "eigensweep.experiment", "eigensweep.trial", "eigensweep.replicate"
"""Tags by which runs are found."""

OUTCOME, ERROR = "eigensweep.outcome", "eigensweep.error"
"""Tags that say how a run ended."""

KIND = "eigensweep.kind"
"""Tag that tells runs of an experiment, its trials and their replicates apart."""

UNNAMED = "default"
"""The project of who names none. It is MLflow's own `Default`, unless an older one has its name."""

EXPERIMENT_TAGS = {"mlflow.experimentKind": "custom_model_development"}
"""What makes MLflow's pages open an experiment as model training, with its curves in front."""

VIEW = "mlflow.sharedViewState."
"""What begins the name of the tag that says how MLflow's page shows an experiment's runs."""

NAMES: Final = uuid.UUID("8ca1d0a4-5b0b-4a3f-9c63-1b5f8f0e2d57")
"""What the ids of runs on a server of ours are made under."""

MOST_DELETED: Final = 100
"""How often a run may be deleted and made again, at most."""

AT_ONCE: Final = 8
"""Runs that are written at once to a server of somebody else's; more would only wait for it."""

Key = tuple[int | None, int | None]
"""Trial and seed of a run: no seed for a trial's own run, neither for the experiment's."""

MOST_METRICS, MOST_PARAMS, LONGEST_PARAM, LONGEST_TAG, LONGEST_NAME = 1000, 100, 500, 5000, 250

ELSEWHERE = (
    "its project keeps artifacts elsewhere than in MLflow's own folder, and drivers do not write "
    "there; another project keeps them"
)
"""Why artifacts are not sent to a server of ours."""

TRANSIENT = frozenset(
    {
        "INTERNAL_ERROR",
        "TEMPORARILY_UNAVAILABLE",
        "DEADLINE_EXCEEDED",
        "REQUEST_LIMIT_EXCEEDED",
        "RESOURCE_EXHAUSTED",
        "ABORTED",
        "CANCELLED",
        "RESOURCE_CONFLICT",
        "PERMISSION_DENIED",
        "CUSTOMER_UNAUTHORIZED",
        "UNAUTHENTICATED",
        "ENDPOINT_NOT_FOUND",
        "DATA_LOSS",
        "INVALID_STATE",
    }
)
"""Errors of MLflow that may pass: it is starting or busy, or a proxy or a key is being renewed."""

NOT_THERE: Final = ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE")
"""What MLflow answers where it has no such run, or another one could have no such id."""

DAMAGED: Final = re.compile(r"\((\w+\.)+(DatabaseError|InternalError|UndefinedTable)\) ")
"""What stands in an answer whose reason is a damaged database, and not the request."""

PAGE: Final = re.compile(r"API request to .* failed with error code 400 ")
"""What MLflow's client says of an answer that is not MLflow's: a proxy's page with status 400."""

NOT_NOW: Final = frozenset({401, 408, 429})
"""Statuses below 500 that do not tell whether a server knows the request for many runs."""

FORBIDDEN = (PermissionError, FileNotFoundError, NotADirectoryError, IsADirectoryError)
"""Errors of a folder of artifacts that do not pass by themselves; a full disk may."""

NO_KEYS = frozenset({"NoCredentialsError", "PartialCredentialsError", "DefaultCredentialsError"})
"""Errors of the libraries of S3 and Google Cloud Storage, which need not be installed."""


class AwayError(RuntimeError):
    """MLflow does not answer, or not now."""


class MlflowRefusedError(RuntimeError):
    """MLflow will never take this: the run was deleted, or a value is not allowed."""


@dataclass
class RunContent:
    """What is to be sent to one run."""

    points: list[CurvePoint] = field(default_factory=list)
    params: dict[str, object] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)


class MlflowAnswer(NamedTuple):
    """A server's answer to a request of ours: its status, and the JSON or the words of its body."""

    status: int
    content: Any


def load_client() -> type[MlflowClient]:
    """Load MLflow's client, which takes a second, with the settings that we want."""
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    # Else each end of a run asks for the run first, to print where it can be seen.
    os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
    from mlflow import MlflowClient

    return MlflowClient


class Runs:
    """The runs of one experiment: what is written to them waits for `flush`.

    A server of ours takes many runs in one request, and there a run's id follows from experiment,
    trial and seed. So a request whose answer was lost, and one that arrives after its driver's
    death, write what the next one writes. A run with the tags of the experiment and another id is
    none of its runs: anybody may have written them. Any other server makes each run, and its id, at
    once, and is sent one run after the other.
    """

    def __init__(self, uri: str, project: str, experiment: str, run_id: str | None = None) -> None:
        """Connect, and send nothing yet. The caller tries again, so MLflow's client does not.

        `run_id` is the experiment's own run, if it was made before: its project counts then, also
        where a person has renamed it.
        """
        self._client = load_client()(tracking_uri=uri)
        self._uri, self._project, self._experiment = uri, project, experiment
        self._run_id = run_id
        self._project_id: str | None = None
        self._place: str | None = None
        self._is_ours: bool | None = None
        self._known: dict[Key, str] = {}
        self._seeds: dict[int, dict[int, str]] = {}
        """The runs of replicates by trial and seed, which `_known` has, too."""
        self._deleted: defaultdict[Key, set[str]] = defaultdict(set)
        self._waiting: dict[str, RunWrite] = {}
        self._start_times: dict[str, int] = {}
        self._over: set[str] = set()
        self._with_error: set[str] = set()
        """Runs that say with which error they ended."""
        self._params: dict[str, Mapping[str, str]] = {}
        self._sure = False
        self.lacked_experiment = False
        """Whether MLflow had no run of the experiment itself, and no deleted one either."""
        self.refused: dict[str, str] = {}
        """Artifacts that were not taken, by their names, and why."""

    def artifacts(self) -> str:
        """Return where the artifacts of the experiment's runs are kept."""
        if self._place is None:
            if self._project_id is None:
                self._project_id = self._take_project()
            project = self._project_id
            self._place = _ask(lambda: self._client.get_experiment(project)).artifact_location
        return self._place

    def is_ours(self) -> bool:
        """Return whether the server is one of ours, which takes many runs in one request.

        Raises:
            AwayError: if it does not answer.
        """
        if self._is_ours is None:
            is_server = self._uri.startswith("http")
            answer = self._post(PATH, {"project": None, "runs": []}) if is_server else None
            if answer is not None and (answer.status in NOT_NOW or answer.status >= 500):
                raise AwayError(f"MLflow answers with status {answer.status}")
            if answer is not None and answer.status == 200:
                _read_refused(answer)
            self._is_ours = answer is not None and answer.status == 200
        return self._is_ours

    def flush(self) -> dict[str, str]:
        """Send what is waiting; return the runs that MLflow refuses, with the reason.

        After an error, what was not taken still waits.
        """
        if self._waiting and not self.is_ours():
            return self._flush_singly()
        refused: dict[str, str] = {}
        while request := next_request(self._waiting.values()):
            refused |= self._write(request)
            for part in request:
                if part.run_id in refused or self._waiting[part.run_id].drop(part):
                    del self._waiting[part.run_id]
        return refused

    def flush_all(self) -> None:
        """Send what is waiting.

        Raises:
            MlflowRefusedError: if MLflow will not take some of it.
        """
        for words in self.flush().values():
            raise MlflowRefusedError(words)

    def get(
        self,
        number: int | None,
        seed: int | None,
        name: str,
        tags: Mapping[str, str],
        parent: str | None = None,
    ) -> str:
        """Return the run of a replicate, a trial (seed None) or the experiment, made once."""
        if not self._sure:
            self._find()
        known = self._known.get((number, seed))
        if known is not None:
            return known
        tags = {**tags, EXPERIMENT: self._experiment}
        tags[KIND] = "experiment" if number is None else "trial"
        if number is not None:
            tags[TRIAL] = str(number)
        if seed is not None:
            tags |= {SEED: str(seed), KIND: "replicate"}
        if parent is not None:
            tags["mlflow.parentRunId"] = parent
        return self._make((number, seed), tags, name)

    def has_lost(self, run_id: str) -> bool:
        """Return whether a person has deleted a run that MLflow had, or emptied its database.

        Raises:
            AwayError: if it does not answer.
        """
        try:
            found = self._look_up(run_id)
        except MlflowRefusedError:
            return False
        return found is None or found.info.lifecycle_stage == "deleted"

    def list_seeds(self, number: int) -> dict[int, str]:
        """Return the runs of a trial's replicates by seed, as far as they are known."""
        return dict(self._seeds.get(number, {}))

    def forget(self, number: int) -> None:
        """Keep nothing more of a trial's runs, which are never written to again."""
        seeds = self._seeds.pop(number, {})
        for key in [(number, None), *((number, seed) for seed in seeds)]:
            run_id = self._known.pop(key, None)
            if run_id is not None:
                self._start_times.pop(run_id, None)
                self._over.discard(run_id)
                self._with_error.discard(run_id)

    def _know(self, key: Key, run_id: str, start_time: int) -> None:
        """Remember which run a trial and a seed have; the first counts."""
        known = self._known.setdefault(key, run_id)
        self._start_times[run_id] = start_time
        number, seed = key
        if number is not None and seed is not None:
            self._seeds.setdefault(number, {})[seed] = known

    def begin_again(self, run_id: str) -> None:
        """Have a run go on, if it had ended; how it had ended is no longer said."""
        if run_id in self._over:
            write = self._write_of(run_id)
            write.status, write.end_time = "RUNNING", None
            write.tags |= {OUTCOME: "", ERROR: ""}
            self._over.discard(run_id)
            self._with_error.discard(run_id)

    def is_over(self, run_id: str) -> bool:
        """Return whether a run has ended, and has not begun again."""
        return run_id in self._over

    def delete_all(self) -> None:
        """Delete every run of the experiment; MLflow's own `gc` then frees their space.

        Raises:
            AwayError: if MLflow does not answer, or lists what it says that it has deleted.
        """
        found = self._project_of_run() or self._project_by_name()
        if found is None:
            return
        wanted = f"tags.`{EXPERIMENT}` = '{self._experiment}'"
        search = partial(self._client.search_runs, [found.experiment_id], wanted, max_results=1000)
        deleted: set[str] = set()
        while listed := {run.info.run_id for run in _ask(search)}:
            if again := listed & deleted:
                raise AwayError(f"MLflow deleted run {min(again)}, and lists it still")
            for run_id in listed:
                _ask(partial(self._client.delete_run, run_id))
            deleted |= listed

    def known_params(self, run_id: str) -> Mapping[str, str]:
        """Return the parameters that the experiment's run had when it was found.

        They cannot be changed.
        """
        return self._params.get(run_id, {})

    @property
    def project_id(self) -> str:
        """The id of MLflow's experiment that holds the runs; known after the first `get`."""
        assert self._project_id is not None
        return self._project_id

    def keep_view(self, view: str) -> None:
        """Keep how MLflow's page shows the runs, for links that end in the experiment's id."""
        name = f"{VIEW}{self._experiment}"
        self._keep_if_possible(
            lambda: self._client.set_experiment_tag(self.project_id, name, view), name
        )

    def start_time(self, run_id: str) -> int:
        """Return when a run began, in milliseconds: a timestamp that never changes."""
        return self._start_times[run_id]

    def send(self, run_id: str, content: RunContent) -> None:
        """Have a content written."""
        if content == RunContent():
            return
        write = self._write_of(run_id)
        write.params |= {k: str(v)[:LONGEST_PARAM] for k, v in content.params.items()}
        write.tags |= {k: v[:LONGEST_TAG] for k, v in content.tags.items()}
        if ERROR in content.tags:
            self._with_error.add(run_id)
        elif OUTCOME in content.tags and run_id in self._with_error:  # it ended otherwise before
            write.tags[ERROR] = ""
            self._with_error.discard(run_id)
        write.points += [
            (name, value, point.timestamp_ms, point.step)
            for point in content.points
            for name, value in point.metrics.items()
        ]

    def end(self, run_id: str, status: str) -> None:
        """Have a run ended: FINISHED, FAILED or KILLED."""
        write = self._write_of(run_id)
        write.status, write.end_time = status, int(time.time() * 1000)
        self._over.add(run_id)

    def keep_text(self, run_id: str, text: str, name: str) -> None:
        """Have a text kept as an artifact."""
        if self.is_ours() and not is_kept_by_server(self.artifacts()):
            self.refused[name] = ELSEWHERE
            return
        self._write_of(run_id).texts[name] = text

    def keep_file(self, run_id: str, path: Path, folder: str) -> None:
        """Keep a file as an artifact, now."""
        self._keep_if_possible(lambda: self.keep_all(run_id, [path], folder), path.name)

    def keep_all(self, run_id: str, paths: Iterable[Path], folder: str) -> None:
        """Keep files as artifacts; unlike `keep_file` this raises where one is refused."""
        for path in paths:
            self._put(run_id, partial(self._client.log_artifact, run_id, str(path), folder))

    def _put(self, run_id: str, send: Callable[[], None]) -> None:
        """Send an artifact.

        Raises:
            MlflowRefusedError: also if the server is ours and does not keep the run's artifacts
                itself: MLflow's client would write them to their place, with this process's rights.
        """
        if self.is_ours():
            place = _ask(partial(self._client.get_run, run_id)).info.artifact_uri
            if not is_kept_by_server(place):
                raise MlflowRefusedError(ELSEWHERE)
        _ask(send)

    def _keep_if_possible(self, request: Callable[[], None], name: str) -> None:
        """Send an artifact; if it is refused, go on, as the curves matter more."""
        try:
            _ask(request)
        except MlflowRefusedError as error:
            logger.warning("artifact not kept name=%s error=%s", name, error)
            self.refused[name] = str(error)

    def _make(self, key: Key, tags: Mapping[str, str], name: str) -> str:
        """Make the run of a trial and a seed, which is not there; return its id."""
        now, name = int(time.time() * 1000), name[:LONGEST_NAME]
        if key == (None, None):
            self.lacked_experiment = not self._deleted[key]
        if self.is_ours():
            names = (self._name(key, deleted) for deleted in range(MOST_DELETED))
            run_id = next(each for each in names if each not in self._deleted[key])
            self._waiting[run_id] = RunWrite(run_id, name, now, dict(tags))
            self._know(key, run_id, now)
            return run_id
        try:
            run = _ask(lambda: self._client.create_run(self.project_id, now, dict(tags), name))
        except BaseException:
            self._sure = False  # if only the answer was lost, the run exists all the same
            raise
        if not run.info.run_id:
            raise AwayError("instead of MLflow something else answers: a run without an id")
        self._remember(run)
        return run.info.run_id

    def _name(self, key: Key, deleted: int) -> str:
        """Return the id of a run of ours, of which people have deleted so many before."""
        number, seed = key
        return uuid.uuid5(NAMES, f"{self._experiment}/{number}/{seed}/{deleted}").hex

    def _write_of(self, run_id: str) -> RunWrite:
        if run_id not in self._waiting:
            self._waiting[run_id] = RunWrite(run_id, "", self._start_times[run_id])
        return self._waiting[run_id]

    def _write(self, request: list[RunWrite]) -> dict[str, str]:
        """Write many runs in one request; return those that are refused, and why."""
        content = {"project": self.project_id, "runs": [each.to_dict() for each in request]}
        answer = self._post(PATH, content)
        if answer.status == 200:
            return _read_refused(answer)
        words = f"status {answer.status}: {answer.content}"
        is_of_ours = isinstance(answer.content, dict)  # and no page of a proxy before it
        if is_of_ours and answer.status in (400, 404):
            raise MlflowRefusedError(words)
        raise AwayError(words)

    def _flush_singly(self) -> dict[str, str]:
        with ThreadPoolExecutor(AT_ONCE, "delivery") as pool:
            writes = {
                id: pool.submit(self._write_alone, each) for id, each in self._waiting.items()
            }
        problems = {id: error for id, each in writes.items() if (error := each.exception())}
        away = [e for e in problems.values() if not isinstance(e, MlflowRefusedError)]
        self._waiting = {id: self._waiting[id] for id in problems if away}
        if away:
            raise away[0]
        return {run_id: str(error) for run_id, error in problems.items()}

    def _write_alone(self, write: RunWrite) -> None:
        """Write one run in as few of MLflow's own requests as it allows."""
        from mlflow.entities import Metric, Param, RunTag

        log, run_id = partial(self._client.log_batch, write.run_id, synchronous=True), write.run_id
        metrics = [Metric(*each) for each in write.points]
        params = [Param(*each) for each in write.params.items()]
        tags = [RunTag(*each) for each in write.tags.items() if each[1]]
        while metrics or params or tags:
            now: list[Metric] = metrics[: MOST_METRICS - MOST_PARAMS]
            with_params, with_tags = params[:MOST_PARAMS], tags[:MOST_PARAMS]
            _ask(partial(log, metrics=now, params=with_params, tags=with_tags))
            metrics = metrics[len(now) :]
            params, tags = params[len(with_params) :], tags[len(with_tags) :]
        for name, text in write.texts.items():
            self._keep_if_possible(partial(self._client.log_text, run_id, text, name), name)
        for tag in (name for name, value in write.tags.items() if not value):
            with suppress(MlflowRefusedError):  # it has no such tag
                _ask(partial(self._client.delete_tag, run_id, tag))
        if write.status == "RUNNING":
            _ask(partial(self._client.update_run, run_id, write.status))
        elif write.status is not None:
            _ask(partial(self._client.set_terminated, run_id, write.status, write.end_time))

    def _post(self, path: str, content: Mapping[str, object]) -> MlflowAnswer:
        """Send a request that MLflow's client does not know, as that client sends its own."""
        from mlflow.utils import credentials, rest_utils

        read_server: Any = credentials.get_default_host_creds
        request: Any = rest_utils.http_request
        server = read_server(self._uri)
        headers = {"Content-Type": "application/json"}
        body = json.dumps(content)
        answer = _ask(lambda: request(server, path, "POST", extra_headers=headers, data=body))
        try:
            return MlflowAnswer(answer.status_code, answer.json())
        except ValueError:
            return MlflowAnswer(answer.status_code, answer.text[:LONGEST_PARAM])

    def _find(self) -> None:
        """Find the project, made if need be, and every run of the experiment that is there."""
        from mlflow.entities import ViewType

        self._deleted.clear()
        if self._project_id is None:
            self._project_id = self._take_project()
        project, page = self._project_id, None
        wanted = f"tags.`{EXPERIMENT}` = '{self._experiment}'"
        while not self._sure:
            search = partial(self._client.search_runs, max_results=1000, page_token=page)
            runs = _ask(lambda: search([project], wanted, ViewType.ALL))  # noqa: B023  (called at once)
            for run in runs:
                self._remember(run)
            page = runs.token
            self._sure = not page

    def _take_project(self) -> str:
        """Return the id of the project, which is made, or restored, if need be."""
        found = self._project_of_run() or self._project_by_name()
        if found is None:
            try:
                return _ask(
                    lambda: self._client.create_experiment(self._project, tags=EXPERIMENT_TAGS)
                )
            except MlflowRefusedError:
                # Another driver may have made it in the meantime.
                found = self._project_by_name()
                if found is None:
                    raise
        if found.lifecycle_stage == "deleted":
            _ask(lambda: self._client.restore_experiment(found.experiment_id))
        for name, value in EXPERIMENT_TAGS.items():
            if name not in found.tags:
                _ask(partial(self._client.set_experiment_tag, found.experiment_id, name, value))
        return found.experiment_id

    def _project_by_name(self) -> Experiment | None:
        found = _ask(lambda: self._client.get_experiment_by_name(self._project))
        if found is None and self._project == UNNAMED:
            self._project = "Default"
            return self._project_by_name()
        return found

    def _project_of_run(self) -> Experiment | None:
        """Return the project that has the experiment's own run; None if there is no such run."""
        run = None if self._run_id is None else self._look_up(self._run_id)
        if run is None:
            return None
        return _ask(lambda: self._client.get_experiment(run.info.experiment_id))

    def _look_up(self, run_id: str) -> Run | None:
        """Return a run, deleted ones too; None if there is none.

        Raises:
            AwayError: if MLflow does not answer.
            MlflowRefusedError: if it does not tell.
        """
        try:
            return _ask(lambda: self._client.get_run(run_id))
        except MlflowRefusedError as error:
            if getattr(error.__cause__, "error_code", None) in NOT_THERE:
                return None
            raise

    def _is_own(self, key: Key, run_id: str) -> bool:
        """Return whether a run with the tags of the experiment is one of its runs."""
        own = (self._name(key, deleted) for deleted in range(MOST_DELETED))
        return not self.is_ours() or run_id in own

    def _remember(self, run: Run) -> None:
        key = _read_key(run.data.tags)
        if key is None or not self._is_own(key, run.info.run_id):
            logger.warning("left alone, it only has the tags of a run run=%s", run.info.run_id)
            return
        if run.info.lifecycle_stage == "deleted":
            self._deleted[key].add(run.info.run_id)
            return
        self._know(key, run.info.run_id, run.info.start_time)
        if key[0] is None:
            self._params[run.info.run_id] = run.data.params
        if run.info.status not in ("RUNNING", "SCHEDULED"):
            self._over.add(run.info.run_id)
        if ERROR in run.data.tags:
            self._with_error.add(run.info.run_id)


def _read_refused(answer: MlflowAnswer) -> dict[str, str]:
    """Return which runs a server of ours refuses, and why.

    Raises:
        AwayError: if something else has answered, such as the login page of a proxy.
    """
    found = answer.content.get("refused") if isinstance(answer.content, dict) else None
    if not isinstance(found, dict):
        raise AwayError(f"instead of MLflow something else answers: {answer.content}")
    return found


def _read_key(tags: Mapping[str, str]) -> Key | None:
    """Return the trial and the seed that the tags of a run name; None: that is no number."""
    number, seed = tags.get(TRIAL), tags.get(SEED)
    try:
        return (None if number is None else int(number), None if seed is None else int(seed))
    except ValueError:
        return None


def flatten(tree: Mapping[str, Any]) -> dict[str, object]:
    """Return a tree of mappings as dotted paths to values; what is None is left out.

    >>> flatten({"model": {"hidden_size": 8, "parameters": None}, "seed": 0})
    {'model.hidden_size': 8, 'seed': 0}
    """
    return {path: value for path, value in dotted.flatten(tree).items() if value is not None}


def _ask(request: Callable[[], T]) -> T:
    """Return MLflow's answer, with its errors turned into ours."""
    from mlflow.exceptions import MlflowException

    try:
        return request()
    except MlflowException as error:
        words = str(error)
        is_away = error.error_code in TRANSIENT or DAMAGED.search(words) or PAGE.match(words)
        kind = AwayError if is_away else MlflowRefusedError
        raise kind(words) from error
    except FORBIDDEN as error:
        raise MlflowRefusedError(str(error)) from error
    except OSError as error:  # which the errors of `requests` are
        raise AwayError(str(error)) from error
    except Exception as error:
        if NO_KEYS.isdisjoint(kind.__name__ for kind in type(error).__mro__):
            raise
        raise MlflowRefusedError(f"no keys for where artifacts are kept: {error}") from error
