"""Lets the tests here, and the processes that they start, import the modules beside them."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
