"""Find and read corpora of speech: TIMIT, spoken digits, or any folder with a manifest.

Source: the parts of TIMIT are those of Wisdom et al., NeurIPS 2016, which Helfrich & Ye, AAAI 2020,
also use: 462 speakers to train on, 50 to validate on, and 24 to test on (the core test set). There
are eight sentences of each speaker; the two sentences that all speakers say are left out. Nothing
is downloaded here.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from eigensweep.tasks.corpus import CorpusMismatchError, CorpusMissingError, expected_there
from eigensweep.tasks.speech_files import RATE, read_recording

Part = Literal["train", "valid", "test"]
PARTS: tuple[Part, ...] = get_args(Part)
MANIFEST = "manifest.txt"
LONGEST_SECONDS = 60
"""Longest recording that is accepted."""
COUNTS: dict[str, dict[Part, int]] = {
    "timit": {"train": 3_696, "valid": 400, "test": 192},
    "fsdd": {"train": 600, "valid": 300, "test": 300},
}
"""Number of recordings in each part of the corpora that have a fixed division."""


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


VALID_SPEAKERS = _names(
    """faks0 fdac1 fjem0 mgwt0 mjar0 mmdb1 mmdm2 mpdf0 fcmh0 fkms0 mbdg0 mbwm0 mcsh0 fadg0 fdms0
    fedw0 mgjf0 mglb0 mrtk0 mtaa0 mtdt0 mthc0 mwjg0 fnmr0 frew0 fsem0 mbns0 mmjr0 mdls0 mdlf0 mdvc0
    mers0 fmah0 fdrw0 mrcs0 mrjm4 fcal1 mmwh0 fjsj0 majc0 mjsw0 mreb0 fgjd0 fjmg0 mroa0 mteb0 mjfc0
    mrjr0 fmml0 mrws1"""
)
TEST_SPEAKERS = _names(
    """mdab0 mwbt0 felc0 mtas1 mwew0 fpas0 mjmp0 mlnt0 fpkt0 mlll0 mtls0 fjlm0 mbpm0 mklt0 fnlp0
    mcmj0 mjdh0 fmgd0 mgrt0 mnjm0 fdhc0 mjln0 mpam0 fmld0"""
)
TIMIT_ORIGIN = (
    "put the folders TRAIN and TEST of LDC93S1 (https://catalog.ldc.upenn.edu/LDC93S1) into a "
    "folder 'timit' under the data root"
)

FSDD_FOLDERS = ("fsdd/recordings", "speech/recordings", "free-spoken-digit-dataset/recordings")
FSDD_SPEAKERS = ("george", "jackson", "lucas", "nicolas", "theo", "yweweler")
FSDD_DIGEST = "1d4e78283c4eafdd1d6d226ee767a6f0cf5d05c4536d620d541f57246b395503"
FSDD_ORIGIN = (
    "`eigensweep data fetch fsdd` gets it. To do it by hand, put the folder 'recordings' of "
    "https://github.com/Jakobovski/free-spoken-digit-dataset into a "
    "folder 'fsdd' under the data root; recordings 0 to 19 of each digit and speaker are used"
)


@dataclass(frozen=True)
class RecordingList:
    """The files of the recordings of each part, in order, and the digests they must have."""

    paths: dict[Part, list[Path]]
    origin: str
    """How a person gets the corpus, for error messages."""
    sha256: dict[Path, str] | None = None
    """The digest of each file; None if not known."""
    together: str | None = None
    """SHA-256 of what `sha256sum` prints for all files, sorted by name; None if not known."""


def find_recordings(corpus: str, digest: str | None, data_root: Path | None) -> RecordingList:
    """Return the files of a corpus: `timit`, `fsdd`, or the name of a folder with a manifest.

    No recording is read. Each line of a manifest has a part (train, valid or test), a SHA-256 and a
    path inside the folder. `digest` is the SHA-256 of the manifest.

    Raises:
        CorpusMissingError: if the corpus is missing or incomplete, or the manifest has another
            digest.
    """
    if data_root is None:
        raise CorpusMissingError(
            f"the corpus '{corpus}' is needed, but no data root is set (EIGENSWEEP_DATA_ROOT)"
        )
    with expected_there("`eigensweep data list` shows what is there"):
        if corpus == "timit":
            return _timit(data_root)
        if corpus == "fsdd":
            return _fsdd(data_root)
        return _folder(corpus, digest, data_root)


def read_recordings(listed: RecordingList) -> dict[Part, list[NDArray[np.int16]]]:
    """Return the samples of every recording, each (n,), at 8 kHz.

    Raises:
        CorpusMissingError: if a file has vanished.
        CorpusMismatchError: if one cannot be read, is too long, or has other contents than
            expected.
    """
    found: dict[Part, list[NDArray[np.int16]]] = {}
    digests: dict[Path, str] = {}
    for part, paths in listed.paths.items():
        found[part] = []
        for path in paths:
            with expected_there(listed.origin):
                content = path.read_bytes()
            if listed.sha256 is not None or listed.together is not None:
                digests[path] = hashlib.sha256(content).hexdigest()
            if listed.sha256 is not None and digests[path] != listed.sha256[path]:
                raise CorpusMismatchError(
                    f"{path} has SHA-256 {digests[path]}; expected {listed.sha256[path]}"
                )
            try:
                samples = read_recording(content)
            except ValueError as error:
                raise CorpusMismatchError(f"{path} {error}") from error
            if len(samples) > LONGEST_SECONDS * RATE:
                raise CorpusMismatchError(
                    f"{path} is {len(samples) / RATE:.0f} s long; expected at most "
                    f"{LONGEST_SECONDS}"
                )
            found[part].append(samples)
    if listed.together is not None:
        names = {f"{path.parent.name}/{path.name}": digest for path, digest in digests.items()}
        lines = "".join(f"{names[name]}  {name}\n" for name in sorted(names))
        together = hashlib.sha256(lines.encode()).hexdigest()
        if together != listed.together:
            raise CorpusMismatchError(
                f"the recordings in {path.parent} together have SHA-256 {together}; expected "
                f"{listed.together}. {listed.origin}"
            )
    return found


def _timit(data_root: Path) -> RecordingList:
    """Return TIMIT's files, sorted by speaker and sentence; names may be in upper or lower case."""
    root = _inside(data_root, "timit")
    root = _inside(root, "timit") or root
    train, test = _inside(root, "train"), _inside(root, "test")
    if train is None or test is None:
        raise CorpusMissingError(
            f"there is no folder {'TRAIN' if train is None else 'TEST'} in "
            f"{root or data_root / 'timit'}. {TIMIT_ORIGIN}"
        )
    found: dict[Part, list[Path]] = {
        "train": _sentences(train, None),
        "valid": _sentences(test, VALID_SPEAKERS),
        "test": _sentences(test, TEST_SPEAKERS),
    }
    for part, expected in COUNTS["timit"].items():
        if len(found[part]) != expected:
            raise CorpusMismatchError(
                f"{root} has {len(found[part]):,} sentences to {_verb(part)}; expected "
                f"{expected:,}. {TIMIT_ORIGIN}"
            )
    return RecordingList(found, TIMIT_ORIGIN)


def _sentences(folder: Path, speakers: frozenset[str] | None) -> list[Path]:
    """Return one file for each sentence of these speakers (None: of all), sorted by both.

    If a sentence has two files, the first one by name is used.
    """
    found: dict[tuple[str, str], Path] = {}
    for region in _matching(folder, r"dr[1-8]"):
        for speaker in _matching(region, r"[fm]\w{3}\d"):
            name = speaker.name.lower()
            if speakers is not None and name not in speakers:
                continue
            for path in _matching(speaker, r"(sx|si)\d+\.wav(\.wav)?"):
                found.setdefault((name, path.name.lower().partition(".")[0]), path)
    return [found[key] for key in sorted(found)]


def _matching(folder: Path, pattern: str) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(p for p in folder.iterdir() if re.fullmatch(pattern, p.name, re.IGNORECASE))


def _inside(folder: Path | None, name: str) -> Path | None:
    """Return the folder of this name, in upper or lower case, inside another; None if missing."""
    if folder is None:
        return None
    return next((path for path in _matching(folder, re.escape(name)) if path.is_dir()), None)


def _fsdd(data_root: Path) -> RecordingList:
    """Return the spoken digits: recordings 0-4 to test, 5-9 to validate, 10-19 to train."""
    ranges: dict[Part, range] = {"train": range(10, 20), "valid": range(5, 10), "test": range(5)}
    wanted = {
        part: sorted(
            f"{digit}_{speaker}_{number}.wav"
            for digit, speaker, number in product(range(10), FSDD_SPEAKERS, numbers)
        )
        for part, numbers in ranges.items()
    }
    problem = ""
    for folder in filter(Path.is_dir, (data_root / name for name in FSDD_FOLDERS)):
        there = {path.name for path in folder.iterdir()}
        lacks = {part: [n for n in names if n not in there] for part, names in wanted.items()}
        if not any(lacks.values()):
            paths = {part: [folder / name for name in names] for part, names in wanted.items()}
            return RecordingList(paths, FSDD_ORIGIN, together=FSDD_DIGEST)
        part, missing = next((part, names) for part, names in lacks.items() if names)
        problem = problem or (
            f"{folder} lacks {len(missing)} of the {len(wanted[part])} recordings to "
            f"{_verb(part)}, such as {missing[0]}"
        )
    problem = problem or f"there is no {data_root / FSDD_FOLDERS[0]}"
    raise CorpusMissingError(f"{problem}. {FSDD_ORIGIN}")


def _folder(name: str, digest: str | None, data_root: Path) -> RecordingList:
    """Return the files that the manifest of a folder lists, in its order."""
    manifest = data_root / name / MANIFEST
    origin = (
        f"a folder of recordings has a '{MANIFEST}' with lines such as "
        "'train <sha256> speaker/sentence.wav', as `sha256sum` prints them after the part"
    )
    if not manifest.is_file():
        raise CorpusMissingError(f"there is no {manifest}; {origin}")
    content = manifest.read_bytes()
    found = hashlib.sha256(content).hexdigest()
    if digest != found:
        given = "none is given" if digest is None else f"it is {digest}"
        raise CorpusMismatchError(
            f"'digest' must be {found}, the SHA-256 of {manifest}, so that results belong to these "
            f"recordings; {given}"
        )
    paths: dict[Part, list[Path]] = {part: [] for part in PARTS}
    sha256: dict[Path, str] = {}
    for number, line in enumerate(content.decode("utf-8", "replace").splitlines(), 1):
        if not line.strip():
            continue
        words = line.split(maxsplit=2)
        problem = _find_problem(words)
        if problem is not None:
            raise CorpusMismatchError(f"{manifest}, line {number}: {problem}; {origin}")
        path = data_root / name / words[2].strip()
        if path in sha256:
            raise CorpusMismatchError(f"{manifest}, line {number}: '{words[2]}' is listed twice")
        if not path.is_file():
            raise CorpusMissingError(f"{manifest}, line {number}: there is no {path}")
        sha256[path] = words[1].lower()
        paths[next(part for part in PARTS if part == words[0])].append(path)
    for part in PARTS:
        if not paths[part]:
            raise CorpusMismatchError(f"{manifest} lists no recording to {_verb(part)}; {origin}")
    return RecordingList(paths, origin, sha256)


def _find_problem(words: list[str]) -> str | None:
    """Return what is wrong with a line of a manifest; None if nothing is."""
    if len(words) != 3:
        return "expected a part, a SHA-256 and a path"
    part, sha256, path = words
    if part not in PARTS:
        return f"'{part}' is not one of the parts {', '.join(PARTS)}"
    if not re.fullmatch("[0-9a-fA-F]{64}", sha256):
        return f"'{sha256}' is not a SHA-256 of 64 hex digits"
    if Path(path).is_absolute() or ".." in Path(path).parts:
        return f"'{path}' leads out of the folder"
    return None


def _verb(part: str) -> str:
    return {"train": "train on", "valid": "validate on", "test": "test on"}[part]
