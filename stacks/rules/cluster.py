"""What EKS makes of a cluster, and who may reach it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import get_args

from config.platform import KubernetesVersion
from stacks.rules.templates import Resource, Templates

ANYONE = "0.0.0.0/0"


def the_version_is_supported(resource: Resource, _: Templates) -> Iterator[str]:
    """One in standard support."""
    version = resource.properties.get("Version")
    if version not in get_args(KubernetesVersion):
        yield f"Version {version} is not one of {', '.join(get_args(KubernetesVersion))}"


def the_api_server_is_not_open_to_the_world(resource: Resource, _: Templates) -> Iterator[str]:
    """Private, or public to named networks. EKS's own default is everybody."""
    vpc = resource.properties.get("ResourcesVpcConfig", {})
    cidrs = vpc.get("PublicAccessCidrs", [ANYONE])
    if vpc.get("EndpointPublicAccess", True) and ANYONE in cidrs:
        yield f"the API server is open to {ANYONE}; name PublicAccessCidrs or close the public endpoint"
    if vpc.get("EndpointPrivateAccess") is not True:
        yield "EndpointPrivateAccess must be true, or nodes leave the VPC to reach the API server"


def secrets_are_encrypted(resource: Resource, _: Templates) -> Iterator[str]:
    """By a key of the account."""
    if not any("secrets" in config.get("Resources", []) for config in resource.properties.get("EncryptionConfig", [])):
        yield "EncryptionConfig must cover secrets"


def access_is_granted_by_entries_alone(resource: Resource, _: Templates) -> Iterator[str]:
    """So that a list shows who administers the cluster."""
    access = resource.properties.get("AccessConfig", {})
    if access.get("AuthenticationMode") != "API":
        yield f"AuthenticationMode {access.get('AuthenticationMode')} must be API"
    if access.get("BootstrapClusterCreatorAdminPermissions") is not False:
        yield "BootstrapClusterCreatorAdminPermissions must be false, or whoever deploys is an unlisted administrator"


def its_log_group_is_there_first(resource: Resource, templates: Templates) -> Iterator[str]:
    """Or EKS makes one that nothing ends and nothing deletes."""
    name = f"/aws/eks/{resource.properties.get('Name')}/cluster"
    groups = [
        group for group in templates.resources("AWS::Logs::LogGroup") if group.properties.get("LogGroupName") == name
    ]
    if not any(group.id in resource.depends_on for group in groups):
        yield f"does not wait for a log group {name} of its stack"


RULES = (
    the_version_is_supported,
    the_api_server_is_not_open_to_the_world,
    secrets_are_encrypted,
    access_is_granted_by_entries_alone,
    its_log_group_is_there_first,
)
