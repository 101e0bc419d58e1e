"""Numbers are written as numbers: in a field for one, neither true nor the text "1e-3" is one."""

from __future__ import annotations

from typing import Any, Final

from pydantic import BaseModel, GetCoreSchemaHandler
from pydantic_core import CoreSchema, PydanticKnownError, core_schema

NUMBERS: Final = {"int", "float"}
INSIDE: Final = ("schema", "fields", "items_schema", "values_schema")
"""Where a schema keeps the schemas of what it consists of."""


def _refuse_for(kind: Any) -> Any:
    def refuse(value: Any) -> Any:
        if isinstance(value, str | bool):
            raise PydanticKnownError(kind)
        return value

    return refuse


_CHECKS: Final = {kind: _refuse_for(f"{kind}_type") for kind in NUMBERS}


def _check_numbers(schema: Any) -> Any:
    """Return a schema in which each number is checked before it is read."""
    if isinstance(schema, list):
        return [_check_numbers(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    kind = schema.get("type")
    if kind in NUMBERS:
        return core_schema.no_info_before_validator_function(_CHECKS[kind], schema)
    if kind == "union":  # one that takes texts or truth values as well is left as it is
        choices = [each if isinstance(each, dict) else each[0] for each in schema["choices"]]
        if all(each["type"] in NUMBERS for each in choices):
            return core_schema.no_info_before_validator_function(_CHECKS["float"], schema)
        return schema
    is_mapping = kind is None  # of the names of fields to their schemas
    return {
        key: _check_numbers(value) if is_mapping or key in INSIDE else value
        for key, value in schema.items()
    }


class PlainNumbers(BaseModel):
    """A config whose fields for numbers refuse what pydantic would make a number of.

    >>> class Config(PlainNumbers):
    ...     rate: float | None = None
    >>> try:
    ...     Config(rate="1e-3")
    ... except ValueError as error:
    ...     print(str(error).splitlines()[2].partition(" [")[0])
      Input should be a valid number
    """

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        made: CoreSchema = _check_numbers(handler(source))
        return made
