"""Our table of instance types and the zones of a platform, beside what EC2 says."""

from __future__ import annotations

import copy
from typing import Any

import boto3
import pytest

from config.instances import INSTANCES
from operations.preflight.offers import differences, file_systems, instance_types, zones
from tests.operations.conftest import REGION, own_values, stubbed
from tests.synthesis import config_from


@pytest.fixture(scope="module")
def types(moto_endpoint: str) -> dict[str, dict[str, Any]]:
    """What EC2 says of every type of the table."""
    session = boto3.Session(region_name=REGION, aws_access_key_id="x", aws_secret_access_key="x")
    ec2 = session.client("ec2", endpoint_url=moto_endpoint)
    answers = ec2.describe_instance_types(InstanceTypes=list(INSTANCES))["InstanceTypes"]
    return {answer["InstanceType"]: answer for answer in answers}


@pytest.mark.parametrize("name", INSTANCES)
def test_our_table_says_of_every_type_what_ec2_says(types: dict[str, dict[str, Any]], name: str) -> None:
    assert list(differences(types[name], INSTANCES[name])) == []


@pytest.mark.parametrize(
    ("path", "value", "what"),
    [
        (["NetworkInfo", "EfaInfo", "MaximumEfaInterfaces"], 16, "EFA interfaces"),
        (["NetworkInfo", "MaximumNetworkCards"], 16, "network cards"),
        (["NetworkInfo", "NetworkCards", 7, "MaximumNetworkInterfaces"], 1, "interfaces of its smallest card"),
        (["NetworkInfo", "NetworkCards", 0, "InterfaceTypes"], ["interface"], "EFA on network card 0"),
        (["NetworkInfo", "Ipv4AddressesPerInterface"], 30, "addresses an interface"),
        (["GpuInfo", "Gpus", 0, "Count"], 4, "GPUs"),
        (["GpuInfo", "Gpus", 0, "MemoryInfo", "SizeInMiB"], 40960, "MiB of memory a GPU"),
        (["MemoryInfo", "SizeInMiB"], 1024, "MiB of memory"),
        (["VCpuInfo", "DefaultVCpus"], 96, "vCPUs"),
        (["InstanceStorageInfo", "Disks", 0, "Count"], 4, "NVMe disks"),
    ],
)
def test_each_fact_that_differs_is_named(
    types: dict[str, dict[str, Any]], path: list[Any], value: Any, what: str
) -> None:
    answer = copy.deepcopy(types["p5.48xlarge"])
    place: Any = answer
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    assert [found[0] for found in differences(answer, INSTANCES["p5.48xlarge"])] == [what]


def test_a_type_that_differs_from_the_table_is_refused(types: dict[str, dict[str, Any]]) -> None:
    config = config_from(own_values())
    p5 = copy.deepcopy(types["p5.48xlarge"])
    p5["NetworkInfo"]["EfaInfo"]["MaximumEfaInterfaces"] = 16
    ec2 = stubbed("ec2", ("describe_instance_types", {"InstanceTypes": [p5]}, {"InstanceTypes": ["p5.48xlarge"]}))
    (finding,) = instance_types(config, {"ec2": ec2})
    assert "EC2 says 16 for EFA interfaces, and config/instances.py 32" in finding.text


def test_a_platform_of_known_types_passes(aws: Any) -> None:
    assert list(instance_types(config_from(own_values()), {"ec2": aws.client("ec2")})) == []


def test_zones_that_sell_the_types_pass(aws: Any) -> None:
    assert list(zones(config_from(own_values()), {"ec2": aws.client("ec2")})) == []


def test_a_zone_that_the_account_lacks_is_refused(aws: Any) -> None:
    values = own_values()
    values["availability_zones"] = ["us-east-2a", "us-east-2f"]
    texts = [finding.text for finding in zones(config_from(values), {"ec2": aws.client("ec2")})]
    assert texts[0] == (
        "availability_zones: the account has no us-east-2f; choose of us-east-2a, us-east-2b, us-east-2c"
    )


def test_a_type_that_the_zone_does_not_sell_is_refused(aws: Any) -> None:
    values = own_values()
    values["node_groups"][0]["instance_type"] = "p6-b300.48xlarge"
    (finding,) = zones(config_from(values), {"ec2": aws.client("ec2")})
    assert finding.text.startswith("p6-b300.48xlarge is not offered in us-east-2a")


def test_what_no_api_tells_of_fsx_is_said(aws: Any) -> None:
    (finding,) = file_systems(config_from(own_values()), {"ssm": aws.client("ssm")})
    assert finding.kind == "not checked"
    assert "us-east-2a" in finding.text


def test_a_region_without_fsx_is_refused() -> None:
    ssm = stubbed("ssm", ("get_parameters", {"Parameters": []}, None))
    (finding,) = file_systems(config_from(own_values()), {"ssm": ssm})
    assert finding.text == "region: us-east-2 does not offer FSx; choose a region and capacity where it is"
