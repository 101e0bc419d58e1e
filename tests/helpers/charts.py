"""What Helm makes of deploy/helm, kept in tests/helm so that tests need no Helm.

`python tests/helpers/charts.py` renders anew, with the `helm` on PATH. Each file begins with a
digest of the chart and of its values, which a test compares.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "helm"
KEPT = ROOT / "tests" / "helm"
CASES = ("default", "outer", "objectstore", "placed")
RANDOM = re.compile(r'^(  [a-z-]+-(?:token|password): )"[A-Za-z0-9+/=]+"$', re.MULTILINE)
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The one in C takes a tenth of the time."""
HEAD = "# Made by `python tests/helpers/charts.py`. Digest of the chart and its values: "


def digest(case: str) -> str:
    """Return the digest of all that decides what Helm makes; comments in values do not."""
    made = hashlib.sha256()
    files = [path for path in CHART.rglob("*") if path.is_file() and path.name != "README.md"]
    for path in (*sorted(files), values_of(case)):
        content = path.read_bytes()
        if path.name.endswith("values.yaml"):
            content = json.dumps(yaml.safe_load(content), sort_keys=True).encode()
        made.update(path.name.encode() + b"\0" + content + b"\0")
    return made.hexdigest()


def values_of(case: str) -> Path:
    return KEPT / f"{case}.values.yaml"


def render(case: str) -> str:
    """Return what `helm template` makes, with a fixed word in the place of random secrets."""
    helm = shutil.which("helm")
    assert helm, "there is no `helm` on PATH"
    command = [helm, "template", "sweep", str(CHART), "--values", str(values_of(case))]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return RANDOM.sub(r'\1"cmFuZG9t"', done.stdout)


def kept(case: str) -> tuple[str, list[dict[str, Any]]]:
    """Return the digest in a kept file, and its objects."""
    text = (KEPT / f"{case}.yaml").read_text()
    first, _, rest = text.partition("\n")
    return first.removeprefix(HEAD), parse(rest)


def parse(text: str) -> list[dict[str, Any]]:
    return [each for each in yaml.load_all(text, Loader=LOADER) if each]


def main() -> None:
    for case in CASES:
        (KEPT / f"{case}.yaml").write_text(f"{HEAD}{digest(case)}\n{render(case)}")


if __name__ == "__main__":
    sys.exit(main())
