"""Preloaded by the driver of `bench.slots`: `toy_slow` counts as a model of the project.

The processes of its trials are then used again, as those of the project's models are; those of
another package's models are not.
"""

from eigensweep.models import MODELS

MODELS["toy_slow"] = MODELS["toy_slow"]
