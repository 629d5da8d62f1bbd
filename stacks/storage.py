"""StorageStack: the FSx for Lustre file system, the S3 bucket behind it, and what flows between the two."""

from __future__ import annotations

from typing import Any, Literal

import aws_cdk as cdk
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_fsx as fsx
from aws_cdk import aws_logs as logs
from constructs import Construct

from config.platform import StorageConfig
from stacks.bucket import SharedBucket

# https://docs.aws.amazon.com/fsx/latest/LustreGuide/limit-access-security-groups.html
LUSTRE_PORTS = ((988, 988), (1018, 1023))
# Folders that show what is in the bucket, and those whose files go to it.
IMPORTED_FOLDERS = ("data", "models")
EXPORTED_FOLDERS = ("runs",)
EVERY_CHANGE = ["NEW", "CHANGED", "DELETED"]


class StorageStack(cdk.Stack):
    """What outlives a pod: files on Lustre while the platform lives, and objects in the bucket after it."""

    def __init__(
        self,
        scope: Construct,
        id_: str,
        *,
        platform: str,
        config: StorageConfig,
        teardown: Literal["retain", "delete"],
        vpc: ec2.IVpc,
        subnet_id: str,
        client_security_group: str,
        **kwargs: Any,
    ) -> None:
        super().__init__(scope, id_, **kwargs)
        self.bucket_name = config.bucket or SharedBucket(self, "Bucket", teardown=teardown).bucket.bucket_name
        self.file_system = self._file_system(platform, config, vpc, subnet_id, client_security_group)
        for folder in IMPORTED_FOLDERS:
            self._associate(folder, imports=EVERY_CHANGE)
        for folder in EXPORTED_FOLDERS:
            self._associate(folder, exports=EVERY_CHANGE)
        cdk.CfnOutput(self, "FileSystemId", value=self.file_system.ref)
        cdk.CfnOutput(self, "FileSystemDnsName", value=self.file_system.attr_dns_name)
        cdk.CfnOutput(self, "FileSystemMountName", value=self.file_system.attr_lustre_mount_name)
        cdk.CfnOutput(self, "BucketName", value=self.bucket_name)

    def _file_system(
        self, platform: str, config: StorageConfig, vpc: ec2.IVpc, subnet_id: str, clients: str
    ) -> fsx.CfnFileSystem:
        group = ec2.SecurityGroup(
            self, "FileServers", vpc=vpc, description="Lustre file servers", allow_all_outbound=False
        )
        log_group_name = f"/aws/fsx/{platform}"
        log_group = logs.CfnLogGroup(self, "FileSystemLogs", log_group_name=log_group_name, retention_in_days=30)
        log_group.apply_removal_policy(cdk.RemovalPolicy.DESTROY)
        file_system = fsx.CfnFileSystem(
            self,
            "FileSystem",
            file_system_type="LUSTRE",
            # The client in Amazon Linux 2023 speaks 2.15 and does not mount 2.10:
            # https://docs.aws.amazon.com/fsx/latest/LustreGuide/lustre-client-matrix.html
            file_system_type_version="2.15",
            storage_type="SSD",
            storage_capacity=config.capacity_gib,
            subnet_ids=[subnet_id],
            security_group_ids=[group.security_group_id],
            lustre_configuration=fsx.CfnFileSystem.LustreConfigurationProperty(
                deployment_type="PERSISTENT_2",
                per_unit_storage_throughput=config.throughput_mbps_per_tib,
                data_compression_type=config.compression,
                metadata_configuration=fsx.CfnFileSystem.MetadataConfigurationProperty(
                    mode="USER_PROVISIONED" if config.metadata_iops else "AUTOMATIC", iops=config.metadata_iops
                ),
                # A file system with a data repository takes no backups, and a backup would outlive the stack.
                automatic_backup_retention_days=0,
                # Says which objects could not be imported or exported, and why:
                # https://docs.aws.amazon.com/fsx/latest/LustreGuide/cw-event-logging.html
                log_configuration=fsx.CfnFileSystem.LogConfigurationProperty(
                    level="WARN_ERROR",
                    destination=self.format_arn(
                        service="logs",
                        resource="log-group",
                        resource_name=log_group_name,
                        arn_format=cdk.ArnFormat.COLON_RESOURCE_NAME,
                    ),
                ),
            ),
        )
        file_system.apply_removal_policy(cdk.RemovalPolicy.DESTROY)
        # FSx tries the ports while it creates the file system, and fails it where one is closed.
        file_system.node.add_dependency(log_group, *self._lustre_rules(group.security_group_id, clients))
        return file_system

    def _lustre_rules(self, servers: str, clients: str) -> list[cdk.CfnResource]:
        """Servers among themselves, and servers and clients with each other: in and out, on every port of Lustre."""
        rules: list[cdk.CfnResource] = []
        pairs = (
            ("Servers", servers, "Servers", servers),
            ("Servers", servers, "Clients", clients),
            ("Clients", clients, "Servers", servers),
        )
        for name, group, peer_name, peer in pairs:
            for first, last in LUSTRE_PORTS:
                rules.append(
                    ec2.CfnSecurityGroupIngress(
                        self,
                        f"{name}From{peer_name}{first}",
                        group_id=group,
                        source_security_group_id=peer,
                        ip_protocol="tcp",
                        from_port=first,
                        to_port=last,
                        description="Lustre",
                    )
                )
                rules.append(
                    ec2.CfnSecurityGroupEgress(
                        self,
                        f"{name}To{peer_name}{first}",
                        group_id=group,
                        destination_security_group_id=peer,
                        ip_protocol="tcp",
                        from_port=first,
                        to_port=last,
                        description="Lustre",
                    )
                )
        return rules

    def _associate(self, folder: str, *, imports: list[str] | None = None, exports: list[str] | None = None) -> None:
        """Tie a folder of the file system to the prefix of the bucket with the same name.

        The older import path of the file system itself is refused on PERSISTENT_2:
        https://docs.aws.amazon.com/fsx/latest/LustreGuide/create-dra-linked-data-repo.html
        """
        association = fsx.CfnDataRepositoryAssociation
        association(
            self,
            folder,
            file_system_id=self.file_system.ref,
            file_system_path=f"/{folder}",
            data_repository_path=f"s3://{self.bucket_name}/{folder}",
            # What the bucket already holds shows up, also after a file system was made anew.
            batch_import_meta_data_on_create=True,
            s3=association.S3Property(
                auto_import_policy=association.AutoImportPolicyProperty(events=imports) if imports else None,
                auto_export_policy=association.AutoExportPolicyProperty(events=exports) if exports else None,
            ),
        )
