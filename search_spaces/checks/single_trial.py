"""One configuration as a person writes it, in a notebook or a script, read or refused in words."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from pydantic import create_model

from eigensweep.models import MODELS
from eigensweep.search_spaces.checks.checks import READS
from eigensweep.search_spaces.checks.mistakes import leave_out
from eigensweep.search_spaces.checks.places import Places
from eigensweep.search_spaces.errors import SpecError, raise_errors
from eigensweep.search_spaces.sections import union_of
from eigensweep.search_spaces.trial import TrialConfig, find_code
from eigensweep.tasks import TASKS


def read_trial(content: Mapping[str, Any]) -> TrialConfig:
    """Return a configuration, resolved: every size absolute, every default filled in.

    >>> task, training = {"name": "copying"}, {"steps": 1}
    >>> read_trial({"task": task, "model": {"name": "lstn"}, "training": training})
    Traceback (most recent call last):
    eigensweep.search_spaces.errors.SpecError: model.name: there is no model 'lstn'; ...

    Raises:
        SpecError: if something is wrong, with its place, what came, and what exists; all of it at
            once.
    """
    single = _make_class(tuple(TASKS.values()), tuple(MODELS.values()))
    given, problems = leave_out(content, single)
    errors = [SpecError(**problem) for problem in problems]
    if given is not None:
        config = TrialConfig.from_dict(given.model_dump(mode="json"))
        lacking = Places(error.path for error in errors)
        errors += [
            SpecError(section, words)
            for section, words in config.find_contradictions().items()
            if not lacking.touch(*READS[section])
        ]
    raise_errors(errors)
    config = config.resolve()
    return config.model_copy(update={"code": find_code(config.task.name, config.model.name)})


@cache
def _make_class(tasks: tuple[type, ...], models: tuple[type, ...]) -> type[TrialConfig]:
    """Return a `TrialConfig` that tells the registered tasks and models apart by `name`.

    A notebook may register some at any time, so this is made again when there are others.
    """
    fields: Any = {"task": (union_of(TASKS), ...), "model": (union_of(MODELS), ...)}
    return create_model("SingleTrial", __base__=TrialConfig, **fields)
