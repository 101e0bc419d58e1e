"""What stays of a trial that is over."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Final, Literal

from eigensweep.store.checkpoints import Store
from eigensweep.store.commits.head import Checkpoint, Head, StaleAttemptError
from eigensweep.store.commits.heads import KEY, Change
from eigensweep.store.commits.kept_files import BEST, find_kept
from eigensweep.store.places.durable_files import DamagedError

logger = logging.getLogger(__name__)

Keep = Literal["last", "best", "none"]
"""What stays of a trial that is over: see `thin_out`."""

STRICTNESS: Final[dict[Keep | None, int]] = {None: 0, "last": 1, "best": 2, "none": 3}
"""How much a rule removes, compared with others; None stands for no rule."""


def stricter(rule: Keep, other: Keep | None) -> Keep:
    """Return the rule that removes more.

    >>> stricter("best", "last"), stricter("last", None)
    ('best', 'last')
    """
    return rule if other is None or STRICTNESS[rule] >= STRICTNESS[other] else other


def thin_out(
    store: Store, trial: str, keep: Keep, attempt: int, *, only_measure: bool = False
) -> int:
    """Remove checkpoints of a trial that is over; return how many bytes that frees.

    `trial` is a `trial_key`. Of each replicate `last` leaves the newest undamaged checkpoint
    and the best weights; `best` leaves the best weights, and where there are none the newest
    checkpoint; `none` leaves neither. Curves stay. A replicate at which a later attempt than
    `attempt` has begun is left as it is. A process may die at any byte: what is left then is
    whole, and the next call removes the rest.

    Raises:
        StorageError: if it cannot be read or written.
    """
    freed = 0
    for name in store.files.names(trial):
        key = f"{trial}/{name}"
        if KEY.fullmatch(key):
            try:
                freed += _thin_out_replicate(store, key, keep, attempt, only_measure)
            except StaleAttemptError:
                pass  # it has a later attempt
            except DamagedError as error:
                logger.warning("left as it is: %s", error, extra={"key": key})
    return freed


def _thin_out_replicate(
    store: Store, key: str, keep: Keep, attempt: int, only_measure: bool
) -> int:
    """Do it for one replicate.

    Raises:
        StaleAttemptError: if a later attempt has begun; then it is left as it is.
    """
    head, names = store.heads.read(key), store.files.names(key)
    head.check_attempt(key, attempt)
    best = find_kept(names).get(BEST, [])
    kept = _choose_kept(store, key, head, keep, has_best=bool(best), checked=not only_measure)
    stay = {checkpoint.file for checkpoint in kept}
    gone = [name for name in names if name.startswith("step-") and name not in stay]
    gone += [name for name in names if name.endswith(".tmp")]  # of a process that was killed
    gone += best if keep == "none" else best[:-1]
    freed = sum(store.files.size(f"{key}/{name}") or 0 for name in gone)
    if only_measure or not gone:
        return freed

    def make(now: Head) -> Change:
        now.check_attempt(key, attempt)
        return Change(replace(now, checkpoints=kept))

    # A head is made in any case: who is about to name one of these files begins again.
    store.heads.change(key, make)
    for name in gone:
        store.files.remove(f"{key}/{name}")
    return freed


def _choose_kept(
    store: Store, key: str, head: Head, keep: Keep, *, has_best: bool, checked: bool
) -> tuple[Checkpoint, ...]:
    """Return which checkpoints a rule leaves; with `checked` one that is undamaged."""
    if keep == "none" or (keep == "best" and has_best):
        return ()
    if not checked:
        return head.checkpoints[:1]
    whole = (c for c in head.checkpoints if store.read_checkpoint(key, c) is not None)
    return next(((c,) for c in whole), head.checkpoints)
