"""Frames of speech: tensors, losses, baselines, and the way back to a waveform."""

import time

import numpy as np
import pytest
import torch
from helpers.recordings import put_folder, riff, triangle, voices

from eigensweep.search_spaces.checks.checks import check_spec
from eigensweep.search_spaces.errors import UnknownMetricError
from eigensweep.search_spaces.spec import ExperimentSpec
from eigensweep.tasks import speech_frames, speech_scores
from eigensweep.tasks.base import Shapes
from eigensweep.tasks.spectra import (
    log_magnitudes,
    replace_magnitudes,
    spectrum,
    to_int16,
    waveform,
)
from eigensweep.tasks.speech_frames import FSDD_BASELINE, SpeechFrames, SpeechFramesConfig
from eigensweep.training.evaluation import evaluate


@pytest.fixture
def speech(tmp_path):
    """Return a function that builds the task on the folder `voices`."""
    digest = voices(tmp_path)

    def build(**fields):
        fields = {"corpus": "voices", "digest": digest, "batch_size": 4, **fields}
        return SpeechFrames(SpeechFramesConfig(**fields), tmp_path)

    return build


def frames_by_hand(samples):
    """10 log10(1e-5 + |X|²) by the definition of the transform, one frame and bin at a time."""
    n = np.arange(256)
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * n / 256)
    filled = list(samples / 32_768) + [0.0] * (-len(samples) % 128)
    wave = np.array([0.0] * 256 + filled + [0.0] * 256)
    rows = []
    for start in range(0, len(wave) - 255, 128):
        piece = wave[start : start + 256] * hann
        X = [np.sum(piece * np.exp(-2j * np.pi * k * n / 256)) for k in range(129)]
        rows.append([10 * np.log10(1e-5 + abs(value) ** 2) for value in X])
    return np.array(rows)


class Repeating(torch.nn.Module):
    """Answers with the frame that it sees."""

    shapes = Shapes(129, "values", 129, "all")

    def prepare(self):
        return lambda x, state: (x, None)

    def fresh(self, state):
        return state


class TestSpectra:
    @pytest.mark.parametrize("n", [1, 127, 128, 129, 700])
    def test_frames_are_those_of_the_definition(self, n):
        samples = triangle(n)
        expected = frames_by_hand(samples)
        assert len(expected) == -(-n // 128) + 3
        found = log_magnitudes(spectrum(samples))
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)

    def test_the_first_and_the_last_frame_are_silent(self):
        found = log_magnitudes(spectrum(np.full(500, 32_767, np.int16)))
        assert (found[[0, -1]] == -50).all()
        assert (found[1:-1].max(axis=1) > 0).all()

    @pytest.mark.parametrize("n", [1, 128, 1_000])
    def test_the_inverse_gives_the_recording_back(self, n):
        samples = triangle(n)
        wave = waveform(spectrum(samples))
        assert len(wave) == n + -n % 128
        np.testing.assert_allclose(wave[:n], samples / 32_768, rtol=0, atol=1e-14)
        np.testing.assert_allclose(wave[n:], 0, rtol=0, atol=1e-14)

    def test_the_inverse_divides_by_the_squared_windows(self):
        frames = np.fft.rfft(np.random.default_rng(0).standard_normal((6, 256)))
        hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(256) / 256)
        sums, weights = np.zeros(7 * 128), np.zeros(7 * 128)
        for i, frame in enumerate(np.fft.irfft(frames)):
            for k in range(256):
                sums[128 * i + k] += hann[k] * frame[k]
                weights[128 * i + k] += hann[k] ** 2
        expected = [sums[k] / weights[k] for k in range(256, 7 * 128 - 256)]
        np.testing.assert_allclose(waveform(frames), expected, rtol=1e-13)

    def test_a_perfect_prediction_is_heard_as_the_recording_itself(self):
        true = spectrum(triangle(2_000))
        told = 10 * np.log10(np.abs(true[1:]) ** 2 + 1e-300)
        np.testing.assert_allclose(
            waveform(replace_magnitudes(true, told)), waveform(true), atol=1e-12
        )

    def test_a_prediction_is_the_next_frames_magnitude_alone(self):
        true = np.fft.rfft(np.random.default_rng(0).standard_normal((8, 256)))
        told = np.random.default_rng(1).uniform(-50, 20, (len(true) + 3, 129))
        said = replace_magnitudes(true, told)
        assert (said[0] == true[0]).all()
        for t in range(len(true) - 1):
            np.testing.assert_allclose(np.abs(said[t + 1]), 10 ** (told[t] / 20), rtol=1e-12)
            np.testing.assert_allclose(
                said[t + 1], np.abs(said[t + 1]) * np.exp(1j * np.angle(true[t + 1])), rtol=1e-12
            )

    def test_only_what_is_too_loud_for_a_file_is_scaled(self):
        assert to_int16(np.array([0.25, -0.99999])).tolist() == [8_191, -32_766]
        assert to_int16(np.array([0.25, -2.0, 0.0])).tolist() == [4_095, -32_767, 0]


class TestTensors:
    def test_an_entry_of_a_batch_is_a_recordings_frame_or_silence(self, speech, tmp_path):
        task = speech()
        recordings = [log_magnitudes(spectrum(s)) for s in _samples(tmp_path, "valid")]
        longest = max(map(len, recordings))
        (batch,) = task.evaluation("valid")
        order = sorted(range(3), key=lambda row: len(recordings[row]))
        assert batch.x.shape == batch.y.shape == (longest, 3, 129)
        for column, row in enumerate(order):
            for t in range(longest):
                here, there = (
                    recordings[row][place] if place < len(recordings[row]) else np.full(129, -50)
                    for place in (t, t + 1)
                )
                assert np.array_equal(batch.x[t, column], here)
                assert np.array_equal(batch.y[t, column], there)
                assert bool(batch.mask[t, column]) == (t < len(recordings[row]))
        assert batch.rows is None

    def test_the_other_mask_leaves_out_silence_after_a_recording(self, speech):
        (all_of_it,) = speech().evaluation("valid")
        (less,) = speech(mask="lengths-1").evaluation("valid")
        assert (all_of_it.mask.sum(0) - less.mask.sum(0)).flatten().tolist() == [1, 1, 1]
        assert torch.equal(all_of_it.y, less.y)

    def test_test_batches_say_which_recordings_they_have(self, speech):
        (batch,) = speech().evaluation("test")
        assert batch.rows.tolist() == [1, 0, 2]

    def test_an_epoch_has_each_recording_once_but_those_left_over(self, speech):
        task = speech()
        for epoch in range(3):
            batches = [task.train_batch(2 * epoch + place, seed=5) for place in range(2)]
            lengths = [int(n) for batch in batches for n in batch.mask.sum(0).flatten()]
            assert len(lengths) == len(set(lengths)) == 8

    def test_a_batch_ends_with_its_longest_and_counts_all_padding(self, speech):
        task = speech()
        batches = [task.train_batch(step, seed=0) for step in range(10)]
        assert {batch.padded_to for batch in batches} == {18}  # 1,900 samples
        assert len({len(batch.x) for batch in batches}) > 1
        for batch in batches:
            assert len(batch.x) == int(batch.mask.sum(0).max())

    def test_a_budget_in_epochs_needs_a_corpus_that_is_known(self):
        config = SpeechFramesConfig(corpus="voices", digest="0" * 64)
        with pytest.raises(ValueError, match=r"'voices' is not known.*'training.steps'"):
            _ = config.steps_per_epoch
        assert SpeechFramesConfig().steps_per_epoch == 132
        assert SpeechFramesConfig(corpus="fsdd").steps_per_epoch == 21

    def test_a_batch_larger_than_the_corpus_is_refused(self, speech, tmp_path):
        task = speech(batch_size=10)
        for refuse in (
            lambda: SpeechFrames.check_corpus(task.config, tmp_path),
            lambda: task.train_batch(0, 0),
        ):
            with pytest.raises(ValueError, match="voices needs 'batch_size' of at most 9"):
                refuse()

    def test_padding_to_less_than_the_longest_recording_is_refused(self, speech):
        task = speech(pad_frames=30)
        for split in ("valid", "test"):  # so that no training ends in it
            with pytest.raises(ValueError, match=r"at least 36, .* and test; it is 30"):
                list(task.evaluation(split))


def _samples(root, part):
    from eigensweep.tasks.speech_corpora import find_recordings, read_recordings

    digest = voices(root)
    return read_recordings(find_recordings("voices", digest, root))[part]


class TestLoss:
    @pytest.mark.parametrize("mask", ["lengths", "lengths-1"])
    @pytest.mark.parametrize("normalisation", ["padded_mean", "valid_mean", "batch_padded_mean"])
    def test_it_is_the_sum_over_scored_frames_as_in_the_paper(self, speech, normalisation, mask):
        task = speech(normalisation=normalisation, mask=mask)
        batch = task.train_batch(0, seed=2)
        steps, B, _ = batch.x.shape
        logits = torch.randn(batch.y.shape, generator=torch.Generator().manual_seed(0)).double()
        total, scored = 0.0, 0
        for b in range(B):
            length = 1 + max(t for t in range(steps) if (batch.x[t, b] > -50).any() or t == 0) + 1
            for t in range(length if mask == "lengths" else length - 1):
                total += float(((logits[t, b] - batch.y[t, b].double()) ** 2).sum())
                scored += 1
        counts = {"padded_mean": B * 18, "valid_mean": scored, "batch_padded_mean": B * steps}
        expected = total / (counts[normalisation] * 129)
        assert float(task.loss(logits, batch)) == pytest.approx(expected, rel=1e-12)

    def test_what_is_predicted_past_a_recording_changes_nothing(self, speech):
        task = speech()
        batch = task.train_batch(0, seed=2)
        logits = torch.zeros_like(batch.y, requires_grad=True)
        wild = torch.where(batch.mask, 0.0, torch.inf).expand_as(batch.y).clone().requires_grad_()
        losses = [task.loss(answers, batch) for answers in (logits, wild)]
        for loss in losses:
            loss.backward()
        assert losses[0] == losses[1]
        assert torch.equal(logits.grad, wild.grad)

    def test_padding_for_evaluation_leaves_the_mean_alone(self, speech):
        scores = [evaluate(Repeating(), speech(pad_frames=n), "valid") for n in (None, 55)]
        assert scores[0]["mse"] == scores[1]["mse"]
        assert scores[0]["padded_mse"] == pytest.approx(scores[1]["padded_mse"] * 55 / 11)

    def test_the_first_metric_is_the_one_that_is_trained(self, speech):
        firsts = {
            normalisation: speech(normalisation=normalisation).config.objective_metric().name
            for normalisation in ("padded_mean", "valid_mean", "batch_padded_mean")
        }
        assert firsts == {
            "padded_mean": "padded_mse",
            "valid_mean": "mse",
            "batch_padded_mean": "batch_padded_mse",
        }

    def test_no_search_ranks_by_what_only_test_data_tells(self):
        with pytest.raises(
            ValueError, match=r"'stoi' on test data alone; rank by .*padded_mse, mse"
        ):
            SpeechFramesConfig().objective_metric("stoi")

    def test_a_spec_that_ranks_by_it_is_refused_when_posted(self, speech):
        task = speech()
        spec = ExperimentSpec.model_validate(
            {
                "task": task.config.model_dump(),
                "model": {"name": "lstm", "hidden_size": 4},
                "training": {"steps": 10},
                "objective": {"metric": "stoi"},
            }
        )
        with pytest.raises(UnknownMetricError, match="scores 'stoi' on test data alone"):
            check_spec(spec, task.data_root)


class TestBaseline:
    @pytest.mark.parametrize("mask", ["lengths", "lengths-1"])
    def test_it_is_what_the_mean_of_the_training_targets_scores(self, speech, mask):
        task = speech(mask=mask)
        targets = []
        for batch in (task.train_batch(0, 0), *task.evaluation("valid")):
            columns = batch.y.double().numpy(), batch.mask[..., 0].numpy()
            targets.append(columns[0][columns[1]])
        every = [
            log_magnitudes(spectrum(s)).astype(float) for s in _samples(task.data_root, "train")
        ]
        shifted = [np.vstack([f[1:], np.full((int(mask == "lengths"), 129), -50)]) for f in every]
        mean = np.concatenate(shifted).mean(0)
        errors = (targets[1] - mean) ** 2
        assert task.baselines["mse"] == pytest.approx(errors.mean(), rel=1e-12)
        assert task.baselines["padded_mse"] == pytest.approx(errors.sum() / (3 * 11 * 129))

    def test_of_a_folder_it_is_not_known_before_it_is_read(self):
        with pytest.raises(ValueError, match="baseline of 'padded_mse' does not follow"):
            SpeechFramesConfig().baseline()

    @pytest.mark.data
    @pytest.mark.parametrize("mask", FSDD_BASELINE["valid"])
    def test_of_the_spoken_digits_it_is_written_down(self, data_root, mask):
        config = SpeechFramesConfig(corpus="fsdd", mask=mask)
        parts = speech_frames.read_speech("fsdd", None, data_root).frames
        for split, longest in (("valid", 86), ("test", 75)):
            found = parts[split].mean_error(mask, parts["train"].mean_target(mask))
            scored = parts[split].scored_frames(mask) / (300 * longest)
            assert config.baselines_on(split) == {
                "mse": pytest.approx(found, abs=1e-6),
                "padded_mse": pytest.approx(found * scored, abs=1e-6),
            }
        assert config.baselines == config.baselines_on("valid")


class TestWhatIsHeard:
    def test_scores_are_means_over_the_recordings_that_have_one(self, speech, monkeypatch):
        def scores(reference, estimate):
            short = len(reference) < 200
            return {"seg_snr": 1.0 * len(reference), "stoi": None if short else 0.5}

        monkeypatch.setattr(speech_frames, "speech_scores", scores)
        found = evaluate(Repeating(), speech(), "test")
        assert found["seg_snr"] == pytest.approx((1_024 + 128 + 4_224) / 3)
        assert (found["stoi"], found["stoi_missing"]) == (0.5, pytest.approx(1 / 3))
        assert found["seg_snr_missing"] == 0
        assert "pesq_raw" not in found

    def test_a_score_that_no_recording_has_is_missing_and_counted(self, speech, monkeypatch):
        monkeypatch.setattr(speech_frames, "speech_scores", lambda *_: {"stoi": None})
        found = evaluate(Repeating(), speech(), "test")
        assert set(found) == {"padded_mse", "mse", "stoi_missing"}
        assert found["stoi_missing"] == 1

    def test_the_predicted_recording_is_scored_against_true_frames(
        self, speech, monkeypatch, tmp_path
    ):
        heard = []
        monkeypatch.setattr(
            speech_frames, "speech_scores", lambda *pair: heard.append(pair) or {"seg_snr": 0.0}
        )
        evaluate(Repeating(), speech(), "test")
        for row, (reference, estimate) in zip((1, 0, 2), heard, strict=True):
            true = spectrum(_samples(tmp_path, "test")[row])
            assert np.array_equal(reference, to_int16(waveform(true)))
            said = true.copy()
            seen = log_magnitudes(true).astype(float)
            for t in range(len(true) - 1):
                said[t + 1] = 10 ** (seen[t] / 20) * np.exp(1j * np.angle(true[t + 1]))
            assert np.array_equal(estimate, to_int16(waveform(said)))

    def test_a_prediction_that_is_not_finite_has_no_scores(self, speech):
        task = speech()
        (batch,) = task.evaluation("test")
        logits = batch.x.clone()
        logits[0, 0] = torch.nan
        logits[1, 1, 3] = 1e5
        _, known = task.scores(logits, batch)["seg_snr"]
        missing, of = task.scores(logits, batch)["seg_snr_missing"]
        assert (known, int(missing), of) == (1, 2, 3)

    def test_validation_data_is_not_listened_to(self, speech, monkeypatch):
        def refuse(*_):
            raise AssertionError("this is slow")

        monkeypatch.setattr(speech_frames, "speech_scores", refuse)
        assert set(evaluate(Repeating(), speech(), "valid")) == {"padded_mse", "mse"}

    def test_without_packages_scores_are_missing_and_not_zero(self, speech, monkeypatch):
        monkeypatch.setattr(speech_scores, "package", lambda name: None)
        found = evaluate(Repeating(), speech(), "test")
        assert {"seg_snr", "seg_snr_parabola", "seg_snr_missing"} <= set(found)
        assert not [name for name in found if "stoi" in name or "pesq" in name]


def test_the_corpus_is_read_once_in_a_process(speech, monkeypatch):
    task = speech()
    task.train_batch(0, 0)
    for path in task.data_root.rglob("*.wav"):
        path.unlink()
    task.train_batch(1, 0)
    assert len(list(SpeechFrames(task.config, task.data_root).evaluation("test"))) == 1


def test_a_digest_belongs_to_a_folder_alone():
    with pytest.raises(ValueError, match="takes 'digest' for a folder with a manifest only"):
        SpeechFramesConfig(corpus="timit", digest="0" * 64).check()


@pytest.mark.data
class TestSpokenDigits:
    def test_the_counts_of_configs_are_those_of_the_recordings(self, data_root):
        parts = speech_frames.read_speech("fsdd", None, data_root).frames
        frames = {part: int(each.lengths.sum()) for part, each in parts.items()}
        assert frames == {"train": 18_534, "valid": 9_297, "test": 9_128}
        assert {p: each.longest for p, each in parts.items()} == {
            "train": 146,
            "valid": 86,
            "test": 75,
        }
        assert SpeechFramesConfig(corpus="fsdd").sequence_length == 146

    def test_they_are_read_and_a_batch_is_drawn_quickly(self, data_root):
        speech_frames.read_speech.cache_clear()
        start = time.process_time()
        task = SpeechFrames(SpeechFramesConfig(corpus="fsdd"), data_root)
        task.train_batch(0, seed=0)
        assert time.process_time() - start < 3

        def seconds(step):
            start = time.process_time()
            task.train_batch(step, seed=0)
            return time.process_time() - start

        assert min(seconds(step) for step in range(20)) < 0.002

    @pytest.mark.slow
    def test_of_the_short_ones_some_scores_are_missing(self, data_root):
        pytest.importorskip("pystoi")
        pytest.importorskip("pesq")
        found = evaluate(
            Repeating(), SpeechFrames(SpeechFramesConfig(corpus="fsdd"), data_root), "test"
        )
        assert round(300 * found["stoi_missing"]) == 165
        assert 20 <= round(300 * found["pesq_missing"]) <= 30
        assert found["mse"] == pytest.approx(57.1477, abs=1e-3)
        assert 0 < found["seg_snr"] < 20
        assert 0.2 < found["seg_snr"] - found["seg_snr_parabola"] < 0.6

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("model", "optimizer"),
        [
            ({"name": "lstm", "hidden_size": 64}, {"lr": 1e-2, "clip_norm": 1.0}),
            (
                {"name": "scornn", "hidden_size": 128, "negative_fraction": 0.1},
                {"lr": 3e-3, "lr_orth": 3e-4},
            ),
        ],
        ids=["lstm", "scornn"],
    )
    def test_a_small_network_learns_more_than_the_mean_frame(self, data_root, model, optimizer):
        from eigensweep.training.notebook import train

        found = train(
            {
                "task": {"name": "speech_frames", "corpus": "fsdd"},
                "model": model,
                "optimizer": {"name": "adam", **optimizer},
                "training": {"steps": 420, "evaluate_every": 105},
            },
            data_root=data_root,
            device="cpu",
        )
        assert found.value < found.baseline
        assert {"mse", "padded_mse", "seg_snr", "seg_snr_parabola"} <= set(found.test)


@pytest.mark.parametrize("is_told", [True, False])
def test_a_short_training_ends_with_scores_of_test_recordings(tmp_path, monkeypatch, is_told):
    from eigensweep.training.notebook import train

    if not is_told:
        monkeypatch.setenv("EIGENSWEEP_DATA_ROOT", str(tmp_path))
    parts = {
        part: {f"{part}{i}.wav": riff(triangle(3_400 + 50 * i, period)) for i in range(4)}
        for part, period in (("train", 31), ("valid", 37), ("test", 41))
    }
    digest = put_folder(tmp_path / "tones", parts)
    found = train(
        {
            "task": {"name": "speech_frames", "corpus": "tones", "digest": digest, "batch_size": 2},
            "model": {"name": "lstm", "hidden_size": 8},
            "training": {"steps": 4, "evaluate_every": 2},
        },
        data_root=tmp_path if is_told else None,
        device="cpu",
    )
    assert found.outcome == "completed"
    assert found.baseline > 0
    assert {"padded_mse", "mse", "seg_snr", "seg_snr_missing"} <= set(found.test)
    assert set(found.summary.valid) == {"padded_mse", "mse"}
