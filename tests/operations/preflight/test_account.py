"""Stacks, names, versions and people: what a deployment finds in the account."""

from __future__ import annotations

import json
from typing import Any

import pytest

from config.platform import PlatformConfig
from operations.preflight import account
from operations.preflight.finding import Finding
from tests.operations.conftest import ACCOUNT, own_values, stubbed
from tests.synthesis import config_from

CONFIG = config_from(own_values())
TEMPLATE = {"Resources": {"Group": {"Type": "AWS::Logs::LogGroup", "Properties": {"LogGroupName": "g"}}}}
ROLE = f"arn:aws:iam::{ACCOUNT}:role/platform-engineer"


def texts(findings: Any) -> list[str]:
    return [f"{finding.kind}: {finding.text}" for finding in findings]


def make_stack(aws: Any, name: str, *, version: int | None = None) -> None:
    outputs = {} if version is None else {"BootstrapVersion": {"Value": str(version)}}
    resources = {"Group": {**TEMPLATE["Resources"]["Group"], "Properties": {"LogGroupName": f"of-{name}"}}}
    body = json.dumps({"Resources": resources, "Outputs": outputs})
    aws.client("cloudformation").create_stack(StackName=name, TemplateBody=body)


def test_a_bootstrapped_account_passes(aws: Any) -> None:
    make_stack(aws, "CDKToolkit", version=account.BOOTSTRAP_VERSION)
    assert texts(account.bootstrap(CONFIG, {"cloudformation": aws.client("cloudformation")})) == []


@pytest.mark.parametrize(("version", "expected"), [(None, "has version 0"), (6, "has version 6")])
def test_an_old_bootstrap_is_refused(aws: Any, version: int | None, expected: str) -> None:
    make_stack(aws, "CDKToolkit", version=version)
    (text,) = texts(account.bootstrap(CONFIG, {"cloudformation": aws.client("cloudformation")}))
    assert expected in text
    assert f"run `npx cdk bootstrap aws://{ACCOUNT}/us-east-2`" in text


def test_an_account_without_bootstrap_is_refused(aws: Any) -> None:
    (text,) = texts(account.bootstrap(CONFIG, {"cloudformation": aws.client("cloudformation")}))
    assert text.startswith("failed: the account has no stack CDKToolkit in us-east-2")


def named(aws: Any, config: PlatformConfig = CONFIG) -> list[str]:
    services = ("cloudformation", "eks", "logs", "ecr")
    return texts(account.names(config, {service: aws.client(service) for service in services}))


def test_an_empty_account_has_every_name_free(aws: Any) -> None:
    assert named(aws) == []


def test_names_that_somebody_else_took_are_refused(aws: Any) -> None:
    aws.client("ecr").create_repository(repositoryName="p5-capacity-block/trainer")
    for group in ("/aws/eks/p5-capacity-block/cluster", "/aws/fsx/p5-capacity-block", "/aws/fsx/p5-capacity-block-2"):
        aws.client("logs").create_log_group(logGroupName=group)
    make_cluster(aws, "p5-capacity-block")
    found = named(aws)
    assert len(found) == 4
    assert any("a cluster p5-capacity-block exists" in text for text in found)
    assert any("`aws ecr delete-repository --force --repository-name p5-capacity-block/trainer`" in t for t in found)
    assert any("`aws logs delete-log-group --log-group-name /aws/fsx/p5-capacity-block`" in text for text in found)


def make_cluster(aws: Any, name: str) -> None:
    role = f"arn:aws:iam::{ACCOUNT}:role/cluster"
    aws.client("eks").create_cluster(name=name, roleArn=role, resourcesVpcConfig={"subnetIds": []})


def test_names_that_the_platforms_own_stacks_hold_pass(aws: Any) -> None:
    for stack in ("network", "cluster", "storage", "registry", "node-groups"):
        make_stack(aws, f"p5-capacity-block-{stack}")
    aws.client("ecr").create_repository(repositoryName="p5-capacity-block/trainer")
    aws.client("logs").create_log_group(logGroupName="/aws/eks/p5-capacity-block/cluster")
    make_cluster(aws, "p5-capacity-block")
    assert named(aws) == []


@pytest.mark.parametrize(
    ("status", "fix"),
    [
        (
            "ROLLBACK_COMPLETE",
            "delete it with `aws cloudformation delete-stack --stack-name p5-capacity-block-network`",
        ),
        ("DELETE_FAILED", "delete it with `aws cloudformation delete-stack"),
        ("UPDATE_ROLLBACK_FAILED", "continue-update-rollback"),
        ("UPDATE_IN_PROGRESS", "wait until it has ended"),
    ],
)
def test_a_stack_that_stands_in_the_way_is_refused_with_what_to_do(status: str, fix: str) -> None:
    stack = {"StackName": "p5-capacity-block-network", "StackStatus": status, "CreationTime": "2026-01-01"}
    good = [("describe_stacks", {"Stacks": [stack | {"StackStatus": "CREATE_COMPLETE"}]}, None)] * 4
    cloudformation = stubbed("cloudformation", ("describe_stacks", {"Stacks": [stack]}, None), *good)
    (text,) = texts(account.names(CONFIG, {"cloudformation": cloudformation}))
    assert f"stack p5-capacity-block-network is {status}" in text
    assert fix in text


def versioned(answer: Any, images: tuple[str, ...] = ("nvidia", "standard")) -> list[str]:
    version = CONFIG.kubernetes_version
    paths = [
        f"/aws/service/eks/optimized-ami/{version}/amazon-linux-2023/x86_64/{kind}/recommended/release_version"
        for kind in images
    ]
    answered = answer if isinstance(answer, str) else {"clusterVersions": answer}
    eks = stubbed("eks", ("describe_cluster_versions", answered, {"clusterVersions": [version]}))
    ssm = stubbed("ssm", ("get_parameters", {"Parameters": [{"Name": path} for path in paths]}, None))
    return texts(account.versions(CONFIG, {"eks": eks, "ssm": ssm}))


def test_a_version_in_standard_support_with_both_images_passes() -> None:
    assert versioned([{"versionStatus": "STANDARD_SUPPORT"}]) == []


@pytest.mark.parametrize("answer", [[], "InvalidParameterException"])
def test_a_version_that_eks_does_not_offer_is_refused(answer: Any) -> None:
    (text,) = versioned(answer)
    assert f"EKS does not offer {CONFIG.kubernetes_version}" in text


def test_a_version_in_extended_support_is_refused() -> None:
    (text,) = versioned([{"versionStatus": "EXTENDED_SUPPORT"}])
    assert "is EXTENDED_SUPPORT" in text


def test_a_version_without_an_image_is_refused() -> None:
    (text,) = versioned([{"versionStatus": "STANDARD_SUPPORT"}], images=("standard",))
    assert "no Amazon Linux 2023 image (nvidia)" in text


def administered(aws: Any, *arns: str) -> list[str]:
    values = own_values()
    values["cluster"]["admins"] = list(arns)
    return texts(account.admins(config_from(values), {"iam": aws.client("iam")}))


def test_administrators_that_exist_pass(aws: Any) -> None:
    aws.client("iam").create_role(RoleName="platform-engineer", AssumeRolePolicyDocument="{}")
    aws.client("iam").create_user(UserName="somebody")
    assert administered(aws, ROLE, f"arn:aws:iam::{ACCOUNT}:user/somebody") == []


def test_administrators_that_do_not_exist_or_are_spelt_otherwise_are_refused(aws: Any) -> None:
    aws.client("iam").create_role(RoleName="platform-engineer", AssumeRolePolicyDocument="{}", Path="/teams/")
    (wrong, missing) = administered(aws, ROLE, f"arn:aws:iam::{ACCOUNT}:user/nobody")
    assert "is spelt arn:aws:iam::210987654321:role/teams/platform-engineer" in wrong
    assert "there is no user nobody" in missing


def test_nobody_to_administer_warns_and_another_accounts_people_are_not_looked_for(aws: Any) -> None:
    assert administered(aws)[0].startswith("warning: cluster.admins names nobody")
    assert administered(aws, "arn:aws:iam::310987654321:role/x")[0].startswith("not checked")


CALLER = f"arn:aws:sts::{ACCOUNT}:assumed-role/engineer/session"


def permitted(*simulations: Any, caller: str = CALLER) -> list[Finding]:
    """What the check finds where IAM answers so, in turn."""
    sts = stubbed("sts", ("get_caller_identity", {"Arn": caller}, None))
    answers: list[Any] = []
    if "assumed-role" in caller:
        role = {
            "Arn": f"arn:aws:iam::{ACCOUNT}:role/sso/engineer",
            "RoleName": "engineer",
            "RoleId": "AROAAAAAAAAAAAAAAAAA",
            "Path": "/sso/",
            "CreateDate": "2026-01-01",
        }
        answers.append(("get_role", {"Role": role}, {"RoleName": "engineer"}))
    for simulation in simulations:
        answered = simulation if isinstance(simulation, str) else {"EvaluationResults": simulation}
        answers.append(("simulate_principal_policy", answered, None))
    return list(account.permissions(CONFIG, {"sts": sts, "iam": stubbed("iam", *answers)}))


def decision(action: str, decision: str) -> dict[str, str]:
    return {"EvalActionName": action, "EvalDecision": decision, "EvalResourceName": "arn:aws:iam::1:role/r"}


def test_permissions_that_suffice_pass() -> None:
    allowed = [decision("a:B", "allowed")]
    assert permitted(allowed, allowed, allowed) == []


def test_each_action_that_is_denied_is_named_with_its_principal() -> None:
    allowed = [decision("a:B", "allowed")]
    roles = [decision("sts:AssumeRole", "implicitDeny")]
    stacks = [decision("fsx:CreateFileSystem", "explicitDeny")]
    (caller, cdk) = permitted(roles, allowed, stacks)
    assert caller.text.startswith(f"arn:aws:iam::{ACCOUNT}:role/sso/engineer may not sts:AssumeRole on arn:aws:iam::1")
    assert cdk.text.startswith(
        f"arn:aws:iam::{ACCOUNT}:role/cdk-hnb659fds-cfn-exec-role-{ACCOUNT}-us-east-2 may not fsx:CreateFileSystem"
    )
    assert {caller.kind, cdk.kind} == {"failed"}


@pytest.mark.parametrize(
    ("error", "why"), [("AccessDenied", "you may not iam:Simulate"), ("NoSuchEntity", "bootstrap")]
)
def test_permissions_that_nobody_may_look_at_are_said_to_be_unchecked(error: str, why: str) -> None:
    (finding,) = permitted(error)
    assert finding.kind == "not checked"
    assert why in finding.text


def test_the_root_of_the_account_is_not_simulated() -> None:
    (finding,) = permitted([decision("a:B", "allowed")], caller=f"arn:aws:iam::{ACCOUNT}:root")
    assert finding.kind == "not checked"
    assert "root" in finding.text
