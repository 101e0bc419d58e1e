"""Recordings in files: what is read, what it becomes at 8 kHz, and what is refused."""

import struct

import numpy as np
import pytest
from helpers.recordings import riff, sphere, triangle

from eigensweep.tasks.speech_files import at_half_rate, read_recording

WAVE = triangle(500)


def test_a_wav_file_of_8_khz_is_read_as_it_is():
    assert np.array_equal(read_recording(riff(WAVE)), WAVE)


def test_chunks_of_a_wav_file_that_say_other_things_are_skipped():
    comment = b"LIST" + struct.pack("<I", 3) + b"abc\0"
    assert np.array_equal(read_recording(riff(WAVE, before=comment)), WAVE)


def test_a_wav_file_with_the_longer_header_is_read():
    content = riff(WAVE)
    longer = struct.pack("<HHIIHH", 0xFFFE, 1, 8_000, 16_000, 2, 16)
    longer += struct.pack("<HHIH", 22, 16, 0, 1) + bytes(14)
    content = content.replace(content[12:36], b"fmt " + struct.pack("<I", len(longer)) + longer)
    assert np.array_equal(read_recording(content), WAVE)


@pytest.mark.parametrize("order", ["01", "10"])
def test_a_sphere_file_is_read_in_either_order_of_bytes(order):
    assert np.array_equal(read_recording(sphere(WAVE, 8_000, order)), WAVE)


@pytest.mark.parametrize("coding", ["pcm", None])
def test_a_sphere_file_may_say_that_it_is_pcm(coding):
    given = {} if coding is None else {"sample_coding": f"-s3 {coding}"}
    assert np.array_equal(read_recording(sphere(WAVE, 8_000, **given)), WAVE)


class TestResampling:
    def test_both_forms_at_16_khz_are_brought_to_8(self):
        halved = at_half_rate(WAVE)
        assert len(halved) == 250
        assert np.array_equal(read_recording(sphere(WAVE)), halved)
        assert np.array_equal(read_recording(riff(WAVE, rate=16_000)), halved)

    @pytest.mark.parametrize("n", [1, 2, 39, 40, 777])
    def test_each_sample_is_the_filter_around_every_second_one(self, n):
        """MATLAB's `resample(x, 1, 2)`: 41 taps of a sinc at half band, Kaiser window, β = 5."""
        x = np.random.default_rng(n).integers(-32_768, 32_768, n).astype(np.int16)
        taps = [np.sinc(k / 2) * np.i0(5 * np.sqrt(1 - (k / 20) ** 2)) for k in range(-20, 21)]
        expected = []
        for place in range(0, n, 2):
            value = 0.0
            for k in range(-20, 21):
                if 0 <= place + k < n:
                    value += taps[k + 20] * int(x[place + k])
            expected.append(min(32_767, max(-32_768, round(value / sum(taps)))))
        assert at_half_rate(x).tolist() == expected

    def test_it_is_what_scipy_gives(self):
        signal = pytest.importorskip("scipy.signal")
        x = np.random.default_rng(0).integers(-20_000, 20_000, 1_001).astype(np.int16)
        expected = signal.resample_poly(x / 32_768, 1, 2, window=("kaiser", 5.0))
        assert np.array_equal(at_half_rate(x), np.rint(expected * 32_768).astype(np.int16))

    def test_a_slow_wave_passes_and_one_beyond_the_band_does_not(self):
        n = np.arange(4_000)
        slow, fast = (np.rint(9_000 * np.sin(np.pi * n * f)).astype(np.int16) for f in (0.05, 0.8))
        assert abs(int(np.abs(at_half_rate(slow)[100:-100]).max()) - 9_000) < 60
        assert np.abs(at_half_rate(fast)[100:-100]).max() < 60


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "begins with b''; expected 'RIFF'"),
        (b"fLaC\0\0\0\x22", r"begins with b'fLaC.*NIST_1A"),
        (riff(WAVE, rate=44_100), "has 44,100 samples a second; expected 8,000 or 16,000"),
        (riff(WAVE, channels=2), "has 2 channels; expected 1"),
        (riff(WAVE, bits=24), "has samples of 24 bits; expected 16"),
        (riff(WAVE, code=6), "coded in format 6; expected 1, plain PCM"),
        (riff(WAVE)[:-2], "is cut off: its header promises 1,000 bytes of samples, but only 998"),
        (riff(WAVE, size=0xFFFFFFFF), "is cut off: its header promises 4,294,967,295 bytes"),
        (riff(WAVE)[:30], "is cut off: it ends before its samples"),
        (riff([]), "has no samples"),
        (riff(WAVE).replace(b"WAVE", b"AVI "), "is a RIFF file of type b'AVI '"),
        (riff(WAVE).replace(b"fmt ", b"what"), "how its samples are coded"),
        (sphere(WAVE, 11_025), "has 11,025 samples a second"),
        (sphere(WAVE, channel_count="-i 2"), "has 2 channels; expected 1"),
        (sphere(WAVE, sample_n_bytes="-i 1"), "has samples of 8 bits; expected 16"),
        (sphere(WAVE, sample_byte_format="-s2 11"), "byte order '11'"),
        (
            sphere(WAVE, sample_coding="-s26 pcm,embedded-shorten-v2.00"),
            "coded as 'pcm,embedded-shorten-v2.00'.*w_decode -o pcm.*sph2pipe",
        ),
        (sphere(WAVE)[:-2], "is cut off: its header promises 1,000 bytes of samples, but only 998"),
        (sphere(WAVE)[:600], "is cut off within its SPHERE header"),
        (sphere(WAVE, sample_count=None), "sample_count ''; expected a whole number"),
        (sphere(WAVE, sample_rate="-i fast"), "sample_rate 'fast'"),
        (sphere(WAVE).replace(b"end_head", b"no_end__"), "without 'end_head'"),
        (sphere([]), "has no samples"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_with_the_reason(content, words):
    with pytest.raises(ValueError, match=words):
        read_recording(content)


def test_no_beginning_of_a_file_is_more_than_refused():
    for whole in (riff(WAVE), sphere(WAVE)):
        for length in [*range(60), *range(60, len(whole), 97)]:
            with pytest.raises(ValueError, match=r"begins|cut off|is a RIFF|end_head|coded"):
                read_recording(whole[:length])
