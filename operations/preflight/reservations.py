"""Whether reserved capacity is there, is what the platform file says, and has room."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from botocore.exceptions import ClientError

from config.names import PLATFORM_TAG
from config.platform import NodeGroupConfig, PlatformConfig, ReservationConfig
from operations.aws import code_of, pages
from operations.preflight.finding import Clients, Finding, failed, warning

# A reservation that will come. The other states are its end:
# https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_CapacityReservation.html
FUTURE_STATES = ("scheduled", "pending", "payment-pending", "assessing", "delayed")
# EKS scales a group of a capacity block to zero this long before its end:
# https://docs.aws.amazon.com/eks/latest/userguide/capacity-blocks-mng.html
CAPACITY_BLOCK_NOTICE = timedelta(minutes=40)
SAME_TIME = timedelta(minutes=1)

Reservation = dict[str, Any]


def reservations(config: PlatformConfig, clients: Clients) -> Iterator[Finding]:
    """Every reserved group's reservation exists, and is what the platform file says."""
    for group in config.node_groups:
        if group.reservation is None:
            continue
        where = f"node group {group.name}"
        try:
            found = _find(group.reservation, clients)
        except ClientError as error:
            if not code_of(error).startswith(("InvalidCapacityReservation", "NotFound")):
                raise
            found = []
        target = group.reservation.id or group.reservation.resource_group_arn
        if not found:
            yield failed(
                f"{where}: no capacity reservation of {target} is in account {config.account} and {config.region}; "
                "`aws ec2 describe-capacity-reservations` shows those that are"
            )
            continue
        fitting = [each for each in found if not list(_mismatches(group, each))]
        if not fitting:
            for each in found:
                yield from (failed(f"{where}: {text}") for text in _mismatches(group, each))
            continue
        yield from (Finding(f.kind, f"{where}: {f.text}") for f in _schedule(group, fitting))
        yield from (failed(f"{where}: {text}") for text in _counts(config, group, fitting, clients))


def _find(reservation: ReservationConfig, clients: Clients) -> list[Reservation]:
    if reservation.id is not None:
        ids = [reservation.id]
    else:
        members = pages(
            clients["resource-groups"], "list_group_resources", "Resources", Group=reservation.resource_group_arn
        )
        arns = [member["Identifier"]["ResourceArn"] for member in members]
        ids = [arn.rpartition("/")[2] for arn in arns if ":capacity-reservation/" in arn]
    if not ids:
        return []
    return list(clients["ec2"].describe_capacity_reservations(CapacityReservationIds=ids)["CapacityReservations"])


def _mismatches(group: NodeGroupConfig, found: Reservation) -> Iterator[str]:
    """What makes a reservation useless to the group."""
    id_ = found["CapacityReservationId"]
    if found["InstanceType"] != group.instance_type:
        yield f"{id_} is of {found['InstanceType']}, not {group.instance_type}; correct one of the two"
    if found["AvailabilityZone"] != group.zone:
        yield f"{id_} is in {found['AvailabilityZone']}, not {group.zone}; correct reservation.availability_zone"
    if found["State"] != "active" and found["State"] not in FUTURE_STATES:
        yield f"{id_} is {found['State']}; name a reservation that is active or to come"
    if found.get("Tenancy", "default") != "default":
        yield f"{id_} has {found['Tenancy']} tenancy, which EKS nodes do not; name one of default tenancy"
    if found.get("InstancePlatform", "Linux/UNIX") != "Linux/UNIX":
        yield f"{id_} is for {found['InstancePlatform']}; name one for Linux/UNIX"
    is_block = found.get("ReservationType") == "capacity-block"
    if is_block != (group.purchase == "capacity_block"):
        right = "capacity_block" if is_block else "capacity_reservation"
        yield f"{id_} is a {right.replace('_', ' ')}; write purchase: {right}"
    if inside := found.get("PlacementGroupArn"):
        name = inside.rpartition("/")[2]
        if name != group.placement_group:
            yield f"{id_} was made in placement group {name}, and serves no other launch; write placement_group: {name}"


def _schedule(group: NodeGroupConfig, found: Sequence[Reservation]) -> Iterator[Finding]:
    """When it begins and ends, beside what the platform file says of it."""
    assert group.reservation is not None, "only groups with a reservation come here"
    has_begun = any(each["State"] == "active" for each in found)
    if not has_begun:
        starts = ", ".join(f"{e['CapacityReservationId']} is {e['State']} for {e.get('StartDate')}" for e in found)
        if group.reservation.active:
            yield failed(
                f"{starts}, and reservation.active is true; write active: false and desired_size: 0 until then"
            )
        else:
            yield warning(f"{starts}; set active: true and deploy again once it has begun")
    elif not group.reservation.active:
        yield warning("the reservation has begun; set reservation.active: true to use it")
    for each in found:
        end = each.get("EndDate")
        if end is None:
            continue
        if group.reservation.ends_at is not None and abs(end - group.reservation.ends_at) > SAME_TIME:
            yield failed(
                f"{each['CapacityReservationId']} ends at {end.isoformat()}; write that as reservation.ends_at"
            )
        if end - datetime.now(UTC) < CAPACITY_BLOCK_NOTICE:
            yield failed(
                f"{each['CapacityReservationId']} ends at {end.isoformat()}, and nodes are stopped before; buy another"
            )


def _counts(
    config: PlatformConfig, group: NodeGroupConfig, found: Sequence[Reservation], clients: Clients
) -> Iterator[str]:
    """How many instances it holds, and how many of them are free or this platform's already."""
    assert group.reservation is not None, "only groups with a reservation come here"
    total = sum(each["TotalInstanceCount"] for each in found)
    if total < group.reservation.instance_count:
        yield f"the reservation holds {total} instances, not {group.reservation.instance_count}; lower instance_count"
    if not group.desired_size:
        return
    ids = [each["CapacityReservationId"] for each in found]
    ours = running_instances(clients["ec2"], ("capacity-reservation-id", ids), (f"tag:{PLATFORM_TAG}", [config.name]))
    free = sum(each["AvailableInstanceCount"] for each in found)
    if free + len(ours) < group.desired_size:
        yield (
            f"desired_size is {group.desired_size}, and {free} of {total} reserved instances are free beside the "
            f"{len(ours)} of this platform; lower desired_size, or stop what runs in the reservation"
        )


def running_instances(ec2: Any, *filters: tuple[str, list[str]]) -> list[dict[str, Any]]:
    """Instances that run or are about to, of those that pass every filter (its name, the values that pass)."""
    wanted = [*filters, ("instance-state-name", ["pending", "running"])]
    found = pages(
        ec2, "describe_instances", "Reservations", Filters=[{"Name": name, "Values": v} for name, v in wanted]
    )
    return [instance for reservation in found for instance in reservation["Instances"]]
