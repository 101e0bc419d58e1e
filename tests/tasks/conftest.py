import hashlib
import os
from pathlib import Path

import pytest

from tasks import ptb_chars
from tasks.corpus import Corpus

TEXTS = {
    "train": " the cat sat on the mat \n a rat ran \n the hat <unk> \n" * 4,
    "valid": " a cat ran on \n a mat \n the hat \n",
    "test": " the rat sat \n on the cat \n",
}


@pytest.fixture
def data_root():
    root = os.environ.get("EIGENSWEEP_DATA_ROOT")
    if not root:
        pytest.skip("EIGENSWEEP_DATA_ROOT is not set: the real corpora are not there")
    return Path(root)


@pytest.fixture
def small_corpus(tmp_path, monkeypatch):
    """Put a small text where the Penn Treebank is expected and return its data root."""
    (tmp_path / "ptb").mkdir()
    files, counts = {}, {"raw": {}, "tokens": {}}
    for split, text in TEXTS.items():
        content = text.encode()
        (tmp_path / "ptb" / f"ptb.{split}.txt").write_bytes(content)
        files[f"ptb.{split}.txt"] = (len(content), hashlib.sha256(content).hexdigest())
        for reading in counts:
            counts[reading][split] = len(ptb_chars.characters(content, reading))
    monkeypatch.setattr(ptb_chars, "CORPUS", Corpus("ptb", files, "they are in the archive"))
    monkeypatch.setattr(ptb_chars, "COUNTS", counts)
    return tmp_path
