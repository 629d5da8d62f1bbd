"""Each namespace allows its pods what they need and no more."""

from __future__ import annotations

from config.names import NODE_AGENTS_NAMESPACE, OPERATOR_NAMESPACE, POD_SECURITY, TRAINING_NAMESPACE
from config.platform import PlatformConfig
from tests.charts.manifest_checks import pods, pods_keep_to_their_namespaces_level
from tests.charts.synthesis import Manifests


def test_a_platform_has_the_namespaces_that_its_pods_are_in(manifests: Manifests) -> None:
    made = {each["metadata"]["name"] for each in manifests.every("Namespace")}
    assert made == {pod.namespace for pod in pods(manifests.objects)}
    has_agents = isinstance(manifests.platform.config, PlatformConfig)
    assert made == {OPERATOR_NAMESPACE, TRAINING_NAMESPACE} | ({NODE_AGENTS_NAMESPACE} if has_agents else set())


def test_a_namespace_enforces_its_level_and_warns_whoever_applies(manifests: Manifests) -> None:
    for each in manifests.every("Namespace"):
        level = POD_SECURITY[each["metadata"]["name"]]
        labels = each["metadata"]["labels"]
        assert labels["pod-security.kubernetes.io/enforce"] == labels["pod-security.kubernetes.io/warn"] == level


def test_only_the_agents_of_nodes_need_a_privileged_namespace(block: Manifests) -> None:
    assert [name for name, level in POD_SECURITY.items() if level == "privileged"] == [NODE_AGENTS_NAMESPACE]
    agents = [each for each in block.objects if each["metadata"].get("namespace") == NODE_AGENTS_NAMESPACE]
    labels = {"pod-security.kubernetes.io/enforce": "baseline"}
    baseline = {"kind": "Namespace", "metadata": {"name": NODE_AGENTS_NAMESPACE, "labels": labels}}
    assert pods_keep_to_their_namespaces_level([baseline, *agents])
