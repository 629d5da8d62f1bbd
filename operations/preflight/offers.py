"""What AWS offers: instance types as the API knows them, zones that sell them, and FSx."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from config.instances import INSTANCES, InstanceFacts
from config.platform import PlatformConfig
from operations.aws import pages
from operations.preflight.finding import Clients, Finding, failed, not_checked


def instance_types(config: PlatformConfig, clients: Clients) -> Iterator[Finding]:
    """The types of the GPU groups are as our table has them."""
    types = sorted({group.instance_type for group in config.node_groups})
    for answer in clients["ec2"].describe_instance_types(InstanceTypes=types)["InstanceTypes"]:
        name = answer["InstanceType"]
        for what, theirs, ours in differences(answer, INSTANCES[name]):
            yield failed(
                f"{name}: EC2 says {theirs} for {what}, and config/instances.py {ours}; correct the table, "
                "which launch templates and pods are made from"
            )


def differences(answer: dict[str, Any], facts: InstanceFacts) -> Iterator[tuple[str, object, object]]:
    """Where an entry of DescribeInstanceTypes and a row of our table differ: what, theirs, ours."""
    network = answer["NetworkInfo"]
    gpus = answer["GpuInfo"]["Gpus"]
    cards = network["NetworkCards"]
    first_card = next(card for card in cards if card["NetworkCardIndex"] == 0)
    compared: dict[str, tuple[object, object]] = {
        "GPUs": (sum(gpu["Count"] for gpu in gpus), facts.gpus_per_node),
        "MiB of memory a GPU": (gpus[0]["MemoryInfo"]["SizeInMiB"], facts.gpu_memory_mib),
        "vCPUs": (answer["VCpuInfo"]["DefaultVCpus"], facts.vcpus),
        "MiB of memory": (answer["MemoryInfo"]["SizeInMiB"], facts.memory_gib * 1024),
        "network cards": (network["MaximumNetworkCards"], facts.network_cards),
        "interfaces of its smallest card": (
            min(card["MaximumNetworkInterfaces"] for card in cards),
            facts.interfaces_per_card,
        ),
        "addresses an interface": (network["Ipv4AddressesPerInterface"], facts.addresses_per_interface),
        "EFA interfaces": (network.get("EfaInfo", {}).get("MaximumEfaInterfaces", 0), facts.efa_interfaces_per_node),
        "NVMe disks": (sum(d["Count"] for d in answer["InstanceStorageInfo"]["Disks"]), facts.nvme_disks),
        "GB of NVMe": (answer["InstanceStorageInfo"]["TotalSizeInGB"], facts.nvme_gb),
    }
    if kinds := first_card.get("InterfaceTypes"):
        compared["EFA on network card 0"] = ("efa-only" in kinds, facts.efa_on_card_0)
    return ((what, theirs, ours) for what, (theirs, ours) in compared.items() if theirs != ours)


def zones(config: PlatformConfig, clients: Clients) -> Iterator[Finding]:
    """The zones exist and sell the types."""
    ec2 = clients["ec2"]
    known = {zone["ZoneName"]: zone for zone in ec2.describe_availability_zones()["AvailabilityZones"]}
    for name in config.availability_zones:
        if name not in known:
            yield failed(f"availability_zones: the account has no {name}; choose of {', '.join(sorted(known))}")
        elif known[name]["State"] != "available":
            yield failed(f"availability_zones: {name} is {known[name]['State']}; choose another")
    wanted = [(group.instance_type, group.zone) for group in config.node_groups]
    wanted += [(config.cluster.system_node_group.instance_type, zone) for zone in config.availability_zones]
    filters = [
        {"Name": "instance-type", "Values": sorted({type_ for type_, _ in wanted})},
        {"Name": "location", "Values": list(config.availability_zones)},
    ]
    offers = pages(
        ec2,
        "describe_instance_type_offerings",
        "InstanceTypeOfferings",
        LocationType="availability-zone",
        Filters=filters,
    )
    offered = {(offer["InstanceType"], offer["Location"]) for offer in offers}
    for type_, zone in dict.fromkeys(wanted):
        if (type_, zone) not in offered:
            yield failed(
                f"{type_} is not offered in {zone}; `aws ec2 describe-instance-type-offerings --location-type "
                f"availability-zone --filters Name=instance-type,Values={type_}` shows where it is"
            )


def file_systems(config: PlatformConfig, clients: Clients) -> Iterator[Finding]:
    """FSx is in the region. Of its zones AWS publishes nothing that a program could ask."""
    # https://docs.aws.amazon.com/systems-manager/latest/userguide/parameter-store-public-parameters-global-infrastructure.html
    name = f"/aws/service/global-infrastructure/regions/{config.region}/services/fsx"
    if not clients["ssm"].get_parameters(Names=[name])["Parameters"]:
        yield failed(f"region: {config.region} does not offer FSx; choose a region and capacity where it is")
        return
    yield not_checked(
        f"whether FSx offers PERSISTENT_2 in {config.gpu_zone}, which no API tells: open "
        f"https://{config.region}.console.aws.amazon.com/fsx and look at the subnets it takes"
    )
