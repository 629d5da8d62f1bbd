"""A VPC and a cluster that somebody else owns are used, and nothing in them is changed."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from config.names import NODE_GROUP_LABEL, SYSTEM_NODE_GROUP
from stacks.rules import violations
from tests.synthesis import STACKS, Synthesized, config_from, lint, values_of

VPC = "vpc-0123456789abcdef0"
SUBNETS = {"us-east-2a": "subnet-0123456789abcdef0", "us-east-2b": "subnet-0fedcba9876543210"}
CLUSTER_GROUP = "sg-0123456789abcdef0"


def values() -> dict[str, Any]:
    return {**values_of("p5-capacity-block"), "network": {"vpc": {"id": VPC, "private_subnets": SUBNETS}}}


@pytest.fixture(scope="session")
def in_vpc(synthesize: Callable[..., Synthesized]) -> Synthesized:
    """A new cluster in a VPC that exists."""
    return synthesize(config_from(values()))


@pytest.fixture(scope="session")
def in_cluster(synthesize: Callable[..., Synthesized]) -> Synthesized:
    """Node groups, file system and registry for a cluster that exists."""
    existing = {"name": "theirs", "security_group_id": CLUSTER_GROUP}
    return synthesize(config_from({**values(), "cluster": {"existing": existing}}))


@pytest.fixture(params=["in_vpc", "in_cluster"])
def either(request: pytest.FixtureRequest) -> Synthesized:
    found: Synthesized = request.getfixturevalue(request.param)
    return found


def test_the_stacks_are_the_same_five(either: Synthesized) -> None:
    assert set(either.templates) == set(STACKS)


def test_linters_and_rules_find_nothing(either: Synthesized) -> None:
    assert lint(either) == []
    assert violations({f"{either.config.name}-{stack}": t for stack, t in either.templates.items()}) == []


def test_the_vpc_gets_the_nodes_group_and_its_rules_and_nothing_else(either: Synthesized) -> None:
    resources = either.templates["network"]["Resources"].values()
    assert sorted(resource["Type"] for resource in resources) == [
        "AWS::EC2::SecurityGroup",
        "AWS::EC2::SecurityGroupEgress",
        "AWS::EC2::SecurityGroupIngress",
    ]
    (group,) = [resource for resource in resources if resource["Type"] == "AWS::EC2::SecurityGroup"]
    assert group["Properties"]["VpcId"] == VPC


def test_no_rule_touches_a_group_that_the_platform_does_not_own(in_cluster: Synthesized) -> None:
    """The ports of Lustre open on the nodes' own group, whatever the cluster's owner does with theirs."""
    for _, resource in in_cluster.every():
        if resource["Type"].startswith("AWS::EC2::SecurityGroup") and "GroupId" in resource["Properties"]:
            assert CLUSTER_GROUP not in json.dumps(resource["Properties"]["GroupId"])


def test_nodes_and_data_are_in_the_named_subnet_of_the_gpu_zone(either: Synthesized) -> None:
    subnet = SUBNETS[either.config.gpu_zone]
    assert either.one("node-groups", "AWS::EKS::Nodegroup")["Properties"]["Subnets"] == [subnet]
    assert either.one("storage", "AWS::FSx::FileSystem")["Properties"]["SubnetIds"] == [subnet]


def test_a_new_cluster_spans_the_named_subnets(in_vpc: Synthesized) -> None:
    cluster = in_vpc.one("cluster", "AWS::EKS::Cluster")["Properties"]
    assert cluster["ResourcesVpcConfig"]["SubnetIds"] == list(SUBNETS.values())


def test_an_existing_cluster_gets_system_nodes_and_nothing_else(in_cluster: Synthesized) -> None:
    """Its add-ons, access and logs are its owner's, and a second add-on of a name fails the deployment."""
    types = {resource["Type"] for resource in in_cluster.templates["cluster"]["Resources"].values()}
    assert types == {"AWS::EC2::LaunchTemplate", "AWS::EKS::Nodegroup", "AWS::IAM::Role"}
    nodes = in_cluster.one("cluster", "AWS::EKS::Nodegroup")["Properties"]
    assert nodes["ClusterName"] == "theirs"
    assert nodes["Labels"] == {NODE_GROUP_LABEL: SYSTEM_NODE_GROUP}
    assert in_cluster.templates["cluster"]["Outputs"]["ClusterName"]["Value"] == "theirs"


def test_gpu_nodes_join_the_existing_cluster_through_its_group(in_cluster: Synthesized) -> None:
    nodes = in_cluster.one("node-groups", "AWS::EKS::Nodegroup")["Properties"]
    assert nodes["ClusterName"] == "theirs"
    template = in_cluster.one("node-groups", "AWS::EC2::LaunchTemplate")["Properties"]["LaunchTemplateData"]
    assert CLUSTER_GROUP in template["NetworkInterfaces"][0]["Groups"]
    assert not [i for i in template["NetworkInterfaces"][1:] if CLUSTER_GROUP in i["Groups"]]
