"""Which configurations were tried, and which one comes next: by the search's method, then the rest.

No ledger here: the sweep records what is found.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from eigensweep.protocol.ledger import TrialEntry
from eigensweep.search_spaces.errors import ConstraintError
from eigensweep.search_spaces.sections import LEARNING
from eigensweep.search_spaces.sequences import draw_at_random, quasi_random
from eigensweep.search_spaces.space import Point, Scalar
from eigensweep.search_spaces.spec import ExperimentSpec
from eigensweep.search_spaces.trial import TrialConfig
from eigensweep.workers.driver.search.digests import Digests, digest
from eigensweep.workers.driver.search.study import Draw, Study

ASKS = 10
"""How often a sampler is asked again after it gave a point that was tried already."""

MOST_MISSES = 200
"""How many points of a sequence in a row may give no new trial."""


@dataclass(frozen=True)
class Found:
    """A point that was not tried before."""

    point: Point
    draw: Draw | None
    """The sampler's draw, which must be told the outcome; None: no sampler drew the point."""
    config: TrialConfig | None
    """None: the point is no valid configuration."""
    name: str
    """The `content_hash` of the configuration."""
    error: str = ""
    """Why it is not valid."""


class Configurations:
    """The points and configurations of one experiment, from the first to the last."""

    def __init__(self, spec: ExperimentSpec, study: Study) -> None:
        self._spec, self._study = spec, study
        self.space = spec.space()
        self._first = spec.read_first(self.space)
        self._walked = 0
        self._has_sequence = spec.search.method != "grid" or spec.is_sampled
        is_spread = spec.search.method in ("grid", "qmc")
        follow = quasi_random if is_spread else draw_at_random
        self._sequence = follow(self.space, spec.search.seed)
        self._misses = 0
        """Points of the sequence since the last that became a trial."""
        self._points, self._identities = Digests(), Digests()
        self._unmet: set[int] = set()
        """Trials of earlier drivers that the sequence has not reached again."""

    def __len__(self) -> int:
        """Return how many valid configurations were found."""
        return len(self._identities)

    def take_up(self, entry: TrialEntry) -> None:
        """Note a trial of an earlier driver."""
        point = _key(Point(entry.arm, entry.params))
        self._points.add(point)
        if entry.state != "invalid":
            if self._has_sequence:
                self._unmet.add(point)
            config = TrialConfig.from_dict(entry.config)
            self._identities.add(_identity(entry.arm, config, config.content_hash()))

    def find(self) -> Iterator[Found]:
        """Yield new points, invalid ones among them, until one is taken or there are no more.

        A sampler is told of each of its points that is not new. A caller that takes a valid point
        stops iterating.
        """
        for point, draw in self._candidates():
            found = self._look_at(point, draw)
            if found is not None:
                if found.config is not None:
                    self._misses = 0
                yield found
            if draw is not None and (found is None or found.config is None):
                self._study.discard(draw)

    def _candidates(self) -> Iterator[tuple[Point, Draw | None]]:
        """Yield points until one is taken: a person's first, the method's, whatever is left."""
        for point in self._first:
            self._unmet.discard(_key(point))
            yield point, None
        if self._spec.search.method in LEARNING:
            for _ in range(ASKS):
                draw = self._study.draw()
                yield draw.point, draw
        if self._has_sequence:
            yield from ((point, None) for point in self._follow_sequence())
        size = self.space.count()
        while size is not None and self._walked < size:
            self._walked += 1
            yield self.space.point(self._walked - 1), None

    def _follow_sequence(self) -> Iterator[Point]:
        """Yield points of the sequence until `MOST_MISSES` in a row gave no trial."""
        while self._misses < MOST_MISSES:
            point = next(self._sequence)
            self._misses += 1
            if _key(point) in self._unmet:  # as an earlier driver went on from here
                self._unmet.remove(_key(point))
                self._misses = 0
            else:
                yield point

    def _look_at(self, point: Point, draw: Draw | None) -> Found | None:
        """Return a point with its configuration; None: it was tried, or a rule leaves it out."""
        if _key(point) in self._points:
            return None
        self._points.add(_key(point))
        try:
            config = self._spec.trial(point)
        except ConstraintError:
            return None
        except ValueError as refusal:
            return Found(point, draw, None, "", str(refusal))
        name = config.content_hash()
        identity = _identity(point.arm, config, name)
        if identity in self._identities:
            return None
        self._identities.add(identity)
        return Found(point, draw, config, name)


def _key(point: Point) -> int:
    """Return what tells the points of an experiment apart."""
    return digest(point.arm, *(f"{path}={_plain(v)!r}" for path, v in sorted(point.params.items())))


def _identity(arm: str, config: TrialConfig, name: str) -> int:
    """Return what tells the configurations of an experiment apart; each arm has its own.

    `name` is the configuration's `content_hash`.
    """
    return digest(arm, name, str(config.training.steps))


def _plain(value: Scalar) -> Scalar:
    """Return a value so that equal ones look equal: a whole number as an integer."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value
