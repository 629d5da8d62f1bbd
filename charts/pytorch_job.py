"""A training job: its options in a ConfigMap, and the PyTorchJob whose workers run the trainer under torchrun."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any, assert_never

import cdk8s
import yaml
from cdk8s_plus_28 import k8s
from constructs import Construct

from charts.custom_object import custom_object
from config.instances import InstanceFacts
from config.job import TrainingJob
from config.names import (
    CLAIM,
    EFA_RESOURCE,
    GPU_RESOURCE,
    GPU_TAINT,
    HUGGING_FACE_SECRET,
    NODE_GROUP_LABEL,
    TRAINER_SERVICE_ACCOUNT,
)
from config.sizing import worker_resources

Object = dict[str, Any]

CONFIG_FOLDER = "/etc/trainer"
RUN_ID_FOLDER = "/var/run/rendezvous"
SCRATCH_FOLDER = "/scratch"
TOKEN_FOLDER = "/var/run/secrets/kubernetes.io/serviceaccount"  # noqa: S105, where a token is mounted, not one

# Between SIGTERM and its workers' end torchrun allows this much for the step that they are in, and twice what the save
# takes at the file system's baseline. After that it needs a moment itself, or the kubelet kills it before it has left
# the rendezvous. A lost peer is no matter of these: there torchrun stops the rest after its own 30 s.
STEP_SECONDS = 30
TORCHRUN_SECONDS = 30

# An outage of etcd restarts every agent once or more, and the operator fails a job whose restarts, summed over its
# running pods, reach the limit.
RESTARTS_PER_NODE = 10

# The name since plugin 1.12: https://github.com/aws/aws-ofi-nccl/blob/master/src/nccl_ofi_interface_nvidia.cpp
# Pinned, NCCL stops where the plugin is missing, and does not fall back to TCP.
NCCL_NET = "Libfabric"
FABRIC_ENVIRONMENT = {
    "NCCL_DEBUG": "INFO",
    "NCCL_NET": NCCL_NET,
    # Loopback, container bridges, and EKS's pod-identity link lead to no other node.
    "NCCL_SOCKET_IFNAME": "^lo,docker,veth,eni,pod-id-link0",
    # Forked data loaders run out of huge pages: https://github.com/aws/aws-ofi-nccl/pull/292
    "FI_EFA_USE_HUGE_PAGE": "0",
}
LOCKED: Object = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


@dataclass(frozen=True, slots=True, kw_only=True)
class EtcdAddress:
    """Where etcd answers."""

    host: str
    port: int


class PyTorchJobChart(cdk8s.Chart):
    """One training job, that can be applied, finish, be deleted and be applied again."""

    def __init__(
        self,
        scope: Construct,
        id_: str,
        *,
        job: TrainingJob,
        namespace: str,
        image: str,
        etcd: EtcdAddress,
        annotations: dict[str, str],
    ) -> None:
        super().__init__(scope, id_, namespace=namespace)
        options = yaml.safe_dump(job.trainer.model_dump(mode="json"), sort_keys=False)
        k8s.KubeConfigMap(
            self,
            "Options",
            metadata=k8s.ObjectMeta(name=f"{job.name}-options"),
            data={"config.yaml": options},
            # Or a changed option would reach a running job at its next restart, on some ranks before others.
            immutable=True,
        )
        # A drain waits for the job instead of taking a worker from it. A number of pods that may be missing would be
        # taken from the Workers alone, and spare the Master of a static job nothing:
        # https://kubernetes.io/docs/tasks/run-application/configure-pdb/#arbitrary-controllers-and-selectors
        k8s.KubePodDisruptionBudget(
            self,
            "Budget",
            metadata=k8s.ObjectMeta(name=job.name),
            spec=k8s.PodDisruptionBudgetSpec(
                min_available=k8s.IntOrString.from_number(job.nodes),
                selector=k8s.LabelSelector(match_labels={"training.kubeflow.org/job-name": job.name}),
            ),
        )
        custom_object(
            self,
            "Job",
            {
                "apiVersion": "kubeflow.org/v1",
                "kind": "PyTorchJob",
                "metadata": {"name": job.name, "namespace": namespace, "annotations": annotations},
                "spec": identified_spec(job, image=job.image or image, etcd=etcd, options=options),
            },
        )


def identified_spec(job: TrainingJob, *, image: str, etcd: EtcdAddress, options: str) -> Object:
    """The `spec` of a PyTorchJob whose rendezvous is named after the job and the hash of all that it is."""
    unnamed = job_spec(job, image=image, etcd=etcd, rendezvous_id=job.name)
    digest = hashlib.sha256(json.dumps([unnamed, options]).encode()).hexdigest()
    return job_spec(job, image=image, etcd=etcd, rendezvous_id=f"{job.name}-{digest[:8]}")


def job_spec(job: TrainingJob, *, image: str, etcd: EtcdAddress, rendezvous_id: str) -> Object:
    """The `spec` of a PyTorchJob."""
    restarts = RESTARTS_PER_NODE * job.nodes
    pod = pod_template(job, image=image, rendezvous_id=rendezvous_id)
    spec: Object = {
        "nprocPerNode": str(job.processes_per_node),
        "runPolicy": {"cleanPodPolicy": "Running", "backoffLimit": restarts},
        "pytorchReplicaSpecs": {"Worker": _replicas(job.nodes, pod)},
    }
    elastic = {
        "minReplicas": job.nodes,
        "maxReplicas": job.nodes,
        "maxRestarts": restarts,
        "rdzvId": rendezvous_id,
    }
    match job.rendezvous:
        case "etcd":
            # `etcd-v2`: the state of torch's older `etcd` backend expires after two hours, and with it every rejoin.
            place = {"rdzvBackend": "etcd-v2", "rdzvHost": etcd.host, "rdzvPort": etcd.port}
            spec["elasticPolicy"] = elastic | place
        case "c10d":
            spec["elasticPolicy"] = elastic | {"rdzvBackend": "c10d"}
        case "static":
            replicas = {"Master": _replicas(1, pod)}
            if job.nodes > 1:
                replicas["Worker"] = _replicas(job.nodes - 1, pod)
            spec["pytorchReplicaSpecs"] = replicas
        case _:
            assert_never(job.rendezvous)
    return spec


def _replicas(count: int, pod: Object) -> Object:
    return {"replicas": count, "restartPolicy": "OnFailure", "template": pod}


def pod_template(job: TrainingJob, *, image: str, rendezvous_id: str) -> Object:
    """The pod of one worker replica, which fills its node."""
    # torchrun must be the first process: with a shell before it, a lost agent's seat expires after 19 s instead of 6.
    command = (
        f'exec torchrun --rdzv-id="{rendezvous_id}-$(cat {RUN_ID_FOLDER}/uid)" '
        f"-m trainer --config {CONFIG_FOLDER}/config.yaml"
    )
    pod: Object = {
        "serviceAccountName": TRAINER_SERVICE_ACCOUNT,
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": _shutdown_seconds(job) + TORCHRUN_SECONDS,
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
        "initContainers": [
            {
                "name": "run-id",
                "image": image,
                "command": ["python", "-m", "trainer.run_id", f"{RUN_ID_FOLDER}/uid"],
                "resources": both({"cpu": "1", "memory": "512Mi"}),
                "securityContext": LOCKED,
                "volumeMounts": [
                    {"name": "run-id", "mountPath": RUN_ID_FOLDER},
                    {"name": "token", "mountPath": TOKEN_FOLDER, "readOnly": True},
                ],
            }
        ],
        "containers": [
            {
                "name": "pytorch",
                "image": image,
                "command": ["/bin/sh", "-c", command],
                "env": _environment(job),
                "resources": both(worker_quantities(job.instance)),
                "securityContext": LOCKED,
                "ports": _ports(job),
                "volumeMounts": [
                    {"name": "options", "mountPath": CONFIG_FOLDER, "readOnly": True},
                    {"name": "run-id", "mountPath": RUN_ID_FOLDER, "readOnly": True},
                    {"name": "shared", "mountPath": job.trainer.shared_dir},
                    {"name": "scratch", "mountPath": SCRATCH_FOLDER},
                    {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108, what NCCL and data loaders share
                ],
            }
        ],
        "volumes": [
            {"name": "options", "configMap": {"name": f"{job.name}-options"}},
            {"name": "run-id", "emptyDir": {"sizeLimit": "1Mi"}},
            {"name": "token", "projected": {"sources": _token_sources()}},
            {"name": "shared", "persistentVolumeClaim": {"claimName": CLAIM}},
            # On the node's NVMe disks, where the kubelet keeps its folders.
            {"name": "scratch", "emptyDir": {}},
            # Counts as memory of the pod, and goes with it.
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "64Gi" if job.instance else "1Gi"}},
        ],
    }
    if job.node_group is not None:
        pod |= placement(job.name, job.node_group)
    return {"spec": pod}


def placement(name: str, node_group: str) -> Object:
    """The part of a pod's `spec` that puts the workers of a job onto GPU nodes, near one another."""
    return {
        "nodeSelector": {NODE_GROUP_LABEL: node_group},
        # The lasting taint alone: a worker that tolerated FSx's start-up taint would mount before its node can.
        "tolerations": [{"key": GPU_TAINT, "operator": "Exists", "effect": "NoSchedule"}],
        "affinity": _near_one_another(name),
    }


def _shutdown_seconds(job: TrainingJob) -> int:
    return STEP_SECONDS + 2 * job.checkpoint_seconds


def _ports(job: TrainingJob) -> list[Object]:
    port = job.trainer.metrics_port
    return [] if port is None else [{"name": "metrics", "containerPort": port}]


def both(quantities: dict[str, str]) -> Object:
    """Requests and limits alike, as extended resources and hugepages demand."""
    return {"requests": quantities, "limits": quantities}


def worker_quantities(instance: InstanceFacts | None) -> dict[str, str]:
    """What a worker asks for: its whole node, or a little of this machine."""
    if instance is None:
        return {"cpu": "1", "memory": "2Gi"}
    worker = worker_resources(instance)
    return {
        "cpu": str(worker.cpus),
        "memory": f"{worker.memory_mib}Mi",
        "hugepages-2Mi": f"{worker.hugepages_mib}Mi",
        GPU_RESOURCE: str(worker.gpus),
        EFA_RESOURCE: str(worker.efa_interfaces),
    }


def _environment(job: TrainingJob) -> list[Object]:
    threads = 1 if job.instance is None else max(1, worker_resources(job.instance).cpus // job.processes_per_node)
    values = {
        # Without it, a replaced node waits for an address that the others do not publish again (torch 2.13).
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(_shutdown_seconds(job)),
        "OMP_NUM_THREADS": str(threads),
    }
    if job.instance is not None:
        values |= FABRIC_ENVIRONMENT
    token = {"secretKeyRef": {"name": HUGGING_FACE_SECRET, "key": "token", "optional": True}}
    return [
        *({"name": name, "value": value} for name, value in values.items()),
        {"name": "HF_TOKEN", "valueFrom": token},
    ]


def _token_sources() -> list[Object]:
    """What a mounted service-account token consists of."""
    return [
        {"serviceAccountToken": {"path": "token", "expirationSeconds": 3600}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]}},
    ]


def _near_one_another(name: str) -> Object:
    """Prefer nodes under one switch; a higher layer is closer.

    https://docs.aws.amazon.com/eks/latest/userguide/node-efa.html
    """
    term = {
        "labelSelector": {"matchLabels": {"training.kubeflow.org/job-name": name}},
        "topologyKey": "topology.k8s.aws/network-node-layer-3",
    }
    return {
        "podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "podAffinityTerm": term}]}
    }
