"""How instances are bought, as a launch template says it. Nothing here knows of EKS."""

from __future__ import annotations

from aws_cdk import aws_ec2 as ec2

from config.platform import Purchase, ReservationConfig


def reservation_property(
    reservation: ReservationConfig | None,
) -> ec2.CfnLaunchTemplate.CapacityReservationSpecificationProperty | None:
    """The reservation that launches must use.

    A target excludes a preference, and an empty target launches on demand without a word:
    https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_LaunchTemplateCapacityReservationSpecificationRequest.html
    """
    if reservation is None:
        return None
    assert reservation.id or reservation.resource_group_arn, "the config demands one of the two"
    return ec2.CfnLaunchTemplate.CapacityReservationSpecificationProperty(
        capacity_reservation_target=ec2.CfnLaunchTemplate.CapacityReservationTargetProperty(
            capacity_reservation_id=reservation.id,
            capacity_reservation_resource_group_arn=reservation.resource_group_arn,
        )
    )


def market_property(purchase: Purchase) -> ec2.CfnLaunchTemplate.InstanceMarketOptionsProperty | None:
    """The market of a capacity block; the other purchases are EC2's default.

    https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/capacity-blocks-launch.html
    """
    if purchase == "capacity_block":
        return ec2.CfnLaunchTemplate.InstanceMarketOptionsProperty(market_type="capacity-block")
    return None
