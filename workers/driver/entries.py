"""The trials of a running experiment, of which a hundred thousand may have ended."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, MutableMapping

from eigensweep.protocol.ledger import TrialEntry
from eigensweep.protocol.states import TrialState


class Entries(MutableMapping[int, TrialEntry]):
    """Trials by number, from 0 without gaps. An outline takes two bytes.

    >>> entries = Entries()
    >>> entries[0] = TrialEntry(0, "scornn", {"lr": 0.1}, {}, "", "completed").outline()
    >>> entries[0].state, entries[0].params, len(entries)
    ('completed', {}, 1)
    """

    def __init__(self) -> None:
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

    def __setitem__(self, number: int, entry: TrialEntry) -> None:
        if number == len(self._kind):
            self._kind.append(0)
        if entry == TrialEntry.of_ended(number, entry.arm, entry.state):
            self._kind[number] = self._find_place(entry.arm, entry.state)
            self._whole.pop(number, None)
        else:
            self._kind[number] = 0
            self._whole[number] = entry

    def __delitem__(self, number: int) -> None:
        raise TypeError("a trial is never removed")

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self._kind)))

    def __len__(self) -> int:
        return len(self._kind)

    def _find_place(self, arm: str, state: TrialState) -> int:
        if (arm, state) not in self._places:
            self._kinds.append((arm, state))
            self._places[arm, state] = len(self._kinds)
        return self._places[arm, state]
