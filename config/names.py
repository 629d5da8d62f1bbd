"""Names that stacks, charts and operations share. A name that only one of them uses stays with it."""

from __future__ import annotations

# Namespaces, each with the Pod Security level of the pods it holds.
OPERATOR_NAMESPACE = "kubeflow"
TRAINING_NAMESPACE = "training"
NODE_AGENTS_NAMESPACE = "node-agents"
POD_SECURITY = {
    OPERATOR_NAMESPACE: "restricted",
    TRAINING_NAMESPACE: "baseline",
    NODE_AGENTS_NAMESPACE: "privileged",
}

# A platform's stacks, in the order of deployment, each called `<platform>-<stack>`.
STACKS = ("network", "cluster", "storage", "registry", "node-groups")

# Labels that the node groups set and the charts select by.
LABEL_PREFIX = "training-platform"
NODE_GROUP_LABEL = f"{LABEL_PREFIX}/node-group"
EFA_LABEL = f"{LABEL_PREFIX}/efa"  # only node groups with EFA interfaces: the device plugin crashes elsewhere
GPU_LABEL = f"{LABEL_PREFIX}/gpu"
SYSTEM_NODE_GROUP = "system"

# Taints of the GPU node groups. The first stays for the node's life; the FSx CSI driver removes the second
# once a node can mount: https://github.com/kubernetes-sigs/aws-fsx-csi-driver/blob/master/docs/install.md
GPU_TAINT = "nvidia.com/gpu"
FSX_STARTUP_TAINT = "fsx.csi.aws.com/agent-not-ready"

# Extended resources, as the device plugins advertise them.
GPU_RESOURCE = "nvidia.com/gpu"
EFA_RESOURCE = "vpc.amazonaws.com/efa"

CLAIM = "shared"
METRICS_PORT = 9464  # where local rank 0 of a worker serves its gauges
TRAINER_SERVICE_ACCOUNT = "trainer"
HUGGING_FACE_SECRET = "hugging-face"  # noqa: S105, the name of a Secret, not its value
# On objects made from sample outputs, which name no file system of yours.
SAMPLE_ANNOTATION = f"{LABEL_PREFIX}/sample-outputs"
PLATFORM_TAG = "platform"
