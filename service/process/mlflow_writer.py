"""Writes many runs of MLflow for one request, which MLflow's own API cannot. In MLflow's process.

A run that is not there is inserted into MLflow's tables with all that is known of it: many runs are
one transaction. One that is there is sent what it lacks by MLflow's own functions, which know how a
value meets an older one. MLflow's own requests for a run, one after the other, take ten times as
long. A request that was given up, and goes on, leaves little to the one that repeats it.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterable, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

from mlflow.entities import LifecycleStage, Metric, Param, RunStatus, RunTag, SourceType
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import (
    INVALID_PARAMETER_VALUE,
    RESOURCE_DOES_NOT_EXIST,
    TEMPORARILY_UNAVAILABLE,
    ErrorCode,
)
from mlflow.store.tracking.dbmodels.models import (
    SqlLatestMetric,
    SqlMetric,
    SqlParam,
    SqlRun,
    SqlTag,
)
from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore
from mlflow.utils import uri, validation
from sqlalchemy import Row, delete, insert, select
from sqlalchemy.exc import DatabaseError, DataError, IntegrityError
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from eigensweep.workers.tracking.run_writes import (
    MLFLOW_USER,
    PATH,
    PROXIED,
    RunWrite,
    is_kept_by_server,
)

NAME: Final = re.compile(r"\w[\w.-]*(/\w[\w.-]*)*", re.ASCII)
"""Paths of texts: nothing that leads out of a run's folder."""
RUN_ID: Final = re.compile(r"[0-9a-f]{32}")
MOST_METRICS: Final = 900
"""Metrics that MLflow's own function is given at once; with the rest it may have a thousand."""
MOST_PARAMS: Final = 50
"""Parameters, and tags, that it is given at once."""
POINT: Final = ("key", "step", "timestamp", "value", "is_nan")
"""Columns of a point of a metric."""
TRANSIENT: Final = {"INTERNAL_ERROR", "TEMPORARILY_UNAVAILABLE"}
"""Errors that say nothing about a run: the whole request is to be sent again."""


rules: Any = validation
join_uri: Any = uri.append_to_uri_path


class Writer:
    """Takes the requests of `Runs`, and hands all others on."""

    def __init__(self, app: ASGIApp, store: SqlAlchemyStore, artifacts: Path) -> None:
        self._app, self._artifacts = app, artifacts.resolve()
        self._store: Any = store
        self._turn = threading.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (scope["method"], scope["path"]) == ("POST", PATH):
            body = await Request(scope, receive).body()
            answer = await run_in_threadpool(self._answer, body)
            await answer(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _answer(self, body: bytes) -> JSONResponse:
        try:
            content = json.loads(body)
            writes = [RunWrite.from_dict(each) for each in content["runs"]]
            project = content["project"]
        except (ValueError, KeyError, TypeError) as error:
            return _problem(INVALID_PARAMETER_VALUE, f"not a list of runs: {error!r}")
        try:
            with self._turn:
                refused = {} if project is None else self.write(str(project), writes)
        except MlflowException as error:
            code = error.error_code
            # With an IntegrityError another process was faster.
            if isinstance(error.__cause__, IntegrityError) or _is_damage(error):
                code = "TEMPORARILY_UNAVAILABLE"
            return _problem(ErrorCode.Value(code), error.message)
        except OSError as error:
            return _problem(TEMPORARILY_UNAVAILABLE, f"a text cannot be kept: {error}")
        return JSONResponse({"refused": refused})

    def write(self, project: str, writes: Sequence[RunWrite]) -> dict[str, str]:
        """Write runs of one of MLflow's experiments; return those that are refused, and why.

        Raises:
            MlflowException: if the experiment or the database takes nothing at all.
            OSError: if a text cannot be kept.
        """
        experiment = self._store.get_experiment(project)
        if experiment.lifecycle_stage != LifecycleStage.ACTIVE:
            raise MlflowException(f"experiment {project} is deleted", INVALID_PARAMETER_VALUE)
        refused: dict[str, str] = {}
        there = self._find([write.run_id for write in writes])
        tables: dict[type, list[dict[str, object]]] = {SqlRun: []}
        gone: dict[str, list[str]] = {}
        for write in writes:
            try:
                if not RUN_ID.fullmatch(write.run_id):
                    words = f"{write.run_id[:200]!r} is no id of a run"
                    raise MlflowException(words, INVALID_PARAMETER_VALUE)
                self._keep_texts(experiment.artifact_location, write)
                if write.run_id in there:
                    gone[write.run_id] = self._add(there[write.run_id], write)
                else:
                    for table, rows in self._rows(project, experiment.artifact_location, write):
                        tables.setdefault(table, []).extend(rows)
            except MlflowException as error:
                if error.error_code in TRANSIENT or _is_damage(error):
                    raise
                refused[write.run_id] = error.message
        with self._store.ManagedSessionMaker(read_only=False) as session:
            for table, rows in tables.items():
                if rows:
                    session.execute(insert(table.__table__), rows)  # type: ignore[attr-defined]
            for run_id, names in gone.items():
                if names:
                    mine: Any = SqlTag.run_uuid == run_id
                    session.execute(delete(SqlTag).where(mine, SqlTag.key.in_(names)))
        return refused

    def _find(self, run_ids: Sequence[str]) -> dict[str, Row[Any]]:
        """Return the runs that are there: how far their lives and their trainings are."""
        query: Any = select(
            SqlRun.run_uuid, SqlRun.lifecycle_stage, SqlRun.status, SqlRun.end_time
        ).where(SqlRun.run_uuid.in_(run_ids))
        with self._store.ManagedSessionMaker(read_only=True) as session:
            return {run.run_uuid: run for run in session.execute(query)}

    def _add(self, run: Row[Any], write: RunWrite) -> list[str]:
        """Write to a run that is there what it lacks; return the tags that it is to lose."""
        metrics, params, tags = _entities(write)
        status, gone = write.status, list[str]()
        if run.lifecycle_stage == LifecycleStage.ACTIVE:  # else MLflow says what is wrong
            points, known_params, known_tags = self._read(run.run_uuid, metrics)
            metrics = [each for each in metrics if self._point(each) not in points]
            params = [each for each in params if known_params.get(each.key) != each.value]
            tags = [each for each in tags if known_tags.get(each.key) != each.value]
            gone = [name for name in known_tags if write.tags.get(name) == ""]
            if run.status == status and write.end_time in (None, run.end_time):
                status = None
        while metrics or params or tags:
            now = metrics[:MOST_METRICS], params[:MOST_PARAMS], tags[:MOST_PARAMS]
            self._store.log_batch(write.run_id, *now)
            metrics, params = metrics[MOST_METRICS:], params[MOST_PARAMS:]
            tags = tags[MOST_PARAMS:]
        if status is not None:
            ended = RunStatus.from_string(status)
            self._store.update_run_info(write.run_id, ended, write.end_time, None)
        return gone

    def _read(
        self, run_id: str, metrics: Sequence[Metric]
    ) -> tuple[set[tuple[Any, ...]], dict[str, str], dict[str, str]]:
        """Return what a run has: its points from the first to the last step, parameters, tags."""
        steps = [metric.step for metric in metrics]
        columns: Any = [getattr(SqlMetric, name) for name in POINT]
        with self._store.ManagedSessionMaker(read_only=True) as session:

            def read(query: Any) -> Iterable[tuple[Any, ...]]:
                return map(tuple, session.execute(query))

            params, tags = (
                dict(read(select(table.key, table.value).where(table.run_uuid == run_id)))
                for table in (SqlParam, SqlTag)
            )
            mine = select(*columns).where(SqlMetric.run_uuid == run_id)
            between: Any = SqlMetric.step.between(min(steps, default=0), max(steps, default=0))
            points = set(read(mine.where(between))) if steps else set()
        return points, params, tags

    def _keep_texts(self, location: str, write: RunWrite) -> None:
        for name, text in write.texts.items():
            if not is_kept_by_server(location) or not NAME.fullmatch(name):
                raise MlflowException(f"no text can be kept at {name}", INVALID_PARAMETER_VALUE)
            below = location.removeprefix(PROXIED).lstrip("/")
            path = self._artifacts / below / write.run_id / "artifacts" / name
            if not path.resolve().is_relative_to(self._artifacts):
                raise MlflowException(f"no text can be kept at {name}", INVALID_PARAMETER_VALUE)
            path.parent.mkdir(parents=True, exist_ok=True)
            draft = path.with_name(f"{path.name}.tmp")
            draft.write_text(text, encoding="utf-8")
            draft.replace(path)  # whole, for backups, and where the disk is full

    def _rows(
        self, project: str, location: str, write: RunWrite
    ) -> Iterable[tuple[type, list[dict[str, object]]]]:
        """Return the rows of a run that is not there, by MLflow's tables."""
        if not write.name:
            raise MlflowException(f"Run with id={write.run_id} not found", RESOURCE_DOES_NOT_EXIST)
        metrics, params, tags = _entities(write)
        mine = {"run_uuid": write.run_id}
        run = {
            "name": write.name,
            "artifact_uri": join_uri(location, write.run_id, "artifacts"),
            "experiment_id": int(project),
            "user_id": write.tags.get(MLFLOW_USER, "unknown"),
            "status": write.status or RunStatus.to_string(RunStatus.RUNNING),
            "start_time": write.start_time,
            "end_time": write.end_time,
            "lifecycle_stage": LifecycleStage.ACTIVE,
            "source_type": SourceType.to_string(SourceType.UNKNOWN),
            "source_name": "",
            "entry_point_name": "",
            "source_version": "",
        }
        named = {tag.key: tag.value for tag in tags} | {"mlflow.runName": write.name}
        points = [  # what came twice is there once
            dict(zip(POINT, point, strict=True))
            for point in dict.fromkeys(map(self._point, metrics))
        ]
        order = itemgetter("step", "timestamp", "value")
        newest = {row["key"]: row for row in sorted(points, key=order)}
        return [
            (SqlRun, [mine | run]),
            (SqlTag, [mine | {"key": key, "value": value} for key, value in named.items()]),
            (SqlParam, [mine | {"key": each.key, "value": each.value} for each in params]),
            (SqlMetric, [mine | row for row in points]),
            (SqlLatestMetric, [mine | row for row in newest.values()]),
        ]

    def _point(self, metric: Metric) -> tuple[Any, ...]:
        """Return the values of `POINT` as the database has them."""
        is_nan, value = self._store.sanitize_metric_value(metric.value)
        return metric.key, metric.step, metric.timestamp, value, is_nan


def _is_damage(error: MlflowException) -> bool:
    """Return whether the database is the reason for an error, and not what was asked of it."""
    cause = error.__cause__
    return isinstance(cause, DatabaseError) and not isinstance(cause, DataError | IntegrityError)


def _problem(code: int, words: str) -> JSONResponse:
    """Return an answer as MLflow words its own problems."""
    error: Any = MlflowException(words, code)
    content = {"error_code": error.error_code, "message": error.message}
    return JSONResponse(content, error.get_http_status_code())


def _entities(write: RunWrite) -> tuple[list[Metric], list[Param], list[RunTag]]:
    """Return the content as MLflow's own, by its rules for names and lengths."""
    for name in {*(point[0] for point in write.points), *write.params, *write.tags}:
        is_name = rules.validate_param_and_metric_name(name) and not rules.path_not_unique(name)
        if not is_name or len(name) > rules.MAX_ENTITY_KEY_LENGTH:
            words = f"MLflow takes no metric, parameter or tag of the name {name[:200]!r}"
            raise MlflowException(words, INVALID_PARAMETER_VALUE)
    return (
        [Metric(*point) for point in write.points],
        [Param(key, value[: rules.MAX_PARAM_VAL_LENGTH]) for key, value in write.params.items()],
        [RunTag(k, value[: rules.MAX_TAG_VAL_LENGTH]) for k, value in write.tags.items() if value],
    )
