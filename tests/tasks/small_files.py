"""Small files in place of the corpora."""

import gzip
import hashlib
from dataclasses import replace

import numpy as np
from recordings import voices

from eigensweep.tasks import mnist, pixel_mnist, treebank
from eigensweep.tasks.corpus import Form
from eigensweep.tasks.streams import draw

TEXTS = {
    "train": " the cat sat on the mat \n a rat ran \n the hat <unk> \n" * 4,
    "valid": " a cat ran on \n a mat \n the hat \n",
    "test": " the rat sat \n on the cat \n",
}


def put_small_corpora(root, monkeypatch):
    """Put small files where the corpora are expected under a data root."""
    _put_treebank(root, monkeypatch)
    _put_mnist(root, monkeypatch)
    voices(root)


def _put_treebank(root, monkeypatch):
    (root / "ptb").mkdir()
    contents = {f"ptb.{split}.txt": text.encode() for split, text in TEXTS.items()}
    for name, content in contents.items():
        (root / "ptb" / name).write_bytes(content)
    other_forms = {
        name: (Form(f"ptb/{name.replace('ptb.', 'ptb.char.')}", None, treebank.words_of),)
        for name in contents
    }
    corpus = replace(treebank.CORPUS, files=_digests(contents), other_forms=other_forms)
    monkeypatch.setattr(treebank, "CORPUS", corpus)
    counts = {
        reading: {s: len(treebank.characters(t.encode(), reading)) for s, t in TEXTS.items()}
        for reading in ("raw", "tokens")
    }
    monkeypatch.setattr(treebank, "COUNTS", counts)
    monkeypatch.setattr(treebank, "LINES", {s: t.count("\n") for s, t in TEXTS.items()})


def _put_mnist(root, monkeypatch):
    numbers = {"train": 40, "test": 12}
    contents = {}
    for part, prefix in (("train", "train"), ("test", "t10k")):
        number = numbers[part]
        drawn = draw(f"images/{part}", range(number), 28 * 28 + 1)
        images = (drawn[:, 1:] % 256).reshape(number, 28, 28)
        contents[f"{prefix}-images-idx3-ubyte"] = _idx(images)
        contents[f"{prefix}-labels-idx1-ubyte"] = _idx(drawn[:, 0] % 10)
    (root / "mnist").mkdir()
    for name, content in contents.items():
        (root / "mnist" / f"{name}.gz").write_bytes(gzip.compress(content))
    monkeypatch.setattr(mnist, "CORPUS", replace(mnist.CORPUS, files=_digests(contents)))
    monkeypatch.setattr(mnist, "NUMBERS", numbers)
    held_out = {"heldout_5000": 5, "none": 0, "nnrnn": 10}
    monkeypatch.setattr(pixel_mnist, "HELD_OUT", held_out)


def _digests(contents):
    return {n: (len(c), hashlib.sha256(c).hexdigest()) for n, c in contents.items()}


def _idx(array):
    header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">i4").tobytes()
    return header + array.astype(np.uint8).tobytes()
