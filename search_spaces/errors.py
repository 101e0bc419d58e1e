"""Errors about a spec, raised where a person's input is read.

Every error names the place (a dotted path into the spec), what was expected, what came, and, where
names are involved, which names exist.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any

LONGEST_SHOWN = 120
"""Longest piece of a person's input, in characters, that a message repeats."""

MOST_TOLD = 20
"""Mistakes that are told at once, in full; of the rest only the number is."""


class SpecError(ValueError):
    """A spec, or one place in it, that cannot be run."""

    def __init__(
        self,
        path: str,
        message: str,
        expected: str | None = None,
        got: Any = None,
        available: Sequence[str] | None = None,
    ) -> None:
        super().__init__(path, message, expected, got, available)  # all of it, so that it pickles
        self.path = path
        self.message = message
        self.expected = expected
        self.got = got
        self.available = list(available) if available is not None else None

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message

    def below(self, place: str) -> SpecError:
        """Return the same error, with `place` before its path."""
        path = f"{place}.{self.path}"
        return type(self)(path, self.message, self.expected, self.got, self.available)


class UnknownParameterError(SpecError):
    """A search space sets a path that no config of its arm declares."""


class ParameterValueError(SpecError):
    """A search space offers a value that its field refuses."""


class ConditionError(SpecError):
    """A condition that can never hold, or that depends on itself."""


class GridTooLargeError(SpecError):
    """A grid has more points than the limit, or infinitely many."""


class TrialLimitError(SpecError):
    """A search that does not end by itself has no number of trials."""


class UnknownMetricError(SpecError):
    """The objective names a metric that the task does not report."""


class CorpusError(SpecError):
    """A task needs a corpus that is not under the data root."""


class InvalidPointError(SpecError):
    """A point breaks a rule about several fields; its trial is `invalid` and never runs."""


class ConstraintError(InvalidPointError):
    """A point breaks one of `search.constraints`; it is no point of the search."""


class UnreadableSpecError(ValueError):
    """A stored spec names what this installation does not have, such as a package's model."""


class UnknownPresetError(SpecError):
    """No preset has this name."""


class UnknownSuiteError(SpecError):
    """No reproduction has this name."""


class SeveralErrors(SpecError):  # noqa: N818
    """More than one thing is wrong; `errors` holds each."""

    def __init__(self, errors: Sequence[SpecError]) -> None:
        errors = [one for each in errors for one in getattr(each, "errors", [each])]
        shown = [f"  {each}" for each in errors[:MOST_TOLD]]
        if len(errors) > MOST_TOLD:
            shown.append(f"  {say_more(len(errors) - MOST_TOLD)}")
        super().__init__("", "\n".join([f"{len(errors)} things are wrong:", *shown]))
        self.args = (errors,)
        self.errors = list(errors)


def raise_errors(errors: Sequence[SpecError]) -> None:
    """Raise the only one of `errors`, or all as `SeveralErrors`; nothing if there is none."""
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise SeveralErrors(errors)


def say_more(count: int) -> str:
    """Return what a list of mistakes ends with that leaves out so many."""
    return f"and {count:,} more; these come first"


def did_you_mean(name: str, available: Iterable[str]) -> str:
    """Return "; did you mean 'x'?" for the most similar of `available`, or an empty text.

    A path that ends with the whole name comes before all others.

    >>> did_you_mean("scorn", ["lstm", "scornn"]), did_you_mean("lr", ["task.l", "optimizer.lr"])
    ("; did you mean 'scornn'?", "; did you mean 'optimizer.lr'?")
    """
    known = list(available)
    near = [whole for whole in known if whole.endswith(f".{name}")]
    near += get_close_matches(name[:LONGEST_SHOWN], known, n=1, cutoff=0.6)
    return f"; did you mean '{near[0]}'?" if near else ""


def end_of_sentence(text: str) -> str:
    """Return pydantic's message as the end of a sentence about a field.

    >>> end_of_sentence("Input should be greater than 0")
    'should be greater than 0'
    >>> end_of_sentence("Tuple should have at most 4 items after validation, not 5")
    'should have at most 4 items, not 5'
    >>> end_of_sentence("Value error, steps should be above 0")
    'steps should be above 0'
    """
    text = re.sub(r"^([A-Z]\w+ (?=should )|Input |Value error, )", "", text)
    text = text.replace(" after validation,", ",")
    return text[:1].lower() + text[1:]


def shorten(value: Any) -> Any:
    """Return `value` as JSON can carry it and a person can read it: short, finite, plain.

    >>> shorten(float("nan")), shorten(0.5), shorten("x" * 500)[-4:]
    ('nan', 0.5, 'x...')
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int) and abs(value) < 10**15:
        return value
    if isinstance(value, float) and value - value == 0:
        return value
    if isinstance(value, str):
        text = value[: LONGEST_SHOWN + 1]
    elif isinstance(value, int):
        text = "an integer of more than 15 digits"
    elif isinstance(value, dict | list | tuple) and len(value) > 20:
        text = f"{'a list' if not isinstance(value, dict) else 'an object'} of {len(value)} entries"
    else:
        text = repr(value)
    return text if len(text) <= LONGEST_SHOWN else text[:LONGEST_SHOWN] + "..."
