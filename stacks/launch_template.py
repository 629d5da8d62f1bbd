"""What the launch templates of all nodes have in common. Nothing here knows of EKS."""

from __future__ import annotations

from aws_cdk import CfnTag
from aws_cdk import aws_ec2 as ec2

from config.names import PLATFORM_TAG

# The name of the root volume in Amazon Linux 2023.
ROOT_DEVICE = "/dev/xvda"


def metadata_options() -> ec2.CfnLaunchTemplate.MetadataOptionsProperty:
    """Instance metadata by token only, and out of reach of pods, which have identities of their own.

    https://docs.aws.amazon.com/eks/latest/best-practices/identity-and-access-management.html
    """
    return ec2.CfnLaunchTemplate.MetadataOptionsProperty(
        http_endpoint="enabled", http_tokens="required", http_put_response_hop_limit=1
    )


def root_volume(size_gib: int) -> list[ec2.CfnLaunchTemplate.BlockDeviceMappingProperty]:
    """One encrypted gp3 volume that goes with its instance."""
    return [
        ec2.CfnLaunchTemplate.BlockDeviceMappingProperty(
            device_name=ROOT_DEVICE,
            ebs=ec2.CfnLaunchTemplate.EbsProperty(
                volume_type="gp3", volume_size=size_gib, encrypted=True, delete_on_termination=True
            ),
        )
    ]


def tag_specifications(platform: str) -> list[ec2.CfnLaunchTemplate.TagSpecificationProperty]:
    """The platform's tag on all that a launch makes, and none of the user's.

    A changed tag would be a new version of the template, and a new version replaces every node.
    """
    return [
        ec2.CfnLaunchTemplate.TagSpecificationProperty(
            resource_type=resource_type, tags=[CfnTag(key=PLATFORM_TAG, value=platform)]
        )
        for resource_type in ("instance", "volume", "network-interface")
    ]
