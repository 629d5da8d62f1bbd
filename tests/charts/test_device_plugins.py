"""Nodes offer their GPUs and EFA interfaces whatever their type, and only where there are any."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from config.names import EFA_LABEL, GPU_LABEL
from config.platform import PlatformConfig
from tests.charts.synthesis import Manifests, Object

PLUGINS = {"nvidia-device-plugin": GPU_LABEL, "efa-device-plugin": EFA_LABEL}


def pod(manifests: Manifests, name: str) -> Object:
    spec: Object = manifests.one("DaemonSet", name)["spec"]["template"]["spec"]
    return spec


@pytest.mark.parametrize("name", PLUGINS)
def test_a_plugin_goes_where_our_node_groups_say_and_asks_for_no_instance_type(block: Manifests, name: str) -> None:
    """A list of types leaves new types without devices, and the EFA plugin crashes on a node without an interface."""
    assert pod(block, name)["nodeSelector"] == {PLUGINS[name]: "true"}
    assert "affinity" not in pod(block, name)


@pytest.mark.parametrize("name", PLUGINS)
def test_a_plugin_outlives_pressure_and_registers_with_the_kubelet(block: Manifests, name: str) -> None:
    assert pod(block, name)["priorityClassName"] == "system-node-critical"
    paths = [mount["mountPath"] for mount in pod(block, name)["containers"][0]["volumeMounts"]]
    assert "/var/lib/kubelet/device-plugins" in paths


def test_the_efa_plugin_sees_the_devices_that_it_offers(block: Manifests) -> None:
    (volume,) = (v for v in pod(block, "efa-device-plugin")["volumes"] if v["hostPath"]["path"] == "/dev/infiniband")
    mounts = {m["name"]: m["mountPath"] for m in pod(block, "efa-device-plugin")["containers"][0]["volumeMounts"]}
    assert mounts[volume["name"]] == "/dev/infiniband"


def test_the_nvidia_plugin_leaves_infiniband_devices_to_the_efa_plugin(block: Manifests) -> None:
    (container,) = pod(block, "nvidia-device-plugin")["containers"]
    assert {"name": "MOFED_ENABLED", "value": "false"} in container["env"]


@pytest.mark.parametrize("name", PLUGINS)
def test_a_plugin_has_no_account_at_the_api_server(block: Manifests, name: str) -> None:
    assert pod(block, name)["automountServiceAccountToken"] is False


def test_only_the_plugin_that_opens_devices_is_privileged(block: Manifests) -> None:
    (nvidia,) = pod(block, "nvidia-device-plugin")["containers"]
    (efa,) = pod(block, "efa-device-plugin")["containers"]
    assert nvidia["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    assert efa["securityContext"] == {"privileged": True}


def test_the_efa_plugins_image_comes_from_the_platforms_region(manifests: Manifests) -> None:
    config = manifests.platform.config
    if not isinstance(config, PlatformConfig):
        assert not list(manifests.every("DaemonSet"))
        return
    assert f".dkr.ecr.{config.region}." in pod(manifests, "efa-device-plugin")["containers"][0]["image"]


def test_a_machine_without_gpus_runs_no_plugin(manifests_of: Callable[[str], Manifests], block: Manifests) -> None:
    assert "device-plugins" in block.charts
    assert "device-plugins" not in manifests_of("local").charts
