"""The trials of a running experiment, of which a hundred thousand may have ended."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping

from eigensweep.common.direction import Better
from eigensweep.protocol.ledger import TrialEntry
from eigensweep.protocol.states import TrialState
from eigensweep.results.ranking import find_best, rank


class Entries(Mapping[int, TrialEntry]):
    """Trials by number, from 0 without gaps; `keep` takes every change of one.

    Of a trial that has ended only an outline of two bytes is kept, unless it is the best one or
    `keeps_all`: the configurations and results of a hundred thousand trials would take a gigabyte.

    >>> entries = Entries("lower")
    >>> entries.keep(TrialEntry(0, "scornn", {"lr": 0.1}, {}, "", "pruned"))
    >>> entries[0].state, entries[0].params, len(entries)
    ('pruned', {}, 1)
    """

    def __init__(self, better: Better, *, keeps_all: bool = False) -> None:
        self._better, self._keeps_all = better, keeps_all
        self._leader: tuple[int, float, int] | None = None
        """Key in the ranking of the best trial that has ended; its number comes last."""
        self._kinds: list[tuple[str, TrialState]] = []
        """Arm and state of outlines."""
        self._places: dict[tuple[str, TrialState], int] = {}
        self._kind = array("H")
        """For each trial the place in `_kinds`, 1 for the first; 0: the trial is in `_whole`."""
        self._whole: dict[int, TrialEntry] = {}

    def __getitem__(self, number: int) -> TrialEntry:
        entry = self._whole.get(number)
        if entry is not None:
            return entry
        if not 0 <= number < len(self._kind):
            raise KeyError(number)
        arm, state = self._kinds[self._kind[number] - 1]
        return TrialEntry.of_ended(number, arm, state)

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self._kind)))

    def __len__(self) -> int:
        return len(self._kind)

    @property
    def tried(self) -> list[TrialEntry]:
        """The trials so far, without points that no config accepts."""
        return [entry for entry in self.values() if entry.state != "invalid"]

    def best(self) -> TrialEntry | None:
        """Return the first trial of the ranking, None if no trial is ranked."""
        return find_best(self.values(), self._better)

    def keep(self, entry: TrialEntry) -> None:
        """Take a trial as it is now."""
        self._write(entry)
        if self._keeps_all or not entry.is_over or entry.state == "invalid":
            return
        place, worse = rank(entry, self._better), entry.number
        if place is not None and (self._leader is None or place < self._leader):
            worse = entry.number if self._leader is None else self._leader[-1]
            self._leader = place
        if self._leader is None or worse != self._leader[-1]:
            self._write(self[worse].outline())

    def _write(self, entry: TrialEntry) -> None:
        if entry.number == len(self._kind):
            self._kind.append(0)
        if entry == TrialEntry.of_ended(entry.number, entry.arm, entry.state):
            self._kind[entry.number] = self._find_place(entry.arm, entry.state)
            self._whole.pop(entry.number, None)
        else:
            self._kind[entry.number] = 0
            self._whole[entry.number] = entry

    def _find_place(self, arm: str, state: TrialState) -> int:
        if (arm, state) not in self._places:
            self._kinds.append((arm, state))
            self._places[arm, state] = len(self._kinds)
        return self._places[arm, state]
