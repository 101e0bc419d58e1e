"""Takes reproductions from one stage to the next: experiments, analyses, report.

Runs in the service's process. The dispatcher runs the experiments, and the analyses are jobs of
their own. This handler only requests both, and has a child process make the report.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Final

from eigensweep.analyses.base import six_digits
from eigensweep.protocol.states import ENDED, OPEN_ANALYSES
from eigensweep.reports import messages
from eigensweep.reports.measurements import ArmsMeasured, join_trials
from eigensweep.reports.messages import Results
from eigensweep.reports.results import name_file
from eigensweep.search_spaces.errors import SpecError
from eigensweep.search_spaces.shipped.reproductions import (
    SuiteAnalysis,
    find_repeated,
    load_suite,
)
from eigensweep.search_spaces.spec import ExperimentSpec
from eigensweep.service.queue.jobs import ReadingHandler
from eigensweep.service.record.changes.posting import has_spec
from eigensweep.service.record.errors import ConflictError, NotFoundError
from eigensweep.service.record.record import Record
from eigensweep.service.record.requests.analyses import Analyses, AnalysisRecord
from eigensweep.service.record.requests.analysis_requests import (
    AnalysisRequest,
    complete_request,
    find_place,
)
from eigensweep.service.record.requests.reproductions import (
    Posted,
    ReproductionRecord,
    Reproductions,
    Wanted,
    make_id,
    read_resources,
)
from eigensweep.service.record.sql.tables import JobKind, JobRow

logger = logging.getLogger(__name__)

MOST_TRIALS: Final = 5000

Look = Callable[[messages.MeasuredExperiment], messages.MeasuredExperiment]


@dataclass
class ReproductionHandler(ReadingHandler):
    """Takes each open reproduction through all stages that are possible now."""

    kind: ClassVar[JobKind] = "reproduction"
    module: ClassVar[str] = "eigensweep.reports"
    reproductions: Reproductions
    record: Record
    analyses: Analyses

    def work(self, job: JobRow) -> None:
        found = ReproductionRecord.of(job)
        try:
            if found.state == "running":
                found = self._look_after(found)
            if found.state == "reporting":
                self._report(found)
        except (SpecError, ValueError, LookupError) as error:  # changed or removed since
            self.reproductions.finish(found, messages.ReportOutcome(error=str(error)))

    def _look_after(self, found: ReproductionRecord) -> ReproductionRecord:
        """Ask for the analyses once the experiments are over; then let the report be made."""
        ids = [each.id for each in found.posted if each.id is not None]
        if any(self.record.row(id).state not in ENDED for id in ids):
            return found
        suite = load_suite(found.name)
        resources = read_resources(found.resources)
        if make_id(found.name, found.budget, found.until, resources) != found.id:
            raise ValueError(f"{found.name} has changed since it was asked for; ask for it again")
        for label, posted, spec in found.make_all():
            if posted.id is not None and not has_spec(self.record.row(posted.id), spec):
                problem = (
                    f"its experiment '{label}' ({posted.id}) was extended since; ask for it again"
                )
                raise ValueError(problem)
        if found.analyses is None:
            asked = [
                self._ask(found, label, repeat, analysis)
                for label, analysis in suite.analyses.items()
                for repeat in range(
                    analysis.times + (found.added if label in find_repeated(suite) else 0)
                )
            ]
            found = self.reproductions.change(found, analyses=tuple(asked))
        made = filter(None, map(self._find_analysis, found.analyses or ()))
        if any(each.state in OPEN_ANALYSES for each in made):
            return found
        return self.reproductions.change(found, state="reporting")

    def _find_analysis(self, asked: Wanted) -> AnalysisRecord | None:
        return None if asked.id is None else AnalysisRecord.find(self.analyses.jobs, asked.id)

    def _ask(
        self, found: ReproductionRecord, label: str, repeat: int, analysis: SuiteAnalysis
    ) -> Wanted:
        """Ask for one repetition of an analysis."""
        options = dict(analysis.options)
        if analysis.repeat is not None:
            options[analysis.repeat] = repeat
        try:
            experiment, trial = self._find_subject(found, analysis)
            request = AnalysisRequest(
                name=analysis.name, experiment=experiment, trial=trial, options=options
            )
            spec = complete_request(request, self.record, self.probe.place)
            return Wanted(label, repeat, self.analyses.add(spec)[0].id)
        except (SpecError, ConflictError, NotFoundError) as error:
            return Wanted(label, repeat, None, str(error))

    def _find_subject(
        self, found: ReproductionRecord, analysis: SuiteAnalysis
    ) -> tuple[str | None, int | None]:
        """Return the experiment and the trial that an analysis is about."""
        if analysis.experiment is None:
            return None, None
        label = analysis.experiment
        whole, widest = (
            some[label] for some in (found.first or found.experiments, found.experiments)
        )
        if whole.id is None:
            raise NotFoundError(whole.problem)
        if analysis.arm is None:
            return whole.id, None
        for posted in (widest, whole):
            measured = ArmsMeasured(self._measure(found, label, posted), self.probe.store)
            if posted.id is not None and analysis.arm in measured.arms:
                return posted.id, measured.arms[analysis.arm].trial.number
        raise NotFoundError(f"no trial of arm '{analysis.arm}' trained to an end")

    def _report(self, found: ReproductionRecord) -> None:
        """Make the report in a child process, and record how that ended."""
        folder = self.reproductions.folder / found.id
        outcome = self.children.make(folder, self.make_order(found), messages.ReportOutcome)
        if outcome.wanted is not None:
            self.reproductions.widen(found, outcome.wanted)
            logger.info("seeds added id=%s name=%s added=%d", found.id, found.name, outcome.wanted)
            return
        ended = self.reproductions.finish(found, outcome)
        logger.info("reproduction %s id=%s name=%s", ended.state, ended.id, ended.name)

    def make_order(
        self, found: ReproductionRecord, look: Look | None = None
    ) -> messages.ReportOrder:
        """Return the input of a report: the posted experiments, and the analyses.

        `look` returns what counts of an experiment; None: all of it.
        """
        labels = load_suite(found.name).experiments.keys() & found.experiments.keys()
        return messages.ReportOrder(
            id=found.id,
            name=found.name,
            budget=found.budget,
            experiments=[
                self._measure_all(found, label, look or (lambda measured: measured))
                for label in found.experiments
                if label in labels
            ],
            analyses=[self._describe(found, each) for each in found.analyses or ()],
            until=found.until,
            storage=self.probe.place,
            mlflow_uri=self.mlflow.uri if self.mlflow else None,
        )

    def _measure_all(
        self, found: ReproductionRecord, label: str, look: Look
    ) -> messages.MeasuredExperiment:
        """Return an experiment at its end, with all seeds that were added to its trials."""
        measured = look(self._measure(found, label, found.experiments[label]))
        whole = found.first.get(label, found.experiments[label])
        if whole == found.experiments[label]:
            return measured
        return join_trials(look(self._measure(found, label, whole)), measured)

    def _measure(
        self, found: ReproductionRecord, label: str, posted: Posted
    ) -> messages.MeasuredExperiment:
        row = None if posted.id is None else self.record.row(posted.id)
        spec = ExperimentSpec.from_stored(row.spec) if row else found.make_specs(found.added)[label]
        metric, experiment = spec.objective_metric, load_suite(found.name).experiments[label]
        about = {
            "label": label,
            "id": posted.id,
            "sides": experiment.sides,
            "chosen": experiment.chosen,
            "spec": spec.model_dump(mode="json"),
            "metric": metric.name,
            "unit": metric.unit,
            "better": metric.better,
        }
        if row is None:
            why = posted.problem or "it cannot run here"
            return messages.MeasuredExperiment(
                **about, state="unavailable", problem=why, baseline=spec.baseline
            )
        problem = None if row.state == "completed" else f"the experiment is {row.state}"
        if row.error:
            problem = f"{problem}: {row.error.strip().splitlines()[-1]}"
        trials = self.record.trials(row.id, limit=MOST_TRIALS)
        return messages.MeasuredExperiment(
            **about,
            state=row.state,
            problem=problem,
            baseline=row.baseline if spec.baseline is None else spec.baseline,
            trials=tuple(
                messages.MeasuredTrial.made_of(each.trial, place=find_place(each.trial))
                for each in trials
            ),
            run_id=row.run_id,
            started_at=row.started_at,
            finished_at=row.finished_at or time.time(),
        )

    def _describe(self, found: ReproductionRecord, asked: Wanted) -> messages.MadeAnalysis:
        """Return a finished analysis, or its kept numbers if the weights are on another machine."""
        made = self._describe_own(asked)
        if made.folder is not None:
            return made
        kept = self.reproductions.read_results(name_file(found.name, found.budget))
        for each in (
            kept.analyses if kept is not None and self._has_same_results(found, kept) else ()
        ):
            if (each.label, each.repeat) == (asked.label, asked.repeat) and each.content:
                return made.model_copy(update={"content": each.content, "problem": None})
        return made

    def _has_same_results(self, found: ReproductionRecord, kept: Results) -> bool:
        """Return whether kept results are those of all trials here, whose weights they are of."""
        known = {
            (trial.config_hash, six_digits(value))
            for each in kept.experiments
            for trial in each.trials
            if isinstance(value := (trial.result or {}).get("value"), float)
        }
        posted = (each.id for each in found.experiments.values() if each.id is not None)
        return all(
            (each.trial.config_hash, six_digits(each.trial.value)) in known
            for id in posted
            for each in self.record.trials(id, limit=MOST_TRIALS)
            if each.trial.value is not None and each.trial.state != "cancelled"
        )

    def _describe_own(self, asked: Wanted) -> messages.MadeAnalysis:
        about = {"label": asked.label, "repeat": asked.repeat, "id": asked.id}
        if asked.id is None:
            return messages.MadeAnalysis(**about, problem=asked.problem)
        if (made := self._find_analysis(asked)) is None:
            return messages.MadeAnalysis(**about, problem="its files were removed")
        if made.state != "finished":
            error = (made.error or made.state).strip().splitlines()[-1]
            return messages.MadeAnalysis(**about, problem=error)
        return messages.MadeAnalysis(**about, folder=str(self.analyses.folder / asked.id))
