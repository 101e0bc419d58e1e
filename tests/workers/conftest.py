import pytest
from helpers.small_files import put_small_corpora


@pytest.fixture
def small_corpora(tmp_path, monkeypatch):
    """Corpora of a few files below a data root, which is returned."""
    put_small_corpora(tmp_path, monkeypatch)
    return tmp_path
