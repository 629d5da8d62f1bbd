"""Whether the account is ready: bootstrapped, its names free, its people there, and the versions on offer."""

from __future__ import annotations

from collections.abc import Iterator

from botocore.exceptions import ClientError

from config.names import STACKS
from config.platform import PlatformConfig
from operations.aws import HEALTHY, code_of, find_stack, is_denied, pages
from operations.preflight.finding import Clients, Finding, failed, not_checked, warning

BOOTSTRAP_STACK = "CDKToolkit"
# The CDK's default qualifier, in the names of all that a bootstrap makes:
# https://docs.aws.amazon.com/cdk/v2/guide/bootstrapping-customizing.html
QUALIFIER = "hnb659fds"
# What the manifest of a cloud assembly asks for (requiresBootstrapStackVersion).
BOOTSTRAP_VERSION = 8


def bootstrap(config: PlatformConfig, clients: Clients) -> Iterator[Finding]:
    """The CDK's own stack is there, and not older than the CLI."""
    fix = f"run `npx cdk bootstrap aws://{config.account}/{config.region}`"
    stack = find_stack(clients["cloudformation"], BOOTSTRAP_STACK)
    if stack is None:
        yield failed(f"the account has no stack {BOOTSTRAP_STACK} in {config.region}, which cdk deploy needs; {fix}")
        return
    if stack["StackStatus"] not in HEALTHY:
        yield failed(f"stack {BOOTSTRAP_STACK} is {stack['StackStatus']}; delete it, then {fix}")
        return
    outputs = {output["OutputKey"]: output["OutputValue"] for output in stack.get("Outputs", [])}
    version = int(outputs.get("BootstrapVersion", 0))
    if version < BOOTSTRAP_VERSION:
        yield failed(
            f"stack {BOOTSTRAP_STACK} has version {version}, and cdk deploy needs {BOOTSTRAP_VERSION}; {fix} again"
        )


def names(config: PlatformConfig, clients: Clients) -> Iterator[Finding]:
    """No stack stands in the way, and what has a fixed name belongs to its stack or does not exist."""
    stacks = {name: find_stack(clients["cloudformation"], f"{config.name}-{name}") for name in STACKS}
    for stack in stacks.values():
        if stack is None or stack["StackStatus"] in HEALTHY:
            continue
        name, status = stack["StackName"], stack["StackStatus"]
        if status.endswith("IN_PROGRESS"):
            yield failed(f"stack {name} is {status}; wait until it has ended")
        elif status == "UPDATE_ROLLBACK_FAILED":
            yield failed(
                f"stack {name} is {status}; run `aws cloudformation continue-update-rollback --stack-name {name}`"
            )
        else:
            yield failed(
                f"stack {name} is {status}; delete it with `aws cloudformation delete-stack --stack-name {name}`"
            )
    makes_cluster = config.cluster.existing is None
    if stacks["cluster"] is None and makes_cluster:
        if config.name in pages(clients["eks"], "list_clusters", "clusters"):
            yield failed(f"a cluster {config.name} exists that is not this platform's; choose another `name`")
        yield from _log_groups(clients, f"/aws/eks/{config.name}/cluster")
        if config.cluster.container_insights is not None:
            yield from _log_groups(clients, f"/aws/containerinsights/{config.name}/")
    if stacks["storage"] is None:
        yield from _log_groups(clients, f"/aws/fsx/{config.name}")
    if stacks["registry"] is None:
        repository = f"{config.name}/trainer"
        existing = pages(clients["ecr"], "describe_repositories", "repositories")
        if repository in {each["repositoryName"] for each in existing}:
            yield failed(
                f"a repository {repository} exists that is no stack's; choose another `name`, or delete it with "
                f"`aws ecr delete-repository --force --repository-name {repository}`"
            )


def _log_groups(clients: Clients, name: str) -> Iterator[Finding]:
    for group in pages(clients["logs"], "describe_log_groups", "logGroups", logGroupNamePrefix=name):
        found = group["logGroupName"]
        if found == name or name.endswith("/"):
            yield failed(
                f"a log group {found} exists that is no stack's; "
                f"delete it with `aws logs delete-log-group --log-group-name {found}`, or choose another `name`"
            )


def versions(config: PlatformConfig, clients: Clients) -> Iterator[Finding]:
    """EKS supports the version, and has images of it for both kinds of nodes."""
    version = config.kubernetes_version
    try:
        found = clients["eks"].describe_cluster_versions(clusterVersions=[version])["clusterVersions"]
    except ClientError as error:
        if code_of(error) not in {"InvalidParameterException", "ResourceNotFoundException"}:
            raise
        found = []
    if not found:
        yield failed(
            f"kubernetes_version: EKS does not offer {version}; `aws eks describe-cluster-versions` shows others"
        )
        return
    if found[0].get("versionStatus") != "STANDARD_SUPPORT":
        yield failed(
            f"kubernetes_version: {version} is {found[0].get('versionStatus')}, and clusters here take standard "
            "support; choose a newer one"
        )
    # https://docs.aws.amazon.com/eks/latest/userguide/retrieve-ami-id.html
    paths = {
        kind: f"/aws/service/eks/optimized-ami/{version}/amazon-linux-2023/x86_64/{kind}/recommended/release_version"
        for kind in ("nvidia", "standard")
    }
    answer = clients["ssm"].get_parameters(Names=list(paths.values()))["Parameters"]
    there = {parameter["Name"] for parameter in answer}
    for kind, path in paths.items():
        if path not in there:
            yield failed(
                f"no Amazon Linux 2023 image ({kind}) for Kubernetes {version} is in {config.region}; choose another"
            )


def admins(config: PlatformConfig, clients: Clients) -> Iterator[Finding]:
    """Who administers the cluster exists: EKS refuses an access entry for somebody who does not."""
    iam = clients["iam"]
    for arn in config.cluster.admins:
        account, _, path = arn.partition("::")[2].partition(":")
        if account != config.account:
            yield not_checked(f"whether {arn} exists, which is in another account")
            continue
        kind, _, name = path.partition("/")
        name = name.rpartition("/")[2]
        try:
            found = (iam.get_role(RoleName=name)["Role"] if kind == "role" else iam.get_user(UserName=name)["User"])[
                "Arn"
            ]
        except ClientError as error:
            if code_of(error) != "NoSuchEntity":
                raise
            found = None
        if found is None:
            yield failed(
                f"cluster.admins: there is no {kind} {name} in account {account}; correct the ARN or remove it"
            )
        elif found != arn:
            yield failed(f"cluster.admins: {arn} is spelt {found}; write that")
    if not config.cluster.admins and config.cluster.existing is None:
        yield warning("cluster.admins names nobody, so that nobody can use the cluster; name a role of yours")


# What CloudFormation does for the stacks, each the first action of its service that a deployment takes.
DEPLOYMENT_ACTIONS = (
    "codebuild:CreateProject",
    "ec2:CreateLaunchTemplate",
    "ec2:CreateVpc",
    "ec2:RunInstances",
    "ecr:CreateRepository",
    "eks:CreateCluster",
    "fsx:CreateFileSystem",
    "iam:CreateRole",
    "iam:CreateServiceLinkedRole",
    "kms:CreateKey",
    "logs:CreateLogGroup",
    "s3:CreateBucket",
)
# What the commands around a deployment do with the caller's own credentials.
OPERATING_ACTIONS = (
    "cloudformation:DescribeStacks",
    "codebuild:StartBuild",
    "eks:DescribeCluster",
    "logs:GetLogEvents",
    "s3:PutObject",
)


def permissions(config: PlatformConfig, clients: Clients) -> Iterator[Finding]:
    """The caller may take the CDK's roles and run the commands; the CDK's role may make what the stacks hold."""
    caller = clients["sts"].get_caller_identity()["Arn"]
    roles = f"{caller.partition(':sts:')[0].partition(':iam:')[0]}:iam::{config.account}:role/cdk-{QUALIFIER}"
    suffix = f"role-{config.account}-{config.region}"
    try:
        if caller.endswith(":root"):
            yield not_checked("permissions of the caller, who is the account's root; use a role")
        else:
            principal = _principal(caller, clients)
            assumed = [f"{roles}-{kind}-{suffix}" for kind in ("deploy", "file-publishing")]
            yield from _simulate(clients, principal, ["sts:AssumeRole"], assumed)
            yield from _simulate(clients, principal, list(OPERATING_ACTIONS), ["*"])
        yield from _simulate(clients, f"{roles}-cfn-exec-{suffix}", list(DEPLOYMENT_ACTIONS), ["*"])
    except ClientError as error:
        if is_denied(error):
            yield not_checked("permissions, since you may not iam:SimulatePrincipalPolicy and iam:GetRole")
        elif code_of(error) == "NoSuchEntity":
            yield not_checked("permissions of a role that does not exist; bootstrap the account first")
        else:
            raise


def _principal(caller: str, clients: Clients) -> str:
    """The ARN of the role behind a session, with its path, or of the user."""
    if ":assumed-role/" not in caller:
        return caller
    arn: str = clients["iam"].get_role(RoleName=caller.split("/")[1])["Role"]["Arn"]
    return arn


def _simulate(clients: Clients, principal: str, actions: list[str], resources: list[str]) -> Iterator[Finding]:
    results = pages(
        clients["iam"],
        "simulate_principal_policy",
        "EvaluationResults",
        PolicySourceArn=principal,
        ActionNames=actions,
        ResourceArns=resources,
    )
    for result in results:
        if result["EvalDecision"] != "allowed":
            on = "" if resources == ["*"] else f" on {result.get('EvalResourceName', resources[0])}"
            yield failed(f"{principal} may not {result['EvalActionName']}{on}; have its policies allow it")
