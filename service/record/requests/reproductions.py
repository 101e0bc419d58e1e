"""The requested reproductions: jobs of the record, whose reports are files in a folder.

Runs in the service's process. A folder below `reproductions` in the home folder is named by the
digest of the suite and its budget, and holds the report's files. The experiments are in the record
of experiments and found again by their idempotency keys, so a reproduction goes on after any stop,
and suites that share an experiment run it once.
"""

from __future__ import annotations

import hashlib
import json
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any, ClassVar, Final, Literal

from pydantic import JsonValue

from eigensweep.protocol.states import ENDED
from eigensweep.reports.messages import FILES, JSON, MOST_SEEDS, ReportOutcome, Results, Until
from eigensweep.reports.results import UNFINISHED, name_file, read_results
from eigensweep.search_spaces.checks.checks import check_spec
from eigensweep.search_spaces.errors import SpecError
from eigensweep.search_spaces.sections import ResourcesConfig
from eigensweep.search_spaces.shipped.reproductions import (
    Budget,
    load_suite,
    make_specs,
    suite_names,
)
from eigensweep.search_spaces.spec import ExperimentSpec
from eigensweep.service.record.changes.posting import has_spec
from eigensweep.service.record.errors import (
    ConflictError,
    ExperimentNotFoundError,
    NotFoundError,
    WrongStateError,
)
from eigensweep.service.record.jobs import PATIENCE, AskedJob, Jobs
from eigensweep.service.record.record import Record
from eigensweep.service.record.requests.taking_up import take_up
from eigensweep.service.record.sql.tables import OPERATOR, JobKind, JobRow
from eigensweep.store.places.durable_files import make_folder

logger = logging.getLogger(__name__)

ReproductionState = Literal["running", "reporting", "finished", "failed", "cancelled"]
OPEN: Final = ("running", "reporting")
VERSION: Final = 3
"""Raised when reports of the same numbers change."""


@dataclass(frozen=True)
class Posted:
    """An experiment of a reproduction: its id, or why it cannot run on this service."""

    id: str | None
    problem: str | None = None


@dataclass(frozen=True)
class Wanted:
    """An analysis of a reproduction: its id, or why it cannot be made."""

    label: str
    repeat: int
    id: str | None
    problem: str | None = None


@dataclass(frozen=True, kw_only=True)
class ReproductionRecord(AskedJob):
    """A reproduction and its state; its owner is the user who opened it."""

    kind: ClassVar[JobKind] = "reproduction"
    open: ClassVar[Collection[str]] = OPEN
    outcomes: ClassVar[Collection[str]] = ("verdict", "words", "mlflow_problem")
    name: str
    budget: Budget
    state: ReproductionState
    owner: str = OPERATOR
    experiments: dict[str, Posted]
    first: dict[str, Posted] = field(default_factory=dict)
    """Those before seeds were added: others have the trials alone that the primary claim compares.
    Empty while none were."""
    analyses: tuple[Wanted, ...] | None = None
    """None before they are asked for."""
    verdict: str | None = None
    words: str | None = None
    mlflow_problem: str | None = None
    until: Until | None = None
    """None: the number of seeds is fixed."""
    resources: dict[str, JsonValue] | None = None
    """What a trial occupies; None: what the suite says."""

    def make_all(self) -> list[tuple[str, Posted, ExperimentSpec]]:
        """Return the label of each experiment that was posted, with what was posted."""
        made = [(self.experiments, self.make_specs(self.added)), (self.first, self.make_specs(0))]
        return [
            (label, posted, specs[label])
            for those, specs in made
            for label, posted in those.items()
            if label in specs
        ]

    def make_specs(self, added: int) -> dict[str, ExperimentSpec]:
        """Return its experiments by their labels, with so many seeds added."""
        return make_specs(self.name, self.budget, added, read_resources(self.resources))

    @property
    def added(self) -> int:
        """Seeds that were added until the primary claim was decided."""
        return 0 if self.until is None else self.until.added

    @property
    def posted(self) -> set[Posted]:
        """All of its experiments."""
        return {*self.first.values(), *self.experiments.values()}


@dataclass
class Reproductions:
    """The reproductions of a record, and the folder of their reports."""

    jobs: Jobs
    folder: Path
    record: Record
    corpora: Path
    results: Path | None = None
    """Folder of results of other machines; None: there are none."""
    storage: str = ""
    """Folder of checkpoints and curves."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(
        self,
        name: str,
        budget: Budget,
        owner: str = OPERATOR,
        until: Until | None = None,
        resources: ResourcesConfig | None = None,
    ) -> tuple[ReproductionRecord, bool]:
        """Open a reproduction and queue its experiments; return it, and whether it was opened.

        With `until`, seeds are added until the primary claim is decided. If that was asked for
        within other limits before, it goes on from the seeds that exist. `resources` are those of a
        trial; None: those that the suite names.

        The same request gives the same reproduction. It is opened again if it failed or was
        cancelled, if an experiment of it did, or if its report was removed; what has finished is
        not run again.

        Raises:
            UnknownSuiteError: if there is no suite of this name.
            ConflictError: if it is open within other limits.
            QuotaExceededError: if the owner may not have its experiments.
            StorageError: if it cannot be written to the folder, or results that are taken up to
                the store.
        """
        id = make_id(name, budget, until, resources)
        with self._lock:
            earlier = ReproductionRecord.find(self.jobs, id)
            if earlier is not None and earlier.until is not None and until is not None:
                until = replace(until, looks=earlier.until.looks)
            is_open = earlier is not None and earlier.state in OPEN
            if earlier is not None and is_open and until is not None and earlier.owner == owner:
                _require_same_limits(earlier, until)  # others follow it
            if earlier is not None and (
                is_open or (self._is_complete(earlier) and earlier.until == until)
            ):
                return earlier, False
            specs = make_specs(name, budget, resources=resources)
            first = dict[str, ExperimentSpec]()
            if until is not None and until.added:
                specs, first = make_specs(name, budget, until.added, resources), specs
            wanted = (*first.values(), *specs.values())
            new = [each for each in wanted if self._find_posted(each, owner)[0] is None]
            self.record.check_quotas(new, owner)
            self._take_up(name, budget)
            opened = ReproductionRecord(
                id=id,
                name=name,
                budget=budget,
                state="running",
                created_at=time.time() if earlier is None else earlier.created_at,
                experiments=self._post_all(specs, owner),
                first=self._post_all(first, owner),
                owner=owner,
                until=until,
                resources=None
                if resources is None
                else resources.model_dump(mode="json", exclude_unset=True),
            )
            make_folder(self.folder / id)
            self.jobs.put(opened.to_job())
        return opened, True

    def _take_up(self, name: str, budget: Budget) -> None:
        """Record the results of other machines for this suite, so that they are not trained again.

        Raises:
            StorageError: if they cannot be written to the store.
        """
        names = [name_file(each, budget) for each in (name, load_suite(name).same_as) if each]
        for path in (*names, *(f"{UNFINISHED}/{each}" for each in names)):
            found = self.read_results(path)
            if found is None:
                continue
            try:
                take_up(self.record.url, found, self.storage)
            except (ArithmeticError, LookupError, TypeError, ValueError) as error:
                logger.warning("results are not taken up path=%s: %r", path, error)

    def read_results(self, path: str) -> Results | None:
        """Return results of other machines; None if there are none of this name.

        A file that cannot be read counts as none, with a warning: its trials are trained here.
        """
        if self.results is None:
            return None
        try:
            return read_results((self.results / path).read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            logger.warning("results are not taken up path=%s: %s", path, error)
            return None

    def _is_complete(self, found: ReproductionRecord) -> bool:
        if found.state != "finished" or not (self.folder / found.id / JSON).is_file():
            return False
        return self.has_trained(found)

    def has_trained(self, found: ReproductionRecord) -> bool:
        """Return whether all experiments of a reproduction are completed."""
        if any(each.id is None for each in found.posted):
            return False  # a corpus that was missing may have come
        ids = [each.id for each in found.posted if each.id]
        try:
            return all(self.record.row(id).state == "completed" for id in ids)
        except ExperimentNotFoundError:  # it was deleted
            return False

    def _post_all(self, specs: Mapping[str, ExperimentSpec], owner: str) -> dict[str, Posted]:
        return {label: self._post(spec, owner) for label, spec in specs.items()}

    def _post(self, spec: ExperimentSpec, owner: str) -> Posted:
        """Queue an experiment, or find the same one; one that failed is queued once more."""
        try:
            check_spec(spec, self.corpora)
        except SpecError as error:
            return Posted(None, str(error))
        id, key = self._find_posted(spec, owner)
        return Posted(self.record.add(spec, key, owner)[0].id if id is None else id)

    def _find_posted(self, spec: ExperimentSpec, owner: str) -> tuple[str | None, str]:
        """Return the experiment that stands for a spec, None if there is none, and a key for it."""
        id = self._find_open(spec, owner)
        for attempt in count():
            key = f"reproduction-{digest(spec)}-{attempt}"
            row = None if id is not None else self.record.find_by_key(key)
            if row is None:
                break
            is_there = row.state == "completed" or row.state not in ENDED | {"deleting"}
            if is_there and has_spec(row, spec):
                return row.id, key
        return id, key

    def _find_open(self, spec: ExperimentSpec, owner: str) -> str | None:
        """Return an experiment of an open reproduction that has this spec and is not over.

        Its idempotency key does not find one that an earlier version has posted.
        """
        for id in {each.id for found in self.list(OPEN) for each in found.posted if each.id}:
            with suppress(ExperimentNotFoundError):
                row = self.record.row(id)
                is_open = row.owner == owner and row.state not in ENDED | {"deleting"}
                if is_open and has_spec(row, spec):
                    return id
        return None

    def get(self, id: str) -> ReproductionRecord:
        """Return one reproduction; raise NotFoundError if there is none of this id."""
        if (found := ReproductionRecord.find(self.jobs, id)) is None:
            raise NotFoundError(f"there is no reproduction '{id}'")
        return found

    def list(self, states: Sequence[str] = ()) -> Sequence[ReproductionRecord]:
        """Return those in one of the states (default: all), by name, then by age."""
        found = map(ReproductionRecord.of, self.jobs.list("reproduction", states))
        places = {name: place for place, name in enumerate(suite_names())}
        return sorted(
            found, key=lambda each: (places.get(each.name, 0), each.budget, each.created_at)
        )

    def file(self, id: str, name: str) -> Path:
        """Return the path of one of the report's files.

        Raises:
            NotFoundError: if there is no such reproduction or file, or not yet.
        """
        found = self.get(id)
        path = self.folder / id / name
        if name not in FILES or found.state != "finished" or not path.is_file():
            raise NotFoundError(
                f"reproduction '{id}' is {found.state}: it has no file '{name}'"
                + (" yet" if found.state in OPEN else f"; reports have {', '.join(FILES)}")
            )
        return path

    def cancel(self, id: str, may_cancel: Callable[[str], bool]) -> ReproductionRecord:
        """Cancel a reproduction and its experiments that are not over.

        `may_cancel` says of an experiment's owner whether it is cancelled, too.

        Raises:
            NotFoundError: if there is none of this id.
            ConflictError: if it is over.
        """
        found = self.get(id)
        if found.state == "cancelled":
            return found
        if found.state not in OPEN:
            raise ConflictError(f"reproduction {id} is over: it has {found.state}")
        for each in found.posted:
            with suppress(WrongStateError, ExperimentNotFoundError):
                if each.id is not None and may_cancel(self.record.row(each.id).owner):
                    self.record.cancel(each.id)
        cancelled = self.change(found, state="cancelled", finished_at=time.time())
        # If it got further seeds meanwhile, their experiments are cancelled, too.
        return cancelled if cancelled.state == "cancelled" else self.cancel(id, may_cancel)

    def change(
        self, found: ReproductionRecord, patience: float = 0.0, **changes: Any
    ) -> ReproductionRecord:
        """Replace fields of a reproduction and write it; return what is stored.

        One that was cancelled stays so, and one that was asked for anew keeps its experiments.
        What failed before this step counts no longer: a reproduction may take weeks, with many a
        night without its store.
        """

        def is_another(now: JobRow) -> bool:
            stored = ReproductionRecord.of(now)
            return stored.state == "cancelled" or stored.posted != found.posted

        changed = replace(found, **changes).to_job()
        changed.tries = 0
        return ReproductionRecord.of(self.jobs.put(changed, is_another, patience))

    def finish(self, found: ReproductionRecord, outcome: ReportOutcome) -> ReproductionRecord:
        """Record how the report of a reproduction ended."""
        return self.change(
            found,
            PATIENCE,
            state="finished" if outcome.error is None else "failed",
            finished_at=time.time(),
            verdict=outcome.verdict,
            words=outcome.words,
            error=outcome.error,
            mlflow_problem=outcome.mlflow_problem,
        )

    def widen(self, found: ReproductionRecord, added: int) -> ReproductionRecord:
        """Queue the experiments of its primary claim with `added` more seeds.

        Trained seeds are taken over.
        """
        specs = found.make_specs(added)
        experiments = self._post_all(specs, found.owner)
        changed = self.change(
            found,
            state="running",
            until=(found.until or Until()).after(added),
            experiments=experiments,
            first=found.first or found.experiments,
            analyses=None,
        )
        if changed.experiments != experiments:  # it was cancelled meanwhile
            for each in experiments.values():
                if each.id is not None and each not in changed.posted:
                    with suppress(WrongStateError):
                        self.record.cancel(each.id)
        return changed


def _require_same_limits(earlier: ReproductionRecord, until: Until) -> None:
    """Refuse other limits for one that is open; who follows it names none."""
    has = earlier.until
    if has is None or (
        until.core_hours in (None, has.core_hours) and until.most in (MOST_SEEDS, has.most)
    ):
        return
    hours = "any number of" if has.core_hours is None else f"{has.core_hours:g}"
    raise ConflictError(
        f"reproduction {earlier.id} is open, with {has.most} seeds at most and {hours} core hours: "
        "cancel it, and ask again with other limits; it goes on from the seeds that exist"
    )


def read_resources(stored: Mapping[str, JsonValue] | None) -> ResourcesConfig | None:
    """Return what a trial of a stored reproduction occupies; None: what its suite says."""
    return None if stored is None else ResourcesConfig.model_validate(stored)


def make_id(
    name: str, budget: Budget, until: Until | None, resources: ResourcesConfig | None
) -> str:
    """Return the digest of a suite with its experiments, 16 hex digits."""
    content = [VERSION, name, budget, load_suite(name).model_dump(mode="json")]
    if until is not None:  # whatever its limits are, so that others go on with its seeds
        content.append("until decided")
    specs = make_specs(name, budget, resources=resources)
    return _digest([*content, *((label, digest(spec)) for label, spec in specs.items())])


def digest(spec: ExperimentSpec) -> str:
    """Return the digest of a spec, 16 hex digits."""
    return _digest(spec.model_dump(mode="json"))


def _digest(content: Iterable[Any]) -> str:
    text = json.dumps(content, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
