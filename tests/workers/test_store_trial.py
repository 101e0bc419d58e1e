"""Every node of a real cluster tries the store, and the one without keys is named."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import s3
from helpers.waiting import wait_until


@pytest.mark.slow
@pytest.mark.ray
def test_a_node_without_keys_is_named_a_shared_folder_tried(tmp_path: Path) -> None:
    import ray

    from eigensweep.workers.cluster.ray_cluster import RayCluster

    with s3.serve() as bucket:
        cluster = RayCluster.start(num_cpus=1)
        address = ray.get_runtime_context().gcs_address
        no_keys = {name: value for name, value in os.environ.items() if name not in s3.KEYS}
        no_keys |= {"AWS_EC2_METADATA_DISABLED": "true", "HOME": str(tmp_path)}
        command = [str(Path(sys.executable).parent / "ray"), "start", f"--address={address}"]
        node = subprocess.Popen(
            [*command, "--num-cpus=1", "--block"], env=no_keys, start_new_session=True
        )

        def try_out(storage: str) -> list[str | None]:
            module = "eigensweep.workers.cluster.store_trial"
            asked = [sys.executable, "-m", module, "--address", address, "--storage", storage]
            answer = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
            return list(json.loads(answer).values())

        try:
            wait_until(lambda: len([n for n in ray.nodes() if n["Alive"]]) == 2, ray.nodes)
            assert try_out(str(tmp_path / "store")) == [None, None]
            problem = max(each or "" for each in try_out(f"{bucket}/x"))
            assert "has no keys that open s3://lab: set AWS_ACCESS_KEY_ID" in problem
            assert None in try_out(f"{bucket}/x")
        finally:
            node.terminate()
            node.wait()
            cluster.stop()
