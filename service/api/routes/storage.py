"""What takes disk space, and the removal of checkpoints that nobody needs any more.

Runs in the service's process.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from itertools import takewhile
from typing import Annotated, Final

from fastapi import APIRouter, Request
from pydantic import Field
from sqlalchemy.exc import SQLAlchemyError

from eigensweep.service.api.answers.errors import tell_database_error
from eigensweep.service.api.answers.schemas import AnswerModel, Asked
from eigensweep.service.api.answers.writers import BusyError
from eigensweep.service.api.answers.written import ServiceRoute
from eigensweep.service.api.callers.callers import Caller, Reader, Submitter, tell_audit
from eigensweep.service.api.parts import Service, TheService
from eigensweep.service.record.changes.retention import DAY
from eigensweep.service.record.errors import ConflictError, NotAllowedError, NotFoundError
from eigensweep.service.store_probe import WHOLE_SECONDS
from eigensweep.store.places.durable_files import StorageError
from eigensweep.store.upkeep.thinning import Keep

logger = logging.getLogger(__name__)
router = APIRouter(tags=["storage"], route_class=ServiceRoute)

MOST: Final = 1000
"""The largest number of experiments of one request."""
LONGEST_SECONDS: Final = 15.0
"""How long a request looks at experiments; clients give up after 30 s."""


class PartNow(AnswerModel):
    """A part of what the service keeps."""

    name: str = Field(examples=["checkpoints"])
    place: str | None = Field(description="Its file or folder; null without scope `admin`")
    bytes: int


class ExperimentUse(AnswerModel):
    """What an experiment takes in the store."""

    id: str
    name: str
    owner: str
    checkpoints: int = Field(description="Bytes of the checkpoints from which training continues")
    weights: int = Field(description="Bytes of the weights of best evaluations")
    curves: int = Field(description="Bytes of curves, spectra and reports")
    total: int


class OwnerUse(AnswerModel):
    """What the experiments of a user take in the store."""

    user: str
    experiments: int
    bytes: int


class StorageNow(AnswerModel):
    """What takes disk space, in bytes."""

    total: int = Field(description="All parts together")
    parts: list[PartNow] = Field(description="The largest first")
    users: list[OwnerUse] = Field(description="The largest first; without scope `admin` yourself")
    experiments: list[ExperimentUse] = Field(
        description="The largest first; without scope `admin` your own. At most 1000"
    )


@router.get("/storage", summary="What takes disk space?")
def show_storage(service: TheService, caller: Reader) -> StorageNow:
    """Return how much each part of the home folder takes, and each experiment in the store.

    What was measured is shown again for some seconds, with much to measure for some minutes.
    Metadata of experiments are in the database of the record, and do not count for them.
    """
    found = service.store.ask(lambda _: service.disk_use.read(), WHOLE_SECONDS)
    is_admin = caller.may("admin")
    rows = [
        ExperimentUse.made_of(use, id=row.id, name=row.name, owner=row.owner)
        for row in service.record.list_names(None if is_admin else caller.user)
        if (use := found.experiments.get(row.id)) is not None
    ]
    rows.sort(key=lambda each: -each.total)
    owners: defaultdict[str, list[int]] = defaultdict(list)
    for each in rows:
        owners[each.owner].append(each.total)
    users = [
        OwnerUse(user=name, experiments=len(sizes), bytes=sum(sizes))
        for name, sizes in owners.items()
    ]
    parts = [
        PartNow(name=name, place=str(path) if is_admin else None, bytes=size)
        for name, (path, size) in found.parts.items()
    ]
    return StorageNow(
        total=sum(each.bytes for each in parts),
        parts=sorted(parts, key=lambda each: -each.bytes),
        users=sorted(users, key=lambda each: -each.bytes),
        experiments=rows[:MOST],
    )


class PruneRequest(Asked):
    """Which checkpoints stay, and of which experiments the others are removed."""

    keep: Keep = Field(
        description="What is kept of finished trials. `last`: each seed's last checkpoint and "
        "best weights; all trials can continue. `best`: the best weights, or the last"
        " checkpoint if there are none; completed trials cannot continue with a "
        "longer budget. `none`: only curves and results; a retry starts from step 0"
    )
    experiments: Annotated[list[str], Field(max_length=200)] | None = Field(
        None, description="Ids; null: all that are over, and yours unless you are an admin"
    )
    older_than_days: float | None = Field(
        None,
        strict=True,
        ge=0,
        le=36_500,
        description="Only experiments that ended so many days ago",
    )
    dry_run: bool = Field(
        True, strict=True, description="Only say what would be removed; false removes it"
    )


class PruneItem(AnswerModel):
    """What becomes of one experiment."""

    id: str
    bytes: int = Field(description="What it frees")
    problem: str | None = Field(description="Why nothing of it is removed; null if something is")


class PruneAnswer(AnswerModel):
    """What is removed, or would be."""

    dry_run: bool
    keep: Keep
    bytes: int = Field(description="What it frees altogether")
    items: list[PruneItem] = Field(description="The experiments, the earliest end first")
    more: bool = Field(
        description="Whether there are more, of which it is not known yet what they free: ask "
        "again after these. A request looks at 1000 at most, for some seconds, and no further "
        "where the store or the database leaves"
    )


@router.post(
    "/storage/prune", status_code=202, summary="Remove checkpoints that are no longer needed"
)
def prune_storage(
    service: TheService, caller: Submitter, request: Request, asked: PruneRequest
) -> PruneAnswer:
    """Remove checkpoints of experiments that are over, by a rule; curves and results stay.

    With scope `submit` a user prunes what is the user's own, with `admin` everything. The service
    removes them in the background, and goes on after any stop. What is removed cannot be had back.
    """
    ended_before = None
    if asked.older_than_days is not None:
        ended_before = time.time() - asked.older_than_days * DAY
    owner = None if caller.may("admin") else caller.user
    ids = service.record.list_prunable(asked.keep, ended_before, owner)
    if asked.experiments is not None:
        ids = list(dict.fromkeys(asked.experiments))
    begun = time.monotonic()
    items: list[PruneItem] = []
    for id in takewhile(lambda _: time.monotonic() < begun + LONGEST_SECONDS, ids[:MOST]):
        try:
            items.append(_prune(service, caller, id, asked, ended_before))
        except (StorageError, BusyError, SQLAlchemyError) as error:
            status, words = 503, str(error)
            if isinstance(error, SQLAlchemyError):
                status, words = tell_database_error(error)
            if status != 422 and not items:
                raise
            logger.error("not pruned experiment=%s error=%s", id, error, exc_info=True)
            items.append(PruneItem(id=id, bytes=0, problem=words))
            if status != 422:  # then this id alone is no text for a database
                rest = ids[len(items) :] if asked.experiments is not None else ()
                items += [PruneItem(id=each, bytes=0, problem=words) for each in rest]
                break
    freed = sum(each.bytes for each in items)
    done = [each.id for each in items if each.problem is None]
    what = "dry run of prune" if asked.dry_run else "prune"
    tell_audit(request, f"{what}, keep {asked.keep}: {', '.join(done) or 'nothing'}")
    if not asked.dry_run:
        service.jobs.wake("pruning")
    return PruneAnswer(
        dry_run=asked.dry_run, keep=asked.keep, bytes=freed, items=items, more=len(ids) > len(items)
    )


def _prune(
    service: Service,
    caller: Caller,
    id: str,
    asked: PruneRequest,
    ended_before: float | None,
) -> PruneItem:
    try:
        row = service.record.row(id)
        caller.require_owner(row.owner, f"experiment {id}")
        service.record.check_prunable(row, ended_before)
        size = service.store.ask(
            lambda s: service.record.measure_prunable(s, id, asked.keep), WHOLE_SECONDS
        )
        if not asked.dry_run:
            service.record.prune(id, asked.keep)
    except (NotFoundError, ConflictError, NotAllowedError) as error:
        return PruneItem(id=id, bytes=0, problem=str(error))
    return PruneItem(id=id, bytes=size, problem=None)
