"""The fabric check as a PyTorchJob: no chart, since it is rendered when it is run, and never lies among the others."""

from __future__ import annotations

from typing import Any

from charts.pytorch_job import FABRIC_ENVIRONMENT, LOCKED, both, placement, worker_quantities
from config.names import TRAINING_NAMESPACE
from config.platform import NodeGroupConfig

Object = dict[str, Any]

NAME = "fabric-check"


def fabric_check_job(group: NodeGroupConfig, *, nodes: int, image: str) -> Object:
    """The job that takes whole nodes of a group and reduces between them.

    Its workers meet at one of them, so that a fabric can be checked without etcd, and nothing is tried twice.
    """
    facts = group.instance
    command = ["torchrun", "-m", "trainer.fabric_check"]
    if facts.all_reduce_gb_per_second is not None:
        command.append(f"--least-gb-per-second={facts.all_reduce_gb_per_second:g}")
    pod: Object = {
        "automountServiceAccountToken": False,
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [
            {
                "name": "pytorch",
                "image": image,
                "command": command,
                "env": [{"name": name, "value": value} for name, value in FABRIC_ENVIRONMENT.items()],
                "resources": both(worker_quantities(facts)),
                "securityContext": LOCKED,
                "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],  # noqa: S108, what NCCL shares
            }
        ],
        "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "64Gi"}}],
        **placement(NAME, group.name),
    }
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": NAME, "namespace": TRAINING_NAMESPACE},
        "spec": {
            "nprocPerNode": str(facts.gpus_per_node),
            # Pods stay until their logs are read.
            "runPolicy": {"cleanPodPolicy": "None", "backoffLimit": 1},
            "elasticPolicy": {"minReplicas": nodes, "maxReplicas": nodes, "maxRestarts": 0, "rdzvBackend": "c10d"},
            "pytorchReplicaSpecs": {
                "Worker": {"replicas": nodes, "restartPolicy": "Never", "template": {"spec": pod}},
            },
        },
    }
