"""The readers, streams and posts of `python -m bench.load`, on a service without Ray."""

from __future__ import annotations

import json
from contextlib import closing

import pytest

from bench import load
from eigensweep.service.record.record import Record
from eigensweep.service.settings import Settings


def test_requests_of_readers_streams_and_clients_are_measured(scripted_service):
    spec = load.one_step(trials=4, offset=9)
    with closing(load.Visitor(scripted_service)) as visitor:
        id = json.loads(visitor.ask("/v1/experiments", spec)[1])["id"]
    assert len(load.read(scripted_service, id, 4, readers=2, requests=12, pause=0.0)) == 24
    assert len(load.post(scripted_service, clients=2)) == 2 * load.POSTS
    told = load.follow(scripted_service, streams=3)
    assert len(told) >= 3 * load.TRAINED  # the end of each trial, at least
    assert min(told) > 0


def test_what_is_refused_is_no_figure(scripted_service):
    with (
        closing(load.Visitor(scripted_service)) as visitor,
        pytest.raises(RuntimeError, match="404"),
    ):
        visitor.ask("/v1/experiments/none")


@pytest.mark.slow
def test_a_prepared_home_holds_a_large_experiment_that_is_over(tmp_path):
    id = load.prepare(tmp_path, trials=50)
    found = Record(Settings(home=tmp_path).database).experiment(id)
    assert found.experiment.state == "completed"
    assert sum(count.trials for count in found.counts.values()) == 50
