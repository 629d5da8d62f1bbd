"""The shared file system as a persistent volume, and the claim by which jobs mount it."""

from __future__ import annotations

import cdk8s
from cdk8s_plus_28 import k8s
from constructs import Construct

from config.names import CLAIM

CSI_DRIVER = "fsx.csi.aws.com"


def fsx_volume(*, file_system_id: str, dns_name: str, mount_name: str) -> k8s.PersistentVolumeSpec:
    """The volume that is an FSx for Lustre file system.

    https://github.com/kubernetes-sigs/aws-fsx-csi-driver/blob/master/examples/kubernetes/static_provisioning/README.md
    """
    return k8s.PersistentVolumeSpec(
        csi=k8s.CsiPersistentVolumeSource(
            driver=CSI_DRIVER,
            volume_handle=file_system_id,
            volume_attributes={"dnsname": dns_name, "mountname": mount_name},
        ),
        mount_options=["flock"],
    )


def host_volume(path: str) -> k8s.PersistentVolumeSpec:
    """The volume that is a folder of the one machine."""
    return k8s.PersistentVolumeSpec(host_path=k8s.HostPathVolumeSource(path=path, type="DirectoryOrCreate"))


class StorageChart(cdk8s.Chart):
    """One volume, bound to one claim by name. The volume outlives the claim, and the file system outlives both."""

    def __init__(
        self,
        scope: Construct,
        id_: str,
        *,
        name: str,
        namespace: str,
        capacity_gib: int,
        source: k8s.PersistentVolumeSpec,
        annotations: dict[str, str],
    ) -> None:
        super().__init__(scope, id_)
        capacity = {"storage": k8s.Quantity.from_string(f"{capacity_gib}Gi")}
        k8s.KubePersistentVolume(
            self,
            "Volume",
            metadata=k8s.ObjectMeta(name=name, annotations=annotations or None),
            spec=k8s.PersistentVolumeSpec(
                csi=source.csi,
                host_path=source.host_path,
                mount_options=source.mount_options,
                capacity=capacity,
                access_modes=["ReadWriteMany"],
                persistent_volume_reclaim_policy="Retain",
                storage_class_name="",
                # Binds to this claim and to no other that asks for as much.
                claim_ref=k8s.ObjectReference(
                    api_version="v1", kind="PersistentVolumeClaim", name=CLAIM, namespace=namespace
                ),
            ),
        )
        k8s.KubePersistentVolumeClaim(
            self,
            "Claim",
            metadata=k8s.ObjectMeta(name=CLAIM, namespace=namespace),
            spec=k8s.PersistentVolumeClaimSpec(
                access_modes=["ReadWriteMany"],
                storage_class_name="",
                volume_name=name,
                resources=k8s.ResourceRequirements(requests=capacity),
            ),
        )
