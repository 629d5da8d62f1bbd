"""ClusterStack: the EKS control plane, who may use it, its add-ons, and the nodes without GPUs."""

from __future__ import annotations

from typing import Any

import aws_cdk as cdk
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_eks as eks
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_logs as logs
from constructs import Construct

from config.names import NODE_GROUP_LABEL, SYSTEM_NODE_GROUP
from config.platform import ClusterConfig, KubernetesVersion
from stacks.addons import NODE_ADDONS, WORKLOAD_ADDONS, install
from stacks.launch_template import metadata_options, root_volume, tag_specifications
from stacks.node_role import NodeRole

ADMIN_POLICY = "AmazonEKSClusterAdminPolicy"
CONTROL_PLANE_LOGS = ("api", "audit", "authenticator", "controllerManager", "scheduler")
SYSTEM_ROOT_VOLUME_GIB = 50


class ClusterStack(cdk.Stack):
    """An EKS cluster named after its platform, ready for the node groups of other stacks.

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
        vpc: ec2.IVpc,
        **kwargs: Any,
    ) -> None:
        super().__init__(scope, id_, **kwargs)
        cluster = self._control_plane(name, kubernetes_version, config, vpc)
        self.name = cluster.ref
        self.security_group_id = cluster.attr_cluster_security_group_id
        admins = Construct(self, "Admins")
        for arn in config.admins:
            self._admit(admins, arn)
        # On a destroy the order turns round: the CNI and its role outlive the nodes, whose interfaces it detaches.
        node_addons = [install(self, addon, cluster_name=self.name) for addon in NODE_ADDONS]
        system_nodes = self._system_nodes(name, kubernetes_version, config, vpc)
        system_nodes.node.add_dependency(*node_addons)
        for addon in WORKLOAD_ADDONS:
            install(self, addon, cluster_name=self.name, after=[system_nodes])
        cdk.CfnOutput(self, "ClusterName", value=self.name)

    def _control_plane(
        self, name: str, kubernetes_version: KubernetesVersion, config: ClusterConfig, vpc: ec2.IVpc
    ) -> eks.CfnCluster:
        # Where this group is missing, EKS makes one that no stack owns and that keeps its logs for ever:
        # https://docs.aws.amazon.com/eks/latest/userguide/control-plane-logs.html
        log_group = logs.CfnLogGroup(
            self,
            "ControlPlaneLogs",
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
        cluster = eks.CfnCluster(
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
                    enabled_types=[eks.CfnCluster.LoggingTypeConfigProperty(type=kind) for kind in CONTROL_PLANE_LOGS]
                )
            ),
            resources_vpc_config=eks.CfnCluster.ResourcesVpcConfigProperty(
                subnet_ids=[subnet.subnet_id for subnet in vpc.private_subnets],
                endpoint_private_access=True,
                endpoint_public_access=bool(public_cidrs),
                public_access_cidrs=public_cidrs or None,
            ),
            # Extended support costs six times as much, and starts by itself unless this says otherwise:
            # https://docs.aws.amazon.com/eks/latest/userguide/kubernetes-versions.html
            upgrade_policy=eks.CfnCluster.UpgradePolicyProperty(support_type="STANDARD"),
        )
        cluster.node.add_dependency(log_group)
        return cluster

    def _admit(self, scope: Construct, arn: str) -> None:
        eks.CfnAccessEntry(
            scope,
            arn,
            cluster_name=self.name,
            principal_arn=arn,
            access_policies=[
                eks.CfnAccessEntry.AccessPolicyProperty(
                    policy_arn=f"arn:{self.partition}:eks::aws:cluster-access-policy/{ADMIN_POLICY}",
                    access_scope=eks.CfnAccessEntry.AccessScopeProperty(type="cluster"),
                )
            ],
        )

    def _system_nodes(
        self, platform: str, kubernetes_version: KubernetesVersion, config: ClusterConfig, vpc: ec2.IVpc
    ) -> eks.CfnNodegroup:
        template = ec2.CfnLaunchTemplate(
            self,
            "SystemLaunchTemplate",
            launch_template_data=ec2.CfnLaunchTemplate.LaunchTemplateDataProperty(
                instance_type=config.system_node_group.instance_type,
                metadata_options=metadata_options(),
                block_device_mappings=root_volume(SYSTEM_ROOT_VOLUME_GIB),
                tag_specifications=tag_specifications(platform),
            ),
        )
        size = config.system_node_group.size
        return eks.CfnNodegroup(
            self,
            "SystemNodes",
            cluster_name=self.name,
            version=kubernetes_version,
            node_role=NodeRole(self, "SystemNodeRole").role.role_arn,
            subnets=[subnet.subnet_id for subnet in vpc.private_subnets],
            ami_type="AL2023_x86_64_STANDARD",
            capacity_type="ON_DEMAND",
            launch_template=eks.CfnNodegroup.LaunchTemplateSpecificationProperty(
                id=template.ref, version=template.attr_latest_version_number
            ),
            # One more than there are, for the node that an update starts before it stops another.
            scaling_config=eks.CfnNodegroup.ScalingConfigProperty(min_size=size, desired_size=size, max_size=size + 1),
            update_config=eks.CfnNodegroup.UpdateConfigProperty(max_unavailable=1),
            force_update_enabled=False,
            node_repair_config=eks.CfnNodegroup.NodeRepairConfigProperty(enabled=True),
            labels={NODE_GROUP_LABEL: SYSTEM_NODE_GROUP},
        )
