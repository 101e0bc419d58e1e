"""A trial as a client sees it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from eigensweep.client.answers.answers import Answer, describe_trial
from eigensweep.client.connection import Connection

if TYPE_CHECKING:
    from eigensweep.models.base import Model
    from eigensweep.training.weights import KeptWeights


class Trial(Answer):
    """The service's JSON on a trial, a dict, which can fetch the trial's weights and prints."""

    def __init__(self, connection: Connection, content: Mapping[str, object]) -> None:
        super().__init__(content, describe_trial)
        self._connection = connection

    def weights(
        self, which: Literal["best", "last"] = "best", *, seed: int | None = None
    ) -> KeptWeights:
        """Return the weights of a seed, by default the first: those selected, or the last ones.

        Raises:
            RefusedError: if the store has them not or no longer; the message says so.
            NoWeightsError: if none of its evaluations was finite, so that none is the best, or if
                its result was taken up from another training, without weights, if that one went
                on since, or if model or task have other fields here.
        """
        from eigensweep.training.weights import read_config, read_weights

        number = "" if seed is None else f"&seed={seed}"
        path = f"{self['links']['self']}/weights?which={which}{number}"
        config = read_config(self["config"])
        return read_weights(self._connection.download(path), config, which)

    def stop(self) -> Trial:
        """Stop it early while its experiment runs; its place goes to the next one of the search.

        Within seconds it is `pruned`, with the value of its best evaluation so far.

        Raises:
            RefusedError: if it is over, or its experiment does not run.
        """
        return Trial(self._connection, self._connection.post(f"{self['links']['self']}/stop"))

    def logs(self) -> str:
        """Return what its process has printed, the newest 65,536 characters; '' if nothing.

        What trials print that an engine trains together is in the logs of their node's Ray.
        """
        return self._connection.download(f"{self['links']['self']}/logs").decode()

    def load(self, which: Literal["best", "last"] = "best", *, seed: int | None = None) -> Model:
        """Return the trained network, on the CPU; see `weights`.

        `network(x)` gives (logits, state), for x of shape (τ, B) or (τ, B, m).
        """
        return self.weights(which, seed=seed).load()
