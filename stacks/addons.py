"""The EKS add-ons, in the order in which each finds what it needs, and what each may do in the account."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import aws_cdk as cdk
from aws_cdk import aws_eks as eks
from aws_cdk import aws_iam as iam
from constructs import Construct, IDependable


@dataclass(frozen=True, slots=True, kw_only=True)
class Addon:
    """An add-on, and the service account and permissions of the part of it that calls AWS, if one does."""

    name: str
    service_account: str | None = None
    managed_policy: str | None = None
    actions: tuple[str, ...] = ()


# A node is Ready only with these. No version is named: EKS takes its default for the cluster's Kubernetes version,
# which is the one it tests: https://docs.aws.amazon.com/eks/latest/userguide/creating-an-add-on.html
NODE_ADDONS = (
    Addon(name="kube-proxy"),
    Addon(name="eks-pod-identity-agent"),
    Addon(name="vpc-cni", service_account="aws-node", managed_policy="AmazonEKS_CNI_Policy"),
)
# These hold Deployments, which become active only where there is a node.
WORKLOAD_ADDONS = (
    Addon(name="coredns"),
    Addon(name="metrics-server"),
    Addon(name="eks-node-monitoring-agent"),
    Addon(
        name="aws-ebs-csi-driver",
        service_account="ebs-csi-controller-sa",
        managed_policy="service-role/AmazonEBSCSIDriverPolicy",
    ),
    # The file system belongs to a stack, so the driver only mounts it: it needs none of AmazonFSxFullAccess.
    Addon(
        name="aws-fsx-csi-driver",
        service_account="fsx-csi-controller-sa",
        actions=("fsx:DescribeFileSystems",),
    ),
)

# Container Insights. Its log groups belong to the stack, or they would outlive it.
CLOUDWATCH_ADDON = Addon(
    name="amazon-cloudwatch-observability",
    service_account="cloudwatch-agent",
    managed_policy="CloudWatchAgentServerPolicy",
)
CLOUDWATCH_LOGS = ("application", "dataplane", "host", "performance")


def install(scope: Construct, addon: Addon, *, cluster_name: str, after: Sequence[IDependable] = ()) -> eks.CfnAddon:
    """An add-on of the cluster that is made after, and on a destroy removed before, all of `after`."""
    resource = eks.CfnAddon(
        scope,
        addon.name,
        addon_name=addon.name,
        cluster_name=cluster_name,
        resolve_conflicts="OVERWRITE",
        pod_identity_associations=_pod_identity(scope, addon),
    )
    resource.node.add_dependency(*after)
    return resource


def _pod_identity(scope: Construct, addon: Addon) -> list[eks.CfnAddon.PodIdentityAssociationProperty] | None:
    if addon.service_account is None:
        return None
    role = iam.Role(
        scope,
        f"{addon.name}-role",
        assumed_by=iam.SessionTagsPrincipal(iam.ServicePrincipal("pods.eks.amazonaws.com")),
        managed_policies=(
            [iam.ManagedPolicy.from_aws_managed_policy_name(addon.managed_policy)] if addon.managed_policy else None
        ),
    )
    if addon.actions:
        file_systems = cdk.Stack.of(scope).format_arn(service="fsx", resource="file-system", resource_name="*")
        role.add_to_policy(iam.PolicyStatement(actions=list(addon.actions), resources=[file_systems]))
    return [eks.CfnAddon.PodIdentityAssociationProperty(role_arn=role.role_arn, service_account=addon.service_account)]
