"""Read recordings from RIFF (WAV) and NIST SPHERE files, and convert them to 8 kHz.

Recordings must be uncompressed and have one channel and 16 bits. The first bytes of a file decide
between the two formats, since copies of TIMIT use the ending .wav for both.
"""

from __future__ import annotations

import struct

import numpy as np
from numpy.typing import NDArray

RATE = 8_000
"""Samples a second of every recording, once read."""
PCM, EXTENSIBLE = 1, 0xFFFE
"""Codes of a WAV file's format: plain samples, and "see the extension"."""


def read_recording(content: bytes) -> NDArray[np.int16]:
    """Return the samples of a recording, (n,), at 8 kHz; one of 16 kHz is resampled.

    Raises:
        ValueError: if it cannot be read. The message follows the file's name: "has no samples".
    """
    if content.startswith(b"NIST_1A\n"):
        samples, rate = read_sphere(content)
    elif content.startswith(b"RIFF"):
        samples, rate = read_riff(content)
    else:
        raise ValueError(
            f"begins with {content[:8]!r}; expected 'RIFF' (a WAV file) or 'NIST_1A' (a SPHERE "
            "file)"
        )
    if rate not in (RATE, 2 * RATE):
        raise ValueError(f"has {rate:,} samples a second; expected {RATE:,} or {2 * RATE:,}")
    if not len(samples):
        raise ValueError("has no samples")
    return samples if rate == RATE else at_half_rate(samples)


def read_riff(content: bytes) -> tuple[NDArray[np.int16], int]:
    """Return the samples of a WAV file, (n,), and the number of samples a second.

    Raises:
        ValueError: if it is not PCM with one channel and 16 bits, or is cut off.
    """
    if content[8:12] != b"WAVE":
        raise ValueError(f"is a RIFF file of type {content[8:12]!r}; expected WAVE")
    form, place = b"", 12
    while place + 8 <= len(content):
        kind, size = content[place : place + 4], _little(content[place + 4 : place + 8])
        inside = content[place + 8 : place + 8 + size]
        if kind == b"fmt ":
            form = inside
        elif kind == b"data":
            break
        place += 8 + size + size % 2
    else:
        raise ValueError("is cut off: it ends before its samples")
    if len(form) < 16:
        raise ValueError(
            "does not say how its samples are coded; expected a 'fmt ' chunk before the samples"
        )
    code, channels, rate, _, _, bits = struct.unpack("<HHIIHH", form[:16])
    if code == EXTENSIBLE:
        code = _little(form[24:26])
    if code != PCM:
        raise ValueError(f"is coded in format {code}; expected {PCM}, plain PCM")
    return _samples(inside, size, channels, bits, "<i2"), rate


def read_sphere(content: bytes) -> tuple[NDArray[np.int16], int]:
    """Return the samples of a NIST SPHERE file, (n,), and the number of samples a second.

    Raises:
        ValueError: if it is compressed, has not one channel and 16 bits, or is cut off.
    """
    announced = content[8:16].strip()
    if not announced.isdigit() or len(content) < int(announced):
        raise ValueError("is cut off within its SPHERE header")
    header, fields = content[: int(announced)].decode("latin-1"), {}
    for line in header.splitlines()[2:]:
        name, _, rest = line.partition(" ")
        if name == "end_head":
            break
        fields[name] = rest.partition(" ")[2].strip()
    else:
        raise ValueError("has a SPHERE header without 'end_head'")
    coding = fields.get("sample_coding", "pcm")
    if coding != "pcm":
        raise ValueError(
            f"is coded as '{coding}'; expected plain 'pcm'. Unpack it first with NIST's "
            "`w_decode -o pcm` or with sph2pipe"
        )
    count, rate, channels, width = (
        _number(fields, name, default)
        for name, default in (
            ("sample_count", None),
            ("sample_rate", None),
            ("channel_count", 1),
            ("sample_n_bytes", None),
        )
    )
    order = fields.get("sample_byte_format", "01")
    if order not in ("01", "10"):
        raise ValueError(f"has the byte order '{order}'; expected '01' or '10'")
    size = count * channels * width
    inside = content[int(announced) :][:size]
    return _samples(inside, size, channels, 8 * width, "<i2" if order == "01" else ">i2"), rate


def at_half_rate(samples: NDArray[np.int16]) -> NDArray[np.int16]:
    """Return every second sample of the low-pass filtered recording, (ceil(n/2),).

    The filter is that of MATLAB's `resample(x, 1, 2)`: a sinc of 41 taps under a Kaiser window with
    β = 5 and a gain of 1 at 0 Hz. The result is rounded to 16 bits, as in a file.
    """
    taps = np.sinc(np.arange(-20, 21) / 2) * np.kaiser(41, 5.0)
    taps /= taps.sum()
    pairs = np.zeros((-(-len(samples) // 2), 2))
    pairs.ravel()[: len(samples)] = samples
    # A half-band sinc is zero at every second place, except in its middle.
    filtered = taps[20] * pairs[:, 0] + np.convolve(pairs[:, 1], taps[1::2])[9 : 9 + len(pairs)]
    return np.clip(np.rint(filtered), -32768, 32767).astype(np.int16)


def _samples(inside: bytes, size: int, channels: int, bits: int, dtype: str) -> NDArray[np.int16]:
    if channels != 1:
        raise ValueError(f"has {channels} channels; expected 1")
    if bits != 16:
        raise ValueError(f"has samples of {bits} bits; expected 16")
    if len(inside) < size or size % 2:
        raise ValueError(
            f"is cut off: its header promises {size:,} bytes of samples, but only "
            f"{len(inside):,} are there"
        )
    return np.frombuffer(inside, dtype).astype(np.int16)


def _little(content: bytes) -> int:
    return int.from_bytes(content, "little")


def _number(fields: dict[str, str], name: str, default: int | None) -> int:
    value = fields.get(name, "" if default is None else str(default))
    if not value.isdecimal():
        raise ValueError(f"has a SPHERE header with {name} '{value}'; expected a whole number")
    return int(value)
