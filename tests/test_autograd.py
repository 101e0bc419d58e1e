"""Functions with a gradient of their own."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from inspect import signature
from pathlib import Path

import pytest
import torch

import eigensweep
from eigensweep.common.autograd import BY_POSITION, Function

ROOMS = ("models", "tasks", "training")


def list_functions(base: type = torch.autograd.Function) -> Iterator[type]:
    for each in base.__subclasses__():
        if each.__module__.startswith("eigensweep."):
            yield each
        yield from list_functions(each)


@pytest.fixture(scope="module")
def functions() -> list[type]:
    folder = Path(eigensweep.__file__).parent
    for room in ROOMS:
        for file in (folder / room).rglob("*.py"):
            if "autograd import Function" in (text := file.read_text()) or ".Function" in text:
                import_module(".".join(file.relative_to(folder.parent).with_suffix("").parts))
    return list(list_functions())


def test_nobody_makes_their_signatures_at_each_call(functions: list[type[Function]]) -> None:
    assert len(functions) > 15
    for each in functions:
        if each is not Function:
            assert issubclass(each, Function), each
            assert signature(each.forward) is BY_POSITION, each
            assert each.forward.__defaults__ is None, each


def test_wrong_arguments_are_still_told() -> None:
    class Twice(Function):
        @staticmethod
        def forward(x: torch.Tensor) -> torch.Tensor:
            return 2 * x

    assert Twice.apply(torch.ones(1)).item() == 2  # type: ignore[no-untyped-call]
    with pytest.raises(TypeError, match="positional argument"):
        Twice.apply(torch.ones(1), 3)  # type: ignore[no-untyped-call]
