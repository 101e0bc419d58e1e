"""Reads specs from YAML, JSON or TOML, and replaces single fields by dotted path.

Nothing here knows which fields a spec may have; the service checks that when it is posted.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Mapping
from datetime import date, time
from pathlib import Path
from typing import Any, Final, TypedDict

from eigensweep.search_spaces import dotted
from eigensweep.search_spaces.labels import is_number
from eigensweep.search_spaces.spec_text import TextError, read_text


class InputError(ValueError):
    """What a person wrote cannot be read; the message says where and what would work."""


def parse(text: str, where: str) -> Any:
    """Return what a YAML (or JSON) text holds.

    Raises:
        InputError: if it is neither; the message names `where` the text comes from, and the line.
    """
    try:
        return read_text(text)
    except TextError as error:
        line = "" if error.line is None else f", line {error.line}"
        raise InputError(f"{where}{line}: neither YAML nor JSON: {error.reason}") from error


def parse_toml(text: str, where: str) -> dict[str, object]:
    """Return what a TOML text holds.

    Raises:
        InputError: if it is none; the message names `where` the text comes from, and the line.
    """
    try:
        return {name: _with_texts(value) for name, value in tomllib.loads(text).items()}
    except RecursionError:
        raise InputError(f"{where}: not TOML: it is nested too deeply") from None
    except ValueError as error:  # also a whole number of thousands of digits
        raise InputError(f"{where}: not TOML: {error}") from error


def _with_texts(value: object) -> object:
    """Return a value of TOML whose dates and times are texts, as those of YAML are here."""
    if isinstance(value, dict):
        return {name: _with_texts(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_with_texts(each) for each in value]
    return value.isoformat() if isinstance(value, date | time) else value


def looks_like_a_file(source: str) -> bool:
    """Return whether `source` names a file (or, `-`, standard input) and not a preset."""
    endings = {".yaml", ".yml", ".json", ".toml"}
    is_path = source.startswith(("/", "./", "../", "~"))
    return source == "-" or is_path or Path(source).suffix.lower() in endings


def read(source: str | Path) -> dict[str, object]:
    """Return the spec in a YAML, JSON or TOML file, or on standard input where `source` is `-`.

    Raises:
        InputError: if it cannot be read or is not a mapping.
    """
    where = "standard input" if str(source) == "-" else str(source)
    try:
        content = sys.stdin.buffer.read() if str(source) == "-" else Path(source).read_bytes()
        text = content.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not a text file in UTF-8"
        if isinstance(error, IsADirectoryError):
            reason = _describe_folder(Path(source))
        raise InputError(f"{where}: {reason}") from error
    spec = parse_toml(text, where) if where.lower().endswith(".toml") else parse(text, where)
    if not isinstance(spec, dict):
        found = "nothing" if spec is None else f"a {type(spec).__name__}"
        raise InputError(f"{where}: a spec is a mapping of names to values; this holds {found}")
    return spec


def _describe_folder(folder: Path) -> str:
    files = [name for each in folder.glob("*.*") if looks_like_a_file(name := str(each))]
    if not files:
        return "this is a folder without a YAML, JSON or TOML file"
    return f"this is a folder; give a file, such as {', '.join(sorted(files)[:3])}"


def parse_settings(settings: list[str]) -> dict[str, object]:
    """Return `path=value` texts as a dict; values are YAML.

    >>> parse_settings(["training.steps=50", "search.space.optimizer.lr=[1e-3, 1e-4]"])
    {'training.steps': 50, 'search.space.optimizer.lr': [0.001, 0.0001]}
    """
    return _parse_pairs("--set", settings, "path=value, such as --set training.steps=100")


SUBJECT = {
    "name": "the first argument",
    "trial": "--trial EXPERIMENT/NUMBER",
    "experiment": "--experiment EXPERIMENT",
}
"""What may not be an option of an analysis, and how to give it instead."""


def parse_options(options: list[str]) -> dict[str, object]:
    """Return `name=value` texts as a dict; values are YAML.

    >>> parse_options(["alpha=[0.95, 1]", "norm=frobenius"])
    {'alpha': [0.95, 1], 'norm': 'frobenius'}
    """
    parsed = _parse_pairs("--option", options, "name=value, such as --option norm=frobenius")
    for name in parsed:
        if name in SUBJECT:
            raise InputError(f"--option {name}=...: give it as {SUBJECT[name]}")
    return parsed


def _parse_pairs(flag: str, texts: list[str], expected: str) -> dict[str, object]:
    parsed: dict[str, object] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise InputError(f"{flag} {text}: write {expected}")
        parsed[key.strip()] = parse(value, f"{flag} {key}")
    return parsed


class SubjectJson(TypedDict, total=False):
    """What an analysis is about."""

    experiment: str
    trial: int


def parse_trial(text: str) -> SubjectJson:
    """Return the experiment and the number in `experiment/number`.

    >>> parse_trial("1m7xnz0qe2nqc/3")
    {'experiment': '1m7xnz0qe2nqc', 'trial': 3}
    """
    experiment, _, number = text.rpartition("/")
    if not experiment or not is_number(number):
        raise InputError(f"--trial {text}: write EXPERIMENT/NUMBER, such as 1m7xnz0qe2nqc/3")
    return {"experiment": experiment, "trial": int(number)}


def with_settings(spec: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, object]:
    """Return a copy of `spec` in which the field at each dotted path has its value.

    Raises:
        InputError: if there is no such path.
    """
    try:
        return dotted.with_settings(spec, settings)
    except dotted.PathError as error:
        raise InputError(str(error)) from error


OF_A_TRIAL: Final = ("wall_seconds", "room_seconds", "stall_seconds")
"""Limits that one trial alone has, too."""


def make_spec_of_one(spec: Mapping[str, Any], trial: Mapping[str, Any]) -> dict[str, object]:
    """Return the spec of an experiment that is one of its trials alone, with all settings fixed.

    Raises:
        InputError: if the trial has no configuration, or is of a population: then its settings
            changed while it trained.
    """
    config = trial["config"]
    if config is None:
        raise InputError(f"trial {trial['number']} is {trial['state']}: it has no configuration")
    if trial.get("lineage"):
        raise InputError(
            f"trial {trial['number']} took over other trials of its population (scheduler: pbt), "
            "so no one configuration has its result: fork the whole experiment, or post the "
            "settings that its page shows last"
        )
    kept = (
        "project",
        "tags",
        "description",
        "source",
        "objective",
        "reuse",
        "resources",
        "priority",
    )
    given = spec.get("limits") or {}
    limits = {name: given[name] for name in OF_A_TRIAL if given.get(name) is not None}
    fixed = ("task", "model", "optimizer", "training", "divergence", "seed", "replicates")
    return {
        "name": f"{str(spec['name'])[:100]}, trial {trial['number']}",
        **{name: spec[name] for name in kept if name in spec},
        **({"limits": limits} if limits else {}),
        **{name: config[name] for name in fixed},
    }
