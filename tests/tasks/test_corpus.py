import errno
import os
from pathlib import Path

import pytest

from eigensweep.tasks import treebank
from eigensweep.tasks.corpus import Corpus, CorpusMismatchError, CorpusMissingError
from eigensweep.tasks.ptb_chars import PtbChars, PtbCharsConfig
from eigensweep.training.errors import is_of_the_node


def test_a_missing_file_is_told_with_path_and_what_to_put_there(tmp_path):
    with pytest.raises(CorpusMissingError) as error:
        PtbChars.check_corpus(PtbCharsConfig(), tmp_path)
    words = str(error.value)
    assert str(tmp_path / "ptb" / "ptb.train.txt") in words
    assert f"Put ptb.train.txt, ptb.valid.txt, ptb.test.txt into 'ptb' under {tmp_path}" in words
    assert "simple-examples.tgz" in words


def test_a_data_root_that_is_not_set_is_told_with_its_setting():
    with pytest.raises(CorpusMissingError, match="EIGENSWEEP_DATA_ROOT"):
        PtbChars.check_corpus(PtbCharsConfig(), None)


def test_a_file_of_another_size_is_refused_when_looked_for(small_corpora):
    (small_corpora / "ptb" / "ptb.test.txt").write_text("something else")
    with pytest.raises(CorpusMismatchError, match=r"ptb.test.txt has 14 bytes; expected"):
        PtbChars.check_corpus(PtbCharsConfig(), small_corpora)


def test_a_file_with_one_byte_changed_is_refused_when_read(small_corpora):
    path = small_corpora / "ptb" / "ptb.valid.txt"
    path.write_text(path.read_text().replace("cat", "car"))
    PtbChars.check_corpus(PtbCharsConfig(), small_corpora)
    task = PtbChars(PtbCharsConfig(batch_size=2, bptt=5), small_corpora)
    with pytest.raises(CorpusMismatchError, match=r"ptb.valid.txt has SHA-256 \w{64}; expected"):
        task.train_batch(0, seed=0)


def test_a_file_that_vanishes_once_it_was_found_is_missing(small_corpora, monkeypatch):
    path, find = small_corpora / "ptb" / "ptb.valid.txt", Corpus._find

    def find_and_lose(corpus, name, data_root):
        found = find(corpus, name, data_root)
        path.unlink(missing_ok=True)
        return found

    monkeypatch.setattr(Corpus, "_find", find_and_lose)
    with pytest.raises(CorpusMissingError, match=r"no .*ptb.valid.txt any more\. `eigensweep data"):
        treebank.CORPUS.read("ptb.valid.txt", small_corpora)


@pytest.mark.parametrize("act", ["stat", "read_bytes"])
def test_a_file_that_may_not_be_read_is_no_bug_of_a_trial(small_corpora, monkeypatch, act):
    original = getattr(Path, act)

    def refuse(path, **named):
        if path.name == "ptb.valid.txt":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return original(path, **named)

    monkeypatch.setattr(Path, act, refuse)
    words = r"ptb.valid.txt cannot be read: Permission denied. Give the user"
    with pytest.raises(CorpusMismatchError, match=words) as told:
        treebank.CORPUS.read("ptb.valid.txt", small_corpora)
    assert is_of_the_node(told.value)


@pytest.mark.data
def test_the_penn_treebank_is_found_under_the_data_root(data_root):
    PtbChars.check_corpus(PtbCharsConfig(), data_root)
