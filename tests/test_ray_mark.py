"""The mark `ray`: what starts Ray carries it."""

import os
import subprocess
from unittest import mock

import pytest
from helpers import handing_out, ray_mark
from helpers.handing_out import RayTogether


@pytest.mark.parametrize(
    "command",
    [
        ["/somewhere/ray/core/src/ray/gcs/gcs_server", "--log_dir=/tmp"],
        ["ray", "start", "--head"],
        ["python", "-m", "eigensweep.service.process.serve"],
        ["/somewhere/bin/eigensweep", "serve"],
    ],
)
def test_without_it_neither_ray_nor_a_service_can_be_started(command):
    with pytest.raises(pytest.fail.Exception, match="mark it with"):
        subprocess.run(command)


def test_files_that_have_it_are_run_by_one_process(request, monkeypatch):
    monkeypatch.setattr(request.config.option, "tx", ["popen"])
    split = RayTogether(request.config)._split_scope
    assert split("tests/service/test_serve.py::TestHome::test_it[a::b]") == "ray"
    assert split("tests/workers/test_driver.py::test_it") == "ray"
    assert split("tests/system/test_outcomes.py::test_it") == "ray"
    assert split("tests/service/test_api.py::TestPost::test_it") == "tests/service/test_api.py"


def test_those_that_have_it_come_first_and_are_in_such_files(request):
    items = request.session.items
    ranks = [handing_out.rank(item) for item in items]
    assert ranks == sorted(ranks)
    assert all(ray_mark.has_marked(item.path) for item in items[: ranks.count(0)])
    assert handing_out.rank(request.node) == 2
    request.node.add_marker("ray")
    assert handing_out.rank(request.node) == 0


def test_after_them_the_environment_is_as_before(request, monkeypatch):
    lowered = []
    monkeypatch.setattr(os, "nice", lowered.append)
    monkeypatch.setattr(ray_mark, "_is_marked", True)
    monkeypatch.setattr(ray_mark, "_environment", mock.patch.dict(os.environ))
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw0")
    ray_mark.begin()
    os.environ["RAY_LEFT"] = "1"

    ray_mark.hold(request.node)

    assert "RAY_LEFT" not in os.environ
    assert lowered == [5]
