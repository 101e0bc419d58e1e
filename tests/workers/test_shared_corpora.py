"""A node without a corpus fetches it from the store, once, and trains on the same bytes."""

from __future__ import annotations

import hashlib
import os
import shutil
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from helpers.waiting import wait_until
from orders import make_order
from sweeps import SCORNN

from eigensweep.protocol.code import own_code
from eigensweep.search_spaces.spec import ExperimentSpec
from eigensweep.search_spaces.trial import TrialConfig
from eigensweep.store.checkpoints import Store
from eigensweep.store.places.durable_files import StoreAwayError, disk_failure
from eigensweep.store.places.folder_files import FolderFiles
from eigensweep.store.upkeep import corpora
from eigensweep.store.upkeep.corpora import DamagedArchiveError
from eigensweep.tasks import TASKS
from eigensweep.tasks.corpus import CorpusMissingError
from eigensweep.tasks.speech_corpora import MANIFEST
from eigensweep.training.attempt import Attempt
from eigensweep.training.corpora import find_data_root
from eigensweep.training.lanes import sizing
from eigensweep.training.lanes.engine.engine import Engine
from eigensweep.workers.driver.deletion import remove
from eigensweep.workers.driver.nodes.corpora import SharedCorpora
from eigensweep.workers.driver.nodes.lanes import _measure

TEXT = {"name": "ptb_chars", "batch_size": 2, "eval_batch_size": 2, "bptt": 10}
CONFIGS: list[dict[str, Any]] = [
    TEXT,
    {"name": "pixel_mnist"},
    {"name": "speech_frames", "corpus": "voices", "batch_size": 2},
]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    """Where a node keeps corpora; compiled steps stay where they are."""
    monkeypatch.setattr("eigensweep.training.corpora.cache_folder", lambda: tmp_path / "cache")
    return tmp_path / "cache" / "corpora"


@pytest.fixture
def store(tmp_path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def data_root(tmp_path) -> Path:
    for name, content in (("one/a.txt", b"a"), ("one/b/c.txt", b"c" * 1000)):
        path = tmp_path / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return tmp_path / "data"


def files_of(folder: Path) -> dict[str, bytes]:
    found = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}


def publish(store: Store, data_root: Path, experiment: str = "e1") -> str:
    files = [path for path in data_root.rglob("*") if path.is_file()]
    return corpora.publish(store, files, data_root, corpora.name_user(experiment))


def test_what_is_fetched_is_what_was_put_there_and_put_once(store, data_root, tmp_path):
    archive = publish(store, data_root)
    stored = Path(store.place) / corpora.FOLDER / archive
    written = stored.stat().st_mtime_ns
    (data_root / "one" / "a.txt").touch()
    assert publish(store, data_root) == archive
    assert stored.stat().st_mtime_ns == written
    assert files_of(corpora.fetch(store, archive, tmp_path / "node")) == files_of(data_root)
    (data_root / "one" / "a.txt").write_bytes(b"other")
    assert publish(store, data_root) != archive


def test_a_driver_holds_no_corpus_in_memory_that_is_there(store, data_root):
    large = data_root / "large.bin"
    large.write_bytes(os.urandom(2**20) * 24)
    first = corpora.publish(store, [large], data_root, "e1.a")
    content = store.files.read(f"{corpora.FOLDER}/{first}")
    assert first == f"{hashlib.sha256(content).hexdigest()}.tar"
    tracemalloc.start()
    try:
        assert corpora.publish(store, [large], data_root, "e2.b") == first
        assert tracemalloc.get_traced_memory()[1] < 2**21
    finally:
        tracemalloc.stop()


def test_drivers_that_put_the_same_there_at_once_both_do(store, data_root, tmp_path, monkeypatch):
    """Each sees that it is missing, and the second writes while the first does."""
    link, others = os.link, []

    def write_meanwhile(*paths: Any) -> None:
        if not others:
            others.append(None)
            others.append(publish(store, data_root, "e2"))
        return link(*paths)

    monkeypatch.setattr(os, "link", write_meanwhile)
    archive = publish(store, data_root)
    assert others == [None, archive]
    assert files_of(corpora.fetch(store, archive, tmp_path / "node")) == files_of(data_root)


def test_all_processes_of_a_node_fetch_once(store, data_root, tmp_path, monkeypatch):
    archive, reads = publish(store, data_root), []
    original = FolderFiles.read

    def read(self: FolderFiles, path: str) -> bytes:
        reads.append(path)
        return original(self, path)

    monkeypatch.setattr(FolderFiles, "read", read)
    with ThreadPoolExecutor(8) as pool:
        fetch = pool.submit
        asked = [fetch(corpora.fetch, store, archive, tmp_path / "node") for _ in range(8)]
    assert len({each.result() for each in asked}) == 1
    assert reads == [f"{corpora.FOLDER}/{archive}"]


def test_one_that_died_while_it_fetched_leaves_nothing(store, data_root, tmp_path):
    archive = publish(store, data_root)
    half = tmp_path / "node" / f"{archive.removesuffix('.tar')}.part"
    half.mkdir(parents=True)
    (half / "junk").write_text("half")
    place = corpora.fetch(store, archive, tmp_path / "node")
    assert files_of(place) == files_of(data_root)
    assert not half.exists()


@pytest.mark.parametrize("kind", ["damaged", "gone"])
def test_an_archive_that_is_not_as_its_name_says_is_refused(store, data_root, tmp_path, kind):
    archive = publish(store, data_root)
    stored = Path(store.place) / corpora.FOLDER / archive
    stored.unlink()
    if kind == "damaged":
        stored.write_bytes(b"other bytes")
    error = DamagedArchiveError if kind == "damaged" else StoreAwayError
    words = "arrived here with SHA-256" if kind == "damaged" else "is not there any more"
    with pytest.raises(error, match=words) as refused:
        corpora.fetch(store, archive, tmp_path / "node")
    assert disk_failure(refused.value) is refused.value, "the node's fault, and no trial's"
    assert [p.name for p in (tmp_path / "node").iterdir()] == ["lock"]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config["name"])
def test_each_task_lists_all_that_it_reads(store, small_corpora, tmp_path, config):
    task = TASKS[config["name"]]
    if "corpus" in config:
        manifest = (small_corpora / config["corpus"] / MANIFEST).read_bytes()
        config = {**config, "digest": hashlib.sha256(manifest).hexdigest()}
    made = task.Config.model_validate(config)
    archive = corpora.publish(store, task.list_corpus(made, small_corpora), small_corpora, "e1.1")
    root = corpora.fetch(store, archive, tmp_path / "node")
    shutil.rmtree(small_corpora / next(iter(files_of(root))).partition("/")[0])
    task.check_corpus(made, root)


def text_order(tmp_path: Path, **fields: Any) -> Any:
    spec = ExperimentSpec.model_validate(
        {"task": TEXT, "model": SCORNN, "training": {"steps": 2, "evaluate_every": 1}}
    )
    config = spec.trial(next(iter(spec.space()))).model_dump(mode="json")
    return make_order(config=config, rungs=(2,), storage=str(tmp_path / "store"), **fields)


def test_a_trial_trains_on_a_node_without_the_corpus(store, small_corpora, tmp_path, cache):
    order = text_order(tmp_path)
    archive = SharedCorpora(store, str(small_corpora), "e1").provide(order.config)
    empty = str(tmp_path / "empty")
    with pytest.raises(CorpusMissingError):
        Attempt(text_order(tmp_path, data_root=empty), "cpu").advance()
    attempt = Attempt(text_order(tmp_path, data_root=empty, corpus=archive), "cpu")
    assert attempt.advance().outcome == "completed"


def test_lanes_are_measured_on_a_node_without_the_corpus(
    store, small_corpora, tmp_path, cache, monkeypatch
):
    monkeypatch.setattr(sizing, "ROUND_SECONDS", 0.01)
    order = text_order(tmp_path)
    archive = SharedCorpora(store, str(small_corpora), "e1").provide(order.config)
    empty = str(tmp_path / "empty")
    with pytest.raises(CorpusMissingError):
        _measure(order.config, "cpu", 1, store.place, empty, None, own_code())
    lanes, _ = _measure(order.config, "cpu", 1, store.place, empty, archive, own_code())
    assert lanes >= 1


def test_one_whose_cache_was_cleaned_up_fetches_it_again(store, small_corpora, tmp_path, cache):
    order = text_order(tmp_path)
    archive = SharedCorpora(store, str(small_corpora), "e1").provide(order.config)
    config = TrialConfig.from_dict(order.config)
    asked = text_order(tmp_path, data_root=str(tmp_path / "empty"), corpus=archive)
    root = Path(find_data_root(config, store, asked.data_root, asked.corpus))
    whole = files_of(root)
    (root / "ptb" / "ptb.valid.txt").unlink()
    assert find_data_root(config, store, asked.data_root, asked.corpus) == str(root)
    assert files_of(root) == whole
    assert [p.name for p in cache.iterdir() if p.is_dir()] == [archive.removesuffix(".tar")]


def test_a_node_that_has_the_corpus_fetches_nothing(small_corpora, tmp_path, cache):
    order = text_order(tmp_path, data_root=str(small_corpora), corpus=f"{'0' * 64}.tar")
    assert Attempt(order, "cpu").advance().outcome == "completed"
    assert not cache.exists()


def test_a_driver_puts_there_what_its_trials_need_and_no_more(store, small_corpora, tmp_path):
    order = text_order(tmp_path)
    shared = SharedCorpora(store, str(small_corpora), "e1")
    archive = shared.provide(order.config)
    assert store.files.names(corpora.FOLDER) == [archive]
    other = {**order.config, "task": {**order.config["task"], "batch_size": 3}}
    assert shared.provide(other) == archive
    copying = {**order.config, "task": {"name": "copying", "delay": 5}}
    assert shared.provide(copying) is None
    assert SharedCorpora(store, str(tmp_path / "empty"), "e1").provide(order.config) is None
    assert store.files.names(corpora.FOLDER) == [archive]


def test_a_driver_sees_what_comes_and_goes_while_it_lives(
    store, small_corpora, tmp_path, monkeypatch
):
    order, later = text_order(tmp_path), tmp_path / "later"
    shared = SharedCorpora(store, str(later), "e1")
    assert shared.provide(order.config) is None
    later.symlink_to(small_corpora)
    archive = shared.provide(order.config)
    assert archive is not None
    store.files.remove(f"{corpora.FOLDER}/{archive}")  # as one does where it is damaged
    assert shared.provide(order.config) == archive, "it looks once a minute"
    monkeypatch.setattr("eigensweep.workers.driver.nodes.corpora.LOOK_SECONDS", 0.0)
    assert shared.provide(order.config) == archive
    assert store.files.names(corpora.FOLDER) == [archive]

    def fail(*_: Any) -> list[str]:
        raise StoreAwayError("no answer")

    monkeypatch.setattr(FolderFiles, "names", fail)
    assert shared.provide(order.config) == archive, "trials are told what is known"


class TestRemoval:
    def test_a_driver_that_was_killed_as_it_began_uses_none(self, store, data_root):
        archive = publish(store, data_root, "e1")
        corpora.release(store, corpora.list_users(store, "e1"))
        store.files.write(f"{corpora.USERS}/{archive}/e1.ab.cd.tmp", b"")
        assert corpora.remove_unused(store) == [archive]

    def test_an_archive_goes_with_the_last_experiment_that_uses_it(self, store, data_root):
        archive = publish(store, data_root, "e1")
        for experiment in ("e1", "e10"):  # a second driver of the one, and the first of another
            publish(store, data_root, experiment)
        assert len(corpora.list_users(store, "e1")) == 2
        corpora.release(store, corpora.list_users(store, "e1"))
        assert corpora.remove_unused(store) == []
        assert store.files.names(corpora.FOLDER) == [archive]
        corpora.release(store, corpora.list_users(store, "e10"))
        assert corpora.remove_unused(store) == [archive]
        assert store.files.names(corpora.FOLDER) == []
        assert publish(store, data_root, "e1") == archive
        assert store.files.names(corpora.FOLDER) == [archive]

    def test_a_deleted_experiment_uses_none(self, store, data_root, tmp_path):
        archive = publish(store, data_root)
        remove("e1", "p", store.place, None)
        assert corpora.remove_unused(store) == [archive]

    @pytest.mark.parametrize("moment", ["before the second look", "after it"])
    def test_a_driver_that_comes_while_it_is_removed_has_it(
        self, store, data_root, monkeypatch, moment
    ):
        archive = publish(store, data_root)
        corpora.release(store, corpora.list_users(store, "e1"))
        name = "write" if moment == "before the second look" else "remove"
        original = getattr(store.files, name)
        other, pool = Store(store.place), ThreadPoolExecutor(1)
        came = []

        def wait_for_user() -> None:
            came.append(pool.submit(publish, other, data_root, "e2"))
            wait_until(lambda: corpora.list_users(other, "e2"))

        def act(*given: Any) -> None:
            if name == "write":  # the mark that it is leaving
                original(*given)
                wait_for_user()
            elif not came:  # the archive itself: two have looked, and nobody used it
                wait_for_user()
                original(*given)
            else:
                original(*given)

        monkeypatch.setattr(store.files, name, act)
        assert corpora.remove_unused(store) == ([] if name == "write" else [archive])
        assert came[0].result() == archive
        assert store.files.names(corpora.FOLDER) == [archive]

    def test_one_who_died_while_removing_holds_nobody_up(self, store, data_root, monkeypatch):
        monkeypatch.setattr(corpora, "LEAVING_SECONDS", 0.2)
        archive = publish(store, data_root)
        corpora.release(store, corpora.list_users(store, "e1"))
        monkeypatch.setattr(store.files, "remove", lambda path: None)
        assert corpora.remove_unused(store) == [archive]
        other = Store(store.place)
        assert publish(other, data_root) == archive
        assert corpora.remove_unused(other) == []


def test_in_lanes_a_missing_corpus_is_no_failure_of_the_trial(small_corpora, tmp_path):
    engine = Engine("cpu", 2)
    try:
        with pytest.raises(CorpusMissingError):
            engine.ask(text_order(tmp_path, data_root=str(tmp_path / "empty")), 60)
    finally:
        engine.stop()
