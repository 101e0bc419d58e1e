"""Models that are made of other things by the names of their fields."""

from __future__ import annotations

from typing import Any, Self

from pydantic import BaseModel


class MadeOf(BaseModel):
    """A model whose fields are attributes of what it is made of."""

    @classmethod
    def made_of(cls, source: Any, /, **more: Any) -> Self:
        """Return one with what `source` has under the names of fields, except for `more`."""
        named = {name: getattr(source, name) for name in cls.model_fields if name not in more}
        return cls(**named, **more)
