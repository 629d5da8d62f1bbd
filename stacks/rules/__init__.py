"""Rules over the synthesized templates, run at every synth: what AWS would refuse, or accept and do wrongly.

Linters know CloudFormation's schemas and little of what EC2, EKS and FSx make of the values. A rule is a function that
takes a resource and yields a sentence for each thing wrong with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from stacks.rules import addon, bucket, cluster, everywhere, file_system, launch_template, node_group
from stacks.rules.templates import Resource, Templates

Rule = Callable[[Resource, Templates], Iterator[str]]

RULES: dict[str, tuple[Rule, ...]] = {
    "AWS::EC2::LaunchTemplate": launch_template.RULES,
    "AWS::EC2::SecurityGroup": everywhere.SECURITY_GROUP_RULES,
    "AWS::EC2::SecurityGroupIngress": everywhere.INGRESS_RULES,
    "AWS::EKS::Addon": addon.RULES,
    "AWS::EKS::Cluster": cluster.RULES,
    "AWS::EKS::Nodegroup": node_group.RULES,
    "AWS::FSx::DataRepositoryAssociation": file_system.ASSOCIATION_RULES,
    "AWS::FSx::FileSystem": file_system.RULES,
    "AWS::IAM::ManagedPolicy": everywhere.POLICY_RULES,
    "AWS::IAM::Policy": everywhere.POLICY_RULES,
    "AWS::Logs::LogGroup": everywhere.LOG_GROUP_RULES,
    "AWS::S3::Bucket": bucket.RULES,
}


def violations(templates: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """A sentence for each broken rule, with its stack and logical id in front.

    Args:
        templates: stack name to template, all those of one platform, since rules follow references between them.
    """
    known = Templates(templates)
    return [
        f"{resource.stack}/{resource.id}: {sentence}"
        for resource in known.resources()
        for rule in (*everywhere.RULES, *RULES.get(resource.type, ()))
        for sentence in rule(resource, known)
    ]
