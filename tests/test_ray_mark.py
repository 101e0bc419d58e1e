"""The mark `ray`: what starts Ray carries it."""

import subprocess

import pytest
from helpers.ray_mark import are_wanted


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


def test_where_it_is_asked_for_no_other_file_is_loaded(tmp_path):
    marked, other = tmp_path / "test_marked.py", tmp_path / "test_other.py"
    marked.write_text("pytestmark = pytest.mark.ray\n")
    other.write_text("")
    chosen = [are_wanted("ray and not slow", each) for each in (marked, other)]
    assert chosen == [True, False]
    assert are_wanted("not ray and not slow", other)
