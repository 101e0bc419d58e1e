"""The environment variables that are ours."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from eigensweep.client.connection import find_home, read_token_file
from eigensweep.client.spec_file import InputError
from eigensweep.common.variables import KNOWN, PREFIX, find_unknown, warn_of_unknown
from eigensweep.service.settings import Settings, explain_settings

ROOT = Path(__file__).parents[1]
OF_TESTS = {"EIGENSWEEP_TEST_MARK"}
SECRET = "a-secret-of-somebody"


def named_in_the_code() -> set[str]:
    """Return the variables that programs, Compose and make name."""
    rooms = ("service", "workers", "search_spaces", "models", "tasks", "bench", "docs")
    files = [path for room in rooms for path in (ROOT / room).rglob("*.py")]
    files += [path for path in (ROOT / "eigensweep").rglob("*.py") if path.name != "variables.py"]
    files += [ROOT / name for name in ("docker-compose.yml", "Makefile", ".env.example", ".ci/run")]
    found = set()
    for file in files:
        found |= set(re.findall(rf"\b{PREFIX}[A-Z_]*[A-Z]\b", file.read_text(encoding="utf-8")))
    return found - OF_TESTS


def test_the_list_has_every_setting_the_code_names_and_no_more() -> None:
    settings = {PREFIX + name.upper() for name in Settings.model_fields}

    assert settings | named_in_the_code() == KNOWN, "change the list in common/variables.py"


def test_a_slip_is_told_with_the_nearest_name_and_no_value(
    caplog: pytest.LogCaptureFixture,
) -> None:
    environment = {"EIGENSWEEP_TOKN": SECRET, "EIGENSWEEP_HOME": "/x", "eigensweep_port": "1"}

    with caplog.at_level(logging.WARNING):
        warn_of_unknown(environment, logging.getLogger("eigensweep.test"))

    (record,) = caplog.records
    assert record.getMessage() == (
        "nothing reads the variable EIGENSWEEP_TOKN; did you mean EIGENSWEEP_TOKEN?"
    )
    assert SECRET not in caplog.text


def test_a_name_that_resembles_none_is_told_without_a_guess() -> None:
    assert find_unknown(["EIGENSWEEP_QQQQQQ"]) == {"EIGENSWEEP_QQQQQQ": None}


@pytest.mark.ray
def test_serve_names_unknown_variables_at_its_start(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.write_text("a file in the place of the folder, so that the service ends at once")
    given = {"EIGENSWEEP_HOME": str(home), "EIGENSWEEP_MAX_EXPERIMENT": "3"}

    done = subprocess.run(
        [sys.executable, "-m", "eigensweep.service.process.serve"],
        env={**os.environ, **given},
        capture_output=True,
        text=True,
    )

    assert done.returncode == 2
    assert "EIGENSWEEP_MAX_EXPERIMENT; did you mean EIGENSWEEP_MAX_EXPERIMENTS?" in done.stderr


def test_an_empty_variable_is_one_that_is_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOME", "STORAGE", "DATA_ROOT", "MLFLOW_URI", "RAY_ADDRESS", "TOKEN"):
        monkeypatch.delenv(f"EIGENSWEEP_{name}", raising=False)
    unset = Settings()
    for name in ("HOME", "STORAGE", "DATA_ROOT", "MLFLOW_URI", "RAY_ADDRESS", "TOKEN"):
        monkeypatch.setenv(f"EIGENSWEEP_{name}", "")
    assert Settings() == unset


def test_a_refused_setting_is_named_without_its_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EIGENSWEEP_TOKEN", "correct horse battery")
    with pytest.raises(ValidationError) as caught:
        Settings()
    assert "horse" not in str(caught.value)
    assert explain_settings(caught.value)[0].startswith("EIGENSWEEP_TOKEN: ")


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("HOME", '"/srv/x"', 'EIGENSWEEP_HOME: the path "/srv/x" begins with a quote'),
        ("DATA_ROOT", "'/srv'", "EIGENSWEEP_DATA_ROOT: the path '/srv' begins with a quote"),
        ("STORAGE", '"s3://b/p"', "EIGENSWEEP_STORAGE: the path"),
        ("HOME", "~nobody-here/x", "EIGENSWEEP_HOME: the home folder in ~nobody-here/x is not"),
        ("STORAGE", "~nobody-here/x", "EIGENSWEEP_STORAGE: the home folder in ~nobody-here/x"),
        (
            "MLFLOW_URI",
            "mlflow:5000",
            "begins with http:// or https://, such as http://mlflow:5000",
        ),
        ("OTLP_ENDPOINT", "zz", "EIGENSWEEP_OTLP_ENDPOINT: an address begins with http://"),
        ("LEAST_FREE_MB", "inf", "EIGENSWEEP_LEAST_FREE_MB: Input should be a finite number"),
        ("WEBHOOK_HOSTS", "https://a.example", "'https://a.example' is an address; a host is"),
        ("PROXY_SCOPES", "lab=root", "EIGENSWEEP_PROXY_SCOPES: lab: Input should be"),
    ],
)
def test_a_value_that_would_mislead_is_refused(monkeypatch, tmp_path, name, value, words) -> None:
    monkeypatch.setenv("EIGENSWEEP_HOME", str(tmp_path))
    monkeypatch.setenv(PREFIX + name, value)
    with pytest.raises(ValidationError) as refused:
        Settings()
    assert words in "; ".join(explain_settings(refused.value))


def test_a_home_of_nobody_is_told_by_commands_too(monkeypatch) -> None:
    for name in ("EIGENSWEEP_HOME", "EIGENSWEEP_TOKEN_FILE"):
        with monkeypatch.context() as patch:
            patch.setenv(name, "~nobody-here/x")
            with pytest.raises(InputError, match="the home folder in ~nobody-here/x is not known"):
                read_token_file() if name.endswith("FILE") else find_home()


def test_spaces_and_large_letters_of_paths_do_not_count(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("EIGENSWEEP_HOME", f" {tmp_path} ")
    monkeypatch.setenv("EIGENSWEEP_STORAGE", " S3://bucket/Prefix/ ")
    settings = Settings()
    assert settings.home == tmp_path
    assert settings.storage_folder == "s3://bucket/Prefix"
