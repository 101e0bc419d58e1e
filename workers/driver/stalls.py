"""Finds the trials of an experiment whose processes live but make no progress.

The sign of progress is a commit: a trial that takes steps commits at least every
`checkpoint_seconds`. The driver reads commits from the store, so it finds a process that hangs in
native code, one that is cut off, and one that waits for ever. Trials in the lanes of an engine may
wait long for a lane, so the engine's own process watches them
([workers/processes/engine_actor.py](../processes/engine_actor.py)).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from eigensweep.protocol.ledger import TrialEntry
from eigensweep.protocol.patience import START_SECONDS, patience_with
from eigensweep.store.checkpoints import Progress, Store, replicate_key
from eigensweep.store.places.durable_files import DamagedError, StorageError

logger = logging.getLogger(__name__)

MOST_SECONDS_BETWEEN_LOOKS = 60.0
LOOKS = 20
"""The least number of looks at a trial within its patience."""
LEAST_REST = 4.0
"""A pause after a look, in times of the look: the driver does nothing else while it looks."""
SLOW_SECONDS = 2.0
"""The longest that a look at a replicate takes in a store that is well."""
LEAST_SHARE = 0.01
"""The part of its budget after which it is told how far a trial has come."""
LONGEST_UNTOLD = 60.0
"""Seconds after which it is told however little that is: a hundredth of a long trial takes long."""


@dataclass(frozen=True)
class Stall:
    """A trial without progress for longer than its patience."""

    entry: TrialEntry
    words: str
    """What happened and what would help, for a person to read."""


@dataclass
class _Watched:
    """What was seen of an attempt."""

    attempt: int
    seen: tuple[Progress, ...]
    changed_at: float
    told: int
    """The steps that were told last, or those of the last rung."""
    told_at: float
    longest_pause: float = 0.0
    """The longest time between two signs of progress."""

    @property
    def steps(self) -> int:
        """How many steps are committed, as the mean of the replicates."""
        return sum(max(0, each.step) for each in self.seen) // len(self.seen)


class StallWatch:
    """Remembers when each running trial last made progress."""

    def __init__(
        self,
        read: Callable[[TrialEntry], tuple[Progress, ...]],
        stall_seconds: float | None,
        checkpoint_seconds: float,
        clock: Callable[[], float],
        tell: Callable[[TrialEntry, int], object] = lambda entry, steps: None,
    ) -> None:
        """Watch with the limit of the spec; `read` returns the progress of a trial's replicates.

        `tell` hears how many steps a trial has committed, as the mean of its replicates.
        """
        self._read, self._limit, self._clock = read, stall_seconds, clock
        self._tell = tell
        self._checkpoint_seconds = checkpoint_seconds
        self._watched: dict[int, _Watched] = {}
        self._look_at = clock()
        self._blind_since: float | None = None
        self._pause = min(patience_with(stall_seconds) / LOOKS, MOST_SECONDS_BETWEEN_LOOKS)

    def look(
        self, running: Callable[[], Iterable[TrialEntry]], in_lanes: Collection[int] = ()
    ) -> list[Stall]:
        """Return the trials whose process is stalled; each trial once, and none that is in lanes.

        Cheap to call often: the store is read a few times within the patience.
        """
        now = self._clock()
        if now < self._look_at:
            return []
        if self._blind_since is not None:
            self._forgive(now - self._blind_since)
            self._blind_since = None
        entries = {entry.number: entry for entry in running()}
        self._watched = {n: w for n, w in self._watched.items() if n in entries}
        found, rest = list[Stall](), 0.0
        try:
            for entry in entries.values():
                begun = self._clock()
                if (stall := self._look_at_trial(entry, now)) and entry.number not in in_lanes:
                    found.append(stall)
                # A read that hung counts for a slow one.
                slow = SLOW_SECONDS * entry.config.get("replicates", 1)
                rest += LEAST_REST * min(self._clock() - begun, slow)
        except StorageError as error:
            logger.warning("cannot see whether trials come on: %s", error)
            self.be_blind()
            return []
        finally:
            took = self._clock() - now
            self._look_at = max(now + self._pause, now + took + rest)
        if took > self._pause:  # the store hung, and for the trials, too
            self._forgive(took)
        return found

    def be_blind(self) -> None:
        """Stop counting time until the next look that can read the store.

        While the driver cannot read the store, trials cannot write to it, and are not stalled.
        """
        if self._blind_since is None:
            self._blind_since = self._clock()

    def _forgive(self, seconds: float) -> None:
        for watched in self._watched.values():
            watched.changed_at += seconds

    def _look_at_trial(self, entry: TrialEntry, now: float) -> Stall | None:
        progress = self._read(entry)
        watched = self._watched.get(entry.number)
        if watched is None or watched.attempt != entry.attempt:
            watched = _Watched(entry.attempt, progress, now, entry.reached, now)
            # Seeds that are added begin anew, while those before have reached the budget.
            watched.told = min(watched.told, watched.steps)
            self._watched[entry.number] = watched
            self._tell_steps(entry, watched, now)
            return None
        if progress != watched.seen:
            if _has_begun(watched.seen, entry.attempt):
                watched.longest_pause = max(watched.longest_pause, now - watched.changed_at)
            watched.seen, watched.changed_at = progress, now
        self._tell_steps(entry, watched, now)
        patience = patience_with(self._limit, watched.longest_pause) + self._checkpoint_seconds
        if not _has_begun(progress, entry.attempt):
            patience = max(patience, START_SECONDS)
        if now - watched.changed_at <= patience:
            return None
        del self._watched[entry.number]
        return Stall(entry, explain(entry, now - watched.changed_at, patience, progress))

    def _tell_steps(self, entry: TrialEntry, watched: _Watched, now: float) -> None:
        """Tell how far a trial has come between its rungs."""
        newly = watched.steps - watched.told
        is_much = newly >= LEAST_SHARE * entry.config["training"]["steps"]
        if is_much or (newly > 0 and now - watched.told_at >= LONGEST_UNTOLD):
            watched.told, watched.told_at = watched.steps, now
            self._tell(entry, watched.steps)


def read_progress(store: Store, experiment: str, entry: TrialEntry) -> tuple[Progress, ...]:
    """Return what the replicates of a trial have committed; nothing where that is damaged."""
    first, count = entry.config["seed"], entry.config["replicates"]
    keys = (replicate_key(experiment, entry.number, first + place) for place in range(count))
    return tuple(_read(store, key) for key in keys)


def _read(store: Store, key: str) -> Progress:
    try:
        return store.progress(key)
    except DamagedError:  # its next commit fails, and the next attempt goes back behind it
        return Progress(0, 0, -1)


def explain(
    entry: TrialEntry, seconds: float, patience: float, progress: tuple[Progress, ...]
) -> str:
    """Return a message about a stalled trial, for a person."""
    where = ""
    if entry.place is not None:
        where = f" on node {entry.place.node}, process {entry.place.pid}, {entry.place.device}"
    last = max(each.step for each in progress)
    step = f"step {last} was the last" if last >= 0 else "it had not taken its first one"
    return (
        f"no step for {seconds:.0f} s{where}; {step}. It was waited for {patience:.0f} s, then its "
        "process was ended, and its place is free. It reported no error, and its loss did not "
        "diverge. If its steps or evaluations take that long, set limits.stall_seconds to more; if "
        "not, see where it hangs: train this configuration alone with eigensweep.train"
    )


def _has_begun(progress: tuple[Progress, ...], attempt: int) -> bool:
    """Return whether the store has an attempt: its process trains, or is about to."""
    return any(each.attempt >= attempt for each in progress)
