"""The EKS control plane: what encrypts it, what logs it, and who may use it."""

from __future__ import annotations

from collections.abc import Sequence

import aws_cdk as cdk
from aws_cdk import aws_eks as eks
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_logs as logs
from constructs import Construct

from config.platform import ClusterConfig, KubernetesVersion

ADMIN_POLICY = "AmazonEKSClusterAdminPolicy"
LOG_TYPES = ("api", "audit", "authenticator", "controllerManager", "scheduler")


class ControlPlane(Construct):
    """A cluster without nodes and add-ons.

    Made of EKS's own resource types: the CDK's Cluster construct adds a parameter and a security group that nobody
    uses, and cdk-nag's EKS rules pass it by.
    """

    def __init__(
        self,
        scope: Construct,
        id_: str,
        *,
        name: str,
        kubernetes_version: KubernetesVersion,
        config: ClusterConfig,
        subnet_ids: Sequence[str],
    ) -> None:
        super().__init__(scope, id_)
        # Where this group is missing, EKS makes one that no stack owns and that keeps its logs for ever:
        # https://docs.aws.amazon.com/eks/latest/userguide/control-plane-logs.html
        log_group = logs.CfnLogGroup(
            self,
            "Logs",
            log_group_name=f"/aws/eks/{name}/cluster",
            retention_in_days=config.log_retention_days,
        )
        log_group.apply_removal_policy(cdk.RemovalPolicy.DESTROY)
        key = kms.Key(
            self,
            "SecretsKey",
            description=f"Kubernetes secrets of {name}",
            enable_key_rotation=True,
            pending_window=cdk.Duration.days(7),
            removal_policy=cdk.RemovalPolicy.DESTROY,
        )
        role = iam.Role(
            self,
            "Role",
            assumed_by=iam.ServicePrincipal("eks.amazonaws.com"),
            managed_policies=[iam.ManagedPolicy.from_aws_managed_policy_name("AmazonEKSClusterPolicy")],
        )
        public_cidrs = list(config.public_access_cidrs)
        self.cluster = eks.CfnCluster(
            self,
            "Cluster",
            name=name,
            version=kubernetes_version,
            role_arn=role.role_arn,
            bootstrap_self_managed_addons=False,
            access_config=eks.CfnCluster.AccessConfigProperty(
                authentication_mode="API", bootstrap_cluster_creator_admin_permissions=False
            ),
            encryption_config=[
                eks.CfnCluster.EncryptionConfigProperty(
                    provider=eks.CfnCluster.ProviderProperty(key_arn=key.key_arn), resources=["secrets"]
                )
            ],
            logging=eks.CfnCluster.LoggingProperty(
                cluster_logging=eks.CfnCluster.ClusterLoggingProperty(
                    enabled_types=[eks.CfnCluster.LoggingTypeConfigProperty(type=type_) for type_ in LOG_TYPES]
                )
            ),
            resources_vpc_config=eks.CfnCluster.ResourcesVpcConfigProperty(
                subnet_ids=list(subnet_ids),
                endpoint_private_access=True,
                endpoint_public_access=bool(public_cidrs),
                public_access_cidrs=public_cidrs or None,
            ),
            # Extended support costs six times as much, and starts by itself unless this says otherwise:
            # https://docs.aws.amazon.com/eks/latest/userguide/kubernetes-versions.html
            upgrade_policy=eks.CfnCluster.UpgradePolicyProperty(support_type="STANDARD"),
        )
        self.cluster.node.add_dependency(log_group)
        for arn in config.admins:
            self._admit(arn)

    def _admit(self, arn: str) -> None:
        partition = cdk.Stack.of(self).partition
        eks.CfnAccessEntry(
            self,
            arn,
            cluster_name=self.cluster.ref,
            principal_arn=arn,
            access_policies=[
                eks.CfnAccessEntry.AccessPolicyProperty(
                    policy_arn=f"arn:{partition}:eks::aws:cluster-access-policy/{ADMIN_POLICY}",
                    access_scope=eks.CfnAccessEntry.AccessScopeProperty(type="cluster"),
                )
            ],
        )
