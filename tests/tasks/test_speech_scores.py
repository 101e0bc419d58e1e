"""The scores of speech, held against loops written from their descriptions."""

import logging
from math import exp, log10

import numpy as np
import pytest
from helpers.recordings import triangle

from eigensweep.tasks import speech_scores
from eigensweep.tasks.active_speech import (
    active_level,
    active_samples,
    apply_filter,
    high_pass,
    running_maximum,
    smoother,
)
from eigensweep.tasks.speech_scores import pesq_lqo, pesq_raw, seg_snr, stoi


def speech(samples=9_000, seed=0):
    """Bursts of coloured noise between silences."""
    random = np.random.default_rng(seed)
    n = np.arange(samples)
    noise = np.convolve(random.standard_normal(samples), np.hanning(9), "same")
    bursts = (np.sin(2 * np.pi * n / 3_100) > -0.2) * (0.3 + np.sin(2 * np.pi * n / 800) ** 2)
    return np.rint(1_500 * noise * bursts).astype(np.int16)


def noisy(samples, share, seed=1):
    noise = np.random.default_rng(seed).standard_normal(len(samples))
    scale = share * np.sqrt(np.mean(samples.astype(float) ** 2))
    return np.clip(np.rint(samples + scale * noise), -32_768, 32_767).astype(np.int16)


def filter_by_hand(numerator, denominator, wave):
    out = np.zeros(len(wave))
    for i in range(len(wave)):
        for k, b in enumerate(numerator):
            if i >= k:
                out[i] += b * wave[i - k]
        for k, a in enumerate(denominator[1:], 1):
            if i >= k:
                out[i] -= a * out[i - k]
    return out


def active_by_hand(wave, rate):
    """P.56, method B, one sample at a time; its high pass is tested by itself."""
    sound = apply_filter(wave, high_pass(rate))
    g = exp(-1 / (0.03 * rate))
    first = second = 0.0
    envelope = []
    for value in sound:
        first = g * first + (1 - g) * abs(value)
        second = g * second + (1 - g) * first
        envelope.append(second)
    hold = int(np.ceil(0.2 * rate)) + 1
    m = [max(envelope[max(0, i - hold + 1) : i + 1]) for i in range(len(envelope))]
    top = 0
    while 2.0**top > max(m) ** 2:
        top -= 1
    top += 1  # 2^(top-1) <= max(m)^2 < 2^top
    energy = sum(value**2 for value in sound)
    levels, edges = [], []
    for j in range(20):
        edge = 2.0 ** (top - 1 - j)
        count = sum(value**2 >= edge for value in m) if j < 19 else len(m)
        levels.append(10 * log10(energy / count))
        edges.append(10 * log10(edge))
    gaps = [a - c - 15.9 for a, c in zip(levels, edges, strict=True)]
    j = next(j for j in range(19) if gaps[j] < 0 <= gaps[j + 1])
    share = -gaps[j] / (gaps[j + 1] - gaps[j])
    level = levels[j] + share * (levels[j + 1] - levels[j])
    return [value > 10 ** ((level - 15.9) / 20) for value in m], level


def seg_snr_by_hand(reference, estimate, fit):
    r, s = reference / 32_768, estimate / 32_768
    heard = np.concatenate([r, np.zeros(2_800)]) if fit == "linear" else r
    active, _ = active_by_hand(heard, 8_000)
    scores = []
    for segment in range((len(r) - 2) // 80):
        places = range(1 + 80 * segment, 81 + 80 * segment)
        if sum(active[i] for i in places) <= 40:
            continue
        e0, later, earlier = (sum((s[i + d] - r[i]) ** 2 for i in places) for d in (0, 1, -1))
        if fit == "parabola":
            a, b = (later + earlier) / 2 - e0, (later - earlier) / 2
            here = e0 - b * b / (4 * a) if a > 0 and abs(b) < 2 * a else e0
            e = min(here, later, earlier)
        else:
            found = []
            for d in (1, -1):
                over = sum((s[i + d] - s[i]) * (r[i] - s[i]) for i in places)
                under = sum((s[i + d] - s[i]) ** 2 for i in places)
                q = min(1.0, max(0.0, over / under)) if under > 0 else 0.0
                found.append(sum((s[i] + q * (s[i + d] - s[i]) - r[i]) ** 2 for i in places))
            e = min(found)
        energy = sum(r[i] ** 2 for i in places)
        if e == 0:
            scores.append(100.0)
        elif energy == 0:
            scores.append(-100.0)
        else:
            scores.append(10 * log10(energy / e))
    return sum(scores) / len(scores)


class TestActiveSpeech:
    def test_the_high_pass_meets_its_description(self):
        """-0.25 dB at 200 Hz, 0 dB at half the rate, five times -50 dB and never more below."""
        response = high_pass(8_000)

        def gain(hertz):
            return 20 * np.log10(np.abs(response(np.exp(-2j * np.pi * np.asarray(hertz) / 8_000))))

        assert gain([200.0])[0] == pytest.approx(-0.25, abs=1e-9)
        assert gain([4_000.0])[0] == pytest.approx(0, abs=1e-9)
        low = gain(np.linspace(0.01, 60, 6_000))
        assert low.max() == pytest.approx(-50, abs=1e-3)
        assert (np.diff(gain(np.linspace(90, 4_000, 4_000))) > -1e-9).all()
        peaks = np.flatnonzero((low[1:-1] > low[:-2]) & (low[1:-1] > low[2:]))
        np.testing.assert_allclose(low[1:-1][peaks], -50, atol=1e-3)

    def test_it_is_the_inverse_chebyshev_filter_of_scipy(self):
        signal = pytest.importorskip("scipy.signal")
        edge = 1 / np.cosh(np.arccosh(np.sqrt((10**5 - 1) / (10**0.025 - 1))) / 5)
        warped = 2 / np.pi * np.arctan(edge * np.tan(np.pi * 200 / 8_000))
        sections = signal.cheby2(5, 50, warped, "highpass", output="sos")
        wave = np.random.default_rng(0).standard_normal(5_000)
        np.testing.assert_allclose(
            apply_filter(wave, high_pass(8_000)), signal.sosfilt(sections, wave), rtol=0, atol=1e-12
        )

    def test_the_smoother_is_two_averages_one_after_the_other(self):
        wave = np.abs(np.random.default_rng(0).standard_normal(3_000))
        g = exp(-1 / 240)
        once = filter_by_hand([1 - g], [1, -g], wave)
        twice = filter_by_hand([1 - g], [1, -g], once)
        np.testing.assert_allclose(apply_filter(wave, smoother(8_000)), twice, rtol=0, atol=1e-14)

    @pytest.mark.parametrize("seed", range(3))
    def test_active_samples_are_those_of_the_description(self, seed):
        """The last of them shows how long the envelope is held: silence follows the speech."""
        fading = speech(3_000, seed) / 32_768 * np.linspace(1, 0.05, 3_000)
        wave = np.concatenate([fading, np.zeros(5_000)])
        expected, level = active_by_hand(wave, 8_000)
        found = active_samples(wave, 8_000)
        assert found.tolist() == expected
        assert 0.3 < found.mean() < 0.8
        sound = apply_filter(wave, high_pass(8_000))
        envelope = running_maximum(apply_filter(np.abs(sound), smoother(8_000)), 1_601)
        assert active_level(envelope, float(sound @ sound)) == pytest.approx(level, rel=1e-12)

    def test_the_level_is_that_of_the_speech_and_not_of_the_pauses(self):
        random = np.random.default_rng(0)
        wave = random.standard_normal(80_000) * (np.arange(80_000) % 20_000 < 6_000)
        found = active_samples(wave, 8_000)
        assert 0.3 < found.mean() < 0.45

    def test_an_envelope_above_each_threshold_has_its_whole_level(self):
        assert active_level(np.full(100, 1.0), 100.0) == pytest.approx(0)

    def test_silence_has_no_speech(self):
        assert active_samples(np.zeros(1_000), 8_000) is None


class TestSegmentalSNR:
    @pytest.mark.parametrize("fit", ["linear", "parabola"])
    @pytest.mark.parametrize("share", [0.05, 0.5, 2.0])
    def test_it_is_the_one_described(self, fit, share):
        reference = speech(4_000)
        estimate = noisy(reference, share)
        expected = seg_snr_by_hand(reference, estimate, fit)
        assert seg_snr(reference, estimate, fit) == pytest.approx(expected, rel=1e-12)

    @pytest.mark.parametrize("fit", ["linear", "parabola"])
    def test_identical_recordings_score_the_most_there_is(self, fit):
        assert seg_snr(speech(), speech(), fit) == 100

    @pytest.mark.parametrize("fit", ["linear", "parabola"])
    @pytest.mark.parametrize("shift", [1, -1])
    def test_a_recording_a_sample_late_or_early_counts_as_the_same(self, fit, shift):
        assert seg_snr(speech(), np.roll(speech(), shift), fit) == pytest.approx(100)

    def test_half_a_sample_between_is_found_by_the_line_alone(self):
        estimate = np.random.default_rng(0).integers(-9_000, 9_000, 5_000) * 2
        reference = ((estimate + np.roll(estimate, -1)) // 2).astype(np.int16)
        pair = reference, estimate.astype(np.int16)
        assert seg_snr(*pair, "linear") == 100
        assert seg_snr(*pair, "parabola") < 10

    def test_an_error_of_a_tenth_of_the_amplitude_is_20_db(self):
        reference = 10 * np.random.default_rng(0).integers(-900, 900, 20_000).astype(np.int16)
        estimate = reference + reference // 10
        assert seg_snr(reference, estimate, "parabola") == pytest.approx(20, abs=0.2)

    def test_a_segment_of_silence_with_an_error_counts_minus_100(self):
        reference = speech()
        reference[4_001:4_081] = 0
        estimate = reference.copy()
        estimate[4_040] = 5
        assert seg_snr(reference, estimate, "linear") == pytest.approx(
            seg_snr_by_hand(reference, estimate, "linear")
        )
        assert seg_snr(reference, estimate) < 100

    @pytest.mark.parametrize("n", [1, 81])
    def test_what_has_no_whole_segment_has_no_score(self, n):
        assert seg_snr(triangle(n), triangle(n)) is None

    def test_silence_has_no_score(self):
        assert seg_snr(np.zeros(900, np.int16), triangle(900)) is None

    def test_recordings_of_unequal_length_are_refused(self):
        with pytest.raises(ValueError, match="equally long; they have 900 and 901 samples"):
            seg_snr(triangle(900), triangle(901))


class TestPackages:
    def test_identical_recordings_score_the_most_there_is(self):
        pytest.importorskip("pystoi")
        pytest.importorskip("pesq")
        assert stoi(speech(), speech()) == pytest.approx(1, abs=1e-9)
        assert pesq_lqo(speech(), speech()) == pytest.approx(4.5486, abs=1e-4)
        assert pesq_raw(4.548638) == pytest.approx(4.5, abs=1e-5)

    @pytest.mark.parametrize("share", [0.1, 1.0])
    def test_a_noisy_recording_scores_as_the_packages_say(self, share):
        pystoi, pesq = pytest.importorskip("pystoi"), pytest.importorskip("pesq")
        reference, estimate = speech(), noisy(speech(), share)
        assert stoi(reference, estimate) == pystoi.stoi(
            reference.astype(float) / 32_768, estimate.astype(float) / 32_768, 8_000
        )
        assert pesq_lqo(reference, estimate) == pesq.pesq(8_000, reference, estimate, "nb")
        found = speech_scores.speech_scores(reference, estimate)
        assert list(found) == ["seg_snr", "seg_snr_parabola", "stoi", "pesq_raw", "pesq_lqo"]
        assert found["pesq_raw"] == pesq_raw(found["pesq_lqo"])

    @pytest.mark.parametrize("raw", [-0.5, 1.0, 2.75, 4.5])
    def test_the_raw_score_is_the_inverse_of_the_published_mapping(self, raw):
        lqo = 0.999 + 4 / (1 + exp(-1.4945 * raw + 4.6607))
        assert pesq_raw(lqo) == pytest.approx(raw, abs=1e-12)

    @pytest.mark.parametrize("n", [1, 200, 1_000, 2_500, 3_300])
    def test_of_too_little_speech_there_is_no_stoi(self, n):
        pytest.importorskip("pystoi")
        assert stoi(speech(n, 3), noisy(speech(n, 3), 0.1)) is None

    @pytest.mark.parametrize("n", [1, 1_000, 1_999])
    def test_of_less_than_a_quarter_of_a_second_there_is_no_pesq(self, n):
        pytest.importorskip("pesq")
        assert pesq_lqo(speech(n, 3) | 1, speech(n, 3) | 1) is None

    def test_silence_has_neither(self):
        pytest.importorskip("pystoi")
        pytest.importorskip("pesq")
        silence = np.zeros(9_000, np.int16)
        assert stoi(silence, speech()) is None
        assert pesq_lqo(silence, speech()) is None
        assert pesq_lqo(speech(), silence) is None

    def test_a_package_that_is_not_there_is_told_once(self, monkeypatch, caplog):
        def raise_import_error(name):
            raise ImportError(name)

        monkeypatch.setattr(speech_scores.importlib, "import_module", raise_import_error)
        speech_scores.package.cache_clear()
        with caplog.at_level(logging.WARNING):
            first = speech_scores.speech_scores(speech(2_000), speech(2_000))
            speech_scores.speech_scores(speech(2_000), speech(2_000))
        speech_scores.package.cache_clear()
        assert set(first) == {"seg_snr", "seg_snr_parabola"}
        assert len(caplog.records) == 2
        assert "pip install .[speech]" in caplog.text
