"""Replaces single fields of a spec, given as plain values, by dotted path.

But for the parts of a parameter, nothing here knows which fields a spec may have. Nothing of the
project is imported, so that the command line starts quickly.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PARTS = frozenset(("type", "low", "high", "step", "log", "choices", "when"))
"""What a parameter of a space may say of itself."""


class PathError(ValueError):
    """A dotted path leads nowhere; the message says where it ends and what is there."""


def flatten(content: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Return a tree of mappings as dotted paths to values.

    >>> flatten({"model": {"hidden_size": 8}, "seed": 0})
    {'model.hidden_size': 8, 'seed': 0}
    """
    flat: dict[str, Any] = {}
    for name, value in content.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{path}{name}.")
        else:
            flat[f"{path}{name}"] = value
    return flat


def with_settings(spec: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of `spec` in which the field at each dotted path has its value.

    A path names an arm by its name or its number. The rest of a path after `space` is the path of
    one parameter. If the space has it, `.low`, `.high`, ... behind that path set one part of it.

    >>> spec = {"arms": [{"name": "lstm", "model": {"name": "lstm"}}], "search": {"space": {}}}
    >>> with_settings(spec, {"arms.lstm.optimizer.lr": 0.1, "search.space.optimizer.lr": [1, 2]})
    ... # doctest: +NORMALIZE_WHITESPACE
    {'arms': [{'name': 'lstm', 'model': {'name': 'lstm'}, 'optimizer': {'lr': 0.1}}],
     'search': {'space': {'optimizer.lr': [1, 2]}}}
    >>> spec = {"search": {"space": {"optimizer.lr": {"low": 0.01, "high": 0.1}}}}
    >>> with_settings(spec, {"search.space.optimizer.lr.high": 0.3})
    {'search': {'space': {'optimizer.lr': {'low': 0.01, 'high': 0.3}}}}

    Raises:
        PathError: if there is no such path.
    """
    changed = copy_plain(spec)
    for path, value in settings.items():
        keys = path.split(".")
        if "space" in keys[:-1]:
            first = keys.index("space") + 1
            keys = [*keys[:first], ".".join(keys[first:])]
        node: Any = changed
        for depth, key in enumerate(keys[:-1]):
            node = _enter(node, key, ".".join(keys[: depth + 1]))
        parameter, _, part = keys[-1].rpartition(".")
        if part in PARTS and isinstance(node, dict) and parameter in node:
            if isinstance(node[parameter], list):
                if part not in ("when", "type"):
                    raise PathError(f"{path}: {parameter} is a list of values; it has no '{part}'")
                node[parameter] = {"choices": node[parameter]}
            node, keys = node[parameter], [*keys[:-1], parameter, part]
        if isinstance(node, list):
            node[_place(node, keys[-1], path)] = value
        elif isinstance(node, dict):
            node[keys[-1]] = value
        else:
            raise PathError(f"{path}: {'.'.join(keys[:-1])} is {node!r}, which holds no fields")
    return changed


def _enter(node: Any, key: str, path: str) -> Any:
    if isinstance(node, list):
        return node[_place(node, key, path)]
    if not isinstance(node, dict):
        raise PathError(f"{path}: {path.rpartition('.')[0]} is {node!r}, which holds no fields")
    if key == "arms" and key not in node:
        raise PathError(f"{path}: this spec has no arms; its one model is at 'model'")
    arms = node.get("arms")
    if path == "model" and isinstance(arms, list) and arms:
        first = f"arms.{_name(arms[0]) or 0}.model"
        raise PathError(f"{path}: this spec has arms, each with its own model, such as '{first}'")
    if node.get(key) is None:
        node[key] = {}
    return node[key]


def _place(items: list[Any], key: str, path: str) -> int:
    names = [_name(item) for item in items]
    if key in names:
        return names.index(key)
    if key.isdecimal() and len(key) < 10 and int(key) < len(items):
        return int(key)
    known = ", ".join(name for name in names if name) or f"0 to {len(items) - 1}"
    raise PathError(f"{path}: there is no '{key}' here; there is {known}")


def _name(item: Any) -> str | None:
    """Return an arm's name: its own, or its model's."""
    if not isinstance(item, dict):
        return None
    model = item.get("model")
    return item.get("name") or (model.get("name") if isinstance(model, dict) else None)


def name_arms(spec: Mapping[str, Any]) -> list[str]:
    """Return the names of a valid spec's arms; their models need not be installed any more."""
    arms = spec.get("arms") or [{"model": spec["model"]}]
    return [name for arm in arms if (name := _name(arm))]


def copy_plain(value: Any) -> Any:
    """Return a copy of plain values: objects, lists, and what stands in them."""
    if isinstance(value, Mapping):
        return {key: copy_plain(inner) for key, inner in value.items()}
    return [copy_plain(inner) for inner in value] if isinstance(value, list) else value
