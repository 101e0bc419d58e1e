"""deploy/helm: what Helm makes of the chart fits Kubernetes' schemas, Compose and the code.

The tests read what Helm made before (tests/helpers/charts.py). Where `helm` is on PATH, they
compare.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import stat
import subprocess
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from fastapi.routing import APIRoute
from helpers.charts import CASES, CHART, KEPT, ROOT, digest, kept, parse, render
from jsonschema import Draft7Validator
from ray._private import ray_constants as constants
from ray.autoscaler._private.kuberay.autoscaling_config import (
    _derive_autoscaling_config_from_ray_cr,
)
from ray.autoscaler.v2.instance_manager.config import NodeTypeConfig
from ray.autoscaler.v2.scheduler import ResourceDemandScheduler, SchedulingRequest
from ray.autoscaler.v2.utils import ResourceRequestUtil
from ray.core.generated.autoscaler_pb2 import ClusterResourceConstraint
from ray.core.generated.common_pb2 import LABEL_OPERATOR_IN as IN
from typer.testing import CliRunner

from eigensweep.command.cli import app as command_line
from eigensweep.protocol.shares import share_of
from eigensweep.search_spaces.sections import ResourcesConfig
from eigensweep.service.api.routes import metrics
from eigensweep.service.settings import Settings

OLDEST, NEWEST = "1.25", kubernetes_validate.latest_version()


def strict(schema: Any) -> Any:
    """Return a schema that knows no keys but those which it names; Kubernetes drops the others."""
    if isinstance(schema, list):
        return [strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    known = {key: strict(value) for key, value in schema.items()}
    return {**known, "additionalProperties": False} if "properties" in schema else known


RAY_CLUSTER = strict(yaml.safe_load((KEPT / "rayclusters.crd.yaml").read_text()))
"""KubeRay's own schema. Pods in it are held to Kubernetes' own."""
OF_OPERATORS = ("RayCluster", "ServiceMonitor")
OF_THE_STORE = {"AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"}
"""Compose hands on those of the person's own file; the chart's keys come from a Secret."""
OF_KUBERNETES = {"RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"}
"""Compose ends all workers together with the service: nobody would tell their trials to leave."""
OF_THE_VALUES = {"SSL_CERT_FILE"}
"""tests/helm/placed.values.yaml sets it."""
WITH_HELM = pytest.mark.skipif(shutil.which("helm") is None, reason="install helm to run this")


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def objects(case: str) -> list[dict[str, Any]]:
    return kept(case)[1]


def of_kind(objects: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [each for each in objects if each["kind"] == kind]


def pods_of(objects: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each pod's template with the name of what makes it."""
    for each in objects:
        if each["kind"] in ("Deployment", "StatefulSet"):
            yield f"{each['kind']} {each['metadata']['name']}", each["spec"]["template"]
        if each["kind"] == "CronJob":
            yield "backup", each["spec"]["jobTemplate"]["spec"]["template"]
        if each["kind"] == "RayCluster":
            yield "head", each["spec"]["headGroupSpec"]["template"]
            for group in each["spec"]["workerGroupSpecs"]:
                yield f"workers {group['groupName']}", group["template"]


def container_of(objects: list[dict[str, Any]], name: str) -> dict[str, Any]:
    """Return the first container with a name."""
    return next(
        container
        for _, pod in pods_of(objects)
        for container in pod["spec"]["containers"]
        if container["name"] == name
    )


def names_of(container: dict[str, Any]) -> set[str]:
    return {variable["name"] for variable in container["env"]}


COMPOSE = yaml.safe_load(
    re.sub(r"\$\{(\w+)[^}]*\}", "x", (ROOT / "docker-compose.yml").read_text())
)["services"]
COMPOSE_PORTS = dict(
    re.findall(r"--([a-z-]+-port)=(\d+)", COMPOSE["ray-head"]["environment"]["NODE_PORTS"])
)


class TestWhatHelmMakes:
    def test_it_was_made_from_this_chart(self, case: str) -> None:
        assert kept(case)[0] == digest(case), (
            "run `python tests/helpers/charts.py` where helm is installed"
        )

    @WITH_HELM
    def test_it_is_what_helm_makes_now(self, case: str, objects: list[dict[str, Any]]) -> None:
        def place(each: dict[str, Any]) -> tuple[str, str]:
            return each["kind"], each["metadata"]["name"]

        assert sorted(parse(render(case)), key=place) == sorted(objects, key=place)

    @WITH_HELM
    def test_helm_s_lint_has_nothing_to_say(self) -> None:
        done = subprocess.run(["helm", "lint", "--strict", str(CHART)], capture_output=True)
        assert done.returncode == 0, done.stdout.decode()

    @pytest.mark.parametrize("version", [OLDEST, NEWEST])
    @pytest.mark.quick_cases(3)
    def test_kubernetes_knows_every_field(
        self, objects: list[dict[str, Any]], version: str
    ) -> None:
        assert len(objects) > 6
        for each in objects:
            if each["kind"] not in OF_OPERATORS:
                kubernetes_validate.validate(each, version, strict=True)
        for name, pod in pods_of(objects):
            whole = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, **pod}
            whole["metadata"] = {"name": "x", **pod["metadata"]}
            kubernetes_validate.validate(whole, version, strict=True)
            assert name

    def test_kuberay_knows_every_field(self, objects: list[dict[str, Any]]) -> None:
        (cluster,) = of_kind(objects, "RayCluster")

        assert [str(error) for error in Draft7Validator(RAY_CLUSTER).iter_errors(cluster)] == []
        for group in cluster["spec"]["workerGroupSpecs"]:
            assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]

    def test_kubernetes_knows_every_field_of_the_autoscaler(
        self, objects: list[dict[str, Any]]
    ) -> None:
        options = of_kind(objects, "RayCluster")[0]["spec"]["autoscalerOptions"]
        of_ray = ("version", "upscalingMode", "idleTimeoutSeconds")
        container = {key: value for key, value in options.items() if key not in of_ray}

        spec = {"containers": [{"name": "autoscaler", **container}]}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": spec}
        kubernetes_validate.validate(pod, NEWEST, strict=True)

    @pytest.mark.parametrize(
        "path", ["spec", "spec/autoscalerOptions", "spec/headGroupSpec", "spec/workerGroupSpecs/0"]
    )
    def test_a_key_that_kuberay_does_not_know_is_found(self, path: str) -> None:
        (cluster,) = of_kind(kept("default")[1], "RayCluster")
        inner: Any = cluster
        for word in path.split("/"):
            inner = inner[int(word) if word.isdigit() else word]
        inner["nodeSelector"] = {"pool": "sweeps"}

        assert not Draft7Validator(RAY_CLUSTER).is_valid(cluster)

    def test_names_are_unique_and_selectors_find_their_pods(
        self, objects: list[dict[str, Any]]
    ) -> None:
        names = [(each["kind"], each["metadata"]["name"]) for each in objects]
        assert len(names) == len(set(names))
        for each in [*of_kind(objects, "Deployment"), *of_kind(objects, "StatefulSet")]:
            selector = each["spec"]["selector"]["matchLabels"]
            assert selector.items() <= each["spec"]["template"]["metadata"]["labels"].items()
        labels = [pod["metadata"]["labels"] for _, pod in pods_of(objects)]
        for each in of_kind(objects, "Service"):
            selector = each["spec"]["selector"].items()
            assert sum(selector <= found.items() for found in labels) == 1

    def test_every_mount_has_its_volume(self, objects: list[dict[str, Any]]) -> None:
        claims = {each["metadata"]["name"] for each in of_kind(objects, "PersistentVolumeClaim")}
        for name, pod in pods_of(objects):
            volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
            if name.startswith("StatefulSet"):
                volumes["databases"] = {}
            for container in [*pod["spec"]["containers"], *pod["spec"].get("initContainers", [])]:
                assert {mount["name"] for mount in container["volumeMounts"]} <= set(volumes), name
            for volume in volumes.values():
                claim = volume.get("persistentVolumeClaim", {}).get("claimName")
                assert claim in claims | {None, "shared", "corpora"}


class TestItIsWhatComposeStarts:
    def test_the_service_has_the_same_settings(self, objects: list[dict[str, Any]]) -> None:
        found = {n for n in names_of(container_of(objects, "service")) if n.startswith("EIGEN")}

        assert found <= {f"EIGENSWEEP_{name.upper()}" for name in Settings.model_fields}
        of_compose = {n for n in COMPOSE["service"]["environment"] if n.startswith("EIGEN")}
        assert found - of_compose <= {"EIGENSWEEP_MAX_EXPERIMENTS"}, "those of the values"
        assert of_compose <= found

    def test_a_worker_has_the_same_variables(self, objects: list[dict[str, Any]]) -> None:
        of_compose = set(COMPOSE["ray-worker"]["environment"])

        assert names_of(
            container_of(objects, "ray-worker")
        ) - OF_THE_STORE - OF_THE_VALUES - OF_KUBERNETES == of_compose - OF_THE_STORE - {
            *("NODE_PORTS", "WORKER_CPUS", "WORKER_GIB"),
        }
        assert names_of(container_of(objects, "ray-head")) == names_of(
            container_of(objects, "ray-worker")
        ) - OF_KUBERNETES - {"EIGENSWEEP_DATA_ROOT"}

    def test_all_nodes_have_its_ports_and_the_policy_lets_them_in(
        self, objects: list[dict[str, Any]]
    ) -> None:
        (cluster,) = of_kind(objects, "RayCluster")
        command = " ".join(container_of(objects, "service")["command"])
        assert dict(re.findall(r"--([a-z-]+-port)=(\d+)", command)) == COMPOSE_PORTS
        groups = [cluster["spec"]["headGroupSpec"], *cluster["spec"]["workerGroupSpecs"]]
        for group in groups:
            given = group["rayStartParams"]
            assert {n: v for n, v in given.items() if n.endswith("-port")} == COMPOSE_PORTS
        assert groups[0]["rayStartParams"]["port"] == "6379"
        policy = next(
            each
            for each in of_kind(objects, "NetworkPolicy")
            if each["metadata"]["name"].endswith("-ray")
        )
        (rule,) = policy["spec"]["ingress"]
        assert [(each["port"], each["endPort"]) for each in rule["ports"]] == [
            (6379, max(int(v) for n, v in COMPOSE_PORTS.items() if "worker" not in n)),
            (int(COMPOSE_PORTS["min-worker-port"]), int(COMPOSE_PORTS["max-worker-port"])),
        ]

    def test_the_service_joins_the_cluster_and_serves(self, objects: list[dict[str, Any]]) -> None:
        node, service = container_of(objects, "service")["command"][-1].split(" & ")
        words = shlex.split(node)

        assert (
            words[:6]
            == shlex.split("while true; do ray start --block --address=$EIGENSWEEP_RAY_ADDRESS")[:6]
        )
        assert {"--num-cpus=0", "--num-gpus=0"} <= set(words)
        of_compose = COMPOSE["service"]["command"][-1].split(" & ")[1]
        assert service == of_compose.replace("ray-head:6379", "$EIGENSWEEP_RAY_ADDRESS")

    def test_mlflow_is_started_in_the_same_way(self) -> None:
        objects = kept("default")[1]
        ours, compose = container_of(objects, "mlflow"), COMPOSE["mlflow"]

        assert ours["command"][:-1] == compose["command"][:-1]
        assert ours["command"][-1].startswith(compose["command"][-1])
        assert names_of(ours) - {"POSTGRES_PASSWORD"} == set(compose["environment"])
        (hosts,) = (v["value"] for v in ours["env"] if v["name"] == "MLFLOW_SERVER_ALLOWED_HOSTS")
        uri = next(
            v["value"]
            for v in container_of(objects, "service")["env"]
            if v["name"] == "EIGENSWEEP_MLFLOW_URI"
        )
        assert uri.removeprefix("http://") in hosts.split(",")

    def test_ray_offers_what_a_worker_was_given(self, objects: list[dict[str, Any]]) -> None:
        (cluster,) = of_kind(objects, "RayCluster")
        for group in cluster["spec"]["workerGroupSpecs"]:
            (container,) = group["template"]["spec"]["containers"]
            limits, told = container["resources"]["limits"], group["rayStartParams"]
            assert container["resources"]["requests"] == limits
            assert told["num-cpus"] == limits["cpu"]
            assert told["num-gpus"] == limits.get("nvidia.com/gpu", "0")
            gib = int(limits["memory"].removesuffix("Gi"))
            assert int(told["memory"]) == (gib - 1) * 2**30
        assert cluster["spec"]["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"


class TestCheckpointsInAnObjectStore:
    CONTAINERS = ("service", "ray-head", "ray-worker")

    def test_each_pod_that_uses_them_has_their_address_and_keys(self) -> None:
        objects = kept("objectstore")[1]
        for name in self.CONTAINERS:
            container = container_of(objects, name)
            values = {each["name"]: each.get("value") for each in container["env"]}
            assert values["AWS_ENDPOINT_URL"] == "https://minio.example.org:9000"
            assert container["envFrom"] == [{"secretRef": {"name": "minio-keys"}}]
            assert "storage" not in {mount["name"] for mount in container["volumeMounts"]}
        service = container_of(objects, "service")["env"]
        assert [each["value"] for each in service if each["name"] == "EIGENSWEEP_STORAGE"] == [
            "s3://sweeps/lab"
        ]

    def test_no_claim_wants_a_class_that_many_nodes_can_write(self) -> None:
        claims = of_kind(kept("objectstore")[1], "PersistentVolumeClaim")

        assert "sweep-eigensweep-storage" not in {each["metadata"]["name"] for each in claims}
        assert {tuple(each["spec"]["accessModes"]) for each in claims} == {("ReadWriteOnce",)}

    def test_without_one_nothing_of_it_is_there(self) -> None:
        objects = kept("default")[1]
        for name in self.CONTAINERS:
            assert "envFrom" not in container_of(objects, name)
            assert "AWS_ENDPOINT_URL" not in names_of(container_of(objects, name))


class TestBackups:
    def test_by_default_there_is_none(self) -> None:
        objects = kept("default")[1]
        assert of_kind(objects, "CronJob") == []
        claims = of_kind(objects, "PersistentVolumeClaim")
        assert not [each for each in claims if each["metadata"]["name"].endswith("backups")]

    @pytest.mark.parametrize("case", ["objectstore", "placed"])
    def test_it_finds_what_the_service_has_and_runs_beside_it(self, case: str) -> None:
        objects = kept(case)[1]
        (job,) = of_kind(objects, "CronJob")
        pod = job["spec"]["jobTemplate"]["spec"]["template"]
        (container,) = pod["spec"]["containers"]
        service = container_of(objects, "service")

        assert container["image"] == service["image"]
        assert container.get("envFrom") == service.get("envFrom")
        of_service = {variable["name"]: variable for variable in service["env"]}
        found = {variable["name"]: variable for variable in container["env"]}
        assert found.items() <= of_service.items()
        wanted = {"HOME", "DATABASE_URL", "STORAGE", "MLFLOW_URI"}
        assert {f"EIGENSWEEP_{name}" for name in wanted} <= set(found)
        mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        assert mounts.pop("backups") == "/srv/backups"
        assert (
            mounts.items() <= {m["name"]: m["mountPath"] for m in service["volumeMounts"]}.items()
        )
        (term,) = pod["spec"]["affinity"]["podAffinity"][
            "requiredDuringSchedulingIgnoredDuringExecution"
        ]
        labels = dict(pods_of(objects))["Deployment sweep-eigensweep"]["metadata"]["labels"]
        assert term["labelSelector"]["matchLabels"].items() <= labels.items()
        assert term["topologyKey"] == "kubernetes.io/hostname"

    def test_its_command_is_ours_and_keeps_as_many_as_asked_for(self) -> None:
        (job,) = of_kind(kept("placed")[1], "CronJob")
        (container,) = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]

        assert job["spec"]["schedule"] == "0 4 * * 0"
        assert container["command"] == ["eigensweep", "backup", "/srv/backups", "--keep", "3"]
        done = CliRunner().invoke(command_line, [*container["command"][1:], "--help"])
        assert done.exit_code == 0

    def test_postgresql_lets_it_in(self) -> None:
        for case, is_there in (("default", False), ("placed", True)):
            policy = next(
                each
                for each in of_kind(kept(case)[1], "NetworkPolicy")
                if each["metadata"]["name"].endswith("-postgresql")
            )
            peers = [
                peer["podSelector"]["matchLabels"]["app.kubernetes.io/component"]
                for peer in policy["spec"]["ingress"][0]["from"]
            ]
            assert ("backup" in peers) == is_there


class TestGroupsThatComeFromZero:
    """Ray's own autoscaler reads what Helm made, as KubeRay hands it on."""

    @pytest.fixture
    def groups(self) -> dict[str, Any]:
        (cluster,) = of_kind(kept("outer")[1], "RayCluster")
        cluster["metadata"]["namespace"] = "sweeps"
        made = _derive_autoscaling_config_from_ray_cr(cluster)
        return {
            name: NodeTypeConfig(
                name=name,
                min_worker_nodes=each["min_workers"],
                max_worker_nodes=each["max_workers"],
                resources=each["resources"],
                labels=each["labels"],
            )
            for name, each in made["available_node_types"].items()
            if each["max_workers"]
        }

    @pytest.mark.parametrize(
        ("asked", "group"),
        [
            ({"gpus": 1, "accelerator_type": "A100"}, "a100"),
            ({"gpus": 1, "labels": {"zone": "b"}}, "t4"),
            ({"gpus": 1, "accelerator_type": "H100"}, None),
        ],
    )
    def test_a_spec_s_labels_bring_up_the_group_that_has_them(
        self, groups: dict[str, Any], asked: dict[str, Any], group: str | None
    ) -> None:
        share = share_of(ResourcesConfig(cpus=1, **asked), 1, None)
        selector = [(key, IN, [value]) for key, value in share.labels.items()]
        request = ResourceRequestUtil.make(share.resources, [], [selector])
        by_count = ResourceRequestUtil.group_by_count([request])
        wanted = ClusterResourceConstraint(resource_requests=by_count)
        empty = {name: replace(each, min_worker_nodes=0) for name, each in groups.items()}

        reply = ResourceDemandScheduler().schedule(
            SchedulingRequest(
                disable_launch_config_check=True,
                node_type_configs=empty,
                max_num_nodes=10,
                cluster_resource_constraints=[wanted],
            )
        )

        launched = {each.instance_type: each.count for each in reply.to_launch}
        assert launched == ({} if group is None else {group: 1})

    def test_no_group_s_labels_are_among_the_options_of_ray_start(
        self, objects: list[dict[str, Any]]
    ) -> None:
        """KubeRay refuses these there, and both forms of resources beside each other."""
        (cluster,) = of_kind(objects, "RayCluster")
        assert cluster["spec"]["autoscalerOptions"]["version"] == "v2"
        for group in cluster["spec"]["workerGroupSpecs"]:
            assert "labels" not in group["rayStartParams"]
            assert "resources" not in group
            assert "restartPolicy" not in group["template"]["spec"]


def test_a_worker_that_ends_has_time_to_let_its_trials_leave(objects: list[dict[str, Any]]) -> None:
    for name, pod in pods_of(objects):
        if name.startswith("workers"):
            (container,) = pod["spec"]["containers"]
            (seconds,) = (
                int(variable["value"])
                for variable in container["env"]
                if variable["name"] == "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"
            )
            assert seconds == 90
            assert pod["spec"]["terminationGracePeriodSeconds"] > seconds


def test_ray_reads_how_long_it_may_take() -> None:
    assert constants.RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S > 0


def test_kueue_finds_its_queue_and_streams_pass_the_ingress() -> None:
    objects = kept("outer")[1]
    labels = of_kind(objects, "RayCluster")[0]["metadata"]["labels"]
    assert labels["kueue.x-k8s.io/queue-name"] == "sweeps"
    assert labels["app.kubernetes.io/instance"] == "sweep"
    annotations = of_kind(objects, "Ingress")[0]["metadata"]["annotations"]
    assert annotations["nginx.ingress.kubernetes.io/proxy-buffering"] == "off"


class TestWhereAPodRunsAndWhatItHasBesides:
    MAIN = ("service", "mlflow", "postgresql", "ray-head", "ray-worker")

    def test_every_pod_is_placed_as_the_values_say(self) -> None:
        asked = yaml.safe_load((KEPT / "placed.values.yaml").read_text())["service"]
        pods = dict(pods_of(kept("placed")[1]))

        assert pods.pop("backup")["spec"]["tolerations"] == asked["tolerations"]
        assert len(pods) == len(self.MAIN)
        for name, pod in pods.items():
            assert pod["metadata"]["annotations"] == asked["podAnnotations"], name
            for key in ("nodeSelector", "tolerations", "affinity", "priorityClassName"):
                assert pod["spec"][key] == asked[key], name

    def test_its_main_container_has_the_values_variables(self) -> None:
        objects = kept("placed")[1]
        asked = yaml.safe_load((KEPT / "placed.values.yaml").read_text())["service"]

        for name in self.MAIN:
            container = container_of(objects, name)
            assert container["env"][-1:] == asked["extraEnv"], name
            assert container["volumeMounts"][-1:] == asked["extraVolumeMounts"], name
        for name, pod in pods_of(objects):
            assert (asked["extraVolumes"][0] in pod["spec"]["volumes"]) == (name != "backup"), name

    def test_by_default_none_of_it_is_there(self) -> None:
        for name, pod in pods_of(kept("default")[1]):
            assert "annotations" not in pod["metadata"], name
            assert not {"affinity", "priorityClassName", "nodeSelector"} & set(pod["spec"]), name


def test_prometheus_finds_the_metrics_and_has_a_token() -> None:
    objects = kept("outer")[1]
    (monitor,) = of_kind(objects, "ServiceMonitor")

    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    (endpoint,) = monitor["spec"]["endpoints"]
    selector = monitor["spec"]["selector"]["matchLabels"].items()
    (service,) = (
        each
        for each in of_kind(objects, "Service")
        if selector <= each["metadata"]["labels"].items()
    )
    assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}
    assert endpoint["path"] in {
        route.path for route in metrics.router.routes if isinstance(route, APIRoute)
    }
    credentials = endpoint["authorization"].pop("credentials")
    assert credentials == {"name": "eigensweep-secrets", "key": "eigensweep-token"}
    assert of_kind(kept("default")[1], "ServiceMonitor") == []


def test_draining_a_node_ends_no_head_service_or_database() -> None:
    budgets = of_kind(kept("default")[1], "PodDisruptionBudget")

    assert {each["spec"]["maxUnavailable"] for each in budgets} == {0}
    selectors = {
        each["metadata"]["name"]: each["spec"]["selector"]["matchLabels"] for each in budgets
    }
    assert set(selectors) == {f"sweep-eigensweep-{n}" for n in ("head", "service", "postgresql")}
    for name in ("service", "postgresql"):
        labels = [pod["metadata"]["labels"] for _, pod in pods_of(kept("default")[1])]
        selector = selectors[f"sweep-eigensweep-{name}"].items()
        assert sum(selector <= each.items() for each in labels) == 1
    assert selectors["sweep-eigensweep-head"]["ray.io/node-type"] == "head"


def test_postgresql_takes_more_connections_than_by_default() -> None:
    container = container_of(kept("default")[1], "postgresql")
    assert container["args"] == ["-c", "max_connections=200"]


def test_an_upgrade_of_the_image_makes_head_and_workers_anew(objects: list[dict[str, Any]]) -> None:
    (cluster,) = of_kind(objects, "RayCluster")
    assert cluster["spec"]["upgradeStrategy"] == {"type": "Recreate"}


def test_the_tag_is_part_of_what_kuberay_compares() -> None:
    images = [
        [pod["spec"]["containers"][0]["image"] for n, pod in pods_of(kept(case)[1]) if n != "head"]
        for case in ("default", "objectstore")
    ]
    ours = f"eigensweep-worker:{yaml.safe_load((CHART / 'Chart.yaml').read_text())['version']}"
    assert ours in images[0]
    assert "eigensweep-worker:nightly" in images[1]
    assert ours not in images[1]


class TestItIsLocked:
    def test_no_container_is_root_or_writes_elsewhere(self, objects: list[dict[str, Any]]) -> None:
        for name, pod in pods_of(objects):
            spec = pod["spec"]
            assert spec["securityContext"]["runAsNonRoot"] is True, name
            assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
            assert spec["enableServiceLinks"] is False, "they would set EIGENSWEEP_MLFLOW_PORT"
            for container in [*spec["containers"], *spec.get("initContainers", [])]:
                locked = container["securityContext"]
                assert locked["readOnlyRootFilesystem"] is True
                assert locked["allowPrivilegeEscalation"] is False
                assert locked["capabilities"] == {"drop": ["ALL"]}
                assert set(container["resources"]["limits"]) >= {"cpu", "memory"}
            if name != "head":  # its autoscaler asks Kubernetes for pods
                assert spec["automountServiceAccountToken"] is False

    def test_every_container_is_watched(self, objects: list[dict[str, Any]]) -> None:
        for name, pod in pods_of(objects):
            if name == "backup":  # it ends by itself
                continue
            for container in pod["spec"]["containers"]:
                assert {"startupProbe", "livenessProbe", "readinessProbe"} <= set(container), name
        service = container_of(objects, "service")
        paths = {service[f"{kind}Probe"]["httpGet"]["path"] for kind in ("liveness", "readiness")}
        assert paths == {"/healthz", "/readyz"}
        assert "/readyz" in COMPOSE["service"]["healthcheck"]["test"][-1]
        test = COMPOSE["ray-worker"]["healthcheck"]["test"][1:]
        command = container_of(objects, "ray-worker")["readinessProbe"]["exec"]["command"]
        assert [re.sub(r"--address=.*:", "--address=:", word) for word in command] == [
            re.sub(r"--address=.*:", "--address=:", word) for word in test
        ]

    def test_secrets_come_from_the_secret_alone(self, objects: list[dict[str, Any]]) -> None:
        for name, pod in pods_of(objects):
            for container in pod["spec"]["containers"]:
                for variable in container["env"]:
                    is_secret = variable["name"].endswith(("TOKEN", "PASSWORD"))
                    assert is_secret <= ("secretKeyRef" in variable.get("valueFrom", {})), name
                    for password in re.findall(r"://\w+:([^@]*)@", variable.get("value", "")):
                        assert password == "$(POSTGRES_PASSWORD)"

    def test_every_pod_has_a_policy_databases_admit_the_service(self) -> None:
        objects = kept("default")[1]
        policies = of_kind(objects, "NetworkPolicy")

        assert len(policies) == 4
        inside = {
            each["metadata"]["name"]: each["spec"]["ingress"][0].get("from") for each in policies
        }
        assert inside["sweep-eigensweep-service"] is None
        for name in ("mlflow", "postgresql", "ray"):
            for peer in inside[f"sweep-eigensweep-{name}"]:
                assert list(peer) == ["podSelector"], "pods of this namespace only"

    def test_folders_that_code_is_loaded_from_are_private(self, tmp_path: Path) -> None:
        scratch = tmp_path / "scratch"
        scratch.mkdir()
        scratch.chmod(0o777)  # as an empty volume is
        (_, pod) = next(pods_of(kept("default")[1]))
        (maker,) = pod["spec"]["initContainers"]

        command = [word.replace("/scratch", str(scratch)) for word in maker["command"]]
        for _ in range(2):  # the container may be started again
            subprocess.run(command, check=True)

        modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in scratch.iterdir()}
        assert modes == {"home": 0o700, "tmp": 0o1777}


class TestValues:
    @pytest.fixture
    def schema(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
        return found

    @pytest.fixture
    def values(self) -> dict[str, Any]:
        found: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
        return found

    def test_the_defaults_fit_and_all_of_them_are_there(
        self, schema: dict[str, Any], values: dict[str, Any]
    ) -> None:
        Draft7Validator.check_schema(schema)
        assert [str(error) for error in Draft7Validator(schema).iter_errors(values)] == []
        assert set(schema["properties"]) - {"global"} == set(values)

    @pytest.mark.parametrize(
        ("path", "value"),
        [
            ("replicas", 3),
            ("service/replicas", 2),
            ("service/settings", {"PORT": "1"}),
            ("service/affinity", {"nodeAfinity": {}}),
            ("mlflow/nodeSelector", ["pool"]),
            ("serviceMonitor/interval", "often"),
            ("backup/schedule", "nightly"),
            ("backup/keep", 0),
            ("ray/labels", {"kueue.x-k8s.io/queue-name": "two words"}),
            ("postgresql/extraEnv", [{"value": "without a name"}]),
            ("ray/head/podAnnotations", {"count": 3}),
            ("ray/head/extraVolumeMounts", [{"name": "without a path"}]),
            ("service/settings", {"EIGENSWEEP_STORAGE": "s3://bucket/prefix"}),
            ("storage/url", "/srv/storage"),
            ("mlflow/builtIn", False),
            ("persistence/storage/size", "lots"),
            ("ray/workerGroups", []),
        ],
    )
    def test_what_does_not_fit_is_refused(
        self, schema: dict[str, Any], values: dict[str, Any], path: str, value: Any
    ) -> None:
        *sections, name = path.split("/")
        inner = values
        for section in sections:
            inner = inner[section]
        inner[name] = value

        assert list(Draft7Validator(schema).iter_errors(values))

    def test_the_versions_are_ours(self, values: dict[str, Any]) -> None:
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
        constraints = (ROOT / "constraints.txt").read_text()

        assert chart["version"] == chart["appVersion"] == project["version"]
        assert f"\nray=={values['ray']['version']}\n" in constraints
        tags = {
            name: image["tag"]
            for name, image in values["images"].items()
            if name != "pull" and isinstance(image, dict)
        }
        assert tags == {"service": "", "worker": "", "postgresql": "17"}
        assert COMPOSE["postgres"]["image"] == "postgres:17"

    def test_the_page_explains_every_section(self, values: dict[str, Any]) -> None:
        page = (CHART / "README.md").read_text()

        assert [name for name in values if f"| `{name}" not in page] == []
