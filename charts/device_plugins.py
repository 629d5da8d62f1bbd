"""The DaemonSets by which GPU nodes offer GPUs and EFA interfaces to pods."""

from __future__ import annotations

import cdk8s
from cdk8s_plus_28 import k8s
from constructs import Construct

from charts.images import eks_registry, mirrored
from config.names import EFA_LABEL, GPU_LABEL

# https://github.com/NVIDIA/k8s-device-plugin/releases
NVIDIA_IMAGE = "nvcr.io/nvidia/k8s-device-plugin:v0.20.0"
# That of chart 0.5.30: https://github.com/aws/eks-charts/tree/master/stable/aws-efa-k8s-device-plugin
EFA_IMAGE = "eks/aws-efa-k8s-device-plugin:v0.5.20"

KUBELET_PLUGINS = "/var/lib/kubelet/device-plugins"


class DevicePluginsChart(cdk8s.Chart):
    """Both plugins, each on the nodes that carry the label our node groups set, whatever their instance type."""

    def __init__(self, scope: Construct, id_: str, *, namespace: str, region: str, mirror: str | None) -> None:
        super().__init__(scope, id_, namespace=namespace)
        self._daemon(
            "nvidia-device-plugin",
            image=mirrored(NVIDIA_IMAGE, mirror),
            label=GPU_LABEL,
            # Some releases mount every /dev/infiniband device into GPU pods, which hides EFA's from libfabric.
            environment={"MOFED_ENABLED": "false", "FAIL_ON_INIT_ERROR": "true"},
            folders=[KUBELET_PLUGINS],
            host_network=False,
            # Root, for the kubelet's socket folder, and nothing more than root's own files.
            security=k8s.SecurityContext(allow_privilege_escalation=False, capabilities=k8s.Capabilities(drop=["ALL"])),
        )
        self._daemon(
            "efa-device-plugin",
            image=f"{eks_registry(region)}/{EFA_IMAGE}",
            label=EFA_LABEL,
            environment={},
            folders=[KUBELET_PLUGINS, "/dev/infiniband"],
            host_network=True,
            # As its chart runs it: it opens the devices that it offers.
            security=k8s.SecurityContext(privileged=True),
        )

    def _daemon(
        self,
        name: str,
        *,
        image: str,
        label: str,
        environment: dict[str, str],
        folders: list[str],
        host_network: bool,
        security: k8s.SecurityContext,
    ) -> None:
        labels = {"app.kubernetes.io/name": name}
        size = {"cpu": k8s.Quantity.from_string("50m"), "memory": k8s.Quantity.from_string("128Mi")}
        k8s.KubeDaemonSet(
            self,
            name,
            metadata=k8s.ObjectMeta(name=name, labels=labels),
            spec=k8s.DaemonSetSpec(
                selector=k8s.LabelSelector(match_labels=labels),
                update_strategy=k8s.DaemonSetUpdateStrategy(type="RollingUpdate"),
                template=k8s.PodTemplateSpec(
                    metadata=k8s.ObjectMeta(labels=labels),
                    spec=k8s.PodSpec(
                        node_selector={label: "true"},
                        # Whatever taint a node has, its devices must be offered.
                        tolerations=[k8s.Toleration(operator="Exists")],
                        priority_class_name="system-node-critical",
                        automount_service_account_token=False,
                        host_network=host_network,
                        containers=[
                            k8s.Container(
                                name=name,
                                image=image,
                                env=[k8s.EnvVar(name=key, value=value) for key, value in environment.items()],
                                resources=k8s.ResourceRequirements(requests=size, limits=size),
                                security_context=security,
                                volume_mounts=[
                                    k8s.VolumeMount(name=f"folder-{index}", mount_path=folder)
                                    for index, folder in enumerate(folders)
                                ],
                            )
                        ],
                        volumes=[
                            k8s.Volume(name=f"folder-{index}", host_path=k8s.HostPathVolumeSource(path=folder))
                            for index, folder in enumerate(folders)
                        ],
                    ),
                ),
            ),
        )
