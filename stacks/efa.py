"""What EFA needs of a launch template and of a security group. Nothing here knows of EKS."""

from __future__ import annotations

from collections.abc import Sequence

from aws_cdk import aws_ec2 as ec2
from constructs import Construct

from config.sizing import NetworkInterface

ALL_TRAFFIC = "-1"


class EfaSecurityGroup(Construct):
    """Lets nodes reach one another over EFA, and nothing else.

    EFA bypasses the operating system, and EC2 drops its packets unless the group names itself in both directions:
    https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-start.html#efa-start-security
    """

    def __init__(self, scope: Construct, id_: str, *, vpc: ec2.IVpc) -> None:
        super().__init__(scope, id_)
        self.group = ec2.SecurityGroup(
            self, "Group", vpc=vpc, description="Training nodes: EFA among themselves", allow_all_outbound=False
        )
        group_id = self.group.security_group_id
        ec2.CfnSecurityGroupIngress(
            self,
            "FromItself",
            group_id=group_id,
            source_security_group_id=group_id,
            ip_protocol=ALL_TRAFFIC,
            description="EFA from the other nodes",
        )
        ec2.CfnSecurityGroupEgress(
            self,
            "ToItself",
            group_id=group_id,
            destination_security_group_id=group_id,
            ip_protocol=ALL_TRAFFIC,
            description="EFA to the other nodes",
        )


def interface_properties(
    interfaces: Sequence[NetworkInterface], *, efa_group: str, primary_groups: Sequence[str]
) -> list[ec2.CfnLaunchTemplate.NetworkInterfaceProperty]:
    """The interfaces of a launch template, none with a subnet, which belongs to whoever launches.

    Args:
        interfaces: the primary first.
        efa_group: id of the security group of every interface that carries EFA, and of the primary.
        primary_groups: ids of further groups that the primary needs, such as a cluster's own.
    """
    return [
        ec2.CfnLaunchTemplate.NetworkInterfaceProperty(
            network_card_index=interface.network_card,
            device_index=interface.device,
            interface_type=interface.type,
            groups=[*primary_groups, efa_group] if index == 0 else [efa_group],
            delete_on_termination=True,
            description=f"card {interface.network_card}, {interface.type}",
        )
        for index, interface in enumerate(interfaces)
    ]
