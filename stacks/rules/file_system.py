"""What FSx makes of a Lustre file system and its associations with a bucket."""

from __future__ import annotations

from collections.abc import Iterator

from config.platform import StorageConfig
from stacks.rules.templates import Properties, Resource, Templates, unknown_properties
from trainer.config import ConfigError, validate

KNOWN = frozenset(
    {
        "FileSystemType",
        "FileSystemTypeVersion",
        "LustreConfiguration",
        "SecurityGroupIds",
        "StorageCapacity",
        "StorageType",
        "SubnetIds",
        "Tags",
    }
)
KNOWN_OF_LUSTRE = frozenset(
    {
        "AutomaticBackupRetentionDays",
        "DataCompressionType",
        "DeploymentType",
        "EfaEnabled",
        "LogConfiguration",
        "MetadataConfiguration",
        "PerUnitStorageThroughput",
    }
)
REFUSED_OF_LUSTRE = frozenset({"AutoImportPolicy", "ExportPath", "ImportPath"})
EVENTS = frozenset({"NEW", "CHANGED", "DELETED"})
VERSION = "2.15"


def _lustre(resource: Resource) -> Properties:
    lustre: Properties = resource.properties.get("LustreConfiguration", {})
    return lustre


def properties_are_those_of_persistent_2(resource: Resource, _: Templates) -> Iterator[str]:
    """The one deployment type that takes associations, in the version that nodes speak, and nothing misspelt."""
    lustre = _lustre(resource)
    if lustre.get("DeploymentType") != "PERSISTENT_2":
        yield f"DeploymentType {lustre.get('DeploymentType')} must be PERSISTENT_2"
    if resource.properties.get("FileSystemTypeVersion") != VERSION:
        yield f"FileSystemTypeVersion {resource.properties.get('FileSystemTypeVersion')} must be {VERSION}"
    for name in sorted(lustre.keys() & REFUSED_OF_LUSTRE):
        yield f"LustreConfiguration.{name} must be absent: PERSISTENT_2 takes data by associations"
    yield from unknown_properties(resource.properties, KNOWN)
    yield from unknown_properties(lustre, KNOWN_OF_LUSTRE | REFUSED_OF_LUSTRE, where="LustreConfiguration.")


def sizes_are_those_that_fsx_sells(resource: Resource, _: Templates) -> Iterator[str]:
    """Capacity, throughput, compression and metadata, as the config knows them."""
    values = {
        "capacity_gib": resource.properties.get("StorageCapacity"),
        "throughput_mbps_per_tib": _lustre(resource).get("PerUnitStorageThroughput"),
        "compression": _lustre(resource).get("DataCompressionType"),
        "metadata_iops": _lustre(resource).get("MetadataConfiguration", {}).get("Iops"),
    }
    try:
        validate(StorageConfig, values, source="as a storage section")
    except ConfigError as error:
        yield str(error)


def it_stands_in_one_subnet(resource: Resource, _: Templates) -> Iterator[str]:
    """Lustre has one zone."""
    subnets = resource.properties.get("SubnetIds", [])
    if len(subnets) != 1:
        yield f"SubnetIds must name one subnet, got {len(subnets)}"


def it_has_no_backups(resource: Resource, _: Templates) -> Iterator[str]:
    """FSx refuses them beside a data repository, and they would outlive the stack."""
    if _lustre(resource).get("AutomaticBackupRetentionDays") != 0:
        yield "AutomaticBackupRetentionDays must be 0"


def efa_comes_with_metadata(resource: Resource, _: Templates) -> Iterator[str]:
    """FSx refuses EFA without a metadata configuration."""
    lustre = _lustre(resource)
    if lustre.get("EfaEnabled") and "MetadataConfiguration" not in lustre:
        yield "EfaEnabled needs a MetadataConfiguration"


def it_waits_for_the_rules_of_its_groups(resource: Resource, templates: Templates) -> Iterator[str]:
    """FSx tries its ports during creation."""
    for direction in ("Ingress", "Egress"):
        for rule in templates.resources(f"AWS::EC2::SecurityGroup{direction}"):
            if rule.stack == resource.stack and rule.id not in resource.depends_on:
                yield f"does not wait for {rule.id}"


def it_carries_changes_one_way(resource: Resource, _: Templates) -> Iterator[str]:
    """Events that exist, and a direction: files that travel both ways come back after they are deleted."""
    policies = resource.properties.get("S3", {})
    if len(policies) != 1 or not policies.keys() <= {"AutoImportPolicy", "AutoExportPolicy"}:
        yield f"S3 takes one of AutoImportPolicy and AutoExportPolicy, got {', '.join(policies) or 'none'}"
    for name, policy in policies.items():
        for event in set(policy.get("Events", [])) - EVENTS:
            yield f"{name} has event {event}, which is not one of {', '.join(sorted(EVENTS))}"


RULES = (
    properties_are_those_of_persistent_2,
    sizes_are_those_that_fsx_sells,
    it_stands_in_one_subnet,
    it_has_no_backups,
    efa_comes_with_metadata,
    it_waits_for_the_rules_of_its_groups,
)
ASSOCIATION_RULES = (it_carries_changes_one_way,)
