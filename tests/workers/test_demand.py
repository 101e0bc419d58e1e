"""What the experiments want of a cluster: added up, forgotten in time, and followed by drivers."""

import subprocess
import sys
from functools import partial
from types import SimpleNamespace

import pytest
from clocks import Clock
from file_ledger import FileLedger
from helpers.waiting import wait_until
from ray.autoscaler._private.node_provider_availability_tracker import NodeAvailabilitySummary
from ray.autoscaler._private.resource_demand_scheduler import (
    _default_utilization_scorer,
    get_nodes_for,
)
from sweeps import COPYING, SCORNN

from eigensweep.protocol.messages import DriverOptions, EngineNeed
from eigensweep.protocol.shares import Share, share_of
from eigensweep.results.trial_result import Result
from eigensweep.search_spaces.sections import ResourcesConfig
from eigensweep.search_spaces.spec import ExperimentSpec
from eigensweep.workers.driver import experiment as driver
from eigensweep.workers.driver.experiment import LOOK_SECONDS, ExperimentDriver
from eigensweep.workers.driver.nodes import demand
from eigensweep.workers.driver.nodes.demand import KEPT_SECONDS, MOST_BUNDLES, Wishes, bundles_of

CPU, GPU = {"CPU": 1.0}, {"CPU": 2.0, "GPU": 1.0}


def test_the_process_that_adds_up_loads_neither_torch_nor_tune():
    check = (
        "import sys, eigensweep.workers.driver.nodes.demand\n"
        "print({'torch', 'ray.tune', 'optuna'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


class TestWishes:
    @pytest.fixture
    def clock(self):
        return Clock(1000.0)

    @pytest.fixture
    def requests(self):
        return []

    @pytest.fixture
    def wishes(self, clock, requests):
        return Wishes(lambda bundles, labels: requests.append(bundles), clock)

    def test_the_cluster_is_asked_for_the_sum(self, wishes, requests):
        wishes.wish("a", [CPU, CPU])
        wishes.wish("b", [GPU])
        assert requests == [[CPU, CPU], [CPU, CPU, GPU]]

    def test_the_newest_wish_counts_and_is_sent_only_if_it_differs(self, wishes, requests):
        wishes.wish("a", [CPU, CPU])
        wishes.wish("a", [CPU, CPU])
        wishes.wish("a", [CPU])
        wishes.wish("a", [])
        assert requests == [[CPU, CPU], [CPU], []]

    def test_after_its_death_it_takes_back_what_was_asked_before(self, clock):
        asked = []
        Wishes(lambda bundles, labels: asked.append(bundles), clock).wish("a", [CPU] * 9)
        again = Wishes(lambda bundles, labels: asked.append(bundles), clock)
        again.wish("a", [])
        assert asked == [[CPU] * 9, []]

    def test_an_autoscaler_that_is_away_is_asked_again(self, monkeypatch):
        asked, away = [], [True]

        def request(bundles, labels):
            asked.append(bundles)
            if not bundles and away and away.pop():
                raise RuntimeError("the head hangs")

        monkeypatch.setattr(demand, "KEPT_SECONDS", 0.2)
        monkeypatch.setattr(demand, "_request", request)
        demand.DemandActor().wish("a", [CPU])  # and its driver dies
        wait_until(lambda: asked == [[CPU], [], []])

    def test_each_bundle_has_the_labels_of_its_experiment(self, clock):
        requests = []
        wishes = Wishes(lambda *request: requests.append(request), clock)
        wishes.wish("a", [CPU])
        wishes.wish("b", [GPU, GPU], {"zone": "b"})
        assert requests[-1] == ([CPU, GPU, GPU], [{}, {"zone": "b"}, {"zone": "b"}])

    def test_the_wish_of_a_dead_driver_is_forgotten(self, wishes, requests, clock):
        wishes.wish("dead", [CPU])
        clock.now += KEPT_SECONDS - 1
        wishes.wish("alive", [GPU])
        clock.now += 2
        wishes.add_up()
        assert requests[-1] == [GPU]


def test_trials_that_share_an_engine_want_whole_engines():
    share = Share({"CPU": 0.5, "GPU": 0.25}, EngineNeed(lanes=4, trials=4, cpus=2, gpus=1))
    assert bundles_of(share, 4) == [GPU]
    assert bundles_of(share, 5) == [GPU, GPU]
    assert len(bundles_of(Share(CPU), 10**6)) == MOST_BUNDLES


@pytest.mark.parametrize(("lanes", "trials"), [(None, 4), (4, 16)])
def test_rays_autoscaler_starts_nodes_with_the_specs_memory(lanes, trials):
    """Its own packing is asked, as it is when it looks at what is wished for."""
    share = share_of(ResourcesConfig(memory="2 GB"), replicates=1, lanes=lanes)
    kinds = {
        name: {"resources": {"CPU": 8, "memory": memory}, "max_workers": 5}
        for name, memory in (("small", 1e9), ("large", 6e9))
    }
    score = partial(
        _default_utilization_scorer, node_availability_summary=NodeAvailabilitySummary({})
    )
    started, left = get_nodes_for(kinds, {}, "none", 10, bundles_of(share, trials), score)
    assert started == {"large": 2}, "three on a node, for each of which there is memory"
    assert left == []


class TestNodesThatJoinAndLeave:
    """A driver with a cluster whose number of slots the test sets; Ray is not started."""

    @pytest.fixture
    def played(self, monkeypatch):
        played = SimpleNamespace(slots=1, clock=Clock(1000.0), wishes=[])
        monkeypatch.setattr(driver.capacity, "count_slots", lambda share: played.slots)
        monkeypatch.setattr(
            driver, "wish", lambda experiment, some, labels: played.wishes.append(some)
        )
        monkeypatch.setattr(driver.capacity, "find_parts", lambda share: {"CPU": 1 / played.slots})
        monkeypatch.setattr(
            driver, "time", SimpleNamespace(monotonic=played.clock, time=played.clock)
        )
        return played

    @pytest.fixture
    def drive(self, played, tmp_path):
        def start(**spec):
            options = DriverOptions(storage=str(tmp_path / "store"), room_seconds=300.0)
            content = {
                "task": COPYING,
                "model": SCORNN,
                "training": {"steps": 5},
                "search": {"space": {"optimizer.lr": [0.1, 0.2, 0.3, 0.4, 0.5]}},
                **spec,
            }
            ledger = FileLedger(tmp_path / "ledger.json")
            return ExperimentDriver("e1", ExperimentSpec.model_validate(content), ledger, options)

        return start

    def take(self, started):
        """Return the numbers of the trials that the driver hands out now, and begin them."""
        numbers = []
        while (order := started.next_order()) is not None:
            started.sweep.begin(order.number, order.attempt)
            numbers.append(order.number)
        return numbers

    def test_a_node_that_joins_is_used(self, drive, played):
        started = drive()
        assert self.take(started) == [0]
        played.slots = 3
        assert self.take(started) == []
        played.clock.now += LOOK_SECONDS
        assert self.take(started) == [1, 2]

    def test_a_node_that_left_is_not_counted_on(self, drive, played):
        played.slots = 3
        started = drive()
        assert self.take(started) == [0, 1, 2]
        played.slots = 1
        played.clock.now += LOOK_SECONDS
        for number in (0, 1):
            started.sweep.end(number, "completed", Result(value=1.0, step=5))
        assert self.take(started) == []
        started.sweep.end(2, "completed", Result(value=1.0, step=5))
        assert self.take(started) == [3]

    def test_what_waits_is_wished_for(self, drive, played):
        started = drive()
        self.take(started)
        assert played.wishes == [[CPU] * 5]
        started.sweep.end(0, "completed", Result(value=1.0, step=5))
        played.clock.now += LOOK_SECONDS
        self.take(started)
        assert played.wishes[-1] == [CPU] * 4

    def test_memory_is_wished_for_where_the_spec_says_it(self, drive, played):
        self.take(drive(resources={"memory": "2 GB"}, limits={"concurrency": 1}))
        assert played.wishes == [[{"CPU": 1.0, "memory": 2e9}]]

    def test_no_more_is_wished_for_than_may_run(self, drive, played):
        self.take(drive(limits={"concurrency": 2}))
        assert played.wishes == [[CPU] * 2]
