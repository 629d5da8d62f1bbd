"""Values that documentation and the shipped platform files use as examples, and that no deployment can mean."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from typing import Any

from config.platform import PlatformConfig
from operations.preflight.finding import Finding, failed

# Accounts that AWS's own documentation uses: https://docs.aws.amazon.com/IAM/latest/UserGuide/reference-arns.html
EXAMPLE_ACCOUNTS = ("111122223333", "123456789012", "444455556666", "777788889999")
# https://www.rfc-editor.org/rfc/rfc5737
DOCUMENTATION_NETWORKS = tuple(map(ipaddress.IPv4Network, ("192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24")))
EXAMPLE_ID = re.compile(r"[a-z]+-0123456789abcdef0")
FIND = {
    "cr": "aws ec2 describe-capacity-reservations",
    "vpc": "aws ec2 describe-vpcs",
    "subnet": "aws ec2 describe-subnets",
    "sg": "aws eks describe-cluster --query cluster.resourcesVpcConfig.clusterSecurityGroupId",
}


def example_values(config: PlatformConfig) -> Iterator[Finding]:
    """Every example that was left in a platform file. It needs no AWS."""
    for where, value in _texts(config.model_dump(mode="json")):
        if EXAMPLE_ID.fullmatch(value):
            yield failed(
                f"{where}: {value} is an example's; write your own, which `{FIND[value.partition('-')[0]]}` shows"
            )
        elif value in EXAMPLE_ACCOUNTS:
            yield failed(
                f"{where}: {value} is an account of AWS's documentation; "
                "write yours, which `aws sts get-caller-identity` shows"
            )
        elif account := next((each for each in EXAMPLE_ACCOUNTS if f":{each}:" in value), None):
            yield failed(f"{where}: {value} is in account {account} of AWS's documentation; write the ARN of your own")
    for index, cidr in enumerate(config.cluster.public_access_cidrs):
        network = ipaddress.IPv4Network(cidr)
        if any(network.overlaps(example) for example in DOCUMENTATION_NETWORKS):
            yield failed(
                f"cluster.public_access_cidrs.{index}: {cidr} is reserved for documentation, so nobody could reach the "
                "API server from it; write the range that you come from, or remove the line for a private endpoint"
            )


def _texts(value: Any, where: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield where, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _texts(item, f"{where}.{key}" if where else key)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _texts(item, f"{where}.{index}")
