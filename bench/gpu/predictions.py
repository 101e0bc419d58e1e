"""What a model of one multiprocessor predicts for an H200, beside what is measured.

No GPU has confirmed it yet. It replays the machine code of the kernels on 132 multiprocessors at
1.83 GHz (`python -m bench.gpu.machine_code`); what is beside the scans is 1.8 us for each node of a
graph and 4.3 TB/s. So a number that is far from its prediction says that the model, or the machine,
is not what we think.
"""

from __future__ import annotations

FAR = 1.5
"""A measured time that is so many times its prediction, or as much below it, is marked."""

STEP_MS = {
    ("copying-20", "exprnn", 1): 2.4,
    ("copying-128", "asrnn", 1): 2.1,
    ("copying-20", "exprnn", 32): 10.4,
}
"""Milliseconds of a training step, by workload, model and lanes."""

RATES = {
    "products, TFLOP/s": 45.0,
    "copy, GB/s": 4300.0,
    "node of a graph, us": 1.8,
    "time step of a scan, n=192, us": 0.38,
    "time step of a scan, n=512, us": 0.54,
    "time step of a scan, n=192, 4 rows, us": 1.07,
    "time step of a scan, n=256, 4 rows, us": 1.03,
    "time step of a scan, n=512, 4 rows, us": 1.05,
}
"""What the section `limits` measures, by its words."""


def compare(value: float, predicted: float | None) -> str:
    """Return a prediction in words, and whether a value is far from it.

    >>> compare(3.0, 2.9), compare(9.0, 2.9), compare(1.0, None)
    ('2.9', '2.9, FAR: x3.1', '')
    """
    if predicted is None:
        return ""
    ratio = value / predicted
    is_far = not 1 / FAR <= ratio <= FAR
    return f"{predicted:.3g}, FAR: x{ratio:.2g}" if is_far else f"{predicted:.3g}"
