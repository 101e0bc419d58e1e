"""What of a configuration enters its content hash.

The hash names results that are kept for years, while the config classes gain and lose fields. The
rules are in `hashed_fields.yaml`, whose first lines explain them. With them a new field at its
default, and a removed field that was at its default, change no hash.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from pydantic import BaseModel

from eigensweep.models.base import ModelConfig
from eigensweep.search_spaces.spec_text import read_text
from eigensweep.tasks.base import TaskConfig


@dataclass(frozen=True)
class HashRule:
    """How the fields of one class enter the hash. The defaults are the rule of a later class."""

    founding: Mapping[str, Any] = field(default_factory=dict)
    """Fields that are in every hash, with the value that stands for a field removed since."""
    never: frozenset[str] = frozenset()
    """Fields that results do not depend on."""
    together: Sequence[Sequence[str]] = ()
    """Groups of later fields: all are in the hash if one of them is."""

    def select(self, config: BaseModel) -> dict[str, Any]:
        """Return the fields of `config` that are hashed, as JSON.

        A field that no part of the rule names is left out where it has its declared default.
        """
        values = config.model_dump(mode="json")
        content = dict(self.founding)
        for name in type(config).model_fields:
            if name not in self.never and (name in content or not is_default(config, name)):
                content[name] = values[name]
        for group in self.together:
            if any(name in content for name in group):
                content |= {name: values[name] for name in group}
        return content


def is_default(config: BaseModel, name: str) -> bool:
    """Return whether a field has the default that its class declares."""
    defaults = _find_defaults(type(config))
    return name in defaults and bool(getattr(config, name) == defaults[name])


@cache
def _find_defaults(kind: type[BaseModel]) -> dict[str, Any]:
    """Return what the fields of a class hold that need not be given."""
    return {
        name: declared.get_default(call_default_factory=True)
        for name, declared in kind.model_fields.items()
        if not declared.is_required()
    }


def rule_of(section: str, config: BaseModel) -> HashRule:
    """Return the rule of a section of a trial: `task`, `model`, `optimizer` and so on.

    The name of a task or model is always hashed, also where its class came later.
    """
    rules = read_rules()
    founding = rules["founding"].get(section, {})
    if isinstance(config, TaskConfig | ModelConfig):
        founding = {"name": config.name, **founding.get(config.name, {})}
    return HashRule(
        founding,
        frozenset(rules["never"].get(section, [])),
        rules["together"].get(section, []),
    )


def select_hashed(trial: BaseModel) -> dict[str, Any]:
    """Return what is hashed of a trial, section by section; a later section only if it is used."""
    rules = read_rules()
    content: dict[str, Any] = {}
    for section in type(trial).model_fields:
        value = getattr(trial, section)
        if section in rules["never"]["trial"]:
            continue
        if isinstance(value, BaseModel):
            fields = rule_of(section, value).select(value)
            if fields or section in rules["founding"]:
                content[section] = fields
        elif not is_default(trial, section):
            content[section] = trial.model_dump(mode="json", include={section})[section]
    return content


def drop_removed_fields(
    section: Literal["task", "model"], stored: Mapping[str, Any], known: Collection[str]
) -> dict[str, Any]:
    """Return a stored task or model without fields that its class, with `known`, has lost since.

    A field goes only where it has the value that still stands for it in the hash; with another
    value the configuration is one that no longer exists, and its class refuses it.
    """
    founding = read_rules()["founding"][section].get(stored["name"], {})
    return {
        name: value
        for name, value in stored.items()
        if name in known or name not in founding or founding[name] != value
    }


@cache
def read_rules() -> dict[str, Any]:
    """Return the rules of `hashed_fields.yaml`, which are read once."""
    text = (files("eigensweep.search_spaces") / "hashed_fields.yaml").read_text(encoding="utf-8")
    rules: dict[str, Any] = read_text(text)
    return rules
