"""`make sweep`: what AWS services made for a platform, which no stack owns and no destroy removes.

Only what carries the platform's own name or tag, or lies in the VPC that its stack made, is ever listed.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import boto3
from botocore.exceptions import ClientError

from config.names import PLATFORM_TAG, STACKS
from config.platform import PlatformConfig
from operations.aws import AWS_ERRORS, find_stack, is_denied, pages, platform_on_aws, said, session_of
from trainer.config import ConfigError

SERVICES = ("cloudformation", "ec2", "eks", "elb", "elbv2", "fsx", "logs")
# An endpoint takes minutes to go, and holds its interfaces and its security group until then.
ROUNDS = 20
SECONDS_BETWEEN_ROUNDS = 15.0
TAGS_A_CALL = 20  # of ELB's DescribeTags

Clients = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Scope:
    """What is a platform's own: its name and tag, the cluster that its stack made, that stack's VPC, its stacks."""

    platform: str
    cluster: str | None
    vpcs: tuple[str, ...]
    stacks: frozenset[str]

    def owns(self, tags: list[dict[str, str]]) -> bool:
        """Whether tags name the cluster in one of the ways in which Kubernetes and AWS write it."""
        values = {tag["Key"]: tag["Value"] for tag in tags}
        if self.cluster is None:
            return False
        return f"kubernetes.io/cluster/{self.cluster}" in values or self.cluster in (
            # https://kubernetes-sigs.github.io/aws-load-balancer-controller/latest/deploy/configurations/
            values.get("elbv2.k8s.aws/cluster"),
            # https://github.com/aws/amazon-vpc-cni-k8s#cluster_name
            values.get("cluster.k8s.amazonaws.com/name"),
            values.get("aws:eks:cluster-name"),
        )


@dataclass(frozen=True, slots=True)
class Leftover:
    """One thing that is left."""

    kind: str
    id: str


@dataclass(frozen=True, slots=True)
class Kind:
    """How one kind of leftover is found, as ids, and removed, by its id."""

    name: str
    find: Callable[[Clients, Scope], Iterator[str]]
    remove: Callable[[Clients, str], object]


def scope_of(config: PlatformConfig, clients: Clients) -> Scope:
    """What of an account is the platform's own. A cluster or VPC that it adopted never is."""
    tagged = [{"Name": f"tag:{PLATFORM_TAG}", "Values": [config.name]}]
    vpcs = pages(clients["ec2"], "describe_vpcs", "Vpcs", Filters=tagged) if config.network.vpc is None else []
    return Scope(
        platform=config.name,
        cluster=config.name if config.cluster.existing is None else None,
        vpcs=tuple(vpc["VpcId"] for vpc in vpcs),
        stacks=frozenset(s for s in STACKS if find_stack(clients["cloudformation"], f"{config.name}-{s}") is not None),
    )


def _load_balancers(clients: Clients, scope: Scope) -> Iterator[str]:
    found = pages(clients["elbv2"], "describe_load_balancers", "LoadBalancers")
    yield from _tagged(clients["elbv2"], [each["LoadBalancerArn"] for each in found], scope)


def _target_groups(clients: Clients, scope: Scope) -> Iterator[str]:
    found = pages(clients["elbv2"], "describe_target_groups", "TargetGroups")
    yield from _tagged(clients["elbv2"], [each["TargetGroupArn"] for each in found], scope)


def _tagged(elbv2: Any, arns: list[str], scope: Scope) -> Iterator[str]:
    for first in range(0, len(arns), TAGS_A_CALL):
        answer = elbv2.describe_tags(ResourceArns=arns[first : first + TAGS_A_CALL])
        yield from (each["ResourceArn"] for each in answer["TagDescriptions"] if scope.owns(each["Tags"]))


def _classic_load_balancers(clients: Clients, scope: Scope) -> Iterator[str]:
    found = pages(clients["elb"], "describe_load_balancers", "LoadBalancerDescriptions")
    names = [each["LoadBalancerName"] for each in found]
    for first in range(0, len(names), TAGS_A_CALL):
        answer = clients["elb"].describe_tags(LoadBalancerNames=names[first : first + TAGS_A_CALL])
        yield from (each["LoadBalancerName"] for each in answer["TagDescriptions"] if scope.owns(each["Tags"]))


def _guardduty_endpoints(clients: Clients, scope: Scope) -> Iterator[str]:
    """Runtime Monitoring puts one into every VPC with a cluster, and leaves it there.

    https://docs.aws.amazon.com/guardduty/latest/ug/runtime-monitoring-agent-resource-clean-up.html
    """
    if scope.vpcs:
        within = [{"Name": "vpc-id", "Values": list(scope.vpcs)}]
        for each in pages(clients["ec2"], "describe_vpc_endpoints", "VpcEndpoints", Filters=within):
            if each["ServiceName"].endswith(".guardduty-data") and each["State"].lower() != "deleted":
                yield each["VpcEndpointId"]


def _network_interfaces(clients: Clients, scope: Scope) -> Iterator[str]:
    """Those that the VPC CNI made for pods, and could not delete before its node went."""
    available = [{"Name": "status", "Values": ["available"]}]
    for each in pages(clients["ec2"], "describe_network_interfaces", "NetworkInterfaces", Filters=available):
        is_of_cni = each.get("Description", "").startswith("aws-K8S-") and each["VpcId"] in scope.vpcs
        if is_of_cni or scope.owns(each.get("TagSet", [])):
            yield each["NetworkInterfaceId"]


def _security_groups(clients: Clients, scope: Scope) -> Iterator[str]:
    """The one that EKS makes for its cluster, those of load balancers, and GuardDuty's."""
    for each in pages(clients["ec2"], "describe_security_groups", "SecurityGroups"):
        is_of_guardduty = each["GroupName"].startswith("GuardDutyManagedSecurityGroup-")
        if (is_of_guardduty and each.get("VpcId") in scope.vpcs) or scope.owns(each.get("Tags", [])):
            yield each["GroupId"]


def _remove_security_group(clients: Clients, id_: str) -> None:
    # Groups that name each other cannot be deleted while their rules stand.
    ec2 = clients["ec2"]
    within = [{"Name": "group-id", "Values": [id_]}]
    rules = pages(ec2, "describe_security_group_rules", "SecurityGroupRules", Filters=within)
    for revoke, is_egress in ((ec2.revoke_security_group_ingress, False), (ec2.revoke_security_group_egress, True)):
        if ids := [rule["SecurityGroupRuleId"] for rule in rules if rule["IsEgress"] == is_egress]:
            revoke(GroupId=id_, SecurityGroupRuleIds=ids)
    ec2.delete_security_group(GroupId=id_)


def _volumes(clients: Clients, scope: Scope) -> Iterator[str]:
    """Those of persistent volumes, which outlive their claim where the claim could not be deleted."""
    available = [{"Name": "status", "Values": ["available"]}]
    for each in pages(clients["ec2"], "describe_volumes", "Volumes", Filters=available):
        if scope.owns(each.get("Tags", [])):
            yield each["VolumeId"]


def _backups(clients: Clients, scope: Scope) -> Iterator[str]:
    """Those of the platform's file systems. Its stack takes none, and people do."""
    own = {"Key": PLATFORM_TAG, "Value": scope.platform}
    for each in pages(clients["fsx"], "describe_backups", "Backups"):
        if own in each.get("Tags", []) or own in each.get("FileSystem", {}).get("Tags", []):
            yield each["BackupId"]


def _log_groups(clients: Clients, scope: Scope) -> Iterator[str]:
    """Those that an agent or a control plane made again after their stack was gone."""
    prefixes = []
    if scope.cluster is not None and "cluster" not in scope.stacks:
        prefixes += [f"/aws/eks/{scope.cluster}/", f"/aws/containerinsights/{scope.cluster}/"]
    if "storage" not in scope.stacks:
        prefixes.append(f"/aws/fsx/{scope.platform}")
    for prefix in prefixes:
        for group in pages(clients["logs"], "describe_log_groups", "logGroups", logGroupNamePrefix=prefix):
            if prefix.endswith("/") or group["logGroupName"] == prefix:
                yield group["logGroupName"]


# In the order of removal: what holds another thing comes before it.
KINDS = (
    Kind("load balancer", _load_balancers, lambda c, id_: c["elbv2"].delete_load_balancer(LoadBalancerArn=id_)),
    Kind(
        "classic load balancer",
        _classic_load_balancers,
        lambda c, id_: c["elb"].delete_load_balancer(LoadBalancerName=id_),
    ),
    Kind("target group", _target_groups, lambda c, id_: c["elbv2"].delete_target_group(TargetGroupArn=id_)),
    Kind(
        "GuardDuty endpoint", _guardduty_endpoints, lambda c, id_: c["ec2"].delete_vpc_endpoints(VpcEndpointIds=[id_])
    ),
    Kind(
        "network interface",
        _network_interfaces,
        lambda c, id_: c["ec2"].delete_network_interface(NetworkInterfaceId=id_),
    ),
    Kind("security group", _security_groups, _remove_security_group),
    Kind("volume", _volumes, lambda c, id_: c["ec2"].delete_volume(VolumeId=id_)),
    Kind("FSx backup", _backups, lambda c, id_: c["fsx"].delete_backup(BackupId=id_)),
    Kind("log group", _log_groups, lambda c, id_: c["logs"].delete_log_group(logGroupName=id_)),
)


def find(clients: Clients, scope: Scope) -> list[Leftover]:
    """Everything that is left, in the order in which it can be removed."""
    return [Leftover(kind.name, id_) for kind in KINDS for id_ in kind.find(clients, scope)]


def remove(clients: Clients, scope: Scope) -> dict[Leftover, str]:
    """Remove what is left, again while something still holds it.

    Returns:
        What could not be removed, and what AWS said of it.
    """
    removers = {kind.name: kind.remove for kind in KINDS}
    leftovers = find(clients, scope)
    for round_ in range(1, ROUNDS + 1):
        refused: dict[Leftover, str] = {}
        may_change = False
        for leftover in leftovers:
            try:
                removers[leftover.kind](clients, leftover.id)
                print(f"removing {leftover.kind} {leftover.id}", flush=True)
                may_change = True
            except ClientError as error:
                refused[leftover] = said(error)
                may_change |= not is_denied(error)
        leftovers = find(clients, scope)
        if not leftovers or not may_change or round_ == ROUNDS:
            break
        print(f"{len(leftovers)} are left; the next try is in {SECONDS_BETWEEN_ROUNDS:.0f} s", flush=True)
        time.sleep(SECONDS_BETWEEN_ROUNDS)
    return {leftover: refused.get(leftover, "it has not gone yet, or is back") for leftover in leftovers}


def has_cluster(clients: Clients, scope: Scope) -> bool:
    """Whether the cluster that the platform made exists."""
    return scope.cluster is not None and scope.cluster in pages(clients["eks"], "list_clusters", "clusters")


def check_is_gone(config: PlatformConfig, clients: Clients, scope: Scope) -> None:
    """Refuse to remove anything of a platform that is still there.

    Raises:
        ConfigError: its cluster is, or its nodes on an adopted cluster.
    """
    first = f"destroy it first: make destroy CONFIG=… (or npx cdk destroy --all) of {config.name}"
    if has_cluster(clients, scope):
        raise ConfigError(f"{config.name}: its cluster exists, which uses what would be removed; {first}")
    if scope.cluster is None and "node-groups" in scope.stacks:
        raise ConfigError(f"{config.name}: its nodes exist, which use what would be removed; {first}")


def sweep(config: PlatformConfig, session: boto3.Session, *, delete: bool) -> int:
    """List what is left, and remove it if `delete`.

    Returns:
        0 if nothing is left, else 1.

    Raises:
        ConfigError: it should be removed, and the platform still exists.
    """
    clients = {service: session.client(service) for service in SERVICES}
    scope = scope_of(config, clients)
    if delete:
        check_is_gone(config, clients, scope)
    leftovers = find(clients, scope)
    for leftover in leftovers:
        print(f"{leftover.kind} {leftover.id}")
    if not leftovers:
        print(f"nothing of {config.name} is left behind by AWS services")
        return 0
    if not delete:
        if has_cluster(clients, scope):
            print(f"{config.name} still exists, and may use them")
        print(f"{len(leftovers)} are left; nothing was removed (DELETE=1 removes them)")
        return 1
    refused = remove(clients, scope)
    for leftover, why in refused.items():
        print(f"left: {leftover.kind} {leftover.id}: {why}")
    if not refused:
        print(f"nothing of {config.name} is left behind by AWS services")
    return 1 if refused else 0


def main() -> int:
    """Entry of `make sweep`.

    Returns:
        0 if nothing is left, 1 if something is, 2 for a mistake.
    """
    parser = argparse.ArgumentParser(prog="python -m operations.sweep", description=__doc__, allow_abbrev=False)
    parser.add_argument("--config", help="platform file")
    parser.add_argument("--delete", action="store_true", help="remove what is listed")
    arguments = parser.parse_args()
    try:
        _, config = platform_on_aws(arguments.config)
        return sweep(config, session_of(config), delete=arguments.delete)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    except AWS_ERRORS as error:
        print(f"AWS: {said(error)}; allow the call, or try again", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
