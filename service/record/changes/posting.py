"""Makes the row of a posted experiment. Runs in the service's process."""

from __future__ import annotations

import hashlib
import json
import secrets
import time
from collections.abc import Sequence
from typing import Final

from sqlalchemy import func, select

from eigensweep.protocol.messages import SpecJson
from eigensweep.protocol.states import ENDED
from eigensweep.search_spaces.errors import UnreadableSpecError
from eigensweep.search_spaces.labels import say_count
from eigensweep.search_spaces.spec import ExperimentSpec
from eigensweep.service.record.errors import QuotaExceededError
from eigensweep.service.record.journal import replace_non_finite
from eigensweep.service.record.sql.rows import RowSession
from eigensweep.service.record.sql.tables import OPERATOR, ExperimentRow, User
from eigensweep.service.record.users.accounts import Quotas, read_quotas

ALPHABET: Final = "0123456789abcdefghjkmnpqrstvwxyz"


def make_id() -> str:
    """Return a fresh experiment id: 13 letters and digits that sort by the time they were made."""
    moment, letters = int(time.time() * 1000), ""
    for _ in range(9):
        moment, digit = divmod(moment, 32)
        letters = ALPHABET[digit] + letters
    return letters + "".join(secrets.choice(ALPHABET) for _ in range(4))


def make_row(
    spec: ExperimentSpec, idempotency_key: str | None = None, owner: str = OPERATOR
) -> ExperimentRow:
    """Return the row of a queued experiment; its spec was checked before."""
    content, fingerprint = _write_json(spec)
    metric = spec.objective_metric
    return ExperimentRow(
        id=make_id(),
        owner=owner,
        name=spec.name,
        project=spec.project,
        priority=spec.priority,
        spec=content,
        metric=metric.name,
        unit=metric.unit,
        better=metric.better,
        baseline=spec.baseline,
        trial_steps=_trial_steps(spec),
        state="queued",
        total=spec.trial_count(),
        created_at=time.time(),
        idempotency_key=idempotency_key,
        fingerprint=fingerprint,
    )


def has_spec(stored: ExperimentRow, spec: ExperimentSpec) -> bool:
    """Return whether an experiment has this spec now; it may have been extended since its post.

    An earlier version may have stored it. Its specs had fewer fields, so their digests differ.
    """
    try:
        return _write_json(ExperimentSpec.from_stored(stored.spec))[1] == _write_json(spec)[1]
    except UnreadableSpecError:
        return False


def _write_json(spec: ExperimentSpec) -> tuple[SpecJson, str]:
    """Return a spec as it is stored, and a digest that is the same for equal specs."""
    content: SpecJson = spec.model_dump(mode="json")
    try:
        text = json.dumps(content, sort_keys=True, allow_nan=False)
    except ValueError:  # a number is not finite
        content = replace_non_finite(content)
        text = json.dumps(content, sort_keys=True)
    return content, hashlib.sha256(text.encode()).hexdigest()


def extend_row(experiment: ExperimentRow, spec: ExperimentSpec) -> None:
    """Give a finished experiment a spec with more to do, and perhaps another priority."""
    if spec.priority != experiment.spec.get("priority"):
        experiment.priority = spec.priority
    experiment.spec = replace_non_finite(spec.model_dump(mode="json"))
    experiment.baseline = spec.baseline
    experiment.trial_steps, experiment.total = _trial_steps(spec), spec.trial_count()


def scope_key(key: str | None, owner: str) -> str | None:
    """Return the stored form of an idempotency key: keys of two users never collide."""
    if key is None or owner == OPERATOR:
        return key
    return hashlib.sha256(f"{owner}\n{key}".encode()).hexdigest()


def require_quota(quotas: Quotas, spec: ExperimentSpec, owner: str) -> None:
    """Refuse a spec that is larger than its owner's quotas.

    Raises:
        QuotaExceededError: says what the quota is, and what the spec asks for.
    """
    most = quotas.max_trials
    trials = None if most is None else spec.trial_count()
    if most is not None and (trials is None or trials > most):
        has = "any number" if trials is None else f"{trials:,}"
        raise QuotaExceededError(
            f"user '{owner}' may have {say_count(most, 'trial')} in an experiment, this one has "
            f"{has}; set search.trials or limits.trials, or ask an admin for a larger quota"
        )
    if quotas.max_spec_bytes is None:
        return
    size = len(json.dumps(spec.model_dump(mode="json", exclude_unset=True)).encode())
    if size > quotas.max_spec_bytes:
        raise QuotaExceededError(
            f"a spec of user '{owner}' may have {quotas.max_spec_bytes:,} bytes, this one has "
            f"{size:,}; ask an admin for a larger quota"
        )


def check_quotas(rows: RowSession, specs: Sequence[ExperimentSpec], owner: str) -> None:
    """Refuse experiments that together exceed their owner's quotas.

    Raises:
        QuotaExceededError: says which quota does not allow them.
    """
    # The row is locked: a second post of the user waits for the first.
    quotas = read_quotas(rows.get(User, owner, lock=True))
    for spec in specs:
        require_quota(quotas, spec, owner)
    most = quotas.max_experiments
    if most is None:
        return
    open_ones = select(func.count()).where(
        ExperimentRow.owner == owner, ExperimentRow.state.not_in(ENDED | {"deleting"})
    )
    has = rows.execute(open_ones).scalar_one()
    if has + len(specs) > most:
        may = f"{say_count(most, 'experiment')} that {'is' if most == 1 else 'are'} not over"
        raise QuotaExceededError(
            f"user '{owner}' may have {may}, has {has:,}, and asks for {len(specs):,} more; wait "
            "for one to end, or ask an admin for more"
        )


def _trial_steps(spec: ExperimentSpec) -> int | None:
    """Return the budget of each replicate of a trial, None where the search varies it."""
    varied = {path for arm in spec.arms_ for path in arm.space}
    if any(path.startswith(("training.", "task.")) for path in varied):
        return None
    try:
        return spec.training.resolve(spec.task).steps
    except ValueError:
        return None
