"""What a search may vary: a list of choices, a range of reals, a range of integers.

In YAML and JSON a list is a `Choice`, and an object with `low` and `high` is a range. It is a range
of integers if its numbers are written as integers, unless `type` says otherwise. Each may carry
`when`: the parameter exists in a point only where other parameters have certain values.
"""

from __future__ import annotations

import math
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from fractions import Fraction
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    GetJsonSchemaHandler,
    PlainValidator,
    SerializerFunctionWrapHandler,
    Tag,
    WithJsonSchema,
    field_validator,
    model_serializer,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

Scalar = bool | int | float | str | None
"""A value of a parameter; None where a field may be left empty."""

MOST_CHOICES = 1_000
MOST_DESCRIBED = 12
"""Values of a list that are named where it is described."""
VALUE = {"type": ["number", "string", "boolean", "null"]}
"""A scalar in the JSON Schema."""

EXPONENT = re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+")


def scalar(raw: Any) -> Scalar:
    """Return a value of a choice; a text that writes a number with an exponent becomes a number.

    Other fields do the same, and YAML 1.1 libraries read 1e-3 as a text.

    >>> scalar("1e-3")
    0.001
    """
    if isinstance(raw, str) and not EXPONENT.fullmatch(raw):
        return raw
    raw = float(raw) if isinstance(raw, str) else raw
    if isinstance(raw, list | tuple):
        raise ValueError(
            "a choice is no list; vary its items one by one, each by its place: optimizer.betas.1"
        )
    if raw is not None and not isinstance(raw, bool | int | float):
        raise ValueError("a choice is a number, a text, true, false or null")
    if isinstance(raw, float) and not math.isfinite(raw):
        raise ValueError("a choice is finite; NaN and infinity are not")
    if isinstance(raw, int) and not -(2**63) <= raw < 2**63:
        raise ValueError("an integer of a choice has at most 64 bits")
    return raw


Value = Annotated[
    Scalar,
    PlainValidator(scalar),
    WithJsonSchema(VALUE),
]


def _as_list(raw: Any) -> Any:
    if isinstance(raw, list | tuple) and not raw:
        raise ValueError("a condition lists at least one value")
    return raw if isinstance(raw, list | tuple) else [raw]


Values = Annotated[tuple[Value, ...], BeforeValidator(_as_list)]


class _Parameter(BaseModel, ABC):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    when: dict[str, Values] = Field(
        {},
        examples=[{"optimizer.name": ["rmsprop"]}],
        description="Other parameters of this space, each with the values for which this one "
        "exists; default: it always exists",
    )

    @abstractmethod
    def size(self) -> int | None:
        """Return the number of values, None where there are infinitely many."""

    @abstractmethod
    def value(self, index: int) -> Scalar:
        """Return the value at `index` of a finite parameter; the order is as written or rising."""

    @abstractmethod
    def position(self, value: Scalar) -> int | None:
        """Return the index of `value`, None if this parameter never takes it."""

    def match(self, value: Scalar) -> Scalar:
        """Return a value as this parameter writes it: 3.0 is 3 in a range of integers.

        Raises:
            ValueError: if this parameter never takes it.
        """
        index = self.position(value)
        if index is None:
            raise ValueError(f"takes {self.describe()}")
        return self.value(index)

    @abstractmethod
    def describe(self) -> str:
        """Return in words which values it takes."""

    @abstractmethod
    def ends(self) -> tuple[Scalar, Scalar]:
        """Return the first and the last value."""

    def extremes(self) -> tuple[Scalar, ...]:
        """Return the least and the largest value; of a list of other things than numbers, all."""
        return self.ends()

    def at(self, share: float) -> Scalar:
        """Return the value at a share, from 0 to 1, of the way from the first to the last."""
        size = self.size()
        assert size is not None
        return self.value(min(int(share * size), size - 1))

    def is_active(self, params: Mapping[str, Scalar]) -> bool:
        """Tell whether every condition holds among the parameters decided so far."""
        return all(path in params and params[path] in values for path, values in self.when.items())


class Choice(_Parameter):
    """One of a list of values, in the order written."""

    values: tuple[Value, ...] = Field(
        alias="choices",
        max_length=MOST_CHOICES,
        description="The values, in the order of the search; no value stands twice",
    )

    model_config = ConfigDict(populate_by_name=True)

    @model_validator(mode="before")
    @classmethod
    def _list_is_choices(cls, raw: Any) -> Any:
        if isinstance(raw, Mapping) and raw.keys() & {"min", "max"}:
            raise ValueError("a range has 'low' and 'high'; got 'min' and 'max'")
        return {"choices": raw} if isinstance(raw, list | tuple) else raw

    @field_validator("values")
    @classmethod
    def _distinct(cls, values: tuple[Scalar, ...]) -> tuple[Scalar, ...]:
        if not values:
            raise ValueError("a list of choices has at least one value")
        seen: set[Scalar] = set()
        for value in values:
            if value in seen:
                raise ValueError(f"{value!r} is listed twice among the choices")
            seen.add(value)
        return values

    @model_serializer(mode="plain")
    def _as_written(self) -> dict[str, Any] | list[Scalar]:
        if not self.when:
            return list(self.values)
        return {"choices": list(self.values), "when": {k: list(v) for k, v in self.when.items()}}

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        choices = {"type": "array", "items": VALUE, "minItems": 1, "maxItems": MOST_CHOICES}
        values = {"type": "array", "items": VALUE}
        when = {"type": "object", "additionalProperties": values}
        with_conditions = {
            "type": "object",
            "properties": {"choices": choices, "when": when},
            "required": ["choices"],
            "additionalProperties": False,
        }
        return {
            "title": "Choice",
            "description": "A list of values, or an object with the list and its conditions.",
            "anyOf": [choices, with_conditions],
            "examples": [[0.001, 0.0001], {"choices": [0.9], "when": {"optimizer.name": ["adam"]}}],
        }

    def size(self) -> int:
        return len(self.values)

    def value(self, index: int) -> Scalar:
        return self.values[index]

    def position(self, value: Scalar) -> int | None:
        return self.values.index(value) if value in self.values else None

    def describe(self) -> str:
        more = ", ..." if len(self.values) > MOST_DESCRIBED else ""
        return ", ".join(map(str, self.values[:MOST_DESCRIBED])) + more

    def ends(self) -> tuple[Scalar, Scalar]:
        return self.values[0], self.values[-1]

    def extremes(self) -> tuple[Scalar, ...]:
        numbers = [value for value in self.values if isinstance(value, int | float)]
        is_ordered = len(numbers) == len(self.values)
        return (min(numbers), max(numbers)) if is_ordered else self.values


class _Range(_Parameter):
    log: bool = Field(False, description="Draw evenly on a logarithmic scale")

    @model_serializer(mode="wrap")
    def _conditions_only_if_any(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        content = handler(self)
        if not self.when:
            content.pop("when", None)
        return content

    def _holds(self, value: int | float) -> bool:
        """Whether a number lies in the range: of others no place in it is computed."""
        low, high = self.ends()
        assert isinstance(low, int | float)
        assert isinstance(high, int | float)
        return low <= value <= high

    def _say_ends(self) -> str:
        low, high = self.ends()
        return f"{low} to {high}{', logarithmic' if self.log else ''}"


class Real(_Range):
    """A real number from `low` to `high`, both included; with `step`, only low, low + step, ..."""

    type: Literal["real"] = Field(
        "real",
        description="May be left out, unless `low`, `high` and `step` are all written as integers",
    )
    low: float = Field(description="Smallest value")
    high: float = Field(description="Largest value; with `step`, the range may end below it")
    step: float | None = Field(
        None,
        gt=0,
        description="Distance between two values, which a grid needs; default: every number in "
        "the range is possible",
    )

    @model_validator(mode="after")
    def _step_counts(self) -> Self:
        _require_room(self.low, self.high, log=self.log)
        for end in (self.low, self.high):
            if 0 < abs(end) < sys.float_info.min:
                least = sys.float_info.min
                raise ValueError(f"{end} is too near to 0; the nearest that works is {least:.4g}")
        if self.step is None:
            return self
        if self.log:
            raise ValueError("a range takes 'log' or 'step', not both; list the values instead")
        if self.step > self.high - self.low:
            raise ValueError(f"'step' {self.step} is larger than the range")
        if self.step < 2 * math.ulp(max(abs(self.low), abs(self.high))):
            raise ValueError(f"'step' {self.step} is too small to tell the values apart")
        return self

    def size(self) -> int | None:
        if self.step is None:
            return None
        low, high = Fraction(repr(self.low)), Fraction(repr(self.high))
        return int((high - low) // Fraction(repr(self.step))) + 1

    def value(self, index: int) -> float:
        """Return low + index * step, computed in decimals: 0.1 + 2 * 0.1 is 0.3."""
        assert self.step is not None
        return float(Fraction(repr(self.low)) + index * Fraction(repr(self.step)))

    def position(self, value: Scalar) -> int | None:
        size = self.size()
        if size is None or not isinstance(value, int | float) or not self._holds(value):
            return None
        assert self.step is not None
        index = round((value - self.low) / self.step)
        return index if 0 <= index < size and self.value(index) == value else None

    def match(self, value: Scalar) -> Scalar:
        if self.step is not None:
            return super().match(value)
        if isinstance(value, bool) or not isinstance(value, int | float) or not self._holds(value):
            raise ValueError(f"takes {self.describe()}")
        return float(value)

    def describe(self) -> str:
        step = "" if self.step is None else f" in steps of {self.step}"
        return f"{self._say_ends()}{step}"

    def at(self, share: float) -> Scalar:
        if self.step is not None:
            return super().at(share)
        if self.log:
            ratio = self.high / self.low
            found = self.low * ratio**share
            if math.isinf(ratio):  # other ranges keep the digits that they have always had
                found = self.low ** (1 - share) * self.high**share
            return _between(found, self.low, self.high)
        return _between(self.low + share * (self.high - self.low), self.low, self.high)

    def ends(self) -> tuple[float, float]:
        size = self.size()
        return self.low, self.high if size is None else self.value(size - 1)


class Integer(_Range):
    """An integer from `low` to `high`, both included, in steps of `step`."""

    type: Literal["integer"] = Field(
        "integer",
        description="May be left out, if `low`, `high` and `step` are written as integers",
    )
    low: int = Field(ge=-(2**63), lt=2**63, description="Smallest value")
    high: int = Field(
        ge=-(2**63), lt=2**63, description="Largest value; with `step`, the range may end below it"
    )
    step: int = Field(1, ge=1, description="Distance between two values")

    @model_validator(mode="after")
    def _step_counts(self) -> Self:
        _require_room(self.low, self.high, log=self.log)
        if self.log and self.step != 1:
            raise ValueError("a range takes 'log' or 'step', not both; list the values instead")
        if self.step > self.high - self.low:
            raise ValueError(f"'step' {self.step} is larger than the range")
        return self

    def size(self) -> int:
        return (self.high - self.low) // self.step + 1

    def value(self, index: int) -> int:
        return self.low + index * self.step

    def position(self, value: Scalar) -> int | None:
        if not isinstance(value, int | float) or not self._holds(value) or value != int(value):
            return None
        index, rest = divmod(int(value) - self.low, self.step)
        return index if rest == 0 and 0 <= index < self.size() else None

    def describe(self) -> str:
        return f"{self._say_ends()}{'' if self.step == 1 else f' in steps of {self.step}'}"

    def at(self, share: float) -> Scalar:
        if not self.log:
            return super().at(share)
        low, high = self.low - 0.5, self.high + 0.5  # each integer gets the share around it
        return round(_between(low * (high / low) ** share, self.low, self.high))

    def ends(self) -> tuple[int, int]:
        return self.low, self.value(self.size() - 1)


def _require_room(low: float, high: float, *, log: bool) -> None:
    """Raise ValueError if no number lies between the ends of a range."""
    if low >= high:
        raise ValueError(f"'low' must be below 'high'; {low} and {high} are given")
    if log and low <= 0:
        raise ValueError(f"a logarithmic range begins above 0; 'low' is {low}")


def _between(value: float, low: float, high: float) -> float:
    """Return `value`, which rounding may have moved beyond an end."""
    return min(max(value, low), high)


def _kind(raw: Any) -> str:
    if isinstance(raw, _Parameter):
        return type(raw).__name__.lower()
    if not isinstance(raw, Mapping):
        return "choice"
    if "type" in raw:
        return str(raw["type"])
    if "low" not in raw and "high" not in raw:
        return "choice"
    ends = [raw.get("low"), raw.get("high"), raw.get("step") or 1]
    return "integer" if all(isinstance(end, int) for end in ends) else "real"


class _AnyOf:
    """Tells the JSON Schema that kinds may overlap: {low: 1, high: 3} is valid as either range."""

    def __get_pydantic_json_schema__(
        self, core: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        schema = handler(core)
        return {"anyOf": schema.pop("oneOf"), **schema}


Parameter = Annotated[
    Annotated[Choice, Tag("choice")]
    | Annotated[Real, Tag("real")]
    | Annotated[Integer, Tag("integer")],
    Discriminator(_kind),
    _AnyOf(),
]
