"""etcd speaks what torch speaks, under the name that agents know, and keeps its state while its pod lives."""

from __future__ import annotations

import re

from config.names import NODE_GROUP_LABEL, SYSTEM_NODE_GROUP
from config.platform import PlatformConfig
from tests.charts.synthesis import Manifests, Object


def pod(manifests: Manifests) -> Object:
    spec: Object = manifests.one("Deployment", "etcd")["spec"]["template"]["spec"]
    return spec


def flags(manifests: Manifests) -> dict[str, str]:
    (container,) = pod(manifests)["containers"]
    assert container["command"] == ["etcd"]
    return dict(argument.removeprefix("--").split("=", 1) for argument in container["args"])


def test_it_speaks_the_v2_api_which_ends_with_3_5(manifests: Manifests) -> None:
    image = pod(manifests)["containers"][0]["image"]
    assert re.search(r":v3\.5\.\d+$", image)
    assert flags(manifests)["enable-v2"] == "true"


def test_it_advertises_the_name_of_its_service(manifests: Manifests) -> None:
    """Clients replace the address that they were given by the advertised one, and never return from a wrong one."""
    service = manifests.one("Service", "etcd")
    (port,) = service["spec"]["ports"]
    name = f"etcd.{service['metadata']['namespace']}.svc.cluster.local:{port['port']}"
    assert flags(manifests)["advertise-client-urls"] == f"http://{name}"
    for job in manifests.every("PyTorchJob"):
        policy = job["spec"]["elasticPolicy"]
        assert f"{policy['rdzvHost']}:{policy['rdzvPort']}" == name


def test_clients_of_other_pods_reach_it(manifests: Manifests) -> None:
    (port,) = manifests.one("Service", "etcd")["spec"]["ports"]
    assert flags(manifests)["listen-client-urls"] == f"http://0.0.0.0:{port['port']}"


def test_it_is_its_own_whole_cluster(manifests: Manifests) -> None:
    given = flags(manifests)
    assert given["initial-cluster"] == f"{given['name']}={given['initial-advertise-peer-urls']}"
    assert given["listen-peer-urls"].startswith("http://127.0.0.1:")
    assert manifests.one("Deployment", "etcd")["spec"]["replicas"] == 1


def test_two_members_never_share_the_data(manifests: Manifests) -> None:
    assert manifests.one("Deployment", "etcd")["spec"]["strategy"] == {"type": "Recreate"}


def test_its_data_outlives_its_container(manifests: Manifests) -> None:
    """After an outage the agents find their rendezvous only if its state is still there."""
    (volume,) = pod(manifests)["volumes"]
    assert "emptyDir" in volume
    (mount,) = pod(manifests)["containers"][0]["volumeMounts"]
    assert mount["mountPath"] == flags(manifests)["data-dir"]
    assert pod(manifests)["securityContext"]["fsGroup"] == pod(manifests)["securityContext"]["runAsUser"]


def test_a_drain_does_not_take_it(manifests: Manifests) -> None:
    assert manifests.one("PodDisruptionBudget", "etcd")["spec"]["maxUnavailable"] == 0


def test_only_pods_of_its_namespace_reach_it_and_only_its_client_port(manifests: Manifests) -> None:
    (rule,) = manifests.one("NetworkPolicy", "etcd")["spec"]["ingress"]
    assert rule["from"] == [{"podSelector": {}}]
    assert rule["ports"] == [{"port": manifests.one("Service", "etcd")["spec"]["ports"][0]["port"]}]


def test_the_cluster_puts_no_options_into_its_environment(manifests: Manifests) -> None:
    assert pod(manifests)["enableServiceLinks"] is False
    assert "env" not in pod(manifests)["containers"][0]


def test_it_stays_off_the_gpu_nodes(manifests: Manifests) -> None:
    if isinstance(manifests.platform.config, PlatformConfig):
        assert pod(manifests)["nodeSelector"] == {NODE_GROUP_LABEL: SYSTEM_NODE_GROUP}
    assert "tolerations" not in pod(manifests)
