"""The bill counts what runs, says what it does not count, and costs reservations while they stand empty."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from config.instances import INSTANCES
from operations.preflight.price import INTERFACE_ENDPOINTS, hourly_price, shown
from tests.operations.conftest import own_values
from tests.synthesis import Synthesized, config_from


def dollars(name: str, word: str) -> float | None:
    (line,) = (line for line in hourly_price(config_from(own_values(name))) if word in line.what)
    return line.dollars_per_hour


def test_nodes_on_demand_cost_what_the_table_says() -> None:
    price = INSTANCES["p5.4xlarge"].on_demand_dollars_per_hour
    assert dollars("p5-4xlarge-on-demand", "p5.4xlarge on demand") == price


def test_a_reservation_costs_all_its_instances_though_none_runs() -> None:
    values = own_values("p5-reservation")
    group = values["node_groups"][0]
    group["desired_size"] = 0
    price = INSTANCES["p5.48xlarge"].on_demand_dollars_per_hour
    assert price is not None
    (line,) = (line for line in hourly_price(config_from(values)) if "reserved" in line.what)
    assert line.dollars_per_hour == pytest.approx(group["reservation"]["instance_count"] * price)


def test_a_capacity_block_is_not_counted_and_said_so() -> None:
    assert dollars("p5-capacity-block", "paid when it is bought") is None
    text = shown(hourly_price(config_from(own_values())))
    assert "not counted: p5: a capacity block" in text
    assert "not counted: S3" in text


@pytest.mark.parametrize(("tier", "monthly"), [(125, 0.145), (250, 0.21), (500, 0.34), (1000, 0.6)])
def test_the_file_system_costs_by_capacity_and_throughput(tier: int, monthly: float) -> None:
    values = own_values()
    values["storage"] |= {"capacity_gib": 4800, "throughput_mbps_per_tib": tier}
    (line,) = (line for line in hourly_price(config_from(values)) if "FSx" in line.what)
    assert line.dollars_per_hour == pytest.approx(4800 * monthly / 730)


def test_the_sum_is_that_of_its_lines() -> None:
    lines = hourly_price(config_from(own_values("p5-4xlarge-on-demand")))
    total = sum(line.dollars_per_hour or 0 for line in lines)
    assert f"{total:10.2f}  US dollars an hour" in shown(lines)


def test_what_exists_already_is_not_counted() -> None:
    values = own_values()
    subnets = {"us-east-2a": "subnet-0a1b2c3d4e5f60718", "us-east-2b": "subnet-1a1b2c3d4e5f60718"}
    values["network"] = {"vpc": {"id": "vpc-0a1b2c3d4e5f60718", "private_subnets": subnets}}
    values["cluster"] = {"existing": {"name": "theirs", "security_group_id": "sg-0a1b2c3d4e5f60718"}}
    whats = " ".join(line.what for line in hourly_price(config_from(values)))
    assert "NAT" not in whats
    assert "control plane" not in whats


def test_the_endpoints_are_those_of_the_network_stack(shipped: Callable[[str], Synthesized]) -> None:
    endpoints = shipped("p5-capacity-block").resources("network", "AWS::EC2::VPCEndpoint").values()
    interfaces = [each for each in endpoints if each["Properties"]["VpcEndpointType"] == "Interface"]
    assert len(interfaces) == INTERFACE_ENDPOINTS
