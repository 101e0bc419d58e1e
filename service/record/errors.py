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


class TrialNotFoundError(NotFoundError):
    """The experiment has no trial of this number."""

    def __init__(self, id: str, number: int, opened: int) -> None:
        super().__init__(f"experiment '{id}' has no trial {number}; it has opened {opened} so far")


class WeightsNotFoundError(NotFoundError):
    """The store has no such weights of a trial."""


class AccountNotFoundError(NotFoundError):
    """There is no user of this name, or no token of this id."""


class AlreadyThereError(ConflictError):
    """There is a user of this name."""


class NotAllowedError(PermissionError):
    """The caller is known and may not do this; the message says what that needs."""


class ScopeError(NotAllowedError):
    """The token's scope is too small."""


class NotOwnerError(NotAllowedError):
    """It belongs to another user."""


class QuotaExceededError(NotAllowedError):
    """The user's quota does not allow one more experiment, or not one of this size."""


class AnalysisNotFoundError(NotFoundError):
    """No analysis has this id, or it has no such file yet."""


class ReproductionNotFoundError(NotFoundError):
    """No reproduction has this id, or it has no such file yet."""


class NotLeadingError(RuntimeError):
    """Only the service that leads may do this, and another one does."""


class WrongMoveError(ConflictError):
    """An experiment or a trial may not go from one of its states to the other."""

    def __init__(self, what: str, state: str, following: str) -> None:
        super().__init__(f"a {what} that is {state} cannot become {following}")


class WrongStateError(ConflictError):
    """The state of the experiment does not allow the request."""

    def __init__(self, id: str, state: str, action: str) -> None:
        super().__init__(
            f"experiment {id} is {state.replace('_', ' ')}, so there is nothing to {action}; "
            f"what works now: {name_actions(state)}"
        )


class NothingToDoError(ConflictError):
    """The experiment has nothing that the action could apply to, or may not go on."""


class AlreadyEndedError(ConflictError):
    """The reproduction is over, so it cannot be cancelled."""


class NotAnalysableError(ConflictError):
    """The trial or experiment is not over, or has nothing, or too much, to be analysed."""


class IdempotencyKeyReusedError(ValueError):
    """An earlier post used this key with a different body."""
