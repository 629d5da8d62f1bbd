"""What no schema says of manifests: that selectors meet their pods, that names lead somewhere, that the API server's,
the operator's and the kubelet's own rules hold. Each check takes all objects of a platform, in the order of
application, and returns a sentence for each fault.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

Object = dict[str, Any]
Check = Callable[[list[Object]], list[str]]

CLUSTER_SCOPED = {
    "ClusterRole",
    "ClusterRoleBinding",
    "CustomResourceDefinition",
    "Namespace",
    "PersistentVolume",
    "ValidatingWebhookConfiguration",
}
BUILT_IN_NAMESPACES = {"default", "kube-node-lease", "kube-public", "kube-system"}
# The controller-manager puts this one into every namespace:
# https://kubernetes.io/docs/concepts/storage/projected-volumes/#serviceaccounttoken
BUILT_IN_CONFIG_MAPS = {"kube-root-ca.crt"}
OPERATORS_JOB_LABEL = "training.kubeflow.org/job-name"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """The pod that an object makes, under the name of that object."""

    owner: str
    kind: str
    namespace: str
    labels: dict[str, str]
    spec: Object
    selector: dict[str, str] = field(default_factory=dict)

    @property
    def containers(self) -> list[Object]:
        """Init containers, then containers."""
        return [*self.spec.get("initContainers", []), *self.spec["containers"]]


def called(each: Object) -> str:
    """How a finding names an object."""
    return f"{each['kind']} {each['metadata']['name']}"


def pods(objects: list[Object]) -> Iterator[Pod]:
    """Every pod template, with the labels that its pods carry."""
    for each in objects:
        spec, metadata = each.get("spec", {}), each["metadata"]
        match each["kind"]:
            case "Deployment" | "DaemonSet" | "StatefulSet":
                template = spec["template"]
                yield Pod(
                    owner=called(each),
                    kind=each["kind"],
                    namespace=metadata["namespace"],
                    labels=template.get("metadata", {}).get("labels", {}),
                    spec=template["spec"],
                    selector=spec["selector"].get("matchLabels", {}),
                )
            case "PyTorchJob":
                for replicas in spec["pytorchReplicaSpecs"].values():
                    yield Pod(
                        owner=called(each),
                        kind=each["kind"],
                        namespace=metadata["namespace"],
                        labels={OPERATORS_JOB_LABEL: metadata["name"]},
                        spec=replicas["template"]["spec"],
                    )


def of_kind(objects: list[Object], *kinds: str) -> list[Object]:
    """The objects of some kinds."""
    return [each for each in objects if each["kind"] in kinds]


def names(objects: list[Object], kind: str) -> set[tuple[str | None, str]]:
    """Namespace and name of every object of a kind."""
    return {(each["metadata"].get("namespace"), each["metadata"]["name"]) for each in of_kind(objects, kind)}


def objects_are_unique(objects: list[Object]) -> list[str]:
    """Two objects of one name would overwrite one another."""
    seen = [(each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"]) for each in objects]
    return [f"{kind} {name} is defined twice" for kind, space, name in set(seen) if seen.count((kind, space, name)) > 1]


def selectors_match_their_pods(objects: list[Object]) -> list[str]:
    """The API server refuses a workload whose selector misses its own pods, and one without a selector."""
    return [
        f"{pod.owner}: its selector misses its pods"
        for pod in pods(objects)
        if pod.kind != "PyTorchJob" and not (pod.selector and pod.selector.items() <= pod.labels.items())
    ]


def services_reach_a_port(objects: list[Object]) -> list[str]:
    """A Service must select pods of its namespace, each of which has the port."""
    found = []
    for service in of_kind(objects, "Service"):
        wanted = service["spec"]["selector"].items()
        behind = [
            pod
            for pod in pods(objects)
            if pod.namespace == service["metadata"]["namespace"] and wanted <= pod.labels.items()
        ]
        if not behind:
            found.append(f"{called(service)}: selects no pod")
        for pod in behind:
            ports = [port for container in pod.spec["containers"] for port in container.get("ports", [])]
            open_ports = {port["containerPort"] for port in ports} | {port.get("name") for port in ports}
            found += [
                f"{called(service)}: {pod.owner} has no port {port.get('targetPort', port['port'])}"
                for port in service["spec"]["ports"]
                if port.get("targetPort", port["port"]) not in open_ports
            ]
    return found


def selectors_of_policies_match_a_pod(objects: list[Object]) -> list[str]:
    """A disruption budget or a network policy that selects nothing protects nothing."""
    found = []
    for each in of_kind(objects, "PodDisruptionBudget", "NetworkPolicy"):
        selector = each["spec"].get("selector") or each["spec"]["podSelector"]
        wanted = selector.get("matchLabels", {}).items()
        if not any(p.namespace == each["metadata"]["namespace"] and wanted <= p.labels.items() for p in pods(objects)):
            found.append(f"{called(each)}: selects no pod")
    return found


def references_resolve(objects: list[Object]) -> list[str]:
    """Every ConfigMap, Secret, claim, account, role and Service that an object names is defined, or optional."""
    found = []
    for pod in pods(objects):
        for kind, name in _named_by_pod(pod.spec):
            if kind == "ConfigMap" and name in BUILT_IN_CONFIG_MAPS:
                continue
            if (pod.namespace, name) not in names(objects, kind):
                found.append(f"{pod.owner}: {kind} {name} is not defined")
    for binding in of_kind(objects, "RoleBinding", "ClusterRoleBinding"):
        role, space = binding["roleRef"], binding["metadata"].get("namespace")
        if (space if role["kind"] == "Role" else None, role["name"]) not in names(objects, role["kind"]):
            found.append(f"{called(binding)}: {role['kind']} {role['name']} is not defined")
        found += [
            f"{called(binding)}: {subject['kind']} {subject['name']} is not defined"
            for subject in binding["subjects"]
            if (subject["namespace"], subject["name"]) not in names(objects, subject["kind"])
        ]
    for configuration in of_kind(objects, "ValidatingWebhookConfiguration"):
        for webhook in configuration["webhooks"]:
            service = webhook["clientConfig"]["service"]
            if (service["namespace"], service["name"]) not in names(objects, "Service"):
                found.append(f"{called(configuration)}: Service {service['name']} is not defined")
    for claim in of_kind(objects, "PersistentVolumeClaim"):
        if (None, claim["spec"]["volumeName"]) not in names(objects, "PersistentVolume"):
            found.append(f"{called(claim)}: PersistentVolume {claim['spec']['volumeName']} is not defined")
    for volume in of_kind(objects, "PersistentVolume"):
        claim = volume["spec"]["claimRef"]
        if (claim["namespace"], claim["name"]) not in names(objects, "PersistentVolumeClaim"):
            found.append(f"{called(volume)}: PersistentVolumeClaim {claim['name']} is not defined")
    return found


def _named_by_pod(spec: Object) -> Iterator[tuple[str, str]]:
    """Kind and name of what a pod cannot start without."""
    if "serviceAccountName" in spec:
        yield "ServiceAccount", spec["serviceAccountName"]
    sources = []
    for volume in spec.get("volumes", []):
        sources += [volume, *volume.get("projected", {}).get("sources", [])]
        if "persistentVolumeClaim" in volume:
            yield "PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"]
    for source in sources:
        if "configMap" in source:
            yield "ConfigMap", source["configMap"]["name"]
        secret = source.get("secret", {})
        if secret and not secret.get("optional"):
            yield "Secret", secret.get("secretName") or secret["name"]
    for container in [*spec.get("initContainers", []), *spec["containers"]]:
        for variable in container.get("env", []):
            for key, kind in (("configMapKeyRef", "ConfigMap"), ("secretKeyRef", "Secret")):
                reference = variable.get("valueFrom", {}).get(key)
                if reference and not reference.get("optional"):
                    yield kind, reference["name"]


def rendezvous_hosts_exist(objects: list[Object]) -> list[str]:
    """The host where workers of a job meet is a Service of ours, by its full name and with that port."""
    addresses = {
        (f"{each['metadata']['name']}.{each['metadata']['namespace']}.svc.cluster.local", port["port"])
        for each in of_kind(objects, "Service")
        for port in each["spec"]["ports"]
    }
    found = []
    for job in of_kind(objects, "PyTorchJob"):
        policy = job["spec"].get("elasticPolicy", {})
        if "rdzvHost" in policy and (policy["rdzvHost"], policy["rdzvPort"]) not in addresses:
            found.append(f"{called(job)}: no Service {policy['rdzvHost']}:{policy['rdzvPort']}")
    return found


def namespaces_exist(objects: list[Object]) -> list[str]:
    """A namespace must be made before what lies in it."""
    made = set(BUILT_IN_NAMESPACES)
    found = []
    for each in objects:
        if each["kind"] == "Namespace":
            made.add(each["metadata"]["name"])
        elif each["metadata"].get("namespace", "default") not in made:
            found.append(f"{called(each)}: namespace {each['metadata']['namespace']} is not made before it")
    return found


def scopes_are_right(objects: list[Object]) -> list[str]:
    """Only an object that lives in a namespace says so, and every such object does."""
    return [
        f"{called(each)}: {'has a namespace' if 'namespace' in each['metadata'] else 'has no namespace'}"
        for each in objects
        if ("namespace" in each["metadata"]) == (each["kind"] in CLUSTER_SCOPED)
    ]


def names_are_valid(objects: list[Object]) -> list[str]:
    """Names are DNS names: https://kubernetes.io/docs/concepts/overview/working-with-objects/names/.

    Those of Services and jobs are single labels of 63 characters, with `-worker-N` behind a job's.
    """
    found = []
    for each in objects:
        name, label, longest = each["metadata"]["name"], r"[a-z]([-a-z0-9]*[a-z0-9])?", 63
        if each["kind"] == "PyTorchJob":
            replicas = each["spec"]["pytorchReplicaSpecs"].items()
            longest -= max(len(f"-{kind.lower()}-{spec['replicas'] - 1}") for kind, spec in replicas)
        elif each["kind"] != "Service":
            label, longest = r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?", 253
        if len(name) > longest or not re.fullmatch(label, name):
            found.append(f"{called(each)}: not a valid name for its kind")
    return found


def devices_are_asked_whole(objects: list[Object]) -> list[str]:
    """Extended resources and hugepages are whole, and requested as they are limited; hugepages need a memory request.

    https://kubernetes.io/docs/tasks/manage-hugepages/scheduling-hugepages/
    """
    found = []
    for pod in pods(objects):
        for container in pod.containers:
            resources = container.get("resources", {})
            requests, limits = resources.get("requests", {}), resources.get("limits", {})
            for name in requests.keys() | limits.keys():
                if ("/" in name or name.startswith("hugepages-")) and requests.get(name) != limits.get(name):
                    found.append(f"{pod.owner}: {container['name']} requests another {name} than its limit")
                if "/" in name and not re.fullmatch(r"\d+", str(limits.get(name))):
                    found.append(f"{pod.owner}: {container['name']} asks for {limits.get(name)} of {name}")
            if any(name.startswith("hugepages-") for name in limits) and not {"cpu", "memory"} & requests.keys():
                found.append(f"{pod.owner}: {container['name']} asks for hugepages without cpu or memory")
    return found


def resources_are_stated(objects: list[Object]) -> list[str]:
    """A container without requests is the first to be evicted, and one without a memory limit evicts others."""
    return [
        f"{pod.owner}: {container['name']} states no {what} of {name}"
        for pod in pods(objects)
        for container in pod.containers
        for what, name in (("requests", "cpu"), ("requests", "memory"), ("limits", "memory"))
        if name not in container.get("resources", {}).get(what, {})
    ]


def mounts_and_volumes_agree(objects: list[Object]) -> list[str]:
    """A mount needs its volume, a volume that nothing mounts is a leftover, and a path takes one mount."""
    found = []
    for pod in pods(objects):
        volumes = {volume["name"] for volume in pod.spec.get("volumes", [])}
        mounted = {mount["name"] for container in pod.containers for mount in container.get("volumeMounts", [])}
        found += [f"{pod.owner}: volume {name} is mounted and not defined" for name in mounted - volumes]
        found += [f"{pod.owner}: volume {name} is never mounted" for name in volumes - mounted]
        for container in pod.containers:
            paths = [mount["mountPath"] for mount in container.get("volumeMounts", [])]
            found += [f"{pod.owner}: {path} is mounted twice" for path in set(paths) if paths.count(path) > 1]
    return found


def jobs_pass_the_operators_webhook(objects: list[Object]) -> list[str]:
    """What the operator's webhook checks.

    https://github.com/kubeflow/trainer/blob/v1.9.4/pkg/webhooks/pytorch/pytorchjob_webhook.go
    """
    found = []
    for job in of_kind(objects, "PyTorchJob"):
        spec = job["spec"]
        replicas = spec["pytorchReplicaSpecs"]
        if not replicas or replicas.keys() - {"Master", "Worker"}:
            found.append(f"{called(job)}: replicas must be Master and Worker")
        if replicas.get("Master", {"replicas": 1}).get("replicas") != 1:
            found.append(f"{called(job)}: there must be exactly one Master")
        if "Worker" in replicas and replicas["Worker"].get("replicas", 1) < 1:
            found.append(f"{called(job)}: there must be a Worker")
        if "elasticPolicy" in spec and "Worker" not in replicas:
            found.append(f"{called(job)}: an elastic job needs Workers")
        if "elasticPolicy" in spec and "nProcPerNode" in spec["elasticPolicy"]:
            found.append(f"{called(job)}: nProcPerNode is deprecated")
        for each in replicas.values():
            containers = each["template"]["spec"]["containers"]
            if "pytorch" not in {container["name"] for container in containers}:
                found.append(f"{called(job)}: no container is named pytorch")
            if not all(container.get("image") for container in containers):
                found.append(f"{called(job)}: a container has no image")
    return found


def gpu_pods_tolerate_their_taint(objects: list[Object]) -> list[str]:
    """A pod that asks for GPUs tolerates the taint of GPU nodes, and never the one that says "cannot mount yet"."""
    found = []
    for pod in pods(objects):
        if pod.kind == "DaemonSet":
            continue
        tolerations = pod.spec.get("tolerations", [])
        wants_gpus = any("nvidia.com/gpu" in c.get("resources", {}).get("limits", {}) for c in pod.containers)
        if wants_gpus and not any(_tolerates(each, "nvidia.com/gpu", "NoSchedule") for each in tolerations):
            found.append(f"{pod.owner}: asks for GPUs and does not tolerate their taint")
        if any(_tolerates(each, "fsx.csi.aws.com/agent-not-ready", "NoExecute") for each in tolerations):
            found.append(f"{pod.owner}: tolerates a node that cannot mount yet")
    return found


def _tolerates(toleration: Object, key: str, effect: str) -> bool:
    return bool(toleration.get("key", key) == key and toleration.get("effect", effect) == effect)


def daemon_sets_tolerate_every_taint(objects: list[Object]) -> list[str]:
    """A node's devices and its health must be known whatever its taints."""
    return [
        f"{pod.owner}: does not tolerate every taint"
        for pod in pods(objects)
        if pod.kind == "DaemonSet" and {"operator": "Exists"} not in pod.spec.get("tolerations", [])
    ]


def images_are_pinned(objects: list[Object]) -> list[str]:
    """An image names a digest or a tag that is not `latest`."""
    return [
        f"{pod.owner}: {container['image']} can change"
        for pod in pods(objects)
        for container in pod.containers
        if not re.search(r"@sha256:[0-9a-f]{64}$|:(?!latest$)[\w.-]+$", container["image"])
    ]


def nothing_secret_or_unresolved(objects: list[Object]) -> list[str]:
    """No CDK token leaked as text, no token of Hugging Face or AWS, and no Secret holds anything."""
    text = json.dumps(objects)
    leaks = {
        r"\$\{Token\[": "a CDK token",
        r"\bhf_[A-Za-z0-9]{20,}": "a Hugging Face token",
        r"\b(AKIA|ASIA)[A-Z0-9]{16}\b": "an AWS access key",
        r"-----BEGIN [A-Z ]*PRIVATE KEY": "a private key",
    }
    found = [f"{what} is written in a manifest" for pattern, what in leaks.items() if re.search(pattern, text)]
    return found + [
        f"{called(each)}: holds data" for each in of_kind(objects, "Secret") if {"data", "stringData"} & each.keys()
    ]


def pods_keep_to_their_namespaces_level(objects: list[Object]) -> list[str]:
    """Pods are as the Pod Security level of their namespace demands, which else refuses them out of the job's sight.

    https://kubernetes.io/docs/concepts/security/pod-security-standards/
    """
    levels = {
        each["metadata"]["name"]: each["metadata"].get("labels", {}).get("pod-security.kubernetes.io/enforce", "none")
        for each in of_kind(objects, "Namespace")
    }
    found = []
    for pod in pods(objects):
        match levels.get(pod.namespace, "none"):
            case "restricted":
                faults = [*_against_baseline(pod), *_against_restricted(pod)]
            case "baseline":
                faults = [*_against_baseline(pod)]
            case "privileged":
                faults = []
            case _:
                faults = [f"namespace {pod.namespace} has no Pod Security level"]
        found += [f"{pod.owner}: {fault}" for fault in faults]
    return found


def _against_baseline(pod: Pod) -> Iterator[str]:
    yield from (f"{key} is set" for key in ("hostNetwork", "hostPID", "hostIPC") if pod.spec.get(key))
    yield from (f"volume {v['name']} is a hostPath" for v in pod.spec.get("volumes", []) if "hostPath" in v)
    for container in pod.containers:
        security = container.get("securityContext", {})
        if security.get("privileged"):
            yield f"{container['name']} is privileged"
        if security.get("capabilities", {}).get("add"):
            yield f"{container['name']} adds capabilities"
        if any("hostPort" in port for port in container.get("ports", [])):
            yield f"{container['name']} takes a port of the host"


def _against_restricted(pod: Pod) -> Iterator[str]:
    of_pod = pod.spec.get("securityContext", {})
    for container in pod.containers:
        security = of_pod | container.get("securityContext", {})
        if security.get("runAsNonRoot") is not True or security.get("runAsUser") == 0:
            yield f"{container['name']} may run as root"
        if security.get("allowPrivilegeEscalation") is not False:
            yield f"{container['name']} may gain privileges"
        if security.get("capabilities", {}).get("drop") != ["ALL"]:
            yield f"{container['name']} keeps capabilities"
        if security.get("seccompProfile", {}).get("type") not in ("RuntimeDefault", "Localhost"):
            yield f"{container['name']} has no seccomp profile"


def order_is_that_of_application(objects: list[Object]) -> list[str]:
    """Namespaces, then definitions, then what serves them, then jobs and nothing after them."""
    stages = {"Namespace": 0, "CustomResourceDefinition": 1, "PyTorchJob": 3}
    of_a_job = {"ConfigMap", "PodDisruptionBudget"}
    found, stage = [], 0
    for each in objects:
        if stage == 3 and each["kind"] in of_a_job:
            continue
        own = stages.get(each["kind"], 2 if each["kind"] not in of_a_job else stage)
        if own < stage:
            found.append(f"{called(each)}: comes too late")
        stage = max(stage, own)
    return found


def definitions_are_structural(objects: list[Object]) -> list[str]:
    """What the API server refuses in a schema, and two things that it accepts to the user's harm.

    https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/#specifying-a-structural-schema
    """
    return [
        f"{called(each)}: {fault}"
        for each in of_kind(objects, "CustomResourceDefinition")
        for version in each["spec"]["versions"]
        for fault in _schema_faults(version["schema"]["openAPIV3Schema"], "", root=True)
    ]


def _schema_faults(schema: Object, path: str, *, root: bool = False) -> Iterator[str]:
    is_int_or_string = schema.get("x-kubernetes-int-or-string", False)
    if "$ref" in schema:
        yield f"{path}: has a reference"
    if not is_int_or_string:
        if not isinstance(schema.get("type"), str):
            yield f"{path}: has no single type"
        if {"anyOf", "oneOf", "allOf", "not"} & schema.keys():
            yield f"{path}: types by alternatives"
    if "properties" in schema and "additionalProperties" in schema:
        yield f"{path}: is both an object and a map"
    properties = schema.get("properties", {})
    yield from (f"{path}: requires {n}, which it lacks" for n in set(schema.get("required", [])) - properties.keys())
    if schema.get("x-kubernetes-list-type") == "map":
        items = schema["items"]
        for key in schema["x-kubernetes-list-map-keys"]:
            if key not in items.get("required", []) and "default" not in items["properties"][key]:
                yield f"{path}: list key {key} is neither required nor has a default"
    is_bare = (
        schema.get("type") == "object"
        and not {
            "properties",
            "additionalProperties",
            "x-kubernetes-preserve-unknown-fields",
        }
        & schema.keys()
    )
    # Of an object's own metadata the API server knows the fields; of any other it would drop them all.
    if is_bare and path != ".metadata":
        yield f"{path}: would lose every field"
    for name, each in properties.items():
        yield from _schema_faults(each, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            yield from _schema_faults(schema[key], f"{path}[]")
    if root and schema.get("type") != "object":
        yield "the root is no object"


CHECKS: tuple[Check, ...] = (
    objects_are_unique,
    selectors_match_their_pods,
    services_reach_a_port,
    selectors_of_policies_match_a_pod,
    references_resolve,
    rendezvous_hosts_exist,
    namespaces_exist,
    scopes_are_right,
    names_are_valid,
    devices_are_asked_whole,
    resources_are_stated,
    mounts_and_volumes_agree,
    jobs_pass_the_operators_webhook,
    gpu_pods_tolerate_their_taint,
    daemon_sets_tolerate_every_taint,
    images_are_pinned,
    nothing_secret_or_unresolved,
    pods_keep_to_their_namespaces_level,
    order_is_that_of_application,
    definitions_are_structural,
)
