"""What EKS makes of an add-on."""

from __future__ import annotations

from collections.abc import Iterator

from stacks.addons import CLOUDWATCH_ADDON, NODE_ADDONS, WORKLOAD_ADDONS
from stacks.rules.templates import Resource, Templates

NODE_NAMES = frozenset(addon.name for addon in NODE_ADDONS)
NAMES = NODE_NAMES | {addon.name for addon in (*WORKLOAD_ADDONS, CLOUDWATCH_ADDON)}


def the_name_exists(resource: Resource, _: Templates) -> Iterator[str]:
    """EKS knows it under exactly this name."""
    name = resource.properties.get("AddonName")
    if name not in NAMES:
        yield f"AddonName {name} is not one of {', '.join(sorted(NAMES))}"


def it_finds_what_it_needs(resource: Resource, templates: Templates) -> Iterator[str]:
    """Deployments find nodes, and nodes find the add-ons that make them ready."""
    own_stack = [r for r in templates.resources("AWS::EKS::Nodegroup") if r.stack == resource.stack]
    for nodes in own_stack:
        if resource.properties.get("AddonName") in NODE_NAMES:
            if resource.id not in nodes.depends_on:
                yield f"{nodes.id} does not wait for it, and its nodes would not become ready"
        elif nodes.id not in resource.depends_on:
            yield f"does not wait for {nodes.id}, and would not become active without a node"


RULES = (the_name_exists, it_finds_what_it_needs)
