"""Recordings for tests: waves made of whole numbers, and the files that hold them."""

import hashlib
import struct

import numpy as np


def triangle(samples, period=37, height=9_000):
    """A triangle wave, loud in its middle and silent at both ends; the same on every machine."""
    n = np.arange(samples)
    wave = np.abs(2 * (n % period) - period) * 2 * height // period - height
    return (wave * np.minimum(n, samples - 1 - n) // max(1, samples // 2)).astype(np.int16)


def riff(samples, rate=8_000, channels=1, bits=16, code=1, before=b"", size=None):
    """The bytes of a WAV file; what is wrong with it can be chosen."""
    content = np.asarray(samples).astype("<i2").tobytes()
    form = struct.pack("<HHIIHH", code, channels, rate, rate * bits // 8, bits // 8, bits)
    chunks = b"fmt " + struct.pack("<I", len(form)) + form + before
    chunks += b"data" + struct.pack("<I", len(content) if size is None else size) + content
    return b"RIFF" + struct.pack("<I", 4 + len(chunks)) + b"WAVE" + chunks


def sphere(samples, rate=16_000, order="01", **changed):
    """The bytes of a SPHERE file, with header fields changed, or left out where they are None."""
    fields = {
        "database_id": "-s5 TIMIT",
        "channel_count": "-i 1",
        "sample_count": f"-i {len(samples)}",
        "sample_rate": f"-i {rate}",
        "sample_n_bytes": "-i 2",
        "sample_byte_format": f"-s2 {order}",
        "sample_sig_bits": "-i 16",
        **changed,
    }
    lines = [f"{name} {value}" for name, value in fields.items() if value is not None]
    header = "\n".join(["NIST_1A", "   1024", *lines, "end_head", ""]).encode()
    dtype = "<i2" if order == "01" else ">i2"
    return header.ljust(1024) + np.asarray(samples).astype(dtype).tobytes()


def put_folder(folder, parts):
    """Write recordings, {part: {name: bytes}}, and their manifest; return its digest."""
    lines = []
    for part, files in parts.items():
        for name, content in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            lines.append(f"{part} {hashlib.sha256(content).hexdigest()}  {name}\n")
    manifest = "".join(lines).encode()
    (folder / "manifest.txt").write_bytes(manifest)
    return hashlib.sha256(manifest).hexdigest()


def voices(root):
    """Put a folder `voices` of 9 + 3 + 3 short recordings under a data root; return its digest."""
    sizes = {"train": range(300, 2_100, 200), "valid": (700, 1_000, 400), "test": (900, 128, 4_100)}
    parts = {
        part: {
            f"{part}/{n}.wav": riff(triangle(n, 31 + i))
            if i % 2
            else sphere(triangle(2 * n, 51), 16_000)
            for i, n in enumerate(each)
        }
        for part, each in sizes.items()
    }
    return put_folder(root / "voices", parts)
