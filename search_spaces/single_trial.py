"""One configuration as a person writes it, in a notebook or a script, read or refused in words."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from pydantic import ValidationError, create_model

from eigensweep.models import MODELS
from eigensweep.search_spaces.errors import SeveralErrors, SpecError
from eigensweep.search_spaces.problems import list_problems
from eigensweep.search_spaces.sections import union_of
from eigensweep.search_spaces.trial import TrialConfig, find_code
from eigensweep.tasks import TASKS


def read_trial(content: Mapping[str, Any]) -> TrialConfig:
    """Return a configuration, resolved: every size absolute, every default filled in.

    >>> read_trial({"task": {"name": "copying"}, "model": {"name": "lstn"}, "training": {}})
    Traceback (most recent call last):
    eigensweep.search_spaces.errors.SpecError: model.name: there is no model 'lstn'; ...

    Raises:
        SpecError: if something is wrong, with its place, what came, and what exists.
        ValueError: if fields contradict one another.
    """
    single = _make_class(tuple(TASKS.values()), tuple(MODELS.values()))
    try:
        given = single.model_validate(dict(content))
    except ValidationError as error:
        problems = [SpecError(**problem) for problem in list_problems(error, single)]
        raise problems[0] if len(problems) == 1 else SeveralErrors(problems) from None
    config = TrialConfig.from_dict(given.model_dump(mode="json")).resolve()
    return config.model_copy(update={"code": find_code(config.task.name, config.model.name)})


@cache
def _make_class(tasks: tuple[type, ...], models: tuple[type, ...]) -> type[TrialConfig]:
    """Return a `TrialConfig` that tells the registered tasks and models apart by `name`.

    A notebook may register some at any time, so this is made again when there are others.
    """
    fields: Any = {"task": (union_of(TASKS), ...), "model": (union_of(MODELS), ...)}
    return create_model("SingleTrial", __base__=TrialConfig, **fields)
