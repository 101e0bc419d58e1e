"""Where the process of a trial finds its corpus."""

from __future__ import annotations

from pathlib import Path

from eigensweep.common.private_folders import cache_folder, make_private
from eigensweep.search_spaces.trial import TrialConfig
from eigensweep.store.checkpoints import Store
from eigensweep.store.places.durable_files import storage_error
from eigensweep.store.upkeep.corpora import fetch
from eigensweep.tasks import TASKS
from eigensweep.tasks.corpus import CorpusMissingError


def find_data_root(
    config: TrialConfig, store: Store, data_root: str | None, archive: str | None
) -> str | None:
    """Return the node's data root if the corpus of a trial is there, else that of an archive.

    Raises:
        StorageError: if it cannot be fetched.
    """

    def has_corpus(root: Path | None) -> bool:
        try:
            TASKS[config.task.name].check_corpus(config.task, root)
        except CorpusMissingError:
            return False
        return True

    root = None if data_root is None else Path(data_root)
    if archive is None or has_corpus(root):
        return data_root
    folder = cache_folder() / "corpora"
    try:
        make_private(folder)
    except OSError as error:
        raise storage_error("write", folder, error) from error
    return str(fetch(store, archive, folder, has_corpus))
