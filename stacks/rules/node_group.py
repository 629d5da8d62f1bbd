"""What EKS makes of a managed node group beside its launch template."""

from __future__ import annotations

from collections.abc import Iterator

from config.instances import INSTANCES
from stacks.rules.templates import Properties, Resource, Templates, unknown_properties

KNOWN = frozenset(
    {
        "AmiType",
        "CapacityType",
        "ClusterName",
        "ForceUpdateEnabled",
        "Labels",
        "LaunchTemplate",
        "NodeRepairConfig",
        "NodeRole",
        "ScalingConfig",
        "Subnets",
        "Tags",
        "Taints",
        "UpdateConfig",
        "Version",
    }
)
REFUSED = {
    "DiskSize": "the volume is the launch template's",
    "InstanceTypes": "the type is the launch template's, and EKS refuses it in both places",
    "ReleaseVersion": "the image follows Version",
    "RemoteAccess": "EKS refuses it beside a launch template",
}
GPU_AMI_TYPES = frozenset({"AL2023_x86_64_NVIDIA"})
AMI_TYPES = GPU_AMI_TYPES | {"AL2023_x86_64_STANDARD"}
CAPACITY_TYPES = frozenset({"ON_DEMAND", "CAPACITY_BLOCK"})
TAINT_EFFECTS = frozenset({"NO_SCHEDULE", "NO_EXECUTE", "PREFER_NO_SCHEDULE"})
UPDATE_STRATEGIES = frozenset({"DEFAULT", "MINIMAL"})


def properties_go_with_a_launch_template(resource: Resource, _: Templates) -> Iterator[str]:
    """Nothing that EKS takes from the template, and nothing misspelt."""
    for name in sorted(resource.properties.keys() & REFUSED.keys()):
        yield f"{name} must be absent: {REFUSED[name]}"
    yield from unknown_properties(resource.properties, KNOWN | REFUSED.keys())


def values_are_those_that_eks_knows(resource: Resource, _: Templates) -> Iterator[str]:
    """An image, a capacity type and effects of taints that exist, all of them said."""
    properties = resource.properties
    if properties.get("AmiType") not in AMI_TYPES:
        yield f"AmiType {properties.get('AmiType')} is not one of {', '.join(sorted(AMI_TYPES))}"
    if properties.get("CapacityType") not in CAPACITY_TYPES:
        yield f"CapacityType {properties.get('CapacityType')} is not one of {', '.join(sorted(CAPACITY_TYPES))}"
    for taint in properties.get("Taints", []):
        if taint.get("Effect") not in TAINT_EFFECTS:
            yield f"taint effect {taint.get('Effect')} is not one of {', '.join(sorted(TAINT_EFFECTS))}"


def sizes_rise(resource: Resource, _: Templates) -> Iterator[str]:
    """MinSize, DesiredSize, MaxSize, and room for one node."""
    scaling = resource.properties.get("ScalingConfig", {})
    sizes = [scaling.get(name, -1) for name in ("MinSize", "DesiredSize", "MaxSize")]
    if sizes != sorted(sizes) or min(sizes) < 0:
        yield f"MinSize, DesiredSize and MaxSize must rise from zero or more, got {sizes}"
    if sizes[-1] < 1:
        yield f"MaxSize must be 1 or more, got {sizes[-1]}"


def updates_wait_for_pods(resource: Resource, _: Templates) -> Iterator[str]:
    """One bound on nodes that are away, and no eviction against a disruption budget."""
    update = resource.properties.get("UpdateConfig", {})
    bounds = update.keys() & {"MaxUnavailable", "MaxUnavailablePercentage"}
    if len(bounds) != 1:
        yield f"UpdateConfig takes one of MaxUnavailable and MaxUnavailablePercentage, got {len(bounds)}"
    if update.get("UpdateStrategy", "DEFAULT") not in UPDATE_STRATEGIES:
        yield f"UpdateStrategy {update['UpdateStrategy']} is not one of {', '.join(sorted(UPDATE_STRATEGIES))}"
    if resource.properties.get("ForceUpdateEnabled") is not False:
        yield "ForceUpdateEnabled must be false, or an update evicts training pods"


def nodes_have_subnets(resource: Resource, templates: Templates) -> Iterator[str]:
    """Some, and exactly one for GPU nodes, in the zone of their capacity."""
    subnets = resource.properties.get("Subnets", [])
    if not subnets:
        yield "Subnets is empty; a zone or a name matched nothing"
    elif len(subnets) > 1 and _template(resource, templates).get("InstanceType") in INSTANCES:
        yield f"GPU nodes start in one subnet, got {len(subnets)}"


def the_launch_template_agrees(resource: Resource, templates: Templates) -> Iterator[str]:
    """The type's image has its driver, and a capacity block is said on both sides."""
    template = _template(resource, templates)
    if not template:
        yield "LaunchTemplate leads to no launch template"
        return
    is_gpu = template.get("InstanceType") in INSTANCES
    if is_gpu != (resource.properties.get("AmiType") in GPU_AMI_TYPES):
        yield f"AmiType {resource.properties.get('AmiType')} does not fit {template.get('InstanceType')}"
    market = template.get("InstanceMarketOptions", {}).get("MarketType")
    if (market == "capacity-block") != (resource.properties.get("CapacityType") == "CAPACITY_BLOCK"):
        yield f"CapacityType {resource.properties.get('CapacityType')} does not fit market type {market}"
    strategy = resource.properties.get("UpdateConfig", {}).get("UpdateStrategy")
    if "CapacityReservationSpecification" in template and strategy != "MINIMAL":
        yield f"UpdateStrategy {strategy} starts a node that the reservation does not have; use MINIMAL"


def nodes_run_the_version_of_their_cluster(resource: Resource, templates: Templates) -> Iterator[str]:
    """A node group without one stays behind when its cluster is upgraded."""
    cluster = templates.target(resource.stack, resource.properties.get("ClusterName"))
    version = resource.properties.get("Version")
    if cluster is not None and version != cluster.properties.get("Version"):
        yield f"Version {version} differs from the cluster's {cluster.properties.get('Version')}"


def _template(resource: Resource, templates: Templates) -> Properties:
    """The data of its launch template, empty where there is none."""
    found = templates.target(resource.stack, resource.properties.get("LaunchTemplate", {}).get("Id"))
    if found is None or found.type != "AWS::EC2::LaunchTemplate":
        return {}
    data: Properties = found.properties["LaunchTemplateData"]
    return data


RULES = (
    properties_go_with_a_launch_template,
    values_are_those_that_eks_knows,
    sizes_rise,
    updates_wait_for_pods,
    nodes_have_subnets,
    the_launch_template_agrees,
    nodes_run_the_version_of_their_cluster,
)
