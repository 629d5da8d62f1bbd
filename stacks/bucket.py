"""The bucket of data, models and runs, and what becomes of it when its stack is destroyed."""

from __future__ import annotations

from typing import Literal

import aws_cdk as cdk
from aws_cdk import aws_logs as logs
from aws_cdk import aws_s3 as s3
from constructs import Construct

# The CDK names its provider so, once a stack, and offers no other way to its Lambda.
EMPTYING_PROVIDER = "Custom::S3AutoDeleteObjectsCustomResourceProvider"
# Time to notice that an export carried a wrong deletion to the bucket, which costs little beside what it saves.
DAYS_TO_UNDO = 7


class SharedBucket(Construct):
    """A private bucket, encrypted by S3's own keys: a bucket that is kept must not depend on a key that goes.

    Under `retain` it stays after a destroy, and `storage.bucket` adopts it again. Under `delete` it is emptied first.
    """

    def __init__(self, scope: Construct, id_: str, *, teardown: Literal["retain", "delete"]) -> None:
        super().__init__(scope, id_)
        is_deleted = teardown == "delete"
        self.bucket = s3.Bucket(
            self,
            "Bucket",
            encryption=s3.BucketEncryption.S3_MANAGED,
            block_public_access=s3.BlockPublicAccess.BLOCK_ALL,
            object_ownership=s3.ObjectOwnership.BUCKET_OWNER_ENFORCED,
            enforce_ssl=True,
            versioned=True,
            lifecycle_rules=[
                s3.LifecycleRule(
                    id="undo",
                    noncurrent_version_expiration=cdk.Duration.days(DAYS_TO_UNDO),
                    expired_object_delete_marker=True,
                ),
                s3.LifecycleRule(
                    id="broken-uploads", abort_incomplete_multipart_upload_after=cdk.Duration.days(DAYS_TO_UNDO)
                ),
            ],
            removal_policy=cdk.RemovalPolicy.DESTROY if is_deleted else cdk.RemovalPolicy.RETAIN,
            auto_delete_objects=is_deleted,
        )
        if is_deleted:
            self._own_the_emptying_log()

    def _own_the_emptying_log(self) -> None:
        log_group = logs.CfnLogGroup(self, "EmptyingLogs", retention_in_days=30)
        log_group.apply_removal_policy(cdk.RemovalPolicy.DESTROY)
        provider = cdk.Stack.of(self).node.find_child(EMPTYING_PROVIDER)
        function, role = provider.node.find_child("Handler"), provider.node.find_child("Role")
        assert isinstance(function, cdk.CfnResource), "the provider's handler is a resource"
        assert isinstance(role, cdk.CfnResource), "the provider's role is a resource"
        # The function names its role anyway, and cfn-lint reports the repetition.
        function.remove_resource_dependency(role)
        function.add_property_override("LoggingConfig", {"LogGroup": log_group.ref})
