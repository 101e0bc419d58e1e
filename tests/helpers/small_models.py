"""Fields that models need besides their size, small enough for a few units."""

from __future__ import annotations

from typing import Any, Final

REQUIRED: Final[dict[str, dict[str, Any]]] = {
    "scornn": {"negative_ones": 3},
    "enrnn": {"short_fraction": 0.4, "negative_fraction": 0.5},
    "asrnn": {"a": 0.5, "b": 2.0},
    "goru": {"style": "tunable"},
    "ornn": {"reflections": 4},
    "spectral_rnn": {"reflections": 4, "margin": 0.2},
}
