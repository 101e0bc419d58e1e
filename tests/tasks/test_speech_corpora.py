"""Which recordings a corpus has, and what is said when it is not the one expected."""

import errno
import hashlib
import os
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from helpers.recordings import put_folder, riff, sphere, triangle, voices

from eigensweep.tasks import speech_corpora
from eigensweep.tasks.corpus import CorpusMismatchError, CorpusMissingError
from eigensweep.tasks.speech_corpora import (
    TEST_SPEAKERS,
    VALID_SPEAKERS,
    find_recordings,
    read_recordings,
)
from eigensweep.tasks.speech_files import at_half_rate
from eigensweep.tasks.speech_frames import SpeechFrames, SpeechFramesConfig


@pytest.fixture
def timit(tmp_path, monkeypatch):
    """A TIMIT of two training speakers, and one in each of the other parts."""
    monkeypatch.setitem(speech_corpora.COUNTS, "timit", {"train": 4, "valid": 2, "test": 2})
    said = {
        "TRAIN/DR1/MSAS0": ["SA1", "SX10", "SI900"],
        "TRAIN/DR8/FCJF0": ["SA2", "SX307", "SI2"],
        "TEST/DR2/FAKS0": ["SA1", "SI943", "SX43"],
        "TEST/DR3/MDAB0": ["SX9", "SX319"],
        "TEST/DR3/FABC0": ["SX9"],
    }
    for number, (folder, sentences) in enumerate(said.items()):
        path = tmp_path / "TIMIT" / folder
        path.mkdir(parents=True)
        for sentence in sentences:
            (path / f"{sentence}.WAV").write_bytes(sphere(triangle(400 + number)))
            (path / f"{sentence}.TXT").write_text("0 400 Words.")
    return tmp_path


def names(listed):
    return {
        part: [f"{path.parent.name}/{path.name}" for path in paths]
        for part, paths in listed.paths.items()
    }


class TestTimit:
    def test_the_parts_are_made_of_the_published_speakers(self):
        assert (len(VALID_SPEAKERS), len(TEST_SPEAKERS)) == (50, 24)
        assert not VALID_SPEAKERS & TEST_SPEAKERS

    def test_sentences_are_sorted_and_the_two_shared_ones_left_out(self, timit):
        assert names(find_recordings("timit", None, timit)) == {
            "train": ["FCJF0/SI2.WAV", "FCJF0/SX307.WAV", "MSAS0/SI900.WAV", "MSAS0/SX10.WAV"],
            "valid": ["FAKS0/SI943.WAV", "FAKS0/SX43.WAV"],
            "test": ["MDAB0/SX319.WAV", "MDAB0/SX9.WAV"],
        }

    def test_they_are_brought_to_8_khz(self, timit):
        found = read_recordings(find_recordings("timit", None, timit))
        assert np.array_equal(found["test"][0], at_half_rate(triangle(403)))

    def test_names_may_be_in_lower_case_and_lie_a_folder_deeper(self, timit):
        upper = read_recordings(find_recordings("timit", None, timit))
        for path in sorted(timit.rglob("*"), key=lambda p: -len(p.parts)):
            path.rename(path.with_name(path.name.lower()))
        (timit / "timit").rename(timit / "inner")
        (timit / "timit").mkdir()
        (timit / "inner").rename(timit / "timit" / "timit")
        lower = read_recordings(find_recordings("timit", None, timit))
        for part in upper:
            assert all(map(np.array_equal, upper[part], lower[part]))

    def test_a_sentence_in_both_forms_is_taken_once(self, timit):
        folder = timit / "TIMIT" / "TEST" / "DR3" / "MDAB0"
        (folder / "SX9.WAV.wav").write_bytes(riff(triangle(403), 16_000))
        assert names(find_recordings("timit", None, timit))["test"] == [
            "MDAB0/SX319.WAV",
            "MDAB0/SX9.WAV",
        ]

    def test_a_sentence_too_few_is_told(self, timit):
        (timit / "TIMIT" / "TEST" / "DR2" / "FAKS0" / "SX43.WAV").unlink()
        with pytest.raises(
            CorpusMismatchError, match=r"has 1 sentences to validate on; expected 2"
        ):
            find_recordings("timit", None, timit)

    def test_a_file_that_cannot_be_read_is_named(self, timit):
        path = timit / "TIMIT" / "TRAIN" / "DR1" / "MSAS0" / "SX10.WAV"
        path.write_bytes(sphere(triangle(400), sample_coding="-s7 shorten"))
        with pytest.raises(CorpusMismatchError, match=r"SX10.WAV is coded as 'shorten'"):
            read_recordings(find_recordings("timit", None, timit))

    def test_where_it_is_not_a_person_learns_where_to_get_it(self, tmp_path):
        with pytest.raises(CorpusMissingError, match=r"no folder TRAIN in .*timit\. .*LDC93S1"):
            SpeechFrames.check_corpus(SpeechFramesConfig(), tmp_path)
        (tmp_path / "timit" / "train").mkdir(parents=True)
        with pytest.raises(CorpusMissingError, match="no folder TEST in"):
            SpeechFrames.check_corpus(SpeechFramesConfig(), tmp_path)

    def test_an_empty_tree_is_no_corpus(self, tmp_path):
        for part in ("train", "test"):
            (tmp_path / "timit" / part).mkdir(parents=True)
        with pytest.raises(
            CorpusMismatchError, match="has 0 sentences to train on; expected 3,696"
        ):
            SpeechFrames.check_corpus(SpeechFramesConfig(), tmp_path)

    def test_a_data_root_that_is_not_set_is_told_with_its_setting(self):
        with pytest.raises(CorpusMissingError, match="EIGENSWEEP_DATA_ROOT"):
            SpeechFrames.check_corpus(SpeechFramesConfig(), None)


class TestAFolderWithAManifest:
    def test_it_has_what_its_manifest_lists_in_that_order(self, tmp_path):
        digest = voices(tmp_path)
        found = read_recordings(find_recordings("voices", digest, tmp_path))
        assert {part: len(each) for part, each in found.items()} == {
            "train": 9,
            "valid": 3,
            "test": 3,
        }
        assert np.array_equal(found["valid"][1], triangle(1_000, 32))
        assert np.array_equal(found["valid"][0], at_half_rate(triangle(1_400, 51)))

    def test_without_a_digest_the_one_to_write_is_told(self, tmp_path):
        digest = voices(tmp_path)
        with pytest.raises(CorpusMismatchError, match=rf"must be {digest}, .*; none is given"):
            SpeechFrames.check_corpus(SpeechFramesConfig(corpus="voices"), tmp_path)

    def test_another_list_of_recordings_is_refused_by_the_digest(self, tmp_path):
        digest = voices(tmp_path)
        manifest = tmp_path / "voices" / "manifest.txt"
        manifest.write_text("".join(manifest.read_text().splitlines(keepends=True)[1:]))
        with pytest.raises(CorpusMismatchError, match=f"; it is {digest}"):
            find_recordings("voices", digest, tmp_path)

    def test_another_recording_is_refused_by_its_own_digest(self, tmp_path):
        digest = voices(tmp_path)
        path = tmp_path / "voices" / "valid" / "1000.wav"
        path.write_bytes(riff(triangle(1_000, 33)))
        listed = find_recordings("voices", digest, tmp_path)
        with pytest.raises(CorpusMismatchError, match=r"1000.wav has SHA-256 \w{64}; expected"):
            read_recordings(listed)

    def test_a_recording_that_is_gone_is_told_without_reading_any(self, tmp_path):
        digest = voices(tmp_path)
        (tmp_path / "voices" / "test" / "900.wav").unlink()
        with pytest.raises(CorpusMissingError, match=r"line 13: there is no .*900\.wav"):
            find_recordings("voices", digest, tmp_path)

    def test_a_recording_that_vanishes_meanwhile_is_missing(self, tmp_path):
        listed = find_recordings("voices", voices(tmp_path), tmp_path)
        (tmp_path / "voices" / "test" / "900.wav").unlink()
        with pytest.raises(CorpusMissingError, match=r"no .*900\.wav any more\. a folder of"):
            read_recordings(listed)

    def test_a_folder_that_may_not_be_listed_is_told_in_words(self, tmp_path, monkeypatch):
        def refuse(path):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

        monkeypatch.setattr(Path, "iterdir", refuse)
        with pytest.raises(CorpusMismatchError, match="cannot be read: Permission denied"):
            find_recordings("timit", None, tmp_path)

    def test_a_recording_of_more_than_a_minute_is_refused(self, tmp_path):
        files = {part: {f"{part}.wav": riff(triangle(900))} for part in ("train", "valid", "test")}
        files["train"]["long.wav"] = riff(np.zeros(8_000 * 61))
        digest = put_folder(tmp_path / "long", files)
        with pytest.raises(
            CorpusMismatchError, match=r"long.wav is 61 s long; expected at most 60"
        ):
            read_recordings(find_recordings("long", digest, tmp_path))

    @pytest.mark.parametrize(
        ("line", "words"),
        [
            ("train a.wav", "line 1: expected a part, a SHA-256 and a path"),
            (f"dev {'0' * 64} a.wav", "'dev' is not one of the parts train, valid, test"),
            ("train 12 a.wav", "'12' is not a SHA-256 of 64 hex digits"),
            (f"train {'0' * 64} ../a.wav", "'../a.wav' leads out of the folder"),
            (f"train {'0' * 64} /etc/passwd", "'/etc/passwd' leads out of the folder"),
            (f"train {'0' * 64} here.wav", "lists no recording to validate on"),
            (f"train {'0' * 64} here.wav\ntest {'0' * 64} here.wav", "'here.wav' is listed twice"),
            ("", "lists no recording to train on"),
        ],
    )
    def test_a_line_that_makes_no_sense_is_told_with_its_number(self, tmp_path, line, words):
        folder = tmp_path / "mine"
        folder.mkdir()
        (folder / "here.wav").write_bytes(riff(triangle(900)))
        (folder / "manifest.txt").write_text(line)
        digest = hashlib.sha256(line.encode()).hexdigest()
        with pytest.raises(CorpusMismatchError, match=words):
            find_recordings("mine", digest, tmp_path)

    def test_a_folder_without_a_manifest_is_told_what_to_write(self, tmp_path):
        (tmp_path / "mine").mkdir()
        with pytest.raises(CorpusMissingError, match=r"no .*mine/manifest.txt; .*sha256sum"):
            find_recordings("mine", None, tmp_path)

    @pytest.mark.parametrize("name", ["../mine", "a/b", "/etc", "..", ".", "", "a\\b", "x" * 61])
    def test_a_name_never_becomes_a_path(self, name):
        with pytest.raises(ValueError, match="corpus"):
            SpeechFramesConfig(corpus=name)


class TestSpokenDigits:
    def test_a_recording_too_few_is_told_by_its_name(self, tmp_path):
        folder = tmp_path / "fsdd" / "recordings"
        folder.mkdir(parents=True)
        with pytest.raises(CorpusMissingError, match=r"lacks 600 of the 600 .* 0_george_10\.wav"):
            find_recordings("fsdd", None, tmp_path)

    def test_a_folder_that_is_not_whole_hides_none_that_is(self, tmp_path):
        spoken = product(range(10), speech_corpora.FSDD_SPEAKERS, range(20))
        wanted = [f"{digit}_{speaker}_{number}.wav" for digit, speaker, number in spoken]
        for folder, names in (("fsdd", wanted[:1]), ("speech", wanted)):
            (place := tmp_path / folder / "recordings").mkdir(parents=True)
            for name in names:
                (place / name).touch()
        found = find_recordings("fsdd", None, tmp_path)
        assert {path.parent.parent.name for each in found.paths.values() for path in each} == {
            "speech"
        }

    def test_where_they_are_not_a_person_learns_where_to_get_them(self, tmp_path):
        with pytest.raises(CorpusMissingError, match=r"no .*fsdd/recordings\. .*Jakobovski"):
            find_recordings("fsdd", None, tmp_path)

    @pytest.mark.data
    def test_the_first_twenty_of_each_are_known_by_their_digest(self, data_root):
        found = read_recordings(find_recordings("fsdd", None, data_root))
        assert {part: len(each) for part, each in found.items()} == speech_corpora.COUNTS["fsdd"]
        seconds = sum(len(samples) for each in found.values() for samples in each) / 8_000
        assert seconds == pytest.approx(524, abs=1)

    @pytest.mark.data
    def test_one_sample_changed_is_noticed(self, data_root, tmp_path):
        listed = find_recordings("fsdd", None, data_root)
        folder = tmp_path / "fsdd" / "recordings"
        folder.mkdir(parents=True)
        for paths in listed.paths.values():
            for path in paths:
                (folder / path.name).symlink_to(path)
        changed = folder / "3_theo_7.wav"
        content = bytearray(changed.read_bytes())
        content[100] ^= 1
        changed.unlink()
        changed.write_bytes(content)
        with pytest.raises(CorpusMismatchError, match=r"together have SHA-256 \w{64}; expected"):
            read_recordings(find_recordings("fsdd", None, tmp_path))
