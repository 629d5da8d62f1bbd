"""cdk-nag's AwsSolutions rules: everything they find is named here with the reason why it stays."""

from __future__ import annotations

import json
from pathlib import Path

import aws_cdk as cdk
import pytest
from cdk_nag import AwsSolutionsChecks

from app import build_app, new_app
from config.platform import PlatformConfig
from tests.synthesis import SHIPPED, config_from, values_of

MANAGED = "AwsSolutions-IAM4[Policy::arn:<AWS::Partition>:iam::aws:policy/"
NODE_POLICIES = "Documented for nodes, and kept by AWS in step with what kubelet and nodeadm call"

# Rule and the end of the construct's path, to the reason.
ACKNOWLEDGED = {
    (
        f"{MANAGED}AmazonEKSClusterPolicy]",
        "-cluster/ControlPlane/Role/Resource",
    ): "EKS demands this very policy of a cluster's role",
    (
        f"{MANAGED}AmazonEKS_CNI_Policy]",
        "-cluster/vpc-cni-role/Resource",
    ): "Documented for the CNI, which changes with it",
    (
        f"{MANAGED}service-role/AmazonEBSCSIDriverPolicy]",
        "-cluster/aws-ebs-csi-driver-role/Resource",
    ): "Documented for the driver, and limited to volumes that it tagged",
    (f"{MANAGED}AmazonEKSWorkerNodePolicy]", "-cluster/SystemNodeRole/Role/Resource"): NODE_POLICIES,
    (f"{MANAGED}AmazonEKSWorkerNodePolicy]", "-node-groups/NodeRole/Role/Resource"): NODE_POLICIES,
    (f"{MANAGED}AmazonEC2ContainerRegistryPullOnly]", "-cluster/SystemNodeRole/Role/Resource"): NODE_POLICIES,
    (f"{MANAGED}AmazonEC2ContainerRegistryPullOnly]", "-node-groups/NodeRole/Role/Resource"): NODE_POLICIES,
    (
        "AwsSolutions-IAM5[Resource::arn:aws:fsx:REGION:111122223333:file-system/*]",
        "-cluster/aws-fsx-csi-driver-role/DefaultPolicy/Resource",
    ): "Looks only, and the one file system has its id from a later stack",
    ("AwsSolutions-IAM5[Resource::*]", "-registry/ImageBuild/Permissions/Resource"): (
        "ECR gives login tokens for the account, not for a repository"
    ),
    ("AwsSolutions-CB4", "-registry/ImageBuild/Project"): "Writes no artifacts that a key could encrypt",
    (
        "AwsSolutions-EKS1",
        "-cluster/ControlPlane/Cluster",
    ): "Public to the networks that the config names, and never to everybody",
    (
        "AwsSolutions-S1",
        "-storage/Bucket/Bucket/Resource",
    ): "Access logs need a second bucket that outlives the platform; CloudTrail's data events do the same per account",
}


def findings(config: PlatformConfig, folder: Path) -> set[tuple[str, str]]:
    """Rule and construct path, without what tells platforms apart."""
    app = new_app(outdir=str(folder))
    build_app(app, config)
    cdk.Validations.of(app).add_plugins(AwsSolutionsChecks(app))
    with pytest.raises(RuntimeError, match="ValidationFailed"):
        app.synth()
    (report,) = json.loads((folder / "validation-report.json").read_text())["pluginReports"]
    assert report["pluginName"] == "AwsSolutions"
    return {
        (
            violation["ruleName"].replace(config.region, "REGION"),
            construct["constructPath"].removeprefix(config.name),
        )
        for violation in report["violations"]
        for construct in violation["violatingConstructs"]
    }


@pytest.mark.parametrize("name", SHIPPED)
def test_nag_finds_nothing_that_is_not_acknowledged_with_a_reason(name: str, tmp_path: Path) -> None:
    assert findings(config_from(values_of(name)), tmp_path) - ACKNOWLEDGED.keys() == set()


def test_every_acknowledgement_is_of_something_that_is_found(tmp_path: Path) -> None:
    """One that is no longer needed would hide the next finding."""
    assert findings(config_from(values_of("p5-4xlarge-on-demand")), tmp_path) == ACKNOWLEDGED.keys()


def test_a_private_endpoint_needs_no_acknowledgement(tmp_path: Path) -> None:
    values = values_of("p5-capacity-block")
    del values["cluster"]["public_access_cidrs"]
    assert ("AwsSolutions-EKS1", "-cluster/ControlPlane/Cluster") not in findings(config_from(values), tmp_path)
