"""The fabric check is a job like the others: it passes the same schemas, takes whole nodes, and asks for EFA."""

from __future__ import annotations

import jsonschema
import kubernetes_validate
import pytest

from charts.fabric_check import fabric_check_job
from config.instances import INSTANCES
from config.names import EFA_RESOURCE, GPU_RESOURCE
from config.platform import PlatformConfig
from tests.charts.manifest_checks import CHECKS, Object
from tests.charts.synthesis import Manifests
from tests.charts.test_schemas import validator  # noqa: F401, a fixture
from tests.synthesis import SHIPPED
from trainer.fabric_check import main


@pytest.fixture(scope="module")
def job(block: Manifests) -> Object:
    config = block.platform.config
    assert isinstance(config, PlatformConfig)
    return fabric_check_job(config.node_groups[0], nodes=2, image="registry.example.com/trainer:1")


def test_it_passes_every_schema_and_every_check_beside_the_platforms_objects(
    job: Object,
    block: Manifests,
    validator: jsonschema.Draft202012Validator,  # noqa: F811
) -> None:
    validator.validate(job)
    spec = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec}
    kubernetes_validate.validate(pod, "1.36", strict=True)
    for check in CHECKS:
        assert check([*block.objects, job]) == []


def test_it_is_tried_once_and_meets_without_etcd(job: Object) -> None:
    assert job["spec"]["elasticPolicy"] == {
        "minReplicas": 2,
        "maxReplicas": 2,
        "maxRestarts": 0,
        "rdzvBackend": "c10d",
    }
    assert job["spec"]["pytorchReplicaSpecs"]["Worker"]["restartPolicy"] == "Never"


def test_it_takes_whole_nodes_and_its_log_says_what_carried_it(job: Object) -> None:
    (container,) = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"]
    facts = INSTANCES["p5.48xlarge"]
    assert container["resources"]["limits"][GPU_RESOURCE] == str(facts.gpus_per_node)
    assert container["resources"]["limits"][EFA_RESOURCE] == str(facts.efa_interfaces_per_node)
    assert {"name": "NCCL_DEBUG", "value": "INFO"} in container["env"]


@pytest.mark.parametrize("name", SHIPPED)
def test_the_trainer_takes_the_options_that_it_passes(name: str, manifests_of: object) -> None:
    config = manifests_of(name).platform.config  # type: ignore[operator]
    job = fabric_check_job(config.node_groups[0], nodes=2, image="i:1")
    (container,) = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"]
    torchrun, m, module, *options = container["command"]
    assert (torchrun, m, module) == ("torchrun", "-m", main.__module__)
    published = INSTANCES[config.node_groups[0].instance_type].all_reduce_gb_per_second
    assert options == ([] if published is None else [f"--least-gb-per-second={published:g}"])
