"""ClusterStack: the EKS cluster, made here or existing, with its add-ons and the nodes without GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import aws_cdk as cdk
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_eks as eks
from aws_cdk import aws_logs as logs
from constructs import Construct

from config.names import NODE_GROUP_LABEL, SYSTEM_NODE_GROUP
from config.platform import ClusterConfig, ContainerInsightsConfig, KubernetesVersion, SystemNodeGroupConfig
from stacks.addons import CLOUDWATCH_ADDON, CLOUDWATCH_LOGS, NODE_ADDONS, WORKLOAD_ADDONS, install
from stacks.control_plane import ControlPlane
from stacks.launch_template import metadata_options, root_volume, tag_specifications
from stacks.node_role import NodeRole

ROOT_VOLUME_GIB = 50


class ClusterStack(cdk.Stack):
    """A cluster that is ready for other stacks' node groups. One that exists gets system nodes and nothing else."""

    def __init__(
        self,
        scope: Construct,
        id_: str,
        *,
        platform: str,
        kubernetes_version: KubernetesVersion,
        config: ClusterConfig,
        subnet_ids: Sequence[str],
        **kwargs: Any,
    ) -> None:
        super().__init__(scope, id_, **kwargs)
        if config.existing is not None:
            self.name = config.existing.name
            self.security_group_id = config.existing.security_group_id
            self._system_nodes(platform, kubernetes_version, config.system_node_group, subnet_ids)
        else:
            cluster = ControlPlane(
                self,
                "ControlPlane",
                name=platform,
                kubernetes_version=kubernetes_version,
                config=config,
                subnet_ids=subnet_ids,
            ).cluster
            self.name = cluster.ref
            self.security_group_id = cluster.attr_cluster_security_group_id
            # On a destroy the order turns round: the CNI and its role outlive the nodes, whose interfaces it detaches.
            node_addons = [install(self, addon, cluster_name=self.name) for addon in NODE_ADDONS]
            nodes = self._system_nodes(platform, kubernetes_version, config.system_node_group, subnet_ids)
            nodes.node.add_dependency(*node_addons)
            for addon in WORKLOAD_ADDONS:
                install(self, addon, cluster_name=self.name, after=[nodes])
            if config.container_insights is not None:
                groups = self._container_insights_logs(platform, config.container_insights)
                install(self, CLOUDWATCH_ADDON, cluster_name=self.name, after=[nodes, *groups])
        cdk.CfnOutput(self, "ClusterName", value=self.name)

    def _container_insights_logs(self, platform: str, config: ContainerInsightsConfig) -> list[logs.CfnLogGroup]:
        groups = [
            logs.CfnLogGroup(
                self,
                f"ContainerInsights {kind}",
                log_group_name=f"/aws/containerinsights/{platform}/{kind}",
                retention_in_days=config.log_retention_days,
            )
            for kind in CLOUDWATCH_LOGS
        ]
        for group in groups:
            group.apply_removal_policy(cdk.RemovalPolicy.DESTROY)
        return groups

    def _system_nodes(
        self,
        platform: str,
        kubernetes_version: KubernetesVersion,
        config: SystemNodeGroupConfig,
        subnet_ids: Sequence[str],
    ) -> eks.CfnNodegroup:
        template = ec2.CfnLaunchTemplate(
            self,
            "SystemLaunchTemplate",
            launch_template_data=ec2.CfnLaunchTemplate.LaunchTemplateDataProperty(
                instance_type=config.instance_type,
                metadata_options=metadata_options(),
                block_device_mappings=root_volume(ROOT_VOLUME_GIB),
                tag_specifications=tag_specifications(platform),
            ),
        )
        return eks.CfnNodegroup(
            self,
            "SystemNodes",
            cluster_name=self.name,
            version=kubernetes_version,
            node_role=NodeRole(self, "SystemNodeRole").role.role_arn,
            subnets=list(subnet_ids),
            ami_type="AL2023_x86_64_STANDARD",
            capacity_type="ON_DEMAND",
            launch_template=eks.CfnNodegroup.LaunchTemplateSpecificationProperty(
                id=template.ref, version=template.attr_latest_version_number
            ),
            # One more than there are, for the node that an update starts before it stops another.
            scaling_config=eks.CfnNodegroup.ScalingConfigProperty(
                min_size=config.size, desired_size=config.size, max_size=config.size + 1
            ),
            update_config=eks.CfnNodegroup.UpdateConfigProperty(max_unavailable=1),
            force_update_enabled=False,
            node_repair_config=eks.CfnNodegroup.NodeRepairConfigProperty(enabled=True),
            labels={NODE_GROUP_LABEL: SYSTEM_NODE_GROUP},
        )
