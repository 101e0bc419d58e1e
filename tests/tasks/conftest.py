import pytest
from helpers.small_files import put_small_corpora


@pytest.fixture
def small_corpora(tmp_path, monkeypatch):
    """Put small files where the corpora are expected and return their data root."""
    put_small_corpora(tmp_path, monkeypatch)
    return tmp_path
