"""The sweep finds what is left of a platform and nothing else, and removes it only when asked."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from config.platform import PlatformConfig
from operations import sweep
from operations.sweep import Leftover
from tests.operations.conftest import ACCOUNT, own_values, stubbed
from tests.synthesis import config_from

NAME = "p5-capacity-block"
CONFIG = config_from(own_values())


def tags(values: dict[str, str]) -> list[dict[str, str]]:
    return [{"Key": key, "Value": value} for key, value in values.items()]


class Account:
    """An account with leftovers of one platform."""

    def __init__(self, aws: Any) -> None:
        self.clients = {service: aws.client(service) for service in sweep.SERVICES}
        self.ec2 = self.clients["ec2"]

    def vpc(self, platform: str, cidr: str) -> tuple[str, str]:
        vpc: str = self.ec2.create_vpc(CidrBlock=cidr)["Vpc"]["VpcId"]
        self.ec2.create_tags(Resources=[vpc], Tags=tags({"platform": platform}))
        subnet: str = self.ec2.create_subnet(VpcId=vpc, CidrBlock=cidr, AvailabilityZone="us-east-2a")["Subnet"][
            "SubnetId"
        ]
        return vpc, subnet

    def leave(self, platform: str, cidr: str) -> set[Leftover]:
        """One thing of every kind, and what they are."""
        vpc, subnet = self.vpc(platform, cidr)
        owned = {f"kubernetes.io/cluster/{platform}": "owned"}
        elbv2, made = self.clients["elbv2"], set()
        by_controller = tags({"elbv2.k8s.aws/cluster": platform})
        balancer = elbv2.create_load_balancer(
            Name=f"k8s-{platform[:20]}", Subnets=[subnet], Type="network", Tags=by_controller
        )
        made.add(Leftover("load balancer", balancer["LoadBalancers"][0]["LoadBalancerArn"]))
        group = elbv2.create_target_group(
            Name=f"k8s-{platform[:20]}", Protocol="TCP", Port=80, VpcId=vpc, Tags=by_controller
        )
        made.add(Leftover("target group", group["TargetGroups"][0]["TargetGroupArn"]))
        self.clients["elb"].create_load_balancer(
            LoadBalancerName=f"classic-{platform}",
            Listeners=[{"Protocol": "tcp", "LoadBalancerPort": 80, "InstancePort": 80}],
            Subnets=[subnet],
            Tags=tags(owned),
        )
        made.add(Leftover("classic load balancer", f"classic-{platform}"))
        endpoint = self.ec2.create_vpc_endpoint(
            VpcId=vpc, ServiceName="com.amazonaws.us-east-2.guardduty-data", VpcEndpointType="Interface"
        )
        made.add(Leftover("GuardDuty endpoint", endpoint["VpcEndpoint"]["VpcEndpointId"]))
        described = self.ec2.create_network_interface(SubnetId=subnet, Description="aws-K8S-i-0a1b2c3d4e5f60718")
        made.add(Leftover("network interface", described["NetworkInterface"]["NetworkInterfaceId"]))
        tagged = self.ec2.create_network_interface(
            SubnetId=subnet,
            TagSpecifications=[
                {
                    "ResourceType": "network-interface",
                    "Tags": tags({"cluster.k8s.amazonaws.com/name": platform}),
                }
            ],
        )
        made.add(Leftover("network interface", tagged["NetworkInterface"]["NetworkInterfaceId"]))
        made |= set(self.security_groups(platform, vpc, owned))
        volume = self.ec2.create_volume(
            AvailabilityZone="us-east-2a",
            Size=8,
            TagSpecifications=[{"ResourceType": "volume", "Tags": tags(owned)}],
        )
        made.add(Leftover("volume", volume["VolumeId"]))
        fsx = self.clients["fsx"]
        files = fsx.create_file_system(FileSystemType="LUSTRE", StorageCapacity=1200, SubnetIds=[subnet])
        backup = fsx.create_backup(FileSystemId=files["FileSystem"]["FileSystemId"], Tags=tags({"platform": platform}))
        made.add(Leftover("FSx backup", backup["Backup"]["BackupId"]))
        for log_group in (
            f"/aws/eks/{platform}/cluster",
            f"/aws/containerinsights/{platform}/application",
            f"/aws/fsx/{platform}",
        ):
            self.clients["logs"].create_log_group(logGroupName=log_group)
            made.add(Leftover("log group", log_group))
        return made

    def security_groups(self, platform: str, vpc: str, owned: dict[str, str]) -> Iterator[Leftover]:
        """EKS's and GuardDuty's, each of which lets the other in."""
        of_eks = self.ec2.create_security_group(
            GroupName=f"eks-cluster-sg-{platform}-1",
            Description="EKS",
            VpcId=vpc,
            TagSpecifications=[{"ResourceType": "security-group", "Tags": tags(owned)}],
        )["GroupId"]
        of_guardduty = self.ec2.create_security_group(
            GroupName=f"GuardDutyManagedSecurityGroup-{vpc}", Description="GuardDuty", VpcId=vpc
        )["GroupId"]
        for group, other in ((of_eks, of_guardduty), (of_guardduty, of_eks)):
            pairs = [{"GroupId": other}]
            self.ec2.authorize_security_group_ingress(
                GroupId=group, IpPermissions=[{"IpProtocol": "-1", "UserIdGroupPairs": pairs}]
            )
            yield Leftover("security group", group)

    def found(self, config: PlatformConfig = CONFIG) -> set[Leftover]:
        return set(sweep.find(self.clients, sweep.scope_of(config, self.clients)))


@pytest.fixture
def account(aws: Any, monkeypatch: pytest.MonkeyPatch) -> Account:
    monkeypatch.setattr(sweep, "SECONDS_BETWEEN_ROUNDS", 0.0)
    return Account(aws)


def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *arguments: str) -> int:
    path = tmp_path / "platform.yaml"
    path.write_text(yaml.safe_dump({**own_values(), "jobs": []}), encoding="utf-8")
    monkeypatch.setattr("sys.argv", ["sweep", "--config", str(path), *arguments])
    return sweep.main()


def test_every_kind_is_found_and_nothing_of_another_platform(account: Account) -> None:
    account.leave(f"{NAME}-2", "10.1.0.0/24")
    expected = account.leave(NAME, "10.0.0.0/24")
    assert account.found() == expected
    assert {leftover.kind for leftover in expected} == {kind.name for kind in sweep.KINDS}


def test_a_dry_run_removes_nothing_and_says_that_something_is_left(
    account: Account, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = account.leave(NAME, "10.0.0.0/24")
    assert run(monkeypatch, tmp_path) == 1
    said = capsys.readouterr().out
    assert all(f"{leftover.kind} {leftover.id}" in said for leftover in expected)
    assert f"{len(expected)} are left; nothing was removed" in said
    assert account.found() == expected


def test_delete_removes_all_of_it_and_leaves_the_neighbour(
    account: Account, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    neighbour = config_from(own_values() | {"name": f"{NAME}-2"})
    kept = account.leave(neighbour.name, "10.1.0.0/24")
    account.leave(NAME, "10.0.0.0/24")
    assert run(monkeypatch, tmp_path, "--delete") == 0
    assert capsys.readouterr().out.endswith(f"nothing of {NAME} is left behind by AWS services\n")
    assert account.found() == set()
    assert account.found(neighbour) == kept


@pytest.mark.usefixtures("aws")
def test_an_account_with_nothing_ends_well(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, tmp_path) == 0
    assert "nothing of p5-capacity-block is left" in capsys.readouterr().out


def test_nothing_is_removed_while_the_cluster_exists(
    account: Account, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = account.leave(NAME, "10.0.0.0/24")
    role = f"arn:aws:iam::{ACCOUNT}:role/cluster"
    account.clients["eks"].create_cluster(name=NAME, roleArn=role, resourcesVpcConfig={"subnetIds": []})
    assert run(monkeypatch, tmp_path, "--delete") == 2
    assert "its cluster exists" in capsys.readouterr().err
    assert account.found() == expected
    assert run(monkeypatch, tmp_path) == 1
    assert "still exists, and may use them" in capsys.readouterr().out


def test_interfaces_and_volumes_in_use_are_no_leftovers(account: Account) -> None:
    _, subnet = account.vpc(NAME, "10.0.0.0/24")
    ec2 = account.ec2
    (image,) = ec2.describe_images(Owners=["amazon"], MaxResults=5)["Images"][:1]
    node = ec2.run_instances(
        ImageId=image["ImageId"], InstanceType="m7i.xlarge", MinCount=1, MaxCount=1, SubnetId=subnet
    )["Instances"][0]["InstanceId"]
    made = ec2.create_network_interface(SubnetId=subnet, Description="aws-K8S-i-0a1b2c3d4e5f60718")
    ec2.attach_network_interface(
        NetworkInterfaceId=made["NetworkInterface"]["NetworkInterfaceId"], InstanceId=node, DeviceIndex=1
    )
    owned = [{"ResourceType": "volume", "Tags": tags({f"kubernetes.io/cluster/{NAME}": "owned"})}]
    volume = ec2.create_volume(AvailabilityZone="us-east-2a", Size=8, TagSpecifications=owned)["VolumeId"]
    ec2.attach_volume(VolumeId=volume, InstanceId=node, Device="/dev/sdf")
    assert account.found() == set()


def test_log_groups_of_stacks_that_exist_are_theirs(account: Account) -> None:
    for stack, group in (("cluster", f"/aws/eks/{NAME}/cluster"), ("storage", f"/aws/fsx/{NAME}")):
        body = {"Resources": {"Logs": {"Type": "AWS::Logs::LogGroup", "Properties": {"LogGroupName": group}}}}
        account.clients["cloudformation"].create_stack(StackName=f"{NAME}-{stack}", TemplateBody=json.dumps(body))
    assert account.found() == set()


def test_an_adopted_vpc_and_cluster_are_somebody_elses(account: Account) -> None:
    made = account.leave(NAME, "10.0.0.0/24")
    values = own_values()
    subnets = {"us-east-2a": "subnet-0a1b2c3d4e5f60718", "us-east-2b": "subnet-1a1b2c3d4e5f60718"}
    values["network"] = {"vpc": {"id": "vpc-0a1b2c3d4e5f60718", "private_subnets": subnets}}
    values["cluster"] = {"existing": {"name": NAME, "security_group_id": "sg-0a1b2c3d4e5f60718"}}
    platforms_own = {each for each in made if each.kind == "FSx backup" or each.id == f"/aws/fsx/{NAME}"}
    assert account.found(config_from(values)) == platforms_own


def remaining(monkeypatch: pytest.MonkeyPatch, code: str, rounds: int) -> dict[Leftover, str]:
    """What is left where one volume cannot be removed in so many rounds."""
    monkeypatch.setattr(sweep, "SECONDS_BETWEEN_ROUNDS", 0.0)
    monkeypatch.setattr(sweep, "ROUNDS", 3)
    ec2 = stubbed("ec2", *[("delete_volume", code, {"VolumeId": "vol-1"})] * rounds)
    kind = sweep.Kind("volume", lambda _c, _s: iter(["vol-1"]), lambda c, id_: c["ec2"].delete_volume(VolumeId=id_))
    monkeypatch.setattr(sweep, "KINDS", (kind,))
    scope = sweep.Scope(platform=NAME, cluster=NAME, vpcs=(), stacks=frozenset())
    return sweep.remove({"ec2": ec2}, scope)


@pytest.mark.parametrize(("code", "rounds"), [("VolumeInUse", 3), ("UnauthorizedOperation", 1)])
def test_what_cannot_be_removed_is_named_with_why_and_tried_again_only_if_that_may_help(
    monkeypatch: pytest.MonkeyPatch, code: str, rounds: int
) -> None:
    (why,) = remaining(monkeypatch, code, rounds).values()
    assert code in why
