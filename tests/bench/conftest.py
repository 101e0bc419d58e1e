"""`bench` is no installed package: it is found in the repository, as `python -m` finds it."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))
