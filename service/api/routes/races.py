"""The race of an experiment: which trials got more seeds than others, and who leads."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter
from pydantic import Field

from eigensweep.protocol.states import ENDED
from eigensweep.results.racing import Race, Round, count_core_hours, find_race, read_values
from eigensweep.results.sequential import Look, look, look_back
from eigensweep.results.statistics import Summary, compare_paired, find_domain, summarize
from eigensweep.search_spaces.parameters import Scalar
from eigensweep.search_spaces.spec import ExperimentSpec
from eigensweep.service.api.answers.errors import describe_errors
from eigensweep.service.api.answers.schemas import AnswerModel
from eigensweep.service.api.answers.written import DescribedRoute
from eigensweep.service.api.parts import TheService
from eigensweep.service.api.routes.experiments import ExperimentId
from eigensweep.service.record.views.overviews import RacerRecord, list_racers

router = APIRouter(tags=["trials"], route_class=DescribedRoute)

RaceState = Literal["none", "waiting", "running", "over", "stopped"]
RaceVerdict = Literal["leads", "not distinguishable", "equivalent", "worse"]


MOST_RACERS = 20
"""Trials of the newest round that are shown."""


class RacerNow(AnswerModel):
    """A trial of the newest round."""

    number: int
    arm: str
    params: dict[str, Scalar] = Field(description="What the search chose, by dotted path")
    seeds: int = Field(description="Seeds that it has trained")
    verdict: RaceVerdict = Field(description="What the newest round said of it")
    value: Summary = Field(description="Over all seeds of the newest round")
    behind: Summary | None = Field(
        description="What it has more than the leader, seed by seed over the seeds that decide, "
        "with the interval of this comparison alone. These are all of the newest round; between "
        "arms, where one has several configurations, those after the first `replicates`, which "
        "chose the configurations. Null for the leader, and while no seed decides"
    )
    looks: list[Look] = Field(
        description="The comparison with the present leader after each round, over the seeds that "
        "decide; empty for the leader, and before two of them"
    )
    wanted: int | None = Field(
        description="Seeds of a trial, with those that do not decide, at which a difference of the "
        "size and spread of `behind` is decided, about; null beyond 1,000, for a trial that is "
        "decided, and before two seeds decide"
    )


class RaceHours(AnswerModel):
    """Core-hours of a race, with the search before it."""

    spent: float = Field(description="Without what was taken over from other trials")
    limit: float | None = Field(description="`racing.core_hours`")
    needed: float | None = Field(
        description="Estimate of the further core-hours until each racer has the seeds in "
        "`wanted`; null if nothing is open, or unknown"
    )


class RaceNow(AnswerModel):
    """A race: as far as it has come."""

    state: RaceState = Field(
        description="`none`: the spec has no `racing`; `waiting`: the search comes first; "
        "`running`; `over`; `stopped`: the experiment ended before the race was over"
    )
    words: str = Field(description="Where it is, as a sentence")
    seeds: list[int] = Field(description="How many seeds a trial has at each decision")
    rounds: list[Round]
    racers: list[RacerNow] = Field(
        description=f"Trials of the newest round, the leader first, {MOST_RACERS} at most"
    )
    wanted_e_value: float | None = Field(
        None, description="The e-value that decides a comparison: comparisons by `racing.alpha`"
    )
    smallest: float | None = Field(None, description="`racing.smallest`")
    core_hours: RaceHours | None = None


@router.get(
    "/experiments/{id}/race",
    summary="Look at the race for more seeds",
    responses=describe_errors(409),
)
def get_race(service: TheService, id: ExperimentId) -> RaceNow:
    """Return which trials train more seeds than others, what each round decided, and who leads."""
    row = service.record.row(id)
    spec = ExperimentSpec.from_stored(row.spec)
    if spec.racing is None:
        words = "every trial has the same number of seeds, as the spec has no 'racing'"
        return RaceNow(state="none", words=words, seeds=[], rounds=[], racers=[])
    seeds, trials = spec.racing.list_rounds(spec.replicates), list_racers(service.record, id)
    race = find_race(spec, trials)
    assert race is not None
    has_begun = any(trial.replicates > spec.replicates for trial in trials)
    state: RaceState = "over"
    if not race.is_over:
        state = "stopped" if row.state in ENDED else "running" if has_begun else "waiting"
    elif row.state not in ENDED and not has_begun:
        state = "waiting"
    if state == "waiting":
        words = "the race begins when the search is over"
        return RaceNow(state=state, words=words, seeds=seeds, rounds=[], racers=[])
    stopped = "the experiment ended before the race was over; " if state == "stopped" else ""
    racers = _make_racers(spec, race, {trial.number: trial for trial in trials}, row.metric)
    return RaceNow(
        state=state,
        words=stopped + race.words,
        seeds=seeds,
        rounds=list(race.rounds),
        racers=racers,
        wanted_e_value=1 / race.error,
        smallest=race.within,
        core_hours=RaceHours(
            spent=count_core_hours(spec, trials),
            limit=spec.racing.core_hours,
            needed=_guess_hours(spec, race, racers, trials),
        ),
    )


def _make_racers(
    spec: ExperimentSpec, race: Race, trials: dict[int, RacerRecord], metric: str
) -> list[RacerNow]:
    if not race.rounds:
        return []
    last = race.rounds[-1]
    kinds: dict[RaceVerdict, tuple[int, ...]] = {
        "leads": (last.leader,),
        "not distinguishable": last.rivals,
        "equivalent": last.equivalent,
        "worse": last.worse,
    }
    judged = [(number, kind) for kind, numbers in kinds.items() for number in numbers]
    seeds = range(spec.seed, spec.seed + last.seeds)
    leads = read_values(trials[last.leader].result)
    first = spec.seed + race.counted
    counted = [range(first, spec.seed + played.seeds) for played in race.rounds]
    deciding = counted[-1]
    racers = []
    for number, verdict in judged[:MOST_RACERS]:
        trial = trials[number]
        known = read_values(trial.result)
        now = [known[seed] for seed in seeds]
        behind, wanted = None, None
        looks = [] if number == last.leader else list(look_back(known, leads, counted, race.error))
        if number != last.leader and deciding:
            found = compare_paired(*({seed: v[seed] for seed in deciding} for v in (known, leads)))
            assert found.mean is not None
            behind = Summary(found.mean, found.n, found.sd, found.low, found.high)
            if verdict == "not distinguishable" and (seen := look(found, error=race.error)):
                wanted = seen.seeds and seen.seeds + race.counted
        racers.append(
            RacerNow.made_of(
                trial,
                seeds=len(known),
                verdict=verdict,
                value=summarize(now, find_domain(metric)),
                behind=behind,
                looks=looks,
                wanted=wanted,
            )
        )
    return racers


def _guess_hours(
    spec: ExperimentSpec, race: Race, racers: list[RacerNow], trials: list[RacerRecord]
) -> float | None:
    """Return the core-hours until the seeds that racers want are there, None if nobody knows."""
    open_ones = [each for each in racers if each.verdict == "not distinguishable"]
    wanted = [each.wanted for each in open_ones if each.wanted is not None]
    results = [trial.result for trial in trials if read_values(trial.result)]
    if not results or not wanted or len(wanted) < len(open_ones):
        return None
    each_takes = sum(each.seconds for each in results) / sum(each.replicates for each in results)
    more = sum(max(0, max(wanted) - each.seeds) for each in racers if each.wanted is not None)
    more += max(0, max(wanted) - racers[0].seeds)  # the leader trains as many
    return more * each_takes * spec.resources.cpus / 3600
