"""The race of an experiment: which trials got more seeds than others, and who leads."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter
from pydantic import Field

from eigensweep.search_spaces.parameters import Scalar
from eigensweep.search_spaces.spec import ExperimentSpec
from eigensweep.service.api.errors import describe_errors
from eigensweep.service.api.parts import TheService
from eigensweep.service.api.routes.experiments import ExperimentId
from eigensweep.service.api.schemas import Answer, SummaryNow
from eigensweep.service.record.overviews import RacerRecord, list_racers
from eigensweep.workers.shared.racing import Race, Round, find_race, read_values
from eigensweep.workers.shared.states import ENDED
from eigensweep.workers.shared.statistics import compare_paired, find_domain, summarize

router = APIRouter(tags=["trials"])

RaceState = Literal["none", "waiting", "running", "over", "stopped"]


class RaceRound(Answer):
    """What one round decided."""

    seeds: int = Field(description="Seeds of each trial in it")
    leader: int = Field(description="The trial with the best mean")
    rivals: list[int] = Field(description="Trials that cannot be told apart from the leader")
    worse: list[int] = Field(description="Trials that are worse, and left the race")
    left_out: list[int] = Field(
        description="Trials that cannot be told apart, and come after the largest number of leaders"
    )


class RacerNow(Answer):
    """A trial that is still in the race, or was at its end."""

    number: int
    arm: str
    params: dict[str, Scalar] = Field(description="What the search chose, by dotted path")
    seeds: int = Field(description="Seeds that it has trained")
    value: SummaryNow = Field(description="Over the seeds of the newest round")
    behind: SummaryNow | None = Field(
        description="What it has more than the leader, seed by seed over the same ones, with the "
        "interval of this comparison alone; null for the leader"
    )


class RaceNow(Answer):
    """A race: as far as it has come."""

    state: RaceState = Field(
        description="`none`: the spec has no `racing`; `waiting`: the search comes first; "
        "`running`; `over`; `stopped`: the experiment ended before the race was over"
    )
    words: str = Field(description="Where it is, as a sentence")
    seeds: list[int] = Field(description="How many seeds a trial has at each decision")
    rounds: list[RaceRound]
    racers: list[RacerNow] = Field(description="Trials of the newest round, the leader first")


@router.get(
    "/experiments/{id}/race",
    summary="Look at the race for more seeds",
    responses=describe_errors(401, 404, 422, 503),
)
def get_race(service: TheService, id: ExperimentId) -> RaceNow:
    """Return which trials train more seeds than others, what each round decided, and who leads."""
    row = service.record.row(id)
    spec = ExperimentSpec.from_stored(row.spec)
    if spec.racing is None:
        words = "every trial has the same number of seeds, as the spec has no 'racing'"
        return RaceNow(state="none", words=words, seeds=[], rounds=[], racers=[])
    trials = list_racers(service.record, id)
    race = find_race(spec, ((t.number, t.state, t.result, t.error) for t in trials))
    assert race is not None
    has_begun = any(trial.replicates > spec.replicates for trial in trials)
    state: RaceState = "over"
    if not race.is_over:
        state = "stopped" if row.state in ENDED else "running" if has_begun else "waiting"
    elif row.state not in ENDED and not has_begun:
        state = "waiting"
    if state == "waiting":
        words = "the race begins when the search is over"
        return RaceNow(state=state, words=words, seeds=_seeds(spec), rounds=[], racers=[])
    stopped = "the experiment ended before the race was over; " if state == "stopped" else ""
    return RaceNow(
        state=state,
        words=stopped + race.words,
        seeds=_seeds(spec),
        rounds=[_make_round(each) for each in race.rounds],
        racers=_make_racers(spec, race, {trial.number: trial for trial in trials}, row.metric),
    )


def _seeds(spec: ExperimentSpec) -> list[int]:
    return [] if spec.racing is None else spec.racing.list_rounds(spec.replicates)


def _make_round(found: Round) -> RaceRound:
    return RaceRound(
        seeds=found.seeds,
        leader=found.leader,
        rivals=list(found.rivals),
        worse=list(found.worse),
        left_out=list(found.left_out),
    )


def _make_racers(
    spec: ExperimentSpec, race: Race, trials: dict[int, RacerRecord], metric: str
) -> list[RacerNow]:
    if not race.rounds:
        return []
    last = race.rounds[-1]
    seeds = range(spec.seed, spec.seed + last.seeds)
    values = {
        number: {seed: read_values(trials[number].result)[seed] for seed in seeds}
        for number in last.racers
    }
    racers = []
    for number, known in values.items():
        trial, behind = trials[number], None
        if number != last.leader:
            found = compare_paired(known, values[last.leader])
            assert found.mean is not None
            behind = SummaryNow(
                mean=found.mean, n=found.n, sd=found.sd, low=found.low, high=found.high
            )
        racers.append(
            RacerNow(
                number=number,
                arm=trial.arm,
                params=trial.params,
                seeds=len(read_values(trial.result)),
                value=SummaryNow(**summarize(list(known.values()), find_domain(metric)).to_dict()),
                behind=behind,
            )
        )
    return racers
