"""The definition that we generate: the API server accepts it, and it keeps, defaults and refuses as it must."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from charts.pytorch_job_crd import DEFINITIONS_VERSION, _definitions, pytorch_job_schema, structural
from tests.charts.manifest_checks import definitions_are_structural
from tests.charts.synthesis import Manifests, Object

Schema = dict[str, Any]
POD_TEMPLATE = "io.k8s.api.core.v1.PodTemplateSpec"


@pytest.fixture(scope="module")
def schema() -> Schema:
    return pytorch_job_schema()


def at(schema: Schema, path: str) -> Schema:
    """The schema of a field, with `*` for the items of a list or the values of a map."""
    for part in path.split("."):
        schema = schema.get("items") or schema["additionalProperties"] if part == "*" else schema["properties"][part]
    return schema


def everything(schema: Schema, path: str = "") -> Iterator[tuple[str, Schema]]:
    yield path, schema
    for name, each in schema.get("properties", {}).items():
        yield from everything(each, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            yield from everything(schema[key], f"{path}.*")


POD = "spec.pytorchReplicaSpecs.*.template.spec"


def test_an_api_server_takes_it_for_structural(block: Manifests) -> None:
    assert definitions_are_structural(block.objects) == []


def test_labels_and_annotations_of_pods_are_kept(schema: Schema) -> None:
    """The API server drops every field of an object that declares none."""
    for path in (
        "spec.pytorchReplicaSpecs.*.template.metadata",
        f"{POD}.volumes.*.ephemeral.volumeClaimTemplate.metadata",
    ):
        assert {"labels", "annotations"} <= at(schema, path)["properties"].keys()


@pytest.mark.parametrize("containers", ["containers", "initContainers", "ephemeralContainers"])
def test_a_port_without_a_protocol_is_tcp(schema: Schema, containers: str) -> None:
    ports = at(schema, f"{POD}.{containers}.*.ports")
    assert ports["x-kubernetes-list-map-keys"] == ["containerPort", "protocol"]
    assert at(ports, "*.protocol")["default"] == "TCP"


def test_the_name_of_a_pull_secret_has_the_default_that_a_list_key_needs(schema: Schema) -> None:
    secrets = at(schema, f"{POD}.imagePullSecrets")
    assert secrets["x-kubernetes-list-map-keys"] == ["name"]
    assert at(secrets, "*.name")["default"] == ""


@pytest.mark.parametrize(
    "path",
    [
        f"{POD}.containers.*.resources.limits.*",
        f"{POD}.containers.*.livenessProbe.httpGet.port",
        f"{POD}.volumes.*.emptyDir.sizeLimit",
        "spec.runPolicy.schedulingPolicy.minResources.*",
    ],
)
def test_a_quantity_and_a_port_may_be_a_number_or_text(schema: Schema, path: str) -> None:
    assert at(schema, path)["x-kubernetes-int-or-string"] is True


def test_metrics_that_would_stop_the_operator_for_every_job_have_no_place(schema: Schema) -> None:
    assert "metrics" not in at(schema, "spec.elasticPolicy")["properties"]


def test_what_a_job_may_leave_out_is_not_required(schema: Schema) -> None:
    assert at(schema, "spec")["required"] == ["pytorchReplicaSpecs"]
    assert "required" not in at(schema, "spec.runPolicy")
    assert at(schema, "spec.runPolicy.suspend")["default"] is False


def test_every_default_has_the_type_of_its_field(schema: Schema) -> None:
    types: dict[str, type] = {"string": str, "boolean": bool, "integer": int, "object": dict, "array": list}
    defaults = {path: each for path, each in everything(schema) if "default" in each}
    assert defaults
    for path, each in defaults.items():
        if not each.get("x-kubernetes-int-or-string"):
            assert isinstance(each["default"], types[each["type"]]), path


def test_pods_have_every_field_that_the_operators_kubernetes_knows() -> None:
    """Compared with the definitions themselves, field by field."""
    seen = 0

    def compare(made: Schema, source: Schema, path: str) -> None:
        nonlocal seen
        if "$ref" in source:
            name = source["$ref"].rsplit("/", 1)[-1]
            if name.rsplit(".", 1)[-1] in ("Quantity", "IntOrString", "ObjectMeta"):
                return
            source = _definitions()[name]
        assert made.get("properties", {}).keys() == source.get("properties", {}).keys(), path
        seen += len(source.get("properties", {}))
        for name, each in source.get("properties", {}).items():
            compare(made["properties"][name], each, f"{path}.{name}")
        for key in ("items", "additionalProperties"):
            if isinstance(source.get(key), dict):
                compare(made[key], source[key], f"{path}.*")

    compare(structural(POD_TEMPLATE), _definitions()[POD_TEMPLATE], "")
    assert seen > 1000


def test_pod_fields_are_those_of_the_operators_kubernetes_and_no_newer() -> None:
    """A field that the operator does not know it would drop without a word: v1.9.4 is built with Kubernetes 0.36."""
    assert DEFINITIONS_VERSION.startswith("1.36.")


def test_the_rules_that_the_api_server_computes_are_bounded(schema: Schema) -> None:
    """It refuses a rule over a list, map or text without a bound, for what it might cost."""
    replicas = at(schema, "spec.pytorchReplicaSpecs")
    assert len(replicas["x-kubernetes-validations"]) == 3
    assert replicas["maxProperties"] == 2
    containers = at(schema, f"{POD}.containers")
    assert containers["maxItems"] <= 16
    assert at(containers, "*.name")["maxLength"] == 63


def test_a_job_scales_and_reports_through_subresources(block: Manifests) -> None:
    (version,) = definition(block)["spec"]["versions"]
    assert version["served"]
    assert version["storage"]
    assert version["subresources"]["status"] == {}
    assert version["subresources"]["scale"]["specReplicasPath"] == ".spec.pytorchReplicaSpecs.Worker.replicas"


def test_the_definition_is_named_after_its_kind_and_group(block: Manifests) -> None:
    spec = definition(block)["spec"]
    assert definition(block)["metadata"]["name"] == f"{spec['names']['plural']}.{spec['group']}"
    assert {f"{spec['group']}/{v['name']}" for v in spec["versions"]} == {
        each["apiVersion"] for each in block.every("PyTorchJob")
    }


def test_it_fits_into_the_annotation_of_a_client_side_apply_too(block: Manifests) -> None:
    """Upstream's, of 290 KB, does not."""
    assert len(json.dumps(definition(block))) < 262144


def definition(manifests: Manifests) -> Object:
    (found,) = manifests.every("CustomResourceDefinition")
    return found
