"""What the experiments that a search starts from tell it; and the refusal where that is nothing."""

from __future__ import annotations

from collections import Counter

from eigensweep.protocol.states import ENDED
from eigensweep.search_spaces.checks.warm_start import find_point
from eigensweep.search_spaces.errors import SpecError, raise_errors
from eigensweep.search_spaces.space import Point, Space
from eigensweep.search_spaces.spec import ExperimentSpec
from eigensweep.service.record.errors import ExperimentNotFoundError
from eigensweep.service.record.ledger import RecordLedger
from eigensweep.service.record.record import Record


def count_observations(record: Record, spec: ExperimentSpec) -> dict[str, int]:
    """Return, for each experiment of `search.warm_start`, how many of its trials come along.

    Raises:
        SpecError: if some are unknown, not over, or has no trial that this experiment could train.
    """
    space, errors = spec.space(), list[SpecError]()
    counts: dict[str, int] = {}
    for index, id in enumerate(spec.search.warm_start):
        try:
            counts[id] = _count(record, spec, space, f"search.warm_start.{index}", id)
        except SpecError as error:
            errors.append(error)
    raise_errors(errors)
    return counts


def _count(record: Record, spec: ExperimentSpec, space: Space, place: str, id: str) -> int:
    try:
        state = record.row(id).state
    except ExperimentNotFoundError as error:
        raise SpecError(place, str(error), expected="an experiment's id", got=id) from error
    if state not in ENDED:
        raise SpecError(
            place,
            f"experiment {id} is {state}; a search starts from experiments that are over",
            expected="an experiment that is over",
            got=id,
        )
    reasons: Counter[str] = Counter()
    ledger = RecordLedger(record.url, id, generation=0, patience=0.0)
    for _, entry in ledger.load_earlier([id]):
        found = find_point(
            spec,
            space,
            entry.params,
            entry.config,
            entry.config_hash,
            pruned=entry.state == "pruned",
        )
        reasons["" if isinstance(found, Point) else found] += 1
    count = reasons.pop("", 0)
    if not count:
        why = "; ".join(f"{count} {reason}" for reason, count in reasons.most_common())
        raise SpecError(
            place,
            f"no trial of experiment {id} tells this search anything: "
            f"{why or 'none of its trials finished'}. Task, metric, model, budget and all "
            "settings that this search does not vary must be the same",
            expected="an experiment with trials that this one could train",
            got=id,
        )
    return count
