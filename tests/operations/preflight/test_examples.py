"""What the shipped files hold as examples must not reach an account."""

from __future__ import annotations

from typing import Any

import pytest

from config.platform import PlatformConfig
from operations.preflight.examples import example_values
from tests.operations.conftest import own_values
from tests.synthesis import SHIPPED, config_from, values_of


def said(values: dict[str, Any]) -> list[str]:
    return [finding.text for finding in example_values(config_from(values))]


@pytest.mark.parametrize("name", SHIPPED)
def test_every_shipped_platform_is_refused_until_its_examples_are_replaced(name: str) -> None:
    wheres = {text.partition(":")[0] for text in said(values_of(name))}
    assert {"account", "cluster.admins.0", "cluster.public_access_cidrs.0"} <= wheres
    has_reservation = any(group.get("reservation") for group in values_of(name)["node_groups"])
    assert any(where.startswith("node_groups.0.reservation") for where in wheres) == has_reservation
    assert said(own_values(name)) == []


def test_each_refusal_names_the_fix() -> None:
    assert all("write" in text for text in said(values_of("p5-capacity-block")))


@pytest.mark.parametrize("network", ["192.0.2.0/24", "198.51.100.0/25", "203.0.113.7/32", "192.0.0.0/16"])
def test_ranges_of_documentation_are_refused(network: str) -> None:
    values = own_values()
    values["cluster"]["public_access_cidrs"] = [network]
    (text,) = said(values)
    assert network in text
    assert "documentation" in text


def test_example_ids_of_what_exists_are_refused() -> None:
    values = own_values()
    values["network"] = {
        "vpc": {
            "id": "vpc-0123456789abcdef0",
            "private_subnets": {
                "us-east-2a": "subnet-0123456789abcdef0",
                "us-east-2b": "subnet-0a1b2c3d4e5f60718",
            },
        }
    }
    found = list(example_values(PlatformConfig.model_validate({**values, "jobs": []})))
    assert [finding.text.partition(":")[0] for finding in found] == [
        "network.vpc.id",
        "network.vpc.private_subnets.us-east-2a",
    ]
