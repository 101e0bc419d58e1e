"""Models that take their fields from the attributes of another object."""

from __future__ import annotations

from typing import Any, Self

from pydantic import BaseModel


class MadeOf(BaseModel):
    """A model whose fields have the names of the attributes that they are taken from."""

    @classmethod
    def made_of(cls, source: Any, /, **more: Any) -> Self:
        """Return a model with the fields in `more`; all others are attributes of `source`."""
        named = {name: getattr(source, name) for name in cls.model_fields if name not in more}
        return cls(**named, **more)
