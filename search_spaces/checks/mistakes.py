"""All mistakes of a spec as it was written, at once: of its shape, and of what could not run.

Pydantic tells all mistakes of shape, and makes no spec then. So the fields that it refuses are left
out, and what is left is checked like any other spec, but for what reads a field that is gone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from eigensweep.search_spaces.checks.checks import find_errors
from eigensweep.search_spaces.checks.places import Places
from eigensweep.search_spaces.checks.problems import Problem, list_problems
from eigensweep.search_spaces.dotted import copy_plain
from eigensweep.search_spaces.errors import SeveralErrors
from eigensweep.search_spaces.spec import ExperimentSpec

ROUNDS = 3
"""How often fields are left out: without those of wrong kinds, rules about several fields speak."""
ROOT_READS = "model", "arms", "published", "name"
"""What the rules about a whole spec read."""
STANDS_IN = {"model": {"name": "tanh_rnn"}, "task": {"name": "copying"}}
"""What is checked in place of a model or a task that does not exist."""


def find_mistakes(content: Mapping[str, Any], data_root: Path | None = None) -> list[Problem]:
    """Return all that is wrong with a spec as it was written; corpora lie below `data_root`."""
    spec, problems = leave_out(content, ExperimentSpec)
    if isinstance(spec, ExperimentSpec):
        errors = find_errors(spec, data_root, [each["path"] for each in problems])
        problems = problems + (list_problems(SeveralErrors(errors)) if errors else [])
    return problems


def leave_out(
    content: Mapping[str, Any], root: type[BaseModel]
) -> tuple[BaseModel | None, list[Problem]]:
    """Return what is left without the fields that `root` refuses, and why it refuses them.

    None where too little is left to make an object of it.
    """
    kept: dict[str, Any] = copy_plain(content)
    problems: list[Problem] = []
    for _ in range(ROUNDS):
        try:
            return root.model_validate(kept), problems
        except ValidationError as error:
            gone = Places(each["path"] for each in problems)
            for each in list_problems(error, root):
                reads = (each["path"],) if each["path"] else ROOT_READS
                if not (problems and gone.touch(*reads)):  # else it only follows from another one
                    problems.append(each)
            if not _drop(kept, [one["loc"] for one in error.errors(include_url=False)]):
                break
    return None, problems


def _drop(content: dict[str, Any], locations: Iterable[Sequence[int | str]]) -> bool:
    """Leave out the fields at pydantic's locations; return whether each lies in one."""
    places = {_find_field(content, location) for location in locations}
    if () in places or ("arms",) in places:
        return False
    for place in sorted(places, key=len, reverse=True):
        *above, last = place
        node: Any = content
        for key in above:
            node = node[key]
        if last in STANDS_IN and (len(place) == 1 or place[0] == "arms"):
            _keep_name(node, content)
            node[last] = dict(STANDS_IN[str(last)])
        else:
            node.pop(last, None)
    return True


def _keep_name(node: dict[str, Any], content: Mapping[str, Any]) -> None:
    """Let an arm whose model does not exist be called as it would be with it."""
    model = node.get("model")
    name = model.get("name") if isinstance(model, Mapping) else None
    is_name = isinstance(name, str) and re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,59}", name)
    if node is not content and is_name:
        node.setdefault("name", name)


def _find_field(content: Any, location: Sequence[int | str]) -> tuple[int | str, ...]:
    """Return the path of the field that a location lies in; one that is missing: of its object.

    A location also has names of classes, which stand in no text. A parameter of a search is one
    field, and so is a list.
    """
    path: list[int | str] = []
    node = content
    for key in location:
        is_there = (isinstance(node, Mapping) and key in node) or (
            isinstance(node, list) and isinstance(key, int) and key < len(node)
        )
        if not is_there:
            continue
        node = node[key]
        path.append(key)
        if path[-2:-1] == ["space"]:
            return tuple(path)
    is_object = not path or (path[0] == "arms" and len(path) == 2 and isinstance(node, dict))
    if is_object and location and location[-1] in STANDS_IN:
        return (*path, location[-1])
    while path and isinstance(path[-1], int):
        path.pop()
    return tuple(path)
