"""The PyTorchJob resource definition, generated: pod fields from Kubernetes' own schema, the rest from a table here.

Upstream's definition is larger than a client-side apply can carry, and admits a field that stalls the operator for
every job of the cluster (`elasticPolicy.metrics`, without rights on autoscalers). This one has neither fault, and lets
the API server itself refuse what only the operator's webhook would.
Fields: https://github.com/kubeflow/trainer/blob/v1.9.4/pkg/apis/kubeflow.org/v1/pytorch_types.go and common_types.go
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import cdk8s
import kubernetes_validate
from constructs import Construct

from charts.custom_object import custom_object

# The Kubernetes libraries of operator v1.9.4. Pod fields newer than these it would drop without a word.
DEFINITIONS_VERSION = "1.36.0"

Schema = dict[str, Any]

STRING: Schema = {"type": "string"}
BOOLEAN: Schema = {"type": "boolean"}
INT32: Schema = {"type": "integer", "format": "int32"}
INT64: Schema = {"type": "integer", "format": "int64"}
TIME: Schema = {"type": "string", "format": "date-time"}
INT_OR_STRING: Schema = {"anyOf": [{"type": "integer"}, {"type": "string"}], "x-kubernetes-int-or-string": True}
QUANTITY_PATTERN = (
    r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$"
)
# A bare object here would make the API server drop the labels and annotations of every pod.
POD_METADATA: Schema = {
    "type": "object",
    "properties": {
        "annotations": {"type": "object", "additionalProperties": STRING},
        "finalizers": {"type": "array", "items": STRING},
        "labels": {"type": "object", "additionalProperties": STRING},
        "name": STRING,
        "namespace": STRING,
    },
}
KEPT_KEYS = (
    "format",
    "required",
    "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-map-type",
    "default",
)


@cache
def _definitions() -> dict[str, Schema]:
    folder = Path(kubernetes_validate.__file__).parent / "kubernetes-json-schema" / f"v{DEFINITIONS_VERSION}-local"
    definitions: dict[str, Schema] = json.loads((folder / "_definitions.json").read_text(encoding="utf-8"))["$defs"]
    return definitions


def structural(name: str) -> Schema:
    """A definition of the Kubernetes API as a structural schema: no references, and a default for every list-map key.

    https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/#specifying-a-structural-schema
    """
    match name.rsplit(".", 1)[-1]:
        case "Quantity":
            return INT_OR_STRING | {"pattern": QUANTITY_PATTERN}
        case "IntOrString":
            return INT_OR_STRING
        case "ObjectMeta":
            return POD_METADATA
    schema = _converted(_definitions()[name])
    # Keys of list maps must be required or have a default, and these two have neither in the definitions.
    if name.endswith("v1.ContainerPort"):
        schema["properties"]["protocol"]["default"] = "TCP"
    if name.endswith("v1.LocalObjectReference"):
        schema["properties"]["name"]["default"] = ""
    return schema


def _converted(source: Schema) -> Schema:
    if "$ref" in source:
        return structural(source["$ref"].rsplit("/", 1)[-1])
    schema = {key: source[key] for key in KEPT_KEYS if key in source}
    if "type" in source:
        # The definitions allow null everywhere; a structural schema has one type.
        kinds = source["type"] if isinstance(source["type"], list) else [source["type"]]
        schema["type"] = next(kind for kind in kinds if kind != "null")
    if "properties" in source:
        schema.setdefault("type", "object")
        schema["properties"] = {key: _converted(value) for key, value in sorted(source["properties"].items())}
    for key in ("items", "additionalProperties"):
        if isinstance(source.get(key), dict):
            schema[key] = _converted(source[key])
    return schema


def _object(required: list[str] | None = None, /, **properties: Schema) -> Schema:
    schema: Schema = {"type": "object", "properties": properties}
    return schema | {"required": required} if required else schema


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _rule(rule: str, message: str) -> Schema:
    return {"x-kubernetes-validations": [{"rule": rule, "message": message}]}


def pytorch_job_schema() -> Schema:
    """The OpenAPI schema of a PyTorchJob."""
    template = structural("io.k8s.api.core.v1.PodTemplateSpec")
    containers = template["properties"]["spec"]["properties"]["containers"]
    # Bounds, by which the API server can tell that the rules below are cheap.
    containers["maxItems"] = 16
    containers["items"]["properties"]["name"]["maxLength"] = 63
    replicas: Schema = {
        "type": "object",
        "maxProperties": 2,
        "additionalProperties": _object(replicas=INT32, restartPolicy=STRING, template=template),
        "x-kubernetes-validations": [
            {"rule": "self.all(key, key in ['Master', 'Worker'])", "message": "replicas are Master and Worker"},
            {
                "rule": "self.all(key, self[key].template.spec.containers.exists(c, c.name == 'pytorch'))",
                "message": "every replica needs a container named pytorch",
            },
            {
                "rule": "self.all(key, key != 'Master' || (has(self[key].replicas) && self[key].replicas == 1))",
                "message": "there is exactly one Master",
            },
        ],
    }
    spec = _object(
        ["pytorchReplicaSpecs"],
        elasticPolicy=_object(
            maxReplicas=INT32,
            maxRestarts=INT32,
            minReplicas=INT32,
            nProcPerNode=INT32,
            rdzvBackend=STRING,
            rdzvConf=_list(_object(key=STRING, value=STRING)),
            rdzvHost=STRING,
            rdzvId=STRING,
            rdzvPort=INT32,
            standalone=BOOLEAN,
        ),
        nprocPerNode=STRING,
        pytorchReplicaSpecs=replicas,
        runPolicy=_object(
            activeDeadlineSeconds=INT64,
            backoffLimit=INT32,
            cleanPodPolicy=STRING,
            managedBy=STRING,
            schedulingPolicy=_object(
                minAvailable=INT32,
                minResources={
                    "type": "object",
                    "additionalProperties": structural("io.k8s.apimachinery.pkg.api.resource.Quantity"),
                },
                priorityClass=STRING,
                queue=STRING | _rule("self == oldSelf", "the queue cannot be changed"),
                scheduleTimeoutSeconds=INT32,
            ),
            suspend=BOOLEAN | {"default": False},
            ttlSecondsAfterFinished=INT32,
        ),
    )
    condition = _object(
        ["status", "type"],
        lastTransitionTime=TIME,
        lastUpdateTime=TIME,
        message=STRING,
        reason=STRING,
        status=STRING,
        type=STRING,
    )
    status = _object(
        completionTime=TIME,
        conditions=_list(condition),
        lastReconcileTime=TIME,
        replicaStatuses={
            "type": "object",
            "additionalProperties": _object(
                active=INT32,
                failed=INT32,
                labelSelector=structural("io.k8s.apimachinery.pkg.apis.meta.v1.LabelSelector"),
                selector=STRING,
                succeeded=INT32,
            ),
        },
        startTime=TIME,
    )
    return _object(apiVersion=STRING, kind=STRING, metadata={"type": "object"}, spec=spec, status=status)


class PyTorchJobDefinitionChart(cdk8s.Chart):
    """The PyTorchJob kind."""

    def __init__(self, scope: Construct, id_: str) -> None:
        super().__init__(scope, id_)
        custom_object(
            self,
            "Definition",
            {
                "apiVersion": "apiextensions.k8s.io/v1",
                "kind": "CustomResourceDefinition",
                "metadata": {"name": "pytorchjobs.kubeflow.org"},
                "spec": {
                    "group": "kubeflow.org",
                    "scope": "Namespaced",
                    "names": {
                        "kind": "PyTorchJob",
                        "listKind": "PyTorchJobList",
                        "plural": "pytorchjobs",
                        "singular": "pytorchjob",
                    },
                    "versions": [
                        {
                            "name": "v1",
                            "served": True,
                            "storage": True,
                            "schema": {"openAPIV3Schema": pytorch_job_schema()},
                            "subresources": {
                                "status": {},
                                "scale": {
                                    "specReplicasPath": ".spec.pytorchReplicaSpecs.Worker.replicas",
                                    "statusReplicasPath": ".status.replicaStatuses.Worker.active",
                                    "labelSelectorPath": ".status.replicaStatuses.Worker.selector",
                                },
                            },
                            "additionalPrinterColumns": [
                                {"name": "State", "type": "string", "jsonPath": ".status.conditions[-1:].type"},
                                {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
                            ],
                        }
                    ],
                },
            },
        )
