from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from config.names import NODE_GROUP_LABEL, SYSTEM_NODE_GROUP
from stacks.rules import violations
from tests.synthesis import Synthesized, config_from, lint, values_of

NODE_ADDONS = {"vpc-cni", "kube-proxy", "eks-pod-identity-agent"}
WORKLOAD_ADDONS = {
    "coredns",
    "metrics-server",
    "aws-fsx-csi-driver",
    "aws-ebs-csi-driver",
    "eks-node-monitoring-agent",
}


def cluster(platform: Synthesized) -> dict[str, Any]:
    properties: dict[str, Any] = platform.one("cluster", "AWS::EKS::Cluster")["Properties"]
    return properties


def addons(platform: Synthesized) -> dict[str, tuple[str, dict[str, Any]]]:
    """Name of an add-on to its logical id and its resource."""
    found = platform.resources("cluster", "AWS::EKS::Addon")
    return {resource["Properties"]["AddonName"]: (id_, resource) for id_, resource in found.items()}


def made_before(platform: Synthesized, id_: str) -> set[str]:
    """Everything that CloudFormation makes before this resource, and deletes after it."""
    resources = platform.templates["cluster"]["Resources"]

    def named_in(node: Any) -> set[str]:
        if isinstance(node, list):
            return {name for item in node for name in named_in(item)}
        if not isinstance(node, dict):
            return set()
        own = {node["Ref"]} if "Ref" in node else {node["Fn::GetAtt"][0]} if "Fn::GetAtt" in node else set()
        return own | {name for item in node.values() for name in named_in(item)}

    found: set[str] = set()
    waiting = {id_}
    while waiting:
        resource = resources[waiting.pop()]
        direct = (named_in(resource["Properties"]) | set(resource.get("DependsOn", []))) & resources.keys()
        waiting |= direct - found
        found |= direct
    return found


def test_the_control_plane_writes_into_a_log_group_of_the_stack(platform: Synthesized) -> None:
    """Otherwise EKS makes the group itself: nothing deletes it, and nothing ends its logs."""
    (group_id,) = platform.resources("cluster", "AWS::Logs::LogGroup")
    group = platform.one("cluster", "AWS::Logs::LogGroup")
    assert group["Properties"]["LogGroupName"] == f"/aws/eks/{cluster(platform)['Name']}/cluster"
    assert group["Properties"]["RetentionInDays"] == platform.config.cluster.log_retention_days
    assert group["DeletionPolicy"] == "Delete"
    (cluster_id,) = platform.resources("cluster", "AWS::EKS::Cluster")
    assert group_id in made_before(platform, cluster_id)


def test_every_kind_of_control_plane_log_is_kept(platform: Synthesized) -> None:
    types = {t["Type"] for t in cluster(platform)["Logging"]["ClusterLogging"]["EnabledTypes"]}
    assert types == {"api", "audit", "authenticator", "controllerManager", "scheduler"}


def test_the_cluster_has_every_addon_once(platform: Synthesized) -> None:
    assert set(addons(platform)) == NODE_ADDONS | WORKLOAD_ADDONS
    assert cluster(platform)["BootstrapSelfManagedAddons"] is False


def test_nodes_find_their_network_and_their_identity_agent(platform: Synthesized) -> None:
    """A node without them is never ready, and the node group fails after half an hour."""
    (nodes,) = platform.resources("cluster", "AWS::EKS::Nodegroup")
    before = made_before(platform, nodes)
    assert {addons(platform)[name][0] for name in NODE_ADDONS} <= before


def test_an_addon_of_deployments_finds_nodes(platform: Synthesized) -> None:
    """Without a node it stays degraded, and CloudFormation gives up on it."""
    (nodes,) = platform.resources("cluster", "AWS::EKS::Nodegroup")
    for name in WORKLOAD_ADDONS:
        assert nodes in made_before(platform, addons(platform)[name][0]), name


def test_the_cni_and_its_role_outlive_every_node(platform: Synthesized) -> None:
    """Deleted first, it leaves the nodes' interfaces behind, and they hold the security groups and the VPC."""
    (nodes,) = platform.resources("cluster", "AWS::EKS::Nodegroup")
    _, cni = addons(platform)["vpc-cni"]
    (association,) = cni["Properties"]["PodIdentityAssociations"]
    role = association["RoleArn"]["Fn::GetAtt"][0]
    assert role in made_before(platform, nodes)
    manifest = json.loads((platform.folder / "manifest.json").read_text())["artifacts"]
    name = platform.config.name
    assert f"{name}-cluster" in manifest[f"{name}-node-groups"]["dependencies"]


def test_addons_that_call_aws_have_an_identity_of_their_own(platform: Synthesized) -> None:
    """Pods cannot reach the node's credentials, which an add-on without an association would look for."""
    accounts = {
        name: [a["ServiceAccount"] for a in resource["Properties"].get("PodIdentityAssociations", [])]
        for name, (_, resource) in addons(platform).items()
    }
    assert {name: found for name, found in accounts.items() if found} == {
        "vpc-cni": ["aws-node"],
        "aws-ebs-csi-driver": ["ebs-csi-controller-sa"],
        "aws-fsx-csi-driver": ["fsx-csi-controller-sa"],
    }


def test_only_pods_take_an_addons_role(platform: Synthesized) -> None:
    resources = platform.templates["cluster"]["Resources"]
    for name, (_, addon) in addons(platform).items():
        for association in addon["Properties"].get("PodIdentityAssociations", []):
            role = resources[association["RoleArn"]["Fn::GetAtt"][0]]["Properties"]
            (statement,) = role["AssumeRolePolicyDocument"]["Statement"]
            assert statement["Principal"] == {"Service": "pods.eks.amazonaws.com"}, name
            # Pod Identity tags the session, and the role must allow that too.
            assert set(statement["Action"]) == {"sts:AssumeRole", "sts:TagSession"}, name


def test_the_fsx_driver_may_look_and_neither_make_nor_delete(platform: Synthesized) -> None:
    (policy,) = platform.resources("cluster", "AWS::IAM::Policy").values()
    (statement,) = policy["Properties"]["PolicyDocument"]["Statement"]
    assert statement["Action"] == "fsx:DescribeFileSystems"
    assert statement["Resource"].endswith(":file-system/*")


def test_only_those_named_administer_the_cluster(platform: Synthesized) -> None:
    """Whoever deployed it would otherwise be an administrator whom no list shows."""
    access = cluster(platform)["AccessConfig"]
    assert access == {"AuthenticationMode": "API", "BootstrapClusterCreatorAdminPermissions": False}
    entries = platform.resources("cluster", "AWS::EKS::AccessEntry").values()
    assert {entry["Properties"]["PrincipalArn"] for entry in entries} == set(platform.config.cluster.admins)
    for entry in entries:
        (policy,) = entry["Properties"]["AccessPolicies"]
        assert policy["PolicyArn"].endswith("/AmazonEKSClusterAdminPolicy")
        assert policy["AccessScope"] == {"Type": "cluster"}


def test_the_api_server_answers_those_networks_and_the_vpc(platform: Synthesized) -> None:
    vpc = cluster(platform)["ResourcesVpcConfig"]
    assert vpc["EndpointPrivateAccess"] is True
    assert vpc["EndpointPublicAccess"] is True
    assert vpc["PublicAccessCidrs"] == list(platform.config.cluster.public_access_cidrs)


def test_without_networks_the_api_server_is_private(synthesize: Callable[..., Synthesized]) -> None:
    values = values_of("p5-capacity-block")
    del values["cluster"]["public_access_cidrs"]
    vpc = cluster(synthesize(config_from(values)))["ResourcesVpcConfig"]
    assert (vpc["EndpointPrivateAccess"], vpc["EndpointPublicAccess"]) == (True, False)
    assert "PublicAccessCidrs" not in vpc


def test_the_control_plane_lives_in_private_subnets_of_every_zone(platform: Synthesized) -> None:
    subnets = cluster(platform)["ResourcesVpcConfig"]["SubnetIds"]
    outputs = [subnet["Fn::GetStackOutput"]["OutputName"] for subnet in subnets]
    assert len(outputs) == len(platform.config.availability_zones)
    assert all("PrivateSubnet" in output for output in outputs)


def test_secrets_are_encrypted_by_a_key_that_goes_within_a_week(platform: Synthesized) -> None:
    (key_id,) = platform.resources("cluster", "AWS::KMS::Key")
    (encryption,) = cluster(platform)["EncryptionConfig"]
    assert encryption == {"Provider": {"KeyArn": {"Fn::GetAtt": [key_id, "Arn"]}}, "Resources": ["secrets"]}
    key = platform.one("cluster", "AWS::KMS::Key")["Properties"]
    assert (key["PendingWindowInDays"], key["EnableKeyRotation"]) == (7, True)


def test_extended_support_is_never_bought_by_itself(platform: Synthesized) -> None:
    assert cluster(platform)["UpgradePolicy"] == {"SupportType": "STANDARD"}


@pytest.mark.parametrize("version", ["1.33", "1.36"])
def test_the_cluster_runs_the_version_that_the_config_says(
    synthesize: Callable[..., Synthesized], version: str
) -> None:
    platform = synthesize(config_from({**values_of("p5-capacity-block"), "kubernetes_version": version}))
    assert cluster(platform)["Version"] == version
    versions = {nodes["Properties"]["Version"] for _, nodes in platform.every("AWS::EKS::Nodegroup")}
    assert versions == {version}


def test_system_nodes_carry_their_label_and_survive_the_loss_of_one(platform: Synthesized) -> None:
    nodes = platform.one("cluster", "AWS::EKS::Nodegroup")["Properties"]
    assert nodes["Labels"] == {NODE_GROUP_LABEL: SYSTEM_NODE_GROUP}
    assert nodes["ScalingConfig"]["MinSize"] == platform.config.cluster.system_node_group.size >= 2
    assert len(nodes["Subnets"]) == len(platform.config.availability_zones)
    assert "Taints" not in nodes


def test_system_nodes_hide_their_credentials_and_encrypt_their_volumes(platform: Synthesized) -> None:
    template = platform.one("cluster", "AWS::EC2::LaunchTemplate")["Properties"]["LaunchTemplateData"]
    assert template["MetadataOptions"]["HttpTokens"] == "required"
    assert template["MetadataOptions"]["HttpPutResponseHopLimit"] == 1
    assert all(mapping["Ebs"]["Encrypted"] for mapping in template["BlockDeviceMappings"])


def test_system_nodes_name_their_image_and_force_no_pod_away(platform: Synthesized) -> None:
    nodes = platform.one("cluster", "AWS::EKS::Nodegroup")["Properties"]
    assert nodes["AmiType"] == "AL2023_x86_64_STANDARD"
    assert nodes["ForceUpdateEnabled"] is False


def test_container_insights_log_into_groups_of_the_stack(synthesize: Callable[..., Synthesized]) -> None:
    """The agent makes the groups itself otherwise, and they bill on after a destroy."""
    values = values_of("p5-capacity-block")
    values["cluster"]["container_insights"] = {"log_retention_days": 1}
    platform = synthesize(config_from(values))
    assert set(addons(platform)) == NODE_ADDONS | WORKLOAD_ADDONS | {"amazon-cloudwatch-observability"}
    id_, addon = addons(platform)["amazon-cloudwatch-observability"]
    (association,) = addon["Properties"]["PodIdentityAssociations"]
    assert association["ServiceAccount"] == "cloudwatch-agent"
    groups = {
        group["Properties"]["LogGroupName"].rpartition("/")[2]: group_id
        for group_id, group in platform.resources("cluster", "AWS::Logs::LogGroup").items()
        if group["Properties"]["RetentionInDays"] == 1
    }
    assert set(groups) == {"application", "dataplane", "host", "performance"}
    assert set(groups.values()) <= made_before(platform, id_)
    assert lint(platform) == []
    assert violations({f"{platform.config.name}-{stack}": t for stack, t in platform.templates.items()}) == []
