"""What a driver puts into the store for nodes without a corpus."""

from __future__ import annotations

import json
import logging
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from eigensweep.protocol.messages import ConfigJson
from eigensweep.search_spaces.trial import TrialConfig
from eigensweep.store.checkpoints import Store
from eigensweep.store.places.durable_files import StorageError
from eigensweep.store.upkeep import corpora
from eigensweep.tasks import TASKS
from eigensweep.tasks.corpus import CorpusMissingError

logger = logging.getLogger(__name__)

LOOK_SECONDS: Final = 60.0
"""Pause between two looks whether the archives are still there."""


class SharedCorpora:
    """Remembers which archive belongs to which task of an experiment."""

    def __init__(self, store: Store, data_root: str | None, experiment: str) -> None:
        self._store, self._data_root = store, data_root
        self._user = corpora.name_user(experiment)
        self._by_task: dict[str, str | None] = {}
        self._by_files: dict[tuple[Path, ...], str] = {}
        self._looked_at = time.monotonic()

    def provide(self, config: ConfigJson) -> str | None:
        """Return the archive with the corpus of a trial; None: it needs none, or there is none.

        Without an archive a trial uses what its node has.
        """
        task = json.dumps(config["task"], sort_keys=True)
        self._look()
        try:
            if task not in self._by_task:
                self._by_task[task] = self._publish(TrialConfig.from_dict(config))
        except CorpusMissingError:  # it may be fetched yet
            return None
        except StorageError as error:  # the next trial tries again
            logger.warning("a corpus is not in the store yet: %s", error)
            return None
        return self._by_task[task]

    def _look(self) -> None:
        """Forget what is not in the store any more: a person removes a damaged archive."""
        if not self._by_files or time.monotonic() < self._looked_at + LOOK_SECONDS:
            return
        self._looked_at = time.monotonic()
        with suppress(StorageError):  # trials are told what is known
            there = {*self._store.files.names(corpora.FOLDER)}
            if not there.issuperset(self._by_files.values()):
                self._by_task.clear()
                self._by_files.clear()

    def _publish(self, config: TrialConfig) -> str | None:
        if self._data_root is None:
            return None
        data_root = Path(self._data_root)
        files = tuple(TASKS[config.task.name].list_corpus(config.task, data_root))
        if files and files not in self._by_files:
            self._by_files[files] = corpora.publish(self._store, files, data_root, self._user)
            logger.info("corpus is in the store archive=%s", self._by_files[files])
        return self._by_files.get(files)
