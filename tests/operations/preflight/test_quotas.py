"""Quotas are compared with what the platform adds to what others run."""

from __future__ import annotations

from typing import Any

import pytest

from operations.preflight.finding import Finding
from operations.preflight.quotas import ADDRESSES, ON_DEMAND_P, ON_DEMAND_STANDARD, VPCS, quotas
from tests.operations.conftest import own_values
from tests.synthesis import config_from


class Quotas:
    """Service Quotas with the values of a test; moto knows only those of VPCs."""

    def __init__(self, values: dict[str, float]) -> None:
        self.values = values

    def get_service_quota(self, ServiceCode: str, QuotaCode: str) -> dict[str, Any]:  # noqa: N803, boto3's spelling
        assert ServiceCode == ("vpc" if QuotaCode == VPCS else "ec2")
        return {"Quota": {"Value": self.values.get(QuotaCode, 1000.0)}}


def found(aws: Any, values: dict[str, float] | None = None, name: str = "p5-4xlarge-on-demand") -> list[Finding]:
    clients = {"ec2": aws.client("ec2"), "service-quotas": Quotas(values or {})}
    return list(quotas(config_from(own_values(name)), clients))


def run_instances(aws: Any, type_: str, tags: dict[str, str]) -> None:
    ec2 = aws.client("ec2")
    (image,) = ec2.describe_images(Owners=["amazon"], MaxResults=5)["Images"][:1]
    tagged = [{"ResourceType": "instance", "Tags": [{"Key": key, "Value": value} for key, value in tags.items()]}]
    ec2.run_instances(
        ImageId=image["ImageId"], InstanceType=type_, MinCount=1, MaxCount=1, TagSpecifications=tagged if tags else []
    )


def test_room_enough_passes(aws: Any) -> None:
    assert found(aws) == []


@pytest.mark.parametrize(
    ("quota", "value", "expected"),
    [
        (ON_DEMAND_P, 15, "the account may have 15 vCPUs of running P instances, others use 0, the platform needs 16"),
        (ON_DEMAND_STANDARD, 11, "11 vCPUs of running standard instances, others use 0, the platform needs 12"),
        (VPCS, 1, "the account may have 1 VPCs, others use 1, the platform needs 1"),
        (ADDRESSES, 0, "the account may have 0 Elastic IPs, others use 0, the platform needs 1"),
    ],
)
def test_each_quota_that_is_too_small_is_refused_with_the_request_to_make(
    aws: Any, quota: str, value: float, expected: str
) -> None:
    (finding,) = found(aws, {quota: value})
    assert finding.kind == "failed"
    assert expected in finding.text
    assert f"--quota-code {quota}" in finding.text


def test_what_others_run_takes_room_and_what_the_platform_runs_does_not(aws: Any) -> None:
    run_instances(aws, "p5.4xlarge", {"platform": "p5-4xlarge-on-demand"})
    assert found(aws, {ON_DEMAND_P: 16}) == []
    run_instances(aws, "p5.4xlarge", {"platform": "another"})
    (finding,) = found(aws, {ON_DEMAND_P: 16})
    assert "others use 16" in finding.text


def test_reserved_groups_need_no_on_demand_quota(aws: Any) -> None:
    assert found(aws, {ON_DEMAND_P: 0}, "p5-capacity-block") == []


def test_a_platform_that_is_deployed_needs_no_second_vpc(aws: Any) -> None:
    ec2 = aws.client("ec2")
    vpc = ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
    ec2.create_tags(Resources=[vpc], Tags=[{"Key": "platform", "Value": "p5-4xlarge-on-demand"}])
    assert found(aws, {VPCS: 2}) == []


def test_a_quota_that_nobody_knows_is_said(aws: Any) -> None:
    clients = {"ec2": aws.client("ec2"), "service-quotas": aws.client("service-quotas")}
    findings = list(quotas(config_from(own_values("p5-4xlarge-on-demand")), clients))
    assert {finding.kind for finding in findings} == {"not checked"}
    assert any(ON_DEMAND_P in finding.text for finding in findings)
