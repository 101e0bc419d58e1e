"""Errors of requests to the record; the API answers each kind with one status."""

from __future__ import annotations

from eigensweep.protocol.states import name_actions


class NotFoundError(LookupError):
    """There is nothing with this id, number or name."""


class ConflictError(RuntimeError):
    """Its state does not allow the request."""


class ExperimentNotFoundError(NotFoundError):
    """No experiment has this id."""

    def __init__(self, id: str) -> None:
        super().__init__(f"there is no experiment '{id}'")


class NotAllowedError(PermissionError):
    """The caller is known and may not do this; the message says what that needs."""


class ScopeError(NotAllowedError):
    """The token's scope is too small."""


class NotOwnerError(NotAllowedError):
    """It belongs to another user."""


class QuotaExceededError(NotAllowedError):
    """The user's quota does not allow one more experiment, or not one of this size."""


class NotLeadingError(RuntimeError):
    """Only the service that leads may do this, and another one does."""


class WrongStateError(ConflictError):
    """The state of the experiment does not allow the request."""

    def __init__(self, id: str, state: str, action: str) -> None:
        super().__init__(
            f"experiment {id} is {state.replace('_', ' ')}, so there is nothing to {action}; "
            f"what works now: {name_actions(state)}"
        )


class IdempotencyKeyReusedError(ValueError):
    """An earlier post used this key with a different body."""
