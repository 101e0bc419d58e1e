"""Post, preview, list, look at and cancel experiments. Runs in the service's process."""

from __future__ import annotations

import logging
import re
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from inspect import cleandoc
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Depends, Header, Path, Query, Request, Response
from pydantic import AfterValidator, Field
from sqlalchemy.exc import SQLAlchemyError

from eigensweep.protocol.shares import Capacity
from eigensweep.protocol.states import Action, ExperimentState
from eigensweep.search_spaces.checks.checks import find_errors
from eigensweep.search_spaces.checks.memory import MemoryEstimate, estimate_arms, reserve
from eigensweep.search_spaces.checks.places import Places
from eigensweep.search_spaces.checks.preview import Preview, SidePreview, describe_memory, preview
from eigensweep.search_spaces.checks.spec_warnings import list_warnings
from eigensweep.search_spaces.errors import (
    CorpusError,
    SpecError,
    UnreadableSpecError,
    raise_errors,
)
from eigensweep.search_spaces.sections import TAG_NAME
from eigensweep.search_spaces.spec import LARGEST_PRIORITY, LEAST_PRIORITY, ExperimentSpec
from eigensweep.service.api.answers import schemas
from eigensweep.service.api.answers.errors import (
    describe_errors,
    describe_repeat,
    tell_database_error,
)
from eigensweep.service.api.answers.paging import cut, decode
from eigensweep.service.api.answers.written import DescribedRoute, WrittenRoute
from eigensweep.service.api.callers import callers
from eigensweep.service.api.parts import AnyService, Service, TheService, TheSettings
from eigensweep.service.api.warm_start import count_observations
from eigensweep.service.record.changes.posting import require_quota, scope_key
from eigensweep.service.record.errors import (
    ConflictError,
    NotAllowedError,
    NotFoundError,
    QuotaExceededError,
)
from eigensweep.service.record.sql.rows import RowSession
from eigensweep.service.settings import Settings
from eigensweep.service.settings.webhook_rules import WebhookRefusedError, check_url
from eigensweep.training.lanes.outlook import explain_arms_alone

logger = logging.getLogger(__name__)
router = APIRouter(tags=["experiments"], route_class=WrittenRoute)
previews = APIRouter(tags=["experiments"], route_class=DescribedRoute)
"""What needs the settings alone, and no record."""

ExperimentId = Annotated[
    str, Path(min_length=1, max_length=32, description="The id in the answer to the post")
]


def _require_owner(service: TheService, caller: callers.Submitter, id: ExperimentId) -> str:
    caller.require_owner(service.record.row(id).owner, f"experiment {id}")
    return id


OwnExperimentId = Annotated[str, Depends(_require_owner)]
"""The id of an experiment that the caller may change: an own one, and to an admin any."""


def _require_tag(text: str) -> str:
    if not re.match(f"{TAG_NAME}=", text):
        raise ValueError("a tag is chosen as NAME=VALUE, such as paper=rebuttal")
    return text


class ExperimentQuery(schemas.PageAsked):
    """Selects experiments, and their order."""

    state: list[ExperimentState] = Field([], description="Only in these states")
    project: str | None = Field(None, max_length=120, description="Only of this project")
    owner: str | None = Field(None, max_length=64, description="Only of this user")
    name: str | None = Field(
        None, max_length=120, description="Only if their name contains this, in any case"
    )
    tag: list[Annotated[str, AfterValidator(_require_tag)]] = Field(
        [], max_length=20, description="Only with this tag, as `NAME=VALUE`; of several, with all"
    )
    archived: bool = Field(False, description="Also those that are archived")
    sort: Literal["created_at", "-created_at", "name", "-name"] = "-created_at"


@router.post(
    "/experiments",
    status_code=201,
    summary="Post an experiment",
    responses=describe_repeat(
        schemas.PostedExperiment, "It was posted before with the same Idempotency-Key"
    ),
)
def post_experiment(
    service: TheService,
    request: Request,
    caller: callers.Submitter,
    spec: ExperimentSpec,
    response: Response,
    notify: Annotated[
        tuple[str, ...],
        Query(
            max_length=4,
            description="An https address that is told how the experiment ends; its host must be "
            "one of EIGENSWEEP_WEBHOOK_HOSTS",
        ),
    ] = (),
    idempotency_key: Annotated[
        str | None,
        Header(
            min_length=1,
            max_length=255,
            description="A second post of the same user with the same key and body queues nothing",
        ),
    ] = None,
) -> schemas.PostedExperiment:
    """Check a spec and queue it. A spec that cannot run is refused, and nothing is queued."""
    errors = _find_refused_webhooks(notify, service.settings.webhook_hosts)
    look = _look(spec, service.settings, service, errors)
    if look.errors:
        look.errors.extend(_find_exceeded_quotas(service, spec, caller.user, look.errors))
    raise_errors(look.errors)
    key = scope_key(idempotency_key, caller.user)

    def enter(rows: RowSession, id: str) -> None:
        callers.enter_deed(request, service.audit, rows, f"/v1/experiments/{id}")

    experiment, is_new = service.record.add(spec, key, caller.user, notify=notify, beside=enter)
    if experiment.state == "deleting":
        raise ConflictError(
            f"experiment {experiment.id} was posted with this Idempotency-Key and is being "
            "deleted; post it with another key, or once it is gone"
        )
    service.dispatcher.wake()
    found = (
        service.record.posted(experiment) if is_new else service.record.experiment(experiment.id)
    )
    now = service.views.experiment(found)
    answer = schemas.PostedExperiment.made_of(
        now, memory=describe_memory(spec, look.guesses), warnings=list_warnings(spec)
    )
    response.headers["Location"] = answer.links.self
    if not is_new:
        response.status_code = 200
    return answer


def _find_refused_webhooks(urls: Sequence[str], hosts: Collection[str]) -> list[SpecError]:
    errors = []
    for url in urls:
        try:
            check_url(url, hosts)
        except WebhookRefusedError as error:
            errors.append(SpecError("notify", str(error), expected="an allowed https address"))
    return errors


def _find_exceeded_quotas(
    service: Service, spec: ExperimentSpec, user: str, errors: Sequence[SpecError] = ()
) -> list[SpecError]:
    """Return which quota a spec exceeds, as far as its `errors` let one tell."""
    if Places(each.path for each in errors).touch("space", "search", "limits"):
        return []  # nobody knows how many trials it has
    try:
        require_quota(service.accounts.read_quotas(user), spec, user)
    except QuotaExceededError as error:
        return [SpecError("limits.trials", str(error))]
    return []


@dataclass(frozen=True)
class _Look:
    """What was found out about a spec before it is queued."""

    errors: list[SpecError]
    """All that is wrong with it; where there is something, the rest may be missing."""
    guesses: Mapping[str, MemoryEstimate]
    room: Capacity | None
    warm_start: dict[str, int] | None


def _look(
    spec: ExperimentSpec,
    settings: Settings,
    service: Service | None,
    errors: Sequence[SpecError] = (),
) -> _Look:
    """Check a spec, and what it asks of the nodes of now and of earlier experiments."""
    found = [*errors, *find_errors(spec, settings.corpora)]
    wrong = Places(each.path for each in found if not isinstance(each, CorpusError))
    guesses: Mapping[str, MemoryEstimate] = {}
    room = warm_start = None
    if not wrong.touch("space", "model", "task", "optimizer", "training", "resources"):
        guesses = estimate_arms(spec)
        resources = reserve(spec, guesses)
        if service is not None:
            room = service.dispatcher.look_for_room(resources, spec.replicates)
        if room is not None and room.problem is not None and not room.may_change:
            asked = spec.resources.model_dump(exclude_defaults=True)
            wish = "what a node of now has"
            found.append(SpecError("resources", room.problem, expected=wish, got=asked))
        if service is not None and not wrong.touch("search"):
            try:
                warm_start = count_observations(service.record, spec)
            except SpecError as error:
                found.append(error)
    return _Look(found, guesses, room, warm_start)


@previews.post("/experiments/preview", summary="Preview an experiment", dependencies=[callers.READ])
def preview_experiment(
    settings: TheSettings,
    service: AnyService,
    caller: callers.Reader,
    spec: ExperimentSpec,
    extends: Annotated[
        bool,
        Query(description="Whether it is for /extend: then `search.warm_start` is not looked at"),
    ] = False,
) -> Preview:
    """Check a spec, count its trials and parameters, and estimate its cost. Nothing is queued."""
    look = _look(_leave_out_sources(spec) if extends else spec, settings, service)
    raise_errors(look.errors)
    room = look.room
    at_once = None if room is None else room.trials
    if at_once is not None:
        bounds = (at_once, spec.limits.concurrency, spec.trial_count())
        at_once = min(bound for bound in bounds if bound is not None)
    warnings = [] if room is None or room.problem is None else [room.problem]
    if service is not None and not extends:  # which counts for the experiment's owner
        warnings += [each.message for each in _find_exceeded_quotas(service, spec, caller.user)]
    lanes = spec.resources.lanes
    side_by_side = SidePreview(
        at_once=at_once,
        lanes=lanes,
        alone={} if lanes is None else explain_arms_alone(spec),
        warnings=warnings,
    )
    return preview(spec, side_by_side, look.warm_start, look.guesses)


@router.get("/experiments", summary="List experiments")
def list_experiments(
    service: TheService, query: Annotated[ExperimentQuery, Query()]
) -> schemas.Page[schemas.ExperimentSummary]:
    """Return experiments without their specs, by default the newest first."""
    kind = float if query.sort.endswith("created_at") else str
    found = service.record.experiments(
        states=query.state,
        project=query.project,
        name=query.name,
        owner=query.owner,
        tags=[(name, value) for name, _, value in (each.partition("=") for each in query.tag)],
        archived=query.archived,
        sort=query.sort,
        limit=query.limit + 1,
        after=decode(query.sort, query.cursor, (kind, str)),
    )
    by = query.sort.removeprefix("-")
    page, cursor = cut(
        found,
        query.limit,
        query.sort,
        lambda last: [getattr(last.experiment, by), last.experiment.id],
    )
    return schemas.Page(items=[service.views.listed(each) for each in page], next_cursor=cursor)


@router.get("/experiments/{id}", summary="Look at an experiment")
def get_experiment(service: TheService, id: ExperimentId) -> schemas.ExperimentNow:
    """Return an experiment with its progress, the time it still needs, and its best trial."""
    return service.views.experiment(service.record.experiment(id))


class PrioritizeRequest(schemas.Asked):
    """The priority that an experiment gets."""

    priority: int = Field(
        strict=True,
        ge=LEAST_PRIORITY,
        le=LARGEST_PRIORITY,
        description="Experiments with a higher priority start first, and have places first",
    )


class DeleteRequest(schemas.Asked):
    """Says that an experiment is to be removed for good."""

    confirm: Literal[True] = Field(description="Has to be true")


def _leave_out_sources(spec: ExperimentSpec) -> ExperimentSpec:
    """Return the spec of an extension without what its search started from.

    That was checked when it was posted. It may be gone by now, or of less use to a longer budget;
    and an extension has to name it again.
    """
    search = spec.search.model_copy(update={"warm_start": []})
    return spec.model_copy(update={"search": search})


def _extend(service: Service, id: str, spec: ExperimentSpec) -> None:
    raise_errors(_look(_leave_out_sources(spec), service.settings, service).errors)
    service.record.extend(id, spec)


@dataclass(frozen=True)
class _Act:
    """What the page says of an action, and what a request for it brings along."""

    summary: str
    words: str
    body: Any = None
    """Type of the request's body; None: it has none."""
    run: Callable[[Service, str, Any], None] | None = None
    """Takes that body; None: the record does the action by the experiment's id alone."""
    tell: Callable[[Any], str] | None = None
    """Returns what the audit log says of that body; None: the action alone stands there."""


ACTS: Final[dict[Action, _Act]] = {
    "cancel": _Act(
        "Cancel an experiment",
        """Cancel a queued or paused experiment at once; tell the driver of a running one to stop.

        With scope `submit` a user cancels what is the user's own, with `admin` everything.
        A second call changes nothing. An experiment that has completed or failed is answered 409.
        """,
    ),
    "pause": _Act(
        "Pause an experiment",
        """Pause a queued experiment at once; have the trials of a running one commit and leave.

        It is `pausing`, then `paused`, and the queue goes on with others. Nothing is lost. A second
        call changes nothing. An experiment that is over or is being cancelled is answered 409.
        """,
    ),
    "resume": _Act(
        "Resume a paused experiment",
        """Queue a paused experiment again: its trials go on from their commits, bit for bit.

        An experiment in any other state is answered 409.
        """,
    ),
    "prioritize": _Act(
        "Give an experiment another priority",
        """Move an experiment in the queue; a running one gets places before lower ones.

        No trial is ended for that: places change hands when trials end. The spec keeps the priority
        that was posted. An experiment that is over is answered 409.
        """,
        PrioritizeRequest,
        lambda service, id, asked: service.record.prioritize(id, asked.priority),
        lambda asked: f"priority {asked.priority}",
    ),
    "retry": _Act(
        "Try the failed trials of an experiment again",
        """Queue an experiment that is over again: failed and stalled trials go on from commits.

        All others stay as they are. If it was cancelled, it ends as cancelled again. If it failed
        itself, its search goes on, too, with the trials that were cut off. Answered 409 if it is
        not over, or has not failed and no trial of it has.
        """,
    ),
    "extend": _Act(
        "Give an experiment that is over more to do",
        """Queue an experiment that is over again, as the spec says that it should be now.

        That may have more trials, more values in the space, more arms, a longer budget, larger
        limits. Trials that completed train on from their checkpoints if the budget is longer. In
        one that was cancelled or failed the search goes on, also with the spec as it was. What
        would be another experiment is refused.
        """,
        ExperimentSpec,
        _extend,
    ),
    "archive": _Act(
        "Archive an experiment",
        "Leave an experiment that is over out of lists, unless they ask for archived ones.",
    ),
    "unarchive": _Act(
        "Show an archived experiment in lists again",
        "Show an experiment in lists again. Retry and extend do so, too.",
    ),
    "deliver": _Act(
        "Send a finished experiment to MLflow once more",
        """Send all runs of a finished experiment to MLflow once more, in case it lost them.

        Runs that MLflow still has are kept, and get what they lack. `delivered` is false until all
        of it has arrived. An experiment that is not over is answered 409.
        """,
    ),
    "delete": _Act(
        "Delete an experiment for good",
        """Remove an experiment that is over: its runs in MLflow, its checkpoints and rows.

        It is `deleting` until all of it is gone, and then it is answered 404. What other
        experiments took over from it they keep as numbers, without its weights. While one that is
        not over names it in `search.warm_start`, it is answered 409.
        """,
        DeleteRequest,
    ),
}


def _add_route(action: Action, about: _Act) -> None:
    def act(service: TheService, id: OwnExperimentId, request: Request) -> schemas.ExperimentNow:
        return act_on(service, id, None, request)

    def act_on(
        service: TheService, id: OwnExperimentId, asked: Any, request: Request
    ) -> schemas.ExperimentNow:
        if about.run is None:
            getattr(service.record, action)(id)
        else:
            about.run(service, id, asked)
        if about.tell is not None:
            callers.tell_audit(request, about.tell(asked))
        _wake(service)
        return service.views.experiment(service.record.experiment(id))

    act_on.__annotations__["asked"] = about.body
    router.add_api_route(
        f"/experiments/{{id}}/{action}",
        act if about.body is None else act_on,
        methods=["POST"],
        status_code=202,
        name=f"{action}_experiment",
        summary=about.summary,
        description=cleandoc(about.words),
        responses=describe_errors(409),
    )


for _action, _about in ACTS.items():
    _add_route(_action, _about)


BulkAction = Literal[
    "pause", "resume", "cancel", "retry", "archive", "unarchive", "deliver", "delete"
]


class BulkRequest(schemas.Asked):
    """One action, and the experiments that it is for."""

    action: BulkAction
    ids: list[str] = Field(min_length=1, max_length=200, examples=[["1m7xnz0qe2nqc"]])
    confirm: bool = Field(False, strict=True, description="Has to be true for `delete`")


class BulkItem(schemas.AnswerModel):
    """What became of one of them."""

    id: str
    state: ExperimentState | None = Field(
        description="Its state now; null if there is none, or it is not known"
    )
    problem: str | None = Field(description="Why it was refused; null if it was not")


@router.post("/experiments/bulk", summary="Do the same to several experiments")
def act_in_bulk(
    service: TheService, caller: callers.Submitter, asked: BulkRequest, request: Request
) -> schemas.Items[BulkItem]:
    """Do to each experiment what its own address does; one that is refused leaves the others be.

    Where the database leaves half way, the others are not tried, and say so.
    """
    if asked.action == "delete" and not asked.confirm:
        raise SpecError(
            "confirm",
            "delete removes runs, checkpoints and records for good: say 'confirm': true",
            expected="true",
            got=False,
        )
    items, refused = list[BulkItem](), dict[str, list[str]]()
    left = deque(dict.fromkeys(asked.ids))
    while left:
        id, state, problem = left.popleft(), None, None
        try:
            caller.require_owner(service.record.row(id).owner, f"experiment {id}")
            getattr(service.record, asked.action)(id)
        except (NotFoundError, ConflictError, SpecError, UnreadableSpecError) as error:
            problem = str(error)
        except NotAllowedError as error:
            problem = str(error)
            is_quota = isinstance(error, QuotaExceededError)
            refused.setdefault("beyond a quota" if is_quota else "of another user", []).append(id)
        except SQLAlchemyError as error:
            status, problem = tell_database_error(error)
            if status != 422:  # then this id alone is no text for a database
                if not items:
                    raise
                logger.error("%s stopped before experiment=%s", asked.action, id, exc_info=True)
                items += [BulkItem(id=each, state=None, problem=problem) for each in (id, *left)]
                break
        with suppress(NotFoundError, SQLAlchemyError):  # it may be removed by now
            state = service.record.state(id)
        items.append(BulkItem(id=id, state=state, problem=problem))
    done = [item.id for item in items if item.problem is None]
    callers.enter_bulk(request, service.audit, asked.action, done, refused)
    _wake(service)
    return schemas.Items(items=items)


def _wake(service: Service) -> None:
    """Have the queue looked at, and what removes experiments."""
    service.dispatcher.wake()
    service.jobs.wake("deletion")
