"""The space: counted by arithmetic, any point computed, every point distinct."""

from __future__ import annotations

import math
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eigensweep.search_spaces.errors import ConditionError
from eigensweep.search_spaces.parameters import Parameter, scalar
from eigensweep.search_spaces.space import Choice, Integer, Point, Real, Space


@st.composite
def arm_spaces(draw: st.DrawFn) -> dict[str, Parameter]:
    """Draw up to six parameters; each may depend on values of earlier ones; in any order."""
    axes: dict[str, Parameter] = {}
    for path in "abcdef"[: draw(st.integers(1, 6))]:
        when = {}
        for other in (
            draw(st.lists(st.sampled_from(sorted(axes)), unique=True, max_size=2)) if axes else []
        ):
            values = [axes[other].value(i) for i in range(axes[other].size() or 0)]
            when[other] = draw(st.lists(st.sampled_from(values), min_size=1, unique=True))
        size = draw(st.integers(1, 4))
        axes[path] = draw(
            st.sampled_from(
                [
                    Choice(values=tuple(range(size)), when=when),
                    Integer(low=-1, high=size, step=1, when=when),
                    Real(low=0.1, high=0.1 * (size + 1), step=0.1, when=when),
                ]
            )
        )
    return {path: axes[path] for path in draw(st.permutations(sorted(axes)))}


def by_walking(axes: dict[str, Parameter]) -> set[frozenset[tuple[str, object]]]:
    """Return the points of an arm by brute force: all combinations, the inactive left out."""
    ordered = sorted(axes)  # conditions name earlier letters only
    found = set()
    for values in product(
        *([axes[p].value(i) for i in range(axes[p].size() or 0)] for p in ordered)
    ):
        params: dict[str, object] = {}
        for path, value in zip(ordered, values, strict=True):
            if axes[path].is_active(params):
                params[path] = value
        found.add(frozenset(params.items()))
    return found


@settings(max_examples=20)
@given(st.lists(arm_spaces(), min_size=1, max_size=3))
def test_a_combination_is_one_point_and_its_index_its_place(arms):
    space = Space({str(number): axes for number, axes in enumerate(arms)})
    walked = list(space)
    assert space.count() == len(walked)
    assert [space.point(i) for i in range(len(walked))] == walked
    for number, axes in enumerate(arms):
        mine = [frozenset(point.params.items()) for point in walked if point.arm == str(number)]
        assert len(set(mine)) == len(mine) == space.count(str(number))
        assert set(mine) == by_walking(axes)


def test_the_last_of_a_trillion_points_is_found_without_a_walk(monkeypatch):
    values = Integer.value
    reads = []
    monkeypatch.setattr(Integer, "value", lambda axis, i: reads.append(i) or values(axis, i))
    axes = {p: Integer(low=1, high=1000) for p in "abc"}
    axes["d"] = Integer(low=1, high=1000, when={"a": (500,)})
    axes["e"] = Integer(low=1, high=10**6, when={"a": (7, 500), "d": (3,)})
    space = Space({"big": axes})
    # a = 500: 999 values of d alone, and one with a million of e; other a: one rest each
    assert space.count() == (999 + (999 + 10**6)) * 10**6
    assert space.point(space.count() - 1).params == {"a": 1000, "b": 1000, "c": 1000}
    assert len(reads) < 50


def test_points_come_in_nested_loops_conditional_ones_inside():
    space = Space(
        {
            "x": {
                "name": Choice(values=("adam", "rmsprop")),
                "lr": Choice(values=(1, 2)),
                "alpha": Choice(values=(0.5, 0.9), when={"name": ("rmsprop",)}),
            },
            "y": {"lr": Choice(values=(3,))},
        }
    )
    assert [tuple(point.params.values()) for point in space] == [
        ("adam", 1),
        ("adam", 2),
        ("rmsprop", 0.5, 1),
        ("rmsprop", 0.5, 2),
        ("rmsprop", 0.9, 1),
        ("rmsprop", 0.9, 2),
        (3,),
    ]


def test_axes_come_after_those_their_conditions_name():
    axes = Space(
        {
            "arm": {
                "c": Choice(values=(1,), when={"b": (1,)}),
                "b": Choice(values=(1, 2), when={"a": (1,)}),
                "a": Choice(values=(1, 2)),
            }
        }
    ).axes("arm")
    assert list(axes) == ["a", "b", "c"]
    assert not axes["c"].is_active({"a": 2})


def test_a_range_without_a_step_makes_the_count_infinite():
    space = Space({"a": {"lr": Real(low=1e-5, high=1e-2, log=True)}, "b": {}})
    assert space.count() is None
    assert space.count("b") == 1
    with pytest.raises(ValueError, match="infinitely many"):
        space.point(0)


@pytest.mark.parametrize(("low", "high"), [(1e-300, 1e300), (1e-30, 1e279), (1e-307, 100.0)])
def test_a_logarithmic_range_may_span_more_than_a_float(low, high):
    axis = Real(low=low, high=high, log=True)
    found = [math.log10(axis.at(share)) for share in (0.0, 0.25, 0.5, 1.0)]
    first, last = math.log10(low), math.log10(high)
    assert found == pytest.approx([first + share * (last - first) for share in (0, 0.25, 0.5, 1)])


def test_an_arm_without_parameters_is_exactly_one_point():
    space = Space({"only": {}})
    assert list(space) == [Point("only", {})]
    with pytest.raises(IndexError, match="a space of 1 points has no point 1"):
        space.point(1)


def test_a_stepped_range_counts_in_decimals():
    tenths = Real(low=0.0, high=1.0, step=0.1)
    assert [tenths.value(i) for i in range(tenths.size())] == [i / 10 for i in range(11)]
    assert tenths.position(0.3) == 3
    assert tenths.position(0.35) is None
    tiny = Real(low=1e-300, high=5e-300, step=1e-300)
    assert [tiny.position(value) for value in (2e-300, 1e10, math.inf)] == [1, None, None]
    assert [Integer(low=1, high=9).position(value) for value in (3.0, math.inf)] == [2, None]
    with pytest.raises(ValueError, match="a choice is finite"):
        scalar("1e999")


@pytest.mark.parametrize(
    ("when", "words"),
    [
        ({"nme": ("adam",)}, "'nme', which this space does not vary; did you mean 'name'"),
        ({"name": ("sgd",)}, "requires 'name' to be 'sgd', a value that it never takes"),
        ({"lr": (0.1,)}, "a range without a step"),
        ({"alpha": (0.5,)}, "in a circle"),
    ],
)
def test_a_condition_that_can_never_hold_is_refused(when, words):
    axes = {
        "name": Choice(values=("adam", "rmsprop")),
        "lr": Real(low=0.001, high=1.0),
        "alpha": Choice(values=(0.5,), when=when),
    }
    with pytest.raises(ConditionError, match=words):
        Space({"arm": axes})


def test_extreme_points_hold_every_end_and_every_parameter():
    space = Space(
        {
            "lstm": {
                "model.hidden_size": Choice(values=(64, 512, 8)),
                "optimizer.name": Choice(values=("adam", "rmsprop", "adagrad")),
                "optimizer.lr": Real(low=0.1, high=1.0),
                "optimizer.alpha": Choice(values=(0.9,), when={"optimizer.name": ("rmsprop",)}),
                "optimizer.momentum": Choice(values=(0.0, 0.5), when={"optimizer.alpha": (0.9,)}),
            }
        }
    )
    corners = [point.params for point in space.corners("lstm")]
    assert {params["model.hidden_size"] for params in corners} == {8, 512}
    assert {params["optimizer.name"] for params in corners} == {"adam", "rmsprop", "adagrad"}
    assert {params.get("optimizer.momentum") for params in corners} == {None, 0.0, 0.5}
