"""NodeGroupsStack: the EFA node groups, each from its launch template."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import aws_cdk as cdk
import yaml
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_eks as eks
from aws_cdk import aws_iam as iam
from constructs import Construct

from config.names import EFA_LABEL, FSX_STARTUP_TAINT, GPU_LABEL, GPU_TAINT, NODE_GROUP_LABEL
from config.platform import KubernetesVersion, NodeGroupConfig
from config.sizing import max_pods, network_interfaces
from stacks.capacity import market_property, reservation_property
from stacks.efa import interface_properties
from stacks.launch_template import metadata_options, root_volume, tag_specifications
from stacks.node_role import NodeRole

# Images and pods' files lie on the NVMe disks, so the root volume holds the system and its logs.
ROOT_VOLUME_GIB = 100


class NodeGroupsStack(cdk.Stack):
    """The GPU nodes of a cluster."""

    def __init__(
        self,
        scope: Construct,
        id_: str,
        *,
        platform: str,
        kubernetes_version: KubernetesVersion,
        groups: Sequence[NodeGroupConfig],
        cluster_name: str,
        cluster_security_group: str,
        efa_security_group: str,
        subnet_id: str,
        **kwargs: Any,
    ) -> None:
        super().__init__(scope, id_, **kwargs)
        role = NodeRole(self, "NodeRole").role
        for group in groups:
            NodeGroup(
                self,
                group.name,
                config=group,
                launch_template=launch_template_data(
                    group,
                    platform=platform,
                    primary_groups=[cluster_security_group],
                    efa_group=efa_security_group,
                    user_data=node_config(group),
                ),
                cluster_name=cluster_name,
                kubernetes_version=kubernetes_version,
                role=role,
                subnet_id=subnet_id,
            )


class NodeGroup(Construct):
    """One managed node group of GPU nodes, and the launch template that it starts them from."""

    def __init__(
        self,
        scope: Construct,
        id_: str,
        *,
        config: NodeGroupConfig,
        launch_template: ec2.CfnLaunchTemplate.LaunchTemplateDataProperty,
        cluster_name: str,
        kubernetes_version: KubernetesVersion,
        role: iam.IRole,
        subnet_id: str,
    ) -> None:
        super().__init__(scope, id_)
        template = ec2.CfnLaunchTemplate(self, "LaunchTemplate", launch_template_data=launch_template)
        eks.CfnNodegroup(
            self,
            "Nodes",
            cluster_name=cluster_name,
            version=kubernetes_version,
            node_role=role.role_arn,
            # One subnet, in the zone of the capacity: a launch in any other finds none.
            subnets=[subnet_id],
            # Never left to a default, which comes without a GPU driver for types that the CDK does not know.
            ami_type="AL2023_x86_64_NVIDIA",
            capacity_type="CAPACITY_BLOCK" if config.purchase == "capacity_block" else "ON_DEMAND",
            launch_template=eks.CfnNodegroup.LaunchTemplateSpecificationProperty(
                id=template.ref, version=template.attr_latest_version_number
            ),
            scaling_config=eks.CfnNodegroup.ScalingConfigProperty(
                min_size=config.min_size, desired_size=config.desired_size, max_size=config.max_size
            ),
            update_config=eks.CfnNodegroup.UpdateConfigProperty(
                max_unavailable=1,
                # The default starts a new node first, and a reservation has no node to spare:
                # https://docs.aws.amazon.com/eks/latest/userguide/managed-node-update-behavior.html
                update_strategy="DEFAULT" if config.reservation is None else "MINIMAL",
            ),
            # A forced update evicts training pods whatever their disruption budget says.
            force_update_enabled=False,
            node_repair_config=eks.CfnNodegroup.NodeRepairConfigProperty(enabled=True),
            labels={NODE_GROUP_LABEL: config.name, GPU_LABEL: "true", EFA_LABEL: "true"},
            taints=[
                eks.CfnNodegroup.TaintProperty(key=GPU_TAINT, value="true", effect="NO_SCHEDULE"),
                eks.CfnNodegroup.TaintProperty(key=FSX_STARTUP_TAINT, effect="NO_EXECUTE"),
            ],
        )


def launch_template_data(
    group: NodeGroupConfig,
    *,
    platform: str,
    primary_groups: Sequence[str],
    efa_group: str,
    user_data: str,
) -> ec2.CfnLaunchTemplate.LaunchTemplateDataProperty:
    """Everything that a launch of this group's instances needs but a subnet and an image, which the scheduler adds."""
    return ec2.CfnLaunchTemplate.LaunchTemplateDataProperty(
        instance_type=group.instance_type,
        network_interfaces=interface_properties(
            network_interfaces(group.instance, group.interface_layout),
            efa_group=efa_group,
            primary_groups=primary_groups,
        ),
        capacity_reservation_specification=reservation_property(group.reservation),
        instance_market_options=market_property(group.purchase),
        # None unless named: a reservation fills slowly, or not at all, when launches must also sit close together.
        placement=(
            ec2.CfnLaunchTemplate.PlacementProperty(group_name=group.placement_group) if group.placement_group else None
        ),
        metadata_options=metadata_options(),
        block_device_mappings=root_volume(ROOT_VOLUME_GIB),
        tag_specifications=tag_specifications(platform),
        user_data=cdk.Fn.base64(user_data),
    )


def node_config(group: NodeGroupConfig) -> str:
    """User data that adds to the configuration which EKS writes for nodes of its own images.

    https://awslabs.github.io/amazon-eks-ami/nodeadm/doc/api/
    """
    config = {
        "apiVersion": "node.eks.aws/v1alpha1",
        "kind": "NodeConfig",
        "spec": {
            # Layers of an image are fetched and unpacked side by side, and a training image has many gigabytes.
            "featureGates": {"FastImagePull": True},
            # All NVMe disks as one, for images, pods' scratch and logs.
            "instance": {"localStorage": {"strategy": "RAID0"}},
            "kubelet": {"config": {"maxPods": max_pods(group.instance, group.interface_layout)}},
        },
    }
    parts = ec2.MultipartUserData()
    parts.add_part(
        ec2.MultipartBody.from_raw_body(
            content_type="application/node.eks.aws", body=yaml.safe_dump(config, sort_keys=False)
        )
    )
    return parts.render()
