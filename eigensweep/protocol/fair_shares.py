"""How many trials each running experiment may have at once: its fair share of the cluster.

Places are given out one by one. The next one goes to the user who has least, and there to the
experiment that has least (progressive filling, which is max-min fair). What a trial takes is
counted in its dominant resource: the one of which it takes the largest part of what the cluster
has. Experiments of a higher priority are served before all others, and where there are fewer places
than users, the user who has waited longest comes first. Source: Ghodsi et al., Dominant
Resource Fairness, NSDI 2011, algorithm 1; with users above experiments, and priorities. Of many
places most are given out at once: all that lie below a level which everybody surely reaches.

The service that leads computes all shares, when what is wanted has changed, and drivers read theirs
(`service/record/users/shares.py`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heapreplace
from itertools import groupby
from typing import Final

from eigensweep.common.plain_data import Message

ROUNDING: Final = 1e-6
"""Parts of a cluster that are filled by this much too far are full: thirds do not add up to one."""


LEVELS: Final = 10
"""How often a level is halved: what is missed then is about a thousandth of the cluster."""
LARGEST_MARGIN: Final = 0.2
"""Where more of the cluster than that is left to be given place by place, all of it is."""


@dataclass(frozen=True)
class Demand(Message):
    """What an experiment wants of the cluster now."""

    trials: int
    """How many trials could run at once, those that run among them."""
    parts: Mapping[str, float] = field(default_factory=dict)
    """Kind of resource to the part of the whole cluster that one trial takes, from 0 to 1."""
    driver_bytes: int = 0
    """Memory that the driver's process shares with no other, roughly; 0: not known."""
    driver_pid: int = 0
    """Its process id, on the service's node. 0: not known."""

    @property
    def dominant(self) -> float:
        """The largest of the parts."""
        return max(self.parts.values(), default=0.0)


@dataclass(frozen=True)
class Claimant:
    """An experiment that has a driver and wants trials to run."""

    experiment: str
    owner: str
    priority: int
    since: float
    """When it was posted: the first comes first, among those of a user and of users whose turns
    are equal."""
    demand: Demand
    running: int = 0
    """How many of its trials run now."""
    turn: float = 0.0
    """When the owner's last turn ended: where places are too few for all users, the one who has
    waited longest comes first. 0: the owner has had none."""


@dataclass(frozen=True)
class Allotment(Message):
    """What an experiment may have of the cluster, beside the others."""

    trials: int = 0
    """How many trials it may have at once: its fair share."""
    others: int = 0
    """How many other experiments want trials to run."""
    higher: int = 0
    """Those of them that have a higher priority."""
    is_crowded: bool = False
    """Whether it has less than its share, because what runs leaves no whole place for a trial."""
    leaves_gpus: bool = False
    """Whether its trials need no GPU, and those of another experiment that do have less than their
    share."""


def allot(
    claimants: Sequence[Claimant], shares: Mapping[str, int] | None = None
) -> dict[str, Allotment]:
    """Return what each experiment may have, by its id; `shares` are those of `share_out`."""
    shares = share_out(claimants) if shares is None else shares
    used: defaultdict[str, float] = defaultdict(float)
    for each in claimants:
        for kind, part in each.demand.parts.items():
            used[kind] += part * each.running
    short = {c.experiment for c in claimants if c.running < shares[c.experiment]}
    priorities = Counter(c.priority for c in claimants)
    lack_gpus = any(c.demand.parts.get("GPU") and c.experiment in short for c in claimants)
    return {
        each.experiment: Allotment(
            shares[each.experiment],
            others=len(claimants) - 1,
            higher=sum(count for found, count in priorities.items() if found > each.priority),
            is_crowded=each.experiment in short and not _fits(each.demand, used),
            leaves_gpus=lack_gpus and not each.demand.parts.get("GPU"),
        )
        for each in claimants
    }


_Row = tuple[float, float, Claimant]
"""What an experiment wants at most, and one trial of it, in its dominant resource."""


def share_out(claimants: Sequence[Claimant]) -> dict[str, int]:
    """Return how many trials each experiment may have at once, by its id.

    No experiment gets more than it wants. The shares are work-conserving: no slot stays idle that a
    waiting trial fits.

    >>> a, b = (Claimant(e, e, 0, 0, Demand(n, {"CPU": 0.25})) for e, n in (("a", 9), ("b", 1)))
    >>> share_out([a, b])
    {'a': 3, 'b': 1}
    """
    shares = {each.experiment: 0 for each in claimants}
    used: defaultdict[str, float] = defaultdict(float)
    of_users: defaultdict[str, float] = defaultdict(float)
    ordered = sorted(claimants, key=lambda c: (-c.priority, c.turn, c.since, c.experiment))
    for _, group in groupby(ordered, key=lambda c: c.priority):
        _fill(list(group), shares, used, of_users)
    return shares


def _fill(
    waiting: list[Claimant],
    shares: dict[str, int],
    used: defaultdict[str, float],
    of_users: defaultdict[str, float],
) -> None:
    """Give places to experiments of one priority until none of them wants or fits another one.

    Whoever has least is at the top of a heap: users, and the experiments of each. So a place costs
    the logarithm of how many there are.
    """
    own: defaultdict[str, list[tuple[float, int]]] = defaultdict(list)
    _fill_to_level(waiting, shares, used, of_users)
    for number, each in enumerate(waiting):
        own[each.owner].append((round(shares[each.experiment] * each.demand.dominant, 9), number))
    for mine in own.values():
        heapify(mine)
    users = [(round(of_users[owner], 9), *mine[0], owner) for owner, mine in own.items()]
    heapify(users)
    while users:
        *_, number, owner = users[0]
        least, mine = waiting[number], own[owner]
        parts, dominant = least.demand.parts, least.demand.dominant
        if shares[least.experiment] >= least.demand.trials or not _fits(least.demand, used):
            heappop(mine)
        else:
            shares[least.experiment] += 1
            of_users[owner] += dominant
            for kind, part in parts.items():
                used[kind] += part
            heapreplace(mine, (round(shares[least.experiment] * dominant, 9), number))
        if mine:
            heapreplace(users, (round(of_users[owner], 9), *mine[0], owner))
        else:
            heappop(users)


def _fill_to_level(
    waiting: list[Claimant],
    shares: dict[str, int],
    used: defaultdict[str, float],
    of_users: defaultdict[str, float],
) -> None:
    """Give the places that come first in `_fill`, whatever their order among themselves.

    These are the places before which their user has less than a certain level, as long as all such
    places fit. What is given here stays below it by a place of each experiment of the user, and by
    rounding down by another one. So up to three of each may be missing, for which there is room.
    """
    own: defaultdict[str, list[_Row]] = defaultdict(list)
    for each in waiting:
        if size := each.demand.dominant:
            own[each.owner].append((each.demand.trials * size, size, each))
    for mine in own.values():
        mine.sort(key=lambda row: row[0])
    margin = 3 * sum(size for mine in own.values() for _, size, _ in mine)
    low, high = 0.0, float(len({kind for each in waiting for kind in each.demand.parts}))
    given: list[tuple[Claimant, int]] = []
    for _ in range(LEVELS if margin < LARGEST_MARGIN else 0):
        level = (low + high) / 2
        tried = [
            pair for owner, mine in own.items() for pair in _spread(mine, level - of_users[owner])
        ]
        need: defaultdict[str, float] = defaultdict(float)
        for each, count in tried:
            for kind, part in each.demand.parts.items():
                need[kind] += count * part
        if all(used[kind] + amount + margin <= 1 for kind, amount in need.items()):
            low, given = level, tried
        else:
            high = level
    for each, count in given:
        shares[each.experiment] += count
        of_users[each.owner] += count * each.demand.dominant
        for kind, part in each.demand.parts.items():
            used[kind] += count * part


def _spread(mine: Sequence[_Row], room: float) -> list[tuple[Claimant, int]]:
    """Return how many places each experiment of a user gets: alike, or all that it wants.

    A place of each is left out of `room`, since the last one may be begun and not filled.
    """
    left = max(0.0, room - sum(size for _, size, _ in mine))
    found = []
    for number, (most, size, each) in enumerate(mine):
        part = min(most, left / (len(mine) - number))
        found.append((each, int(part / size)))
        left -= part
    return found


def _fits(demand: Demand, used: Mapping[str, float]) -> bool:
    """Tell whether what is used leaves a whole place for one more trial."""
    return all(used[kind] + part <= 1 + ROUNDING for kind, part in demand.parts.items())
