"""The version of a release is the same wherever it stands."""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from pathlib import Path

import yaml
from helpers.charts import CASES, CHART, KEPT

from eigensweep.common import versions

ROOT = Path(__file__).parents[1]


def read(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def test_the_version_is_one_everywhere() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    examples = json.loads(read("service/api/examples.json"))["answers"]
    released = re.findall(r"^## (\d\S*)", read("CHANGELOG.md"), re.MULTILINE)
    found = {
        "pyproject.toml": tomllib.loads(read("pyproject.toml"))["project"]["version"],
        "CITATION.cff": yaml.safe_load(read("CITATION.cff"))["version"],
        "the chart": chart["version"],
        "the chart's images": chart["appVersion"],
        "the newest release of CHANGELOG.md": released[0],
        "the API's examples": examples["Comparison"]["version"],
    }
    found |= {f"image {n}": v for n, v in enumerate(tags(read("deploy/helm/README.md")))}
    for case in CASES:
        made = (KEPT / f"{case}.yaml").read_text()
        labels = re.findall(r'app\.kubernetes\.io/version: "(\S+)"', made)
        found |= {f"label {n} of {case}": v for n, v in enumerate(labels)}

    assert set(found.values()) == {found["pyproject.toml"]}, found
    assert len(found) > 100, "the labels of the chart are among them"


def tags(page: str) -> list[str]:
    """Return the tags of our images on a page.

    >>> tags("docker pull registry.example.org/eigensweep-service:0.2.0")
    ['0.2.0']
    """
    return re.findall(r"eigensweep-(?:service|worker):(\d\S*)", page)


def test_the_repository_around_an_environment_is_not_ours(tmp_path, monkeypatch) -> None:
    own = versions.git_revision()
    assert re.fullmatch("[0-9a-f]{40}|unknown", own)
    place = tmp_path / ".venv" / "eigensweep"
    place.mkdir(parents=True)
    (place / "__init__.py").touch()
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "theirs"], check=True)
    monkeypatch.setattr(versions, "find_package", lambda name: place)
    assert versions.git_revision() == "unknown"
