"""Whether quotas leave room for what the platform adds to what the account runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from botocore.exceptions import ClientError

from config.names import PLATFORM_TAG
from config.platform import PlatformConfig
from operations.aws import code_of, pages
from operations.preflight.finding import Clients, Finding, failed, not_checked
from operations.preflight.reservations import running_instances

# https://docs.aws.amazon.com/ec2/latest/instancetypes/ec2-instance-quotas.html; they count vCPUs
ON_DEMAND_P = "L-417A185B"
ON_DEMAND_STANDARD = "L-1216C47A"
STANDARD_FAMILIES = "acdhimrtz"
# https://docs.aws.amazon.com/vpc/latest/userguide/amazon-vpc-limits.html
VPCS = "L-F678F1CE"
ADDRESSES = "L-0263D0A3"


def quotas(config: PlatformConfig, clients: Clients) -> Iterator[Finding]:
    """Quotas leave room for what the platform adds to what the account runs."""
    ec2 = clients["ec2"]
    groups = [group for group in config.node_groups if group.purchase == "on_demand" and group.desired_size]
    if groups:
        needed = sum(group.desired_size * group.instance.vcpus for group in groups)
        yield from _vcpu_quota(config, clients, "P", ON_DEMAND_P, needed, families="p")
    system = config.cluster.system_node_group
    if system.instance_type[0] in STANDARD_FAMILIES:
        # One more than there are, for the node that an update starts before it stops another.
        needed = (system.size + 1) * _vcpus(ec2, [system.instance_type])[system.instance_type]
        yield from _vcpu_quota(config, clients, "standard", ON_DEMAND_STANDARD, needed, families=STANDARD_FAMILIES)
    if config.network.vpc is None:
        vpcs = ec2.describe_vpcs()["Vpcs"]
        if not any(_is_ours(vpc, config) for vpc in vpcs):
            yield from _quota(clients, "vpc", VPCS, "VPCs", used=len(vpcs), needed=1)
        addresses = ec2.describe_addresses()["Addresses"]
        if not any(_is_ours(address, config) for address in addresses):
            gateways = 1 if config.network.nat_gateways == "one" else len(config.availability_zones)
            yield from _quota(clients, "ec2", ADDRESSES, "Elastic IPs", used=len(addresses), needed=gateways)


def _vcpu_quota(
    config: PlatformConfig, clients: Clients, name: str, code: str, needed: int, *, families: str
) -> Iterator[Finding]:
    others = [
        instance["InstanceType"]
        for instance in running_instances(clients["ec2"])
        # Spot instances and capacity blocks have quotas of their own.
        if instance["InstanceType"][0] in families
        and not _is_ours(instance, config)
        and "InstanceLifecycle" not in instance
    ]
    sizes = _vcpus(clients["ec2"], sorted(set(others)))
    used = sum(sizes[type_] for type_ in others)
    yield from _quota(clients, "ec2", code, f"vCPUs of running {name} instances", used=used, needed=needed)


def _vcpus(ec2: Any, types: list[str]) -> dict[str, int]:
    """vCPUs of an instance of each type."""
    if not types:
        return {}
    found = pages(ec2, "describe_instance_types", "InstanceTypes", InstanceTypes=types)
    return {each["InstanceType"]: each["VCpuInfo"]["DefaultVCpus"] for each in found}


def _quota(clients: Clients, service: str, code: str, what: str, *, used: int, needed: int) -> Iterator[Finding]:
    try:
        quota = clients["service-quotas"].get_service_quota(ServiceCode=service, QuotaCode=code)["Quota"]["Value"]
    except ClientError as error:
        if code_of(error) != "NoSuchResourceException":
            raise
        yield not_checked(f"the quota of {what} ({code}), which Service Quotas does not know in this account")
        return
    if used + needed > quota:
        yield failed(
            f"quota {code}: the account may have {quota:.0f} {what}, others use {used}, the platform needs {needed}; "
            f"ask for more: `aws service-quotas request-service-quota-increase --service-code {service} "
            f"--quota-code {code} --desired-value {used + needed}`"
        )


def _is_ours(resource: dict[str, Any], config: PlatformConfig) -> bool:
    return {"Key": PLATFORM_TAG, "Value": config.name} in resource.get("Tags", [])
