"""What exists already and is adopted: a bucket, a VPC, a cluster; and ranges of addresses that clash."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from typing import Any

from botocore.exceptions import ClientError

from config.names import PLATFORM_TAG
from config.platform import OTHER_ADDRESSES, ExistingClusterConfig, ExistingVpcConfig, PlatformConfig
from config.sizing import addresses_per_node
from operations.aws import code_of, is_denied, pages
from operations.preflight.finding import Clients, Finding, failed, not_checked, warning

# Without these no node is Ready, or no pod mounts the file system.
NEEDED_ADDONS = ("vpc-cni", "eks-pod-identity-agent", "aws-fsx-csi-driver")


def bucket(config: PlatformConfig, clients: Clients) -> Iterator[Finding]:
    """An adopted bucket is there, in the region, and open to the caller."""
    name = config.storage.bucket
    if name is None:
        return
    try:
        region = clients["s3"].head_bucket(Bucket=name)["BucketRegion"]
    except ClientError as error:
        if code_of(error) in {"404", "NoSuchBucket"}:
            yield failed(f"storage.bucket: there is no bucket {name}; correct the name, or remove it to have one made")
        elif is_denied(error):
            yield failed(f"storage.bucket: {name} is closed to you; have its policy let you in, or name your own")
        elif code_of(error) in {"301", "PermanentRedirect"}:
            yield failed(f"storage.bucket: {name} is not in {config.region}; name one that is")
        else:
            raise
        return
    if region != config.region:
        yield failed(f"storage.bucket: {name} is in {region}, not {config.region}; name one that is there")


def network(config: PlatformConfig, clients: Clients) -> Iterator[Finding]:
    """An adopted VPC has what nodes need; a new one's range is not another's in the region."""
    if config.network.vpc is not None:
        yield from _existing_vpc(config, config.network.vpc, clients["ec2"])
        return
    ours = ipaddress.IPv4Network(config.network.cidr)
    for vpc in pages(clients["ec2"], "describe_vpcs", "Vpcs"):
        if {"Key": PLATFORM_TAG, "Value": config.name} in vpc.get("Tags", []):
            continue
        ranges = [each["CidrBlock"] for each in vpc.get("CidrBlockAssociationSet", [])] or [vpc["CidrBlock"]]
        for cidr in ranges:
            if ours.overlaps(ipaddress.IPv4Network(cidr)):
                yield warning(
                    f"network.cidr {ours} overlaps {cidr} of {vpc['VpcId']}, so that the two can never be connected; "
                    "choose another if they should"
                )


def _existing_vpc(config: PlatformConfig, vpc: ExistingVpcConfig, ec2: Any) -> Iterator[Finding]:
    ids = sorted(vpc.private_subnets.values())
    try:
        ec2.describe_vpcs(VpcIds=[vpc.id])
        subnets = {each["SubnetId"]: each for each in ec2.describe_subnets(SubnetIds=ids)["Subnets"]}
    except ClientError as error:
        if not code_of(error).endswith(".NotFound"):
            raise
        yield failed(
            f"network.vpc: {error.response['Error']['Message']}; `aws ec2 describe-subnets` shows what is there"
        )
        return
    for attribute, key in (("enableDnsSupport", "EnableDnsSupport"), ("enableDnsHostnames", "EnableDnsHostnames")):
        if not ec2.describe_vpc_attribute(VpcId=vpc.id, Attribute=attribute)[key]["Value"]:
            yield failed(f"network.vpc: {vpc.id} has {attribute} off, and nodes find the cluster by it; turn it on")
    for zone, id_ in vpc.private_subnets.items():
        subnet = subnets[id_]
        if subnet["VpcId"] != vpc.id:
            yield failed(f"network.vpc: {id_} is in {subnet['VpcId']}, not {vpc.id}; name one of its own")
        if subnet["AvailabilityZone"] != zone:
            yield failed(f"network.vpc: {id_} is in {subnet['AvailabilityZone']}, not {zone}; move it in the file")
        if not _has_way_out(ec2, vpc.id, id_):
            yield failed(f"network.vpc: {id_} has no route out, and nodes could not join; add one to 0.0.0.0/0")
    needed = OTHER_ADDRESSES + sum(
        group.max_size * addresses_per_node(group.instance, group.interface_layout) for group in config.node_groups
    )
    free = subnets[vpc.private_subnets[config.gpu_zone]]["AvailableIpAddressCount"]
    if free < needed:
        yield warning(
            f"network.vpc: {vpc.private_subnets[config.gpu_zone]} has {free} free addresses, and all nodes at max_size "
            f"take {needed} with what is there already; name a larger subnet or lower max_size"
        )


def _has_way_out(ec2: Any, vpc: str, subnet: str) -> bool:
    tables = pages(ec2, "describe_route_tables", "RouteTables", Filters=[{"Name": "vpc-id", "Values": [vpc]}])
    own = [table for table in tables if any(a.get("SubnetId") == subnet for a in table["Associations"])]
    # A subnet of no table of its own is in the VPC's main one.
    used = own or [table for table in tables if any(a.get("Main") for a in table["Associations"])]
    return any(route.get("DestinationCidrBlock") == "0.0.0.0/0" for table in used for route in table["Routes"])


def cluster(config: PlatformConfig, clients: Clients) -> Iterator[Finding]:
    """An adopted cluster is as the file says, and holds the add-ons that nodes need."""
    existing = config.cluster.existing
    if existing is None:
        return
    eks = clients["eks"]
    try:
        found = eks.describe_cluster(name=existing.name)["cluster"]
    except eks.exceptions.ResourceNotFoundException:
        yield failed(f"cluster.existing: there is no cluster {existing.name} in {config.region}; correct the name")
        return
    yield from _existing_cluster(config, existing, found)
    addons = pages(eks, "list_addons", "addons", clusterName=existing.name)
    for name in NEEDED_ADDONS:
        if name not in addons:
            # It may have been installed by hand, which no API of AWS tells.
            yield not_checked(f"whether {existing.name} runs {name}, which is not there as an add-on; nodes need it")


def _existing_cluster(
    config: PlatformConfig, existing: ExistingClusterConfig, found: dict[str, Any]
) -> Iterator[Finding]:
    if found["status"] != "ACTIVE":
        yield failed(f"cluster.existing: {existing.name} is {found['status']}; wait until it is ACTIVE, or repair it")
    if found["version"] != config.kubernetes_version:
        yield failed(
            f"kubernetes_version: {existing.name} has {found['version']}, and its nodes would have "
            f"{config.kubernetes_version}; write the cluster's"
        )
    theirs = found["resourcesVpcConfig"]
    if theirs.get("clusterSecurityGroupId") != existing.security_group_id:
        yield failed(
            f"cluster.existing.security_group_id: that of {existing.name} is {theirs.get('clusterSecurityGroupId')}, "
            f"not {existing.security_group_id}; write it"
        )
    assert config.network.vpc is not None, "the config demands the VPC of an existing cluster"
    if theirs["vpcId"] != config.network.vpc.id:
        yield failed(f"network.vpc.id: {existing.name} is in {theirs['vpcId']}, not {config.network.vpc.id}; write it")
