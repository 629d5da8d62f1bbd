"""Stand-ins for the resource types that the emulator does not know, with every reference and dependency kept.

A stand-in is an SSM parameter of the same logical id whose value joins all that the real resource refers to. The order
of creation and deletion, references between stacks, and what a change touches stay as they are; the properties of what
is stood in for are not drilled, and are read by cfn-lint and by `stacks/rules/` instead.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Found by deploying: the emulator refuses a template that names one of them.
UNKNOWN_TYPES = frozenset(
    {
        "AWS::EC2::EIP",
        "AWS::EC2::FlowLog",
        "AWS::EC2::NatGateway",
        "AWS::EC2::SecurityGroupEgress",
        "AWS::EC2::SecurityGroupIngress",
        "AWS::EKS::AccessEntry",
        "AWS::EKS::Addon",
        "AWS::FSx::DataRepositoryAssociation",
        "AWS::FSx::FileSystem",
    }
)

STAND_IN_TYPE = "AWS::SSM::Parameter"
KEPT_ATTRIBUTES = ("DependsOn", "DeletionPolicy", "UpdateReplacePolicy", "Condition")

Template = dict[str, Any]


def stand_in_for(template: Template) -> Template:
    """The template with unknown types replaced."""
    unknown = {name for name, resource in template.get("Resources", {}).items() if resource["Type"] in UNKNOWN_TYPES}
    resources = {}
    for name, resource in template.get("Resources", {}).items():
        if name not in unknown:
            resources[name] = _without_attributes_of(unknown, resource)
            continue
        properties = resource.get("Properties", {})
        parts = [name, *(_without_attributes_of(unknown, part) for part in references(properties))]
        # Whatever else the properties say must show up as a change too.
        parts.append(json.dumps(properties, sort_keys=True)[:512].replace("$", ""))
        kept = {key: resource[key] for key in KEPT_ATTRIBUTES if key in resource}
        value = {"Fn::Join": ["|", parts]}
        resources[name] = {"Type": STAND_IN_TYPE, "Properties": {"Type": "String", "Value": value}} | kept
    rest = {key: _without_attributes_of(unknown, value) for key, value in template.items() if key != "Resources"}
    return rest | {"Resources": resources}


def references(value: Any) -> Iterator[dict[str, Any]]:
    """Every reference in the properties of a resource."""
    if isinstance(value, dict):
        if set(value) & {"Ref", "Fn::GetAtt", "Fn::ImportValue", "Fn::GetStackOutput"}:
            yield value
            return
        for part in value.values():
            yield from references(part)
    elif isinstance(value, list):
        for part in value:
            yield from references(part)


def _without_attributes_of(unknown: set[str], value: Any) -> Any:
    """`value` with attributes of what is stood in for replaced by a reference, since a parameter has none of them."""
    if isinstance(value, dict):
        attribute = value.get("Fn::GetAtt")
        if isinstance(attribute, list) and attribute[0] in unknown:
            return {"Ref": attribute[0]}
        return {key: _without_attributes_of(unknown, part) for key, part in value.items()}
    if isinstance(value, list):
        return [_without_attributes_of(unknown, part) for part in value]
    return value


def stand_in_everywhere(assembly: Path) -> int:
    """Rewrite the templates of a cloud assembly in place.

    Returns:
        How many resources are stood in for.
    """
    count = 0
    for path in sorted(assembly.glob("*.template.json")):
        template: Template = json.loads(path.read_text(encoding="utf-8"))
        count += sum(resource["Type"] in UNKNOWN_TYPES for resource in template.get("Resources", {}).values())
        path.write_text(json.dumps(stand_in_for(template)), encoding="utf-8")
    return count
