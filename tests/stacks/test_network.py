from __future__ import annotations

import ipaddress
from collections.abc import Callable
from typing import Any

import pytest

from config.sizing import addresses_per_node
from tests.synthesis import Resource, Synthesized, config_from, values_of


def private_subnets(platform: Synthesized) -> dict[str, Resource]:
    """Zone to its private subnet's properties."""
    return {
        subnet["Properties"]["AvailabilityZone"]: subnet["Properties"]
        for subnet in platform.resources("network", "AWS::EC2::Subnet").values()
        if {"Key": "aws-cdk:subnet-type", "Value": "Private"} in subnet["Properties"]["Tags"]
    }


def test_every_zone_of_the_config_has_a_private_subnet_and_no_other_zone_has(platform: Synthesized) -> None:
    assert set(private_subnets(platform)) == set(platform.config.availability_zones)


def test_the_subnet_of_the_gpu_nodes_holds_all_that_may_start_at_once(platform: Synthesized) -> None:
    """Nodes that find no address leave the launch as failed, one by one, after minutes each."""
    cidr = ipaddress.IPv4Network(private_subnets(platform)[platform.config.gpu_zone]["CidrBlock"])
    needed = sum(
        group.max_size * addresses_per_node(group.instance, group.interface_layout)
        for group in platform.config.node_groups
    )
    assert needed < cidr.num_addresses


def test_nothing_that_starts_in_the_vpc_gets_a_public_address(platform: Synthesized) -> None:
    subnets = platform.resources("network", "AWS::EC2::Subnet").values()
    assert not [subnet for subnet in subnets if subnet["Properties"]["MapPublicIpOnLaunch"]]


def test_a_zone_added_later_moves_no_subnet_that_exists(synthesize: Callable[..., Synthesized]) -> None:
    """A subnet whose range changes is replaced, and everything in it with it."""
    values = values_of("p5-capacity-block")
    before = synthesize(config_from(values))
    values["availability_zones"].append("us-east-2c")
    after = synthesize(config_from(values))
    ranges: list[dict[str, set[str]]] = []
    for platform in (before, after):
        found: dict[str, set[str]] = {}
        for subnet in platform.resources("network", "AWS::EC2::Subnet").values():
            found.setdefault(subnet["Properties"]["AvailabilityZone"], set()).add(subnet["Properties"]["CidrBlock"])
        ranges.append(found)
    assert ranges[1].keys() - ranges[0].keys() == {"us-east-2c"}
    assert all(ranges[1][zone] == ranges[0][zone] for zone in ranges[0])


@pytest.mark.parametrize(
    ("choice", "expected"), [("one", ["us-east-2b"]), ("one_per_zone", ["us-east-2a", "us-east-2b"])]
)
def test_a_single_nat_gateway_stands_in_the_zone_of_the_gpu_nodes(
    synthesize: Callable[..., Synthesized], choice: str, expected: list[str]
) -> None:
    """Traffic between zones costs both ways, and most of it is theirs."""
    values = values_of("p5-4xlarge-on-demand")
    values["network"] = {"nat_gateways": choice}
    values["node_groups"][0]["availability_zone"] = "us-east-2b"
    platform = synthesize(config_from(values))
    resources = platform.templates["network"]["Resources"]
    zones = [
        resources[gateway["Properties"]["SubnetId"]["Ref"]]["Properties"]["AvailabilityZone"]
        for gateway in platform.resources("network", "AWS::EC2::NatGateway").values()
    ]
    assert sorted(zones) == expected


def test_every_private_subnet_reaches_s3_without_the_nat_gateway(platform: Synthesized) -> None:
    """Image layers and checkpoints are terabytes, and a NAT gateway charges for each gigabyte."""
    (gateway,) = [
        endpoint["Properties"]
        for endpoint in platform.resources("network", "AWS::EC2::VPCEndpoint").values()
        if endpoint["Properties"]["VpcEndpointType"] == "Gateway"
    ]
    assert gateway["ServiceName"]["Fn::Join"][1][-1] == ".s3"
    associations = platform.resources("network", "AWS::EC2::SubnetRouteTableAssociation").values()
    tables = {a["Properties"]["RouteTableId"]["Ref"] for a in associations}
    assert {table["Ref"] for table in gateway["RouteTableIds"]} == tables


def test_endpoints_admit_the_vpc_on_https_and_nobody_else(platform: Synthesized) -> None:
    groups = platform.resources("network", "AWS::EC2::SecurityGroup")
    interfaces = [
        endpoint["Properties"]
        for endpoint in platform.resources("network", "AWS::EC2::VPCEndpoint").values()
        if endpoint["Properties"]["VpcEndpointType"] == "Interface"
    ]
    assert interfaces
    for endpoint in interfaces:
        (group,) = endpoint["SecurityGroupIds"]
        (rule,) = groups[group["Fn::GetAtt"][0]]["Properties"]["SecurityGroupIngress"]
        assert (rule["CidrIp"], rule["FromPort"], rule["ToPort"]) == (platform.config.network.cidr, 443, 443)
        assert len(endpoint["SubnetIds"]) == 1


def test_rejected_connections_are_logged(platform: Synthesized) -> None:
    flow_log = platform.one("network", "AWS::EC2::FlowLog")["Properties"]
    assert (flow_log["ResourceType"], flow_log["TrafficType"]) == ("VPC", "REJECT")


def rule(platform: Synthesized, type_: str) -> dict[str, Any]:
    properties: dict[str, Any] = platform.one("network", type_)["Properties"]
    return properties


def test_the_nodes_group_admits_itself_in_both_directions(platform: Synthesized) -> None:
    """EFA needs both, each for all traffic. With one of them NCCL hangs in its first collective."""
    ingress = rule(platform, "AWS::EC2::SecurityGroupIngress")
    egress = rule(platform, "AWS::EC2::SecurityGroupEgress")
    assert ingress["GroupId"] == ingress["SourceSecurityGroupId"] == egress["GroupId"]
    assert egress["GroupId"] == egress["DestinationSecurityGroupId"]
    assert (ingress["IpProtocol"], egress["IpProtocol"]) == ("-1", "-1")
