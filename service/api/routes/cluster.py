"""The nodes that trials run on, who uses them, and why something waits."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from fastapi import APIRouter
from pydantic import Field

from eigensweep.protocol.fair_shares import Demand
from eigensweep.protocol.states import DRIVEN, ExperimentState
from eigensweep.service.api.answers.schemas import AnswerModel, read_place
from eigensweep.service.api.answers.written import DescribedRoute
from eigensweep.service.api.parts import Service, TheService
from eigensweep.service.record.sql.tables import ExperimentRow
from eigensweep.service.record.views.activity import Use, read_activity
from eigensweep.workers.cluster.drivers import DRIVER_BYTES
from eigensweep.workers.cluster.nodes import Node

router = APIRouter(tags=["cluster"], route_class=DescribedRoute)

LISTED = 500
"""Trials that an answer lists at most."""
MOST_WAITING = 100
"""Experiments without a driver that an answer lists at most."""
ALL_WAITING = "/v1/experiments?state=queued&state=paused&sort=created_at"
"""Where all of them are listed."""


class AmountsNow(AnswerModel):
    """What a node has of each resource."""

    cpus: float
    gpus: float
    memory_bytes: int = Field(validation_alias="memory")


class NodeNow(AnswerModel):
    """A node of the cluster."""

    id: str = Field(description="As Ray names it")
    name: str = Field(description="Name of the machine; several nodes may have the same one")
    address: str = Field(description="Its address in the network")
    alive: bool
    answers: bool = Field(description="Whether Ray's process there answered at the last look")
    drains: bool = Field(description="Whether its machine will go; no trial begins there")
    drains_until: datetime | None = Field(
        description="When its machine will be taken away, if known"
    )
    gone_at: datetime | None = Field(
        description="When Ray counted it as gone; an hour later it is not listed any more"
    )
    total: AmountsNow
    free: AmountsNow | None = Field(description="What no trial reserves; null if it is not known")
    labels: dict[str, str] = Field(description="What `resources.labels` of a spec can ask for")
    accelerator_type: str | None = Field(description="Kind of its GPUs")


class EngineNow(AnswerModel):
    """A process that trains many trials side by side."""

    node: str | None = Field(description="Name of its machine")
    pid: int
    device: str | None
    lanes: int
    used: int = Field(description="Lanes in use, as trials have reported")
    trials: int = Field(description="Trials in it, those that wait for a lane included")


class UseNow(AnswerModel):
    """A trial that has a process."""

    experiment: str
    name: str = Field(description="Name of the experiment")
    owner: str
    trial: int
    arm: str
    node: str | None = Field(description="Name of its machine; null where it is not known yet")
    node_id: str | None = Field(description="As Ray names it; several nodes may have one name")
    pid: int | None
    device: str | None
    lanes: int | None = Field(description="Lanes of its engine; null in a process of its own")
    page: str


class WaitNow(AnswerModel):
    """An experiment that waits, as a whole or with some of its trials."""

    experiment: str
    name: str
    owner: str
    state: ExperimentState
    priority: int
    trials: int = Field(description="Trials that are known and wait")
    why: str
    page: str


class DriverNow(AnswerModel):
    """A process that drives an experiment."""

    pid: int | None = Field(description="null: it has not said yet which process it is")
    memory_bytes: int = Field(
        description="Main memory that it holds by itself, or that is kept for it"
    )
    experiments: list[str] = Field(description="One id")


class DriversNow(AnswerModel):
    """The processes that drive experiments, on the service's machine. They reserve no CPU.

    Their memory is taken off what trials have on a Ray that the service starts. The node of an
    outer Ray needs it beside what it offers to trials.
    """

    running: int = Field(description="Experiments that have a driver, or get one now")
    at_most: int = Field(
        description="`EIGENSWEEP_MAX_EXPERIMENTS`, or as many drivers as half of the machine's "
        "memory holds; more wait in the queue, but for the first of each user"
    )
    processes: list[DriverNow] = Field(description="One for each experiment that runs")
    memory_bytes: int = Field(
        description="Main memory that the running drivers hold, as they report; for a driver "
        "without a report, what is reserved for it"
    )
    kept_bytes: int = Field(
        description="How much main memory is kept for as many drivers as may run at once, those "
        f"included that only deliver to MLflow: {DRIVER_BYTES / 1e6:g} MB for each"
    )


class LeaderNow(AnswerModel):
    """The service that drives experiments, of those that share the database."""

    here: bool = Field(description="Whether this service is the one that answers")
    host: str
    pid: int
    address: str
    since: datetime
    heartbeat_seconds: float = Field(description="Seconds since it was last heard of")
    words: str


class ClusterNow(AnswerModel):
    """The cluster as it is now."""

    leader: LeaderNow | None = Field(description="null: it is not known")
    drivers: DriversNow
    problem: str | None = Field(
        description="Why the nodes are not known, or for how long they have not been seen; null: "
        "they were seen seconds ago"
    )
    nodes: list[NodeNow] = Field(description="Those that live first")
    engines: list[EngineNow]
    running: int = Field(description="Trials that have a process, all of them")
    uses: list[UseNow] = Field(description=f"These trials, {LISTED} at most")
    unfinished: int = Field(description="Experiments that are not over, all of them")
    waiting: list[WaitNow] = Field(
        description="Those that run and wait for something, then those in the queue or paused, by "
        f"their priority and age; of the latter the first {MOST_WAITING}"
    )
    more_waiting: str | None = Field(description="Where all of them are; null: here")


@router.get("/cluster", summary="Look at the cluster")
def get_cluster(service: TheService) -> ClusterNow:
    """Return nodes, devices and lanes, the trials that use them, and why experiments wait."""
    nodes = service.dispatcher.list_nodes()
    activity = read_activity(service.record, LISTED, MOST_WAITING)
    problem = service.dispatcher.away
    if problem is not None and nodes is not None:
        problem += "; the nodes are shown as they were then"
    elif nodes is None:
        problem = service.dispatcher.explain_problem() or "Ray does not answer"
    driven = [row for row, _ in activity.experiments if row.state in DRIVEN]
    waits = (
        (row, waiting, _explain(service, row, waiting, len(driven)))
        for row, waiting in activity.experiments
    )
    leadership = service.record.leadership
    lead = None if leadership is None else leadership.lead
    return ClusterNow(
        leader=None if lead is None else LeaderNow.made_of(lead, **lead.about),
        drivers=_describe_drivers(service, driven),
        problem=problem,
        nodes=[_describe_node(node) for node in nodes or ()],
        engines=[
            EngineNow.made_of(each, used=min(each.lanes, each.replicates))
            for each in activity.trainers
            if each.lanes is not None
        ],
        running=activity.running,
        uses=[_describe_use(use) for use in activity.uses],
        waiting=[
            WaitNow.made_of(
                row, experiment=row.id, trials=waiting, why=why, page=f"/experiments/{row.id}"
            )
            for row, waiting, why in waits
            if why is not None
        ],
        unfinished=activity.waiting + len(driven),
        more_waiting=ALL_WAITING if activity.waiting > MOST_WAITING else None,
    )


def _describe_drivers(service: Service, driven: Sequence[ExperimentRow]) -> DriversNow:
    processes = [_describe_driver(row) for row in driven]
    return DriversNow(
        running=len(driven),
        at_most=service.dispatcher.max_experiments,
        processes=processes,
        memory_bytes=sum(each.memory_bytes for each in processes),
        kept_bytes=service.dispatcher.max_drivers * DRIVER_BYTES,
    )


def _describe_driver(row: ExperimentRow) -> DriverNow:
    demand = Demand.from_dict(row.wants or {"trials": 0})
    memory = demand.driver_bytes or DRIVER_BYTES
    return DriverNow(pid=demand.driver_pid or None, memory_bytes=memory, experiments=[row.id])


def _describe_node(node: Node) -> NodeNow:
    drains_until, gone_at = node.drains_until or None, node.gone_at or None
    drains = node.drains_until is not None
    return NodeNow.made_of(node, drains=drains, drains_until=drains_until, gone_at=gone_at)


def _describe_use(use: Use) -> UseNow:
    row, trial = use.experiment, use.trial
    page = f"/experiments/{row.id}/trials/{trial.number}"
    place = read_place(use.attempt)
    return UseNow.made_of(
        row, experiment=row.id, trial=trial.number, arm=trial.arm, page=page, **place
    )


def _explain(service: Service, row: ExperimentRow, waiting: int, driven: int) -> str | None:
    """Return why an experiment, or some of its trials, wait; None if nothing does.

    `driven` experiments have a driver now.
    """
    problem = service.dispatcher.problems.get(row.id)
    if problem is not None:
        return f"it is tried again: {problem}"
    if row.state != "paused" and (away := service.dispatcher.away) is not None:
        return away
    notices = "; ".join(n["words"] for n in row.notices or () if n["kind"] != "code")
    if row.state == "queued":
        most, wanted = service.dispatcher.max_experiments, service.settings.max_experiments
        turn = (
            f"waits for its turn: of the experiments that are under way at once, at most {most} "
            f"(EIGENSWEEP_MAX_EXPERIMENTS), there are {driven}"
        )
        of_all = service.dispatcher.max_of_all
        if of_all > most:
            turn += f"; beyond these each user may have one, up to {of_all} in all"
        if wanted is not None and most < wanted:
            turn += (
                f". That setting is {wanted}, but half of the machine's memory holds no more "
                f"drivers of {DRIVER_BYTES / 1e6:g} MB"
            )
        return service.dispatcher.explain_problem() or turn
    if row.state == "waiting_for_room":
        return notices or "no node has room for one of its trials now"
    if row.state == "paused":
        return notices or "paused; `eigensweep resume` lets it go on"
    if notices:
        return notices
    if row.state == "starting":
        return "its driver starts"
    return "its other trials have the places that it can get" if waiting else None
