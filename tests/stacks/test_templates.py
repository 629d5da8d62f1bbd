"""What must hold of every template of every shipped platform."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion
from syrupy.extensions.json import JSONSnapshotExtension

from tests.synthesis import SHIPPED, STACKS, Synthesized, config_from, lint, values_of


@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize("name", SHIPPED)
def test_the_template_is_the_one_that_was_reviewed(
    name: str, stack: str, shipped: Callable[[str], Synthesized], snapshot: SnapshotAssertion
) -> None:
    """`make snapshots` accepts a change, which the diff then shows line by line."""
    text = json.dumps(shipped(name).templates[stack])
    text = re.sub(r"\b[0-9a-f]{64}\b", "ASSET", text)
    text = re.sub(r'(?<=[":])[0-9a-f]{16}(?=")', "BUILD-CONTEXT", text)
    assert json.loads(text) == snapshot(extension_class=JSONSnapshotExtension)


def test_cfn_lint_finds_no_error_and_no_warning(platform: Synthesized) -> None:
    assert lint(platform) == []


def test_no_token_is_left_in_any_template(platform: Synthesized) -> None:
    assert "Token[" not in json.dumps(platform.templates)


def test_what_one_stack_reads_of_another_is_there(platform: Synthesized) -> None:
    def references(node: Any) -> list[dict[str, str]]:
        if isinstance(node, list):
            return [found for item in node for found in references(item)]
        if not isinstance(node, dict):
            return []
        if "Fn::GetStackOutput" in node:
            return [node["Fn::GetStackOutput"]]
        return [found for item in node.values() for found in references(item)]

    found = references(platform.templates)
    assert found
    for reference in found:
        stack = reference["StackName"].removeprefix(f"{platform.config.name}-")
        assert reference["OutputName"] in platform.templates[stack]["Outputs"]


def test_charts_find_each_of_their_outputs_in_one_stack(platform: Synthesized) -> None:
    wanted = {
        "FileSystemId",
        "FileSystemDnsName",
        "FileSystemMountName",
        "BucketName",
        "TrainerImageUri",
        "ClusterName",
    }
    outputs = [name for template in platform.templates.values() for name in template.get("Outputs", {})]
    assert wanted <= set(outputs)
    assert all(outputs.count(name) == 1 for name in wanted)


def test_only_a_bucket_that_is_emptied_takes_a_lambda(platform: Synthesized) -> None:
    """A custom resource is code that must run for a destroy to end, and its log group outlives the stack."""
    lambdas = [id_ for id_, _ in platform.every("AWS::Lambda::Function")]
    custom = [id_ for id_, resource in platform.every() if resource["Type"].startswith("Custom::")]
    expected = 1 if platform.config.teardown == "delete" else 0
    assert (len(lambdas), len(custom)) == (expected, expected)


def test_a_destroy_keeps_nothing_but_the_bucket(platform: Synthesized) -> None:
    """The CDK keeps repositories, keys, log groups and buckets unless told otherwise, and all of them cost."""
    kept = {resource["Type"] for _, resource in platform.every() if resource.get("DeletionPolicy") == "Retain"}
    assert kept == ({"AWS::S3::Bucket"} if platform.config.teardown == "retain" else set())


def test_every_log_group_ends_and_goes_with_its_stack(platform: Synthesized) -> None:
    """Control-plane logs without an end cost somebody 900 dollars a month."""
    groups = dict(platform.every("AWS::Logs::LogGroup"))
    assert groups
    for id_, group in groups.items():
        assert group["Properties"]["RetentionInDays"] <= 365, id_
        assert group["DeletionPolicy"] == "Delete", id_


def test_everything_that_takes_tags_says_which_platform_it_is_of(platform: Synthesized) -> None:
    """Costs are told apart by it, and the sweep after a destroy finds what is left by it."""
    name = platform.config.name
    for id_, resource in platform.every():
        tags = resource.get("Properties", {}).get("Tags")
        if isinstance(tags, list):
            assert {"Key": "platform", "Value": name} in tags, id_
        elif isinstance(tags, dict):
            assert tags["platform"] == name, id_


def test_a_changed_tag_replaces_no_node(synthesize: Callable[..., Synthesized]) -> None:
    """A tag in the launch template makes a new version, and a new version rolls every node in the middle of a job."""
    values = values_of("p5-capacity-block")
    untagged, tagged = (
        synthesize(config_from({**values, "tags": tags})) for tags in ({}, {"cost-centre": "42", "team": "research"})
    )
    for stack in ("cluster", "node-groups"):
        assert untagged.resources(stack, "AWS::EC2::LaunchTemplate") == tagged.resources(
            stack, "AWS::EC2::LaunchTemplate"
        )
    nodes = tagged.one("node-groups", "AWS::EKS::Nodegroup")
    assert nodes["Properties"]["Tags"] == {"platform": "p5-capacity-block", "cost-centre": "42", "team": "research"}


def test_no_policy_of_ours_allows_every_action_of_a_service(platform: Synthesized) -> None:
    for id_, resource in platform.every("AWS::IAM::Policy"):
        for statement in resource["Properties"]["PolicyDocument"]["Statement"]:
            actions = statement["Action"] if isinstance(statement["Action"], list) else [statement["Action"]]
            assert not [action for action in actions if action.endswith(":*") or action == "*"], id_
