"""The points of a search, as a tree of sums and products. Counting them visits no point.

The arms are a sum: all points of the first arm, then those of the next. Inside an arm, independent
parameters are a product, in the order of nested loops: the parameter written first varies slowest.
A parameter that conditions name is a sum over its values; the parameters with these conditions vary
directly inside it. A parameter whose condition does not hold is absent from the point, so all
points of a space are distinct.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from eigensweep.search_spaces.errors import (
    ConditionError,
    ParameterValueError,
    SpecError,
    UnknownParameterError,
    did_you_mean,
    shorten,
)
from eigensweep.search_spaces.parameters import Choice, Integer, Parameter, Real, Scalar

__all__ = ["Choice", "Integer", "Parameter", "Point", "Real", "Scalar", "Space"]

MOST_CORNERS = 16
"""Parameters, and values of each, that are tried one by one among an arm's extreme points."""
MOST_BRANCHES = 2_000
"""Largest number of nodes in an arm's tree; more conditional branches are refused."""


@dataclass(frozen=True)
class Point:
    """One point: the arm, and the value of each parameter that exists there, by dotted path."""

    arm: str
    params: dict[str, Scalar]


class Space:
    """All points of an experiment, arm by arm.

    >>> space = Space({"lstm": {
    ...     "optimizer.name": Choice(values=("adam", "rmsprop")),
    ...     "optimizer.alpha": Choice(values=(0.5, 0.9), when={"optimizer.name": ("rmsprop",)}),
    ... }})
    >>> [list(point.params.values()) for point in space]
    [['adam'], ['rmsprop', 0.5], ['rmsprop', 0.9]]
    """

    def __init__(self, arms: Mapping[str, Mapping[str, Parameter]]) -> None:
        """Build the tree.

        Raises:
            ConditionError: if a condition names no parameter of its arm, or a value that this
                parameter never takes, or if conditions depend on one another in a circle.
        """
        self._axes = {arm: _sort_by_conditions(arm, axes) for arm, axes in arms.items()}
        self._trees = {arm: _Builder(arm, axes).tree() for arm, axes in self._axes.items()}

    @property
    def arms(self) -> list[str]:
        """The arms' names, in order."""
        return list(self._axes)

    def axes(self, arm: str) -> dict[str, Parameter]:
        """Return the parameters of an arm, each after those that its conditions name."""
        return dict(self._axes[arm])

    def count(self, arm: str | None = None) -> int | None:
        """Return the number of points, of one arm or of all; None if there are infinitely many."""
        if arm is not None:
            return self._trees[arm].count
        counts = [tree.count for tree in self._trees.values()]
        finite = [count for count in counts if count is not None]
        return sum(finite) if len(finite) == len(counts) else None

    def point(self, index: int) -> Point:
        """Return the point at `index`, computed from the number alone.

        Raises:
            IndexError: if there is no such point.
            ValueError: if the space is infinite.
        """
        ends = self._ends
        if not 0 <= index < (ends[-1] if ends else 0):
            raise IndexError(f"a space of {ends[-1] if ends else 0} points has no point {index}")
        place = bisect_right(ends, index)
        arm = self.arms[place]
        params: dict[str, Scalar] = {}
        self._trees[arm].read(index - (ends[place - 1] if place else 0), params)
        return Point(arm, params)

    def locate(self, arm: str | None, values: Mapping[str, Scalar]) -> Point:
        """Return the point with these values, as its parameters write them.

        `arm` may be None where there is only one.

        Raises:
            SpecError: if there is no such point; the place is `arm`, or `params.` and a path.
        """
        if arm is None and len(self._axes) == 1:
            arm = next(iter(self._axes))
        if arm is None or arm not in self._axes:
            which = "no arm is named" if arm is None else f"there is no arm '{shorten(arm)}'"
            words = f"{which}; there are {', '.join(self._axes)}"
            raise SpecError("arm", words, "the name of an arm", shorten(arm), self.arms)
        axes = self._axes[arm]
        params: dict[str, Scalar] = {}
        for path, axis in axes.items():
            if not axis.is_active(params):
                continue
            if path not in values:
                words = f"'{path}' is missing; a point has a value for each of its parameters"
                raise ParameterValueError(f"params.{path}", words, axis.describe())
            try:
                params[path] = axis.match(values[path])
            except ValueError as error:
                got = shorten(values[path])
                words = f"'{path}' {error}; got {got!r}"
                raise ParameterValueError(f"params.{path}", words, axis.describe(), got) from error
        for path in values:
            if path not in axes:
                words = f"arm '{arm}' varies no '{shorten(path)}'{did_you_mean(path, axes)}"
                known = list(axes)
                raise UnknownParameterError(f"params.{shorten(path)}", words, available=known)
            if path not in params:
                words = f"'{path}' exists only with {_say_conditions(axes[path])}; leave it out"
                raise ConditionError(f"params.{path}", words, "no value", shorten(values[path]))
        return Point(arm, params)

    def __iter__(self) -> Iterator[Point]:
        for index in range(self._ends[-1] if self._ends else 0):
            yield self.point(index)

    def corners(self, arm: str) -> Iterator[Point]:
        """Yield extreme points of an arm: all least ends, all largest, and each against all others.

        "Against all" means that one parameter has an extreme value, and its conditions hold, while
        all others are at one end. Only the first `MOST_CORNERS` parameters, and as many values of
        each, are tried in that way.
        """
        axes = self._axes[arm]
        yield _corner(arm, axes, 0, {})
        if not axes:
            return
        yield _corner(arm, axes, -1, {})
        for path, axis in list(axes.items())[:MOST_CORNERS]:
            others = _find_holding(axes, path)
            for value in axis.extremes()[:MOST_CORNERS]:
                for end in (0, -1):
                    if others or value != axis.extremes()[end]:
                        yield _corner(arm, axes, end, {**others, path: value})

    @cached_property
    def _ends(self) -> list[int]:
        counts = []
        for arm, tree in self._trees.items():
            if tree.count is None:
                raise ValueError(f"arm '{arm}' has infinitely many points; they have no order")
            counts.append(tree.count)
        return list(accumulate(counts))


@dataclass(frozen=True)
class _Leaf:
    path: str
    parameter: Parameter

    @cached_property
    def count(self) -> int | None:
        return self.parameter.size()

    def read(self, index: int, params: dict[str, Scalar]) -> None:
        params[self.path] = self.parameter.value(index)


@dataclass(frozen=True)
class _Product:
    parts: tuple[_Node, ...]

    @cached_property
    def count(self) -> int | None:
        total = 1
        for part in self.parts:
            if part.count is None:
                return None
            total *= part.count
        return total

    def read(self, index: int, params: dict[str, Scalar]) -> None:
        digits = []
        for part in reversed(self.parts):
            assert part.count is not None
            index, digit = divmod(index, part.count)
            digits.append(digit)
        for part, digit in zip(self.parts, reversed(digits), strict=True):
            part.read(digit, params)


@dataclass(frozen=True)
class _Sum:
    """A parameter that conditions name, with the rest of the tree for each run of its values."""

    path: str
    parameter: Parameter
    runs: tuple[tuple[int, int, _Node], ...]
    """For each run: index of its first value, number of values, and the rest of the tree."""

    @cached_property
    def count(self) -> int | None:
        return self.ends[-1] if self.ends else None

    @cached_property
    def ends(self) -> list[int]:
        counts = [None if rest.count is None else n * rest.count for _, n, rest in self.runs]
        finite = [count for count in counts if count is not None]
        return list(accumulate(finite)) if len(finite) == len(counts) else []

    def read(self, index: int, params: dict[str, Scalar]) -> None:
        place = bisect_right(self.ends, index)
        first, _, rest = self.runs[place]
        assert rest.count is not None
        offset, digit = divmod(index - (self.ends[place - 1] if place else 0), rest.count)
        params[self.path] = self.parameter.value(first + offset)
        rest.read(digit, params)


_Node = _Leaf | _Product | _Sum
_Open = dict[str, frozenset[str]]
"""Parameters without a value so far, each with the parameters that its open conditions name."""


class _Builder:
    """Builds the tree of an arm; equal subtrees are built once."""

    def __init__(self, arm: str, axes: Mapping[str, Parameter]) -> None:
        self.arm = arm
        self.axes = axes
        self.known: dict[frozenset[tuple[str, frozenset[str]]], _Node] = {}

    def tree(self) -> _Node:
        return self.product({path: frozenset(axis.when) for path, axis in self.axes.items()})

    def product(self, open_: _Open) -> _Node:
        key = frozenset(open_.items())
        if key not in self.known:
            if len(self.known) >= MOST_BRANCHES:
                raise ConditionError(
                    f"arms.{self.arm}.space",
                    f"the conditions give more than {MOST_BRANCHES} different branches; "
                    "split the arm into several",
                )
            parts = tuple(self.component(part) for part in _components(open_))
            self.known[key] = parts[0] if len(parts) == 1 else _Product(parts)
        return self.known[key]

    def component(self, open_: _Open) -> _Node:
        root = next(path for path, undecided in open_.items() if not undecided)
        parameter = self.axes[root]
        if len(open_) == 1:
            return _Leaf(root, parameter)
        size = parameter.size()
        assert size is not None
        named = {
            parameter.position(value)
            for path, undecided in open_.items()
            if root in undecided
            for value in self.axes[path].when[root]
        }
        places = sorted(place for place in named if place is not None)
        starts = sorted({0, *places, *(place + 1 for place in places if place + 1 < size)})
        runs = []
        for first, following in zip(starts, [*starts[1:], size], strict=True):
            rest = self.product(self.fix(open_, root, parameter.value(first)))
            runs.append((first, following - first, rest))
        return _Sum(root, parameter, tuple(runs))

    def fix(self, open_: _Open, root: str, value: Scalar) -> _Open:
        """Return what is still open once `root` has `value`; like `open_`, in dependency order."""
        left: _Open = {}
        gone: set[str] = set()
        for path, undecided in open_.items():
            if path == root:
                continue
            if undecided & gone or (root in undecided and value not in self.axes[path].when[root]):
                gone.add(path)
            else:
                left[path] = undecided - {root}
        return left


def _corner(
    arm: str, axes: Mapping[str, Parameter], end: int, fixed: Mapping[str, Scalar]
) -> Point:
    """Return the point at which all but the fixed are at their least (0) or largest (-1) end."""
    params: dict[str, Scalar] = {}
    for path, axis in axes.items():
        if axis.is_active(params):
            params[path] = fixed[path] if path in fixed else axis.extremes()[end]
    return Point(arm, params)


def _say_conditions(axis: Parameter) -> str:
    """Return in words where a parameter exists: optimizer.name = rmsprop or adam."""
    conditions = axis.when.items()
    return " and ".join(f"{path} = {' or '.join(map(str, values))}" for path, values in conditions)


def _find_holding(axes: Mapping[str, Parameter], path: str) -> dict[str, Scalar]:
    """Return values of other parameters with which a parameter exists."""
    found = {other: values[0] for other, values in axes[path].when.items()}
    for other in list(found):
        found = {**_find_holding(axes, other), **found}
    return found


def _components(open_: _Open) -> list[_Open]:
    """Return groups of parameters that conditions connect, in the order of their first members."""
    group = {path: {path} for path in open_}
    for path, undecided in open_.items():
        for other in undecided:
            if group[other] is not group[path]:
                joined = group[other] | group[path]
                group.update(dict.fromkeys(joined, joined))
    parts: dict[int, _Open] = {}
    for path, undecided in open_.items():
        parts.setdefault(id(group[path]), {})[path] = undecided
    return list(parts.values())


def find_wrong_conditions(axes: Mapping[str, Parameter]) -> Iterator[ConditionError]:
    """Yield each condition that can never hold; its place begins with the path of its parameter."""
    for path, axis in axes.items():
        for other, values in axis.when.items():
            yield from _check_condition(f"{path}.when.{other}", other, values, axes)


def _sort_by_conditions(arm: str, axes: Mapping[str, Parameter]) -> dict[str, Parameter]:
    """Return `axes`, each after those that its conditions name, and otherwise as written."""
    for error in find_wrong_conditions(axes):
        raise error
    ordered: dict[str, Parameter] = {}
    waiting = dict(axes)
    while waiting:
        ready = next((p for p, axis in waiting.items() if set(axis.when) <= set(ordered)), None)
        if ready is None:
            raise ConditionError(
                f"arms.{arm}.space",
                f"the conditions of {', '.join(sorted(waiting))} depend on one another in a circle",
                got=sorted(waiting),
            )
        ordered[ready] = waiting.pop(ready)
    return ordered


def _check_condition(
    place: str, other: str, values: tuple[Scalar, ...], axes: Mapping[str, Parameter]
) -> Iterator[ConditionError]:
    if other not in axes:
        yield ConditionError(
            place,
            f"a condition names '{other}', which this space does not vary"
            f"{did_you_mean(other, axes)}",
            expected="a parameter of the same space",
            got=other,
            available=list(axes),
        )
        return
    parameter = axes[other]
    if parameter.size() is None:
        yield ConditionError(
            place,
            f"a condition needs single values, and '{other}' is a range without a step",
            expected="a parameter with a list of values",
            got=other,
        )
        return
    for value in values:
        if parameter.position(value) is None:
            yield ConditionError(
                place,
                f"a condition requires '{other}' to be {value!r}, a value that it never takes",
                expected=parameter.describe(),
                got=value,
            )
