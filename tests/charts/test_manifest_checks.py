"""Every platform passes every check, and every check finds the faults that it is there for."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest

from tests.charts import manifest_checks as checks
from tests.charts.manifest_checks import CHECKS, Check, Object
from tests.charts.synthesis import Manifests

Objects = list[Object]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_manifests_pass(manifests: Manifests, check: Check) -> None:
    assert check(manifests.objects) == []


def named(objects: Objects, kind: str, name: str) -> Object:
    (found,) = (each for each in objects if (each["kind"], each["metadata"]["name"]) == (kind, name))
    return found


def job(objects: Objects) -> Object:
    return named(objects, "PyTorchJob", "llama2-7b")


def job_pod(objects: Objects) -> Object:
    spec: Object = job(objects)["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    return spec


def trainer(objects: Objects) -> Object:
    container: Object = job_pod(objects)["containers"][0]
    return container


def etcd(objects: Objects) -> Object:
    template: Object = named(objects, "Deployment", "etcd")["spec"]["template"]
    return template


def etcd_container(objects: Objects) -> Object:
    container: Object = etcd(objects)["spec"]["containers"][0]
    return container


def schema(objects: Objects) -> Object:
    definition = named(objects, "CustomResourceDefinition", "pytorchjobs.kubeflow.org")
    made: Object = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return made


def template_schema(objects: Objects) -> Object:
    replicas = schema(objects)["properties"]["spec"]["properties"]["pytorchReplicaSpecs"]["additionalProperties"]
    made: Object = replicas["properties"]["template"]["properties"]
    return made


def container_schema(objects: Objects) -> Object:
    made: Object = template_schema(objects)["spec"]["properties"]["containers"]["items"]["properties"]
    return made


def remove(objects: Objects, kind: str, name: str) -> None:
    objects.remove(named(objects, kind, name))


def move_to_front(objects: Objects, kind: str, name: str) -> None:
    found = named(objects, kind, name)
    objects.remove(found)
    objects.insert(0, found)


FAULTS: list[tuple[Check, str, Callable[[Objects], object]]] = [
    (checks.objects_are_unique, "a Service twice", lambda o: o.append(named(o, "Service", "etcd"))),
    (
        checks.selectors_match_their_pods,
        "a label that no pod has",
        lambda o: named(o, "Deployment", "etcd")["spec"]["selector"]["matchLabels"].update(extra="x"),
    ),
    (
        checks.selectors_match_their_pods,
        "no selector",
        lambda o: named(o, "DaemonSet", "efa-device-plugin")["spec"]["selector"].pop("matchLabels"),
    ),
    (
        checks.services_reach_a_port,
        "another selector",
        lambda o: named(o, "Service", "etcd")["spec"].update(selector={"app": "x"}),
    ),
    (
        checks.services_reach_a_port,
        "another target port",
        lambda o: named(o, "Service", "training-operator")["spec"]["ports"][0].update(targetPort=9444),
    ),
    (
        checks.selectors_of_policies_match_a_pod,
        "a budget for nobody",
        lambda o: named(o, "PodDisruptionBudget", "etcd")["spec"]["selector"]["matchLabels"].update(extra="x"),
    ),
    (
        checks.selectors_of_policies_match_a_pod,
        "a policy for nobody",
        lambda o: named(o, "NetworkPolicy", "etcd")["spec"]["podSelector"]["matchLabels"].update(extra="x"),
    ),
    (checks.references_resolve, "no options", lambda o: remove(o, "ConfigMap", "llama2-7b-options")),
    (checks.references_resolve, "no account", lambda o: remove(o, "ServiceAccount", "trainer")),
    (checks.references_resolve, "no claim", lambda o: remove(o, "PersistentVolumeClaim", "shared")),
    (checks.references_resolve, "no volume", lambda o: remove(o, "PersistentVolume", "p5-capacity-block-shared")),
    (checks.references_resolve, "no certificate", lambda o: remove(o, "Secret", "training-operator-webhook-cert")),
    (checks.references_resolve, "no cluster role", lambda o: remove(o, "ClusterRole", "training-operator")),
    (checks.references_resolve, "no role", lambda o: remove(o, "Role", "trainer")),
    (checks.references_resolve, "no webhook service", lambda o: remove(o, "Service", "training-operator")),
    (
        checks.references_resolve,
        "a token that must exist",
        lambda o: trainer(o)["env"][-1]["valueFrom"]["secretKeyRef"].pop("optional"),
    ),
    (
        checks.rendezvous_hosts_exist,
        "a short name",
        lambda o: job(o)["spec"]["elasticPolicy"].update(rdzvHost="etcd"),
    ),
    (checks.rendezvous_hosts_exist, "another port", lambda o: job(o)["spec"]["elasticPolicy"].update(rdzvPort=2380)),
    (checks.namespaces_exist, "no namespace", lambda o: remove(o, "Namespace", "node-agents")),
    (checks.namespaces_exist, "a namespace too late", lambda o: move_to_front(o, "Service", "etcd")),
    (
        checks.scopes_are_right,
        "a volume in a namespace",
        lambda o: named(o, "PersistentVolume", "p5-capacity-block-shared")["metadata"].update(namespace="training"),
    ),
    (checks.scopes_are_right, "a Service in none", lambda o: named(o, "Service", "etcd")["metadata"].pop("namespace")),
    (checks.names_are_valid, "a capital", lambda o: named(o, "Service", "etcd")["metadata"].update(name="E")),
    (checks.names_are_valid, "a job that begins with a digit", lambda o: job(o)["metadata"].update(name="7b")),
    (checks.names_are_valid, "a job with too long a worker", lambda o: job(o)["metadata"].update(name="j" * 55)),
    (
        checks.devices_are_asked_whole,
        "fewer interfaces requested",
        lambda o: trainer(o)["resources"].update(
            requests=trainer(o)["resources"]["requests"] | {"vpc.amazonaws.com/efa": "1"}
        ),
    ),
    (
        checks.devices_are_asked_whole,
        "half a GPU",
        lambda o: [part.update({"nvidia.com/gpu": "500m"}) for part in trainer(o)["resources"].values()],
    ),
    (
        checks.devices_are_asked_whole,
        "hugepages alone",
        lambda o: trainer(o).update(
            resources={part: {"hugepages-2Mi": "5120Mi"} for part in ("requests", "limits")},
        ),
    ),
    (checks.resources_are_stated, "none", lambda o: etcd_container(o).pop("resources")),
    (checks.mounts_and_volumes_agree, "no volume", lambda o: etcd(o)["spec"].pop("volumes")),
    (checks.mounts_and_volumes_agree, "no mount", lambda o: etcd_container(o).pop("volumeMounts")),
    (
        checks.mounts_and_volumes_agree,
        "one path twice",
        lambda o: trainer(o)["volumeMounts"][3].update(mountPath=trainer(o)["volumeMounts"][2]["mountPath"]),
    ),
    (checks.jobs_pass_the_operators_webhook, "another container", lambda o: trainer(o).update(name="trainer")),
    (checks.jobs_pass_the_operators_webhook, "no image", lambda o: trainer(o).pop("image")),
    (
        checks.jobs_pass_the_operators_webhook,
        "another replica",
        lambda o: job(o)["spec"]["pytorchReplicaSpecs"].update(
            Launcher=job(o)["spec"]["pytorchReplicaSpecs"]["Worker"]
        ),
    ),
    (
        checks.jobs_pass_the_operators_webhook,
        "two masters",
        lambda o: job(o)["spec"]["pytorchReplicaSpecs"].update(
            Master=job(o)["spec"]["pytorchReplicaSpecs"]["Worker"] | {"replicas": 2}
        ),
    ),
    (
        checks.jobs_pass_the_operators_webhook,
        "no worker",
        lambda o: job(o)["spec"]["pytorchReplicaSpecs"]["Worker"].update(replicas=0),
    ),
    (
        checks.jobs_pass_the_operators_webhook,
        "elastic without workers",
        lambda o: job(o)["spec"].update(
            pytorchReplicaSpecs={"Master": job(o)["spec"]["pytorchReplicaSpecs"]["Worker"] | {"replicas": 1}}
        ),
    ),
    (
        checks.jobs_pass_the_operators_webhook,
        "the deprecated field",
        lambda o: job(o)["spec"]["elasticPolicy"].update(nProcPerNode=8),
    ),
    (checks.gpu_pods_tolerate_their_taint, "no toleration", lambda o: job_pod(o).pop("tolerations")),
    (
        checks.gpu_pods_tolerate_their_taint,
        "a toleration of everything",
        lambda o: job_pod(o).update(tolerations=[{"operator": "Exists"}]),
    ),
    (
        checks.daemon_sets_tolerate_every_taint,
        "one taint only",
        lambda o: named(o, "DaemonSet", "nvidia-device-plugin")["spec"]["template"]["spec"].update(
            tolerations=[{"key": "nvidia.com/gpu", "operator": "Exists"}]
        ),
    ),
    (checks.images_are_pinned, "latest", lambda o: etcd_container(o).update(image="quay.io/coreos/etcd:latest")),
    (checks.images_are_pinned, "no tag", lambda o: etcd_container(o).update(image="registry:5000/etcd")),
    (
        checks.nothing_secret_or_unresolved,
        "a CDK token",
        lambda o: trainer(o).update(image="${Token[TOKEN.37]}"),
    ),
    (
        checks.nothing_secret_or_unresolved,
        "a Hugging Face token",
        lambda o: trainer(o)["env"].append({"name": "HF_TOKEN", "value": "hf_" + "a" * 34}),
    ),
    (
        checks.nothing_secret_or_unresolved,
        "a Secret with data",
        lambda o: named(o, "Secret", "training-operator-webhook-cert").update(stringData={"tls.key": "x"}),
    ),
    (
        checks.pods_keep_to_their_namespaces_level,
        "a folder of the host",
        lambda o: job_pod(o)["volumes"].append({"name": "x", "hostPath": {"path": "/dev/infiniband"}}),
    ),
    (
        checks.pods_keep_to_their_namespaces_level,
        "a privileged trainer",
        lambda o: trainer(o)["securityContext"].update(privileged=True),
    ),
    (
        checks.pods_keep_to_their_namespaces_level,
        "an operator that may be root",
        lambda o: named(o, "Deployment", "training-operator")["spec"]["template"]["spec"]["securityContext"].pop(
            "runAsNonRoot"
        ),
    ),
    (
        checks.pods_keep_to_their_namespaces_level,
        "a namespace of no level",
        lambda o: named(o, "Namespace", "training")["metadata"].pop("labels"),
    ),
    (
        checks.order_is_that_of_application,
        "the operator before its kind",
        lambda o: move_to_front(o, "Deployment", "training-operator"),
    ),
    (checks.order_is_that_of_application, "something behind jobs", lambda o: o.append(o.pop(0))),
    (
        checks.definitions_are_structural,
        "a port without a default protocol",
        lambda o: container_schema(o)["ports"]["items"]["properties"]["protocol"].pop("default"),
    ),
    (
        checks.definitions_are_structural,
        "pod metadata that would be dropped",
        lambda o: template_schema(o).update(metadata={"type": "object"}),
    ),
    (checks.definitions_are_structural, "a reference", lambda o: container_schema(o).update(x={"$ref": "#/x"})),
    (
        checks.definitions_are_structural,
        "two types",
        lambda o: container_schema(o)["image"].update(type=["string", "null"]),
    ),
    (
        checks.definitions_are_structural,
        "alternatives that are not int-or-string",
        lambda o: container_schema(o)["image"].update(anyOf=[{"type": "string"}]),
    ),
    (
        checks.definitions_are_structural,
        "a required name that is not declared",
        lambda o: container_schema(o)["ports"]["items"].update(required=["gate"]),
    ),
    (
        checks.definitions_are_structural,
        "an object that is a map too",
        lambda o: schema(o)["properties"]["spec"].update(additionalProperties=False),
    ),
]


@pytest.mark.parametrize(
    ("check", "fault"),
    [pytest.param(check, fault, id=f"{check.__name__}-{what}".replace(" ", "_")) for check, what, fault in FAULTS],
)
def test_a_seeded_fault_is_found(block: Manifests, check: Check, fault: Callable[[Objects], object]) -> None:
    objects = copy.deepcopy(block.objects)
    fault(objects)
    assert check(objects)


def test_every_check_has_a_fault_that_shows_it_can_fail() -> None:
    assert {check for check, _, _ in FAULTS} == set(CHECKS)
