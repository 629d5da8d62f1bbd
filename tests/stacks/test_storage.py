from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.synthesis import Synthesized, config_from, values_of

LUSTRE_PORTS = {(988, 988), (1018, 1023)}


def file_system(platform: Synthesized) -> dict[str, Any]:
    properties: dict[str, Any] = platform.one("storage", "AWS::FSx::FileSystem")["Properties"]
    return properties


def associations(platform: Synthesized) -> dict[str, dict[str, Any]]:
    """Folder of the file system to its association's properties."""
    found = platform.resources("storage", "AWS::FSx::DataRepositoryAssociation").values()
    return {association["Properties"]["FileSystemPath"]: association["Properties"] for association in found}


def rules(platform: Synthesized) -> set[tuple[str, str, str, int, int]]:
    """Direction, group, peer and ports of every rule of the storage stack, with groups as `servers` and `clients`."""

    def name(reference: dict[str, Any]) -> str:
        return "servers" if "Fn::GetAtt" in reference else "clients"

    found: set[tuple[str, str, str, int, int]] = set()
    for type_, peer in (("Ingress", "SourceSecurityGroupId"), ("Egress", "DestinationSecurityGroupId")):
        for resource in platform.resources("storage", f"AWS::EC2::SecurityGroup{type_}").values():
            p = resource["Properties"]
            assert p["IpProtocol"] == "tcp"
            found.add((type_, name(p["GroupId"]), name(p[peer]), p["FromPort"], p["ToPort"]))
    return found


def test_lustre_flows_between_servers_and_between_servers_and_clients(platform: Synthesized) -> None:
    """FSx fails to create the file system where 988 is closed, and mounts hang where 1018 to 1023 are."""
    pairs = {("servers", "servers"), ("servers", "clients"), ("clients", "servers")}
    expected = {
        (direction, group, peer, *ports)
        for direction in ("Ingress", "Egress")
        for group, peer in pairs
        for ports in LUSTRE_PORTS
    }
    assert rules(platform) == expected


def test_clients_are_the_group_of_the_nodes_primary_interface(platform: Synthesized) -> None:
    efa_group = platform.one("network", "AWS::EC2::SecurityGroupEgress")["Properties"]["GroupId"]
    (output,) = [n for n, o in platform.templates["network"]["Outputs"].items() if o["Value"] == efa_group]
    clients = [
        resource["Properties"]["GroupId"]["Fn::GetStackOutput"]["OutputName"]
        for resource in platform.resources("storage", "AWS::EC2::SecurityGroupEgress").values()
        if "Fn::GetStackOutput" in resource["Properties"]["GroupId"]
    ]
    assert set(clients) == {output}
    template = platform.one("node-groups", "AWS::EC2::LaunchTemplate")["Properties"]["LaunchTemplateData"]
    primary = template["NetworkInterfaces"][0]
    assert output in [group["Fn::GetStackOutput"]["OutputName"] for group in primary["Groups"]]


def test_the_file_system_waits_for_every_rule(platform: Synthesized) -> None:
    """FSx tries the ports at once, and a rule that comes a second later comes too late."""
    depends_on = set(platform.one("storage", "AWS::FSx::FileSystem")["DependsOn"])
    needed = {
        id_
        for type_ in ("Ingress", "Egress")
        for id_ in platform.resources("storage", f"AWS::EC2::SecurityGroup{type_}")
    }
    assert needed <= depends_on


def test_the_file_servers_admit_nobody_else(platform: Synthesized) -> None:
    (group,) = platform.resources("storage", "AWS::EC2::SecurityGroup").values()
    assert "SecurityGroupIngress" not in group["Properties"]
    (placeholder,) = group["Properties"]["SecurityGroupEgress"]
    assert placeholder["CidrIp"] == "255.255.255.255/32"


def test_the_file_system_is_in_the_one_subnet_of_the_gpu_nodes(platform: Synthesized) -> None:
    """In another zone every byte of training data crosses zones, at a price each way."""
    nodes = platform.one("node-groups", "AWS::EKS::Nodegroup")["Properties"]
    assert file_system(platform)["SubnetIds"] == nodes["Subnets"]
    assert len(nodes["Subnets"]) == 1


def test_servers_speak_the_version_that_the_nodes_clients_speak(platform: Synthesized) -> None:
    """Clients of Amazon Linux 2023 fail to mount 2.10 with a message about the file system's type."""
    assert file_system(platform)["FileSystemTypeVersion"] == "2.15"


def test_the_file_system_is_of_the_size_and_speed_that_were_asked_for(platform: Synthesized) -> None:
    properties = file_system(platform)
    lustre = properties["LustreConfiguration"]
    assert properties["StorageCapacity"] == platform.config.storage.capacity_gib
    assert lustre["DeploymentType"] == "PERSISTENT_2"
    assert lustre["PerUnitStorageThroughput"] == platform.config.storage.throughput_mbps_per_tib
    assert lustre["DataCompressionType"] == platform.config.storage.compression
    assert lustre["MetadataConfiguration"] == {"Mode": "AUTOMATIC"}


def test_metadata_performance_is_bought_only_where_it_is_named(synthesize: Callable[..., Synthesized]) -> None:
    values = values_of("p5-capacity-block")
    values["storage"]["metadata_iops"] = 12000
    lustre = file_system(synthesize(config_from(values)))["LustreConfiguration"]
    assert lustre["MetadataConfiguration"] == {"Mode": "USER_PROVISIONED", "Iops": 12000}


def test_data_comes_by_associations_and_not_by_an_import_path(platform: Synthesized) -> None:
    """PERSISTENT_2 refuses the import path of older file systems, after a quarter of an hour."""
    lustre = file_system(platform)["LustreConfiguration"]
    assert not lustre.keys() & {"ImportPath", "ExportPath", "AutoImportPolicy"}
    assert set(associations(platform)) == {"/data", "/models", "/runs"}


def test_data_and_models_come_from_the_bucket_and_runs_go_to_it(platform: Synthesized) -> None:
    """A run that was also imported would come back after it was deleted on one side."""
    every_change = ["NEW", "CHANGED", "DELETED"]
    for folder, properties in associations(platform).items():
        policy = "AutoExportPolicy" if folder == "/runs" else "AutoImportPolicy"
        assert properties["S3"] == {policy: {"Events": every_change}}
        assert properties["BatchImportMetaDataOnCreate"] is True


def test_a_folder_lies_in_the_bucket_under_its_own_name(platform: Synthesized) -> None:
    (bucket_id,) = platform.resources("storage", "AWS::S3::Bucket")
    for folder, properties in associations(platform).items():
        assert properties["DataRepositoryPath"] == {"Fn::Join": ["", ["s3://", {"Ref": bucket_id}, folder]]}


def test_no_backup_outlives_the_file_system(platform: Synthesized) -> None:
    """FSx refuses backups of a file system with a data repository, and a backup bills on after a destroy."""
    assert file_system(platform)["LustreConfiguration"]["AutomaticBackupRetentionDays"] == 0
    assert platform.one("storage", "AWS::FSx::FileSystem")["DeletionPolicy"] == "Delete"


def test_failed_imports_and_exports_are_logged_in_a_group_of_the_stack(platform: Synthesized) -> None:
    (group_id,) = [
        id_
        for id_, group in platform.resources("storage", "AWS::Logs::LogGroup").items()
        if group["Properties"].get("LogGroupName") == f"/aws/fsx/{platform.config.name}"
    ]
    log = file_system(platform)["LustreConfiguration"]["LogConfiguration"]
    assert log["Level"] == "WARN_ERROR"
    assert log["Destination"].endswith(f":log-group:/aws/fsx/{platform.config.name}")
    assert group_id in platform.one("storage", "AWS::FSx::FileSystem")["DependsOn"]


@pytest.mark.parametrize("teardown", ["retain", "delete"])
def test_an_adopted_bucket_is_used_and_never_owned(synthesize: Callable[..., Synthesized], teardown: str) -> None:
    """A stack that owned it would change its policy, and delete it at the end."""
    values = values_of("p5-capacity-block")
    values["teardown"] = teardown
    values["storage"]["bucket"] = "team-data"
    platform = synthesize(config_from(values))
    assert not platform.resources("storage", "AWS::S3::Bucket")
    assert not platform.resources("storage", "AWS::S3::BucketPolicy")
    assert not list(platform.every("AWS::Lambda::Function"))
    assert associations(platform)["/data"]["DataRepositoryPath"] == "s3://team-data/data"
    assert platform.templates["storage"]["Outputs"]["BucketName"]["Value"] == "team-data"
