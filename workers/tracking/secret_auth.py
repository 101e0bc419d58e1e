"""How MLflow's client is given the secret of the server: by a plugin of its own kind.

Of itself it prefers a user and a password, also those that somebody keeps for another server in
`~/.mlflow/credentials`, and the server that has a secret refuses these.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final

NAME: Final = "eigensweep"
TOKEN: Final = "MLFLOW_TRACKING_TOKEN"


def make_variables(secret: str) -> dict[str, str]:
    """Return the variables with which MLflow's client sends a secret."""
    return {TOKEN: secret, "MLFLOW_TRACKING_AUTH": NAME}


class SecretAuth:
    """What MLflow finds as an entry point of `mlflow.request_auth_provider`."""

    def get_name(self) -> str:
        """Return by which name a variable chooses it."""
        return NAME

    def get_auth(self) -> Callable[[Any], Any]:
        """Return what adds the secret to a request."""
        return add_secret


def add_secret(request: Any) -> Any:
    """Return a request with the secret in place of what else it would authorize itself by."""
    request.headers["Authorization"] = f"Bearer {os.environ[TOKEN]}"
    return request
