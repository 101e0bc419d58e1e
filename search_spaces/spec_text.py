"""YAML and JSON texts as plain values: the one reading that spec files, presets and `--set` share.

This file imports YAML and nothing of the project, so that the command line starts quickly.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

import yaml


class TextError(ValueError):
    """A text cannot be read as YAML or JSON. `line` counts from 1; None: it is not known."""

    def __init__(self, reason: str, line: int | None = None) -> None:
        super().__init__(reason, line)
        self.reason = reason
        self.line = line

    def __str__(self) -> str:
        place = "" if self.line is None else f"line {self.line}: "
        return f"{place}neither YAML nor JSON: {self.reason}"


DEEPEST = 100
LONGEST_INTEGER = 300
MOST_VALUES = 200_000


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """YAML whose values are all JSON: `1e-3` is a number (YAML 1.2), 1:30 and a date are texts."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, rule) for tag, rule in rules if not tag.endswith(("timestamp", "float", "int"))]
    for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
FLOAT: Any = (
    "tag:yaml.org,2002:float",
    re.compile(
        r"""[-+]?(?:[0-9][0-9_]*\.[0-9_]*(?:e[-+]?[0-9]+)?|[0-9][0-9_]*e[-+]?[0-9]+
        |\.[0-9][0-9_]*(?:e[-+]?[0-9]+)?|\.inf|\.nan)$""",
        re.IGNORECASE | re.VERBOSE,
    ),
    list("-+0123456789."),
)
"""What reads as a number with a point or an exponent, and with which signs it begins."""
_Loader.add_implicit_resolver(*FLOAT)
INTEGER: Any = (
    "tag:yaml.org,2002:int",
    re.compile(r"[-+]?(?:0b[01_]+|0x[0-9a-fA-F_]+|[0-9][0-9_]*)$"),
    list("-+0123456789"),
)
"""A whole number; in YAML 1.1, 1:30 is one of base 60."""
_Loader.add_implicit_resolver(*INTEGER)


class _Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
    """Puts texts in quotes that `_Loader` would read as numbers."""


_Dumper.add_implicit_resolver(*FLOAT)
_Dumper.add_implicit_resolver(*INTEGER)


def write_text(content: Any, width: int) -> str:
    r"""Return JSON as YAML, which reads back as it was, with lines of about `width` letters.

    >>> write_text({"name": "1e-3", "project": "08", "seed": 1}, 80)
    "name: '1e-3'\nproject: '08'\nseed: 1\n"
    """
    return str(yaml.dump(content, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=width))


def _read_integer(text: str) -> int:
    if len(text) > LONGEST_INTEGER:
        raise TextError(f"a whole number has at most {LONGEST_INTEGER} digits; got {len(text)}")
    return int(text)


def _construct_integer(loader: Any, node: yaml.ScalarNode) -> int:
    text, line = loader.construct_scalar(node), node.start_mark.line + 1
    _read_integer("0" * max(1, len(text)))
    if re.match(r"[-+]?0[0-9_]", text):
        raise TextError(f"{text} begins with 0: is it {text.lstrip('+-0_') or 0}?", line)
    try:
        return int(loader.construct_yaml_int(node))
    except (ValueError, IndexError) as error:  # such as 0x_, which has no digit
        raise TextError(f"'{text}' is no whole number", line) from error


_Loader.yaml_constructors = {
    tag: make
    for tag, make in yaml.SafeLoader.yaml_constructors.items()
    if tag is None or tag.endswith((":null", ":bool", ":float", ":str", ":seq", ":map"))
}
_Loader.add_constructor("tag:yaml.org,2002:int", _construct_integer)


def read_text(text: str) -> Any:
    """Return what a YAML or JSON text holds.

    >>> read_text("{lr: [1e-3, 0.01], day: 2020-01-01}")
    {'lr': [0.001, 0.01], 'day': '2020-01-01'}

    Raises:
        TextError: if it is neither.
    """
    try:
        if text.lstrip().startswith("{"):
            with contextlib.suppress(json.JSONDecodeError):  # JSON may hold tabs, YAML not
                return _read_json(text)
        _refuse_bombs(text)
        _refuse_double_keys_of_yaml(text)
        return yaml.load(text, _Loader)
    except TextError:
        raise
    except RecursionError:
        raise TextError(f"it is nested more than {DEEPEST} deep") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        problem = str(error.problem)
        if mark is not None and _is_tab(text, mark.line, mark.column):
            problem = "a tab stands where YAML wants spaces"
        raise TextError(problem, mark.line + 1 if mark else None) from error
    except yaml.YAMLError as error:
        raise TextError(str(error)) from error
    except (ValueError, LookupError) as error:  # a tag says int, and the text is none
        raise TextError(str(error)) from error


def _is_tab(text: str, line: int, column: int) -> bool:
    lines = text.splitlines()
    return line < len(lines) and "\t" in lines[line][: column + 1]


def check_json(text: str) -> None:
    """Raise TextError for a JSON text with a key twice in an object, where the last would win.

    So it does for one that is too deep, or has a whole number that is too long. What is not JSON
    passes: who reads the text says so.
    """
    try:
        with contextlib.suppress(json.JSONDecodeError):
            _read_json(text)
    except RecursionError:
        raise TextError(f"it is nested more than {DEEPEST} deep") from None


def _read_json(text: str) -> Any:
    found = json.loads(text, parse_int=_read_integer, object_pairs_hook=_read_object)
    level = [found]
    for _ in range(DEEPEST + 1):
        level = [inner for each in level for inner in _list_inner(each)]
    if level:
        raise RecursionError
    return found


def _list_inner(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _read_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        double = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise TextError(f"the key '{double[:80]}' stands twice")
    return found


def _refuse_double_keys_of_yaml(text: str) -> None:
    """Raise TextError if a key stands twice in one mapping, where YAML would drop the first."""
    waiting = [yaml.compose(text, _Loader)]
    seen: set[int] = set()
    while waiting:
        node = waiting.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            waiting += node.value
        elif isinstance(node, yaml.MappingNode):
            keys: set[str] = set()
            for key, value in node.value:
                waiting.append(value)
                if isinstance(key, yaml.ScalarNode):
                    if key.value in keys:
                        line = key.start_mark.line + 1
                        raise TextError(f"the key '{key.value[:80]}' stands twice", line)
                    keys.add(key.value)


def _refuse_bombs(text: str) -> None:
    """Raise TextError if a text is nested too deeply, or too long when its aliases are written out.

    A few lines of aliases of aliases can stand for billions of values.
    """
    sizes: dict[str | None, int] = {}
    opened: list[tuple[str | None, int]] = []
    size = 0
    for event in yaml.parse(text, _Loader):
        if isinstance(event, yaml.CollectionEndEvent):
            anchor, before = opened.pop()
            if anchor is not None:
                sizes[anchor] = size - before
            continue
        if isinstance(event, yaml.AliasEvent):
            if any(anchor == event.anchor for anchor, _ in opened):
                raise TextError(f"*{event.anchor} is inside of itself", _line(event))
            size += sizes.get(event.anchor, 0)
        elif isinstance(event, yaml.NodeEvent):
            size += 1
            if isinstance(event, yaml.CollectionStartEvent):
                opened.append((event.anchor, size))
        if len(opened) > DEEPEST:
            raise TextError(f"it is nested more than {DEEPEST} deep", _line(event))
        if size > MOST_VALUES:
            words = f"it holds more than {MOST_VALUES:,} values when its aliases are written out"
            raise TextError(words, _line(event))


def _line(event: yaml.Event) -> int | None:
    return event.start_mark.line + 1 if event.start_mark else None
