"""YAML and JSON texts as plain values: the one reading that spec files, presets and `--set` share.

This file imports YAML and nothing of the project, so that the command line starts quickly.
"""

from __future__ import annotations

import contextlib
import json
import re
from typing import Any

import yaml


class TextError(ValueError):
    """A text is neither YAML nor JSON. `line` counts from 1; it is None where it is not known."""

    def __init__(self, reason: str, line: int | None = None) -> None:
        super().__init__(reason, line)
        self.reason = reason
        self.line = line

    def __str__(self) -> str:
        place = "" if self.line is None else f"line {self.line}: "
        return f"{place}neither YAML nor JSON: {self.reason}"


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """YAML whose values are all JSON: `1e-3` is a number (YAML 1.2), a date stays a string."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, rule) for tag, rule in rules if not tag.endswith(("timestamp", "float"))]
    for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(
        r"""[-+]?(?:[0-9][0-9_]*\.[0-9_]*(?:e[-+]?[0-9]+)?|[0-9][0-9_]*e[-+]?[0-9]+
        |\.[0-9][0-9_]*(?:e[-+]?[0-9]+)?|\.inf|\.nan)$""",
        re.IGNORECASE | re.VERBOSE,
    ),
    list("-+0123456789."),
)


def read_text(text: str) -> Any:
    """Return what a YAML or JSON text holds.

    >>> read_text("{lr: [1e-3, 0.01], day: 2020-01-01}")
    {'lr': [0.001, 0.01], 'day': '2020-01-01'}

    Raises:
        TextError: if it is neither.
    """
    if text.lstrip().startswith("{"):
        with contextlib.suppress(ValueError):  # JSON may hold tabs, which YAML refuses
            return json.loads(text)
    try:
        return yaml.load(text, _Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        raise TextError(str(error.problem), mark.line + 1 if mark else None) from error
    except yaml.YAMLError as error:
        raise TextError(str(error)) from error
