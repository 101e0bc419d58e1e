"""Checks a request for an analysis and completes it: defaults filled in, its subject looked up.

Runs in the service's process. A request that cannot be fulfilled is refused here.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from eigensweep.analyses import ANALYSES
from eigensweep.analyses.base import (
    AnalysisMethod,
    ExperimentSubject,
    Options,
    TrialOptions,
    TrialSubject,
)
from eigensweep.analyses.spectra import SpectraOptions
from eigensweep.common.registry import UnknownNameError
from eigensweep.protocol.states import ENDED, OPEN_TRIALS
from eigensweep.search_spaces.checks.problems import list_problems
from eigensweep.search_spaces.errors import (
    SeveralErrors,
    SpecError,
    UnreadableSpecError,
    did_you_mean,
)
from eigensweep.service.record.errors import ConflictError
from eigensweep.service.record.requests.analyses import AnalysisSpec, OptionsJson
from eigensweep.service.record.sql.tables import ExperimentRow, TrialRow
from eigensweep.service.record.views.queries import Queries
from eigensweep.store import spectrum_files
from eigensweep.store.checkpoints import Store, trial_key

TRAINED = ("completed", "pruned", "diverged", "reused")
"""Ends of a trial after which its curve says something about its configuration."""
MOST_TRIALS = 5000


class AnalysisRequest(BaseModel):
    """The name of an analysis, its subject, and its options."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(max_length=60, description="One of those at /v1/analysis-kinds")
    experiment: str | None = Field(None, max_length=32, description="An experiment's id")
    trial: int | None = Field(None, ge=0, lt=2**31, description="The number of one of its trials")
    options: OptionsJson = Field({}, description="Options of its kind; each has a default")


def complete_request(request: AnalysisRequest, queries: Queries, storage: str) -> AnalysisSpec:
    """Return the whole request, with defaults filled in and its subject looked up.

    Raises:
        SpecError: if a name or an option is wrong, or the subject lacks what is needed.
        NotFoundError: if there is no such subject.
        ConflictError: if the subject is not over, or the store has nothing of it.
        UnreadableSpecError: if its model or task is not installed here.
    """
    analysis = ANALYSES.get(request.name)
    if analysis is None:
        raise SpecError(
            "name",
            f"there is no analysis '{request.name}'; there are {', '.join(ANALYSES)}"
            + did_you_mean(request.name, ANALYSES),
            expected="the name of an analysis",
            got=request.name,
            available=list(ANALYSES),
        )
    options = _check_options(request, analysis)
    _check_subject(request, analysis)
    trial = experiment = None
    if analysis.of == "trial":
        assert request.experiment is not None
        assert request.trial is not None
        trial = _find_trial(request.experiment, request.trial, queries)
        _check_weights(trial, options, Store(storage))
    elif analysis.of == "experiment":
        assert request.experiment is not None
        experiment = _find_experiment(request.experiment, queries)
    try:
        analysis.check(options, trial or experiment)
    except UnknownNameError as error:
        raise UnreadableSpecError(f"its code is not installed here: {error}") from error
    except ValueError as error:
        raise SpecError("", str(error)) from error
    made = options.model_dump(mode="json")
    return AnalysisSpec(name=request.name, options=made, trial=trial, experiment=experiment)


def _check_subject(request: AnalysisRequest, analysis: AnalysisMethod[Any, Any, Any]) -> None:
    name = request.name
    needed = {"trial": ("experiment", "trial"), "experiment": ("experiment",), "matrices": ()}
    for part in ("experiment", "trial"):
        given, wanted = getattr(request, part) is not None, part in needed[analysis.of]
        if wanted and not given:
            raise SpecError(part, f"{name} looks at one {analysis.of}: say which", expected=part)
        if given and not wanted:
            what = "an experiment as a whole" if analysis.of == "experiment" else "no experiment"
            raise SpecError(part, f"{name} looks at {what}; leave '{part}' out")


def _check_options(request: AnalysisRequest, analysis: AnalysisMethod[Any, Any, Any]) -> Options:
    try:
        return analysis.Options.model_validate(request.options)
    except ValidationError as error:
        wrong = []
        for one in list_problems(error, analysis.Options):
            path, known = one["path"], list(analysis.Options.model_fields)
            message, available = one["message"], one["available"]
            if path and path.split(".")[0] not in known:
                message = (
                    f"{request.name} has no option '{path}'; it has {', '.join(known)}"
                    f"{did_you_mean(path, [*known, 'experiment', 'trial'])}"
                )
                one["expected"], available = f"an option of {request.name}", known
            place = f"options.{path}" if path else "options"
            wrong.append(SpecError(place, message, one["expected"], one["got"], available))
        raise (wrong[0] if len(wrong) == 1 else SeveralErrors(wrong)) from error


def _find_trial(id: str, number: int, queries: Queries) -> TrialSubject:
    trial = queries.trial(id, number).trial
    if queries.row(id).state == "deleting":
        raise ConflictError(f"experiment {id} is being deleted")
    if trial.state in OPEN_TRIALS:
        raise ConflictError(
            f"trial {number} of {id} is {trial.state}; an analysis looks at one that is over"
        )
    if trial.config is None:
        raise ConflictError(f"trial {number} of {id} is {trial.state}: it never trained")
    return _make_subject(trial)


def _check_weights(subject: TrialSubject, options: Options, store: Store) -> None:
    """Refuse an analysis of weights that the store does not have."""
    key = f"{subject.place}/{subject.config['seed']}"
    if store.has_checkpoint(key):
        return
    if isinstance(options, SpectraOptions) and spectrum_files.has_any(store, key):
        return
    which = f"trial {subject.number} of {subject.experiment}"
    if not store.kept.has_best(key):
        raise ConflictError(f"{which} is {subject.state} and the store holds no checkpoint of it")
    if not isinstance(options, TrialOptions) or options.weights != "best":
        raise ConflictError(
            f"the checkpoints of {which} were removed (`eigensweep prune`), and the store holds "
            "its best weights alone; those analyses are possible that have the option weights=best"
        )


def _find_experiment(id: str, queries: Queries) -> ExperimentSubject:
    row: ExperimentRow = queries.row(id)
    if row.state not in ENDED:
        raise ConflictError(
            f"experiment {id} is {row.state}; an analysis looks at one that is over"
        )
    found = queries.trials(id, states=TRAINED, limit=MOST_TRIALS + 1)
    if len(found) > MOST_TRIALS:
        raise ConflictError(
            f"more than {MOST_TRIALS:,} trials of experiment {id} trained; an analysis takes at "
            f"most {MOST_TRIALS:,}"
        )
    trials = [_make_subject(record.trial) for record in found if record.trial.config is not None]
    if not trials:
        raise ConflictError(f"no trial of experiment {id} trained to an end")
    return ExperimentSubject.made_of(row, experiment=id, trials=trials)


def _make_subject(trial: TrialRow) -> TrialSubject:
    """Return a trial with the place of its checkpoints, those of its source if it was reused."""
    place = find_place(trial)
    return TrialSubject.made_of(trial, experiment=trial.experiment_id, place=place)


def find_place(trial: TrialRow) -> str:
    """Return the folder of a trial's replicates in the store; of its source if it was reused."""
    source = trial.scores.get("reused_from")
    experiment = trial.experiment_id if source is None else source["experiment"]
    number = trial.number if source is None else source["number"]
    return trial_key(experiment, number)
