"""Jobs mount the platform's own file system, which outlives every claim on it."""

from __future__ import annotations

import json

from config.local import LocalConfig
from config.names import CLAIM, TRAINING_NAMESPACE
from config.platform import PlatformConfig
from tests.charts.synthesis import SAMPLE_OUTPUTS, Manifests, Object


def volume(manifests: Manifests) -> Object:
    (found,) = manifests.every("PersistentVolume")
    return found


def claim(manifests: Manifests) -> Object:
    (found,) = manifests.every("PersistentVolumeClaim")
    return found


def test_a_volume_is_the_file_system_that_the_stacks_made(manifests: Manifests) -> None:
    config, spec = manifests.platform.config, volume(manifests)["spec"]
    if isinstance(config, LocalConfig):
        assert spec["hostPath"] == {"path": config.storage.host_path, "type": "DirectoryOrCreate"}
        return
    outputs = json.loads(SAMPLE_OUTPUTS.read_text())["sample"]
    assert spec["csi"] == {
        "driver": "fsx.csi.aws.com",
        "volumeHandle": outputs["FileSystemId"],
        "volumeAttributes": {
            "dnsname": outputs["FileSystemDnsName"],
            "mountname": outputs["FileSystemMountName"],
        },
    }


def test_deleting_a_claim_keeps_the_data(manifests: Manifests) -> None:
    assert volume(manifests)["spec"]["persistentVolumeReclaimPolicy"] == "Retain"


def test_volume_and_claim_are_bound_to_one_another_and_provision_nothing(manifests: Manifests) -> None:
    """Without both names the claim could take another volume, and with a storage class it would wait for a new one."""
    made, asked = volume(manifests), claim(manifests)
    assert asked["spec"]["volumeName"] == made["metadata"]["name"]
    assert (made["spec"]["claimRef"]["namespace"], made["spec"]["claimRef"]["name"]) == (TRAINING_NAMESPACE, CLAIM)
    assert (asked["metadata"]["namespace"], asked["metadata"]["name"]) == (TRAINING_NAMESPACE, CLAIM)
    assert made["spec"]["storageClassName"] == asked["spec"]["storageClassName"] == ""


def test_every_node_may_write(manifests: Manifests) -> None:
    assert volume(manifests)["spec"]["accessModes"] == claim(manifests)["spec"]["accessModes"] == ["ReadWriteMany"]


def test_the_volume_is_as_large_as_the_file_system(manifests: Manifests) -> None:
    config = manifests.platform.config
    size = volume(manifests)["spec"]["capacity"]["storage"]
    assert claim(manifests)["spec"]["resources"]["requests"]["storage"] == size
    if isinstance(config, PlatformConfig):
        assert size == f"{config.storage.capacity_gib}Gi"
