"""What a platform costs an hour, from list prices: on demand, Linux, us-east-1, US dollars. Other regions differ."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from config.platform import PlatformConfig

HOURS_PER_MONTH = 730
CONTROL_PLANE = 0.10  # standard support: https://aws.amazon.com/eks/pricing/
NAT_GATEWAY = 0.045  # https://aws.amazon.com/vpc/pricing/
PUBLIC_ADDRESS = 0.005  # one for each NAT gateway; same page
INTERFACE_ENDPOINT = 0.01  # in one zone: https://aws.amazon.com/privatelink/pricing/
INTERFACE_ENDPOINTS = 4  # of the network stack, which takes seconds to import; a test compares the two
# Dollars a GB and month of persistent SSD, by MB/s for each TiB: https://aws.amazon.com/fsx/lustre/pricing/
FILE_SYSTEM = {125: 0.145, 250: 0.210, 500: 0.340, 1000: 0.600}
# https://aws.amazon.com/ec2/pricing/on-demand/
SYSTEM_NODES = {"m7i.large": 0.1008, "m7i.xlarge": 0.2016, "m7i.2xlarge": 0.4032}


@dataclass(frozen=True, slots=True)
class Line:
    """One position of the bill. Without dollars it is not counted, and `what` says why."""

    what: str
    dollars_per_hour: float | None


def hourly_price(config: PlatformConfig) -> list[Line]:
    """Every position, as many nodes as there are now."""
    return [*_gpu_nodes(config), *_system_nodes(config), *_cluster_and_network(config), *_rest(config)]


def _gpu_nodes(config: PlatformConfig) -> Iterator[Line]:
    for group in config.node_groups:
        price = group.instance.on_demand_dollars_per_hour
        if group.purchase == "capacity_block":
            yield Line(f"{group.name}: a capacity block is paid when it is bought", None)
            continue
        # A reservation costs as much while nothing runs in it:
        # https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/capacity-reservations-pricing-billing.html
        count = group.reservation.instance_count if group.reservation else group.desired_size
        what = f"{group.name}: {count} {group.instance_type} {'reserved' if group.reservation else 'on demand'}"
        yield Line(what if price else f"{what}, which has no public price", price * count if price else None)


def _system_nodes(config: PlatformConfig) -> Iterator[Line]:
    nodes = config.cluster.system_node_group
    price = SYSTEM_NODES.get(nodes.instance_type)
    what = f"{nodes.size} {nodes.instance_type} without GPUs"
    yield Line(what if price else f"{what}, whose price is not known here", price * nodes.size if price else None)


def _cluster_and_network(config: PlatformConfig) -> Iterator[Line]:
    if config.cluster.existing is None:
        yield Line("EKS control plane", CONTROL_PLANE)
    if config.network.vpc is None:
        gateways = 1 if config.network.nat_gateways == "one" else len(config.availability_zones)
        yield Line(f"{gateways} NAT gateway and its address", gateways * (NAT_GATEWAY + PUBLIC_ADDRESS))
        yield Line(f"{INTERFACE_ENDPOINTS} interface endpoints", INTERFACE_ENDPOINTS * INTERFACE_ENDPOINT)


def _rest(config: PlatformConfig) -> Iterator[Line]:
    storage = config.storage
    yield Line(
        f"FSx for Lustre, {storage.capacity_gib} GiB at {storage.throughput_mbps_per_tib} MB/s/TiB",
        storage.capacity_gib * FILE_SYSTEM[storage.throughput_mbps_per_tib] / HOURS_PER_MONTH,
    )
    if storage.metadata_iops is not None:
        yield Line(f"{storage.metadata_iops} metadata operations a second", None)
    if config.cluster.container_insights is not None:
        yield Line("CloudWatch Container Insights, by metric and line of log", None)
    yield Line("S3, disks of nodes, logs, traffic, image builds and taxes", None)


def shown(lines: list[Line]) -> str:
    """The bill, one position a line, its sum last."""
    counted = [line for line in lines if line.dollars_per_hour is not None]
    total = sum(line.dollars_per_hour or 0.0 for line in counted)
    return "\n".join(
        [
            "price an hour (list prices of us-east-1; other regions differ):",
            *(f"  {line.dollars_per_hour:10.2f}  {line.what}" for line in counted),
            f"  {total:10.2f}  US dollars an hour, {total * HOURS_PER_MONTH:,.0f} a month",
            *(f"  not counted: {line.what}" for line in lines if line.dollars_per_hour is None),
        ]
    )
