"""Analyses of what was trained, and of matrices made for the purpose: numbers and pictures.

`python -m eigensweep.workers.analyses` runs one, as its `__main__` says.

>>> sorted(name for name, analysis in ANALYSES.items() if analysis.of == "trial")
['gradient_norms', 'hidden_states', 'spectra']
"""

from __future__ import annotations

from eigensweep.workers.analyses.base import Analysis
from eigensweep.workers.analyses.copying_solution import CopyingSolution
from eigensweep.workers.analyses.gradient_norms import GradientNorms
from eigensweep.workers.analyses.hidden_states import HiddenStates
from eigensweep.workers.analyses.linear_memory import FisherMemory, TransientNorms
from eigensweep.workers.analyses.size_study import SizeStudy
from eigensweep.workers.analyses.spectra import Spectra

ANALYSES: dict[str, Analysis] = {
    "gradient_norms": GradientNorms(),
    "hidden_states": HiddenStates(),
    "spectra": Spectra(),
    "size_study": SizeStudy(),
    "transient_norms": TransientNorms(),
    "fisher_memory": FisherMemory(),
    "copying_solution": CopyingSolution(),
}
