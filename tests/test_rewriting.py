"""In a fresh copy, each process of a test run rewrites a share of the files of tests."""

from __future__ import annotations

from types import SimpleNamespace

from helpers.rewriting import rewrite_share


def test_each_process_rewrites_its_share_and_runs_nothing(tmp_path, pytestconfig, monkeypatch):
    monkeypatch.setattr("sys.dont_write_bytecode", False)
    files = [tmp_path / f"test_{number}.py" for number in range(5)]
    for file in files:
        file.write_text("assert 1 == 2\nraise RuntimeError('it was run')\n")
    files[0].write_text("this is no Python\n")
    hook = pytestconfig.pluginmanager.rewrite_hook
    for number in range(2):
        given = {"workerid": f"gw{number}", "workercount": 2}
        config = SimpleNamespace(
            workerinput=given, pluginmanager=SimpleNamespace(rewrite_hook=hook)
        )
        rewrite_share(config, files)
        kept = {path.name.split(".")[0] for path in tmp_path.rglob("*.pyc")}
        share = {"test_2", "test_4"}
        assert kept == (share if number == 0 else {*share, "test_1", "test_3"})
