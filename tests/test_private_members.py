"""Private members of Ray, MLflow and Optuna that are used: each is there, as in the release named.

Whoever upgrades one of these packages is told here what is gone. What is there may still mean
something else: read these members again, and move the upper bound in `pyproject.toml`.
"""

from __future__ import annotations

import inspect
import tomllib
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from bench.weight import PACKAGES, find_files, find_private

ROOT = Path(__file__).parents[1]
READ_IN = {"ray": "2.60.0"}
"""The release in which all of these were read. Of Optuna and MLflow no private member is used."""

TUNE = "ray.tune.execution.tune_controller:TuneController"
ACTORS = "ray.air.execution._internal.actor_manager:RayActorManager"
USED: dict[str, tuple[str, ...]] = {
    TUNE: (
        *("_actor_manager", "_failed_trials", "_maybe_cache_trial_actor"),
        *("_maybe_reuse_cached_actor", "_stopped_trials", "_trial_to_actor"),
        *("_staged_trials", "_trials_to_cache", "_unstage_trial_with_resources"),
        "_update_trial_queue",
    ),
    ACTORS: (
        *("_actor_start_failed", "_actor_state_events", "_actor_task_events"),
        *("_actor_task_failed", "_try_kill_actor", "_try_start_actors"),
    ),
    "ray.actor:ActorHandle": ("_actor_id",),
    "ray._private.grpc_utils": ("init_grpc_channel",),
    "ray._private.state": ("actors", "available_resources_per_node", "state"),
    "ray._private.state:GlobalState": ("get_draining_nodes",),
    "ray._raylet": ("GcsClient", "setproctitle"),
    "ray.core.generated.node_manager_pb2": (),
    "ray.core.generated.node_manager_pb2_grpc": (),
}


@pytest.mark.parametrize("where", USED)
def test_each_private_member_that_is_used_is_there(where):
    module, _, name = where.partition(":")
    package = module.split(".")[0]
    holder: Any = import_module(module)
    holder = getattr(holder, name) if name else holder
    for member in USED[where]:
        # An attribute that a constructor sets is found in the source.
        found = hasattr(holder, member) or f".{member}" in inspect.getsource(holder)
        words = f"{where} has no {member}, as {package} {READ_IN[package]} had"
        assert found, f"{words}; this is {package} {version(package)}"


def test_each_private_member_that_the_code_uses_is_in_the_list():
    listed = {member for members in USED.values() for member in members}
    assert find_private(ROOT) - listed == set()


def test_none_is_in_the_list_that_the_code_does_not_use():
    words = " ".join(path.read_text() for path in find_files(ROOT))
    unused = [member for members in USED.values() for member in members if member not in words]
    assert unused == []


@pytest.mark.parametrize("package", PACKAGES)
def test_a_release_that_nobody_has_read_is_not_installed(package):
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = [extras["dependencies"], *extras["optional-dependencies"].values()]
    wanted = [Requirement(each) for group in groups for each in group]
    bounds = [each.specifier for each in wanted if each.name == package]
    assert bounds
    for bound in bounds:
        assert version(package) in bound
        assert any(each.operator == "<" for each in bound)
