"""The role of a managed node group's instances."""

from __future__ import annotations

from aws_cdk import aws_iam as iam
from constructs import Construct


class NodeRole(Construct):
    """Lets a node join its cluster and pull images. What its pods may do is theirs, by Pod Identity.

    The VPC CNI has a role of its own, so its policy is absent here:
    https://docs.aws.amazon.com/eks/latest/userguide/create-node-role.html
    """

    def __init__(self, scope: Construct, id_: str) -> None:
        super().__init__(scope, id_)
        self.role = iam.Role(
            self,
            "Role",
            assumed_by=iam.ServicePrincipal("ec2.amazonaws.com"),
            managed_policies=[
                iam.ManagedPolicy.from_aws_managed_policy_name("AmazonEKSWorkerNodePolicy"),
                iam.ManagedPolicy.from_aws_managed_policy_name("AmazonEC2ContainerRegistryPullOnly"),
            ],
        )
