"""Each mistake, seeded into good templates, is caught at synth. Most of them pass every linter."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from stacks.rules import RULES, Rule, everywhere, violations
from stacks.rules.templates import Templates
from tests.synthesis import Synthesized, Template

TEMPLATE = ("node-groups", "AWS::EC2::LaunchTemplate")
NODES = ("node-groups", "AWS::EKS::Nodegroup")
FILE_SYSTEM = ("storage", "AWS::FSx::FileSystem")
DRA = ("storage", "AWS::FSx::DataRepositoryAssociation")
CLUSTER = ("cluster", "AWS::EKS::Cluster")
ADDON = ("cluster", "AWS::EKS::Addon")
SYSTEM_NODES = ("cluster", "AWS::EKS::Nodegroup")
BUCKET = ("storage", "AWS::S3::Bucket")
DATA = "Properties.LaunchTemplateData"
INTERFACES = f"{DATA}.NetworkInterfaces"
LUSTRE = "Properties.LustreConfiguration"
BUCKET_CLOSED = "Properties.PublicAccessBlockConfiguration"

# What is wrong, where, the field and its value (`...` removes it), and a part of the sentence it must get.
SEEDS: dict[str, tuple[tuple[str, str], str, Any, str]] = {
    # A launch template's instances.
    "instance type that does not exist": (TEMPLATE, f"{DATA}.InstanceType", "p5.47xlarge", "p5.47xlarge is not one of"),
    "no instance type": (TEMPLATE, f"{DATA}.InstanceType", ..., "InstanceType is missing"),
    "market that does not exist": (TEMPLATE, f"{DATA}.InstanceMarketOptions.MarketType", "block", "must be MarketType"),
    "spot in the template": (TEMPLATE, f"{DATA}.InstanceMarketOptions.SpotOptions", {}, "must be MarketType"),
    "block without its reservation": (
        TEMPLATE,
        f"{DATA}.CapacityReservationSpecification",
        ...,
        "a capacity block needs a CapacityReservationTarget",
    ),
    "reservation preference that does not exist": (
        TEMPLATE,
        f"{DATA}.CapacityReservationSpecification",
        {"CapacityReservationPreference": "always"},
        "it takes a target and nothing else",
    ),
    "target and preference": (
        TEMPLATE,
        f"{DATA}.CapacityReservationSpecification.CapacityReservationPreference",
        "capacity-reservations-only",
        "it takes a target and nothing else",
    ),
    "empty target": (
        TEMPLATE,
        f"{DATA}.CapacityReservationSpecification.CapacityReservationTarget",
        {},
        "CapacityReservationTarget has 0 names",
    ),
    "target by id and by group": (
        TEMPLATE,
        f"{DATA}.CapacityReservationSpecification.CapacityReservationTarget.CapacityReservationResourceGroupArn",
        "arn:aws:resource-groups:us-east-2:111122223333:group/x",
        "CapacityReservationTarget has 2 names",
    ),
    "unknown property": (TEMPLATE, f"{DATA}.InstanceTyp", "p5.48xlarge", "InstanceTyp is no property"),
    # Its interfaces.
    "misspelt property of an interface": (TEMPLATE, f"{INTERFACES}.1.InstanceType", "efa", "no property"),
    "bad interface type": (TEMPLATE, f"{INTERFACES}.1.InterfaceType", "efaonly", "InterfaceType efaonly is not one of"),
    "card 99": (TEMPLATE, f"{INTERFACES}.5.NetworkCardIndex", 99, "card 99 does not exist"),
    "no card": (TEMPLATE, f"{INTERFACES}.5.NetworkCardIndex", ..., "lacks its NetworkCardIndex"),
    "device 2 on a card of two": (TEMPLATE, f"{INTERFACES}.5.DeviceIndex", 2, "device 2 on card 4 does not exist"),
    "two interfaces in one place": (TEMPLATE, f"{INTERFACES}.5.NetworkCardIndex", 3, "2 interfaces share card 3"),
    "two EFA interfaces on one card": (
        TEMPLATE,
        f"{INTERFACES}.5",
        {"NetworkCardIndex": 3, "DeviceIndex": 1, "InterfaceType": "efa-only", "Groups": ["sg-1"]},
        "card 3 has 2 EFA interfaces",
    ),
    "an EFA interface too few": (TEMPLATE, f"{INTERFACES}.5", ..., "31 EFA interfaces, and the type has 32"),
    "EFA on the card for ENA": (TEMPLATE, f"{DATA}.InstanceType", "p6-b300.48xlarge", "card 0 takes ENA only"),
    "primary without an address": (TEMPLATE, f"{INTERFACES}.0.InterfaceType", "efa-only", "would have no address"),
    "no primary": (TEMPLATE, f"{INTERFACES}.0", ..., "the primary interface, card 0 and device 0, is missing"),
    "no groups": (TEMPLATE, f"{INTERFACES}.3.Groups", [], "would get the VPC's default group"),
    "interfaces and security groups": (
        TEMPLATE,
        f"{DATA}.SecurityGroupIds",
        ["sg-1"],
        "SecurityGroupIds must be absent",
    ),
    "subnet in an interface": (TEMPLATE, f"{INTERFACES}.0.SubnetId", "subnet-1", "SubnetId must be absent"),
    "public address": (TEMPLATE, f"{INTERFACES}.0.AssociatePublicIpAddress", True, "must be absent"),
    "instance profile": (TEMPLATE, f"{DATA}.IamInstanceProfile", {"Name": "x"}, "IamInstanceProfile must be absent"),
    "image": (TEMPLATE, f"{DATA}.ImageId", "ami-1", "ImageId must be absent"),
    # Its safety.
    "metadata without a token": (TEMPLATE, f"{DATA}.MetadataOptions.HttpTokens", "optional", "must require tokens"),
    "metadata for pods": (TEMPLATE, f"{DATA}.MetadataOptions.HttpPutResponseHopLimit", 2, "must require tokens"),
    "plain volume": (TEMPLATE, f"{DATA}.BlockDeviceMappings.0.Ebs.Encrypted", False, "the root volume, encrypted"),
    "no volume": (TEMPLATE, f"{DATA}.BlockDeviceMappings", ..., "the root volume, encrypted"),
    "raw user data": (TEMPLATE, f"{DATA}.UserData", {"Fn::Base64": "#!/bin/sh\n"}, "must be a MIME multipart message"),
    "bootstrap script": (
        TEMPLATE,
        f"{DATA}.UserData",
        {"Fn::Base64": "Content-Type: multipart/mixed; boundary=x\n\n/etc/eks/bootstrap.sh\n"},
        "a NodeConfig and no bootstrap script",
    ),
    # A node group.
    "capacity type that does not exist": (
        NODES,
        "Properties.CapacityType",
        "BLOCK",
        "CapacityType BLOCK is not one of",
    ),
    "block in the template alone": (NODES, "Properties.CapacityType", "ON_DEMAND", "does not fit market type"),
    "image type that does not exist": (NODES, "Properties.AmiType", "AL2023_NVIDIA", "AL2023_NVIDIA is not one of"),
    "image without a driver": (NODES, "Properties.AmiType", "AL2023_x86_64_STANDARD", "does not fit p5.48xlarge"),
    "no image type": (NODES, "Properties.AmiType", ..., "AmiType None is not one of"),
    "taint effect that does not exist": (NODES, "Properties.Taints.0.Effect", "NoSchedule", "NoSchedule is not one of"),
    "room for no node": (NODES, "Properties.ScalingConfig.MaxSize", 0, "MaxSize must be 1 or more"),
    "more than the most": (NODES, "Properties.ScalingConfig.MinSize", 5, "must rise from zero or more"),
    "both bounds of an update": (NODES, "Properties.UpdateConfig.MaxUnavailablePercentage", 50, "takes one of"),
    "update that needs a spare node": (NODES, "Properties.UpdateConfig.UpdateStrategy", "DEFAULT", "use MINIMAL"),
    "update strategy that does not exist": (
        NODES,
        "Properties.UpdateConfig.UpdateStrategy",
        "MIN",
        "MIN is not one of",
    ),
    "forced update": (NODES, "Properties.ForceUpdateEnabled", True, "ForceUpdateEnabled must be false"),
    "disk beside a template": (NODES, "Properties.DiskSize", 100, "DiskSize must be absent"),
    "types beside a template": (NODES, "Properties.InstanceTypes", ["p5.48xlarge"], "InstanceTypes must be absent"),
    "bad type in the node group": (NODES, "Properties.InstanceTypes", ["p5.1xlarge"], "InstanceTypes must be absent"),
    "remote access beside a template": (NODES, "Properties.RemoteAccess", {"Ec2SshKey": "x"}, "must be absent"),
    "misspelt property of a node group": (NODES, "Properties.Label", {}, "Label is no property that the rules know"),
    "no subnet": (NODES, "Properties.Subnets", [], "Subnets is empty"),
    "two subnets for GPU nodes": (
        NODES,
        "Properties.Subnets",
        ["subnet-1", "subnet-2"],
        "GPU nodes start in one subnet",
    ),
    "no launch template": (NODES, "Properties.LaunchTemplate", ..., "LaunchTemplate leads to no launch template"),
    "nodes of another version": (NODES, "Properties.Version", "1.33", "Version 1.33 differs from the cluster's 1.36"),
    # A file system.
    "size that is not sold": (FILE_SYSTEM, "Properties.StorageCapacity", 3000, "must be 1200 or a multiple of 2400"),
    "throughput that is not sold": (FILE_SYSTEM, f"{LUSTRE}.PerUnitStorageThroughput", 300, "must be one of 125, 250"),
    "deployment type that does not exist": (FILE_SYSTEM, f"{LUSTRE}.DeploymentType", "PERSISTENT_3", "PERSISTENT_3"),
    "import path": (FILE_SYSTEM, f"{LUSTRE}.ImportPath", "s3://x", "LustreConfiguration.ImportPath must be absent"),
    "servers of 2.10": (FILE_SYSTEM, "Properties.FileSystemTypeVersion", "2.10", "2.10 must be 2.15"),
    "file system in two subnets": (FILE_SYSTEM, "Properties.SubnetIds", ["subnet-1", "subnet-2"], "one subnet, got 2"),
    "compression that does not exist": (FILE_SYSTEM, f"{LUSTRE}.DataCompressionType", "ZSTD", "'LZ4', 'NONE', got"),
    "metadata that is not sold": (
        FILE_SYSTEM,
        f"{LUSTRE}.MetadataConfiguration",
        {"Mode": "USER_PROVISIONED", "Iops": 5000},
        "must be 1500, 3000, 6000",
    ),
    "EFA without metadata": (
        FILE_SYSTEM,
        LUSTRE,
        {
            "DeploymentType": "PERSISTENT_2",
            "PerUnitStorageThroughput": 250,
            "DataCompressionType": "LZ4",
            "AutomaticBackupRetentionDays": 0,
            "EfaEnabled": True,
        },
        "EfaEnabled needs a MetadataConfiguration",
    ),
    "backups": (FILE_SYSTEM, f"{LUSTRE}.AutomaticBackupRetentionDays", 7, "AutomaticBackupRetentionDays must be 0"),
    "misspelt property of a file system": (FILE_SYSTEM, f"{LUSTRE}.Compression", "LZ4", "LustreConfiguration.Compress"),
    "ports that open too late": (FILE_SYSTEM, "DependsOn", [], "does not wait for ServersFromServers988"),
    "event that does not exist": (DRA, "Properties.S3.AutoImportPolicy.Events.0", "CREATED", "has event CREATED"),
    "both ways": (DRA, "Properties.S3.AutoExportPolicy", {"Events": ["NEW"]}, "takes one of AutoImportPolicy"),
    # A cluster and its add-ons.
    "Kubernetes of the future": (CLUSTER, "Properties.Version", "1.99", "Version 1.99 is not one of 1.33"),
    "Kubernetes of the past": (CLUSTER, "Properties.Version", "1.23", "Version 1.23 is not one of 1.33"),
    "API server for everybody": (
        CLUSTER,
        "Properties.ResourcesVpcConfig.PublicAccessCidrs",
        ...,
        "is open to 0.0.0.0/0",
    ),
    "API server outside alone": (
        CLUSTER,
        "Properties.ResourcesVpcConfig.EndpointPrivateAccess",
        False,
        "EndpointPrivateAccess must be true",
    ),
    "plain secrets": (CLUSTER, "Properties.EncryptionConfig", ..., "EncryptionConfig must cover secrets"),
    "access by config map": (CLUSTER, "Properties.AccessConfig.AuthenticationMode", "CONFIG_MAP", "must be API"),
    "hidden administrator": (
        CLUSTER,
        "Properties.AccessConfig.BootstrapClusterCreatorAdminPermissions",
        True,
        "whoever deploys is an unlisted administrator",
    ),
    "logs in nobody's group": (CLUSTER, "DependsOn", [], "does not wait for a log group /aws/eks/p5-capacity-block"),
    "add-on that does not exist": (ADDON, "Properties.AddonName", "vpc-cnii", "AddonName vpc-cnii is not one of"),
    "nodes before their network": (SYSTEM_NODES, "DependsOn", [], "SystemNodes does not wait for it"),
    # Anything.
    "DependsOn to nowhere": (NODES, "DependsOn", ["Gone"], "DependsOn names Gone"),
    "Ref to nowhere": (NODES, "Properties.NodeRole", {"Ref": "Gone"}, "refers to Gone"),
    "GetAtt to nowhere": (NODES, "Properties.NodeRole", {"Fn::GetAtt": ["Gone", "Arn"]}, "refers to Gone"),
    "output of nowhere": (
        NODES,
        "Properties.ClusterName",
        {"Fn::GetStackOutput": {"StackName": "p5-capacity-block-cluster", "OutputName": "Gone"}},
        "reads output Gone",
    ),
    "kept file system": (FILE_SYSTEM, "DeletionPolicy", "Retain", "DeletionPolicy is Retain"),
    "snapshot of a file system": (FILE_SYSTEM, "UpdateReplacePolicy", "Snapshot", "UpdateReplacePolicy is Snapshot"),
    "custom resource": (NODES, "Type", "Custom::KubernetesManifest", "is a custom resource"),
    "logs for ever": (("storage", "AWS::Logs::LogGroup"), "Properties.RetentionInDays", ..., "keeps its logs for ever"),
    "port for everybody": (
        ("storage", "AWS::EC2::SecurityGroupIngress"),
        "Properties.CidrIp",
        "0.0.0.0/0",
        "admits 0.0.0.0/0, which is everybody",
    ),
    "group for everybody": (
        ("network", "AWS::EC2::SecurityGroup"),
        "Properties.SecurityGroupIngress",
        [{"IpProtocol": "-1", "CidrIpv6": "::/0"}],
        "admits ::/0, which is everybody",
    ),
    "every action": (
        ("cluster", "AWS::IAM::Policy"),
        "Properties.PolicyDocument.Statement.0.Action",
        ["fsx:*"],
        "allows fsx:*; list the actions",
    ),
    "public bucket": (BUCKET, f"{BUCKET_CLOSED}.BlockPublicPolicy", False, "must set BlockPublicPolicy"),
    "bucket under a key": (
        BUCKET,
        "Properties.BucketEncryption.ServerSideEncryptionConfiguration.0.ServerSideEncryptionByDefault.SSEAlgorithm",
        "aws:kms",
        "BucketEncryption must be AES256",
    ),
}


def seeded(good: Synthesized, where: tuple[str, str], field: str, value: Any) -> dict[str, Template]:
    """Templates by stack name, with one field changed in the first resource of its type that has the field's parent."""
    templates = {f"{good.config.name}-{stack}": copy.deepcopy(t) for stack, t in good.templates.items()}
    stack, type_ = where
    *parents, last = [int(part) if part.isdigit() else part for part in field.split(".")]
    for resource in templates[f"{good.config.name}-{stack}"]["Resources"].values():
        if resource["Type"] != type_:
            continue
        place: Any = resource
        for part in parents:
            place = place[part]
        if value is ...:
            del place[last]
        else:
            place[last] = value
        return templates
    raise AssertionError(f"no {type_} in {stack}")


@pytest.fixture(scope="session")
def good(shipped: Callable[[str], Synthesized]) -> Synthesized:
    return shipped("p5-capacity-block")


def test_a_shipped_platform_breaks_no_rule(platform: Synthesized) -> None:
    assert violations({f"{platform.config.name}-{stack}": t for stack, t in platform.templates.items()}) == []


@pytest.mark.parametrize("mistake", SEEDS)
def test_a_mistake_is_caught_with_its_place_and_its_value(mistake: str, good: Synthesized) -> None:
    where, field, value, expected = SEEDS[mistake]
    found = violations(seeded(good, where, field, value))
    assert [sentence for sentence in found if expected in sentence], found
    assert all(sentence.startswith("p5-capacity-block-") for sentence in found)


def test_every_rule_is_broken_by_a_mistake(good: Synthesized) -> None:
    """A rule that nothing can break checks nothing."""
    rules: dict[str, set[Rule]] = {type_: {*everywhere.RULES, *of_type} for type_, of_type in RULES.items()}
    untouched = {rule for of_type in rules.values() for rule in of_type}
    for where, field, value, _ in SEEDS.values():
        templates = Templates(seeded(good, where, field, value))
        for resource in templates.resources():
            for rule in (*everywhere.RULES, *RULES.get(resource.type, ())):
                if any(rule(resource, templates)):
                    untouched.discard(rule)
    assert {rule.__name__ for rule in untouched} == set()
