"""What EC2 and EKS make of a launch template. EKS's rules for templates of managed node groups:
https://docs.aws.amazon.com/eks/latest/userguide/launch-templates.html
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import get_args

from config.instances import INSTANCES
from config.sizing import InterfaceType
from stacks.rules.templates import Properties, Resource, Templates, unknown_properties

KNOWN = frozenset(
    {
        "BlockDeviceMappings",
        "CapacityReservationSpecification",
        "InstanceMarketOptions",
        "InstanceType",
        "MetadataOptions",
        "NetworkInterfaces",
        "Placement",
        "TagSpecifications",
        "UserData",
    }
)
KNOWN_OF_INTERFACE = frozenset(
    {
        "DeleteOnTermination",
        "Description",
        "DeviceIndex",
        "Groups",
        "InterfaceType",
        "NetworkCardIndex",
    }
)
# Why each of them is refused, by EKS in any template or by EC2 beside interfaces.
REFUSED = {
    "HibernationOptions": "EKS refuses hibernation",
    "IamInstanceProfile": "EKS makes the instance profile of the node role",
    "ImageId": "EKS picks the image by the node group's AmiType",
    "InstanceInitiatedShutdownBehavior": "EKS refuses it",
    "SecurityGroupIds": "security groups stand on the interfaces, and EC2 refuses both",
    "SecurityGroups": "security groups stand on the interfaces, and EC2 refuses both",
}
REFUSED_OF_INTERFACE = {
    "SubnetId": "EKS adds the subnet",
    "AssociatePublicIpAddress": "EC2 refuses it beside other interfaces, and nodes are private",
}


def _data(resource: Resource) -> Properties:
    data: Properties = resource.properties["LaunchTemplateData"]
    return data


def _interfaces(resource: Resource) -> list[Properties]:
    return list(_data(resource).get("NetworkInterfaces", []))


def properties_are_those_that_a_node_may_have(resource: Resource, _: Templates) -> Iterator[str]:
    """Nothing that EKS or EC2 refuses, and nothing misspelt."""
    data = _data(resource)
    for name in sorted(data.keys() & REFUSED.keys()):
        yield f"{name} must be absent: {REFUSED[name]}"
    yield from unknown_properties(data, KNOWN | REFUSED.keys())
    for index, interface in enumerate(_interfaces(resource)):
        for name in sorted(interface.keys() & REFUSED_OF_INTERFACE.keys()):
            yield f"NetworkInterfaces[{index}].{name} must be absent: {REFUSED_OF_INTERFACE[name]}"
        yield from unknown_properties(
            interface, KNOWN_OF_INTERFACE | REFUSED_OF_INTERFACE.keys(), where=f"NetworkInterfaces[{index}]."
        )


def a_type_with_efa_is_in_the_table(resource: Resource, _: Templates) -> Iterator[str]:
    """Interfaces can be checked only against what is known of their type."""
    type_ = _data(resource).get("InstanceType")
    if not type_:
        yield "InstanceType is missing; a node group names its type here and nowhere else"
    elif _interfaces(resource) and type_ not in INSTANCES:
        yield f"InstanceType {type_} is not one of {', '.join(INSTANCES)}"


def interfaces_sit_where_their_cards_have_room(resource: Resource, _: Templates) -> Iterator[str]:
    """Cards and devices exist, no two interfaces share a place, and the primary is card 0, device 0."""
    facts = INSTANCES.get(_data(resource).get("InstanceType", ""))
    places = [(i.get("NetworkCardIndex"), i.get("DeviceIndex")) for i in _interfaces(resource)]
    if not places or facts is None:
        return
    for place, count in Counter(places).items():
        card, device = place
        if card is None or device is None:
            yield "an interface lacks its NetworkCardIndex or DeviceIndex, and would land on card 0"
            continue
        if count > 1:
            yield f"{count} interfaces share card {card}, device {device}"
        if not 0 <= card < facts.network_cards:
            yield f"card {card} does not exist; the type has cards 0 to {facts.network_cards - 1}"
        if not 0 <= device < facts.interfaces_per_card:
            yield f"device {device} on card {card} does not exist; a card takes {facts.interfaces_per_card}"
    if (0, 0) not in places:
        yield "the primary interface, card 0 and device 0, is missing"


def interfaces_carry_what_their_cards_can(resource: Resource, _: Templates) -> Iterator[str]:
    """As many EFA interfaces as the type takes, one a card, none on a card for ENA, and IP on the primary."""
    facts = INSTANCES.get(_data(resource).get("InstanceType", ""))
    interfaces = _interfaces(resource)
    if not interfaces or facts is None:
        return
    for interface in interfaces:
        if interface.get("InterfaceType") not in get_args(InterfaceType):
            allowed = ", ".join(get_args(InterfaceType))
            yield f"InterfaceType {interface.get('InterfaceType')} is not one of {allowed}"
        if not interface.get("Groups"):
            yield "an interface has no Groups, and would get the VPC's default group"
    if interfaces[0].get("InterfaceType") == "efa-only":
        yield "the primary interface is efa-only, and the node would have no address"
    cards = Counter(i.get("NetworkCardIndex") for i in interfaces if i.get("InterfaceType") in ("efa", "efa-only"))
    if cards.total() != facts.efa_interfaces_per_node:
        yield f"{cards.total()} EFA interfaces, and the type has {facts.efa_interfaces_per_node}"
    for card, count in cards.items():
        if count > 1:
            yield f"card {card} has {count} EFA interfaces, and takes one"
    if cards[0] and not facts.efa_on_card_0:
        yield "card 0 takes ENA only, and has an EFA interface"


def a_reservation_is_named_once(resource: Resource, _: Templates) -> Iterator[str]:
    """A target, with exactly one name, and no preference beside it."""
    specification = _data(resource).get("CapacityReservationSpecification")
    if specification is None:
        return
    if set(specification) != {"CapacityReservationTarget"}:
        yield f"CapacityReservationSpecification has {', '.join(specification)}; it takes a target and nothing else"
    names = [name for name in specification.get("CapacityReservationTarget", {}).values() if name]
    if len(names) != 1:
        yield f"CapacityReservationTarget has {len(names)} names; it takes an id or a resource group"


def the_market_is_that_of_a_capacity_block(resource: Resource, _: Templates) -> Iterator[str]:
    """EKS refuses spot in a template, and a block without a target is an ordinary launch that is refused."""
    data = _data(resource)
    market = data.get("InstanceMarketOptions")
    if market is None:
        return
    if market != {"MarketType": "capacity-block"}:
        yield f"InstanceMarketOptions {dict(market)} must be MarketType capacity-block, or absent"
    if "CapacityReservationSpecification" not in data:
        yield "a capacity block needs a CapacityReservationTarget"


def credentials_and_volumes_are_guarded(resource: Resource, _: Templates) -> Iterator[str]:
    """Metadata by token, one hop, so that no pod acts as its node; no plain volume."""
    options = _data(resource).get("MetadataOptions", {})
    if options.get("HttpTokens") != "required" or options.get("HttpPutResponseHopLimit") != 1:
        yield "MetadataOptions must require tokens and allow one hop"
    mappings = _data(resource).get("BlockDeviceMappings", [])
    if not mappings or not all(mapping.get("Ebs", {}).get("Encrypted") for mapping in mappings):
        yield "BlockDeviceMappings must name the root volume, encrypted"


def user_data_is_mime(resource: Resource, _: Templates) -> Iterator[str]:
    """EKS merges parts of a MIME message and refuses anything else."""
    user_data = _data(resource).get("UserData")
    if user_data is None:
        return
    text = user_data.get("Fn::Base64") if isinstance(user_data, dict) else None
    if not isinstance(text, str) or "multipart/mixed" not in text.partition("\n")[0]:
        yield "UserData must be a MIME multipart message"
    elif "application/node.eks.aws" not in text or "bootstrap.sh" in text:
        yield "UserData must hold a NodeConfig and no bootstrap script"


RULES = (
    properties_are_those_that_a_node_may_have,
    a_type_with_efa_is_in_the_table,
    interfaces_sit_where_their_cards_have_room,
    interfaces_carry_what_their_cards_can,
    a_reservation_is_named_once,
    the_market_is_that_of_a_capacity_block,
    credentials_and_volumes_are_guarded,
    user_data_is_mime,
)
