"""Analyses of finished trials and experiments, and of matrices: numbers and pictures.

The service checks requests with these classes. Each analysis then runs in a child process of the
service: `python -m eigensweep.analyses`.

>>> sorted(name for name, analysis in ANALYSES.items() if analysis.of == "trial")
['gradient_norms', 'hidden_states', 'spectra']
"""

from __future__ import annotations

from typing import Any

from eigensweep.analyses.base import AnalysisMethod
from eigensweep.analyses.copying_solution import CopyingSolution
from eigensweep.analyses.gradient_norms import GradientNorms
from eigensweep.analyses.hidden_states import HiddenStates
from eigensweep.analyses.linear_memory import FisherMemory, TransientNorms
from eigensweep.analyses.size_study import SizeStudy
from eigensweep.analyses.spectra import Spectra

ANALYSES: dict[str, AnalysisMethod[Any, Any, Any]] = {
    "gradient_norms": GradientNorms(),
    "hidden_states": HiddenStates(),
    "spectra": Spectra(),
    "size_study": SizeStudy(),
    "transient_norms": TransientNorms(),
    "fisher_memory": FisherMemory(),
    "copying_solution": CopyingSolution(),
}
