"""What lies in the store is damaged between two attempts: the second one goes back, and says so."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import s3
from orders import make_order
from sweeps import Bench, spec

from eigensweep.protocol.messages import Order, Report
from eigensweep.search_spaces.space import Point
from eigensweep.search_spaces.spec import ExperimentSpec
from eigensweep.store.checkpoints import DAMAGED_CURVE, Store, replicate_key
from eigensweep.store.commits.curves import CHECKSUM, CurvePoint
from eigensweep.store.commits.head import Head, NewerStoreError
from eigensweep.store.commits.heads import DAMAGED_HEAD, Heads
from eigensweep.store.places.durable_files import DamagedError, disk_failure
from eigensweep.training.attempt import Attempt
from eigensweep.workers.driver.tune.searcher import Recorder
from eigensweep.workers.processes.runner import LOST, REPORT, Runner

ORDER = make_order()
KEY = replicate_key(ORDER.experiment, ORDER.number, 0)


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    with s3.serve() as url:
        yield url


@pytest.fixture(scope="module", params=["folder", "s3"])
def root(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A place for a store of each test."""
    if request.param == "folder":
        return str(tmp_path_factory.mktemp("stores"))
    return str(request.getfixturevalue("bucket"))


@pytest.fixture
def storage(root: str, tmp_path: Path) -> str:
    return f"{root}/{tmp_path.name}"


def order_in(storage: str) -> Order:
    parsed = ExperimentSpec.model_validate(spec({"space": {}}))
    config = parsed.trial(Point("scornn", {}))
    content = config.model_dump(mode="json")
    return make_order(config=content, rungs=tuple(parsed.rung_steps(config)), storage=storage)


def train(order: Order, until: int | None = None) -> Report:
    """Train as one attempt, to its end or to a step; return its last report."""
    attempt = Attempt(order, "cpu")
    while (report := attempt.advance()).outcome is None and report.step != until:
        pass
    return report


def numbers(report: Report, store: Store) -> Any:
    """Return what must not depend on what happened: results, and the curve without its times."""
    assert report.result is not None
    of = report.result.by_replicate[0]
    curve = [(point.step, point.metrics) for point in store.points(KEY)]
    return report.outcome, of.value, of.best_step, of.valid, of.test, curve


@pytest.fixture(scope="module")
def left(root: str) -> dict[str, bytes]:
    """The files that an attempt of ten steps leaves."""
    storage = f"{root}/left"
    train(order_in(storage), until=10)
    files = Store(storage).files
    return {name: files.read(f"{KEY}/{name}") for name in files.names(KEY)}


@pytest.fixture
def store(storage: str, left: dict[str, bytes]) -> Store:
    """A store in which an attempt was cut off after ten steps."""
    made = Store(storage)
    for name, content in left.items():
        made.files.write(f"{KEY}/{name}", content)
    return made


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    storage = str(tmp_path_factory.mktemp("undisturbed"))
    return numbers(train(order_in(storage)), Store(storage))


def name_of(store: Store, kind: str) -> str:
    """Return the path of the head, of the curve's first part, or of the newest checkpoint."""
    names = store.files.names(KEY)
    if kind == "step":
        return f"{KEY}/{store.list_checkpoints(KEY)[0].file}"
    found = [name for name in names if name.startswith(kind)]
    return f"{KEY}/{max(found) if kind == 'head' else min(found)}"


def edit(kind: str, change: Callable[[bytes], bytes]) -> Callable[[Store], None]:
    def damage(store: Store) -> None:
        name = name_of(store, kind)
        before = store.files.read(name)
        assert change(before) != before
        store.files.write(name, change(before))

    return damage


def remove(kind: str) -> Callable[[Store], None]:
    return lambda store: store.files.remove(name_of(store, kind))


def attempt_a_billion(head: bytes) -> bytes:
    return head.replace(b'"attempt": 1', b'"attempt": 1000000000')


def another_digit(curve: bytes) -> bytes:
    place = curve.index(b"0.") + 2
    digit = b"7" if curve[place : place + 1] != b"7" else b"3"
    return curve[:place] + digit + curve[place + 1 :]


def both(*damages: Callable[[Store], None]) -> Callable[[Store], None]:
    def damage(store: Store) -> None:
        for each in damages:
            each(store)

    return damage


def garble_checkpoints(store: Store) -> None:
    for checkpoint in store.list_checkpoints(KEY):
        store.files.write(f"{KEY}/{checkpoint.file}", b"garbled")


HEAD, CURVE = "head", "curve"
DAMAGES: dict[str, Callable[[Store], None]] = {
    "an empty head": edit(HEAD, lambda content: b""),
    "half a head": edit(HEAD, lambda content: content[: len(content) // 2]),
    "null for a head": edit(HEAD, lambda content: b"null"),
    "a head of bytes": edit(HEAD, lambda content: b"\xff\x00" + content),
    "another letter in a name of the head": edit(
        HEAD, lambda content: content.replace(b'"commits"', b'"commitr"')
    ),
    "an absurd attempt": edit(HEAD, attempt_a_billion),
    "a byte of the curve": edit(CURVE, lambda content: content[:20] + b"\xff" + content[21:]),
    "a digit of the curve": edit(CURVE, another_digit),
    "an end of a line": edit(CURVE, lambda content: content.replace(b"\n", b" ", 1)),
    "half a curve": edit(CURVE, lambda content: content[: len(content) // 2]),
    "whole lines of the curve": edit(
        CURVE, lambda content: content[: content[:-1].rfind(b"\n") + 1]
    ),
    "no curve": remove(CURVE),
    "no newest checkpoint": remove("step"),
    "no whole checkpoint": garble_checkpoints,
    "head and curve": both(edit(HEAD, lambda content: b""), edit(CURVE, another_digit)),
}


@pytest.mark.parametrize("name", DAMAGES)
@pytest.mark.quick_cases(2)
def test_a_trial_ends_with_the_same_numbers_whatever_is_damaged(
    storage: str, store: Store, name: str, undisturbed: Any
) -> None:
    order = order_in(storage)
    DAMAGES[name](store)
    second = Attempt(replace(order, attempt=2, reported=10), "cpu")
    report = second.advance()
    assert report.damage is not None, "it is told"
    assert KEY in report.damage
    assert "goes on from" in report.damage
    while report.outcome is None:
        report = second.advance()
    assert numbers(report, Store(storage)) == undisturbed
    kept = {DAMAGED_HEAD, DAMAGED_CURVE} & {*store.files.names(KEY)}
    expected = {DAMAGED_HEAD} if "head" in name or "attempt" in name else set()
    is_kept = ("curve" in name and name != "no curve") or "line" in name
    expected |= {DAMAGED_CURVE} if is_kept else set()
    assert kept == expected
    third = Attempt(replace(order, attempt=3, reported=10), "cpu")
    assert third.report().damage is None, "it is told once"


@pytest.mark.parametrize("name", ["half a head", "an absurd attempt"])
def test_a_damaged_head_costs_no_checkpoint(store: Store, name: str) -> None:
    DAMAGES[name](store)
    assert "from the checkpoint of step" in (store.begin(KEY, 2) or "")
    assert store.newest(KEY).step >= 5
    assert store.attempt(KEY) == 2


def test_a_wrong_digit_costs_the_newest_checkpoint_only(storage: str) -> None:
    store = Store(storage)
    store.begin(KEY, 1)
    for step in (10, 20, 30):
        store.commit(KEY, 1, step, {"step": step}, [CurvePoint(step, {"x": step / 7}, 1)])
    names = [name for name in store.files.names(KEY) if name.startswith(CURVE)]
    for name in names:
        content = store.files.read(f"{KEY}/{name}")
        store.files.write(f"{KEY}/{name}", content.replace(b"4.28", b"4.29"))
    with pytest.raises(DamagedError, match="a line of a curve is damaged") as error:
        store.points(KEY)
    assert disk_failure(error.value) is error.value, "no trial is to blame"
    assert [point.step for point in store.whole_points(KEY)] == [10, 20]
    assert "from the checkpoint of step 20" in store.begin(KEY, 2)
    assert [point.step for point in store.points(KEY)] == [10, 20]
    assert store.newest(KEY).state == {"step": 20}


def test_a_damaged_curve_is_read_while_its_parts_are_merged(
    storage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, reader, look = Store(storage), Store(storage), Heads.read_whole
    store.begin(KEY, 1)
    for step in (10, 20):
        store.commit(KEY, 1, step, {}, [CurvePoint(step, {"x": step / 7}, 1)])

    def look_and_be_late(heads: Heads, key: str) -> Head:
        head = look(heads, key)
        monkeypatch.undo()
        for step in (30, 40, 50):
            store.commit(KEY, 1, step, {}, [CurvePoint(step, {"x": step / 7}, 1)])
        return head

    monkeypatch.setattr(Heads, "read_whole", look_and_be_late)
    assert [point.step for point in reader.whole_points(KEY)] == [10, 20, 30, 40, 50]


def test_who_has_read_on_reads_a_curve_anew_that_went_back(storage: str) -> None:
    store, reader = Store(storage), Store(storage)
    store.begin(KEY, 1)
    for step in (10, 20):
        store.commit(KEY, 1, step, {}, [CurvePoint(step, {"x": step / 7}, 1)])
    assert len(reader.points(KEY)) == 2
    DAMAGES["no curve"](store)
    store.begin(KEY, 2)
    store.commit(KEY, 2, 30, {}, [CurvePoint(step, {"longer": step / 7}, 123) for step in range(3)])
    assert [point.step for point in reader.points(KEY, since=2)] == [2]


class TestANewerVersion:
    def rewrite(self, store: Store) -> bytes:
        """Write the head as a newer version would, which knows one thing more."""
        name = name_of(store, HEAD)
        content = json.loads(store.files.read(name).rpartition(CHECKSUM)[0] + b"}")
        body = json.dumps(content | {"compressed": "zstd"}).encode()
        newer = b"%b%b%d}" % (body[:-1], CHECKSUM, zlib.crc32(body))
        store.files.write(name, newer)
        return newer

    def test_is_refused_with_words_and_nothing_of_it_is_changed(self, storage, store):
        order = order_in(storage)
        newer, names = self.rewrite(store), store.files.names(KEY)
        for act in (lambda: store.begin(KEY, 2), lambda: store.points(KEY)):
            with pytest.raises(NewerStoreError, match="does not know 'compressed'"):
                act()
        told = Runner(replace(order, attempt=2, reported=10).to_dict()).train()
        report = Report.from_dict(json.loads(told[REPORT]))
        assert (told[LOST], report.lost_by, report.outcome) == (True, "disk", None)
        assert store.files.read(name_of(store, HEAD)) == newer
        assert [n for n in store.files.names(KEY) if n not in ("lock",)] == [
            n for n in names if n not in ("lock",)
        ]


class TestTheDriver:
    def test_tells_of_it_in_a_notice(self, tmp_path):
        bench = Bench(tmp_path, spec({"space": {"optimizer.lr": [1e-1, 1e-2]}}))
        order = bench.next_order()
        bench.sweep.begin(order.number, order.attempt)
        report = Report(5, damage="e1/00000/0 goes on from its start: ...")
        trial = SimpleNamespace(order=order, report=report)
        for _ in range(2):
            Recorder(bench).on_trial_result(1, [], trial, {})
        (notice,) = bench.sweep.notices()
        assert notice.kind == "store"
        assert notice.words == "trial 0: e1/00000/0 goes on from its start: ..."
        again = Report.from_dict(json.loads(json.dumps(report.to_dict())))
        assert again.damage == report.damage

    def test_tells_why_trials_wait_for_the_only_disk(self, tmp_path):
        bench = Bench(tmp_path, spec({"space": {"optimizer.lr": [1e-1]}}))
        order = bench.next_order()
        bench.sweep.begin(order.number, order.attempt)
        bench.sweep.lose(0, 1, "node a: no inodes left", by="disk")
        (notice,) = bench.sweep.notices()
        assert notice.kind == "disk"
        assert notice.words.endswith("tried again after growing pauses: node a: no inodes left")
