"""Every object is what the API server of its platform's version would accept."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, get_args

import jsonschema
import kubernetes_validate
import pytest

from charts.pytorch_job_crd import pytorch_job_schema
from config.platform import KubernetesVersion
from tests.charts.synthesis import Manifests, Object


def closed(schema: Any) -> Any:
    """A structural schema as JSON Schema: an undeclared property is an error, and int-or-string is either."""
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string"], **({"pattern": schema["pattern"]} if "pattern" in schema else {})}
    made = {key: closed(value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and "type" in schema:
        made["additionalProperties"] = False
    return made


@pytest.fixture(scope="module")
def validator() -> jsonschema.Draft202012Validator:
    """Validates whole PyTorchJobs; their own metadata is the API server's."""
    schema = closed(pytorch_job_schema())
    schema["properties"]["metadata"] = {"type": "object"}
    return jsonschema.Draft202012Validator(schema)


def test_every_object_passes_the_strict_schema_of_its_platforms_version(manifests: Manifests) -> None:
    for each in manifests.objects:
        if each["kind"] == "PyTorchJob":
            continue
        used = kubernetes_validate.validate(each, manifests.kubernetes_version, strict=True)
        assert used == manifests.kubernetes_version


@pytest.mark.parametrize("version", get_args(KubernetesVersion))
def test_a_cluster_of_any_version_that_a_platform_may_choose_takes_the_objects(block: Manifests, version: str) -> None:
    for each in block.objects:
        if each["kind"] != "PyTorchJob":
            assert kubernetes_validate.validate(each, version, strict=True) == version


def test_every_job_passes_the_schema_of_our_own_definition(
    manifests: Manifests, validator: jsonschema.Draft202012Validator
) -> None:
    jobs = list(manifests.every("PyTorchJob"))
    assert {each["metadata"]["name"] for each in jobs} == {job.name for job in manifests.platform.jobs}
    for job in jobs:
        validator.validate(job)


def test_the_pods_of_every_job_pass_the_strict_schema_of_a_pod(manifests: Manifests) -> None:
    for job in manifests.every("PyTorchJob"):
        for replicas in job["spec"]["pytorchReplicaSpecs"].values():
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": replicas["template"]["spec"]}
            kubernetes_validate.validate(pod, manifests.kubernetes_version, strict=True)


def pod_spec(job: Object) -> Object:
    spec: Object = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    return spec


MISTAKES: dict[str, Callable[[Object], object]] = {
    "a misspelt rendezvous id": lambda job: job["spec"]["elasticPolicy"].update(rdzvID="x"),
    "processes as a number": lambda job: job["spec"].update(nprocPerNode=8),
    "a misspelt node selector": lambda job: pod_spec(job).update(nodeselector={}),
    "an autoscaler's metrics": lambda job: job["spec"]["elasticPolicy"].update(metrics=[]),
    "a container without a name": lambda job: pod_spec(job)["containers"][0].pop("name"),
    "a number in the environment": lambda job: pod_spec(job)["containers"][0]["env"].append({"name": "A", "value": 1}),
    "a quantity that is none": lambda job: pod_spec(job)["containers"][0]["resources"]["limits"].update(cpu="much"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_schema_of_our_definition_refuses(
    block: Manifests, validator: jsonschema.Draft202012Validator, mistake: str
) -> None:
    job = copy.deepcopy(next(block.every("PyTorchJob")))
    MISTAKES[mistake](job)
    with pytest.raises(jsonschema.ValidationError):
        validator.validate(job)
