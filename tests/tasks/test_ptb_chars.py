from math import log

import numpy as np
import pytest
import torch

from eigensweep.tasks.corpus import CorpusMismatchError
from eigensweep.tasks.ptb_chars import PtbChars, PtbCharsConfig, in_lanes
from eigensweep.tasks.treebank import COUNTS, LINES, SYMBOLS, read_streams

FIRST_SYMBOLS = "aer_bnkotlizcwyusfmghd-qpx\n<>Njv.'1950&$324867#\\/*"
PUBLISHED = [  # reading, lanes, evaluation lanes, bptt: pieces and last piece of each split
    ("raw", 32, 32, 50, {"train": (3189, 24), "valid": (250, 42), "test": (282, 9)}),
    ("tokens", 128, 10, 150, {"train": (262, 48), "valid": (263, 3), "test": (295, 141)}),
    ("tokens", 128, 10, 300, {"train": (131, 198), "valid": (132, 3), "test": (148, 141)}),
]


def settings(reading, lanes, eval_lanes, bptt):
    return PtbCharsConfig(reading=reading, batch_size=lanes, eval_batch_size=eval_lanes, bptt=bptt)


class TestPieces:
    """On a small text, so that it runs everywhere."""

    @pytest.fixture
    def task(self, small_corpora):
        return PtbChars(PtbCharsConfig(batch_size=4, eval_batch_size=2, bptt=9), small_corpora)

    def epoch(self, task, number=0):
        steps = task.config.steps_per_epoch
        return [task.train_batch(number * steps + i, seed=0) for i in range(steps)]

    def test_together_they_are_the_text_lane_after_lane(self, task):
        text = read_streams(task.data_root, "tokens")["train"]
        rows = len(text) // 4
        x = torch.cat([batch.x for batch in self.epoch(task)])
        y = torch.cat([batch.y for batch in self.epoch(task)])
        lanes = text[: 4 * rows].reshape(4, rows)
        np.testing.assert_array_equal(x.T, lanes[:, :-1])
        np.testing.assert_array_equal(y.T, lanes[:, 1:])

    def test_all_are_bptt_long_but_a_shorter_last_one(self, task):
        *full, last = [batch.x.shape[0] for batch in self.epoch(task)]
        assert set(full) == {9}
        assert 0 < last < 9

    @pytest.mark.parametrize("source", ["train", "valid"])
    def test_the_state_starts_anew_in_a_passs_first_piece_only(self, task, source):
        passes = self.epoch(task, 1) if source == "train" else list(task.evaluation("valid"))
        starts = [batch.starts for batch in passes]
        assert {s.dtype for s in starts} == {torch.bool}
        assert [s.shape for s in starts] == [batch.x.shape[1:] for batch in passes]
        assert [bool(s.all()) for s in starts] == [True] + [False] * (len(starts) - 1)
        assert [bool(s.any()) for s in starts] == [True] + [False] * (len(starts) - 1)

    def test_a_second_epoch_repeats_the_first_whatever_the_seed(self, task):
        steps = task.config.steps_per_epoch
        for step in range(steps):
            one, other = task.train_batch(step, seed=1), task.train_batch(step + steps, seed=2)
            assert torch.equal(one.x, other.x)

    def test_bits_per_character_are_nats_over_ln_2(self, task):
        batch = task.train_batch(0, 0)
        scores = task.scores(torch.zeros(*batch.x.shape, 50), batch)
        nats, bits = (float(t) / n for t, n in list(scores.values())[:2])
        assert nats == pytest.approx(log(50))
        assert bits == pytest.approx(np.log2(50))

    def test_raw_keeps_every_character_of_the_file(self, small_corpora):
        sizes = {s: len(text) for s, text in read_streams(small_corpora, "raw").items()}
        assert sizes == {s: (small_corpora / "ptb" / f"ptb.{s}.txt").stat().st_size for s in sizes}


class TestCharacterFiles:
    @pytest.mark.parametrize("reading", ["raw", "tokens", "sentences"])
    def test_where_word_files_are_missing_they_give_the_same_text(
        self, small_corpora, tmp_path, reading
    ):
        expected = read_streams(small_corpora, reading)
        other = tmp_path / "other"
        (other / "ptb").mkdir(parents=True)
        for split in expected:
            words = (small_corpora / "ptb" / f"ptb.{split}.txt").read_text()
            lines = [" ".join(line.strip().replace(" ", "_")) for line in words.splitlines()]
            (other / "ptb" / f"ptb.char.{split}.txt").write_text("\n".join([*lines, " "]))
        PtbChars.check_corpus(PtbCharsConfig(), other)
        for split, stream in read_streams(other, reading).items():
            np.testing.assert_array_equal(stream, expected[split])

    def test_one_that_is_another_text_is_refused(self, small_corpora):
        (small_corpora / "ptb" / "ptb.test.txt").unlink()
        (small_corpora / "ptb" / "ptb.char.test.txt").write_text("a _ c a t\n ")
        with pytest.raises(CorpusMismatchError, match=r"ptb.char.test.txt holds 8 bytes; expected"):
            read_streams(small_corpora, "raw")

    def test_nothing_is_taken_from_them_while_word_files_are_there(self, small_corpora):
        (small_corpora / "ptb" / "ptb.char.test.txt").write_text("a _ c a t\n ")
        PtbChars.check_corpus(PtbCharsConfig(), small_corpora)
        assert len(read_streams(small_corpora, "raw")["test"]) == 27


@pytest.mark.parametrize(("reading", "lanes", "eval_lanes", "bptt", "pieces"), PUBLISHED)
def test_steps_per_epoch_are_published_ones_without_the_corpus(
    reading, lanes, eval_lanes, bptt, pieces
):
    config = settings(reading, lanes, eval_lanes, bptt)
    config.check()
    assert config.steps_per_epoch == config.default_evaluate_every == pieces["train"][0]


@pytest.mark.data
class TestPennTreebank:
    @pytest.mark.parametrize("reading", ["raw", "tokens"])
    def test_the_counts_are_the_corpus_s(self, data_root, reading):
        streams = read_streams(data_root, reading)
        assert {split: len(stream) for split, stream in streams.items()} == COUNTS[reading]
        kinds = {split: len(np.unique(stream)) for split, stream in streams.items()}
        assert (kinds["train"], kinds["test"]) == (SYMBOLS[reading], 48)

    def test_symbols_are_numbered_by_first_appearance(self, data_root):
        tokens, raw = (read_streams(data_root, reading) for reading in ("tokens", "raw"))
        ids = {symbol: i for i, symbol in enumerate(FIRST_SYMBOLS)}
        beginning = "aer_banknote_berlitz_calloway_centrust"
        assert tokens["train"][: len(beginning)].tolist() == [ids[s] for s in beginning]
        text = (data_root / "ptb" / "ptb.test.txt").read_text().replace(" \n ", "\n").strip()
        test = [ids[s] for s in text.replace(" ", "_")]
        assert tokens["test"][: len(test)].tolist() == test
        assert raw["train"][:12].tolist() == [0, 1, 2, 3, 0, 4, 1, 5, 6, 5, 7, 8]

    def test_tokens_are_the_character_files_that_nnrnn_reads(self, data_root):
        path = data_root / "ptb" / "ptb.char.valid.txt"
        if not path.exists():
            pytest.skip("the character files are not there")
        ids = {symbol: i for i, symbol in enumerate(FIRST_SYMBOLS)} | {"<eos>": 26}
        with path.open() as lines:
            expected = [ids[token] for line in lines for token in [*line.split(), "<eos>"]]
        assert read_streams(data_root, "tokens")["valid"].tolist() == expected

    @pytest.mark.parametrize(("reading", "lanes", "eval_lanes", "bptt", "pieces"), PUBLISHED)
    def test_pieces_are_the_published_ones(
        self, data_root, reading, lanes, eval_lanes, bptt, pieces
    ):
        task = PtbChars(settings(reading, lanes, eval_lanes, bptt), data_root)
        steps = task.config.steps_per_epoch
        assert (steps, task.train_batch(steps - 1, 0).x.shape[0]) == pieces["train"]
        for split in ("valid", "test"):
            batches = list(task.evaluation(split))
            assert (len(batches), batches[-1].x.shape[0]) == pieces[split]

    @pytest.mark.parametrize(
        ("reading", "test_bits", "test_share"),
        [("raw", 4.315, 0.1832), ("tokens", 4.346, 0.1693)],
    )
    def test_the_baselines_are_what_training_frequencies_score(
        self, data_root, reading, test_bits, test_share
    ):
        streams, config = read_streams(data_root, reading), PtbCharsConfig(reading=reading)
        train, valid, test = (
            np.bincount(streams[split], minlength=50) / len(streams[split])
            for split in ("train", "valid", "test")
        )
        bits = -(valid @ np.log2(train))
        assert config.baseline("bits_per_char") == pytest.approx(bits, abs=1e-6)
        assert config.baseline() == pytest.approx(bits * log(2), abs=1e-6)
        assert config.baseline("accuracy") == pytest.approx(valid[train.argmax()], abs=1e-6)
        assert -(test @ np.log2(train)) == pytest.approx(test_bits, abs=5e-4)
        assert test[train.argmax()] == pytest.approx(test_share, abs=5e-5)
        known = config.baselines_on("test")
        assert known["bits_per_char"] == pytest.approx(-(test @ np.log2(train)), abs=1e-6)
        assert known["accuracy"] == pytest.approx(test[train.argmax()], abs=1e-6)

    def test_a_forgetting_predictor_scores_the_baseline(self, data_root):
        config = PtbCharsConfig()
        task = PtbChars(config, data_root)
        logits = torch.from_numpy(
            np.log(np.bincount(read_streams(data_root, "tokens")["train"]))
        ).float()
        totals = {metric.name: [0.0, 0] for metric in config.metrics}
        for batch in task.evaluation("valid"):
            scores = task.scores(logits.expand(*batch.x.shape, 50), batch)
            for name, (total, count) in scores.items():
                totals[name][0] += float(total)
                totals[name][1] += count
        for name, (total, count) in totals.items():
            assert total / count == pytest.approx(config.baseline(name), rel=1e-3)

    def test_the_lanes_of_the_training_text_are_stretches_of_it(self, data_root):
        stream = read_streams(data_root, "raw")["train"]
        lanes = in_lanes(stream, 32)
        assert lanes.shape == (159_425, 32)
        np.testing.assert_array_equal(lanes[:1000, 5], stream[5 * 159_425 :][:1000])

    @pytest.mark.parametrize("reading", ["raw", "sentences"])
    def test_the_character_files_are_the_same_text(self, data_root, tmp_path, reading):
        (tmp_path / "ptb").mkdir()
        for split in LINES:
            path = data_root / "ptb" / f"ptb.char.{split}.txt"
            if not path.exists():
                pytest.skip("the character files are not there")
            (tmp_path / "ptb" / path.name).symlink_to(path)
        for split, stream in read_streams(tmp_path, reading).items():
            np.testing.assert_array_equal(stream, read_streams(data_root, reading)[split])
