"""What a driver puts into the store for nodes without a corpus."""

from __future__ import annotations

import json
import logging
from pathlib import Path

from eigensweep.protocol.messages import ConfigJson
from eigensweep.search_spaces.trial import TrialConfig
from eigensweep.store.checkpoints import Store
from eigensweep.store.places.durable_files import StorageError
from eigensweep.store.upkeep import corpora
from eigensweep.tasks import TASKS
from eigensweep.tasks.corpus import CorpusMissingError

logger = logging.getLogger(__name__)


class SharedCorpora:
    """Remembers which archive belongs to which task of an experiment."""

    def __init__(self, store: Store, data_root: str | None, experiment: str) -> None:
        self._store, self._data_root = store, data_root
        self._user = corpora.name_user(experiment)
        self._by_task: dict[str, str | None] = {}
        self._by_files: dict[tuple[Path, ...], str] = {}

    def provide(self, config: ConfigJson) -> str | None:
        """Return the archive with the corpus of a trial; None: it needs none, or there is none.

        Without an archive a trial uses what its node has.
        """
        task = json.dumps(config["task"], sort_keys=True)
        if task not in self._by_task:
            try:
                self._by_task[task] = self._publish(TrialConfig.from_dict(config))
            except CorpusMissingError:
                self._by_task[task] = None
            except StorageError as error:  # the next trial tries again
                logger.warning("a corpus is not in the store yet: %s", error)
                return None
        return self._by_task[task]

    def _publish(self, config: TrialConfig) -> str | None:
        if self._data_root is None:
            return None
        data_root = Path(self._data_root)
        files = tuple(TASKS[config.task.name].list_corpus(config.task, data_root))
        if files and files not in self._by_files:
            self._by_files[files] = corpora.publish(self._store, files, data_root, self._user)
            logger.info("corpus is in the store archive=%s", self._by_files[files])
        return self._by_files.get(files)
