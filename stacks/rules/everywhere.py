"""Rules for resources of any type, and for the small types that secure the others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from stacks.rules.templates import Resource, Templates

# The one thing that may outlive a destroy, where the config says so.
MAY_BE_KEPT = frozenset({"AWS::S3::Bucket"})
# A custom resource is code that must run before a destroy can end. Emptying a bucket takes one.
MAY_RUN_CODE = frozenset({"Custom::S3AutoDeleteObjects"})
ANYONE = frozenset({"0.0.0.0/0", "::/0"})


def references_lead_somewhere(resource: Resource, templates: Templates) -> Iterator[str]:
    """Every reference names a resource, a parameter or another stack's output that exists."""
    for name in resource.depends_on:
        if templates.get(resource.stack, name) is None:
            yield f"DependsOn names {name}, which the stack does not have"
    for reference in _references(resource.body.get("Properties", {})):
        match reference:
            case {"Ref": str(name)}:
                if not name.startswith("AWS::") and name not in templates.parameters(resource.stack):
                    yield from _missing(resource, templates, name)
            case {"Fn::GetAtt": [str(name), *_]}:
                yield from _missing(resource, templates, name)
            case {"Fn::GetStackOutput": {"StackName": str(stack), "OutputName": str(name)}}:
                if templates.output(stack, name) is None:
                    yield f"reads output {name} of {stack}, which is not there"


def _missing(resource: Resource, templates: Templates, name: str) -> Iterator[str]:
    if templates.get(resource.stack, name) is None:
        yield f"refers to {name}, which the stack does not have"


def _references(node: Any) -> Iterator[dict[str, Any]]:
    if isinstance(node, list):
        for item in node:
            yield from _references(item)
    elif isinstance(node, dict):
        if node.keys() & {"Ref", "Fn::GetAtt", "Fn::GetStackOutput"}:
            yield node
        else:
            for item in node.values():
                yield from _references(item)


def only_a_bucket_is_kept(resource: Resource, _: Templates) -> Iterator[str]:
    """A destroy ends at zero: the CDK keeps keys, logs and repositories unless it is told otherwise."""
    for name in ("DeletionPolicy", "UpdateReplacePolicy"):
        policy = resource.body.get(name, "Delete")
        if policy != "Delete" and resource.type not in MAY_BE_KEPT:
            yield f"{name} is {policy}, and only a bucket may outlive its stack; use Delete"


def no_code_runs_in_a_deployment(resource: Resource, _: Templates) -> Iterator[str]:
    """Custom resources hang deployments and destroys, and leave their log groups behind."""
    if resource.type.startswith("Custom::") and resource.type not in MAY_RUN_CODE:
        yield f"{resource.type} is a custom resource; use a resource type of AWS"
    if resource.type == "AWS::CloudFormation::CustomResource":
        yield "is a custom resource; use a resource type of AWS"


def a_log_group_ends(resource: Resource, _: Templates) -> Iterator[str]:
    """Logs without an end are billed without an end."""
    if "RetentionInDays" not in resource.properties:
        yield "has no RetentionInDays, and keeps its logs for ever; set it"


def nobody_outside_gets_in(resource: Resource, _: Templates) -> Iterator[str]:
    """A port open to the internet is found within minutes."""
    if resource.properties.keys() & {"CidrIp", "CidrIpv6"}:
        yield from _open_to_anyone([resource.properties])


def no_group_opens_inline(resource: Resource, _: Templates) -> Iterator[str]:
    """The same, for rules inside the group."""
    yield from _open_to_anyone(resource.properties.get("SecurityGroupIngress", []))


def _open_to_anyone(rules: Sequence[Any]) -> Iterator[str]:
    for rule in rules:
        for cidr in {rule.get("CidrIp"), rule.get("CidrIpv6")} - {None}:
            if isinstance(cidr, str) and cidr in ANYONE:
                yield f"admits {cidr}, which is everybody; name a network or a group"


def a_policy_lists_its_actions(resource: Resource, _: Templates) -> Iterator[str]:
    """An action with a wildcard grants what AWS adds next year."""
    for statement in resource.properties.get("PolicyDocument", {}).get("Statement", []):
        actions = statement.get("Action", [])
        for action in [actions] if isinstance(actions, str) else actions:
            if statement.get("Effect") == "Allow" and "*" in action:
                yield f"allows {action}; list the actions that are needed"


RULES = (references_lead_somewhere, only_a_bucket_is_kept, no_code_runs_in_a_deployment)
LOG_GROUP_RULES = (a_log_group_ends,)
INGRESS_RULES = (nobody_outside_gets_in,)
SECURITY_GROUP_RULES = (no_group_opens_inline,)
POLICY_RULES = (a_policy_lists_its_actions,)
