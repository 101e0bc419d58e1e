"""Short words for the settings of a trial: in tables, in run names, on plots."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from math import floor
from typing import Any


def describe_settings(params: Mapping[str, Any]) -> str:
    """Return what a search chose in one line.

    >>> describe_settings({"optimizer.name": "rmsprop", "optimizer.lr": 0.001})
    'optimizer=rmsprop lr=0.001'
    """
    labels = shorten_paths(params)
    return " ".join(f"{labels[path]}={format_value(value)}" for path, value in params.items())


def shorten_paths(paths: Iterable[str]) -> Mapping[str, str]:
    """Return a short label for each dotted path: its last word, or more.

    A name is labelled with what it names, and an item of a list with its list. Two paths with the
    same label keep their whole paths.

    >>> labels = shorten_paths(["optimizer.name", "optimizer.name_orth", "optimizer.betas.1"])
    >>> list(labels.values())
    ['optimizer', 'optimizer_orth', 'betas.1']
    >>> list(shorten_paths(["task.size", "model.size"]).values())
    ['task.size', 'model.size']
    """
    labels = {path: _label(path) for path in paths}
    uses = Counter(labels.values())
    return {path: label if uses[label] == 1 else path for path, label in labels.items()}


def _label(path: str) -> str:
    rest, _, last = path.rpartition(".")
    if last.isdecimal():
        return f"{_label(rest)}.{last}" if rest else last
    is_name = last == "name" or last.startswith("name_")
    return rest.rpartition(".")[2] + last.removeprefix("name") if rest and is_name else last


def format_value(value: Any) -> str:
    """Return a number with four digits, and all of its whole ones; anything else as a spec has it.

    >>> [format_value(value) for value in (1 / 30000, 12345.6, 22000.0, 22000, True, "adam")]
    ['3.333e-05', '12,346', '22,000', '22000', 'true', 'adam']
    """
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:,.0f}" if 10_000 <= abs(value) < 10**15 else f"{value:.4g}"
    return str(value)


def format_share(ratio: float) -> str:
    """Return a part of something in percent, with three digits that count.

    >>> [format_share(ratio) for ratio in (0.00094021, 0.5123, 9.996, 12.5, 1e-7, 0.0)]
    ['0.094 %', '51.2 %', '1,000 %', '1,250 %', '< 0.001 %', '0 %']
    >>> format_share(1.2e21), format_share(-1.2e21)
    ('> 1,000,000 %', '< -1,000,000 %')
    """
    percent = 100 * ratio
    if 0 < abs(percent) < 0.001:
        return "< 0.001 %"
    if abs(percent) > 1e6:
        return "> 1,000,000 %" if percent > 0 else "< -1,000,000 %"
    return f"{percent:,.0f} %" if abs(percent) >= 999.5 else f"{percent:.3g} %"


def format_done(fraction: float) -> str:
    """Return how much is done in whole percent, rounded down, so that 100 % means all of it.

    >>> [format_done(fraction) for fraction in (0.0, 0.29, 0.996, 1 - 1e-12, 1.0)]
    ['0 %', '29 %', '99 %', '99 %', '100 %']
    """
    percent = floor(round(100 * fraction, 6))  # 100 * 0.29 is a little less than 29
    return f"{percent if fraction >= 1 else min(percent, 99)} %"


def say_count(number: int, noun: str, nouns: str | None = None) -> str:
    """Return a number of things in words; `nouns` is the plural, where `s` does not make it.

    >>> say_count(1, "trial"), say_count(2_000, "trial"), say_count(0, "entry", "entries")
    ('1 trial', '2,000 trials', '0 entries')
    """
    return f"{number:,} {noun if number == 1 else nouns or f'{noun}s'}"


def is_number(text: str) -> bool:
    """Return whether a text is a trial's number, and not the name of an arm.

    >>> is_number("12"), is_number("-1"), is_number("9" * 5000)
    (True, False, False)
    """
    return text.isdecimal() and len(text) < 10
