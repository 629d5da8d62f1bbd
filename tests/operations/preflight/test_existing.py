"""What a platform adopts must be as its file says."""

from __future__ import annotations

from typing import Any

import pytest

from config.platform import PlatformConfig
from operations.preflight import existing
from tests.operations.conftest import own_values, stubbed
from tests.synthesis import config_from

CLUSTER = {
    "status": "ACTIVE",
    "version": "1.36",
    "resourcesVpcConfig": {"clusterSecurityGroupId": "sg-0a1b2c3d4e5f60718", "vpcId": "vpc-0a1b2c3d4e5f60718"},
}


def texts(findings: Any) -> list[str]:
    return [f"{finding.kind}: {finding.text}" for finding in findings]


def with_bucket(aws: Any, name: str) -> list[str]:
    values = own_values()
    values["storage"]["bucket"] = name
    return texts(existing.bucket(config_from(values), {"s3": aws.client("s3")}))


def make_bucket(aws: Any, name: str, region: str) -> None:
    aws.client("s3", region_name=region).create_bucket(
        Bucket=name, CreateBucketConfiguration={"LocationConstraint": region}
    )


def test_a_bucket_of_the_region_passes_and_a_platform_that_makes_one_asks_nothing(aws: Any) -> None:
    make_bucket(aws, "ours", "us-east-2")
    assert with_bucket(aws, "ours") == []
    assert texts(existing.bucket(config_from(own_values()), {})) == []


def test_a_bucket_that_does_not_exist_is_refused(aws: Any) -> None:
    (text,) = with_bucket(aws, "not-there")
    assert text.startswith("failed: storage.bucket: there is no bucket not-there")


def test_a_bucket_of_another_region_is_refused(aws: Any) -> None:
    make_bucket(aws, "far-away", "eu-west-1")
    (text,) = with_bucket(aws, "far-away")
    assert "far-away is in eu-west-1, not us-east-2" in text


def test_a_bucket_of_somebody_else_is_refused() -> None:
    values = own_values()
    values["storage"]["bucket"] = "theirs"
    s3 = stubbed("s3", ("head_bucket", "403", {"Bucket": "theirs"}))
    (text,) = texts(existing.bucket(config_from(values), {"s3": s3}))
    assert "theirs is closed to you" in text


def test_a_range_that_nobody_uses_passes(aws: Any) -> None:
    assert texts(existing.network(config_from(own_values()), {"ec2": aws.client("ec2")})) == []


def test_a_range_that_another_vpc_has_warns_and_the_platforms_own_does_not(aws: Any) -> None:
    ec2 = aws.client("ec2")
    vpc = ec2.create_vpc(CidrBlock="10.0.16.0/20")["Vpc"]["VpcId"]
    (text,) = texts(existing.network(config_from(own_values()), {"ec2": ec2}))
    assert text.startswith(f"warning: network.cidr 10.0.0.0/16 overlaps 10.0.16.0/20 of {vpc}")
    ec2.create_tags(Resources=[vpc], Tags=[{"Key": "platform", "Value": "p5-capacity-block"}])
    assert texts(existing.network(config_from(own_values()), {"ec2": ec2})) == []


class Vpc:
    """A VPC with a private subnet in each zone of the platform, and a way out."""

    def __init__(self, aws: Any, prefix: int = 20) -> None:
        self.ec2 = aws.client("ec2")
        self.id: str = self.ec2.create_vpc(CidrBlock="10.9.0.0/16")["Vpc"]["VpcId"]
        self.ec2.modify_vpc_attribute(VpcId=self.id, EnableDnsHostnames={"Value": True})
        self.subnets = {
            zone: self.ec2.create_subnet(VpcId=self.id, AvailabilityZone=zone, CidrBlock=f"10.9.{third}.0/{prefix}")[
                "Subnet"
            ]["SubnetId"]
            for zone, third in (("us-east-2a", 0), ("us-east-2b", 16))
        }
        gateway = self.ec2.create_internet_gateway()["InternetGateway"]["InternetGatewayId"]
        self.ec2.attach_internet_gateway(InternetGatewayId=gateway, VpcId=self.id)
        (table,) = self.ec2.describe_route_tables(Filters=[{"Name": "vpc-id", "Values": [self.id]}])["RouteTables"]
        self.table = table["RouteTableId"]
        self.ec2.create_route(RouteTableId=self.table, DestinationCidrBlock="0.0.0.0/0", GatewayId=gateway)

    def found(self, **changes: Any) -> list[str]:
        values = own_values()
        values["network"] = {"vpc": {"id": self.id, "private_subnets": self.subnets, **changes}}
        return texts(existing.network(config_from(values), {"ec2": self.ec2}))


def test_a_vpc_with_what_nodes_need_passes(aws: Any) -> None:
    assert Vpc(aws).found() == []


def test_a_vpc_or_subnet_that_does_not_exist_is_refused(aws: Any) -> None:
    vpc = Vpc(aws)
    (text,) = vpc.found(id="vpc-0a1b2c3d4e5f60718")
    assert text.startswith("failed: network.vpc:")
    (text,) = vpc.found(private_subnets=vpc.subnets | {"us-east-2b": "subnet-0a1b2c3d4e5f60718"})
    assert "subnet-0a1b2c3d4e5f60718" in text


def test_subnets_of_other_zones_and_other_vpcs_are_refused(aws: Any) -> None:
    vpc, other = Vpc(aws), Vpc(aws)
    swapped = dict(zip(vpc.subnets, reversed(vpc.subnets.values()), strict=True))
    assert [text for text in vpc.found(private_subnets=swapped) if "move it in the file" in text]
    assert any(f"is in {other.id}, not {vpc.id}" in text for text in vpc.found(private_subnets=other.subnets))


def test_a_subnet_without_a_way_out_is_refused(aws: Any) -> None:
    vpc = Vpc(aws)
    vpc.ec2.delete_route(RouteTableId=vpc.table, DestinationCidrBlock="0.0.0.0/0")
    assert [text for text in vpc.found() if "has no route out" in text]


def test_a_vpc_without_names_is_refused(aws: Any) -> None:
    vpc = Vpc(aws)
    vpc.ec2.modify_vpc_attribute(VpcId=vpc.id, EnableDnsHostnames={"Value": False})
    (text,) = vpc.found()
    assert "has enableDnsHostnames off" in text


def test_a_subnet_that_is_too_small_for_every_node_warns(aws: Any) -> None:
    (text,) = Vpc(aws, prefix=26).found()
    assert text.startswith("warning: network.vpc:")
    assert "free addresses" in text


def adopting() -> PlatformConfig:
    values = own_values()
    subnets = {"us-east-2a": "subnet-0a1b2c3d4e5f60718", "us-east-2b": "subnet-1a1b2c3d4e5f60718"}
    values["network"] = {"vpc": {"id": "vpc-0a1b2c3d4e5f60718", "private_subnets": subnets}}
    values["cluster"] = {"existing": {"name": "theirs", "security_group_id": "sg-0a1b2c3d4e5f60718"}}
    return config_from(values)


def clustered(answer: dict[str, Any] | str, addons: tuple[str, ...] = existing.NEEDED_ADDONS) -> list[str]:
    answered = answer if isinstance(answer, str) else {"cluster": answer}
    eks = stubbed(
        "eks",
        ("describe_cluster", answered, {"name": "theirs"}),
        ("list_addons", {"addons": list(addons)}, {"clusterName": "theirs"}),
    )
    return texts(existing.cluster(adopting(), {"eks": eks}))


def test_a_cluster_as_the_file_says_passes_and_a_new_one_asks_nothing() -> None:
    assert clustered(CLUSTER) == []
    assert texts(existing.cluster(config_from(own_values()), {})) == []


def test_a_cluster_that_does_not_exist_is_refused() -> None:
    (text,) = clustered("ResourceNotFoundException")
    assert "there is no cluster theirs in us-east-2" in text


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"status": "UPDATING"}, "theirs is UPDATING"),
        ({"version": "1.34"}, "theirs has 1.34, and its nodes would have 1.36"),
        (
            {"resourcesVpcConfig": CLUSTER["resourcesVpcConfig"] | {"clusterSecurityGroupId": "sg-1"}},  # type: ignore[operator]
            "that of theirs is sg-1, not sg-0a1b2c3d4e5f60718",
        ),
        (
            {"resourcesVpcConfig": CLUSTER["resourcesVpcConfig"] | {"vpcId": "vpc-1"}},  # type: ignore[operator]
            "theirs is in vpc-1, not vpc-0a1b2c3d4e5f60718",
        ),
    ],
)
def test_a_cluster_that_differs_from_the_file_is_refused(change: dict[str, Any], expected: str) -> None:
    (text,) = clustered(CLUSTER | change)
    assert text.startswith("failed")
    assert expected in text


def test_an_addon_that_nobody_sees_is_said() -> None:
    (text,) = clustered(CLUSTER, addons=("vpc-cni", "eks-pod-identity-agent"))
    assert text.startswith("not checked: whether theirs runs aws-fsx-csi-driver")
