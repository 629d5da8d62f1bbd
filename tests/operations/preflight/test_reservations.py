"""A reservation is of use only if type, zone, kind, time and count are what the platform file says."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from config.platform import PlatformConfig
from operations.preflight.finding import Finding
from operations.preflight.reservations import reservations
from tests.operations.conftest import ACCOUNT, own_values, stubbed
from tests.synthesis import config_from

ID = "cr-0a1b2c3d4e5f60718"
GROUP = f"arn:aws:resource-groups:us-east-2:{ACCOUNT}:group/training"
END = datetime(2027, 1, 15, 11, 30, tzinfo=UTC)
BLOCK: dict[str, Any] = {
    "CapacityReservationId": ID,
    "InstanceType": "p5.48xlarge",
    "AvailabilityZone": "us-east-2a",
    "State": "active",
    "Tenancy": "default",
    "InstancePlatform": "Linux/UNIX",
    "ReservationType": "capacity-block",
    "TotalInstanceCount": 4,
    "AvailableInstanceCount": 4,
    "StartDate": END - timedelta(days=7),
    "EndDate": END,
}


@pytest.fixture(autouse=True)
def during_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    class Clock(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return END.astimezone(tz) - timedelta(days=1)

    monkeypatch.setattr("operations.preflight.reservations.datetime", Clock)


def platform(desired_size: int = 4, active: bool = True, **changes: Any) -> PlatformConfig:
    values = own_values()
    group = values["node_groups"][0]
    group |= {"desired_size": desired_size if active else 0, **changes}
    group["reservation"] = {**group["reservation"], "active": active}
    return config_from(values)


def found(config: PlatformConfig, answer: list[dict[str, Any]] | str, running: int = 0) -> list[Finding]:
    answered = answer if isinstance(answer, str) else {"CapacityReservations": answer}
    asked = {
        "Filters": [
            {"Name": "capacity-reservation-id", "Values": [ID]},
            {"Name": "tag:platform", "Values": [config.name]},
            {"Name": "instance-state-name", "Values": ["pending", "running"]},
        ]
    }
    instances = {"Reservations": [{"Instances": [{"InstanceId": f"i-{index}"} for index in range(running)]}]}
    ec2 = stubbed(
        "ec2",
        ("describe_capacity_reservations", answered, {"CapacityReservationIds": [ID]}),
        ("describe_instances", instances, asked),
    )
    return list(reservations(config, {"ec2": ec2}))


def test_a_block_that_is_as_the_file_says_passes() -> None:
    assert found(platform(), [BLOCK]) == []


@pytest.mark.parametrize("answer", ["InvalidCapacityReservationId.NotFound", []])
def test_a_reservation_that_is_not_in_the_account_is_refused(answer: Any) -> None:
    (finding,) = found(platform(), answer)
    assert finding.kind == "failed"
    assert f"no capacity reservation of {ID} is in account {ACCOUNT}" in finding.text


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"InstanceType": "p5en.48xlarge"}, "is of p5en.48xlarge, not p5.48xlarge"),
        ({"AvailabilityZone": "us-east-2b"}, "is in us-east-2b, not us-east-2a"),
        ({"State": "expired"}, "is expired"),
        ({"State": "payment-failed"}, "is payment-failed"),
        ({"Tenancy": "dedicated"}, "has dedicated tenancy"),
        ({"InstancePlatform": "Windows"}, "is for Windows"),
        ({"ReservationType": "default"}, "write purchase: capacity_reservation"),
        (
            {"PlacementGroupArn": f"arn:aws:ec2:us-east-2:{ACCOUNT}:placement-group/close"},
            "write placement_group: close",
        ),
    ],
)
def test_a_reservation_that_serves_no_launch_of_the_group_is_refused(change: dict[str, Any], expected: str) -> None:
    (finding,) = found(platform(), [BLOCK | change])
    assert finding.kind == "failed"
    assert expected in finding.text


def test_a_reservation_made_in_the_groups_placement_group_passes() -> None:
    inside = {"PlacementGroupArn": f"arn:aws:ec2:us-east-2:{ACCOUNT}:placement-group/close"}
    assert found(platform(placement_group="close"), [BLOCK | inside]) == []


def test_a_block_to_come_warns_and_fails_where_the_file_says_that_it_has_begun() -> None:
    (warned,) = found(platform(active=False), [BLOCK | {"State": "scheduled"}])
    assert warned.kind == "warning"
    assert "scheduled for 2027-01-08" in warned.text
    refused = found(platform(desired_size=0), [BLOCK | {"State": "scheduled"}])
    assert [finding.kind for finding in refused] == ["failed"]
    assert "write active: false" in refused[0].text


def test_a_block_that_has_begun_unnoticed_warns() -> None:
    (finding,) = found(platform(active=False), [BLOCK])
    assert finding.kind == "warning"
    assert "has begun" in finding.text


@pytest.mark.parametrize("minutes", [-61, -1, 39])
def test_a_block_too_near_its_end_is_refused(minutes: int) -> None:
    end = END - timedelta(days=1) + timedelta(minutes=minutes)
    texts = [finding.text for finding in found(platform(), [BLOCK | {"EndDate": end}])]
    assert any("buy another" in text for text in texts)


def test_an_end_that_differs_from_the_file_is_refused() -> None:
    (finding,) = found(platform(), [BLOCK | {"EndDate": END + timedelta(hours=1)}])
    assert "write that as reservation.ends_at" in finding.text


def test_fewer_instances_than_the_file_says_are_refused() -> None:
    (finding,) = found(platform(desired_size=2), [BLOCK | {"TotalInstanceCount": 3, "AvailableInstanceCount": 3}])
    assert "holds 3 instances, not 4" in finding.text


@pytest.mark.parametrize(("free", "ours", "passes"), [(4, 0, True), (1, 3, True), (0, 4, True), (3, 0, False)])
def test_nodes_that_run_already_count_with_those_that_are_free(free: int, ours: int, passes: bool) -> None:
    findings = found(platform(), [BLOCK | {"AvailableInstanceCount": free}], running=ours)
    assert (findings == []) is passes
    if not passes:
        assert "desired_size is 4, and 3 of 4 reserved instances are free" in findings[0].text


def grouped(members: list[str], answer: list[dict[str, Any]]) -> list[Finding]:
    values = own_values()
    group = values["node_groups"][0]
    group |= {"purchase": "capacity_reservation", "desired_size": 0}
    group["reservation"] = {
        "resource_group_arn": GROUP,
        "availability_zone": "us-east-2a",
        "instance_count": 4,
        "active": True,
    }
    arns = [f"arn:aws:ec2:us-east-2:{ACCOUNT}:capacity-reservation/{member}" for member in members]
    resources = {"Resources": [{"Identifier": {"ResourceArn": arn}} for arn in arns]}
    groups = stubbed("resource-groups", ("list_group_resources", resources, {"Group": GROUP}))
    ec2 = stubbed(
        "ec2",
        (
            "describe_capacity_reservations",
            {"CapacityReservations": answer},
            {"CapacityReservationIds": members},
        ),
    )
    return list(reservations(config_from(values), {"ec2": ec2, "resource-groups": groups}))


def test_a_resource_group_counts_what_fits_of_its_reservations() -> None:
    plain = {key: value for key, value in BLOCK.items() if key != "EndDate"} | {"ReservationType": "default"}
    halves = [
        plain | {"CapacityReservationId": "cr-1", "TotalInstanceCount": 2},
        plain | {"CapacityReservationId": "cr-2", "TotalInstanceCount": 2},
        plain | {"CapacityReservationId": "cr-3", "TotalInstanceCount": 9, "AvailabilityZone": "us-east-2b"},
    ]
    assert grouped(["cr-1", "cr-2", "cr-3"], halves) == []
    (finding,) = grouped(["cr-1", "cr-3"], [halves[0], halves[2]])
    assert "holds 2 instances, not 4" in finding.text


def test_a_resource_group_without_reservations_is_refused() -> None:
    (finding,) = grouped([], [])
    assert f"no capacity reservation of {GROUP}" in finding.text


def test_an_on_demand_group_asks_nothing() -> None:
    assert list(reservations(config_from(own_values("p5-4xlarge-on-demand")), {})) == []
