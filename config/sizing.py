"""Arithmetic from instance facts and the user's choices: network interfaces, pods a node, what a worker may ask for."""

from __future__ import annotations

import ipaddress
import math
from dataclasses import dataclass
from typing import Literal

from config.instances import InstanceFacts

InterfaceLayout = Literal["B", "A2"]
InterfaceType = Literal["interface", "efa", "efa-only"]

# The EFA driver's set-up on AL2023 takes this many 2 MiB pages from every node's memory:
# https://docs.aws.amazon.com/eks/latest/userguide/node-efa.html
HUGEPAGES_MIB = 5128 * 2
# What libfabric needs of them, by the same page.
WORKER_HUGEPAGES_MIB = 5120


@dataclass(frozen=True, slots=True)
class NetworkInterface:
    """One interface of a launch template: where it sits and what it carries."""

    network_card: int
    device: int
    type: InterfaceType


def network_interfaces(facts: InstanceFacts, layout: InterfaceLayout) -> list[NetworkInterface]:
    """Every interface of a node, the primary first.

    B keeps IP and EFA apart, as AWS recommends: the primary carries IP, and one EFA-only interface sits on every card
    that takes one (https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-acc-inst-types.html). A2 lets the primary
    carry both, and so leaves one more interface's addresses to pods.
    """
    first_efa_card = 0 if facts.efa_on_card_0 else 1
    efa_cards = range(first_efa_card, first_efa_card + facts.efa_interfaces_per_node)
    primary_carries_efa = layout == "A2" and facts.efa_on_card_0
    primary = NetworkInterface(0, 0, "efa" if primary_carries_efa else "interface")
    others = [
        NetworkInterface(card, 1 if card == 0 else 0, "efa-only")
        for card in efa_cards
        if not (card == 0 and primary_carries_efa)
    ]
    return [primary, *others]


def _ip_interfaces_on_card_0(facts: InstanceFacts, layout: InterfaceLayout) -> int:
    """Interfaces that the VPC CNI can use: it stays on card 0, where an EFA-only interface takes a place."""
    taken = sum(i.network_card == 0 and i.type == "efa-only" for i in network_interfaces(facts, layout))
    return facts.interfaces_per_card - taken


def max_pods(facts: InstanceFacts, layout: InterfaceLayout) -> int:
    """Pods that the VPC CNI can address on a node, without prefix delegation.

    Only card 0 carries pod addresses, an EFA-only interface on it takes one interface away, and the first address of
    each belongs to the interface: https://github.com/aws/karpenter-provider-aws/blob/main/designs/efa-for-static-capacity.md
    """
    return _ip_interfaces_on_card_0(facts, layout) * (facts.addresses_per_interface - 1) + 2


def addresses_per_node(facts: InstanceFacts, layout: InterfaceLayout) -> int:
    """Addresses that a node takes from its subnet: the interface that pods use, and one more that the CNI keeps warm.

    https://github.com/aws/amazon-vpc-cni-k8s/blob/master/docs/eni-and-ip-target.md
    """
    return min(2, _ip_interfaces_on_card_0(facts, layout)) * facts.addresses_per_interface


@dataclass(frozen=True, slots=True, kw_only=True)
class SubnetPrefixes:
    """Prefix lengths of the subnets that each zone of the VPC gets."""

    public: int
    private: int


def subnet_prefixes(cidr: str) -> SubnetPrefixes:
    """Subnets for up to four zones: half of the VPC to private ones, a 64th to public ones and their gateways."""
    prefix = ipaddress.IPv4Network(cidr).prefixlen
    return SubnetPrefixes(public=prefix + 8, private=prefix + 3)


def usable_addresses(prefix: int) -> int:
    """Addresses of a subnet, without the five that AWS keeps.

    https://docs.aws.amazon.com/vpc/latest/userguide/subnet-sizing.html
    """
    return int(2 ** (32 - prefix)) - 5


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerResources:
    """What one worker replica asks for, requests and limits alike: a whole node, less what its own agents need."""

    cpus: int
    memory_mib: int
    hugepages_mib: int
    gpus: int
    efa_interfaces: int


# What a checkpoint holds of each parameter: the fp32 master and AdamW's two moments, of 4 bytes each.
CHECKPOINT_BYTES_PER_PARAMETER = 12


def checkpoint_seconds(*, parameters: int, capacity_gib: int, throughput_mbps_per_tib: int) -> int:
    """Seconds to write a checkpoint at the baseline throughput of the file system, rounded up."""
    bytes_per_second = capacity_gib * throughput_mbps_per_tib * 1_000_000 / 1024
    return math.ceil(parameters * CHECKPOINT_BYTES_PER_PARAMETER / bytes_per_second)


# Requests of the pods that run beside a worker on every GPU node: the add-ons' DaemonSets and ours. A contract test
# adds ours up; the add-ons' are rounded up from their published manifests.
NODE_AGENTS_CPUS = 2
NODE_AGENTS_MEMORY_MIB = 4096


def worker_resources(facts: InstanceFacts) -> WorkerResources:
    """The worker that fills a node of this type.

    The kubelet keeps less than one CPU of these sizes for itself:
    https://github.com/awslabs/amazon-eks-ami/blob/main/nodeadm/internal/kubelet/config.go
    """
    return WorkerResources(
        cpus=facts.vcpus - 1 - NODE_AGENTS_CPUS,
        memory_mib=facts.allocatable_memory_mib - HUGEPAGES_MIB - NODE_AGENTS_MEMORY_MIB,
        hugepages_mib=WORKER_HUGEPAGES_MIB,
        gpus=facts.gpus_per_node,
        efa_interfaces=facts.efa_interfaces_per_node,
    )
