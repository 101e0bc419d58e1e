"""Small files in place of the corpora."""

import gzip
import hashlib
import struct
from dataclasses import replace

import numpy as np
from helpers.recordings import voices

from eigensweep.tasks import cifar, mnist, pixel_cifar, pixel_mnist, treebank
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
    _put_cifar(root, monkeypatch)
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


def _put_cifar(root, monkeypatch):
    (root / "cifar10").mkdir()
    files = {}
    for name in (*cifar.TRAIN, *cifar.TEST):
        content = python2_pickle(name, *cifar_images(name))
        (root / "cifar10" / name).write_bytes(content)
        files[name] = len(content), f"md5:{hashlib.md5(content).hexdigest()}"
    monkeypatch.setattr(cifar, "PYTHON", replace(cifar.PYTHON, files=files))
    monkeypatch.setattr(cifar, "NUMBERS", {"train": 40, "test": 10})
    held_out = {"heldout_5000": 5, "heldout_3000": 3, "heldout_2000": 2, "none": 0}
    monkeypatch.setattr(pixel_cifar, "HELD_OUT", held_out)


def cifar_images(name):
    """Return pixels, (N, 3072), and labels of a file: eight images, or ten in the test file."""
    first = 8 * cifar.TRAIN.index(name) if name in cifar.TRAIN else 0
    number = 8 if name in cifar.TRAIN else 10
    drawn = draw(f"cifar/{name}", range(number), 3072)
    return (drawn % 256).astype(np.uint8), (first + np.arange(number)).astype(np.uint8) % 10


def python2_pickle(label, pixels, labels):
    """Return a batch as CIFAR-10 has it: a pickle of protocol 2, written by Python 2."""

    def text(word):
        return b"U" + bytes([len(word)]) + word.encode()

    def number(n):
        return b"K" + bytes([n]) if n < 256 else b"M" + struct.pack("<H", n)

    data = pixels.tobytes()
    dtype = b"cnumpy\ndtype\n(" + text("u1") + b"K\x00K\x01tR(K\x03" + text("|")
    dtype += b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    array = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00t" + text("b")
    array += b"tR(K\x01(" + b"".join(map(number, pixels.shape)) + b"t" + dtype + b"\x89"
    array += b"T" + struct.pack("<i", len(data)) + data + b"tb"
    items = text("batch_label") + text(label)
    items += text("labels") + b"](" + b"".join(number(int(n)) for n in labels) + b"e"
    items += text("data") + array
    items += text("filenames") + b"](" + b"".join(text(f"{n}.png") for n in labels) + b"e"
    return b"\x80\x02}(" + items + b"u."


def _digests(contents):
    return {n: (len(c), hashlib.sha256(c).hexdigest()) for n, c in contents.items()}


def _idx(array):
    header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">i4").tobytes()
    return header + array.astype(np.uint8).tobytes()
